"""The file with the CustomResourceDefinitions of UltraServers, from which chart and installer take them."""

from __future__ import annotations

from typing import Final

import yaml

from dra_driver.ultraserver.definitions import DEFINITIONS

PATH: Final = "charts/neuron-helm-chart/files/ultraserver-definitions.yaml"
HEAD: Final = "# Made by `scripts/generate definitions` from dra_driver/ultraserver/definitions.py; do not edit.\n"


class _Plain(yaml.SafeDumper):
    """Writes what stands in several places in each of them."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def manifest() -> str:
    """The file."""
    texts = (yaml.dump(item, Dumper=_Plain, sort_keys=False, width=118) for item in DEFINITIONS)
    return HEAD + "---\n".join(texts)

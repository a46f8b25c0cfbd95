"""Files as people write them for kubectl: the name ``n`` in quotes, since without them it is false."""

from __future__ import annotations

from typing import Any

import yaml

from dra_driver.kube.scalars import Dumper


def as_yaml(*documents: Any) -> str:
    """The documents of a file."""
    return "---\n".join(yaml.dump(document, Dumper=Dumper) for document in documents)

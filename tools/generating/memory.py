"""The table of ``docs/develop/measurements.md`` that says how much memory each container of the chart needs at most."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from generating.blocks import filled

_ROOT: Final = Path(__file__).resolve().parents[2]
_BOUNDS: Final = "tests/data/memory.json"
_VALUES: Final = "charts/neuron-helm-chart/values.yaml"


def memory() -> Iterator[str]:
    """A row for each container, with a column for each load."""
    rows = json.loads((_ROOT / _BOUNDS).read_text())
    values = yaml.safe_load((_ROOT / _VALUES).read_text())
    loads = list(dict.fromkeys(load for row in rows.values() for load in row["MiB"]))
    yield f"| container | {' | '.join(loads)} | limit |"
    yield f"|---|{'---:|' * len(loads)}---|"
    for name, row in rows.items():
        bounds = " | ".join(str(row["MiB"].get(load, "")) for load in loads)
        yield f"| `{name}` | {bounds} | {_limit(values, row['values'])} (`{row['values']}.resources`) |"


def _limit(values: Any, workload: str) -> str:
    for part in workload.split("."):
        values = values[part]
    return str(values["resources"]["limits"]["memory"])


TABLES: Final[Mapping[str, Callable[[], Iterator[str]]]] = {"memory": memory}


def page(text: str) -> str:
    """The page with the table as it should be."""
    return filled(text, TABLES)

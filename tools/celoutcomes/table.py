"""The table of recorded outcomes: expressions by devices, and quantities, with Kubernetes' results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Outcome = dict[str, Any]
"""A recorder's result for one expression or quantity; see `recorder.outcome` and `Recorder.ask_quantities`."""

_ABOUT = "Recorded with Kubernetes' own code by scripts/record-cel-outcomes; its --help says how to add to it."


@dataclass(frozen=True)
class Table:
    """The table.

    Attributes:
        devices: Name to ``{"driver", "device"}``, the device as in a ResourceSlice.
        outcomes: Expression to minor version (1.36) to outcome; the results are in the order of the devices.
        quantities: Text to minor version to outcome.
    """

    devices: Mapping[str, Mapping[str, Any]]
    outcomes: Mapping[str, Mapping[str, Outcome]]
    quantities: Mapping[str, Mapping[str, Outcome]]

    @property
    def expressions(self) -> tuple[str, ...]:
        """Expressions in the table's order."""
        return tuple(self.outcomes)


def read(path: Path) -> Table:
    """Read a table."""
    content = json.loads(path.read_text())
    versions = [minor(version) for version in content["kubernetes"]]
    return Table(
        content["devices"],
        _outcomes(content["expressions"], "expression", versions),
        _outcomes(content["quantities"], "quantity", versions),
    )


def _outcomes(
    rows: Sequence[Mapping[str, Any]], asked: str, versions: Sequence[str]
) -> dict[str, Mapping[str, Outcome]]:
    outcomes: dict[str, Mapping[str, Outcome]] = {}
    for row in rows:
        same = {key: value for key, value in row.items() if key not in {asked, *versions}}
        outcomes[row[asked]] = {version: row.get(version, same) for version in versions}
    return outcomes


def text(table: Table, versions: Sequence[str]) -> str:
    """The table as JSON, one entry per line; outcomes are listed by version only if the versions differ."""
    rows = (json.dumps(_row("expression", *row)) for row in table.outcomes.items())
    quantities = (json.dumps(_row("quantity", *row)) for row in table.quantities.items())
    devices = (f"{json.dumps(name)}: {json.dumps(device)}" for name, device in table.devices.items())
    return (
        f'{{"about": {json.dumps(_ABOUT)},\n"kubernetes": {json.dumps(list(versions))},\n'
        f'"devices": {{\n{_lines(devices)}\n}},\n"expressions": [\n{_lines(rows)}\n],\n'
        f'"quantities": [\n{_lines(quantities)}\n]}}\n'
    )


def minor(version: str) -> str:
    """The minor version, such as 1.36 for 1.36.3."""
    return ".".join(version.split(".")[:2])


def _row(kind: str, asked: str, by_version: Mapping[str, Outcome]) -> dict[str, Any]:
    first, *others = by_version.values()
    same = all(other == first for other in others)
    return {kind: asked, **(first if same else by_version)}


def _lines(rows: Iterable[str]) -> str:
    return ",\n".join(rows)

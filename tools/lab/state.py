"""The state stored in a cluster's directory, which allows any later command to continue with the cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab import files, spec
from lab.layout import ClusterLayout
from lab.spec import ClusterSpec


@dataclass(frozen=True)
class State:
    """A cluster as it was started.

    Attributes:
        phase: `starting` until every node was Ready once; a state that remains there was left by a killed run.
        spec: The specification.
        programs: The programs that it runs, by name; `kubelet` is that of the nodes.
    """

    phase: Literal["starting", "ready"]
    spec: ClusterSpec
    programs: dict[str, Path]


def save(layout: ClusterLayout, state: State) -> None:
    """Write the state."""
    values = {
        "phase": state.phase,
        "spec": json.loads(spec.encode(state.spec)),
        "programs": {name: str(path) for name, path in state.programs.items()},
    }
    files.write(layout.state_file, json.dumps(values, indent=1))


def load(layout: ClusterLayout) -> State | None:
    """Return the state; None if there is none or it cannot be read, for example after a kill at the very beginning."""
    try:
        values = json.loads(layout.state_file.read_text())
        return State(
            phase="ready" if values["phase"] == "ready" else "starting",
            spec=spec.decode(json.dumps(values["spec"])),
            programs={name: Path(path) for name, path in values["programs"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def layouts(directory: Path) -> list[ClusterLayout]:
    """Return the layout of every cluster that has a directory."""
    if not directory.is_dir():
        return []
    found = sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [ClusterLayout(path.name, path) for path in found]

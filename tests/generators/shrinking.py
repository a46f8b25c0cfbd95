"""Reduces a case while it keeps failing: many single steps are tried at once, because a cluster can run many."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.generators.simulator_cases import Object

Path = tuple[str | int, ...]

_KEPT = frozenset({"name", "metadata", "spec", "driver", "pool", "key"})
"""Keys that are kept, because the object is meaningless without them."""


def shrunk(case: Object, fails: Callable[[Sequence[Object]], Sequence[bool]], *, seconds: float, width: int) -> Object:
    """A small case for which ``fails`` is true, from which nothing more can be removed, unless the time was too short.

    Args:
        case: a failing case.
        fails: reports for many cases at once which of them fail; an invalid case does not fail.
        seconds: time limit.
        width: number of cases to try at once.
    """
    end = time.monotonic() + seconds
    place, before = 0, case
    while time.monotonic() < end:
        paths = _removable(case)[place : place + width]
        if not paths:
            if before is case:
                break
            place, before = 0, case
            continue
        verdicts = fails([without(case, [path]) for path in paths])
        needless = [path for path, failed in zip(paths, verdicts, strict=True) if failed]
        together = without(case, needless)
        if len(needless) > 1 and fails([together])[0]:
            case = together
        elif needless:
            case = without(case, needless[:1])
        else:
            place += width
    return case


def size(value: object) -> int:
    """The measure to minimise."""
    return len(json.dumps(value))


def without(case: Object, paths: Sequence[Path]) -> Object:
    """The case without the values at these paths, and without references to them."""
    made: Object = json.loads(json.dumps(case))
    for path in sorted(paths, reverse=True):
        parent: Any = made
        for key in path[:-1]:
            parent = parent[key]
        gone = parent.pop(path[-1])
        if path[0] == "slices" and len(path) == 2:
            _recount(made, gone)
        if path[0] == "nodes" and len(path) == 2:
            _forget_node(made, gone["metadata"]["name"])
    return made


def _removable(case: Object) -> list[Path]:
    """Paths of values that can be removed, the largest first."""
    return [
        path for _, path in sorted(((size(item), path) for path, item in _parts(case, ())), key=lambda pair: -pair[0])
    ]


def _parts(value: object, path: Path) -> Iterator[tuple[Path, object]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield (*path, index), item
            yield from _parts(item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            # The four lists of a case are kept, and the fields of a pod.
            if path and key not in _KEPT and not (path[0] == "pods" and len(path) == 2):
                yield (*path, key), item
            yield from _parts(item, (*path, key))


def _recount(made: Object, gone: Object) -> None:
    """If a slice was removed, decrement the number of slices of its pool."""
    spec = gone["spec"]
    for item in made["slices"]:
        other = item["spec"]
        if other["driver"] == spec["driver"] and other["pool"] == spec["pool"]:
            other["pool"] = {**other["pool"], "resourceSliceCount": max(1, spec["pool"]["resourceSliceCount"] - 1)}


def _forget_node(made: Object, name: str) -> None:
    for pod in made["pods"]:
        pod["nodes"] = [item for item in pod["nodes"] if item != name]

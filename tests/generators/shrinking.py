"""Making a case smaller while it stays what it is: many single steps are tried at once, as a cluster answers many."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.generators.simulator_cases import Object

Path = tuple[str | int, ...]

_KEPT = frozenset({"name", "metadata", "spec", "driver", "pool", "key"})
"""What stays, since nothing is left of the object without it."""


def shrunk(case: Object, fails: Callable[[Sequence[Object]], Sequence[bool]], *, seconds: float, width: int) -> Object:
    """A small case for which ``fails`` is true: nothing more can be left out of it, unless the time was too short.

    Args:
        case: one that fails.
        fails: says of many cases at once which of them fail; one that is illegal does not.
        seconds: how long to go on.
        width: how many cases are asked at once.
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
    """What is to become small."""
    return len(json.dumps(value))


def without(case: Object, paths: Sequence[Path]) -> Object:
    """The case without what lies at these paths, and without what would dangle then."""
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
    """Paths of what can be left out, the largest first."""
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
            # The four lists of a case stay, and what a pod has.
            if path and key not in _KEPT and not (path[0] == "pods" and len(path) == 2):
                yield (*path, key), item
            yield from _parts(item, (*path, key))


def _recount(made: Object, gone: Object) -> None:
    """Without one slice, its pool is one smaller."""
    spec = gone["spec"]
    for item in made["slices"]:
        other = item["spec"]
        if other["driver"] == spec["driver"] and other["pool"] == spec["pool"]:
            other["pool"] = {**other["pool"], "resourceSliceCount": max(1, spec["pool"]["resourceSliceCount"] - 1)}


def _forget_node(made: Object, name: str) -> None:
    for pod in made["pods"]:
        pod["nodes"] = [item for item in pod["nodes"] if item != name]

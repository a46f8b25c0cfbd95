"""Objects that make pods and make none now: those that are suspended, finished or scaled to zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

Json = dict[str, Any]
Path = tuple[str, ...]

QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Label of a workload that Kueue resumes when its turn comes."""
_SWITCHES: Final[tuple[Path, ...]] = (("spec", "suspend"), ("spec", "runPolicy", "suspend"))
_SCALED: Final = frozenset(
    {"Deployment", "ReplicaSet", "StatefulSet", "ReplicationController", "LeaderWorkerSet", "Rollout"}
)


FINISHED: Final = "finished"
_ENDS: Final = frozenset({"Complete", "Completed", "Succeeded", "Failed"})
"""Conditions of jobs of Kubernetes, JobSet and Kubeflow that have ended."""


def idle(value: Json) -> str:
    """Why the object makes no pods: ``finished``, ``suspended``, ``scaled to zero``, or ""."""
    if str(value.get("kind")).endswith(("Job", "JobSet")) and _has_ended(_at(value, ("status", "conditions"))):
        return FINISHED
    if any(_at(value, path) is True for path in _SWITCHES):
        return "suspended"
    return "scaled to zero" if value.get("kind") in _SCALED and _at(value, ("spec", "replicas")) == 0 else ""


def _has_ended(conditions: Any) -> bool:
    return isinstance(conditions, list) and any(
        isinstance(item, dict) and item.get("type") in _ENDS and item.get("status") == "True" for item in conditions
    )


def waits(value: Json) -> bool:
    """Whether a queue resumes it."""
    labels = _at(value, ("metadata", "labels"))
    return isinstance(labels, dict) and QUEUE in labels


def resumed(value: Json) -> Json:
    """The object as it is once it is resumed; with one replica, where it has none."""
    made = value
    for path in _SWITCHES:
        if _at(value, path) is True:
            made = _replaced(made, path, False)
    return _replaced(made, ("spec", "replicas"), 1) if _at(value, ("spec", "replicas")) == 0 else made


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _replaced(value: Json, path: Path, by: Any) -> Json:
    first, *rest = path
    return {**value, first: _replaced(value[first], tuple(rest), by) if rest else by}


_BEYOND: Final = {
    "dependsOn": "dependsOn (all are placed at once)",
    "scheduling": "scheduling (each pod has claims of its own; a group that shares one needs fewer devices)",
    "spares": "spares (the replicas alone are placed)",
}


def beyond(value: Json) -> Iterator[str]:
    """What the object says of its pods as a group, and is not considered."""
    waiting: list[tuple[int, Any]] = [(0, value.get("spec"))]
    while waiting:
        level, part = waiting.pop()
        if isinstance(part, dict):
            yield from (text for name, text in _BEYOND.items() if part.get(name))
        below = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        waiting += [(level + 1, item) for item in below if isinstance(item, dict | list) and level < _LEVELS]


_LEVELS: Final = 3
"""From ``spec`` to the last level at which JobSet, Job, CronJob and HyperPodPyTorchJob have such fields."""

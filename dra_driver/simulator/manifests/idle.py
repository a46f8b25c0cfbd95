"""Objects that make pods: whether they make none now, and what they say of their pods as a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dra_driver.kube.documents import children

Json = dict[str, Any]
Path = tuple[str, ...]

QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Label of a workload that Kueue resumes when its turn comes."""
_LABELS: Final = ("metadata", "labels")
_OF_RUN: Final = ("spec", "jobTemplate")
_SWITCHES: Final[Mapping[Path, Path]] = {
    ("spec", "suspend"): _LABELS,
    ("spec", "runPolicy", "suspend"): _LABELS,
    (*_OF_RUN, "spec", "suspend"): (*_OF_RUN, *_LABELS),
}
"""What suspends an object -> the labels of what a queue would resume."""

FINISHED: Final = "finished"
SUSPENDED: Final = "suspended"
SCALED_TO_ZERO: Final = "scaled to zero"
_ENDS: Final = frozenset({"Complete", "Completed", "Succeeded", "Failed"})
"""Conditions of jobs of Kubernetes, JobSet and Kubeflow that have ended."""


def idle(value: Json) -> str:
    """Why the object as a whole makes no pods: ``finished``, ``suspended``, or ""."""
    if str(value.get("kind")).endswith(("Job", "JobSet")) and _has_ended(_at(value, ("status", "conditions"))):
        return FINISHED
    return SUSPENDED if any(_at(value, path) is True for path in _SWITCHES) else ""


def _has_ended(conditions: Any) -> bool:
    return isinstance(conditions, list) and any(
        isinstance(item, dict) and item.get("type") in _ENDS and item.get("status") == "True" for item in conditions
    )


def waits(value: Json) -> bool:
    """Whether a queue resumes whatever suspends it."""
    label_maps = [_at(value, below) for path, below in _SWITCHES.items() if _at(value, path) is True]
    return all(isinstance(labels, dict) and QUEUE in labels for labels in label_maps)


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


_ONE_BY_ONE: Final = "each pod is placed by itself, with claims of its own; a group that shares one needs fewer devices"
_BEYOND: Final = {
    "dependsOn": "dependsOn (all are placed at once)",
    "scheduling": f"scheduling ({_ONE_BY_ONE})",
    "spares": "spares (the replicas alone are placed)",
}


def beyond(value: Json) -> Iterator[str]:
    """What the object says of its pods as a group, and is not considered."""
    waiting: list[tuple[int, Any]] = [(0, value.get("spec"))]
    while waiting:
        level, part = waiting.pop()
        if isinstance(part, dict):
            yield from (text for name, text in _BEYOND.items() if part.get(name))
        if level < _LEVELS:
            waiting += [(level + 1, item) for _, item in children(part) if isinstance(item, dict | list)]


_LEVELS: Final = 3
"""From ``spec`` to the last level at which JobSet, Job, CronJob and HyperPodPyTorchJob have such fields."""

"""What this process has chosen for pods, from before it is written until the pod is gone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from dra_driver.legacy.annotations import Allocation, Share
from dra_driver.legacy.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was chosen for a pod.

    Attributes:
        key: ``namespace/name`` of the pod.
        node: where.
        allocation: what.
        written: when the API server has confirmed it (monotonic clock); None before that.
    """

    key: str
    node: str
    allocation: Allocation
    written: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice as it is reported.

    Attributes:
        hardware: of the node.
        shares: by container.
        before: cores that were taken.
        after: cores that are taken with it.
    """

    hardware: Hardware
    shares: tuple[Share, ...]
    before: int
    after: int


class Choices:
    """By UID of the pod, and by node. Not thread-safe."""

    def __init__(self) -> None:
        self._chosen: dict[str, Chosen] = {}
        self._on: dict[str, set[str]] = {}

    def get(self, uid: str) -> Chosen | None:
        """What was chosen for a pod."""
        return self._chosen.get(uid)

    def on(self, node: str) -> Collection[str]:
        """UIDs of the pods for which something was chosen on a node."""
        return self._on.get(node, ())

    def all(self) -> list[tuple[str, Chosen]]:
        """Everything, by UID."""
        return list(self._chosen.items())

    def put(self, uid: str, chosen: Chosen) -> None:
        """Remember; what was chosen for the pod before must be forgotten."""
        self._chosen[uid] = chosen
        self._on.setdefault(chosen.node, set()).add(uid)

    def confirm(self, uid: str, now: float) -> None:
        """The API server has written it."""
        chosen = self._chosen.get(uid)
        if chosen is not None:
            self._chosen[uid] = replace(chosen, written=now)

    def drop(self, uid: str) -> Chosen | None:
        """Forget; what it was."""
        chosen = self._chosen.pop(uid, None)
        if chosen is not None:
            there = self._on[chosen.node]
            there.discard(uid)
            if not there:
                del self._on[chosen.node]
        return chosen

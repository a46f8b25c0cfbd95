"""What the publisher's worker is told, by whichever thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dra_driver.kube.api import WatchEvent
from dra_driver.kube.types import Device, ResourceSlice


@dataclass(frozen=True, slots=True)
class Desired:
    """The devices to publish from now on."""

    devices: tuple[Device, ...]
    fallback: tuple[Device, ...] = ()
    """Published instead where ``devices`` consume counters and the server cannot be trusted with them."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Look at once."""

    reason: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The watch saw these slices: all there are (``complete``), or one that exists or (version None) is gone."""

    versions: dict[str, str | None]
    complete: bool

    def differs(self, known: dict[str, str]) -> bool:
        """Whether it is news to somebody who knows these resource versions by name."""
        if self.complete:
            return self.versions != known
        return any(known.get(name) != version for name, version in self.versions.items())


Message = Desired | Trigger | Observed


class Queue:
    """Messages in the order they came. Put by any thread, taken by one.

    Args:
        notify: called after each message that was put.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._messages: deque[Message] = deque()
        self._notify = notify

    def put(self, message: Message) -> None:
        """Leave a message."""
        self._messages.append(message)
        self._notify()

    def listed(self, slices: Sequence[ResourceSlice]) -> None:
        """Leave what a list of all slices shows."""
        self.put(Observed(dict(versions(slices)), complete=True))

    def happened(self, event: WatchEvent[ResourceSlice]) -> None:
        """Leave what an event of the watch shows."""
        if event.object is not None:
            version = None if event.type == "DELETED" else event.object.metadata.resource_version
            self.put(Observed({event.object.metadata.name: version}, complete=False))

    def take(self) -> Iterator[Message]:
        """All there are."""
        while self._messages:
            yield self._messages.popleft()


def versions(slices: Sequence[ResourceSlice]) -> dict[str, str]:
    """Resource version by name."""
    return {item.metadata.name: item.metadata.resource_version for item in slices}

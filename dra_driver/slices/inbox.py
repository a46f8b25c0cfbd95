"""What the publisher's worker is told, by whichever thread."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dra_driver.kube.objects import Device, ResourceSlice
from dra_driver.kube.resources import WatchEvent

_LONGEST_WAIT = 3600.0
"""Seconds; longer ones are made of several."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The devices to publish from now on."""

    devices: tuple[Device, ...]
    fallback: tuple[Device, ...] = ()
    """Published instead where ``devices`` consume counters and the server cannot be trusted with them."""


@dataclass(frozen=True, slots=True)
class Poke:
    """Look at once."""

    reason: str


@dataclass(frozen=True, slots=True)
class Seen:
    """The watch saw these slices: all there are (``complete``), or one that exists or (version None) is gone."""

    versions: dict[str, str | None]
    complete: bool

    def differs(self, known: dict[str, str]) -> bool:
        """Whether it is news to somebody who knows these resource versions by name."""
        if self.complete:
            return self.versions != known
        return any(known.get(name) != version for name, version in self.versions.items())


Message = Desired | Poke | Seen


class Inbox:
    """Messages in the order they came. Put by any thread, taken by one."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def put(self, message: Message) -> None:
        """Leave a message."""
        self._messages.put(message)

    def wake(self) -> None:
        """End a wait without a message."""
        self._messages.put(None)

    def listed(self, slices: Sequence[ResourceSlice]) -> None:
        """Leave what a list of all slices shows."""
        self.put(Seen(dict(versions(slices)), complete=True))

    def happened(self, event: WatchEvent[ResourceSlice]) -> None:
        """Leave what an event of the watch shows."""
        if event.object is not None:
            version = None if event.type == "DELETED" else event.object.metadata.resource_version
            self.put(Seen({event.object.metadata.name: version}, complete=False))

    def take(self, timeout: float) -> Iterator[Message]:
        """Wait up to ``timeout`` seconds (at most an hour) for a message, then give all there are."""
        try:
            message = self._messages.get(timeout=min(timeout, _LONGEST_WAIT))
            while True:
                if message is not None:
                    yield message
                message = self._messages.get_nowait()
        except queue.Empty:
            return


def versions(slices: Sequence[ResourceSlice]) -> dict[str, str]:
    """Resource version by name."""
    return {item.metadata.name: item.metadata.resource_version for item in slices}

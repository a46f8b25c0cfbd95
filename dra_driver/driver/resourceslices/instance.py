"""Which instance of the driver writes slices.

During a rolling update the old and the new instance run side by side and may want different slices (another
``draDriverVersion`` at least). kubelet calls the newest one, so its slices count. Each write leaves the writer's stamp
on the slice; an instance that finds other content under the stamp of a newer instance leaves it alone for a time, in
case the newer one has gone, and then asserts its own again: after two minutes, then four, up to an hour.

A stamp is the host's boot id and the start in time since boot. Both are of the host, not of a container, and the time
since boot never goes back, so the order does not depend on clocks being set. A stamp of an earlier boot is of an
instance that cannot be running.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from dra_driver.util import runtime
from dra_driver.util.worker import Backoff

YIELD_SECONDS: Final = 120.0
MAX_YIELD_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class DriverInstance:
    """One run of the driver."""

    boot: str
    """The host's boot id."""
    started: int
    """Milliseconds from boot to start."""
    identity: str
    """Any text without a slash that distinguishes instances."""

    @classmethod
    def here(cls, boot_id: str) -> Self:
        """This process, now.

        Args:
            boot_id: of the host (``neuron.host.discover.boot_id``); "" if unknown, to any instance on this host.
        """
        return cls(boot_id or "unknown", int(runtime.uptime() * 1000), os.urandom(4).hex())

    @property
    def stamp(self) -> str:
        """What a write leaves on the slice."""
        return f"{self.boot}/{self.started}/{self.identity}"

    def is_older_than(self, stamp: str) -> bool:
        """Whether the stamp is that of an instance that started after this one. A text that is no stamp is not."""
        boot, _, rest = stamp.partition("/")
        started, _, identity = rest.partition("/")
        if boot != self.boot or not (started.isascii() and started.isdecimal() and len(started) < 20):
            return False
        return (int(started), identity) > (self.started, self.identity)


class InstancePriority:
    """Decides whether this instance may write over what it found. Not thread-safe.

    Args:
        instance: this run.
        yield_seconds: how long a newer instance's content is left alone at first.
    """

    def __init__(self, instance: DriverInstance, yield_seconds: float = YIELD_SECONDS) -> None:
        self._instance = instance
        self._yield_seconds = yield_seconds
        self._rival = ""
        self._waits = Backoff()
        self.until = 0.0
        """The newer instance's content is left alone until this time."""

    def defers(self, stamps: Sequence[str], now: float, *, as_before: bool) -> bool:
        """Whether to leave alone what there is.

        Args:
            stamps: those of the slices found, "" for none.
            now: a clock that never goes back, in seconds.
            as_before: the slices are as this instance last left or saw them.
        """
        newer = [stamp for stamp in stamps if self._instance.is_older_than(stamp)]
        if not newer:
            return False
        if self._rival not in newer:
            self._rival = max(newer)
            # No jitter: the only other party is on the same node.
            self._waits = Backoff(first=self._yield_seconds, cap=MAX_YIELD_SECONDS, random=lambda: 1.0)
            self.until = now + self._waits.next()
        elif self.until <= now:
            if as_before:
                return False
            self.until = now + self._waits.next()
        return True

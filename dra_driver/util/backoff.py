"""Waiting times between tries."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Exponential waits with jitter: each next one is between half of the bound and the bound, which doubles to a cap.

    ``free`` first tries come without a wait, so that single mishaps cost nothing. Not thread-safe.
    """

    first: float = 0.2
    """Bound of the first wait in seconds."""
    cap: float = 30.0
    """Largest bound in seconds."""
    free: int = 0
    random: Callable[[], float] = field(default=random.random)
    tries: int = 0

    def next(self, at_least: float | None = None) -> float:
        """Seconds to wait now; never less than ``at_least`` (a server's Retry-After), even above the cap."""
        self.tries += 1
        doublings = self.tries - 1 - self.free
        wait = 0.0
        if doublings >= 0:
            bound = min(self.cap, self.first * 2.0 ** min(doublings, 32))
            wait = bound * (0.5 + self.random() / 2)
        return max(wait, at_least or 0.0)

    def reset(self) -> None:
        """All is well: start again from the first wait."""
        self.tries = 0

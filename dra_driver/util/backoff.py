"""Waits between retries."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Exponential back-off with jitter: each wait is between half the bound and the bound, which doubles up to a cap.

    The first ``free`` retries do not wait, so that a single failure costs nothing. Not thread-safe.
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
        """Success: start again from the first wait."""
        self.tries = 0

"""Computing time by namespace: pods of one may not keep those of others waiting by requests that take long to judge.

A token bucket each: ``BURST_SECONDS`` at first, refilled at ``SHARE`` seconds a second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

BURST_SECONDS: Final = 2.0
"""That a namespace may use at once: dozens of kinds of pods, each on thousands of nodes."""
SHARE: Final = 0.1
"""Of all time, that it may use in the long run."""
FREE_SECONDS: Final = 0.002
"""Of each call, that do not count: about what an answer takes whose results are all cached. Bursts of honest pods, for
which only the nodes are judged that have changed since the last one, use up nothing."""
MAX_NAMESPACES: Final = 1024
"""After so many, those whose budget is full again are dropped."""


class Spell:
    """The computing time of one call."""

    def __init__(self, seconds: float, left: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._left = left
        self._clock = clock
        self._began: float | None = None
        self._for_all = 0.0
        self._is_over = min(seconds, left) <= 0
        self.overdrawn = left <= 0
        """Whether time has run out because the namespace has used up its own."""

    def has_time(self) -> bool:
        """Whether there is time left; it runs from the first time that this is asked."""
        if not self._is_over:
            now = self._clock()
            if self._began is None:
                self._began = now
            seconds = now - self._began
            self.overdrawn = self._left < self._seconds and seconds - self._for_all > self._left
            self._is_over = self.overdrawn or seconds > self._seconds
        return not self._is_over

    @contextmanager
    def for_all(self) -> Iterator[None]:
        """What is done meanwhile serves every namespace, and others may have caused it: this one need not pay for it.

        The call must end in time nevertheless.
        """
        if self._began is None:  # its time does not run yet
            yield
            return
        began = self._clock()
        yield
        self._for_all += self._clock() - began

    @property
    def used(self) -> float:
        """Seconds until now that the namespace pays for."""
        return 0.0 if self._began is None else self._clock() - self._began - self._for_all


class TimeBudget:
    """Who has used how much. Thread-safe.

    Args:
        clock: seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._full_at: dict[str, float] = {}
        """By namespace, when its budget is full again."""

    @contextmanager
    def spell(self, namespace: str, seconds: float) -> Iterator[Spell]:
        """The time of one call for a pod of the namespace: at most ``seconds``, and at most what the namespace has."""
        with self._lock:
            missing = max(self._full_at.get(namespace, 0.0) - self._clock(), 0.0) * SHARE
        spell = Spell(seconds, BURST_SECONDS - missing, self._clock)
        yield spell
        excess = spell.used - FREE_SECONDS
        if excess > 0:
            self._take(namespace, excess)

    def _take(self, namespace: str, seconds: float) -> None:
        with self._lock:
            now = self._clock()
            self._full_at[namespace] = max(self._full_at.get(namespace, 0.0), now) + seconds / SHARE
            if len(self._full_at) > MAX_NAMESPACES:
                self._full_at = {name: full for name, full in self._full_at.items() if full > now}

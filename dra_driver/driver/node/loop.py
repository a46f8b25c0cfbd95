"""The loop in which a node decides: sources store what they see, and one thread hands on what follows.

A source stores its latest value with ``post``, in its own thread, and goes on. What follows from all of them is decided
under one lock by whoever needs it first, the loop or a preparation, and only once for the same values. So a decision
has all news in it that came before, and whoever asks never waits for the loop, nor for those who write.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dra_driver.driver.node.decide import Memory, NodeSnapshot, Wanted, decide
from dra_driver.driver.settings import DriverSettings
from dra_driver.util import runtime
from dra_driver.util.worker import Worker


class NodeLoop:
    """Decides what a node offers and says.

    Args:
        settings: what an administrator sets.
        carry_out: called with each decision, in the loop's thread; what it raises has it called again.
    """

    def __init__(self, settings: DriverSettings, carry_out: Callable[[Wanted], None]) -> None:
        self._settings = settings
        self._carry_out = carry_out
        self._lock = runtime.lock()
        self._sources = NodeSnapshot()
        self._memory = Memory()
        self._wanted = Wanted()
        self._changed = True
        """Whether anything has changed since the last decision, or has failed in it."""
        self.worker = Worker("deciding what the node offers", self._round)

    def post(self, **values: Any) -> NodeSnapshot:
        """Store values of sources, by the names of ``NodeSnapshot``; returns what was known before."""
        return self.update(lambda sources: replace(sources, **values))

    def update(self, change: Callable[[NodeSnapshot], NodeSnapshot]) -> NodeSnapshot:
        """The same where a value depends on what is known; ``change`` must not wait for anything."""
        with self._lock:
            before, self._sources = self._sources, change(self._sources)
            if self._sources == before:
                return before
            self._changed = True
        self.worker.wake()
        return before

    @property
    def sources(self) -> NodeSnapshot:
        """What is known, without the times."""
        with self._lock:
            return self._sources

    @property
    def wanted(self) -> Wanted:
        """What follows from all that is known at this moment. Any thread may ask."""
        return self.decision()[0]

    def decision(self) -> tuple[Wanted, NodeSnapshot, Memory]:
        """The same, with what it follows from, and what is remembered of it."""
        with self._lock:
            moment = runtime.monotonic()
            if self._changed or (self._wanted.until is not None and moment >= self._wanted.until):
                self._decide(moment)
            return self._wanted, self._sources, self._memory

    def _decide(self, moment: float) -> None:
        snapshot = replace(self._sources, moment=moment, now=int(runtime.now()), uptime=runtime.uptime())
        wanted, self._memory = decide(snapshot, self._memory, self._settings)
        if wanted.until is not None and wanted.until <= moment:
            wanted = replace(wanted, until=None)
        self._wanted = replace(wanted, revision=self._wanted.revision + 1)
        # What could not be decided is tried again by whoever asks next.
        self._changed = bool(wanted.failures)

    def _round(self) -> float:
        wanted = self.wanted
        self._carry_out(wanted)
        for part, error in wanted.failures.items():
            raise RuntimeError(f"{part}: {type(error).__name__}: {error}") from error
        return math.inf if wanted.until is None else max(0.0, wanted.until - runtime.monotonic())

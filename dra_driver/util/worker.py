"""A loop in a thread of its own: it outlives whatever its work raises, tells how it is, and ends in bounded time.

Every loop of the programs that run until they are ended is one of these, so that none can die or hang unnoticed:

* what a round raises is logged and tried again after a growing wait (``Worker.problem``, for readiness);
* each round, and whatever in it may take long, is a heartbeat that says when the next one is due at the latest; an
  overdue one means a thread that hangs or is dead (``Worker.stuck``, for liveness after some patience).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final

from dra_driver.util.backoff import Backoff
from dra_driver.util.errors import DriverError

MAX_ROUND_SECONDS: Final = 120.0
"""Longer than any request to the API server with its retries."""
PATIENCE_SECONDS: Final = 600.0
"""On a node, for liveness: a restart there keeps kubelet waiting, and mends neither an API server nor a host."""
STOP_SECONDS: Final = 25.0
"""For the stop of a whole program: kubelet gives a pod 30 s, then it kills."""

log = logging.getLogger(__name__)


class Worker:
    """Calls ``work`` again and again, in one thread, until it is stopped.

    What ``work`` raises is logged once for as long as it stays the same. A DriverError is trouble around the program,
    which a restart would not mend; anything else is a fault of the program, which it may mend. So rounds that fail in
    a way nobody foresaw are no heartbeat.

    Args:
        name: what it does, such as ``reading the host``: for the log, for health reports, and as the thread's name.
        work: one round; returns the seconds to rest until the next one (``math.inf``: until ``wake``).
        longest: seconds that a round may take (see ``beat``).
        settle: seconds between ``wake`` and the round, so that several changes are looked at together.
        backoff: rests after rounds that raised; ``wake`` does not shorten those.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], float],
        *,
        longest: float = MAX_ROUND_SECONDS,
        settle: float = 0.0,
        backoff: Backoff | None = None,
    ) -> None:
        self.name = name
        self._work = work
        self._longest = longest
        self._settle = settle
        self._backoff = backoff or Backoff(first=1.0, cap=60.0)
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._beaten = self._due = math.inf
        self._foreseen = True
        self.last_error = ""
        """Why the last round failed, or ""."""

    @property
    def stopping(self) -> bool:
        """Whether it was told to end: long work looks at this on its way."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Begin with the first round. After ``stop`` it does nothing."""
        if not self.stopping:
            self.beat()
            self._thread.start()

    def wake(self) -> None:
        """Make the next round now."""
        self._woken.set()

    def stop(self, timeout: float = 5.0) -> bool:
        """Begin no further round; whether the thread has ended within ``timeout`` seconds. May be called again."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def beat(self, within: float | None = None) -> None:
        """Say, from inside ``work``, that all is well, and that the next sign of life comes ``within`` seconds.

        ``within`` is ``longest`` if not given.
        """
        self._beaten = time.monotonic()
        self._due = self._beaten + (self._longest if within is None else within)

    def problem(self) -> str:
        """Why it does not do its work right now, for readiness; or ""."""
        return f"{self.name} fails: {self.last_error}" if self.last_error else self.stuck()

    def stuck(self, patience: float = 0.0) -> str:
        """Why it has been overdue for ``patience`` seconds, for liveness; or ""."""
        now = time.monotonic()
        if now <= self._due + patience:
            return ""
        if self.last_error:
            return f"{self.name} fails: {self.last_error}"
        return f"{self.name} has stood still for {now - self._beaten:.0f} s"

    def well(self, within: float | None = None) -> None:
        """As ``beat``, and the trouble of the rounds before is over: for rounds that last, once they go well."""
        if self.last_error:
            log.info("%s works again", self.name)
        self._foreseen, self.last_error = True, ""
        self.beat(within)

    def _run(self) -> None:
        while True:
            # In this order: `stop` says so first and wakes then, and its waking must not be lost.
            self._woken.clear()
            if self.stopping:
                break
            if self._foreseen:
                self.beat()
            try:
                rest = self._work()
            except Exception as error:  # noqa: BLE001 - logged, and told by problem()
                self._failed(error)
            else:
                self._succeeded(rest)
        self._due = math.inf

    def _succeeded(self, rest: float) -> None:
        self._backoff.reset()
        self.well(rest + self._longest)
        if self._woken.wait(None if rest == math.inf else rest):
            self._stopping.wait(self._settle)

    def _failed(self, error: Exception) -> None:
        self._foreseen = isinstance(error, DriverError)
        text = str(error) if self._foreseen else f"internal error: {type(error).__name__}: {error}"
        wait = self._backoff.next()
        if text != self.last_error:
            trace = None if self._foreseen else error
            log.error("%s failed (next try in %.1f s): %s", self.name, wait, text, exc_info=trace)
        self.last_error = text
        if self._foreseen:
            self.beat(wait + self._longest)
        self._stopping.wait(wait)


def stop_in_turn(*parts: tuple[Callable[[float], object], float], within: float = STOP_SECONDS) -> None:
    """Stop the parts of a program one after the other.

    Args:
        parts: what stops one, given the seconds it may take, and the most that it gets of them.
        within: seconds for all together; whoever comes when they are used up is told to end, and not waited for.
    """
    deadline = time.monotonic() + within
    for stop, most in parts:
        stop(max(0.0, min(most, deadline - time.monotonic())))

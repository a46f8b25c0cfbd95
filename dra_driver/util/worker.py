"""A supervised loop in its own thread: it survives exceptions, reports its health, and stops in bounded time.

Every loop of the long-running programs is one of these, so that none can die or hang unnoticed:

* an exception in a round is logged, and the round is retried with back-off (``Worker.problem``, for readiness);
* each round, and every slow step in it, is a heartbeat that says when the next one is due; an overdue heartbeat means
  that the thread hangs or has died (``Worker.stuck``, for liveness after some patience).

``Backoff`` is the pause between the retries of a loop; ``bounded`` is for work that is done once, and may hang.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from dra_driver.util import runtime
from dra_driver.util.errors import DriverError

MAX_ROUND_SECONDS: Final = 120.0
"""Longer than any request to the API server with its retries."""
PATIENCE_SECONDS: Final = 600.0
"""For liveness on a node: a restart keeps kubelet waiting, and repairs neither the API server nor the host."""
STOP_SECONDS: Final = 25.0
"""To stop a whole program: kubelet kills a pod after 30 s."""

_Result = TypeVar("_Result")

log = logging.getLogger(__name__)


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


class WakeUp(Protocol):
    """What a worker waits for between two rounds: ``runtime.Event``, or one that ends for other reasons too."""

    def set(self) -> None:
        """End the waiting, now and until ``clear``."""

    def clear(self) -> None:
        """Forget that it was set."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for at most ``timeout`` seconds (None: for ever); whether there is a reason for the next round."""


class Worker:
    """Calls ``work`` repeatedly in one thread until it is stopped.

    An exception is logged once for as long as it stays the same. A DriverError is a problem outside the program, which
    a restart would not solve; any other exception is an unexpected error in the program, which a restart may solve. A
    round with an unexpected error is therefore no heartbeat.

    Args:
        name: what it does, such as ``reading the host``; used in the log, in health reports, and as the thread's name.
        work: one round; returns the seconds until the next one (``math.inf``: until ``wake``).
        longest: the most seconds that a round may take (see ``beat``).
        settle: seconds between ``wake`` and the round, so that several changes are handled together.
        backoff: waits after failed rounds; ``wake`` does not shorten them.
        woken: what it waits for between two rounds.
        at_end: called by the thread when it ends, however late that is.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], float],
        *,
        longest: float = MAX_ROUND_SECONDS,
        settle: float = 0.0,
        backoff: Backoff | None = None,
        woken: WakeUp | None = None,
        at_end: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self._work = work
        self._longest = longest
        self._settle = settle
        self._backoff = backoff or Backoff(first=1.0, cap=60.0)
        self._woken = woken or runtime.event()
        self._at_end = at_end
        self._stopping = runtime.event()
        self._thread = runtime.thread(self._run, name=name)
        self._last_beat = self._due = math.inf
        self._expected = True
        self.last_error = ""
        """Why the last round failed, or ""."""

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop; slow work should check this."""
        return self._stopping.is_set()

    def start(self) -> None:
        """Start with the first round. Does nothing after ``stop``."""
        if not self.stopping:
            self.beat()
            self._thread.start()

    def wake(self) -> None:
        """Start the next round now."""
        self._woken.set()

    def stop(self, timeout: float = 5.0) -> bool:
        """Start no further round; returns whether the thread ended within ``timeout`` seconds. May be called again."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive() and self._thread is not runtime.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def beat(self, within: float | None = None) -> None:
        """Heartbeat, called from inside ``work``: the next one is due ``within`` seconds, by default ``longest``."""
        self._last_beat = runtime.monotonic()
        self._due = self._last_beat + (self._longest if within is None else within)

    def problem(self) -> str:
        """Why it is not working right now, for readiness; or ""."""
        return f"{self.name} fails: {self.last_error}" if self.last_error else self.stuck()

    def stuck(self, patience: float = 0.0) -> str:
        """Why it has been overdue for ``patience`` seconds, for liveness; or ""."""
        now = runtime.monotonic()
        if now <= self._due + patience:
            return ""
        if self.last_error:
            return f"{self.name} fails: {self.last_error}"
        return f"{self.name} has made no progress for {now - self._last_beat:.0f} s"

    def well(self, within: float | None = None) -> None:
        """Like ``beat``, and also clears the last error: for long rounds, once they succeed."""
        if self.last_error:
            log.info("%s works again", self.name)
        self._expected, self.last_error = True, ""
        self.beat(within)

    def _run(self) -> None:
        while True:
            # In this order: `stop` sets its flag before it wakes, and that wake-up must not be lost.
            self._woken.clear()
            if self.stopping:
                break
            if self._expected:
                self.beat()
            try:
                rest = self._work()
            except Exception as error:  # noqa: BLE001 - logged, and reported by problem()
                self._failed(error)
            else:
                self._succeeded(rest)
        self._due = math.inf
        if self._at_end is not None:
            self._at_end()

    def _succeeded(self, rest: float) -> None:
        self._backoff.reset()
        self.well(rest + self._longest)
        if self._woken.wait(None if rest == math.inf else rest):
            self._stopping.wait(self._settle)

    def _failed(self, error: Exception) -> None:
        self._expected = isinstance(error, DriverError)
        text = str(error) if self._expected else f"internal error: {type(error).__name__}: {error}"
        wait = self._backoff.next()
        if text != self.last_error:
            trace = None if self._expected else error
            log.error("%s failed (next try in %.1f s): %s", self.name, wait, text, exc_info=trace)
        self.last_error = text
        if self._expected:
            self.beat(wait + self._longest)
        self._stopping.wait(wait)


def stop_in_turn(*parts: tuple[Callable[[float], object], float], within: float = STOP_SECONDS) -> None:
    """Stop the parts of a program one after another.

    Args:
        parts: functions that stop a part within a number of seconds, each with the most seconds that it gets.
        within: seconds for all parts; once they are used up, the remaining parts are told to stop but not waited for.
    """
    deadline = runtime.monotonic() + within
    for stop, most in parts:
        stop(max(0.0, min(most, deadline - runtime.monotonic())))


class Job(Generic[_Result]):
    """Work that may hang in the kernel, such as reading the files of a host; nothing can end its thread.

    Args:
        work: what to do; it begins at once.
        name: of its thread.

    Raises:
        DriverError: there can be no further thread; that is nothing that a restart would mend.
    """

    def __init__(self, work: Callable[[], _Result], name: str) -> None:
        self._work = work
        self._ended = runtime.event()
        self._error: Exception | None = None
        try:
            runtime.spawn(self._run, name=name)
        except RuntimeError as error:
            raise DriverError(
                f"no thread can be started ({error})",
                remedy="find out which processes of the node there are too many of, and end them",
            ) from error

    def wait(self, seconds: float) -> bool:
        """Wait until the work has ended; False after ``seconds``."""
        return self._ended.wait(seconds)

    def result(self) -> _Result:
        """What the work gave; raises what it raised. Only after its end."""
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._work()
        except Exception as error:  # noqa: BLE001 - raised by who takes the result
            self._error = error
        self._ended.set()


def bounded(work: Callable[[], _Result], seconds: float, overdue: Callable[[], Exception]) -> _Result:
    """The result of work that may hang; raises what it raises.

    Args:
        work: what to do, in a thread of its own.
        seconds: how long it may take.
        overdue: the error to raise after that; the thread is left behind.

    Raises:
        DriverError: there can be no further thread.
    """
    job = Job(work, name="bounded")
    if not job.wait(seconds):
        raise overdue()
    return job.result()

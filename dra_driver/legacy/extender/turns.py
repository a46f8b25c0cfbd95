"""Threads for calls that wait for the API server, of which no namespace can take all.

A webhook on the bindings of one namespace may keep the API server from answering, and with it the thread that asks. So
a namespace begins with one thread, and may have one more for each call that is answered promptly, but no more than it
leaves free. With a call that lasts, it is slow until the next of its calls is answered promptly: it has one thread, and
all slow ones together have half of them. What waits begins in order, one call of each namespace in turn.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from dra_driver.util.errors import DriverError

THREADS: Final = 16
SLOW_SECONDS: Final = 1.0
"""Calls that last longer make their namespace a slow one: a webhook hangs, or the API server does."""
WAIT_SECONDS: Final = 3.0
"""That a call waits for a thread. kube-scheduler gives up 5 s after it asked (``httpTimeout``), and the call takes its
time, too."""
SLOW_WAITING: Final = 16
"""Calls of a slow namespace that wait: each has a connection, of which there are not many."""
MAX_SLOW: Final = 1024
"""Namespaces of which it is remembered that they were slow, while none of their calls waits or is under way."""

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Call:
    """A call that waits, or is under way.

    Attributes:
        work: what the thread does.
        gone: whether nobody waits for the outcome any more.
        outcome: completed with it.
        timer: ends the wait, then tells that the call lasts.
        late: whether it has lasted longer than ``SLOW_SECONDS``.
    """

    work: Callable[[], Any]
    gone: Callable[[], bool]
    outcome: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None = None
    late: bool = False


class _Namespace:
    """Its calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: deque[_Call] = deque()
        """Oldest first."""
        self.running: set[_Call] = set()
        self.prompt = 0
        """Number of calls that have ended promptly since the last one that has not."""
        self.was_late = False
        """Whether the call was that ended last."""

    @property
    def slow(self) -> bool:
        """Whether it may have only one thread."""
        return self.was_late or any(call.late for call in self.running)

    @property
    def idle(self) -> bool:
        """Whether it has no calls."""
        return not self.waiting and not self.running


class Turns:
    """Runs calls in its threads. Used in one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "bind")
        self._namespaces: OrderedDict[str, _Namespace] = OrderedDict()
        """Those with calls, and slow ones; first the one whose last turn was longest ago."""

    async def run(self, name: str, work: Callable[[], T], gone: Callable[[], bool] = lambda: False) -> T:
        """Returns what ``work`` returns, or raises what it raises; DriverError if its turn does not come in time.

        Args:
            name: of the namespace.
            work: called in a thread.
            gone: called when the turn comes: whether nobody waits for the outcome any more. Then nothing is done.
        """
        loop = asyncio.get_running_loop()
        namespace = self._namespaces.setdefault(name, _Namespace(name))
        outcome: asyncio.Future[T] = loop.create_future()
        call = _Call(work, gone, outcome)
        call.timer = loop.call_later(WAIT_SECONDS, self._refuse, namespace, call)
        namespace.waiting.append(call)
        self._begin()
        self._shed(namespace)
        return await outcome

    def stop(self) -> None:
        """Wait for the calls that are under way."""
        self._threads.shutdown()

    def _begin(self) -> None:
        """Begin all calls that may."""
        loop = asyncio.get_running_loop()
        while (namespace := next(filter(self._may_begin, self._namespaces.values()), None)) is not None:
            self._namespaces.move_to_end(namespace.name)
            call = namespace.waiting.popleft()
            _stop(call.timer)
            if call.gone() and not call.outcome.done():
                call.outcome.set_exception(DriverError("whoever asked no longer waits", consequence="nothing was done"))
            if call.outcome.done():
                continue
            namespace.running.add(call)
            call.timer = loop.call_later(SLOW_SECONDS, self._note_late, namespace, call)
            loop.run_in_executor(self._threads, call.work).add_done_callback(partial(self._end, namespace, call))
        self._forget()

    def _may_begin(self, namespace: _Namespace) -> bool:
        """Whether the next call of a namespace may begin."""
        others, running = self._namespaces.values(), len(namespace.running)
        free = THREADS - sum(len(other.running) for other in others)
        if not namespace.waiting or running >= free or running > namespace.prompt:
            return False
        slow = sum(len(other.running) for other in others if other.slow)
        return not namespace.slow or (not running and slow < THREADS // 2)

    def _note_late(self, namespace: _Namespace, call: _Call) -> None:
        call.late = True
        namespace.prompt = 0
        self._shed(namespace)

    def _end(self, namespace: _Namespace, call: _Call, ending: asyncio.Future[Any]) -> None:
        """Pass on the outcome of a call."""
        _stop(call.timer)
        namespace.running.discard(call)
        namespace.was_late = call.late
        namespace.prompt = 0 if call.late else namespace.prompt + 1
        error = ending.exception()
        if not call.outcome.done():
            if error is None:
                call.outcome.set_result(ending.result())
            else:
                call.outcome.set_exception(error)
        self._begin()

    def _shed(self, namespace: _Namespace) -> None:
        """Refuse the newest calls of a slow namespace."""
        while namespace.slow and len(namespace.waiting) > SLOW_WAITING:
            self._refuse(namespace, namespace.waiting[-1])

    def _refuse(self, namespace: _Namespace, call: _Call) -> None:
        """Tell that the turn of a call has not come."""
        _stop(call.timer)
        namespace.waiting.remove(call)
        if not call.outcome.done():
            call.outcome.set_exception(_refusal(namespace))

    def _forget(self) -> None:
        """Drop namespaces of which there is nothing to remember."""
        idle = [item for item in self._namespaces.values() if item.idle]
        surplus = sum(item.slow for item in idle) - MAX_SLOW
        for item in idle:
            if not item.slow or surplus > 0:
                surplus -= item.slow
                del self._namespaces[item.name]


def _refusal(namespace: _Namespace) -> DriverError:
    remedy = "see if the API server is slow, or a webhook on pods/binding does not answer in the namespace"
    if namespace.slow:
        return DriverError(
            f"a binding in namespace {namespace.name} takes longer than {SLOW_SECONDS:g} s",
            consequence="until one is answered sooner, only one at a time is sent, and this pod is retried later",
            remedy=remedy,
        )
    return DriverError(
        f"{WAIT_SECONDS:g} s were not enough for the bindings before it", consequence="it is retried", remedy=remedy
    )


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()

"""Threads for calls that wait for the API server, of which no namespace can take all.

A webhook on the bindings of one namespace may keep the API server from answering, and with it the thread that asks. So
a namespace begins with one thread, and may have one more for each call that is answered promptly, but no more than it
leaves free. With a call that lasts, it is slow until the next of its calls is answered promptly, or it has had none for
minutes: it has one thread, and all slow ones together have half of them. What waits begins in order, one call of each
namespace in turn.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from dra_driver.util.errors import DriverError
from dra_driver.util.workers import Workers

THREADS: Final = 16
SLOW_SECONDS: Final = 1.0
"""Calls that last longer make their namespace a slow one: a webhook hangs, or the API server does."""
WAIT_SECONDS: Final = 3.0
"""That a call waits for a thread. kube-scheduler gives up 5 s after it asked (``httpTimeout``), and the call takes its
time, too."""
SLOW_WAITING: Final = 16
"""Calls of a slow namespace that wait: each has a connection, of which there are not many."""
MEMORY_SECONDS: Final = 600.0
"""That a namespace without calls is known as a slow one."""
MAX_SLOW: Final = 1024
"""Namespaces without calls that are known as slow ones."""

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

    def __init__(self, name: str, *, was_late: bool) -> None:
        self.name = name
        self.waiting: deque[_Call] = deque()
        """Oldest first."""
        self.running: set[_Call] = set()
        self.prompt = 0
        """Number of calls that have ended promptly since the last one that has not."""
        self.was_late = was_late
        """Whether the call was that ended last."""
        self.slow_running = 0
        """Of its calls, how many ``Turns`` counts among those of slow namespaces."""

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
        self._threads = Workers(THREADS, "bind")
        self._endings: set[asyncio.Future[Any]] = set()
        """Of the calls that are under way."""
        self._namespaces: OrderedDict[str, _Namespace] = OrderedDict()
        """Those with calls, of which there are no more than connections; of those that wait, first whose turn it is."""
        self._slow: OrderedDict[str, float] = OrderedDict()
        """Slow ones without calls, and when (the loop's clock) the last one ended; first that of longest ago."""
        self._running = 0
        """Calls that are under way."""
        self._slow_running = 0
        """Those of slow namespaces."""

    async def run(self, name: str, work: Callable[[], T], gone: Callable[[], bool] = lambda: False) -> T:
        """Returns what ``work`` returns, or raises what it raises; DriverError if its turn does not come in time.

        Args:
            name: of the namespace.
            work: called in a thread.
            gone: called when the turn comes: whether nobody waits for the outcome any more. Then nothing is done.
        """
        loop = asyncio.get_running_loop()
        namespace = self._namespaces.get(name)
        if namespace is None:
            namespace = self._namespaces[name] = _Namespace(name, was_late=self._recall(name))
        if not namespace.waiting:
            self._namespaces.move_to_end(name)
        outcome: asyncio.Future[T] = loop.create_future()
        call = _Call(work, gone, outcome)
        call.timer = loop.call_later(WAIT_SECONDS, self._refuse, namespace, call)
        namespace.waiting.append(call)
        self._begin()
        self._shed(namespace)
        return await outcome

    async def stop(self) -> None:
        """Wait for the calls that are under way."""
        while self._endings:
            await asyncio.wait(self._endings)
        self._threads.shutdown()

    def _begin(self) -> None:
        """Begin all calls that may."""
        queue = deque(self._namespaces.values())
        while queue and self._running < THREADS:
            namespace = queue.popleft()
            if self._may_begin(namespace):  # if not, then neither after others, which only take threads
                self._namespaces.move_to_end(namespace.name)
                self._begin_next(namespace)
                queue.append(namespace)

    def _begin_next(self, namespace: _Namespace) -> None:
        """Begin the oldest call that waits in a namespace, if somebody waits for it."""
        loop = asyncio.get_running_loop()
        call = namespace.waiting.popleft()
        _stop(call.timer)
        if call.gone() and not call.outcome.done():
            call.outcome.set_exception(DriverError("whoever asked no longer waits", consequence="nothing was done"))
        if call.outcome.done():
            self._leave(namespace)
            return
        namespace.running.add(call)
        self._running += 1
        self._count_slow(namespace)
        call.timer = loop.call_later(SLOW_SECONDS, self._note_late, namespace, call)
        ending = loop.run_in_executor(self._threads, call.work)
        self._endings.add(ending)
        ending.add_done_callback(partial(self._end, namespace, call))

    def _may_begin(self, namespace: _Namespace) -> bool:
        """Whether the next call of a namespace may begin."""
        running = len(namespace.running)
        if not namespace.waiting or running >= THREADS - self._running or running > namespace.prompt:
            return False
        return not namespace.slow or (not running and self._slow_running < THREADS // 2)

    def _note_late(self, namespace: _Namespace, call: _Call) -> None:
        call.late = True
        namespace.prompt = 0
        self._count_slow(namespace)
        self._shed(namespace)

    def _end(self, namespace: _Namespace, call: _Call, ending: asyncio.Future[Any]) -> None:
        """Pass on the outcome of a call."""
        self._endings.discard(ending)
        _stop(call.timer)
        namespace.running.discard(call)
        self._running -= 1
        namespace.was_late = call.late
        namespace.prompt = 0 if call.late else namespace.prompt + 1
        self._count_slow(namespace)
        self._leave(namespace)
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
        self._leave(namespace)

    def _count_slow(self, namespace: _Namespace) -> None:
        """Count the calls of a namespace again that may have become a slow one, or another one."""
        before, namespace.slow_running = namespace.slow_running, len(namespace.running) if namespace.slow else 0
        self._slow_running += namespace.slow_running - before

    def _leave(self, namespace: _Namespace) -> None:
        """Of a namespace without calls, remember no more than that it is slow, and that not for ever."""
        if not namespace.idle:
            return
        del self._namespaces[namespace.name]
        now = asyncio.get_running_loop().time()
        if namespace.slow:
            self._slow[namespace.name] = now
        while self._slow:
            name, since = next(iter(self._slow.items()))
            if len(self._slow) <= MAX_SLOW and now - since < MEMORY_SECONDS:
                break
            del self._slow[name]

    def _recall(self, name: str) -> bool:
        """Whether a namespace that had no calls is a slow one."""
        since = self._slow.pop(name, -math.inf)
        return asyncio.get_running_loop().time() - since < MEMORY_SECONDS


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

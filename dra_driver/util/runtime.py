"""Clocks and threads for all of ``driver``, ``kube``, ``neuron`` and ``util``: the real ones, or those of a simulation.

The functions hand each call to the runtime of the process; a test puts in another one (``use``). The alternative, a
runtime that is passed to each constructor, would have given some fifty classes and functions a further parameter, among
them ``Worker`` and others that drivers of other hardware use. One runtime serves several instances of the driver in one
process, too: a simulation knows which instance's thread is calling.

Clocks and sleeps follow another runtime at once, even those that an object has kept as ``clock=runtime.monotonic``. A
lock, condition, event or thread belongs to the runtime that made it for as long as it lives, so no module makes one
while it is imported.

Sockets, TLS, gRPC, processes, ``flock`` and the watchdog are always real. The contract "Clocks and threads come from
util.runtime" in ``pyproject.toml`` has the list of their modules, with the reasons.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

_Value = TypeVar("_Value")


class Lock(AbstractContextManager[bool], Protocol):
    """As ``threading.Lock``."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait for it, for at most ``timeout`` seconds (-1: for ever); whether it was got."""

    def release(self) -> None:
        """Let the next one have it."""

    def locked(self) -> bool:
        """Whether somebody has it."""


class Condition(AbstractContextManager[bool], Protocol):
    """As ``threading.Condition`` with a lock of its own."""

    def wait(self, timeout: float | None = None) -> bool:
        """Without the lock, wait to be notified; False after ``timeout`` seconds."""

    def wait_for(self, predicate: Callable[[], _Value], timeout: float | None = None) -> _Value:
        """Wait until ``predicate`` holds, or ``timeout`` seconds have passed; its last value."""

    def notify_all(self) -> None:
        """Wake all who wait."""


class Event(Protocol):
    """As ``threading.Event``."""

    def is_set(self) -> bool:
        """Whether it has happened."""

    def set(self) -> None:
        """End all waits, now and until ``clear``."""

    def clear(self) -> None:
        """Forget that it has happened."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it happens; False after ``timeout`` seconds."""


class Thread(Protocol):
    """As ``threading.Thread``."""

    def start(self) -> None:
        """Begin its work. RuntimeError: it began before, or the process can have no further thread."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, for at most ``timeout`` seconds."""

    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""


def _thread(work: Callable[[], object], name: str) -> Thread:
    return threading.Thread(target=work, name=name, daemon=True)


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _poll(readable: Collection[int], urgent: Collection[int], timeout: float | None) -> set[int]:
    poll = select.poll()
    for descriptor in readable:
        poll.register(descriptor, select.POLLIN)
    for descriptor in urgent:
        poll.register(descriptor, select.POLLPRI)
    return {descriptor for descriptor, _ in poll.poll(None if timeout is None else timeout * 1000)}


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the functions of this module call, by their names; the real things by default."""

    now: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    uptime: Callable[[], float] = _uptime
    sleep: Callable[[float], None] = time.sleep
    lock: Callable[[], Lock] = threading.Lock
    condition: Callable[[], Condition] = threading.Condition
    event: Callable[[], Event] = threading.Event
    thread: Callable[[Callable[[], object], str], Thread] = _thread
    current_thread: Callable[[], object] = threading.current_thread
    poll: Callable[[Collection[int], Collection[int], float | None], set[int]] = _poll


_runtime = Runtime()


@contextmanager
def use(runtime: Runtime) -> Iterator[None]:
    """Have this runtime serve the whole process during the body; for tests."""
    global _runtime
    former, _runtime = _runtime, runtime
    try:
        yield
    finally:
        _runtime = former


def now() -> float:
    """Unix time in seconds. It may be set, also back."""
    return _runtime.now()


def monotonic() -> float:
    """Seconds since boot, without those in which the machine was suspended (CLOCK_MONOTONIC); it is never set.

    It also measures durations for metrics: on Linux, ``time.perf_counter`` reads the same clock.
    """
    return _runtime.monotonic()


def uptime() -> float:
    """Seconds since boot, with those in which the machine was suspended (CLOCK_BOOTTIME)."""
    return _runtime.uptime()


def sleep(seconds: float) -> None:
    """Let the calling thread wait."""
    _runtime.sleep(seconds)


def lock() -> Lock:
    """A new lock."""
    return _runtime.lock()


def condition() -> Condition:
    """A new condition, with a lock that the thread which has it may take again."""
    return _runtime.condition()


def event() -> Event:
    """A new event that has not happened."""
    return _runtime.event()


def thread(work: Callable[[], object], name: str) -> Thread:
    """A new thread that has not begun. It does not keep the process from ending."""
    return _runtime.thread(work, name)


def spawn(work: Callable[[], object], name: str) -> Thread:
    """A new thread that has begun. RuntimeError: the process can have no further thread."""
    result = thread(work, name)
    result.start()
    return result


def current_thread() -> object:
    """The ``Thread`` that calls; for the main thread something that is none of them."""
    return _runtime.current_thread()


def poll(readable: Collection[int], urgent: Collection[int], timeout: float | None) -> set[int]:
    """Wait for file descriptors.

    Args:
        readable: those to be read from.
        urgent: those with a notification (POLLPRI), as files of sysfs have.
        timeout: seconds to wait at most; None: for ever.

    Returns:
        Those that are ready, or have an error.
    """
    return _runtime.poll(readable, urgent, timeout)

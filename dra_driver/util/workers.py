"""Threads that work through one queue, of which the first exists from the start.

Unlike those of :class:`concurrent.futures.ThreadPoolExecutor`, they are daemons, so that a call that never returns
cannot keep the process from exiting. And where no further thread can be had, since the processes of others have taken
all that there may be, those that there are do the work: that executor would raise an error, and keep the call in its
queue. The others begin when all are busy, and end when they have had nothing to do for a while (24 idle threads cost
3 MB).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from queue import Empty, SimpleQueue
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

IDLE_SECONDS: Final = 30.0
"""Without a job for so long, a thread ends that is not the last one."""

_Job = Callable[[], None]


class Workers(futures.Executor):
    """At most ``count`` daemon threads that work through one queue.

    Args:
        count: threads at most.
        name: beginning of their names.
        idle_seconds: see ``IDLE_SECONDS``.
    """

    def __init__(self, count: int, name: str, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._most = count
        self._name = name
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0
        """Threads that wait for a job, less jobs that wait for a thread."""
        self._closed = False
        self._begin()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[T]:
        """Queue a call.

        Raises:
            RuntimeError: after shutdown().
        """
        if self._closed:
            raise RuntimeError("the workers were shut down")
        future: futures.Future[T] = futures.Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            self._free -= 1
            if self._free < 0 and self._threads < self._most:
                self._begin()
        self._jobs.put(job)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end after what is queued; never waits (the arguments are the base class's)."""
        del wait, cancel_futures
        if not self._closed:
            self._closed = True
            for _ in range(self._most):
                self._jobs.put(None)

    def _begin(self) -> None:
        try:
            threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        except RuntimeError:
            # The process table is full. The threads that there are take the job; without any, nothing would.
            if self._threads == 0:
                raise
            return
        self._threads += 1
        self._free += 1

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job()
            del job  # a waiting thread must not keep the last request alive
            with self._lock:
                self._free += 1

    def _next(self) -> _Job | None:
        """The next job; None when this thread is to end."""
        while True:
            # The last thread looks up now and then too; it stays.
            try:
                return self._jobs.get(timeout=self._idle_seconds)
            except Empty:
                with self._lock:
                    if self._threads > 1 and self._free > 0:  # jobs that were put just now have their threads
                        self._threads -= 1
                        self._free -= 1
                        return None

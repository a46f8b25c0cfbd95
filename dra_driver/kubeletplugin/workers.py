"""Worker threads for a gRPC server.

Unlike :class:`concurrent.futures.ThreadPoolExecutor` all threads exist from the start, so that a full process table
shows when the server starts and not in the middle of a call; and they are daemons, so that a prepare that never
returns cannot keep the process from exiting (kubelet repeats it with the next process).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Job = Callable[[], None]


class Workers(futures.Executor):
    """``count`` daemon threads that work through one queue."""

    def __init__(self, count: int, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._count = count
        self._closed = False
        for number in range(count):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

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

        self._jobs.put(job)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end after what is queued; never waits (the arguments are the base class's)."""
        del wait, cancel_futures
        if not self._closed:
            self._closed = True
            for _ in range(self._count):
                self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # a waiting thread must not keep the last request alive


def as_thread_pool(workers: Workers) -> Any:
    """``workers`` for ``grpc.server``, whose type asks for a ThreadPoolExecutor but whose code only for submit()."""
    return workers

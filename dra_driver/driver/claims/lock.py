"""The lock on the state directory: of the threads of this process, and of two instances during an update.

The lock file is also a counter: its size, with nothing in it. Who changes state raises it first, so whoever finds it
unchanged, in the same file, knows that the index is valid: a call costs the same with one claim as with a hundred, and
a second instance may write in between. A size takes no room, so a claim can be unprepared on a full disk. As long as no
other instance has written, a file that is missing was not removed by a driver: its claim stays held
(``PreparedClaims.missing``). A directory that is missing says nothing about any claim: it is written anew from the
index.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
from collections.abc import Iterator
from pathlib import Path

from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.files import open_regular

Mark = tuple[int, int]
"""Which lock file since the start (it may be removed, and a new one counts from 0), and its counter."""

_FIRST_PAUSE, _MAX_PAUSE = 0.001, 0.05


class StateLock:
    """A mutex across processes. Not reentrant."""

    def __init__(self, path: Path, timeout: float = 30.0) -> None:
        self._path = path
        self._timeout = timeout
        self._threads = runtime.lock()
        self._waiters: set[object] = set()
        """One of each thread that waits for the others. A set is changed in one step, which no thread interrupts."""
        self._waits = False
        """Whether the thread that keeps the others out waits for another process."""
        self._descriptor: int | None = None
        self._openings = 0
        self._counter = 0
        """The file's size while the lock is held: nobody else changes it then."""

    @contextlib.contextmanager
    def hold(self, deadline: float = math.inf) -> Iterator[None]:
        """Hold the lock during the body. DriverError when it cannot be had in time, or the file not be opened.

        ``deadline``: reading of ``runtime.monotonic()`` at which the waiting ends, where the lock's timeout is longer.
        """
        start = runtime.monotonic()
        deadline = min(deadline, start + self._timeout)
        if not self._exclude(deadline - start):
            raise self._busy(
                "another instance of the driver" if self._waits else "another thread of this process", start
            )
        try:
            descriptor = self._locked_file(start, deadline)
            try:
                yield
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    @property
    def contended(self) -> bool:
        """Whether a thread of this process holds it, or waits for it.

        Who waits is counted, since for a moment after the holder has let go of it, nobody holds it.
        """
        return bool(self._waiters) or self._threads.locked()

    @contextlib.contextmanager
    def exclude_threads(self, seconds: float) -> Iterator[bool]:
        """Keep other threads out during the body, but no other process; yields whether that succeeded."""
        has_lock = self._exclude(seconds)
        try:
            yield has_lock
        finally:
            if has_lock:
                self._threads.release()

    def _exclude(self, seconds: float) -> bool:
        """Keep other threads out if that can be had within so many seconds."""
        waiter = object()
        self._waiters.add(waiter)
        try:
            return self._threads.acquire(timeout=max(seconds, 0.0))
        finally:
            self._waiters.discard(waiter)

    def mark(self) -> Mark:
        """Equal to a former one if and only if no change has been announced since. Only with the lock held."""
        self._file()
        return self._openings, self._counter

    def announce(self) -> Mark:
        """Announce a change; the new mark. Only with the lock held. Raises OSError."""
        os.ftruncate(self._file(), self._counter + 1)
        self._counter += 1
        return self._openings, self._counter

    def close(self) -> None:
        """Let go of the file; the next use opens it again. Who holds the lock or waits for it keeps the file."""
        if self._threads.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._threads.release()

    def _locked_file(self, start: float, deadline: float) -> int:
        pause = _FIRST_PAUSE
        self._waits = False
        while True:
            try:
                descriptor = self._open()
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._waits = False
                # The file may have been removed meanwhile: a lock on a file without a name excludes no other process.
                if self._is_current(descriptor):
                    return descriptor
                self._close()
            except BlockingIOError:
                self._waits = True
                if runtime.monotonic() >= deadline:
                    raise self._busy("another instance of the driver", start) from None
                runtime.sleep(pause)
                pause = min(pause * 2, _MAX_PAUSE)
            except OSError as error:
                self._close()  # with it goes the lock, if that was had
                raise DriverError(
                    f"cannot lock {self._path}: {error.strerror or error}",
                    consequence="no claim can be prepared or unprepared",
                    remedy="check that the state directory is mounted and writable for the driver",
                ) from error

    def _open(self) -> int:
        if self._descriptor is None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            self._openings += 1
        return self._descriptor

    def _file(self) -> int:
        if self._descriptor is None:
            raise RuntimeError("the state lock is not held")
        return self._descriptor

    def _is_current(self, descriptor: int) -> bool:
        status = os.fstat(descriptor)
        self._counter = status.st_size
        try:
            return os.path.samestat(status, os.stat(self._path))  # noqa: PTH116 - at each call of kubelet
        except FileNotFoundError:
            return False

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _busy(self, who: str, start: float) -> DriverError:
        return DriverError(
            f"{who} has held {self._path} for {runtime.monotonic() - start:.0f} s",
            consequence="this call is aborted",
            remedy="kubelet tries again; if this persists, check the state directory's disk and restart the driver",
        )

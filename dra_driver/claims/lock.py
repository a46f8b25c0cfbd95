"""One lock on the state directory, for the threads of this process and for a second instance during an update.

The lock file is also a counter: its size, with nothing in it. Who changes state raises it first, so whoever finds it as
he left it, in the same file, knows that nobody has changed anything since, and need not read the directory again. A
size takes no room, so that a claim can be unprepared on a full disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from dra_driver.util.errors import DriverError
from dra_driver.util.files import open_regular

Mark = tuple[int, int]
"""Which lock file since the start (somebody may remove it, then a new one counts from 0), and its counter."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05


class StateLock:
    """A mutex across processes. Not reentrant."""

    def __init__(self, path: Path, timeout: float = 30.0) -> None:
        self._path = path
        self._timeout = timeout
        self._threads = threading.Lock()
        self._descriptor: int | None = None
        self._opened = 0

    @contextlib.contextmanager
    def held(self, deadline: float = math.inf) -> Iterator[None]:
        """Hold the lock during the body. DriverError when it cannot be had in time, or the file not be opened.

        ``deadline``: reading of ``time.monotonic()`` at which the waiting ends, where the lock's timeout is longer.
        """
        began = time.monotonic()
        deadline = min(deadline, began + self._timeout)
        if not self._threads.acquire(timeout=max(deadline - began, 0.0)):
            raise self._busy("another thread of this process", began)
        try:
            descriptor = self._locked_file(began, deadline)
            try:
                yield
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def mark(self) -> Mark:
        """Equal to a former one if and only if nobody has announced a change since. Only with the lock held."""
        return self._opened, os.fstat(self._file()).st_size

    def announce(self) -> Mark:
        """Announce a change; the new mark. Only with the lock held. Raises OSError."""
        opened, counter = self.mark()
        os.ftruncate(self._file(), counter + 1)
        return opened, counter + 1

    def close(self) -> None:
        """Let go of the file; the next use opens it again. Who holds the lock or waits for it keeps the file."""
        if self._threads.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._threads.release()

    def _locked_file(self, began: float, deadline: float) -> int:
        pause = _FIRST_PAUSE
        while True:
            try:
                descriptor = self._open()
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Somebody may have removed the file meanwhile: a lock on a file without a name excludes nobody.
                if self._is_current(descriptor):
                    return descriptor
                self._close()
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise self._busy("another instance of the driver", began) from None
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
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
            self._opened += 1
        return self._descriptor

    def _file(self) -> int:
        if self._descriptor is None:
            raise RuntimeError("the state lock is not held")
        return self._descriptor

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _busy(self, who: str, began: float) -> DriverError:
        return DriverError(
            f"{who} has held {self._path} for {time.monotonic() - began:.0f} s",
            consequence="this call is given up",
            remedy="kubelet tries again; if it stays, look at the disk of the state directory and restart the driver",
        )

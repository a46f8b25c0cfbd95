"""One lock per key, kept only while somebody holds or awaits it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class KeyedLock:
    """Locks by key. Keys in use cost one lock each, others nothing."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextmanager
    def held(self, key: str, timeout: float) -> Iterator[bool]:
        """Hold the lock of ``key`` during the body.

        Args:
            key: what to lock.
            timeout: seconds to wait at most; negative counts as 0.

        Yields:
            Whether the lock was got; if not, the body runs without it.
        """
        with self._guard:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, users + 1)
        got = False
        try:
            got = lock.acquire(timeout=max(timeout, 0.0))
            yield got
        finally:
            if got:
                lock.release()
            with self._guard:
                _, users = self._locks[key]
                if users == 1:
                    del self._locks[key]
                else:
                    self._locks[key] = (lock, users - 1)

    def __len__(self) -> int:
        return len(self._locks)

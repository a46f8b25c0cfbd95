"""A thread of a program on a node that hangs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17

_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def stopped_thread(process: int) -> Iterator[None]:
    """Stop the main thread of a process, and no other, as a lock would that nobody gives back (ptrace(2))."""
    _ptrace(_SEIZE, process)
    try:
        _ptrace(_INTERRUPT, process)
        yield
    finally:
        # It may have ended.
        _LIBC.ptrace(_DETACH, process, None, None)


def _ptrace(request: int, thread: int) -> None:
    if _LIBC.ptrace(request, thread, None, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

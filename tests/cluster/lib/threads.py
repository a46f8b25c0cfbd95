"""A thread of a program on a node that hangs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WALL: Final = 0x40000000
_REAP_SECONDS: Final = 0.2

_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def stopped_thread(process: int) -> Iterator[None]:
    """Stop the main thread of a process, and no other, as a lock would that nobody gives back (ptrace(2)).

    The process may end meanwhile: its parent learns that only after who traces it has, so a thread waits for it here.
    """
    _ptrace(_SEIZE, process)
    over = Event()
    reaper = Thread(target=_reap, args=(process, over), daemon=True)
    try:
        _ptrace(_INTERRUPT, process)
        reaper.start()
        yield
    finally:
        _LIBC.ptrace(_DETACH, process, None, None)  # fails if the process has ended
        over.set()
        if reaper.is_alive():
            reaper.join()


def _reap(process: int, over: Event) -> None:
    while not over.wait(_REAP_SECONDS):
        try:
            number, status = os.waitpid(process, os.WNOHANG | _WALL)
        except ChildProcessError:
            return
        if number == process and not os.WIFSTOPPED(status):
            return


def _ptrace(request: int, thread: int) -> None:
    if _LIBC.ptrace(request, thread, None, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

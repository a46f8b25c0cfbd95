"""Accepts connections for an event loop, and loses none.

asyncio's own ways leave some open that nobody knows any more: ``loop.sock_accept`` one that it has accepted when it is
cancelled, ``asyncio.start_server`` one that it has accepted in the turn before it is closed (seen with Python 3.11).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

from dra_driver.util.door import plain_address

PAUSE_SECONDS: Final = 0.5
"""After a connection could not be accepted, perhaps for want of file descriptors."""

log = logging.getLogger(__name__)


class Acceptor:
    """Accepts one connection a turn of the running loop, until ``stop``.

    Args:
        listener: a listening socket; closed by ``stop``.
        take: called with each connection and the address of its peer.
    """

    def __init__(self, listener: socket.socket, take: Callable[[socket.socket, str], None]) -> None:
        self._listener = listener
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._resume()

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return int(self._listener.getsockname()[1])

    def stop(self) -> None:
        """Accept no more. May be called again."""
        if self._listener.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _resume(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            accepted, peer = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            log.warning("a connection could not be accepted: %s", error)
            self._loop.remove_reader(self._listener)
            self._pause = self._loop.call_later(PAUSE_SECONDS, self._resume)
            return
        accepted.setblocking(False)
        self._take(accepted, plain_address(peer[0]))


def task_of(accepted: socket.socket, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
    """A task that has a connection; if it is cancelled, maybe before it begins, the connection is closed."""
    task = asyncio.create_task(work)
    task.add_done_callback(partial(_close_given_up, accepted))
    return task


def _close_given_up(accepted: socket.socket, task: asyncio.Task[None]) -> None:
    if task.cancelled():
        accepted.close()

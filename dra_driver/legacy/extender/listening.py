"""Accepts connections, so many at most: whoever only holds one open makes room for those who ask.

The time of a connection without a request is bounded too: here until the TLS handshake is over, then by aiohttp, which
closes it after ``keepalive_timeout``.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

MOST_CONNECTIONS: Final = 256
"""Far more than schedulers and probes have open, far fewer than a process may have files."""
HANDSHAKE_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.5
"""After a connection could not be accepted: file descriptors have run out, perhaps."""
TELL_SECONDS: Final = 60.0
"""Between two lines of the log about too many connections."""
BACKLOG: Final = 128

log = logging.getLogger(__name__)


class _Connection:
    """One that was accepted: first its handshake is under way, then it has a transport."""

    def __init__(self, opening: asyncio.Task[None]) -> None:
        self.opening = opening
        self.transport: asyncio.Transport | None = None
        self.answers = 0
        """Answers that are being made."""

    @property
    def over(self) -> bool:
        """Whether it takes no room any more."""
        return self.transport.is_closing() if self.transport else self.opening.done()

    def drop(self) -> None:
        """End it at once."""
        if self.transport is not None:
            self.transport.abort()
        else:
            self.opening.cancel()


class Listener:
    """Accepts from ``start`` until ``stop``."""

    def __init__(self) -> None:
        self._make: Callable[[], asyncio.BaseProtocol] = asyncio.Protocol
        self._tls: ssl.SSLContext | None = None
        self._listening: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._connections: list[_Connection] = []
        """The oldest first."""
        self._told = -TELL_SECONDS

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listening[0].getsockname()[1])

    async def start(
        self, make: Callable[[], asyncio.BaseProtocol], address: str, port: int, tls: ssl.SSLContext | None
    ) -> None:
        """Listen; OSError when the port cannot be had.

        Args:
            make: a protocol for each connection.
            address: to listen on.
            port: to listen on; 0 for any.
            tls: None for plain TCP.
        """
        loop = asyncio.get_running_loop()
        self._make, self._tls = make, tls
        found = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, where in dict.fromkeys((family, where[:2]) for family, _, _, _, where in found):
                self._listening.append(socket.create_server(where, family=family, backlog=BACKLOG))
        except OSError:
            self._close()
            raise
        for listening in self._listening:
            listening.setblocking(False)
            self._tasks.append(asyncio.create_task(self._accept(listening)))

    async def stop(self) -> None:
        """Accept nothing more; connections that are open stay so."""
        opening = [connection.opening for connection in self._connections]
        for task in (*self._tasks, *opening):
            task.cancel()
        await asyncio.gather(*self._tasks, *opening, return_exceptions=True)
        self._close()

    @contextmanager
    def answering(self, transport: asyncio.BaseTransport | None) -> Iterator[None]:
        """A connection that is not to be closed meanwhile."""
        found = next((item for item in self._connections if item.transport is transport), None)
        if found is None:
            yield
            return
        found.answers += 1
        try:
            yield
        finally:
            found.answers -= 1

    def _close(self) -> None:
        for listening in self._listening:
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if not self._has_room():
                accepted.close()
                continue
            opening = asyncio.create_task(self._open(accepted))
            opening.add_done_callback(partial(_close_given_up, accepted))
            self._connections.append(_Connection(opening))

    def _has_room(self) -> bool:
        """Whether one more can be had, after the oldest that is being answered nothing has been closed for it."""
        self._connections = [item for item in self._connections if not item.over]
        if len(self._connections) < MOST_CONNECTIONS:
            return True
        idle = next((item for item in self._connections if not item.answers), None)
        if idle is None:
            return False
        now = time.monotonic()
        if now - self._told >= TELL_SECONDS:
            self._told = now
            log.warning("%d connections are open; the oldest without a request makes room", len(self._connections))
        idle.drop()
        self._connections.remove(idle)
        return True

    async def _open(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        seconds = HANDSHAKE_SECONDS if self._tls else None
        try:
            transport, _ = await loop.connect_accepted_socket(
                self._make, accepted, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError as error:  # TLS errors are among them
            log.debug("a connection came to nothing: %s", error)
            accepted.close()
            return
        mine = asyncio.current_task()
        for connection in self._connections:
            if connection.opening is mine:
                connection.transport = transport


def _close_given_up(accepted: socket.socket, opening: asyncio.Task[None]) -> None:
    """Where it is given up before it has begun, nobody else does so."""
    if opening.cancelled():
        accepted.close()

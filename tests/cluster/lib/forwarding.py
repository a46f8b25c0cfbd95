"""What kube-proxy does, which the clusters of the lab lack: passes connections to one address on to one of several."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dra_driver.util.acceptor import Acceptor, task_of

Endpoint = tuple[str, int]
"""Address and port."""


class Forwarder:
    """Passes TCP connections on, byte by byte, from ``start`` until ``stop``.

    Args:
        endpoints: asked for each connection, from a thread; one of them is chosen at random, another one where nobody
            listens.
    """

    def __init__(self, endpoints: Callable[[], Sequence[Endpoint]]) -> None:
        self._endpoints = endpoints
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="forwarder", daemon=True)
        self._acceptors: list[Acceptor] = []
        self._connections: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin; nothing is listened to yet."""
        self._thread.start()

    def listen(self, address: str, port: int = 0) -> int:
        """Accept connections there too (0: on any free port); the port."""
        return int(self._do(self._listen(address, port)))

    def stop(self) -> None:
        """End, with all connections."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, work: Coroutine[object, object, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self, address: str, port: int) -> int:
        acceptor = Acceptor(socket.create_server((address, port)), self._take)
        self._acceptors.append(acceptor)
        return acceptor.port

    async def _end(self) -> None:
        for acceptor in self._acceptors:
            acceptor.stop()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _take(self, accepted: socket.socket, _address: str) -> None:
        task = task_of(accepted, self._pass_on(accepted))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _pass_on(self, accepted: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=accepted)
        try:
            await self._connect(reader, writer)
        except OSError:
            pass  # either end has gone; the other one sees its connection closed
        finally:
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = list(await asyncio.to_thread(self._endpoints))
        random.shuffle(found)
        for address, port in found:
            try:
                there, back = await asyncio.open_connection(address, port)
            except OSError:
                continue
            try:
                await _first_of(_copy(reader, back), _copy(there, writer))
            finally:
                back.close()
            return


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()


async def _first_of(*work: Coroutine[object, object, None]) -> None:
    tasks: Sequence[asyncio.Task[None]] = [asyncio.ensure_future(item) for item in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

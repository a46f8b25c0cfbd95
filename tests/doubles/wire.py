"""A wire that can go dead: connections stay and are accepted, and no byte comes through until it is mended."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self


class Wire:
    """Passes the connections to ``url`` on, byte by byte.

    Args:
        port: where the server listens, on the loopback address.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._alive = threading.Event()
        self._alive.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.mend()
        for connection in (self._listening, *self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def die(self) -> None:
        """Let nothing through from now on."""
        self._alive.clear()

    def mend(self) -> None:
        """Let everything through again, and what has been waiting first."""
        self._alive.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                there = socket.create_connection(("127.0.0.1", self._port))
                self._open += [here, there]
                for source, sink in ((here, there), (there, here)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._alive.wait()
                sink.sendall(data)
            self._alive.wait()
            sink.shutdown(socket.SHUT_WR)

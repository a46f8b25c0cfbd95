"""What may reach an extender's port beside the scheduler, all at once."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Self

HUNDRED_MB = 100 * 1024 * 1024
CHUNK = 65536
WRONG = (b"", b"{", b"null", b"[" * 100_000, b"\xff\xfe", b'{"Pod":null,"NodeNames":[]}', b'{"Pod":{},"NodeNames":7}')
SILENT = 60
"""Clients of each kind that begin something and never end it."""
LIMIT_SECONDS = 60.0


class Abuse:
    """Threads that send it; ``statuses`` counts the answers by what was sent."""

    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        self._port, self._tls = port, tls
        self.statuses: Counter[str] = Counter()
        self._open: list[socket.socket] = []
        self._faults: list[Exception] = []
        work: list[Callable[[], None]] = [self._wrong_json, self._huge, self._huge_in_chunks, self._no_http]
        work.append(self._unknown)
        self._threads = [threading.Thread(target=self._guarded, args=(item,), daemon=True) for item in work]

    def __enter__(self) -> Self:
        for number in range(SILENT):
            # Nothing at all; nothing after the handshake; half of a head; half of a body.
            self._open.append(socket.create_connection(("127.0.0.1", self._port), timeout=10))
            for beginning in (
                b"",
                b"POST /filter HTTP/1.1\r\nHo",
                b"POST /bind HTTP/1.1\r\nContent-Length: 99\r\n\r\n{",
            ):
                if number % 4 == 0:
                    connection = self._connect()
                    connection.sendall(beginning)
                    self._open.append(connection)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._open:
            connection.close()

    def wait_done(self) -> None:
        """Until everything that gets an answer has had it."""
        for thread in self._threads:
            thread.join(LIMIT_SECONDS)
            assert not thread.is_alive(), f"no answer within {LIMIT_SECONDS:g} s; answers so far: {self.statuses}"
        assert not self._faults, self._faults

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 # told by wait_done()
            self._faults.append(error)

    def _connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self._port), timeout=LIMIT_SECONDS)
        return self._tls.wrap_socket(plain, server_hostname="127.0.0.1")

    def _wrong_json(self) -> None:
        for body in WRONG * 10:
            for path in ("/filter", "/prioritize", "/bind"):
                connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=30, context=self._tls)
                connection.request("POST", path, body)
                answer = connection.getresponse()
                assert len(answer.read()) < 300
                connection.close()
                self.statuses[f"wrong JSON {answer.status}"] += 1

    def _huge(self) -> None:
        body = (b"x" * CHUNK for _ in range(HUNDRED_MB // CHUNK))
        self.statuses[f"100 MB {self._send(f'Content-Length: {HUNDRED_MB}', body)}"] += 1

    def _huge_in_chunks(self) -> None:
        body = (b"%x\r\n%b\r\n" % (CHUNK, b"x" * CHUNK) for _ in range(HUNDRED_MB // CHUNK))
        self.statuses[f"100 MB without saying so {self._send('Transfer-Encoding: chunked', body)}"] += 1

    def _no_http(self) -> None:
        with self._connect() as connection:
            connection.sendall(b"\x00\x01\x02 what is this\r\n\r\n")
            self.statuses[f"no HTTP {_status(connection.recv(CHUNK))}"] += 1

    def _unknown(self) -> None:
        """Somebody without a certificate."""
        anybody = ssl.create_default_context()
        anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=30, context=anybody)
        connection.request("POST", "/bind", b"{}")
        self.statuses[f"no certificate {connection.getresponse().status}"] += 1
        connection.close()

    def _send(self, header: str, body: Iterator[bytes]) -> int:
        """Send until the server has enough of it; the status."""
        with self._connect() as connection:
            connection.sendall(f"POST /filter HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
            with suppress(OSError):
                for chunk in body:
                    connection.sendall(chunk)
            try:
                return _status(connection.recv(CHUNK))
            except OSError:
                return 413  # refused and closed while we were sending


def _status(answer: bytes) -> int:
    return int(answer.split()[1]) if answer else 0

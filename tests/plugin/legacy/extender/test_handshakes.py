"""Handshakes take the extender's time, and each address has some of it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import pki

from dra_driver.legacy.extender import handshakes as module
from dra_driver.legacy.extender import server as server_module
from dra_driver.legacy.extender.server import Tls
from tests.builders.extender import extender
from tests.builders.probes import connect
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import PATIENCE, eventually
from tests.golden import golden

NODE, SCHEDULER, POD = "127.0.0.1", "127.0.0.3", "127.0.0.2"
"""Whence connections come."""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("torus")]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Directory of certificates of a CA and of the scheduler."""
    pki.authority(tmp_path, "ca")
    pki.certificate(tmp_path, "ca", pki.Identity("scheduler", "/CN=scheduler"))
    return tmp_path


@pytest.fixture
def port(server: ApiServer, files: Path) -> Iterator[int]:
    """Of an extender."""
    with extender(server, tls=Tls(files / "ca.crt", files / "ca.key", files / "ca.crt")) as running:
        eventually(lambda: is_answered(connect(running.port, NODE), files, path="/readyz"), what="readiness")
        yield running.port


def context(files: Path, certificate: str = "") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(files / "ca.crt"))
    made.check_hostname = False
    if certificate:
        made.load_cert_chain(files / certificate, files / "scheduler.key")
    return made


def is_answered(
    plain: socket.socket, files: Path, certificate: str = "", seconds: float = PATIENCE, path: str = "/livez"
) -> bool:
    """Whether a connection that has begun gets through its handshake, and a request is answered with 200."""
    with plain:
        plain.settimeout(seconds)
        try:
            with context(files, certificate).wrap_socket(plain) as connection:
                connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                return connection.recv(12) == b"HTTP/1.1 200"
        except (ssl.SSLError, ConnectionError):
            return False


class Client:
    """One that begins its handshake, and ends it later, together with a request."""

    def __init__(self, plain: socket.socket, files: Path, certificate: str = "") -> None:
        self._plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._spoken = context(files, certificate).wrap_bio(self._incoming, self._outgoing)

    def begin(self) -> None:
        """Send the first message, and wait for the answer."""
        with pytest.raises(ssl.SSLWantReadError):
            self._spoken.do_handshake()
        self._hear()

    def end(self) -> None:
        """End the handshake."""
        while True:
            try:
                self._spoken.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._hear()

    def say(self, text: bytes, times: int = 1) -> None:
        """Send a text, each time as a record of its own."""
        for _ in range(times):
            self._spoken.write(text)
        self._plain.sendall(self._outgoing.read())

    def ask(self, request: bytes) -> bytes:
        """The first bytes of the answer."""
        self.end()
        self._spoken.write(request)
        while True:
            self._hear()
            try:
                return self._spoken.read(12)
            except ssl.SSLWantReadError:
                continue

    def _hear(self) -> None:
        self._plain.sendall(self._outgoing.read())
        come = self._plain.recv(65536)
        if not come:
            raise ConnectionResetError
        self._incoming.write(come)


@pytest.mark.parametrize("changes", [{"HANDSHAKES": 0.001, "AT_ONCE": 1}, {"SHARE": 1e-9}], ids=["number", "time"])
def test_an_address_whose_handshakes_are_many_or_long_waits_and_keeps_nobody_else_waiting(
    port: int, files: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, float]
) -> None:
    for name, value in changes.items():
        monkeypatch.setattr(module, name, value)
    assert is_answered(connect(port, POD), files)
    with pytest.raises(TimeoutError):
        is_answered(connect(port, POD), files, seconds=0.2)
    for address in (SCHEDULER, NODE, NODE, NODE):
        assert is_answered(connect(port, address), files)


def test_handshakes_that_have_begun_fail_when_others_have_taken_the_time_of_their_address(
    port: int, files: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", server_module.__name__)
    with connect(port, POD) as plain:
        begun = Client(plain, files)
        begun.begin()
        with monkeypatch.context() as patch:
            patch.setattr(module, "SHARE", 1e-9)
            assert is_answered(connect(port, POD), files)
        with pytest.raises(ConnectionError):
            begun.ask(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert is_answered(connect(port, SCHEDULER), files)
    golden([text for text in caplog.messages if "too long" in text])


def test_who_has_shown_no_certificate_says_no_more_than_a_request(port: int, files: Path) -> None:
    """Empty lines before a request are none: they were read for five seconds, as fast as they came."""
    with connect(port, POD) as plain:
        plain.settimeout(PATIENCE)
        stranger = Client(plain, files)
        stranger.begin()
        stranger.end()
        with pytest.raises(ConnectionError):
            for _ in range(200):
                stranger.say(b"\r\n", times=200)
                time.sleep(0.005)  # the extender shares this process with its test


def test_what_a_stranger_says_after_his_handshake_takes_the_time_of_his_address(
    port: int, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(port, POD) as plain:
        stranger = Client(plain, files)
        stranger.begin()
        stranger.end()
        with monkeypatch.context() as patch:
            patch.setattr(module, "SHARE", 1e-9)
            stranger.say(b"\r\n")
            assert is_answered(connect(port, NODE), files), "by then it is read"
        with pytest.raises(ConnectionError):
            stranger.ask(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises(TimeoutError):
            is_answered(connect(port, POD), files, seconds=0.2)
    for address in (SCHEDULER, NODE):
        assert is_answered(connect(port, address), files)


@pytest.mark.parametrize("says", ["a request", "farewell"])
def test_why_a_stranger_is_not_heard(files: Path, says: str) -> None:
    server = Tls(files / "ca.crt", files / "ca.key", files / "ca.crt").server()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    stranger = context(files).wrap_bio(to_client, to_server)
    heard = server.wrap_bio(to_server, to_client, server_side=True)
    for one in (stranger, heard, stranger, heard):
        with contextlib.suppress(ssl.SSLWantReadError):
            one.do_handshake()
    for _ in range(1000):
        stranger.write(b"\r\n")
    hear = heard.read if says == "a request" else heard.unwrap
    with pytest.raises(ssl.SSLError) as much:
        hear()
    heard.pace.spend(1.0)  # type: ignore[attr-defined] # of our context
    with pytest.raises(ssl.SSLError) as long:
        hear()
    golden([str(much.value), str(long.value)])


def test_a_scheduler_with_its_certificate_says_as_much_as_it_likes(port: int, files: Path) -> None:
    with connect(port, SCHEDULER) as plain:
        scheduler = Client(plain, files, "scheduler.crt")
        scheduler.begin()
        scheduler.end()
        scheduler.say(b"\r\n", times=5_000)
        assert scheduler.ask(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n") == b"HTTP/1.1 200"


@pytest.mark.parametrize(("issuers", "fits"), [(3, True), (30, False)])
def test_a_client_shows_few_certificates(
    port: int, files: Path, caplog: pytest.LogCaptureFixture, issuers: int, fits: bool
) -> None:
    caplog.set_level("DEBUG", server_module.__name__)
    chain = (files / "scheduler.crt").read_text() + issuers * (files / "ca.crt").read_text()
    (files / "chain.crt").write_text(chain)
    assert is_answered(connect(port, SCHEDULER), files, "chain.crt") == fits
    eventually(lambda: fits or any("bytes" in text for text in caplog.messages), what="the log")
    golden([text for text in caplog.messages if "bytes" in text])


def test_a_request_that_comes_with_the_end_of_the_handshake_is_read_whole(port: int, files: Path) -> None:
    body = b'{"Pod":{"metadata":{}},"NodeNames":[]}' + b" " * 100_000
    head = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connect(port, SCHEDULER) as plain:
        assert Client(plain, files, "scheduler.crt").ask(head + body) == b"HTTP/1.1 200"


def test_a_handshake_that_never_comes_ends(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_SECONDS", 0.5)
    with connect(port, POD) as connection:
        assert connection.recv(1) == b""

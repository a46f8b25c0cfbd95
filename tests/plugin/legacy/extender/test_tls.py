"""HTTPS: between replicas, and with the scheduler."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from lab import pki

from dra_driver.legacy.extender import server as server_module
from dra_driver.legacy.extender.server import Tls
from tests.builders.extender import Extender, extender, sample
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import PATIENCE, eventually
from tests.golden import golden

QUESTION = b'{"Pod":{"metadata":{}},"NodeNames":[]}'

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("torus")]


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Directory of certificates: of two CAs, and of the extender, the scheduler, and others."""
    for name in ("servers", "clients"):
        pki.authority(tmp_path, name)
    for signer, name in (("servers", "extender"), ("servers", "other-server"), ("clients", "scheduler")):
        pki.certificate(tmp_path, signer, pki.Identity(name, f"/CN={name}", ("DNS:localhost",)))
    return tmp_path


def tls(directory: Path, name: str, client_ca: Path | None = None) -> Tls:
    """What a server has, with a chain."""
    chain = directory / f"{name}.chain"
    chain.write_text((directory / f"{name}.crt").read_text() + (directory / "servers.crt").read_text())
    return Tls(chain, directory / f"{name}.key", client_ca)


def ask(port: int, directory: Path, client: str = "", *, method: str = "POST", path: str = "/filter") -> int:
    """The status; 0 where the connection was refused."""
    return answer(port, directory, client, method=method, path=path)[0]


def answer(
    port: int, directory: Path, client: str = "", *, method: str = "POST", path: str = "/filter"
) -> tuple[int, str]:
    context = ssl.create_default_context(cafile=str(directory / "servers.crt"))
    if client:
        context.load_cert_chain(directory / f"{client}.crt", directory / f"{client}.key")
    connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=10)
    try:
        connection.request(method, path, QUESTION if method == "POST" else None)
        found = connection.getresponse()
        return found.status, found.read().decode()
    except (ssl.SSLError, ConnectionError):
        return 0, ""
    finally:
        connection.close()


def leads(one: Extender) -> bool:
    return bool(one.service.port) and sample(one, "leads") == 1.0


def test_the_leader_is_known_by_its_own_certificate(server: ApiServer, certificates: Path) -> None:
    with extender(server, "one", elect=True, tls=tls(certificates, "extender")) as first:
        eventually(lambda: leads(first), what="a leader")
        with extender(server, "two", elect=True, tls=tls(certificates, "extender")) as second:
            eventually(lambda: ask(second.port, certificates) == 200, what="an answer of the leader")
        with extender(server, "three", elect=True, tls=tls(certificates, "other-server")) as third:
            # It asks the leader, but what the same CA has signed is not the leader's certificate.
            eventually(lambda: "did not answer" in answer(third.port, certificates)[1], what="a refusal")


def test_only_clients_with_a_certificate_may_ask(server: ApiServer, certificates: Path) -> None:
    settings = tls(certificates, "extender", certificates / "clients.crt")
    with extender(server, "one", elect=True, tls=settings) as first:
        eventually(lambda: leads(first), what="a leader")
        eventually(lambda: ask(first.port, certificates, "scheduler") == 200, what="an answer")
        status, said = answer(first.port, certificates)
        assert status == 401
        golden(said)
        assert ask(first.port, certificates, "other-server") == 0, "the CA of the servers has no say about clients"
        for path in ("/livez", "/readyz"):
            assert ask(first.port, certificates, method="GET", path=path) == 200, "kubelet has no certificate"
        with extender(server, "two", elect=True, tls=settings) as second:
            eventually(lambda: ask(second.port, certificates, "scheduler") == 200, what="the leader's answer")
            assert ask(second.port, certificates) == 401


def connect(port: int, directory: Path, client: str = "") -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(directory / "servers.crt"))
    if client:
        context.load_cert_chain(directory / f"{client}.crt", directory / f"{client}.key")
    plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    return context.wrap_socket(plain, server_hostname="localhost")


def answers(connection: ssl.SSLSocket, most: int) -> int:
    """How many come until the connection ends, or until there are so many."""
    text = b""
    while text.count(b"HTTP/1.1 ") < most and (more := connection.recv(65536)):
        text += more
    return text.count(b"HTTP/1.1 ")


@pytest.mark.parametrize("line", ["POST /filter", "POST /bind", "PUT /filter", "GET /livez", "GET /readyz", "GET /"])
def test_who_shows_no_certificate_gets_one_answer_a_connection(
    server: ApiServer, certificates: Path, line: str
) -> None:
    question = f"{line} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    with extender(server, "one", tls=tls(certificates, "extender", certificates / "clients.crt")) as one:
        with connect(one.port, certificates) as stranger:
            stranger.sendall(question * 3)
            assert answers(stranger, 2) == 1
        with connect(one.port, certificates, "scheduler") as scheduler:
            scheduler.sendall(question * 3)
            assert answers(scheduler, 3) == 3


def test_connections_of_strangers_that_do_not_let_themselves_be_closed_count(
    server: ApiServer, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(server_module, "STRANGER_SECONDS", 120.0)
    with (
        extender(server, "one", tls=tls(certificates, "extender", certificates / "clients.crt")) as one,
        ExitStack() as stack,
    ):
        strangers = []
        for _ in range(40):
            stranger = stack.enter_context(connect(one.port, certificates))
            stranger.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert stranger.recv(1) == b"H"  # and nobody reads that it is to end
            strangers.append(stranger)
        poll = select.poll()
        for stranger in strangers:
            poll.register(stranger, select.POLLRDHUP)
        eventually(lambda: len(poll.poll(0)) >= 20, 10.0, "an end of those that were too many")


def test_strangers_of_a_schedulers_address_do_not_close_its_connection(
    server: ApiServer, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All who come through the port on the nodes have one address."""
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 20)
    with (
        extender(server, "one", tls=tls(certificates, "extender", certificates / "clients.crt")) as one,
        connect(one.port, certificates, "scheduler") as scheduler,
        ExitStack() as stack,
    ):
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", one.port), timeout=10)) for _ in range(60)
        ]
        assert strangers[0].recv(1) == b""
        scheduler.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answers(scheduler, 1) == 1


@pytest.mark.parametrize("beginning", [b"", b"POST /filter HTTP/1.1\r\nHo"])
def test_who_shows_no_certificate_has_few_seconds_for_a_request(
    server: ApiServer, certificates: Path, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(server_module, "STRANGER_SECONDS", 0.5)
    with (
        extender(server, "one", tls=tls(certificates, "extender", certificates / "clients.crt")) as one,
        connect(one.port, certificates, "scheduler") as scheduler,
        connect(one.port, certificates) as stranger,
    ):
        for connection in (scheduler, stranger):
            connection.sendall(beginning)
        with suppress(ssl.SSLError, ConnectionError):  # it is cut off
            assert stranger.recv(1) == b""
        scheduler.settimeout(0.2)
        with pytest.raises(TimeoutError):
            scheduler.recv(1)


def test_nobody_waits_for_the_body_of_who_shows_no_certificate(server: ApiServer, certificates: Path) -> None:
    def seconds() -> float:
        """From the answer to the end of the connection."""
        with connect(one.port, certificates) as stranger:
            stranger.sendall(b"POST /filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
            assert stranger.recv(12) == b"HTTP/1.1 401"
            started = time.monotonic()
            while stranger.recv(65536):
                pass
            return time.monotonic() - started

    with extender(server, "one", tls=tls(certificates, "extender", certificates / "clients.crt")) as one:
        assert min(seconds() for _ in range(10)) < 0.5

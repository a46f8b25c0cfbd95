"""HTTPS: between replicas, and with the scheduler."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path

import pytest
from lab import pki

from dra_driver.legacy.extender.server import Tls
from tests.builders.extender import Extender, extender, sample
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually
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

"""What kube-scheduler, clients and the log are told: one fault after the other, in this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from lab import pki

from dra_driver.legacy.extender import server as server_module
from dra_driver.legacy.extender.server import Tls
from dra_driver.legacy.extender.service import LEASE_NAME, ExtenderService, ExtenderSettings
from dra_driver.util.errors import DriverError
from tests.builders.extender import FAST, Extender, add_node, add_pod, extender, known, limits, pod_document
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually
from tests.golden import golden, golden_error, logged

PROBE = {"Pod": {"metadata": {}}, "NodeNames": []}


@pytest.fixture
def one(server: ApiServer) -> Iterator[Extender]:
    add_node(server, "n")
    with extender(server) as running:
        yield known(running)


def test_what_is_logged_of_pods_that_are_bound_or_not(
    server: ApiServer, one: Extender, log: pytest.LogCaptureFixture
) -> None:
    item = add_pod(server, "p", limits(4))
    said = [one.bind(item, "n"), one.bind(item, "n"), one.bind(add_pod(server, "plain", {}), "n")]
    said += [one.bind(add_pod(server, "full", limits(16)), "n"), one.bind(add_pod(server, "lost", limits(1)), "other")]
    golden(said, "answers")
    # Not that a bind was still under way when the extender looked: that is up to the machine.
    golden(logged(log, "Allocated", "already bound to", "asks for no", "not fit", "not bound"), "log")


def test_what_is_logged_of_candidates(server: ApiServer, one: Extender, log: pytest.LogCaptureFixture) -> None:
    one.filter(pod_document("p", limits(4)), ["n", "other"])
    one.filter(pod_document("odd", limits("many")), ["n"])
    victim = add_pod(server, "victim", limits(4))
    assert one.bind(victim, "n") == ""
    urgent = pod_document("urgent", limits(16))
    urgent["spec"]["priority"] = 9
    one.preempt(urgent, {"n": [victim["metadata"]["uid"]]})
    golden(logged(log, "POD a/p ", "POD a/odd", "may evict"))


def test_a_bind_without_an_answer_keeps_the_devices(
    server: ApiServer, one: Extender, log: pytest.LogCaptureFixture
) -> None:
    item = add_pod(server, "p", limits(16))
    eventually(lambda: any(sample.name.endswith("_pods") and sample.value for sample in one.service.samples()))
    server.drop(1, path="/binding$")
    server.fail(503, 3, method="GET", path="/pods/p$")
    golden(one.bind(item, "n"))
    golden([text.partition(": the API")[0] for text in logged(log, "it is not known whether")], "log")


def test_a_bind_under_way_is_not_begun_again(server: ApiServer, one: Extender) -> None:
    item = add_pod(server, "p", limits(4))
    with ThreadPoolExecutor(1) as pool:
        with server.hold(path="/binding$") as come:
            first = pool.submit(one.bind, item, "n")
            eventually(come)
            golden(one.bind(item, "n"))
        assert first.result(30) == ""


def test_a_pod_that_changes_all_the_time_is_left_for_later(server: ApiServer, one: Extender) -> None:
    item = add_pod(server, "p", limits(4))
    server.fail(409, 100, path="/binding$")
    golden(one.bind(item, "n"))


def test_replicas_that_do_not_answer_say_why(server: ApiServer) -> None:
    server.fail(503, 1000, path="^/api/v1/(nodes|pods)")
    with extender(server) as alone:
        golden(alone.post("/filter", PROBE)[1], "no lists yet")
        golden([text for text in alone.service.problems() if "lists" in text], "readiness")
    spec = {"holderIdentity": "nobody that has an address", "leaseDurationSeconds": 3600}
    server.store.create("leases", {"metadata": {"namespace": "kube-system", "name": LEASE_NAME}, "spec": spec})
    with extender(server, elect=True) as standby:
        eventually(lambda: server.count("GET", "/leases/"))
        golden(standby.post("/filter", PROBE)[1], "no known leader")


def test_slow_clients_and_idle_connections(
    one: Extender, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "READ_SECONDS", 0.2)
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 3)
    with socket.create_connection(("127.0.0.1", one.port), timeout=10) as slow:
        slow.sendall(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{")
        golden(slow.recv(4096).decode().rpartition("\r\n\r\n")[2], "slow")
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(socket.create_connection(("127.0.0.1", one.port), timeout=10))
        eventually(lambda: "idle" in log.text)
    golden(logged(log, "idle"), "idle")


def test_a_port_that_is_taken_is_explained(server: ApiServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def start() -> None:
            service = ExtenderService(
                server.transport(), ExtenderSettings("127.0.0.1", port, None, "kube-system", "one", "", False, FAST)
            )
            try:
                await service.start()
            finally:
                await service.stop()

        with golden_error(DriverError):
            asyncio.run(start())


def test_certificates_that_cannot_be_used_are_explained(tmp_path: Path) -> None:
    pki.authority(tmp_path, "own")
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    good, key = tmp_path / "own.crt", tmp_path / "own.key"
    for name, files in (("certificate", Tls(bad, bad)), ("CA", Tls(good, key, bad))):
        with pytest.raises(DriverError) as caught:
            files.server()
        text = str(caught.value)
        golden(text[: text.index("cannot be used:")] + "cannot be used: ...;" + text.rpartition(";")[2], name)


def test_usage_maps_that_cannot_be_written_are_logged(
    server: ApiServer, one: Extender, log: pytest.LogCaptureFixture
) -> None:
    server.fail(403, 1, method="PATCH", path="/nodes/n$")
    assert one.bind(add_pod(server, "p", limits(4)), "n") == ""
    eventually(lambda: "could not be written" in log.text)
    golden(logged(log, "could not be written"))

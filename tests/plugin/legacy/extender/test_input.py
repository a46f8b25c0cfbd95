"""Whatever comes to the extender's port gets a clear answer, and the next request is answered as before."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from lab import pki

from dra_driver.legacy.extender import server as module
from tests.builders.agent import free_port
from tests.builders.extender import (
    Extender,
    add_node,
    add_pod,
    extender,
    limits,
    pod_document,
    process,
)
from tests.builders.probes import connect, is_closed
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually
from tests.golden import golden

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("torus")]

GOOD = {"Pod": pod_document("good", limits(4)), "NodeNames": ["n"]}


@pytest.fixture
def one(server: ApiServer) -> Iterator[Extender]:
    with extender(server) as running:
        running.ready()
        eventually(lambda: running.post("/filter", GOOD)[1]["NodeNames"] == ["n"], what="the node")
        yield running
        assert running.post("/filter", GOOD)[1]["NodeNames"] == ["n"], "it answers afterwards as before"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"[" * 100_000,
        b"\xff\xfe",
        b'"\xd8"',
        b"{}",
        b'{"Pod":null,"NodeNames":[]}',
        b'{"Pod":{},"NodeNames":[]}',
        b'{"Pod":{"metadata":null},"NodeNames":[]}',
        b'{"Pod":{"metadata":{},"spec":{"containers":{}}},"NodeNames":[]}',
        b'{"Pod":{"metadata":{},"spec":{"containers":[null]}},"NodeNames":[]}',
        b'{"Pod":{"metadata":{},"spec":{"containers":[{"resources":{"limits":{"aws.amazon.com/neuron":{}}}}]}},"NodeNames":[]}',
        b'{"Pod":{"metadata":{"annotations":{"AWS_NEURON_IDS":7}}},"NodeNames":[]}',
        b'{"Pod":{"metadata":{}}}',
        b'{"Pod":{"metadata":{}},"NodeNames":null,"Nodes":null}',
        b'{"Pod":{"metadata":{}},"NodeNames":[1]}',
        b'{"Pod":{"metadata":{}},"Nodes":{"items":[{}]}}',
        b'{"Pod":{"metadata":{}},"Nodes":{"items":[7]}}',
    ],
)
@pytest.mark.parametrize("path", ["/filter", "/prioritize"])
def test_what_cannot_be_read_is_refused_with_the_field(one: Extender, path: str, body: bytes) -> None:
    status, text = one.post(path, body)
    assert status == 400
    golden(str(text))
    assert len(str(text)) < 300


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"PodName": "p", "PodNamespace": "a", "PodUID": "", "Node": "n"},
        {"PodName": "p", "PodNamespace": "", "PodUID": "u", "Node": "n"},
        {"PodName": "p", "PodNamespace": "a", "PodUID": "u"},
        {"PodName": 1, "PodNamespace": "a", "PodUID": "u", "Node": "n"},
    ],
)
def test_an_order_to_bind_that_cannot_be_read_is_refused(one: Extender, body: Any) -> None:
    status, text = one.post("/bind", body)
    assert status == 400
    golden(str(text))


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"Pod": {"metadata": {}}, "NodeNameToMetaVictims": []},
        {"Pod": {"metadata": {}}, "NodeNameToMetaVictims": {"n": {"Pods": [{}]}}},
        {"Pod": {"metadata": {}}, "NodeNameToVictims": {"n": {"Pods": [{"metadata": {"uid": 7}}]}}},
        {"Pod": {"metadata": {}, "spec": {"priority": "high"}}},
    ],
)
def test_proposed_victims_that_cannot_be_read_are_refused(one: Extender, body: Any) -> None:
    status, text = one.post("/preempt", body)
    assert status == 400
    golden(str(text))


def test_a_pod_with_nothing_in_it_fits_everywhere(one: Extender) -> None:
    empty: list[dict[str, Any]] = [{}, {"spec": {}}, {"spec": {"containers": None}}]
    for item in ({"metadata": {}, **more} for more in empty):
        assert one.post("/filter", {"Pod": item, "NodeNames": ["n"]})[1]["NodeNames"] == ["n"]


@pytest.mark.parametrize("count", ["-1", "1.5", "two", "", -1, 1.5])
def test_a_count_that_is_no_whole_number_is_the_reason_on_every_node(one: Extender, count: Any) -> None:
    found = one.filter(pod_document("p", {"limits": {"aws.amazon.com/neuron": count}}), ["n", "m"])
    assert found["NodeNames"] == []
    assert {*found["FailedAndUnresolvableNodes"]} == {"n", "m"}
    golden(found["FailedAndUnresolvableNodes"]["n"])


@pytest.mark.parametrize("count", ["1000000000", "1G", 10**9, "9" * 18])
def test_a_billion_devices_are_refused_in_the_documented_words(one: Extender, count: Any) -> None:
    found = one.filter(pod_document("p", {"limits": {"aws.amazon.com/neuron": count}}), ["n"])
    golden(found["FailedAndUnresolvableNodes"]["n"])


def test_no_devices_are_no_demand(one: Extender) -> None:
    assert one.fits(pod_document("p", limits(0, 0)), ["n"]) == ["n"]


def test_both_resources_in_one_container_are_explained(one: Extender) -> None:
    found = one.filter(pod_document("p", limits(1, 2)), ["n"])["FailedAndUnresolvableNodes"]
    assert "asks for both" in found["n"]


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/", "GET", 404), ("/filter", "GET", 405), ("/evict", "POST", 404)]
)
def test_other_paths_and_methods_are_refused(one: Extender, path: str, method: str, status: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=5)
    connection.request(method, path)
    assert connection.getresponse().status == status
    connection.close()


@pytest.mark.parametrize("body", [gzip.compress(json.dumps(GOOD).encode()), json.dumps(GOOD).encode()])
def test_bodies_are_not_unpacked(one: Extender, body: bytes) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", one.port, timeout=20)) as connection:
        connection.request("POST", "/filter", body, {"Content-Encoding": "gzip"})
        answer = connection.getresponse()
        assert answer.status == 415
        golden(answer.read().decode())


def test_a_body_of_a_hundred_megabytes_is_refused_before_it_is_read(one: Extender) -> None:
    assert _send(one.port, {"Content-Length": str(100 * 1024 * 1024)}, (b"x" * 65536 for _ in range(1600))) == 413


def test_a_body_of_a_hundred_megabytes_that_does_not_say_so_is_refused(server: ApiServer, tmp_path: Path) -> None:
    with process(server, tmp_path, "--no-leader-elect") as (running, client):
        chunks = (b"10000\r\n" + b"x" * 65536 + b"\r\n" for _ in range(1600))
        assert _send(client.port, {"Transfer-Encoding": "chunked"}, chunks) == 413
        memory = Path(f"/proc/{running.pid}/status").read_text()
        resident = int(memory.split("VmHWM:")[1].split()[0])
        assert resident < 300 * 1024, "it reads up to its bound, and no further"
        assert client.fits(pod_document("p", limits(1)), ["n"]) == ["n"]


def _send(port: int, headers: dict[str, str], chunks: Any) -> int:
    """Send until the server has enough of it; the status."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.sendall(f"POST /filter HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
        try:
            for chunk in chunks:
                connection.sendall(chunk)
        except OSError:
            pass  # it does not listen any more
        try:
            answer = connection.recv(65536)
        except ConnectionResetError:
            return 413  # refused and closed while we were sending
        return int(answer.split()[1]) if answer else 0


@pytest.mark.parametrize(
    ("path", "lines", "status"),
    [
        ("/livez", [b"h: " + b"x" * 900] * 30, 200),
        ("/livez", [b"h: x"] * 40, 400),
        ("/livez", [b"h: " + b"x" * 2000], 400),
        ("/livez", [b"h" * 2000 + b": x"], 400),
        ("/livez?" + "x" * 2000, [], 400),
    ],
)
def test_heads_of_requests_are_bounded(one: Extender, path: str, lines: list[bytes], status: int) -> None:
    with socket.create_connection(("127.0.0.1", one.port), timeout=20) as connection:
        head = b"\r\n".join([f"GET {path} HTTP/1.1".encode(), b"Host: x", *lines])
        connection.sendall(head + b"\r\n\r\n")
        assert int(connection.recv(65536).split()[1]) == status


def test_slow_clients_keep_nobody_waiting_and_are_sent_away(one: Extender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_SECONDS", 3.0)
    body = json.dumps(GOOD).encode()
    slow = [socket.create_connection(("127.0.0.1", one.port), timeout=10) for _ in range(50)]
    try:
        for number, connection in enumerate(slow):
            # Some send nothing, some half a head, some half a body, some half of a large one.
            length = len(body) if number % 4 == 2 else 2 * module.LARGE_BYTES
            parts = b"", b"POST /filter HTTP/1.1\r\nHo", b"POST /filter HTTP/1.1\r\nHost: x\r\n"
            end = f"Content-Length: {length}\r\n\r\n".encode() + body[:20] if number % 4 > 1 else b""
            connection.sendall(parts[min(number % 4, 2)] + end)
        started = time.monotonic()
        for _ in range(20):
            assert one.post("/filter", GOOD)[1]["NodeNames"] == ["n"]
        assert time.monotonic() - started < 20 * module.READ_SECONDS / 2
        assert slow[2].recv(4096).startswith(b"HTTP/1.1 408")
    finally:
        for connection in slow:
            connection.close()


def test_connections_that_are_only_held_open_make_room_for_those_who_ask(
    one: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(module, "READ_SECONDS", 120.0)
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", one.port), timeout=10)) for _ in range(100)
        ]
        assert one.post("/filter", GOOD)[1]["NodeNames"] == ["n"]
        assert [connection.recv(1) for connection in silent[:80]] == [b""] * 80
        silent[99].settimeout(0.2)
        with pytest.raises(TimeoutError):
            silent[99].recv(1)


def test_an_answer_under_way_is_not_cut_off_by_others(
    server: ApiServer, one: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 1)
    item = add_pod(server, "p", limits(4))
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(one.bind(item, "n")))
    with server.hold(path="/binding$") as come:
        asking.start()
        eventually(come, what="the request")
        with socket.create_connection(("127.0.0.1", one.port), timeout=30) as refused:
            assert refused.recv(1) == b""
    asking.join(30)
    assert found == [""]


NODE, SCHEDULER, POD = "127.0.0.1", "127.0.0.3", "127.0.0.2"
"""Whence connections come."""


def served(one: Extender, address: str) -> http.client.HTTPConnection:
    """A connection from an address that has had an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=10, source_address=(address, 0))
    connection.connect()
    connection.auto_open = 0  # it is not dialled again where it was closed
    ask(connection)
    return connection


def ask(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/readyz")
    assert connection.getresponse().read() == b"ok\n"


def test_one_pod_that_opens_connections_closes_neither_the_nodes_own_nor_those_of_others(
    one: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 20)
    with ExitStack() as stack:
        # The scheduler's is the oldest; of the node's own, more are open than of anybody.
        others = [stack.enter_context(closing(served(one, address))) for address in [SCHEDULER] + [NODE] * 16]
        flood = [stack.enter_context(connect(one.port, POD)) for _ in range(100)]
        eventually(lambda: sum(not is_closed(item) for item in flood) == 3, what="room for the others")
        for connection in others:
            ask(connection)


def test_connections_without_a_request_end(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.5)
    with extender(server) as running:
        running.ready()
        for beginning in (b"", b"POST /filter HTTP/1.1\r\nHo"):
            with socket.create_connection(("127.0.0.1", running.port), timeout=10) as connection:
                connection.sendall(beginning)
                assert connection.recv(1) == b""


def test_what_is_no_http_is_one_line_in_the_log(server: ApiServer, tmp_path: Path) -> None:
    with process(server, tmp_path, "--no-leader-elect") as (_, client):
        for text in (b"\x00 what is this\r\n\r\n", b"POST /filter HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
                connection.sendall(text)
                assert connection.recv(4096).startswith(b"HTTP/1.0 400")
    lines = _log(tmp_path).splitlines()
    assert len([line for line in lines if "127.0.0.1: 400" in line]) == 1
    assert "Traceback" not in "\n".join(lines)


def test_clients_that_hang_up_in_the_middle_do_no_harm(server: ApiServer, one: Extender) -> None:
    item = add_pod(server, "p", limits(4))
    server.delay(0.5, 1, path="/binding$")
    meta = item["metadata"]
    body = json.dumps(
        {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": "n"}
    ).encode()
    with socket.create_connection(("127.0.0.1", one.port)) as connection:
        connection.sendall(b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        eventually(lambda: server.count("POST", "/binding$"), what="the request")
    eventually(lambda: server.store.get("pods", "a/p")["spec"].get("nodeName") == "n", what="the pod")
    eventually(lambda: one.bind(item, "n") == "", what="the end of the first order")


def test_many_at_once_are_all_answered(one: Extender) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(one.post("/filter", GOOD)[0])) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 40


def test_names_that_are_no_nodes_do_not_fill_the_memory(one: Extender) -> None:
    for start in range(0, 50_000, 1000):
        names = [f"x{number}" for number in range(start, start + 1000)]
        assert len(one.filter(pod_document("p", limits(4)), names)["FailedNodes"]) == 1000
    assert sum(one.service.remembered) <= 3


@pytest.mark.parametrize(
    ("metadata", "capacity", "text"),
    [
        ({"labels": {}}, {"aws.amazon.com/neuron": None, "aws.amazon.com/neuroncore": None}, "has no Neuron"),
        ({}, {"aws.amazon.com/neuron": None, "aws.amazon.com/neuroncore": None}, "has no Neuron"),
        ({}, {"aws.amazon.com/neuron": "15"}, "reports 15 devices, but trn1.32xlarge has 16"),
        ({}, {"aws.amazon.com/neuron": "many"}, "reports 'many'"),
        ({}, {"aws.amazon.com/neuroncore": "33"}, "reports 33 cores on 16 devices"),
        ({"annotations": {"neuron.aws.com/unusable-devices": "all"}}, {}, "unusable-devices is 'all'"),
    ],
)
def test_nodes_that_cannot_be_understood_are_refused_with_the_reason(
    server: ApiServer, one: Extender, metadata: Any, capacity: Any, text: str
) -> None:
    add_node(server, "odd", metadata=metadata, capacity=capacity)
    item = pod_document("p", limits(1))
    eventually(lambda: text in one.filter(item, ["odd"])["FailedNodes"]["odd"], what=text)
    assert one.scores(item, ["odd", "nowhere"]) == {"odd": 0, "nowhere": 0}


def test_the_port_must_be_free_and_the_certificates_usable(server: ApiServer, tmp_path: Path) -> None:
    with extender(server) as first:
        _ends(server, tmp_path, 1, "cannot listen on 127.0.0.1", "--no-leader-elect", "--port", str(first.port))
    pki.authority(tmp_path, "own")
    good, key, bad = (str(tmp_path / name) for name in ("own.crt", "own.key", "bad.pem"))
    Path(bad).write_text("no certificate")
    _ends(server, tmp_path, 1, "bad.pem cannot be used", "--tls-cert", bad, "--tls-key", bad)
    _ends(server, tmp_path, 1, "CA of the clients", "--tls-cert", good, "--tls-key", key, "--tls-client-ca", bad)
    _ends(server, tmp_path, 2, "only one of --tls-cert and --tls-key", "--tls-cert", good)
    _ends(server, tmp_path, 2, "--tls-client-ca is given without --tls-cert", "--tls-client-ca", good)


def _ends(server: ApiServer, root: Path, status: int, text: str, *options: str) -> None:
    """The process ends with a status and a text, and without a traceback."""
    with process(server, root, *options) as (running, _):
        assert running.wait(30) == status
    assert text in _log(root)
    assert "Traceback" not in _log(root)


def _log(root: Path) -> str:
    return "".join(path.read_text() for path in root.glob("extender-*.log"))


def test_metrics_tell_of_requests_nodes_and_cores(server: ApiServer, tmp_path: Path) -> None:
    port = free_port()
    with process(server, tmp_path, "--no-leader-elect", "--metrics-port", str(port)) as (_, client):
        eventually(lambda: client.fits(pod_document("probe", limits(1)), ["n"]), what="the node")
        assert client.schedule(add_pod(server, "p", limits(4)), ["n"]) == "n"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
    golden(line for line in lines if line.startswith("# HELP neuron_"))
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    prefix = "neuron_dra_driver_extender"
    assert found[f'{prefix}_request_seconds_count{{operation="bind",result="ok"}}'] == "1.0"
    assert float(found[f'{prefix}_request_seconds_count{{operation="filter",result="ok"}}']) >= 2
    assert (found[f"{prefix}_nodes"], found[f"{prefix}_cores"]) == ("1.0", "32.0")
    assert (found[f"{prefix}_taken_cores"], found[f"{prefix}_leads"]) == ("8.0", "1.0")

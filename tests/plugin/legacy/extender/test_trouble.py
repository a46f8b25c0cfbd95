"""Lost answers, lost watches, kills, and two replicas: no device is given twice, and none is lost."""

from __future__ import annotations

import asyncio
import http.client
import json
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from dra_driver.kube.api.client import REQUEST_SECONDS
from dra_driver.kube.api.resources import Collection
from dra_driver.legacy.extender import binding
from dra_driver.legacy.extender import server as server_module
from dra_driver.legacy.extender.binding import Binder, BindRequest
from dra_driver.legacy.extender.cluster import Cluster
from dra_driver.legacy.extender.server import Listener
from dra_driver.legacy.extender.wire import NODES, PODS, pod_of
from dra_driver.util.errors import DriverError
from tests.builders.extender import (
    Extender,
    add_node,
    add_pod,
    annotate,
    end_pod,
    everything_is_accounted_for,
    extender,
    ids,
    known,
    limits,
    notes,
    pod,
    pod_document,
    process,
    sample,
)
from tests.descriptors import no_descriptors
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import PATIENCE, eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("torus")]

BINDING = "/binding$"


@pytest.fixture
def one(server: ApiServer) -> Iterator[Extender]:
    with extender(server) as running:
        yield known(running)


# Answers


def test_a_bind_whose_answer_is_lost_is_found_to_be_done(server: ApiServer, one: Extender) -> None:
    item = add_pod(server, "p", limits(4))
    server.drop(1, path=BINDING, after=True)
    assert one.bind(item, "n") == ""
    assert server.count("POST", BINDING) == 1
    everything_is_accounted_for(server, one)


def test_a_pod_that_is_bound_again_before_the_watch_tells_of_it_keeps_its_devices(server: ApiServer) -> None:
    request = BindRequest("a", "p", add_pod(server, "p", limits(4))["metadata"]["uid"], "n")
    transport, cluster = server.transport(), Cluster()
    cluster.nodes_listed(Collection(transport, NODES).list_all()[0])
    cluster.pods_listed(Collection(transport, PODS).select(pod_of)[0], time.monotonic())
    binder = Binder(transport, cluster, lambda: True)
    binder.bind(request)
    # The scheduler has not waited for the answer. No watch tells the extender either that the pod is bound.
    server.fail(503, 1, method="GET", path="/pods/p$")
    with pytest.raises(DriverError, match="503"):
        binder.bind(request)
    assert cluster.counts()["taken_cores"] == 8
    transport.close()


def test_bindings_without_an_answer_are_resolved_though_a_webhook_hangs_on_those_of_one_namespace(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "SLOW_SECONDS", 0.5)
    keys = [("hangs", "h0"), ("hangs", "h1"), ("hangs", "h2"), ("good", "g0"), ("good", "g1")]
    for namespace, name in keys:
        server.store.create("pods", pod_document(name) | {"metadata": {"namespace": namespace, "name": name}})
    transport, cluster = server.transport(), Cluster()
    cluster.nodes_listed(Collection(transport, NODES).list_all()[0])
    cluster.pods_listed(Collection(transport, PODS).select(pod_of)[0], time.monotonic())
    binder = Binder(transport, cluster, lambda: True)
    for namespace, name in keys:
        server.drop(1, path=BINDING)
        server.fail(503, 1, method="GET", path=f"/pods/{name}$")
        uid = server.store.get("pods", f"{namespace}/{name}")["metadata"]["uid"]
        with pytest.raises(DriverError, match="is not known"):
            binder.bind(BindRequest(namespace, name, uid, "n"))
    server.delay(1.0, 3, method="PATCH", path="/namespaces/hangs/")
    for _ in keys:
        binder.reconcile()
    order = [request.path.rpartition("/")[2] for request in server.requests if request.method == "PATCH"]
    assert order == ["h0", "g0", "g1", "h1", "h2"]
    assert not binder.uncertain
    assert cluster.counts()["taken_cores"] == 0
    transport.close()


def test_a_bind_that_never_arrived_is_sent_again(server: ApiServer, one: Extender) -> None:
    item = add_pod(server, "p", limits(4))
    server.drop(1, path=BINDING)
    assert one.bind(item, "n") == ""
    assert server.count("POST", BINDING) == 2
    everything_is_accounted_for(server, one)


def test_a_bind_that_comes_late_cannot_be_carried_out_any_more(server: ApiServer, one: Extender) -> None:
    add_node(server, "m")
    eventually(lambda: one.fits(pod_document("probe", limits(1)), ["m"]), what="the other node")
    item = add_pod(server, "p", limits(4))
    server.delay(REQUEST_SECONDS + 1.5, 1, path=BINDING)
    # The second one is refused, so that the pod is unbound when the first one arrives.
    server.fail(403, 1, path=BINDING)
    assert "403" in one.bind(item, "n")
    assert one.schedule(add_pod(server, "q", limits(16)), ["n"]) == "n", "the devices are free again"

    def outcomes() -> list[int]:
        return [request.status for request in server.requests if request.path.endswith("p/binding")]

    eventually(lambda: outcomes() == [409, 403], what="the end of the first one")
    assert pod(server, "p")["spec"].get("nodeName") is None
    assert one.bind(item, "m") == ""
    everything_is_accounted_for(server, one)


@pytest.mark.parametrize(
    ("status", "message"),
    [(status, "not today") for status in (403, 404, 422, 429)] + [(500, "etcdserver: request is too large")],
)
def test_a_bind_that_is_refused_gives_the_devices_back(
    server: ApiServer, one: Extender, status: int, message: str
) -> None:
    """A pod may be so long that it can never be bound, nor be changed in any other way."""
    item = add_pod(server, "p", limits(16))
    server.fail(status, 1, path=BINDING, message=message)
    server.fail(status, 1000, method="PATCH", path="/pods/p$", message=message)
    assert message in one.bind(item, "n")
    everything_is_accounted_for(server, one)
    assert one.schedule(item, ["n"]) == "n"


@pytest.mark.parametrize("status", [408, 500, 504])
def test_a_bind_that_a_server_in_trouble_may_still_carry_out_is_made_impossible_before_the_next(
    server: ApiServer, one: Extender, status: int
) -> None:
    item = add_pod(server, "p", limits(4))
    server.fail(status, 1, path=BINDING)
    assert one.bind(item, "n") == ""
    first, second = (request.body["metadata"] for request in server.requests if request.path.endswith("p/binding"))
    assert first["resourceVersion"] != second["resourceVersion"]
    everything_is_accounted_for(server, one)


def test_while_nothing_answers_the_devices_are_kept_and_later_given_back(server: ApiServer, one: Extender) -> None:
    item = add_pod(server, "p", limits(16))
    eventually(lambda: sample(one, "pods") == 1, what="news of the pod")
    server.drop(1, path=BINDING)
    server.fail(503, 3, method="GET", path="/pods/p$")
    assert "is not known" in one.bind(item, "n")
    assert one.fits(pod_document("q", limits(1)), ["n"]) == []
    eventually(lambda: one.fits(pod_document("q", limits(1)), ["n"]) == ["n"], what="the devices")
    everything_is_accounted_for(server, one)
    assert one.schedule(item, ["n"]) == "n"


def test_a_pod_that_vanishes_during_its_bind_leaves_nothing_behind(server: ApiServer, one: Extender) -> None:
    item = add_pod(server, "p", limits(16))
    eventually(lambda: sample(one, "pods") == 1, what="news of the pod")
    server.drop(1, path=BINDING)
    server.fail(503, 2, method="GET", path="/pods/p$")
    one.bind(item, "n")
    server.store.delete("pods", "a/p")
    everything_is_accounted_for(server, one)
    assert one.schedule(add_pod(server, "q", limits(16)), ["n"]) == "n"


def test_two_binds_of_one_pod_at_once_end_in_one(server: ApiServer, one: Extender) -> None:
    item = add_pod(server, "p", limits(4))
    server.delay(0.5, 1, path=BINDING)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(one.bind(item, "n"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "" in found
    assert all("already being bound" in text for text in found if text)
    assert len(ids(server, "p")) == 4
    everything_is_accounted_for(server, one)


# Watches


@pytest.mark.parametrize("lost", ["closed", "expired", "refused"])
def test_pods_that_end_while_the_watch_is_lost_are_noticed_afterwards(
    server: ApiServer, one: Extender, lost: str
) -> None:
    for name in ("p", "q"):
        assert one.schedule(add_pod(server, name, limits(8)), ["n"]) == "n"
    if lost == "refused":
        server.fail(503, 3, watch=True)
    server.close_watches()
    end_pod(server, "p")
    server.store.delete("pods", "a/q")
    if lost == "expired":
        server.store.expire()
        server.close_watches()
    eventually(lambda: one.fits(pod_document("r", limits(16)), ["n"]) == ["n"], what="free devices")
    everything_is_accounted_for(server, one)


def test_what_is_bound_while_the_watch_is_lost_stays_taken(server: ApiServer, one: Extender) -> None:
    server.fail(503, 4, watch=True)
    server.close_watches()
    placed = [one.schedule(add_pod(server, f"p{number}", limits(4)), ["n"]) for number in range(5)]
    assert placed == ["n"] * 4 + [""]
    server.store.expire()
    everything_is_accounted_for(server, one)


def test_a_bound_pod_of_which_no_watch_tells_is_looked_for(
    server: ApiServer, one: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "NEWS_SECONDS", 0.5)
    refused = server.fail(503, 1000, watch=True)
    server.close_watches()
    eventually(lambda: refused.times < 999, what="the end of both watches")
    for name in ("gone", "stays"):
        assert one.schedule(add_pod(server, name, limits(8)), ["n"]) == "n"
    server.store.delete("pods", "a/gone")
    eventually(lambda: one.fits(pod_document("p", limits(8)), ["n"]) == ["n"], what="its devices")
    assert one.fits(pod_document("p", limits(16)), ["n"]) == []


# Ends


class Refuses(asyncio.Protocol):
    """Ends each connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


@pytest.mark.parametrize("turns", range(6))
def test_no_connection_outlives_the_listener_at_whatever_turn_of_the_loop_it_stops(turns: int) -> None:
    async def last_word() -> bytes:
        listener = Listener()
        await listener.start(Refuses, "127.0.0.1", 0, None)
        await asyncio.sleep(0)
        with socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await listener.stop()
            try:
                return await asyncio.to_thread(client.recv, 1)
            except ConnectionResetError:
                return b""

    assert asyncio.run(last_word()) == b""


def test_a_listener_without_file_descriptors_accepts_when_there_are_some_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def last_word() -> bytes:
        listener = Listener()
        await listener.start(Refuses, "127.0.0.1", 0, None)
        with socket.create_connection(("127.0.0.1", listener.port), timeout=PATIENCE) as client:
            with no_descriptors(client.fileno()):
                await asyncio.sleep(0.05)
            try:
                return await asyncio.to_thread(client.recv, 1)
            except ConnectionResetError:
                return b""
            finally:
                await listener.stop()

    assert asyncio.run(last_word()) == b""
    assert "Too many open files" in caplog.text


def test_no_connection_outlives_the_extender_whose_client_does_not_read(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "STOP_SECONDS", 0.2)
    names = [f"{number:0250d}" for number in range(10_000)]
    body = json.dumps({"Pod": pod_document("p", limits(4)), "NodeNames": names}).encode()
    with extender(server) as one:
        known(one)
        deaf = socket.create_connection(("127.0.0.1", one.port), timeout=PATIENCE)
        question = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        deaf.sendall(question * 3)
        eventually(lambda: select.select([deaf], [], [], 0)[0], what="the beginning of the answer")
    with deaf, suppress(ConnectionResetError):
        while deaf.recv(1 << 20):
            pass


def test_a_new_extender_goes_on_where_the_last_one_was(server: ApiServer) -> None:
    with extender(server) as first:
        known(first)
        for name in ("p", "q"):
            assert first.schedule(add_pod(server, name, limits(4)), ["n"]) == "n"
    end_pod(server, "p")
    with extender(server, "two") as second:
        known(second)
        assert second.fits(pod_document("r", limits(16)), ["n"]) == []
        assert second.schedule(add_pod(server, "r", limits(8)), ["n"]) == "n"
        assert ids(server, "r") == [*range(8, 16)]
        everything_is_accounted_for(server, second)


@pytest.mark.parametrize("point", ["the request is on its way", "it was carried out"])
def test_killed_during_a_bind_the_next_one_finds_what_became_of_it(
    server: ApiServer, tmp_path: Path, point: str
) -> None:
    item, other = add_pod(server, "p", limits(8)), add_pod(server, "q", limits(8))
    with process(server, tmp_path, "--no-leader-elect") as (running, client):
        eventually(lambda: client.fits(item, ["n"]) == ["n"], what="the node")
        if point == "it was carried out":
            server.drop(1, path=BINDING, after=True)
            server.delay(1.0, 1, method="GET", path="/pods/p$")
        else:
            server.delay(0.5, 1, path=BINDING)
        asking = threading.Thread(target=_quietly(lambda: client.bind(item, "n")))
        asking.start()
        done = {"it was carried out": lambda: ids(server, "p")}.get(point, lambda: server.count("POST", BINDING))
        eventually(done, what=point)
        running.kill()
        asking.join()
    eventually(lambda: ids(server, "p"), what="the Binding, whose sender is gone")
    with extender(server) as later:
        known(later)
        assert later.bind(item, "n") == ""
        assert later.schedule(other, ["n"]) == "n"
        assert {*ids(server, "p"), *ids(server, "q")} == {*range(16)}
        everything_is_accounted_for(server, later)


def _quietly(work: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with suppress(OSError, http.client.HTTPException):
            work()

    return run


def test_sigterm_ends_it_after_the_answers(server: ApiServer, tmp_path: Path) -> None:
    with process(server, tmp_path, "--no-leader-elect") as (running, client):
        eventually(lambda: client.fits(pod_document("probe", limits(1)), ["n"]), what="the node")
        item = add_pod(server, "p", limits(4))
        server.delay(1.0, 1, path=BINDING)
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(client.bind(item, "n")))
        thread.start()
        eventually(lambda: server.count("POST", BINDING), what="the request")
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
        thread.join()
    assert found == [""]
    assert len(ids(server, "p")) == 4


def test_sigusr2_shows_where_its_threads_are_and_does_not_end_it(server: ApiServer, tmp_path: Path) -> None:
    with process(server, tmp_path, "--no-leader-elect") as (running, client):
        running.send_signal(signal.SIGUSR2)
        (log,) = tmp_path.glob("extender-*.log")
        eventually(lambda: "in _serve" in log.read_text() or "in run_forever" in log.read_text(), what="the stacks")
        eventually(lambda: client.fits(pod_document("probe", limits(1)), ["n"]), what="an answer")


def test_annotations_of_others_are_not_touched(server: ApiServer, one: Extender) -> None:
    item = add_pod(server, "p", limits(4), mine="stays")
    thread = threading.Thread(target=one.bind, args=(item, "n"))
    with server.hold(path=BINDING) as come:
        thread.start()
        eventually(come, what="the request")
        annotate(server, "pods", "a/p", **{"k8s.ovn.org/pod-networks": "{}"})
    thread.join()
    found = notes(server, "p")
    assert (found["mine"], found["k8s.ovn.org/pod-networks"]) == ("stays", "{}")
    assert len(ids(server, "p")) == 4


def test_a_leader_that_can_have_no_thread_at_first_follows_the_cluster_once_it_can(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def refuse_once(thread: threading.Thread) -> None:
        if thread.name == "watching nodes" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    with extender(server) as one:
        assert known(one).bind(add_pod(server, "p", limits(4)), "n") == ""
    assert refused == ["watching nodes"]

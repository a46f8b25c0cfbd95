"""The transport and the typed calls over real sockets."""

from __future__ import annotations

import logging
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dra_driver.driver.resourceslices.pool import pool
from dra_driver.kube.api import client
from dra_driver.kube.api.client import RestConfig, Transport
from dra_driver.kube.api.codec import PARTIAL_RESOURCE_CLAIMS
from dra_driver.kube.api.errors import ApiError, Unreachable
from dra_driver.kube.api.resources import Collection, ResourceApi
from dra_driver.kube.api.watch import Informer
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.kube.objects.resource import EXTENDED_RESOURCE_CLAIM, POD_CLAIM, Device, DeviceAttribute, ResourceSlice
from dra_driver.neuron.ultraserver_objects import (
    FINALIZER,
    ULTRASERVER_WORKLOADS,
    ULTRASERVERS,
    NeuronUltraServerWorkload,
    UltraServerMeta,
    WorkloadSpec,
    WorkloadStatus,
)
from dra_driver.util.errors import DriverError
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually
from tests.golden import golden, golden_error

DRIVER = "neuron.aws.com"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.add_node("node-a", uid="node-uid", labels={"a": "b"})
        running.add_claim("ns", "claim", uid="claim-uid", devices=[("r", "neuron-device-0")])
        yield running


@pytest.fixture
def api(server: ApiServer) -> ResourceApi:
    return ResourceApi(server.transport())


def one_slice(count: int = 1) -> ResourceSlice:
    return pool([Device(f"neuron-device-{i}") for i in range(count)], "node-a", "node-uid")[0]


def test_of_a_claims_metadata_only_what_is_read_is_kept(server: ApiServer, api: ResourceApi) -> None:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": f"p{number}", "uid": f"u{number}"} for number in range(3)]
    owners[1]["controller"] = True  # type: ignore[assignment]
    annotations = {"a": "b", POD_CLAIM: "c", EXTENDED_RESOURCE_CLAIM: "true"}
    stored = server.store.get("resourceclaims", "ns/claim")
    stored["metadata"] |= {"labels": {"a": "b"}, "annotations": annotations, "ownerReferences": owners}
    server.store.update("resourceclaims", "ns/claim", stored)
    meta = api.get_claim("ns", "claim").metadata
    assert (meta.labels, meta.annotations) == ({}, {POD_CLAIM: "c", EXTENDED_RESOURCE_CLAIM: "true"})
    assert [owner.uid for owner in meta.owner_references] == ["u1"]


def test_reads_a_claim_and_a_node(api: ResourceApi) -> None:
    claim = api.get_claim("ns", "claim")
    assert claim.metadata.uid == "claim-uid"
    assert claim.status.allocation is not None
    assert claim.status.allocation.devices.results[0].device == "neuron-device-0"
    assert api.get_node("node-a").metadata.labels == {"a": "b"}
    assert [item.metadata.name for item in api.list_claims(DRIVER, "node-a")] == ["claim"]


def test_reads_which_containers_of_a_pod_use_which_claims(server: ApiServer, api: ResourceApi) -> None:
    container = {"name": "main", "image": "x", "resources": {"claims": [{"name": "mine", "request": "cores"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "mine", "resourceClaimTemplateName": "t"}]}
    status = {"resourceClaimStatuses": [{"name": "mine", "resourceClaimName": "pod-mine-x"}]}
    metadata = {"namespace": "ns", "name": "pod", "uid": "pod-uid"}
    server.store.create("pods", {"metadata": metadata, "spec": spec, "status": status})
    pod = api.get_pod("ns", "pod")
    assert pod.metadata.uid == "pod-uid"
    assert [(item.name, item.request) for item in pod.spec.containers[0].resources.claims] == [("mine", "cores")]
    assert [item.resource_claim_name for item in pod.status.resource_claim_statuses] == ["pod-mine-x"]
    with pytest.raises(ApiError) as caught:
        api.get_pod("ns", "gone")
    assert caught.value.object_missing


def test_names_cannot_leave_their_place_in_the_path(server: ApiServer, api: ResourceApi) -> None:
    with pytest.raises(ApiError):
        api.get_claim("ns", "../../nodes/node-a?x=/y")
    assert server.requests[-1].path.startswith("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/..%2F..%2Fnodes")
    assert server.requests[-1].query == {}


def test_a_missing_object_says_so_and_is_asked_for_once(server: ApiServer, api: ResourceApi) -> None:
    with pytest.raises(ApiError) as caught:
        api.get_claim("ns", "gone")
    assert caught.value.object_missing
    assert caught.value.reason == "NotFound"
    assert server.count("GET") == 1


def test_create_update_and_delete_of_a_slice(server: ApiServer, api: ResourceApi) -> None:
    created = api.create_slice(one_slice())
    assert created.dropped == ()
    assert created.object.metadata.name.startswith("00000-neuron.aws.com-node-a-")
    listed, version = api.list_slices(DRIVER, "node-a")
    assert listed == [created.object]
    assert int(version) >= int(created.object.metadata.resource_version)
    api.delete_slice(created.object)
    assert server.slices() == []
    with pytest.raises(ApiError) as caught:
        api.delete_slice(created.object)
    assert caught.value.status == 404


def test_a_changed_slice_is_a_conflict_for_update_and_delete(server: ApiServer, api: ResourceApi) -> None:
    stale = api.create_slice(one_slice()).object
    server.store.update("resourceslices", stale.metadata.name, {**server.slices()[0], "touched": True})
    for attempt in (api.update_slice, api.delete_slice):
        with pytest.raises(ApiError) as caught:
            attempt(stale)
        assert (caught.value.status, caught.value.reason) == (409, "Conflict")


def test_slices_of_others_are_not_listed(server: ApiServer, api: ResourceApi) -> None:
    api.create_slice(one_slice())
    api.create_slice(pool([], "node-b", "other-uid")[0])
    api.create_slice(pool([], "node-a", "node-uid", "gpu.example.com")[0])
    assert len(api.list_slices(DRIVER, "node-a")[0]) == 1


def test_dropped_fields_are_named(server: ApiServer, api: ResourceApi) -> None:
    server.dropped_fields = ("spec.devices[].attributes",)
    (desired,) = pool([Device("d", {"x": DeviceAttribute(int_=1)})], "n", "u")
    assert api.create_slice(desired).dropped == ("devices[].attributes",)


# Versions


@pytest.mark.parametrize("served", ["v1", "v1beta2", "v1beta1"])
def test_the_served_version_is_found_and_kept(served: str) -> None:
    with ApiServer(versions=(served,)) as server:
        server.add_claim("ns", "claim", uid="u", devices=[("r", "neuron-device-0")])
        api = ResourceApi(server.transport())
        assert api.get_claim("ns", "claim").metadata.uid == "u"
        assert api.version == served
        asked = len(server.requests)
        api.get_claim("ns", "claim")
        assert len(server.requests) == asked + 1
        stored = api.create_slice(one_slice(3))
        assert stored.dropped == ()
        assert api.list_slices(DRIVER, "node-a")[0] == [stored.object]
        devices = server.slices()[0]["spec"]["devices"]
        assert [device["name"] for device in devices] == [f"neuron-device-{i}" for i in range(3)]


@pytest.mark.parametrize("served", ["v1", "v1beta1"])
def test_a_slice_is_applied_in_the_version_that_is_served(served: str) -> None:
    """It is created, changed, and left alone by an apply that changes nothing."""
    with ApiServer(versions=(served,)) as server:
        slices = ResourceApi(server.transport()).slices_of(DRIVER, "node-a")
        applied = [
            slices.apply("", "mine", replace(one_slice(count), metadata=ObjectMeta(name="mine")), "test")
            for count in (1, 2, 2)
        ]
        assert [len(item.spec.devices) for item in applied] == [1, 2, 2]
        versions = [item.metadata.resource_version for item in applied]
        assert versions[0] != versions[1] == versions[2]
        assert slices.list_all()[0] == [applied[-1]]


def test_an_object_that_is_missing_in_an_older_version_settles_the_version() -> None:
    with ApiServer(versions=("v1beta1",)) as server:
        api = ResourceApi(server.transport())
        with pytest.raises(ApiError) as caught:
            api.get_claim("ns", "claim")
        assert caught.value.object_missing
        assert api.version == "v1beta1"


def test_every_collection_finds_the_version_that_is_served() -> None:
    with ApiServer(versions=("v1beta1",)) as server:
        server.add_claim("ns", "claim", uid="u")
        claims = Collection(server.transport(), PARTIAL_RESOURCE_CLAIMS)
        assert claims.get("ns", "claim").metadata.uid == "u"
        assert claims.version == "resource.k8s.io/v1beta1"
        assert [claim.metadata.uid for claim in claims.list_all()[0]] == ["u"]


def test_a_version_that_disappears_is_replaced() -> None:
    with ApiServer(versions=("v1beta1", "v1beta2")) as server:
        api = ResourceApi(server.transport())
        api.list_slices(DRIVER, "node-a")
        assert api.version == "v1beta2"
        server.versions = ("v1beta1",)
        api.create_slice(one_slice())
        assert api.version == "v1beta1"


def test_an_upgraded_server_is_noticed_by_the_next_list() -> None:
    with ApiServer(versions=("v1beta1",)) as server:
        api = ResourceApi(server.transport())
        api.list_slices(DRIVER, "node-a")
        server.versions = ("v1", "v1beta1")
        api.list_slices(DRIVER, "node-a")
        assert api.version == "v1"


def test_a_server_without_the_api_is_explained() -> None:
    with ApiServer(versions=()) as server:
        with pytest.raises(ApiError) as caught:
            ResourceApi(server.transport()).list_slices(DRIVER, "node-a")
        golden(str(caught.value))
        assert caught.value.status == 404
        assert not caught.value.object_missing
        assert "1.34" in caught.value.remedy


# Custom resources


def workload(name: str = "train") -> NeuronUltraServerWorkload:
    return NeuronUltraServerWorkload(UltraServerMeta(name=name), WorkloadSpec("trn2u.48xlarge", 1, 4))


def test_a_status_is_written_apart_and_takes_nothing_else_along(server: ApiServer) -> None:
    workloads = Collection(server.transport(), ULTRASERVER_WORKLOADS)
    stored = workloads.create("ns", workload())
    assert (stored.metadata.generation, stored.status) == (1, WorkloadStatus()), "a new object has no status"
    status = WorkloadStatus("Allocated", ("us-1",), "2026-11-30T00:00:00Z", 1)
    changed = replace(stored, spec=WorkloadSpec("trn1.32xlarge"), status=status)
    written = workloads.replace("ns", "train", changed, subresource="status")
    assert (written.spec, written.status) == (stored.spec, status)
    assert workloads.get("ns", "train") == written
    with pytest.raises(ApiError) as caught:
        workloads.replace("ns", "train", changed, subresource="status")
    assert caught.value.status == 409, "it rests on a version that is no longer there"
    freed: dict[str, object] = {
        "metadata": {"resourceVersion": written.metadata.resource_version, "uid": written.metadata.uid}
    }
    freed |= {"spec": {"topologySize": 1}, "status": msgspec.to_builtins(WorkloadStatus("Pending"))}
    again = workloads.patch("ns", "train", freed, subresource="status")
    assert (again.spec, again.status) == (stored.spec, WorkloadStatus("Pending"))
    outside = workloads.patch("ns", "train", {"status": {"state": "Failed"}, "spec": {"topologySize": 1}})
    assert (outside.spec.topology_size, outside.status, outside.metadata.generation) == (1, again.status, 2)


def test_objects_with_a_finalizer_stay_until_it_is_gone(server: ApiServer) -> None:
    workloads = Collection(server.transport(), ULTRASERVER_WORKLOADS)
    made = workloads.create("ns", workload())
    workloads.patch("ns", "train", {"metadata": {"finalizers": [FINALIZER]}})
    workloads.delete("ns", "train", made.metadata.uid)
    ending = workloads.get("ns", "train").metadata
    assert (ending.finalizers, bool(ending.deletion_timestamp)) == ((FINALIZER,), True)
    workloads.patch("ns", "train", {"metadata": {"finalizers": []}})
    assert workloads.list_all()[0] == []


@pytest.mark.parametrize("versions", [("v1beta1", "v1"), ("v1",), ("v1beta1",)])
def test_the_kinds_are_followed_in_the_version_that_is_served(versions: tuple[str, ...]) -> None:
    with ApiServer(custom_versions=versions) as server:
        workloads = Collection(server.transport(), ULTRASERVER_WORKLOADS)
        informer = Informer("workloads", workloads, lambda: None)
        informer.start()
        try:
            eventually(lambda: informer.current)
            workloads.create("ns", workload())
            eventually(lambda: [item.spec for item in informer.objects()] == [workload().spec])
        finally:
            informer.stop()
        assert workloads.version == f"neuron.aws.com/{versions[0]}"


def test_a_cluster_without_the_kinds_is_told_what_installs_them() -> None:
    with ApiServer(custom_versions=()) as server, golden_error(ApiError):
        Collection(server.transport(), ULTRASERVERS).list_all()


# Trouble


def test_a_refused_connection_is_unreachable() -> None:
    with ApiServer() as server:
        api = ResourceApi(server.transport())
    with pytest.raises(Unreachable, match="refused") as caught:
        api.get_node("node-a")
    assert caught.value.status == 0
    assert "object at 0x" not in str(caught.value)


def test_a_connection_may_take_no_longer_than_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a leader sends must be over before its lease is."""
    monkeypatch.setattr(client, "CONNECT_TIMEOUT", 60.0)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        address = full.getsockname()
        for _ in range(2):  # the system completes this many on its own; whoever comes then hears nothing
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        config = RestConfig(server=f"http://127.0.0.1:{address[1]}")
        started = time.monotonic()
        with golden_error(Unreachable):
            Transport(config).request("PUT", "/api/v1/x", body={}, timeout=0.5)
        assert time.monotonic() - started < 30.0


def test_a_late_answer_is_unreachable(server: ApiServer) -> None:
    server.delay(1.0)
    with golden_error(Unreachable):
        server.transport().request("GET", "/version", timeout=0.1)


@contextmanager
def dripping(head: bytes, *drops: bytes) -> Iterator[Transport]:
    """A server that sends a head at once, and then a drop every twentieth of a second, over and over."""
    over = threading.Event()

    def serve() -> None:
        accepted, _ = listener.accept()
        with accepted, suppress(OSError):
            accepted.recv(65536)
            accepted.sendall(head)
            for drop in cycle(drops):
                if over.wait(0.05):
                    break
                accepted.sendall(drop)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        pool.submit(serve)
        try:
            yield Transport(RestConfig(server=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5))
        finally:
            over.set()


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nWarning: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
        b"HTTP/1.1 500 E\r\n\r\n",
    ],
    ids=["status", "header", "body", "refusal"],
)
@pytest.mark.parametrize("timeout", [1.0, None])
def test_an_answer_that_comes_byte_by_byte_has_an_end(head: bytes, timeout: float | None) -> None:
    with dripping(head, b"x") as transport:
        began = time.monotonic()
        with pytest.raises(Unreachable, match="no answer in time"):
            transport.request("GET", "/version", timeout=timeout)
        assert time.monotonic() - began < 30.0, "a thousand bytes take 50 s"


def test_a_page_of_a_list_may_take_longer_than_an_object() -> None:
    body = b'{"metadata": {"resourceVersion": "7"}, "items": []}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    with dripping(head, *(bytes([byte]) for byte in body)) as transport:
        assert Collection(transport, PARTIAL_RESOURCE_CLAIMS, timeout=1.5).list_all() == ([], "7")


def test_a_watch_may_take_longer_than_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WHOLE_ANSWER", 0.5)
    with (
        dripping(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"2\r\nx\n\r\n") as transport,
        transport.stream("/x", timeout=20.0) as lines,
    ):
        assert [line for line, _ in zip(lines, range(20), strict=False)] == [b"x"] * 20
        lines.abort()


def test_connecting_takes_no_longer_than_the_request_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_TIMEOUT", 60.0)
    with ExitStack() as sockets:
        full = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # more than wait to be accepted: the kernel then drops whoever wants to connect
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        transport = Transport(RestConfig(server=f"http://127.0.0.1:{full.getsockname()[1]}"))
        began = time.monotonic()
        with golden_error(Unreachable):
            transport.request("GET", "/version", timeout=0.3)
        assert time.monotonic() - began < 30.0


def test_an_idle_connection_that_the_server_closed_costs_nothing(server: ApiServer, api: ResourceApi) -> None:
    api.get_node("node-a")
    server.stop()
    server.start()
    assert api.get_node("node-a").metadata.uid == "node-uid"
    server.drop(1)
    assert api.get_node("node-a").metadata.uid == "node-uid"


def test_a_write_without_an_answer_is_not_repeated(server: ApiServer, api: ResourceApi) -> None:
    server.drop(1, method="POST")
    with pytest.raises(Unreachable):
        api.create_slice(one_slice())
    assert server.count("POST") == 1


def test_a_throttled_request_says_when_to_come_again(server: ApiServer, api: ResourceApi) -> None:
    server.fail(429, reason="TooManyRequests", retry_after=60)
    started = time.monotonic()
    with pytest.raises(ApiError) as caught:
        api.get_node("node-a")
    assert caught.value.retry_after == 60.0
    assert time.monotonic() - started < 30.0, "the caller waits, not the transport"
    assert server.count("GET") == 1


def test_redirects_are_not_followed(server: ApiServer, api: ResourceApi) -> None:
    server.fail(302)
    with pytest.raises(ApiError) as caught:
        api.get_node("node-a")
    assert caught.value.status == 302


def test_sixteen_at_once_share_the_transport(server: ApiServer, api: ResourceApi) -> None:
    with ThreadPoolExecutor(16) as threads:
        uids = [claim.metadata.uid for claim in threads.map(lambda _: api.get_claim("ns", "claim"), range(200))]
    assert uids == ["claim-uid"] * 200


# Credentials

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: test
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{token: {token}}}}}]
contexts: [{{name: test, context: {{cluster: c, user: u}}}}]
"""


def test_a_kubeconfig_is_used(tmp_path: Path) -> None:
    with ApiServer(token="right") as server:
        server.add_node("node-a")
        file = tmp_path / "config"
        file.write_text(KUBECONFIG.format(url=server.url, token="right"))
        api = ResourceApi(Transport.from_kubeconfig(str(file)))
        assert api.get_node("node-a").metadata.name == "node-a"


def test_a_rotated_token_is_read_again_once(tmp_path: Path) -> None:
    with ApiServer(token="first") as server:
        server.add_node("node-a")
        file = tmp_path / "config"
        file.write_text(KUBECONFIG.format(url=server.url, token="first"))
        api = ResourceApi(Transport.from_kubeconfig(str(file)))
        api.get_node("node-a")
        server.token = "second"
        file.write_text(KUBECONFIG.format(url=server.url, token="second"))
        api.get_node("node-a")
        assert [request.status for request in server.requests] == [200, 401, 200]
        server.token = "third"
        with pytest.raises(ApiError) as caught:
            api.get_node("node-a")
        assert caught.value.status == 401
        assert len(server.requests) == 5


def test_a_401_whose_body_breaks_off_has_the_token_read_again_too(tmp_path: Path) -> None:
    with ApiServer(token="first") as server:
        server.add_node("node-a")
        file = tmp_path / "config"
        file.write_text(KUBECONFIG.format(url=server.url, token="first"))
        api = ResourceApi(Transport.from_kubeconfig(str(file)))
        server.fail(401, torn=True)
        assert api.get_node("node-a").metadata.name == "node-a"
        assert [request.status for request in server.requests] == [401, 200]


@pytest.mark.parametrize("watch", [False, True])
def test_an_error_whose_body_breaks_off_is_unreachable(server: ApiServer, api: ResourceApi, watch: bool) -> None:
    server.fail(500, torn=True)
    with golden_error(Unreachable):
        if watch:
            with api.watch_nodes("node-a", "0", 5.0):
                pass
        else:
            api.get_node("node-a")


def test_a_token_in_cluster_is_read_again_after_a_401(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    certificate, key = make_certificate(tmp_path)
    authority.write_text(Path(certificate).read_text())
    token.write_text("first")
    with ApiServer(token="first", tls=(certificate, key)) as server:
        server.add_node("node-a")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        api = ResourceApi(Transport.in_cluster(directory=tmp_path))
        api.get_node("node-a")
        server.token = "second"
        token.write_text("second")
        api.get_node("node-a")
        assert [request.status for request in server.requests] == [200, 401, 200]
        server.token = "third"
        token.unlink()
        with pytest.raises(Unreachable, match="token"):
            api.get_node("node-a")


@pytest.mark.parametrize("content", ["", "{", "a: [", "apiVersion: v1\nkind: Config\n", "- 1", "\x00"])
def test_an_unusable_kubeconfig_is_an_explained_error(content: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    with golden_error(DriverError):
        Transport.from_kubeconfig(str(file))


def test_outside_a_pod_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(DriverError, match="kubeconfig"):
        Transport.in_cluster()


def test_tokens_appear_in_no_log_and_no_error(
    server: ApiServer, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.DEBUG):
        for token in ("se-cret", "se-cret\nX: y"):
            transport = Transport(RestConfig(server=server.url, authorization=partial(str, f"Bearer {token}")))
            server.token = "another"
            with pytest.raises(ApiError) as caught:
                transport.request("GET", "/version")
            server.stop()
            with pytest.raises(ApiError) as unreachable:
                transport.request("GET", "/version")
            server.start()
            assert "cret" not in f"{caught.value} {unreachable.value} {caught.value.__cause__}"
    assert "cret" not in caplog.text


# TLS


def make_certificate(directory: Path) -> tuple[str, str]:
    certificate, key = str(directory / "tls.crt"), str(directory / "tls.key")
    request = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(["openssl", *request.split(), *names], check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[ApiServer, str]]:
    certificate, key = make_certificate(tmp_path)
    with ApiServer(tls=(certificate, key)) as server:
        server.add_node("node-a")
        yield server, certificate


def test_tls_connections_are_kept(secure: tuple[ApiServer, str]) -> None:
    server, certificate = secure
    api = ResourceApi(server.transport(ca_file=certificate))
    for _ in range(20):
        api.get_node("node-a")
    assert server.connections == 1


def test_an_untrusted_server_is_not_talked_to(secure: tuple[ApiServer, str]) -> None:
    server, _ = secure
    with pytest.raises(Unreachable, match=r"(?i)certificate") as caught:
        ResourceApi(server.transport()).get_node("node-a")
    assert "\n" not in str(caught.value)
    golden(str(caught.value.remedy))
    assert server.requests == []


def test_a_stream_over_tls_ends_at_once_when_aborted(secure: tuple[ApiServer, str]) -> None:
    server, certificate = secure
    check_abort(server.transport(ca_file=certificate))


# Streams


def test_a_stream_ends_at_once_when_aborted(server: ApiServer) -> None:
    check_abort(server.transport())


def check_abort(transport: Transport) -> None:
    query = [("watch", "true"), ("resourceVersion", "99999999"), ("timeoutSeconds", "60")]
    ended = threading.Event()
    with transport.stream("/api/v1/nodes", query=query, timeout=90) as stream:

        def read() -> None:
            assert list(stream) == []
            ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(0.1)
        assert not ended.is_set()
        stream.abort()
        assert ended.wait(30)
        reader.join()
        stream.abort()


def test_events_of_a_watch_arrive_decoded(server: ApiServer, api: ResourceApi) -> None:
    _, version = api.list_slices(DRIVER, "node-a")
    api.create_slice(one_slice())
    server.wipe_slices("node-a")
    server.bookmark_seconds = 0.05
    with api.watch_slices(DRIVER, "node-a", version, 5) as watch:
        events = iter(watch)
        added, deleted, bookmark = next(events), next(events), next(events)
    assert [event.type for event in (added, deleted, bookmark)] == ["ADDED", "DELETED", "BOOKMARK"]
    assert added.object is not None
    assert added.object.spec == one_slice().spec
    assert bookmark.object is None
    assert int(bookmark.resource_version) >= int(deleted.resource_version) > int(added.resource_version)


def test_an_expired_watch_is_410(server: ApiServer, api: ResourceApi) -> None:
    _, version = api.list_slices(DRIVER, "node-a")
    server.store.expire()
    with pytest.raises(ApiError) as caught, api.watch_slices(DRIVER, "node-a", version, 5) as watch:
        list(watch)
    assert caught.value.status == 410


def test_a_watch_that_expires_on_the_way_is_410(server: ApiServer, api: ResourceApi) -> None:
    _, version = api.list_slices(DRIVER, "node-a")
    with api.watch_slices(DRIVER, "node-a", version, 5) as watch:
        server.store.expire()
        with pytest.raises(ApiError) as caught:
            list(watch)
    assert caught.value.status == 410


def test_a_watch_that_breaks_is_unreachable(server: ApiServer, api: ResourceApi) -> None:
    _, version = api.list_slices(DRIVER, "node-a")
    with api.watch_slices(DRIVER, "node-a", version, 5) as watch:
        server.cut()
        with pytest.raises(Unreachable):
            list(watch)


def test_of_a_refusal_no_more_is_read_than_is_told(server: ApiServer) -> None:
    api = ResourceApi(server.transport())
    server.fail(403, method="GET", message='admission webhook "a.b" denied the request: ' + "\U0001f980" * 3_000_000)
    with pytest.raises(ApiError) as caught:
        api.get_node("node-a")
    assert caught.value.of_a_webhook
    assert len(str(caught.value)) < 5000
    assert api.get_node("node-a").metadata.name == "node-a", "the next request has a connection of its own"


@contextmanager
def answering(handler: type[BaseHTTPRequestHandler]) -> Iterator[Transport]:
    """A client of a server that answers so."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Transport(RestConfig(server=f"http://127.0.0.1:{server.server_address[1]}"))
        finally:
            server.shutdown()
            thread.join()


class Refusing(BaseHTTPRequestHandler):
    """Refuses with 64 MiB of text."""

    protocol_version = "HTTP/1.1"
    blocks = 0
    """So many of 64 KiB were taken."""

    def do_GET(self) -> None:
        begin = b'{"kind":"Status","status":"Failure","message":"admission webhook \\"a.b\\" denied the request: '
        self.send_response(403)
        self.send_header("Content-Length", str(len(begin) + (64 << 20)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(begin)
            for _ in range(1024):
                self.wfile.write(b"x" * (1 << 16))
                type(self).blocks += 1
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


def test_what_is_left_of_a_long_refusal_is_not_read() -> None:
    with answering(Refusing) as transport, pytest.raises(ApiError) as caught:
        transport.request("GET", "/version")
    assert caught.value.of_a_webhook
    assert Refusing.blocks < 512, "what connections hold on their way counts"


def test_an_answer_with_as_many_warnings_as_webhooks_may_give_is_one() -> None:
    """A header for each; 4,096 characters of text in all."""

    class Warned(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = b'{"gitVersion": "v1.37.1"}'
            self.send_response(200)
            for _ in range(4096):
                self.send_header("Warning", '299 - "w"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with answering(Warned) as transport:
        assert b"v1.37.1" in transport.request("GET", "/version").body

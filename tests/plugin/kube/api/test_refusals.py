"""What logs, Events and commands say when the API server, its answers, a lease or the credentials are not right."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from dra_driver.driver.node_labels import KEYS, LABELS
from dra_driver.kube.api.client import RestConfig, Transport, context_namespace
from dra_driver.kube.api.codec import LEASES, PARTIAL_RESOURCE_CLAIMS, decode, decode_slice
from dra_driver.kube.api.election import Election, Times
from dra_driver.kube.api.errors import ApiError, DecodeError, Unreachable
from dra_driver.kube.api.events import EventRecorder
from dra_driver.kube.api.own_node import OwnNodeWriter
from dra_driver.kube.api.resources import Collection, ResourceApi
from dra_driver.kube.objects.core import Node, ObjectReference
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Backoff
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually
from tests.golden import golden, golden_error, logged

QUICK = Times(lease=5, act=2.0, renew=0.05)
LEASE = {"namespace": "default", "name": "lease"}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.add_node("node-a", uid="node-uid")
        yield running


# What the server sends


def test_objects_that_cannot_be_read_are_named(server: ApiServer) -> None:
    with golden_error(DecodeError):
        decode(b"{", Node, "a Node")
    with golden_error(DecodeError, "slice"):
        decode_slice({"spec": 7}, "v1")
    server.store.create("resourceclaims", {"metadata": {"namespace": "ns", "name": "odd"}, "spec": {}, "status": 7})
    with golden_error(DecodeError, "claim"):
        Collection(server.transport(), PARTIAL_RESOURCE_CLAIMS).get("ns", "odd")


def test_the_version_that_is_served_is_logged(log: pytest.LogCaptureFixture) -> None:
    with ApiServer(versions=("v1beta2",)) as old:
        old.add_claim("ns", "claim")
        ResourceApi(old.transport()).get_claim("ns", "claim")
    golden(logged(log, "instead of"))


def test_a_watch_that_breaks_says_so(server: ApiServer) -> None:
    with server.transport().stream(
        "/api/v1/nodes", query=[("watch", "true"), ("timeoutSeconds", "60")], timeout=90
    ) as stream:
        threading.Timer(0.05, server.cut).start()
        with pytest.raises(Unreachable) as caught:
            list(stream)
    golden(str(caught.value).partition(": ")[0] + ": ...")


# Credentials


def test_credentials_that_are_no_header_are_not_shown(server: ApiServer) -> None:
    transport = Transport(RestConfig(server=server.url, authorization=lambda: "Bearer se\ncret"))
    with golden_error(Unreachable):
        transport.request("GET", "/version")


def test_outside_a_pod_and_without_a_context_it_says_what_to_do(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with golden_error(DriverError):
        Transport.in_cluster()
    path = server.kubeconfig(tmp_path / "config")
    with golden_error(DriverError, "context"):
        context_namespace(str(path), "other")
    path.write_text("[]")
    with golden_error(DriverError, "no object"):
        context_namespace(str(path))


# Leases


def test_who_leads_and_what_is_wrong_with_the_lease_is_logged(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    election = Election(Collection(server.transport(), LEASES), "default", "lease", "one", QUICK, lambda: None)
    refused = server.fail(403, 1000, path="leases")
    election.start()
    eventually(lambda: "the leader is not known" in log.text)
    refused.times = 0
    eventually(election.may_act)
    eventually(lambda: "leads now" in log.text)
    server.fail(403, 1000, path="leases")
    election.stop()
    golden(logged(log, "lease", "leader", "leads"))


def test_a_candidate_waits_for_the_holder(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    server.store.create("leases", {"metadata": LEASE, "spec": {"holderIdentity": "other", "leaseDurationSeconds": 30}})
    election = Election(Collection(server.transport(), LEASES), "default", "lease", "one", QUICK, lambda: None)
    election.start()
    eventually(lambda: "waits until" in log.text)
    election.stop()
    golden(logged(log, "waits until"))


# What is written to the cluster


def test_an_event_that_cannot_be_written_is_logged(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    server.fail(403, path="events")
    about = ObjectReference("Node", "", "node-a", "node-uid")
    EventRecorder(server.transport(), "test").record(about, "Odd", "something is odd", wrong=True)
    golden(logged(log, "cannot write an event"))


def test_labels_that_cannot_be_written_are_logged(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    api = ResourceApi(server.transport())
    writer = OwnNodeWriter(api, "node-a", [LABELS], backoff=lambda: Backoff(first=0.02, cap=0.02))
    server.fail(403, method="PATCH")
    writer.start()
    writer.want(LABELS, MappingProxyType({min(KEYS): "7"}))
    writer.saw(api.get_node("node-a"))
    eventually(lambda: writer.status(LABELS).writes == 1)
    writer.stop()
    golden(logged(log, "labels of the UltraServer"))


def test_a_server_without_the_api_names_what_was_asked_for() -> None:
    with ApiServer(versions=()) as server, golden_error(ApiError):
        ResourceApi(server.transport()).list_claims("neuron.aws.com", "node-a")


def test_a_loop_that_hangs_is_named_in_health_reports(server: ApiServer) -> None:
    writer = OwnNodeWriter(ResourceApi(server.transport()), "node-a", [LABELS])
    writer.worker.beat(-1.0)
    golden(writer.worker.problem())

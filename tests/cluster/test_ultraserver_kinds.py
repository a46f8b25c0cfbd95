"""The UltraServer kinds on a real API server: both versions, the bounds of AWS's definitions, and status apart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from lab.cluster import Cluster
from msgspec.structs import replace

from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.codec import CUSTOM_RESOURCE_DEFINITIONS
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection
from dra_driver.kube.objects.meta import ObservedCondition
from dra_driver.neuron.ultraserver_objects import (
    FINALIZER,
    ULTRASERVER_WORKLOADS,
    ULTRASERVERS,
    WORKLOAD_UIDS,
    Allocation,
    NeuronUltraServer,
    ServerMember,
    UltraServerMeta,
    UltraServerSpec,
    UltraServerStatus,
    WorkloadSpec,
    WorkloadStatus,
)
from dra_driver.ultraserver.definitions import NAMES, compare
from tests.cluster.lib.kube import Kube, eventually
from tests.paths import ROOT

pytestmark = [pytest.mark.control_plane, pytest.mark.kubernetes("1.37", "1.34"), pytest.mark.nightly]

COMPONENT = ROOT / "deploy/kustomize/driver-settings/ultraserver-operator/resources.yaml"
NOW = "2026-11-30T00:00:00Z"
NODES = ("node-1", "node-2", "node-3", "node-4")


@pytest.fixture(scope="module")
def transport(lab: Cluster, kube: Kube) -> Iterator[Transport]:
    """An API server with the definitions that installer and kustomize apply."""
    kube.kubectl("apply", "-f", "-", stdin=definitions())
    for name in NAMES:
        kube.kubectl("wait", "--for=condition=Established", f"customresourcedefinition/{name}", "--timeout=60s")
    made = Transport.from_kubeconfig(os.fspath(lab.kubeconfig), user_agent="kinds-test")
    yield made
    made.close()


def definitions() -> str:
    items = yaml.safe_load_all(COMPONENT.read_text())
    return yaml.safe_dump_all([item for item in items if item["kind"] == "CustomResourceDefinition"])


def workload(**spec: object) -> dict[str, Any]:
    given = {"instanceType": "trn2u.48xlarge", "serverCount": 1, "topologySize": 4, **spec}
    return {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"generateName": "w-"},
        "spec": {name: value for name, value in given.items() if value is not None},
    }


def path(version: str, plural: str, name: str = "") -> str:
    return f"/apis/neuron.aws.com/{version}/namespaces/default/{plural}{name and '/' + name}"


def test_the_stored_definitions_differ_in_nothing(transport: Transport) -> None:
    stored = Collection(transport, CUSTOM_RESOURCE_DEFINITIONS)
    assert [compare(stored.get("", name)) for name in NAMES] == [[], []]


@pytest.mark.parametrize("version", ["v1beta1", "v1"])
def test_a_workload_is_written_and_read_in_both_versions(transport: Transport, version: str) -> None:
    plural = ULTRASERVER_WORKLOADS.plural
    sent = workload(config={}, allocationPolicy={}) | {"apiVersion": f"neuron.aws.com/{version}"}
    transport.request("POST", path(version, plural), body=sent | {"metadata": {"name": f"of-{version}"}})
    workloads = Collection(transport, ULTRASERVER_WORKLOADS)
    stored = workloads.get("default", f"of-{version}")
    assert (stored.spec, stored.status) == (WorkloadSpec("trn2u.48xlarge", 1, 4), WorkloadStatus())
    assert workloads.version == "neuron.aws.com/v1beta1"
    for other in ("v1beta1", "v1"):
        text = transport.request("GET", path(other, plural, stored.metadata.name)).body
        assert yaml.safe_load(bytes(text))["apiVersion"] == f"neuron.aws.com/{other}"


TAKEN: tuple[dict[str, Any], ...] = (
    {},
    {"topologySize": 3},
    {"serverCount": 2**62},
    {"serverCount": 3.0},
    {"instanceType": ""},
    {"instanceType": "x" * 100_000},
    {"allocationPolicy": {"failureStrategy": "of my own"}},
    {"resourceClaimTemplate": {"name": "mine"}, "config": {"logicalNeuronCore": 1}},
)
REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("spec.instanceType", {"instanceType": None}),
    ("spec.instanceType", {"instanceType": 7}),
    ("spec.serverCount", {"serverCount": None}),
    ("spec.serverCount", {"serverCount": 0}),
    ("spec.serverCount", {"serverCount": 1e20}),
    ("spec.serverCount", {"serverCount": 1.5}),
    ("spec.serverCount", {"serverCount": "1"}),
    ("spec.topologySize", {"topologySize": 0}),
    ("spec.topologySize", {"topologySize": 5}),
    ("spec.config.logicalNeuronCore", {"config": {"logicalNeuronCore": 3}}),
    ("spec.resourceClaimTemplate.name", {"resourceClaimTemplate": {}}),
)


@pytest.mark.parametrize("version", ["v1beta1", "v1"])
def test_what_awss_definition_takes_is_taken_and_read_and_all_else_refused(transport: Transport, version: str) -> None:
    address, as_version = path(version, ULTRASERVER_WORKLOADS.plural), {"apiVersion": f"neuron.aws.com/{version}"}
    for change in TAKEN:
        transport.request("POST", address, body=workload(**change) | as_version)
    for field, change in REFUSED:
        with pytest.raises(ApiError) as caught:
            transport.request("POST", address, body=workload(**change) | as_version)
        assert (caught.value.status, field in caught.value.message) == (422, True), caught.value
    found, _ = Collection(transport, ULTRASERVER_WORKLOADS, namespace="default").list_all()
    assert {item.spec.server_count for item in found} == {1, 3, 2**62}


def test_a_server_has_its_allocations_in_a_status_that_is_written_apart(transport: Transport, kube: Kube) -> None:
    servers = Collection(transport, ULTRASERVERS, namespace="default")
    members = tuple(ServerMember(name, number, "up", "down") for number, name in enumerate(NODES))
    spec = UltraServerSpec("trn2u.48xlarge", members)
    made = servers.create("default", NeuronUltraServer(UltraServerMeta(name="us-1", finalizers=(FINALIZER,)), spec))
    assert (made.spec, made.status, made.metadata.generation) == (spec, UltraServerStatus(), 1)
    noted = servers.patch("default", "us-1", {"metadata": {"annotations": {WORKLOAD_UIDS: "{}"}}})
    allocation = Allocation("team/w", NODES[:2], 2, "node-1", 0, "Pending", NOW)
    condition = ObservedCondition("Allocated", "True", "Bound", "team/w: node-1, node-2", NOW, 1)
    status = UltraServerStatus("Ready", 1, (condition,), (allocation,))
    written = servers.replace("default", "us-1", replace(noted, status=status), subresource="status")
    assert (written.status, written.spec, written.metadata.annotations) == (status, spec, {WORKLOAD_UIDS: "{}"})
    assert "status" in {entry.subresource for entry in written.metadata.managed_fields}
    with pytest.raises(ApiError) as caught:
        servers.replace("default", "us-1", replace(noted, status=status), subresource="status")
    assert caught.value.status == 409
    with pytest.raises(ApiError) as caught:
        servers.patch("default", "us-1", {"spec": {"instanceType": "trn1.32xlarge"}})
    assert caught.value.status == 422
    shown = kube.kubectl("get", "nus", "us-1")
    for word in ("Ready", "trn2u.48xlarge", "node-1 ", "team/w: node-1, node-2"):
        assert word in shown
    kube.kubectl("delete", "nus", "us-1", "--wait=false")
    assert servers.get("default", "us-1").metadata.deletion_timestamp
    servers.patch("default", "us-1", {"metadata": {"finalizers": []}})
    eventually("the server to be gone", lambda: servers.list_all()[0] == [])


def test_a_workloads_status_loses_what_is_left_out(transport: Transport, kube: Kube) -> None:
    workloads = Collection(transport, ULTRASERVER_WORKLOADS, namespace="default")
    transport.request("POST", path("v1", ULTRASERVER_WORKLOADS.plural), body=workload() | {
        "apiVersion": "neuron.aws.com/v1", "metadata": {"name": "train"},
    })  # fmt: skip
    stored = workloads.get("default", "train")
    status = WorkloadStatus("Allocated", ("us-1", "us-2"), NOW, 1)
    stored = workloads.replace("default", "train", replace(stored, status=status), subresource="status")
    assert stored.status == status
    shown = kube.kubectl("get", "nusw", "train")
    assert [word in shown for word in ("Allocated", "trn2u.48xlarge", "us-2")] == [True] * 3, shown
    stored = workloads.replace("default", "train", replace(stored, status=WorkloadStatus()), subresource="status")
    assert stored.status == WorkloadStatus()
    with pytest.raises(ApiError) as caught:
        workloads.patch("default", "train", {"status": {"state": "Waiting"}}, subresource="status")
    assert caught.value.status == 422


def test_what_is_installed_again_keeps_what_is_stored(transport: Transport, kube: Kube) -> None:
    before = len(Collection(transport, ULTRASERVER_WORKLOADS).list_all()[0])
    kube.kubectl("apply", "-f", "-", stdin=definitions())
    assert len(Collection(transport, ULTRASERVER_WORKLOADS).list_all()[0]) == before

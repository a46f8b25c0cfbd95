"""What is kept of UltraServers and of the workloads that tenants make."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.api.codec import Resource, decode
from dra_driver.neuron.ultraserver_objects import (
    ACCEPTED_SPEC,
    MAX_FINALIZERS,
    MAX_NAME_CHARACTERS,
    ULTRASERVER_WORKLOADS,
    ULTRASERVERS,
    WORKLOAD_UIDS,
    Allocation,
    NeuronUltraServer,
    NeuronUltraServerWorkload,
    ServerMember,
    UltraServerMeta,
    UltraServerSpec,
    UltraServerStatus,
)

LONG = "\U0001f600" * 5_000
FAR = 2**63 - 1
CONDITION = {"type": LONG, "status": LONG, "reason": LONG, "message": LONG, "lastTransitionTime": LONG}
META = {
    "name": "w",
    "namespace": "tenant",
    "uid": "u",
    "labels": {f"l{number}": "x" for number in range(20_000)},
    "annotations": {WORKLOAD_UIDS: LONG, ACCEPTED_SPEC: LONG} | {f"a{number}": "" for number in range(20_000)},
    "finalizers": [f"example.com/{number}" for number in range(20_000)],
    "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": LONG}] * 1000,
    "managedFields": [{"manager": LONG, "operation": LONG, "fieldsV1": {"f:spec": {LONG: {}}}}] * 100,
}
HOSTILE: dict[Resource[Any], dict[str, Any]] = {
    ULTRASERVER_WORKLOADS: {
        "metadata": META,
        "spec": {
            "instanceType": LONG,
            "serverCount": FAR,
            "topologySize": -FAR,
            "allocationPolicy": {"failureStrategy": LONG, "other": LONG},
            "config": {"logicalNeuronCore": FAR},
            "resourceClaimTemplate": {"name": LONG},
        },
        "status": {"state": LONG, "conditions": [CONDITION] * 100, "allocatedAt": LONG},
    },
    ULTRASERVERS: {
        "metadata": META,
        "spec": {
            "instanceType": LONG,
            "topology": [{"nodeName": LONG, "nodeId": FAR, "linkStatusHorizontal": LONG, "linkStatusVertical": LONG}]
            * 200,
        },
        "status": {
            "state": LONG,
            "conditions": [CONDITION] * 100,
            "allocations": [{"workloadRef": LONG, "allocatedNodes": [LONG] * 9, "nodeCount": FAR}] * 100,
        },
    },
}


def received(resource: Resource[Any], document: object) -> Any:
    """What a collection makes of an object that the API server sends."""
    assert resource.from_version is not None
    return resource.from_version(
        decode(json.dumps(document, ensure_ascii=False).encode(), resource.wire, "it"), "v1beta1"
    )


@pytest.mark.parametrize("resource", HOSTILE, ids=lambda resource: resource.kind)
def test_an_object_as_large_as_can_be_is_kept_in_short(resource: Resource[Any]) -> None:
    item = received(resource, HOSTILE[resource])
    assert len(msgspec.json.encode(item)) < 5_000_000
    assert not item.metadata.labels and not item.metadata.owner_references
    assert list(item.metadata.annotations) == [WORKLOAD_UIDS if resource is ULTRASERVERS else ACCEPTED_SPEC]
    assert len(item.metadata.finalizers) == MAX_FINALIZERS + 1, "one more tells that these are not all"
    assert len(item.spec.instance_type) == MAX_NAME_CHARACTERS + 1, "what was cut off is no name"


def test_what_a_tenant_makes_is_kept_in_a_small_part_of_what_it_sends() -> None:
    document = {name: part for name, part in HOSTILE[ULTRASERVER_WORKLOADS].items() if name != "status"}
    document["metadata"] = {name: part for name, part in META.items() if name != "managedFields"}
    document["spec"] = document["spec"] | {"instanceType": "\U0001f600" * 300_000}
    assert len(msgspec.json.encode(received(ULTRASERVER_WORKLOADS, document))) < 30_000


@given(st.recursive(st.none() | st.booleans(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_fields_that_are_not_known_are_passed_over(anything: object) -> None:
    for resource in (ULTRASERVERS, ULTRASERVER_WORKLOADS):
        item = received(resource, {"metadata": {"name": "x"}, "spec": {"later": anything}, "later": anything})
        assert item == resource.struct(UltraServerMeta(name="x"))


def test_defaults_are_those_of_the_definition() -> None:
    spec = received(ULTRASERVER_WORKLOADS, {"metadata": {}, "spec": {}}).spec
    assert (spec.allocation_policy.failure_strategy, spec.config.logical_neuron_core) == ("NoOp", 2)
    assert spec.resource_claim_template.name == ""


def test_what_the_api_server_requires_is_written_and_what_is_short_stays_as_it_is() -> None:
    allocation = Allocation("team-a/train", ("node-1",), 1, "node-1", 0, "Pending", "2026-11-30T00:00:00Z")
    server = NeuronUltraServer(
        UltraServerMeta(name="us-1", generation=3),
        UltraServerSpec("trn2u.48xlarge", (ServerMember("node-1", 0, "up", "up"),)),
        UltraServerStatus("Ready", 3, (), (allocation,)),
    )
    sent = msgspec.to_builtins(server)
    assert sent["spec"]["topology"] == (
        {"nodeName": "node-1", "nodeId": 0, "linkStatusHorizontal": "up", "linkStatusVertical": "up"},
    )
    assert sent["status"]["allocations"][0] == {
        "workloadRef": "team-a/train",
        "allocatedNodes": ("node-1",),
        "nodeCount": 1,
        "leaderNodeName": "node-1",
        "ultraserverIndex": 0,
        "phase": "Pending",
        "allocatedAt": "2026-11-30T00:00:00Z",
    }
    assert received(ULTRASERVERS, json.loads(msgspec.json.encode(server))) == server
    # Left out, a merge patch would leave what is stored.
    assert msgspec.to_builtins(UltraServerStatus("Ready"))["allocations"] == ()


def test_an_object_without_a_status_is_new() -> None:
    item = received(ULTRASERVER_WORKLOADS, {"metadata": {"name": "w", "generation": 1}, "spec": {"serverCount": 2}})
    assert isinstance(item, NeuronUltraServerWorkload)
    assert (item.status.state, item.status.observed_generation, item.metadata.generation) == ("Pending", 0, 1)

"""What is kept of UltraServers and of the workloads that tenants make."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.api.codec import Resource, decode
from dra_driver.kube.objects.meta import ObservedCondition
from dra_driver.neuron.ultraserver_objects import (
    ACCEPTED_SPEC,
    FINALIZER,
    MAX_FINALIZERS,
    MAX_NAME_CHARACTERS,
    OTHERS,
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
    WorkloadStatus,
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
    of_server = resource is ULTRASERVERS
    assert list(item.metadata.annotations) == ([WORKLOAD_UIDS] if of_server else []), "what is cut off says nothing"
    assert len(item.metadata.finalizers) == MAX_FINALIZERS + 1 if of_server else item.metadata.finalizers == (OTHERS,)
    assert len(item.spec.instance_type) == MAX_NAME_CHARACTERS + 1, "what was cut off is no name"


MANAGER = {"manager": "m" * 128, "operation": "Apply", "fieldsV1": {"f:metadata": {}}}
LARGE: dict[str, Any] = {
    "metadata": {"name": "w" * 253, "namespace": "t" * 63, "uid": "u" * 36, "managedFields": [MANAGER] * 64},
    "spec": HOSTILE[ULTRASERVER_WORKLOADS]["spec"],
}


def kept_of(document: object) -> float:
    """Bytes that a workload takes in memory, of many."""
    text = json.dumps(document, ensure_ascii=False).encode()
    items: list[object] = [None] * 10
    tracemalloc.start()
    try:
        for index in range(len(items)):
            assert ULTRASERVER_WORKLOADS.from_version is not None
            items[index] = ULTRASERVER_WORKLOADS.from_version(decode(text, ULTRASERVER_WORKLOADS.wire, "it"), "v1")
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / len(items)
    finally:
        tracemalloc.stop()


WIDE = "\U0001f600"
FINALIZERS: list[list[str]] = [
    [f"example.com/{number}" for number in range(2_000)],
    [f"a/{number}" for number in range(30)],
    [FINALIZER, WIDE * 400],
    [f"{WIDE}/{number}" for number in range(60)],
]
NOTES = [LONG, WIDE * 500, WIDE + "x" * 2_000, "x" * 2_000]


@pytest.mark.parametrize("finalizers", FINALIZERS, ids=["many", "short", "long", "wide"])
@pytest.mark.parametrize("note", NOTES, ids=["cut off", "wide", "mixed", "as long as can be"])
def test_of_what_a_tenant_makes_a_few_kilobytes_are_kept(finalizers: list[str], note: str) -> None:
    meta = {**LARGE["metadata"], "finalizers": finalizers, "annotations": {ACCEPTED_SPEC: note}}
    assert kept_of({**LARGE, "metadata": meta}) < 10 * 1024


NAMES: list[list[str]] = [
    ["ultraserver-" + "s" * 200 + f"{number:04}" for number in range(5_000)],
    ["x" * 30 + str(number) for number in range(5_000)],
    [f"{WIDE}{number}" for number in range(5_000)],
    [LONG] * 50,
]


@pytest.mark.parametrize("names", NAMES, ids=["long", "plain", "wide", "huge"])
def test_of_what_somebody_writes_into_its_status_some_more_are_kept(names: list[str]) -> None:
    conditions = [dict.fromkeys(CONDITION, WIDE * 60 + str(number)) for number in range(100)]
    status = {"state": LONG, "conditions": conditions, "allocatedAt": LONG, "allocatedUltraServers": names}
    assert kept_of({**LARGE, "status": status}) < 40 * 1024


TEXTS = st.text(max_size=5) | st.just("x" * 257) | st.just("x" * 258) | st.just(WIDE * 65)
STATUSES = st.builds(
    WorkloadStatus,
    TEXTS,
    st.lists(st.sampled_from(["a", "b", "x" * 254, "x" * 253]), max_size=200).map(tuple),
    st.none() | TEXTS,
    st.integers(0, 3),
    st.lists(st.builds(ObservedCondition, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS), max_size=3).map(tuple),
)


@given(STATUSES, STATUSES)
def test_statuses_are_the_same_in_short_if_they_are_the_same(one: WorkloadStatus, other: WorkloadStatus) -> None:
    assert (one.in_short == other.in_short) is (one == other)
    assert received(ULTRASERVER_WORKLOADS, {"metadata": {}, "status": msgspec.to_builtins(one)}).status == one.in_short


@given(st.lists(st.sampled_from([FINALIZER, "a/b", "x" * 254]), max_size=40))
def test_finalizers_are_all_kept_or_it_is_seen_that_they_are_not(finalizers: list[str]) -> None:
    short = received(ULTRASERVER_WORKLOADS, {"metadata": {"finalizers": finalizers}}).metadata.finalizers
    assert short == tuple(finalizers) or OTHERS in short
    assert (FINALIZER in short) is (FINALIZER in finalizers)


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

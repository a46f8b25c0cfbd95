"""From objects of the API to values: what counts, and what users wrote that does not."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.objects.core import PartialNode
from dra_driver.kube.objects.core import Pod as ApiPod
from dra_driver.kube.objects.meta import seconds, timestamp
from dra_driver.kube.objects.resource import AllocatedClaim
from dra_driver.neuron.names import SERVER_2, SERVER_4
from dra_driver.ultraserver.placer.snapshot import (
    MAX_RELEASED,
    read_kept,
    snapshot,
    write_kept,
)
from dra_driver.ultraserver.placer.values import (
    GATE,
    MAX_TAINTS,
    PLACED_ANNOTATION,
    SINCE_ANNOTATION,
    GroupPod,
    PlacerRecord,
    Released,
)
from dra_driver.ultraserver.placer.watched import OFFERS, Offer, member_of, offer_of


def node(**changes: Any) -> PartialNode:
    document: dict[str, Any] = {
        "metadata": {"name": "n", "labels": {SERVER_4: "s", SERVER_2: "h"}},
        "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    return msgspec.convert(document | changes, PartialNode)


def offer(generation: int, *devices: str) -> Offer:
    pool = {"name": "n", "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": "neuron.aws.com", "nodeName": "n", "pool": pool, "devices": [{"name": name} for name in devices]}
    return offer_of(msgspec.convert({"metadata": {"name": f"slice{generation}"}, "spec": spec}, OFFERS.wire))


def claim(
    driver: str = "neuron.aws.com", *, pool: str = "n", device: str = "neuron-node", admin: bool = False
) -> AllocatedClaim:
    result = {"request": "r", "driver": driver, "pool": pool, "device": device, "adminAccess": admin}
    status = {"allocation": {"devices": {"results": [result]}}}
    return msgspec.convert({"metadata": {"namespace": "a", "name": "c"}, "status": status}, AllocatedClaim)


def pod(spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any) -> GroupPod:
    meta = {"namespace": "a", "name": "p", "uid": "u"} | metadata
    return member_of(msgspec.convert({"metadata": meta, "spec": spec or {}, "status": status or {}}, ApiPod)).pod


NOT_READY = {"conditions": [{"type": "Ready", "status": "Unknown"}]}


@pytest.mark.parametrize(
    ("changes", "offers", "trouble"),
    [
        ({}, [offer(1, "neuron-node")], ""),
        ({}, [offer(1, "neuron-device-0", "neuron-node")], ""),
        ({"status": NOT_READY}, [offer(1, "neuron-node")], "is not Ready"),
        ({"status": {}}, [offer(1, "neuron-node")], "is not Ready"),
        ({"spec": {"unschedulable": True}}, [offer(1, "neuron-node")], "is cordoned"),
        ({}, [], "offers no device neuron-node"),
        ({}, [offer(1, "neuron-device-0")], "offers no device neuron-node"),
        ({}, [offer(1, "neuron-node"), offer(2)], "offers no device neuron-node"),
        ({}, [offer(2, "neuron-node"), offer(1)], ""),
        ({}, [offer(1, "neuron-device-0"), offer(1, "neuron-node"), offer(1)], ""),
    ],
)
def test_a_node_is_usable_when_it_is_ready_and_offers_its_newest_device(
    changes: dict[str, Any], offers: list[Offer], trouble: str
) -> None:
    (found,) = snapshot([node(**changes)], offers, [], [], PlacerRecord()).nodes
    assert found.trouble == trouble


@pytest.mark.parametrize(
    ("owners", "owner"),
    [
        ([], ""),
        ([{"kind": "StatefulSet", "controller": True}], "StatefulSet"),
        ([{"kind": "Other"}, {"kind": "Node", "controller": True}], "Node"),
        ([{"kind": "Node", "controller": False}], ""),
    ],
)
def test_a_pods_owner_is_its_controller(owners: list[dict[str, Any]], owner: str) -> None:
    references = [{"apiVersion": "v1", "name": "o", "uid": "u", **item} for item in owners]
    assert pod(ownerReferences=references).owner == owner


def test_nodes_without_labels_of_servers_are_left_out() -> None:
    assert snapshot([node(metadata={"name": "n", "labels": {"zone": "1"}})], [], [], [], PlacerRecord()).nodes == ()


@pytest.mark.parametrize(
    ("holder", "by", "owner"),
    [
        (claim(), "a/c", "a"),
        (claim(device="neuron-device-0"), "a/c", ""),
        (claim(pool="n/chips"), "a/c", "a"),
        (claim("other"), "", ""),
        (claim(pool="m"), "", ""),
        (claim(admin=True), "", ""),
        (AllocatedClaim(metadata=claim().metadata), "", ""),
    ],
    ids=["ours", "one chip", "pool below", "other driver", "other node", "admin access", "not allocated"],
)
def test_claims_that_hold_a_device_of_the_node_count(holder: AllocatedClaim, by: str, owner: str) -> None:
    (server_node,) = snapshot([node()], [], [holder], [], PlacerRecord()).nodes
    assert (server_node.claim, server_node.owner) == (by, owner)


def test_only_taints_that_keep_pods_off_count() -> None:
    taints = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "PreferNoSchedule"}]
    (found,) = snapshot([node(spec={"taints": taints})], [], [], [], PlacerRecord()).nodes
    assert [taint.key for taint in found.taints] == ["a"]


@pytest.mark.parametrize(("count", "trouble"), [(MAX_TAINTS, ""), (MAX_TAINTS + 1, "has more than 64 taints")])
def test_no_group_is_placed_on_a_node_with_taints_without_number(count: int, trouble: str) -> None:
    taints = [{"key": str(number), "effect": "NoSchedule"} for number in range(count)]
    (found,) = snapshot([node(spec={"taints": taints})], [offer(1, "neuron-node")], [], [], PlacerRecord()).nodes
    assert found.trouble == trouble
    assert len(found.taints) == MAX_TAINTS


@pytest.mark.parametrize(
    ("selector", "gates", "place", "placed"),
    [
        ({SERVER_4: "s"}, [], f"{SERVER_4}=s", (SERVER_4, "s")),
        ({SERVER_2: "s", "zone": "1"}, [], f"{SERVER_2}=s", (SERVER_2, "s")),
        ({SERVER_4: "other"}, [], f"{SERVER_4}=s", None),
        ({SERVER_2: "s"}, [], f"{SERVER_4}=s", None),
        ({"zone": "1"}, [], "zone=1", None),
        ({}, [], f"{SERVER_4}=s", None),
        ({SERVER_4: "s"}, [{"name": GATE}], f"{SERVER_4}=s", None),
        ({SERVER_4: "s"}, [], "", None),
    ],
)
def test_a_pod_counts_as_placed_only_if_the_placer_recorded_it_its_node_selector_says_so_and_its_gate_is_gone(
    selector: dict[str, str], gates: list[dict[str, str]], place: str, placed: tuple[str, str] | None
) -> None:
    written = pod({"nodeSelector": selector, "schedulingGates": gates}, annotations={PLACED_ANNOTATION: "s"})
    (found,) = snapshot([], [], [], [written], PlacerRecord({"u": place})).pods
    assert found.placed == placed


NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/8 nodes"}


@pytest.mark.parametrize(
    ("spec", "status", "said"),
    [
        ({}, {}, ""),
        ({}, {"conditions": [NO_NODE]}, "0/8 nodes"),
        ({}, {"conditions": [NO_NODE | {"message": ""}]}, "Unschedulable"),
        ({}, {"conditions": [{"type": "Ready", "status": "False"}, NO_NODE]}, "0/8 nodes"),
        ({}, {"conditions": [NO_NODE | {"type": "Ready"}]}, ""),
        ({}, {"conditions": [NO_NODE | {"status": "True"}]}, ""),
        ({}, {"conditions": [NO_NODE | {"reason": "SchedulingGated"}]}, ""),
        ({}, {"conditions": [NO_NODE | {"reason": "SchedulerError"}]}, ""),
        ({}, {"conditions": [NO_NODE], "nominatedNodeName": "n"}, ""),
        ({"nodeName": "n"}, {"conditions": [NO_NODE]}, ""),
    ],
)
def test_a_pod_is_unschedulable_when_the_scheduler_says_so_and_makes_no_room_by_preemption(
    spec: dict[str, Any], status: dict[str, Any], said: str
) -> None:
    assert pod(spec, status).unschedulable == said


@pytest.mark.parametrize(
    "text", ["", "soon", "2026-01-01", "2026-01-01T00:00:00", "9" * 400, "0001-01-01T00:00:00+14:00"]
)
def test_a_time_that_nobody_of_us_wrote_counts_as_absent(text: str) -> None:
    found = pod(annotations={SINCE_ANNOTATION: text})
    assert found.since is None or found.since < 0


@given(st.integers(0, 4 * 10**9))
def test_times_survive_being_written(moment: int) -> None:
    assert seconds(timestamp(moment)) == moment
    assert seconds(timestamp(moment, micro=True)) == moment


@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps))
def test_a_memory_that_cannot_be_read_is_empty(text: str) -> None:
    anything = {"placed": text, "released": text, "members": text}
    assert read_kept(text) == read_kept(json.dumps(anything)) == PlacerRecord()


def test_of_a_damaged_memory_what_can_be_read_counts() -> None:
    entry = {"namespace": "a", "group": "g", "server": "s", "until": "1970-01-01T00:00:09Z"}
    members = {"x=y": ["a", "b"], "x=z": "ab", "x=w": ["a", 1]}
    released = [entry, 1, entry | {"until": 9}]
    text = json.dumps({"placed": {"u": "x=y", "v": 1, "w": None}, "released": released, "members": members})
    assert read_kept(text) == PlacerRecord({"u": "x=y"}, (Released("a", "g", "s", 9.0),), {"x=y": ("a", "b")})


def test_the_memory_keeps_what_is_not_over_and_is_bounded() -> None:
    many = tuple(Released("a", f"g{number}", "s", 1000.0 + number) for number in range(2 * MAX_RELEASED))
    members = {f"{SERVER_4}=s": ("n0", "n1", "n2", "n3")}
    kept = read_kept(write_kept(PlacerRecord({"u": f"{SERVER_4}=s"}, many, members), now=1010.0))
    assert kept == PlacerRecord({"u": f"{SERVER_4}=s"}, many[-MAX_RELEASED:], members)
    assert read_kept(write_kept(PlacerRecord(released=many[:20]), now=1010.0)) == PlacerRecord(released=many[11:20])


def test_releases_of_one_namespace_push_out_none_of_another() -> None:
    many = tuple(Released("a", f"g{number}", "s", 2000.0 + number) for number in range(2 * MAX_RELEASED))
    others = tuple(Released("b", f"g{number}", "s", 1500.0 + number) for number in range(3))
    released = read_kept(write_kept(PlacerRecord(released=(*others, *many)), now=1010.0)).released
    assert released == (*others, *many[3 - MAX_RELEASED :])


U, V = (f"b2b1e5a0-0000-4000-8000-00000000000{digit}" for digit in "ab")


def marked(name: str, *marks: str | None, generation: int = 2, slices: int = 1, pool: str = "n") -> Offer:
    """A slice whose devices say these workloads; None: nothing."""
    devices = [
        {"name": f"d{number}", "attributes": {} if mark is None else {"workloadUID": {"string": mark}}}
        for number, mark in enumerate(marks)
    ]
    pools = {"name": pool, "generation": generation, "resourceSliceCount": slices}
    spec = {"driver": "neuron.aws.com", "nodeName": "n", "pool": pools, "devices": devices}
    body = msgspec.json.encode({"metadata": {"name": name}, "spec": spec})
    return offer_of(msgspec.json.decode(body, type=OFFERS.wire))


@pytest.mark.parametrize(
    ("offers", "mark"),
    [
        ([], ""),
        ([marked("a", U)], U),
        ([marked("a", U, U), marked("old", None, generation=1)], U),
        ([marked("a", U, None)], ""),
        ([marked("a", U, V)], ""),
        ([marked("a", U, slices=2)], ""),
        ([marked("a", U, slices=2), marked("b", U, slices=2)], U),
        ([marked("a", U, slices=2), marked("b", slices=2)], U),
        ([marked("a", U, slices=2), marked("b", None, slices=2)], ""),
        ([marked("a", U, generation=1), marked("b", None)], ""),
        ([marked("a", U), marked("b", None, pool="n/more")], ""),
        ([marked("a", U), marked("b", U, pool="n/more")], U),
        ([marked("a", U), marked("b", V, pool="n/more")], ""),
        ([marked("a")], ""),
        ([marked("a", "")], ""),
    ],
)
def test_a_node_is_a_workload_s_when_all_devices_of_all_its_slices_say_so(offers: list[Offer], mark: str) -> None:
    for order in (offers, offers[::-1]):
        (seen,) = snapshot([node()], order, [], [], PlacerRecord()).nodes
        assert seen.mark == mark


@pytest.mark.parametrize(
    ("offers", "uids"),
    [
        ([marked("a", None)], set()),
        ([marked("a", U, None, V)], {U, V}),
        ([marked("a", U, slices=2)], {U}),
        ([marked("a", U, generation=1), marked("b", V)], {V}),
        ([marked("a", U), marked("b", V, pool="n/more")], {U, V}),
        ([marked("a", "no uid", "u" * 300, U.upper())], set()),
        (
            [marked("a", *(f"{U[:-3]}{number:03}" for number in range(99)), U)],
            {U, *(f"{U[:-3]}{number:03}" for number in range(99))},
        ),
    ],
)
def test_each_workload_that_any_device_names_is_seen(offers: list[Offer], uids: set[str]) -> None:
    """By it a node draws pods, whatever its other devices say."""
    assert snapshot([], offers, [], [], PlacerRecord()).published == ({"n": uids} if uids else {})

"""Pools, generations and nodes: what a node can use, and in which order it is tried."""

from __future__ import annotations

import pytest

from dra_driver.simulator.allocator import NodeView
from dra_driver.util.errors import DriverError
from tests.builders.allocator import claim, counters, device, devices, every, offered, refusal, request, world
from tests.golden import golden

BOTH = pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])


def test_a_node_without_slices_offers_nothing() -> None:
    assert not refusal(world(), claim(request())).fatal


def test_a_claim_without_requests_is_satisfied_by_nothing() -> None:
    assert devices(world(), claim()) == []


def test_slices_of_another_node_are_not_used() -> None:
    cluster = world(offered(device("theirs"), pool="p2", nodeName="node-2"), offered(device("ours")))
    assert devices(cluster, claim(request())) == ["ours"]
    golden(refusal(cluster, claim(request(count=2))).reason)


def test_only_the_newest_generation_counts() -> None:
    old = offered(device("old"), name="a", generation=1)
    new = offered(device("new"), name="b", generation=2)
    for order in ([old, new], [new, old]):
        assert devices(world(*order), claim(request())) == ["new"]
        golden(refusal(world(*order), claim(request(count=2))).reason)


def test_a_pool_whose_newer_generation_is_elsewhere_is_ignored() -> None:
    cluster = world(offered(device("old"), slices=2), offered(device("x"), generation=2, nodeName="node-2"))
    assert not refusal(cluster, claim(request())).fatal
    # It is not even incomplete.
    assert not refusal(cluster, claim(every())).fatal


def test_nothing_is_taken_from_an_incomplete_pool_but_from_others_it_is() -> None:
    partial = offered(device("partial"), pool="p1", slices=2)
    assert not refusal(world(partial), claim(request())).fatal
    assert devices(world(partial, offered(device("whole"), pool="p2")), claim(request())) == ["whole"]


def test_a_pool_is_complete_when_its_missing_slices_are_for_other_nodes() -> None:
    here = offered(device("here"), name="a", slices=2)
    there = offered(device("there"), name="b", slices=2, nodeName="node-2")
    assert devices(world(here, there), claim(every())) == ["here"]


def test_all_devices_cannot_be_had_of_an_incomplete_pool() -> None:
    cluster = world(offered(device("whole"), pool="p1"), offered(device("partial"), pool="p2", slices=2))
    answer = refusal(cluster, claim(every()))
    assert answer.fatal
    golden(answer.reason)


def test_a_pool_with_a_device_name_twice_is_invalid() -> None:
    cluster = world(offered(device("one"), device("one")))
    answer = refusal(cluster, claim(request()))
    assert not answer.fatal
    golden(answer.reason)
    golden(refusal(cluster, claim(every())).reason)


def test_other_pools_are_used_beside_an_invalid_one() -> None:
    cluster = world(offered(device("one"), device("one"), pool="p1"), offered(device("good"), pool="p2"))
    assert devices(cluster, claim(request())) == ["good"]


@BOTH
@pytest.mark.parametrize(
    ("sets", "consumed", "reason"),
    [
        ({"other": {"c": 1}}, {"set": {"c": 1}}, "counter set set not found"),
        ({"set": {"other": 1}}, {"set": {"c": 1}}, "counter c not found in counter set set"),
    ],
)
def test_a_pool_with_unknown_counters_is_invalid(
    kubernetes: str, sets: dict[str, dict[str, object]], consumed: dict[str, dict[str, object]], reason: str
) -> None:
    cluster = world(offered(device("d", consumed), slices=2), counters(sets, slices=2), kubernetes=kubernetes)
    golden(refusal(cluster, claim(request())).reason)


def test_a_pool_with_a_counter_set_twice_is_invalid() -> None:
    sets = {"set": {"c": 1}}
    cluster = world(offered(device("d"), slices=3), counters(sets, "x", slices=3), counters(sets, "y", slices=3))
    golden(refusal(cluster, claim(request())).reason)


@BOTH
def test_unknown_counters_on_another_node_make_the_pool_invalid_here_too(kubernetes: str) -> None:
    cluster = world(
        offered(device("here", {"set": {"c": 1}}), name="a", slices=3),
        offered(device("there", {"none": {"c": 1}}), name="b", slices=3, nodeName="node-2"),
        counters({"set": {"c": 4}}, slices=3, allNodes=True),
        kubernetes=kubernetes,
    )
    golden(refusal(cluster, claim(request())).reason)


def test_slices_are_tried_by_name_and_pools_by_driver_and_name() -> None:
    cluster = world(
        offered(device("4"), driver="b.example", pool="a"),
        offered(device("3"), pool="z"),
        offered(device("2"), name="2", slices=2, pool="a"),
        offered(device("1"), name="1", slices=2, pool="a"),
    )
    assert devices(cluster, claim(request(count=4))) == ["1", "2", "3", "4"]


def test_pools_with_binding_conditions_are_tried_last() -> None:
    cluster = world(offered(device("late", bindingConditions=["ready"]), pool="a"), offered(device("early"), pool="b"))
    assert devices(cluster, claim(request(count=2))) == ["early", "late"]


def test_devices_for_all_nodes_are_used_from_any() -> None:
    assert devices(world(offered(device("net"), allNodes=True)), claim(request())) == ["net"]


def term(key: str, operator: str, *values: str) -> dict[str, object]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


NAMED = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}


@pytest.mark.parametrize(
    ("terms", "matches"),
    [
        ([term("region", "In", "here", "there")], True),
        ([term("region", "In", "there")], False),
        ([term("region", "NotIn", "there")], True),
        ([term("zone", "NotIn", "there")], True),
        ([term("region", "Exists")], True),
        ([term("zone", "Exists")], False),
        ([term("zone", "DoesNotExist")], True),
        ([term("size", "Gt", "3")], True),
        ([term("size", "Gt", "4")], False),
        ([term("size", "Lt", "5")], True),
        ([term("region", "Lt", "5")], False),
        ([NAMED], True),
        ([{**NAMED, **term("region", "In", "there")}], False),
        ([{}], False),
        ([], False),
    ],
)
def test_a_slice_can_select_its_nodes(terms: list[dict[str, object]], matches: bool) -> None:
    node = NodeView("node-1", {"region": "here", "size": "4"})
    cluster = world(offered(device("net"), nodeSelector={"nodeSelectorTerms": terms}))
    if matches:
        assert devices(cluster, claim(request()), node=node) == ["net"]
    else:
        assert not refusal(cluster, claim(request()), node=node).fatal


@pytest.mark.parametrize("bad", [term("region", "Near", "here"), term("region", "In"), term("size", "Gt", "1", "2")])
def test_a_malformed_node_selector_ends_the_scheduling(bad: dict[str, object]) -> None:
    cluster = world(offered(device("net"), nodeSelector={"nodeSelectorTerms": [bad]}))
    assert refusal(cluster, claim(request())).fatal


def test_devices_of_one_slice_can_be_for_different_nodes() -> None:
    selected = {"nodeSelectorTerms": [term("region", "In", "here")]}
    cluster = world(
        offered(
            device("theirs", nodeName="node-2"),
            device("ours", nodeName="node-1"),
            device("regional", nodeSelector=selected),
            device("shared", allNodes=True),
            device("nowhere"),
            perDeviceNodeSelection=True,
        )
    )
    assert devices(cluster, claim(every())) == ["ours", "regional", "shared"]
    assert devices(cluster, claim(every()), node=NodeView("node-3")) == ["shared"]


def test_a_slice_that_says_nothing_known_about_nodes_is_passed_over() -> None:
    cluster = world(offered(device("odd"), nodeName=None), offered(device("good"), pool="p2"))
    assert devices(cluster, claim(request())) == ["good"]


@pytest.mark.parametrize(("kubernetes", "fatal"), [("1.36", True), ("1.37", False)])
def test_until_1_36_an_incomplete_pool_with_counters_anywhere_stops_all_devices(kubernetes: str, fatal: bool) -> None:
    elsewhere = counters({"set": {"c": 1}}, pool="p2", slices=2, nodeName="node-2")
    cluster = world(offered(device("d")), elsewhere, kubernetes=kubernetes)
    if fatal:
        assert refusal(cluster, claim(every())).fatal
    else:
        assert devices(cluster, claim(every())) == ["d"]


@pytest.mark.parametrize(("kubernetes", "found"), [("1.36", ["grouped"]), ("1.37", ["plain"])])
def test_from_1_37_on_pools_with_compatibility_groups_are_incomplete(kubernetes: str, found: list[str]) -> None:
    grouped = device("grouped", {"set": {"c": 1}})
    grouped["consumesCounters"][0]["compatibilityGroups"] = ["x"]
    cluster = world(
        offered(grouped, pool="p1", slices=2),
        counters({"set": {"c": 1}}, pool="p1", slices=2),
        offered(device("plain"), pool="p2"),
        kubernetes=kubernetes,
    )
    assert devices(cluster, claim(request())) == found


def test_an_unknown_release_is_refused() -> None:
    with pytest.raises(DriverError, match=r"1\.36, 1\.37"):
        world(kubernetes="1.33")

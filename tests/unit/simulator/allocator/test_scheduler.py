"""Claims over many nodes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.simulator.allocator import Allocation, NodeView, Refusal, Scheduler, World
from tests.builders.allocator import (
    allocate,
    chips,
    claim,
    claims_of,
    device,
    different,
    every,
    in_use,
    offered,
    request,
    same,
    world,
)
from tests.generators.effort import examples
from tests.golden import golden

FOUR = claim(request(count=4), constraints=[same("group")])


def names(count: int) -> list[NodeView]:
    return [NodeView(f"node-{i:04}") for i in range(count)]


def farm(nodes: list[NodeView], size: int = 16, **fields: Any) -> World:
    return world(*(offered(*chips(size), pool=node.name, nodeName=node.name) for node in nodes), **fields)


def placed(scheduler: Scheduler, *claims: dict[str, Any]) -> str | None:
    answer = scheduler.place(claims_of(*claims))
    return answer.node if isinstance(answer, Allocation) else None


def test_claims_go_to_the_first_node_by_name_that_has_room() -> None:
    nodes = names(3)
    scheduler = Scheduler(farm(nodes, 8), reversed(nodes))
    found = [placed(scheduler, FOUR) for _ in range(7)]
    assert found == ["node-0000"] * 2 + ["node-0001"] * 2 + ["node-0002"] * 2 + [None]


def test_a_refused_node_is_asked_again_after_devices_were_given_back() -> None:
    nodes = names(2)
    scheduler = Scheduler(farm(nodes, 4), nodes)
    first = scheduler.place(claims_of(FOUR))
    assert isinstance(first, Allocation)
    assert [placed(scheduler, FOUR), placed(scheduler, FOUR)] == ["node-0001", None]
    scheduler.release(first.results[0].devices.results)
    assert placed(scheduler, FOUR) == "node-0000"


def test_one_claim_full_does_not_refuse_another() -> None:
    nodes = names(2)
    scheduler = Scheduler(farm(nodes, 6), nodes)
    assert [placed(scheduler, FOUR) for _ in range(3)] == ["node-0000", "node-0001", None]
    assert placed(scheduler, claim(request(count=2))) == "node-0000"


def test_only_the_named_nodes_are_asked_in_their_order() -> None:
    nodes = names(3)
    scheduler = Scheduler(farm(nodes), nodes)
    answer = scheduler.place(claims_of(FOUR), on=[nodes[2], nodes[0]])
    assert isinstance(answer, Allocation)
    assert answer.node == "node-0002"
    none = scheduler.place(claims_of(FOUR), on=[])
    assert none == Refusal("cannot allocate all claims")


def test_claims_of_one_pod_are_on_one_node() -> None:
    nodes = names(2)
    scheduler = Scheduler(farm(nodes, 6), nodes)
    assert placed(scheduler, claim(request(count=2))) == "node-0000"
    assert placed(scheduler, claim(request(count=3), name="a"), claim(request(count=2), name="b")) == "node-0001"


def test_an_error_ends_the_scheduling_of_the_pod_on_all_nodes() -> None:
    nodes = names(2)
    slices = [
        offered(device("odd"), pool="p0", nodeName="node-0000"),
        offered(*chips(4), pool="p1", nodeName="node-0001"),
    ]
    answer = Scheduler(world(*slices), nodes).place(claims_of(claim(request(selector="group=0"))))
    assert isinstance(answer, Refusal)
    assert answer.fatal
    missing = Scheduler(world(*slices), nodes).place(claims_of(claim(request(deviceClassName="none"))))
    assert isinstance(missing, Refusal)


@pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])
@given(
    st.lists(
        st.sampled_from(
            [
                claim(request(count=1)),
                claim(request(count=2), constraints=[same("group")]),
                claim(request(count=3), constraints=[different("group")]),
                claim(every()),
                claim(request(count=2, selector="group=1")),
                claim(request("x"), request("y", 2), constraints=[same("group", "y"), different("index")]),
            ]
        ),
        max_size=12,
    )
)
@settings(max_examples=examples(40))
def test_the_answer_is_that_of_asking_every_node_anew(kubernetes: str, claims: list[dict[str, Any]]) -> None:
    nodes = names(3)
    scheduler = Scheduler(farm(nodes, 6, kubernetes=kubernetes), nodes)
    plain = farm(nodes, 6, kubernetes=kubernetes)
    for wanted in claims:
        answers = [allocate(claims_of(wanted), node, plain) for node in nodes]
        fitting = [answer for answer in answers if isinstance(answer, Allocation)]
        answer = scheduler.place(claims_of(wanted))
        assert answer == (fitting[0] if fitting else answers[-1])
        if isinstance(answer, Allocation):
            for result in answer.results:
                plain.usage.take(result.devices.results)


def test_an_error_on_a_node_after_the_first_with_room_ends_the_scheduling_too() -> None:
    good = [offered(device("d", attributes={"x": 1}), name=f"s{i}", pool=f"p{i}", nodeName=f"n{i}") for i in range(2)]
    bad = offered(device("d"), name="s2", pool="p2", nodeName="n2")
    nodes = [NodeView(f"n{i}") for i in range(3)]
    asking = claims_of(claim(request(selector="x=1")))
    answer = Scheduler(world(*good, bad), nodes).place(asking)
    assert isinstance(answer, Refusal)
    assert answer.fatal
    golden(answer.reason)
    assert isinstance(Scheduler(world(*good, bad), nodes[:2]).place(asking), Allocation)
    in_the_way = world(*good, bad, used=[in_use("d", pool="p2")])
    assert isinstance(Scheduler(in_the_way, nodes).place(asking), Allocation), "a device in use is not looked at"


def test_large_clusters_are_not_looked_at_to_the_end() -> None:
    slices = [
        offered(device("d", attributes={"x": 1} if i < 150 else {}), name=f"s{i}", pool=f"p{i}", nodeName=f"n{i:03}")
        for i in range(200)
    ]
    nodes = [NodeView(f"n{i:03}") for i in range(200)]
    asking = claims_of(claim(request(selector="x=1")))
    scheduler = Scheduler(world(*slices), nodes)
    for i in range(51):
        assert isinstance(scheduler.place(asking), Allocation), i
    assert isinstance(scheduler.place(asking), Refusal), "a hundred nodes with room are not found before the bad ones"


ODD = st.lists(st.lists(st.sampled_from([{"x": 1}, {"x": 2}, {"y": 1}, {}]), max_size=3), min_size=1, max_size=4)


@given(
    ODD,
    st.lists(
        st.sampled_from(
            [
                claim(request()),
                claim(request(selector="x=1")),
                claim(request(count=2, selector="y=1")),
                claim(request("a"), request("b", selector="x=2")),
                claim(every(selector="x=1")),
            ]
        ),
        max_size=6,
    ),
)
@settings(max_examples=examples(80))
def test_the_first_node_with_room_counts_only_when_no_node_fails(
    farms: list[list[dict[str, Any]]], claims: list[dict[str, Any]]
) -> None:
    nodes = names(len(farms))
    slices = [
        offered(*(device(f"d{i}", attributes=one) for i, one in enumerate(kinds)), pool=node.name, nodeName=node.name)
        for node, kinds in zip(nodes, farms, strict=True)
    ]
    scheduler, plain = Scheduler(world(*slices), nodes), world(*slices)
    for wanted in claims:
        answers = [allocate(claims_of(wanted), node, plain) for node in nodes]
        failing = any(isinstance(answer, Refusal) and answer.fatal for answer in answers)
        fitting = [answer for answer in answers if isinstance(answer, Allocation)]
        answer = scheduler.place(claims_of(wanted))
        if failing or not fitting:
            assert isinstance(answer, Refusal)
            assert answer.fatal == failing
            continue
        assert answer == fitting[0]
        for result in fitting[0].results:
            plain.usage.take(result.devices.results)


def test_devices_in_use_at_the_start_are_counted() -> None:
    nodes = names(1)
    used = [in_use(f"chip-{i:02}", pool="node-0000") for i in (0, 4, 8)]
    scheduler = Scheduler(farm(nodes, used=used), nodes)
    assert [placed(scheduler, FOUR), placed(scheduler, FOUR)] == ["node-0000", None]


@pytest.mark.slow
def test_a_thousand_nodes_are_filled_in_seconds() -> None:
    """The processor's time for one claim does not grow with the number of full nodes."""
    nodes = names(1000)
    scheduler = Scheduler(farm(nodes), nodes)
    started = time.process_time()
    assert sum(placed(scheduler, FOUR) is not None for _ in range(4000)) == 4000
    assert placed(scheduler, FOUR) is None
    assert time.process_time() - started < 20

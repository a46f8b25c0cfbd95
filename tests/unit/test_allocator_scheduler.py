"""Claims over many nodes."""

from __future__ import annotations

import time
from typing import Any

from dra_driver.simulator.allocator import Allocation, NodeView, Refusal, Scheduler, World
from tests.allocatorworld import (
    chips,
    claim,
    claims_of,
    device,
    in_use,
    offered,
    request,
    same,
    world,
)

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
        offered(device("d", attributes={"x": 1} if i < 150 else {}), name=f"s{i}", pool=f"p{i}", nodeName=f"n{i:03}")
        for i in range(200)
    ]
    nodes = [NodeView(f"n{i:03}") for i in range(200)]
    asking = claims_of(claim(request(selector="x=1")))
    scheduler = Scheduler(world(*slices), nodes)
    for i in range(51):
        answer = scheduler.place(asking)
        assert isinstance(answer, Allocation), i
    assert isinstance(scheduler.place(asking), Refusal), "a hundred nodes with room are not found before the bad ones"


def test_devices_in_use_at_the_start_are_counted() -> None:
    nodes = names(1)
    used = [in_use(f"chip-{i:02}", pool="node-0000") for i in (0, 4, 8)]
    scheduler = Scheduler(farm(nodes, used=used), nodes)
    assert [placed(scheduler, FOUR), placed(scheduler, FOUR)] == ["node-0000", None]


def test_a_thousand_nodes_are_filled_in_seconds() -> None:
    """The time for one claim does not grow with the number of full nodes."""
    nodes = names(1000)
    scheduler = Scheduler(farm(nodes), nodes)
    started = time.perf_counter()
    assert sum(placed(scheduler, FOUR) is not None for _ in range(4000)) == 4000
    assert placed(scheduler, FOUR) is None
    assert time.perf_counter() - started < 20

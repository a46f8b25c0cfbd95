"""The search: which solution comes first, compared with a plain reference, and how long it takes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dra_driver.simulator.allocator import TIME_OVER, Allocation, NodeView, Refusal, Scheduler, World
from tests.builders.allocator import (
    NODE,
    allocate,
    chips,
    claim,
    claims_of,
    counters,
    device,
    devices,
    different,
    every,
    first_of,
    in_use,
    offered,
    refusal,
    request,
    same,
    selectors,
    subrequest,
    world,
)
from tests.generators.effort import examples
from tests.golden import golden
from tests.oracles.allocator import first_solution

Json = dict[str, Any]
EXISTS = [{"operator": "Exists"}]
TAINT = [{"key": "k", "effect": "NoSchedule"}]
SETS = {"set": {"c": 3, "d": 2}}


@st.composite
def offers(draw: st.DrawFn, unreadable: bool = False) -> list[Json]:
    found = []
    partitioned = draw(st.booleans())
    for place in range(draw(st.integers(0, 6))):
        attributes: Json = {"g": draw(st.integers(0, 2)), "h": draw(st.sampled_from(["x", "y", 1]))}
        if draw(st.integers(0, 5)) == 0:
            del attributes["h"]
        if unreadable and draw(st.integers(0, 5)) == 0:
            del attributes["g"]
        consumes = None
        if partitioned and draw(st.integers(0, 3)):
            consumes = {"set": draw(st.sampled_from([{"c": 1}, {"c": 2}, {"c": 1, "d": 1}, {"d": 2}]))}
        extra: Json = {"taints": TAINT} if draw(st.integers(0, 5)) == 0 else {}
        found.append(device(f"d{place}", consumes, attributes=attributes, **extra))
    return found


@st.composite
def options(draw: st.DrawFn) -> Json:
    fields: Json = {"count": draw(st.sampled_from([1, 1, 2, 2, 3]))}
    if draw(st.integers(0, 9)) == 0:
        fields = {"allocationMode": "All"}
    if draw(st.booleans()):
        fields["selector"] = f"g={draw(st.integers(0, 2))}"
    if draw(st.integers(0, 3)) == 0:
        fields["tolerations"] = EXISTS
    return fields


@st.composite
def wanted(draw: st.DrawFn) -> list[Json]:
    made = []
    for number in range(draw(st.integers(1, 2))):
        requests, names = [], []
        for place in range(draw(st.integers(1, 3))):
            name = f"r{place}"
            names.append(name)
            if draw(st.integers(0, 4)) == 0:
                several = [subrequest(f"s{i}", **draw(options())) for i in range(draw(st.integers(1, 3)))]
                names += [f"{name}/{item['name']}" for item in several]
                requests.append(first_of(name, *several))
            else:
                extra: Json = {"adminAccess": True} if draw(st.integers(0, 9)) == 0 else {}
                requests.append(request(name, **draw(options()), **extra))
        everything = "All" in str(requests)
        constraints = [
            draw(st.sampled_from([same, same, different]))(
                draw(st.sampled_from("gh")), *draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
            )
            for _ in range(0 if everything else draw(st.integers(0, 2)))
        ]
        made.append(claim(*requests, constraints=constraints, name=f"c{number}"))
    return made


def cluster(found: list[Json], used: list[str], kubernetes: str = "1.37") -> World:
    return world(
        offered(*found, name="devices", slices=2),
        counters(SETS, slices=2),
        used=[in_use(name) for name in used],
        kubernetes=kubernetes,
    )


def both_ways(asked: World, *claims: Json) -> list[Allocation | Refusal]:
    """With branches cut from the first setback on, and with none cut."""
    prepared = asked.prepare(claims_of(*claims))
    assert not isinstance(prepared, Refusal)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dra_driver.simulator.allocator.search.SETBACKS_BEFORE_COMPARING", -1)
        return [asked.ask(prepared, NODE), asked.ask(prepared, NODE, prune=False)]


def picked(answer: Allocation | Refusal) -> list[list[tuple[str, str]]] | None:
    if isinstance(answer, Refusal):
        assert not answer.fatal, answer
        return None
    return [[(item.request, item.device) for item in result.devices.results] for result in answer.results]


def test_a_choice_that_failed_under_one_constraint_may_be_right_under_another() -> None:
    made = [("a", 1, "x"), ("b1", 2, "x"), ("b2", 2, "x"), ("c", 3, "y")]
    asked = world(offered(*(device(name, attributes={"v": v, "kind": kind}) for name, v, kind in made)))
    requests = [request("r1", selector="kind=x"), request("r2", selector="kind=x"), request("r3", selector="kind=y")]
    last = first_of("r4", subrequest("only", selector="kind=x"))
    answers = both_ways(asked, claim(*requests, last, constraints=[same("v", "r1", "r4")]))
    wanted_ = [("r1", "b1"), ("r2", "a"), ("r3", "c"), ("r4/only", "b2")]
    assert [picked(answer) for answer in answers] == [[wanted_], [wanted_]]


@given(offers(), wanted(), st.lists(st.sampled_from(["d0", "d1", "d2", "d3"]), max_size=2, unique=True))
@settings(max_examples=examples(250))
def test_the_first_solution_of_the_reference_is_found(found: list[Json], claims: list[Json], used: list[str]) -> None:
    expected = first_solution(found, SETS, claims, used)
    event("solved" if expected else "no solution")
    assert picked(allocate(claims_of(*claims), NODE, cluster(found, used))) == expected


@given(
    offers(unreadable=True),
    wanted(),
    st.lists(st.sampled_from(["d0", "d1", "d2", "d3"]), max_size=2, unique=True),
    st.sampled_from(["1.36", "1.37"]),
)
@settings(max_examples=examples(400))
def test_cutting_branches_changes_no_answer(
    found: list[Json], claims: list[Json], used: list[str], kubernetes: str
) -> None:
    cut, whole = both_ways(cluster(found, used, kubernetes), *claims)
    assert cut == whole


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.data())
@settings(max_examples=examples(80))
def test_cutting_branches_changes_no_answer_where_the_search_goes_back_often(
    groups: int, size: int, pairs: int, data: st.DataObject
) -> None:
    """Many like devices and a last request that is hard to satisfy."""
    found = [
        device(
            f"d{i}", {"set": {"c": 1}} if data.draw(st.booleans()) else None, attributes={"g": i % groups, "i": i % 2}
        )
        for i in range(groups * size)
    ]
    requests = [request(f"r{i}", data.draw(st.integers(1, 3))) for i in range(pairs)]
    last = request("last", data.draw(st.integers(1, 4)), selector=f"g={data.draw(st.integers(0, groups - 1))}")
    constraints = [same("i", "last")] if data.draw(st.booleans()) else []
    asked = world(offered(*found, name="d", slices=2), counters({"set": {"c": 4}}, slices=2))
    cut, whole = both_ways(asked, claim(*requests, last, constraints=constraints))
    assert cut == whole


def seconds(cluster_: World, *claims: Json) -> float:
    """How much processor time a refusal takes."""
    started = time.process_time()
    assert not refusal(cluster_, *claims).fatal
    return time.process_time() - started


def test_a_node_with_too_few_free_devices_is_refused_at_once() -> None:
    """Kubernetes tries all 32,768 sets of 15 chips."""
    cluster_ = world(offered(*chips(16)), used=[in_use("chip-07")])
    assert seconds(cluster_, claim(request(count=16))) < 10


def test_groups_that_each_lack_a_device_are_refused_at_once() -> None:
    found = offered(*chips(128, size=32))
    cluster_ = world(found, used=[in_use(f"chip-{i:02}") for i in (0, 32, 64, 96)])
    assert seconds(cluster_, claim(request(count=32), constraints=[same("group")])) < 10


@pytest.mark.parametrize(
    "last", [request("last", 2, selector="group=9"), every("last"), request("last", 13), request("last", 1, "group=9")]
)
def test_an_impossible_last_request_is_noticed_before_all_sets_of_the_first_are_tried(last: Json) -> None:
    cluster_ = world(offered(*chips(20)))
    assert seconds(cluster_, claim(request("x", 8), request("y", 4), last)) < 10


def test_an_impossible_last_claim_is_noticed_too() -> None:
    cluster_ = world(offered(*chips(24)))
    many = [claim(request(count=6), name=f"c{i}") for i in range(4)]
    assert seconds(cluster_, *many, claim(request(selector="group=0"), name="late")) < 10


def test_like_partitions_are_not_tried_in_all_combinations() -> None:
    cores = [device(f"core-{i:02}", {"chip": {"cores": 1}}) for i in range(32)]
    whole = device("whole", {"chip": {"cores": 32}}, attributes={"kind": "whole"})
    for core in cores:
        core["attributes"] = {"kind": {"string": "core"}}
    cluster_ = world(offered(*cores, whole, name="d", slices=2), counters({"chip": {"cores": 32}}, slices=2))
    wanted_ = claim(request("x", 8), first_of("r", subrequest("w", selector="kind=whole"), subrequest("n", 25)))
    assert seconds(cluster_, wanted_) < 10


def test_first_available_of_many_requests_is_not_tried_in_all_combinations() -> None:
    several = [first_of(f"r{i}", subrequest("a", 2), subrequest("b", 1)) for i in range(12)]
    cluster_ = world(offered(*chips(11)))
    assert seconds(cluster_, claim(*several)) < 10


def test_a_search_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_driver.simulator.allocator.search.MAX_STEPS", 500)
    cluster_ = world(offered(*chips(12)))
    asked = claims_of(claim(request("x", 4), request("y", 4), request("z", 5)))
    prepared = cluster_.prepare(asked)
    assert not isinstance(prepared, Refusal)
    answer = cluster_.ask(prepared, NODE, prune=False)
    assert isinstance(answer, Refusal)
    assert answer.fatal
    golden(answer.reason)
    assert not refusal(cluster_, claim(request("x", 4), request("y", 4), request("z", 5))).fatal


class Clock:
    """How often it is asked whether there is time, and from which time on there is none."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked <= self.times


def test_a_search_is_given_up_when_its_time_is_over_and_another_one_has_its_own() -> None:
    clocks: list[Clock] = []

    def begin(_namespace: str) -> Clock:
        clocks.append(Clock(100))
        return clocks[-1]

    cluster_ = world(offered(*chips(12)), deadline=begin)
    too_much = cluster_.prepare(claims_of(claim(request("x", 4), request("y", 4), request("z", 5))))
    little = claims_of(claim(request("x", 4)))
    assert not isinstance(too_much, Refusal)
    answer = cluster_.ask(too_much, NODE, prune=False)
    assert answer == TIME_OVER
    assert [clock.asked for clock in clocks] == [101]
    golden(TIME_OVER.reason)
    assert allocate(little, NODE, cluster_) == allocate(little, NODE, world(offered(*chips(12))))


def test_selectors_are_evaluated_while_there_is_time_and_what_is_left_is_not_remembered() -> None:
    seen: list[str] = []
    clocks = iter([Clock(5), Clock(100)])
    different_ = [device(f"chip-{place}", attributes={"index": place}) for place in range(20)]
    cluster_ = world(offered(*different_), chosen=selectors(seen.append), deadline=lambda _: next(clocks))
    asked = claims_of(claim(request(selector="index=19")))
    assert allocate(asked, NODE, cluster_) == TIME_OVER
    assert len(seen) <= 6
    answer = allocate(asked, NODE, cluster_)
    assert isinstance(answer, Allocation)
    assert answer.results[0].devices.results[0].device == "chip-19"


def test_no_other_node_is_asked_once_time_is_over() -> None:
    clocks: list[Clock] = []

    def begin(_namespace: str) -> Clock:
        clocks.append(Clock(0))
        return clocks[-1]

    nodes = [NodeView(f"node-{place}", {}) for place in range(50)]
    slices = [offered(device("chip", attributes={"index": 1}), nodeName=node.name, pool=node.name) for node in nodes]
    cluster_ = world(*slices, deadline=begin)
    asked = claims_of(claim(request(selector="index=1")))
    assert Scheduler(cluster_, nodes).place(asked) == TIME_OVER
    assert len(clocks) == 1


def test_the_connected_sets_of_a_node_are_given_one_after_the_other() -> None:
    cluster_ = world(offered(*chips(16)))
    four = claim(request(count=4), constraints=[same("group")])
    for first in (0, 4, 8, 12):
        taken = devices(cluster_, four)
        assert taken == [f"chip-{i:02}" for i in range(first, first + 4)]
        answer = allocate(claims_of(four), NODE, cluster_)
        assert isinstance(answer, Allocation)
        cluster_.usage.take(answer.results[0].devices.results)
    assert not refusal(cluster_, four).fatal

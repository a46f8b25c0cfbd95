"""What is explained is what the allocator does, on random small clusters."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.kube.objects.resource import CELDeviceSelector, DeviceSelector, ResourceClaim
from dra_driver.simulator.allocator import Allocation, NodeView, Refusal, Scheduler
from dra_driver.simulator.cel import clauses
from dra_driver.simulator.explain import Explanation, Question, explain, plain, text
from dra_driver.simulator.explain.minimal_conflict import ClaimPart, Trials, minimal_conflict, only, with_changes
from dra_driver.simulator.explain.values import Diagnosis, NodesAlike
from dra_driver.util.errors import DriverError
from tests.builders.allocator import (
    ANY,
    allocate,
    claim,
    counters,
    device,
    different,
    every,
    first_of,
    in_use,
    offered,
    request,
    same,
    subrequest,
)
from tests.builders.explain import question
from tests.generators.effort import examples
from tests.golden import golden

pytestmark = pytest.mark.slow

Json = dict[str, Any]
A = 'device.attributes["a.example"]'
SELECTORS = ["", f"{A}.group == 0", f"{A}.index > 1 && {A}.group == 1", f"{A}.index < 3", f"{A}.spare", "false"]
UNSAFE = [*SELECTORS, f"{A}.index > 2 && {A}.rare == 1", f"{A}.group == 0 && ({A}.rare == 1 || {A}.index == 1)"]
ONE_MORE = f"device.driver == 'a.example' && {A}.index >= 0"


@st.composite
def devices(draw: st.DrawFn, name: str) -> list[Json]:
    made = []
    counted = draw(st.booleans())
    for index in range(draw(st.integers(0, 6))):
        attributes: Json = {
            "index": index,
            "group": index // draw(st.sampled_from([2, 3])),
            "spare": draw(st.booleans()),
        }
        if draw(st.integers(0, 3)) == 0:
            attributes["rare"] = 1
        if draw(st.integers(0, 9)) == 0:
            del attributes["group"]
        taints = [{"key": "broken", "effect": "NoSchedule"}] if draw(st.integers(0, 7)) == 0 else []
        consumes = {"set": {"units": draw(st.integers(1, 3))}} if counted else None
        fields: Json = {"attributes": attributes, "taints": taints}
        if draw(st.integers(0, 4)) == 0:
            fields |= {"allowMultipleAllocations": True, "capacity": {"memory": {"value": draw(st.integers(1, 4))}}}
        made.append(device(f"{name}-d{index}", consumes, **fields))
    return made


@st.composite
def requests(draw: st.DrawFn, name: str, expressions: list[str]) -> Json:
    selector = st.sampled_from(expressions)
    fields: Json = {"tolerations": [{"operator": "Exists"}]} if draw(st.integers(0, 4)) == 0 else {}
    if draw(st.integers(0, 5)) == 0:
        fields["capacity"] = {"requests": {"memory": str(draw(st.integers(1, 3)))}}
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return every(name, draw(selector), **fields)
    if kind == 1:
        options = [
            subrequest(f"s{i}", draw(st.integers(1, 5)), draw(selector), **fields)
            for i in range(draw(st.integers(1, 2)))
        ]
        return first_of(name, *options)
    if draw(st.integers(0, 9)) == 0:
        fields["adminAccess"] = True
    return request(name, draw(st.integers(1, 5)), draw(selector), **fields)


def held(item: Json, pool: str) -> Json:
    """A claim that has the device, or half a unit of its memory."""
    if not item.get("allowMultipleAllocations"):
        return in_use(item["name"], pool=pool)
    share = "3b9c1a52-7f1e-4a64-9a3f-5d1c3f0f1a11"
    return in_use(item["name"], pool=pool, shareID=share, consumedCapacity={"memory": "500m"})


@st.composite
def questions(draw: st.DrawFn, expressions: list[str], most: int = 3) -> Question:
    names = [f"node-{i}" for i in range(draw(st.integers(1, 3)))]
    slices, used = [], []
    for name in names:
        made = draw(devices(name))
        if draw(st.integers(0, 9)) == 0:
            slices.append(offered(*made, pool=name, nodeName=name, name=name, slices=3))
            continue
        if any("consumesCounters" in item for item in made):
            sets = {"set": {"units": draw(st.integers(2, 9))}}
            slices += [
                counters(sets, name=f"0-{name}", pool=name, nodeName=name, slices=2),
                offered(*made, pool=name, nodeName=name, name=f"1-{name}", slices=2),
            ]
        elif bool(made) or bool(draw(st.booleans())):
            slices.append(offered(*made, pool=name, nodeName=name, name=name))
        used += [held(item, name) for item in made if draw(st.integers(0, 2)) == 0]
    claims = []
    for number in range(draw(st.integers(1, 2 if most > 1 else 1))):
        wished = [draw(requests(f"r{i}", expressions)) for i in range(draw(st.integers(1, most)))]
        kinds = st.sampled_from([same("group"), same("group", "r0"), different("group"), same("spare", "r0")])
        claims.append(claim(*wished, constraints=draw(st.lists(kinds, max_size=2)), name=f"c{number}"))
    kubernetes = draw(st.sampled_from(["1.36", "1.37"]))
    return question(claims, slices, nodes=names, held=used, classes=[ANY], kubernetes=kubernetes)


def by_node(found: Explanation) -> dict[str, Diagnosis]:
    return {name: group.diagnosis for group in found.nodes for name in group.nodes}


def answer(asked: Question, node: NodeView) -> Allocation | Refusal:
    return allocate(asked.claims, node, asked.world)


@settings(max_examples=examples(150))
@given(questions(UNSAFE))
def test_the_verdict_is_the_schedulers(asked: Question) -> None:
    found = explain(asked)
    used = {name: dict(asked.world.usage.in_pool(("a.example", name))) for name in by_node(found)}
    placed = Scheduler(asked.world, asked.nodes).place(asked.claims)
    if isinstance(placed, Allocation):
        assert (found.fits, found.node, found.error) == (True, placed.node, "")
        assert [item.devices for item in found.placed] == [result.devices.results for result in placed.results]
        for result in placed.results:
            asked.world.usage.release(result.devices.results)
    else:
        assert (found.fits, found.node, bool(found.error)) == (False, None, placed.fatal)
        assert found.error in ("", placed.reason)
    # Trying remedies has changed nothing.
    assert used == {name: dict(asked.world.usage.in_pool(("a.example", name))) for name in used}


@settings(max_examples=examples(80))
@given(questions(UNSAFE))
def test_each_node_fits_is_refused_or_ends_in_an_error_as_the_allocator_says(asked: Question) -> None:
    found = by_node(explain(asked))
    for node in asked.nodes:
        said = answer(asked, node)
        step = found[node.name].step if found else "error"
        if isinstance(said, Allocation):
            assert step == "fits"
        else:
            assert (step == "error") == said.fatal
            assert step != "fits"


@settings(max_examples=examples(150))
@given(questions(UNSAFE, most=1))
def test_a_device_is_free_exactly_if_a_request_for_it_alone_gets_it(asked: Question) -> None:
    for node in asked.nodes:
        for view in by_node(explain(asked)).get(node.name, Diagnosis("fits", "")).requests:
            position = int(view.claim.rpartition("c")[2])
            spec = asked.claims[position].spec.devices
            exactly = spec.requests[0].exactly
            if exactly is None or by_node(explain(asked))[node.name].constraints:
                continue
            for group in view.groups:
                for name in group.devices:
                    only = DeviceSelector(CELDeviceSelector(f"{A}.index == {name.rpartition('d')[2]}"))
                    alone = msgspec.structs.replace(
                        exactly, count=1, allocation_mode="ExactCount", selectors=(only, *exactly.selectors)
                    )
                    wish = msgspec.structs.replace(spec.requests[0], exactly=alone)
                    changed = msgspec.structs.replace(spec, requests=(wish,), constraints=())
                    one = ResourceClaim(
                        asked.claims[0].metadata, spec=msgspec.structs.replace(asked.claims[0].spec, devices=changed)
                    )
                    said = allocate([one], node, asked.world)
                    assert isinstance(said, Allocation) == (group.state == "free"), (name, group, said)


@settings(max_examples=examples(150))
@given(questions(SELECTORS, most=1))
def test_so_many_devices_fewer_fit_and_no_more(asked: Question) -> None:
    found = by_node(explain(asked))
    for node in asked.nodes:
        said = found.get(node.name)
        if said is None or said.short is None or len(asked.claims) > 1:
            continue
        spec = asked.claims[0].spec.devices
        exactly = spec.requests[0].exactly
        if exactly is None or exactly.allocation_mode == "All" or len(spec.constraints) != len(said.constraints):
            continue
        part = ClaimPart("request", 0, 0)
        enough = exactly.count - said.short
        assert not enough or Trials(asked.world).fits(with_changes(asked.claims, part, count=enough), node)
        assert not Trials(asked.world).fits(with_changes(asked.claims, part, count=enough + 1), node)


@settings(max_examples=examples(200))
@given(questions(SELECTORS, most=1))
def test_the_group_that_is_short_by_least_is_as_short_as_the_node(asked: Question) -> None:
    for node, said in by_node(explain(asked)).items():
        pools = asked.world.pools.pools(NodeView(node))
        # Devices that share counters or are shared can be had in other numbers than there are of them.
        plain_ones = not any(offer.consumes or offer.shareable for pool in pools for offer in pool.offers)
        counted = len(said.requests) == 1 and said.requests[0].wanted and "/" not in said.requests[0].request
        if not (plain_ones and counted) or [view.kind for view in said.constraints] != ["matchAttribute"]:
            continue
        assert said.short == min((share.short for share in said.constraints[0].shares), default=said.requests[0].wanted)


@settings(max_examples=examples(150))
@given(questions(UNSAFE))
def test_the_clause_named_is_the_first_that_decides(asked: Question) -> None:
    for diagnosis in by_node(explain(asked)).values():
        for view in diagnosis.requests:
            for group in view.groups:
                for name in group.devices if group.clause else ():
                    outcomes = [outcome(asked, name, clause) for clause in clauses(group.selector)]
                    wanted = False if group.state == "selector" else None
                    assert clauses(group.selector)[outcomes.index(wanted)] == group.clause
                    assert group.state == "selector" or False not in outcomes


def outcome(asked: Question, name: str, clause: str) -> bool | None:
    pools = asked.world.pools.pools(NodeView(name.rpartition("-d")[0]))
    offer = next(offer for pool in pools for offer in pool.offers if offer.device.name == name)
    try:
        return asked.world.selectors.compile(clause).matches(asked.world.selectors.view("a.example", offer.device))
    except DriverError:
        return None


@settings(max_examples=examples(50))
@given(questions(UNSAFE))
def test_the_report_names_every_node_and_ends_every_sentence(asked: Question) -> None:
    found = explain(asked)
    written, objects = text(found), plain(found)
    assert all(line.endswith((".", ":")) or line.startswith("  claim ") for line in written.splitlines() if line)
    assert sorted(name for group in objects["nodeGroups"] for name in group["nodeNames"]) == sorted(by_node(found))
    assert json.loads(json.dumps(objects))["message"] == found.verdict


@settings(max_examples=examples(80))
@given(questions(UNSAFE))
def test_what_is_said_of_a_node_does_not_depend_on_the_others(asked: Question) -> None:
    together = by_node(explain(asked))
    for node in asked.nodes:
        alone = by_node(explain(replace(asked, nodes=[node])))
        assert alone.get(node.name) == together.get(node.name)


@settings(max_examples=examples(80))
@given(questions(SELECTORS))
def test_what_is_in_the_way_is_refused_by_itself_and_not_without_one_of_its_parts(asked: Question) -> None:
    trials = Trials(asked.world)
    for node in asked.nodes:
        if not trials.refused(asked.claims, node):
            continue
        found = minimal_conflict(asked.claims, node, trials)
        parts = [*found.requests, *found.constraints]
        assert trials.refused(only(asked.claims, parts), node)
        if asked.world.release.name == "1.37":
            # Up to 1.36 more may be refused than what is in the way of it: an attempt remembers what it tried in vain.
            for part in parts:
                rest = only(asked.claims, [item for item in parts if item != part])
                assert not trials.refused(rest, node)


def test_where_devices_are_too_few_anyway_no_constraint_is_blamed() -> None:
    made = [device(f"n-d{i}", attributes={"group": i // 2}) for i in range(4)]
    asked = question(
        [claim(request(count=3), request("rest", 2), constraints=[same("group", "r")])],
        [offered(*made, pool="n", nodeName="n")], nodes="n", classes=[ANY],
    )  # fmt: skip
    found = minimal_conflict(asked.claims, asked.nodes[0], Trials(asked.world))
    assert (len(found.requests), found.constraints) == (2, ())


def test_what_would_help_is_left_open_where_it_takes_too_long_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # On 1.36, nothing is pruned beside this constraint: all ways to take six devices are tried before the seventh.
    made = [device(f"n-d{i:02}", attributes={"index": i}) for i in range(12)]
    asked = question(
        [claim(request(count=6), request("last", 7), constraints=[different("index")])],
        [offered(*made, pool="n", nodeName="n")],
        nodes="n", held=[in_use("n-d00", pool="n")], classes=[ANY], kubernetes="1.36",
    )  # fmt: skip
    helpful = explain(asked).remedies
    golden(helpful[0])

    monkeypatch.setattr("dra_driver.simulator.explain.minimal_conflict.MAX_TRIAL_STEPS", 3)
    found = explain(asked)
    assert not found.fits
    assert not found.error
    assert len(found.remedies) == 1
    golden(found.remedies[0])


def test_the_trials_of_an_explanation_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [device(f"n-d{i}") for i in range(8)]
    asked = question([claim(request(count=3))], [offered(*made, pool="n", nodeName="n")], nodes="n", classes=[ANY])
    monkeypatch.setattr("dra_driver.simulator.explain.minimal_conflict.MAX_EXPLANATION_STEPS", 7)
    trials, node = Trials(asked.world), asked.nodes[0]
    assert [trials.fits(asked.claims, node) for _ in range(4)] == [True, True, False, False]
    assert trials.incomplete


def test_nodes_that_differ_in_what_decides_are_not_put_together() -> None:
    slices = [
        offered(*(device(f"d{i}", attributes={"index": i}) for i in range(size)), pool=name, nodeName=name, name=name)
        for name, size in (("a", 1), ("b", 2), ("c", 1))
    ]
    found = explain(question([claim(request(count=3))], slices, nodes="abc", classes=[ANY]))
    assert [group.nodes for group in found.nodes] == [("a", "c"), ("b",)]
    assert isinstance(found.nodes[0], NodesAlike)


@pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])
def test_remedies_work(kubernetes: str) -> None:
    made = [device(f"n-d{i}", attributes={"index": i, "group": 0}) for i in range(3)]
    used = [in_use("n-d0", pool="n")]
    asked = question(
        [claim(request(count=3))], [offered(*made, pool="n", nodeName="n")], nodes="n", held=used, classes=[ANY],
        kubernetes=kubernetes,
    )  # fmt: skip
    golden(explain(asked).remedies)
    fewer = question(
        [claim(request(count=2))], [offered(*made, pool="n", nodeName="n")], nodes="n", held=used, classes=[ANY]
    )
    assert explain(fewer).fits

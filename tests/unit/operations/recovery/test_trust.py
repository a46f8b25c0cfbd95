"""What a node says of itself moves no other node, and no fault is older than the controller or its predecessor saw.

A compromised node writes its own labels and its own condition as it likes. All budgets are wide open here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dra_driver.kube.objects.core import NodeSpec, PartialNode
from dra_driver.neuron.health.faults import FAULTS
from dra_driver.neuron.names import SERVER_2, SERVER_4, SERVER_MODE
from dra_driver.operations.recovery.decide import MEMBER_SECONDS, Decision, decide
from dra_driver.operations.recovery.nodes import MARK, Sightings, encode_mark, view
from dra_driver.operations.recovery.policy import Policy
from tests.builders.recovery import LONG_AGO, conditions
from tests.golden import golden

NOW = LONG_AGO + 10**6
OPEN = Policy(persist_seconds=300, healthy_seconds=60, pause_seconds=0, max_at_once=100, max_percent_of_group=100)
SERVER = {SERVER_4: "00000000000000aa", SERVER_MODE: "1_2_4"}
ZEROS = "0" * 16
STALLED = ("heartbeat-stalled",)


def node(name: str, *faults: str, since: float = LONG_AGO, **changes: Any) -> PartialNode:
    """A node as the API server has it, with a condition that its own driver has written."""
    found = conditions(FAULTS[faults[0]].reason if faults else "", f"neuron3: {', '.join(faults)}", since)
    meta = {"name": name, "uid": f"uid of {name}", "labels": {"neuron.amazonaws.com/present": "true"}}
    return msgspec.convert({"metadata": meta | changes, "status": {"conditions": found}}, PartialNode)


def cordoned(nodes: Sequence[PartialNode]) -> list[PartialNode]:
    return [msgspec.structs.replace(item, spec=NodeSpec(unschedulable=True)) for item in nodes]


class Leader:
    """What one leader sees and decides."""

    def __init__(self) -> None:
        self.sightings = Sightings()

    def looks(self, nodes: Sequence[PartialNode], now: float, policy: Policy = OPEN) -> Decision:
        views = [found for item in nodes if (found := view(item, self.sightings, now)) is not None]
        self.sightings.looked({found.uid for found in views})
        return decide(views, 0.0, policy, now)


def settled(nodes: Sequence[PartialNode], later: Sequence[PartialNode] = ()) -> Decision:
    """Give the decision about nodes that have been so for long, or that are another way (``later``) from then on."""
    leader = Leader()
    leader.looks(nodes, NOW)
    leader.looks(later or nodes, NOW + 1000)
    return leader.looks(later or nodes, NOW + 1000 + MEMBER_SECONDS)


def moved(decision: Decision) -> set[str]:
    return {action.node.name for action in decision.actions}


def begun(decision: Decision) -> list[str]:
    return sorted(action.node.name for action in decision.actions if action.kind == "begin")


def of_server(count: int, **labels: str) -> list[PartialNode]:
    return [node(f"n{index}", labels=SERVER | labels) for index in range(count)]


def test_the_nodes_of_a_server_are_begun_together_where_each_says_that_it_is_linked_with_all() -> None:
    server = [*of_server(3), node("n3", *STALLED, labels=SERVER)]
    assert begun(settled(server)) == ["n0", "n1", "n2", "n3"]
    pair = {SERVER_2: "00000000000000bb", SERVER_MODE: "1_2"}
    assert begun(settled([node("n0", labels=pair), node("n1", *STALLED, labels=pair)])) == ["n0", "n1"]


@pytest.mark.parametrize("zeros", [False, True])
def test_a_sick_node_whose_labels_can_make_no_server_is_left_alone_and_this_is_told(zeros: bool) -> None:
    """The id is none, or there are four nodes of it, and the fifth was sick before it came to name it."""
    if zeros:
        decision = settled(
            [*of_server(3, **{SERVER_4: ZEROS}), node("evil", *STALLED, labels=SERVER | {SERVER_4: ZEROS})]
        )
    else:
        decision = settled(
            [*of_server(4), node("evil", *STALLED)], [*of_server(4), node("evil", *STALLED, labels=SERVER)]
        )
    assert decision.actions == ()
    assert [(wait.node.name, str(wait.reason)) for wait in decision.waits] == [("evil", "server")]
    golden(wait.text for wait in decision.waits)


@pytest.mark.parametrize("lies", [(), STALLED], ids=["evil is well", "evil is sick"])
@pytest.mark.parametrize("mode", ["1_2_4", "1"])
def test_a_node_that_takes_the_label_of_a_server_keeps_recovery_off_none_of_it(
    lies: tuple[str, ...], mode: str
) -> None:
    """The one that reports a fault is acted on by itself, also if it loses its links by that; so is the fifth node."""
    leader, evil = Leader(), node("evil", *lies, labels=SERVER)
    leader.looks([*of_server(4), node("evil", labels=SERVER)], NOW)
    leader.looks([*of_server(3), node("n3", *STALLED, labels=SERVER), evil], NOW + 1000)
    after = [*of_server(3), node("n3", *STALLED, labels=SERVER | {SERVER_MODE: mode}), evil]
    leader.looks(after, NOW + 1001)
    assert begun(leader.looks(after, NOW + 2000)) == (["evil", "n3"] if lies else ["n3"])


def marked(decision: Decision, name: str, **changes: Any) -> dict[str, str]:
    """Annotations of a node that was begun, or of one that copies and changes them."""
    (mark,) = [action.mark for action in decision.actions if action.node.name == name]
    return {MARK: encode_mark(msgspec.structs.replace(mark, **changes))}


@pytest.mark.parametrize("forges", [False, True], ids=["by its label", "by a mark that it forges"])
def test_nobody_comes_into_the_place_of_a_node_that_was_begun_alone(forges: bool) -> None:
    sick = [*of_server(3), node("n3", *STALLED, labels=SERVER)]
    decision = settled([*sick, node("evil", *STALLED, labels=SERVER)])
    alone = node("n3", *STALLED, labels=SERVER, annotations=marked(decision, "n3"))
    unit = f"{SERVER_4}={SERVER[SERVER_4]}"
    other = SERVER | {SERVER_4: "00000000000000bb"}
    forger = node("evil", *STALLED, labels=other, annotations=marked(decision, "evil", unit=unit))
    evil = cordoned([forger])[0] if forges else node("evil", *STALLED, labels=SERVER)
    assert moved(settled([*of_server(3), *cordoned([alone]), evil])) == {"evil", "n3"}


@pytest.mark.parametrize("label", [False, True], ids=["a mark", "a mark and the label"])
def test_a_forged_mark_undoes_nothing_on_the_nodes_of_a_server(label: bool) -> None:
    decision = settled([*of_server(3), node("n3", *STALLED, labels=SERVER)])
    server = [
        node(f"n{index}", *(STALLED if index == 3 else ()), labels=SERVER, annotations=marked(decision, f"n{index}"))
        for index in range(4)
    ]
    evil = node("evil", labels=SERVER if label else {}, annotations=marked(decision, "n3"))
    after = settled(cordoned([*server, evil]))
    undone = {action.node.name for action in after.actions if action.kind == "undo"}
    assert undone <= {"evil"}
    assert {action.node.name for action in after.actions if action.kind == "drain"} == (
        set() if label else {item.metadata.name for item in server}
    )


def test_the_hook_is_told_no_fault_that_a_node_has_made_up() -> None:
    (action,) = settled([node("a", *STALLED)]).actions
    lies = {"fault": "$(reboot)", "action": "reboot", "drained": 1, "requested": 1}
    forged = {MARK: encode_mark(msgspec.structs.replace(action.mark, **lies))}
    views = [view(item, Sightings(), NOW) for item in cordoned([node("a", *STALLED, annotations=forged)])]
    found = decide([item for item in views if item], 0.0, OPEN, NOW + 1000, hook=True).actions
    assert [(step.kind, step.mark.fault) for step in found] == [("request", "heartbeat-stalled")]


def test_a_node_that_takes_a_free_place_of_a_server_moves_itself_alone() -> None:
    """Of a server that lacks a node, no node says that it is linked with all four."""
    evil = node("evil", *STALLED, labels=SERVER)
    assert begun(settled([*of_server(3, **{SERVER_MODE: "1_2"}), evil])) == ["evil"]
    assert begun(settled([*of_server(2), evil])) == ["evil"]


def test_a_node_that_takes_a_free_place_while_it_is_well_moves_nobody_soon() -> None:
    """The modes of the three others still say that all four are there."""
    leader, others = Leader(), of_server(3)
    leader.looks([*others, node("evil")], NOW)
    leader.looks([*others, node("evil", labels=SERVER)], NOW + 10)
    sick = [*others, node("evil", *STALLED, labels=SERVER)]
    leader.looks(sick, NOW + 20)
    early = leader.looks(sick, NOW + 9 + MEMBER_SECONDS)
    assert early.actions == ()
    assert [(wait.node.name, str(wait.reason)) for wait in early.waits] == [("evil", "server")]
    golden(wait.text for wait in early.waits)
    assert begun(leader.looks(sick, NOW + 10 + MEMBER_SECONDS)) == ["evil", "n0", "n1", "n2"]


def test_a_mark_that_a_node_forges_makes_its_membership_no_older() -> None:
    (action,) = settled([node("evil", *STALLED)]).actions
    unit = f"{SERVER_4}={SERVER[SERVER_4]}"
    mark = {MARK: encode_mark(msgspec.structs.replace(action.mark, unit=unit, since=int(NOW) + 20))}
    leader, others = Leader(), of_server(3)
    leader.looks(others, NOW)
    leader.looks([*others, node("evil", labels=SERVER)], NOW + 10)
    forged = [*others, *cordoned([node("evil", *STALLED, labels=SERVER, annotations=mark)])]
    leader.looks(forged, NOW + 20)
    assert moved(leader.looks(forged, NOW + 9 + MEMBER_SECONDS)) == set()


def test_a_server_that_a_new_leader_finds_is_begun_once_its_nodes_were_seen_together_for_long_enough() -> None:
    leader, server = Leader(), [*of_server(3), node("n3", *STALLED, labels=SERVER), node("alone", *STALLED)]
    leader.looks(server, NOW)
    assert begun(leader.looks(server, NOW + MEMBER_SECONDS - 1)) == ["alone"]
    assert begun(leader.looks(server, NOW + MEMBER_SECONDS)) == ["alone", "n0", "n1", "n2", "n3"]


def test_labels_that_came_after_the_fault_make_no_server() -> None:
    others = of_server(3)
    sick = node("evil", *STALLED)
    joined = node("evil", *STALLED, labels=SERVER)
    assert begun(settled([*others, sick], [*others, joined])) == ["evil"]
    assert begun(settled(others, [*others, joined])) == ["evil", "n0", "n1", "n2"], "a fault as old as the labels"


def test_a_node_that_was_begun_alone_takes_nobody_with_it_by_a_label() -> None:
    others = of_server(3)
    (action,) = settled([*others, node("evil", *STALLED)]).actions
    mark = {MARK: encode_mark(action.mark)}
    decision = settled([*others, *cordoned([node("evil", *STALLED, labels=SERVER, annotations=mark)])])
    assert moved(decision) == {"evil"}


def test_nodes_that_were_begun_together_go_on_together_whatever_their_labels_say_then() -> None:
    server = [*of_server(3), node("n3", *STALLED, labels=SERVER)]
    marks = {action.node.name: {MARK: encode_mark(action.mark)} for action in settled(server).actions}
    rebooted = [node(f"n{index}", annotations=marks[f"n{index}"]) for index in range(3)]
    rebooted.append(node("n3", *STALLED, labels=SERVER, annotations=marks["n3"]))
    others = [node(f"x{index}", labels=SERVER) for index in range(4)]
    decision = settled([*cordoned(rebooted), *others])
    assert {(action.kind, action.node.name) for action in decision.actions} == {("drain", name) for name in marks}


def test_a_successor_does_not_take_a_fault_for_as_old_as_the_one_that_it_joined() -> None:
    """A pod can have a line logged, for which nothing is done, and so it stays in the condition."""
    both = [node("a", "sram-uncorrectable", "log-sram")]
    successor = Leader()
    assert begun(successor.looks(both, NOW)) == []
    assert begun(successor.looks(both, NOW + 299)) == []
    assert begun(successor.looks(both, NOW + 300)) == ["a"]


def test_a_successor_does_not_take_a_fault_for_as_old_as_one_that_has_gone_since() -> None:
    alone = [node("a", "sram-uncorrectable")]
    assert begun(Leader().looks(alone, NOW)) == []


def test_a_successor_goes_on_at_once_with_what_was_begun() -> None:
    (action,) = settled([node("a", *STALLED)]).actions
    sick = [node("a", *STALLED, "device-lost", annotations={MARK: encode_mark(action.mark)})]
    actions = Leader().looks(cordoned(sick), NOW + 5000).actions
    assert [(step.kind, step.mark.fault) for step in actions] == [("drain", "heartbeat-stalled")]


@pytest.mark.parametrize("seconds", [59, 60])
def test_a_node_is_well_for_as_long_as_it_was_seen_so(seconds: int) -> None:
    """The condition's own time is a node's word, by a node's clock."""
    (action,) = settled([node("a", *STALLED)]).actions
    well = [node("a", annotations={MARK: encode_mark(action.mark)})]
    leader = Leader()
    leader.looks(well, NOW)
    assert len(leader.looks(well, NOW + seconds).actions) == (seconds >= OPEN.healthy_seconds)

"""Decisions: single ones, and any history of a cluster."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from dra_driver.neuron.names import SERVER_2, SERVER_4
from dra_driver.operations.recovery.decide import (
    MEMBER_SECONDS,
    Action,
    Reason,
    after_hook,
    decide,
    group_limits,
    out_of_use,
    units,
)
from dra_driver.operations.recovery.nodes import Mark, NeuronNode
from dra_driver.operations.recovery.policy import Policy
from tests.golden import golden

NOW = 1_000_000.0
SICK = {"heartbeat-stalled": 0.0}
AT_ONCE = Policy(persist_seconds=0, healthy_seconds=0, pause_seconds=0)
FOUR = replace(AT_ONCE, max_at_once=4, max_percent_of_group=100)
S4, S2 = f"{SERVER_4}=s", f"{SERVER_2}=s"


def view(name: str, **changes: Any) -> NeuronNode:
    """A healthy node, or with ``faults``, a sick one."""
    verdict = "sick" if changes.get("faults") else "well"
    return replace(NeuronNode(name, f"uid of {name}", verdict=verdict, unit=name), **changes)  # type: ignore[arg-type] # one of the values


def marked(name: str, mark: Mark | None = None, **changes: Any) -> NeuronNode:
    """A node that was cordoned by us."""
    mark = mark or Mark("heartbeat-stalled", name, 1, ("cordon",))
    return view(name, **{"mark": mark, "cordoned": "cordon" in mark.did, "tainted": "taint" in mark.did} | changes)


def server(unit: str = S4, size: int = 4, sick: int = 0, **changes: Any) -> list[NeuronNode]:
    """The nodes of an UltraServer, ``s-0`` and so on, of which one is sick."""
    name = unit.partition("=")[2]
    faults = [SICK if index == sick else {} for index in range(size)]
    return [view(f"{name}-{index}", unit=unit, linked=True, faults=faults[index], **changes) for index in range(size)]


def kinds(nodes: list[NeuronNode], policy: Policy = AT_ONCE, **more: Any) -> list[tuple[str, str]]:
    """Give what is done; its texts are golden."""
    actions = decide(nodes, 0.0, policy, NOW, **more).actions
    if actions:
        golden(f"{action.node.name}: {action.text}" for action in actions)
    return [(action.kind, action.node.name) for action in actions]


def reasons(nodes: list[NeuronNode], policy: Policy = AT_ONCE, last: float = 0.0) -> list[tuple[str, Reason]]:
    """Give why nodes wait; its texts are golden."""
    waits = decide(nodes, last, policy, NOW).waits
    if waits:
        golden(f"{wait.node.name}: {wait.text}" for wait in waits)
    return [(wait.node.name, wait.reason) for wait in waits]


def test_a_fault_must_last_before_anything_is_done() -> None:
    node = view("a", faults={"heartbeat-stalled": NOW - 299})
    assert kinds([node], Policy()) == []
    assert reasons([node], Policy()) == [("a", "persist")]
    assert kinds([replace(node, faults={"heartbeat-stalled": NOW - 300})], Policy()) == [("begin", "a")]


def test_the_strongest_steps_count_then_the_strongest_remedy_then_who_has_been_sick_for_longer() -> None:
    policy = Policy(0, 0, 0, faults={"hbm-repairable": ("cordon", "drain", "request", "replace")})
    node = view("a", faults={"heartbeat-stalled": 0.0, "hbm-repairable": 5.0, "hbm-corrected-rising": 0.0})
    (action,) = decide([node], 0.0, policy, NOW).actions
    assert action.mark.fault == "hbm-repairable"
    golden(action.text)
    reload_, reboot = view("a", faults={"hbm-repairable": 0.0}), view("b", faults={"heartbeat-stalled": 9.0})
    longer = view("c", faults={"heartbeat-stalled": 3.0})
    assert kinds([reload_, reboot, longer]) == [("begin", "c")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ready": False}, None),
        ({"cordoned": True}, "cordoned"),
        ({"deleting": True}, "deleting"),
        ({"others": "Karpenter is replacing it"}, "others"),
        ({"agent": True}, "aws"),
        ({"illegible": True}, "mark"),
    ],
)
def test_nodes_that_are_not_ours_to_touch_are_left_alone(changes: dict[str, Any], reason: Reason | None) -> None:
    node = view("a", faults=SICK, **changes)
    assert kinds([node]) == []
    assert reasons([node]) == ([("a", reason)] if reason else [])
    assert out_of_use(node, AT_ONCE)


def test_nodes_that_the_agent_of_eks_reports_are_acted_on_if_the_policy_says_so() -> None:
    assert kinds([view("a", faults=SICK, agent=True)], replace(AT_ONCE, leave_to_aws=False)) == [("begin", "a")]


@pytest.mark.parametrize("other", [{"ready": False}, {"cordoned": True}, {"deleting": True}])
def test_nodes_that_are_out_of_use_for_other_reasons_count(other: dict[str, Any]) -> None:
    nodes = [view("a", faults=SICK), view("b", **other), *(view(f"n{i}") for i in range(20))]
    assert reasons(nodes) == [("a", "budget")]
    assert kinds(nodes, replace(AT_ONCE, max_at_once=2)) == [("begin", "a")]


def test_a_group_has_a_limit_of_its_own_and_one_node_is_always_allowed() -> None:
    policy = replace(AT_ONCE, max_at_once=10)
    nodes = [view(f"a{i}", group="a", faults=SICK) for i in range(3)]
    nodes += [view(f"b{i:02}", group="b", faults=SICK) for i in range(14)]
    assert kinds(nodes, policy) == [("begin", "a0"), ("begin", "b00"), ("begin", "b01")]


def test_an_ultraserver_is_begun_as_a_whole_and_counts_as_many_nodes_as_it_has() -> None:
    servers = [node for name in ("s", "t") for node in server(f"{SERVER_4}={name}", sick=2)]
    assert kinds(servers, FOUR) == [("begin", f"s-{index}") for index in range(4)]
    assert reasons(servers, FOUR) == [("t-2", "budget")]
    held = [replace(node, ready=node.name != "s-3") for node in servers]
    assert kinds(held, FOUR) == []
    assert reasons(held, FOUR) == [("s-2", "not-ready"), ("t-2", "budget")]
    assert reasons(held, replace(FOUR, max_at_once=5)) == [("s-2", "not-ready")]


@pytest.mark.parametrize("policy", [AT_ONCE, replace(FOUR, max_at_once=3), replace(FOUR, max_percent_of_group=20)])
def test_an_ultraserver_that_has_more_nodes_than_may_be_out_of_use_waits(policy: Policy) -> None:
    assert kinds(server(), policy) == []
    assert reasons(server(), policy) == [("s-0", "budget")]


def test_what_a_killed_leader_began_is_finished_as_far_as_there_is_room() -> None:
    nodes = server()
    nodes[1] = marked("s-1", Mark("heartbeat-stalled", "s-0", 1, ("cordon",), unit=S4), unit=S4, linked=True)
    assert kinds(nodes, FOUR) == [("begin", "s-0"), ("begin", "s-2"), ("begin", "s-3")]
    assert kinds([*nodes, view("x", ready=False)], FOUR) == []
    assert reasons([*nodes, view("x", ready=False)], FOUR) == [("s-1", "budget")]


def test_the_steps_follow_each_other_and_no_node_of_a_server_is_ahead() -> None:
    mark = Mark("heartbeat-stalled", "s-0", 1, ("cordon",), unit=S2)
    policy = replace(AT_ONCE, remedies={"reboot": ("cordon", "drain", "request", "replace")})
    nodes = [marked(f"s-{i}", mark, faults=SICK if i == 0 else {}) for i in range(2)]
    seen = []
    for _ in range(9):
        decision = decide(nodes, 0.0, policy, NOW, hook=True)
        if not decision.actions:
            break
        action = decision.actions[-1]  # the others are slow
        seen.append((action.kind, action.node.name))
        done = after_hook(action.mark, succeeded=True, now=NOW) if action.kind == "hook" else action.mark
        nodes = [replace(node, mark=done) if node.name == action.node.name else node for node in nodes]
    both = ("s-1", "s-0")
    assert seen == [(kind, name) for kind in ("drain", "request", "hook", "replace") for name in both]
    assert reasons(nodes, policy) == [("s-0", "remedy"), ("s-1", "remedy")]


def test_a_hook_that_fails_is_called_again_later_and_keeps_the_instance() -> None:
    mark = Mark("heartbeat-stalled", "a", 1, ("cordon",), drained=2, requested=3, action="reboot")
    policy = replace(AT_ONCE, remedies={"reboot": ("cordon", "drain", "request", "replace")})
    pauses = []
    for _ in range(12):
        mark = after_hook(mark, succeeded=False, now=NOW)
        pauses.append(mark.hook_next - NOW)
        assert kinds([marked("a", mark, faults=SICK)], policy, hook=True) == []
        later = decide([marked("a", mark, faults=SICK)], 0.0, policy, mark.hook_next, hook=True)
        assert [action.kind for action in later.actions] == ["hook"]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[1], pauses[-1]) == (30, 60, 3600)


def test_no_instance_of_an_ultraserver_is_replaced_before_the_hook_has_succeeded_for_each() -> None:
    policy = replace(AT_ONCE, remedies={"reboot": ("cordon", "drain", "request", "replace")})
    mark = Mark("heartbeat-stalled", "a", 1, ("cordon",), unit=S2, drained=2, requested=3, action="reboot")
    told = structs.replace(mark, hook_done=4)
    failed = structs.replace(mark, hook_tries=1, hook_next=int(NOW) + 60)
    nodes = [marked("a", told, faults=SICK), marked("b", failed)]
    assert kinds(nodes, policy, hook=True) == []
    nodes[1] = marked("b", told)
    assert kinds(nodes, policy, hook=True) == [("replace", "a"), ("replace", "b")]


def test_a_graver_fault_adds_its_steps_and_requests_its_remedy() -> None:
    mark = Mark("hbm-repairable", "a", 1, ("cordon",), drained=2, requested=3, action="driver-reload", hook_done=4)
    node = marked("a", mark, faults={"hbm-repairable": 0.0, "device-lost": 0.0})
    (action,) = decide([node], 0.0, AT_ONCE, NOW, hook=True).actions
    assert (action.kind, action.mark.action, action.mark.fault, action.mark.hook_done) == (
        "request", "reboot", "device-lost", 0,
    )  # fmt: skip
    tainted = replace(AT_ONCE, faults={"device-lost": ("taint", "cordon")})
    again = marked("a", structs.replace(mark, requested=0), faults={"device-lost": 0.0})
    first = decide([again], 0.0, tainted, NOW).actions
    assert [(action.kind, action.mark.did) for action in first] == [("begin", ("taint", "cordon"))]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"verdict": "unknown", "faults": {}}, "unknown"),
        ({"cordoned": False}, "handed-back"),
        ({"ready": False}, "not-ready"),
        ({"deleting": True}, "deleting"),
        ({"agent": True}, "aws"),
    ],
)
def test_a_node_that_has_begun_is_held_while_nothing_is_sure(changes: dict[str, Any], reason: Reason) -> None:
    node = replace(marked("a", faults=SICK), **changes)
    assert kinds([node]) == []
    assert reasons([node]) == [("a", reason)]


def test_what_was_done_is_undone_when_the_fault_has_been_over_for_long_enough() -> None:
    policy = replace(AT_ONCE, healthy_seconds=60)
    assert kinds([marked("a", since=NOW - 59)], policy) == []
    assert kinds([marked("a", since=NOW - 60)], policy) == [("undo", "a")]
    assert kinds([marked("a", since=NOW - 60), marked("b", faults=SICK, since=0.0)], policy) == [
        ("undo", "a"),
        ("drain", "b"),
    ]


def test_what_was_done_is_undone_when_the_policy_says_nothing_about_the_fault_any_more() -> None:
    assert kinds([marked("a", faults=SICK)], replace(AT_ONCE, remedies={"reboot": ()})) == [("undo", "a")]


def test_after_a_node_there_is_a_pause() -> None:
    policy = replace(AT_ONCE, pause_seconds=600)
    nodes = [view("a", faults=SICK)]
    assert reasons(nodes, policy, last=NOW - 599) == [("a", "pause")]
    assert kinds(nodes, policy) == [("begin", "a")]


def test_of_two_nodes_that_are_due_one_is_begun_and_the_other_waits_for_the_pause() -> None:
    policy = replace(AT_ONCE, max_at_once=2, max_percent_of_group=100, pause_seconds=600)
    nodes = [view("a", faults=SICK), view("b", faults=SICK)]
    assert kinds(nodes, policy) == [("begin", "a")]
    assert reasons(nodes, policy) == [("b", "pause")]
    assert kinds(nodes, replace(policy, pause_seconds=0)) == [("begin", "a"), ("begin", "b")]


@pytest.mark.parametrize("policy", [AT_ONCE, replace(AT_ONCE, max_at_once=10, max_percent_of_group=1)])
def test_a_drain_that_lasts_too_long_goes_on_and_keeps_no_other_node_waiting(policy: Policy) -> None:
    soon, late = (marked("a", faults=SICK, drains_since=NOW - seconds) for seconds in (3599, 3600))
    nodes = [view("b", faults=SICK), *(view(f"n{i}") for i in range(9))]
    assert kinds([soon, *nodes], policy) == [("drain", "a")]
    assert reasons([soon, *nodes], policy) == [("b", "budget")]
    assert kinds([late, *nodes], policy) == [("drain", "a"), ("begin", "b")]
    assert reasons([late, *nodes], policy) == [("a", "drain")]


@pytest.mark.parametrize("changes", [{"cordoned": False}, {"ready": False}, {"verdict": "unknown", "faults": {}}])
def test_a_node_whose_drain_does_not_go_on_counts_again(changes: dict[str, Any]) -> None:
    node = replace(marked("a", faults=SICK, drains_since=0.0), **changes)
    handed_back = not changes.get("cordoned", True)
    assert kinds([node, view("b", faults=SICK)]) == ([("begin", "b")] if handed_back else [])


def test_of_an_ultraserver_no_node_counts_any_more_if_one_of_them_is_drained_for_too_long() -> None:
    mark = Mark("heartbeat-stalled", "s-0", 1, ("cordon",), unit=S4, drained=2)
    nodes = [marked(f"s-{i}", mark, unit=S4, linked=True, faults=SICK if i == 0 else {}) for i in range(4)]
    nodes[2] = replace(nodes[2], mark=structs.replace(mark, drained=0), drains_since=NOW - 3600)
    others = server(f"{SERVER_4}=t")
    assert kinds([*nodes, *others], FOUR) == [("drain", "s-2"), *(("begin", f"t-{i}") for i in range(4))]


# Any history

FAULT_CODES = ("heartbeat-stalled", "hbm-repairable", "hbm-uncorrectable", "log-sram", "hbm-corrected-rising")
EVENTS = (
    *("sicken", "cure", "cordon", "uncordon", "lose", "regain", "delete", "unknown", "unlink", "link", "join"),
    *("wait", "wait", "wait"),
)


class World:
    """Nodes as a few actors change them, and a controller that is killed now and then."""

    def __init__(self, policy: Policy, servers: int, singles: int, chance: random.Random) -> None:
        self.policy, self.chance, self.now = policy, chance, NOW
        names = [(f"s{s}-{i}", f"{SERVER_2}=s{s}", "g") for s in range(servers) for i in range(2)]
        names += [(f"n{i}", f"n{i}", "g" if i % 2 else "h") for i in range(singles)]
        self.nodes = {name: view(name, unit=unit, linked=True, group=group, since=NOW) for name, unit, group in names}
        self.theirs: set[str] = set()
        """Nodes that somebody else has cordoned."""
        self.last = NOW
        """When a node was last begun or finished."""

    def happens(self, event: str, name: str, code: str) -> None:
        if event == "wait":
            self.now += self.chance.choice((1, 30, 400, MEMBER_SECONDS))
        node = self.nodes.get(name)
        if node is None:
            return
        changes: dict[str, dict[str, Any]] = {
            "sicken": {"verdict": "sick", "faults": {**node.faults, code: self.now}, "since": self.now},
            "cure": {"verdict": "well", "faults": {}, "since": self.now},
            "cordon": {"cordoned": True},
            "uncordon": {"cordoned": False},
            "lose": {"ready": False},
            "regain": {"ready": True},
            "unknown": {"verdict": "unknown", "faults": {}, "since": self.now},
            "unlink": {"linked": False, "joined": self.now},
            "link": {"linked": True, "joined": self.now},
            "join": {"linked": True, "joined": self.now, "server_since": self.now},
        }
        if event == "delete":
            if node.mark:
                self.last = self.now
            del self.nodes[name]
            self.theirs.discard(name)
            return
        if event == "cordon" and not node.cordoned:
            self.theirs.add(name)
        if event == "uncordon":
            self.theirs.discard(name)
        self.nodes[name] = replace(node, **changes.get(event, {}))

    def step(self, *, killed: bool = False) -> int:
        """One decision and its actions, some of which a kill may prevent; returns how many there were."""
        views = list(self.nodes.values())
        decision = decide(views, self.last, self.policy, self.now)
        self.chance.shuffle(views)
        assert decide(views, self.last, self.policy, self.now) == decision
        self.check(decision.actions)
        done = [action for action in decision.actions if not killed or self.chance.random() < 0.5]
        for action in done:
            self.apply(action)
        return len(decision.actions)

    def check(self, actions: tuple[Action, ...]) -> None:
        """The rules, from the state before the actions."""
        nodes = list(self.nodes.values())
        busy = {node.name for node in nodes if out_of_use(node, self.policy)}
        limits, begun = group_limits(nodes, self.policy), 0
        for unit in units(nodes, self.policy):
            mine = [action for action in actions if action.node.name in {node.name for node in unit}]
            if not mine:
                continue
            (kind,) = {action.kind for action in mine}  # no node of a server is ahead of the others
            if kind == "undo":
                assert all(node.verdict != "unknown" and node.ready for node in unit)
                continue
            assert all(node.ready and not node.deleting for node in unit)
            assert len(unit) == 1 or all(node.mark or node.linked for node in unit)
            if all(node.mark for node in unit):
                continue
            assert kind == "begin"
            assert len(unit) == 1 or all(self.now - node.server_since >= MEMBER_SECONDS for node in unit)
            if not any(node.mark for node in unit):
                assert {action.node.name for action in mine} == {node.name for node in unit}
                assert not any(node.cordoned for node in unit)
                assert any(
                    self.now - since >= self.policy.persist_seconds for node in unit for since in node.faults.values()
                )
                assert self.now - self.last >= self.policy.pause_seconds
                begun += 1
                assert begun == 1 or not self.policy.pause_seconds
            busy |= {node.name for node in unit}
            assert len(busy) <= self.policy.max_at_once
            for group in {node.group for node in unit}:
                assert sum(self.nodes[name].group == group for name in busy) <= limits[group]

    def apply(self, action: Action) -> None:
        node = self.nodes[action.node.name]
        if (action.kind == "begin" and node.mark is None) or action.kind == "undo":
            self.last = self.now
        did = action.mark.did
        if action.kind == "undo":
            cordoned = node.cordoned and "cordon" not in did
            self.nodes[node.name] = replace(node, mark=None, cordoned=cordoned, tainted=False)
        else:
            cordoned = node.cordoned or (action.kind == "begin" and "cordon" in did)
            self.nodes[node.name] = replace(node, mark=action.mark, cordoned=cordoned, tainted="taint" in did)


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(EVENTS),
            st.sampled_from(["s0-0", "s0-1", "s1-0", "n0", "n1", "n2", "n3"]),
            st.sampled_from(FAULT_CODES),
            st.booleans(),
        ),
        max_size=60,
    ),
    st.builds(
        Policy,
        persist_seconds=st.sampled_from([0, 300]),
        healthy_seconds=st.sampled_from([0, 60]),
        pause_seconds=st.sampled_from([0, 600]),
        max_at_once=st.integers(1, 3),
        max_percent_of_group=st.sampled_from([1, 20, 50, 100]),
        remedies=st.sampled_from([{}, {"reboot": ("taint", "cordon", "drain", "request", "replace")}]),
    ),
    st.randoms(use_true_random=False),
)
def test_in_any_history_the_budgets_hold_servers_go_together_and_all_is_undone_in_the_end(
    events: list[tuple[str, str, str, bool]], policy: Policy, chance: random.Random
) -> None:
    world = World(policy, 2, 4, chance)
    for event, name, code, killed in events:
        world.happens(event, name, code)
        world.step(killed=killed)
    for name in list(world.nodes):
        world.happens("cure", name, "")
        world.happens("regain", name, "")
    world.now += policy.healthy_seconds
    while world.step():
        pass
    assert all(node.mark is None and not node.tainted for node in world.nodes.values())
    # What somebody cordoned in addition to us cannot be told apart, and goes with ours.
    assert {name for name, node in world.nodes.items() if node.cordoned} <= world.theirs

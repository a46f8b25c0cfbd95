"""Decisions: single ones, and any history of a cluster."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.recovery.decide import (
    Action,
    Kept,
    Reason,
    advance,
    after_hook,
    decide,
    group_limits,
    out_of_use,
    read_kept,
    write_kept,
)
from dra_driver.recovery.nodes import Mark, NodeView
from dra_driver.recovery.policy import Policy

NOW = 1_000_000.0
SICK = {"heartbeat-stalled": 0.0}
AT_ONCE = Policy(persist_seconds=0, healthy_seconds=0, pause_seconds=0)


def view(name: str, **changes: Any) -> NodeView:
    """A healthy node, or with ``faults``, a sick one."""
    verdict = "sick" if changes.get("faults") else "well"
    return replace(NodeView(name, f"uid of {name}", "1", verdict=verdict, unit=name), **changes)  # type: ignore[arg-type] # one of the values


def marked(name: str, mark: Mark | None = None, **changes: Any) -> NodeView:
    """A node that was cordoned by us."""
    mark = mark or Mark("heartbeat-stalled", name, 1, ("cordon",))
    return view(name, **{"mark": mark, "cordoned": "cordon" in mark.did, "tainted": "taint" in mark.did} | changes)


def kinds(nodes: list[NodeView], policy: Policy = AT_ONCE, **more: Any) -> list[tuple[str, str]]:
    return [(action.kind, action.node.name) for action in decide(nodes, 0.0, policy, NOW, **more).actions]


def reasons(nodes: list[NodeView], policy: Policy = AT_ONCE, ended: float = 0.0) -> list[tuple[str, Reason]]:
    return [(wait.node.name, wait.reason) for wait in decide(nodes, ended, policy, NOW).waits]


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
    assert action.text.startswith("cordon, drain, request driver-reload, replace the instance (hbm-repairable on a")
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
    assert out_of_use([node], AT_ONCE)


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


def test_an_ultraserver_counts_as_one_and_is_begun_as_a_whole() -> None:
    servers = [view(f"{s}-{i}", unit=s, faults=SICK if i == 2 else {}) for s in ("s0", "s1") for i in range(4)]
    assert kinds(servers) == [("begin", f"s0-{i}") for i in range(4)]
    held = [replace(node, ready=node.name != "s0-3") for node in servers]
    assert kinds(held) == []
    assert reasons(held) == [("s0-2", "not-ready"), ("s1-2", "budget")]


def test_what_a_killed_leader_began_is_finished_whatever_the_budgets_say() -> None:
    nodes = [view(f"s-{i}", unit="s", faults=SICK if i == 0 else {}) for i in range(4)]
    nodes[1] = marked("s-1", Mark("heartbeat-stalled", "s-0", 1, ("cordon",)), unit="s")
    assert kinds([*nodes, view("x", ready=False)]) == [("begin", "s-0"), ("begin", "s-2"), ("begin", "s-3")]


def test_the_steps_follow_each_other_and_no_node_of_a_server_is_ahead() -> None:
    mark = Mark("heartbeat-stalled", "s-0", 1, ("cordon",))
    policy = replace(AT_ONCE, remedies={"reboot": ("cordon", "drain", "request", "replace")})
    nodes = [marked(f"s-{i}", mark, unit="s", faults=SICK if i == 0 else {}) for i in range(2)]
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


def test_a_graver_fault_adds_its_steps_and_requests_its_remedy() -> None:
    mark = Mark("hbm-repairable", "a", 1, ("cordon",), drained=2, requested=3, action="driver-reload", hook_done=4)
    node = marked("a", mark, faults={"hbm-repairable": 0.0, "device-lost": 0.0})
    (action,) = decide([node], 0.0, AT_ONCE, NOW, hook=True).actions
    assert (action.kind, action.mark.action, action.mark.fault, action.mark.hook_done) == (
        "request", "reboot", "device-lost", 0,
    )  # fmt: skip
    tainted = replace(AT_ONCE, faults={"device-lost": ("taint", "cordon")})
    first = decide([marked("a", replace(mark, requested=0), faults={"device-lost": 0.0})], 0.0, tainted, NOW).actions
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


def test_after_a_node_there_is_a_pause_also_by_a_clock_that_was_ahead() -> None:
    policy = replace(AT_ONCE, pause_seconds=600)
    nodes = [view("a", faults=SICK)]
    assert reasons(nodes, policy, ended=NOW - 599) == [("a", "pause")]
    assert kinds(nodes, policy) == [("begin", "a")]
    assert reasons(nodes, policy, ended=NOW + 10**9) == [("a", "pause")]


def test_a_unit_that_is_gone_has_ended() -> None:
    kept = advance(Kept(), [marked("a"), view("b")], 5.0)
    assert kept == Kept(("a",), 0)
    assert advance(kept, [marked("a"), view("b")], 6.0) == kept
    assert advance(kept, [view("b")], 7.0) == Kept((), 7)
    assert read_kept(write_kept(kept)) == kept


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(str))
def test_a_text_that_was_not_kept_by_us_is_none(text: str) -> None:
    assert isinstance(read_kept(text), Kept)


# Any history

FAULT_CODES = ("heartbeat-stalled", "hbm-repairable", "hbm-uncorrectable", "log-sram", "hbm-corrected-rising")
EVENTS = ("sicken", "cure", "cordon", "uncordon", "lose", "regain", "delete", "unknown", "wait", "wait", "wait")


class World:
    """Nodes as a few actors change them, and a controller that is killed now and then."""

    def __init__(self, policy: Policy, servers: int, singles: int, chance: random.Random) -> None:
        self.policy, self.chance, self.now = policy, chance, NOW
        names = [(f"s{s}-{i}", f"s{s}", "g") for s in range(servers) for i in range(2)]
        names += [(f"n{i}", f"n{i}", "g" if i % 2 else "h") for i in range(singles)]
        self.nodes = {name: view(name, unit=unit, group=group, since=NOW) for name, unit, group in names}
        self.theirs: set[str] = set()
        """Nodes that somebody else has cordoned."""
        self.kept = Kept()
        self.last_begin = float("-inf")

    def happens(self, event: str, name: str, code: str) -> None:
        if event == "wait":
            self.now += self.chance.choice((1, 30, 400))
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
        }
        if event == "delete":
            if node.mark and node.unit not in self.kept.under_way:
                return  # between two looks: only the memory of the process would know
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
        self.kept = advance(self.kept, views, self.now)
        decision = decide(views, self.kept.ended, self.policy, self.now)
        self.chance.shuffle(views)
        assert decide(views, self.kept.ended, self.policy, self.now) == decision
        self.check(decision.actions)
        done = [action for action in decision.actions if not killed or self.chance.random() < 0.5]
        for action in done:
            self.apply(action)
        return len(decision.actions)

    def check(self, actions: tuple[Action, ...]) -> None:
        """The rules, from the state before the actions."""
        units: dict[str, list[NodeView]] = {}
        for node in self.nodes.values():
            units.setdefault(node.unit, []).append(node)
        busy = {name for name, unit in units.items() if out_of_use(unit, self.policy)}
        limits, begun = group_limits(list(units.values()), self.policy), 0
        for name in dict.fromkeys(action.node.unit for action in actions):
            kinds = {action.kind for action in actions if action.node.unit == name}
            assert len(kinds) == 1, "no node of a server is ahead of the others"
            unit = units[name]
            if kinds == {"undo"}:
                assert all(node.verdict != "unknown" and node.ready for node in unit)
                continue
            assert all(node.ready and not node.deleting for node in unit)
            if any(node.mark for node in unit):
                assert kinds == {"begin"} or all(node.mark for node in unit)
                continue
            assert kinds == {"begin"}
            assert {action.node.name for action in actions if action.node.unit == name} == {n.name for n in unit}
            assert not any(node.cordoned for node in unit)
            assert any(
                self.now - since >= self.policy.persist_seconds for node in unit for since in node.faults.values()
            )
            assert self.now - self.last_begin >= self.policy.pause_seconds
            assert self.now - self.last_begin >= self.policy.pause_seconds
            begun += 1
            assert begun == 1 or not self.policy.pause_seconds
            busy.add(name)
            assert len(busy) <= self.policy.max_at_once
            for group in {node.group for node in unit}:
                assert sum(any(n.group == group for n in units[other]) for other in busy) <= limits[group]

    def apply(self, action: Action) -> None:
        node = self.nodes[action.node.name]
        if action.kind == "begin" and not any(other.mark for other in self.nodes.values() if other.unit == node.unit):
            self.last_begin = self.now
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
def test_in_any_history_the_budgets_hold_servers_stay_whole_and_all_is_undone_in_the_end(
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

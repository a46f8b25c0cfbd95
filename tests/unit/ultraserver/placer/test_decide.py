"""What the placer does with groups, one situation at a time."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from dra_driver.kube.objects.core import Taint, Toleration
from dra_driver.neuron.names import SERVER_2, SERVER_4
from dra_driver.ultraserver.placer import decide
from dra_driver.ultraserver.placer.decide import MAX_SERVED
from dra_driver.ultraserver.placer.groups import MAX_GATED
from dra_driver.ultraserver.placer.values import (
    GROUP_LABEL,
    MAX_DEMANDS,
    Action,
    Annotate,
    Assign,
    EmitEvent,
    Evict,
    GroupPod,
    Released,
    Rules,
    ServerNode,
    Snapshot,
    WarnNode,
)
from tests.builders.placer import World, demands, ultraservers
from tests.golden import golden


def places(actions: list[Action]) -> dict[str, str]:
    """Group to server."""
    return {action.pod.group: action.server for action in actions if isinstance(action, Assign)}


def texts(actions: list[Action]) -> dict[str, str]:
    """Group to what it is told."""
    return {action.pod.group: action.message for action in actions if isinstance(action, EmitEvent)}


def change(world: World, name: str, **fields: object) -> None:
    world.nodes = [replace(node, **fields) if node.name == name else node for node in world.nodes]  # type: ignore[arg-type] # fields of ServerNode


def plain(name: str, **fields: object) -> GroupPod:
    pod = GroupPod("a", name, uid=name, version="1", created=1.0, group="job", size="2", gated=True, owner="Job")
    return replace(pod, **fields)  # type: ignore[arg-type] # fields of GroupPod


def test_a_four_gets_the_server_that_is_wholly_free() -> None:
    world = World()
    world.intrude("s0-n2")
    world.arrive("four", 4)
    (action,) = world.decide()
    assert isinstance(action, Assign)
    assert (action.label, action.server, action.since) == (SERVER_4, "s1", world.now)
    assert action.nodes == ("s1-n0", "s1-n1", "s1-n2", "s1-n3")


def test_two_groups_of_two_namespaces_at_once_get_two_servers_and_the_third_is_told_why_it_waits() -> None:
    world = World()
    for index, namespace in enumerate("abc"):
        world.arrive(f"four{index}", 4, namespace)
        world.now += 1
    explanations = world.place()
    assert [world.server_of(f"four{index}") for index in range(3)] == ["s0", "s1", ""]
    golden(texts(explanations)["four2"])


def test_twos_fill_both_halves_of_one_server_before_they_open_another() -> None:
    world = World()
    world.intrude("s1-n3")
    for index in range(4):
        world.arrive(f"two{index}", 2)
        world.now += 1
    world.place()
    assert [world.server_of(f"two{index}") for index in range(4)] == ["s1-h0", "s0-h0", "s0-h1", ""]


def test_a_half_whose_other_half_does_not_exist_is_taken_before_a_whole_server_is_opened() -> None:
    world = World([*ultraservers(1), ServerNode("z-n0", {SERVER_2: "z"}), ServerNode("z-n1", {SERVER_2: "z"})])
    world.arrive("two", 2)
    assert places(world.decide()) == {"two": "z"}


@pytest.mark.parametrize("trouble", ["is not Ready", "is cordoned", "offers no device neuron-node"])
def test_a_server_with_a_node_in_trouble_is_not_given(trouble: str) -> None:
    world = World(ultraservers(1))
    change(world, "s0-n1", trouble=trouble)
    world.arrive("four", 4)
    assert texts(world.decide()) == {
        "four": f"it waits for an UltraServer with 4 free nodes. s0: s0-n1 {trouble}",
    }


def test_a_server_of_which_a_node_is_missing_is_not_given() -> None:
    world = World(ultraservers(1)[:3])
    world.arrive("four", 4)
    golden(texts(world.decide())["four"])


def warned(actions: list[Action]) -> list[str]:
    """What is wrong with labels of nodes."""
    return [f"{action.node.name}: {action.message}" for action in actions if isinstance(action, WarnNode)]


@pytest.mark.parametrize("size", [2, 4])
def test_a_later_node_that_takes_a_servers_labels_keeps_no_group_off_it_and_gets_no_pod(size: int) -> None:
    intruder = replace(ultraservers(1)[0], name="a-node", created=2.0)
    world = World([intruder, *ultraservers(1)])
    pod = world.arrive("job", size)
    actions = world.decide()
    (action,) = (action for action in actions if isinstance(action, Assign))
    assert action.nodes == tuple(f"s0-n{index}" for index in range(size))
    assert action.rivals == ("a-node",)
    world.apply(actions)
    assert "a-node" not in world.fitting(world.pods[pod.uid])
    golden(warned(actions))


def test_without_any_labelled_node_the_text_says_so() -> None:
    world = World([])
    world.arrive("two", 2)
    assert texts(world.decide()) == {"two": f"it waits for nodes with the label {SERVER_2}; no node has it"}


@pytest.mark.parametrize(
    ("toleration", "goes"),
    [
        (None, False),
        (Toleration("neuron", "Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration("neuron", "Equal", "yes", "NoSchedule"), True),
        (Toleration("neuron", "Equal", "no"), False),
        (Toleration("neuron", "Exists", effect="NoExecute"), False),
    ],
)
def test_taints_count_as_far_as_the_pod_does_not_tolerate_them(toleration: Toleration | None, goes: bool) -> None:
    world = World(ultraservers(1))
    change(world, "s0-n1", taints=(Taint("neuron", "yes", "NoSchedule"),))
    pod = world.arrive("four", 4)
    world.pods[pod.uid] = replace(pod, written_demands=demands(tolerations=(toleration,) if toleration else ()))
    assert bool(places(world.decide())) == goes


def test_the_pods_own_node_selector_is_kept_to() -> None:
    world = World()
    pod = world.arrive("four", 4)
    world.pods[pod.uid] = replace(pod, written_demands=demands(selector={SERVER_4: "s1"}))
    assert places(world.decide()) == {"four": "s1"}


def test_a_pod_that_lws_anti_affinity_repels_is_not_sent_there() -> None:
    """A router of the same namespace, without devices, keeps leaders off its server; one of another does not."""
    for namespace, server in (("a", "s1"), ("b", "s0")):
        world = World()
        router = GroupPod(
            namespace, "router-0", "r", group="router", size="1", of_lws=True, owner="StatefulSet", node="s0-n0"
        )
        world.pods["r"] = router
        world.idle.add("r")
        world.arrive("four", 4, "a")
        assert places(world.decide()) == {"four": server}


def test_an_incomplete_group_is_released_in_time_and_goes_elsewhere() -> None:
    world = World(rules=Rules(timeout=60, avoid=90))
    world.arrive("four", 4)
    world.place()
    world.intrude("s0-n3")
    world.bind(world.unbound()[0], "s0-n0")
    world.make_workers()
    for node in ("s0-n1", "s0-n2"):
        world.bind(world.unbound()[0], node)  # the scheduler has not come to the last one
    world.now += 59
    assert world.decide() == []
    world.now += 1
    (action,) = world.decide()
    assert isinstance(action, Evict)
    assert [pod.name for pod in action.pods] == ["four-0"]
    assert (action.released.server, action.released.until) == ("s0", world.now + 90)
    golden(action.why)
    world.apply([action])
    assert world.decide() == [], "its pods are ending; nothing is left to do"
    world.sweep_all()
    world.place()
    world.run_all()
    assert world.server_of("four") == "s1"
    assert world.complete("four")


def released_after(world: World, seconds: float) -> float:
    """Looks each five seconds, as the placer does; when a group was released, or ``seconds``."""
    start = world.now
    while world.now - start < seconds:
        actions = world.decide()
        world.apply(actions)
        if any(isinstance(action, Evict) for action in actions):
            return world.now - start
        if not actions:
            world.now += 5.0
    return seconds


def test_a_group_is_released_within_20_seconds_when_the_scheduler_finds_no_node_for_one_of_its_pods() -> None:
    world = World()
    world.arrive("four", 4)
    world.place()
    world.intrude("s0-n3")
    world.run_all()
    assert 10.0 < released_after(world, 60.0) < 20.0
    world.sweep_all()
    world.place()
    world.run_all()
    assert world.server_of("four") == "s1"
    assert world.complete("four")


def test_a_release_says_what_the_scheduler_said() -> None:
    world = World(rules=Rules(avoid=90, unschedulable=12))
    world.arrive("four", 4)
    world.place()
    world.intrude("s0-n3")
    world.run_all()
    world.place()
    world.now += 12
    (action,) = world.decide()
    assert isinstance(action, Evict)
    assert (action.released.server, action.released.until) == ("s0", world.now + 90)
    golden(action.why)


def test_a_slow_start_is_no_reason_to_release_a_group() -> None:
    """Each of these may take long, one after the other, and none of them tells that the server has no room."""
    world = World()
    leader = world.arrive("two", 2)
    world.place()
    assert released_after(world, 100.0) == 100.0, "the scheduler has not come to the leader"
    world.give_up(world.pods[leader.uid])
    assert released_after(world, 10.0) == 10.0, "the scheduler has missed once, and tries again after its back-off"
    world.bind(world.pods[leader.uid], "s0-n0")
    assert released_after(world, 100.0) == 100.0, "no worker is made"
    world.make_workers()
    assert released_after(world, 50.0) == 50.0, "the scheduler has not come to the worker"
    (worker,) = world.unbound()
    world.give_up(worker)
    assert released_after(world, 10.0) == 10.0, "it begins anew with each pod"
    world.bind(worker, "s0-n1")
    world.place()
    assert world.decide() == []


def test_a_pod_for_which_the_scheduler_makes_room_after_all_takes_the_note_back_from_whoever_has_it() -> None:
    world = World()
    world.pods |= {name: plain(name) for name in "pq"}
    world.place()
    world.bind(world.pods["q"], "s0-n0")
    world.give_up(world.pods["p"])
    world.place()
    assert [pod.stuck for pod in world.pods.values()] == [world.now, None]
    world.pods["o"] = replace(world.pods["q"], name="o", uid="o", node="", phase="Pending")  # now the first of three
    world.pods["p"] = replace(world.pods["p"], unschedulable="")
    assert world.decide() == [Annotate(world.pods["p"], world.now, None)]
    world.place()
    assert {pod.stuck for pod in world.pods.values()} == {None}


def test_while_a_node_of_its_server_is_away_a_group_has_the_whole_time() -> None:
    """A worker that comes back alone after its node was booted; the scheduler looks again some seconds later."""
    world = World(rules=Rules(timeout=300))
    world.arrive("two", 2)
    world.place()
    world.run_all()
    world.place()
    (worker,) = [pod for pod in world.members("two") if not pod.leader]
    del world.pods[worker.uid]
    world.make_workers()
    change(world, worker.node, trouble="is not Ready")
    world.give_up(world.unbound()[0])
    assert released_after(world, 200.0) == 200.0
    change(world, worker.node, trouble="")
    assert released_after(world, 10.0) == 10.0, "what the scheduler said is about the node that was away"
    world.run_all()
    world.place()
    assert world.complete("two")
    assert world.decide() == []


def test_a_released_group_comes_back_to_the_only_server_when_its_time_is_over() -> None:
    world = World(ultraservers(1), Rules(timeout=60, avoid=90))
    world.arrive("four", 4)
    world.place()
    world.now += 60
    world.place()
    world.sweep_all()
    golden(texts(world.decide())["four"])
    world.now += 90
    assert places(world.decide()) == {"four": "s0"}


def test_a_release_that_a_clock_ahead_of_time_has_recorded_keeps_no_group_off_a_server() -> None:
    world = World(ultraservers(1), Rules(avoid=90))
    world.arrive("four", 4)
    world.released = [Released("a", "four", "s0", world.now + 90)]
    assert places(world.decide()) == {}
    world.released = [Released("a", "four", "s0", world.now + 90 + 3600)]
    assert places(world.decide()) == {"four": "s0"}


@pytest.mark.parametrize(("stuck", "seconds"), [(False, 60.0), (True, 15.0)])
def test_under_a_leader_whose_clock_is_ahead_a_group_has_all_of_its_time_again(stuck: bool, seconds: float) -> None:
    world = World(rules=Rules(timeout=60, unschedulable=12))
    world.arrive("four", 4)
    world.place()
    world.intrude("s0-n3")
    if stuck:
        world.run_all()
        world.place()
    world.now = world.began = world.now + 3600
    assert released_after(world, 100.0) == seconds


def test_a_complete_group_is_noted_once_and_left_alone() -> None:
    world = World()
    world.arrive("four", 4)
    world.place()
    world.run_all()
    (note,) = world.decide()
    assert note == Annotate(note.pod, None)  # type: ignore[union-attr] # a Annotate, as the comparison shows
    world.apply([note])
    world.now += 10**6
    assert world.decide() == []


def test_a_group_that_loses_a_node_gets_the_whole_time_again() -> None:
    """A worker that comes back alone (restart policy None) and finds its node taken."""
    world = World(rules=Rules(timeout=60))
    world.arrive("two", 2)
    world.place()
    world.run_all()
    world.place()
    (worker,) = [pod for pod in world.members("two") if not pod.leader]
    del world.pods[worker.uid]
    world.strangers[worker.node] = "other/pod"
    world.make_workers()
    world.now += 1000
    (note,) = world.decide()
    assert isinstance(note, Annotate)
    assert note.since == world.now
    world.apply([note])
    world.now += 60
    (release,) = world.decide()
    assert isinstance(release, Evict)


@pytest.mark.parametrize("years", [-30, 8000])
def test_times_that_no_placer_wrote_count_as_absent(years: int) -> None:
    """A kubelet writes what it likes on the pods of its node."""
    world = World(rules=Rules(timeout=60))
    pod = world.arrive("four", 4)
    world.place()
    moment = world.now + years * 31_557_600
    world.pods[pod.uid] = replace(world.pods[pod.uid], since=moment, stuck=moment)
    (note,) = world.decide()
    assert isinstance(note, Annotate)
    assert (note.since, note.stuck) == (world.now, None)


def test_a_time_that_lies_in_the_future_does_not_keep_a_group_for_ever() -> None:
    world = World()
    pod = world.arrive("four", 4)
    world.place()
    world.pods[pod.uid] = replace(world.pods[pod.uid], since=world.now + 10**8)
    (note,) = world.decide()
    assert isinstance(note, Annotate)
    assert note.since == world.now


def test_a_new_leader_waits_until_the_pods_of_the_former_one_are_gone() -> None:
    world = World()
    world.arrive("two", 2)
    world.place()
    world.run_all()
    world.restart("two")
    (leader,) = [pod for pod in world.members("two") if pod.leader]
    del world.pods[leader.uid]  # deleted in the background: the workers are there still
    world.arrive("two", 2)
    assert texts(world.decide()) == {"two": "it waits for pods of its previous start to end: two-0-1"}
    world.sweep_all()
    assert places(world.decide()) == {"two": "s0-h0"}


def test_of_two_groups_on_one_server_the_incomplete_later_one_goes() -> None:
    """Which takes two placers that both think that they lead."""
    world = World()
    first, second = world.arrive("first", 4), world.arrive("second", 4)
    placed = Assign(first, SERVER_4, "s0", world.now)
    world.apply([placed, replace(placed, pod=second, since=world.now + 1)])
    (release,) = world.decide()
    assert isinstance(release, Evict)
    assert [pod.group for pod in release.pods] == ["second"]
    golden(release.why)


@pytest.mark.parametrize("since", [None, 1.0])
def test_a_group_of_which_pods_have_nodes_is_never_released_for_one_of_which_none_has(since: float | None) -> None:
    world = World()
    first, second = world.arrive("first", 4, "z"), world.arrive("second", 4, "a")
    placed = Assign(first, SERVER_4, "s0", world.now)
    world.apply([placed, replace(placed, pod=second)])
    world.bind(world.pods[first.uid], "s0-n0")
    world.pods[second.uid] = replace(world.pods[second.uid], since=since)
    assert not [pod.name for action in world.decide() if isinstance(action, Evict) for pod in action.pods if pod.node]


@pytest.mark.parametrize(
    ("size", "topology"),
    [
        ("5", SERVER_4),
        ("", SERVER_4),
        ("٤", SERVER_4),
        ("4", SERVER_2),
        ("4", "kubernetes.io/hostname"),
    ],
)
def test_groups_that_can_never_be_placed_are_told_why(size: str, topology: str) -> None:
    world = World()
    pod = world.arrive("g", 4)
    world.pods[pod.uid] = replace(pod, size=size, topology=topology)
    (action,) = world.decide()
    assert isinstance(action, EmitEvent)
    assert action.wrong
    golden(action.message)


def test_a_pod_with_the_gate_and_without_a_group_is_told_what_it_lacks() -> None:
    world = World()
    world.pods["p"] = GroupPod("a", "p", "p", gated=True)
    (action,) = world.decide()
    assert isinstance(action, EmitEvent)
    assert GROUP_LABEL in action.message
    assert action.wrong


def test_a_two_whose_workers_are_kept_together_by_the_whole_server_gets_a_whole_server() -> None:
    """LeaderWorkerSet pins the worker to the server, not to the half that the leader is on."""
    world = World()
    pod = world.arrive("wide", 2)
    world.pods[pod.uid] = replace(pod, topology=SERVER_4)
    world.now += 1
    world.arrive("two", 2, "b")
    assert places(world.decide()) == {"wide": "s0", "two": "s1-h0"}


def test_plain_pods_are_placed_together_when_all_are_there() -> None:
    world = World()
    world.pods["p"] = plain("p")
    assert texts(world.decide()) == {
        "job": "it waits for the other pods of its group: 1 of 2 are there with the gate",
    }
    world.pods["q"] = plain("q")
    actions = world.decide()
    assert [(action.pod.name, action.server) for action in actions if isinstance(action, Assign)] == [
        ("p", "s0-h0"),
        ("q", "s0-h0"),
    ]
    world.apply(actions[:1])  # killed in between
    assert [(action.pod.name, action.server) for action in world.decide() if isinstance(action, Assign)] == [
        ("q", "s0-h0")
    ]


def test_a_pod_more_than_the_group_has_is_told_so() -> None:
    world = World()
    for name in "pqr":
        world.pods[name] = plain(name)
    world.place()
    (action,) = [action for action in world.decide() if isinstance(action, EmitEvent)]
    golden(action.message)


@pytest.mark.parametrize("size", ["4", "5"])
def test_a_server_gets_no_more_pods_than_it_has_nodes_whatever_size_the_group_says_it_has_later(size: str) -> None:
    """Who may change the pods may change that, also once they have their server."""
    world = World()
    for name in "pq":
        world.pods[name] = plain(name)
    world.place()
    for name in "pqrstu":
        world.pods[name] = replace(world.pods.get(name, plain(name)), size=size)
    world.place()
    assert sorted(pod.name for pod in world.pods.values() if pod.placed) == ["p", "q"]


def test_a_server_stays_with_its_pods_whoever_they_say_that_they_are_of_later() -> None:
    """Who may change the pods may name any controller, such as a Node, which those of pods without the gate can be."""
    world = World()
    for name in "pq":
        world.pods[name] = plain(name)
    world.place()
    for name in "pq":
        world.pods[name] = replace(world.pods[name], owner="Node")
    world.arrive("other", 2, "b")
    world.arrive("more", 2, "b")
    world.place()
    assert [world.server_of(key) for key in ("job", "more", "other")] == ["s0-h0", "s0-h1", "s1-h0"]


def test_other_gates_come_first() -> None:
    world = World()
    pod = world.arrive("four", 4)
    world.pods[pod.uid] = replace(pod, written_demands=demands(other_gates=("quota",)))
    assert texts(world.decide()) == {"four": "it waits for other scheduling gates to be removed: quota"}


def simulate(world: World, lifetime: dict[str, float], until: float) -> float:
    """Twos arrive without end and live as long as their server says; seconds that the four has waited."""
    begun: dict[str, float] = {}
    start, number = world.now, 0
    world.arrive("four", 4, "b")
    while world.now - start < until:
        while len(world.waiting()) < 4:
            number += 1
            world.arrive(f"two{number}", 2)
        world.place()
        world.run_all()
        world.place()
        if world.server_of("four"):
            return world.now - start
        for key in {pod.group for pod in world.pods.values() if pod.placed}:
            server = world.server_of(key).partition("-")[0]
            if world.now - begun.setdefault(key, world.now) >= lifetime[server] and key != "four":
                world.end(key)
        world.sweep_all()
        world.now += 10.0
    return until


@pytest.mark.parametrize(
    "lifetime",
    [
        {"s0": 100.0, "s1": 100.0},
        {"s0": 100.0, "s1": 3000.0},
        {"s0": 10**9, "s1": 100.0},
        {"s0": 2000.0, "s1": 10**9},
    ],
    ids=["equal", "one slower", "one for ever", "the other for ever"],
)
def test_a_waiting_four_is_not_starved_by_twos_that_come_later(lifetime: dict[str, float]) -> None:
    world = World(rules=Rules(hold=300.0))
    for number in range(4):
        world.arrive(f"early{number}", 2)
    world.place()
    world.run_all()
    world.place()
    assert simulate(world, lifetime, until=40_000.0) < 40_000.0


def test_twos_are_not_starved_by_a_four_that_no_server_will_ever_have_room_for() -> None:
    world = World(ultraservers(1), Rules(hold=300.0))
    world.intrude("s0-n0")
    world.arrive("four", 4)
    world.now += 1
    world.arrive("two", 2, "b")
    golden(texts(world.place())["two"])
    waited = 0.0
    while not world.server_of("two"):
        world.now += 10.0
        waited += 10.0
        world.place()
    assert waited <= 600.0


def test_a_four_that_pods_of_its_own_namespace_repel_keeps_no_server_from_anybody() -> None:
    """They have no claims, so the server is free for everybody else."""
    nodes = tuple(ultraservers(1))
    four = GroupPod("a", "four-0", uid="1", created=1.0, group="four", size="4", topology=SERVER_4, of_lws=True)
    four = replace(four, leader=True, gated=True, owner="StatefulSet")
    other = replace(four, name="other-0", uid="2", group="other", gated=False, node=nodes[0].name, phase="Running")
    late = replace(four, namespace="b", name="late-0", uid="3", group="late", created=2.0)
    for moment in (10.0, 1_000.0, 100_000.0):
        assert places(decide.decide(Snapshot(nodes, (four, other, late)), moment)) == {"late": "s0"}


def test_an_impossible_four_keeps_no_server_from_anybody() -> None:
    world = World(ultraservers(1))
    pod = world.arrive("four", 4)
    world.pods[pod.uid] = replace(pod, written_demands=demands(selector={"zone": "moon"}))
    world.now += 1
    world.arrive("two", 2)
    assert places(world.decide()) == {"two": "s0-h0"}


def test_what_a_decision_costs_others_is_bounded_for_a_namespace_in_which_thousands_wait() -> None:
    world = World()
    for number in range(MAX_SERVED + 2):
        pod = world.arrive(f"crowd-{number:05}", 4, "crowd")
        world.pods[pod.uid] = replace(pod, written_demands=demands(selector={"zone": f"moon-{number}"}))
        world.now += 1
    world.arrive("behind", 4, "crowd")
    world.arrive("other", 4, "other")
    actions = world.decide()
    assert places(actions) == {"other": "s0"}
    told = texts(actions)
    assert told[f"crowd-{MAX_SERVED:05}"] == told["behind"]
    assert told[f"crowd-{MAX_SERVED - 1:05}"] != told["behind"]
    golden(told["behind"])


class CountedLabels(dict[str, str]):
    """Labels of a node, which count how often that of a zone is asked for."""

    asked = 0

    def get(self, key: str, default: Any = None) -> Any:
        CountedLabels.asked += key == "zone"
        return super().get(key, default)


def test_what_a_decision_costs_is_bounded_for_namespaces_in_which_thousands_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decide, "MAX_LOOKS", 2000)
    monkeypatch.setattr(CountedLabels, "asked", 0)
    nodes = [replace(node, labels=CountedLabels(node.labels)) for node in ultraservers()]
    world = World(nodes)
    for number in range(500):
        pod = world.arrive(f"crowd-{number:05}", 4, f"crowd-{number % 10}")
        world.pods[pod.uid] = replace(pod, written_demands=demands(selector={"zone": f"moon-{number}"}))
        world.now += 1
    for other in ("other", "another"):
        world.arrive(other, 4, other)
    actions = world.decide()
    assert places(actions) == {"another": "s0", "other": "s1"}
    assert 0 < CountedLabels.asked <= 2000
    told = texts(actions)
    assert "free nodes" in told["crowd-00019"]
    golden(told["crowd-00499"])
    for pod in [pod for pod in world.pods.values() if pod.namespace != "crowd-0"]:
        del world.pods[pod.uid]
    assert all("free nodes" in text for text in texts(world.decide()).values())


class CountedTaint:
    """A taint that counts how often its key is read."""

    value, effect = "", "NoSchedule"

    def __init__(self) -> None:
        self.read = 0

    @property
    def key(self) -> str:
        self.read += 1
        return "theirs"


@pytest.mark.parametrize("key", ["other", "theirs"])
@pytest.mark.parametrize("selector", [{}, {"zone": "moon"}])
def test_what_a_group_that_fits_nowhere_costs_does_not_grow_with_its_tolerations(
    selector: dict[str, str], key: str
) -> None:
    taint = CountedTaint()
    world = World([replace(node, taints=(taint,)) for node in ultraservers(25)])  # type: ignore[arg-type] # counted
    many = tuple(Toleration(key, "Equal", f"v{number}") for number in range(100))
    fit = (*many, Toleration("theirs", "Exists"))
    for number in range(8):
        asked = demands(tolerations=fit) if number < 7 else demands(tolerations=many, selector=selector)
        pod = plain(f"pod-{number}", uid=f"u{number}", size="4", written_demands=asked)
        world.pods[pod.uid] = pod
    assert "node selector or by a taint" in texts(world.decide())["job"]
    assert taint.read <= 20 * len(world.nodes)


def test_what_waiting_groups_tolerate_and_select_is_not_in_memory_of_all_of_them_at_once() -> None:
    taint = Taint("neuron", "", "NoSchedule")
    world = World([replace(node, taints=(taint,), claim="x/y") for node in ultraservers(2)])
    for number in range(100):
        many = tuple(Toleration(f"{number}-{key}") for key in range(90))
        selector = {f"{number}-{key}": "" for key in range(30)}
        asked = demands(tolerations=many, selector=selector if number % 2 else {})
        assert len(asked) <= MAX_DEMANDS
        pod = plain(f"pod-{number}", uid=f"u{number}", group=f"g{number}", size="2", written_demands=asked)
        world.pods[pod.uid] = pod
        follower = replace(pod, name=f"{pod.name}-1", uid=f"{pod.uid}-1")
        world.pods[follower.uid] = follower
    world.decide()
    tracemalloc.start()
    try:
        world.decide()
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_pods_that_demand_different_nodes_get_none() -> None:
    world = World(ultraservers(1))
    for zone in ("moon", "sun"):
        asked = demands(selector={"zone": zone})
        world.pods[zone] = plain(f"pod-{zone}", uid=zone, written_demands=asked)
        for name in ("s0-n0", "s0-n2") if zone == "moon" else ("s0-n1", "s0-n3"):
            change(world, name, labels={**next(n for n in world.nodes if n.name == name).labels, "zone": zone})
    assert not places(world.decide())


def test_groups_that_cannot_be_served_yet_take_no_turn_of_their_namespace() -> None:
    world = World()
    for number in range(MAX_SERVED):
        pod = world.arrive(f"gated-{number}", 4)
        world.pods[pod.uid] = replace(pod, written_demands=demands(other_gates=("quota",)))
        world.now += 1
    world.arrive("four", 4)
    assert places(world.decide()) == {"four": "s0"}


def test_of_thousands_of_pods_that_name_one_group_few_count() -> None:
    world = World()
    for number in range(10 * MAX_GATED):
        world.pods[f"u{number}"] = plain(f"pod-{number:04}", uid=f"u{number}", created=world.now)
    actions = world.decide()
    assert [action.pod.name for action in actions if isinstance(action, Assign)] == ["pod-0000", "pod-0001"]
    world.apply(actions)
    told = [action.pod.name for action in world.decide() if isinstance(action, EmitEvent)]
    assert told == [f"pod-{number:04}" for number in range(2, 2 + MAX_GATED)]


def test_a_pod_whose_demands_are_too_long_is_told_so_and_gets_no_server() -> None:
    world = World()
    pod = world.arrive("four", 4)
    world.pods[pod.uid] = replace(pod, written_demands=None)
    actions = world.place()
    assert not world.server_of("four")
    golden(texts(actions)["four"])


def test_a_worker_whose_demands_are_too_long_does_not_follow_its_leader() -> None:
    world = World()
    leader = world.arrive("four", 4)
    world.place()
    world.bind(leader, "s0-n0")
    world.make_workers()
    worker = next(pod for pod in world.members("four") if not pod.leader)
    world.pods[worker.uid] = replace(worker, gated=True, written_demands=None)
    actions = world.decide()
    assert not places(actions)
    assert "longer than" in texts(actions)["four"]


def test_a_pod_that_ends_on_a_node_keeps_its_place_in_the_group_until_it_is_gone() -> None:
    world = World()
    for number in range(2):
        world.pods[f"u{number}"] = plain(f"pod-{number}", uid=f"u{number}")
    world.place()
    world.run_all()
    ending = next(pod for pod in world.pods.values() if pod.name == "pod-0")
    world.pods[ending.uid] = replace(ending, ending=True)
    world.pods["u2"] = plain("pod-2", uid="u2", created=2.0)
    actions = world.decide()
    assert not places(actions)
    assert texts(actions)["job"] == "it waits for pods of its previous start to end: pod-0"
    del world.pods[ending.uid]
    assert places(world.decide()) == {"job": "s0-h0"}

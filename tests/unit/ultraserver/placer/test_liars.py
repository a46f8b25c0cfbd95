"""What nodes and kubelets say that is not true: it draws pods to the liar at most, and keeps no group from a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dra_driver.kube.objects.core import Taint
from dra_driver.neuron.names import PLACE_OF, SERVER_2, SERVER_4
from dra_driver.ultraserver.placer.decide import decide
from dra_driver.ultraserver.placer.servers import MAX_ABSENT, MAX_MEMBERSHIPS, MAX_STRAYS, memberships
from dra_driver.ultraserver.placer.values import (
    Action,
    Assign,
    EmitEvent,
    Evict,
    GroupPod,
    ServerNode,
    Snapshot,
    WarnNode,
)
from tests.builders.placer import World, demands, ultraservers
from tests.golden import golden

HONEST = [
    replace(
        node,
        created=100.0,
        labels={**node.labels, PLACE_OF[SERVER_4]: str(at % 4), PLACE_OF[SERVER_2]: str(at % 2), "zone": "1"},
    )
    for at, node in enumerate(ultraservers())
]
"""The nodes of s0 and s1, as their drivers label them."""
NAMES = [node.name for node in HONEST]
PLACES = {
    label: [f"{label}={value}" for value in values]
    for label, values in (
        (SERVER_4, ("s0", "s1")),
        (SERVER_2, ("s0-h0", "s0-h1", "s1-h0", "s1-h1")),
    )
}

servers = st.sampled_from(["", "s0", "s1", "elsewhere"])
halves = st.sampled_from(["", "s0-h0", "s0-h1", "s1-h0", "s1-h1", "elsewhere"])
seats = st.sampled_from(["", "0", "1", "2", "3", "4", "-1", "٣"])


@st.composite
def liars(draw: st.DrawFn) -> list[ServerNode]:
    """Up to three nodes that say what they like of themselves."""
    return [
        ServerNode(
            name,
            {
                SERVER_4: draw(servers),
                PLACE_OF[SERVER_4]: draw(seats),
                SERVER_2: draw(halves),
                PLACE_OF[SERVER_2]: draw(seats),
                "zone": draw(st.sampled_from(["1", "2"])),
            },
            created=draw(st.sampled_from([1.0, 100.0, 200.0])),
            trouble=draw(st.sampled_from(["", "", "is not Ready", "is cordoned", "offers no device neuron-node"])),
            taints=draw(st.sampled_from([(), (Taint("mine", "", "NoSchedule"),)])),
        )
        for name in draw(st.sampled_from([["a-liar"], ["z-liar"], ["a-liar", "s0-n9"], ["a", "b", "z"]]))
    ]


def assigned(actions: Iterable[Action]) -> dict[str, Assign]:
    """By group."""
    return {action.pod.group: action for action in actions if isinstance(action, Assign)}


def waiting(nodes: Sequence[ServerNode], size: int, used: Iterable[str]) -> World:
    """A group that waits beside nodes that others use, and selects by a label that all honest nodes have."""
    world = World(list(nodes))
    pod = world.arrive("job", size)
    world.pods[pod.uid] = replace(pod, written_demands=demands(selector={"zone": "1"}))
    world.strangers = {name: f"other/{name}" for name in used}
    return world


ZONE = {"zone": "1"}
OLDER_CLAIMS = {SERVER_4: "s0", PLACE_OF[SERVER_4]: "3"}


@given(
    liars(),
    st.sampled_from([2, 4]),
    st.sets(st.sampled_from([*NAMES, "a-liar", "z-liar"]), max_size=6),
    st.dictionaries(
        st.sampled_from([place for places in PLACES.values() for place in places]),
        st.lists(st.sampled_from([*NAMES, "a-liar", "z-liar"]), min_size=2, max_size=4).map(tuple),
    ),
)
@example([ServerNode("a-liar", OLDER_CLAIMS, created=1.0, trouble="offers no device neuron-node")], 4, set(), {})
@example([ServerNode("a-liar", OLDER_CLAIMS | ZONE, created=1.0)], 4, {"a-liar", "s1-n0"}, {})
@example([ServerNode("a-liar", OLDER_CLAIMS, created=1.0)], 4, {"s1-n0"}, {})  # another zone
@example(
    [ServerNode("a-liar", OLDER_CLAIMS | ZONE, created=1.0, taints=(Taint("mine", "", "NoSchedule"),))],
    4,
    {"s1-n0"},
    {},
)
def test_a_group_that_has_a_server_without_the_liars_has_one_beside_them(
    liars: list[ServerNode], size: int, used: set[str], record: dict[str, tuple[str, ...]]
) -> None:
    """Whatever is remembered of the servers: a liar may have stood in for a node that was away."""
    without = assigned(waiting(HONEST, size, used).decide())
    world = waiting([*liars, *HONEST], size, used)
    world.record = record
    beside = assigned(world.decide())
    assert not without or beside


@given(liars(), st.lists(st.sampled_from([2, 4]), min_size=1, max_size=4))
@example([ServerNode("a-liar", OLDER_CLAIMS, created=1.0)], [4])
def test_where_servers_were_seen_before_the_liars_came_nothing_changes(
    liars: list[ServerNode], sizes: list[int]
) -> None:
    """Whole servers that the liars make up among themselves are theirs."""
    alone, beside = World(list(HONEST)), World(list(HONEST))
    beside.decide()
    beside.nodes = [*(node for node in liars if "elsewhere" not in node.labels.values()), *HONEST]
    for world in (alone, beside):
        for number, size in enumerate(sizes):
            world.arrive(f"job{number}", size)
            world.now += 1
    one, other = assigned(alone.decide()), assigned(beside.decide())
    assert {key: action.nodes for key, action in one.items()} == {key: action.nodes for key, action in other.items()}


@pytest.mark.parametrize("place", ["", "4", "x"])
def test_a_node_that_does_not_say_which_place_it_has_gets_none_of_nodes_that_do(place: str) -> None:
    world = World([ServerNode("a-liar", {SERVER_4: "s0", PLACE_OF[SERVER_4]: place}, created=1.0), *HONEST[:4]])
    world.arrive("four", 4)
    assert assigned(world.decide())["four"].rivals == ("a-liar",)


def test_a_node_that_nobody_can_tell_from_the_servers_own_is_named_in_an_event_with_it() -> None:
    world = World([*HONEST[:4], ServerNode("a-liar", OLDER_CLAIMS, created=1.0)])
    world.arrive("four", 4)
    actions = world.decide()
    golden(
        [
            *(f"assigned to {action.nodes}, not {action.rivals}" for action in actions if isinstance(action, Assign)),
            *(f"{action.node.name}: {action.message}" for action in actions if isinstance(action, WarnNode)),
        ]
    )


def test_a_worker_with_the_gate_is_kept_from_the_same_nodes_as_its_leader() -> None:
    """The liar is older, and looks fit for everybody but those who do not tolerate its taint, or want its device."""
    for liar in (
        ServerNode("a-liar", OLDER_CLAIMS, created=1.0, taints=(Taint("mine", "", "NoSchedule"),)),
        ServerNode("a-liar", OLDER_CLAIMS, created=1.0),
    ):
        world = World([liar, *HONEST[:4]])
        world.strangers["a-liar"] = "other/a-liar"
        leader = world.arrive("four", 4)
        world.place()
        world.bind(leader, "s0-n0")
        world.make_workers()
        for pod in world.members("four"):
            if not pod.leader:
                world.pods[pod.uid] = replace(pod, gated=True)
        workers = [action for action in world.decide() if isinstance(action, Assign)]
        assert [action.rivals for action in workers] == [("a-liar",)] * 3


def test_a_node_that_claims_to_be_part_of_two_servers_makes_no_two_groups_of_them_clash() -> None:
    liar = ServerNode(
        "a-liar", {SERVER_4: "s1", PLACE_OF[SERVER_4]: "3", SERVER_2: "s0-h0", PLACE_OF[SERVER_2]: "1"}, created=1.0
    )
    world = World([liar, *HONEST])
    world.intrude("s0-n3")
    for name, size, server in (("four", 4, "s1"), ("two", 2, "s0-h0")):
        world.arrive(name, size)
        world.place()
        assert world.server_of(name) == server
        world.now += 1
    assert not world.released


def test_a_server_whose_node_is_replaced_is_the_new_nodes_once_the_old_one_is_gone_or_not_ready() -> None:
    world = World(list(HONEST[:4]))
    world.decide()
    new = replace(HONEST[3], name="new", created=500.0)
    for old in ([replace(HONEST[3], trouble="is not Ready")], []):
        world.nodes = [*HONEST[:3], *old, new]
        world.pods.clear()
        world.arrive("four", 4)
        assert assigned(world.decide())["four"].nodes == ("new", "s0-n0", "s0-n1", "s0-n2")


@pytest.mark.parametrize("said", [True, False], ids=["the nodes say their places", "no node says its place"])
def test_who_fills_the_place_of_an_absent_node_leaves_it_when_that_comes_back(said: bool) -> None:
    """Also if the absent one has a new Node, which is younger."""
    honest = HONEST[:4] if said else ultraservers(1)
    substitute = ServerNode("a-liar", OLDER_CLAIMS if said else {SERVER_4: "s0"}, created=1.0)
    world = World(list(honest))
    world.decide()
    for _ in range(3):
        world.nodes = [*honest[:3], substitute]
        world.decide()
        world.nodes = [*honest[:3], replace(honest[3], created=900.0), substitute]
        world.arrive("four", 4)
        actions = world.decide()
        assert assigned(actions)["four"].nodes == tuple(NAMES[:4])
        assert [action.node.name for action in actions if isinstance(action, WarnNode)] == ["a-liar"]
        world.pods.clear()


def test_a_pod_that_never_ends_on_a_node_that_is_not_the_servers_keeps_that_node_alone() -> None:
    liar = ServerNode("a-liar", OLDER_CLAIMS, created=1.0)
    world = World(list(HONEST[:4]))
    leader = world.arrive("four", 4)
    world.place()
    world.bind(leader, "a-liar")
    world.pods[leader.uid] = replace(world.pods[leader.uid], ending=True)
    world.arrive("next", 4, "b")
    for nodes in ([liar, *HONEST[:4]], HONEST[:4]):
        world.nodes = list(nodes)
        assert assigned(world.decide())["next"].nodes == tuple(NAMES[:4])


def test_pods_that_change_their_group_keep_their_places_so_that_nobody_has_more_on_a_server() -> None:
    """The label is its author's to change, and each pod in the placer's record takes room there."""
    world = World(list(HONEST))
    for number in range(4):
        world.pods[f"u{number}"] = GroupPod(
            "a", f"p{number}", f"u{number}", group="job", size="4", gated=True, owner="Job"
        )
    world.place()
    for number, pod in enumerate(list(world.pods.values())):
        world.pods[pod.uid] = replace(pod, group=f"group-{number}")
    for number in range(4):
        gated = GroupPod("a", f"q{number}", f"v{number}", group=f"group-{number}", size="4", gated=True, owner="Job")
        world.pods[gated.uid] = gated
    assert not assigned(world.decide())


def test_of_the_nodes_that_a_server_had_the_latest_are_remembered() -> None:
    world = World(list(HONEST[:4]))
    for number in range(MAX_ABSENT + 3):
        world.nodes = [*HONEST[:3], replace(HONEST[3], name=f"new-{number}")]
        world.decide()
    remembered = world.record[f"{SERVER_4}=s0"]
    assert remembered == (*NAMES[:3], *(f"new-{number}" for number in range(2, MAX_ABSENT + 3)))


def test_of_a_server_that_is_disputed_nothing_new_is_remembered() -> None:
    liar = ServerNode("a-liar", OLDER_CLAIMS, created=1.0)
    assert f"{SERVER_4}=s0" not in memberships(Snapshot((liar, *HONEST[:4]), ()))
    before = memberships(Snapshot(tuple(HONEST[:4]), ()))
    assert memberships(Snapshot((liar, *HONEST[:4]), (), members=before)) == before


def test_what_is_remembered_of_servers_is_bounded_and_forgotten_with_their_labels() -> None:
    nodes = [
        replace(node, name=f"{pair}-{node.name}", labels={SERVER_2: f"h{pair}"})
        for pair in range(MAX_MEMBERSHIPS + 5)
        for node in HONEST[:2]
    ]
    first = memberships(Snapshot(tuple(nodes[:8]), ()))
    assert set(first) == {f"{SERVER_2}=h{pair}" for pair in range(4)}
    both = memberships(Snapshot(tuple(nodes), (), members=first))
    assert len(both) == MAX_MEMBERSHIPS
    assert first.items() <= both.items()
    assert set(memberships(Snapshot(tuple(nodes[:2]), (), members=both))) == {f"{SERVER_2}=h0"}


@pytest.mark.parametrize(
    ("strange", "counts"),
    [
        ({"owner": "Node"}, False),  # a mirror pod
        ({"owner": "Node", "phase": "Succeeded"}, False),
        ({}, False),
        ({"owner": "StatefulSet"}, True),
        ({"owner": "Job"}, True),
    ],
)
@pytest.mark.parametrize("of_lws", [True, False])
def test_pods_of_nodes_and_of_nobody_are_of_no_group(strange: dict[str, str], counts: bool, of_lws: bool) -> None:
    world = World()
    pod = world.arrive("training", 4, "team")
    world.pods[pod.uid] = replace(pod, of_lws=of_lws, topology=SERVER_4)
    other = GroupPod("team", "other", "other", group="training", of_lws=of_lws, size="4", node="evil", phase="Running")
    world.pods["other"] = replace(other, **strange)  # type: ignore[arg-type] # fields of GroupPod
    actions = world.decide()
    assert bool(assigned(actions)) != counts
    assert any(isinstance(action, EmitEvent) and "other" in action.message for action in actions) == counts


def test_a_finished_mirror_pod_does_not_make_a_group_complete() -> None:
    world = World()
    world.arrive("four", 4)
    world.place()
    for number in range(4):
        world.pods[f"m{number}"] = GroupPod(
            "a", f"m{number}", f"m{number}", group="four", size="4", of_lws=True, owner="Node", node="evil",
            phase="Succeeded",
        )  # fmt: skip
    world.now += world.rules.timeout
    assert any(isinstance(action, Evict) for action in world.decide())


def test_pods_that_their_authors_bind_to_nodes_and_that_no_claim_stands_behind_take_no_node() -> None:
    """``spec.nodeName`` and the names of claims are the author's words: such a pod waits there for ever."""
    world = World()
    for at, node in enumerate(NAMES):
        world.pods[f"p{at}"] = GroupPod(
            "forger", f"p{at}", f"p{at}", group="mine", size="4", owner="ReplicaSet", node=node
        )
        world.idle.add(f"p{at}")
    world.arrive("four", 4)
    assert assigned(world.decide())


def leader_of(group: str, namespace: str = "evil") -> GroupPod:
    """A pod that waits for half a server."""
    return GroupPod(
        namespace, group, group, created=1000.0, group=group, size="2", topology=SERVER_2, of_lws=True, leader=True,
        gated=True, owner="StatefulSet",
    )  # fmt: skip


STRAYS: dict[str, tuple[dict[str, Any], bool]] = {
    "ends on a node that has left the server": ({"node": "liar2", "phase": "Running", "ending": True}, False),
    "runs on a server that there is no more": ({"node": "liar2", "phase": "Running", "size": "1"}, True),
}


def fill(kind: str) -> tuple[list[ServerNode], list[GroupPod]]:
    """As many pods with a record and without a place as nodes and tenant can make together, and their last server."""
    changes, renamed = STRAYS[kind]
    pods: list[GroupPod] = []
    for turn in range(MAX_STRAYS + 10):
        nodes = [ServerNode(f"liar{at}", {SERVER_2: f"h{turn if renamed else 0}"}) for at in range(2)]
        pod = leader_of(f"g{turn:03}")
        for action in decide(Snapshot(tuple(nodes), (*pods, pod)), 2000.0):
            if isinstance(action, Assign):
                at = (action.label, action.server)
                pods.append(replace(pod, gated=False, placed=at, servers=(action.place,), **changes))
    return nodes, pods


@pytest.mark.parametrize("kind", STRAYS)
def test_records_of_pods_that_have_no_place_are_bounded_and_whose_they_are_alone_waits(kind: str) -> None:
    """The placer's record is one ConfigMap of a megabyte at most."""
    nodes, pods = fill(kind)
    assert len(pods) in (MAX_STRAYS, MAX_STRAYS + 1), "the last one has its place for as long as the server is there"
    nodes = [replace(node, labels={SERVER_2: "new"}) for node in nodes]
    mine, other = leader_of("mine"), leader_of("other", "honest")
    actions = decide(Snapshot(tuple(nodes), (*pods, mine, other)), 2000.0)
    assert list(assigned(actions)) == ["other"]
    golden(action.message for action in actions if isinstance(action, EmitEvent) and action.pod == mine)
    left = pods[len(pods) - MAX_STRAYS + 1 :]
    assert list(assigned(decide(Snapshot(tuple(nodes), (*left, mine)), 2000.0))) == ["mine"]


def test_no_pod_follows_to_a_server_while_its_namespace_has_too_many_records_without_a_place() -> None:
    """Else a pod that leaves its group makes room for the next one, which leaves it too."""
    nodes, pods = fill("ends on a node that has left the server")
    first = replace(leader_of("g"), placed=(SERVER_2, "h0"), servers=(f"{SERVER_2}=h0",), gated=False, since=1990.0)
    second = replace(leader_of("g"), name="g-1", uid="g-1", leader=False)
    few = decide(Snapshot(tuple(nodes), (*pods[1:], first, second)), 2000.0)
    many = decide(Snapshot(tuple(nodes), (*pods, first, second)), 2000.0)
    assert [list(assigned(actions)) for actions in (few, many)] == [["g"], []]

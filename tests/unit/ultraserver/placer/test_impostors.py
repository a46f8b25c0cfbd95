"""Nodes that say that they are a workload's and are not: who is left out, who never is, and what is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dra_driver.ultraserver.placer.impostors import (
    MAX_LEFT_OUT,
    MAX_RELEASED,
    RELEASED_SECONDS,
    SUSPICION_SECONDS,
    released_marks,
)
from dra_driver.ultraserver.placer.values import Describe, LeaveOut, Rules, Snapshot, WarnNode
from dra_driver.ultraserver.placer.workload import Extent, ServerRecord, Workload
from tests.builders.placer import World, typed_ultraservers
from tests.golden import golden

LIAR = "s1-n1"


def allocated(servers: int = 2) -> tuple[World, Workload]:
    """A workload that has a half of the first server."""
    cluster = World(typed_ultraservers(servers), Rules())
    workload = cluster.ask("train", 1, 2)
    cluster.place()
    return cluster, workload


def look(cluster: World, seconds: float = 0.0) -> None:
    cluster.now += seconds
    cluster.mark_all()
    cluster.apply(cluster.decide())


def is_left_out(cluster: World) -> dict[str, str]:
    return {node: who for item in cluster.objects.values() for node, who in item.left_out.items()}


@pytest.mark.parametrize("liar", [LIAR, "s0-n2", "s0-n3"])
@pytest.mark.parametrize("mark", [True, False], ids=["all its devices", "one of them"])
def test_a_node_that_lies_is_named_within_ten_seconds_and_left_out_until_it_is_cleared(liar: str, mark: bool) -> None:
    cluster, workload = allocated()
    cluster.lies[liar] = {workload.uid}
    if mark:
        cluster.mute.add(liar)
        cluster.nodes = [replace(one, mark=workload.uid) if one.name == liar else one for one in cluster.nodes]
    for _ in range(3):
        look(cluster)
        assert not is_left_out(cluster), "it may be that the driver has heard of it first"
    look(cluster, 5.0)
    assert is_left_out(cluster) == {liar: f"a/train {workload.uid}"}
    actions = cluster.decide()
    cluster.apply(actions)
    verdict = cluster.verdicts[workload.uid]
    assert verdict.state == "Allocated"
    told = [action for action in actions if isinstance(action, WarnNode)]
    assert [(action.node.name, action.reason) for action in told] == [(liar, "UltraServerMark")]
    server = f"ultraserver-{liar.partition('-')[0]}"
    command = f"kubectl annotate neuronultraservers -n neuron-dra-driver {server} neuron.aws.com/left-out-"
    assert command in verdict.impostors
    assert command in told[0].message
    if liar == LIAR and mark:
        golden(f"{verdict.impostors}\n{told[0].message}")

    del cluster.lies[liar]
    cluster.mute.clear()
    look(cluster, 1000.0)
    assert is_left_out(cluster), "it lied"
    for number in range(8):
        cluster.ask(f"other-{number}", 1, 1)
    cluster.place()
    assert liar not in {name for item in cluster.objects.values() for one in item.grants for name in one.nodes}
    described = {one.description.name: one.description for one in cluster.decide() if isinstance(one, Describe)}
    assert described[server].trouble == f"{liar} is left out: it said that it was of workload a/train, which it was not"
    cluster.objects[server] = replace(cluster.objects[server], left_out={})
    cluster.place()
    assert liar in {name for item in cluster.objects.values() for one in item.grants for name in one.nodes}
    assert not cluster.verdicts[workload.uid].impostors


def test_groups_get_no_node_that_lies_either() -> None:
    cluster, workload = allocated()
    cluster.lies[LIAR] = {workload.uid}
    for _ in range(3):
        look(cluster, 5.0)
    cluster.arrive("group", 4)
    cluster.place()
    assert not cluster.server_of("group")


def test_who_lies_again_once_it_is_cleared_is_left_out_again_and_all_whom_it_names_are_told() -> None:
    cluster, workload = allocated()
    other = cluster.ask("other", 1, 2)
    cluster.place()
    cluster.lies[LIAR] = {workload.uid, other.uid}
    for _ in range(3):
        look(cluster, 5.0)
    assert len(is_left_out(cluster)) == 1
    assert cluster.verdicts[workload.uid].impostors
    assert cluster.verdicts[other.uid].impostors
    cluster.objects["ultraserver-s1"] = replace(cluster.objects["ultraserver-s1"], left_out={})
    for _ in range(3):
        look(cluster, 5.0)
    assert is_left_out(cluster).keys() == {LIAR}


def test_a_node_of_no_server_is_named_all_the_same() -> None:
    """It is nobody's to have anyway; nor is one that only says that it is part of one."""
    cluster, workload = allocated()
    cluster.lies["elsewhere"] = {workload.uid}
    seen = replace(cluster.snapshot(), published={"elsewhere": frozenset({workload.uid})})
    assert seen.suspected == {}
    cluster.nodes.append(replace(cluster.nodes[0], name="rival", labels={**cluster.nodes[0].labels}))
    cluster.lies["rival"] = {workload.uid}
    for _ in range(3):
        look(cluster, 5.0)
    assert is_left_out(cluster).keys() == {"rival"}
    item = cluster.objects["ultraserver-s0"]
    cluster.objects["ultraserver-s0"] = replace(
        item, left_out={f"n{number}": "a/b u" for number in range(MAX_LEFT_OUT)}
    )
    look(cluster, 5.0)
    told = [
        action.message for action in cluster.decide() if isinstance(action, WarnNode) and action.node.name == "rival"
    ]
    golden("\n".join([cluster.verdicts[workload.uid].impostors, *told]))


# Who is honest


def slow(cluster: World, name: str, until: float) -> None:
    """The driver of a node does not run until then; nobody is accused meanwhile, however often is looked."""
    cluster.mute.add(name)
    while cluster.now < until:
        look(cluster, 2.0)
        assert not is_left_out(cluster)


@pytest.mark.parametrize("seconds", [1.0, 30.0, RELEASED_SECONDS * 3])
@pytest.mark.parametrize("ends", ["deleted", "ending", "made anew"])
def test_a_driver_that_is_late_to_drop_the_mark_of_a_workload_that_has_ended_is_honest(
    ends: str, seconds: float
) -> None:
    cluster, workload = allocated()
    if ends == "ending":
        cluster.workloads["a/train"] = replace(workload, ending=True)
    else:
        del cluster.workloads["a/train"]
        if ends == "made anew":
            cluster.ask("train", 1, 2)
    slow(cluster, "s0-n0", cluster.now + seconds)
    cluster.mute.clear()
    cluster.place()
    assert not is_left_out(cluster)


@pytest.mark.parametrize("seconds", [1.0, 30.0, RELEASED_SECONDS * 3])
@pytest.mark.parametrize("kill", [1, 2, 9], ids=["killed after one write", "after two", "not killed"])
def test_a_driver_that_is_late_to_drop_what_was_taken_back_is_honest_and_told_of(seconds: float, kill: int) -> None:
    """The workload lives on, on other nodes: nobody but the object knows that the node was once reserved for it."""
    cluster = World(typed_ultraservers(3), Rules())
    workload = cluster.ask("train", 2, 4)
    cluster.apply(cluster.decide())
    cluster.mark_all()
    cluster.mute |= {f"s0-n{number}" for number in range(4)}
    cluster.intrude("s1-n0")
    cluster.nodes[8] = replace(cluster.nodes[8], mark="")
    cluster.apply(cluster.decide(), most=kill)
    cluster.nodes = [replace(one, trouble="is not Ready") if one.name == "s0-n1" else one for one in cluster.nodes]
    start = cluster.now
    slow(cluster, "s0-n0", start + seconds)
    uids = {one.mark for one in cluster.nodes if one.name == "s0-n0"}
    given = {name for item in cluster.objects.values() for one in item.grants for name in one.nodes}
    if uids == {workload.uid} and "s0-n0" not in given and seconds > 60:
        assert "s0-n0 was reserved for this workload, and still says so" in cluster.verdicts[workload.uid].impostors
    cluster.mute.clear()
    look(cluster)
    look(cluster, RELEASED_SECONDS + 1.0)
    look(cluster)
    assert not any(item.released for item in cluster.objects.values())
    cluster.lies["s0-n0"] = {workload.uid}
    for _ in range(3):
        look(cluster, SUSPICION_SECONDS + 1.0)
    is_given = "s0-n0" in {name for item in cluster.objects.values() for one in item.grants for name in one.nodes}
    assert is_given or is_left_out(cluster), "what is over excuses nothing any more"


def test_a_node_whose_object_somebody_has_deleted_is_honest() -> None:
    """The leader may not remember it; then the workload's status, and claims, give the node back."""
    cluster, workload = allocated()
    for remembered in (True, False):
        grants = cluster.objects.pop("ultraserver-s0").grants
        if remembered:
            cluster.lost["ultraserver-s0"] = tuple(replace(one, uid=workload.uid) for one in grants)
        else:
            cluster.lost.clear()
            cluster.strangers["s0-n0"] = "a/s0-n0"
            cluster.strangers["s0-n1"] = "a/s0-n1"
        slow(cluster, "s0-n0", cluster.now + 20.0)
        assert len(cluster.objects["ultraserver-s0"].grants) == 1


def test_a_node_whose_allocation_somebody_has_edited_away_is_honest() -> None:
    cluster, workload = allocated()
    cluster.objects["ultraserver-s0"] = replace(cluster.objects["ultraserver-s0"], grants=(), version="edited")
    cluster.nodes = [replace(one, trouble="is not Ready") if one.name == "s0-n1" else one for one in cluster.nodes]
    slow(cluster, "s0-n0", cluster.now + 2 * RELEASED_SECONDS)
    golden(cluster.verdicts[workload.uid].impostors)


def test_a_leader_that_sees_the_objects_late_accuses_nobody_before_it_has_read_them_again() -> None:
    """That is the writer's part: here, what is decided is bounded by time alone, and by what is said by half."""
    cluster, workload = allocated()
    item = cluster.objects["ultraserver-s0"]
    cluster.objects["ultraserver-s0"] = replace(item, grants=())
    cluster.workloads["a/train"] = replace(workload, recorded=())
    assert not any(isinstance(action, LeaveOut) for action in cluster.decide()), "the UIDs are there"
    cluster.objects["ultraserver-s0"] = replace(item, grants=(), uids={})
    for seconds in (0.0, SUSPICION_SECONDS - 0.1):
        cluster.now += seconds
        assert not any(isinstance(action, LeaveOut) for action in cluster.decide())


def test_what_one_object_excuses_has_bounds_and_what_is_there_comes_first() -> None:
    living = [Workload("a", f"w{number}", f"u{number}", 0.0, Extent("", 1, 1)) for number in range(2 * MAX_RELEASED)]
    before = {"n": {workload.uid: float(number) for number, workload in enumerate(living)}}
    seen = Snapshot(
        (),
        (),
        workloads=tuple(living),
        records={"s": ServerRecord(released=before)},
        published={"n": frozenset({"u3", "gone"})},
    )
    kept = released_marks(seen, "s", {"n": {"gone": 9.0}}, 100.0)
    assert len(kept["n"]) == MAX_RELEASED
    assert "u3" in kept["n"]
    latest = {f"u{number}" for number in range(MAX_RELEASED + 2, 2 * MAX_RELEASED)}
    assert latest <= kept["n"].keys()
    assert released_marks(replace(seen, workloads=()), "s", {}, 100.0) == {}
    assert released_marks(seen, "s", {}, 2 * RELEASED_SECONDS).keys() == {"n"}, "the mark is still there"

"""Which servers workloads get, in which order, and what they are told. Histories are in test_workload_histories."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.neuron.names import PLACE_OF, SERVER_2, SERVER_4, SERVER_MODE, object_name
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL
from dra_driver.ultraserver.placer import allot
from dra_driver.ultraserver.placer.decide import decide
from dra_driver.ultraserver.placer.servers import Ledger
from dra_driver.ultraserver.placer.truth import WriteAllocations, WriteUids, writes
from dra_driver.ultraserver.placer.values import Accept, Assign, Evict, Rules, ServerNode
from dra_driver.ultraserver.placer.workload import Extent, Grant, ServerRecord, Workload
from tests.builders.placer import World, typed_ultraservers
from tests.golden import golden

KIND = "trn2u.48xlarge"


def world(servers: int = 2, **rules: int) -> World:
    return World(typed_ultraservers(servers), Rules(**rules))


def nodes_of(cluster: World, workload: Workload) -> list[tuple[str, ...]]:
    grants = [grant for item in cluster.objects.values() for grant in item.record.grants if grant.uid == workload.uid]
    return [grant.nodes for grant in sorted(grants, key=lambda grant: grant.index)]


def told(cluster: World, workload: Workload) -> str:
    message = cluster.verdicts[workload.uid].message
    golden(message)
    return message


def test_a_workload_gets_whole_servers_and_is_told_which() -> None:
    cluster = world(3)
    workload = cluster.ask("train", 2, 4)
    cluster.place()
    assert nodes_of(cluster, workload) == [
        ("s0-n0", "s0-n1", "s0-n2", "s0-n3"),
        ("s1-n0", "s1-n1", "s1-n2", "s1-n3"),
    ]
    assert cluster.verdicts[workload.uid].state == "Allocated"
    assert cluster.verdicts[workload.uid].servers == ("ultraserver-s0", "ultraserver-s1")
    assert cluster.objects["ultraserver-s0"].uids == {"a/train": workload.uid}


def test_small_workloads_share_halves_and_servers_so_that_whole_ones_stay_free() -> None:
    cluster = world(2)
    names = {}
    for name, nodes in (("one", 1), ("pair", 2), ("another", 1)):
        workload = cluster.ask(name, 1, nodes)
        cluster.place()
        names[name] = nodes_of(cluster, workload)
    assert names == {"one": [("s0-n0",)], "pair": [("s0-n2", "s0-n3")], "another": [("s0-n1",)]}


def test_the_nodes_of_a_grant_are_in_the_order_of_the_kernel_s_ids() -> None:
    cluster = world(1)
    places = {"s0-n0": "3", "s0-n1": "0", "s0-n2": "2", "s0-n3": "1"}
    label = "neuron.amazonaws.com/ultraserver-node-id-4"
    cluster.nodes = [replace(node, labels={**node.labels, label: places[node.name]}) for node in cluster.nodes]
    workload = cluster.ask("train", 1, 4)
    cluster.place()
    assert nodes_of(cluster, workload) == [("s0-n1", "s0-n3", "s0-n2", "s0-n0")]


def test_all_servers_of_a_workload_name_the_node_of_rank_0() -> None:
    cluster = world(2)
    workload = cluster.ask("train", 2, 4)
    cluster.apply(cluster.decide())
    grants = [grant for item in cluster.objects.values() for grant in item.grants]
    assert [(grant.bound, grant.index, grant.leader) for grant in grants] == [(False, 0, "s0-n0"), (False, 1, "s0-n0")]
    # As a former release wrote it, of each server its own.
    item = cluster.objects["ultraserver-s1"]
    cluster.objects["ultraserver-s1"] = replace(item, grants=(replace(item.grants[0], leader="s1-n0"),))
    cluster.place()
    assert cluster.verdicts[workload.uid].state == "Allocated"
    assert {grant.leader for item in cluster.objects.values() for grant in item.grants} == {"s0-n0"}


def relabelled(cluster: World, labels: dict[str, dict[str, str | None]]) -> None:
    """What a later election says of nodes; None: nothing."""
    cluster.nodes = [
        replace(
            node,
            labels={
                key: value
                for key, value in (node.labels | labels.get(node.name, {})).items()  # type: ignore[operator] # None goes
                if value is not None
            },
        )
        for node in cluster.nodes
    ]


@pytest.mark.parametrize(
    ("size", "case", "is_other"),
    [
        (4, "pairs", True),
        (2, "pairs", False),
        (1, "pairs", False),
        (4, "order", True),
        (2, "order", True),
        (1, "order", False),
        (4, "pair", False),
        (2, "pair", True),
    ],
)
def test_a_later_election_that_differs_is_told_and_takes_nothing(size: int, case: str, is_other: bool) -> None:
    four, two = (PLACE_OF[SERVER_4], PLACE_OF[SERVER_2])
    cases: dict[str, dict[str, dict[str, str | None]]] = {
        "pairs": {f"s0-n{number}": {SERVER_4: None, four: None} for number in range(4)},
        "order": {f"s0-n{number}": {four: str(3 - number), two: str(1 - number % 2)} for number in range(4)},
        "pair": {"s0-n1": {SERVER_2: "s0-h1"}, "s0-n3": {SERVER_2: "s0-h0"}},
    }
    cluster = world(1)
    workload = cluster.ask("train", 1, size)
    cluster.place()
    before = nodes_of(cluster, workload)
    first = dict(cluster.objects)
    relabelled(cluster, cases[case])
    cluster.place()
    assert nodes_of(cluster, workload) == before
    verdict = cluster.verdicts[workload.uid]
    assert verdict.state == "Allocated"
    assert ("a later election" in verdict.trouble) == is_other
    if is_other:
        golden(verdict.trouble)
    cluster.now += 1
    for nodes in (1, 2, 4):
        other = cluster.ask(f"other-{nodes}", 1, nodes)
        cluster.place()
        assert {name for names in nodes_of(cluster, other) for name in names}.isdisjoint(before[0])
    del cluster.workloads["a/other-1"], cluster.workloads["a/other-2"], cluster.workloads["a/other-4"]
    relabelled(cluster, {node.name: dict(node.labels) for node in world(1).nodes})
    cluster.place()
    assert not cluster.verdicts[workload.uid].trouble
    assert cluster.objects["ultraserver-s0"].grants == first["ultraserver-s0"].grants


def test_behind_the_first_that_waits_others_get_only_what_it_cannot_use() -> None:
    cluster = world(2)
    cluster.intrude("s0-n0")
    cluster.nodes[4] = replace(cluster.nodes[4], trouble="is not Ready")  # s1-n0
    first = cluster.ask("first", 1, 4)
    cluster.now += 1
    pair, single = cluster.ask("pair", 1, 2), cluster.ask("single", 1, 1)
    cluster.place()
    assert nodes_of(cluster, first) == []
    assert told(cluster, first) == (
        "it wants 1 UltraServers with 4 free nodes that work together; 0 of 1 are free. "
        "ultraserver-s0: s0-n0 is used by claim other/s0-n0"
    )
    assert nodes_of(cluster, pair) == [("s1-n2", "s1-n3")]
    assert nodes_of(cluster, single) == [("s1-n1",)]


def test_who_wants_more_servers_than_there_are_keeps_nothing_from_anybody() -> None:
    cluster = world(2)
    cluster.nodes[4] = replace(cluster.nodes[4], trouble="is cordoned")
    many, none = cluster.ask("many", 2, 4), cluster.ask("none", 1, 4, kind="trn3u.48xlarge")
    cluster.now += 1
    later = cluster.ask("later", 1, 4)
    cluster.place()
    assert told(cluster, many) == (
        "it wants 2 UltraServers with 4 nodes that work together; 1 of the 2 of trn2u.48xlarge are that. "
        "ultraserver-s1: s1-n0 is cordoned"
    )
    assert told(cluster, none) == "there is no UltraServer of trn3u.48xlarge"
    assert nodes_of(cluster, later) == [("s0-n0", "s0-n1", "s0-n2", "s0-n3")]


def test_a_reservation_that_cannot_be_completed_is_taken_back() -> None:
    cluster = world(2)
    workload = cluster.ask("train", 2, 4)
    cluster.apply(cluster.decide(), most=2)
    assert [grant.bound for grant in cluster.objects["ultraserver-s0"].grants] == [False]
    cluster.intrude("s1-n0")
    cluster.now += 1
    cluster.ask("later", 1, 1)
    cluster.place()
    assert nodes_of(cluster, workload) == []
    assert replace(cluster.objects["ultraserver-s0"].record, released={}) == ServerRecord()


def test_an_older_group_and_a_workload_take_turns_by_their_age() -> None:
    cluster = world(1)
    cluster.arrive("group", 4)
    cluster.now += 1
    workload = cluster.ask("train", 1, 1)
    cluster.place()
    assert cluster.server_of("group") == "s0"
    assert "s0-n0 is used by group a/group-0" in told(cluster, workload)
    cluster.end("group")
    cluster.sweep_all()
    cluster.now += 1
    cluster.arrive("late", 2)
    cluster.place()
    assert nodes_of(cluster, workload) == [("s0-n0",)]
    assert cluster.server_of("late") == "s0-h1"


def test_a_waiting_workload_keeps_servers_from_later_groups() -> None:
    cluster = world(1)
    cluster.intrude("s0-n0")
    cluster.ask("train", 1, 4)
    cluster.now += 1
    cluster.arrive("late", 2)
    (event,) = (action for action in cluster.place() if getattr(action, "pod", None))
    assert "s0-n2 is kept for workload a/train, which has waited longer" in event.message  # type: ignore[union-attr]


def test_a_workload_made_anew_waits_until_its_predecessor_is_released() -> None:
    cluster = world(2)
    former = cluster.ask("train", 1, 4)
    cluster.place()
    cluster.strangers["s0-n1"] = "a/train-pod"
    workload = cluster.ask("train", 1, 4)
    assert workload.uid != former.uid
    cluster.place()
    assert told(cluster, workload) == "the servers of a former workload of this name are being released"
    assert nodes_of(cluster, former) == [("s0-n0", "s0-n1", "s0-n2", "s0-n3")]
    cluster.strangers.clear()
    cluster.place()
    assert nodes_of(cluster, workload) == [("s0-n0", "s0-n1", "s0-n2", "s0-n3")]


def test_a_namespace_has_no_more_servers_than_the_administrator_allows() -> None:
    cluster = world(3, most_of_namespace=2)
    one, two, other = cluster.ask("one", 1, 1), cluster.ask("two", 2, 1), cluster.ask("other", 2, 1, namespace="b")
    cluster.place()
    assert len(nodes_of(cluster, one)) == 1
    assert told(cluster, two) == (
        "it wants 2 UltraServers, and its namespace has 1 more; the administrator allows 2 (maxServersPerNamespace)"
    )
    assert len(nodes_of(cluster, other)) == 2


def test_a_node_that_breaks_is_told_and_nothing_moves() -> None:
    cluster = world(2)
    workload = cluster.ask("train", 1, 2)
    cluster.place()
    cluster.nodes[0] = replace(cluster.nodes[0], trouble="is not Ready")
    cluster.nodes = [node for node in cluster.nodes if node.name != "s0-n1"]
    cluster.place()
    verdict = cluster.verdicts[workload.uid]
    assert (verdict.state, verdict.trouble) == ("Allocated", "s0-n0 is not Ready; s0-n1 is not there")
    assert nodes_of(cluster, workload) == [("s0-n0", "s0-n1")]


@pytest.mark.parametrize(
    ("modes", "size", "fits"), [("1_2", 4, False), ("1_2", 2, True), ("1", 2, False), ("", 4, True)]
)
def test_nodes_work_together_in_the_sizes_that_they_offer(modes: str, size: int, fits: bool) -> None:
    cluster = world(1)
    cluster.nodes = [replace(node, labels={**node.labels, SERVER_MODE: modes}) for node in cluster.nodes]
    workload = cluster.ask("train", 1, size)
    cluster.place()
    assert bool(nodes_of(cluster, workload)) == fits
    if not fits:
        assert f"its nodes do not offer to work together by {size}" in told(cluster, workload)


def test_types_whose_hosts_report_sets_of_two_have_servers_of_two() -> None:
    cluster = world(1)
    cluster.nodes = [
        replace(node, labels={key: value for key, value in node.labels.items() if key != SERVER_4})
        for node in cluster.nodes[:2]
    ]
    pair, four = cluster.ask("pair", 1, 2), cluster.ask("four", 1, 4)
    cluster.place()
    assert nodes_of(cluster, pair) == [("s0-n0", "s0-n1")]
    assert cluster.nodes[0].labels[SERVER_2] == "s0-h0"
    assert "ultraserver-s0-h0" in cluster.objects
    assert cluster.verdicts[four.uid].reason == "NotEnoughServers"


@pytest.mark.parametrize("label", ["UPPER", "a/b", "-a", "a" * 64, "a.b", "ä", "a\n"])
def test_an_id_that_no_host_reports_makes_no_object(label: str) -> None:
    assert object_name(label) == ""


def test_the_uid_is_written_before_the_allocation_and_goes_after_it() -> None:
    grant = Grant("a/train", "u1", ("n0",), 0, bound=False, at=1.0)
    empty, full = ServerRecord(), ServerRecord({"a/train": "u1"}, (grant,))
    assert list(writes(empty, (grant,))) == [WriteUids({"a/train": "u1"}), WriteAllocations((grant,))]
    assert list(writes(full, ())) == [WriteAllocations(()), WriteUids({})]
    other = Grant("a/other", "u2", ("n1",), 0, bound=False, at=1.0)
    assert list(writes(full, (other,))) == [
        WriteUids({"a/train": "u1", "a/other": "u2"}),
        WriteAllocations((other,)),
        WriteUids({"a/other": "u2"}),
    ]
    assert list(writes(full, (grant,))) == []


def test_verdicts_on_what_cannot_be_and_on_what_is_over() -> None:
    cluster = world(1)
    told(cluster, cluster_after(cluster, cluster.ask("three", 1, 3)))
    cluster.intrude("s0-n0")
    crowd = [cluster.ask(f"w{number:03}", 1, 4) for number in range(allot.MAX_SERVED + 1)]
    told(cluster, cluster_after(cluster, crowd[-1]))
    grant = Grant("a/over", "u", ("s0-n0",), 0, bound=True, at=0.0)
    over = Workload("a", "over", "u", 0.0, Extent("trn2u.48xlarge", 1, 1), ending=True)
    for grants in ({"ultraserver-s0": (grant,)}, {}):
        allotter = allot.Allotter({SERVER_4: (), SERVER_2: ()}, Ledger({}, {}), dict(grants), 0.0)
        verdict = allotter.settle(over)
        assert verdict is not None
        golden(verdict.message)


def cluster_after(cluster: World, workload: Workload) -> Workload:
    """The workload, after all decisions that there are to make."""
    cluster.place()
    return workload


# What nobody is to be left with


def test_a_late_write_of_a_former_leader_gives_no_second_server() -> None:
    cluster = world(2)
    cluster.place()
    workload = cluster.ask("train", 1, 4)
    late, versions = cluster.decide(), {name: cluster.version(name) for name in ("ultraserver-s0", "ultraserver-s1")}
    cluster.intrude("s0-n0")
    cluster.place()
    assert nodes_of(cluster, workload) == [("s1-n0", "s1-n1", "s1-n2", "s1-n3")]
    cluster.strangers.clear()
    cluster.apply(late, seen=versions)
    assert len(nodes_of(cluster, workload)) == 2
    cluster.place()
    assert nodes_of(cluster, workload) == [("s1-n0", "s1-n1", "s1-n2", "s1-n3")]


def test_two_leaders_that_bind_different_servers_leave_one_of_them() -> None:
    cluster = world(2)
    workload = cluster.ask("train", 1, 4)
    cluster.place()
    grant = cluster.objects["ultraserver-s0"].grants[0]
    other = replace(grant, nodes=tuple(f"s1-n{index}" for index in range(4)))
    cluster.objects["ultraserver-s1"] = replace(cluster.objects["ultraserver-s0"], grants=(other,), version="x")
    cluster.strangers["s1-n2"] = "a/train-pod"
    cluster.place()
    assert nodes_of(cluster, workload) == [other.nodes]


def test_what_is_bound_by_half_is_completed_elsewhere_or_given_back() -> None:
    cluster = world(3)
    workload = cluster.ask("train", 2, 4)
    cluster.apply(cluster.decide())
    cluster.mark_all()
    cluster.apply(cluster.decide(), most=1)
    assert [grant.bound for item in cluster.objects.values() for grant in item.grants] == [True, False]
    cluster.intrude("s1-n0")
    cluster.place()
    assert len(nodes_of(cluster, workload)) == 2
    assert replace(cluster.objects["ultraserver-s1"].record, released={}) == ServerRecord()
    # And where no other is free.
    cluster = world(2)
    workload = cluster.ask("train", 2, 4)
    cluster.apply(cluster.decide())
    cluster.mark_all()
    cluster.apply(cluster.decide(), most=1)
    cluster.intrude("s1-n0")
    cluster.place()
    assert nodes_of(cluster, workload) == []
    assert cluster.verdicts[workload.uid].reason == "ServersInUse"


def test_nobody_overtakes_with_a_reservation_that_lacks_a_server() -> None:
    cluster = world(3)
    cluster.intrude("s0-n0")
    cluster.intrude("s1-n0")
    late = cluster.ask("late", 2, 4)
    cluster.strangers.clear()
    cluster.intrude("s2-n0")
    cluster.apply(cluster.decide())
    first = cluster.ask("first", 2, 4)
    cluster.workloads[first.reference] = replace(first, created=0.0)
    cluster.strangers = {"s1-n0": "other/pod"}
    cluster.place()
    assert len(nodes_of(cluster, cluster.workloads[first.reference])) == 2
    assert nodes_of(cluster, late) == []


def test_a_server_that_cannot_be_written_is_given_to_nobody() -> None:
    cluster = world(3)
    cluster.closed = {"ultraserver-s0"}
    workload = cluster.ask("train", 2, 4)
    cluster.place()
    assert [nodes[0] for nodes in nodes_of(cluster, workload)] == ["s1-n0", "s2-n0"]
    other = cluster.ask("other", 1, 4)
    cluster.place()
    assert told(cluster, other).endswith(
        "0 of 3 are free. ultraserver-s0: its object is being deleted, or cannot be written; "
        "ultraserver-s1: s1-n0 is used by workload a/train; ultraserver-s2: s2-n0 is used by workload a/train"
    )


@pytest.mark.parametrize("breaks", [True, False])
def test_what_cannot_be_used_or_written_any_more_is_not_bound(breaks: bool) -> None:
    cluster = world(3)
    workload = cluster.ask("train", 2, 4)
    cluster.apply(cluster.decide())
    cluster.mark_all()
    if breaks:
        cluster.nodes[4] = replace(cluster.nodes[4], trouble="is not Ready")
    else:
        cluster.closed = {"ultraserver-s1"}
    cluster.apply(cluster.decide())
    cluster.mark_all()
    cluster.apply(cluster.decide())
    names = [name for name, item in cluster.objects.items() if any(grant.bound for grant in item.grants)]
    assert names == ["ultraserver-s0", "ultraserver-s2"]
    assert cluster.verdicts[workload.uid].state != "PartiallyAllocated"


def test_nothing_is_bound_before_all_devices_of_its_nodes_say_whose_they_are() -> None:
    cluster = world(2)
    workload = cluster.ask("train", 2, 4)
    cluster.apply(cluster.decide())
    others = {node.name for node in cluster.nodes} - {"s1-n2"}
    for node in others:
        cluster.mark(node)
    for mark in ("", "of a former workload of the name"):
        cluster.nodes = [replace(node, mark=mark) if node.name == "s1-n2" else node for node in cluster.nodes]
        for _ in range(3):
            cluster.apply(cluster.decide())
        assert not any(grant.bound for item in cluster.objects.values() for grant in item.grants)
    verdict = cluster.verdicts[workload.uid]
    assert (verdict.state, verdict.servers) == ("Allocating", ())
    golden(verdict.message)
    assert not cluster.templates
    cluster.intrude("s1-n2")  # by a scheduler that saw no mark
    cluster.mark("s1-n2")
    cluster.place()
    assert not cluster.objects["ultraserver-s0"].grants
    assert cluster.verdicts[workload.uid].reason == "ServersInUse"
    cluster.strangers.clear()
    cluster.place()
    assert cluster.verdicts[workload.uid].state == "Allocated"
    assert list(cluster.templates) == ["a/train"]
    cluster.nodes[3] = replace(cluster.nodes[3], mark="")
    cluster.apply(cluster.decide())
    assert "s0-n3 do not keep claims of others" in cluster.verdicts[workload.uid].trouble


def wait_for_marks(cluster: World, seconds: float) -> None:
    """Time passes, and drivers that are not mute mark their nodes."""
    for _ in range(4):
        cluster.now += seconds / 4
        cluster.mark_all()
        cluster.apply(cluster.decide())


def test_a_node_that_never_says_whose_it_is_is_replaced_where_another_is_free() -> None:
    cluster = world(3)
    cluster.mute = {"s0-n1", "s1-n2"}
    workload = cluster.ask("train", 1, 4)
    wait_for_marks(cluster, 100.0)
    verdict = cluster.verdicts[workload.uid]
    assert (verdict.state, nodes_of(cluster, workload)[0][0]) == ("Allocating", "s0-n0")
    assert "the drivers of s0-n1 do not" in verdict.message
    assert "it gets another server if one is free" in verdict.message
    wait_for_marks(cluster, 60.0)
    assert nodes_of(cluster, workload)[0][0] == "s1-n0"
    assert cluster.silent.keys() == {"s0-n1"}
    # The next one need not wait for it as well.
    later = cluster.ask("later", 1, 2)
    wait_for_marks(cluster, 8.0)
    many = cluster.ask("many", 1, 4)
    cluster.intrude("s2-n0")
    cluster.apply(cluster.decide())
    golden(cluster.verdicts[many.uid].message)
    del cluster.workloads["a/many"]
    cluster.strangers.clear()
    assert nodes_of(cluster, later) == [("s0-n2", "s0-n3")]
    wait_for_marks(cluster, 160.0)
    assert nodes_of(cluster, workload)[0][0] == "s2-n0"
    cluster.place()
    assert cluster.verdicts[workload.uid].state == "Allocated"
    grants = [grant for item in cluster.objects.values() for grant in item.record.grants]
    assert [grant.index for grant in grants if grant.uid == workload.uid] == [0]


def test_a_node_that_never_says_whose_it_is_is_kept_where_no_other_is_free_and_that_is_told() -> None:
    cluster = world(2)
    cluster.mute = {"s0-n1"}
    cluster.intrude("s1-n3")
    workload = cluster.ask("train", 1, 4)
    wait_for_marks(cluster, 200.0)
    golden(cluster.verdicts[workload.uid].message)
    assert nodes_of(cluster, workload)[0][0] == "s0-n0"
    writes_before = {name: item.version for name, item in cluster.objects.items()}
    wait_for_marks(cluster, 1000.0)
    assert {name: item.version for name, item in cluster.objects.items()} == writes_before, "nothing comes and goes"
    cluster.strangers.clear()
    cluster.place()
    assert nodes_of(cluster, workload)[0][0] == "s1-n0"
    assert cluster.verdicts[workload.uid].state == "Allocated"


def test_only_the_server_with_the_node_that_says_nothing_is_replaced_in_its_place() -> None:
    cluster = world(4)
    cluster.mute = {"s0-n1"}
    workload = cluster.ask("train", 3, 4)
    wait_for_marks(cluster, 200.0)
    cluster.place()
    assert [nodes[0] for nodes in nodes_of(cluster, workload)] == ["s3-n0", "s1-n0", "s2-n0"]
    assert {grant.leader for item in cluster.objects.values() for grant in item.grants} == {"s3-n0"}


def test_who_waits_longer_gets_what_is_free_before_who_has_a_node_that_says_nothing() -> None:
    cluster = world(2)
    cluster.mute = {"s0-n1"}
    cluster.intrude("s0-n0")
    cluster.intrude("s1-n0")
    first = cluster.ask("first", 2, 2)
    cluster.now += 1.0
    second = cluster.ask("second", 1, 1)
    third = cluster.ask("third", 1, 4)
    wait_for_marks(cluster, 4.0)
    assert nodes_of(cluster, first) == [("s0-n2", "s0-n3"), ("s1-n2", "s1-n3")]
    assert nodes_of(cluster, second) == [("s0-n1",)]
    assert nodes_of(cluster, third) == []
    cluster.strangers.pop("s1-n0")
    wait_for_marks(cluster, 140.0)
    assert nodes_of(cluster, second) in ([("s1-n0",)], [("s1-n1",)])


def test_no_node_is_late_before_its_leader_has_looked_for_so_long() -> None:
    cluster = world(2)
    cluster.mute = {"s0-n1"}
    workload = cluster.ask("train", 1, 4)
    cluster.apply(cluster.decide())
    cluster.now += 500.0
    cluster.began = cluster.now
    wait_for_marks(cluster, 100.0)
    assert nodes_of(cluster, workload)[0][0] == "s0-n0"
    wait_for_marks(cluster, 30.0)
    assert nodes_of(cluster, workload)[0][0] == "s1-n0"


def test_a_stranger_s_claim_keeps_no_server_of_a_workload_that_is_gone() -> None:
    cluster = world(2)
    workload = cluster.ask("train", 1, 2)
    cluster.place()
    cluster.strangers = {"s0-n0": "other/pod"}
    del cluster.workloads["a/train"]
    cluster.place()
    assert nodes_of(cluster, workload) == []
    again = cluster.ask("train", 1, 2)
    cluster.place()
    cluster.strangers["s0-n2"] = "a/pod"
    del cluster.workloads["a/train"]
    cluster.place()
    assert nodes_of(cluster, again) == [("s0-n2", "s0-n3")]


def test_a_claim_of_another_namespace_that_came_between_is_told() -> None:
    """Its scheduler saw no mark, and the operator no claim; or the operator's switch was off."""
    cluster = world(1)
    workload = cluster.ask("train", 1, 4)
    cluster.place()
    for claim, is_trouble in (("other/late", True), ("a/train-pod", False)):
        cluster.strangers["s0-n1"] = claim
        cluster.place()
        assert cluster.verdicts[workload.uid].state == "Allocated"
        assert (claim in cluster.verdicts[workload.uid].trouble) is is_trouble
        golden(cluster.verdicts[workload.uid].trouble or "nothing")


def test_what_is_in_the_way_of_a_template_is_told() -> None:
    cluster = world(1)
    workload = cluster.ask("train", 1, 4)
    foreign = cluster.make_template("train")
    cluster.place()
    golden(str(cluster.verdicts[workload.uid].obstacle))
    del cluster.templates["a/train"]
    cluster.place()
    own = cluster.templates["a/train"]
    meta = msgspec.structs.replace(own.metadata, deletion_timestamp="2026-11-30T00:00:00Z")
    cluster.templates["a/train"] = msgspec.structs.replace(own, metadata=meta)
    cluster.place()
    golden(str(cluster.verdicts[workload.uid].obstacle))
    assert foreign.digest != own.digest


def test_a_server_all_of_whose_nodes_are_gone_is_still_its_workload_s() -> None:
    cluster = world(1)
    workload = cluster.ask("train", 1, 4)
    cluster.place()
    before, cluster.nodes = nodes_of(cluster, workload), []
    cluster.place()
    assert nodes_of(cluster, workload) == before
    assert cluster.verdicts[workload.uid].trouble.startswith("s0-n0 is not there; ")


def test_three_nodes_are_no_server_of_four() -> None:
    cluster = world(1)
    cluster.nodes.pop()
    workload = cluster.ask("train", 1, 4)
    cluster.place()
    assert told(cluster, workload).endswith("ultraserver-s0: 3 of 4 nodes are there")


# What a tenant writes into its own workload


@pytest.mark.parametrize("server", ["ultraserver-s1", "ultraserver-s2"])
def test_servers_that_a_status_names_are_not_given_for_that(server: str) -> None:
    cluster = world(3)
    cluster.strangers |= {f"s1-n{index}": "b/pod" for index in range(4)}
    cluster.ask("first", 3, 4, namespace="b")
    cluster.now += 1
    liar = replace(cluster.ask("liar", 1, 4), recorded=(server,))
    cluster.workloads[liar.reference] = liar
    cluster.place()
    assert nodes_of(cluster, liar) == []


def test_pods_that_need_no_workload_make_no_more_of_one_than_it_may_have() -> None:
    cluster = world(3, most_of_namespace=2)
    cluster.strangers |= {f"s{server}-n{index}": "a/pod" for server in range(3) for index in range(4)}
    servers = tuple(f"ultraserver-s{index}" for index in (2, 1, 0))
    for name, count in (("one", 1), ("many", 3)):
        workload = replace(cluster.ask(name, count, 4), recorded=servers)
        cluster.workloads[workload.reference] = workload
        cluster.now += 1
    cluster.place()
    assert len(nodes_of(cluster, cluster.workloads["a/one"])) == 1
    assert len(nodes_of(cluster, cluster.workloads["a/many"])) == 1


def test_a_tenant_s_annotation_does_not_make_its_reservation_come_and_go() -> None:
    cluster = world(2)
    workload = replace(cluster.ask("train", 1, 4), accepted=Extent(KIND, 2, 4))
    cluster.workloads[workload.reference] = workload
    for _ in range(2):
        cluster.apply([action for action in cluster.decide() if not isinstance(action, Accept)])
        cluster.mark_all()
    assert [grant.bound for item in cluster.objects.values() for grant in item.grants] == [True]


def test_a_server_whose_object_is_gone_is_given_back_to_whose_claims_hold_it() -> None:
    cluster = world(2)
    workload = cluster.ask("train", 1, 2)
    cluster.place()
    before = nodes_of(cluster, workload)
    cluster.objects.clear()
    cluster.ask("other", 2, 1, namespace="b")
    cluster.strangers |= {"s0-n0": "a/train-pod-0", "s0-n1": "a/train-pod-1"}
    cluster.nodes[0] = replace(cluster.nodes[0], trouble="is not Ready")
    cluster.place()
    assert nodes_of(cluster, workload) == before
    assert len(nodes_of(cluster, cluster.workloads["b/other"])) == 2


def test_what_the_leader_remembers_of_an_object_is_said_again() -> None:
    cluster = world(1)
    workload = cluster.ask("train", 1, 1)
    cluster.place()
    item = cluster.objects.pop("ultraserver-s0")
    cluster.lost["ultraserver-s0"] = item.record.grants
    other = cluster.ask("other", 1, 1, namespace="b")
    cluster.workloads[other.reference] = replace(other, created=0.0)
    cluster.place()
    assert nodes_of(cluster, workload) == [("s0-n0",)]
    assert not cluster.lost


def test_what_the_leader_remembers_of_a_workload_that_is_gone_is_forgotten() -> None:
    cluster = world(1)
    cluster.ask("train", 1, 4)
    cluster.place()
    cluster.lost["ultraserver-s0"] = cluster.objects.pop("ultraserver-s0").record.grants
    cluster.workloads.clear()
    cluster.place()
    assert not cluster.lost


@pytest.mark.parametrize("accepted", [Extent(KIND, 3, 1), Extent(KIND, 1, 4), Extent("trn3u.48xlarge", 1, 1)])
def test_what_a_tenant_says_was_accepted_gives_nothing(accepted: Extent) -> None:
    cluster = world(3)
    workload = replace(cluster.ask("train", 1, 1), accepted=accepted)
    cluster.workloads[workload.reference] = workload
    cluster.place()
    assert nodes_of(cluster, workload) == [("s0-n0",)]
    assert cluster.workloads[workload.reference].accepted == workload.extent
    # Nor afterwards, when another one waits.
    cluster.strangers = {"s0-n0": "a/pod"}
    cluster.workloads[workload.reference] = replace(cluster.workloads[workload.reference], accepted=accepted)
    cluster.place()
    assert nodes_of(cluster, workload) == [("s0-n0",)]


@pytest.mark.parametrize("nodes", [3, 0, -1, 2**63])
def test_a_size_that_no_server_has_is_no_trouble_of_others(nodes: int) -> None:
    cluster = world(1)
    odd = replace(cluster.ask("odd", 1, nodes), recorded=("ultraserver-s0",))
    cluster.workloads[odd.reference] = odd
    cluster.strangers["s0-n0"] = "a/pod"
    workload = cluster.ask("train", 1, 1)
    cluster.place()
    assert cluster.verdicts[odd.uid].state == "Failed"
    assert len(nodes_of(cluster, workload)) == 1


# What people edit, and what nodes say


def test_a_status_that_gives_a_node_twice_gives_it_once() -> None:
    cluster = world(2)
    one, other = cluster.ask("one", 1, 1), cluster.ask("other", 1, 1)
    cluster.place()
    cluster.workloads["a/late"] = Workload("a", "late", "u9", 0.0, Extent(KIND, 1, 1))
    item = cluster.objects["ultraserver-s0"]
    item = replace(item, uids={**item.uids, "a/late": "u9"})
    first, second = item.grants
    pending = Grant("a/late", "u9", first.nodes, 0, bound=False, at=0.0)
    edited = (pending, first, replace(second, nodes=first.nodes), replace(first, index=7), replace(second, nodes=()))
    cluster.objects["ultraserver-s0"] = replace(item, grants=edited, version="edited")
    cluster.place()
    assert nodes_of(cluster, one) == [first.nodes]
    assert nodes_of(cluster, other) == [("s0-n2",)]


def test_a_node_that_says_that_it_is_of_another_type_keeps_only_itself_away() -> None:
    cluster = world(1)
    labels = {**cluster.nodes[3].labels, INSTANCE_TYPE_LABEL: "aaa.large"}
    cluster.nodes[3] = replace(cluster.nodes[3], labels=labels)
    pair, whole = cluster.ask("pair", 1, 2), cluster.ask("whole", 1, 4)
    single, odd = cluster.ask("single", 1, 1), cluster.ask("odd", 1, 1, kind="aaa.large")
    cluster.place()
    assert nodes_of(cluster, pair) == [("s0-n0", "s0-n1")]
    assert nodes_of(cluster, single) == [("s0-n2",)]
    assert told(cluster, whole).endswith("s0-n3 is of type aaa.large, unlike most of its server")
    assert told(cluster, odd) == "there is no UltraServer of aaa.large"


def test_nodes_without_a_type_are_no_server_of_a_workload_without_one() -> None:
    cluster = World(typed_ultraservers(1, kind=""))
    workload = cluster.ask("train", 1, 1, kind="")
    cluster.place()
    assert nodes_of(cluster, workload) == []


def test_a_reservation_of_a_workload_that_is_gone_goes_though_strangers_are_there() -> None:
    cluster = world(1)
    workload = cluster.ask("train", 1, 4)
    cluster.apply(cluster.decide())
    del cluster.workloads[workload.reference]
    cluster.intrude("s0-n0")
    cluster.place()
    assert cluster.objects["ultraserver-s0"].record == ServerRecord()


@pytest.mark.parametrize("recorded", [True, False])
def test_an_allocation_without_a_uid_is_of_whom_says_that_it_has_it(recorded: bool) -> None:
    cluster = world(1)
    cluster.ask("train", 1, 4)
    cluster.place()
    cluster.objects["ultraserver-s0"] = replace(cluster.objects["ultraserver-s0"], uids={})
    cluster.strangers["s0-n0"] = "a/pod"
    if not recorded:
        cluster.workloads.clear()
        cluster.ask("train", 1, 4)
    cluster.place()
    uids = {"a/train": cluster.workloads["a/train"].uid}
    assert (cluster.objects["ultraserver-s0"].uids == uids) == recorded
    assert [grant.bound for grant in cluster.objects["ultraserver-s0"].grants] == [True]


def test_a_workload_has_one_set_of_nodes_of_a_server() -> None:
    cluster = world(1)
    workload = cluster.ask("train", 1, 1)
    cluster.place()
    item = cluster.objects["ultraserver-s0"]
    edited = (*item.grants, replace(item.grants[0], nodes=("s0-n1",), index=1))
    cluster.objects["ultraserver-s0"] = replace(item, grants=edited, version="edited")
    cluster.place()
    assert nodes_of(cluster, workload) == [("s0-n0",)]


# Groups on the servers of workloads


def late_group(cluster: World, key: str, size: int) -> None:
    """A group that a former leader assigned, whose write comes after a workload was given the server."""
    cluster.arrive(key, size)
    actions = cluster.decide()
    del cluster.pods[next(uid for uid, pod in cluster.pods.items() if pod.group == key)]
    cluster.ask("train", 1, 1)
    cluster.place()
    (assignment,) = (action for action in actions if isinstance(action, Assign))
    cluster.pods[assignment.pod.uid] = assignment.pod
    cluster.apply([assignment])


def test_a_group_that_was_assigned_late_leaves_the_server_of_a_workload() -> None:
    cluster = world(1)
    late_group(cluster, "group", 4)
    (eviction,) = (action for action in cluster.decide() if isinstance(action, Evict))
    assert eviction.why == "workload a/train has nodes of its server"
    golden(eviction.why)
    assert eviction.released.server == "s0"


def test_a_group_that_runs_on_the_node_of_a_workload_stays_and_the_workload_is_told() -> None:
    cluster = world(1)
    late_group(cluster, "group", 2)
    cluster.run_all()
    assert cluster.complete("group")
    cluster.place()
    assert cluster.complete("group")
    assert cluster.verdicts[cluster.workloads["a/train"].uid].trouble == "s0-n0 is used by group a/group-0"


# Many


def test_workloads_that_wait_cost_little_however_many_they_are() -> None:
    cluster = world(100)
    cluster.ask("all", 100, 1)
    cluster.place()
    few, many = (looks_for(cluster, count) for count in (100, 2000))
    assert many < few + 1000


def looks_for(cluster: World, waiting: int) -> int:
    """How often a label of a node is read in one decision with so many workloads of as many namespaces."""
    for index in range(waiting):
        cluster.ask(f"w{index}", 2**63 - 1 if index % 2 else 100, 4, namespace=f"n{index}")
    return looks_of(cluster)


def looks_of(cluster: World) -> int:
    """How often a label of a node is read in one decision."""
    count = 0

    class Labels(dict[str, str]):
        def get(self, *args: str) -> str:  # type: ignore[override] # always with a default here
            nonlocal count
            count += 1
            return super().get(*args)

    seen = cluster.snapshot()
    decide(replace(seen, nodes=tuple(replace(node, labels=Labels(node.labels)) for node in seen.nodes)), cluster.now)
    return count


def test_servers_that_many_statuses_name_cost_nothing() -> None:
    costs = []
    for servers in (0, 100):
        cluster = world(100)
        cluster.strangers["s0-n0"] = "a/pod"
        for index in range(100):
            workload = cluster.ask(f"w{index}", 100, 4)
            names = tuple(f"ultraserver-s{server}" for server in range(servers)) * 2
            cluster.workloads[workload.reference] = replace(workload, recorded=names)
        costs.append(looks_of(cluster))
    nothing, everything = costs
    assert everything < nothing + 100 * 40, "only the server where the namespace has a claim is looked at"


def test_workloads_that_come_at_once_cost_no_more_where_there_are_more_servers() -> None:
    costs = []
    for servers in (50, 200):
        cluster = world(servers)
        alone = looks_of(cluster)
        for index in range(100):
            cluster.ask(f"w{index}", 1, 2, namespace=f"n{index}")
        costs.append(looks_of(cluster) - alone)
    few, many = costs
    assert many < few + 150 * 40, "each server is looked at once, and then only those that are given"


@given(
    wants=st.lists(st.tuples(st.sampled_from((1, 1, 2, 3)), st.sampled_from((1, 2, 4))), max_size=8),
    busy=st.sets(st.sampled_from([f"s{server}-n{node}" for server in range(4) for node in range(4)])),
)
def test_who_comes_with_others_gets_what_each_gets_alone(wants: list[tuple[int, int]], busy: set[str]) -> None:
    together, after_another = world(4), world(4)
    for cluster in (together, after_another):
        for node in sorted(busy):
            cluster.intrude(node)
        for number, (servers, nodes) in enumerate(wants):
            cluster.now += 1
            cluster.ask(f"w{number}", servers, nodes)
            if cluster is after_another:
                cluster.place()
    together.place()
    assert shares(together) == shares(after_another)


def shares(cluster: World) -> dict[str, list[tuple[str, ...]]]:
    return {workload.reference: nodes_of(cluster, workload) for workload in cluster.workloads.values()}


def test_a_condition_names_not_all_of_many_servers() -> None:
    cluster = world(45)
    workload = cluster.ask("train", 45, 4)
    cluster.place()
    assert told(cluster, workload).startswith("45 of 45 UltraServers: ultraserver-s0, ")
    assert told(cluster, workload).endswith(", and 41 more")
    assert len(cluster.verdicts[workload.uid].servers) == 45


@pytest.mark.parametrize(("in_use", "in_parts"), [(4, 4), (4, 1), (3, 0), (1, 0)])
def test_a_tenant_gets_no_server_by_writing_that_it_had_it(in_use: int, in_parts: int) -> None:
    """Claims of others may hold what it does not: it has to have each node as a whole."""
    cluster = world(1)
    cluster.strangers = {f"s0-n{index}": "a/pod" for index in range(in_use)}
    cluster.in_parts = {f"s0-n{index}" for index in range(in_parts)}
    workload = cluster.ask("train", 1, 4)
    cluster.workloads["a/train"] = replace(workload, recorded=("ultraserver-s0",))
    cluster.place()
    assert nodes_of(cluster, workload) == []


@pytest.mark.parametrize("label", [SERVER_2, SERVER_4])
def test_a_node_that_takes_the_id_of_another_server_takes_away_none(label: str) -> None:
    """As that of a set of another size; a set of two whose nodes are in no set of four is a server as well."""
    cluster = world(2)
    pair = [
        replace(node, name=f"p-{index}", labels={**others_than(node, SERVER_4), SERVER_2: "p"})
        for index, node in enumerate(typed_ultraservers(1)[:2])
    ]
    liar = replace(
        pair[0], name="liar", labels={**others_than(pair[0], SERVER_2), label: "s0" if label == SERVER_2 else "p"}
    )
    cluster.nodes = [liar, *pair, *cluster.nodes]
    four, two = cluster.ask("four", 2, 4), cluster.ask("two", 1, 2)
    cluster.place()
    assert [nodes[0] for nodes in nodes_of(cluster, four)] == ["s0-n0", "s1-n0"]
    assert nodes_of(cluster, two) == [("p-0", "p-1")]


def others_than(node: ServerNode, *labels: str) -> dict[str, str]:
    return {key: value for key, value in node.labels.items() if key not in labels}


def test_a_workload_that_is_deleted_goes_once_its_pods_have_ended() -> None:
    cluster = world(1)
    workload = cluster.ask("train", 1, 4)
    cluster.place()
    cluster.strangers["s0-n1"] = "a/train-pod"
    cluster.workloads["a/train"] = replace(cluster.workloads["a/train"], ending=True)
    cluster.place()
    assert cluster.workloads.keys() == {"a/train"}
    assert cluster.verdicts[workload.uid].reason == "InUse"
    assert not cluster.templates
    cluster.strangers.clear()
    cluster.place()
    assert not cluster.workloads

"""Which servers workloads get, in which order, and what they are told. Histories are in test_workload_histories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dra_driver.neuron.names import SERVER_2, SERVER_4, SERVER_MODE
from dra_driver.ultraserver.placer import allot
from dra_driver.ultraserver.placer.servers import Ledger
from dra_driver.ultraserver.placer.truth import WriteAllocations, WriteUids, writes
from dra_driver.ultraserver.placer.values import Rules
from dra_driver.ultraserver.placer.workload import Extent, Grant, ServerRecord, Workload, object_name
from tests.builders.placer import World, typed_ultraservers
from tests.golden import golden


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
    assert cluster.objects["ultraserver-s0"].record == ServerRecord()


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
        golden(allotter.serve(over).message)


def cluster_after(cluster: World, workload: Workload) -> Workload:
    """The workload, after all decisions that there are to make."""
    cluster.place()
    return workload

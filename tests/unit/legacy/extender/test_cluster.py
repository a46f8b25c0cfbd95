"""The extender's picture of the cluster, as lists, watches, reads and its own choices come in any order."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import msgspec
import pytest

from dra_driver.legacy.annotations import ALLOCATION, DEVICES, IDS, OF, ContainerShare, write
from dra_driver.legacy.extender import answers
from dra_driver.legacy.extender.answers import SHAPES, FitCache
from dra_driver.legacy.extender.budget import BURST_SECONDS, FREE_SECONDS, SHARE
from dra_driver.legacy.extender.cluster import Choice, Cluster
from dra_driver.legacy.extender.wire import CapacityNode, LimitsPod, pod_of
from dra_driver.legacy.resource_requests import ContainerRequest, Role
from dra_driver.legacy.rules import NeuronResource, hardware
from tests.golden import golden

TRN1 = hardware("trn1.32xlarge", 16, 32)
REQUESTS = (ContainerRequest("main", Role.MAIN, NeuronResource.DEVICE, 4),)


def node(name: str = "n", **metadata: Any) -> CapacityNode:
    labels = {"node.kubernetes.io/instance-type": "trn1.32xlarge"}
    capacity = {"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "32"}
    document = {"metadata": {"name": name, "uid": name, "labels": labels} | metadata, "status": {"capacity": capacity}}
    return msgspec.convert(document, CapacityNode)


def pod(name: str, version: int = 1, bound: str = "", row: int = 0, uid: str = "", phase: str = "Running") -> LimitsPod:
    ids = tuple(range(4 * row, 4 * row + 4))
    meta = {"namespace": "a", "name": name, "uid": uid or name, "resourceVersion": str(version)}
    annotations = write(TRN1, uid or name, (ContainerShare("main", NeuronResource.DEVICE, ids),), 1) if bound else {}
    containers = [{"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": "4"}}}]
    document = {
        "metadata": meta | {"annotations": annotations},
        "spec": {"nodeName": bound, "containers": containers},
        "status": {"phase": phase if bound else "Pending"},
    }
    return msgspec.convert(document, LimitsPod)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.nodes_listed([node()])
    made.pods_listed([], time.monotonic())
    return made


def rows(cluster: Cluster) -> set[int]:
    """Rows of the torus that are in use."""
    found = cluster.look("n")
    assert isinstance(found, tuple), found
    return {device // 4 for device in TRN1.ids(NeuronResource.DEVICE, found[1])}


def choose(cluster: Cluster, name: str) -> Choice:
    found = cluster.choose(name, f"a/{name}", "n", REQUESTS)
    assert isinstance(found, Choice), found
    return found


def test_a_choice_counts_at_once_and_until_it_is_given_up(cluster: Cluster) -> None:
    cluster.pod_changed(pod("p"))
    choose(cluster, "p")
    assert rows(cluster) == {0}
    choose(cluster, "q")
    assert rows(cluster) == {0, 1}
    cluster.give_up("p")
    assert rows(cluster) == {1}


def test_a_choice_stays_while_the_watch_tells_of_the_pod_as_it_was(cluster: Cluster) -> None:
    cluster.pod_changed(pod("p"))
    choose(cluster, "p")
    cluster.written("p")
    cluster.pod_changed(pod("p", 1))
    assert rows(cluster) == {0}
    cluster.pod_changed(pod("p", 2, "n"))
    cluster.pod_changed(pod("p", 3, "n", phase="Succeeded"))
    assert rows(cluster) == set()


def test_a_list_from_before_the_bind_does_not_free_what_was_bound_since(cluster: Cluster) -> None:
    began = time.monotonic()
    choose(cluster, "new")
    cluster.written("new")
    cluster.found_bound(pod("new", 9, "n"))
    cluster.pods_listed([], began)
    assert rows(cluster) == {0}
    cluster.pods_listed([], time.monotonic())
    assert rows(cluster) == set()


def test_a_list_does_not_end_a_write_under_way(cluster: Cluster) -> None:
    choose(cluster, "p")
    cluster.pods_listed([], time.monotonic())
    assert rows(cluster) == {0}


def test_a_written_choice_without_news_is_asked_about(cluster: Cluster) -> None:
    cluster.pod_changed(pod("p"))
    choose(cluster, "p")
    choose(cluster, "q")
    assert cluster.unconfirmed(time.monotonic()) == []
    cluster.written("p")
    assert [uid for uid, _ in cluster.unconfirmed(time.monotonic())] == ["p"]
    cluster.pod_changed(pod("p", 2, "n"))
    assert cluster.unconfirmed(time.monotonic()) == []


def test_old_news_does_not_undo_what_was_read_since(cluster: Cluster) -> None:
    cluster.found_bound(pod("p", 7, "n", row=2))
    cluster.pod_changed(pod("p", 5))
    assert rows(cluster) == {2}
    cluster.pod_changed(pod("p", 8, "n", row=2), gone=True)
    assert rows(cluster) == set()


def test_the_end_of_an_old_pod_is_not_that_of_a_new_one_of_its_name(cluster: Cluster) -> None:
    cluster.pod_changed(pod("p", 1, "n", row=1, uid="old"))
    cluster.found_bound(pod("p", 9, "n", row=3, uid="new"))
    assert rows(cluster) == {3}
    cluster.pod_changed(pod("p", 8, "n", row=1, uid="old"), gone=True)
    assert rows(cluster) == {3}


def test_news_of_a_pod_that_is_gone_do_not_undo_what_was_read_of_the_new_one_of_its_name(cluster: Cluster) -> None:
    cluster.pod_changed(pod("p", 1, "n", row=1, uid="old"))
    cluster.found_bound(pod("p", 9, "n", row=3, uid="new"))
    cluster.pod_changed(pod("p", 7, "n", row=1, uid="old"))  # such as its deletionTimestamp
    assert rows(cluster) == {3}


def test_a_pod_that_is_gone_when_the_answer_to_a_read_of_it_arrives_stays_gone(cluster: Cluster) -> None:
    cluster.pod_changed(pod("p", 5, "n", row=2))
    cluster.pod_changed(pod("p", 6, "n", row=2), gone=True)
    cluster.found_bound(pod("p", 5, "n", row=2))
    assert rows(cluster) == set()


def test_a_pod_that_a_list_lacks_when_the_answer_to_a_read_of_it_arrives_stays_gone(cluster: Cluster) -> None:
    cluster.pod_changed(pod("p", 5, "n", row=2))
    cluster.pods_listed([pod_of(pod("q", 8, "n", row=1))], time.monotonic())
    cluster.found_bound(pod("p", 5, "n", row=2))
    assert rows(cluster) == {1}


def test_a_pod_that_was_read_late_takes_nothing_from_the_new_one_of_its_name(cluster: Cluster) -> None:
    cluster.pod_changed(pod("p", 5, "n", row=2, uid="old"))
    cluster.pod_changed(pod("p", 6, "n", row=2, uid="old"), gone=True)
    cluster.pod_changed(pod("p", 7, uid="new"))
    cluster.choose("new", "a/p", "n", REQUESTS)
    cluster.found_bound(pod("p", 5, "n", row=2, uid="old"))
    assert rows(cluster) == {0}


@pytest.mark.parametrize(
    "edit",
    [{ALLOCATION: None, DEVICES: "0", IDS: "0"}, {OF: "other 1"}],
    ids=["fewer than it requests", "of another pod"],
)
def test_annotations_that_do_not_tell_all_are_no_choice_when_the_pod_is_read(
    cluster: Cluster, edit: dict[str, str | None]
) -> None:
    """Another scheduler bound it while this extender was asked to: its devices are not known yet."""
    item = msgspec.to_builtins(pod("p", 9, "n"))
    annotations = item["metadata"]["annotations"] | edit
    item["metadata"]["annotations"] = {key: text for key, text in annotations.items() if text is not None}
    cluster.found_bound(msgspec.convert(item, LimitsPod))
    assert rows(cluster) == {0, 1, 2, 3}
    assert not cluster.has_choice("p")


def test_a_choice_for_a_pod_that_was_bound_elsewhere_is_over(cluster: Cluster) -> None:
    cluster.nodes_listed([node(), node("m")])
    choose(cluster, "p")
    cluster.pod_changed(pod("p", 2, "m"))
    assert rows(cluster) == set()


def test_pods_on_a_node_that_is_not_known_yet_count_when_it_is() -> None:
    cluster = Cluster()
    cluster.pod_changed(pod("p", 1, "n", row=2))
    cluster.nodes_listed([node()])
    assert rows(cluster) == {2}
    cluster.node_changed(node(), gone=True)
    cluster.node_changed(node())
    assert rows(cluster) == {2}


def test_a_choice_made_under_another_logical_core_size_takes_its_devices() -> None:
    def trn2(cores: int) -> CapacityNode:
        labels = {"node.kubernetes.io/instance-type": "trn2.48xlarge"}
        capacity = {"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": str(cores)}
        document = {"metadata": {"name": "n", "labels": labels}, "status": {"capacity": capacity}}
        return msgspec.convert(document, CapacityNode)

    cluster = Cluster()
    cluster.nodes_listed([trn2(64)])
    found = cluster.choose("p", "a/p", "n", (ContainerRequest("main", Role.MAIN, NeuronResource.CORE, 3),))
    assert isinstance(found, Choice)
    cluster.node_changed(trn2(128))
    seen = cluster.look("n")
    assert isinstance(seen, tuple)
    assert seen[0].ids(NeuronResource.CORE, seen[1]) == tuple(range(8))


def test_verdicts_follow_every_change_and_remember_a_bounded_number_of_requests(cluster: Cluster) -> None:
    fit_cache = FitCache(cluster, seconds=60.0)
    assert fit_cache.filter(["n", "gone"], REQUESTS, "a").fitting == ["n"]
    for name in ("p", "q", "r", "s"):
        assert fit_cache.filter(["n"], REQUESTS, "a").fitting == ["n"]
        choose(cluster, name)
    assert fit_cache.filter(["n"], REQUESTS, "a").fitting == []
    cluster.give_up("r")
    assert fit_cache.filter(["n"], REQUESTS, "a").fitting == ["n"]
    for count in range(1, 2 * SHAPES):
        fit_cache.filter(["n"], (ContainerRequest("main", Role.MAIN, NeuronResource.CORE, count),), "a")
    assert fit_cache.filter(["n"], REQUESTS, "a").fitting == ["n"]
    assert len(fit_cache.remembered) == SHAPES


def test_a_node_that_is_of_another_kind_each_time_fills_no_memory(cluster: Cluster) -> None:
    def change(kind: str) -> None:
        capacity = {"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "128"}
        document = {
            "metadata": {"name": "n", "uid": "u", "labels": {"node.kubernetes.io/instance-type": kind}},
            "status": {"capacity": capacity, "allocatable": capacity},
        }
        cluster.node_changed(msgspec.convert(document, CapacityNode))
        assert fit_cache.filter(["n"], request, kind).fitting == ["n"]  # each has time of its own
        fit_cache.scores(["n"], request, kind)

    by_turns = [ContainerRequest(role.name, role, NeuronResource.DEVICE, 1) for role in (Role.INIT, Role.SIDECAR)]
    request = (*by_turns * 14, ContainerRequest("main", Role.MAIN, NeuronResource.DEVICE, 1))
    fit_cache = FitCache(cluster, seconds=60.0)
    tracemalloc.start()
    try:
        for number in range(200):
            if number == 100:
                before = tracemalloc.get_traced_memory()[0]
            change(f"kind-{number}")
        assert tracemalloc.get_traced_memory()[0] - before < 300_000
    finally:
        tracemalloc.stop()


def test_a_node_that_says_something_else_of_itself_each_time_fills_little_memory(cluster: Cluster) -> None:
    """Another instance type, and other devices that are unusable."""

    def change(number: int) -> None:
        capacity = {"aws.amazon.com/neuron": "12", "aws.amazon.com/neuroncore": "24"}
        unusable = ",".join(str(device) for device in range(12) if number >> device & 1)
        document = {
            "metadata": {
                "name": "n",
                "uid": "u",
                "labels": {"node.kubernetes.io/instance-type": f"kind-{number % 16}"},
                "annotations": {"neuron.aws.com/unusable-devices": unusable},
            },
            "status": {"capacity": capacity, "allocatable": capacity},
        }
        cluster.node_changed(msgspec.convert(document, CapacityNode))
        assert fit_cache.filter(["n"], request, str(number)).lasting  # each has time of its own
        fit_cache.scores(["n"], request, str(number))

    request = (ContainerRequest("main", Role.MAIN, NeuronResource.DEVICE, 13),)
    fit_cache = FitCache(cluster, seconds=60.0)
    tracemalloc.start()
    try:
        for number in range(1, 3000):
            if number == 1000:
                before = tracemalloc.get_traced_memory()[0]
            change(number)
        assert tracemalloc.get_traced_memory()[0] - before < 500_000
    finally:
        tracemalloc.stop()


def asked(*nodes: str) -> bytes:
    containers = [{"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": "4"}}}]
    item = {"metadata": {"namespace": "a", "name": "p"}, "spec": {"containers": containers}}
    return msgspec.json.encode({"Pod": item, "NodeNames": nodes})


def test_nodes_for_which_there_is_no_time_are_no_verdict_but_an_error_that_brings_the_pod_back(
    cluster: Cluster,
) -> None:
    cluster.nodes_listed([node("n"), node("m")])
    hasty = FitCache(cluster, seconds=-1)
    found = msgspec.json.decode(answers.filter_(hasty, asked("n", "m")))
    assert list(found) == ["Error"]
    golden(found["Error"])
    assert dict(hasty.scores(["n", "m"], REQUESTS, "a")) == {"n": 0, "m": 0}
    assert hasty.remembered == [0]


def test_nodes_that_fit_are_given_though_there_was_no_time_for_others(cluster: Cluster) -> None:
    cluster.nodes_listed([node(f"n{number}") for number in range(3000)])
    fit_cache = FitCache(cluster, seconds=0.002)
    names = [f"n{number}" for number in range(3000)]
    tries: list[dict[str, Any]] = []
    while not tries or "FailedNodes" in tries[-1]:
        tries.append(msgspec.json.decode(answers.filter_(fit_cache, asked(*names))))
        assert len(tries) < 3000
    assert len(tries) > 1
    golden(sorted(set(tries[0]["FailedNodes"].values())))
    assert set(tries[0]["NodeNames"]) | set(tries[0]["FailedNodes"]) == set(names)
    assert tries[-1]["NodeNames"] == names, "what was judged once is remembered"


class Clock:
    """Each look at it takes ``step`` seconds."""

    def __init__(self) -> None:
        self.now, self.step = 1000.0, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def shapes(number: int, first: int = 1) -> list[tuple[ContainerRequest, ...]]:
    """Distinct requests, none of which is ``REQUESTS``."""
    return [
        (ContainerRequest("main", Role.MAIN, NeuronResource.CORE, count),) for count in range(first, first + number)
    ]


NODES = [f"n{number}" for number in range(100)]


def asked_in(namespace: str, devices: int) -> bytes:
    containers = [{"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": str(devices)}}}]
    item = {"metadata": {"namespace": namespace, "name": "p"}, "spec": {"containers": containers}}
    return msgspec.json.encode({"Pod": item, "NodeNames": NODES})


def test_a_namespace_whose_pods_take_long_to_judge_keeps_others_waiting_no_longer_than_its_share(
    cluster: Cluster,
) -> None:
    cluster.nodes_listed([node(name) for name in NODES])
    for name in NODES:
        cluster.look(name)
    clock = Clock()
    fit_cache = FitCache(cluster, clock=clock)
    clock.step = 1 / 64
    told: list[str] = []
    for devices in range(17, 117):  # they fit nowhere
        found = msgspec.json.decode(answers.filter_(fit_cache, asked_in("greedy", devices)))
        told.append(found.get("Error", ""))
    assert clock.now < 1000 + BURST_SECONDS / (1 - SHARE) + 100 * 5 * clock.step
    golden(told[0], "the time of a call")
    golden(told[-1], "the time of the namespace")
    # Its prioritize does no more, and another namespace has all its time.
    assert {score for _, score in fit_cache.scores(NODES, REQUESTS, "greedy")} == {0}
    assert len(fit_cache.filter(NODES, REQUESTS, "modest").fitting) == 7
    clock.step = 0.0
    clock.now += BURST_SECONDS / SHARE
    assert len(fit_cache.filter(NODES, REQUESTS, "greedy").fitting) == len(NODES), "it has time again"


class Crowded(Cluster):
    """Counting what is taken on a node takes a while."""

    clock: Clock

    def look(self, name: str) -> Any:
        self.clock.now += 0.05
        return super().look(name)


def test_a_namespace_does_not_pay_for_counting_what_others_have(cluster: Cluster) -> None:
    crowded = Crowded()
    clock = crowded.clock = Clock()
    crowded.nodes_listed([node()])
    fit_cache = FitCache(crowded, clock=clock)
    for version in range(1, 200):
        crowded.pod_changed(pod("evil", version, "n", row=version % 2))
        answer = fit_cache.filter(["n"], REQUESTS, "honest")
        assert not answer.overdrawn
        assert answer.fitting == ["n"]


def test_a_call_ends_in_time_whoever_pays_for_it(cluster: Cluster) -> None:
    crowded = Crowded()
    clock = crowded.clock = Clock()
    crowded.nodes_listed([node(name) for name in NODES])
    found = FitCache(crowded, clock=clock).filter(NODES, REQUESTS, "honest")
    assert (len(found.fitting), len(found.unjudged), found.overdrawn) == (3, 97, False)


def test_calls_that_judge_little_use_up_nothing(cluster: Cluster) -> None:
    clock = Clock()
    fit_cache = FitCache(cluster, clock=clock)
    clock.step = FREE_SECONDS / 4
    for request in shapes(10_000):
        assert not fit_cache.filter(["n"], request, "a").unjudged


def test_a_namespace_whose_preemption_takes_long_leaves_time_to_others(cluster: Cluster) -> None:
    clock = Clock()
    fit_cache = FitCache(cluster, clock=clock)
    for name in ("p", "q", "r", "s"):
        cluster.pod_changed(pod(name, 2, "n", row="pqrs".index(name)))
    proposed = {"n": ["p"]}
    clock.step = 2 * BURST_SECONDS
    assert fit_cache.victims(proposed, REQUESTS, 5, "greedy") == proposed
    clock.step = 0.0
    assert fit_cache.victims(proposed, REQUESTS, 5, "greedy") == {}
    assert fit_cache.victims(proposed, REQUESTS, 5, "modest") == proposed
    assert fit_cache.filter(["n"], REQUESTS, "greedy").failed, "it has its time to see where pods fit"


def test_a_namespace_with_many_kinds_of_pods_does_not_drop_the_results_of_others(cluster: Cluster) -> None:
    clock = Clock()
    fit_cache = FitCache(cluster, clock=clock)
    own = {"a": [REQUESTS, *shapes(7)], "b": [REQUESTS, *shapes(7, 8)]}
    # The greedy one asked for it first, and has used it since.
    fit_cache.filter(["n"], REQUESTS, "greedy")
    for namespace, requests in own.items():
        for request in requests:
            fit_cache.filter(["n"], request, namespace)
    for request in shapes(3 * SHAPES, 1000):
        fit_cache.filter(["n"], request, "greedy")
    assert len(fit_cache.remembered) == SHAPES
    clock.step = 2 * BURST_SECONDS
    fit_cache.filter(["gone"], REQUESTS, "spent")
    clock.step = 0.0
    # It has no time for what is not cached.
    assert fit_cache.filter(["n"], shapes(1, 500)[0], "spent").unjudged
    for requests in own.values():
        for request in requests:
            assert not fit_cache.filter(["n"], request, "spent").unjudged


def test_usage_maps_are_due_after_changes_only(cluster: Cluster) -> None:
    def due() -> list[str]:
        return [node.name for node, _ in cluster.stale_maps(time.monotonic())]

    assert due() == ["n"]
    assert due() == []
    choose(cluster, "p")
    assert due() == ["n"]
    cluster.postpone_maps("n")
    assert due() == ["n"]

"""What extender and device plugin keep of pods is bounded, whatever their owners write into them."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterable
from functools import partial

import msgspec
import pytest

from dra_driver.legacy.annotations import (
    ALLOCATION,
    CORE_USAGE,
    DEVICE_USAGE,
    POD_KEYS,
    UNUSABLE,
    ContainerShare,
    write,
)
from dra_driver.legacy.device_plugin.snapshot import CHOSEN_BY, PODS, NodeSnapshot, withheld
from dra_driver.legacy.extender.answers import SHAPES, FitCache
from dra_driver.legacy.extender.cluster import Cluster
from dra_driver.legacy.extender.wire import CapacityNode, LimitsPod
from dra_driver.legacy.resource_requests import ContainerRequest, Role
from dra_driver.legacy.rules import NeuronResource
from tests.unit.legacy.device_plugin.test_choosing import offered

Object = dict[str, object]
KIND = {"node.kubernetes.io/instance-type": "trn2.48xlarge"}
CAPACITY = {"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "128"}
NODE: CapacityNode = msgspec.convert(
    {"metadata": {"name": "n", "uid": "n", "labels": KIND}, "status": {"capacity": CAPACITY}}, CapacityNode
)
PODS_EACH = 20


def asks(name: str, cores: int = 1) -> Object:
    return {"name": name, "resources": {"limits": {NeuronResource.CORE.value: str(cores)}}}


def pod(number: int, containers: list[Object], annotations: dict[str, str] | None = None) -> bytes:
    meta: Object = {"name": f"p{number}", "namespace": "a", "uid": f"u{number}", "resourceVersion": str(number + 1)}
    meta |= {"annotations": annotations or {}, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return json.dumps({"metadata": meta, "spec": {"nodeName": "n", "containers": containers}}).encode()


def record(*shares: tuple[str, str]) -> dict[str, str]:
    named = [{"name": name, "resource": NeuronResource.CORE.value, "ids": ids} for name, ids in shares]
    return {ALLOCATION: json.dumps({"coresPerDevice": 8, "containers": named}, separators=(",", ":"))}


def idle(number: int) -> list[Object]:
    return [{"name": f"c{number}-{index}"} for index in range(3000)]


FULL = [f"c{index}" for index in range(64)]
PATTERNS: dict[str, Callable[[int], bytes]] = {
    "containers that ask for nothing": lambda number: pod(number, idle(number)),
    "those and one that asks": lambda number: pod(number, [*idle(number), asks("main")]),
    "too many that ask": lambda number: pod(number, [asks(f"{number}-{index}") for index in range(1000)]),
    "a record of more than it asks for": lambda number: pod(
        number, [asks("main")], record(*((str(number), f"{index}-511") for index in range(64)))
    ),
    "a record of all that it asks for": lambda number: pod(
        number, [asks(name, 511 - number) for name in FULL], record(*((name, f"{number}-510") for name in FULL))
    ),
    "long annotations": lambda number: pod(
        number, [asks("main")], dict.fromkeys([*POD_KEYS, CHOSEN_BY], "\U0001f9e0" * 16_000 + str(number))
    ),
    "long ids": lambda number: pod(
        number, [asks("main")], {key: f"{number}{' ' * 12_000}" for key in POD_KEYS if key != ALLOCATION}
    ),
}


def growth(step: Callable[[int], object], numbers: Iterable[int] = (0,)) -> int:
    """Bytes that are in use after some steps and were not before."""
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for number in numbers:
        step(number)
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


@pytest.fixture(autouse=True)
def traced() -> object:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=list(PATTERNS))
def test_the_extender_keeps_little_of_a_pod_and_nothing_once_it_has_gone(pattern: Callable[[int], bytes]) -> None:
    cluster = Cluster()
    cluster.nodes_listed([NODE])

    def deliver(number: int, *, gone: bool = False) -> None:
        cluster.pod_changed(msgspec.json.decode(pattern(number), type=LimitsPod), gone=gone)
        cluster.look("n")

    deliver(0)
    kept = growth(deliver, range(1, PODS_EACH))
    assert kept < PODS_EACH * 16_000
    left = growth(partial(deliver, gone=True), range(1, PODS_EACH))
    assert kept + left < PODS_EACH * 2_000


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=list(PATTERNS))
def test_the_device_plugin_keeps_little_of_a_pod_and_nothing_once_it_has_gone(pattern: Callable[[int], bytes]) -> None:
    kept = []

    def deliver(number: int) -> None:
        assert PODS.from_version is not None
        kept.append(PODS.from_version(msgspec.json.decode(pattern(number), type=PODS.wire), "v1"))
        world = NodeSnapshot(offered(), [pod.bound for pod in kept if pod.bound is not None], {})
        for resource in NeuronResource:
            withheld(world, resource)

    deliver(0)
    assert growth(deliver, range(1, PODS_EACH)) < PODS_EACH * 24_000

    def pass_by(number: int) -> None:
        deliver(number)
        kept.clear()

    kept.clear()
    assert growth(pass_by, range(PODS_EACH, 2 * PODS_EACH)) < PODS_EACH * 1_000


def test_a_node_that_writes_long_annotations_into_itself_is_kept_in_short() -> None:
    cluster = Cluster()
    annotations = dict.fromkeys([UNUSABLE, DEVICE_USAGE, CORE_USAGE], "\U0001f9e0" * 80_000)
    document = {**msgspec.to_builtins(NODE), "metadata": {"name": "n", "uid": "n", "annotations": annotations}}
    assert growth(lambda _: cluster.node_changed(msgspec.convert(document, CapacityNode))) < 250_000


def test_of_pods_with_different_requests_results_are_kept_of_few() -> None:
    cluster = Cluster()
    cluster.nodes_listed([NODE])
    fit_cache = FitCache(cluster, seconds=60.0)

    def ask(number: int) -> None:
        roles = (Role.INIT, Role.SIDECAR)
        requests = tuple(
            ContainerRequest("", roles[index % 2], NeuronResource.CORE, 1 + (number >> index // 2 & 1))
            for index in range(24)
        )
        fit_cache.filter(["n"], requests, f"namespace-{number}")
        fit_cache.scores(["n"], requests, f"namespace-{number}")

    for number in range(SHAPES):
        ask(number)
    assert growth(ask, range(SHAPES, 2 * SHAPES)) < SHAPES * 4_000


def test_what_was_chosen_for_a_pod_with_many_containers_is_kept_in_short() -> None:
    cluster = Cluster()
    cluster.nodes_listed([NODE])
    requests = tuple(ContainerRequest(f"c{index}", Role.INIT, NeuronResource.CORE, 128) for index in range(64))

    cluster.choose("first", "a/first", "n", requests)
    cluster.give_up("first")
    assert growth(lambda _: cluster.choose("u", "a/p", "n", requests)) < 4_000
    assert cluster.look("n")[1] == (1 << 128) - 1  # type: ignore[index] # it is there


def test_a_record_of_sequential_containers_that_each_have_the_whole_node_is_believed() -> None:
    """Its ids in sum are many times those of the node."""
    everything = range(128)
    names = [f"c{index}" for index in range(64)]
    shares = tuple(ContainerShare(name, NeuronResource.CORE, everything) for name in names)
    cluster = Cluster()
    cluster.nodes_listed([NODE])
    seen = cluster.look("n")
    assert isinstance(seen, tuple)
    document = json.loads(pod(1, [], write(seen[0], "u1", shares, 1)))
    document["spec"] = {"nodeName": "n", "initContainers": [asks(name, 128) for name in names]}
    cluster.pod_changed(msgspec.convert(document, LimitsPod))
    assert cluster.counts()["uncertain_nodes"] == 0
    assert cluster.counts()["taken_cores"] == 128


def test_all_devices_of_a_pod_with_several_containers_are_taken() -> None:
    cluster = Cluster()
    cluster.nodes_listed([NODE])
    document = json.loads(pod(1, [asks("one"), asks("two", 2)], record(("one", "3"), ("two", "8-9"))))
    cluster.pod_changed(msgspec.convert(document, LimitsPod))
    assert cluster.counts()["taken_cores"] == 3
    requests = tuple(ContainerRequest(f"c{index}", Role.MAIN, NeuronResource.CORE, 4) for index in range(2))
    cluster.choose("u", "a/p", "n", requests)
    seen = cluster.look("n")
    assert isinstance(seen, tuple)
    assert seen[1].bit_count() == 3 + 8


def test_what_a_node_writes_into_itself_is_kept_in_short() -> None:
    cluster = Cluster()

    def add(number: int) -> None:
        annotations = dict.fromkeys((CORE_USAGE, DEVICE_USAGE, UNUSABLE), str(number) + "0" * 300_000)
        meta = {"name": f"n{number}", "uid": f"n{number}", "labels": KIND, "annotations": annotations}
        cluster.node_changed(msgspec.convert({"metadata": meta, "status": {"capacity": CAPACITY}}, CapacityNode))

    assert growth(add, range(10)) < 10 * 80_000

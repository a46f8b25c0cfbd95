"""Extender and device plugin together: the documented flow from a pod's limits to its container, in eleven steps."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from dra_driver.legacy.annotations import ALLOCATED, ALLOCATION, CORES, DEVICES, IDS, RESOURCE_TYPE, UNUSABLE
from dra_driver.legacy.rules import NeuronResource, candidates
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL
from tests.builders.device_plugin import NODE, PluginNode, chips, cores, plugin_node
from tests.builders.extender import CORE, DEVICE, Extender, cores_in_use, extender, limits, pod_document
from tests.doubles.device_manager import Container, KnownPod
from tests.doubles.sample_driver import node_directory
from tests.eventually import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(params=["inf1.6xlarge", "trn1.32xlarge", "inf2.24xlarge"])
def node(request: pytest.FixtureRequest) -> Iterator[PluginNode]:
    with node_directory() as root, plugin_node(root, request.param) as made:
        yield made


def report(node: PluginNode) -> None:
    """What kubelet writes into the Node's status (step 2)."""
    store = node.server.store
    item = store.get("nodes", NODE)
    meta = {**item["metadata"], "labels": {INSTANCE_TYPE_LABEL: node.kind}}
    capacity = {"cpu": "8", **{name: str(node.manager.capacity(name)) for name in (DEVICE, CORE)}}
    allocatable = {"cpu": "8", **{name: str(node.manager.allocatable(name)) for name in (DEVICE, CORE)}}
    status = {**item["status"], "capacity": capacity, "allocatable": allocatable}
    store.update("nodes", NODE, {**item, "metadata": meta, "status": status})


def arrive(node: PluginNode, one: Extender, name: str, resource: str, count: int) -> KnownPod | None:
    """Steps 3 to 8: the scheduler asks, the extender chooses and binds."""
    asked = limits(devices=count) if resource == DEVICE else limits(cores=count)
    item = node.server.store.create("pods", pod_document(name, asked))
    if one.schedule(item, [NODE]) == "":
        node.server.store.delete("pods", f"a/{name}")
        return None
    return KnownPod("a", name, item["metadata"]["uid"], (Container("c0", {resource: count}),))


def admit(node: PluginNode, pod: KnownPod) -> tuple[list[int], Any]:
    """Steps 9 to 11: the ids that the container was given."""
    (((_, resource), answer),) = node.manager.admit(pod).items()
    return (chips(answer) if resource == DEVICE else cores(answer)), answer


def noted(node: PluginNode, pod: KnownPod) -> dict[str, str]:
    found: dict[str, str] = node.server.store.get("pods", f"a/{pod.name}")["metadata"]["annotations"]
    return found


def test_nine_cores_in_eleven_steps(node: PluginNode) -> None:
    with node.plugin(), extender(node.server) as one:
        report(node)
        one.ready()
        eventually(lambda: one.fits(pod_document("probe", limits(1)), [NODE]) == [NODE], what="the node")
        counts = {"inf1.6xlarge": 9, "trn1.32xlarge": 8, "inf2.24xlarge": 9}
        pod = arrive(node, one, "nrt-test-5038", CORE, counts[node.kind])
        assert pod is not None
        ids, answer = admit(node, pod)
        assert ids == list(range(counts[node.kind]))
        assert noted(node, pod)[IDS] == answer.envs["NEURON_RT_VISIBLE_CORES"] == ",".join(map(str, ids))
        assert node.manager.counted(pod.uid, CORE) == set(map(str, ids))
        eventually(lambda: noted(node, pod)[ALLOCATED] == "true", what="step 10")


@pytest.mark.parametrize("fault", ["lost", "sick"])
def test_the_extender_leaves_out_what_the_plugin_says_has_failed_until_it_is_well(node: PluginNode, fault: str) -> None:
    with node.plugin(), extender(node.server) as one:
        report(node)
        one.ready()
        if fault == "lost":
            node.emulate(missing=frozenset({0}))
        else:
            node.set_errors(0, 1)
        eventually(lambda: node.node_annotations().get(UNUSABLE) == "0", what="the annotation")
        report(node)

        def first() -> int:
            pod = arrive(node, one, "p", DEVICE, 1)
            assert pod is not None
            (chip,), _ = admit(node, pod)
            node.manager.remove(pod.uid)
            node.server.store.delete("pods", "a/p")
            return chip

        eventually(lambda: one.fits(pod_document("all", limits(node.hardware.devices)), [NODE]) == [], what="the news")
        assert first() != 0
        if fault == "lost":
            node.emulate()
        else:
            node.set_errors(0, 0)
        eventually(lambda: UNUSABLE not in node.node_annotations(), what="its removal")
        report(node)
        everything = pod_document("all", limits(node.hardware.devices))
        eventually(lambda: one.fits(everything, [NODE]) == [NODE], what="the news")


@pytest.mark.parametrize("seed", [1, 2])
def test_what_the_annotations_say_is_what_containers_have(node: PluginNode, seed: int) -> None:
    chance = random.Random(seed)
    machine = node.hardware
    running: dict[str, tuple[KnownPod, int]] = {}
    with node.plugin(), extender(node.server) as one:
        report(node)
        one.ready()
        eventually(lambda: one.fits(pod_document("probe", limits(1)), [NODE]) == [NODE], what="the node")
        given = 0
        for number in range(60):
            if running and chance.random() < 0.45:
                pod, _ = running.pop(chance.choice(sorted(running)))
                node.manager.remove(pod.uid)
                node.server.store.delete("pods", f"a/{pod.name}")
                continue
            resource = chance.choice((DEVICE, CORE))
            units = machine.devices if resource == DEVICE else machine.cores
            arrived = arrive(node, one, f"p{number}", resource, chance.randint(1, units))
            if arrived is None:
                continue
            ids, _ = admit(node, arrived)
            kind = NeuronResource(resource)
            mask = machine.mask(kind, ids)
            assert mask in candidates(machine, kind, len(ids))
            assert not any(mask & other for _, other in running.values()), "a core is given twice"
            running[arrived.name] = arrived, mask
            given += 1
        assert given > 5, "how many depends on how soon the extender learns what has ended"
        told = cores_in_use(node.server).get(NODE, {})
        assert sum(1 << core for core in told) == sum(mask for _, mask in running.values())


OF_TWO_CONTAINERS = json.dumps(
    {
        "coresPerDevice": 2,
        "containers": [
            {"name": "c0", "resource": CORE, "ids": "5"},
            {"name": "invented", "resource": CORE, "ids": "6-31"},
        ],
    }
)


def takes_one_device(node: PluginNode, one: Extender) -> None:
    """Wait until the extender knows that the pods of the node have one device, and that the others are free."""

    def fits(count: int) -> bool:
        return one.fits(pod_document("probe", *[limits(devices=1)] * count), [NODE]) == [NODE]

    eventually(lambda: not fits(node.hardware.devices), what="news of the pod")
    eventually(lambda: fits(node.hardware.devices - 1), what="room for what the pod does not have")
    assert not fits(node.hardware.devices)


@pytest.mark.parametrize("node", ["trn1.32xlarge"], indirect=True)
@pytest.mark.parametrize(
    "annotations",
    [{IDS: "5-31", RESOURCE_TYPE: CORE}, {CORES: "5-31", DEVICES: "0-15"}, {ALLOCATION: OF_TWO_CONTAINERS}],
)
def test_a_pod_withholds_nothing_by_annotations_that_it_was_created_with(
    node: PluginNode, annotations: dict[str, str]
) -> None:
    """It was bound by its own manifest, past the extender, which would have emptied them."""
    with node.plugin(), extender(node.server) as one:
        report(node)
        one.ready()
        eventually(lambda: one.fits(pod_document("probe", limits(1)), [NODE]) == [NODE], what="the node")
        node.manager.admit(node.pod("p", Container("c0", {CORE: 1}), annotations=annotations))
        node.set_phase("p", "Running")
        takes_one_device(node, one)


@pytest.mark.parametrize("node", ["trn1.32xlarge"], indirect=True)
def test_annotations_that_an_older_plugin_left_as_they_were_withhold_nothing_for_long(node: PluginNode) -> None:
    with extender(node.server) as one:
        with node.plugin():
            report(node)
            node.manager.admit(node.plain("p", CORE, 1))
            node.set_phase("p", "Running")
            eventually(lambda: node.annotations("p").get(ALLOCATED) == "true", what="the record")
        node.annotate("p", {**dict.fromkeys(node.annotations("p")), ALLOCATION: "nonsense", DEVICES: "0-15"})
        one.ready()
        with node.plugin():
            takes_one_device(node, one)

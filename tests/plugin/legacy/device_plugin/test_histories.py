"""Random lives of a node: pods come with and without an extender's choice and go, kubelet and plugin restart.

An extender that knows the annotations alone chooses; what containers were really given is checked by itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dra_driver.legacy.annotations import ContainerShare, from_mapping
from dra_driver.legacy.placement import DoesNotFit, place
from dra_driver.legacy.resource_requests import ContainerRequest, Role
from dra_driver.legacy.rules import NeuronResource, candidates, counts
from dra_driver.legacy.usage import NodeUsage, holding, usage
from tests.builders.device_plugin import CORE, NEURON, PluginNode, chips, cores, plugin_node
from tests.doubles.device_manager import Container, KnownPod
from tests.doubles.kubelet_connection import KubeletError
from tests.doubles.sample_driver import node_directory
from tests.eventually import eventually

# Not with each change: beside other tests, the double of kubelet's device manager has once counted devices of a process
# of the plugin that had just ended.
pytestmark = pytest.mark.nightly

STEPS = 80


@pytest.fixture
def root() -> Iterator[Path]:
    with node_directory() as directory:
        yield directory


class History:
    """One life of a node."""

    def __init__(self, node: PluginNode, seed: int, stack: ExitStack) -> None:
        self.node, self.random, self.stack = node, random.Random(seed), stack
        self.pods: dict[str, tuple[KnownPod, int, bool]] = {}
        """Pods that were admitted: what they were given, and whether an extender chose it."""
        self.waiting: list[KnownPod] = []
        self.number = 0
        self.given = 0
        self.plugin: Any = None
        self.start()

    def start(self) -> None:
        self.plugin = self.node.plugin()
        self.stack.push(self.plugin.__exit__)
        self.plugin.__enter__()

    # -- the extender

    def usage(self) -> NodeUsage:
        """By the annotations of the pods alone."""
        found = []
        for item in self.node.server.store.list("pods")[0]:
            if item["status"]["phase"] in ("Succeeded", "Failed"):
                continue
            (container,) = item["spec"]["containers"]
            ((resource, count),) = container["resources"]["limits"].items()
            requests = (ContainerRequest(container["name"], Role.MAIN, NeuronResource(resource), int(count)),)
            known = holding(item["metadata"]["name"], from_mapping(item["metadata"]["annotations"]), requests)
            if known is not None:
                found.append(known)
        return usage(self.node.hardware, found)

    def arrive(self) -> None:
        resource = self.random.choice(list(NeuronResource))
        count = self.random.choice(counts(self.node.hardware, resource))
        eventually(lambda: self.usage().trouble == "", what="everything is written down")
        # A real scheduler is seconds behind kubelet; here a moment would be enough to overtake it.
        eventually(self.freed_is_told, what="kubelet knows what pods without an extender have left")
        if self.room(resource.value) < count:
            return
        chosen = place(self.node.hardware, self.usage().taken, (ContainerRequest("main", Role.MAIN, resource, count),))
        if isinstance(chosen, DoesNotFit):
            return
        self.number += 1
        share = ContainerShare("main", resource, self.node.hardware.ids(resource, chosen[0]))
        pod = self.node.pod(f"p{self.number}", Container("main", {resource.value: count}), shares=(share,))
        self.waiting.append(pod)

    def arrive_without_extender(self) -> None:
        """As the default scheduler does it: by the numbers that kubelet reports."""
        resource = self.random.choice((NEURON, CORE))
        if self.waiting or self.room(resource) < 1:
            return
        self.number += 1
        self.admit(self.node.plain(f"p{self.number}", resource, 1), chosen=False)

    def freed_is_told(self) -> bool:
        machine, kept = self.node.hardware, 0
        for _, mask, chosen in self.pods.values():
            kept |= 0 if chosen else mask
        free = ((1 << machine.cores) - 1) & ~kept
        busy = set(machine.ids(NeuronResource.DEVICE, kept))
        chips_free = {str(number) for number in range(machine.devices) if number not in busy}
        cores_free = set(map(str, machine.ids(NeuronResource.CORE, free)))
        return chips_free <= self.node.manager.healthy(NEURON) and cores_free <= self.node.manager.healthy(CORE)

    def room(self, resource: str) -> int:
        """What a scheduler takes for free: allocatable less what pods ask for."""
        pods = [*(pod for pod, _, _ in self.pods.values()), *self.waiting]
        return self.node.manager.allocatable(resource) - sum(
            container.limits.get(resource, 0) for pod in pods for container in pod.containers
        )

    # -- the node

    def admit_one(self) -> None:
        if self.waiting:
            self.admit(self.waiting.pop(self.random.randrange(len(self.waiting))), chosen=True)

    def admit(self, pod: KnownPod, *, chosen: bool) -> None:
        try:
            (((_, resource), answer),) = self.node.manager.admit(pod).items()
        except KubeletError as error:
            # The numbers that the scheduler went by were a moment old.
            assert not chosen, error
            assert "not free" in str(error) or "Available: 0" in str(error), error
            self.node.set_phase(pod.name, "Failed")
            return
        machine = self.node.hardware
        ids = chips(answer) if resource == NEURON else cores(answer)
        mask = machine.mask(NeuronResource(resource), ids)
        self.pods[pod.name] = pod, mask, chosen
        self.check(pod, NeuronResource(resource), mask, chosen=chosen)

    def check(self, pod: KnownPod, resource: NeuronResource, mask: int, *, chosen: bool) -> None:
        machine = self.node.hardware
        for name, (_, other, _) in self.pods.items():
            assert name == pod.name or not other & mask, f"{pod.name} and {name} share a core"
        count = pod.containers[0].limits[resource.value]
        assert mask in candidates(machine, resource, count), "a set that no rule allows"
        ids = machine.ids(resource, mask)
        if chosen:
            assert self.node.annotations(pod.name)["AWS_NEURON_IDS"] == ",".join(map(str, ids))
            assert self.node.manager.counted(pod.uid, resource.value) == set(map(str, ids)), "kubelet counts the same"
        self.given += 1

    def end_one(self) -> None:
        if self.pods:
            name = self.random.choice(sorted(self.pods))
            pod, _, _ = self.pods.pop(name)
            self.random.choice((self.node.end, self.node.delete))(pod)

    def restart_kubelet(self) -> None:
        self.node.manager.restart()
        self.node.wait_registered()

    def restart_plugin(self) -> None:
        self.plugin.__exit__(None, None, None)
        # Until kubelet notices, it calls the old sockets, and before 1.37 it may drop a new connection for an old one.
        eventually(lambda: not self.node.manager.connections, what="kubelet has noticed the end of the plugin")
        self.start()

    def cut(self) -> None:
        self.node.server.cut()

    def run(self, steps: int) -> None:
        acts = {
            self.arrive: 8,
            self.admit_one: 10,
            self.arrive_without_extender: 3,
            self.end_one: 6,
            self.restart_kubelet: 0.5,
            self.restart_plugin: 0.5,
            self.cut: 0.5,
        }
        for _ in range(steps):
            (act,) = self.random.choices(list(acts), weights=list(acts.values()))
            act()
        while self.waiting:
            self.admit_one()


@pytest.mark.parametrize(
    ("kind", "release", "seed"),
    [("trn1.32xlarge", 37, 1), ("inf2.24xlarge", 33, 2), ("trn2.48xlarge", 37, 3), ("inf1.6xlarge", 37, 4)],
)
def test_no_core_is_ever_given_twice_and_the_annotations_are_the_truth(
    root: Path, kind: str, release: int, seed: int
) -> None:
    with plugin_node(root, kind, release=release) as node, ExitStack() as stack:
        history = History(node, seed, stack)
        history.run(STEPS)
        assert history.given >= STEPS / 10, "a life in which nothing happens shows nothing"
        taken = 0
        for _, mask, _ in history.pods.values():
            taken |= mask
        eventually(lambda: history.usage() == NodeUsage(taken), what="the annotations tell what is taken")
        for pod, _, _ in list(history.pods.values()):
            node.end(pod)
        machine = node.hardware
        node.manager.wait_for(NEURON, machine.devices)
        node.manager.wait_for(CORE, machine.cores)
        assert history.usage() == NodeUsage(0), "nothing leaks"

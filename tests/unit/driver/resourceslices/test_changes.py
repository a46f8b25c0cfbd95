"""Any history of settings, core sizes, servers and claims: what a claim holds stays what it was, and nobody else's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.driver.resourceslices.kept import SETTLE_SECONDS
from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.emulation.memory import emulated_inventory
from dra_driver.neuron.emulation.options import EmulationOptions
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.neuron.topology.partitions import HardwarePart, parts_of
from tests.builders.publishing_node import PublishingNode
from tests.generators.effort import examples

HOSTS = {
    name: emulated_inventory(INSTANCE_TYPES[name], EmulationOptions())
    for name in ("trn2.48xlarge", "trn2u.48xlarge", "inf2.24xlarge", "trn2.3xlarge")
}


class Cluster(PublishingNode):
    """One node, its slices as the server has them, and a scheduler that goes by these alone."""

    def __init__(self, inventory: NodeInventory) -> None:
        self.held: dict[str, tuple[HardwarePart, ...]] = {}
        """Hardware by device, as the device was when it was allocated."""
        self.users: set[str] = set()
        """Devices of which the claims are prepared."""
        super().__init__(inventory)

    def note(self) -> None:
        """Who asks sees the claims of now."""
        self.allocated = set(self.held)
        self.prepared = {name: len(self.held[name][0].cores) or None for name in self.users}

    def parts(self, device: Device) -> tuple[HardwarePart, ...]:
        size = device.attributes.get("logicalCoreSize")
        found = parts_of(device.name, self.inventory.chip_indexes, lambda _: (size and size.int_) or 1)
        assert found is not None
        return found

    def allocate(self, wish: int) -> None:
        """Give one of the devices that the scheduler considers free to a claim."""
        by_name = {device.name: device for device in self.published}
        counters = self.wanted.offer.counters
        used = {counter: 0 for found in counters for counter in found.counters}
        free = {counter: int(found.counters[counter].value) for found in counters for counter in used}
        for name in self.held:
            for consumption in by_name[name].consumes_counters:
                for counter, amount in consumption.counters.items():
                    used[counter] += int(amount.value)
        fits = [
            device
            for device in self.published
            if device.name not in self.held
            and not device.taints
            and all(
                used[counter] + int(amount.value) <= free[counter]
                for consumption in device.consumes_counters
                for counter, amount in consumption.counters.items()
            )
        ]
        if fits:
            device = fits[wish % len(fits)]
            self.held[device.name] = self.parts(device)

    def free(self, wish: int) -> None:
        """End one of the claims."""
        if self.held:
            freed = sorted(self.held)[wish % len(self.held)]
            self.users.discard(freed)
            del self.held[freed]

    def prepare(self, wish: int) -> None:
        """Prepare what is allocated to one of the claims."""
        if self.held:
            self.users.add(sorted(self.held)[wish % len(self.held)])

    def check(self) -> None:
        """Every device that is held is published as it was, and no two are of the same hardware."""
        there = {device.name: self.parts(device) for device in self.published}
        assert {name: there.get(name) for name in self.held} == self.held
        parts = [part for held in self.held.values() for part in held]
        assert not any(one.overlaps(other) for place, one in enumerate(parts) for other in parts[place + 1 :])
        for name in self.users & there.keys():
            if name.startswith("neuron-core-"):
                (part,) = self.held[name]
                size = self.wanted.offer.core_sizes.get(part.chip, self.inventory.core_size)
                assert len(part.cores) == size, "what preparation takes for the core's size"


words = st.sampled_from(["chip", "core", "group", "group2", "group4", "node"])
actions = st.one_of(
    st.tuples(st.just("allocate"), st.integers(0, 200)),
    st.tuples(st.just("allocate"), st.integers(0, 200)),
    st.tuples(st.just("prepare"), st.integers(0, 20)),
    st.tuples(st.just("free"), st.integers(0, 20)),
    st.tuples(st.just("partitions"), st.lists(words, min_size=1, max_size=4).map(".".join)),
    st.tuples(st.just("size"), st.sampled_from([1, 2])),
    st.tuples(st.just("counters"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([1.0, SETTLE_SECONDS, 30.0, 700.0])),
    st.tuples(st.just("restart"), st.none()),
)


@settings(max_examples=examples(150))
@given(st.sampled_from(sorted(HOSTS)), st.lists(actions, max_size=40))
def test_what_a_claim_holds_stays_what_it_was_and_nobody_elses(name: str, history: list[tuple[str, Any]]) -> None:
    cluster = Cluster(HOSTS[name])
    cluster.look()
    for action, value in history:
        match action:
            case "allocate" | "prepare" | "free":
                getattr(cluster, action)(value)
            case "partitions" | "counters":
                setattr(cluster, action, value)
            case "size":
                cluster.inventory = replace(cluster.inventory, default_lnc=value)
            case "wait":
                cluster.now += value
            case "restart":
                cluster.note()
                cluster.start()
        cluster.note()
        cluster.look()
        cluster.check()
    cluster.held.clear()
    cluster.users.clear()
    cluster.note()
    for _ in range(3):
        cluster.now += 700.0
        cluster.look()
    assert cluster.kept == {}, "nothing is stuck"
    assert not any(device.taints for device in cluster.published)

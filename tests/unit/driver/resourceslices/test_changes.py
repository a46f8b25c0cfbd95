"""Any history of settings, core sizes, servers and claims: what a claim holds stays what it was, and nobody else's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.driver.resourceslices.devices import KeptDevice, Offer, offer
from dra_driver.driver.resourceslices.kept import SETTLE_SECONDS, Keeper
from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.emulation.memory import emulated_inventory
from dra_driver.neuron.emulation.options import EmulationOptions
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.neuron.topology.partitions import CHIPS, HardwarePart, Partitions, parts_of
from tests.generators.effort import examples

HOSTS = {
    name: emulated_inventory(INSTANCE_TYPES[name], EmulationOptions())
    for name in ("trn2.48xlarge", "trn2u.48xlarge", "inf2.24xlarge", "trn2.3xlarge")
}


@dataclass
class Cluster:
    """One node, its slices as the server has them, and a scheduler that goes by these alone."""

    host: NodeInventory
    partitions: Partitions = CHIPS
    counters: bool = True
    now: float = 1000.0
    kept: dict[str, KeptDevice] = field(default_factory=dict)
    published: tuple[Device, ...] = ()
    offered: Offer = field(default_factory=lambda: Offer(()))
    held: dict[str, tuple[HardwarePart, ...]] = field(default_factory=dict)
    """Hardware by device, as the device was when it was allocated."""
    prepared: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new run of the driver, which knows what is prepared."""
        self.keeper = Keeper(self._sizes, lambda: set(self.held), clock=lambda: self.now)
        self.kept = {name: KeptDevice(self.now, size) for name, size in self._sizes().items()}

    def _sizes(self) -> dict[str, int | None]:
        return {name: len(self.held[name][0].cores) or None for name in self.prepared}

    def publish(self) -> None:
        """One look of the driver's publisher."""
        for _ in range(4):
            self.offered = offer(self.host, self.partitions, kept=self.kept)
            self.kept = {name: one for name, one in self.kept.items() if name in self.offered.retired}
            trusted = self.counters or not self.offered.counters
            chosen = self.offered.devices if trusted else self.offered.fallback
            found = self.keeper.review(self.kept, self.published, chosen, doubtful=False)
            if found == self.kept:
                break
            self.kept = found
        self.published = chosen

    def parts(self, device: Device) -> tuple[HardwarePart, ...]:
        size = device.attributes.get("logicalCoreSize")
        found = parts_of(device.name, self.host.chip_indexes, lambda _: (size and size.int_) or 1)
        assert found is not None
        return found

    def allocate(self, wish: int) -> None:
        """Give one of the devices that the scheduler considers free to a claim."""
        by_name = {device.name: device for device in self.published}
        used = {counter: 0 for found in self.offered.counters for counter in found.counters}
        free = {counter: int(found.counters[counter].value) for found in self.offered.counters for counter in used}
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
            self.prepared.discard(freed)
            del self.held[freed]

    def prepare(self, wish: int) -> None:
        """Prepare what is allocated to one of the claims."""
        if self.held:
            self.prepared.add(sorted(self.held)[wish % len(self.held)])

    def check(self) -> None:
        """Every device that is held is published as it was, and no two are of the same hardware."""
        there = {device.name: self.parts(device) for device in self.published}
        assert {name: there.get(name) for name in self.held} == self.held
        parts = [part for held in self.held.values() for part in held]
        assert not any(one.overlaps(other) for place, one in enumerate(parts) for other in parts[place + 1 :])
        for name in self.prepared & there.keys():
            if name.startswith("neuron-core-"):
                (part,) = self.held[name]
                size = self.offered.core_sizes.get(part.chip, self.host.core_size)
                assert len(part.cores) == size, "what preparation takes for the core's size"


words = st.sampled_from(["chip", "core", "group", "group2", "group4", "node"])
actions = st.one_of(
    st.tuples(st.just("allocate"), st.integers(0, 200)),
    st.tuples(st.just("allocate"), st.integers(0, 200)),
    st.tuples(st.just("prepare"), st.integers(0, 20)),
    st.tuples(st.just("free"), st.integers(0, 20)),
    st.tuples(st.just("partitions"), st.lists(words, min_size=1, max_size=4).map(".".join).map(Partitions.parse)),
    st.tuples(st.just("size"), st.sampled_from([1, 2])),
    st.tuples(st.just("counters"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([1.0, SETTLE_SECONDS, 30.0, 700.0])),
    st.tuples(st.just("restart"), st.none()),
)


@settings(max_examples=examples(150))
@given(st.sampled_from(sorted(HOSTS)), st.lists(actions, max_size=40))
def test_what_a_claim_holds_stays_what_it_was_and_nobody_elses(name: str, history: list[tuple[str, Any]]) -> None:
    cluster = Cluster(HOSTS[name])
    cluster.publish()
    for action, value in history:
        match action:
            case "allocate" | "prepare" | "free":
                getattr(cluster, action)(value)
            case "partitions" | "counters":
                setattr(cluster, action, value)
            case "size":
                cluster.host = replace(cluster.host, default_lnc=value)
            case "wait":
                cluster.now += value
            case "restart":
                cluster.start()
        cluster.publish()
        cluster.check()
    cluster.held.clear()
    cluster.prepared.clear()
    for _ in range(3):
        cluster.now += 700.0
        cluster.publish()
    assert cluster.kept == {}, "nothing is stuck"
    assert not any(device.taints for device in cluster.published)

"""Orders in which devices of a node, and nodes, are tried.

kube-scheduler tries the devices of a slice as they stand in it, so their order is the driver's to choose, and to
change: it can publish the slice again when a pod comes or goes. The order of nodes is kube-scheduler's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.simulator.workload.cluster import Site

DeviceOrder = Callable[[Site, int], tuple[int, ...]]
"""Site and mask of its free chips -> places of all its devices, the one to try first at the front."""
NodeOrder = Callable[[Site, int], float]
"""Site and mask of its free chips -> the lower, the earlier; ties by name."""


def published(site: Site, free: int) -> tuple[int, ...]:  # noqa: ARG001 - an order that does not look at it
    """By ascending host index, as the driver publishes them."""
    return tuple(range(len(site.devices)))


def broken_sets_first(site: Site, free: int) -> tuple[int, ...]:
    """First the chips whose loss breaks no free set, then those of free sets that lie in the smallest larger one.

    Among equal ones: those with the fewest free chips around them, so that what is nearly empty can become empty.
    """
    masks = [(size, site.sets[size]) for size in sorted(site.sets, reverse=True)]

    def key(place: int) -> tuple[int, ...]:
        chip = 1 << place
        around = [mask for _, found in masks for mask in found if mask & chip]
        harm = [int(mask & free == mask) for mask in around]
        return (*harm, *((mask & free).bit_count() for mask in reversed(around)), place)

    return tuple(sorted(range(len(site.devices)), key=key))


def by_name(site: Site, free: int) -> float:  # noqa: ARG001 - an order that does not look at them
    """All alike, so that the name decides."""
    return 0.0


def fullest(site: Site, free: int) -> float:  # noqa: ARG001 - how many are free is enough
    """Nodes with the fewest free chips first: what packs."""
    return float(free.bit_count())


def emptiest(site: Site, free: int) -> float:  # noqa: ARG001 - how many are free is enough
    """Nodes with the most free chips first: what spreads."""
    return -float(free.bit_count())


@dataclass(frozen=True, slots=True)
class Policy:
    """An order of devices and one of nodes."""

    name: str
    devices: DeviceOrder
    nodes: NodeOrder
    meaning: str


_ROWS = (
    ("lowest-id", published, by_name, "devices as published, by host index; first node by name"),
    ("broken-sets-first", broken_sets_first, by_name, "devices of broken sets first; first node by name"),
    ("lowest-id-spread", published, emptiest, "devices as published; emptiest node first"),
    ("broken-sets-first-spread", broken_sets_first, emptiest, "devices of broken sets first; emptiest node first"),
    ("lowest-id-packed", published, fullest, "devices as published; fullest node first"),
    ("broken-sets-first-packed", broken_sets_first, fullest, "devices of broken sets first; fullest node first"),
)
POLICIES = {name: Policy(name, devices, nodes, meaning) for name, devices, nodes, meaning in _ROWS}
"""By name; the first one is what the driver and the simulator do today."""

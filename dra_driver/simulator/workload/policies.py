"""Orders in which devices of a node, and nodes, are tried.

kube-scheduler tries the devices of a slice as they stand in it, so their order is the driver's to choose, and to
change: it can publish the slice again when a pod comes or goes. The order of nodes is kube-scheduler's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from dra_driver.simulator.workload.cluster import Site

DeviceOrder = Callable[[Site, int], tuple[int, ...]]
"""Site and mask of its free chips -> places of all its devices, the one to try first at the front."""
NodeOrder = Callable[[Site, int, int | None], tuple[float, ...]]
"""Site, mask of its free chips, and how many chips the pod asks for (None: unknown) -> the lower, the earlier; ties by
name."""


def published(site: Site, free: int) -> tuple[int, ...]:  # noqa: ARG001 - an order that does not look at it
    """By ascending host index, as the driver publishes them."""
    return tuple(range(len(site.devices)))


def broken_sets_first(site: Site, free: int) -> tuple[int, ...]:
    """First the chips whose loss breaks no free set, then those of free sets that lie in a broken larger one.

    Among equal ones: those with the fewest free chips around them, so that what is nearly empty can become empty.
    """
    largest_first = tuple(site.sets[size] for size in sorted(site.sets, reverse=True))
    return _by_harm(len(site.devices), largest_first, free)


@lru_cache(maxsize=1 << 14)
def _by_harm(count: int, largest_first: tuple[tuple[int, ...], ...], free: int) -> tuple[int, ...]:
    def key(place: int) -> tuple[int, ...]:
        chip = 1 << place
        around = [mask for masks in largest_first for mask in masks if mask & chip]
        harm = [int(mask & free == mask) for mask in around]
        return (*harm, *((mask & free).bit_count() for mask in reversed(around)), place)

    return tuple(sorted(range(count), key=key))


def by_name(site: Site, free: int, count: int | None) -> tuple[float, ...]:  # noqa: ARG001 - looks at nothing
    """All alike, so that the name decides."""
    return ()


def fullest(site: Site, free: int, count: int | None) -> tuple[float, ...]:  # noqa: ARG001 - free chips are enough
    """Nodes with the fewest free chips first: what packs."""
    return (free.bit_count(),)


def emptiest(site: Site, free: int, count: int | None) -> tuple[float, ...]:  # noqa: ARG001 - free chips are enough
    """Nodes with the most free chips first: what spreads."""
    return (-free.bit_count(),)


def least_broken(site: Site, free: int, count: int | None) -> tuple[float, ...]:
    """Nodes first on which the pod, placed at its best, breaks the fewest free sets; large sets count more."""
    if count is None:
        return ()
    masks = site.sets.get(count)
    if masks is None:
        chips = [place for place in broken_sets_first(site, free) if free >> place & 1][:count]
        masks = (sum(1 << place for place in chips),) if len(chips) == count else ()
    larger = tuple(found for size, found in sorted(site.sets.items(), reverse=True) if size > count)
    return _least_loss(masks, larger, free)


@lru_cache(maxsize=1 << 14)
def _least_loss(masks: tuple[int, ...], larger: tuple[tuple[int, ...], ...], free: int) -> tuple[float, ...]:
    """For each size of ``larger`` sets, how many free ones the best of the ``masks`` meets."""
    return min(
        (
            tuple(float(sum(found & free == found and found & mask != 0 for found in sets)) for sets in larger)
            for mask in masks
            if mask & free == mask
        ),
        default=(math.inf,),
    )


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
    (
        "lowest-id-fitting",
        published,
        least_broken,
        "devices as published; first the node on which the pod would break the fewest free sets",
    ),
    (
        "broken-sets-first-fitting",
        broken_sets_first,
        least_broken,
        "devices of broken sets first; first the node on which the pod would break the fewest free sets",
    ),
)
POLICIES = {name: Policy(name, devices, nodes, meaning) for name, devices, nodes, meaning in _ROWS}
"""By name; the first one is what the driver and the simulator do today."""

"""Nodes as a workload sees them: their chips, and the connected sets that claims can request."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dra_driver.kube.types import DeviceAttribute
from dra_driver.manifests.objects import (
    Device,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceSlice,
)
from dra_driver.names import DRIVER_NAME, GROUP_ATTRIBUTE_DOMAIN
from dra_driver.simulator.allocator import NodeView
from dra_driver.util.errors import DriverError

SET_SIZES = (4, 8, 16)
"""Sizes of sets that are measured for fragmentation."""
MAX_SET_SIZE = 32
"""Maximum number of devices per claim (Kubernetes limit)."""


@dataclass(frozen=True, slots=True)
class Site:
    """A node with its chips. A set of chips is a bit mask: bit N is the N-th device of the slices."""

    node: NodeView
    slices: tuple[ResourceSlice, ...]
    devices: tuple[str, ...]
    """Names of the devices, as published."""
    sets: Mapping[int, tuple[int, ...]]
    """Size -> the masks of the sets of that size that share a published attribute."""

    @property
    def everything(self) -> int:
        """The mask of all chips."""
        return (1 << len(self.devices)) - 1


def sites(nodes: Sequence[NodeView], slices: Iterable[ResourceSlice]) -> tuple[Site, ...]:
    """The nodes by name, with this driver's slices for them.

    Raises:
        DriverError: a node offers no chips, or itself as one device.
    """
    of_node: defaultdict[str, list[ResourceSlice]] = defaultdict(list)
    for item in slices:
        if item.spec.driver == DRIVER_NAME and item.spec.node_name:
            of_node[item.spec.node_name].append(item)
    return tuple(_site(node, of_node[node.name]) for node in sorted(nodes, key=lambda node: node.name))


def _site(node: NodeView, slices: Sequence[ResourceSlice]) -> Site:
    ordered = tuple(sorted(slices, key=lambda item: item.metadata.name))
    devices = [device for item in ordered for device in item.spec.devices]
    if not devices:
        raise DriverError(f"node {node.name} offers no chips", remedy="take a type with a known number of devices")
    if any("deviceId" not in device.attributes or device.consumes_counters for device in devices):
        raise DriverError(
            f"node {node.name} offers itself as one device, and a workload counts chips",
            remedy="take a type that is not of an UltraServer, or a layout in which its nodes offer their chips",
        )
    found = {size: masks for size in range(2, MAX_SET_SIZE + 1) if (masks := tuple(_sets(devices, size)))}
    return Site(node, ordered, tuple(device.name for device in devices), found)


def set_attributes(size: int) -> tuple[str, str]:
    """The attributes whose equality can define a set of this size, as a constraint names them."""
    return f"{GROUP_ATTRIBUTE_DOMAIN}/devicegroup{size}_id", f"{DRIVER_NAME}/segment{size}_id"


def _sets(devices: Sequence[Device], size: int) -> Iterator[int]:
    for attribute in set_attributes(size):
        members: defaultdict[DeviceAttribute, int] = defaultdict(int)
        for place, device in enumerate(devices):
            found = device.attributes.get(attribute) or device.attributes.get(attribute.removeprefix(f"{DRIVER_NAME}/"))
            if found is not None:
                members[found] |= 1 << place
        yield from (mask for mask in members.values() if mask.bit_count() == size)


def claim_for(count: int, where: Sequence[Site], title: str = "pods") -> DeviceClaim:
    """A claim for ``count`` connected chips, in the form of the examples; ``title`` is the beginning of error messages.

    Raises:
        DriverError: no attribute defines sets of this size on any of the nodes, or different ones do.
    """
    request = DeviceRequest("chips", ExactDeviceRequest(device_class_name=DRIVER_NAME, count=count))
    if count == 1:
        return DeviceClaim((request,))
    usable = [name for name in set_attributes(count) if any(_makes_sets(site, name, count) for site in where)]
    if len(usable) != 1:
        sizes = sorted({1, *(size for site in where for size in site.sets)})
        differently = f"the types of the nodes name the connected sets differently: {' and '.join(usable)}"
        raise DriverError(
            f"{title}: count {count}: {differently if usable else 'no node has connected sets of this size'}",
            remedy=f"write the claims, or take a count of {', '.join(map(str, sizes))}",
        )
    return DeviceClaim((request,), (DeviceConstraint(("chips",), match_attribute=usable[0]),))


def _makes_sets(site: Site, attribute: str, size: int) -> bool:
    bare = attribute.removeprefix(f"{DRIVER_NAME}/")
    first = next(device for item in site.slices for device in item.spec.devices)
    return size in site.sets and (attribute in first.attributes or bare in first.attributes)


def chips_of(claims: Iterable[DeviceClaim]) -> int | None:
    """The number of devices that the claims request; None if it depends on the node."""
    total = 0
    for claim in claims:
        for request in claim.requests:
            if request.exactly is None or request.exactly.allocation_mode == "All":
                return None
            total += request.exactly.count or 1
    return total


DeviceOrder = Callable[[Site, int], tuple[int, ...]]
"""Site and mask of its free chips -> indexes of all its devices, in the order in which to try them."""
NodeOrder = Callable[[Site, int, int | None], tuple[float, ...]]
"""Site, mask of its free chips and number of requested chips (None: unknown) -> sort key, lowest first.

Ties are resolved by name.
"""


def published(site: Site, free: int) -> tuple[int, ...]:  # noqa: ARG001 - a constant order
    """By ascending host index, as the driver publishes them."""
    return tuple(range(len(site.devices)))


def broken_sets_first(site: Site, free: int) -> tuple[int, ...]:
    """First the chips whose use breaks no free set, then those of free sets that are part of a broken larger one.

    Among equal ones: those with the fewest free chips around them, so that nearly unused areas can become free.
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


def by_name(site: Site, free: int, count: int | None) -> tuple[float, ...]:  # noqa: ARG001 - a constant
    """All equal, so that the name decides."""
    return ()


def fullest(site: Site, free: int, count: int | None) -> tuple[float, ...]:  # noqa: ARG001 - free chips are enough
    """Nodes with the fewest free chips first: packs pods."""
    return (free.bit_count(),)


def emptiest(site: Site, free: int, count: int | None) -> tuple[float, ...]:  # noqa: ARG001 - free chips are enough
    """Nodes with the most free chips first: spreads pods."""
    return (-free.bit_count(),)


def least_broken(site: Site, free: int, count: int | None) -> tuple[float, ...]:
    """First the nodes on which the pod, optimally placed, breaks the fewest free sets; larger sets weigh more."""
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
    """For each size of ``larger`` sets, how many free ones the best of the ``masks`` intersects."""
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
    """An order of devices and an order of nodes."""

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
"""Policies by name; the first one is the current behaviour of the driver and the simulator."""

"""Nodes as a workload sees them: their chips, what else they offer, and the connected sets that claims can request."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from dra_driver.driver.deviceclasses import DEVICE_CLASSES
from dra_driver.kube.types import DeviceAttribute
from dra_driver.manifests.objects import (
    CelSelector,
    Device,
    DeviceClaim,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceSlice,
)
from dra_driver.names import DRIVER_NAME, GROUP_ATTRIBUTE_DOMAIN
from dra_driver.simulator.allocator import NodeView
from dra_driver.simulator.hardware import Hardware, resource_of
from dra_driver.topology.cuts import NODE_DEVICE, ResourceType
from dra_driver.topology.fabric import Fabric
from dra_driver.util.errors import DriverError

SET_SIZES = (4, 8, 16)
"""Sizes of sets that are measured for fragmentation."""
MAX_SET_SIZE = 32
"""Maximum number of devices per claim (Kubernetes limit)."""


@dataclass(frozen=True)
class Site:
    """A node with its chips. A set of chips is a bit mask: bit N is the N-th of ``chips``."""

    node: NodeView
    slices: tuple[ResourceSlice, ...]
    devices: tuple[str, ...]
    """Names of the devices, as published."""
    sets: Mapping[int, tuple[int, ...]]
    """Size -> the masks of the connected sets of that size: those that share a published attribute or, where no chips
    are offered, those that the fabric has."""
    hardware: Hardware
    chips: tuple[int, ...]
    """Host indexes of the chips, ascending or in the order in which they are published."""
    offers_chips: bool
    """Whether chips can be had one by one."""

    @property
    def everything(self) -> int:
        """The mask of all chips."""
        return (1 << len(self.chips)) - 1

    @cached_property
    def cores(self) -> int:
        """Physical cores of a chip, as far as they are told apart here."""
        return self.hardware.kind.cores_per_device if self.hardware.kind is not None else 1

    @cached_property
    def parts(self) -> Mapping[str, int]:
        """The physical cores that each device is made of, as a mask: those of the N-th chip begin at bit N * cores."""
        place_of = {chip: place for place, chip in enumerate(self.chips)}
        return {
            name: sum(
                1 << place_of[part.chip] * self.cores + core
                for part in self.hardware.parts(name)
                if part.chip in place_of
                for core in part.cores or range(self.cores)
            )
            for name in self.devices
        }

    @cached_property
    def first_chips(self) -> tuple[tuple[int, int], ...]:
        """For each device: the place of its kind among the kinds, and that of its first chip in the masks."""
        kinds: dict[str, int] = {}
        return tuple(
            (
                kinds.setdefault(name.rpartition("-")[0] if "-core-" not in name else "core", len(kinds)),
                ((mask & -mask).bit_length() - 1) // self.cores if (mask := self.parts[name]) else 0,
            )
            for name in self.devices
        )

    def chips_in(self, mask: int) -> int:
        """Of a mask of physical cores: the mask of the chips that have some of them."""
        chip = (1 << self.cores) - 1
        return sum(1 << place for place in range(len(self.chips)) if mask >> place * self.cores & chip)


def sites(nodes: Sequence[NodeView], slices: Iterable[ResourceSlice]) -> tuple[Site, ...]:
    """The nodes by name, with this driver's slices for them.

    Raises:
        DriverError: a node offers nothing.
    """
    of_node: defaultdict[str, list[ResourceSlice]] = defaultdict(list)
    for item in slices:
        if item.spec.driver == DRIVER_NAME and item.spec.node_name:
            of_node[item.spec.node_name].append(item)
    return tuple(_site(node, of_node[node.name]) for node in sorted(nodes, key=lambda node: node.name))


def _site(node: NodeView, slices: Sequence[ResourceSlice]) -> Site:
    ordered = tuple(sorted(slices, key=lambda item: item.metadata.name))
    devices = [device for item in ordered for device in item.spec.devices]
    hardware = Hardware.of(devices)
    if not devices or not hardware.chips:
        raise DriverError(f"node {node.name} offers no chips", remedy="take a type with a known number of devices")
    chips = [device for device in devices if resource_of(device) == "neuron_device"]
    if chips:
        found = {size: masks for size in range(2, MAX_SET_SIZE + 1) if (masks := tuple(_sets(chips, size)))}
        indexes = tuple(part.chip for device in chips for part in hardware.parts(device.name))
    else:
        indexes = hardware.chips
        found = dict(_sets_of_fabric(hardware.kind.fabric)) if hardware.kind is not None else {}
    names = tuple(device.name for device in devices)
    return Site(node, ordered, names, found, hardware, indexes, offers_chips=bool(chips))


def _sets_of_fabric(fabric: Fabric) -> Iterator[tuple[int, tuple[int, ...]]]:
    for size in fabric.set_sizes():
        if 1 < size <= MAX_SET_SIZE:
            yield size, tuple(sum(1 << chip for chip in members) for members in fabric.usable_sets(size))


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
        DriverError: no attribute defines sets of this size on any of the nodes, or different ones do; or a node offers
            no chips.
    """
    without = next((site for site in where if not site.offers_chips), None)
    if without is not None:
        what = "itself as one device" if without.devices == (NODE_DEVICE,) else "no chips"
        raise DriverError(
            f"{title}: count {count}: node {without.node.name} offers {what}, and a count is one of chips",
            remedy="take a type that is not of an UltraServer, --devices with chip, or a kind of pods with device",
        )
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


_KINDS: Final[Mapping[str, ResourceType]] = {
    "chip": "neuron_device",
    "core": "neuron_core",
    "group": "neuron_group",
    "node": "neuron_node",
}
"""What a kind of pods may ask for by ``device``, besides groups of one size."""
_SIZED: Final = re.compile(r"group([2-9]|[1-9][0-9])", re.ASCII)


def device_claim(device: str, count: int) -> DeviceClaim | None:
    """A claim for ``count`` devices of one kind, with no constraint: what limits of an extended resource become.

    Args:
        device: chip, core, group (of any size), group4 (or another size) or node; None is returned for anything else.
        count: how many.
    """
    sized = _SIZED.fullmatch(device)
    kind = _KINDS.get("group" if sized else device)
    if kind is None:
        return None
    rows = [row for row in DEVICE_CLASSES if row.resources == (kind,)]
    size = int(sized[1]) if sized else None
    row = next((row for row in rows if row.conditions.get("size") == size), rows[0])
    exact = size is None or row.conditions.get("size") == size
    expression = f"device.attributes['{DRIVER_NAME}'].size == {size}"
    selectors = () if exact else (DeviceSelector(CelSelector(expression)),)
    request = ExactDeviceRequest(device_class_name=row.name, selectors=selectors, count=count)
    return DeviceClaim((DeviceRequest("devices", request),))


def _makes_sets(site: Site, attribute: str, size: int) -> bool:
    bare = attribute.removeprefix(f"{DRIVER_NAME}/")
    chips = (device for item in site.slices for device in item.spec.devices)
    first = next(device for device in chips if resource_of(device) == "neuron_device")
    return size in site.sets and (attribute in first.attributes or bare in first.attributes)


def chips_of(claims: Iterable[DeviceClaim], where: Sequence[Site]) -> float | None:
    """How many chips the claims request, of which cores are a part; None if it depends on the node."""
    total = 0.0
    for claim in claims:
        for request in claim.requests:
            if request.exactly is None or request.exactly.allocation_mode == "All":
                return None
            each = _chips_of_one(request.exactly, where)
            if each is None:
                return None
            total += (request.exactly.count or 1) * each
    return total


def _chips_of_one(request: ExactDeviceRequest, where: Sequence[Site]) -> float | None:
    row = next((row for row in DEVICE_CLASSES if row.name == request.device_class_name), None)
    if row is None or "neuron_device" in row.resources:
        return 1
    if row.resources == ("neuron_core",):
        shares = {site.hardware.core_size(chip) / site.cores for site in where for chip in site.chips}
        return shares.pop() if len(shares) == 1 else None
    size = row.conditions.get("size")
    return size if isinstance(size, int) else None


DeviceOrder = Callable[[Site, int], tuple[int, ...]]
"""Site and mask of its free chips -> indexes of all its devices, in the order in which to try them."""
NodeOrder = Callable[[Site, int, float | None], tuple[float, ...]]
"""Site, mask of its free chips and number of requested chips (None: unknown) -> sort key, lowest first.

Ties are resolved by name.
"""


def published(site: Site, free: int) -> tuple[int, ...]:  # noqa: ARG001 - a constant order
    """By ascending host index, as the driver publishes them."""
    return tuple(range(len(site.devices)))


def broken_sets_first(site: Site, free: int) -> tuple[int, ...]:
    """First the chips whose use breaks no free set, then those of free sets that are part of a broken larger one.

    Among equal ones: those with the fewest free chips around them, so that nearly unused areas can become free. Cores
    and groups are in the order of their first chips, cores of chips in use first; each kind of device stays where it
    is among the others.
    """
    chips = chips_by_harm(site, free)
    if site.offers_chips and len(site.devices) == len(site.chips):
        return chips
    rank = {chip: place for place, chip in enumerate(chips)}

    def key(place: int) -> tuple[int, ...]:
        kind, chip = site.first_chips[place]
        return (kind, free >> chip & 1, rank[chip], place)

    return tuple(sorted(range(len(site.devices)), key=key))


def chips_by_harm(site: Site, free: int) -> tuple[int, ...]:
    """The chips in the order of ``broken_sets_first``, by their places in the masks."""
    largest_first = tuple(site.sets[size] for size in sorted(site.sets, reverse=True))
    return _by_harm(len(site.chips), largest_first, free)


@lru_cache(maxsize=1 << 14)
def _by_harm(count: int, largest_first: tuple[tuple[int, ...], ...], free: int) -> tuple[int, ...]:
    def key(place: int) -> tuple[int, ...]:
        chip = 1 << place
        around = [mask for masks in largest_first for mask in masks if mask & chip]
        harm = [int(mask & free == mask) for mask in around]
        return (*harm, *((mask & free).bit_count() for mask in reversed(around)), place)

    return tuple(sorted(range(count), key=key))


def by_name(site: Site, free: int, count: float | None) -> tuple[float, ...]:  # noqa: ARG001 - a constant
    """All equal, so that the name decides."""
    return ()


def fullest(site: Site, free: int, count: float | None) -> tuple[float, ...]:  # noqa: ARG001 - free chips are enough
    """Nodes with the fewest free chips first: packs pods."""
    return (free.bit_count(),)


def emptiest(site: Site, free: int, count: float | None) -> tuple[float, ...]:  # noqa: ARG001 - free chips are enough
    """Nodes with the most free chips first: spreads pods."""
    return (-free.bit_count(),)


def least_broken(site: Site, free: int, count: float | None) -> tuple[float, ...]:
    """First the nodes on which the pod, optimally placed, breaks the fewest free sets; larger sets weigh more."""
    if count is None:
        return ()
    whole = math.ceil(count)
    masks = site.sets.get(whole)
    if masks is None:
        chips = [place for place in chips_by_harm(site, free) if free >> place & 1][:whole]
        masks = (sum(1 << place for place in chips),) if len(chips) == whole else ()
    larger = tuple(found for size, found in sorted(site.sets.items(), reverse=True) if size > whole)
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

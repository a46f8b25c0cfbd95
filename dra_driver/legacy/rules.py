"""The rules of devices and cores on clusters without DRA: the resources, the nodes, and which sets a container may get.

The vendor's rules (aws-neuron-sdk ``deploy/infrastructure/scheduler.rst``): the devices of one container are directly
connected, that is, any run of a ring or chain, and on a torus the aligned sets of 1, 4, 8 and 16. One device and all
devices are always possible. Cores are one run of core ids whose devices form such a set. A run across the end of a ring
is connected, but the runtime cannot use it (see ``dra_driver.neuron.topology.fabric``), so it is never handed out.

The best set leaves the most larger sets unbroken: afterwards the node has the most free sets of the largest size, then
of the next size, and so on.

Sets of cores are masks: bit ``i`` of an ``int`` stands for core ``i`` of the node. A device is the set of its cores, so
one mask describes what is taken of both resources, and the two can never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

from dra_driver.neuron.topology.fabric import Fabric, IndexSet, Unknown
from dra_driver.neuron.topology.instance_types import HYPERPOD_PREFIX, lookup
from dra_driver.util.errors import DriverError


class NeuronResource(Enum):
    """An extended resource; ``noun`` is the singular that the vendor's messages use."""

    DEVICE = "aws.amazon.com/neuron"
    CORE = "aws.amazon.com/neuroncore"

    @property
    def noun(self) -> str:
        """``device`` or ``core``."""
        return "device" if self is NeuronResource.DEVICE else "core"


RETIRED_DEVICE: Final = "aws.amazon.com/neurondevice"
"""Former name of ``NeuronResource.DEVICE``; pods placed by the vendor's extender may still use it."""


MAX_DEVICES, MAX_CORES_PER_DEVICE = 64, 8
"""Limits of the kernel driver."""


@dataclass(frozen=True, slots=True)
class NodeHardware:
    """One kind of node."""

    instance_type: str
    fabric: Fabric
    cores_per_device: int
    """Logical cores: physical ones divided by the node's logical core size."""

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.fabric.size

    @property
    def cores(self) -> int:
        """Number of logical cores."""
        return self.fabric.size * self.cores_per_device

    def units(self, resource: NeuronResource) -> int:
        """How many of the resource the whole node has."""
        return self.devices if resource is NeuronResource.DEVICE else self.cores

    def mask(self, resource: NeuronResource, ids: Iterable[int]) -> int:
        """Mask of the cores of some ids, all of which must exist."""
        width = self.cores_per_device if resource is NeuronResource.DEVICE else 1
        return sum(((1 << width) - 1) << number * width for number in set(ids))

    def ids(self, resource: NeuronResource, mask: int) -> tuple[int, ...]:
        """Ids of the devices with at least one core in the mask, or of the cores; ascending."""
        cores = bits(mask)
        if resource is NeuronResource.CORE:
            return tuple(cores)
        return tuple(dict.fromkeys(core // self.cores_per_device for core in cores))

    def first_cores(self, mask: int) -> int:
        """Mask of the first core of each device that has at least one core in the mask; it represents the device."""
        found = mask
        for step in range(1, self.cores_per_device):
            found |= mask >> step
        return found & ((1 << self.cores) - 1) // ((1 << self.cores_per_device) - 1)

    def busy(self, resource: NeuronResource, mask: int) -> int:
        """Number of devices with at least one core in the mask, or number of cores in it."""
        return (self.first_cores(mask) if resource is NeuronResource.DEVICE else mask).bit_count()


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


@lru_cache(maxsize=4096)
def hardware(instance_type: str, devices: int, cores: int) -> NodeHardware:
    """The hardware of a node, from its label and the capacity that kubelet reports for the two resources.

    The devices of an unknown type can be handed out one at a time or all together.

    Args:
        instance_type: value of the node's label, or "".
        devices: reported capacity; 0 if none is reported.
        cores: reported capacity; 0 if none is reported.

    Raises:
        DriverError: the numbers are inconsistent, which also happens briefly while a device plugin starts.
    """
    name = instance_type.removeprefix(HYPERPOD_PREFIX)
    row = lookup(name)
    known = row.devices if row else None
    count = devices or known or 0
    if not devices and not cores:
        raise DriverError("the node has no Neuron devices", remedy="look at the log of the device plugin on that node")
    if not 1 <= count <= MAX_DEVICES or known not in (None, count):
        raise DriverError(
            f"the node reports {devices} devices, but {_kind(name, known)}",
            consequence="so it is not known which devices these are",
            remedy="look at the log of the device plugin on that node",
        )
    default = row.cores_per_device // row.default_lnc if row else 1
    per_device, rest = divmod(cores, count) if cores else (default, 0)
    legal = {row.cores_per_device // size for size in row.lnc_values} if row else range(1, MAX_CORES_PER_DEVICE + 1)
    if rest or per_device not in legal:
        raise DriverError(
            f"the node reports {cores} cores on {count} devices, which {_kind(name, known)} cannot have",
            consequence="so it is not known which core is on which device",
            remedy="look at the log of the device plugin on that node",
        )
    fabric = row.fabric if row and row.devices else Unknown(count)
    return NodeHardware(name or "unknown", fabric, per_device)


def _kind(name: str, devices: int | None) -> str:
    shown = name[:64] or "a node without the label of its type"
    return f"{shown} has {devices}" if devices else f"{shown} has 1 to {MAX_DEVICES}"


UnbrokenSets = tuple[tuple[int, ...], tuple[int, ...]]
"""Number of free sets of devices by size, largest size first; lengths of free runs of cores, longest first."""

BEST_SCORE = 10
"""Highest score of an extender; the lowest is 0."""


def candidates(hardware: NodeHardware, resource: NeuronResource, count: int) -> tuple[int, ...]:
    """Masks of the sets that may serve a request on an empty node, ascending; empty if the rules allow none."""
    # A request for a billion devices must not fill the cache.
    possible = 1 <= count <= hardware.units(resource)
    return _candidates(hardware.fabric, hardware.cores_per_device, resource, count) if possible else ()


@lru_cache(maxsize=4096)
def _candidates(fabric: Fabric, width: int, resource: NeuronResource, count: int) -> tuple[int, ...]:
    """By what the sets depend on: a node gives itself any name of a type, and as many as it likes."""
    if resource is NeuronResource.DEVICE:
        count *= width
    offsets = range(width if resource is NeuronResource.CORE else 1)
    starts = [
        members[0] * width + offset
        for offset in offsets
        for members in _device_sets(fabric, (offset + count - 1) // width + 1)
    ]
    return tuple(((1 << count) - 1) << start for start in sorted(starts))


@lru_cache(maxsize=1024)
def _device_sets(fabric: Fabric, count: int) -> tuple[IndexSet, ...]:
    everything = (tuple(range(fabric.size)),) if count == fabric.size else ()
    return fabric.usable_sets(count) or everything


@lru_cache(maxsize=1024)
def counts(hardware: NodeHardware, resource: NeuronResource) -> tuple[int, ...]:
    """Every count that can be requested, ascending."""
    sizes = [size for size in range(1, hardware.devices + 1) if _device_sets(hardware.fabric, size)]
    if resource is NeuronResource.DEVICE:
        return tuple(sizes)
    width = hardware.cores_per_device
    # The fewest cores on some devices in a row are one on the first, one on the last and all between them.
    runs = (range(max((size - 2) * width + 2, 1), size * width + 1) for size in sizes)
    return tuple(sorted(set().union(*runs)))


def free_candidates(hardware: NodeHardware, taken: int, resource: NeuronResource, count: int) -> list[int]:
    """The ``candidates`` that are entirely free."""
    return [mask for mask in candidates(hardware, resource, count) if not mask & taken]


def least_breaking_first(hardware: NodeHardware, taken: int, masks: list[int], shared: int = 0) -> list[int]:
    """Sets, best first: those with the most of ``shared`` (what the pod already has), then those that break least."""

    def rank(mask: int) -> tuple[int, UnbrokenSets, int]:
        return -(mask & ~shared).bit_count(), unbroken_sets(hardware, taken | mask), -mask

    return sorted(masks, key=rank, reverse=True)


def unbroken_sets(hardware: NodeHardware, taken: int) -> UnbrokenSets:
    """The free sets and runs of a node."""
    return _free_sets(hardware, hardware.first_cores(taken)), tuple(free_runs(hardware, taken))


def free_runs(hardware: NodeHardware, taken: int) -> list[int]:
    """Lengths of the runs of free cores, longest first."""
    free = ~taken & ((1 << hardware.cores) - 1)
    return sorted(map(len, filter(None, f"{free:b}".split("0"))), reverse=True)


@lru_cache(maxsize=8192)
def _free_sets(hardware: NodeHardware, busy: int) -> tuple[int, ...]:
    """Number of free sets of each size; ``busy`` holds the first cores of the devices that are not free."""
    return tuple(sum(not mask & busy for mask in masks) for _, masks in _set_masks(hardware))


@lru_cache(maxsize=256)
def _set_masks(hardware: NodeHardware) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Size and masks of all sets of devices, largest size first."""
    sizes = range(hardware.devices, 0, -1)
    return tuple((size, found) for size in sizes if (found := candidates(hardware, NeuronResource.DEVICE, size)))


def score(hardware: NodeHardware, before: int, after: int) -> int:
    """How well a choice packs: 10 if it broke no larger set, 0 if it broke up an empty node.

    Args:
        hardware: the node.
        before: mask of the cores taken before.
        after: mask of the cores taken with the choice.
    """
    asked = (after & ~before).bit_count()
    room = hardware.cores - asked
    broken = max(_largest_broken(hardware, before, after), asked)
    return BEST_SCORE if room <= 0 else round(BEST_SCORE * (hardware.cores - broken) / room)


def _largest_broken(hardware: NodeHardware, before: int, after: int) -> int:
    """Number of cores of the largest set that was free before and no longer is."""
    (sets_before, runs_before), (sets_after, runs_after) = (
        unbroken_sets(hardware, before),
        unbroken_sets(hardware, after),
    )
    for (size, _), was, is_ in zip(_set_masks(hardware), sets_before, sets_after, strict=True):
        if is_ < was:
            return size * hardware.cores_per_device
    for position, length in enumerate(runs_before):
        if position >= len(runs_after) or runs_after[position] != length:
            return length
    return 0

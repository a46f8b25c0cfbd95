"""What a node offers, as the pair counts it: its fabric, and how many logical cores a device has.

Sets of cores are masks: bit ``i`` of an ``int`` stands for core ``i`` of the node. A device is the cores that it has,
so one mask says what is taken of both resources, and the two can never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from dra_driver.legacy.names import Resource
from dra_driver.topology.fabric import Fabric, Unknown
from dra_driver.topology.instance_types import HYPERPOD_PREFIX, lookup
from dra_driver.util.errors import DriverError

MOST_DEVICES, MOST_CORES_PER_DEVICE = 64, 8
"""Limits of the kernel driver."""


@dataclass(frozen=True, slots=True)
class Hardware:
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

    def units(self, resource: Resource) -> int:
        """How many of the resource the whole node has."""
        return self.devices if resource is Resource.DEVICE else self.cores

    def mask(self, resource: Resource, ids: Iterable[int]) -> int:
        """The cores behind some ids, which must exist."""
        width = self.cores_per_device if resource is Resource.DEVICE else 1
        return sum(((1 << width) - 1) << number * width for number in set(ids))

    def ids(self, resource: Resource, mask: int) -> tuple[int, ...]:
        """Devices of which any core is in the mask, or the cores; ascending."""
        cores = bits(mask)
        if resource is Resource.CORE:
            return tuple(cores)
        return tuple(dict.fromkeys(core // self.cores_per_device for core in cores))

    def first_cores(self, mask: int) -> int:
        """The first core of each device of which any core is in the mask: stands for the device."""
        found = mask
        for step in range(1, self.cores_per_device):
            found |= mask >> step
        return found & ((1 << self.cores) - 1) // ((1 << self.cores_per_device) - 1)

    def busy(self, resource: Resource, mask: int) -> int:
        """How many devices have any core in the mask, or how many cores are in it."""
        return (self.first_cores(mask) if resource is Resource.DEVICE else mask).bit_count()


def bits(mask: int) -> Iterator[int]:
    """Positions of the ones, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


@lru_cache(maxsize=4096)
def hardware(instance_type: str, devices: int, cores: int) -> Hardware:
    """What a node is, from its label and the capacity that kubelet reports for the two resources (0: not reported).

    A type that is not known still has devices that can be given singly or all together. DriverError when the numbers
    cannot be right, which also happens for moments while a device plugin starts.
    """
    name = instance_type.removeprefix(HYPERPOD_PREFIX)
    row = lookup(name)
    known = row.devices if row else None
    count = devices or known or 0
    if not devices and not cores:
        raise DriverError(
            "the node offers no Neuron devices", remedy="look at the log of the device plugin on that node"
        )
    if not 1 <= count <= MOST_DEVICES or known not in (None, count):
        raise DriverError(
            f"the node reports {devices} devices, but {_kind(name, known)}",
            consequence="so which devices these are is not known",
            remedy="look at the log of the device plugin on that node",
        )
    default = row.cores_per_device // row.default_lnc if row else 1
    per_device, rest = divmod(cores, count) if cores else (default, 0)
    legal = {row.cores_per_device // size for size in row.lnc_values} if row else range(1, MOST_CORES_PER_DEVICE + 1)
    if rest or per_device not in legal:
        raise DriverError(
            f"the node reports {cores} cores on {count} devices, which {_kind(name, known)} cannot have",
            consequence="so which core is on which device is not known",
            remedy="look at the log of the device plugin on that node",
        )
    fabric = row.fabric if row and row.devices else Unknown(count)
    return Hardware(name or "unknown", fabric, per_device)


def _kind(name: str, devices: int | None) -> str:
    shown = name[:64] or "a node without the label of its type"
    return f"{shown} has {devices}" if devices else f"{shown} has 1 to {MOST_DEVICES}"

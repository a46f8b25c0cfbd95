"""The hardware behind the devices that a node publishes: which chips and cores each is made of, and which are taken."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.drawing import Marks, marks_of
from dra_driver.neuron.topology.instance_types import InstanceType, lookup
from dra_driver.neuron.topology.partitions import HardwarePart, ResourceType, parts_of

MEANINGS: Final[Mapping[ResourceType, tuple[str, str]]] = {
    "neuron_device": ("chip", "chips"),
    "neuron_group": ("group", "groups"),
    "neuron_node": ("whole node", "whole nodes"),
    "neuron_core": ("core", "cores"),
}
"""What a device of this resource type is called, and several of them."""


def text_of(device: Device, name: str) -> str:
    """A text among the device's own attributes; "" if it has none of this name."""
    attribute = device.attributes.get(name) or device.attributes.get(f"{DRIVER_NAME}/{name}")
    return attribute.string or "" if attribute is not None else ""


def number_of(device: Device, name: str) -> int | None:
    """A number among the device's own attributes; None if it has none of this name."""
    attribute = device.attributes.get(name) or device.attributes.get(f"{DRIVER_NAME}/{name}")
    return attribute.int_ if attribute is not None else None


def resource_of(device: Device) -> ResourceType | None:
    """What kind of device it is; None for one that is none of this driver's kinds."""
    resource_type = text_of(device, "resourceType")
    return next((kind for kind in MEANINGS if kind == resource_type), None)


@dataclass(frozen=True)
class Hardware:
    """The hardware of one node, as far as its devices and its instance type tell."""

    devices: tuple[Device, ...]
    """This driver's devices on the node."""
    kind: InstanceType | None
    default_core_size: int | None = None
    """Physical cores in a logical core where the devices do not tell; None: the default of the type."""

    @classmethod
    def of(cls, devices: Iterable[Device], instance_type: str | None = None) -> Hardware:
        """From the devices of this driver on one node.

        Args:
            devices: as published.
            instance_type: of the node; None: the one that all the devices name, if they do.
        """
        given = tuple(devices)
        named = (
            {text_of(device, "instanceType") for device in given} - {""} if instance_type is None else {instance_type}
        )
        return cls(given, lookup(named.pop()) if len(named) == 1 else None)

    @cached_property
    def chips(self) -> tuple[int, ...]:
        """Host indexes of the chips that the node has by its type or by its devices, ascending."""
        indexes = set(range((self.kind.devices or 0) if self.kind is not None else 0))
        for device in self.devices:
            indexes.update(part.chip for part in parts_of(device.name, (), lambda _: 1) or ())
        return tuple(sorted(indexes))

    @cached_property
    def core_sizes(self) -> Mapping[int, int]:
        """Physical cores in a logical core, for the chips whose cores are on offer."""
        return {
            chip: size
            for device in self.devices
            if (size := number_of(device, "logicalCoreSize")) is not None
            and (chip := number_of(device, "deviceId")) is not None
            and 0 < size <= _MOST_CORES
        }

    def core_size(self, chip: int) -> int:
        """Physical cores in a logical core of the chip: of its cores on offer, else the default."""
        usual = self.default_core_size or (self.kind.default_lnc if self.kind is not None else 1)
        return self.core_sizes.get(chip, usual)

    @cached_property
    def _parts(self) -> Mapping[str, tuple[HardwarePart, ...]]:
        return {device.name: self._made_of(device.name) for device in self.devices}

    def parts(self, name: str) -> tuple[HardwarePart, ...]:
        """What a device of the node is made of; () for a name that this driver gives no device."""
        return self._parts[name] if name in self._parts else self._made_of(name)

    def _made_of(self, name: str) -> tuple[HardwarePart, ...]:
        return parts_of(name, self.chips, self.core_size) or ()

    def overlapping(self, name: str, others: Collection[str]) -> tuple[str, ...]:
        """Those of the other devices that have hardware in common with the device, in their order."""
        own = {part.chip: part for part in self.parts(name)}
        return tuple(
            other
            for other in others
            if other != name and any(part.chip in own and part.overlaps(own[part.chip]) for part in self.parts(other))
        )

    def marks(self, names: Iterable[str], *, drawn: Collection[int] = (), outlined: Iterable[str] = ()) -> Marks:
        """How a picture of the node shows these devices; those with chips that are not of its type are left out.

        Args:
            names: devices that are marked.
            drawn: chips whose cores are drawn in any case.
            outlined: groups that are outlined in any case.
        """
        there = range((self.kind.devices or 0) if self.kind is not None else 0)
        drawable = (
            (name, parts) for name in names if (parts := self.parts(name)) and all(part.chip in there for part in parts)
        )
        around = {name: tuple(part.chip for part in self.parts(name)) for name in outlined}
        return marks_of(
            drawable,
            self.kind.cores_per_device if self.kind is not None else 0,
            self.core_size,
            drawn={*drawn} & {*there},
            outlined=((name, chips) for name, chips in around.items() if {*chips} <= {*there}),
        )


_MOST_CORES: Final = 64
"""More than any chip has: what a slice says about the size of a core may be anything."""

"""What a node offers to kubelet, from what it has: chips and logical cores with health and NUMA node."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_driver.claims import logical_cores
from dra_driver.host.inventory import NeuronDevice, NodeInventory
from dra_driver.kubeletplugin.deviceservice import PluginDevice
from dra_driver.legacy.hardware import MOST_CORES_PER_DEVICE, MOST_DEVICES, Hardware, hardware
from dra_driver.legacy.names import Resource
from dra_driver.topology.instance_types import lookup

BROKEN: Final = frozenset({"device-invalid"})
"""Findings about chips that the kernel driver refuses to open."""
_CHIP: Final = re.compile(r"\bneuron([0-9]{1,3})\b")


@dataclass(frozen=True, slots=True)
class Offer:
    """A node's devices as kubelet counts them.

    Attributes:
        hardware: how many there are, and how they are linked. A chip that is lost counts on: it is there and not
            healthy, so that the numbers stay those of the instance type.
        numbers: device numbers (major, minor) of each chip that a container can be given.
        numa: NUMA node by chip, where known.
        env: variables for every container: the node's logical core size, where there is a choice.
    """

    hardware: Hardware
    numbers: Mapping[int, tuple[int, int]]
    numa: Mapping[int, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def usable(self) -> frozenset[int]:
        """Chips that a container can be given."""
        return frozenset(self.numbers)

    @property
    def unusable(self) -> tuple[int, ...]:
        """The other chips, ascending."""
        return tuple(chip for chip in range(self.hardware.devices) if chip not in self.numbers)

    def mask_of_unusable(self) -> int:
        """The cores of those."""
        return self.hardware.mask(Resource.DEVICE, self.unusable)


def offer(inventory: NodeInventory, before: Offer | None) -> Offer | None:
    """What an inventory offers; None until there was a chip for the first time.

    Args:
        inventory: of the node.
        before: what was offered so far. It stays, without a usable chip, while the kernel driver is away.

    Raises:
        DriverError: the numbers of chips and cores cannot be.
    """
    if not inventory.devices:
        return None if before is None else Offer(before.hardware, {}, before.numa, before.env)
    kind = lookup(inventory.instance_type) if inventory.instance_type else None
    env = logical_cores.environment(inventory, {"": None})
    size = int(env.get(logical_cores.VARIABLES[0], 1))
    highest = max(device.index for device in inventory.devices)
    counts = {device.core_count for device in inventory.devices} - {None}
    physical = kind.cores_per_device if kind else min((count for count in counts if count), default=1)
    per_device = min(max(physical // size, 1), MOST_CORES_PER_DEVICE)
    seen = before.hardware.devices if before is not None else 0
    devices = (kind.devices if kind else None) or min(max(highest + 1, seen), MOST_DEVICES)
    return Offer(
        hardware(inventory.instance_type or "", devices, devices * per_device),
        {chip.index: numbers for chip in inventory.devices if (numbers := _numbers(inventory, chip, devices))},
        {
            chip.index: chip.numa_node
            for chip in inventory.devices
            if chip.numa_node is not None and chip.numa_node >= 0
        },
        env,
    )


def _numbers(inventory: NodeInventory, chip: NeuronDevice, devices: int) -> tuple[int, int] | None:
    """Device numbers of a chip that a container can be given, else None."""
    if chip.major is None or chip.minor is None or chip.node_present is False or chip.index >= devices:
        return None
    broken = (finding.subject for finding in inventory.findings if finding.code in BROKEN)
    if any(str(chip.index) in _CHIP.findall(subject) for subject in broken):
        return None
    return chip.major, chip.minor


def plugin_devices(found: Offer, resource: Resource, withheld: Collection[int] = ()) -> tuple[PluginDevice, ...]:
    """The devices of one resource, by id. ``withheld`` are ids that nobody can be given now, besides unusable ones."""
    width = 1 if resource is Resource.DEVICE else found.hardware.cores_per_device
    return tuple(
        PluginDevice(
            str(number),
            healthy=number // width in found.numbers and number not in withheld,
            numa_nodes=(found.numa[number // width],) if number // width in found.numa else (),
        )
        for number in range(found.hardware.units(resource))
    )

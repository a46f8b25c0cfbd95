"""Logical core size (LNC): how many physical NeuronCores the runtime joins into one, and which sizes a node can have.

It is a setting of runtime and compiler, not of the hardware, so two claims on one node may differ. It exists on
Trainium2 and later only. From strong to weak: the claim's configuration, the DeviceClass's, the node's file
``/opt/aws/neuron/logical_nc_config``, the default of the chip.
"""

from __future__ import annotations

from typing import Protocol

from dra_driver.host.inventory import NodeInventory
from dra_driver.topology.instance_types import INSTANCE_TYPES, lookup

VARIABLES = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")
"""The runtime's variable and its older name (aws-neuron-sdk, logical-neuroncore-config)."""


class CoreSizes(Protocol):
    """Which logical core sizes a chip can have."""

    @property
    def lnc_values(self) -> tuple[int, ...]:
        """All of them."""
        ...

    @property
    def default_lnc(self) -> int:
        """The one that holds where nobody says another."""
        ...


def default_size(inventory: NodeInventory) -> int | None:
    """The size where none is configured: the node's, else the chip's; None where the hardware has no logical cores."""
    hardware = core_sizes(inventory)
    if hardware is None or len(hardware.lnc_values) < 2:  # one size is none
        return None
    return inventory.default_lnc if inventory.default_lnc in hardware.lnc_values else hardware.default_lnc


def core_sizes(inventory: NodeInventory) -> CoreSizes | None:
    """What the node's chips can do: by instance type, else by what the kernel driver calls the chip; None: unknown."""
    known = lookup(inventory.instance_type) if inventory.instance_type else None
    if known is not None:
        return known
    architectures = {device.architecture for device in inventory.devices} - {None}
    if len(architectures) != 1:
        return None
    return next((row for row in INSTANCE_TYPES.values() if row.sysfs.device_name in architectures), None)

"""Logical core size (LNC): how many physical NeuronCores the runtime joins into one.

It is a setting of runtime and compiler, not of the hardware, so two claims on one node may differ. It exists on
Trainium2 and later only. What counts, from strong to weak: the claim's configuration, the DeviceClass's, the node's
file ``/opt/aws/neuron/logical_nc_config``, the default of the chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dra_driver.claims.values import PrepareError
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


def environment(inventory: NodeInventory, requested: Mapping[str, int | None]) -> dict[str, str]:
    """Variables for the containers of a claim; none where the hardware has no logical cores.

    Args:
        inventory: the node.
        requested: for each request of the claim the configured size, or None.

    Raises:
        PrepareError: a size is configured that this hardware does not have, or the requests' sizes differ.
    """
    hardware = core_sizes(inventory)
    node = inventory.instance_type or "this node's hardware"
    asked = {request: size for request, size in requested.items() if size is not None}
    if hardware is None or len(hardware.lnc_values) < 2:
        if not asked:
            return {}
        known = "is not known to this version of the driver" if hardware is None else "has no logical NeuronCores"
        raise PrepareError(
            f"NeuronConfig sets logicalNeuronCore {next(iter(asked.values()))}, but {node} {known}",
            consequence="the claim is not prepared",
            remedy="leave logicalNeuronCore out, or select Trainium2 or later in the request",
        )
    node_default = inventory.default_lnc if inventory.default_lnc in hardware.lnc_values else None
    default = node_default or hardware.default_lnc
    sizes = {request: asked.get(request, default) for request in requested}
    illegal = sorted(set(asked.values()).difference(hardware.lnc_values))
    if illegal:
        legal = ", ".join(map(str, hardware.lnc_values))
        raise PrepareError(f"NeuronConfig sets logicalNeuronCore {illegal[0]}, but {node} has only {legal}")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(
            f"{request[:63]}: {size}{'' if request in asked else ' (default)'}" for request, size in sizes.items()
        )
        raise PrepareError(
            f"the requests of the claim have different logicalNeuronCore values ({listed})",
            consequence="a container that uses the whole claim could get only one of them; it is not prepared",
            remedy="use one value for all requests, or a claim for each value",
        )
    size = str(next(iter(sizes.values())))
    return dict.fromkeys(VARIABLES, size)


def core_sizes(inventory: NodeInventory) -> CoreSizes | None:
    """What the node's chips can do: by instance type, else by what the kernel driver calls the chip; None: unknown."""
    known = lookup(inventory.instance_type) if inventory.instance_type else None
    if known is not None:
        return known
    architectures = {device.architecture for device in inventory.devices} - {None}
    if len(architectures) != 1:
        return None
    return next((row for row in INSTANCE_TYPES.values() if row.sysfs.device_name in architectures), None)

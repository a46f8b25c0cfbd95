"""What devices are made of: the one place that says so, whatever the layout."""

from __future__ import annotations

import re
from collections.abc import Collection

from dra_driver.host.inventory import NodeInventory
from dra_driver.names import NODE_DEVICE, device_name
from dra_driver.topology.instance_types import lookup

_CHIP = re.compile(re.escape(device_name(0)).removesuffix("0") + r"(0|[1-9][0-9]{0,4})")


def chips_of(name: str, chips: Collection[int]) -> tuple[int, ...] | None:
    """Host indexes of the chips that the device ``name`` is made of, ascending; None when we publish no such device.

    Args:
        name: of a device of this driver.
        chips: indexes of all chips of the host (``host_chips``), which are what a whole node is made of.
    """
    if name == NODE_DEVICE:
        return tuple(sorted(set(chips))) or None
    match = _CHIP.fullmatch(name)
    return (int(match[1]),) if match else None


def host_chips(inventory: NodeInventory) -> tuple[int, ...]:
    """Indexes of all chips that the host has or should have, ascending.

    A chip that the instance type has belongs to the node also while it is lost: a whole node without it is not whole.
    """
    kind = lookup(inventory.instance_type) if inventory.instance_type else None
    expected = range(kind.devices or 0) if kind is not None else ()
    return tuple(sorted({*expected, *(device.index for device in inventory.devices)}))

"""What a host that is a node of an UltraServer offers: the whole node, its chips, or both.

``node`` is what AWS documents for such hosts. With ``both``, a claim for the node and a claim for one of its chips
exclude each other by shared counters (``dra_driver.slices.counters``). Other hosts offer their chips in any layout.
"""

from __future__ import annotations

from typing import Literal

from dra_driver.host.inventory import NodeInventory
from dra_driver.slices.counters import MOST_COUNTERS
from dra_driver.topology.instance_types import lookup

Layout = Literal["node", "chips", "both"]


def is_ultraserver(inventory: NodeInventory) -> bool:
    """Whether the host is of a type that is part of an UltraServer, whatever files it has."""
    kind = lookup(inventory.instance_type) if inventory.instance_type else None
    return kind is not None and kind.ultraserver is not None


def node_problem(inventory: NodeInventory) -> str:
    """Why an UltraServer host cannot be offered as a whole; "" when it can, and for other hosts."""
    if not is_ultraserver(inventory):
        return ""
    kind = lookup(inventory.instance_type or "")
    usable = {chip.index for chip in inventory.devices if chip.major is not None and chip.minor is not None}
    known = {chip.index for chip in inventory.devices}
    # Where no source says how many chips the type has, the numbers must at least have no gap.
    expected = set(range((kind.devices if kind else None) or max(known, default=0) + 1))
    if surplus := known - expected:
        return f"the instance type {inventory.instance_type} has no {_chips(surplus)}"
    if lost := expected - usable:
        return f"{_chips(lost)} cannot be given to a container"
    if len(expected) > MOST_COUNTERS:
        return f"{len(expected)} chips are more than the {MOST_COUNTERS} of a whole node"
    return ""


def _chips(indexes: set[int]) -> str:
    return ", ".join(f"neuron{index}" for index in sorted(indexes)[:MOST_COUNTERS])

"""Sets of chips: connected or not, contiguous or not, and the ids of the device groups that they form.

The ids in ``resource.aws.com/devicegroupN_id`` are equal for chips whose EFA devices belong together. They are
computed, never stored, by the public rule of ``aws-neuron/connected-device-maps-over-efa-for-neuron``: the id of size 1
is the EFA device's PCI address; the id of size N is the beginning of a SHA-256 over the addresses of the block's EFA
devices. AWS's EFA driver publishes the same ids, so that one claim can request chips and EFA devices that belong
together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache

from dra_driver.neuron.topology.fabric import GROUP_SIZES, IndexSet, is_run
from dra_driver.neuron.topology.instance_types import InstanceType
from dra_driver.util.errors import DriverError

ID_DIGITS = 16
"""Hexadecimal digits of an id of size 4 or more."""


def device_group_ids(instance_type: InstanceType, index: int) -> dict[int, str]:
    """Group size (1, 4, 8, 16) -> id of the group that contains chip ``index``.

    Empty if the type has no EFA pairing or the pairing does not include the chip.
    """
    bdfs = instance_type.efa_bdfs
    if bdfs is None or not 0 <= index < len(bdfs):
        return {}
    return {size: _group_id(bdfs, size, index // size) for size in GROUP_SIZES}


@cache
def _group_id(bdfs: tuple[str, ...], size: int, block: int) -> str:
    members = bdfs[block * size : (block + 1) * size]
    if size == 1:
        return members[0]
    # Two chips may share an EFA device, which is counted once.
    return hashlib.sha256(",".join(sorted(set(members))).encode()).hexdigest()[:ID_DIGITS]


@dataclass(frozen=True, slots=True)
class ChipGroup:
    """One device group: the chips for which ``resource.aws.com/devicegroup<size>_id`` is ``id``."""

    size: int
    id: str
    devices: IndexSet

    @property
    def attribute(self) -> str:
        """Name of the attribute without its domain."""
        return f"devicegroup{self.size}_id"


@dataclass(frozen=True, slots=True)
class Selection:
    """A set of chips of one type."""

    devices: IndexSet
    connected: bool | None
    """Whether they reach each other over links among themselves; None if the fabric is unknown."""
    offered: bool
    """Whether the set is one of the fabric's ``connected_sets``."""
    run: bool
    """Whether they are one contiguous run of host indexes, as the runtime expects of a container's chips."""
    group: ChipGroup | None
    """The smallest device group that contains them all, or None."""

    @property
    def is_group(self) -> bool:
        """Whether the set is a whole device group."""
        return self.group is not None and self.group.devices == self.devices


def select(instance_type: InstanceType, devices: Collection[int]) -> Selection:
    """Describe the chips ``devices`` of one host of this type.

    Raises DriverError if there are none, one is named twice, or one does not exist.
    """
    fabric = instance_type.fabric
    for index in devices:
        fabric.require(index)
    members = tuple(sorted(set(devices)))
    if not members:
        raise DriverError("no device is named", remedy=f"name one or more of 0 to {fabric.size - 1}")
    if len(members) != len(devices):
        repeated = sorted(index for index in members if list(devices).count(index) > 1)
        raise DriverError(f"device {repeated[0]} is named more than once", remedy="name each device once")
    has_fabric = fabric.kind != "unknown" or len(members) == 1
    return Selection(
        devices=members,
        connected=fabric.is_connected(members) if has_fabric else None,
        offered=members in fabric.connected_sets(len(members)),
        run=is_run(members),
        group=_smallest_group(instance_type, members),
    )


def groups(instance_type: InstanceType) -> tuple[ChipGroup, ...]:
    """All device groups of a type, by size and then by first chip; empty if there is no EFA pairing."""
    chips: dict[tuple[int, str], list[int]] = {}
    for index in range(instance_type.devices or 0):
        for size, group_id in device_group_ids(instance_type, index).items():
            chips.setdefault((size, group_id), []).append(index)
    ordered = sorted(chips.items(), key=lambda item: (item[0][0], item[1]))
    return tuple(ChipGroup(size, group_id, tuple(members)) for (size, group_id), members in ordered)


def _smallest_group(instance_type: InstanceType, members: IndexSet) -> ChipGroup | None:
    # On trn1, a group of size 1 contains two chips, which share an EFA device; that does not make it a group of two.
    candidates = (group for group in groups(instance_type) if group.size >= len(members))
    return next((group for group in candidates if set(members) <= set(group.devices)), None)

"""What the hardware of a node can be offered as: chips, connected groups, the whole node, logical cores.

A partition is one device of a division of the hardware. Devices of different divisions overlap, and windows of one ring
overlap each other. A device is made of parts (``HardwarePart``): whole chips, or physical NeuronCores of one chip.
Which ones, follows from its name (``parts_of``); what excludes, exposes or draws devices goes by that, so no other
place knows the partitions.

Names: ``neuron-device-3`` is chip 3, ``neuron-core-3-1`` logical core 1 of chip 3, ``neuron-group4-2`` the third
aligned block of four chips (a row of a torus), ``neuron-window3-5`` the chips 5, 6 and 7 of a ring or chain,
``neuron-node`` all chips. Numbers stand without leading zeros.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dra_driver.neuron.topology.fabric import Fabric, aligned_blocks
from dra_driver.util.errors import DriverError
from dra_driver.util.text import quoted

ResourceType = Literal["neuron_device", "neuron_group", "neuron_node", "neuron_core"]
"""Value of the attribute ``resourceType``. The first and the third are AWS's."""

NODE_DEVICE: Final = "neuron-node"
"""Name of the device that is a whole node."""


def device_name(index: int) -> str:
    """Name of chip ``index`` in ResourceSlices, as the vendor's driver publishes it."""
    return f"neuron-device-{index}"


def core_name(chip: int, core: int) -> str:
    """Name of logical core ``core`` of chip ``chip``."""
    return f"neuron-core-{chip}-{core}"


@dataclass(frozen=True, slots=True, order=True)
class HardwarePart:
    """Hardware that a device is made of."""

    chip: int
    """Host index."""
    cores: tuple[int, ...] = ()
    """Physical NeuronCores of the chip, ascending; (): the whole chip."""

    def overlaps(self, other: HardwarePart) -> bool:
        """Whether both have some hardware in common."""
        if self.chip != other.chip:
            return False
        return not self.cores or not other.cores or not set(self.cores).isdisjoint(other.cores)


@dataclass(frozen=True, slots=True)
class Partitions:
    """What a node offers, as an administrator sets it."""

    chip: bool = False
    group: bool = False
    """Connected groups of all sizes that the fabric has; see ``sizes``."""
    node: bool = False
    core: bool = False
    sizes: frozenset[int] = frozenset()
    """Sizes of groups that are offered although ``group`` is not set."""

    @classmethod
    def parse(cls, text: str) -> Partitions:
        """From what a setting says: ``chip``, ``core``, ``group``, ``group4`` (groups of one size), ``node``.

        They are joined by dots, which the value of a Node's label can have too. DriverError for anything else.
        """
        words = text.strip().split(".")
        sizes = {int(match[1]) for word in words if (match := _SIZED.fullmatch(word))}
        unknown = [word for word in words if word not in _WORDS and not _SIZED.fullmatch(word)]
        if unknown or min(sizes, default=2) < 2:
            raise DriverError(
                f"{quoted(text)} is not a valid value",
                remedy="join one or more of chip, core, group, group4 (or another size), node with dots: chip.core",
            )
        return cls(
            chip="chip" in words,
            group="group" in words,
            node="node" in words,
            core="core" in words,
            sizes=frozenset(sizes),
        )

    def __str__(self) -> str:
        """What ``parse`` reads, in a fixed order; ``nothing`` for none of it."""
        whole = [word for word in ("chip", "core", "group") if getattr(self, word)]
        words = [*whole, *(f"group{size}" for size in sorted(self.sizes)), *(["node"] if self.node else [])]
        return ".".join(words) or "nothing"


_WORDS: Final = frozenset({"chip", "group", "node", "core"})
_SIZED: Final = re.compile(r"group([1-9][0-9]{0,2})")

CHIPS: Final = Partitions(chip=True)
NODE: Final = Partitions(node=True)
CHIPS_AND_NODE: Final = Partitions(chip=True, node=True)


@dataclass(frozen=True, slots=True)
class Partition:
    """A device that the hardware can be offered as."""

    name: str
    resource: ResourceType
    parts: tuple[HardwarePart, ...]
    """Ascending, each chip once."""
    core: int | None = None
    """Number of a logical core on its chip, at ``core_size``."""
    core_size: int | None = None
    """Physical NeuronCores in a logical core, for a core."""

    @property
    def chips(self) -> tuple[int, ...]:
        """Host indexes, ascending."""
        return tuple(part.chip for part in self.parts)


def devices(
    chips: Collection[int],
    fabric: Fabric | None,
    cores: int | None,
    partitions: Partitions,
    core_size: Callable[[int], int],
) -> tuple[Partition, ...]:
    """The devices of these partitions, in the order of publication.

    Schedulers take the first device that fits, and pay for each free device before it: with chips, eight microseconds a
    node and pod (docs/develop/measurements.md). So what there is little of comes first: groups, as long as they are
    fewer than the chips, then chips, then cores. Small groups come before large ones, and the whole node after all
    chips, because a request that does not say what it wants must not get more than it could have done with;
    DeviceClasses keep requests for chips from getting groups.

    Args:
        chips: host indexes that can be given to a container.
        fabric: how they are linked; None: not known, then there are no groups.
        cores: physical NeuronCores of a chip; None: not known, then there are no cores.
        partitions: which to make. A group or node is made only where all its chips are among ``chips``.
        core_size: physical cores in a logical core, by chip.
    """
    there = sorted(set(chips))
    of_fabric = _groups(fabric, partitions)
    groups = [group for group in of_fabric if set(group.chips) <= set(there)]
    singles = (
        [Partition(device_name(index), "neuron_device", (HardwarePart(index),)) for index in there]
        if partitions.chip
        else []
    )
    # By the fabric, so that a lost chip changes no order.
    few = fabric is not None and len(of_fabric) < fabric.size
    all_devices = [*groups, *singles] if few else [*singles, *groups]
    if partitions.node and there:
        all_devices.append(Partition(NODE_DEVICE, "neuron_node", tuple(map(HardwarePart, there))))
    if partitions.core and cores:
        for index in there:
            size = core_size(index)
            all_devices += [
                Partition(
                    core_name(index, core), "neuron_core", (HardwarePart(index, _physical(core, size)),), core, size
                )
                for core in range(cores // size)
            ]
    return tuple(all_devices)


def group_sizes(fabric: Fabric | None) -> tuple[int, ...]:
    """Sizes of the groups that a fabric has: more than one chip, and less than all."""
    return () if fabric is None else tuple(size for size in fabric.set_sizes() if 1 < size < fabric.size)


def _groups(fabric: Fabric | None, partitions: Partitions) -> list[Partition]:
    if fabric is None:
        return []
    groups = []
    for size in group_sizes(fabric):
        if not partitions.group and size not in partitions.sizes:
            continue
        members = fabric.usable_sets(size)
        # Blocks are counted; windows overlap, and are named by their first chip.
        aligned = members == aligned_blocks(fabric.size, size)
        for number, chips in enumerate(members):
            name = f"neuron-group{size}-{number}" if aligned else f"neuron-window{size}-{chips[0]}"
            groups.append(Partition(name, "neuron_group", tuple(map(HardwarePart, chips))))
    return groups


_NUMBER = r"(0|[1-9][0-9]{0,4})"
_CHIP: Final = re.compile(rf"neuron-device-{_NUMBER}")
_CORE: Final = re.compile(rf"neuron-core-{_NUMBER}-{_NUMBER}")
_GROUP: Final = re.compile(rf"neuron-(group|window)([2-9]|[1-9][0-9])-{_NUMBER}")


def parts_of(name: str, chips: Collection[int], core_size: Callable[[int], int]) -> tuple[HardwarePart, ...] | None:
    """What the published device ``name`` is made of; None when no device has such a name.

    Whether the hardware is there is not asked: a device may have been allocated before a chip was lost.

    Args:
        name: of a device of this driver; from any source.
        chips: host indexes of all chips of the node, of which the whole node is made.
        core_size: physical cores in a logical core, by chip.
    """
    device = device_of(name, chips, core_size)
    return None if device is None else device.parts


def chips_of(name: str, chips: Collection[int]) -> tuple[int, ...] | None:
    """Host indexes of the chips that the device ``name`` is made of, or is a part of, ascending.

    Args:
        name: of a device of this driver; None is returned when there is no such device.
        chips: indexes of all chips of the host (``NodeInventory.chip_indexes``): what a whole node is made of.
    """
    parts = parts_of(name, chips, lambda _: 1)
    return None if parts is None else tuple(part.chip for part in parts)


def device_of(name: str, chips: Collection[int], core_size: Callable[[int], int]) -> Partition | None:
    """The device that is published under ``name``; see ``parts_of``."""
    if name == NODE_DEVICE:
        parts = tuple(map(HardwarePart, sorted(set(chips))))
        return Partition(name, "neuron_node", parts) if parts else None
    if match := _CHIP.fullmatch(name):
        return Partition(name, "neuron_device", (HardwarePart(int(match[1])),))
    if match := _CORE.fullmatch(name):
        chip, core = int(match[1]), int(match[2])
        size = core_size(chip)
        return Partition(name, "neuron_core", (HardwarePart(chip, _physical(core, size)),), core, size)
    if match := _GROUP.fullmatch(name):
        size, number = int(match[2]), int(match[3])
        first = number * size if match[1] == "group" else number
        return Partition(name, "neuron_group", tuple(map(HardwarePart, range(first, first + size))))
    return None


def overlap(devices: Sequence[Partition]) -> bool:
    """Whether any two of the devices have hardware in common."""
    seen: dict[int, list[HardwarePart]] = {}
    for device in devices:
        for part in device.parts:
            others = seen.setdefault(part.chip, [])
            if any(part.overlaps(other) for other in others):
                return True
            others.append(part)
    return False


def _physical(core: int, size: int) -> tuple[int, ...]:
    return tuple(range(core * size, core * size + size))

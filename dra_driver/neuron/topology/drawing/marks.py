"""What is marked on a picture: chips, single cores of chips, and groups of chips that are one device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from dra_driver.neuron.topology.partitions import HardwarePart

NO_CORES: Final[Mapping[int, tuple[bool, ...]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Marks:
    """What a picture marks."""

    chips: frozenset[int] = frozenset()
    """Host indexes of the chips that are marked, wholly or in part."""
    cores: Mapping[int, tuple[bool, ...]] = field(default_factory=lambda: NO_CORES)
    """Chips whose logical cores are drawn: for each core, whether it is marked."""
    groups: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names and chips of the groups that are outlined, ascending by size."""
    word: str = "allocated"
    """What the marks mean, for captions."""

    def partly(self, chip: int) -> bool:
        """Whether some cores of the chip are marked, and others are not."""
        return chip in self.chips and not all(self.cores.get(chip, (True,)))

    def share(self, chip: int) -> str:
        """``2/4 cores``, for a chip whose cores are drawn; "" for another."""
        cores = self.cores.get(chip)
        return f"{sum(cores)}/{len(cores)} cores" if cores else ""


def marks_of(
    devices: Iterable[tuple[str, Sequence[HardwarePart]]],
    cores: int,
    core_size: Callable[[int], int],
    *,
    drawn: Collection[int] = (),
    outlined: Iterable[tuple[str, tuple[int, ...]]] = (),
) -> Marks:
    """The marks of some devices of one node.

    Args:
        devices: names of the devices, with what they are made of.
        cores: physical NeuronCores of a chip.
        core_size: physical cores in a logical core, by chip.
        drawn: chips whose cores are drawn even if none of the devices is a core of them.
        outlined: groups that are outlined even if they are not among the devices.
    """
    cores_of: dict[int, set[int]] = {}
    split = set(drawn)
    groups = dict(outlined)
    for name, parts in devices:
        for part in parts:
            cores_of.setdefault(part.chip, set()).update(part.cores or range(cores))
            if part.cores:
                split.add(part.chip)
        if name.startswith(_GROUPS):
            groups[name] = tuple(part.chip for part in parts)
    by_chip = {}
    for chip in sorted(split):
        size, marked = core_size(chip), cores_of.get(chip, set())
        by_chip[chip] = tuple(
            not marked.isdisjoint(range(first, first + size)) for first in range(0, cores - size + 1, size)
        )
    ordered = sorted(groups.items(), key=lambda item: (len(item[1]), item[1], item[0]))
    return Marks(frozenset(cores_of), by_chip, tuple(ordered))


_GROUPS: Final = ("neuron-group", "neuron-window")

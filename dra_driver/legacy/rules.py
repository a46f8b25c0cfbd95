"""Which sets of devices and cores a container may get, and which one is best.

The vendor's rules (aws-neuron-sdk ``deploy/infrastructure/scheduler.rst``): devices of one container are directly
connected: any run of a ring or chain, and on a torus the aligned sets of 1, 4, 8 and 16. One and all are always
possible. Cores are one run of core ids, and the devices beneath them are such a set. A run that leads across the end of
a ring is connected, but the runtime cannot use it (see ``dra_driver.topology.fabric``), so it is not given.

The best set is the one that keeps larger sets whole: what stays free afterwards holds the most sets of the largest
size, then of the next one, and so on.
"""

from __future__ import annotations

from functools import cache, lru_cache

from dra_driver.legacy.hardware import Hardware
from dra_driver.legacy.names import Resource
from dra_driver.topology.fabric import IndexSet

Wholeness = tuple[tuple[int, ...], tuple[int, ...]]
"""Free sets of devices by size, largest first; lengths of free runs of cores, longest first. More is better."""

BEST_SCORE = 10
"""The best of an extender's scores; the least is 0."""


def candidates(hardware: Hardware, resource: Resource, count: int) -> tuple[int, ...]:
    """Masks of the sets that a request may get on an empty node, ascending; none where the rules allow none."""
    # Whoever asks for a billion must not make the table grow.
    return _candidates(hardware, resource, count) if 1 <= count <= hardware.units(resource) else ()


@lru_cache(maxsize=4096)
def _candidates(hardware: Hardware, resource: Resource, count: int) -> tuple[int, ...]:
    if resource is Resource.DEVICE:
        return tuple(hardware.mask(resource, members) for members in _device_sets(hardware, count))
    width = hardware.cores_per_device
    found = []
    for start in range(hardware.cores - count + 1):
        beneath = tuple(range(start // width, (start + count - 1) // width + 1))
        if beneath in _device_sets(hardware, len(beneath)):
            found.append(((1 << count) - 1) << start)
    return tuple(found)


@cache
def _device_sets(hardware: Hardware, count: int) -> tuple[IndexSet, ...]:
    everything = (tuple(range(hardware.devices)),) if count == hardware.devices else ()
    return hardware.fabric.usable_sets(count) or everything


@lru_cache(maxsize=1024)
def counts(hardware: Hardware, resource: Resource) -> tuple[int, ...]:
    """Every count that can be asked for, ascending."""
    units = hardware.units(resource)
    return tuple(count for count in range(1, units + 1) if candidates(hardware, resource, count))


def free_candidates(hardware: Hardware, taken: int, resource: Resource, count: int) -> list[int]:
    """Those sets of ``candidates`` of which nothing is taken."""
    return [mask for mask in candidates(hardware, resource, count) if not mask & taken]


def by_wholeness(hardware: Hardware, taken: int, masks: list[int], shared: int = 0) -> list[int]:
    """Sets, the best first: those with the most of ``shared`` (what the pod has already), then those that keep most."""

    def rank(mask: int) -> tuple[int, Wholeness, int]:
        return -(mask & ~shared).bit_count(), wholeness(hardware, taken | mask), -mask

    return sorted(masks, key=rank, reverse=True)


def wholeness(hardware: Hardware, taken: int) -> Wholeness:
    """How much of a node is whole."""
    return _free_sets(hardware, hardware.first_cores(taken)), tuple(free_runs(hardware, taken))


def free_runs(hardware: Hardware, taken: int) -> list[int]:
    """Lengths of the runs of free cores, longest first."""
    free = ~taken & ((1 << hardware.cores) - 1)
    return sorted(map(len, filter(None, f"{free:b}".split("0"))), reverse=True)


@lru_cache(maxsize=8192)
def _free_sets(hardware: Hardware, busy: int) -> tuple[int, ...]:
    """How many sets of each size are free; ``busy`` has the first cores of the devices that are not."""
    return tuple(sum(not mask & busy for mask in masks) for _, masks in _set_masks(hardware))


@cache
def _set_masks(hardware: Hardware) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Size and masks of all sets of devices, largest first."""
    sizes = range(hardware.devices, 0, -1)
    return tuple((size, found) for size in sizes if (found := candidates(hardware, Resource.DEVICE, size)))


def score(hardware: Hardware, before: int, after: int) -> int:
    """How well a choice packs: 10 when nothing larger than itself was broken, 0 when an empty node was.

    Args:
        hardware: the node.
        before: what was taken.
        after: what is taken with it.
    """
    asked = (after & ~before).bit_count()
    room = hardware.cores - asked
    broken = max(_largest_broken(hardware, before, after), asked)
    return BEST_SCORE if room <= 0 else round(BEST_SCORE * (hardware.cores - broken) / room)


def _largest_broken(hardware: Hardware, before: int, after: int) -> int:
    """Cores of the largest free set that was free before and is not any more."""
    (sets_before, runs_before), (sets_after, runs_after) = wholeness(hardware, before), wholeness(hardware, after)
    for (size, _), was, is_ in zip(_set_masks(hardware), sets_before, sets_after, strict=True):
        if is_ < was:
            return size * hardware.cores_per_device
    for position, length in enumerate(runs_before):
        if position >= len(runs_after) or runs_after[position] != length:
            return length
    return 0

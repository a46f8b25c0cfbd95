"""Measurements of a run: utilisation, fragmentation of the free chips, and which pods were placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dra_driver.simulator.fragmentation.cluster import SET_SIZES, Site

BINS = 120
"""Number of points of a curve over time."""


@dataclass(frozen=True, slots=True)
class Free:
    """Free chips of a node, or free chip-hours of a cluster over some time."""

    chips: float = 0.0
    measured: float = 0.0
    """Those on nodes that have sets at all."""
    unusable: float = 0.0
    """Those of ``measured`` that are in no free set of any size."""
    outside: tuple[float, ...] = (0.0,) * len(SET_SIZES)
    """For each of SET_SIZES: those of ``measured`` in no free set of that size, on nodes that have such sets."""
    eligible: tuple[float, ...] = (0.0,) * len(SET_SIZES)
    """For each of SET_SIZES: free chips on nodes that have such sets."""


def free_on(site: Site, free: int, partly: float = 0.0) -> Free:
    """The figures of one node.

    Args:
        site: the node.
        free: mask of the chips of which nothing is in use.
        partly: how many chips the free cores of the others would make up.
    """
    chips = free.bit_count() + partly
    usable, outside, eligible = 0, [], []
    for size in SET_SIZES:
        masks = site.sets.get(size, ())
        inside = 0
        for mask in masks:
            if mask & free == mask:
                inside |= mask
        usable |= inside
        outside.append((free & ~inside).bit_count() + partly if masks else 0.0)
        eligible.append(chips if masks else 0.0)
    has_sets = any(size in site.sets for size in SET_SIZES)
    measured = chips if has_sets else 0
    unusable = (free & ~usable).bit_count() + partly if has_sets else 0
    return Free(chips, measured, unusable, tuple(outside), tuple(eligible))


def plus(one: Free, other: Free, times: float = 1.0) -> Free:
    """The sum of ``one`` and ``times`` times ``other``."""
    return Free(
        one.chips + times * other.chips,
        one.measured + times * other.measured,
        one.unusable + times * other.unusable,
        tuple(a + times * b for a, b in zip(one.outside, other.outside, strict=True)),
        tuple(a + times * b for a, b in zip(one.eligible, other.eligible, strict=True)),
    )


def share(part: float, whole: float) -> float:
    """The quotient; 0 if ``whole`` is 0."""
    return part / whole if whole > 1e-9 else 0.0


@dataclass(frozen=True, slots=True)
class Moment:
    """Means over one interval that ends at ``hour``."""

    hour: float
    utilisation: float
    fragmentation: float


@dataclass(slots=True)
class Outcome:
    """Results of the pods of one kind, excluding those that arrived during the warm-up."""

    placed: int = 0
    refused: int = 0
    refused_with_chips_free: int = 0
    """Refused although the cluster had as many free chips as requested."""
    several: int = 0
    """Placed with several devices or chips, on nodes whose links are known."""
    linked: int = 0
    """Those of ``several`` whose chips reach each other over links among themselves, or are one."""
    connected: int = 0
    """Those of ``several`` whose chips are a set that the fabric offers as connected, or one chip."""


@dataclass(frozen=True, slots=True)
class Run:
    """One stream under one policy. Shares are 0 to 1; the warm-up is included in ``moments`` only."""

    policy: str
    seed: int
    outcomes: dict[str, Outcome]
    utilisation: float
    """Share of the chips that were in use."""
    fragmentation: float
    """Share of the free chips that were in no free set of 4, 8 or 16."""
    outside: dict[int, float]
    """The same for each size, over the nodes that have sets of it."""
    moments: tuple[Moment, ...]
    reasons: dict[str, str] = field(default_factory=dict)
    """Kind -> the last error that ended the scheduling of one of its pods."""

    @property
    def placed(self) -> int:
        """Number of placed pods of all kinds."""
        return sum(item.placed for item in self.outcomes.values())

    @property
    def refused(self) -> int:
        """Number of refused pods of all kinds."""
        return sum(item.refused for item in self.outcomes.values())


class Meter:
    """Integrates over time: once for the totals, and once for each point of the curves."""

    def __init__(self, chips: int, now: Free, length: float, warm_up: float) -> None:
        self._chips = chips
        self._now = now
        self._hour = 0.0
        self._warm_up = warm_up
        self._width = length / BINS
        self._bins = [Free() for _ in range(BINS)]
        self._total = Free()
        self._measured_hours = length - warm_up

    @property
    def free(self) -> float:
        """Number of chips that are free now."""
        return self._now.chips

    def change(self, before: Free, after: Free) -> None:
        """Record that the figures of a node changed."""
        self._now = plus(plus(self._now, before, -1.0), after)

    def advance(self, hour: float) -> None:
        """Advance the time; nothing changed in between."""
        while self._hour < hour:
            place = min(int(self._hour / self._width + 1e-9), BINS - 1)
            end = hour if place == BINS - 1 else min(hour, (place + 1) * self._width)
            counted = max(0.0, end - max(self._hour, self._warm_up))
            self._bins[place] = plus(self._bins[place], self._now, end - self._hour)
            self._total = plus(self._total, self._now, counted)
            self._hour = end

    def moments(self) -> tuple[Moment, ...]:
        """The points of the curves."""
        whole = self._chips * self._width
        return tuple(
            Moment((place + 1) * self._width, 1 - share(item.chips, whole), share(item.unusable, item.measured))
            for place, item in enumerate(self._bins)
        )

    def figures(self) -> tuple[float, float, dict[int, float]]:
        """Utilisation, fragmentation, and fragmentation by size for the sizes that exist."""
        total = self._total
        by_size: Sequence[tuple[int, float, float]] = tuple(zip(SET_SIZES, total.outside, total.eligible, strict=True))
        return (
            1 - share(total.chips, self._chips * self._measured_hours),
            share(total.unusable, total.measured),
            {size: share(outside, eligible) for size, outside, eligible in by_size},
        )

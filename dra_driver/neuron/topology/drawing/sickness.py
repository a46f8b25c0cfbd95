"""States of chips that are not well, as pictures show them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal

from dra_driver.neuron.topology.fabric import Fabric

Sickness = Literal["unhealthy", "tainted", "unknown", "degraded"]
"""Unhealthy: broken; tainted: kept from pods for other reasons; unknown: the host does not tell; degraded: works."""

SIGNS: Final[Mapping[Sickness, str]] = MappingProxyType(
    {"unhealthy": "x", "tainted": "!", "unknown": "?", "degraded": "~"}
)
"""The gravest first."""

WELL: Final[Mapping[int, Sickness]] = MappingProxyType({})
"""No chip is sick."""


def by_kind(sick: Mapping[int, Sickness]) -> Iterator[tuple[Sickness, tuple[int, ...]]]:
    """The sick chips of each state, ascending, the gravest state first."""
    for kind in SIGNS:
        indexes = tuple(sorted(index for index, sickness in sick.items() if sickness == kind))
        if indexes:
            yield kind, indexes


def listed(indexes: Collection[int]) -> str:
    """Indexes separated by commas, ascending."""
    return ", ".join(str(index) for index in sorted(indexes))


def checked(fabric: Fabric, indexes: Collection[int]) -> None:
    """Raise DriverError if one of the chips does not exist."""
    for index in indexes:
        fabric.require(index)

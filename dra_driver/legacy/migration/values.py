"""What the migration is told beside the files, and how it collects what it has to say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dra_driver.legacy.hardware import Hardware, hardware
from dra_driver.legacy.names import RETIRED_DEVICE, Resource
from dra_driver.simulator.manifests import Origin
from dra_driver.topology.instance_types import InstanceType
from dra_driver.util.errors import DriverError

Path = tuple[str | int, ...]

RESOURCES: Final = {
    Resource.DEVICE.value: Resource.DEVICE,
    RETIRED_DEVICE: Resource.DEVICE,
    Resource.CORE.value: Resource.CORE,
}
"""Name in limits to what it counts."""


class NotPossibleError(DriverError):
    """A legal pod that no claim can stand for, or that no node could ever have run."""


def not_possible(origin: Origin, path: Path, what: str, *, remedy: str = "") -> NotPossibleError:
    """The error for a place of an object, with file and line."""
    return NotPossibleError(origin.told(path, what), remedy=remedy)


@dataclass(frozen=True, slots=True)
class Nodes:
    """On what nodes the pods run, where their own node selectors do not say."""

    instance_type: InstanceType | None = None
    """One with a known number of chips."""
    logical_core_size: int | None = None
    """Physical cores of a logical one; None: the type's default."""

    def of(self, row: InstanceType) -> Hardware:
        """A node of a type as the device plugin counted it. DriverError for a core size that it does not have."""
        size = self.logical_core_size if len(row.lnc_values) > 1 else None
        width = row.cores_per_device // (size or row.default_lnc)
        return hardware(row.name, row.devices or 0, width * (row.devices or 0))


@dataclass(slots=True)
class Warnings:
    """Collects sentences about places; equal sentences count as one, with the first place."""

    _found: dict[str, tuple[Origin, Path, int]] = field(default_factory=dict)

    def add(self, origin: Origin, path: Path, text: str) -> None:
        """Note a sentence about a place."""
        first, where, count = self._found.get(text, (origin, path, 0))
        self._found[text] = (first, where, count + 1)

    def texts(self) -> tuple[str, ...]:
        """The sentences in the order in which they came, each with file and line of its first place."""
        return tuple(
            origin.told(path, text) + (f" (and {count - 1} more places)" if count > 1 else "")
            for text, (origin, path, count) in self._found.items()
        )

"""The documented rules of the legacy resources, written down once more: what is tested does not check itself.

From the vendor's table: on Inferentia any number of devices as one run of neighbouring ids, on hosts of 16 Trainium
chips 1, 4, 8 and 16 as aligned blocks, on all types one or all. Cores are one run, and the devices beneath them are
such a set.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

DEVICE, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
NOUNS = {DEVICE: "device", CORE: "core"}


@dataclass(frozen=True)
class Kind:
    """An instance type: its devices, the logical cores of each, and how devices may be joined."""

    devices: int
    cores: int
    joined: Literal["runs", "blocks", "one or all"]

    def units(self, resource: str) -> int:
        """How many of the resource a node has."""
        return self.devices if resource == DEVICE else self.devices * self.cores

    def allows(self, resource: str, ids: Collection[int]) -> bool:
        """Whether one container may have exactly these."""
        found = sorted(ids)
        if not found or len(set(found)) != len(found) or found[0] < 0 or found[-1] >= self.units(resource):
            return False
        if resource == CORE:
            return _is_run(found) and self.allows(DEVICE, self.beneath(found))
        if len(found) in (1, self.devices):
            return True
        if self.joined == "runs":
            return _is_run(found)
        return self.joined == "blocks" and len(found) in (4, 8) and _is_run(found) and found[0] % len(found) == 0

    def possible(self, resource: str, count: int) -> bool:
        """Whether an empty node has a set of that size."""
        units = self.units(resource)
        return any(self.allows(resource, range(start, start + count)) for start in range(units - count + 1))

    def beneath(self, cores: Collection[int]) -> set[int]:
        """The devices of some cores."""
        return {core // self.cores for core in cores}

    def cores_of(self, resource: str, ids: Collection[int]) -> set[int]:
        """The cores that are taken with some ids."""
        if resource == CORE:
            return set(ids)
        return {core for device in ids for core in range(device * self.cores, (device + 1) * self.cores)}


KINDS = {
    "inf1.xlarge": Kind(1, 4, "runs"),
    "inf1.6xlarge": Kind(4, 4, "runs"),
    "inf1.24xlarge": Kind(16, 4, "runs"),
    "inf2.xlarge": Kind(1, 2, "runs"),
    "inf2.24xlarge": Kind(6, 2, "runs"),
    "inf2.48xlarge": Kind(12, 2, "runs"),
    "trn1.2xlarge": Kind(1, 2, "one or all"),
    "trn1.32xlarge": Kind(16, 2, "blocks"),
    "trn1n.32xlarge": Kind(16, 2, "blocks"),
    "trn2.3xlarge": Kind(1, 4, "one or all"),
    "trn2.48xlarge": Kind(16, 4, "blocks"),
    "trn2u.48xlarge": Kind(16, 4, "blocks"),
    "trn3.48xlarge": Kind(16, 4, "blocks"),
    "trn3e.24xlarge": Kind(4, 4, "one or all"),
    # Nobody knows it, so nothing is promised of its links.
    "trn9.48xlarge": Kind(16, 4, "one or all"),
}
"""One of each fabric and size at least; logical cores at the default size."""


def _is_run(ids: list[int]) -> bool:
    return ids == list(range(ids[0], ids[0] + len(ids)))

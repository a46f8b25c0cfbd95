"""What the slice controller hears: what is desired, and what happened to the slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dra_driver.driver.resourceslices.taints import bare
from dra_driver.kube.objects.resource import CounterSet, Device, ResourceSlice


@dataclass(frozen=True, slots=True)
class Desired:
    """The devices to publish from now on."""

    devices: tuple[Device, ...]
    fallback: tuple[Device, ...] = ()
    """Published instead where ``devices`` consume counters and the server cannot be trusted with them."""
    counters: tuple[CounterSet, ...] = ()
    """What ``devices`` consume from."""
    revision: int = field(default=0, compare=False)
    """What is desired later has a larger one."""

    @property
    def depends_on_gates(self) -> bool:
        """Whether it has fields that a server keeps only with a feature gate."""
        return any(device.consumes_counters or device.taints for device in self.devices)

    def differs_by_taints_only(self, other: Desired) -> bool:
        """Whether health alone tells it from the other."""
        return (bare(self.devices), bare(self.fallback), self.counters) == (
            bare(other.devices),
            bare(other.fallback),
            other.counters,
        )


@dataclass(frozen=True, slots=True)
class Trigger:
    """Look at once."""

    reason: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The watch saw these slices: all there are (``complete``), or one that exists or (version None) is gone."""

    versions: dict[str, str | None]
    complete: bool

    def differs(self, previous: dict[str, str]) -> bool:
        """Whether it is news to a reader who knows these resource versions by name."""
        if self.complete:
            return self.versions != previous
        return any(previous.get(name) != version for name, version in self.versions.items())


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The watch goes on after a break: perhaps with a server of other feature gates or another version."""


Message = Desired | Trigger | Observed | Reconnected


def versions(slices: Sequence[ResourceSlice]) -> dict[str, str]:
    """Resource version by name."""
    return {item.metadata.name: item.metadata.resource_version for item in slices}

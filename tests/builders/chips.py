"""Readings of a host with two chips, made from what is wrong with the first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dra_driver.neuron.health.assess import CORE_COUNTERS, HARDWARE_COUNTERS, Hint
from dra_driver.neuron.host.signals import (
    COMPONENTS,
    CONNECTED,
    ERROR_EVENT,
    HARDWARE,
    HEARTBEAT,
    RESET,
    ChipReading,
    HostReading,
)

SERIALS = ("0e30000000000000", "0e30000000000001")
BOOT = 1_800_000_000
"""Unix time of the first boot."""
FILES = frozenset(
    {*(f"{HARDWARE}/{name}" for name in HARDWARE_COUNTERS), COMPONENTS, HEARTBEAT, ERROR_EVENT, RESET, CONNECTED}
)


@dataclass
class Chip:
    """What the files of a chip say."""

    index: int = 0
    serial: str | None = SERIALS[0]
    architecture: str | None = None
    there: bool = True
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HARDWARE_COUNTERS, 0))
    components: set[str] = field(default_factory=set)
    heartbeat: int = 1
    state: int = 1
    missing_links: tuple[int, ...] = ()
    core_errors: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CORE_COUNTERS, 0))
    cores_read: bool = True
    unusable: set[str] = field(default_factory=set)
    """Paths of files that are there and cannot be used."""
    absent: set[str] = field(default_factory=set)

    def reading(self) -> ChipReading:
        without = self.unusable | self.absent
        return ChipReading(
            index=self.index,
            serial=self.serial,
            architecture=self.architecture,
            counters={name: n for name, n in self.counters.items() if f"{HARDWARE}/{name}" not in without},
            components=None if COMPONENTS in without else tuple(sorted(self.components)),
            heartbeat=None if HEARTBEAT in without else self.heartbeat,
            state=None if RESET in without else self.state,
            missing_links=None if CONNECTED in without else self.missing_links,
            core_errors={name: {2: n} for name, n in self.core_errors.items()} if self.cores_read else None,
            there=FILES - self.absent,
            problems=dict.fromkeys(sorted(self.unusable), "Input/output error"),
        )


@dataclass
class Host:
    """A host of which the first chip may have faults; the second has none."""

    chip: Chip = field(default_factory=Chip)
    other: Chip = field(default_factory=lambda: Chip(1, SERIALS[1]))
    boot: int = 1
    booted_at: int = BOOT
    uptime: float = 100.0
    driver_version: str | None = "2.30.2.0"
    server_links_down: bool | None = False

    @property
    def now(self) -> int:
        """Unix time."""
        return self.booted_at + int(self.uptime)

    def reading(self) -> HostReading:
        return HostReading(
            read_at=self.booted_at + self.uptime,
            uptime=self.uptime,
            boot_id=f"boot-{self.boot}",
            driver_version=self.driver_version,
            chips=tuple(chip.reading() for chip in (self.chip, self.other) if chip.there and self.driver_version),
            expected=frozenset({0, 1}),
            server_links_down=self.server_links_down,
        )

    def reboot(self) -> None:
        """Boot the node; its clock goes on."""
        self.boot += 1
        self.booted_at = self.now + 60
        self.uptime = 5.0

    def hint(self, kind: str, seen: int | None = None, **other: object) -> Hint:
        """A line of the kernel log about the first chip."""
        return Hint(f"boot-{self.boot}", kind, self.now if seen is None else seen, **{"serial": SERIALS[0], **other})  # type: ignore[arg-type]


def codes(faults: Iterable[object]) -> list[str]:
    """Codes of active faults, in their order."""
    return [fault.code for fault in faults]  # type: ignore[attr-defined]

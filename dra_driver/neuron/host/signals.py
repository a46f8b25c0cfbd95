"""Reads what the kernel driver says of the health of each chip, as values; what that means is decided elsewhere.

Nothing here raises, whatever the files hold: a value that is missing, unreadable or nonsense is None with a problem,
never 0. (A firmware register that cannot be read is shown as 0 by the kernel driver itself, so 0 proves nothing.)

Sources: the Neuron kernel driver's sysfs documentation; aws-neuron-sdk ``neuron-sysfs-user-guide.rst``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from dra_driver.neuron.host.devices import device_entries, parse_connected
from dra_driver.neuron.host.discover import BOOT_ID, MODULE_VERSION
from dra_driver.neuron.host.findings import Findings, shown
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.host.sysfs import HostFiles, Reading
from dra_driver.neuron.topology.instance_types import lookup
from dra_driver.util import runtime
from dra_driver.util.text import one_line

HARDWARE: Final = "stats/hardware"
HEALTH_STATUS: Final = f"{HARDWARE}/health_status"
COMPONENTS: Final = f"{HEALTH_STATUS}/unhealthy_components"
HEARTBEAT: Final = f"{HEALTH_STATUS}/healthcheck_heartbeat"
ERROR_EVENT: Final = f"{HEALTH_STATUS}/hw_error_event"
"""The file that a poll waits for: the kernel driver notifies who has read it."""
RESET: Final = "reset"
"""Shows the device's state to root. Never written: that would reset the device."""
CONNECTED: Final = "connected_devices"

LOOK_UP_SECONDS: Final = 60.0
"""Directories that were found are looked up again after so long, and when devices come, go or are replaced."""

_COUNT = re.compile(r"[0-9]{1,20}")
_MAX_COUNT: Final = (1 << 64) - 1
_COMPONENT = re.compile(r"[a-z][a-z0-9_]{0,39}")
_MAX_COMPONENTS: Final = 32
_STATE = re.compile(r"[0-9]{1,3}")
_CORE = re.compile(r"neuron_core(0|[1-9][0-9]?)")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ChipReading:
    """What one chip's files say. None: the file is missing (then there is no problem) or unusable (then there is)."""

    index: int
    serial: str | None = None
    """Of the inventory: each read that the firmware does not answer makes the kernel driver log an error."""
    architecture: str | None = None
    """Of the inventory, such as ``Trainium2``."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """Name of a file of ``stats/hardware`` to its count; one that is missing or unusable is not among them."""
    components: tuple[str, ...] | None = None
    """Names in ``unhealthy_components``; (): none."""
    heartbeat: int | None = None
    state: int | None = None
    """Of ``reset``: 0 resetting, 1 ready, 2 invalid."""
    connected: tuple[int, ...] | None = None
    """Neighbours in ``connected_devices``; None: not read."""
    missing_links: tuple[int, ...] | None = None
    """Neighbours that the instance type has and ``connected_devices`` lacks; None where that cannot be told."""
    core_errors: Mapping[str, Mapping[int, int]] | None = None
    """Counter (such as ``hw_nc_ue_error``) to core to its total; None: not read this time."""
    there: frozenset[str] = frozenset()
    """Paths of the files that exist, whatever they say."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Path, relative to the device's directory, to why its file cannot be used (missing is no problem)."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """All chips of a host at one time."""

    read_at: float
    """Unix time at which the reading began."""
    uptime: float
    """Seconds since boot, also while suspended: for durations, which a step of the clock must not change."""
    boot_id: str
    """"" when it is not known."""
    driver_version: str | None
    """Of the kernel driver; None: it is not loaded."""
    chips: tuple[ChipReading, ...] = ()
    """Those with a directory in sysfs, ascending."""
    unsettled: frozenset[int] = frozenset()
    """Chips whose directory came or went while it was read."""
    expected: frozenset[int] = frozenset()
    """Chips that the instance type has."""
    server_links_down: bool | None = None
    """Whether links to the other nodes of the UltraServer do not work; None: there are none, or it cannot be told."""


class SignalReader:
    """Reads one host again and again.

    Args:
        root: of the host's file system, as for ``discover``.
        counters: names of the files of ``stats/hardware`` to read.
        core_counters: names of the counters of ``neuron_core*/stats/status`` to read.
    """

    def __init__(self, root: Path, counters: Collection[str], core_counters: Collection[str]) -> None:
        self._root = root
        self._counters = tuple(counters)
        self._core_counters = tuple(core_counters)
        self._files, self._looked_up = HostFiles(root), -math.inf
        """With the directories that were looked up at that time since boot: half of what a reading asks the kernel."""
        self._inodes: Mapping[int, int | None] = {}
        """Of the devices' directories: others mean other directories below them."""
        self.at = ""
        """The file that is being read, below the root; "" between two readings."""
        self.event_files: Mapping[int, int] = {}
        """Chip to the descriptor of its ``hw_error_event``, read and so ready for a poll for POLLPRI."""

    def read(self, inventory: NodeInventory, cores_of: Collection[int] | None = None) -> HostReading:
        """What the host says now; never raises for what is, or is not, on it.

        Args:
            inventory: which chips there should be, and their serial numbers.
            cores_of: indexes of the chips whose cores are read too (40 files each with 8 cores); None: all.
        """
        try:
            return self._host(inventory, cores_of)
        finally:
            self.at = ""

    def close(self) -> None:
        """Close the files that were kept open. Not during a reading."""
        self._follow_events(HostFiles(self._root), {})

    def _host(self, inventory: NodeInventory, cores_of: Collection[int] | None) -> HostReading:
        read_at, uptime = runtime.now(), runtime.uptime()
        if not 0.0 <= uptime - self._looked_up < LOOK_UP_SECONDS:
            self._files, self._looked_up = HostFiles(self._root), uptime
        version = self._read(self._files, MODULE_VERSION)
        entries = device_entries(self._files, Findings()) if not version.missing else {}
        inodes = {index: self._files.inode(path) for index, path in entries.items()}
        if inodes != self._inodes:
            self._files, self._inodes = HostFiles(self._root), inodes
        files = self._files
        chips, unsettled = [], set()
        for index, path in entries.items():
            before = inodes[index]
            chip = self._chip(files, inventory, index, path, cores=cores_of is None or index in cores_of)
            if before is None or files.inode(path) != before:
                unsettled.add(index)
            else:
                chips.append(chip)
        self._follow_events(files, {chip.index: entries[chip.index] for chip in chips if ERROR_EVENT in chip.there})
        boot = self._read(files, BOOT_ID).text or self._read(HostFiles(Path("/")), BOOT_ID).text or ""
        return HostReading(
            read_at=read_at,
            uptime=uptime,
            boot_id=one_line(boot, 64),
            driver_version=None if version.missing else one_line(version.text or "", 64),
            chips=tuple(_with_links(inventory, chips)),
            unsettled=frozenset(unsettled),
            expected=frozenset(range(inventory.expected_devices)),
            server_links_down=_server_links_down(inventory),
        )

    def _follow_events(self, files: HostFiles, entries: Mapping[int, str]) -> None:
        """Keep the event files of these devices open, and read each: until then, a poll of it ends at once.

        A file that is gone leaves a descriptor on which each poll ends at once too, so another file means a new one.
        """
        kept: dict[int, int] = {}
        for index, path in entries.items():
            self.at = f"{path}/{ERROR_EVENT}"
            before, status = self.event_files.get(index), files.status(self.at)
            same = before is not None and status is not None and os.path.samestat(os.fstat(before), status)
            descriptor = before if same else files.open(self.at)
            if descriptor is None:
                continue
            try:
                os.pread(descriptor, 64, 0)
                kept[index] = descriptor
            except OSError:
                if descriptor != before:
                    os.close(descriptor)
        for descriptor in set(self.event_files.values()) - set(kept.values()):
            os.close(descriptor)
        self.event_files = kept

    def _read(self, files: HostFiles, path: str) -> Reading:
        self.at = path
        return files.read(path)

    def _chip(self, files: HostFiles, inventory: NodeInventory, index: int, path: str, *, cores: bool) -> ChipReading:
        device = inventory.device(index)
        values = _Values(lambda name: self._read(files, f"{path}/{name}"))
        counters = {name: values.get(f"{HARDWARE}/{name}", count) for name in self._counters}
        values.get(ERROR_EVENT, count)
        return ChipReading(
            index=index,
            serial=device.serial_number if device is not None else None,
            architecture=device.architecture if device is not None else None,
            counters={name: value for name, value in counters.items() if value is not None},
            components=values.get(COMPONENTS, components),
            heartbeat=values.get(HEARTBEAT, count),
            state=values.get(RESET, _state),
            connected=values.get(CONNECTED, parse_connected),
            core_errors=self._cores(files, path, values) if cores else None,
            there=frozenset(values.there),
            problems=values.problems,
        )

    def _cores(self, files: HostFiles, path: str, values: _Values) -> Mapping[str, Mapping[int, int]]:
        counts: dict[str, dict[int, int]] = {name: {} for name in self._core_counters}
        self.at = path
        for entry in files.names(path):
            core = _CORE.fullmatch(entry)
            # Emulated hosts and old kernel drivers have none of these: one look instead of five.
            if core is None or not files.is_directory(f"{path}/{entry}/stats/status"):
                continue
            for name in self._core_counters:
                value = values.get(f"{entry}/stats/status/{name}/total", count)
                if value is not None:
                    counts[name][int(core[1])] = value
        return counts


class _Values:
    """Values of one chip's files, and what is wrong with those that give none."""

    def __init__(self, read: Callable[[str], Reading]) -> None:
        self._read = read
        self.there: set[str] = set()
        self.problems: dict[str, str] = {}

    def get(self, path: str, parse: Callable[[str], Value | None]) -> Value | None:
        content = self._read(path)
        if content.missing:
            return None
        self.there.add(path)
        if content.text is None or content.busy:
            self.problems[path] = content.problem or "busy"
            return None
        value = parse(content.text)
        if value is None:
            self.problems[path] = shown(content.text)
        return value


def count(text: str) -> int | None:
    """A counter of the kernel driver: decimal digits, at most 64 bits."""
    if not (text.isascii() and _COUNT.fullmatch(text)):
        return None
    value = int(text)
    return value if value <= _MAX_COUNT else None


def components(text: str) -> tuple[str, ...] | None:
    """Names separated by commas, sorted; () for an empty line."""
    if not text:
        return ()
    names = [name.strip() for name in text.split(",")]
    if len(names) > _MAX_COMPONENTS or not all(map(_COMPONENT.fullmatch, names)):
        return None
    return tuple(sorted(set(names)))


def _state(text: str) -> int | None:
    return int(text) if text.isascii() and _STATE.fullmatch(text) else None


def _with_links(inventory: NodeInventory, chips: list[ChipReading]) -> list[ChipReading]:
    """The chips with the neighbours that they lack.

    Told only where the table is sure of the links, and on a full node: the kernel driver prints no links otherwise.
    """
    kind = lookup(inventory.instance_type)
    full = kind is not None and {chip.index for chip in chips} == set(range(kind.devices or 0))
    if kind is None or not full or not kind.fabric.adjacency_promised or "fabric" in kind.inferred:
        return chips
    return [
        replace(chip, missing_links=tuple(sorted(set(kind.fabric.neighbours(chip.index)) - set(chip.connected))))
        if chip.connected is not None
        else chip
        for chip in chips
    ]


def _server_links_down(inventory: NodeInventory) -> bool | None:
    if inventory.ultraserver is None or inventory.ultraserver.electing:
        return None
    return any(finding.code == "ultraserver-link-down" for finding in inventory.findings)

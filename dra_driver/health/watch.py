"""Follows the health of a node's chips: reads the host, decides, remembers, and tells of changes.

One worker, which waits for the kernel driver's notifications and for its next turn at once. The host's files are read
in a thread of their own for each reading: a sysfs read can hang in the kernel for good, and then somebody must be left
to say so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from dra_driver.health.assess import (
    CORE_COUNTERS,
    HARDWARE_COUNTERS,
    Hint,
    assess,
    health,
    undecided,
    undecided_cores,
)
from dra_driver.health.faults import SEVERITIES, ActiveFault, ChipHealth, NodeHealth, in_order
from dra_driver.health.hints import read_hints
from dra_driver.health.memory import MemoryFile
from dra_driver.host.inventory import NodeInventory
from dra_driver.host.signals import HostReading, SignalReader
from dra_driver.host.watch import NOTHING_READ
from dra_driver.util.metrics import Sample
from dra_driver.util.worker import Worker

READING: Final = "watching the chips' health"
OLD_SECONDS: Final = 30.0
"""After so long without a reading nothing is known of the chips any more."""
AGAIN_SECONDS: Final = 0.5
"""Until a signal that was seen once is looked for again."""
FIRST_SECONDS: Final = 3.0
"""How long the start waits for the first decision."""
MAX_ROUND_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.2
"""How often a worker whose reading takes long looks whether it should end."""
_CORE_TURNS: Final = 3
"""The cores of each chip are read in one of so many scans: their 640 files of a node with 16 chips cost the most."""

log = logging.getLogger(__name__)


class Reader(Protocol):
    """``SignalReader``."""

    at: str

    def read(self, inventory: NodeInventory, cores_of: Collection[int] | None = None) -> HostReading:
        """See there."""


class HealthWatch:
    """Follows the health of the chips from ``start`` to ``stop``.

    ``on_change`` gets each health whose chips differ from the last one that it took, in the worker's thread; if it
    raises, it is called again after the next reading. What was remembered from an earlier process is ``current`` from
    the beginning.

    Args:
        root: of the host's file system, as for ``discover``.
        inventory: gives the newest inventory.
        state_dir: for the record of what is known.
        hints_dir: where hints of the kernel log are left; None: nowhere.
        on_change: takes a health.
        interval: seconds between readings.
        reader: reads the host.
    """

    def __init__(
        self,
        root: Path,
        inventory: Callable[[], NodeInventory],
        state_dir: Path,
        hints_dir: Path | None,
        on_change: Callable[[NodeHealth], None],
        interval: float = 10.0,
        *,
        reader: Reader | None = None,
    ) -> None:
        self._inventory = inventory
        self._hints_dir = hints_dir
        self._on_change = on_change
        self._interval = interval
        self._reader = reader or SignalReader(root, HARDWARE_COUNTERS, CORE_COUNTERS)
        self._file = MemoryFile(state_dir)
        self._memory = self._file.read()
        self._health = health(self._memory, 0.0)
        self._written = self._memory
        self._told: tuple[ChipHealth, ...] | None = None
        self._turn = 0
        self._again = False
        self._hints_ignored = 0
        self.decided = threading.Event()
        """Set once the host has been read as often as it takes to decide what is wrong with it."""
        self.worker = Worker(READING, self._round, longest=MAX_ROUND_SECONDS)

    @property
    def current(self) -> NodeHealth:
        """The newest health. When it has grown old, chips without a graver fault are ``unreadable``."""
        return aged(self._health, time.time(), self._reader.at, self._inventory().chip_indexes)

    def start(self) -> None:
        """Follow from now on. ``current`` is decided on return, unless the host takes its time to answer."""
        self.worker.start()
        if not self.decided.wait(FIRST_SECONDS):
            log.warning("the health of the chips has not been read within %.0f s; going on without", FIRST_SECONDS)

    def stop(self, timeout: float = 5.0) -> None:
        """Begin no further reading, and wait up to ``timeout`` seconds for the worker. May be called twice."""
        self.worker.stop(timeout)

    def samples(self) -> Iterator[Sample]:
        """The numbers of now, for Prometheus."""
        current = self.current
        for chip in current.chips:
            device = ("device", f"neuron{chip.index}")
            yield Sample("chip_health", "State of each chip; always 1.", 1, (device, ("state", chip.state)))
        yield Sample("health_read_time_seconds", "Unix time of the last good reading.", current.read_at)

    def _round(self) -> float:
        inventory = self._inventory()
        if inventory is NOTHING_READ:
            return AGAIN_SECONDS
        reading = self._read(inventory)
        if reading is None:
            return 0.0
        hints: tuple[Hint, ...] = ()
        if self._hints_dir is not None:
            hints, self._hints_ignored = read_hints(self._hints_dir)
        self._memory, self._health = assess(self._memory, reading, hints)
        # Once, not until it is decided: a signal that comes and goes must not have the host read all the time.
        self._again = undecided(self._memory) and not self._again
        if self._memory != self._written and self._file.write(self._memory):
            self._written = self._memory
        self._tell(self._health)
        if not self._again:
            self.decided.set()
        return AGAIN_SECONDS if self._again else self._interval

    def _read(self, inventory: NodeInventory) -> HostReading | None:
        """A reading, however long it takes; None when the worker is to end meanwhile."""
        first = not self.decided.is_set()
        turn = self._turn = (self._turn + 1) % _CORE_TURNS
        cores = {index for index in inventory.chip_indexes if index % _CORE_TURNS == turn}
        cores |= undecided_cores(self._memory)
        done = threading.Event()
        results: list[HostReading] = []

        def read() -> None:
            with suppress(Exception):
                results.append(self._reader.read(inventory, None if first else cores))
            done.set()

        threading.Thread(target=read, name="reading the chips' health", daemon=True).start()
        while not done.wait(_LOOK_SECONDS):
            if self.worker.stopping:
                return None
            if time.time() - self._health.read_at > OLD_SECONDS:
                self._tell(self.current)
        return results[0]

    def _tell(self, said: NodeHealth) -> None:
        if said.chips != self._told and not self.worker.stopping:
            self._told = None
            self._on_change(said)
            self._told = said.chips


def aged(known: NodeHealth, now: float, hanging_at: str, indexes: Collection[int] = ()) -> NodeHealth:
    """``known`` as it stands at ``now``: when it is too old, chips without a graver fault are ``unreadable``.

    Args:
        known: the health that was read last.
        now: Unix time.
        hanging_at: the file that is being read, "" when none is.
        indexes: chips that there should be.
    """
    if now - known.read_at <= OLD_SECONDS:
        return known
    detail = f"reading {hanging_at} does not end" if hanging_at else "it has not been read for long"
    unreadable = ActiveFault("unreadable", int(known.read_at or now), detail)
    chips = {index: ChipHealth(index) for index in indexes} | {chip.index: chip for chip in known.chips}
    graver = SEVERITIES[: SEVERITIES.index(unreadable.fault.severity)]

    def old(chip: ChipHealth) -> ChipHealth:
        if any(fault.fault.severity in graver or fault.code == unreadable.code for fault in chip.faults):
            return chip
        return replace(chip, faults=in_order((*chip.faults, unreadable)))

    return NodeHealth(tuple(old(chips[index]) for index in sorted(chips)), known.read_at)

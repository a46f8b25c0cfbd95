"""Follows the health of a node's chips: reads the host, decides, remembers, and tells of changes.

One worker, which waits for the kernel driver's notifications and for its next turn at once. The host's files are read
in a thread of their own for each reading: a sysfs read can hang in the kernel for good, and then somebody must be left
to say so.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from dra_driver.neuron.health.assess import (
    CORE_COUNTERS,
    HARDWARE_COUNTERS,
    HealthMemory,
    Hint,
    assess,
    clear,
    health,
    hints_by_chip,
    undecided,
    undecided_cores,
)
from dra_driver.neuron.health.clearing import Answer, answer, take
from dra_driver.neuron.health.faults import SEVERITIES, ActiveFault, ChipHealth, NodeHealth, in_order
from dra_driver.neuron.health.hints import read_hints
from dra_driver.neuron.health.memory import MemoryFile, lasting
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.host.signals import HostReading, SignalReader
from dra_driver.neuron.host.watch import NOTHING_READ
from dra_driver.util import runtime
from dra_driver.util.metrics import Sample
from dra_driver.util.worker import Job, Worker

WATCHING: Final = "watching the chips' health"
MAX_INTERVAL_SECONDS: Final = 10.0
OLD_SECONDS: Final = 30.0
"""After so long without a reading nothing is known of the chips any more."""
AGAIN_SECONDS: Final = 0.4
"""Until a signal that was seen once is looked for again, and between two readings at least."""
FIRST_SECONDS: Final = 3.0
"""How long the start waits for the first decision."""
MAX_ROUND_SECONDS: Final = 20.0
_MOST_AGAIN: Final = 3
"""Readings in a row that do not wait for their turn: a signal may come and go all the time."""
_MOST_NOTIFIED: Final = 10
"""Readings in a minute that a notification causes; what is notified beyond that waits for its turn."""
_LOOK_SECONDS: Final = 0.2
"""How often the worker looks up during a reading that takes long."""
_WRITE_SECONDS: Final = 600.0
"""Counts and times that change with every reading are written that often."""
_CORE_TURNS: Final = 3
"""The cores of a chip are read in one of so many scans, in turn.

On an emulated trn2.48xlarge (16 chips, 8 cores each) with all files, a scan with the 640 files of the cores takes
10 ms of processor time, one without them 2 ms, and one with a third 5 ms. That is in a loop; every ten seconds, with
cold caches, it is about twice as much.
"""

log = logging.getLogger(__name__)


class _Known(NamedTuple):
    """Replaced as a whole: read by other threads."""

    health: NodeHealth
    moment: float
    """``runtime.monotonic()`` at which its reading began; minus infinity: it comes from the record."""


class HealthWatch:
    """Follows the health of the chips from ``start`` to ``stop``.

    ``on_change`` gets each health whose chips differ from the last one that it took, in the worker's thread; if it
    raises, it is called again after the next reading. Faults that an earlier process knew are in ``current`` from the
    beginning, and ``on_change`` is first called when the host has been read, or does not answer.

    Args:
        root: of the host's file system, as for ``discover``.
        inventory: gives the newest inventory.
        state_dir: for the record of what is known, and for requests to clear faults.
        hints_dir: where hints of the kernel log are left; None: nowhere.
        on_change: takes a health.
        interval: seconds between readings; at most ``MAX_INTERVAL_SECONDS`` are used.
        reader: reads the host; by default a ``SignalReader`` of ``root``.
    """

    def __init__(
        self,
        root: Path,
        inventory: Callable[[], NodeInventory],
        state_dir: Path,
        hints_dir: Path | None,
        on_change: Callable[[NodeHealth], None],
        interval: float = MAX_INTERVAL_SECONDS,
        *,
        reader: SignalReader | None = None,
    ) -> None:
        self._inventory = inventory
        self._state_dir = state_dir
        self._hints_dir = hints_dir
        self._on_change = on_change
        self._interval = min(interval, MAX_INTERVAL_SECONDS)
        self._reader = reader or SignalReader(root, HARDWARE_COUNTERS, CORE_COUNTERS)
        self._file = MemoryFile(state_dir)
        self._memory = self._written = self._file.read()
        self._written_at = runtime.monotonic()
        self._began = runtime.now()
        self._known = _Known(health(self._memory, 0.0), -float("inf"))
        self._told: tuple[ChipHealth, ...] | None = None
        self._turn = 0
        self._again = 0
        self._hints_ignored = 0
        self._changes: Counts[int] = Counts()
        self.decided = runtime.event()
        """Set once the host has been read as often as it takes to decide what is wrong with it."""
        self._bell = _Bell(self._reader)
        self.worker = Worker(WATCHING, self._round, longest=MAX_ROUND_SECONDS, woken=self._bell)

    @property
    def current(self) -> NodeHealth:
        """The newest health. Before the first reading, and when it has grown old, chips are ``unreadable``.

        Chips with a graver fault keep what they have.
        """
        latest = self._known
        if not self._is_old(latest):
            return latest.health
        since = int(latest.health.read_at or self._began)
        return aged(latest.health, since, self._reader.at, self._inventory().chip_indexes)

    def start(self) -> None:
        """Follow from now on. ``current`` is decided on return, unless the host takes its time to answer."""
        self.worker.start()
        if not self.decided.wait(FIRST_SECONDS):
            log.warning("the health of the chips has not been read within %.0f s; continuing without it", FIRST_SECONDS)

    def stop(self, timeout: float = 5.0) -> None:
        """Begin no further reading, and wait up to ``timeout`` seconds for the worker. May be called twice."""
        if not self.worker.stop(timeout):
            return
        if self._memory != self._written and self._file.write(self._memory):
            self._written = self._memory
        self._bell.close()
        if not self._reader.at:  # otherwise a reading hangs, and uses them
            self._reader.close()

    def samples(self) -> Iterator[Sample]:
        """The numbers of now, for Prometheus."""
        current = self.current
        yield from chip_samples(current, self._memory, self._changes)
        yield Sample("health_read_time_seconds", "Unix time of the last good reading of the chips.", current.read_at)
        yield Sample("health_notifications", "Readings caused by the kernel driver.", self._bell.rung, kind="counter")
        yield Sample("health_hints_ignored", "Hints of the kernel log that match no chip.", self._hints_ignored)
        yield Sample(
            "health_record_writable", "1 while faults can be remembered on disk.", float(not self._file.problem)
        )

    def _is_old(self, latest: _Known) -> bool:
        return runtime.monotonic() - latest.moment > OLD_SECONDS

    def _round(self) -> float:
        try:
            return self._follow()
        except Exception:
            # Whoever hears only of changes has to hear, too, that what is known has grown old.
            if self.decided.is_set() and self._is_old(self._known):
                self._tell(self.current)
            raise

    def _follow(self) -> float:
        inventory = self._inventory()
        if inventory is NOTHING_READ:
            return AGAIN_SECONDS
        moment = runtime.monotonic()
        reading = self._read(inventory)
        if reading is None or runtime.monotonic() - moment > OLD_SECONDS:
            return 0.0
        hints = self._hints(reading)
        self._memory, current = assess(self._memory, reading, hints)
        if self._clear(reading):
            current = health(self._memory, reading.read_at)
        self._again = self._again + 1 if undecided(self._memory) and self._again < _MOST_AGAIN else 0
        self._remember()
        self._known = _Known(current, moment)
        # Not while it is being decided at the start: what comes first is to be whole.
        if self.decided.is_set() or not self._again:
            self._tell(current)
            self.decided.set()
        return AGAIN_SECONDS if self._again else self._interval

    def _read(self, inventory: NodeInventory) -> HostReading | None:
        """A reading, however long it takes; None when the worker is to end meanwhile."""
        self._turn = (self._turn + 1) % _CORE_TURNS
        turn = {index for index in inventory.chip_indexes if index % _CORE_TURNS == self._turn}
        every = self._bell.has_rung() or not self.decided.is_set()
        cores = None if every else turn | undecided_cores(self._memory)
        job = Job(lambda: self._reader.read(inventory, cores), name="reading the chips' health")
        # Never read: its time to answer is that of the start.
        old_from = max(self._known.moment + OLD_SECONDS, runtime.monotonic() + FIRST_SECONDS)
        has_warned = False
        while not job.wait(_LOOK_SECONDS):
            if self.worker.stopping:
                return None
            if not has_warned and runtime.monotonic() > old_from:
                has_warned = True
                log.error(
                    "reading %s does not end; the state of the chips is not known until it does; check the node's "
                    "kernel log; usually the node must be rebooted",
                    self._reader.at or "the host",
                )
                self._tell(self.current)
        if has_warned:
            log.info("the chips' health can be read again")
        return job.result()

    def _hints(self, reading: HostReading) -> tuple[Hint, ...]:
        if self._hints_dir is None:
            return ()
        hints, malformed = read_hints(self._hints_dir)
        fitting = sum(map(len, hints_by_chip(hints, reading, self._memory).values()))
        ignored = malformed + len(hints) - fitting
        if ignored > self._hints_ignored:
            log.warning(
                "%d files in %s match no chip of this node in this boot, and are ignored", ignored, self._hints_dir
            )
        self._hints_ignored = ignored
        return hints

    def _clear(self, reading: HostReading) -> bool:
        """Do what ``dra-driver health clear`` asks for; whether there was anything."""
        requests = take(self._state_dir)
        for identity, index in requests.items():
            is_known = self._memory.chip(index) is not None
            self._memory, cleared, kept = clear(self._memory, index, reading.read_at)
            log.info("neuron%d: cleared by an administrator: %s", index, ", ".join(cleared) or "nothing")
            self._remember()
            with contextlib.suppress(OSError):  # then the asker says that no driver has answered
                answer(self._state_dir, identity, Answer(index, is_known, cleared, kept))
        return bool(requests)

    def _remember(self) -> None:
        overdue = runtime.monotonic() - self._written_at > _WRITE_SECONDS and self._memory != self._written
        if (overdue or lasting(self._memory) != lasting(self._written)) and self._file.write(self._memory):
            self._written, self._written_at = self._memory, runtime.monotonic()

    def _tell(self, current: NodeHealth) -> None:
        if current.chips == self._told or self.worker.stopping:
            return
        before = {chip.index: chip for chip in self._told or ()}
        self._told = None
        self._on_change(current)
        self._told = current.chips
        for chip in current.chips:
            self._note(before.get(chip.index), chip)

    def _note(self, before: ChipHealth | None, after: ChipHealth) -> None:
        """Log and count what has become of a chip."""
        had = {fault.code for fault in before.own} if before is not None else set()
        for fault in after.own:
            if fault.code not in had:
                log.warning("neuron%d is %s: %s [%s]", after.index, fault.fault.severity, fault.text, fault.code)
        for code in sorted(had - {fault.code for fault in after.own}):
            log.info("neuron%d: %s is over", after.index, code)
        if before is not None and before.state != after.state:
            self._changes[after.index] += 1


def chip_samples(current: NodeHealth, memory: HealthMemory, changes: Mapping[int, int]) -> Iterator[Sample]:
    """The numbers of each chip.

    Args:
        current: how the chips are.
        memory: with what was counted of them.
        changes: how often the state of each chip has changed, by host index; those left out never did.
    """
    for chip in current.chips:
        device = ("device", f"neuron{chip.index}")
        yield Sample("chip_health", "State of each chip; always 1.", 1, (device, ("state", chip.state)))
        for fault in chip.faults:
            labels = (device, ("fault", fault.code), ("severity", fault.fault.severity))
            yield Sample("chip_fault", "Faults of each chip; always 1.", 1, labels)
        changed = changes.get(chip.index, 0)
        yield Sample("chip_health_changes", "Changes of a chip's state.", changed, (device,), "counter")
    for of_chip in memory.chips:
        totals: Counts[str] = Counts()
        for name, counter in of_chip.counters.items():
            totals[name.partition("/")[0]] += counter.total
        for kind, total in sorted(totals.items()):
            where = (("device", f"neuron{of_chip.index}"), ("kind", kind))
            yield Sample("chip_errors", "Errors counted across driver reloads.", total, where, "counter")


class _Bell:
    """What the worker waits for: its own wake-up calls, and notifications by the kernel driver in the event files."""

    def __init__(self, reader: SignalReader) -> None:
        self._reader = reader
        self._descriptor: int | None = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = runtime.lock()
        self._times: deque[float] = deque(maxlen=_MOST_NOTIFIED)
        self._notified = False
        self.rung = 0
        """How often a notification ended a wait."""

    def set(self) -> None:
        with self._lock:
            if self._descriptor is not None:
                os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._descriptor is not None:
                os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Let go of the descriptor; from now on ``set`` does nothing."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def has_rung(self) -> bool:
        """Whether a notification has ended the last wait; told once."""
        notified, self._notified = self._notified, False
        return notified

    def wait(self, timeout: float | None = None) -> bool:
        own = self._descriptor
        if own is None:
            return True
        began = runtime.monotonic()
        heeded = len(self._times) < _MOST_NOTIFIED or began - self._times[0] > 60.0
        ready = runtime.poll((own,), self._reader.event_files.values() if heeded else (), timeout)
        if ready and own not in ready:
            self.rung += 1
            self._notified = True
            self._times.append(runtime.monotonic())
            # A device that notifies all the time must not have the host read all the time.
            runtime.poll((own,), (), max(0.0, began + AGAIN_SECONDS - runtime.monotonic()))
        return bool(ready)


def aged(latest: NodeHealth, since: int, hanging_at: str, indexes: Collection[int] = ()) -> NodeHealth:
    """``latest``, which is too old to be relied on: chips without a graver fault are ``unreadable``.

    Args:
        latest: the health that was read last.
        since: Unix time from which on nothing is known.
        hanging_at: the file that is being read, "" when none is.
        indexes: chips that there should be.
    """
    detail = f"reading {hanging_at} does not end" if hanging_at else "it has not been read for a long time"
    unreadable = ActiveFault("unreadable", since, detail)
    graver = SEVERITIES[: SEVERITIES.index(unreadable.fault.severity)]

    def old(chip: ChipHealth) -> ChipHealth:
        others = tuple(fault for fault in chip.faults if fault.code != unreadable.code)
        if any(fault.fault.severity in graver for fault in others):
            return chip
        return ChipHealth(chip.index, in_order((*others, unreadable)))

    chips = {index: ChipHealth(index) for index in indexes} | {chip.index: chip for chip in latest.chips}
    return NodeHealth(tuple(old(chips[index]) for index in sorted(chips)), latest.read_at)

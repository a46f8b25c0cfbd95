"""Decides which faults the chips have: what was known, and what the host says now, give what is known and the health.

Each row of ``FAULTS`` has one rule, that of its kind of signal: a row about another counter, another component or
another kind of line in the kernel log needs nothing here. A rule answers for one chip and one reading: the signal is
there, is not there, or cannot be told (the file is unreadable, say). From that it follows for every row alike:

* a fault begins when its signal was there on two readings, with none in between that denied it;
* it is over when its signal was denied on two readings in a row and for ``quiet_seconds`` on end. What cannot be told
  ends nothing and starts the wait anew;
* a boot ends what only the driver remembered at once, and the rest when two readings deny it.

Durations are measured by the time since boot: a step of the clock neither begins nor ends a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from dra_driver.neuron.health.faults import (
    BOOT,
    FAULTS,
    NOT_LOADED,
    ActiveFault,
    ChipHealth,
    Component,
    CoreCounter,
    Fault,
    Growing,
    LogLine,
    NodeHealth,
    Positive,
    in_order,
)
from dra_driver.neuron.host.signals import COMPONENTS, CONNECTED, HARDWARE, HEARTBEAT, RESET, ChipReading, HostReading
from dra_driver.util.text import first_of, one_line

STALLED_SECONDS: Final = 60.0
"""A heartbeat that has not grown for so long stands still."""
_DETAIL_BYTES: Final = 200
_INVALID: Final = 2
"""In the file ``reset``."""
CLOCK_SECONDS: Final = 300
"""A time that is further in the future than this is nonsense: it was written when the clock was wrong."""


class Track(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one fault of one chip."""

    first: int
    """Unix time at which the signal was seen first."""
    since: int = 0
    """Unix time at which the fault began; 0: not yet, its signal was seen only once."""
    detail: str = ""
    denied: int = 0
    """Readings in a row that denied the signal; 0, 1 or 2 (meaning more)."""
    quiet_from: float | None = None
    """Seconds since boot at the first of them."""
    earlier_boot: bool = False
    """Not seen since the node was booted."""
    uptime: float | None = None
    """Seconds since boot at which the signal was seen first in this boot."""


class CounterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one counter."""

    value: int
    """What two readings agree on."""
    base: int = 0
    """What it had when it was last taken note of; more than that is a signal."""
    carried: int = 0
    """Counted before the counter fell, as it does when the kernel driver is reloaded."""
    doubtful: int | None = None
    """What only the last reading had."""

    @property
    def total(self) -> int:
        """Counted across reloads of the kernel driver."""
        return self.carried + self.value


class Heartbeat(msgspec.Struct, frozen=True):
    """What is known of the firmware's heartbeat."""

    value: int
    changed_at: float
    """Seconds since boot at which it was first seen to be this."""
    moves: bool = False
    """Whether it was ever seen to grow: emulated hosts and old firmware have one that never does."""
    moved: bool = False
    """Whether it did in this boot."""


class ChipMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one chip."""

    index: int
    serial: str | None = None
    tracks: dict[str, Track] = {}
    """By code of the fault."""
    counters: dict[str, CounterState] = {}
    """By file of ``stats/hardware``, and by ``<file>/<core>``. A core's counter that was never above 0 is left out."""
    heartbeat: Heartbeat | None = None
    there: tuple[str, ...] = ()
    """Files seen under this kernel driver: one that goes missing says nothing, one that never was says "no"."""
    newest_hint: int = 0
    """Unix time of the newest line of the kernel log about this chip."""
    cleared_at: int = 0
    """Unix time up to which lines of the kernel log do not count."""
    architecture: str | None = None


class HealthMemory(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that is known of a node; what has to outlive the process."""

    boot_id: str = ""
    driver_version: str | None = None
    chips: tuple[ChipMemory, ...] = ()
    """Ascending by index."""

    def chip(self, index: int) -> ChipMemory | None:
        """What is known of one chip."""
        return next((chip for chip in self.chips if chip.index == index), None)


class Hint(msgspec.Struct, frozen=True, rename="camel"):
    """A line of the kernel log about a chip, found by another program. Any program with a device open can forge one."""

    boot_id: str
    kind: str
    seen: int
    """Unix time."""
    device: int | None = None
    """As the runtime numbers it, which in a container need not be the host's number."""
    serial: str = ""
    core: int | None = None


class SignalReading(NamedTuple):
    """What a reading says about one signal of one chip."""

    present: bool | None
    """None: it cannot be told."""
    detail: str = ""
    since: int | None = None
    """Unix time at which it began, where the signal itself says so."""


_NO: Final = SignalReading(False)
_UNTOLD: Final = SignalReading(None)


class View(NamedTuple):
    """What a rule looks at: one chip."""

    host: HostReading
    chip: ChipReading | None
    """None: its directory is not there, or came or went during the reading."""
    memory: ChipMemory
    """With the counters and the heartbeat of this reading."""
    hints: tuple[Hint, ...]

    def missing(self, path: str) -> SignalReading:
        """For a file that gave no value: whether that is because this kernel driver has no such file."""
        chip = self.chip
        is_gone = chip is not None and path not in chip.there and path not in self.memory.there
        return _NO if is_gone else _UNTOLD


Rule = Callable[[View], SignalReading]


def _positive(name: str) -> Rule:
    def rule(view: View) -> SignalReading:
        value = view.chip.counters.get(name) if view.chip is not None else None
        if value is None:
            return view.missing(f"{HARDWARE}/{name}")
        return SignalReading(True, _errors(value)) if value > 0 else _NO

    return rule


def _errors(count: int) -> str:
    """A number that does not change all the time: who hears of each change gets this text, too."""
    if count < 10:
        return f"{count} error{'s' if count > 1 else ''}"
    return f"{10 ** (len(str(count)) - 1):,} errors or more"


def _growing(name: str) -> Rule:
    def rule(view: View) -> SignalReading:
        value = view.chip.counters.get(name) if view.chip is not None else None
        counter = view.memory.counters.get(name)
        if value is None or counter is None:
            return view.missing(f"{HARDWARE}/{name}")
        return SignalReading(value > counter.base)

    return rule


def _component(name: str) -> Rule:
    def rule(view: View) -> SignalReading:
        components = view.chip.components if view.chip is not None else None
        return view.missing(COMPONENTS) if components is None else SignalReading(name in components)

    return rule


def _core_counter(name: str) -> Rule:
    def rule(view: View) -> SignalReading:
        if view.chip is None or view.chip.core_errors is None:
            return _UNTOLD
        values = view.chip.core_errors.get(name, {})
        grown = [core for core, value in sorted(values.items()) if value > _base(view.memory, f"{name}/{core}")]
        return SignalReading(True, first_of([f"neuron_core{core}" for core in grown], 4)) if grown else _NO

    return rule


def _base(memory: ChipMemory, name: str) -> int:
    counter = memory.counters.get(name)
    return counter.base if counter is not None else 0


def _logged(kind: str) -> Rule:
    def rule(view: View) -> SignalReading:
        # Which lines came after a clearing by a clock that was ahead is not known, so it counts for none.
        cleared_at = _credible(view.memory.cleared_at, view.host.read_at)
        hints = [hint for hint in view.hints if hint.kind == kind and hint.seen > cleared_at]
        if not hints:
            return _NO
        first = min(hints, key=lambda hint: (hint.seen, -1 if hint.core is None else hint.core))
        detail = f"neuron_core{first.core}" if first.core is not None else ""
        return SignalReading(True, detail, min(first.seen, int(view.host.read_at)))

    return rule


def _credible(moment: int, now: float) -> int:
    """A Unix time that was noted, or 0 if the clock was ahead then."""
    return moment if moment <= now + CLOCK_SECONDS else 0


def _other_component(view: View) -> SignalReading:
    components = view.chip.components if view.chip is not None else None
    if components is None:
        return view.missing(COMPONENTS)
    others = [name for name in components if name not in COMPONENT_NAMES]
    return SignalReading(True, first_of(others, 4)) if others else _NO


def _stalled(view: View) -> SignalReading:
    heartbeat = view.memory.heartbeat
    if view.chip is None or view.chip.heartbeat is None or heartbeat is None:
        return view.missing(HEARTBEAT)
    if heartbeat.moves and view.host.uptime - heartbeat.changed_at >= STALLED_SECONDS:
        return SignalReading(True)
    return _NO if heartbeat.moved or not heartbeat.moves else _UNTOLD


def _invalid(view: View) -> SignalReading:
    state = view.chip.state if view.chip is not None else None
    return view.missing(RESET) if state is None else SignalReading(state == _INVALID)


def _lost(view: View) -> SignalReading:
    if view.chip is not None:
        return _NO
    loaded = view.host.driver_version is not None
    return SignalReading(True) if loaded and view.memory.index not in view.host.unsettled else _UNTOLD


def _link_lost(view: View) -> SignalReading:
    missing = view.chip.missing_links if view.chip is not None else None
    if missing is None:
        return view.missing(CONNECTED)
    return SignalReading(True, "to " + first_of([f"neuron{index}" for index in missing], 4)) if missing else _NO


def _server_link_lost(view: View) -> SignalReading:
    return SignalReading(view.host.server_links_down)


def _unreadable(view: View) -> SignalReading:
    if view.host.driver_version is None:
        return SignalReading(True, NOT_LOADED)
    chip = view.chip
    if chip is None:
        return _UNTOLD
    for path in sorted({*REQUIRED, *view.memory.there} - chip.there):
        return SignalReading(True, f"{path} is missing")
    for path, problem in sorted(chip.problems.items()):
        if path.startswith(f"{HARDWARE}/"):
            return SignalReading(True, one_line(f"{path}: {problem}", _DETAIL_BYTES))
    return _NO


_BY_CODE: Final[Mapping[str, Rule]] = {
    "component-unhealthy": _other_component,
    "heartbeat-stalled": _stalled,
    "device-invalid": _invalid,
    "device-lost": _lost,
    "link-lost": _link_lost,
    "server-link-lost": _server_link_lost,
    "unreadable": _unreadable,
}


def _rule(row: Fault) -> Rule:
    match row.signal:
        case Positive(counter):
            return _positive(counter)
        case Growing(counter):
            return _growing(counter)
        case Component(name):
            return _component(name)
        case CoreCounter(counter):
            return _core_counter(counter)
        case LogLine(kind):
            return _logged(kind)
        case _:
            return _BY_CODE[row.code]


_SIGNALS: Final = {row.code: row.signal for row in FAULTS.values()}
RULES: Final[Mapping[str, Rule]] = {code: _rule(row) for code, row in FAULTS.items()}
COMPONENT_NAMES: Final = frozenset(signal.name for signal in _SIGNALS.values() if isinstance(signal, Component))
HARDWARE_COUNTERS: Final = tuple(
    signal.counter for kind in (Positive, Growing) for signal in _SIGNALS.values() if isinstance(signal, kind)
)
CORE_COUNTERS: Final = tuple(signal.counter for signal in _SIGNALS.values() if isinstance(signal, CoreCounter))
KINDS: Final = frozenset(signal.kind for signal in _SIGNALS.values() if isinstance(signal, LogLine))
"""Kinds of lines of the kernel log."""
REQUIRED: Final = frozenset({f"{HARDWARE}/sram_ecc_uncorrected", f"{HARDWARE}/mem_ecc_uncorrected"})
"""Files that every kernel driver has."""
_RISING: Final = {signal.counter: code for code, signal in _SIGNALS.items() if isinstance(signal, Growing)}
_CORE_CODES: Final = {code: signal.counter for code, signal in _SIGNALS.items() if isinstance(signal, CoreCounter)}


def assess(memory: HealthMemory, reading: HostReading, hints: Collection[Hint] = ()) -> tuple[HealthMemory, NodeHealth]:
    """What is known after this reading, and the health that follows.

    Args:
        memory: after the reading before; ``HealthMemory()`` at first.
        reading: of the host.
        hints: lines of the kernel log; those about other boots or chips are left out.
    """
    booted = "" not in {memory.boot_id, reading.boot_id} and memory.boot_id != reading.boot_id
    reloaded = booted or memory.driver_version != reading.driver_version
    read = {chip.index: chip for chip in reading.chips}
    indexes = {*read, *reading.unsettled, *reading.expected, *(() if booted else (c.index for c in memory.chips))}
    by_chip = hints_by_chip(hints, reading, memory)
    chips = []
    for index in sorted(indexes):
        chip = read.get(index)
        of_chip = memory.chip(index) or ChipMemory(index)
        if booted:
            of_chip = _after_boot(of_chip)
        if reloaded:
            of_chip = replace(of_chip, there=())
        of_chip = _noted(of_chip, chip, reading)
        view = View(reading, chip, of_chip, tuple(by_chip.get(index, ())))
        chips.append(_judged(view))
    after = HealthMemory(reading.boot_id or memory.boot_id, reading.driver_version, tuple(chips))
    return after, health(after, reading.read_at)


def health(memory: HealthMemory, read_at: float) -> NodeHealth:
    """What memory alone says."""
    return NodeHealth(tuple(ChipHealth(chip.index, _active(chip)) for chip in memory.chips), read_at)


def _active(chip: ChipMemory) -> tuple[ActiveFault, ...]:
    return in_order(
        ActiveFault(code, track.since, track.detail, track.uptime) for code, track in chip.tracks.items() if track.since
    )


def undecided(memory: HealthMemory) -> bool:
    """Whether one more reading may begin or end a fault: worth not waiting for the next turn."""
    return any(
        not track.since or (track.denied == 1 and (track.earlier_boot or FAULTS[code].quiet_seconds == 0))
        for chip in memory.chips
        for code, track in chip.tracks.items()
    )


def undecided_cores(memory: HealthMemory) -> frozenset[int]:
    """Chips whose cores must be read again for that."""
    return frozenset(
        chip.index
        for chip in memory.chips
        if any(code in _CORE_CODES and not track.since for code, track in chip.tracks.items())
    )


def _after_boot(memory: ChipMemory) -> ChipMemory:
    tracks = {
        code: replace(track, denied=0, quiet_from=None, earlier_boot=True, uptime=None)
        for code, track in memory.tracks.items()
        if track.since and FAULTS[code].quiet_seconds is not BOOT
    }
    counters = {}
    for name, counter in memory.counters.items():
        if "/" in name:  # the kernel driver's own: it has begun anew
            counters[name] = CounterState(value=0, carried=counter.total)
        else:  # the firmware's, which may have kept it
            counters[name] = replace(counter, base=counter.value, doubtful=None)
    heartbeat = memory.heartbeat
    if heartbeat is not None:
        heartbeat = replace(heartbeat, value=-1, moved=False)
    return replace(memory, tracks=tracks, counters=counters, heartbeat=heartbeat)


def _noted(memory: ChipMemory, chip: ChipReading | None, reading: HostReading) -> ChipMemory:
    """With the counters, the heartbeat and the files of this reading."""
    if chip is None:
        return memory
    if _differ(memory.serial, chip.serial) or _differ(memory.architecture, chip.architecture):
        memory = ChipMemory(memory.index)  # another chip has its number now
    counters = dict(memory.counters)
    for name, value in chip.counters.items():
        counters[name] = _counted(counters.get(name) or CounterState(value, base=value), value, after_fall=value)
    for name, values in (chip.core_errors or {}).items():
        for core, value in values.items():
            before = counters.get(f"{name}/{core}")
            if before is not None or value:
                counters[f"{name}/{core}"] = _counted(before or CounterState(0), value, after_fall=0)
    there = {path for path in chip.there if path.startswith(f"{HARDWARE}/") or path == RESET}
    return replace(
        memory,
        serial=chip.serial or memory.serial,
        architecture=chip.architecture or memory.architecture,
        counters=counters,
        heartbeat=_beating(memory.heartbeat, chip.heartbeat, reading.uptime),
        there=tuple(sorted({*memory.there, *there})),
    )


def _differ(before: str | None, now: str | None) -> bool:
    """Whether both are known and not the same."""
    return None not in {before, now} and before != now


def _counted(counter: CounterState, value: int, *, after_fall: int) -> CounterState:
    """After one more reading: it rises by what two readings agree on, and falls when two have less.

    ``after_fall``: the base that it has then.
    """
    now, before = counter.value, counter.doubtful
    if value == now:
        return replace(counter, doubtful=None)
    if before is None or (before > now) != (value > now):
        return replace(counter, doubtful=value)
    if value > now:
        agreed = min(before, value)
        return replace(counter, value=agreed, doubtful=None if value == agreed else value)
    return CounterState(value, base=after_fall, carried=counter.total)


def _beating(heartbeat: Heartbeat | None, value: int | None, uptime: float) -> Heartbeat | None:
    if value is None:
        return heartbeat
    if heartbeat is None:
        return Heartbeat(value, uptime)
    if heartbeat.value < 0 or value < heartbeat.value:  # after a boot or a reload
        return replace(heartbeat, value=value, changed_at=uptime)
    if value > heartbeat.value:
        return Heartbeat(value, uptime, moves=True, moved=True)
    return heartbeat if heartbeat.changed_at <= uptime else replace(heartbeat, changed_at=uptime)


def _judged(view: View) -> ChipMemory:
    memory = view.memory
    tracks, counters = {}, dict(memory.counters)
    for code, rule in RULES.items():
        signal = rule(view)
        track = _followed(FAULTS[code], memory.tracks.get(code), signal, view.host)
        if track is not None:
            tracks[code] = track
    for name, code in _RISING.items():
        # Once taken note of, only a further rise is a signal.
        if name in counters and code in tracks and tracks[code].since:
            counters[name] = replace(counters[name], base=max(counters[name].base, counters[name].value))
    newest = max((hint.seen for hint in view.hints), default=0)
    return replace(memory, tracks=tracks, counters=counters, newest_hint=max(memory.newest_hint, newest))


def _followed(row: Fault, track: Track | None, signal: SignalReading, reading: HostReading) -> Track | None:
    """What is known of a fault after one more reading; None: nothing, it is not there."""
    if signal.present:
        if track is None:
            first = int(reading.read_at) if signal.since is None else signal.since
            return Track(first, detail=signal.detail, uptime=reading.uptime)
        uptime = reading.uptime if track.uptime is None else min(track.uptime, reading.uptime)
        return Track(track.first, since=track.since or track.first, detail=signal.detail, uptime=uptime)
    if track is None:
        return None
    if signal.present is None:
        return replace(track, denied=0, quiet_from=None)
    if not track.since:
        return None
    if row.quiet_seconds is BOOT:
        return track
    quiet_from = reading.uptime if track.quiet_from is None else min(track.quiet_from, reading.uptime)
    quiet = reading.uptime - quiet_from
    if track.denied and (track.earlier_boot or quiet >= row.quiet_seconds):
        return None
    return replace(track, denied=min(track.denied + 1, 2), quiet_from=quiet_from)


def hints_by_chip(hints: Collection[Hint], reading: HostReading, memory: HealthMemory) -> Mapping[int, list[Hint]]:
    """The hints that are about a chip of this node, in this boot; the others are left out.

    The serial number decides. Without one, the number of the device does, where there is such a chip.
    """
    now = {chip.index: chip.serial for chip in reading.chips if chip.serial}
    serials = {chip.serial: chip.index for chip in memory.chips if chip.serial and chip.index not in now}
    serials |= {serial: index for index, serial in now.items()}
    indexes = {*reading.expected, *(chip.index for chip in reading.chips), *(chip.index for chip in memory.chips)}
    by_chip: dict[int, list[Hint]] = {}
    for hint in hints:
        if hint.kind not in KINDS or hint.seen > reading.read_at + CLOCK_SECONDS:
            continue
        if reading.boot_id and hint.boot_id != reading.boot_id:
            continue
        named = hint.serial.strip("0") != "" and bool(serials)
        index = serials.get(hint.serial) if named else hint.device
        if index is not None and index in indexes:
            by_chip.setdefault(index, []).append(hint)
    return by_chip


class Cleared(NamedTuple):
    """What became of a wish to clear a chip's faults."""

    memory: HealthMemory
    cleared: tuple[str, ...]
    """Codes."""
    kept: tuple[str, ...]
    """Codes of faults that the host still reports, or did when it could last be told."""


def clear(memory: HealthMemory, index: int, now: float) -> Cleared:
    """Forget the faults of a chip that only the driver remembers. What came of them before does not bring them back."""
    of_chip = memory.chip(index)
    if of_chip is None:
        return Cleared(memory, (), ())
    kept = {
        code: track
        for code, track in of_chip.tracks.items()
        if FAULTS[code].quiet_seconds is not BOOT and not track.denied
    }
    names = {f"{name}/" for name in _CORE_CODES.values()}
    counters = {
        name: replace(counter, base=max(counter.value, counter.doubtful or 0))
        if any(name.startswith(start) for start in names)
        else counter
        for name, counter in of_chip.counters.items()
    }
    cleared_at = max(int(now), *(_credible(moment, now) for moment in (of_chip.newest_hint, of_chip.cleared_at)))
    after = replace(of_chip, tracks=kept, counters=counters, cleared_at=cleared_at)
    chips = tuple(after if chip.index == index else chip for chip in memory.chips)
    gone = [fault.code for fault in _active(of_chip) if fault.code not in kept]
    still = [fault.code for fault in _active(of_chip) if fault.code in kept]
    return Cleared(replace(memory, chips=chips), tuple(gone), tuple(still))

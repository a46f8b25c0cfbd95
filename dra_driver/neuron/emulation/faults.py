"""How an emulated host shows that a chip is sick: one row a fault, by the codes of ``dra_driver.neuron.health.faults``.

Pure: faults in, files out. A fault is written ``CODE@CHIP[=VALUE]``, on a command line or as a line of the file
``FAULTS_FILE`` at the root of the emulated host. Faults of the kernel log cannot be shown by files of sysfs: they
appear as the hint that ``dra-driver node-problem-detector`` makes of such a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from dra_driver.neuron.emulation.options import (
    ECC_FILES,
    ECC_FILES_OF_OLD_DRIVERS,
    NEW_FILES_SINCE,
    EmulationOptions,
    driver_version,
    release,
)
from dra_driver.neuron.emulation.tree import (
    CLASS,
    DEVICES,
    HEALTH_FAMILIES,
    HEALTH_STATUS,
    SERIAL_BASE,
    Entry,
    TextFile,
    core_counter,
    host_files,
)
from dra_driver.neuron.topology.instance_types import InstanceType
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.util.errors import DriverError

FAULTS_FILE: Final = "faults"
"""Below the root of an emulated host; belongs to its user once it was written."""

REFUSED_FILE: Final = "faults.error"
"""Beside it while it is wrong: why. `dra-driver health` of the host shows it."""

HINTS: Final = "run/neuron-health"
"""Directory of the hints, below the root of an emulated host."""

MAX_FILE_BYTES: Final = 64 << 10
"""Of the file of faults; some hundred lines are all that a host can have."""

STEP_SECONDS: Final = 5
"""How often a growing counter and the heartbeats move; the driver looks every ten seconds."""

LEAD_SECONDS: Final = 30
"""How long a heartbeat that is to stand still moves first: one that was never seen to move counts as not offered."""

How = Literal["count", "grows", "core", "listed", "frozen", "state", "gone", "unlinked", "modes", "hint", "unread"]


class Sign(NamedTuple):
    """How a fault shows."""

    how: How
    where: str = ""
    """The file below the device's directory, the counter, the component's name or the hint's kind."""


HARDWARE: Final = "stats/hardware"

SIGNS: Final[Mapping[str, Sign]] = MappingProxyType(
    {
        "sram-uncorrectable": Sign("count", f"{HARDWARE}/sram_ecc_uncorrected"),
        "hbm-uncorrectable": Sign("count", f"{HARDWARE}/mem_ecc_uncorrected"),
        "hbm-repairable": Sign("count", f"{HARDWARE}/mem_ecc_repairable_uncorrected"),
        "sram-corrected-rising": Sign("grows", f"{HARDWARE}/sram_ecc_corrected"),
        "hbm-corrected-rising": Sign("grows", f"{HARDWARE}/mem_ecc_corrected"),
        "hbm-unhealthy": Sign("listed", "hbm"),
        "sram-unhealthy": Sign("listed", "sram"),
        "firmware-service-api-unhealthy": Sign("listed", "firmware_service_api"),
        "firmware-service-processor-unhealthy": Sign("listed", "firmware_service_processor"),
        "link-intraserver-unhealthy": Sign("listed", "link_intraserver"),
        "link-host-unhealthy": Sign("listed", "link_host"),
        "link-efa-unhealthy": Sign("listed", "link_efa"),
        "link-interserver-unhealthy": Sign("listed", "link_interserver"),
        "link-switch-unhealthy": Sign("listed", "link_switch"),
        "axi-fabric-unhealthy": Sign("listed", "axi_fabric"),
        "component-unhealthy": Sign("listed", "a_new_part"),
        "device-unreachable": Sign("listed", "device_unreachable"),
        "heartbeat-stalled": Sign("frozen", f"{HEALTH_STATUS}/healthcheck_heartbeat"),
        "device-invalid": Sign("state", "reset"),
        "device-lost": Sign("gone"),
        "link-lost": Sign("unlinked", "connected_devices"),
        "server-link-lost": Sign("modes", "ultraserver_mode"),
        "core-hbm-uncorrectable": Sign("core", "hw_hbm_ue_error"),
        "core-hbm-repairable": Sign("core", "hw_repairable_hbm_ue_error"),
        "core-uncorrectable": Sign("core", "hw_nc_ue_error"),
        "core-dma-abort": Sign("core", "hw_dma_abort_error"),
        "core-collectives-error": Sign("core", "hw_collectives_error"),
        "log-sram": Sign("hint", "SRAM_UNCORRECTABLE_ERROR"),
        "log-core": Sign("hint", "NC_UNCORRECTABLE_ERROR"),
        "log-hbm": Sign("hint", "HBM_UNCORRECTABLE_ERROR"),
        "log-dma": Sign("hint", "DMA_ERROR"),
        "unreadable": Sign("unread", HARDWARE),
    }
)
"""By code, in the order of the table of faults."""

_SHOWN: Final[Mapping[How, str]] = MappingProxyType(
    {
        "count": "{where} says VALUE (1)",
        "grows": "{where} grows by VALUE (1) every 5 seconds",
        "core": "{where}/total of core 0 grows by VALUE (1) every 5 seconds",
        "listed": "unhealthy_components lists {where}",
        "frozen": "{where} does not change; detected after a minute",
        "state": "{where} says 2 (INVALID)",
        "gone": "the device's directory and node are gone",
        "unlinked": "{where} lacks the chip VALUE (its first neighbour)",
        "modes": "{where} offers X1 only, for the whole node",
        "hint": "a hint from the kernel log, NEURON_HW_ERR={where}",
        "unread": "the counters in {where} are missing",
    }
)
_WITH_NUMBER: Final = ("count", "grows", "core", "unlinked")
"""Ways that take a number as VALUE."""

_LINE = re.compile(r"([a-z0-9-]{1,63})@([0-9][0-9, -]{0,255})(?:=(\S{1,64}))?", re.ASCII)
_NEXT = re.compile(r"\s+(?=[a-z][a-z0-9-]*@)", re.ASCII)
"""Between two faults; a list of chips may have blanks too."""
_RANGE = re.compile(r"\s*([0-9]{1,4})(?:-([0-9]{1,4}))?\s*", re.ASCII)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}", re.ASCII)
_MOST = 1 << 64


class EmulatedFault(NamedTuple):
    """A fault of one chip of an emulated host."""

    code: str
    chip: int
    value: str = ""
    """What its row says about ``VALUE``; "": the default."""

    def __str__(self) -> str:
        return f"{self.code}@{self.chip}" + (f"={self.value}" if self.value else "")


class Moment(NamedTuple):
    """What files that move depend on."""

    now: int = 0
    """In whole seconds of Unix time."""
    started: int | None = None
    """Since when somebody moves the heartbeats; None: nobody does, so all stand as on a host that was never started."""
    since: Mapping[EmulatedFault, int] = MappingProxyType({})
    """When each fault began; one that is not in it begins now."""
    boot_id: str = ""
    """Of the boot that hints are from."""


def legal(kind: InstanceType, options: EmulationOptions) -> tuple[str, ...]:
    """Codes of the faults that such a host can show, in the order of the table."""
    new = release(driver_version(kind, options)) >= NEW_FILES_SINCE
    counters = {f"{HARDWARE}/{ECC_FILES[name]}" for name in (ECC_FILES if new else ECC_FILES_OF_OLD_DRIVERS)}
    offered: Mapping[How, bool] = {
        "listed": new and kind.family in HEALTH_FAMILIES,
        "frozen": new and kind.family in HEALTH_FAMILIES,
        "unlinked": kind.fabric.adjacency_promised and kind.fabric.size > 1 and "fabric" not in kind.inferred,
        "modes": kind.ultraserver is not None and kind.ultraserver.files == "elected",
    }
    return tuple(
        code
        for code, sign in SIGNS.items()
        if (sign.where in counters if sign.how in ("count", "grows") else offered.get(sign.how, True))
    )


def parse(text: str, kind: InstanceType, options: EmulationOptions) -> tuple[EmulatedFault, ...]:
    """The faults of ``CODE@CHIPS[=VALUE]``, chips as in ``3``, ``3,7`` or ``0-3``; DriverError says what is legal."""
    match = _LINE.fullmatch(text.strip())
    if match is None:
        raise DriverError(f"{text.strip()[:60]!r} is not a fault", remedy="use CODE@CHIP, such as hbm-uncorrectable@3")
    code, value = match[1], match[3] or ""
    possible = legal(kind, options)
    if code not in possible:
        what = "this host cannot show the fault" if code in SIGNS else "unknown fault"
        raise DriverError(
            f"{what} {code} ({kind.name}, kernel driver {driver_version(kind, options)})",
            remedy=f"use one of {', '.join(possible)}",
        )
    chips = _chips(match[2], kind)
    for chip in chips:
        _check_value(SIGNS[code].how, code, chip, value, kind)
    return tuple(EmulatedFault(code, chip, value) for chip in chips)


def _chips(text: str, kind: InstanceType) -> list[int]:
    chips: list[int] = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise DriverError(
                f"{item.strip()[:24]!r} is not a chip", remedy="give numbers and ranges, such as 3, 3,7 or 0-3"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        most = (kind.devices or 0) - 1
        if first > last or last > most:
            raise DriverError(f"{kind.name} does not have chip {item.strip()}", remedy=f"chips go from 0 to {most}")
        chips.extend(range(first, last + 1))
    return sorted({*chips})


def _check_value(how: How, code: str, chip: int, value: str, kind: InstanceType) -> None:
    if not value:
        return
    if code == "component-unhealthy":
        if not _NAME.fullmatch(value):
            raise DriverError(f"{value!r} is not the name of a component", remedy="give one such as a_new_part")
        return
    if how not in _WITH_NUMBER:
        raise DriverError(f"{code} takes no value", remedy=f"write {code}@{chip}")
    if not (value.isascii() and value.isdecimal() and 0 < int(value) + (how == "unlinked") < _MOST):
        raise DriverError(f"{value!r} is not a valid value for {code}", remedy="give a whole number, 1 or more")
    if how == "unlinked" and int(value) not in kind.fabric.neighbours(chip):
        linked = ", ".join(map(str, kind.fabric.neighbours(chip)))
        raise DriverError(f"chip {chip} has no link to chip {int(value)}", remedy=f"its neighbours are {linked}")


def parse_file(text: str, kind: InstanceType, options: EmulationOptions) -> tuple[EmulatedFault, ...]:
    """The faults of a file: one or more a line, ``#`` begins a comment. DriverError names the first wrong line."""
    faults: dict[EmulatedFault, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if entry:
            try:
                for fault in _NEXT.split(entry):
                    faults.update(dict.fromkeys(parse(fault, kind, options)))
            except DriverError as error:
                raise DriverError(
                    f"line {number}: {error.what}", consequence="the host is not changed", remedy=error.remedy
                ) from error
    return tuple(faults)


def sign_text(code: str) -> str:
    """How the fault shows, for people; ``VALUE`` is what may follow ``=``, its default in parentheses."""
    sign = SIGNS[code]
    return _SHOWN[sign.how].format(where=sign.where)


def template(kind: InstanceType, options: EmulationOptions, faults: Iterable[EmulatedFault] = ()) -> str:
    """The file of faults with all that this host can show in its comments, and these faults."""
    lines = [
        "# Faults of this emulated host, one per line: CODE@CHIPS, such as 3, 3,7 or 0-3; where it says so, =VALUE.",
        "# A driver started with --emulate applies each change in two seconds, and reverts what is removed from here.",
        "#",
    ]
    lines += [f"#   {code + '@3':<42} {sign_text(code)}" for code in legal(kind, options)]
    return "\n".join([*lines, *map(str, faults)]) + "\n"


def host_with(
    kind: InstanceType,
    options: EmulationOptions,
    faults: Sequence[EmulatedFault],
    moment: Moment,
    *,
    counters: bool = True,
) -> dict[str, Entry]:
    """All files of the host with these faults, as ``tree.host_files`` has those of a host without."""
    gone = {fault.chip for fault in faults if SIGNS[fault.code].how == "gone"}
    ecc = {chip: counters for chip, counters in options.ecc.items() if chip not in gone}
    tree = host_files(kind, replace(options, missing=options.missing | gone, ecc=ecc), counters=counters)
    for fault in faults:
        sign = SIGNS[fault.code]
        if sign.how == "unread":
            for path in [path for path in tree if path.startswith(f"{_device(fault.chip)}/{sign.where}/")]:
                del tree[path]
        elif sign.how == "hint":
            tree[f"{HINTS}/{sign.where}-{fault.chip}.json"] = _hint(fault, kind, moment)
    texts = {**_still(kind, tree, faults), **_moving(faults, moment)}
    for path, text in texts.items():
        before = tree.get(path)
        if isinstance(before, TextFile):
            tree[path] = replace(before, text=text)
    return tree


def moved(tree: Mapping[str, Entry], faults: Sequence[EmulatedFault], moment: Moment) -> dict[str, Entry]:
    """The files of ``tree``, made by ``host_with``, that have moved on by ``moment``."""
    texts = _moving(faults, moment)
    return {
        path: replace(before, text=texts[path])
        for path, before in tree.items()
        if isinstance(before, TextFile) and before.text != texts.get(path, before.text)
    }


def _device(chip: int) -> str:
    return f"{DEVICES}/neuron{chip}"


def _still(kind: InstanceType, tree: Mapping[str, Entry], faults: Sequence[EmulatedFault]) -> dict[str, str]:
    """Contents that stay the same while the faults last."""
    texts: dict[str, str] = {}
    listed: dict[int, list[str]] = {}
    events: dict[int, int] = {}
    for fault in faults:
        sign, device = SIGNS[fault.code], _device(fault.chip)
        path = f"{device}/{sign.where}"
        match sign.how:
            case "count":
                texts[path] = f"{int(fault.value or 1)}\n"
                events[fault.chip] = events.get(fault.chip, 0) + 1
            case "listed":
                listed.setdefault(fault.chip, []).append(fault.value or sign.where)
                events[fault.chip] = events.get(fault.chip, 0) + 1
            case "state":
                texts[path] = "2\n"
            case "unlinked":
                texts[path] = _unlinked(kind, texts.get(path) or _text(tree, path), fault)
            case "modes":
                texts[f"{CLASS}/{sign.where}"] = f"{Mode.X1.value}\n"
            case _:
                pass
    for chip, names in listed.items():
        alone = "device_unreachable"
        texts[f"{_device(chip)}/{HEALTH_STATUS}/unhealthy_components"] = (
            f"{alone}\n" if alone in names else f"{','.join(names)}\n"
        )
    for chip, count in events.items():
        texts[f"{_device(chip)}/{HEALTH_STATUS}/hw_error_event"] = f"{count}\n"
    return texts


def _text(tree: Mapping[str, Entry], path: str) -> str:
    entry = tree.get(path)
    return entry.text if isinstance(entry, TextFile) else ""


def _unlinked(kind: InstanceType, text: str, fault: EmulatedFault) -> str:
    lost = fault.value or str(kind.fabric.neighbours(fault.chip)[0])
    return ", ".join(item for item in text.strip().split(", ") if item != str(int(lost))) + "\n"


def _moving(faults: Sequence[EmulatedFault], moment: Moment) -> dict[str, str]:
    """Contents that move with time: growing counters, and the heartbeats of all chips if somebody moves them."""
    texts: dict[str, str] = {}
    still: dict[int, int] = {}
    for fault in faults:
        sign, since = SIGNS[fault.code], moment.since.get(fault, moment.now)
        if sign.how in ("grows", "core"):
            where = core_counter(0, sign.where) if sign.how == "core" else sign.where
            steps = 1 + max(0, moment.now - since) // STEP_SECONDS
            texts[f"{_device(fault.chip)}/{where}"] = f"{min(int(fault.value or 1) * steps, _MOST - 1)}\n"
        elif sign.how == "frozen":
            still[fault.chip] = since
    if moment.started is not None:
        for chip in range(_MOST_CHIPS):
            last = max(still[chip], moment.started + LEAD_SECONDS) if chip in still else moment.now
            path = f"{_device(chip)}/{SIGNS['heartbeat-stalled'].where}"
            texts[path] = f"{max(1, min(last, moment.now))}\n"
    return texts


_MOST_CHIPS = 64
"""That the kernel driver knows."""


def _hint(fault: EmulatedFault, kind: InstanceType, moment: Moment) -> TextFile:
    """As ``dra-driver node-problem-detector`` writes it."""
    serial = f"{SERIAL_BASE + fault.chip:016x}" if kind.family != "inf1" else ""
    hint = {
        "version": 1,
        "bootId": moment.boot_id,
        "kind": SIGNS[fault.code].where,
        "device": fault.chip,
        "serial": serial,
        "core": 0,
        "seen": moment.since.get(fault, moment.now),
    }
    return TextFile(json.dumps(hint) + "\n")

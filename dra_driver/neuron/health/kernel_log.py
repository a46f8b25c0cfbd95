"""What the kernel log says of chips: from the text that syslog(2) gives to what a line says, or why it says nothing.

Lines of the Neuron runtime look like this (aws-neuron-sdk ``neuron-runtime/nrt-troubleshoot.rst``)::

    NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0 hostname=ip-10-0-0-1 nd-id=0 nc-id=0
    serial-num=19fcda00f5ff6eb9 action=TERMINATE_INSTANCE

The runtime hands them to the kernel driver, which logs up to 512 bytes for every process that has a device open, line
breaks included. So a line can say anything, and nothing here trusts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, get_args

from dra_driver.neuron.health.assess import KINDS
from dra_driver.neuron.health.hints import MAX_NUMBER

Ignored = Literal["unknown-kind", "malformed", "names-no-chip", "too-long"]
"""Why a line with the mark says nothing."""

IGNORED: Final[tuple[Ignored, ...]] = get_args(Ignored)

MAX_LINE_BYTES: Final = 8192
"""More than the kernel ever gives in one record."""

TAIL_BYTES: Final = 4096
"""How much of what was read before marks the place from which to go on."""

_MARK: Final = "NEURON_HW_ERR"
# Level; time since boot unless printk.time is off; with CONFIG_PRINTK_CALLER also the thread or processor.
_LINE: Final = re.compile(rb"<\d{1,4}>(?:\[ {0,12}(\d{1,12})\.(\d{6})\])?(?:\[ {0,12}[TC]\d{1,12}\])? ?(.*)", re.DOTALL)
_NUMBER: Final = re.compile(r"[0-9]{1,3}")
_SERIAL: Final = re.compile(r"[0-9A-Fa-f]{16}")


class MarkedLine(NamedTuple):
    """A line of the log that has the mark."""

    seconds: float | None
    """Since boot, by the kernel's clock; None if the log has no times."""
    text: str
    """Without level and time; "" if the line is too long to be one of the kernel's."""


class LogHint(NamedTuple):
    """What a line says of a chip, checked for its form only; see ``assess.Hint``, which has the same fields."""

    kind: str
    device: int | None
    serial: str
    core: int | None


def whole_lines(log: bytes) -> bytes:
    """The log up to its last line break: what follows is still being written."""
    return log[: log.rfind(b"\n") + 1]


def unread(before: bytes, log: bytes) -> tuple[bytes, bool]:
    """What came since the log was read before, and whether there may be lines in between that are lost.

    syslog(2) gives no numbers of records, so the place is found by the text itself; times make each line unlike others.
    In a log without times, lines may be given twice, but none is left out.

    Args:
        before: the last ``TAIL_BYTES`` of the log as read before; empty if it was not, or was empty.
        log: the log as it is now.
    """
    place = log.find(before)
    return (log[place + len(before) :], False) if place >= 0 else (log, True)


def marked_lines(log: bytes) -> Iterator[MarkedLine]:
    """The lines that have the mark, in order, at most ``MAX_LINE_BYTES`` looked at of each."""
    mark = f"{_MARK}=".encode()
    end = 0
    while (place := log.find(mark, end)) >= 0:
        start = log.rfind(b"\n", 0, place) + 1
        end = log.find(b"\n", place)
        end = len(log) if end < 0 else end
        if end - start > MAX_LINE_BYTES:
            yield MarkedLine(None, "")
            continue
        match = _LINE.match(log, start, end)
        if match is None:
            yield MarkedLine(None, log[start:end].decode("ascii", "replace"))
            continue
        seconds, micros, text = match.groups()
        since_boot = None if seconds is None else int(seconds) + int(micros) / 1e6
        yield MarkedLine(since_boot, text.decode("ascii", "replace"))


def parse(text: str) -> LogHint | Ignored:
    """What a line says, or why it says nothing. Never raises, whatever the text."""
    if not text or len(text) > MAX_LINE_BYTES:
        return "too-long"
    fields: dict[str, str] = {}
    for word in text[max(text.find(f"{_MARK}="), 0) :].split():
        key, equals, value = word.partition("=")
        # A second value for a name would leave open which of them is meant.
        if equals and fields.setdefault(key, value) != value:
            return "malformed"
    kind = fields.get(_MARK, "")
    if kind not in KINDS:
        return "unknown-kind"
    device, core = _number(fields.get("nd-id")), _number(fields.get("nc-id"))
    serial = fields.get("serial-num", "").lower()
    if device == "bad" or core == "bad" or not (serial == "" or _SERIAL.fullmatch(serial)):
        return "malformed"
    # Only zeros are no chip's number.
    serial = serial.strip("0") and serial
    if device is None and not serial:
        return "names-no-chip"
    return LogHint(kind, device, serial, core)


def _number(text: str | None) -> int | Literal["bad"] | None:
    if text is None:
        return None
    number = int(text) if _NUMBER.fullmatch(text) else MAX_NUMBER + 1
    return number if number <= MAX_NUMBER else "bad"


def logged_at(seconds: float | None, *, uptime: float, now: float, earliest: float) -> float:
    """When a line was logged, in Unix time.

    The kernel's clock for its log runs freely and is off by minutes after months. What is known for certain wins: the
    line was not there when the log was read before, and is there now.

    Args:
        seconds: time of the line since boot; None: not known.
        uptime: seconds since boot now (CLOCK_MONOTONIC).
        now: Unix time now.
        earliest: Unix time of the reading before, or of the boot.
    """
    at = earliest if seconds is None else now - uptime + seconds
    return min(max(at, earliest), now)

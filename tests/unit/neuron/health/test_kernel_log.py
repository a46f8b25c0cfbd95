"""What lines of the kernel log say of chips, written by whoever could open a device."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.neuron.health.assess import KINDS
from dra_driver.neuron.health.faults import FAULTS, Fault
from dra_driver.neuron.health.hints import MAX_NUMBER
from dra_driver.neuron.health.kernel_log import (
    IGNORED,
    MAX_LINE_BYTES,
    TAIL_BYTES,
    LogHint,
    logged_at,
    marked_lines,
    parse,
    unread,
    whole_lines,
)
from tests.golden import golden

SERIAL = "19fcda00f5ff6eb9"
DOCUMENTED = (
    "NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0592464924bd45322 hostname=ip-172-31-61-252 nd-id=0 nc-id=0 "
    f"serial-num={SERIAL} action=TERMINATE_INSTANCE"
)
"""The line in the documentation of the Neuron SDK."""


def test_the_documented_line_is_understood() -> None:
    assert parse(DOCUMENTED) == LogHint("SRAM_UNCORRECTABLE_ERROR", 0, SERIAL, 0)


def test_it_is_found_behind_the_texts_that_others_put_before_it() -> None:
    assert parse(f"neuron:ncdev_printk: nd0 nd-id=7 {DOCUMENTED}") == parse(DOCUMENTED)


@pytest.mark.parametrize(
    "row", [row for code, row in FAULTS.items() if code.startswith("log-")], ids=lambda row: row.code
)
def test_every_row_of_the_table_about_the_log_has_a_kind_of_line(row: Fault) -> None:
    kind = row.reason.removeprefix("NeuronHasError_")
    golden(str(row.signal))
    assert parse(f"NEURON_HW_ERR={kind} nd-id=15") == LogHint(kind, 15, "", None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("NEURON_HW_ERR=COFFEE_ERROR nd-id=0", "unknown-kind"),
        ("NEURON_HW_ERR= nd-id=0", "unknown-kind"),
        ("NEURON_HW_ERR=DMA_ERROR,nd-id=0", "unknown-kind"),
        ("NEURON_HW_ERR=DMA_ERROR nd-id=1000", "malformed"),
        ("NEURON_HW_ERR=DMA_ERROR nd-id=-1", "malformed"),
        ("NEURON_HW_ERR=DMA_ERROR nd-id=0x1", "malformed"),
        ("NEURON_HW_ERR=DMA_ERROR nd-id=", "malformed"),
        ("NEURON_HW_ERR=DMA_ERROR nd-id=\N{ARABIC-INDIC DIGIT ONE}", "malformed"),
        ("NEURON_HW_ERR=DMA_ERROR nd-id=99999999999999999999", "malformed"),
        ("NEURON_HW_ERR=DMA_ERROR nd-id=0 nc-id=x", "malformed"),
        ("NEURON_HW_ERR=DMA_ERROR nd-id=0 serial-num=../../../etc/pass", "malformed"),
        (f"NEURON_HW_ERR=DMA_ERROR nd-id=0 serial-num={SERIAL}0", "malformed"),
        ("NEURON_HW_ERR=DMA_ERROR nd-id=0 nd-id=1", "malformed"),
        ("NEURON_HW_ERR=DMA_ERROR nd-id=0 NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR", "malformed"),
        ("NEURON_HW_ERR=DMA_ERROR instance-id=i-0 action=TERMINATE_INSTANCE", "names-no-chip"),
        (f"NEURON_HW_ERR=DMA_ERROR serial-num={'0' * 16}", "names-no-chip"),
        ("NEURON_HW_ERR=DMA_ERROR nd-id=0 " + "x" * MAX_LINE_BYTES, "too-long"),
    ],
)
def test_lines_that_say_nothing_are_told_apart(text: str, reason: str) -> None:
    assert parse(text) == reason


WORDS = st.sampled_from(
    [
        *(f"NEURON_HW_ERR={kind}" for kind in ("DMA_ERROR", "X", "")),
        *(
            f"{key}={value}"
            for key in ("nd-id", "nc-id", "serial-num")
            for value in ("0", "15", "-1", "", SERIAL, "\0")
        ),
        "action=TERMINATE_INSTANCE",
        "=",
    ]
)


@given(st.text(max_size=300) | st.lists(WORDS, max_size=8).map(" ".join))
def test_no_text_raises_anything_and_what_is_said_is_within_bounds(text: str) -> None:
    said = parse(text)
    if isinstance(said, str):
        assert said in IGNORED
        return
    assert said.kind in KINDS
    assert said.device is not None or said.serial
    assert all(number is None or 0 <= number <= MAX_NUMBER for number in (said.device, said.core))
    assert said.serial == "" or (len(said.serial) == 16 and int(said.serial, 16) > 0)


# Lines of the log


@pytest.mark.parametrize(
    ("prefix", "seconds"),
    [
        ("<3>[   12.345678] ", 12.345678),
        ("<3>[23522.580755] ", 23522.580755),
        ("<11>[2595822.000001][  T123] ", 2595822.000001),
        ("<3>[    0.000000][    C7] ", 0.0),
        ("<3>", None),
        ("", None),
    ],
)
def test_level_time_and_caller_are_no_part_of_a_line(prefix: str, seconds: float | None) -> None:
    (line,) = marked_lines(f"<6>[    1.000000] before\n{prefix}{DOCUMENTED}\n<6>[   99.000000] after\n".encode())
    assert line.seconds == (None if seconds is None else pytest.approx(seconds))
    assert line.text == DOCUMENTED


def test_a_line_break_within_a_message_begins_a_line_of_its_own() -> None:
    """syslog(2) gives level and time for each of them; so what is forged has the time at which it was."""
    log = b"<3>[    5.000000] NEURON_HW_ERR=DMA_ERROR nd-id=0\n<3>[    5.000000] NEURON_HW_ERR=DMA_ERROR nd-id=1\n"
    assert [parse(line.text) for line in marked_lines(log)] == [
        LogHint("DMA_ERROR", 0, "", None),
        LogHint("DMA_ERROR", 1, "", None),
    ]


def test_a_line_longer_than_the_kernels_is_not_looked_at() -> None:
    long = b"<3>[    5.000000] NEURON_HW_ERR=DMA_ERROR nd-id=0 " + b"x" * MAX_LINE_BYTES + b"\n"
    lines = list(marked_lines(long + f"<3>[    6.000000] {DOCUMENTED}\n".encode()))
    assert [parse(line.text) for line in lines] == ["too-long", parse(DOCUMENTED)]


@given(st.lists(st.binary(max_size=60) | st.just(b"NEURON_HW_ERR=DMA_ERROR nd-id=0") | st.just(b"\n"), max_size=20))
def test_whatever_the_log_holds_there_is_one_line_at_most_for_each_mark(parts: list[bytes]) -> None:
    log = b"".join(parts)
    lines = list(marked_lines(log))
    assert len(lines) == sum(b"NEURON_HW_ERR=" in line for line in log.split(b"\n"))
    assert all(len(line.text) <= MAX_LINE_BYTES and get_args(parse(line.text)) == () for line in lines)


# Where to go on

ENTRIES = st.lists(st.binary(max_size=300).map(lambda line: line.replace(b"\n", b" ")), max_size=60)


def timed(entries: list[bytes], first: int) -> bytes:
    """A log whose lines differ in their times."""
    return b"".join(b"<6>[%5d.000000] %s\n" % (first + place, entry) for place, entry in enumerate(entries))


@given(ENTRIES, ENTRIES, st.integers(0, 60))
def test_what_came_since_is_given_once_however_the_log_grows_and_drops_its_oldest_lines(
    old: list[bytes], new: list[bytes], dropped: int
) -> None:
    before, added = timed([b"boot", *old], 0), timed(new, 1 + len(old))
    tail = before[-TAIL_BYTES:]
    now = b"\n".join((before + added).split(b"\n")[dropped:])
    fresh, lost = unread(tail, now)
    if tail in now:
        assert (fresh, lost) == (added, False)
    else:
        assert (fresh, lost) == (now, True)


ALIKE = st.lists(st.sampled_from([b"a\n", b"b\n"]), max_size=40)


@given(ALIKE, ALIKE)
def test_without_times_lines_may_come_twice_and_none_is_left_out(old: list[bytes], new: list[bytes]) -> None:
    before = b"".join(old)
    fresh, lost = unread(before[-TAIL_BYTES:], before + b"".join(new))
    assert not lost
    assert fresh.endswith(b"".join(new))


def test_a_line_that_is_still_being_written_waits() -> None:
    assert whole_lines(b"one\ntwo\nthr") == b"one\ntwo\n"
    assert whole_lines(b"thr") == b""


# When it was


def test_the_time_of_a_line_is_told_from_the_kernels_clock() -> None:
    assert logged_at(400.0, uptime=1000.0, now=5000.0, earliest=4000.0) == 4400.0


def test_a_line_without_a_time_is_as_old_as_it_can_be() -> None:
    """It must not pass for newer than an administrator's word that all is well."""
    assert logged_at(None, uptime=1000.0, now=5000.0, earliest=4000.0) == 4000.0


SECONDS = st.floats(0, 1e9)


@given(st.none() | SECONDS, SECONDS, SECONDS, SECONDS)
def test_a_line_is_never_older_than_the_reading_before_it_nor_newer_than_this_one(
    seconds: float | None, uptime: float, now: float, passed: float
) -> None:
    assert now - passed <= logged_at(seconds, uptime=uptime, now=now, earliest=now - passed) <= now

"""The detector: reads the kernel log every few seconds and keeps what it says of chips as hints (``hints``).

The log is read by syslog(2), as ``dmesg --syslog`` does, which needs CAP_SYSLOG and nothing else. ``/dev/kmsg`` would
say when there is something new; but the device cgroup of containers forbids to open it, mounted or not, unless they are
privileged. Nothing is taken out of the log: reading ``/proc/kmsg`` would take lines from the node's own logger.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from dra_driver.neuron.health.assess import CLOCK_SECONDS, KINDS, Hint
from dra_driver.neuron.health.hints import MAX_FILES, decode, encode, file_name
from dra_driver.neuron.health.kernel_log import (
    IGNORED,
    TAIL_BYTES,
    Ignored,
    MarkedLine,
    logged_at,
    marked_lines,
    parse,
    unread,
    whole_lines,
)
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.files import open_regular, readable_content, remove_file, replace_file
from dra_driver.util.metrics import Operations, Sample
from dra_driver.util.text import quoted
from dra_driver.util.worker import PATIENCE_SECONDS, Backoff, Worker

log = logging.getLogger(__name__)

MAX_LOG_BYTES: Final = 16 << 20
"""Of the log; the newest are read. Kernels keep 128 KiB to 2 MiB."""

_MIN_LOG_BYTES: Final = 64 << 10
_READ_ALL, _SIZE_BUFFER = 3, 10
"""SYSLOG_ACTION_READ_ALL and SYSLOG_ACTION_SIZE_BUFFER of syslog(2)."""
_STAGED: Final = ".new"
_MAX_ENTRIES: Final = 4096
_ROUND_SECONDS: Final = 30.0


def read_system_log() -> bytes:
    """The kernel's log as it is now; its newest ``MAX_LOG_BYTES``. Raises DriverError."""
    call = ctypes.CDLL(None, use_errno=True).klogctl
    kept = call(_SIZE_BUFFER, None, 0)
    # The kernel counts without the level and time of each line, which it writes into the text.
    size = min(max(2 * kept, _MIN_LOG_BYTES), MAX_LOG_BYTES)
    buffer = ctypes.create_string_buffer(size)
    length = call(_READ_ALL, buffer, size) if kept >= 0 else -1
    if length < 0:
        raise DriverError(
            f"the kernel log cannot be read: syslog(2): {os.strerror(ctypes.get_errno())}",
            consequence="what it reports about the chips stays unknown",
            remedy="run as root with the capability SYSLOG, as in the chart",
        )
    return ctypes.string_at(buffer, length)


def read_log_file(path: Path) -> bytes:
    """A file in place of the kernel's log, with lines as ``dmesg --raw`` prints them. Raises DriverError."""
    try:
        descriptor = open_regular(path, os.O_RDONLY)
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - opened above without following links
            file.seek(max(0, os.fstat(descriptor).st_size - MAX_LOG_BYTES))
            return file.read(MAX_LOG_BYTES) or b""
    except OSError as error:
        raise DriverError(
            f"the log {path} cannot be read: {error.strerror or error}",
            consequence="what it reports about the chips stays unknown",
            remedy="give a regular file as --kernel-log, or leave the option out",
        ) from error


class Detector:
    """Reads the log in rounds, and writes a hint at most once a round.

    The first round takes all lines of this boot that the kernel still has: a chip that failed an hour before the
    detector was installed is no healthier for it. Lines that it took before change nothing, since a hint is a state
    and keeps the time of its newest line. Hints of an earlier boot are removed.

    Args:
        read: gives the whole log as it is now.
        directory: of the hints; made if missing.
        boot_id: of the running kernel.
        interval: seconds between rounds.
        lookback: lines that are older than so many seconds in the first round are ignored; None: none.
    """

    def __init__(
        self,
        read: Callable[[], bytes],
        directory: Path,
        boot_id: str,
        *,
        interval: float = 5.0,
        lookback: float | None = None,
    ) -> None:
        self._read = read
        self._directory = directory
        self._boot_id = boot_id
        self._interval = interval
        self._lookback = lookback
        self._tail = b""
        self._read_at: float | None = None
        self._ready = False
        self._hints: dict[str, Hint] | None = None
        self._stored: dict[str, Hint] = {}
        self._lines = self._written = self._overruns = 0
        self.operations = Operations(("read",))
        """Time of each reading; kept once it is exposed."""
        self._ignored: dict[str, int] = dict.fromkeys((*IGNORED, "too-old", "too-many"), 0)
        self.worker = Worker(
            "reading the kernel log", self._round, longest=_ROUND_SECONDS, backoff=Backoff(first=1.0, cap=30.0)
        )

    def start(self) -> None:
        """Begin; does not block."""
        self.worker.start()

    def stop(self, timeout: float = 5.0) -> bool:
        """Stop; whether it ended in time. Hints stay."""
        return self.worker.stop(timeout)

    def not_ready(self) -> list[str]:
        """Why the log is not being read, for readiness."""
        problem = self.worker.problem()
        return [problem] if problem else [] if self._ready else ["the kernel log has not been read yet"]

    def not_alive(self) -> list[str]:
        """Why a restart may help, for liveness."""
        stuck = self.worker.stuck(PATIENCE_SECONDS)
        return [stuck] if stuck else []

    def samples(self) -> Iterator[Sample]:
        """What it did, for metrics."""
        prefix = "node_problem_detector"
        yield Sample(f"{prefix}_lines", "Lines of the kernel log that were read.", self._lines, kind="counter")
        text = "Times that a hint was written."
        yield Sample(f"{prefix}_hints_written", text, self._written, kind="counter")
        for reason, count in self._ignored.items():
            text = "Lines with NEURON_HW_ERR that were ignored."
            yield Sample(f"{prefix}_lines_ignored", text, count, (("reason", reason),), "counter")
        text = "Times that lines may have been lost between two readings of the log."
        yield Sample(f"{prefix}_overruns", text, self._overruns, kind="counter")
        for kind in sorted(KINDS):
            count = sum(hint.kind == kind for hint in tuple(self._stored.values()))
            yield Sample(f"{prefix}_hints", "Hints that exist now.", count, (("kind", kind),))
        if self._read_at is not None:
            text = "Unix time of the last good reading of the log."
            yield Sample(f"{prefix}_last_read_timestamp_seconds", text, self._read_at)

    def _round(self) -> float:
        if self._hints is None:
            self._stored = self._hints_of_this_boot()
            self._hints = dict(self._stored)
        with self.operations.measured("read"):
            text = whole_lines(self._read())
        # Like the kernel's clock for its log, `monotonic` stands still while the machine is suspended.
        now, uptime = runtime.now(), runtime.monotonic()
        fresh, lost = unread(self._tail, text)
        _correct(self._hints, int(now))
        first = self._read_at is None
        earliest = now - uptime if self._read_at is None else min(self._read_at, now)
        for line in marked_lines(fresh):
            at = logged_at(line.seconds, uptime=uptime, now=now, earliest=earliest)
            if first and self._lookback is not None and at < now - self._lookback:
                self._ignored["too-old"] += 1
            else:
                self._take(self._hints, line, int(at))
        self._lines += fresh.count(b"\n")
        if lost:
            self._overruns += 1
            log.warning("the kernel log was cleared or overran between two readings; lines may be lost")
        self._tail, self._read_at = text[-TAIL_BYTES:], now
        self._store(self._hints)
        self._ready = True
        return self._interval

    def _take(self, hints: dict[str, Hint], line: MarkedLine, at: int) -> None:
        report = parse(line.text)
        if isinstance(report, str):
            self._ignore(report, line)
            return
        hint = Hint(self._boot_id, report.kind, at, report.device, report.serial, report.core)
        name = file_name(hint)
        before = hints.get(name)
        if before is None and len(hints) >= MAX_FILES:
            # Nothing makes room: otherwise lines that anybody can forge would push out what others said.
            self._ignore("too-many", line)
        elif before is None or before.seen <= at:
            hints[name] = hint

    def _ignore(self, reason: Ignored | str, line: MarkedLine) -> None:
        self._ignored[reason] += 1
        # Once a reason: the count is in the metrics, and a flood of lines must not become a flood of ours.
        if self._ignored[reason] == 1:
            log.warning("ignored a line with NEURON_HW_ERR (%s): %s", reason, quoted(line.text, 256))

    def _hints_of_this_boot(self) -> dict[str, Hint]:
        """Hints of this boot that are there already; files with the name of a hint that hold none are removed."""
        hints: dict[str, Hint] = {}
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            for path in sorted(islice(self._directory.glob("*.json"), _MAX_ENTRIES)):
                # What else is there, in a directory given by mistake, is somebody's.
                if path.name.partition("-")[0] not in KINDS:
                    continue
                hint = self._hint_of(path)
                if hint is None or len(hints) >= MAX_FILES:
                    remove_file(path)
                else:
                    hints[path.name] = hint
        except OSError as error:
            raise self._refused(error) from error
        return hints

    def _hint_of(self, path: Path) -> Hint | None:
        hint = decode(readable_content(path) or b"")
        mine = hint is not None and hint.boot_id == self._boot_id and file_name(hint) == path.name
        return hint if mine else None

    def _store(self, hints: dict[str, Hint]) -> None:
        for name, hint in hints.items():
            former = self._stored.get(name)
            if former == hint:
                continue
            try:
                # Not synced: a loss of power ends the boot that the hint is of.
                replace_file(self._directory / name, encode(hint), temporary=_STAGED, mode=0o644, synced=False)
            except OSError as error:
                raise self._refused(error) from error
            if former is None:
                log.warning("the kernel log says %s; written to %s", _described(hint), self._directory / name)
            self._stored[name] = hint
            self._written += 1

    def _refused(self, error: OSError) -> DriverError:
        return DriverError(
            f"hints cannot be kept in {self._directory}: {error.strerror or error}",
            consequence="the node's driver does not get faults from the kernel log",
            remedy="make the directory writable for the detector, and check its free space",
        )


def _correct(hints: dict[str, Hint], now: int) -> None:
    """Give hints that were written by a clock that was ahead the time of now: a driver takes none from the future."""
    for name, hint in hints.items():
        if hint.seen > now + CLOCK_SECONDS:
            hints[name] = replace(hint, seen=now)


def _described(hint: Hint) -> str:
    chip = f"device {hint.device}" if hint.device is not None else "a device"
    core = f", core {hint.core}" if hint.core is not None else ""
    return f"{hint.kind} of {chip}{core}{f', serial number {hint.serial}' if hint.serial else ''}"

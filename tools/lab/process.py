"""Starts daemons, records them by pid and start time, and stops only those."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import files

_PROC = Path("/proc")
_POLL_SECONDS = 0.02
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Joins the cgroups before the program starts, so that none of its children can be outside of them.
_LAUNCH = 'for file in $1; do echo $$ > "$file" || exit 1; done; shift; cd /; exec "$@"'


@dataclass(frozen=True)
class Record:
    """A process, distinguishable from a later one with the same pid.

    Attributes:
        name: Its name in the lab, such as kube-apiserver or node-1-kubelet.
        pid: Process id.
        start_time: Clock ticks from boot to the start of the process.
        boot: The machine's boot id.
    """

    name: str
    pid: int
    start_time: int
    boot: str


def parse_stat(text: str) -> tuple[str, int]:
    """Return state and start time from /proc/PID/stat, whose second field may contain blanks and parentheses."""
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def boot_id(proc: Path = _PROC) -> str:
    """Return an identifier of this boot of the machine."""
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int, proc: Path = _PROC) -> int | None:
    """Return a running process's start time; None if it has ended or is a zombie."""
    try:
        state, started = parse_stat((proc / str(pid) / "stat").read_text())
    except (OSError, ValueError, IndexError):
        return None
    return None if state in {"Z", "X"} else started


def is_alive(record: Record, proc: Path = _PROC) -> bool:
    """Return whether exactly this process is still running."""
    return start_time(record.pid, proc) == record.start_time and boot_id(proc) == record.boot


def spawn(name: str, command: Sequence[str], *, log: Path, cgroups: Sequence[Path], path: str, records: Path) -> Record:
    """Start a daemon in its own session, its output appended to `log`, and record it.

    Args:
        name: The record's name.
        command: Program (an absolute path or a name found in `path`) and arguments.
        log: File for standard output and error.
        cgroups: Directories of the cgroups that it joins.
        path: PATH of the daemon.
        records: Directory of records.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with uninterrupted():  # no interrupt between the start and the record
        record = _spawn(name, command, log, cgroups, path)
        files.write(records / f"{name}.json", json.dumps(asdict(record)))
    return record


def _spawn(name: str, command: Sequence[str], log: Path, cgroups: Sequence[Path], path: str) -> Record:
    files_to_join = " ".join(str(cgroup / "cgroup.procs") for cgroup in cgroups)
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", _LAUNCH, "sh", files_to_join, *command],
        {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8"},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP],
    )
    return Record(name=name, pid=pid, start_time=start_time(pid) or 0, boot=boot_id())


def load(name: str, records: Path) -> Record | None:
    """Return the record of that name, or None."""
    try:
        values = json.loads((records / f"{name}.json").read_text())
        return Record(**values)
    except (OSError, ValueError, TypeError):
        return None


def names(records: Path) -> tuple[str, ...]:
    """Return the names of all records."""
    return tuple(sorted(path.stem for path in records.glob("*.json")))


def stop(record: Record, grace: float) -> None:
    """Stop a process: SIGTERM, wait `grace` seconds, SIGKILL, and wait for its end. A missing process is no error."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
        if patience > 0 and is_alive(record):
            try:
                os.kill(record.pid, number)
            except ProcessLookupError:
                return
            wait_gone(record, patience)


def wait_gone(record: Record, timeout: float) -> bool:
    """Wait until the process has ended; return whether it has."""
    deadline = time.monotonic() + timeout
    while is_alive(record):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    reap(record.pid)
    return True


def reap(pid: int) -> None:
    """Collect an ended child of this process; does nothing for other processes."""
    # A long-lived caller (a test run) would keep a zombie; after the end of a command, init collects it.
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer interrupts until the block's end, so that a teardown is not left half-done.

    Python runs signal handlers in the main thread only, so there is nothing to do in any other thread; blocking the
    signals would not suffice, because the kernel may deliver one to another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = {number: signal.signal(number, lambda which, _: arrived.append(which)) for number in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if arrived:
        signal.raise_signal(arrived[0])

"""Waits for daemons, and reports why one has died."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lab import process
from lab.errors import LabError
from lab.progress import Progress

Condition = Callable[[], bool]

_POLL_SECONDS = 0.05
_LOG_LINES = 20


def until(
    what: str,
    condition: Condition,
    *,
    progress: Progress,
    timeout: float,
    needed: Sequence[tuple[process.Record, Path]] = (),
) -> None:
    """Wait until `condition()` holds.

    Args:
        what: What is awaited, as in "waiting for ...".
        condition: Called every 50 ms.
        progress: Reports to the user.
        timeout: Seconds.
        needed: Processes without which the wait cannot succeed, with their logs.

    Raises:
        LabError: The time is over, or a needed process has died; with the last lines of its log.
    """
    deadline = time.monotonic() + timeout
    with progress.step(f"waiting for {what}"):
        while not condition():
            for record, log in needed:
                if not process.is_alive(record):
                    raise LabError(f"{record.name} ended while waiting for {what}. Its last lines:\n{tail(log)}")
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {log}\n{tail(log)}" for _, log in needed)
                raise LabError(f"Gave up waiting for {what} after {timeout:.0f} s.\n{logs}".rstrip())
            time.sleep(_POLL_SECONDS)


def tail(log: Path, lines: int = _LOG_LINES) -> str:
    """Return the last lines of a log, or a remark if there is no log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) or f"({log} is empty)"
    except OSError:
        return f"({log} cannot be read)"

"""Parses figures of a process from /proc: pure functions of the files' contents."""

from __future__ import annotations

import re

from lab.errors import LabError


def status_number(text: str, field: str) -> int:
    """Return a number from /proc/PID/status.

    Raises:
        LabError: There is no such field.
    """
    found = re.search(rf"^{field}:\s*(\d+)", text, re.MULTILINE)
    if found is None:
        raise LabError(f"/proc/PID/status has no {field}, so nothing is reported.")
    return int(found[1])


def cpu_ticks(text: str) -> int:
    """Return the CPU time in ticks, user and system, from /proc/PID/stat."""
    fields = text.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def start_ticks(text: str) -> int:
    """Return when the process started, in ticks since boot, from /proc/PID/stat."""
    return int(text.rpartition(")")[2].split()[19])

"""How long a test waits for something, on a machine that others use too."""

from __future__ import annotations

import time
from pathlib import Path


class Deadline:
    """Until when something has to have become true.

    A second in which some task was kept waiting for a processor counts as a quarter: where processors are short, what
    is waited for is slow without being wrong.

    Args:
        seconds: how long it may take where nobody waits for a processor; up to four times as long where somebody does.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begin, self._stall = time.monotonic(), _stall()

    def left(self) -> float:
        """Seconds that are left, at least; 0 or less: it is over."""
        waited, short = self._times()
        return self._seconds - waited + short * 3 / 4

    def __str__(self) -> str:
        waited, short = self._times()
        return f"{self._seconds:g} s (after {waited:.0f} s, processors were short in {short:.0f} of them)"

    def _times(self) -> tuple[float, float]:
        waited = time.monotonic() - self._begin
        return waited, min(_stall() - self._stall, waited)


def _stall() -> float:
    """Seconds since the machine's start in which some task was kept waiting for a processor; 0 where nothing tells.

    The kernel's pressure stall information: ``some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS``.
    """
    try:
        line = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:  # not built in, or switched off (psi=0)
        return 0.0
    return int(line.rpartition("total=")[2]) / 1e6

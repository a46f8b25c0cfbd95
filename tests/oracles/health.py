"""When faults begin and end, said by definitions over the whole history of a signal instead of step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """What one reading says of one signal, and what happened around it."""

    uptime: float
    present: bool | None
    """None: it cannot be told."""
    boot: int
    """Number of the boot."""
    cleared: bool = False
    """Whether an administrator cleared the chip's faults right after this reading."""


def level_is_active(history: Sequence[Moment], quiet_seconds: float) -> bool:
    """Of a fault that the host itself says."""
    last = max((n for n in range(len(history)) if _begins(history, n)), default=None)
    return last is not None and not any(_ends(history, n, quiet_seconds) for n in range(last + 1, len(history)))


def latch_is_active(history: Sequence[Moment]) -> bool:
    """Of a fault that only the driver remembers: until the next boot, or until it is cleared."""
    # What was seen before it was cleared does not count as the first of two readings.
    clearings = [n + 1 for n, moment in enumerate(history) if moment.cleared]
    history = history[max(clearings, default=0) :]
    active = [n for n in range(len(history)) if _begins(history, n)]
    return bool(active) and history[active[-1]].boot == history[-1].boot


def _begins(history: Sequence[Moment], n: int) -> bool:
    """Two readings of one boot say it, and none in between denies it."""
    before = [m for m in history[:n] if m.present is not None and m.boot == history[n].boot]
    return history[n].present is True and bool(before) and before[-1].present is True


def _ends(history: Sequence[Moment], n: int, quiet_seconds: float) -> bool:
    """Two readings or more, on end and in one boot, deny it, for long enough; or one, and it is cleared.

    "For long enough" does not count when it was never seen in this boot.
    """
    boot = history[n].boot
    denied = 0
    while denied <= n and history[n - denied].present is False and history[n - denied].boot == boot:
        denied += 1
    if denied and history[n].cleared:
        return True
    seen = any(m.present for m in history[: n + 1] if m.boot == boot)
    lasted = history[n].uptime - history[n - denied + 1].uptime if denied else 0.0
    return denied >= 2 and (not seen or lasted >= quiet_seconds)

"""Waiting for something that another thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds after which what takes a moment is taken for a fault: machines are busy, and none may be so busy."""


def eventually(condition: Callable[[], object], within: float = PATIENCE, what: str = "the condition") -> None:
    """Return as soon as the condition holds; fail after ``within`` seconds."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true within {within} s"
        time.sleep(0.005)


def lastingly(condition: Callable[[], object], seconds: float = 0.5, what: str = "the condition") -> None:
    """Return once the condition has held for so many seconds on end: where several parts come to rest, in any order."""
    end, since = time.monotonic() + PATIENCE, time.monotonic()
    while time.monotonic() - since < seconds:
        if not condition():
            assert time.monotonic() < end, f"{what} did not last within {PATIENCE} s"
            since = time.monotonic()
        time.sleep(0.005)

"""Waiting for something that another thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], within: float = 5.0, what: str = "the condition") -> None:
    """Return as soon as the condition holds; fail after ``within`` seconds."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true within {within} s"
        time.sleep(0.005)

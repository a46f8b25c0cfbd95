"""Waiting for something that another thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], object], within: float = 5.0, what: str = "the condition") -> None:
    """Return as soon as the condition holds; fail after ``within`` seconds. Looks less often the longer it lasts."""
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        assert waited < within, f"{what} did not come true within {within} s"
        time.sleep(min(max(waited / 20, 0.005), 0.1))

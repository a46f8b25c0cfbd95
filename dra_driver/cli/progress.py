"""A progress bar for long operations."""

from __future__ import annotations

import sys
import time
from typing import Self


class Progress:
    """A progress bar on standard error, if that is a terminal, for operations that take longer than a second."""

    _WIDTH = 40
    _STEP = 0.1

    def __init__(self, what: str) -> None:
        self._what = what
        self._next = time.monotonic() + 1.0
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            print(f"\r{'':{self._WIDTH + 40}}\r", end="", file=sys.stderr, flush=True)

    def __call__(self, done: int, total: int) -> None:
        """Redraw the bar, if it is time to."""
        now = time.monotonic()
        if now < self._next or not sys.stderr.isatty():
            return
        self._next = now + self._STEP
        self._drawn = True
        filled = self._WIDTH * done // max(total, 1)
        bar = "#" * filled + "." * (self._WIDTH - filled)
        print(f"\r{self._what} [{bar}] {done}/{total}", end="", file=sys.stderr, flush=True)

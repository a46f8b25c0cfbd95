"""Progress messages: the current step, what it waits for, and how long it has taken."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_REPEAT_SECONDS = 10.0
_WORTH_TELLING_SECONDS = 2.0


class Progress:
    """Writes one line when a step starts, another every ten seconds while it lasts, and its duration at the end."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        """Write one line with the seconds since this object was made."""
        if not self._quiet:
            print(f"[{time.monotonic() - self._start:6.1f} s] {text}", file=self._stream, flush=True)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Announce a step, repeat the announcement while it lasts, and report the duration if it was long."""
        self.say(text)
        begun = time.monotonic()
        over = threading.Event()

        def repeat() -> None:
            while not over.wait(_REPEAT_SECONDS):
                self.say(f"  still waiting after {time.monotonic() - begun:.0f} s: {text}")

        ticker = threading.Thread(target=repeat, name="progress", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            over.set()
            ticker.join()
        elapsed = time.monotonic() - begun
        if elapsed >= _WORTH_TELLING_SECONDS:
            self.say(f"  done in {elapsed:.1f} s")

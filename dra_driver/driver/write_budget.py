"""How often the API server gets what health alone changes: in slices, and in the status of claims.

A chip whose health goes to and fro must not burden the API server, and through it every scheduler. So what health
alone changes is written at most every 30 seconds and at most six times in an hour, and the last two of the six are kept
for what makes things worse: a chip that became sick is never left on offer because others recovered often. Everything
else (a device, an attribute, a repair) is written at once and takes the newest taints along.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

SPACING_SECONDS: Final = 30.0
WINDOW_SECONDS: Final = 3600.0
MAX_WRITES: Final = 6
RESERVED_WRITES: Final = 2


@dataclass(slots=True)
class WriteBudget:
    """Decides when a change that comes from health alone may be written. Times are of any clock that never goes back.

    Args:
        spacing: seconds between two writes.
        window: seconds in which at most ``most`` writes are made.
        most: writes in a window.
        reserved: how many of those are for changes for the worse only.
    """

    spacing: float = SPACING_SECONDS
    window: float = WINDOW_SECONDS
    most: int = MAX_WRITES
    reserved: int = RESERVED_WRITES
    _written: deque[float] = field(default_factory=deque)

    def wait(self, now: float, *, worse: bool) -> float:
        """Seconds until a write is allowed; 0: now.

        ``worse``: for a change with new or stronger taints.
        """
        while self._written and self._written[0] <= now - self.window:
            self._written.popleft()
        times = self._written
        wait = times[-1] + self.spacing - now if times else 0.0
        most = self.most if worse else self.most - self.reserved
        if len(times) >= most:
            wait = max(wait, times[len(times) - most] + self.window - now)
        return max(0.0, wait)

    def note(self, now: float) -> None:
        """A write was made."""
        self._written.append(now)

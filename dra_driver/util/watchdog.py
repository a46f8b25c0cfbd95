"""Ends a program that hangs, or that a restart may mend: kubelet then starts its container again.

A liveness probe would do the same over the network, where whoever can keep a probe out has a healthy program killed. So
the program watches itself. What ends one that hangs is a timer of the interpreter (``faulthandler``), which no thread
of the program, and no lock that it holds, can keep from going off; each look that finds the program alive sets it anew.
"""

from __future__ import annotations

import faulthandler
import logging
from collections.abc import Callable
from typing import Final

from dra_driver.util.errors import DriverError
from dra_driver.util.text import one_line

LOOK_SECONDS: Final = 10.0
"""Between two looks. With the next two this is what kubelet's liveness probe did."""
MAX_FAILURES: Final = 3
"""Looks in a row that find a problem."""
HANG_SECONDS: Final = 60.0
"""Without a look."""
START_SECONDS: Final = 300.0
"""Until the first look."""

log = logging.getLogger(__name__)


class Watchdog:
    """Armed from ``start`` to ``stop``.

    Args:
        liveness: says what is wrong that a restart may mend; [] if nothing is.
    """

    def __init__(self, liveness: Callable[[], list[str]]) -> None:
        self._liveness = liveness
        self._failures = 0
        self._logged: list[str] = []
        self._armed = True
        """Whether the last timer could be set."""

    def start(self) -> None:
        """Begin to watch; the first look is due in ``START_SECONDS``."""
        self._arm(START_SECONDS)

    def look(self) -> None:
        """Set the timer anew; call it every ``LOOK_SECONDS``. Raises DriverError if the program should end."""
        problems = self._problems()
        self._failures = self._failures + 1 if problems else 0
        if problems != self._logged:
            self._logged = problems
            if problems:
                log.warning("liveness: %s", one_line("; ".join(problems)))
            else:
                log.info("liveness: healthy again")
        self._arm(HANG_SECONDS)  # also for the time that an orderly end takes
        if self._failures >= MAX_FAILURES:
            raise DriverError(
                one_line("; ".join(problems)),
                consequence=f"the program ends after {MAX_FAILURES} such looks in a row, and kubelet starts it anew",
            )

    def stop(self) -> None:
        """End watching."""
        faulthandler.cancel_dump_traceback_later()

    def _arm(self, seconds: float) -> None:
        try:
            faulthandler.dump_traceback_later(seconds, exit=True, file=2)  # stderr, whatever sys.stderr is
        except RuntimeError as error:
            # The timer is a thread, and somebody's processes have taken all that there may be. This program needs none
            # to be well, and in their midst kubelet could not start it anew. The next look tries again.
            if self._armed:
                log.warning("until the next look nobody ends this program if it hangs: %s", error)
            self._armed = False
        else:
            self._armed = True

    def _problems(self) -> list[str]:
        try:
            return self._liveness()
        except Exception as error:
            log.exception("the liveness check failed")
            return [f"the liveness check failed: {type(error).__name__}: {error}"]

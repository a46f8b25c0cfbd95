"""Whether the API server answers: seen from the requests that are made anyway, so it costs the server nothing.

A watch whose connection was cut ends by TCP keepalive (``client``), and what comes after it fails. Once a request has
failed, and only until one is answered, a question is asked in between when nobody else asks.
"""

from __future__ import annotations

import contextlib
import logging
import math
from typing import Final, NamedTuple

from dra_driver.kube.api.client import REQUEST_SECONDS, Transport
from dra_driver.kube.api.errors import ApiError, Unreachable
from dra_driver.kube.objects.meta import timestamp
from dra_driver.util import runtime
from dra_driver.util.worker import Worker

GRACE_SECONDS: Final = 30.0
"""From the first failed request to the news of it: a server of several that restarts is replaced sooner than that."""
ASK_SECONDS: Final = 10.0
"""From the last failed request to the question."""

log = logging.getLogger(__name__)


class _Failing(NamedTuple):
    since: float
    """Unix time of the first failed request."""
    began: float
    last: float
    """By the monotonic clock, as ``began``."""
    error: str


class Reachability:
    """Follows the requests of one transport, and logs when the API server is gone, and when it is back.

    An API server that has never answered is the matter of whoever waits for its first answer.

    Args:
        transport: whose requests tell.
        who: who does not reach it, such as a node's name.
        advice: what follows from that, and what to do.
    """

    def __init__(self, transport: Transport, who: str, advice: str) -> None:
        self._transport = transport
        self._who = who
        self._advice = advice
        self._lock = runtime.lock()
        self._answered = False
        self._failing: _Failing | None = None
        self._is_reported = False
        self.worker = Worker("checking whether the API server answers", self._round)
        transport.follow(self._heard)

    def problem(self) -> str:
        """That it has not answered for longer than the grace, for readiness; or ""."""
        failing = self._failing
        if failing is None or runtime.monotonic() - failing.began < GRACE_SECONDS:
            return ""
        since = timestamp(failing.since)
        return f"{self._who}: the API server has not answered since {since} ({failing.error}); {self._advice}"

    def _heard(self, error: Unreachable | None) -> None:
        with self._lock:
            was, is_reported, now = self._failing, self._is_reported, runtime.monotonic()
            if error is None:
                self._answered, self._failing, self._is_reported = True, None, False
            elif self._answered:
                first = was or _Failing(runtime.now(), now, now, "")
                self._failing = first._replace(last=now, error=error.what)
        if error is not None:
            self.worker.wake()
        elif is_reported and was is not None:
            log.info("%s: the API server answers again, after %.0f s", self._who, now - was.began)

    def _round(self) -> float:
        failing = self._failing
        if failing is not None and runtime.monotonic() >= failing.last + ASK_SECONDS:
            with contextlib.suppress(ApiError):  # the transport tells ``_heard``
                self._transport.request("GET", "/version", timeout=REQUEST_SECONDS)
        text = self.problem()
        with self._lock:
            failing = self._failing
            news = bool(text) and failing is not None and not self._is_reported
            self._is_reported = self._is_reported or news
        if news:
            log.warning("%s", text)
        if failing is None:
            return math.inf
        due = failing.last + ASK_SECONDS
        return max(0.0, (due if self._is_reported else min(due, failing.began + GRACE_SECONDS)) - runtime.monotonic())

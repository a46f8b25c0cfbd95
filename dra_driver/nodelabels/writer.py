"""Keeps the labels of the own Node equal to what the host says, by server-side apply.

Apply under an own field manager makes the API server keep account of which labels are ours: what is not applied any
more it removes, and what others wrote it leaves alone. The request names our label keys only, so taking over a key that
somebody else had written (``force``) can concern nothing else.

One worker thread decides and writes. It looks when the wanted labels change or the Node does, asks for the Node anew
before it writes, and writes nothing when nothing would change: also not after a restart.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.kube.api import ResourceApi
from dra_driver.kube.errors import ApiError
from dra_driver.kube.types import Node
from dra_driver.nodelabels.labels import MANAGER, needs_write
from dra_driver.util.backoff import Backoff
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Worker

CALM_SECONDS: Final = 600.0
"""After so long without a write, the next change by others is put right at once again."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LabelStatus:
    """A snapshot. Counters count since the start of the process."""

    current: bool = False
    """The Node was last seen to have the labels wanted."""
    writes: int = 0
    errors: int = 0
    last_error: str = ""
    """Why the labels are not current; "" when the last try succeeded."""


class LabelWriter:
    """Labels one Node.

    Args:
        api: the API server.
        node: name of the Node object.
        backoff: waits after errors.
        contest: waits before a label is written again with the same value, because somebody else had changed it.
    """

    def __init__(
        self, api: ResourceApi, node: str, *, backoff: Backoff | None = None, contest: Backoff | None = None
    ) -> None:
        self._api = api
        self._node = node
        self._backoff = backoff or Backoff(first=1.0, cap=300.0)
        self._contest = contest or Backoff(first=1.0, cap=600.0, free=1)
        self._lock = threading.Lock()
        self._wanted: Mapping[str, str] | None = None
        self._seen: Node | None = None
        self.worker = Worker("labelling the node", self._round)
        # Of the worker only:
        self._pending: Mapping[str, str] | None = None
        """What is to be written when it is ``_due``."""
        self._due = 0.0
        self._written: Mapping[str, str] | None = None
        self._last_write = 0.0
        self.status = LabelStatus()
        """Replaced as a whole by the worker: read it once, use that."""

    def start(self) -> None:
        """Begin to write as soon as the labels and the Node are known."""
        self.worker.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Write nothing any more, and end; the labels stay."""
        self.worker.stop(timeout)

    def want(self, labels: Mapping[str, str] | None) -> None:
        """The labels that the Node should have from now on; None: leave them as they are."""
        with self._lock:
            self._wanted = labels
        self.worker.wake()

    def saw(self, node: Node) -> None:
        """The Node as it is now."""
        with self._lock:
            self._seen = node
        self.worker.wake()

    # Worker thread

    def _round(self) -> float:
        with self._lock:
            wanted, seen = self._wanted, self._seen
        if wanted is None or seen is None:
            return math.inf
        if not needs_write(seen, wanted):
            self._pending = None
            if not self.status.current:
                self._update(current=True, last_error="")
            return math.inf
        if wanted != self._pending:
            self._pending, self._due = wanted, time.monotonic() + self._pause(wanted)
        if time.monotonic() >= self._due:
            self._attempt(wanted)
        return max(0.0, self._due - time.monotonic())

    def _pause(self, wanted: Mapping[str, str]) -> float:
        """Seconds to wait before labels that were written already are written again: somebody else changes them."""
        if time.monotonic() - self._last_write > CALM_SECONDS:
            self._contest.reset()
        return self._contest.next() if wanted == self._written else 0.0

    def _attempt(self, wanted: Mapping[str, str]) -> None:
        try:
            node = self._api.get_node(self._node)
            if needs_write(node, wanted) and self._still_wants(wanted):
                node = self._api.apply_node_labels(node, wanted, MANAGER)
                self._took(wanted)
        except DriverError as error:
            retry_after = error.retry_after if isinstance(error, ApiError) else None
            wait = self._backoff.next(retry_after)
            self._due = time.monotonic() + wait
            log.warning("the labels of the node are not up to date: %s (next try in %.1f s)", error, wait)
            self._update(current=False, errors=self.status.errors + 1, last_error=str(error))
            return
        with self._lock:
            self._seen = node
        self._pending = None
        self._backoff.reset()
        self._update(current=not needs_write(node, wanted), last_error="")

    def _took(self, wanted: Mapping[str, str]) -> None:
        if wanted != self._written:
            self._contest.reset()
        self._written, self._last_write = wanted, time.monotonic()
        shown = ", ".join(f"{key}={value}" for key, value in sorted(wanted.items())) or "none"
        log.info("labels of the node: %s", shown)
        self._update(writes=self.status.writes + 1)

    def _still_wants(self, wanted: Mapping[str, str]) -> bool:
        """Whether nothing else has come up while the Node was read, such as the beginning of an election."""
        with self._lock:
            return not self.worker.stopping and self._wanted == wanted

    def _update(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)  # type: ignore[arg-type] # names and types are those of the class

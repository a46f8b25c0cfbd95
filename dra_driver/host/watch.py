"""Keeps the inventory of this node up to date by reading the host again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dra_driver.errors import DriverError
from dra_driver.host.discover import discover, renew
from dra_driver.host.inventory import Finding, NodeInventory

log = logging.getLogger(__name__)

NOTHING_READ = NodeInventory(instance_type=None, driver_version=None, devices=())
"""``HostWatch.current`` before the first scan."""

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def publishable(inventory: NodeInventory) -> NodeInventory:
    """The part of an inventory whose change must be published: all but what the driver only logs or waits for."""
    return replace(inventory, findings=(), settling=False)


class HostWatch:
    """Scans the host at start, every ``interval`` seconds, and every ``busy_interval`` while a value is settling.

    ``on_change`` gets the first inventory and each one whose ``publishable`` part differs from the last that it took;
    if it raises, it is called again after the next scan. It is called in the thread that scans, one call at a time, and
    must not call ``rescan`` or ``stop``. Findings are logged when they appear and when they go. No exception ends the
    watch.

    Args:
        root: of the host's file system, as for ``discover``.
        labels: gives the Node object's labels as they are now; may raise while they are unknown, and then this scan
            goes on with those of the scan before.
        on_change: takes an inventory.
        interval: seconds between scans.
        busy_interval: seconds to the next scan while the inventory is ``settling``.
        wait: sleeps the given seconds or until the watch is to end, and says whether it is; for tests.
    """

    def __init__(
        self,
        root: Path,
        labels: Callable[[], Mapping[str, str]],
        on_change: Callable[[NodeInventory], None],
        interval: float = 10.0,
        busy_interval: float = 2.0,
        *,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._root = root
        self._labels = labels
        self._on_change = on_change
        self._interval = interval
        self._busy_interval = busy_interval
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._scanning = threading.Lock()
        self._current = NOTHING_READ
        self._last_labels: Mapping[str, str] = {}
        self._taken: NodeInventory | None = None
        self._trouble: dict[str, str] = {}
        self._thread: threading.Thread | None = None

    @property
    def current(self) -> NodeInventory:
        """The newest inventory; ``NOTHING_READ`` before ``start`` or ``rescan``."""
        return self._current

    def now(self) -> NodeInventory:
        """The newest inventory, with what containers are given read from the host again (see ``renew``)."""
        return renew(self._root, self._current)

    def start(self) -> None:
        """Scan once, so that ``current`` is true on return, and go on in a thread."""
        self.rescan()
        self._thread = threading.Thread(target=self._run, name="host-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when no further call of ``on_change`` can come from it. May be called twice."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def rescan(self, *, hand_over: bool = False) -> NodeInventory:
        """Scan now, for instance because the node's labels changed; returns ``current``.

        ``hand_over``: call ``on_change`` even if it took the same inventory before.
        """
        with self._scanning:
            self._attempt("reading the host", self._scan)
            if hand_over:
                self._taken = None
            if self._current is not NOTHING_READ and publishable(self._current) != self._taken:
                self._attempt("taking over a changed inventory", self._hand_over)
            return self._current

    def _run(self) -> None:
        while not self._wait(self._busy_interval if self._current.settling else self._interval):
            self.rescan()

    def _scan(self) -> None:
        self._attempt("reading the node's labels", self._read_labels)
        before = self._current
        self._current = discover(self._root, self._last_labels, before)
        _log_findings(before.findings, self._current.findings)

    def _read_labels(self) -> None:
        self._last_labels = self._labels()

    def _hand_over(self) -> None:
        inventory = self._current
        self._on_change(inventory)
        self._taken = publishable(inventory)

    def _attempt(self, what: str, action: Callable[[], None]) -> None:
        """Do it; on an exception log it, once for as long as it stays the same, and go on."""
        try:
            action()
        except Exception as error:
            explained = isinstance(error, DriverError)
            text = str(error) if explained else f"{type(error).__name__}: {error}"
            if self._trouble.get(what) != text:
                trace = None if explained else error
                log.warning("%s failed and is tried again at the next scan: %s", what, text, exc_info=trace)
            self._trouble[what] = text
        else:
            if self._trouble.pop(what, None) is not None:
                log.info("%s works again", what)


def _log_findings(before: tuple[Finding, ...], after: tuple[Finding, ...]) -> None:
    for finding in after:
        if finding not in before:
            log.log(_LEVELS[finding.severity], "%s [%s]", finding.text, finding.code)
    for finding in before:
        if finding not in after and all(finding.code != other.code for other in after):
            log.info("%s: no longer so for %s", finding.code, finding.subject)

"""Keeps the inventory of this node up to date by reading the host again and again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from dra_driver.neuron.host.discover import discover, renew
from dra_driver.neuron.host.inventory import Finding, NodeInventory
from dra_driver.neuron.host.sysfs import HostFiles
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Worker

log = logging.getLogger(__name__)

READING: Final = "reading the host"
MAX_ROUND_SECONDS: Final = 20.0
"""A scan takes milliseconds, seconds on a node under load; one that takes longer hangs in the kernel."""
FIRST_SECONDS: Final = 3.0
"""How long the start waits for the first scan."""

NOTHING_READ = NodeInventory(instance_type=None, driver_version=None, devices=())
"""``HostWatch.current`` before the first scan."""

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def publishable(inventory: NodeInventory) -> NodeInventory:
    """The part of an inventory whose change must be published: all but what the driver only logs or waits for."""
    return replace(inventory, findings=(), settling=False)


class HostWatch:
    """Scans the host at start, every ``interval`` seconds, and every ``busy_interval`` while a value is settling.

    ``on_change`` gets the first inventory, the first that was made with known labels, and each one whose
    ``publishable`` part differs from the last that it took; if it raises, it is called again after the next scan. It is
    called in the thread that scans. Findings are logged when they appear and when they go. A scan that fails or hangs
    leaves ``current`` as it was; ``worker`` reports it.

    Args:
        root: of the host's file system, as for ``discover``.
        labels: gives the Node object's labels as they are now; may raise DriverError while they are unknown, and then
            the scan goes on with those of the scan before.
        on_change: takes an inventory.
        interval: seconds between scans.
        busy_interval: seconds to the next scan while the inventory is ``settling``.
    """

    def __init__(
        self,
        root: Path,
        labels: Callable[[], Mapping[str, str]],
        on_change: Callable[[NodeInventory], None],
        interval: float = 10.0,
        busy_interval: float = 2.0,
    ) -> None:
        self._root = root
        self._labels = labels
        self._on_change = on_change
        self._interval = interval
        self._busy_interval = busy_interval
        self._scanned = runtime.event()
        self._reading_since: float | None = None
        """When the scan under way began; None between two. Who reads the host while a scan hangs would hang too."""
        self._current = NOTHING_READ
        self._files = HostFiles(root)
        """Of the last scan."""
        self._last_labels: Mapping[str, str] = {}
        self._labels_unknown = ""
        self._has_labels = False
        """Whether they were known in this scan or an earlier one."""
        self._taken: tuple[NodeInventory, bool] | None = None
        """What was handed over last, and whether with labels."""
        self.worker = Worker(READING, self._round, longest=MAX_ROUND_SECONDS)

    @property
    def current(self) -> NodeInventory:
        """The newest inventory; ``NOTHING_READ`` before the first scan."""
        return self._current

    def now(self, chips: Collection[int] | None = None) -> NodeInventory:
        """The newest inventory, with what containers are given read from the host again (see ``renew``).

        Args:
            chips: host indexes of those to read; None: all.

        Raises:
            DriverError: the host's files hang, and who reads them would too.
        """
        began = self._reading_since
        lasts = 0.0 if began is None else runtime.monotonic() - began
        if not self._scanned.is_set() or lasts > MAX_ROUND_SECONDS:
            hangs = f"has made no progress for {lasts:.0f} s" if self._scanned.is_set() else "has not ended yet"
            raise DriverError(
                f"{READING} {hangs}, so it is not known which devices exist now",
                consequence="no claim is prepared",
                remedy="check the node's kernel log; usually the node must be rebooted",
            )
        return renew(self._root, self._current, chips, self._files)

    def start(self) -> None:
        """Scan in a thread from now on. ``current`` is true on return, unless the host takes its time to answer."""
        self.worker.start()
        if not self._scanned.wait(FIRST_SECONDS):
            log.warning("the host has not been read within %.0f s; continuing without it", FIRST_SECONDS)

    def stop(self, timeout: float = 5.0) -> None:
        """Begin no further scan, and wait up to ``timeout`` seconds for one under way. May be called twice."""
        self.worker.stop(timeout)

    def rescan(self) -> None:
        """Have the thread scan now, for instance because the node's labels changed."""
        self.worker.wake()

    def scan(self) -> NodeInventory:
        """Scan once, in this thread: for those that do without ``start``. Raises what ``on_change`` does."""
        self._read_labels()
        before, files = self._current, HostFiles(self._root)
        self._reading_since = runtime.monotonic()
        try:
            self._current = discover(self._root, self._last_labels, before, files)
            self._files = files
        finally:
            self._reading_since = None
        self._scanned.set()
        _log_findings(before.findings, self._current.findings)
        inventory = self._current
        shown = (publishable(inventory), self._has_labels)
        if shown != self._taken and not self.worker.stopping:
            self._taken = None
            self._on_change(inventory)
            self._taken = shown
        return inventory

    def _round(self) -> float:
        return self._busy_interval if self.scan().settling else self._interval

    def _read_labels(self) -> None:
        try:
            self._last_labels, self._has_labels, unknown = self._labels(), True, ""
        except DriverError as error:
            unknown = str(error)
        if unknown != self._labels_unknown:
            log.warning("the node's labels are %s", f"not known: {unknown}" if unknown else "known again")
        self._labels_unknown = unknown


def _log_findings(before: tuple[Finding, ...], after: tuple[Finding, ...]) -> None:
    for finding in after:
        if finding not in before:
            log.log(_LEVELS[finding.severity], "%s [%s]", finding.text, finding.code)
    for finding in before:
        if finding not in after and all(finding.code != other.code for other in after):
            log.info("%s: resolved for %s", finding.code, finding.subject)

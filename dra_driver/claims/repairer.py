"""Carries out repairs, at start and on a timer.

What it costs: a few small files read in a minute, and what ``standings`` asks of the API server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from dra_driver.cdi.directory import SpecDirectory
from dra_driver.claims import ultraserver
from dra_driver.claims.edits import cdi_spec
from dra_driver.claims.held import PreparedClaims
from dra_driver.claims.journal import Journal
from dra_driver.claims.preparer import ClaimSource
from dra_driver.claims.repair import GONE_SECONDS, Repair, clashes, diff
from dra_driver.claims.standings import ClaimObserver
from dra_driver.host.inventory import NodeInventory
from dra_driver.slices.chips import host_chips
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Worker

INTERVAL = 60.0
"""Seconds between two passes."""

log = logging.getLogger(__name__)


class Reconciler:
    """Keeps CDI directory and journal equal to what should be.

    Args:
        journal: what is prepared.
        cdi: where runtimes look for it.
        source: the API server.
        inventory: reads the node as it is now.
        node_name: name of this node, which is also its pool's.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        journal: Journal,
        cdi: SpecDirectory,
        source: ClaimSource,
        inventory: Callable[[], NodeInventory],
        node_name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal = journal
        self._cdi = cdi
        self._inventory = inventory
        self._observer = ClaimObserver(source, node_name, journal.boot_id, lambda: host_chips(inventory()), clock)
        self._pass = threading.Lock()
        self.worker = Worker("repairing what claims left", self._round)
        self.counts: Counter[str] = Counter()
        """Repairs done by kind; ``failed`` counts those that could not be."""
        self.findings: tuple[str, ...] = ()
        """What an administrator should look at, as of the last pass."""

    def start(self) -> None:
        """Make a pass now and every minute, in a thread."""
        self.worker.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End; a pass under way gets ``timeout`` seconds, and the next start goes on wherever it ends."""
        self.worker.stop(timeout)

    def reconcile(self) -> list[Repair]:
        """Ask the API server what is due, then repair; the repairs done. DriverError when files cannot be read."""
        try:
            self._ask()
        except DriverError as error:
            log.info("repair goes on without the API server: %s", error)
        return self.repair()

    def repair(self) -> list[Repair]:
        """Compare and repair the files, without asking the API server; the repairs done. DriverError as above."""
        inventory = self._inventory()
        with self._pass, self._journal.locked():
            held = self._journal.verify()
            specs = {uid: self._cdi.content(uid) for uid in self._cdi.list()}
            wanted = diff(held, specs, inventory, self._journal.boot_id, self._observer.known)
            done = [repair for repair in wanted if self._applied(repair)]
            self.counts["remove-temporary"] += self._cdi.remove_temporary()
            findings = self._look(held, inventory)
        for text in findings:
            if text not in self.findings:
                log.warning("%s", text)
        self.findings = findings
        return done

    def _ask(self) -> None:
        with self._pass:
            with self._journal.locked():
                held = self._journal.verify()
                due, unreadable = self._observer.due(held), list(held.quarantined)
                list_due = self._observer.list_due(held)
            for plan in due:
                self.worker.beat()
                self._observer.ask((plan,))
            if list_due:
                self._observer.ask_list(unreadable)

    def _applied(self, repair: Repair) -> bool:
        log.info("claim %s: %s: %s", repair.uid, repair.kind, repair.reason)
        try:
            self._apply(repair)
        except DriverError as error:
            self.counts["failed"] += 1
            log.error("claim %s: %s failed: %s", repair.uid, repair.kind, error)  # noqa: TRY400 - it explains itself
            return False
        self.counts[repair.kind] += 1
        return True

    def _apply(self, repair: Repair) -> None:
        if repair.entry is not None:
            self._journal.keep(repair.entry)
            if repair.kind == "write-spec":
                self._cdi.write(repair.uid, cdi_spec(repair.entry.plan))
        elif repair.kind == "learn":
            self._journal.learn(repair.uid, repair.chips)
        else:
            self._cdi.remove(repair.uid)
            if repair.kind == "release":
                self._journal.remove(repair.uid)

    def _look(self, held: PreparedClaims, inventory: NodeInventory) -> tuple[str, ...]:
        unreadable = [
            f"the journal file of claim {item.uid} cannot be read ({item.problem}); "
            f"{'all devices that no other claim holds' if item.chips is None else _chips(item.chips)} are held back "
            "until the claim is prepared again, unprepared, or gone from the API server"
            for item in held.quarantined.values()
        ]
        gone = [
            f"claim {entry.plan.reference} ({uid}) has been gone from the API server for more than "
            f"{GONE_SECONDS / 60:.0f} minutes, but kubelet has not unprepared it; {_chips(entry.plan.held_chips)} stay "
            "held, since containers may be using them; if none are, reboot the node, or remove "
            f"{self._journal.path(uid)}"
            for uid, entry in held.entries.items()
            if (observation := self._observer.known.get(uid)) is not None and observation.surely_gone
        ]
        clashing = [
            f"claims {one.reference} and {other.reference} are used by one pod and show different chips under the same "
            "/dev/neuronN; a container that uses both sees the chips of only one; set --device-numbering host on nodes "
            "where pods share claims like that"
            for one, other in clashes(held, self._observer.known)
        ]
        outdated = [
            f"claim {entry.plan.reference} was prepared for another state of the UltraServer: {change}; delete "
            "its pods, so that they start with the present one"
            for entry in held.entries.values()
            if not entry.outlived(self._journal.boot_id) and (change := ultraserver.outdated(entry.plan, inventory))
        ]
        return (*unreadable, *gone, *clashing, *outdated)

    def _round(self) -> float:
        try:
            self.reconcile()
        except Exception:
            self.counts["failed"] += 1
            raise
        return INTERVAL


def _chips(chips: frozenset[int] | tuple[int, ...]) -> str:
    return f"chips {', '.join(map(str, sorted(chips)))}" if chips else "no chips"

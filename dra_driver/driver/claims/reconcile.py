"""Repairs what differs between checkpoint, CDI directory and API server, at start and on a timer.

``observe`` asks the API server, ``diff`` says what to do, and here it is done.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from dra_driver.driver.claims.checkpoint import Checkpoint
from dra_driver.driver.claims.container_edits import cdi_spec
from dra_driver.driver.claims.diff import Repair, clashes, diff
from dra_driver.driver.claims.environment import outdated_ultraserver
from dra_driver.driver.claims.metadata import MetadataDirectory
from dra_driver.driver.claims.model import Plan, PreparedClaims
from dra_driver.driver.claims.observe import GONE_SECONDS, ClaimObserver
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.cdi import SpecDirectory
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Worker

log = logging.getLogger(__name__)


INTERVAL = 60.0
"""Seconds between two passes."""


class Reconciler:
    """Keeps CDI directory and checkpoint equal to what should be.

    Args:
        checkpoint: what is prepared.
        cdi: where runtimes look for it.
        source: the API server.
        inventory: reads the node as it is now.
        node_name: name of this node, which is also its pool's.
        listed: UIDs of the claims whose devices kubelet lists for containers. DriverError: it cannot be asked now.
        metadata: where containers' files about their devices are.
        prepared: hears at each pass which claims are prepared; under the lock.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        cdi: SpecDirectory,
        source: ResourceApi,
        inventory: Callable[[], NodeInventory],
        node_name: str,
        *,
        listed: Callable[[], Collection[str]] = frozenset,
        metadata: MetadataDirectory,
        prepared: Callable[[PreparedClaims], None] = lambda _: None,
        clock: Callable[[], float] = runtime.monotonic,
    ) -> None:
        self._listed = listed
        self._in_use: Mapping[str, str] = {}
        """Claims with unreadable files that are gone, and why containers may be using them all the same."""
        self._metadata = metadata
        self._prepared = prepared
        self._checkpoint = checkpoint
        self._cdi = cdi
        self._inventory = inventory
        self._observer = ClaimObserver(source, node_name, checkpoint.boot_id, lambda: inventory().chip_indexes, clock)
        self._pass = runtime.lock()
        self.worker = Worker("repairing what claims left", self._round)
        """Makes a pass at its start and every minute; wherever it is stopped, the next start goes on."""
        self.counts: Counter[str] = Counter()
        """Repairs done by kind; ``failed`` counts those that could not be."""
        self.findings: tuple[str, ...] = ()
        """What an administrator should look at, as of the last pass."""

    def reconcile(self) -> list[Repair]:
        """Ask the API server what is due, then repair; the repairs done. DriverError when files cannot be read."""
        try:
            self._ask()
        except DriverError as error:
            log.info("repair continues without the API server: %s", error)
        return self.repair()

    def repair(self) -> list[Repair]:
        """Compare and repair the files, without asking the API server; the repairs done. DriverError as above."""
        with self._checkpoint.locked() as prepared:
            before = dict(prepared.entries)
        inventory = self._inventory()  # without the lock: the host's files may hang
        with self._pass, self._checkpoint.locked():
            prepared = self._checkpoint.verify()
            specs = {uid: self._cdi.content(uid) for uid in self._cdi.list()}
            # A call that has prepared a claim meanwhile has looked at the host later than this pass.
            newer = {uid for uid, entry in prepared.entries.items() if uid in specs and before.get(uid) != entry}
            repairs = diff(prepared, specs, inventory, self._checkpoint.boot_id, self._observer.answers, self._in_use)
            wanted = [*self._metadata_repairs(prepared), *(repair for repair in repairs if repair.uid not in newer)]
            done = [repair for repair in wanted if self._try(repair)]
            self.counts["remove-temporary"] += self._cdi.remove_temporary()
            self._cdi.note_boots()  # also those that a former version of the driver has written
            findings = self._look(prepared, inventory)
            # Under the lock: else a call that ends in between reports first, and this older answer undoes it.
            self._prepared(prepared)
        for text in findings:
            if text not in self.findings:
                log.warning("%s", text)
        self.findings = findings
        return done

    def consumers(self, plan: Plan) -> tuple[tuple[str, str], ...]:
        """Names and UIDs of the pods that a prepared claim is reserved for, as far as is known.

        Asks nobody; any thread may.
        """
        observation = self._observer.answers.get(plan.uid)
        return plan.reserved_for if observation is None or not observation.here else observation.consumers

    def _ask(self) -> None:
        with self._pass:
            with self._checkpoint.locked():
                prepared = self._checkpoint.verify()
                due, unreadable = self._observer.due(prepared), list(prepared.quarantined)
                list_due = self._observer.list_due(prepared)
            for plan in due:
                self.worker.beat()
                self._observer.ask(plan)
            if list_due:
                self._observer.ask_list(unreadable)
            self._in_use = self._uses([uid for uid in unreadable if self._is_gone(uid)])

    def _is_gone(self, uid: str) -> bool:
        observation = self._observer.answers.get(uid)
        return observation is not None and observation.surely_gone

    def _uses(self, gone: Collection[str]) -> dict[str, str]:
        """Why containers may be using claims that are gone, and what to do, by UID."""
        uses = {
            uid: "its CDI file may be of this boot, so containers may be using them; if none are, reboot the "
            f"node, or remove {self._cdi.file(uid)}"
            for uid in gone
            if self._cdi.of_this_boot(uid)
        }
        try:
            listed = self._listed() if gone else ()
        except DriverError as error:
            return dict.fromkeys(gone, f"kubelet does not say whether containers use them: {error}") | uses
        return uses | dict.fromkeys(
            set(gone).intersection(listed), "kubelet lists them for a container that has not ended"
        )

    def _metadata_repairs(self, prepared: PreparedClaims) -> list[Repair]:
        """Repairs of metadata files, which come before all others: a CDI spec mounts the files.

        Those of a claim that this pass releases go in the next one.
        """
        entries = {uid: entry for uid, entry in sorted(prepared.entries.items()) if entry.plan.metadata}
        leftovers = [uid for uid in self._metadata.claims() if uid not in entries and uid not in prepared.quarantined]
        return [
            *(
                Repair("write-metadata", uid, "files about its devices are missing or different", entry)
                for uid, entry in entries.items()
                if not self._metadata.complete(entry.plan)
            ),
            *(Repair("remove-metadata", uid, "no prepared claim has these files") for uid in leftovers),
        ]

    def _try(self, repair: Repair) -> bool:
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
        if repair.kind == "write-metadata" and repair.entry is not None:
            self._metadata.write(repair.entry.plan)
        elif repair.kind == "remove-metadata":
            self._metadata.remove(repair.uid)
        elif repair.entry is not None:
            self._checkpoint.keep(repair.entry)
            if repair.kind == "write-spec":
                self._cdi.write(repair.uid, cdi_spec(repair.entry.plan))
        elif repair.kind == "learn":
            self._checkpoint.learn(repair.uid, repair.chips)
        else:
            self._cdi.remove(repair.uid)
            if repair.kind == "release":
                self._checkpoint.remove(repair.uid)

    def _look(self, prepared: PreparedClaims, inventory: NodeInventory) -> tuple[str, ...]:
        unreadable = [
            f"the checkpoint file of claim {item.uid} cannot be read ({item.problem}); "
            f"{'all devices that no other claim holds' if item.chips is None else _chips(item.chips)} are held back "
            + (
                f"although it has been gone from the API server for more than {GONE_SECONDS / 60:.0f} minutes: "
                f"{self._in_use[item.uid]}"
                if item.uid in self._in_use
                else "until the claim is prepared again, unprepared, or gone from the API server"
            )
            for item in prepared.quarantined.values()
        ]
        gone = [
            f"claim {entry.plan.reference} ({uid}) has been gone from the API server for more than "
            f"{GONE_SECONDS / 60:.0f} minutes, but kubelet has not unprepared it; {_chips(entry.plan.held_chips)} stay "
            "held, since containers may be using them; if none are, reboot the node, or remove "
            f"{self._checkpoint.path(uid)}"
            for uid, entry in prepared.entries.items()
            if self._is_gone(uid)
        ]
        clashing = [
            f"claims {one.reference} and {other.reference} are used by one pod and show different chips under the same "
            "/dev/neuronN; a container that uses both sees the chips of only one; set --device-numbering host on nodes "
            "where pods share claims like that"
            for one, other in clashes(prepared, self._observer.answers)
        ]
        outdated = [
            f"claim {entry.plan.reference} was prepared for another state of the UltraServer: {change}; delete "
            "its pods, so that they start with the current one"
            for entry in prepared.entries.values()
            if not entry.outlived(self._checkpoint.boot_id) and (change := outdated_ultraserver(entry.plan, inventory))
        ]
        foreign = [
            f"{path} is not one of this driver's files (no claim's UID in its name, other content, a directory or a "
            "link); it is ignored; remove it if no other program needs it"
            for path in (*self._checkpoint.others(), *self._cdi.others({*prepared.entries, *prepared.quarantined}))
        ]
        return (*unreadable, *gone, *clashing, *outdated, *foreign)

    def _round(self) -> float:
        try:
            self.reconcile()
        except Exception:
            self.counts["failed"] += 1
            raise
        return INTERVAL


def _chips(chips: frozenset[int] | tuple[int, ...]) -> str:
    return f"chips {', '.join(map(str, sorted(chips)))}" if chips else "no chips"

"""Finds what differs between checkpoint, CDI directory and API server, at start and on a timer, and repairs it.

The checkpoint says what should be. Its entries have their CDI specs, with the device numbers of now. A spec whose chip
is not there is withdrawn: after a reboot its device number may belong to other hardware. Prepare or the reconciler
writes it again when the chip is back.

When does an entry end without kubelet's unprepare? The API server may say that its claim is gone (deleted, replaced, or
no longer allocated to this node), but a pod that was deleted by force may be running all the same, so that alone never
frees a chip. It does together with a reboot of the node since: then no container of before runs. Otherwise the driver
waits for kubelet, which keeps its own list over restarts and unprepares once the containers have ended. A claim that is
gone for long is reported, and an administrator who then removes its checkpoint file ends it. The file of a claim that
the API server has is written again. An unreadable file has no boot in it. If its claim is allocated here, the API
server names its chips; if it is gone at each check over ten minutes, they are free, but not while its CDI spec is one
of this boot, or kubelet lists them for a container. The same holds for a spec of ours that no file explains.

The API server is asked seldom: for a claim once in half an hour, more seldom on a node with many claims, and every five
minutes while it seems gone; at once when its file was removed, and the first time when it was prepared before the node
was booted. Unreadable files have no name to ask for, so for those all claims are listed, at once and then every five
minutes; not for those that the last list had, whose names are known then, and more seldom once they are gone for sure.
A node without claims asks nothing.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from dra_driver.driver.claims.checkpoint import Checkpoint
from dra_driver.driver.claims.container_edits import cdi_spec
from dra_driver.driver.claims.environment import outdated_ultraserver
from dra_driver.driver.claims.metadata import MetadataDirectory
from dra_driver.driver.claims.model import CheckpointEntry, Plan, PreparedClaims, PrepareError, clashing
from dra_driver.driver.claims.planner import refreshed
from dra_driver.driver.claims.sharing import consumers_of, users
from dra_driver.kube.api.errors import ApiError, DecodeError
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.cdi import SpecDirectory, encode
from dra_driver.kube.objects.resource import (
    AllocatedClaim,
    AllocatedDevice,
    DeviceRequestAllocationResult,
    PartialResourceClaim,
)
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.partitions import chips_of
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Worker

CHECK_AGAIN = 1800.0
"""Seconds between two questions about a claim that is here, at least."""
CHECK_SPACING = 600.0
"""Seconds of that time for each claim of the node: however many it has, it asks about six times in an hour."""
CHECK_DOUBTFUL = 300.0
"""Seconds between two questions about a claim that seems gone, and between two lists for unreadable files."""

log = logging.getLogger(__name__)


class ClaimObserver:
    """Answers by claim UID. For one thread.

    Args:
        source: the API server.
        node_name: name of this node, which is also its pool's.
        boot_id: identity of this boot.
        chips: host indexes of all chips of the node, as they are known now.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        source: ResourceApi,
        node_name: str,
        boot_id: str,
        chips: Callable[[], Collection[int]],
        clock: Callable[[], float],
    ) -> None:
        self._source = source
        self._all_chips = chips
        self._node_name = node_name
        self._boot_id = boot_id
        self._clock = clock
        self.known: dict[str, ClaimObservation] = {}
        """The answers so far."""
        self._due: dict[str, float] = {}
        self._asked_at = -math.inf
        """When it was last asked about unreadable files."""
        self._list_wait = CHECK_DOUBTFUL
        self._names: dict[str, tuple[str, str]] = {}
        """Namespaces and names of claims with unreadable files, of those that the last list had."""

    def due(self, held: PreparedClaims) -> list[Plan]:
        """Claims whose turn it is. Forgets claims that are no longer held."""
        now = self._clock()
        for uid in set(self._due).difference(held.entries):
            del self._due[uid]
        for uid in set(self.known).difference(held.entries, held.quarantined):
            del self.known[uid]
        for uid, entry in held.entries.items():
            first = now if entry.boot_id != self._boot_id else now + _again(len(held.entries)) * _share(uid)
            self._due.setdefault(uid, first)
        for uid in held.missing:
            self._due[uid] = now
            self.known.pop(uid, None)  # what was said before its file was removed decides nothing
        return [entry.plan for uid, entry in held.entries.items() if self._due[uid] <= now]

    def list_due(self, held: PreparedClaims) -> bool:
        """Whether unreadable files make it time for a list."""
        wait = self._list_wait if held.quarantined.keys() <= self.known.keys() else CHECK_DOUBTFUL
        return bool(held.quarantined) and self._asked_at + wait <= self._clock()

    def ask(self, plan: Plan) -> None:
        """Get a claim. ApiError when the server cannot be asked; it stays due."""
        try:
            claim: PartialResourceClaim | None = self._source.get_claim(plan.namespace, plan.name)
        except DecodeError as error:
            # It is about this one claim, and will be the same in a minute.
            log.warning("claim %s cannot be checked: %s", plan.reference, error)
            self._due[plan.uid] = self._clock() + CHECK_DOUBTFUL
            return
        except ApiError as error:
            if not error.object_missing:
                raise
            claim = None
        self._note(plan.uid, claim)
        here = self.known[plan.uid].here
        self._due[plan.uid] = self._clock() + (_again(len(self._due)) if here else CHECK_DOUBTFUL)

    def ask_list(self, uids: Collection[str]) -> None:
        """Look for claims by UID: by the names that the last list gave, and in a list of all if it did not have one.

        ApiError when the server cannot be asked.
        """
        self._asked_at, before, self._list_wait = self._clock(), self._list_wait, CHECK_DOUBTFUL
        self._names = {uid: name for uid, name in self._names.items() if uid in uids}
        if all(self._is_here(uid) for uid in uids):
            return
        claims = {claim.metadata.uid: claim for claim in self._source.list_claims(DRIVER_NAME, self._node_name)}
        self._names = {uid: (claim.metadata.namespace, claim.metadata.name) for uid, claim in claims.items()}
        for uid in uids:
            self._note(uid, claims.get(uid))
        # What is gone for sure and is not released waits for the node: another list would say the same.
        surely = [self.known[uid].surely_gone for uid in uids if uid not in claims]
        if surely and all(surely):
            self._list_wait = min(2 * before, CHECK_AGAIN)

    def _is_here(self, uid: str) -> bool:
        """Whether a claim that the last list had is still there, and allocated here; if so, that is noted."""
        if uid not in self._names:
            return False
        try:
            claim = self._source.get_claim(*self._names[uid])
        except ApiError as error:
            if not error.object_missing:
                raise
            return False
        if not self._own(uid, claim):
            return False
        self._note(uid, claim)
        return True

    def _own(
        self, uid: str, claim: PartialResourceClaim | AllocatedClaim | None
    ) -> list[AllocatedDevice | DeviceRequestAllocationResult]:
        """The devices of this node that the claim of that UID has."""
        results = () if claim is None or claim.metadata.uid != uid else claim.status.results
        return [item for item in results if (item.driver, item.pool) == (DRIVER_NAME, self._node_name)]

    def _note(self, uid: str, claim: PartialResourceClaim | AllocatedClaim | None) -> None:
        now = self._clock()
        own = self._own(uid, claim)
        before = self.known.get(uid)
        if before is not None and before.here == bool(own):
            answer = replace(before, checked=now, checks=before.checks + 1)
        else:
            answer = ClaimObservation(here=bool(own), since=now, checked=now)
        if own and claim is not None:
            answer = replace(answer, chips=self._chips(own), pods=users(claim), consumers=consumers_of(claim))
        self.known[uid] = answer

    def _chips(self, own: Iterable[AllocatedDevice | DeviceRequestAllocationResult]) -> frozenset[int] | None:
        """What a claim holds alone; None when a device is of unknown chips, which may be any."""
        held: set[int] = set()
        for result in own:
            chips = chips_of(result.device, self._all_chips())
            if chips is None:
                return None
            held.update(() if result.admin_access else chips)
        return frozenset(held)


def _again(claims: int) -> float:
    """Seconds between two questions about one of so many claims."""
    return max(CHECK_AGAIN, CHECK_SPACING * claims)


def _share(uid: str) -> float:
    """Part of that time until a claim's first turn, by UID: claims, and nodes after an update, ask one by one."""
    return zlib.crc32(uid.encode()) % 1000 / 1000


GONE_CHECKS = 3
GONE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class ClaimObservation:
    """What the API server says of a claim.

    Attributes:
        here: it exists under its UID and is allocated to this node.
        pods: whom it is reserved for; None: cannot be told.
        consumers: names and UIDs of those that are pods.
        chips: what it holds alone, when ``here``; None: cannot be told.
        since: clock reading of the first of the present run of equal answers.
        checks: number of answers in that run.
        checked: clock reading of the last answer.
    """

    here: bool
    since: float
    checked: float
    checks: int = 1
    pods: frozenset[str] | None = None
    consumers: tuple[tuple[str, str], ...] = ()
    chips: frozenset[int] | None = frozenset()

    @property
    def surely_gone(self) -> bool:
        """Gone at enough checks over enough time."""
        return not self.here and self.checks >= GONE_CHECKS and self.checked - self.since >= GONE_SECONDS


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing to do.

    ``kind`` is stable (metrics use it): ``write-journal`` and ``write-spec`` (both of ``entry``),
    ``withdraw-spec``, ``release`` (forget the claim), ``learn`` (``chips`` is what an unreadable file held), and
    ``write-metadata`` (of ``entry``) and ``remove-metadata`` of the files about its devices.
    """

    kind: Literal[
        "write-journal", "write-spec", "withdraw-spec", "release", "learn", "write-metadata", "remove-metadata"
    ]
    uid: str
    reason: str
    entry: CheckpointEntry | None = None
    chips: frozenset[int] = field(default=frozenset())


def diff(
    held: PreparedClaims,
    specs: Mapping[str, bytes | None],
    inventory: NodeInventory,
    boot_id: str,
    observations: Mapping[str, ClaimObservation],
    in_use: Collection[str] = (),
) -> list[Repair]:
    """What to do, in order of UIDs.

    Args:
        held: the checkpoint.
        specs: own CDI spec files by claim UID (None: unreadable).
        inventory: the node as it is now.
        boot_id: identity of this boot.
        observations: what the API server said, for the claims that it was asked about.
        in_use: claims with unreadable files that containers may be using.
    """
    found: list[Repair] = []
    for uid, entry in sorted(held.entries.items()):
        missing, observation = uid in held.missing, observations.get(uid)
        repair = _end(entry, missing, boot_id, observation) or _spec_repair(entry, specs, inventory)
        if repair is None and missing and observation is not None:
            repair = Repair("write-journal", uid, "its checkpoint file was removed, but its claim is not gone", entry)
        if repair is not None:
            found.append(repair)
    for uid, item in sorted(held.quarantined.items()):
        observation = observations.get(uid)
        if observation is None:
            continue
        if observation.here and observation.chips is not None and item.chips is None:
            found.append(
                Repair("learn", uid, "the API server tells what the unreadable file held", None, observation.chips)
            )
        elif observation.surely_gone and uid not in in_use:
            found.append(Repair("release", uid, "its checkpoint file is unreadable and its claim is gone"))
    return found


def clashes(held: PreparedClaims, observations: Mapping[str, ClaimObservation]) -> list[tuple[Plan, Plan]]:
    """Pairs of claims that one pod uses and that show different chips under one number."""
    users: dict[str, list[Plan]] = {}
    for uid, entry in sorted(held.entries.items()):
        observation = observations.get(uid)
        pods = entry.plan.pods if observation is None or not observation.here else observation.pods
        for pod in pods or ():
            users.setdefault(pod, []).append(entry.plan)
    pairs = {
        (one.uid, other.uid): (one, other)
        for plans in users.values()
        for index, one in enumerate(plans)
        for other in plans[index + 1 :]
        if clashing(one.shown, other.shown)
    }
    return [pairs[key] for key in sorted(pairs)]


def _end(entry: CheckpointEntry, missing: bool, boot_id: str, observation: ClaimObservation | None) -> Repair | None:
    if observation is None or observation.here:
        return None
    if missing:
        return Repair("release", entry.plan.uid, "its checkpoint file was removed, and the claim is gone")
    if entry.outlived(boot_id):
        return Repair("release", entry.plan.uid, "its claim is gone and the node was booted since it was prepared")
    return None


def _spec_repair(entry: CheckpointEntry, specs: Mapping[str, bytes | None], inventory: NodeInventory) -> Repair | None:
    uid = entry.plan.uid
    try:
        wanted = refreshed(entry.plan, inventory)
    except PrepareError as error:
        return Repair("withdraw-spec", uid, error.what) if uid in specs else None
    # The boot stays: the entry is no proof that the claim is used in this one.
    kept = CheckpointEntry(wanted, entry.boot_id)
    if wanted != entry.plan:
        return Repair("write-spec", uid, "the kernel has given its chips other device numbers", kept)
    if uid not in specs:
        return Repair("write-spec", uid, "it is missing", kept)
    if specs[uid] != encode(cdi_spec(wanted)):
        return Repair("write-spec", uid, "it differs from the checkpoint", kept)
    return None


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
        prepared: is told at each pass which claims are prepared; under the lock.
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
        with self._checkpoint.locked() as held:
            before = dict(held.entries)
        inventory = self._inventory()  # without the lock: the host's files may hang
        with self._pass, self._checkpoint.locked():
            held = self._checkpoint.verify()
            specs = {uid: self._cdi.content(uid) for uid in self._cdi.list()}
            # A call that has prepared a claim meanwhile has looked at the host later than this pass.
            newer = {uid for uid, entry in held.entries.items() if uid in specs and before.get(uid) != entry}
            found = diff(held, specs, inventory, self._checkpoint.boot_id, self._observer.known, self._in_use)
            wanted = [*self._metadata_repairs(held), *(repair for repair in found if repair.uid not in newer)]
            done = [repair for repair in wanted if self._applied(repair)]
            self.counts["remove-temporary"] += self._cdi.remove_temporary()
            self._cdi.note_boots()  # also those that a former version of the driver has written
            findings = self._look(held, inventory)
            # Under the lock: a call that prepares or unprepares meanwhile would report its claim first, and be undone.
            self._prepared(held)
        for text in findings:
            if text not in self.findings:
                log.warning("%s", text)
        self.findings = findings
        return done

    def consumers(self, plan: Plan) -> tuple[tuple[str, str], ...]:
        """Names and UIDs of the pods that a prepared claim is reserved for, as far as is known.

        Asks nobody; any thread may.
        """
        observation = self._observer.known.get(plan.uid)
        return plan.reserved_for if observation is None or not observation.here else observation.consumers

    def _ask(self) -> None:
        with self._pass:
            with self._checkpoint.locked():
                held = self._checkpoint.verify()
                due, unreadable = self._observer.due(held), list(held.quarantined)
                list_due = self._observer.list_due(held)
            for plan in due:
                self.worker.beat()
                self._observer.ask(plan)
            if list_due:
                self._observer.ask_list(unreadable)
            self._in_use = self._uses([uid for uid in unreadable if self._gone(uid)])

    def _gone(self, uid: str) -> bool:
        observation = self._observer.known.get(uid)
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

    def _metadata_repairs(self, held: PreparedClaims) -> list[Repair]:
        """First of all repairs: a CDI spec mounts the files."""
        told = {uid: entry for uid, entry in sorted(held.entries.items()) if entry.plan.metadata}
        left = [uid for uid in self._metadata.claims() if uid not in told and uid not in held.quarantined]
        return [
            *(
                Repair("write-metadata", uid, "files about its devices are missing or different", entry)
                for uid, entry in told.items()
                if not self._metadata.complete(entry.plan)
            ),
            *(Repair("remove-metadata", uid, "no prepared claim has these files") for uid in left),
        ]

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

    def _look(self, held: PreparedClaims, inventory: NodeInventory) -> tuple[str, ...]:
        unreadable = [
            f"the checkpoint file of claim {item.uid} cannot be read ({item.problem}); "
            f"{'all devices that no other claim holds' if item.chips is None else _chips(item.chips)} are held back "
            + (
                f"although it has been gone from the API server for more than {GONE_SECONDS / 60:.0f} minutes: "
                f"{self._in_use[item.uid]}"
                if item.uid in self._in_use
                else "until the claim is prepared again, unprepared, or gone from the API server"
            )
            for item in held.quarantined.values()
        ]
        gone = [
            f"claim {entry.plan.reference} ({uid}) has been gone from the API server for more than "
            f"{GONE_SECONDS / 60:.0f} minutes, but kubelet has not unprepared it; {_chips(entry.plan.held_chips)} stay "
            "held, since containers may be using them; if none are, reboot the node, or remove "
            f"{self._checkpoint.path(uid)}"
            for uid, entry in held.entries.items()
            if self._gone(uid)
        ]
        clashing = [
            f"claims {one.reference} and {other.reference} are used by one pod and show different chips under the same "
            "/dev/neuronN; a container that uses both sees the chips of only one; set --device-numbering host on nodes "
            "where pods share claims like that"
            for one, other in clashes(held, self._observer.known)
        ]
        outdated = [
            f"claim {entry.plan.reference} was prepared for another state of the UltraServer: {change}; delete "
            "its pods, so that they start with the current one"
            for entry in held.entries.values()
            if not entry.outlived(self._checkpoint.boot_id) and (change := outdated_ultraserver(entry.plan, inventory))
        ]
        foreign = [
            f"{path} is not one of this driver's files (no claim's UID in its name, other content, a directory or a "
            "link); it is ignored; remove it if no other program needs it"
            for path in (*self._checkpoint.others(), *self._cdi.others({*held.entries, *held.quarantined}))
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

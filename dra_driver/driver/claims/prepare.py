"""What happens at kubelet's two calls for a claim, from top to bottom: ``Preparer.prepare`` and ``unprepare``.

A claim is held by its checkpoint file before anything of it can be seen: then come the files about its devices, the CDI
spec, the answer to kubelet, and some time later the claim's status. Unprepare goes the other way: CDI spec, files,
checkpoint, which frees the devices. After a kill, ``reconcile.Reconciler`` finishes a prepare; a claim that was half
unprepared it makes whole again, and kubelet calls again. What slices offer follows from the checkpoint, too
(``node.decide``).

Both can be called again at any time, wherever the driver was killed, and end in the same place:

* A claim that is prepared keeps its numbers in containers for as long as its allocation is the same, and its variables
  until the node is booted: then no container runs that got them, and they follow the host (an election may have
  given other ids). Its CDI spec is written again where it is missing or different (``/var/run/cdi`` is empty after a
  reboot), with the device numbers that the kernel uses now.
* If the API server cannot be asked, a claim that was prepared in this boot is served from the checkpoint: an allocation
  does not change while a claim is in use, and kubelet itself has just read the claim. One of an earlier boot is refused
  until the API server answers: nothing has used it since, so it may have been allocated again.

Calls for one claim UID come one after the other (``kube.kubelet.dra.DRAPlugin``) in one process. In an update, kubelet
closes its connection to the instance that ends and calls the next one, while calls of the former may still run: those
change nothing any more.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from dra_driver.driver.claims.checkpoint import Checkpoint
from dra_driver.driver.claims.container_edits import cdi_spec
from dra_driver.driver.claims.gather import FromApiServer, Gatherer, Unanswered
from dra_driver.driver.claims.metadata import MetadataDirectory, with_metadata
from dra_driver.driver.claims.model import Needs, Plan, PlanSettings, PreparedClaims, PrepareError
from dra_driver.driver.claims.planner import after_reboot, plan, refresh, same_allocation
from dra_driver.driver.claims.situation import NodeFacts
from dra_driver.driver.claims.status_writer import ClaimStatusWriter
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.cdi import SpecDirectory
from dra_driver.kube.kubelet.dra import ClaimRef, PreparedDevice, is_awaited
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.metrics import Operations, Pauses

_TURNS = 2
"""How often a call takes the state lock: by then its plan may depend on claims that other calls have prepared since."""
_QUESTIONS = 5
"""How often its draft may need to know more, before that."""
PATIENCE_SECONDS: Final = 10.0
"""Seconds to wait for the end of what often ends within seconds: kubelet comes again only after a minute or more."""
_LOOK_SECONDS = 0.5
"""Seconds between two looks at what another instance of the driver, or the node, has changed meanwhile."""
_WAITING, _WAITING_OF_NAMESPACE = 8, 4
"""Calls that wait at a time, of sixteen: a pod that ends needs one for its claim."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A plan that was made without the state lock. It counts if nothing has changed once the call has the lock."""

    situation: FromApiServer | Unanswered
    revision: int
    """The revision of the prepared claims that it was made from."""
    plan: Plan | None = None
    """None: it is refused, unless something changes."""
    refused_for_now: bool = False
    """Whether it is refused for what often ends by itself within seconds."""

    @property
    def namespace(self) -> str:
        """The namespace of the claim."""
        if isinstance(self.situation, Unanswered):
            return self.situation.ref.namespace
        return self.situation.claim.namespace


class Preparer:
    """The driver as kubelet's library sees it (``kube.kubelet.dra.DRAPlugin``).

    Args:
        source: the API server.
        checkpoint: what is prepared.
        cdi: where runtimes look for it.
        inventory: reads the node as it is now, of its chips the ones given or (None) all; asked at each preparation,
            with no lock held.
        settings: the administrator's choices.
        metadata: where containers' files about their devices are.
        operations: durations, for Prometheus.
        facts: what is known of the node now; asked at each plan, by any thread.
        rights_changed: called when the API server begins, or ceases, to refuse to tell of claims.
        status: hears of each outcome, and writes it into the claim later; None: claims are not written.
        patience: seconds to wait for the end of what keeps a claim from being prepared, if it often ends by itself.
        sleep: ``runtime.sleep``, for tests.
    """

    def __init__(
        self,
        source: ResourceApi,
        checkpoint: Checkpoint,
        cdi: SpecDirectory,
        inventory: Callable[[Collection[int] | None], NodeInventory],
        settings: PlanSettings,
        *,
        metadata: MetadataDirectory,
        operations: Operations | None = None,
        facts: Callable[[], NodeFacts] = NodeFacts,
        rights_changed: Callable[[], None] = lambda: None,
        status: ClaimStatusWriter | None = None,
        patience: float = PATIENCE_SECONDS,
        sleep: Callable[[float], None] = runtime.sleep,
    ) -> None:
        self._gatherer = Gatherer(source, inventory, facts, rights_changed, sleep)
        self._checkpoint = checkpoint
        self._cdi = cdi
        self._settings = settings
        self._metadata = metadata
        self._operations = operations or Operations()
        self._status = status
        self._patience = patience
        self._waiting = _Places(_WAITING, _WAITING_OF_NAMESPACE)

    def prepare(self, claim: ClaimRef, deadline: float) -> list[PreparedDevice]:
        """Make the claim's devices visible to its containers. DriverError says why not."""
        situation: FromApiServer | Unanswered | None = None
        try:
            with self._operations.measured("prepare") as pauses:
                # First what the API server and the host say, which may take seconds: no other claim waits for it.
                situation = self._gatherer.situation(claim, deadline)
                for _ in range(_TURNS):
                    # Then a plan, and what it depends on, from what is prepared by now.
                    draft = self._draft(situation, deadline)
                    # A chip whose holder is about to end is waited for here, where its end can have the lock.
                    if draft.refused_for_now and self._wait_out(draft, deadline, pauses):
                        situation = self._gatherer.situation(claim, deadline)
                        draft = self._draft(situation, deadline)
                    # Where other calls wait for the lock, the checkpoint file is on the disk before this one takes it,
                    # under a name that counts for nobody: they do not wait for the disk.
                    with self._checkpoint.staged(draft.plan) as staged, self._checkpoint.locked(deadline) as prepared:
                        # Here it is decided, since no other claim changes any more. Most often nothing has, since the
                        # draft. A chip that has vanished since the host was read is found by the next repair.
                        situation = self._gatherer.with_facts_now(draft.situation)
                        unchanged = situation is draft.situation and prepared.revision == draft.revision
                        outcome = draft.plan if unchanged and draft.plan else self._decide(situation, prepared)
                        if isinstance(outcome, Needs):
                            continue  # another claim came between; the next round asks for it without the lock
                        _check_awaited()
                        # The checkpoint comes before all that can be seen: wherever this ends, repair does the rest.
                        if self._checkpoint.put(outcome, staged):
                            _warn(outcome)
                        # The spec mounts these files.
                        if outcome.metadata:
                            self._metadata.write(outcome)
                        # Now container runtimes can see the devices.
                        self._cdi.write(outcome.uid, cdi_spec(outcome))
                    break
                else:
                    raise _unsettled_error()
        except DriverError as error:
            # What another instance has done since, is for that one to say.
            if self._status is not None and isinstance(situation, FromApiServer) and is_awaited():
                self._status.note_refused(situation.reported, error)
            raise
        # No container waits for the claim's status: it is written later.
        if self._status is not None:
            self._status.note_prepared(outcome, None if isinstance(situation, Unanswered) else situation.reported)
        log.info("prepared claim %s: %s", claim, ", ".join(device.device for device in outcome.devices))
        return [
            PreparedDevice((device.request,), device.pool, device.device, (self._cdi.qualified(device.cdi_name),))
            for device in outcome.devices
        ]

    def unprepare(self, claim: ClaimRef, deadline: float) -> None:
        """Take the claim's devices back; fine for a claim of which nothing is known. Does not ask the API server."""
        with self._operations.measured("unprepare"), self._checkpoint.locked(deadline) as prepared:
            _check_awaited()
            # The reverse order: from here on no container is started with a chip, and then it is free for others.
            self._cdi.remove(claim.uid)
            entry = prepared.entries.get(claim.uid)
            if entry is not None and entry.plan.metadata:
                self._metadata.remove(claim.uid)
            self._checkpoint.remove(claim.uid)
        if self._status is not None:
            meta = ObjectMeta(name=claim.name, namespace=claim.namespace, uid=claim.uid)
            self._status.note_unprepared(meta, own_pod=entry is not None and bool(entry.plan.own_pod))
        log.info("unprepared claim %s", claim)

    def _wait_out(self, draft: _Draft, deadline: float, pauses: Pauses) -> bool:
        """Wait while a claim is refused for what often ends by itself; whether it is refused for that no longer."""
        end = min(runtime.monotonic() + self._patience, deadline - _LOOK_SECONDS)
        with self._waiting.place(draft.namespace) as has_place, pauses.pause():
            while draft.refused_for_now and has_place and (left := end - runtime.monotonic()) > 0:
                self._checkpoint.wait_for_change(draft.revision, min(left, _LOOK_SECONDS))
                with self._checkpoint.locked(deadline):
                    pass  # to have read what another instance of the driver has changed
                draft = self._draft(self._gatherer.with_host_anew(draft.situation), deadline)
        return not draft.refused_for_now

    def _draft(self, situation: FromApiServer | Unanswered, deadline: float) -> _Draft:
        """The claim's plan as it looks without the state lock, and all that it depends on."""
        if isinstance(situation, Unanswered):
            return _Draft(situation, 0)  # under the lock, it costs no more
        for _ in range(_QUESTIONS):
            with self._checkpoint.glance(deadline) as prepared:
                revision = prepared.revision
                try:
                    outcome = self._decide(situation, prepared)
                except DriverError as refusal:  # which is found under the lock again, or not
                    for_now = isinstance(refusal, PrepareError) and refusal.for_now
                    return _Draft(situation, revision, refused_for_now=for_now)
            if isinstance(outcome, Plan):
                return _Draft(situation, revision, outcome)
            situation = self._gatherer.with_answers(situation, outcome, deadline)
        raise _unsettled_error()

    def _decide(self, situation: FromApiServer | Unanswered, prepared: PreparedClaims) -> Plan | Needs:
        """What the claim gets: what it had, where that still counts, or else a new plan. DriverError: nothing."""
        if isinstance(situation, Unanswered):
            return self._from_checkpoint(situation, prepared)
        entry = prepared.entries.get(situation.claim.uid)
        if entry is not None:
            outlived = entry.outlived(self._checkpoint.boot_id)
            if same_allocation(entry.plan, situation.claim):
                current = refresh(entry.plan, situation.inventory)
                return after_reboot(current, situation, prepared) if outlived else current
            if not outlived:
                raise PrepareError(
                    f"claim {entry.plan.reference} was allocated again, but its former devices are still prepared here",
                    consequence="containers may be using them, so it is not prepared",
                    remedy="delete the pods that use the claim; kubelet then unprepares it",
                    reason="AllocatedAgain",
                )
            log.info("claim %s was allocated again since the node was booted", entry.plan.reference)
        outcome = plan(situation, prepared, self._settings)
        return outcome if isinstance(outcome, Needs) else with_metadata(outcome, situation, self._metadata.path)

    def _from_checkpoint(self, situation: Unanswered, prepared: PreparedClaims) -> Plan:
        ref, trouble = situation.ref, situation.trouble
        entry = prepared.entries.get(ref.uid)
        if entry is None or entry.outlived(self._checkpoint.boot_id):
            earlier = "it was prepared before the node was booted and may have been allocated again since, so "
            raise DriverError(
                f"cannot get claim {ref.namespace}/{ref.name}: {trouble.what}",
                consequence=f"{earlier if entry else ''}the claim is not prepared",
                remedy="kubelet tries again" + (f"; {trouble.remedy}" if trouble.remedy else ""),
            ) from trouble
        log.warning("claim %s is prepared from the checkpoint, since the API server fails: %s", ref, trouble)
        return refresh(entry.plan, situation.inventory)


class _Places:
    """Places for calls that wait: so many at a time, and of one namespace at most some of them."""

    def __init__(self, most: int, of_namespace: int) -> None:
        self._most = most
        self._of_namespace = of_namespace
        self._lock = runtime.lock()
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """How many wait now."""
        return self._taken.total()

    @contextmanager
    def place(self, namespace: str) -> Iterator[bool]:
        """Have a place during the body, or none if all are taken: yields whether there is one."""
        with self._lock:
            free = self._taken.total() < self._most and self._taken[namespace] < self._of_namespace
            self._taken[namespace] += free
        try:
            yield free
        finally:
            with self._lock:
                self._taken[namespace] -= free
                self._taken += Counter()  # forgets namespaces without one


def _warn(outcome: Plan) -> None:
    for warning in outcome.warnings:
        log.warning("claim %s: %s", outcome.reference, warning)


def _check_awaited() -> None:
    """DriverError where kubelet has turned to another instance of the driver, of which it may have asked the opposite.

    For use with the state lock held: what that instance has changed since, would be undone, and by nobody set right.
    """
    if not is_awaited():
        raise DriverError(
            "kubelet no longer waits for this call",
            consequence="nothing was changed",
            remedy="kubelet asks again, this instance of the driver or the next",
        )


def _unsettled_error() -> PrepareError:
    return PrepareError(
        "the device numbers and cores depend on other claims that are being prepared at the same time",
        consequence="the claim is not prepared",
        remedy="kubelet tries again",
    )

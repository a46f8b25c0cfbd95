"""Prepare and unprepare: the claim is fetched, then, under the state lock, planned, recorded and made visible.

The order of effects is checkpoint, CDI spec, reply; backwards on unprepare. So a chip that a container can see is
always recorded, and whatever a killed driver leaves half-way is finished by kubelet's retry or by repair. A retry walks
the same way and ends in the same place:

* a claim that is recorded keeps its numbers in containers for as long as its allocation is the same, and its variables
  until the node is booted: then no container runs that was told them, and they follow the host (an election may have
  given other ids). The CDI spec is compared and written again where it is missing or different (``/var/run/cdi`` is
  empty after a reboot), with the device numbers that the kernel uses now;
* if the API server cannot be asked, a claim that was recorded in this boot is served from the checkpoint: an allocation
  does not change while a claim is in use, and kubelet itself has just read the claim. One of an earlier boot is refused
  until the API server answers: nothing has used it since, so it may have been allocated again.

No lock is held while the API server is asked. Calls for one claim UID come one after the other
(``kube.kubelet.dra.DRAPlugin``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, TypeVar

from dra_driver.driver.claims.checkpoint import Checkpoint, Staged
from dra_driver.driver.claims.container_edits import cdi_spec
from dra_driver.driver.claims.environment import parameters
from dra_driver.driver.claims.facts import NodeFacts
from dra_driver.driver.claims.metadata import MetadataDirectory, described
from dra_driver.driver.claims.model import Needs, Plan, PlanSettings, PreparedClaims, PrepareError
from dra_driver.driver.claims.planner import after_reboot, own_results, plan, refreshed, users
from dra_driver.driver.claims.status_writer import ClaimStatusWriter
from dra_driver.kube.api.client import MAX_OBJECT_BYTES
from dra_driver.kube.api.errors import ApiError, TooLarge, Unreachable
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.cdi import SpecDirectory
from dra_driver.kube.kubelet.dra import ClaimRef, PreparedDevice
from dra_driver.kube.objects.core import MAX_CLAIM_USES, Pod
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.kube.objects.resource import PartialResourceClaim, ReportedClaim, ResourceClaimConsumerReference
from dra_driver.neuron.exclusion import HeldBack
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.partitions import chips_of
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.metrics import Operations
from dra_driver.util.worker import bounded

_GET_SECONDS = 10.0
"""For one answer of the API server: connecting and the answer may take as long each."""
_PAUSES = (0.25, 1.0)
"""Seconds before the second and the third try to get a claim."""
_ENOUGH = 5.0
"""Seconds of trying after which it is not tried again: kubelet does that."""
_ROUNDS = 5
"""How often other claims' pods are asked for, while other calls keep preparing claims."""

_SMALL_BYTES: Final = 256 << 10
"""Of a claim or pod as JSON, far more than usual: larger ones are read one at a time."""
_FORBIDDEN = 403
"""Status for what the driver's role does not allow: clusters without cores need no right to read pods."""
_MAY_READ_PODS = (
    "allow the driver to get pods (docs/operate/what-nodes-offer.md, Permission to read pods), "
    "or use one claim with one request"
)

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    """What a call has asked the API server beside its claim: see ``planner.plan``."""

    consumers: dict[str, frozenset[str] | None]
    pods: dict[str, Pod]


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
        status: is told of each outcome, and writes it into the claim later; None: claims are not written.
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
        sleep: Callable[[float], None] = runtime.sleep,
    ) -> None:
        self._source = source
        self._checkpoint = checkpoint
        self._cdi = cdi
        self._inventory = inventory
        self._settings = settings
        self._metadata = metadata
        self._operations = operations or Operations()
        self._facts = facts
        self._rights_changed = rights_changed
        self._allowed = True
        self._status = status
        self._sleep = sleep
        self._large = runtime.lock()
        """Of who reads a large object."""

    def prepare(self, claim: ClaimRef, deadline: float) -> list[PreparedDevice]:
        """Make the claim's devices visible to its containers. DriverError says why not."""
        with self._operations.measured("prepare"):
            prepared = self._prepared(claim, deadline)
        log.info("prepared claim %s: %s", claim, ", ".join(device.device for device in prepared.devices))
        return [
            PreparedDevice((device.request,), device.pool, device.device, (self._cdi.qualified(device.cdi_name),))
            for device in prepared.devices
        ]

    def unprepare(self, claim: ClaimRef, deadline: float) -> None:
        """Take the claim's devices back; fine for a claim of which nothing is known. Does not ask the API server."""
        with self._operations.measured("unprepare"), self._checkpoint.locked(deadline) as held:
            self._cdi.remove(claim.uid)
            entry = held.entries.get(claim.uid)
            if entry is not None and entry.plan.metadata:
                self._metadata.remove(claim.uid)
            self._checkpoint.remove(claim.uid)
        if self._status is not None:
            meta = ObjectMeta(name=claim.name, namespace=claim.namespace, uid=claim.uid)
            self._status.unprepared(meta, own_pod=entry is not None and bool(entry.plan.own_pod))
        log.info("unprepared claim %s", claim)

    def _prepared(self, claim: ClaimRef, deadline: float) -> Plan:
        stored, trouble = self._fetch(claim, deadline)
        try:
            made = self._made(claim, stored, trouble, deadline)
        except DriverError as error:
            if self._status is not None and stored is not None:
                self._status.refused(stored, error)
            raise
        if self._status is not None:
            self._status.prepared(made, stored)
        return made

    def _made(self, claim: ClaimRef, stored: ReportedClaim | None, trouble: ApiError | None, deadline: float) -> Plan:
        if stored is not None and stored.status.allocation is not None and stored.status.allocation.devices.config:
            import dra_driver.neuron.opaque_config  # noqa: F401 - so that the first import does not happen under the lock
        chips, known = None if stored is None else _chips_needed(stored), _Known({}, {})
        for _ in range(_ROUNDS):
            inventory = self._inventory(chips)  # each time: the API server's answers may have taken long
            with self._staged(stored, inventory, known) as staged, self._checkpoint.locked(deadline) as held:
                made = self._recorded(claim, stored, trouble, inventory, held, known, staged)
            if isinstance(made, Plan):
                return made
            self._ask(made, claim.namespace, known, deadline)
        raise PrepareError(
            "the device numbers and cores depend on other claims that are being prepared at the same time",
            consequence="the claim is not prepared",
            remedy="kubelet tries again",
        )

    def _ask(self, needs: Needs, namespace: str, known: _Known, deadline: float) -> None:
        """Have the API server tell what a plan needs."""
        for other in needs.claims:
            if runtime.monotonic() >= deadline:
                raise needs.unmet(namespace)
            known.consumers[other.uid] = self._users_now(other, deadline)
        for pod in needs.pods:
            known.pods[pod.uid] = self._pod(namespace, pod, deadline, optional=needs.optional)
            if sum(map(_size, known.pods.values())) > MAX_CLAIM_USES:
                raise PrepareError(
                    f"its pods' containers use different claims or requests more than {MAX_CLAIM_USES:,} times",
                    consequence="it is not known what each of its containers uses, so the claim is not prepared",
                    remedy="share the claim between fewer pods, or name fewer requests in their containers",
                    reason="PodNotRead",
                )

    def _recorded(
        self,
        ref: ClaimRef,
        stored: ReportedClaim | None,
        trouble: ApiError | None,
        inventory: NodeInventory,
        held: PreparedClaims,
        known: _Known,
        staged: Staged | None,
    ) -> Plan | Needs:
        """What the claim gets, kept and made visible, unless more has to be known first. With the lock held."""
        if stored is None:
            wanted = self._from_checkpoint(ref, inventory, held, trouble)
        else:
            found = self._planned(stored, inventory, held, known)
            if isinstance(found, Needs):
                return found
            wanted = found
        self._checkpoint.put(wanted, staged)
        if wanted.metadata:
            self._metadata.write(wanted)
        self._cdi.write(wanted.uid, cdi_spec(wanted))
        return wanted

    def _staged(
        self, claim: PartialResourceClaim | None, inventory: NodeInventory, known: _Known
    ) -> AbstractContextManager[Staged | None]:
        """What the checkpoint can write before it is this call's turn."""
        if claim is None:
            return nullcontext()
        return self._checkpoint.staged(claim.metadata.uid, lambda held: self._new_plan(claim, inventory, held, known))

    def _new_plan(
        self, claim: PartialResourceClaim, inventory: NodeInventory, held: PreparedClaims, known: _Known
    ) -> Plan | Needs:
        now = self._facts()
        _check_held_back(claim, now.held_back)
        made = plan(claim, inventory, held, self._settings, known.consumers, now.unhealthy, now.core_sizes, known.pods)
        if isinstance(made, Plan) and now.attributes is not None:
            made = described(made, claim, self._metadata.path, now.attributes)
        return made

    def _planned(
        self, claim: PartialResourceClaim, inventory: NodeInventory, held: PreparedClaims, known: _Known
    ) -> Plan | Needs:
        entry = held.entries.get(claim.metadata.uid)
        if entry is not None:
            outlived = entry.outlived(self._checkpoint.boot_id)
            if same_allocation(entry.plan, claim):
                wanted = refreshed(entry.plan, inventory)
                return after_reboot(wanted, claim, inventory, known.pods) if outlived else wanted
            if not outlived:
                raise PrepareError(
                    f"claim {entry.plan.reference} was allocated again, but its former devices are still prepared here",
                    consequence="containers may be using them, so it is not prepared",
                    remedy="delete the pods that use the claim; kubelet then unprepares it",
                    reason="AllocatedAgain",
                )
            log.info("claim %s was allocated again since the node was booted", entry.plan.reference)
        made = self._new_plan(claim, inventory, held, known)
        if isinstance(made, Plan):
            for warning in made.warnings:
                log.warning("claim %s: %s", made.reference, warning)
        return made

    def _from_checkpoint(
        self, ref: ClaimRef, inventory: NodeInventory, held: PreparedClaims, trouble: ApiError | None
    ) -> Plan:
        entry = held.entries.get(ref.uid)
        if entry is None or entry.outlived(self._checkpoint.boot_id):
            earlier = "it was prepared before the node was booted and may have been allocated again since, so "
            raise DriverError(
                f"cannot get claim {ref.namespace}/{ref.name}: {trouble.what if trouble else 'no answer'}",
                consequence=f"{earlier if entry else ''}the claim is not prepared",
                remedy="kubelet tries again" + (f"; {trouble.remedy}" if trouble and trouble.remedy else ""),
            ) from trouble
        log.warning("claim %s is prepared from the checkpoint, since the API server fails: %s", ref, trouble)
        return refreshed(entry.plan, inventory)

    def _fetch(self, ref: ClaimRef, deadline: float) -> tuple[ReportedClaim | None, ApiError | None]:
        """The claim, or what keeps the API server from telling. PrepareError when it says that there is none."""
        end = min(runtime.monotonic() + _ENOUGH, deadline)
        for pause in (*_PAUSES, None):
            try:
                claim = self._get(ref.namespace, ref.name, deadline)
            except ApiError as error:
                if error.object_missing:
                    raise PrepareError(
                        f"claim {ref.namespace}/{ref.name} no longer exists",
                        consequence="there is nothing to prepare",
                        remedy="delete the pod, or create the claim",
                    ) from error
                if error.status == _FORBIDDEN:
                    self._note_rights(allowed=False)
                wait = max(pause or 0.0, min(error.retry_after or 0.0, 2.0))
                if pause is None or not _passes(error) or runtime.monotonic() + wait > end:
                    return None, error
                self._sleep(wait)
                continue
            self._note_rights(allowed=True)
            if claim.metadata.uid != ref.uid:
                raise PrepareError(
                    f"claim {ref.namespace}/{ref.name} was replaced: its UID is {claim.metadata.uid}, not {ref.uid}",
                    consequence="the claim that the pod was created with is gone",
                    remedy="delete the pod so that it is started with the new claim",
                )
            return claim, None
        raise AssertionError("the last try returns")

    def _note_rights(self, *, allowed: bool) -> None:
        if allowed != self._allowed:
            self._allowed = allowed
            self._rights_changed()

    def _get(self, namespace: str, name: str, deadline: float) -> ReportedClaim:
        """A claim, or ApiError by the deadline."""
        left = deadline - runtime.monotonic()
        if left <= 0:
            raise Unreachable("kubelet's call timed out before the API server was queried")
        seconds = min(_GET_SECONDS, left / 2)
        return self._read(lambda most: self._source.get_claim(namespace, name, timeout=seconds, most=most), deadline)

    def _read(self, get: Callable[[int], T], deadline: float) -> T:
        """An object of the API server; of large ones only one is read at a time. ``get`` is told how large it may be.

        kubelet has up to sixteen claims prepared at once, and each, and each of their pods, may be as large as objects
        can be.
        """
        try:
            return get(_SMALL_BYTES)
        except TooLarge:
            pass
        late = Unreachable("kubelet's call timed out while large claims and pods were read")
        if not self._large.acquire(timeout=max(deadline - runtime.monotonic(), 0.0)):
            raise late
        try:
            # In a thread of its own, of which there is one at a time: the C library keeps memory by thread, and sixteen
            # threads of gRPC would each keep what one object takes.
            return bounded(lambda: get(MAX_OBJECT_BYTES), deadline - runtime.monotonic(), lambda: late)
        finally:
            self._large.release()

    def _users_now(self, other: Plan, deadline: float) -> frozenset[str] | None:
        """Pods that another prepared claim is reserved for now; None when that cannot be found out."""
        try:
            claim = self._get(other.namespace, other.name, deadline)
        except ApiError as error:
            return frozenset() if error.object_missing else None
        return users(claim) if claim.metadata.uid == other.uid else frozenset()

    def _pod(self, namespace: str, of: ResourceClaimConsumerReference, deadline: float, *, optional: bool) -> Pod:
        """A pod; without containers if it is gone, or ``optional`` and not to be read.

        PrepareError when it cannot be read: containers would be told the wrong cores.
        """
        seconds = min(_GET_SECONDS, max(deadline - runtime.monotonic(), 0.1) / 2)
        gone = Pod(ObjectMeta(name=of.name, namespace=namespace))
        try:
            pod = self._read(
                lambda most: self._source.get_pod(namespace, of.name, timeout=seconds, most=most), deadline
            )
        except ApiError as error:
            if error.object_missing or (optional and error.status == _FORBIDDEN):
                return gone
            raise PrepareError(
                f"cannot get pod {namespace}/{of.name}: {error.what}",
                consequence="it is not known what each of its containers uses, so the claim is not prepared",
                remedy=_MAY_READ_PODS if error.status == _FORBIDDEN else error.remedy or "kubelet tries again",
                reason="PodNotRead",
            ) from error
        return pod if pod.metadata.uid == of.uid else gone


def _size(pod: Pod) -> int:
    """What is kept of a pod: its containers, its claims, and the uses of one by the other."""
    containers, extended = (*pod.spec.containers, *pod.spec.init_containers), pod.status.extended_resource_claim_status
    return (
        len(pod.spec.resource_claims)
        + len(pod.status.resource_claim_statuses)
        + (len(extended.request_mappings) if extended is not None else 0)
        + sum(1 + len(container.resources.claims) for container in containers)
    )


def _chips_needed(claim: PartialResourceClaim) -> frozenset[int] | None:
    """Host indexes of the chips that the claim's devices are made of; None when all of the host must be looked at."""
    chips: set[int] = set()
    for result in claim.status.results:
        if result.driver == DRIVER_NAME:
            found = chips_of(result.device, ())
            if found is None:
                return None
            chips.update(found)
    return frozenset(chips)


def same_allocation(prepared: Plan, claim: PartialResourceClaim) -> bool:
    """Whether the claim has the devices and parameters that were prepared. PrepareError: it has no device of ours."""
    devices = [(device.request, device.pool, device.device, device.admin) for device in prepared.devices]
    allocated = [(item.request, item.pool, item.device, bool(item.admin_access)) for item in own_results(claim)]
    return devices == allocated and prepared.parameters == parameters(claim)


def _passes(error: ApiError) -> bool:
    """Whether trying again soon can help."""
    return isinstance(error, Unreachable) or error.status in {408, 429} or error.status >= 500


def _check_held_back(claim: PartialResourceClaim, held_back: HeldBack) -> None:
    """Raise PrepareError if the claim is to get chips that a device plugin may have given to others."""
    for result in own_results(claim) if held_back.chips else ():
        chips = chips_of(result.device, held_back.chips) or ()
        if not result.admin_access and held_back.chips.intersection(chips):
            raise PrepareError(
                f"device {result.device} may be in use already: {held_back.problem}",
                consequence="the claim is not prepared",
                remedy="kubelet tries again; delete the pod to get other devices",
                reason="DeviceHeldBack",
            )

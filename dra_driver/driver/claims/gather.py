"""What the API server and the host tell of a claim that is to be prepared. No lock is held meanwhile but for reading.

kubelet has up to sixteen claims prepared at once, and each, and each of their pods, may be as large as objects can be:
large ones are read one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from dra_driver.driver.claims.model import Needs, Plan, PrepareError
from dra_driver.driver.claims.situation import NodeFacts, Situation, claim_facts, users
from dra_driver.kube.api.client import MAX_OBJECT_BYTES
from dra_driver.kube.api.errors import ApiError, TooLarge, Unreachable
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.kubelet.dra import ClaimRef
from dra_driver.kube.objects.core import MAX_CLAIM_USES, Pod
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.kube.objects.resource import ReportedClaim, ResourceClaimConsumerReference
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.util import runtime
from dra_driver.util.worker import bounded

_GET_SECONDS = 10.0
"""Seconds for one answer of the API server: connecting and the answer may take as long each."""
_PAUSES = (0.25, 1.0)
"""Seconds before the second and the third try to get a claim."""
_ENOUGH = 5.0
"""Seconds of trying after which it is not tried again: kubelet does that."""
_SMALL_BYTES: Final = 256 << 10
"""Size of a claim or pod as JSON, far more than usual: larger ones are read one at a time."""
_FORBIDDEN = 403
"""Status for what the driver's role does not allow: clusters without cores need no right to read pods."""
_MAY_READ_PODS = (
    "allow the driver to get pods (docs/operate/what-nodes-offer.md, Permission to read pods), "
    "or use one claim with one request"
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FromApiServer(Situation):
    """A claim and its node as the API server and the host had them a moment ago."""

    reported: ReportedClaim = field(kw_only=True)
    """The claim itself, for its status."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A claim that the API server does not tell of now."""

    ref: ClaimRef
    trouble: ApiError
    inventory: NodeInventory


class Gatherer:
    """Asks the API server and the host. Thread-safe.

    Args:
        source: the API server.
        inventory: reads the node as it is now, of its chips the ones given or (None) all.
        facts: what is known of the node now.
        rights_changed: called when the API server begins, or ceases, to refuse to tell of claims.
        sleep: ``runtime.sleep``, for tests.
    """

    def __init__(
        self,
        source: ResourceApi,
        inventory: Callable[[Collection[int] | None], NodeInventory],
        facts: Callable[[], NodeFacts],
        rights_changed: Callable[[], None],
        sleep: Callable[[float], None],
    ) -> None:
        self._source = source
        self._inventory = inventory
        self._facts = facts
        self._rights_changed = rights_changed
        self._allowed = True
        self._sleep = sleep
        self._large = runtime.lock()
        """The lock of whoever reads a large object."""

    def situation(self, ref: ClaimRef, deadline: float) -> FromApiServer | Unanswered:
        """The claim, without its pods, and its node as it is now. PrepareError: the API server has no such claim."""
        reported = self._claim(ref, deadline)
        if isinstance(reported, ApiError):
            return Unanswered(ref, reported, self._inventory(None))
        claim = claim_facts(reported)
        if claim.config:
            import dra_driver.neuron.opaque_config  # noqa: F401 - so that the first import does not happen under a lock
        return FromApiServer(claim, self._inventory(claim.chips), self._facts(), {}, {}, reported=reported)

    def with_answers(self, situation: FromApiServer, needs: Needs, deadline: float) -> FromApiServer:
        """The situation with what a plan needs, and the node anew: the answers may have taken long."""
        consumers, pods = dict(situation.consumers), dict(situation.pods or {})
        namespace = situation.claim.namespace
        for other in needs.claims:
            if runtime.monotonic() >= deadline:
                raise needs.unmet(namespace)
            consumers[other.uid] = self._users_now(other, deadline)
        for pod in needs.pods:
            pods[pod.uid] = self._pod(namespace, pod, deadline, optional=needs.optional)
            if sum(map(_size, pods.values())) > MAX_CLAIM_USES:
                raise PrepareError(
                    f"its pods' containers use different claims or requests more than {MAX_CLAIM_USES:,} times",
                    consequence="it is not known what each of its containers uses, so the claim is not prepared",
                    remedy="share the claim between fewer pods, or name fewer requests in their containers",
                    reason="PodNotRead",
                )
        inventory = self._inventory(situation.claim.chips)
        return replace(situation, inventory=inventory, facts=self._facts(), consumers=consumers, pods=pods)

    def with_host_anew(self, situation: FromApiServer | Unanswered) -> FromApiServer | Unanswered:
        """The situation with the node as it is now; the API server is not asked."""
        if isinstance(situation, Unanswered):
            return replace(situation, inventory=self._inventory(None))
        return replace(situation, inventory=self._inventory(situation.claim.chips), facts=self._facts())

    def with_facts_now(self, situation: FromApiServer | Unanswered) -> FromApiServer | Unanswered:
        """The situation with what is known of the node at this moment, unread; the same one if nothing changed."""
        if isinstance(situation, Unanswered) or (facts := self._facts()) == situation.facts:
            return situation
        return replace(situation, facts=facts)

    def _claim(self, ref: ClaimRef, deadline: float) -> ReportedClaim | ApiError:
        """The claim, or what keeps the API server from telling."""
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
                    return error
                self._sleep(wait)
                continue
            self._note_rights(allowed=True)
            if claim.metadata.uid != ref.uid:
                raise PrepareError(
                    f"claim {ref.namespace}/{ref.name} was replaced: its UID is {claim.metadata.uid}, not {ref.uid}",
                    consequence="the claim that the pod was created with is gone",
                    remedy="delete the pod so that it is started with the new claim",
                )
            return claim
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
        """An object of the API server, of large ones only one at a time. ``get`` takes how large it may be."""
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


def _passes(error: ApiError) -> bool:
    """Whether trying again soon can help."""
    return isinstance(error, Unreachable) or error.status in {408, 429} or error.status >= 500

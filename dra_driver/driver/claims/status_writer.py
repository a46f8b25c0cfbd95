"""Writes the driver's entries of ``status.devices``, in one thread, when nothing waits for it any more.

Of each claim the last state alone is kept, and what the API server was last seen to have. Each write is a server-side
apply of the driver's own entries, with the UID of the claim: the API server keeps account of what is ours. The entries
go with the allocation, so an unprepare writes nothing; a claim that is still allocated here some minutes later
loses them. A claim of which nothing is known, as all are after a start, is read first: a restart that changes nothing
writes nothing.

An API server that is away is asked again with back-off, by this thread alone. A webhook of a claim's namespace may let
each write there hang: namespaces where one took long come after all others. Without the right to write, which the
chart gives only with the policy that narrows it to the node's own claims, that is said once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dra_driver.driver.claims.model import Plan
from dra_driver.driver.claims.status import Entries, Refusal, allocated, differs, entries, is_worse, own_entries
from dra_driver.driver.write_budget import WriteBudget
from dra_driver.kube.api.errors import ApiError, Unreachable
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.kube.objects.resource import ReportedClaim
from dra_driver.neuron.health.faults import NodeHealth
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Backoff, Worker

MANAGER: Final = "neuron-dra-driver-claims"
SETTLE_SECONDS: Final = 0.2
"""Between a preparation and the write: kubelet gets its reply first."""
REFUSAL_SECONDS: Final = 60.0
"""Between two refusals of one claim that are written."""
LEFT_SECONDS: Final = 300.0
"""After an unprepare, the API server drops the entries by itself as soon as nobody uses the claim."""
_NOT_ALLOCATED: Final = "must be an allocated device"
"""Part of the API server's answer (422) to an entry for another device."""
FORMER_SECONDS: Final = 45.0
"""After the start, what claims say is read once more: the instance before may have written last."""
SLOW_SECONDS: Final = 1.0
"""Of a write, from which on its namespace comes last; and one without an answer after that says nothing of others."""
FORGET_SECONDS: Final = 600.0
"""After that a refused claim is forgotten: kubelet, as long as it tries, reminds of it."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Claim:
    meta: ObjectMeta
    wanted: Plan | Refusal | None
    """None: it is unprepared, and is to have no entries."""
    known: Entries | None
    """What the API server has; None: not known."""
    due: float
    since: float
    """When what is wanted became so."""
    refused_at: float = -math.inf
    """When a refusal was written last."""
    backoff: Backoff = field(default_factory=lambda: Backoff(first=60.0, cap=1800.0))


@dataclass(slots=True)
class _SlowNamespace:
    not_before: float = -math.inf
    backoff: Backoff = field(default_factory=lambda: Backoff(first=30.0, cap=600.0))


class ClaimStatusWriter:
    """The entries of one node's claims. All methods return at once; any thread may call them.

    Args:
        api: the API server.
        node_name: name of this node, which is also its pool's.
        health: how well the chips are; None: not known yet, so that nothing is written.
        inventory: the node.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        api: ResourceApi,
        node_name: str,
        health: Callable[[], NodeHealth | None],
        inventory: Callable[[], NodeInventory],
        *,
        clock: Callable[[], float] = runtime.monotonic,
    ) -> None:
        self._api = api
        self._node_name = node_name
        self._health = health
        self._inventory = inventory
        self._clock = clock
        self._lock = runtime.lock()
        self._claims: dict[str, _Claim] = {}
        self._health_changed = False
        self._budget = WriteBudget()
        self._backoff = Backoff(first=1.0, cap=60.0)
        self._not_before = -math.inf
        """Of all requests, while the API server is in trouble."""
        self._slow: dict[str, _SlowNamespace] = {}
        """Of the worker only: where the last write took long."""
        self._former_until = clock() + FORMER_SECONDS
        self._told = False
        """Whether the log has said that nothing is written."""
        self.worker = Worker("writing to its claims", self._round, settle=SETTLE_SECONDS)
        """Writes; wherever it is stopped, the next start finds out what is missing."""

    def prepared(self, plan: Plan, seen: ReportedClaim | None) -> None:
        """A claim was prepared; ``seen``: as the API server had it just before."""
        self._want(_meta(plan), plan, seen)

    def refused(self, claim: ReportedClaim, error: DriverError) -> None:
        """A claim was not prepared."""
        refusal = Refusal.of(claim, self._node_name, error)
        if refusal.devices:
            self._want(claim.metadata, refusal, claim)

    def unprepared(self, claim: ObjectMeta, *, own_pod: bool) -> None:
        """A claim was unprepared, or was never prepared and is not wanted any more.

        One that was made for its pod (``own_pod``) goes with it; another may stay allocated.
        """
        with self._lock:
            if own_pod:
                self._claims.pop(claim.uid, None)
                return
            now = self._clock()
            self._claims[claim.uid] = _Claim(claim, None, None, now + LEFT_SECONDS, now)
        self.worker.wake()  # so that it knows when that is due

    def catch_up(self, plans: Sequence[Plan]) -> None:
        """These are the claims that are prepared: those of which nothing is known are looked at."""
        now, uids = self._clock(), {plan.uid for plan in plans}
        with self._lock:
            for uid, claim in list(self._claims.items()):
                outdated = isinstance(claim.wanted, Refusal) and now - claim.since > FORGET_SECONDS
                if uid not in uids and (outdated or isinstance(claim.wanted, Plan)):
                    del self._claims[uid]
            unknown = [plan for plan in plans if plan.uid not in self._claims or self._claims[plan.uid].wanted is None]
            for plan in unknown:
                self._claims[plan.uid] = _Claim(_meta(plan), plan, None, now, now)
            former_gone = now >= self._former_until
            if former_gone:
                self._former_until = math.inf
                self._claims |= {
                    uid: replace(claim, known=None, due=now)
                    for uid, claim in self._claims.items()
                    if claim.wanted is not None
                }
        if unknown or former_gone:
            self.worker.wake()

    def health_changed(self) -> None:
        """The chips are better or worse than before."""
        self._health_changed = True
        self.worker.wake()

    def _want(self, meta: ObjectMeta, wanted: Plan | Refusal, seen: ReportedClaim | None) -> None:
        now = self._clock()
        with self._lock:
            before = self._claims.get(meta.uid)
            known = None if seen is None else own_entries(seen)
            if before is not None and known is not None and (before.known is None or differs(before.known, known)):
                known = None  # it may have been read before the last write
            claim = self._claims[meta.uid] = _Claim(meta, wanted, known, now, now)
            if before is not None:
                claim.refused_at = before.refused_at
            if isinstance(wanted, Refusal):
                claim.due = max(now, claim.refused_at + REFUSAL_SECONDS)
        self.worker.wake()

    # Worker thread

    def _round(self) -> float:
        changed, self._health_changed = self._health_changed, False
        health = self._health()
        if health is None:
            return 1.0
        wait = self._follow(health) if changed else math.inf
        while not self.worker.stopping:
            now = self._clock()
            with self._lock:
                claims = [(self._turn(claim, now), claim) for claim in self._claims.values()]
            if not claims:
                return wait
            (due, _, _), claim = min(claims, key=lambda item: item[0])
            if due > now:
                return min(wait, due - now)
            self.worker.beat()
            self._settle(claim, health)
        return math.inf

    def _turn(self, claim: _Claim, now: float) -> tuple[float, bool, float]:
        """What is least comes first: when it can be written, now if that has come; is it slow there; since when."""
        slow = self._slow.get(claim.meta.namespace)
        due = max(claim.due, self._not_before, slow.not_before if slow is not None else -math.inf)
        return max(due, now), slow is not None, claim.due

    def _follow(self, health: NodeHealth) -> float:
        """Have those claims written whose devices are better or worse now; the seconds until that is allowed."""
        now, inventory = self._clock(), self._inventory()
        with self._lock:
            claims = list(self._claims.values())
        changed, worse = [], False
        for claim in claims:
            if claim.wanted is None or claim.known is None:
                continue
            wanted = entries(claim.wanted, health, inventory, claim.known, 0)
            if differs(claim.known, wanted):
                changed.append(claim)
                worse = worse or is_worse(claim.known, wanted)
        if not changed:
            return math.inf
        wait = self._budget.wait(now, worse=worse)
        if wait > 0:
            self._health_changed = True
            return wait
        self._budget.note(now)
        for claim in changed:
            claim.due = min(claim.due, now)
        return math.inf

    def _settle(self, claim: _Claim, health: NodeHealth) -> None:
        """Make one claim have what it is to have, or see to it that it is tried again."""
        wanted, asked = claim.wanted, claim.known is None
        began = self._clock()
        try:
            known = self._asked(claim) if claim.known is None else claim.known
            made = (
                entries(wanted, health, self._inventory(), known or (), runtime.now())
                if known is not None and wanted is not None
                else ()
            )
            if known is not None and differs(known, made):
                self._api.apply_claim_devices(claim.meta, made, MANAGER)
                claim.known = made  # before anybody can find the old one here, and take it for what is there
                self._told = False
                if isinstance(wanted, Refusal):
                    claim.refused_at = self._clock()
        except ApiError as error:
            self._failed(claim, error, asked=asked, slow=self._is_slow(claim, began))
            return
        finally:
            with self._lock:
                newer = self._claims.get(claim.meta.uid)
                if newer is not None and newer is not claim:
                    newer.known = None  # it may have been read before this write
        self._backoff.reset()
        self._is_slow(claim, began)
        if known is None or wanted is None:
            self._done(claim)
            return
        claim.known, claim.due = made, math.inf
        claim.backoff.reset()

    def _asked(self, claim: _Claim) -> Entries | None:
        """What the API server has; None: no such claim is allocated here any more."""
        stored = self._api.get_claim(claim.meta.namespace, claim.meta.name)
        here = stored.metadata.uid == claim.meta.uid and allocated(stored, self._node_name)
        return own_entries(stored) if here else None

    def _is_slow(self, claim: _Claim, began: float) -> bool:
        """Whether what began then took long; its namespace is remembered for that."""
        slow = self._clock() - began > SLOW_SECONDS
        if slow:
            self._slow.setdefault(claim.meta.namespace, _SlowNamespace())
        else:
            self._slow.pop(claim.meta.namespace, None)
        return slow

    def _failed(self, claim: _Claim, error: ApiError, *, asked: bool, slow: bool) -> None:
        # Another UID (409), or allocated anew: what is there now decides.
        replaced = error.status == 409 or _NOT_ALLOCATED in error.message
        if error.object_missing or (asked and replaced):
            self._done(claim)
        elif replaced:
            claim.known = None
        # 500 is also the answer where a webhook fails, or a claim would get too long: that is the claim's own trouble.
        elif not error.of_a_webhook and (isinstance(error, Unreachable) or error.status == 429 or error.status > 500):
            if slow:
                namespace = self._slow[claim.meta.namespace]
                namespace.not_before = self._clock() + namespace.backoff.next()
            else:
                self._not_before = self._clock() + self._backoff.next(error.retry_after)
            claim.due = self._clock()  # after all others that are due: it may be this claim's own trouble
        else:
            claim.due = self._clock() + claim.backoff.next()
            if not self._told:
                log.warning("claims do not report their devices, because status.devices cannot be written: %s", error)
            self._told = True

    def _done(self, claim: _Claim) -> None:
        """Nothing is to be written any more; one that is prepared is remembered, for else the next pass would ask."""
        claim.due = math.inf
        with self._lock:
            if not isinstance(claim.wanted, Plan) and self._claims.get(claim.meta.uid) is claim:
                del self._claims[claim.meta.uid]


def _meta(plan: Plan) -> ObjectMeta:
    return ObjectMeta(name=plan.name, namespace=plan.namespace, uid=plan.uid)

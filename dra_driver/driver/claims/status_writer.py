"""Writes the driver's entries of ``status.devices``, in one thread, when nothing waits for it any more.

Of each claim the last state alone is kept, and what the API server was last seen to have. Each write is a server-side
apply of the driver's own entries, with the UID of the claim: the API server keeps account of what is ours. The entries
go with the allocation, so an unprepare writes nothing; a claim that is still allocated here some minutes later
loses them. A claim of which nothing is known, as all are after a start, is read first: a restart that changes nothing
writes nothing.

Whose turn it is, and when, decides ``DesiredWriter``. Without the right to write, which the chart gives only with the
policy that narrows it to the node's own claims, the log says so once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from dra_driver.driver.claims.model import Plan
from dra_driver.driver.claims.status import Entries, Refusal, allocated, differs, entries, is_worse, own_entries
from dra_driver.driver.write_budget import WriteBudget
from dra_driver.kube.api.desired import DesiredWriter, Outcome, Target, Waits
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.kube.objects.resource import ReportedClaim
from dra_driver.neuron.health.faults import NodeHealth
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Backoff

MANAGER: Final = "neuron-dra-driver-claims"
SETTLE_SECONDS: Final = 0.2
"""Seconds between a preparation and the write: kubelet gets its reply first."""
REFUSAL_SECONDS: Final = 60.0
"""Seconds between two refusals of one claim that are written."""
LEFT_SECONDS: Final = 300.0
"""After an unprepare, the API server drops the entries by itself as soon as nobody uses the claim."""
_NOT_ALLOCATED: Final = "must be an allocated device"
"""Part of the API server's answer (422) to an entry for another device."""
FORMER_SECONDS: Final = 45.0
"""After the start, what claims say is read once more: the instance before may have written last."""
FORGET_SECONDS: Final = 600.0
"""After that a refused claim is forgotten: kubelet, as long as it tries, reminds of it."""

WAITS: Final = Waits(own=partial(Backoff, first=60.0, cap=1800.0), server=partial(Backoff, first=1.0, cap=60.0))

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    meta: ObjectMeta
    of: Plan | Refusal | None
    """None: the claim is unprepared, and is to have no entries."""
    since: float
    """When that became so."""


class ClaimStatusWriter(Target[str, _Wanted, Entries]):
    """The entries of one node's claims. All methods but those of ``Target`` return at once; any thread may call them.

    Args:
        api: the API server.
        node_name: name of this node, which is also its pool's.
        health: gives the health of the chips; None: not known yet, so that nothing is written.
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
        self._health_changed = False
        self._budget = WriteBudget()
        self._refusals: dict[str, float] = {}
        """When a refusal was written last, by UID of the claim."""
        self._former_until = clock() + FORMER_SECONDS
        self._warned = False
        """Whether the log has said that nothing is written."""
        self._writer: DesiredWriter[str, _Wanted, Entries] = DesiredWriter(
            "writing to its claims", self, WAITS, before_turn=self._follow, settle=SETTLE_SECONDS, clock=clock
        )
        self.worker = self._writer.worker
        """Writes; wherever it is stopped, the next start finds out what is missing."""

    def note_prepared(self, plan: Plan, claim: ReportedClaim | None) -> None:
        """A claim was prepared; ``claim``: as the API server had it just before."""
        self._want(_meta(plan), plan, self._clock(), claim)

    def note_refused(self, claim: ReportedClaim, error: DriverError) -> None:
        """A claim was not prepared."""
        refusal = Refusal.of(claim, self._node_name, error)
        if refusal.devices:
            # Nothing else of its metadata: there may be many that are refused, and each may be as large as objects are.
            meta = claim.metadata
            identity = ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid)
            before = self._refusals.get(claim.metadata.uid, -math.inf)
            self._want(identity, refusal, max(self._clock(), before + REFUSAL_SECONDS), claim)

    def note_unprepared(self, claim: ObjectMeta, *, own_pod: bool) -> None:
        """A claim was unprepared, or was never prepared and is not wanted any more.

        One that was made for its pod (``own_pod``) goes with it; another may stay allocated.
        """
        if own_pod:
            self._writer.forget(claim.uid)
        else:
            self._want(claim, None, self._clock() + LEFT_SECONDS)

    def catch_up(self, plans: Sequence[Plan]) -> None:
        """These are the claims that are prepared: those of which nothing is known are looked at."""
        now, uids = self._clock(), {plan.uid for plan in plans}
        claims = {uid: wanted for uid, wanted, _ in self._writer.objects()}
        for uid, wanted in claims.items():
            outdated = isinstance(wanted.of, Refusal) and now - wanted.since > FORGET_SECONDS
            if uid not in uids and (outdated or isinstance(wanted.of, Plan)):
                self._writer.forget(uid, wanted)
        for plan in plans:
            if plan.uid not in claims or claims[plan.uid].of is None:
                self._want(_meta(plan), plan, now)
        if now >= self._former_until:
            self._former_until = math.inf
            for uid, wanted in claims.items():
                if wanted.of is not None:
                    self._writer.doubt(uid, now)

    def health_changed(self) -> None:
        """The chips are better or worse than before."""
        self._health_changed = True
        self.worker.wake()

    def _want(self, meta: ObjectMeta, of: Plan | Refusal | None, at: float, claim: ReportedClaim | None = None) -> None:
        stored = None if claim is None else own_entries(claim)
        wanted = _Wanted(meta, of, self._clock())
        self._writer.want(meta.uid, wanted, namespace=meta.namespace, stored=stored, at=at)

    def same(self, one: Entries, other: Entries) -> bool:
        """See ``Target``."""
        return not differs(one, other)

    # Worker thread

    def _follow(self) -> float:
        """Have those claims written whose devices are better or worse now; the seconds until that is allowed."""
        changed, self._health_changed = self._health_changed, False
        health = self._health()
        if not changed:
            return math.inf
        if health is None:
            self._health_changed = True
            return 1.0
        now, inventory = self._clock(), self._inventory()
        uids, worse = [], False
        for uid, claim, stored in self._writer.objects():
            if claim.of is None or stored is None:
                continue
            wanted = entries(claim.of, health, inventory, stored, 0)
            if differs(stored, wanted):
                uids.append(uid)
                worse = worse or is_worse(stored, wanted)
        if not uids:
            return math.inf
        wait = self._budget.wait(now, worse=worse)
        if wait > 0:
            self._health_changed = True
            return wait
        self._budget.note(now)
        for uid in uids:
            self._writer.look(uid, now)
        return math.inf

    def reconcile(self, key: str, value: _Wanted, stored: Entries | None) -> Outcome[Entries]:
        """See ``Target``."""
        health = self._health()
        if health is None:
            return Outcome(stored, again=1.0)
        asked = stored is None
        try:
            current = self._stored_entries(value.meta) if stored is None else stored
            if current is None or (value.of is None and not current):
                return self._over(value)
            wanted = (
                entries(value.of, health, self._inventory(), current, runtime.now()) if value.of is not None else ()
            )
            wrote = differs(current, wanted)
            if wrote:
                self._api.apply_claim_devices(value.meta, wanted, MANAGER)
        except ApiError as error:
            # Another UID (409), or allocated anew: what is there now decides.
            replaced = error.status == 409 or _NOT_ALLOCATED in error.message
            if error.object_missing or (asked and replaced):
                return self._over(value)
            if replaced:
                return Outcome(None, again=0.0)
            raise
        if wrote:
            self._warned = False
            if isinstance(value.of, Refusal):
                self._note_refusal(key)
        return Outcome(wanted, wrote=wrote) if value.of is not None else self._over(value)

    def _stored_entries(self, meta: ObjectMeta) -> Entries | None:
        """What the API server has; None: no such claim is allocated here any more."""
        stored = self._api.get_claim(meta.namespace, meta.name)
        here = stored.metadata.uid == meta.uid and allocated(stored, self._node_name)
        return own_entries(stored) if here else None

    def _over(self, wanted: _Wanted) -> Outcome[Entries]:
        """Nothing is to be written any more; a claim that is prepared is remembered, or the next pass would ask."""
        return Outcome(over=not isinstance(wanted.of, Plan))

    def _note_refusal(self, uid: str) -> None:
        now = self._clock()
        self._refusals = {other: at for other, at in self._refusals.items() if now - at < REFUSAL_SECONDS} | {uid: now}

    def report_failure(self, key: str, error: DriverError, wait: float) -> None:  # noqa: ARG002 # one warning is for all
        """See ``Target``."""
        if self.concerns_object(error):
            if not self._warned:
                log.warning("claims do not report their devices, because status.devices cannot be written: %s", error)
            self._warned = True


def _meta(plan: Plan) -> ObjectMeta:
    return ObjectMeta(name=plan.name, namespace=plan.namespace, uid=plan.uid)

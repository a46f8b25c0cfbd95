"""What the API server says of prepared claims, and when the driver asks.

The driver asks the API server seldom: for a claim once in half an hour, more seldom on a node with many claims, and
every five minutes while it seems gone; at once when its file was removed, and the first time when it was prepared
before the node was booted. Unreadable files have no name to ask for, so for those all claims are listed, at once and
then every five minutes; not for those that the last list had, whose names are known then, and more seldom once they are
gone for sure. A node without claims asks nothing.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from dra_driver.driver.claims.model import Plan, PreparedClaims
from dra_driver.driver.claims.situation import consumers_of, users
from dra_driver.kube.api.errors import ApiError, DecodeError
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.objects.resource import (
    AllocatedClaim,
    AllocatedDevice,
    DeviceRequestAllocationResult,
    PartialResourceClaim,
)
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.partitions import chips_of

log = logging.getLogger(__name__)

CHECK_AGAIN = 1800.0
"""Seconds between two questions about a claim that is here, at least."""
CHECK_SPACING = 600.0
"""Seconds of that time for each claim of the node: however many it has, it asks about six times in an hour."""
CHECK_DOUBTFUL = 300.0
"""Seconds between two questions about a claim that seems gone, and between two lists for unreadable files."""


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
        self.answers: dict[str, ClaimObservation] = {}
        """The answers so far."""
        self._due: dict[str, float] = {}
        self._asked_at = -math.inf
        """When it was last asked about unreadable files."""
        self._list_wait = CHECK_DOUBTFUL
        self._names: dict[str, tuple[str, str]] = {}
        """Namespaces and names of claims with unreadable files, of those that the last list had."""

    def due(self, prepared: PreparedClaims) -> list[Plan]:
        """Claims whose turn it is. Forgets claims that are no longer held."""
        now = self._clock()
        for uid in set(self._due).difference(prepared.entries):
            del self._due[uid]
        for uid in set(self.answers).difference(prepared.entries, prepared.quarantined):
            del self.answers[uid]
        for uid, entry in prepared.entries.items():
            first = now if entry.boot_id != self._boot_id else now + _interval(len(prepared.entries)) * _share(uid)
            self._due.setdefault(uid, first)
        for uid in prepared.missing:
            self._due[uid] = now
            self.answers.pop(uid, None)  # an answer from before its file was removed decides nothing
        return [entry.plan for uid, entry in prepared.entries.items() if self._due[uid] <= now]

    def list_due(self, prepared: PreparedClaims) -> bool:
        """Whether unreadable files make it time for a list."""
        wait = self._list_wait if prepared.quarantined.keys() <= self.answers.keys() else CHECK_DOUBTFUL
        return bool(prepared.quarantined) and self._asked_at + wait <= self._clock()

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
        here = self.answers[plan.uid].here
        self._due[plan.uid] = self._clock() + (_interval(len(self._due)) if here else CHECK_DOUBTFUL)

    def ask_list(self, uids: Collection[str]) -> None:
        """Look for claims by UID: by the names that the last list gave, and in a list of all if it did not have one.

        ApiError when the server cannot be asked.
        """
        self._asked_at, last_wait, self._list_wait = self._clock(), self._list_wait, CHECK_DOUBTFUL
        self._names = {uid: name for uid, name in self._names.items() if uid in uids}
        if all(self._is_here(uid) for uid in uids):
            return
        claims = {claim.metadata.uid: claim for claim in self._source.list_claims(DRIVER_NAME, self._node_name)}
        self._names = {uid: (claim.metadata.namespace, claim.metadata.name) for uid, claim in claims.items()}
        for uid in uids:
            self._note(uid, claims.get(uid))
        # What is gone for sure and is not released waits for the node: another list would say the same.
        surely = [self.answers[uid].surely_gone for uid in uids if uid not in claims]
        if surely and all(surely):
            self._list_wait = min(2 * last_wait, CHECK_AGAIN)

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
        previous = self.answers.get(uid)
        if previous is not None and previous.here == bool(own):
            answer = replace(previous, checked=now, checks=previous.checks + 1)
        else:
            answer = ClaimObservation(here=bool(own), since=now, checked=now)
        if own and claim is not None:
            answer = replace(
                answer,
                devices=frozenset(item.device for item in own),
                chips=self._chips(own),
                pods=users(claim),
                consumers=consumers_of(claim),
            )
        self.answers[uid] = answer

    def _chips(self, own: Iterable[AllocatedDevice | DeviceRequestAllocationResult]) -> frozenset[int] | None:
        """What a claim holds alone; None when a device is of unknown chips, which may be any."""
        own_chips: set[int] = set()
        for result in own:
            chips = chips_of(result.device, self._all_chips())
            if chips is None:
                return None
            own_chips.update(() if result.admin_access else chips)
        return frozenset(own_chips)


def _interval(claims: int) -> float:
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
        devices: names of the devices of this node that it has.
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
    devices: frozenset[str] = frozenset()
    chips: frozenset[int] | None = frozenset()

    @property
    def surely_gone(self) -> bool:
        """Gone at enough checks over enough time."""
        return not self.here and self.checks >= GONE_CHECKS and self.checked - self.since >= GONE_SECONDS

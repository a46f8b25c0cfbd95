"""What the API server says of prepared claims, asked seldom and remembered.

A claim is asked for once in half an hour, more seldom on a node with many claims, and every five minutes while it seems
gone; at once when its journal file was removed, and the first time when it was prepared before the node was booted.
Unreadable journal files tell no name to ask for, so for those all claims are listed, at once and then every five
minutes. A node without claims asks nothing.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from dra_driver.claims.held import PreparedClaims
from dra_driver.claims.plan import users
from dra_driver.claims.preparer import ClaimSource
from dra_driver.claims.repair import ClaimObservation
from dra_driver.claims.values import Plan
from dra_driver.kube.errors import ApiError, DecodeError
from dra_driver.kube.types import DeviceRequestAllocationResult, ResourceClaim
from dra_driver.names import DRIVER_NAME
from dra_driver.slices.chips import chips_of

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
        source: ClaimSource,
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
        self._known: dict[str, ClaimObservation] = {}
        self._due: dict[str, float] = {}
        self._list_due = clock()

    @property
    def known(self) -> Mapping[str, ClaimObservation]:
        """The answers so far."""
        return MappingProxyType(self._known)

    def due(self, held: PreparedClaims) -> list[Plan]:
        """Claims whose turn it is. Forgets claims that are no longer held."""
        now = self._clock()
        for uid in set(self._due).difference(held.entries):
            del self._due[uid]
        for uid in set(self._known).difference(held.entries, held.quarantined):
            del self._known[uid]
        for uid, entry in held.entries.items():
            first = now if entry.boot_id != self._boot_id else now + _again(len(held.entries)) * _share(uid)
            self._due.setdefault(uid, first)
        for uid in held.missing:
            self._due[uid] = now
            self._known.pop(uid, None)  # what was said before its file was removed decides nothing
        return [entry.plan for uid, entry in held.entries.items() if self._due[uid] <= now]

    def list_due(self, held: PreparedClaims) -> bool:
        """Whether unreadable files make it time for a list."""
        return bool(held.quarantined) and self._list_due <= self._clock()

    def ask(self, claims: Iterable[Plan]) -> None:
        """Get claims one by one. ApiError when the server cannot be asked; the rest stays due."""
        for plan in claims:
            try:
                claim: ResourceClaim | None = self._source.get_claim(plan.namespace, plan.name)
            except DecodeError as error:
                # It is about this one claim, and will be the same in a minute.
                log.warning("claim %s cannot be looked after: %s", plan.reference, error)
                self._due[plan.uid] = self._clock() + CHECK_DOUBTFUL
                continue
            except ApiError as error:
                if not error.object_missing:
                    raise
                claim = None
            self._note(plan.uid, claim)
            here = self._known[plan.uid].here
            self._due[plan.uid] = self._clock() + (_again(len(self._due)) if here else CHECK_DOUBTFUL)

    def ask_list(self, uids: Iterable[str]) -> None:
        """Look for claims by UID in a list of all. ApiError when the server cannot be asked."""
        self._list_due = self._clock() + CHECK_DOUBTFUL
        claims = {claim.metadata.uid: claim for claim in self._source.list_claims()}
        for uid in uids:
            self._note(uid, claims.get(uid))

    def _note(self, uid: str, claim: ResourceClaim | None) -> None:
        now = self._clock()
        own = [] if claim is None or claim.metadata.uid != uid else self._own(claim)
        before = self._known.get(uid)
        if before is not None and before.here == bool(own):
            answer = replace(before, checked=now, checks=before.checks + 1)
        else:
            answer = ClaimObservation(here=bool(own), since=now, checked=now)
        if own and claim is not None:
            answer = replace(answer, chips=self._chips(own), pods=users(claim))
        self._known[uid] = answer

    def _own(self, claim: ResourceClaim) -> list[DeviceRequestAllocationResult]:
        """What of this node is allocated to the claim."""
        allocation = claim.status.allocation
        return [
            result
            for result in (allocation.devices.results if allocation is not None else ())
            if result.driver == DRIVER_NAME and result.pool == self._node_name
        ]

    def _chips(self, own: Iterable[DeviceRequestAllocationResult]) -> frozenset[int] | None:
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

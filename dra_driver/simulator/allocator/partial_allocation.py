"""The picks of an allocation attempt so far, and what remains available."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from dra_driver.simulator.allocator.candidates import Candidate, SearchContext
from dra_driver.simulator.allocator.capacity import fits
from dra_driver.simulator.allocator.constraints import Constraint, Value, concerns, constraint
from dra_driver.simulator.allocator.pool_devices import CounterKey, DeviceId, Pool, PoolDevice
from dra_driver.simulator.allocator.requests import AllocationError, PreparedClaim, RequestAlternative


@dataclass(frozen=True, eq=False, slots=True)
class Pick:
    """One device for one request."""

    option: RequestAlternative
    candidate: Candidate
    claim: int
    charged: bool
    """Whether it consumes counters: only the first share of a device does."""


class PartialAllocation:
    """The picks of an attempt; ``undo`` exactly reverts ``take``, except for distinctAttribute up to 1.36."""

    def __init__(self, claims: Sequence[PreparedClaim], around: SearchContext) -> None:
        self._around = around
        self.picks: list[list[Pick]] = [[] for _ in claims]
        self.constraints = [_constraints(item, around) for item in claims]
        self._holders: dict[DeviceId, list[int]] = {}
        self._shares: dict[DeviceId, list[Pick]] = {}
        self._free: dict[Hashable, dict[CounterKey, int]] = {}
        self._overdrawn: set[Hashable] = set()

    def concerning(self, claim: int, option: RequestAlternative) -> list[Constraint]:
        """The constraints of the claim that the request's devices must satisfy."""
        return [item for item in self.constraints[claim] if concerns(item.requests, *option.names)]

    def free(self, offer: PoolDevice, option: RequestAlternative, claim: int) -> bool:
        """Whether no claim (with admin access: not this claim) has the device, including picks."""
        holders = self._holders.get(offer.id)
        if option.admin:
            return not holders or claim not in holders
        return not holders and not self._around.usage.exclusive(offer.id)

    def fits(self, candidate: Candidate, constraints: Sequence[Constraint], request: str) -> bool:
        """Whether a free device can be picked: checks counters, taints, constraints and capacity; changes nothing."""
        return (
            (not candidate.offer.consumes or self._counters_left(candidate))
            and candidate.tolerated
            and all(item.allows(request, value) for item, value in zip(constraints, candidate.values, strict=True))
            and self.capacity_left(candidate)
        )

    def _counters_left(self, candidate: Candidate) -> bool:
        if self._already_charged(candidate.offer):
            return True
        left = self._left(candidate.pool)
        if self._key(candidate.pool) in self._overdrawn:
            return False
        return all(left.get(counter, amount) >= amount for counter, amount in candidate.offer.consumes)

    def short(self, candidate: Candidate) -> tuple[CounterKey, ...]:
        """The counters of which less is left than the device consumes."""
        left = self._left(candidate.pool)
        return tuple(counter for counter, amount in candidate.offer.consumes if left.get(counter, amount) < amount)

    def add(self, candidate: Candidate, constraints: Sequence[Constraint], request: str) -> str:
        """Add a device to the constraints; returns "" or the obstacle: "counters", "taint", "constraint" or "capacity".

        Up to 1.36, an attempt changes the state of distinctAttribute even if another constraint rejects the device.
        """
        if candidate.offer.consumes and not self._counters_left(candidate):
            return "counters"
        if not candidate.tolerated:
            return "taint"
        added: list[Constraint] = []
        obstacle = "" if _add_all(constraints, candidate.values, request, added) else "constraint"
        if not obstacle and not self.capacity_left(candidate):
            obstacle = "capacity"
        if obstacle:
            for item in reversed(added):
                item.remove(request)
        return obstacle

    def capacity_left(self, candidate: Candidate) -> bool:
        """Whether the amounts are available, considering usage and picks."""
        if candidate.amounts is None:
            return True
        consumed = dict(self._around.usage.consumed(candidate.offer.id))
        for pick in self._shares.get(candidate.offer.id, ()):
            for name, amount in (pick.candidate.amounts or {}).items():
                consumed[name] = consumed.get(name, 0) + amount.nanos
        return fits(candidate.offer.device, candidate.amounts, consumed)

    def take(self, candidate: Candidate, option: RequestAlternative, claim: int) -> None:
        """Pick a device that has been added to the constraints."""
        offer = candidate.offer
        pick = Pick(option, candidate, claim, charged=bool(offer.consumes) and not self._already_charged(offer))
        if pick.charged:
            self._charge(pick, 1)
        if offer.shareable:
            self._shares.setdefault(offer.id, []).append(pick)
        else:
            self._holders.setdefault(offer.id, []).append(claim)
        self.picks[claim].append(pick)

    def undo(self, claim: int, constraints: Sequence[Constraint], request: str) -> None:
        """Revert the last pick for the claim."""
        pick = self.picks[claim].pop()
        offer = pick.candidate.offer
        kept: list[Pick] | list[int] = self._shares[offer.id] if offer.shareable else self._holders[offer.id]
        kept.pop()
        if not kept:
            del (self._shares if offer.shareable else self._holders)[offer.id]
        for item in reversed(constraints):
            item.remove(request)
        if pick.charged:
            self._charge(pick, -1)

    def _already_charged(self, offer: PoolDevice) -> bool:
        if not offer.shareable:
            return False
        usage = self._around.usage
        by_capacity = self._around.release.shares_need_capacity
        in_use = bool(usage.consumed(offer.id)) if by_capacity else usage.shared(offer.id)
        return in_use or offer.id in self._shares

    def _charge(self, pick: Pick, sign: int) -> None:
        left = self._left(pick.candidate.pool)
        for counter, amount in pick.candidate.offer.consumes:
            if counter in left:
                left[counter] -= sign * amount

    def _key(self, pool: Pool) -> Hashable:
        return pool.key[1] if self._around.release.counters_by_pool_name else pool.key

    def _left(self, pool: Pool) -> dict[CounterKey, int]:
        """Counters minus what devices in use and picks consume; cached from the first pool queried with its key."""
        key = self._key(pool)
        left = self._free.get(key)
        if left is None:
            left = self._free[key] = dict(pool.counters)
            used = self._around.usage.in_pool(pool.key)
            for offer in (*pool.offers, *pool.elsewhere) if used else ():
                if offer.device.name in used:
                    for counter, amount in offer.consumes:
                        left[counter] = left.get(counter, 0) - amount
            if any(amount < 0 for amount in left.values()):
                # More is in use than exists: Kubernetes then allocates none of the pool's devices that consume
                # counters.
                self._overdrawn.add(key)
        return left


def _constraints(prepared: PreparedClaim, around: SearchContext) -> list[Constraint]:
    constraints = []
    for place, spec in enumerate(prepared.claim.spec.devices.constraints):
        item = constraint(spec, around.release)
        if item is None:
            name = prepared.claim.metadata.full_name
            raise AllocationError(f"claim {name}, constraint #{place}: empty constraint (unsupported constraint type?)")
        constraints.append(item)
    return constraints


def _add_all(
    constraints: Sequence[Constraint], values: Sequence[Value | None], request: str, added: list[Constraint]
) -> bool:
    for item, value in zip(constraints, values, strict=True):
        if value is None or not item.allows(request, value):
            return False
        item.add(request, value)
        added.append(item)
    return True

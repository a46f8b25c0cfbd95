"""The search: claim by claim, request by request, device by device; the first complete solution is used.

Within a request only combinations in device order are tried; each request starts again at the first device. Kubernetes
tries them all. Here, branches that cannot hold a solution are pruned, which changes neither which solution is found
first nor whether an error ends the search before: see ``_Search._pick`` (too few devices left) and ``Pruning`` (the
same failure with other devices).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.simulator.allocator.candidates import Candidate, SearchContext, candidates, everything
from dra_driver.simulator.allocator.constraints import Constraint, DistinctByRequest, Match, Value, alternatives, value
from dra_driver.simulator.allocator.partial_allocation import PartialAllocation, Pick
from dra_driver.simulator.allocator.pool_devices import DeviceId, MayGoOn, TimeOver
from dra_driver.simulator.allocator.requests import MAX_RESULTS, AllocationError, PreparedClaim, RequestAlternative

Lists = Mapping[RequestAlternative, Sequence[Candidate]]


class Pruning:
    """Which devices of a search are interchangeable, and the states in which it failed."""

    def __init__(self, claims: Sequence[PreparedClaim], progress: PartialAllocation, lists: Lists) -> None:
        self._claims = claims
        self._progress = progress
        self._lists = lists
        self._failed: set[Hashable] = set()
        self.usable = self._nothing_else_in_the_way()
        self._foresight = self.usable and not any(request.ranked for item in claims for request in item.requests)
        self._kinds = self._sorted_out() if self.usable else {}

    def _nothing_else_in_the_way(self) -> bool:
        return not any(
            option.admin
            or (option.all_devices and self._progress.concerning(number, option))
            or any(candidate.error or candidate.offer.shareable for candidate in self._lists[option])
            for number, prepared in enumerate(self._claims)
            for request in prepared.requests
            for option in request.options
        )

    def _sorted_out(self) -> dict[DeviceId, int]:
        """The equivalence class of each device."""
        wanted_by: dict[DeviceId, int] = {}
        attributes = sorted({item.attribute for constraints in self._progress.constraints for item in constraints})
        offers = {}
        for place, listed in enumerate(self._lists.values()):
            for candidate in listed:
                offers[candidate.offer.id] = candidate
                wanted_by[candidate.offer.id] = wanted_by.get(candidate.offer.id, 0) | 1 << place
        kinds: dict[Hashable, int] = {}
        return {
            device: kinds.setdefault(
                (
                    wanted_by[device],
                    (candidate.pool.key, candidate.offer.consumes) if candidate.offer.consumes else None,
                    tuple(value(candidate.offer, attribute) for attribute in attributes),
                ),
                len(kinds),
            )
            for device, candidate in offers.items()
        }

    def state(
        self, claim: int, number: int, option: RequestAlternative, place: int, rest: Sequence[Candidate]
    ) -> Hashable:
        """Everything that determines whether the search succeeds from here."""
        picks = self._progress.picks
        return (
            claim,
            number,
            id(option),
            place,
            len(picks[claim]),
            frozenset(
                Counter(self._kinds[pick.candidate.offer.id] for claim_picks in picks for pick in claim_picks).items()
            ),
            frozenset(Counter(self._kinds[candidate.offer.id] for candidate in rest).items()),
            tuple(item.state() for constraints in self._progress.constraints for item in constraints),
        )

    def failed(self, state: Hashable) -> bool:
        """Whether the search has failed in an equal state."""
        return state in self._failed

    def note_failure(self, state: Hashable) -> None:
        """Record a state in which the search failed."""
        self._failed.add(state)

    def hopeless(self, claim: int, number: int) -> bool:
        """Whether a later request cannot be satisfied, whatever is picked for those before it."""
        return self._foresight and any(
            not self._possible(later, request.options[0])
            for later, prepared in enumerate(self._claims)
            for place, request in enumerate(prepared.requests)
            if (later, place) > (claim, number)
        )

    def _possible(self, claim: int, option: RequestAlternative) -> bool:
        constraints = self._progress.concerning(claim, option)
        left = [
            candidate
            for candidate in self._lists[option]
            if self._progress.free(candidate.offer, option, claim)
            and self._progress.fits(candidate, constraints, option.names[0])
        ]
        if option.all_devices:
            return len(left) == len(self._lists[option]) > 0
        return len(left) >= option.count and all(
            max(Counter(candidate.values[place] for candidate in left).values(), default=0) >= option.count
            for place, item in enumerate(constraints)
            if isinstance(item, Match)
        )


MAX_STEPS = 2_000_000
"""Number of steps after which the search is given up; Kubernetes gives up after 10 seconds."""
STEPS_AT_ONCE = 32
"""Number of steps after which the search asks whether there is time left: one takes up to a millisecond."""


@dataclass(slots=True)
class Steps:
    """How many steps a search may take. It is given up, with an error, when ``left`` falls below 0."""

    left: int


SETBACKS_BEFORE_COMPARING = 32
"""Number of failures from which on states are recorded: most searches have fewer."""


class TooManyResults(Exception):  # noqa: N818 - control flow of the search, not an error
    """No choice of devices keeps the claim within the limit of results."""


def search(
    claims: Sequence[PreparedClaim],
    around: SearchContext,
    *,
    prune: bool = True,
    steps: Steps | None = None,
    may_go_on: MayGoOn = lambda: True,
) -> list[list[Pick]] | None:
    """The picks for each claim, or None if there is no solution on this node.

    Args:
        claims: of one pod, in the pod's order.
        around: the node.
        prune: False tries all combinations as Kubernetes does, for comparison.
        steps: how long to search; ``MAX_STEPS`` if not given.
        may_go_on: the search calls it now and then.

    Raises:
        AllocationError: scheduling of the pod ends. TimeOver: it may not go on.
    """
    attempt = _Search(claims, around, prune=prune, steps=steps or Steps(MAX_STEPS), may_go_on=may_go_on)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 1000 + 8 * attempt.least_devices))  # the search recurses once per device to pick
    try:
        success = attempt.request(0, 0)
    except TooManyResults:
        raise AllocationError(
            f"every choice of sub-requests exceeds the claim limit of {MAX_RESULTS} devices",
            remedy="ask for fewer devices, or for larger ones",
        ) from None
    finally:
        sys.setrecursionlimit(before)
    return attempt.progress.picks if success else None


class _Search:
    def __init__(
        self,
        claims: Sequence[PreparedClaim],
        around: SearchContext,
        *,
        prune: bool,
        steps: Steps,
        may_go_on: MayGoOn,
    ) -> None:
        self._claims = claims
        self._around = around
        self.progress = PartialAllocation(claims, around)
        self._candidates: dict[RequestAlternative, list[Candidate]] = {}
        self._all: dict[RequestAlternative, list[Candidate]] = {}
        self._attributes: dict[RequestAlternative, list[str]] = {}
        self._steps = steps
        self._may_go_on = may_go_on
        self._setbacks = 0
        self._prepass()
        self._prune = prune and not self._remembers_failures()
        self._pruning: Pruning | None = None

    def _prepass(self) -> None:
        """Resolve ``All`` to devices, and refuse claims that exceed the limit of results."""
        self.least_devices = 0
        for number, prepared in enumerate(self._claims):
            least = 0
            for request in prepared.requests:
                for option in request.options:
                    constraints = self.progress.concerning(number, option)
                    self._attributes[option] = [item.attribute for item in constraints]
                    if option.all_devices:
                        self._all[option] = everything(option, self._attributes[option], self._around)
                least += min(self._count(option) for option in request.options)
            if least > MAX_RESULTS:
                meta = prepared.claim.metadata
                raise AllocationError(
                    f"claim {meta.namespace}/{meta.name}: number of requested devices {least} exceeds the claim limit "
                    f"of {MAX_RESULTS}",
                    remedy="ask for fewer devices, or for larger ones",
                )
            self.least_devices += least

    def _remembers_failures(self) -> bool:
        """Whether failed attempts change what is allowed later, which rules out any pruning."""
        distinct = any(
            isinstance(item, DistinctByRequest) for constraints in self.progress.constraints for item in constraints
        )
        if not self._around.release.counters_by_pool_name:
            return distinct
        names = [pool.key[1] for pool in self._around.pools if pool.counters]
        return distinct or len(names) != len(set(names))

    def _count(self, option: RequestAlternative) -> int:
        return len(self._all[option]) if option.all_devices else option.count

    def request(self, claim: int, number: int) -> bool:
        """Satisfy this and all following requests."""
        if claim >= len(self._claims):
            return True
        requests = self._claims[claim].requests
        if number >= len(requests):
            try:
                return self.request(claim + 1, 0)
            except TooManyResults:
                # It may still succeed with other subrequests of an earlier claim.
                return False
        request = requests[number]
        if not request.ranked:
            return self._start(claim, number, request.options[0])
        too_many = True
        for option in request.options:
            try:
                if self._start(claim, number, option):
                    return True
                too_many = False
            except TooManyResults:
                continue
        if too_many:
            raise TooManyResults
        return False

    def _start(self, claim: int, number: int, option: RequestAlternative) -> bool:
        constraints = self.progress.concerning(claim, option)
        if option.all_devices:
            devices = self._all[option]
            return bool(devices) and self._every(claim, number, option, constraints, 0)
        return self._pick(claim, number, option, constraints, 0, self._candidates_of(option))

    def _candidates_of(self, option: RequestAlternative) -> list[Candidate]:
        eligible = self._candidates.get(option)
        if eligible is None:
            eligible = self._candidates[option] = candidates(
                option, self._attributes[option], self._around, thorough=not self._prune
            )
        return eligible

    def _within_limit(self, claim: int, option: RequestAlternative, place: int) -> None:
        if len(self.progress.picks[claim]) + self._count(option) - place > MAX_RESULTS:
            raise TooManyResults
        self._steps.left -= 1
        if self._steps.left < 0:
            raise AllocationError(
                f"the search was given up after {MAX_STEPS} steps; kube-scheduler gives up after 10 seconds",
                remedy="ask for fewer devices in one request, or for larger devices",
            )
        if self._steps.left % STEPS_AT_ONCE == 0 and not self._may_go_on():
            raise TimeOver

    def _every(
        self, claim: int, number: int, option: RequestAlternative, constraints: list[Constraint], place: int
    ) -> bool:
        """Device ``place`` of a request for all devices, and everything after it."""
        devices = self._all[option]
        if place >= len(devices):
            return self.request(claim, number + 1)
        self._within_limit(claim, option, place)
        candidate, request = devices[place], option.names[0]
        if not self.progress.free(candidate.offer, option, claim):
            return False
        obstacle = self.progress.add(candidate, constraints, request)
        if obstacle == "constraint":
            raise AllocationError(
                f"{option.where}: cannot add device {'/'.join(candidate.offer.id)} because a claim constraint would "
                "not be satisfied"
            )
        if obstacle:
            return False
        self.progress.take(candidate, option, claim)
        done = False
        try:
            done = self._every(claim, number, option, constraints, place + 1)
        finally:
            if not done:
                self.progress.undo(claim, constraints, request)
        return done

    def _pick(
        self,
        claim: int,
        number: int,
        option: RequestAlternative,
        constraints: list[Constraint],
        place: int,
        rest: Sequence[Candidate],
    ) -> bool:
        """Device ``place`` of a request for a number of devices out of ``rest``, and everything after it.

        A device that does not fit now will not fit deeper in this branch either, so it is left out at once; and if
        fewer are left than are needed, none is tried. A device with an error stays in, and then nothing is pruned.
        """
        if place >= option.count:
            return self.request(claim, number + 1)
        self._within_limit(claim, option, place)
        rest, needed = self._narrowed(claim, option, constraints, place, rest)
        if len(rest) < needed:
            return False
        pruning = self._comparison()
        state = pruning.state(claim, number, option, place, rest) if pruning else None
        if pruning and (pruning.failed(state) or pruning.hopeless(claim, number)):
            return False
        for index in range(len(rest) - needed + 1):
            if not self._add(claim, option, constraints, rest[index]):
                continue
            done = False
            try:
                done = self._pick(claim, number, option, constraints, place + 1, rest[index + 1 :])
            finally:
                if not done:
                    self.progress.undo(claim, constraints, option.names[0])
            if done:
                return True
            self._setbacks += 1
        if pruning:
            pruning.note_failure(state)
        return False

    def _narrowed(
        self,
        claim: int,
        option: RequestAlternative,
        constraints: list[Constraint],
        place: int,
        rest: Sequence[Candidate],
    ) -> tuple[Sequence[Candidate], int]:
        """The devices that fit now and share constrained values with enough others, and how many of them are needed."""
        if not self._prune or any(candidate.error for candidate in rest):
            return rest, 1
        needed, request, progress = option.count - place, option.names[0], self.progress
        fitting = [
            candidate
            for candidate in rest
            if progress.free(candidate.offer, option, claim) and progress.fits(candidate, constraints, request)
        ]
        for number, item in enumerate(constraints):
            if needed > 1 and isinstance(item, Match) and item.undecided:
                # A value that fewer devices have than are needed cannot be the common value.
                having = Counter(one for candidate in fitting for one in _values(candidate, number))
                fitting = [item for item in fitting if any(having[one] >= needed for one in _values(item, number))]
        return fitting, needed

    def _add(self, claim: int, option: RequestAlternative, constraints: list[Constraint], candidate: Candidate) -> bool:
        """Pick a device if it is free and fits."""
        if not self.progress.free(candidate.offer, option, claim):
            return False
        if candidate.error:
            raise AllocationError(candidate.error)
        # Capacity is checked before the constraints, whose state failed attempts may change.
        if not self.progress.capacity_left(candidate) or self.progress.add(candidate, constraints, option.names[0]):
            return False
        self.progress.take(candidate, option, claim)
        return True

    def _comparison(self) -> Pruning | None:
        if not self._prune or self._setbacks <= SETBACKS_BEFORE_COMPARING:
            return None
        if self._pruning is None:
            options = [option for item in self._claims for request in item.requests for option in request.options]
            lists = {item: self._all[item] if item.all_devices else self._candidates_of(item) for item in options}
            self._pruning = Pruning(self._claims, self.progress, lists)
        return self._pruning if self._pruning.usable else None


def _values(candidate: Candidate, number: int) -> Collection[Value]:
    """The values of the attribute of a constraint that a device has."""
    attribute_value = candidate.values[number]
    return () if attribute_value is None else alternatives(attribute_value)

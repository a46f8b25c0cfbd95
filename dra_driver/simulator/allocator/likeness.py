"""Which failures of a search tell that another branch fails too.

Devices are alike when no request, constraint or counter of the claims can tell them apart. A branch that failed fails
again with like devices in their place, and one in which a later request can no longer be satisfied fails in any case.
Both only hold where nothing but devices in use is in the way, so they are not used with administrators' requests,
shared devices, failing selectors, or constraints on ``All``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from dra_driver.simulator.allocator.candidates import Candidate
from dra_driver.simulator.allocator.constraints import Match, value
from dra_driver.simulator.allocator.offers import DeviceId
from dra_driver.simulator.allocator.progress import Progress
from dra_driver.simulator.allocator.requests import Option, PreparedClaim

Lists = Mapping[Option, Sequence[Candidate]]


class Likeness:
    """What is known about the devices of one search, and the states in which it failed."""

    def __init__(self, claims: Sequence[PreparedClaim], progress: Progress, lists: Lists) -> None:
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
        """The kind of each device: equal for devices that are alike."""
        wanted_by: dict[DeviceId, int] = {}
        attributes = sorted({item.attribute for held in self._progress.constraints for item in held})
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

    def state(self, claim: int, number: int, option: Option, place: int, rest: Sequence[Candidate]) -> Hashable:
        """Everything that decides whether the search succeeds from here."""
        picks = self._progress.picks
        return (
            claim,
            number,
            id(option),
            place,
            len(picks[claim]),
            frozenset(Counter(self._kinds[pick.candidate.offer.id] for made in picks for pick in made).items()),
            frozenset(Counter(self._kinds[candidate.offer.id] for candidate in rest).items()),
            tuple(item.state() for held in self._progress.constraints for item in held),
        )

    def failed(self, state: Hashable) -> bool:
        """Whether the search failed in an equal state."""
        return state in self._failed

    def note_failure(self, state: Hashable) -> None:
        """Remember it."""
        self._failed.add(state)

    def hopeless(self, claim: int, number: int) -> bool:
        """Whether a request after this one cannot be satisfied, whatever is picked for those before it."""
        return self._foresight and any(
            not self._possible(later, request.options[0])
            for later, prepared in enumerate(self._claims)
            for place, request in enumerate(prepared.requests)
            if (later, place) > (claim, number)
        )

    def _possible(self, claim: int, option: Option) -> bool:
        held = self._progress.concerning(claim, option)
        left = [
            candidate
            for candidate in self._lists[option]
            if self._progress.free(candidate.offer, option, claim)
            and self._progress.fits(candidate, held, option.names[0])
        ]
        if option.all_devices:
            return len(left) == len(self._lists[option]) > 0
        return len(left) >= option.count and all(
            max(Counter(candidate.values[place] for candidate in left).values(), default=0) >= option.count
            for place, item in enumerate(held)
            if isinstance(item, Match)
        )

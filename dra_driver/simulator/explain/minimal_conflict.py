"""The smallest part of a pod's claims that a node refuses, found by running the allocator on parts.

Since the allocator itself is run, an explanation of a refusal cannot contradict it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dra_driver.kube.objects.resource import DeviceClaim, DeviceConstraint, ExactDeviceRequest, ResourceClaim
from dra_driver.simulator.allocator import TIME_OVER, Allocation, NodeView, Refusal, World
from dra_driver.simulator.allocator.search import Steps

MAX_PARTS = 64
"""Maximum number of requests and constraints to minimise; the rest is treated as one part."""


MAX_TRIAL_STEPS = 50_000
"""Number of steps after which one trial is given up: about a second."""
MAX_EXPLANATION_STEPS = 1_000_000
"""Number of steps that all trials of one explanation may take together."""


class Trials:
    """Runs the allocator on changed claims, to find out what a refusal depends on and what would help.

    An explanation makes up to a few hundred trials, each of which could search for as long as the scheduler may. So
    they are limited one by one and together, and one that was given up says nothing: it neither fits nor is refused.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._left = MAX_EXPLANATION_STEPS
        self.incomplete = False
        """Whether a trial was given up."""

    def refused(self, claims: Sequence[ResourceClaim], node: NodeView) -> bool:
        """Whether the node has no devices for the claims; an error does not count as a refusal."""
        answer = self._answered(claims, node)
        return isinstance(answer, Refusal) and not answer.fatal

    def fits(self, claims: Sequence[ResourceClaim], node: NodeView) -> bool:
        """Whether the claims are allocated devices on the node."""
        return isinstance(self._answered(claims, node), Allocation)

    def allocation(self, claims: Sequence[ResourceClaim], node: NodeView) -> Allocation | None:
        """The devices that the claims would be given on the node; None if there are none."""
        answer = self._answered(claims, node)
        return answer if isinstance(answer, Allocation) else None

    def _answered(self, claims: Sequence[ResourceClaim], node: NodeView) -> Allocation | Refusal:
        prepared = self._world.prepare(claims)
        if isinstance(prepared, Refusal):
            return prepared
        granted = min(MAX_TRIAL_STEPS, self._left)
        steps = Steps(granted)
        answer = self._world.ask(prepared, node, steps=steps)
        self._left -= granted - max(steps.left, 0)
        self.incomplete |= steps.left < 0 or answer == TIME_OVER
        return answer


@dataclass(frozen=True, slots=True)
class ClaimPart:
    """A request or constraint by its position: the claim's index, and the index among its requests or constraints."""

    kind: str
    claim: int
    place: int


REQUEST, CONSTRAINT = "request", "constraint"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Parts that are refused together, but not if any one of them is removed."""

    requests: tuple[ClaimPart, ...]
    constraints: tuple[ClaimPart, ...]


def minimal_conflict(claims: Sequence[ResourceClaim], node: NodeView, trials: Trials) -> Conflict:
    """The smallest part of the claims that the node refuses for the same kind of reason (not because of an error)."""
    parts = parts_of(claims)
    kept = list(parts)
    # Constraints first: a conflict without them is simpler to explain. Later requests before earlier ones.
    tried = sorted(parts, key=lambda part: (part.kind != CONSTRAINT, -part.claim, -part.place))
    for part in tried if len(parts) <= MAX_PARTS else ():
        rest = [item for item in kept if item != part]
        if trials.refused(only(claims, rest), node):
            kept = rest
    return Conflict(
        tuple(item for item in kept if item.kind == REQUEST), tuple(item for item in kept if item.kind == CONSTRAINT)
    )


def parts_of(claims: Sequence[ResourceClaim]) -> list[ClaimPart]:
    """All requests and constraints."""
    return [
        ClaimPart(kind, number, place)
        for number, claim in enumerate(claims)
        for kind, items in ((REQUEST, claim.spec.devices.requests), (CONSTRAINT, claim.spec.devices.constraints))
        for place, _ in enumerate(items)
    ]


def only(claims: Sequence[ResourceClaim], parts: Sequence[ClaimPart]) -> list[ResourceClaim]:
    """The claims reduced to these parts, without constraints that no longer concern any request."""
    wanted = set(parts)
    return [_reduced(claim, number, wanted) for number, claim in enumerate(claims)]


def _reduced(claim: ResourceClaim, number: int, wanted: set[ClaimPart]) -> ResourceClaim:
    devices = claim.spec.devices
    requests = tuple(item for i, item in enumerate(devices.requests) if ClaimPart(REQUEST, number, i) in wanted)
    names = {item.name for item in requests}
    constraints = tuple(
        narrowed
        for i, item in enumerate(devices.constraints)
        if ClaimPart(CONSTRAINT, number, i) in wanted and (narrowed := _narrowed(item, names)) is not None
    )
    return with_devices(claim, msgspec.structs.replace(devices, requests=requests, constraints=constraints))


def _narrowed(item: DeviceConstraint, names: set[str]) -> DeviceConstraint | None:
    """None if all requests that it names are gone: naming none would mean all."""
    if not item.requests:
        return item
    left = tuple(name for name in item.requests if name.partition("/")[0] in names)
    return msgspec.structs.replace(item, requests=left) if left else None


def with_devices(claim: ResourceClaim, devices: DeviceClaim) -> ResourceClaim:
    """The claim with other device requests."""
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, devices=devices))


def exactly_of(claims: Sequence[ResourceClaim], part: ClaimPart) -> ExactDeviceRequest | None:
    """What a request asks for; None if it has subrequests."""
    return claims[part.claim].spec.devices.requests[part.place].exactly


def with_changes(claims: Sequence[ResourceClaim], part: ClaimPart, **changes: Any) -> list[ResourceClaim]:
    """The claims with other fields in a request, which has no subrequests."""
    variant, devices = list(claims), claims[part.claim].spec.devices
    requests, exactly = list(devices.requests), exactly_of(claims, part)
    if exactly is not None:
        exactly = msgspec.structs.replace(exactly, **changes)
    requests[part.place] = msgspec.structs.replace(requests[part.place], exactly=exactly)
    variant[part.claim] = with_devices(variant[part.claim], msgspec.structs.replace(devices, requests=tuple(requests)))
    return variant


def countable(claims: Sequence[ResourceClaim], part: ClaimPart) -> int:
    """The number of devices that a request asks for; 0 if it is not a fixed number (``All``, or subrequests)."""
    exactly = exactly_of(claims, part)
    return (exactly.count or 1) if exactly is not None and exactly.allocation_mode == "ExactCount" else 0


def most(
    claims: Sequence[ResourceClaim],
    part: ClaimPart,
    node: NodeView,
    trials: Trials,
    sound: Callable[[Allocation], bool] = lambda _: True,
) -> int:
    """The highest count below the request's own with which the claims fit on the node; 0 if there is none.

    ``sound`` says whether somebody would want the devices that they are then given.
    """
    return next(
        (
            count
            for count in range(countable(claims, part) - 1, 0, -1)
            if (allocation := trials.allocation(with_changes(claims, part, count=count), node)) is not None
            and sound(allocation)
        ),
        0,
    )

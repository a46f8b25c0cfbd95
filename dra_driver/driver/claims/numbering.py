"""Under which numbers containers see the chips of a claim.

The Neuron runtime counts chips from 0, so a claim's chips are numbered 0..k-1 in host order (setting ``renumber``). The
numbers are one set over the whole claim: kubelet gives a container the CDI devices of the claim, or of one of its
requests, and a device has one CDI device, so a chip has the same number in every container. A container that takes one
request of several therefore sees that request's part of the claim's numbers. A claim that the scheduler made for
extended resources is different: each of its requests is one container's, so each container has numbers from 0 of its
own (``ClaimFacts.units``). Only an init container may use requests of several, its own and those of containers
after it.
What a container uses together is numbered together. Chips that another container uses alone come first in it: init
containers end, and the one that runs on then counts from 0 where that can be.

Two claims of one pod may meet in one container, where the second ``/dev/neuron0`` would replace the first. kubelet asks
for each claim alone and a number, once given, never changes (containers may be using it), so the rule is: a claim keeps
its own numbers unless a prepared claim that a common pod uses has one of them for another chip; then it counts on from
the highest number of those claims. The result is kept in the checkpoint, hence the same for every retry.

``status.reservedFor`` says who shares a pod. For a claim made from a template it is one pod for ever; another claim may
have gained pods since it was prepared, so when it would clash it is fetched again. What cannot be seen from here: a pod
that starts to use two claims that were both prepared before, for other pods. kubelet does not call the driver then. The
reconciler reports such a pair; nodes with claims like that need the setting ``host``: its numbers never clash.

Admin access is for looking at chips, so claims with it keep the host's numbers. When a claim's checkpoint file has
become unreadable, its CDI spec still has its numbers: the claim gets them again, and until then every other claim keeps
clear of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from dra_driver.driver.claims.model import (
    Needs,
    Plan,
    PlanSettings,
    PreparedClaims,
    PrepareError,
    Shown,
    clashing_numbers,
)
from dra_driver.driver.claims.sharing import Sharing, View
from dra_driver.driver.claims.situation import Situation

_NUMBERED_AS_ONE: Final = (
    "it is not known which containers use which of its requests, because its pod cannot be read here; so its chips are "
    "numbered as one set, and not from 0 in each container"
)


def with_numbers(
    plan: Plan, sharing: Sharing, situation: Situation, prepared: PreparedClaims, settings: PlanSettings
) -> Plan | Needs:
    """The plan with the numbers of its chips in containers, or what has to be known first.

    Args:
        plan: its chips have the host's numbers.
        sharing: who sees its devices together.
        situation: the claim, and who uses others.
        prepared: the claim itself may be among them.
        settings: the administrator's choices.

    Raises:
        PrepareError: the chips of a container leave gaps, and the settings refuse that.
    """
    units, views = situation.claim.units, sharing.views
    chips = [[node.chip for node in device.nodes] for device in plan.devices]
    own = [() if device.admin else of_device for device, of_device in zip(plan.devices, chips, strict=True)]
    groups = _join(units, views or ())
    gaps = [text for group in groups for text in _gaps(_chips(own, group), settings)]
    as_one = views is None and len(units) > 1
    if as_one:
        groups = (tuple(range(len(chips))),)
    alone = {chip for _, view in views or () if view in units for at in view for chip in chips[at]}
    ordered_chips = [sorted(_chips(chips, group), key=lambda chip: (chip not in alone, chip)) for group in groups]
    host = settings.device_numbering == "host" or any(device.admin for device in plan.devices)
    numbers = _numbers(ordered_chips, sharing, situation, prepared, host=host)
    if isinstance(numbers, Needs):
        return numbers
    number_of = {at: of_group for group, of_group in zip(groups, numbers, strict=True) for at in group}
    devices = tuple(
        replace(device, nodes=tuple(replace(node, number=number_of[at][node.chip]) for node in device.nodes))
        for at, device in enumerate(plan.devices)
    )
    warnings = (*gaps, *plan.warnings, *([_NUMBERED_AS_ONE] if as_one else []))
    return replace(plan, devices=devices, warnings=warnings)


def _chips(devices: Sequence[Sequence[int]], group: Iterable[int]) -> list[int]:
    return sorted({chip for at in group for chip in devices[at]})


def _join(units: Sequence[tuple[int, ...]], views: Iterable[View]) -> tuple[tuple[int, ...], ...]:
    """The units, those in one that a container uses together."""
    groups = list(units)
    for _, view in views:
        parts = [unit for unit in groups if not set(unit).isdisjoint(view)]
        if len(parts) > 1:
            groups = [unit for unit in groups if unit not in parts]
            groups.append(tuple(sorted(index for unit in parts for index in unit)))
    return tuple(sorted(groups))


def _gaps(chips: Sequence[int], settings: PlanSettings) -> tuple[str, ...]:
    """A warning if chips (ascending) that a container holds leave gaps. PrepareError if the settings refuse them."""
    if settings.contiguity == "allow" or not chips or chips[-1] - chips[0] + 1 == len(chips):
        return ()
    what = f"chips {', '.join(map(str, chips))} are not one contiguous run of host ids"
    consequence = 'the Neuron runtime may fail in this container ("Neuron cores are not contiguous")'
    remedy = (
        "ask for 1, 4, 8 or 16 devices with a matchAttribute constraint on resource.aws.com/devicegroup4_id, "
        "devicegroup8_id or devicegroup16_id"
    )
    if settings.contiguity == "refuse":
        raise PrepareError(
            what, consequence=f"{consequence}, so the claim is not prepared", remedy=remedy, reason="NotContiguous"
        )
    return (f"{what}; {consequence}; {remedy}",)


def _numbers(
    groups: Sequence[Sequence[int]], sharing: Sharing, situation: Situation, prepared: PreparedClaims, *, host: bool
) -> list[dict[int, int]] | Needs:
    """Container number of each chip, for each group; or what has to be known first.

    ``groups``: chips (host ids, in the order of their numbers) that are numbered together: those of the claim, or of
    each of its containers. ``host``: whether to keep the host's numbers. The others: see ``with_numbers``.
    """
    claim, quarantined = situation.claim, prepared.quarantined
    former = quarantined[claim.uid].shown if claim.uid in quarantined else frozenset()
    for numbers in _former_numbers(groups, former):
        if _pairs(numbers) == former:
            return numbers
    wanted = [{chip: chip for chip in group} for group in groups] if host else _count(groups, 0)
    taken = prepared.shown_by_quarantined(exclude=claim.uid).union(*(other.shown for other in sharing.together))
    if clashing_numbers(_pairs(wanted), taken):
        wanted = _count(groups, max(number for number, _ in taken) + 1)
    rivals = prepared.shareable_with_other(claim.namespace, _pairs(wanted)) if claim.pods else []
    unknown = [other for other in rivals if other.uid != claim.uid and other.uid not in situation.consumers]
    return Needs(claims=tuple(unknown)) if unknown else wanted


def _count(groups: Sequence[Sequence[int]], first: int) -> list[dict[int, int]]:
    return [{chip: first + rank for rank, chip in enumerate(group)} for group in groups]


def _former_numbers(groups: Sequence[Sequence[int]], shown: Shown) -> Iterator[list[dict[int, int]]]:
    """What the numbers of a claim may have been, of which a CDI spec shows all pairs."""
    if not shown:
        return
    at = {chip: number for number, chip in shown}
    if len(groups) == 1 and sorted(at) == sorted(groups[0]):
        yield [at]
    yield _count(groups, min(number for number, _ in shown))


def _pairs(numbers: Sequence[Mapping[int, int]]) -> Shown:
    return frozenset((number, chip) for of_group in numbers for chip, number in of_group.items())

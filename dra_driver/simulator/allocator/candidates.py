"""The devices of a node that are eligible for a request, before any is picked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dra_driver.kube.matching import BLOCKING, tolerates
from dra_driver.kube.objects.resource import Device, DeviceTaint, DeviceTaintRule, DeviceToleration, ResourceSlice
from dra_driver.kube.objects.taint_rules import selects, taint_of
from dra_driver.simulator.allocator.capacity import Amount, CapacityError, Usage, amounts, fits
from dra_driver.simulator.allocator.constraints import Value, value
from dra_driver.simulator.allocator.nodes import NodeView, matches
from dra_driver.simulator.allocator.pool_devices import Pool, PoolDevice, SelectorFailure, Selectors, verdict
from dra_driver.simulator.allocator.release import Release
from dra_driver.simulator.allocator.requests import AllocationError, RequestAlternative


def tainted(slices: Iterable[ResourceSlice], rules: Iterable[DeviceTaintRule]) -> Iterable[ResourceSlice]:
    """The slices as kube-scheduler sees them: with the taints of DeviceTaintRules added to the published ones.

    Source: ``k8s.io/dynamic-resource-allocation/resourceslice/tracker``.
    """
    rules = tuple(rules)
    if not rules:
        return slices
    # Slices of identical nodes share device objects, compared by id(); the results share theirs too.
    copies: dict[tuple[int, tuple[DeviceTaint, ...]], tuple[Device, Device]] = {}

    def with_taints(item: ResourceSlice, device: Device) -> Device:
        spec = item.spec
        added = tuple(taint_of(rule) for rule in rules if selects(rule, spec.driver, spec.pool.name, device.name))
        if not added:
            return device
        # Keeping a reference to the device ensures that its id() is not reused.
        pair = copies.setdefault((id(device), added), (device, replace(device, taints=(*device.taints, *added))))
        return pair[1]

    return [
        replace(item, spec=replace(item.spec, devices=tuple(with_taints(item, device) for device in item.spec.devices)))
        for item in slices
    ]


def tolerated(device: Device, tolerations: Sequence[DeviceToleration]) -> bool:
    """Whether all blocking taints of the device are tolerated."""
    return not device.taints or all(
        any(tolerates(toleration, taint) for toleration in tolerations)
        for taint in device.taints
        if taint.effect in BLOCKING
    )


_NOTHING: dict[str, Amount] = {}


@dataclass(frozen=True, eq=False, slots=True)
class Candidate:
    """A device that is eligible for a request."""

    offer: PoolDevice
    pool: Pool
    values: tuple[Value | None, ...] = ()
    """Values of the attributes of the constraints that concern the request."""
    amounts: dict[str, Amount] | None = None
    """What it would consume of the device's capacity; None if that need not be checked."""
    tolerated: bool = True
    error: str = ""
    """An error that ends scheduling as soon as the search reaches the device while it is free."""


@dataclass(frozen=True, slots=True)
class SearchContext:
    """Everything besides the request that determines candidates."""

    node: NodeView
    pools: Sequence[Pool]
    usage: Usage
    selectors: Selectors
    release: Release


def candidates(
    option: RequestAlternative, attributes: Sequence[str], around: SearchContext, *, thorough: bool
) -> list[Candidate]:
    """The eligible devices for one device of the request, in the order in which they are tried.

    Args:
        option: the request.
        attributes: those of the constraints that concern it.
        around: node, pools and usage.
        thorough: include devices that can never be picked but affect the state of the search.
    """
    eligible: list[Candidate] = []
    for pool in around.pools:
        if not pool.usable:
            continue
        for offer in pool.offers:
            if not option.admin and around.usage.exclusive(offer.id):
                continue
            try:
                selected = _selected(offer, option, around)
                wanted = _amounts(offer.device, option, around.release) if selected else None
            except AllocationError as error:
                eligible.append(Candidate(offer, pool, error=error.what))
                continue
            if not selected or wanted is None:
                continue
            if wanted and not fits(offer.device, wanted, around.usage.consumed(offer.id)):
                continue
            allowed = tolerated(offer.device, option.tolerations)
            values = tuple(value(offer, attribute) for attribute in attributes)
            if thorough or (allowed and None not in values):
                eligible.append(Candidate(offer, pool, values, wanted or None, allowed))
    return eligible


def everything(option: RequestAlternative, attributes: Sequence[str], around: SearchContext) -> list[Candidate]:
    """All devices of a request with ``All``, whether in use or not.

    Raises AllocationError if a pool is incomplete or invalid, or if a selector fails.
    """
    devices: list[Candidate] = []
    for pool in around.pools:
        if not pool.usable:
            state = "currently being updated" if pool.incomplete else "currently invalid"
            raise AllocationError(
                f"{option.where}: asks for all devices, but resource pool {'/'.join(pool.key)} is {state}"
            )
        for offer in pool.offers:
            if not _selected(offer, option, around):
                continue
            wanted = _amounts(offer.device, option, around.release)
            consumed = around.usage.consumed(offer.id) if around.release.all_counts_remaining else {}
            if wanted is None or not fits(offer.device, wanted, consumed):
                continue
            values = tuple(value(offer, attribute) for attribute in attributes)
            devices.append(Candidate(offer, pool, values, wanted or None, tolerated(offer.device, option.tolerations)))
    return devices


def _selected(offer: PoolDevice, option: RequestAlternative, around: SearchContext) -> bool:
    """Raises AllocationError if a selector fails on the device."""
    outcome = verdict(offer, option.selectors, option.key, around.selectors.view)
    if isinstance(outcome, SelectorFailure):
        device = "" if around.release.name == "1.36" else f" on device {'/'.join(offer.id)}"
        raise AllocationError(f"{option.places[outcome.place]}{device}: {outcome.text}")
    if not outcome or not offer.spec.per_device_node_selection:
        return outcome
    return matches(around.node, offer.device.node_name, offer.device.all_nodes, offer.device.node_selector)


def _amounts(device: Device, option: RequestAlternative, release: Release) -> dict[str, Amount] | None:
    """None if a capacity is requested that the device does not have."""
    if not option.capacity and not device.allow_multiple_allocations:
        return _NOTHING
    try:
        return amounts(device, option.capacity, release)
    except CapacityError as error:
        raise AllocationError(f"{option.where}: checking capacity for device {device.name}: {error.what}") from error

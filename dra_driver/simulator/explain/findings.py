"""What prevents a request from getting each device of a node, device by device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from dra_driver.kube.objects.resource import DeviceTaint
from dra_driver.neuron.health.taints import description
from dra_driver.simulator.allocator.candidates import Candidate, SearchContext, tolerated
from dra_driver.simulator.allocator.capacity import amounts, fits
from dra_driver.simulator.allocator.constraints import Value, value
from dra_driver.simulator.allocator.nodes import matches
from dra_driver.simulator.allocator.partial_allocation import PartialAllocation
from dra_driver.simulator.allocator.pool_devices import Pool, PoolDevice, SelectorFailure, verdict
from dra_driver.simulator.allocator.requests import RequestAlternative
from dra_driver.simulator.cel import Reference, clauses, references
from dra_driver.util.errors import DriverError
from dra_driver.util.text import shorten
from dra_driver.util.wording import listed, natural

MAX_VALUE_LENGTH = 80
"""Maximum length of a value; Kubernetes allows strings of 64 bytes."""


def choice(values: Sequence[str]) -> str:
    """The distinct values of something: all of them if there are few, otherwise some."""
    if len(values) > 2 and all(re.fullmatch(r"[0-9]{1,18}", value) for value in values):
        numbers = sorted(map(int, values))
        if numbers[-1] - numbers[0] == len(numbers) - 1:
            return f"{numbers[0]} to {numbers[-1]}"
    shown = [shorten(value, MAX_VALUE_LENGTH, keep=MAX_VALUE_LENGTH) for value in natural(values)]
    if len(values) <= 3:  # short enough to read
        return listed(shown, "or")
    return f"{len(values)} values such as {listed(shown[:2])}"


State = Literal["free", "selector", "error", "node", "in use", "capacity", "counters", "taint", "attribute"]
"""``free`` devices are available; the others name the obstacle. User input takes precedence over changing state."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The first clause of a selector that is false or fails."""

    place: str
    """The origin of the selector: the class or the request."""
    expression: str
    clause: str
    error: str = ""
    """Why it fails; "" if it is false."""


@dataclass(frozen=True, slots=True)
class DeviceFinding:
    """One device and one request. ``why`` is the obstacle on the device's side, "" if there is none."""

    driver: str
    device: str
    state: State
    why: str = ""
    failed: Failed | None = None
    saw: tuple[tuple[str, str], ...] = ()
    """What the clause read, by its text in CEL; "missing" if the device has no such value."""
    values: tuple[Value | None, ...] = ()
    """Values of the constraints' attributes."""
    in_use: bool = False
    blockers: tuple[str, ...] = ()
    """Devices in use that have used up the shared counters that it consumes."""


def findings(
    option: RequestAlternative, attributes: Sequence[str], around: SearchContext
) -> list[tuple[PoolDevice, DeviceFinding]]:
    """Every device of the node's usable pools, in the order in which they are tried.

    Args:
        option: the request.
        attributes: those of the constraints to consider.
        around: node, pools and usage.
    """
    progress = PartialAllocation((), around)
    return [
        (offer, _finding(offer, pool, option, attributes, around, progress))
        for pool in around.pools
        if pool.usable
        for offer in pool.offers
    ]


def _finding(
    offer: PoolDevice,
    pool: Pool,
    option: RequestAlternative,
    attributes: Sequence[str],
    around: SearchContext,
    progress: PartialAllocation,
) -> DeviceFinding:
    used = not option.admin and around.usage.exclusive(offer.id)
    name = (offer.driver, offer.device.name)
    selected = verdict(offer, option.selectors, option.key, around.selectors.view)
    if selected is not True:
        failed = _failed(offer, option, around, selected)
        saw = tuple((item.text, _text(offer, item)) for item in references(failed.clause))
        return DeviceFinding(*name, "error" if failed.error else "selector", failed.error, failed, saw, in_use=used)
    values = tuple(value(offer, attribute) for attribute in attributes)
    state, why = _obstacle(offer, pool, option, around, progress)
    if state == "free" and None in values:
        state, why = "attribute", f"attribute {attributes[values.index(None)]}"
    blockers = _blockers(offer, pool, around, progress) if state == "counters" else ()
    return DeviceFinding(*name, state, why, values=values, in_use=used, blockers=blockers)


def _blockers(offer: PoolDevice, pool: Pool, around: SearchContext, progress: PartialAllocation) -> tuple[str, ...]:
    short = {*progress.short(Candidate(offer, pool))}
    used = around.usage.in_pool(pool.key)
    return tuple(
        other.device.name
        for other in (*pool.offers, *pool.elsewhere)
        if other.device.name in used and any(counter in short for counter, _ in other.consumes)
    )


def _obstacle(
    offer: PoolDevice, pool: Pool, option: RequestAlternative, around: SearchContext, progress: PartialAllocation
) -> tuple[State, str]:
    """The obstacle for a device that the selectors match."""
    device = offer.device
    try:
        if offer.spec.per_device_node_selection and not matches(
            around.node, device.node_name, device.all_nodes, device.node_selector
        ):
            return "node", "it is for other nodes"
    except DriverError as error:
        return "node", error.what
    if not option.admin and around.usage.exclusive(offer.id):
        return "in use", "it is in use"
    try:
        why = _capacity_missing(offer, option, around)
    except DriverError as error:
        why = error.what
    if why:
        return "capacity", why
    if not progress.fits(Candidate(offer, pool), (), option.names[0]):
        return "counters", "the shared counters that are needed are used up by devices in use"
    taint = _blocking_taint(offer, option)
    if taint is not None:
        return "taint", f"{description(taint)} is not tolerated"
    return "free", ""


def _capacity_missing(offer: PoolDevice, option: RequestAlternative, around: SearchContext) -> str:
    device = offer.device
    if not option.capacity and not device.allow_multiple_allocations:
        return ""
    wanted = amounts(device, option.capacity, around.release)
    if wanted is None:
        missing = ", ".join(sorted(set(option.capacity) - set(device.capacity)))
        return f"capacity {missing} is missing"
    consumed = around.usage.consumed(offer.id)
    for name, amount in wanted.items():
        if not amount.legal:
            return f"the policy for capacity {name} does not allow {amount.text}"
        if not fits(device, {name: amount}, consumed):
            return f"less than {amount.text} of capacity {name} is left"
    return ""


def _blocking_taint(offer: PoolDevice, option: RequestAlternative) -> DeviceTaint | None:
    for taint in offer.device.taints:
        alone = msgspec.structs.replace(offer.device, taints=(taint,))
        if not tolerated(alone, option.tolerations):
            return taint
    return None


def _failed(
    offer: PoolDevice, option: RequestAlternative, around: SearchContext, selected: bool | SelectorFailure
) -> Failed:
    """The decisive clause: a false one of a false expression, the first failing one of a failing expression.

    A false clause takes precedence over a failing one, as in CEL.
    """
    if isinstance(selected, SelectorFailure):
        place, error = option.places[selected.place], selected.text
        expression = option.key[selected.place]
    else:
        index = next(i for i, item in enumerate(option.selectors) if not item.matches(offer.view))
        place, error, expression = option.places[index], "", option.key[index]
    whole = Failed(place, expression, " ".join(expression.split()), error)
    parts = clauses(expression)
    try:
        view = around.selectors.view(offer.driver, offer.device) if offer.view is None else offer.view
    except DriverError:
        # No selector can read this device, so no single clause is the cause.
        return whole
    wanted = None if error else False
    culprits = (clause for clause in parts if _outcome(view, clause, around) is wanted)
    clause = next(culprits, None) if len(parts) > 1 else None
    return whole if clause is None else Failed(place, expression, clause, error)


def _outcome(view: Any, clause: str, around: SearchContext) -> bool | None:
    """The clause's value; None if it fails."""
    try:
        return around.selectors.compile(clause).matches(view)
    except DriverError:
        return None


def _text(offer: PoolDevice, item: Reference) -> str:
    """A value of a device that an expression reads, as CEL writes it."""
    if item.field == "driver":
        return f"'{offer.driver}'"
    if item.field == "allowMultipleAllocations":
        return str(offer.shareable).lower()
    if item.field == "capacity":
        own = item.domain == offer.driver
        capacity = offer.device.capacity.get(f"{item.domain}/{item.name}") or (
            offer.device.capacity.get(item.name) if own else None
        )
        return str(capacity.value) if capacity is not None else "missing"
    kind, content = value(offer, f"{item.domain}/{item.name}") or ("", None)
    if content is None:
        return "missing"
    return str(content).lower() if kind == "bool" else f"'{content}'" if kind == "string" else str(content)

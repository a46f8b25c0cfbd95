"""Changes that would help. Each is verified by running the allocator with the change made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from msgspec import structs

from dra_driver.kube.matching import BLOCKING
from dra_driver.kube.objects.resource import (
    CELDeviceSelector,
    DeviceSelector,
    DeviceTaint,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
)
from dra_driver.kube.objects.scheduling import GROUP, POD_GROUPS
from dra_driver.neuron.health.taints import is_unhealthy, of_workload, retired, way_out
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.simulator.allocator import Allocation, NodeView
from dra_driver.simulator.cel import Reference, clauses, references
from dra_driver.simulator.explain.diagnosis import Case, attribute
from dra_driver.simulator.explain.minimal_conflict import (
    REQUEST,
    ClaimPart,
    Conflict,
    countable,
    exactly_of,
    minimal_conflict,
    most,
    only,
    parts_of,
    with_changes,
)
from dra_driver.simulator.explain.spelling import spellings
from dra_driver.simulator.explain.values import DeviceGroup, Diagnosis, clause_text
from dra_driver.util.errors import DriverError
from dra_driver.util.text import first_of
from dra_driver.util.wording import listed, named

MAX_HOLDERS = 64
"""Maximum number of claims for which it is tried whether releasing them would help."""
MAX_NAMED = 3
"""Maximum number of claims to name."""


@dataclass(frozen=True, slots=True)
class Miss:
    """A node on which the claims do not fit, and why."""

    node: NodeView
    diagnosis: Diagnosis


def remedies(
    case: Case, nodes: Sequence[NodeView], miss: Miss | None, holders: Sequence[ResourceClaim], *, offered: bool = True
) -> tuple[str, ...]:
    """What would make the claims fit on the nearest node, or avoid the error there; each remedy was tried.

    ``offered`` is False if it is known that no node offers the devices that the claims ask for.
    """
    if miss is None:
        return ()
    if miss.diagnosis.step == "error":
        requests = [part for part in parts_of(case.claims) if part.kind == REQUEST]
        return (*_did_you_mean(case, miss, requests), *_guards(case, miss))
    conflict = minimal_conflict(case.claims, miss.node, case.trials)
    ways: tuple[Callable[[], Iterator[str]], ...] = (
        lambda: _did_you_mean(case, miss, conflict.requests),
        lambda: _did_you_mean_attribute(case, miss, conflict),
        lambda: _mended(case, miss, conflict),
        lambda: _fewer(case, miss, conflict),
        lambda: _ended(case, miss, holders),
        lambda: _without_constraints(case, miss, conflict),
        lambda: _tolerating(case, miss, conflict),
        lambda: _without_clause(case, miss, conflict),
    )
    sentences = tuple(sentence for way in ways for sentence in way())
    return sentences or _elsewhere(case, nodes, miss) or (_last_resort(case, nodes, holders) if offered else ())


def _fewer(case: Case, miss: Miss, conflict: Conflict) -> Iterator[str]:
    for part in conflict.requests:
        count = countable(case.claims, part)
        able = most(case.claims, part, miss.node, case.trials, _is_run) if count > 1 else 0
        if able:
            name = case.request_name(part)
            yield f"ask for {able} instead of {count} devices in {name}: node {miss.node.name} has them"


def _is_run(given: Allocation) -> bool:
    """Whether the chips of each request have consecutive numbers, without which a driver warns of the runtime."""
    chips: dict[tuple[int, str], list[int]] = {}
    for number, result in enumerate(given.results):
        for one in result.devices.results:
            match = _CHIP.fullmatch(one.device) if one.driver == DRIVER_NAME else None
            if match is not None:
                chips.setdefault((number, one.request), []).append(int(match[1]))
    return all(max(numbers) - min(numbers) + 1 == len(numbers) for numbers in chips.values())


_CHIP: Final = re.compile(r"neuron-device-([0-9]+)")


def _did_you_mean(case: Case, miss: Miss, requests: Sequence[ClaimPart]) -> Iterator[str]:
    """A value or an attribute that is nearly one that the node's devices have, in a selector that excludes them."""
    states = ("selector", "error")
    excluding = [group for view in miss.diagnosis.requests for group in view.groups if group.state in states]
    offers = (offer for pool in case.world.pools.pools(miss.node) for offer in pool.offers)
    devices = [(offer.driver, offer.device) for offer in offers]
    for part, exactly in _without_subrequests(case, requests):
        for group in excluding:
            for wrong, right in spellings(group.clause, devices):
                changed = _rewritten(exactly.selectors, group.selector, group.selector.replace(wrong, right))
                if changed and _fits_with(case, part, miss.node, selectors=changed):
                    name = case.request_name(part)
                    yield f"write {right} in place of {wrong} in {name}: node {miss.node.name} has it"
                    return


def _rewritten(selectors: Sequence[DeviceSelector], old: str, new: str) -> tuple[DeviceSelector, ...] | None:
    """The selectors with another expression in place of one; None if they do not have it."""
    variant = tuple(
        DeviceSelector(CELDeviceSelector(new)) if item.cel is not None and item.cel.expression == old else item
        for item in selectors
    )
    return variant if variant != tuple(selectors) else None


def _mended(case: Case, miss: Miss, conflict: Conflict) -> Iterator[str]:
    """Chips that would be taken if they were well. Nobody should tolerate what may make results wrong."""
    ways: dict[str, list[str]] = {}
    for pool in case.world.pools.pools(miss.node):
        for offer in pool.offers:
            taints = [taint for taint in offer.device.taints if taint.effect in BLOCKING]
            if any(map(is_unhealthy, taints)) and _fits_despite(case, miss.node, conflict, taints):
                way = listed(list(dict.fromkeys(filter(None, map(way_out, taints)))))
                ways.setdefault(way, []).append(offer.device.name)
    for way, names in ways.items():
        yield f"{way} ({named(names)} of node {miss.node.name})"


def _elsewhere(case: Case, nodes: Sequence[NodeView], miss: Miss) -> tuple[str, ...]:
    """Chips of other nodes that would be taken if they were well, where nothing helps on the nearest one."""
    for node in nodes:
        offers = (offer for pool in case.world.pools.pools(node) for offer in pool.offers)
        if node.name != miss.node.name and any(any(map(is_unhealthy, offer.device.taints)) for offer in offers):
            other = Miss(node, miss.diagnosis)
            ways = tuple(_mended(case, other, minimal_conflict(case.claims, node, case.trials)))
            if ways:
                return ways
    return ()


def _did_you_mean_attribute(case: Case, miss: Miss, conflict: Conflict) -> Iterator[str]:
    """An attribute of a constraint that the node's devices have under nearly this name."""
    offers = (offer for pool in case.world.pools.pools(miss.node) for offer in pool.offers)
    there = {name if "/" in name else f"{offer.driver}/{name}" for offer in offers for name in offer.device.attributes}
    for part in conflict.constraints:
        wrong = attribute(case.claims[part.claim].spec.devices.constraints[part.place])
        alike = [name for name in sorted(there) if name.lower() == wrong.lower()]
        for right in (alike or get_close_matches(wrong, sorted(there), n=1, cutoff=0.9)) if wrong not in there else ():
            if case.trials.fits(_constrained(case.claims, part, right), miss.node):
                yield f"write {right} in place of {wrong} in the constraint: node {miss.node.name} has it"


def _constrained(claims: Sequence[ResourceClaim], part: ClaimPart, name: str) -> list[ResourceClaim]:
    """The claims with another attribute in one constraint."""
    changed = list(claims)
    devices = changed[part.claim].spec.devices
    constraints = list(devices.constraints)
    spec = constraints[part.place]
    field = "distinct_attribute" if spec.match_attribute is None else "match_attribute"
    constraints[part.place] = structs.replace(spec, **{field: name})
    devices = structs.replace(devices, constraints=tuple(constraints))
    spec_of_claim = structs.replace(changed[part.claim].spec, devices=devices)
    changed[part.claim] = structs.replace(changed[part.claim], spec=spec_of_claim)
    return changed


def _fits_despite(case: Case, node: NodeView, conflict: Conflict, taints: Sequence[DeviceTaint]) -> bool:
    return any(
        _fits_with(case, part, node, tolerations=(*exactly.tolerations, *map(_toleration, taints)))
        for part, exactly in _without_subrequests(case, conflict.requests)
    )


def _without(case: Case, holders: Sequence[ResourceClaim]) -> AbstractContextManager[None]:
    """Within the block, these claims are released."""
    return case.world.usage.without([one for item in holders for one in item.status.results])


def _on_node(case: Case, node: NodeView, holders: Sequence[ResourceClaim]) -> list[ResourceClaim]:
    """The claims that hold devices of the node's pools."""
    pools = {pool.key for pool in case.world.pools.pools(node)}
    return [item for item in holders if any((one.driver, one.pool) in pools for one in item.status.results)]


def _ended(case: Case, miss: Miss, holders: Sequence[ResourceClaim]) -> Iterator[str]:
    helpful = []
    for holder in _on_node(case, miss.node, holders)[:MAX_HOLDERS]:
        with _without(case, [holder]):
            if case.trials.fits(case.claims, miss.node):
                helpful.append(holder)
    if not helpful:
        yield from _all_ended(case, miss, holders)
        return
    ending = [item for item in helpful if _for_pods(item)]
    for item in [item for item in helpful if not _for_pods(item)][:MAX_NAMED]:
        yield f"{_giving_back(item)}; node {miss.node.name} then has room"
    listing = list(map(_holding, ending[:MAX_NAMED]))
    more = len(ending) - len(listing)
    if more:
        listing.append(f"{more} more")
    whose = "when this claim ends" if len(ending) == 1 else "when one of these claims ends"
    if ending:
        yield f"wait: node {miss.node.name} has room {whose}: {listed(listing, 'or')}"


def _giving_back(claim: ResourceClaim) -> str:
    """What frees the devices of a claim that does not end with pods."""
    users, kubectl = claim.status.reserved_for, f"kubectl -n {claim.metadata.namespace} delete"
    groups = [user.name for user in users if (user.resource, user.api_group) == (POD_GROUPS, GROUP)]
    if groups:
        return (
            f"delete PodGroup {first_of(groups, MAX_NAMED)}, or the workload that has made it, when its pods may end, "
            f"because it keeps claim {_holding(claim)} until then: {kubectl} podgroup {groups[0]}"
        )
    others = first_of([user.text for user in users], MAX_NAMED)
    return (
        f"delete claim {_holding(claim)}, which no pod uses, once {others} has given it back: "
        f"{kubectl} resourceclaim {claim.metadata.name}"
    )


def _holding(claim: ResourceClaim) -> str:
    return f"{claim.metadata.full_name} (has {named(one.device for one in claim.status.results)})"


def _for_pods(claim: ResourceClaim) -> bool:
    """Whether the end of pods frees its devices. One that is allocated in thought is reserved for nobody."""
    users = claim.status.reserved_for
    return not users or any(item.is_pod for item in users)


def _all_ended(case: Case, miss: Miss, holders: Sequence[ResourceClaim]) -> Iterator[str]:
    """The fewest claims that have to end together: all, without those of which the end changes nothing."""
    ending = list(_on_node(case, miss.node, holders)[:MAX_HOLDERS])
    with _without(case, ending):
        able = len(ending) > 1 and case.trials.fits(case.claims, miss.node)
    if not able:
        return
    for holder in tuple(ending):
        others = [item for item in ending if item is not holder]
        with _without(case, others):
            if case.trials.fits(case.claims, miss.node):
                ending = others
    listing = [item.metadata.full_name for item in ending[:MAX_NAMED]]
    listing += [f"{len(ending) - len(listing)} more"] if len(ending) > len(listing) else []
    yield f"wait: node {miss.node.name} has room when these claims end together: {listed(listing, 'and')}"


def _without_constraints(case: Case, miss: Miss, conflict: Conflict) -> Iterator[str]:
    parts = parts_of(case.claims)
    for part in conflict.constraints:
        if case.trials.fits(only(case.claims, [item for item in parts if item != part]), miss.node):
            spec = case.claims[part.claim].spec.devices.constraints[part.place]
            sense = "the same" if spec.match_attribute is not None else "different"
            yield (
                f"leave out the constraint on {attribute(spec)} if the devices need not have {sense} values: node "
                f"{miss.node.name} has enough of them"
            )


def _without_subrequests(case: Case, requests: Sequence[ClaimPart]) -> Iterator[tuple[ClaimPart, ExactDeviceRequest]]:
    for part in requests:
        exactly = exactly_of(case.claims, part)
        if exactly is not None:
            yield part, exactly


def _fits_with(case: Case, part: ClaimPart, node: NodeView, **changes: Any) -> bool:
    """Whether the claims fit on the node with these fields in a request."""
    return case.trials.fits(with_changes(case.claims, part, **changes), node)


def _tolerating(case: Case, miss: Miss, conflict: Conflict) -> Iterator[str]:
    """Tries to tolerate one taint key at a time, as a user would, and then all taints of one device.

    Devices that a node only keeps for the claims that hold them, or has for a workload, are not to be had that way.
    """
    offers = [offer.device for pool in case.world.pools.pools(miss.node) for offer in pool.offers]
    devices = [device for device in offers if not any(retired(taint) or of_workload(taint) for taint in device.taints)]
    blocking = [
        tuple(taint for taint in device.taints if taint.effect in BLOCKING)
        for device in devices
        if not any(map(is_unhealthy, device.taints))
    ]
    single = {(taint.key, taint.effect): (taint,) for taints in blocking for taint in taints}
    several = {tuple((taint.key, taint.effect) for taint in taints): taints for taints in blocking if len(taints) > 1}
    for part, exactly in _without_subrequests(case, conflict.requests):
        for wanted in (sorted(single.items()), sorted(several.items())):
            helpful = [
                taints
                for _, taints in wanted
                if _fits_with(case, part, miss.node, tolerations=(*exactly.tolerations, *map(_toleration, taints)))
            ]
            for taints in helpful:
                names = listed([f"{taint.key}:{taint.effect}" for taint in taints])
                ways = listed([way for taint in taints if (way := way_out(taint))])
                where = case.request_name(part)
                yield (
                    (f"{ways}; or " if ways else "")
                    + f"tolerate the taint{'s' if len(taints) > 1 else ''} {names} in {where}: node "
                    f"{miss.node.name} then fits"
                )
            if helpful:
                break


def _toleration(taint: DeviceTaint) -> DeviceToleration:
    return DeviceToleration(key=taint.key, operator="Exists", effect=taint.effect)


def _without_clause(case: Case, miss: Miss, conflict: Conflict) -> Iterator[str]:
    excluding = [group for view in miss.diagnosis.requests for group in view.groups if group.state == "selector"]
    for part, exactly in _without_subrequests(case, conflict.requests):
        for group in excluding:
            shorter = _shorter(exactly.selectors, group)
            if shorter is not None and _fits_with(case, part, miss.node, selectors=shorter):
                yield (
                    f"change or leave out {clause_text(group.clause)} in {case.request_name(part)}: without it, node "
                    f"{miss.node.name} fits"
                )


def _shorter(selectors: Sequence[DeviceSelector], group: DeviceGroup) -> tuple[DeviceSelector, ...] | None:
    """The selectors without the clause; None if none of them contains it."""
    for place, selector in enumerate(selectors):
        if selector.cel is not None and selector.cel.expression == group.selector:
            left = [part for part in clauses(group.selector) if part != group.clause]
            if len(left) == len(clauses(group.selector)):
                left = []
            remainder = (DeviceSelector(CELDeviceSelector(" && ".join(f"({part})" for part in left))),) if left else ()
            return (*selectors[:place], *remainder, *selectors[place + 1 :])
    return None


def _guards(case: Case, miss: Miss) -> Iterator[str]:
    """How to make a selector false where it fails now."""
    failing = [group for view in miss.diagnosis.requests for group in view.groups if group.state == "error"]
    for group in failing:
        absent = [item for item in references(group.clause) if (item.text, ("missing",)) in group.saw]
        guard = " && ".join(_presence(item) for item in absent)
        if absent and _never_fails(case, miss.node, f"{guard} && ({group.selector})"):
            yield f"put {clause_text(guard)} and && before the expression: it is then false where it fails now"
            return


def _presence(item: Reference) -> str:
    if item.name.isidentifier():
        return f"has({item.text})"
    return f'"{item.name}" in device.{item.field}["{item.domain}"]'


def _never_fails(case: Case, node: NodeView, expression: str) -> bool:
    try:
        selector = case.world.selectors.compile(expression)
        for pool in case.world.pools.pools(node):
            for offer in pool.offers:
                selector.matches(case.world.selectors.view(offer.driver, offer.device))
    except DriverError:
        return False
    return True


_TOO_MANY = (
    "ask for fewer devices in one request, or for larger ones: there are so many combinations of devices that it is "
    "not known what else would help"
)


def _last_resort(case: Case, nodes: Sequence[NodeView], holders: Sequence[ResourceClaim]) -> tuple[str, ...]:
    """If no small change helps: whether the claims would fit on an empty node."""
    with _without(case, holders):
        if any(case.trials.fits(case.claims, node) for node in nodes):
            return ("wait: only nodes with more free devices than now would fit",)
    return (_TOO_MANY,) if case.trials.incomplete else ()

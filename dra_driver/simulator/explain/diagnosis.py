"""Which step excludes a node, and why, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.kube.objects.resource import DeviceConstraint, ResourceClaim
from dra_driver.simulator.allocator import Refusal, World
from dra_driver.simulator.allocator.constraints import concerns
from dra_driver.simulator.allocator.nodes import NodeView
from dra_driver.simulator.allocator.pool_devices import Pool
from dra_driver.simulator.allocator.requests import PreparedClaim, PreparedRequest, RequestAlternative
from dra_driver.simulator.explain.findings import findings
from dra_driver.simulator.explain.minimal_conflict import (
    REQUEST,
    ClaimPart,
    Conflict,
    Trials,
    countable,
    minimal_conflict,
    most,
    only,
)
from dra_driver.simulator.explain.shortfall import Pair, constraint_view, share_sentence
from dra_driver.simulator.explain.values import ConstraintView, Diagnosis, RequestView, Step, request_view
from dra_driver.util.wording import are, counted, listed


@dataclass(frozen=True, slots=True)
class Case:
    """The claims of one pod, as given and as prepared."""

    claims: Sequence[ResourceClaim]
    prepared: Sequence[PreparedClaim]
    world: World
    trials: Trials
    server: str = ""
    """Release of the live API server, "" if there is none."""

    def request(self, part: ClaimPart) -> PreparedRequest:
        """The request that a part refers to."""
        return self.prepared[part.claim].requests[part.place]

    def request_name(self, part: ClaimPart) -> str:
        """The request that a part refers to, with its claim if there are several."""
        name = f"request {self.request(part).name}"
        return f"{name} of claim {self.claims[part.claim].metadata.full_name}" if len(self.claims) > 1 else name


def diagnosis(case: Case, node: NodeView, refusal: Refusal) -> Diagnosis:
    """Why the node refuses the claims. ``refusal`` is the allocator's result, and not an error."""
    pools = case.world.pools.pools(node)
    ready = [pool for pool in pools if pool.usable]
    unready = tuple(_unready(pool) for pool in pools if not pool.usable)
    notes = (*unready, *filter(None, [node.offer_problem]))
    if not any(pool.offers for pool in ready):
        if unready:
            return Diagnosis("pools", f"no resource pool is ready: {'; '.join(unready)}")
        empty = listed(sorted({pool.key[0] for pool in pools}))
        text = f"{empty} publishes no devices there" if empty else "no driver publishes devices there"
        if node.offer_problem:
            text += f": {node.offer_problem}"
        return Diagnosis("unpublished", text)
    conflict = minimal_conflict(case.claims, node, case.trials)
    if not conflict.requests:
        return Diagnosis("pools" if unready else "together", refusal.reason, notes=notes)
    pairs = {part: _pairs(case, part, conflict, node) for part in conflict.requests}
    views = tuple(
        request_view(case.claims[part.claim].metadata.full_name, option, [finding for _, finding in rows])
        for part in conflict.requests
        for option, rows in pairs[part]
    )
    constraints = tuple(view for part in conflict.constraints for view in _constraint(case, part, conflict, pairs))
    short = _short(case, conflict, node, views)
    step: Step = "constraint" if constraints else "devices" if len(conflict.requests) == 1 else "together"
    return Diagnosis(step, _sentence(case, conflict, views, constraints), views, constraints, short, notes)


def _unready(pool: Pool) -> str:
    name = "/".join(pool.key)
    if pool.grouped:
        return (
            f"slices of pool {name} have compatibilityGroups, and without the feature gate "
            "DRADeviceCompatibilityGroups (off by default) kube-scheduler takes nothing from such a pool"
        )
    if pool.incomplete:
        return f"slices of pool {name} are missing, so nothing is taken from it until its driver has published them all"
    return f"pool {name} contradicts itself ({pool.invalid}), so nothing is taken from it"


Rows = list[tuple[RequestAlternative, list[Pair]]]


def _pairs(case: Case, part: ClaimPart, conflict: Conflict, node: NodeView) -> Rows:
    """For each alternative of the request, every device and the finding about it."""
    around = case.world.around(node)
    specs = [
        case.claims[item.claim].spec.devices.constraints[item.place]
        for item in conflict.constraints
        if item.claim == part.claim
    ]
    rows = []
    for option in case.request(part).options:
        attributes = [attribute(spec) for spec in specs if concerns(spec.requests, *option.names)]
        rows.append((option, findings(option, attributes, around)))
    return rows


def attribute(spec: DeviceConstraint) -> str:
    """The attribute that a constraint is about."""
    return spec.match_attribute or spec.distinct_attribute or ""


def _constraint(case: Case, part: ClaimPart, conflict: Conflict, pairs: dict[ClaimPart, Rows]) -> list[ConstraintView]:
    """One view; for a request with subrequests, one for each of them, because they are tried one after the other."""
    spec = case.claims[part.claim].spec.devices.constraints[part.place]
    concerned = [
        (request, [(option, listing) for option, listing in pairs[request] if concerns(spec.requests, *option.names)])
        for request in conflict.requests
        if request.claim == part.claim
    ]
    if len(conflict.requests) == 1 and case.request(conflict.requests[0]).ranked:
        return [
            constraint_view(spec, [option.label], _wanted(option, listing), [listing], [_wanted(option, listing)])
            for option, listing in concerned[0][1]
        ]
    least = {
        request: min(_wanted(option, listing) for option, listing in pairs[request])
        for request, rows in concerned
        if rows
    }
    rows = [(request, option, listing) for request, listings in concerned for option, listing in listings]
    counts = [0 if case.request(request).ranked else least[request] for request, _, _ in rows]
    labels = [option.label for _, option, _ in rows]
    return [constraint_view(spec, labels, sum(least.values()), [listing for _, _, listing in rows], counts)]


def _wanted(option: RequestAlternative, listing: Sequence[Pair]) -> int:
    return sum(finding.failed is None for _, finding in listing) if option.all_devices else option.count


def _short(case: Case, conflict: Conflict, node: NodeView, views: Sequence[RequestView]) -> int | None:
    """By how many devices the request would have to be smaller or, for ``All``, how many matching devices are taken."""
    claims = only(case.claims, (*conflict.requests, *conflict.constraints))
    places = _places(conflict)
    able = [
        countable(case.claims, part) - most(claims, places[part], node, case.trials)
        for part in conflict.requests
        if countable(case.claims, part)
    ]
    if able:
        return min(able)
    view = views[0]
    missing = sum(len(group.devices) for group in view.groups if not group.clause) - view.free
    return missing if len(views) == 1 and view.wanted is None and missing else None


def _places(conflict: Conflict) -> dict[ClaimPart, ClaimPart]:
    """The positions that the requests of the conflict have in claims reduced to them."""
    return {
        part: ClaimPart(REQUEST, part.claim, sum(other.claim == part.claim for other in conflict.requests[:index]))
        for index, part in enumerate(conflict.requests)
    }


def _sentence(
    case: Case, conflict: Conflict, views: Sequence[RequestView], constraints: Sequence[ConstraintView]
) -> str:
    requests = [case.request(part) for part in conflict.requests]
    name = case.request_name(conflict.requests[0])
    if len(requests) == 1 and requests[0].ranked:
        ways = "; ".join(_way(view, [item for item in constraints if view.request in item.requests]) for view in views)
        return f"{name} has no sub-request that can be satisfied: {ways}"
    if constraints:
        who = name if len(requests) == 1 else _several(case, conflict)
        return f"{who} {are(len(requests), 'needs', 'need')} {_needs(constraints)}"
    if len(requests) > 1:
        free = " and ".join(f"{view.free} for {view.request}" for view in views)
        return f"{_several(case, conflict)} can each be satisfied, but not together: {free} are free and match"
    return _lack(name, views[0])


def _way(view: RequestView, constraints: Sequence[ConstraintView]) -> str:
    """Why a subrequest cannot be satisfied."""
    name = f"sub-request {view.request}"
    enough = view.wanted is not None and view.free >= view.wanted
    return f"{name} needs {_needs(constraints)}" if constraints and enough else _lack(name, view)


def _needs(views: Sequence[ConstraintView]) -> str:
    text = "; ".join(_need(view) for view in views)
    if any(len(share.free) >= view.wanted for view in views for share in view.shares if view.kind == "matchAttribute"):
        return f"{text}; no group has enough for everything together"
    return text


def _several(case: Case, conflict: Conflict) -> str:
    claims = {part.claim for part in conflict.requests}
    names = [
        f"{case.request(part).name}"
        + (f" (claim {case.claims[part.claim].metadata.full_name})" if len(claims) > 1 else "")
        for part in conflict.requests
    ]
    return f"requests {listed(names)}"


def _need(view: ConstraintView) -> str:
    kind = "the same" if view.kind == "matchAttribute" else "different"
    return f"{counted(view.wanted, 'device')} with {kind} {view.attribute}, and {share_sentence(view)}"


def _lack(name: str, view: RequestView) -> str:
    """A request that by itself has too few devices."""
    matching = sum(len(group.devices) for group in view.groups if not group.clause)
    if view.wanted is None:
        if not matching:
            return f"{name} asks for all devices that match, and none of {view.total} does"
        if matching > view.free:
            return (
                f"{name} asks for all {counted(matching, 'device')} that match, and {matching - view.free} of them "
                "cannot be had"
            )
        return f"{name} asks for all {counted(matching, 'device')} that match, which exclude each other"
    needs = f"{name} needs {counted(view.wanted, 'device')}"
    if view.free >= view.wanted:
        return f"{needs}; {view.free} match and are free, but not {view.wanted} of them at the same time"
    if not matching:
        return f"{needs}, and {'the only one does not match' if view.total == 1 else f'none of {view.total} matches'}"
    if matching == view.free:
        return f"{needs}, and only {view.free} {are(view.free, 'matches', 'match')}"
    if matching == 1:
        return f"{needs}, and the only one that matches is not free"
    return f"{needs}, and {view.free or 'none'} of the {matching} that match {are(view.free or 1)} free"

"""The whole explanation: tries every node, groups identical results, and finds the nearest miss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from dra_driver.kube.objects.resource import ResourceClaim, ResourceClaimStatus
from dra_driver.neuron.device_status import own_conditions, spelled
from dra_driver.simulator.allocator import TIME_OVER, Allocation, NodeView, Refusal, Scheduler, TimeOver, World
from dra_driver.simulator.allocator.constraints import value
from dra_driver.simulator.allocator.nodes import matches
from dra_driver.simulator.allocator.pool_devices import Pool, PoolDevice
from dra_driver.simulator.explain.diagnosis import Case, attribute, diagnosis
from dra_driver.simulator.explain.findings import DeviceFinding, findings
from dra_driver.simulator.explain.minimal_conflict import Trials
from dra_driver.simulator.explain.remedies import Miss, remedies
from dra_driver.simulator.explain.shortfall import ROW
from dra_driver.simulator.explain.trap_inputs import TrapInput, trap_inputs, wishes
from dra_driver.simulator.explain.traps import NOT_OFFERED, traps
from dra_driver.simulator.explain.values import (
    Diagnosis,
    Explanation,
    Holder,
    NodesAlike,
    Placed,
    Refused,
    request_view,
)
from dra_driver.util.errors import DriverError
from dra_driver.util.wording import counted, listed, named, shortened


def _error(case: Case, node: NodeView, refusal: Refusal) -> Diagnosis:
    """The error, and the devices on which a selector fails: none if the node's slices cannot be read."""
    views = []
    with suppress(DriverError):
        around = case.world.around(node)
        for claim, prepared in zip(case.claims, case.prepared, strict=True):
            for option in (option for request in prepared.requests for option in request.options):
                device_findings = [finding for _, finding in findings(option, (), around)]
                if any(_to_blame(item, refusal) for item in device_findings):
                    views.append(request_view(claim.metadata.full_name, option, device_findings))
    what = "a selector fails here" if views else "an error ends the search here"
    return Diagnosis("error", f"{what}: {refusal.reason}", tuple(views))


def _to_blame(finding: DeviceFinding, refusal: Refusal) -> bool:
    return finding.state == "error" and not finding.in_use and finding.why in refusal.reason


FITS = Diagnosis("fits", "the claims fit")


class Survey:
    """The results of the nodes, in the order in which the scheduler tries them."""

    def __init__(self, question: Question, case: Case, excluded: Mapping[str, str]) -> None:
        self._question = question
        self._case = case
        self._excluded = excluded
        self._by_look: dict[object, Diagnosis] = {}
        self._wishes = wishes(case)
        self.trap_inputs: list[TrapInput] = []
        self.nodes: list[NodeView] = []
        self.diagnoses: dict[str, Diagnosis] = {}
        self.could: list[Allocation] = []
        self.errors: list[tuple[NodeView, Refusal]] = []

    def ask(self, node: NodeView) -> None:
        """Try one node."""
        if node.name in self._excluded:
            self.diagnoses[node.name] = Diagnosis("pod", self._excluded[node.name])
            return
        answer = self._case.world.ask(self._case.prepared, node)
        if answer == TIME_OVER:
            raise TimeOver
        seen = self.look_at(node, searched=isinstance(answer, Allocation) or not answer.fatal)
        if isinstance(answer, Allocation):
            self.took(answer)
        elif answer.fatal:
            self.diagnoses[node.name] = _error(self._case, node, answer)
            self.errors.append((node, answer))
        else:
            self.diagnoses[node.name] = self._diagnosis(node, answer, seen)

    def look_at(self, node: NodeView, *, searched: bool = True) -> list[TrapInput]:
        """Each request on the node; empty if the slices cannot be read, an error that the allocator will report."""
        self.nodes.append(node)
        self._case.world.begin(self._case.claims)
        try:
            seen = trap_inputs(self._case, self._wishes, node, searched=searched)
        except DriverError:
            return []
        self.trap_inputs += seen
        return seen

    def took(self, answer: Allocation) -> None:
        """Record that the scheduler finds devices for the claims on a node."""
        refused = self._question.refused(_allocated_so(self._question, self._case.claims, answer), answer.node)
        if refused:
            self.diagnoses[answer.node] = Diagnosis("refused", f"the claims fit, but {refused[0].sentence}")
        else:
            self.could.append(answer)
            self.diagnoses[answer.node] = FITS

    def _diagnosis(self, node: NodeView, answer: Refusal, seen: Sequence[TrapInput]) -> Diagnosis:
        """The parts of the claims are tried on one of several nodes that are identical in every relevant respect."""
        look = _look(self._case, seen)
        if look not in self._by_look:
            self._by_look[look] = diagnosis(self._case, node, answer)
        return self._by_look[look]


def _look(case: Case, seen: Sequence[TrapInput]) -> object:
    """Everything about a node that a diagnosis can depend on, except its name and those of its pools."""
    pools = tuple(_pool_look(case, pool) for pool in (seen[0].pools if seen else ()))
    return pools, tuple(_device_look(case, sight, *pair) for sight in seen for pair in sight.pairs)


def _pool_look(case: Case, pool: Pool) -> object:
    if not pool.usable:
        return pool.key, pool.incomplete, pool.invalid
    if pool.counters:
        return pool.key[0], tuple(pool.counters.items()), frozenset(case.world.usage.in_pool(pool.key))
    return pool.key[0]


def _device_look(case: Case, sight: TrapInput, offer: PoolDevice, finding: DeviceFinding) -> object:
    attributes = [attribute(spec) for spec in sight.wish.constraints]
    values = tuple(value(offer, name) for name in (*attributes, ROW))
    shares = tuple(case.world.usage.consumed(offer.id).items()) if offer.shareable else ()
    return id(sight.wish.option), finding, values, offer.consumes, shares


@dataclass(frozen=True, slots=True)
class Question:
    """The claims and the cluster to explain.

    ``world.usage`` contains the devices of ``holders``, and is restored after temporary changes.
    """

    subject: str
    world: World
    nodes: Sequence[NodeView]
    claims: Sequence[ResourceClaim]
    """Claims of one pod, in its order. Those that are allocated already are not allocated again."""
    holders: Sequence[ResourceClaim] = ()
    """The allocated claims of the cluster."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Nodes on which the pod cannot run, whatever its claims are, with the reasons."""
    server: str = ""
    """Release of the API server that has the claims, such as 1.34; "" if there is none."""
    choose: Callable[[Sequence[Allocation]], Allocation] | None = None
    """Selects one of several allocations; None selects the first."""
    refused: Callable[[Sequence[ResourceClaim], str], tuple[Refused, ...]] = lambda _claims, _node: ()
    """Which of the pod's claims, all allocated, the driver of a node would refuse."""
    warnings: Callable[[Sequence[ResourceClaim], str], tuple[str, ...]] = lambda _claims, _node: ()
    """What the pod's containers say of their devices, and does not count on a node, if the claims are allocated so."""

    @property
    def names(self) -> tuple[str, ...]:
        """Those of the claims."""
        return tuple(claim.metadata.full_name for claim in self.claims)

    @property
    def waiting(self) -> list[ResourceClaim]:
        """The claims that are not allocated yet."""
        return [claim for claim in self.claims if claim.status.allocation is None]

    @property
    def had(self) -> tuple[Placed, ...]:
        """What the other claims have."""
        return tuple(_had(claim) for claim in self.claims if claim.status.allocation is not None)


def explain(question: Question, decision: Allocation | Refusal | None = None) -> Explanation:
    """Whether and where the claims fit, and what prevents them from fitting.

    The scheduler decides whether they fit; the allocator is run for each node, for each part of the claims that is
    reported not to fit, and for each remedy that is reported to help.

    Args:
        question: the claims and the cluster.
        decision: the scheduler's result, if it is known already; its allocations must not be in use.
    """
    waiting = question.waiting
    if question.claims and not waiting:
        return _allocated(question)
    prepared = question.world.prepare(waiting)
    if isinstance(prepared, Refusal):
        return _ended(question, f"fits on no node: {prepared.reason}", prepared)
    decision = decide(question) if decision is None else decision
    if decision == TIME_OVER:
        return _given_up(question)
    case = Case(waiting, prepared, question.world, Trials(question.world), question.server)
    try:
        survey = Survey(question, case, exclusions(question))
        for node in sorted(question.nodes, key=lambda node: node.name):
            survey.ask(node)
        return _explanation(question, case, survey, decision)
    except TimeOver:
        return _given_up(question)


def _given_up(question: Question) -> Explanation:
    return _ended(question, f"is not explained: {TIME_OVER.reason}", TIME_OVER)


def _ended(question: Question, verdict: str, refusal: Refusal) -> Explanation:
    """The explanation of an error that does not depend on nodes."""
    return Explanation(
        question.subject,
        f"{question.subject} {verdict}",
        fits=False,
        claims=question.names,
        placed=question.had,
        error=refusal.reason,
    )


def decide(question: Question) -> Allocation | Refusal:
    """The scheduler's result; nothing stays allocated."""
    excluded = exclusions(question)
    nodes = sorted(question.nodes, key=lambda node: node.name)
    scheduler = Scheduler(question.world, nodes)
    on = [node for node in nodes if node.name not in excluded] if excluded else None
    answer = scheduler.place(question.waiting, on, question.choose)
    if isinstance(answer, Allocation):
        for result in answer.results:
            scheduler.release(result.devices.results)
    return answer


def placed_on(question: Question, answer: Allocation) -> Explanation:
    """The explanation of an allocation that the scheduler has just made, without examining other nodes."""
    prepared = question.world.prepare(question.waiting)
    prepared_claims = () if isinstance(prepared, Refusal) else prepared
    case = Case(question.waiting, prepared_claims, question.world, Trials(question.world), question.server)
    survey = Survey(question, case, {})
    survey.took(answer)
    node = next(node for node in question.nodes if node.name == answer.node)
    with question.world.usage.without([item for result in answer.results for item in result.devices.results]):
        try:
            survey.look_at(node)
            return _explanation(question, case, survey, answer)
        except TimeOver:
            return _given_up(question)


def exclusions(question: Question) -> Mapping[str, str]:
    """Ineligible nodes with reasons, including those on which an allocated claim cannot be used."""
    excluded = dict(question.excluded)
    for claim in question.claims:
        selector = claim.status.allocation.node_selector if claim.status.allocation is not None else None
        for node in question.nodes if selector is not None else ():
            if not matches(node, None, None, selector):
                text = f"claim {claim.metadata.full_name} is already allocated, on other nodes"
                excluded.setdefault(node.name, text)
    return excluded


def _allocated_so(question: Question, waiting: Sequence[ResourceClaim], answer: Allocation) -> list[ResourceClaim]:
    """The claims of the question, with those that wait allocated as in the answer."""
    by_key = {
        claim.metadata.key: msgspec.structs.replace(claim, status=ResourceClaimStatus(result))
        for claim, result in zip(waiting, answer.results, strict=True)
    }
    return [by_key.get(claim.metadata.key, claim) for claim in question.claims]


def _had(claim: ResourceClaim) -> Placed:
    name = claim.metadata.full_name
    by_device = own_conditions(claim.status, claim.status.devices)
    alike: dict[str, list[str]] = {}
    for (_, device), conditions in by_device.items():
        alike.setdefault("; ".join(map(spelled, conditions)), []).append(device)
    return Placed(
        *claim.metadata.key,
        claim.status.results,
        tuple(f"claim {name} says of {named(devices)}: {text}" for text, devices in alike.items() if text),
        all(item.status == "True" for conditions in by_device.values() for item in conditions),
    )


def _allocated(question: Question) -> Explanation:
    """Explain claims that are all allocated: what remains is whether one node can use all of them."""
    excluded, had = exclusions(question), question.had
    could = sorted(node.name for node in question.nodes if node.name not in excluded)
    listing = "; ".join(
        f"claim {item.claim} has "
        + (shortened([f"{one.pool}/{one.device}" for one in item.devices]) or "no devices, because it requests none")
        for item in had
    )
    verdict = f"{question.subject} already has its devices: {listing}"
    refused = question.refused(question.claims, could[0]) if could else ()
    remedies: tuple[str, ...] = ()
    if not could:
        verdict += "; but it may not run on any node"
        there = [node.name for node in question.nodes if node.name not in exclusions(replace(question, excluded={}))]
        remedies = tuple(
            f"let the pod run on node {name}, where its claims have their devices ({excluded[name]}), or give it "
            "claims of its own, by a ResourceClaimTemplate"
            for name in there[:1]
        )
    elif refused:
        verdict += "; but the driver will refuse it"
    return Explanation(
        question.subject,
        verdict,
        fits=bool(could) and not refused and all(item.well for item in had),
        claims=question.names,
        node=could[0] if could else None,
        could=tuple(could),
        placed=had,
        nodes=_together({name: Diagnosis("pod", text) for name, text in excluded.items()}) if not could else (),
        remedies=remedies,
        refused=refused,
        warnings=question.warnings(question.claims, could[0]) if could else (),
    )


def _explanation(question: Question, case: Case, survey: Survey, decision: Allocation | Refusal) -> Explanation:
    chosen = decision if isinstance(decision, Allocation) else None
    error = decision.reason if isinstance(decision, Refusal) and decision.fatal else ""
    culprit = next((node for node, refusal in survey.errors if error and refusal.reason == error), None)
    placed, refused, warnings = question.had, tuple[Refused, ...](), tuple[str, ...]()
    if chosen is not None:
        allocated = _allocated_so(question, case.claims, chosen)
        refused, warnings = question.refused(allocated, chosen.node), question.warnings(allocated, chosen.node)
        placed += tuple(
            replace(_had(claim), devices=result.devices.results)
            for claim, result in zip(case.claims, chosen.results, strict=True)
        )
    miss = None if chosen is not None else _nearest(survey, culprit)
    case_traps = traps(case, survey.trap_inputs, chosen)
    offered = all(trap.name != NOT_OFFERED for trap in case_traps)
    return Explanation(
        question.subject,
        _verdict(question, survey, chosen, culprit, refused=bool(refused)),
        fits=chosen is not None and not refused,
        claims=question.names,
        node=chosen.node if chosen is not None else None,
        could=tuple(answer.node for answer in survey.could),
        placed=placed,
        error=error,
        nodes=_together(survey.diagnoses),
        nearest=_nearest_sentence(miss, survey) if miss is not None else "",
        remedies=remedies(case, survey.nodes, miss, question.holders, offered=offered) if chosen is None else (),
        traps=case_traps,
        refused=refused,
        warnings=warnings,
        holders=_holders(case, miss, question.holders) if miss is not None else (),
    )


def _holders(case: Case, miss: Miss, holders: Sequence[ResourceClaim]) -> tuple[Holder, ...]:
    """Who holds the devices on the node that have used up the counters of others."""
    blocking = {name for view in miss.diagnosis.requests for group in view.groups for name in group.blockers}
    pools = {pool.key for pool in case.world.pools.pools(miss.node)} if blocking else set()
    blockers = []
    for claim in holders:
        own = [
            item.device
            for item in claim.status.results
            if item.device in blocking and (item.driver, item.pool) in pools
        ]
        if own:
            blockers.append(Holder(claim.metadata.full_name, tuple(own)))
    return tuple(blockers)


def _together(diagnoses: Mapping[str, Diagnosis]) -> tuple[NodesAlike, ...]:
    groups: dict[Diagnosis, list[str]] = {}
    for name, item in diagnoses.items():
        groups.setdefault(item, []).append(name)
    return tuple(NodesAlike(tuple(names), item) for item, names in groups.items())


_OTHERS = {
    "only": "would fit as well",
    "name": "would fit as well",
    "score": "would fit, with a lower score",
    "alternative": "would fit, with a later alternative",
}


def _verdict(
    question: Question, survey: Survey, chosen: Allocation | None, culprit: NodeView | None, *, refused: bool
) -> str:
    total = len(question.nodes)
    if chosen is not None:
        others = [answer.node for answer in survey.could if answer.node != chosen.node]
        also = f"; {counted(len(others), 'other node')} {_OTHERS[chosen.choice]}" if others else ""
        but = ", but the driver will refuse it" if refused else ""
        return f"{question.subject} fits{but}: it gets its devices on node {chosen.node}{also}"
    if culprit is not None:
        return (
            f"{question.subject} fits nowhere: an error on node {culprit.name} ends its scheduling, so no other "
            "node is considered"
        )
    if not total:
        return f"{question.subject} fits nowhere: there is no node"
    which = "the only node" if total == 1 else f"any of {total} nodes"
    return f"{question.subject} does not fit on {which}"


def _nearest(survey: Survey, culprit: NodeView | None) -> Miss | None:
    """The node that lacks the fewest devices, among equal ones the first by name. After an error, its node."""
    if culprit is not None:
        return Miss(culprit, survey.diagnoses[culprit.name])
    misses = [Miss(node, survey.diagnoses[node.name]) for node in survey.nodes]
    able = [miss for miss in misses if miss.diagnosis.requests]
    return min(able, key=lambda miss: (miss.diagnosis.short is None, miss.diagnosis.short or 0), default=None)


def _nearest_sentence(miss: Miss, survey: Survey) -> str:
    if miss.diagnosis.step == "error":
        return ""
    same = [name for name, item in survey.diagnoses.items() if item == miss.diagnosis]
    where = f"node {same[0]}" if len(same) == 1 else f"nodes {listed(same) if len(same) < 4 else same[0]}"
    if len(same) > 3:  # more names than a sentence can hold
        where += f" and {len(same) - 1} like it"
    if miss.diagnosis.short is not None:
        where += f", {counted(miss.diagnosis.short, 'device')} short"
    return f"{where}: {miss.diagnosis.sentence}"

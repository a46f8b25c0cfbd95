"""Simulates kube-scheduler, pod after pod: which node, which devices, or why none.

Pods are taken in their order, each on the node with the highest score, or on the first by name where the scores are not
known; claims of one pod are allocated together. There is no preemption. Where the first node by name is used here, a
real scheduler may choose another fitting node, but not other devices on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from dra_driver.kube.objects.core import Node
from dra_driver.kube.objects.resource import AllocationResult, DeviceClass, ResourceClaim, ResourceClaimStatus
from dra_driver.simulator.allocator import Allocation, Choice, Deadline, NodeView, Refusal, Scheduler, World, unlimited
from dra_driver.simulator.allocator.candidates import Candidate
from dra_driver.simulator.allocator.capacity import used_up
from dra_driver.simulator.allocator.partial_allocation import PartialAllocation
from dra_driver.simulator.cluster import allocated_elsewhere, cluster_of, obstacle, rules_of
from dra_driver.simulator.manifests import Attempt, Manifests, PodWithClaims, attempts, offering, special_claim
from dra_driver.simulator.scoring import Scores
from dra_driver.util.errors import DriverError

_Fitting = tuple[list[NodeView], Counter[str]]

_SHOWN = 3
"""Maximum number of different reasons that a refusal lists."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one pod, or for a claim that no pod uses."""

    pod: PodWithClaims | None
    claims: tuple[ResourceClaim, ...]
    """With their resulting allocations."""
    node: str | None
    """Where the pod would run, or the claim can be used; None if it would stay pending."""
    reason: str
    """Why it stays pending; "" if it does not."""
    choice: Choice | None = None
    """Why this node was chosen; None if it stays pending."""

    @property
    def placed(self) -> bool:
        """Whether the pod would run."""
        return self.node is not None


@dataclass(frozen=True, slots=True)
class Simulation:
    """All outcomes in the order in which they were determined, and the resulting cluster."""

    outcomes: tuple[Outcome, ...]
    world: World
    nodes: tuple[NodeView, ...]


def simulate(
    manifests: Manifests,
    kubernetes: str,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    deadline: Deadline = unlimited,
) -> Simulation:
    """Place everything that is pending.

    Args:
        manifests: the cluster together with the objects that are applied to it.
        kubernetes: the release whose behaviour is simulated, 1.36 or 1.37.
        progress: called after each pod or claim with the number done and the total.
        deadline: begins the time for a pod on one node.

    Raises:
        ManifestError: a referenced object is missing. DriverError: CEL's parser is not installed.
    """
    world, nodes = cluster_of(manifests, kubernetes, deadline)
    waiting = attempts(manifests)
    placer = _Placer(world, manifests, nodes)
    outcomes = []
    for done, attempt in enumerate(waiting, 1):
        outcomes.append(placer.outcome(attempt))
        progress(done, len(waiting))
    return Simulation(tuple(outcomes), world, nodes)


def free_devices(simulation: Simulation, node: NodeView) -> dict[tuple[str, str], list[str]]:
    """The free devices, by driver and pool, in the order in which they are tried.

    Devices whose counters are exhausted by others are not free, nor are shared ones of which a capacity is used up.
    """
    world = simulation.world
    around = world.around(node)
    progress = PartialAllocation((), around)
    return {
        pool.key: [
            offer.device.name
            for offer in pool.offers
            if not world.usage.exclusive(offer.id)
            and progress.fits(Candidate(offer, pool), (), "")
            and not (offer.shareable and used_up(offer.device, world.usage.consumed(offer.id)))
        ]
        for pool in around.pools
    }


class Places:
    """The topology domains of LeaderWorkerSet groups, as far as they were placed here.

    LeaderWorkerSet gives a leader pod (anti-)affinity, and its workers a node selector once the leader has a node.
    """

    def __init__(self) -> None:
        self._group_at: dict[tuple[str, str, str], str] = {}
        """Groups by namespace, label and label value."""
        self._place_of: dict[tuple[str, str], str] = {}
        """Domains by namespace and leader."""

    def obstacle(self, pod: PodWithClaims, node: Node) -> str:
        """Why the pod's group may not use the node; "" if it may."""
        group = pod.group
        if group is None:
            return ""
        place = node.metadata.labels.get(group.topology)
        if place is None:
            return f"the label {group.topology}, on which the group's exclusive placement depends, is not set"
        own = self._place_of.get((pod.namespace, group.leader))
        if own is None and pod.name != group.leader:
            return f"LeaderWorkerSet makes the pod when its leader {group.leader} has a node"
        if own is not None and place != own:
            return f"its group is on {group.topology}={own}"
        other = self._group_at.get((pod.namespace, group.topology, place), group.leader)
        return "" if other == group.leader else f"the group of {other} has {group.topology}={place} for itself"

    def take(self, pod: PodWithClaims | None, node: NodeView) -> None:
        """Record the domain of a group."""
        if pod is None or pod.group is None:
            return
        place = node.labels[pod.group.topology]
        self._place_of[pod.namespace, pod.group.leader] = place
        self._group_at[pod.namespace, pod.group.topology, place] = pod.group.leader


class ExtendedResources:
    """Where requested extended resources come from: a node's device plugin, or devices of a class."""

    def __init__(self, classes: Iterable[DeviceClass], scores: Scores) -> None:
        self._classes = offering(classes)
        self._scores = scores

    def obstacle(self, attempt: Attempt, node: str) -> str:
        """The resources that the node lacks without devices of a class; "" if there are none."""
        for name, count in attempt.extended.items():
            offered, left = self._scores.offered(node, name), self._scores.left(node, name)
            if not offered and name not in self._classes:
                return (
                    f"neither a DeviceClass nor a device plugin of the node offers {name}; the driver's classes do if "
                    "extended resources are enabled (here --extended-resources), and dra-driver migrate converts such "
                    "limits to claims, or with --extended-resources prints a DeviceClass that offers it"
                )
            if offered and left < count:
                return f"the pod asks for {count} {name}, and the node's device plugin has {max(left, 0)} left"
        return ""

    def claims(self, attempt: Attempt, nodes: Iterable[NodeView]) -> list[tuple[ResourceClaim | None, list[NodeView]]]:
        """The claims that kube-scheduler would create for the pod, each with the nodes on which it would do so."""
        if not attempt.extended:
            return [(None, list(nodes))]
        groups: dict[tuple[str, ...], list[NodeView]] = {}
        for node in nodes:
            wanted = tuple(name for name in attempt.extended if not self._scores.offered(node.name, name))
            groups.setdefault(wanted, []).append(node)
        pod = attempt.pod
        return [
            (special_claim(pod, wanted, self._classes) if pod is not None and wanted else None, on)
            for wanted, on in groups.items()
        ]


class SoFar:
    """The pods that are on nodes and the claims that are allocated, while more and more of them are."""

    def __init__(self, manifests: Manifests, views: Sequence[NodeView]) -> None:
        on_nodes = (pod for pod in manifests.pods if pod.spec.node_name)
        self.scores = Scores(manifests.nodes, (*manifests.running, *on_nodes))
        self.extended = ExtendedResources(manifests.classes, self.scores)
        self.places = Places()
        self.views = {view.name: view for view in views}
        self._allocated: dict[tuple[str, str], AllocationResult] = {}

    def claim(self, claim: ResourceClaim) -> ResourceClaim:
        """The claim as it is now."""
        allocation = self._allocated.get(claim.metadata.key)
        if allocation is None:
            return claim
        return msgspec.structs.replace(claim, status=ResourceClaimStatus(allocation))

    def allocate(self, claims: Sequence[ResourceClaim], answer: Allocation) -> None:
        """The claims, of which none was allocated, are from now on."""
        for claim, result in zip(claims, answer.results, strict=True):
            self._allocated[claim.metadata.key] = result

    def take(self, pod: PodWithClaims | None, node: str) -> None:
        """The pod is on the node from now on."""
        self.places.take(pod, self.views[node])
        if pod is not None and not pod.spec.node_name:
            self.scores.take(pod, node)


class _Placer:
    def __init__(self, world: World, manifests: Manifests, views: Sequence[NodeView]) -> None:
        self._scheduler = Scheduler(world, views)
        self._nodes = sorted(manifests.nodes, key=lambda node: node.metadata.name)
        self._so_far = SoFar(manifests, views)
        self._fitting_by_rules: dict[bytes, _Fitting] = {}

    def outcome(self, attempt: Attempt) -> Outcome:
        claims = [self._so_far.claim(claim) for claim in attempt.claims]
        if leaving := next((claim for claim in claims if claim.metadata.deletion_timestamp is not None), None):
            why = f"claim {leaving.metadata.name} is being deleted, so nothing is allocated for it"
            return Outcome(attempt.pod, tuple(claims), None, why)
        try:
            fitting, why_not = self._fitting(attempt, claims)
        except DriverError as error:
            return Outcome(attempt.pod, tuple(claims), None, str(error))
        pending = [claim for claim in claims if claim.status.allocation is None]
        if attempt.pod is not None and attempt.pod.spec.node_name and pending:
            return Outcome(attempt.pod, tuple(claims), None, _bound(attempt.pod))
        if not fitting:
            return Outcome(attempt.pod, tuple(claims), None, f"no node is eligible: {_summary(why_not)}")
        kinds = self._so_far.extended.claims(attempt, fitting)
        for special, nodes in kinds:
            all_claims = (*claims, *((special,) if special is not None else ()))
            # None means all nodes: the scheduler then remembers which ones have refused equal claims.
            on = None if len(nodes) == len(self._nodes) else nodes
            choose = partial(self._so_far.scores.choose, attempt.pod, all_claims)
            answer = self._scheduler.place(
                [claim for claim in all_claims if claim.status.allocation is None], on, choose
            )
            if isinstance(answer, Allocation) or answer.fatal:
                break
        if isinstance(answer, Refusal):
            return Outcome(attempt.pod, all_claims, None, _refused(answer, len(fitting), why_not))
        return self._taken(attempt, all_claims, answer if len(kinds) == 1 else replace(answer, choice="name"))

    def _taken(self, attempt: Attempt, claims: Sequence[ResourceClaim], answer: Allocation) -> Outcome:
        self._so_far.allocate([claim for claim in claims if claim.status.allocation is None], answer)
        self._so_far.take(attempt.pod, answer.node)
        return Outcome(attempt.pod, tuple(map(self._so_far.claim, claims)), answer.node, "", answer.choice)

    def _fitting(self, attempt: Attempt, claims: Sequence[ResourceClaim]) -> _Fitting:
        """The eligible nodes, and for the others the number of nodes by reason."""
        pod = attempt.pod
        changing = attempt.extended or (pod is not None and pod.group is not None)
        if changing or any(claim.status.allocation is not None for claim in claims):
            return self._fitting_now(attempt, claims)
        key = rules_of(pod) if pod is not None else b""
        if key not in self._fitting_by_rules:
            self._fitting_by_rules[key] = self._fitting_now(attempt, ())
        return self._fitting_by_rules[key]

    def _fitting_now(self, attempt: Attempt, claims: Sequence[ResourceClaim]) -> _Fitting:
        pod = attempt.pod
        fitting, why_not = [], Counter[str]()
        for node in self._nodes:
            why = (obstacle(pod, node) or self._so_far.places.obstacle(pod, node)) if pod is not None else ""
            if not why and (name := allocated_elsewhere(claims, node)):
                why = f"claim {name} is allocated for another node"
            why = why or self._so_far.extended.obstacle(attempt, node.metadata.name)
            if why:
                why_not[why] += 1
            else:
                fitting.append(self._so_far.views[node.metadata.name])
        return fitting, why_not


def _bound(pod: PodWithClaims) -> str:
    return (
        f"the pod sets nodeName {pod.spec.node_name}, which bypasses the scheduler, so nothing is allocated for it; "
        f"use nodeSelector kubernetes.io/hostname: {pod.spec.node_name} instead"
    )


def _summary(why_not: Counter[str]) -> str:
    parts = [f"{count} of {why_not.total()}: {why}" for why, count in why_not.most_common(_SHOWN)]
    more = len(why_not) - _SHOWN
    return "; ".join([*parts, *([f"and {more} more reasons"] if more > 0 else [])])


def _refused(refusal: Refusal, count: int, why_not: Counter[str]) -> str:
    if refusal.fatal:
        return refusal.reason
    nodes = f"{count} node{'s' if count != 1 else ''}"
    rest = f"; the other nodes are not eligible: {_summary(why_not)}" if why_not else ""
    return f"{refusal.reason} on {nodes}{rest}"

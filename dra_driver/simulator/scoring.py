"""Which of the fitting nodes a pod gets: the scores of kube-scheduler's default profile.

The scores can be computed if each node declares its CPU and memory, and the pod uses nothing that is not scored here.
Scored are the alternatives of ``firstAvailable`` (weight 2), requests (NodeResourcesFit LeastAllocated and
NodeResourcesBalancedAllocation, 1 each), spreading (PodTopologySpread, 2), preferred node affinity (2) and taints with
PreferNoSchedule (3). For InterPodAffinity (2) and ImageLocality (1) it is only determined whether they could matter.

Source: ``pkg/scheduler/framework/plugins`` of Kubernetes 1.37; 1.36 does the same.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dra_driver.kube.matching import OPERATORS, tolerates
from dra_driver.kube.node_affinity import selects
from dra_driver.kube.objects import limits
from dra_driver.kube.objects.core import LabelSelector, Node, NodeSelector, TopologySpreadConstraint
from dra_driver.kube.objects.resource import AllocationResult, ResourceClaim
from dra_driver.kube.quantity import UNIT, nanos
from dra_driver.simulator.allocator import Allocation
from dra_driver.simulator.manifests import PodWithClaims
from dra_driver.simulator.manifests.model import SCORED, of_pod

MAX_SCORE: Final = 100
"""The maximum score of a node, before weighting."""
_UNSAID: Final[Mapping[str, int]] = {"cpu": UNIT // 10, "memory": (200 << 20) * UNIT}
"""What LeastAllocated assumes for a container without requests."""
_HOSTNAME: Final = "kubernetes.io/hostname"
_UNASKED: Final = (
    TopologySpreadConstraint(3, _HOSTNAME, "ScheduleAnyway"),
    TopologySpreadConstraint(5, "topology.kubernetes.io/zone", "ScheduleAnyway"),
)
"""Default spreading constraints for the pods of one ReplicaSet or StatefulSet."""


@dataclass(slots=True)
class _Load:
    """The requests of the pods of a node."""

    requested: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    """Including the defaults for containers without requests."""
    pods: list[PodWithClaims] = field(default_factory=list)


class Scores:
    """The nodes and the pods on them; pods added with ``take`` are considered from then on."""

    def __init__(self, nodes: Iterable[Node], running: Iterable[PodWithClaims]) -> None:
        self._nodes = {node.metadata.name: node for node in nodes}
        self._allocatable = {
            name: {key: nanos(amount) for key, amount in node.status.allocatable.items()}
            for name, node in self._nodes.items()
        }
        self._images = {
            name: {text for image in node.status.images for text in image.names} for name, node in self._nodes.items()
        }
        self._loads: defaultdict[str, _Load] = defaultdict(_Load)
        self._together: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Number of pods of one ReplicaSet or StatefulSet by node."""
        self._picky: list[PodWithClaims] = []
        """Pods on nodes that have a pod affinity."""
        for pod in running:
            self.take(pod, pod.spec.node_name)

    def take(self, pod: PodWithClaims, node: str) -> None:
        """Add a pod to a node."""
        load = self._loads[node]
        load.requested.update(of_pod(pod.spec))
        load.counted.update(of_pod(pod.spec, _UNSAID))
        load.pods.append(pod)
        if pod.spread_with:
            self._together[pod.spread_with][node] += 1
        if pod.spec.affinity.pod_terms:
            self._picky.append(pod)

    def offered(self, node: str, resource: str) -> int:
        """How much of a resource the node has; of an extended resource, how much its device plugin offers."""
        return self._allocatable[node].get(resource, 0) // UNIT

    def left(self, node: str, resource: str) -> int:
        """How much of it is not requested by any pod."""
        return self.offered(node, resource) - self._loads[node].requested[resource] // UNIT

    def choose(
        self, pod: PodWithClaims | None, claims: Sequence[ResourceClaim], allocations: Sequence[Allocation]
    ) -> Allocation:
        """The allocation whose node has the highest score, and how it was chosen; of equal ones the first.

        Args:
            pod: None for a claim that no pod uses; it is scored like one of a pod without other requests.
            claims: of the pod, including allocated ones.
            allocations: those of the claims that are not allocated yet, on all fitting nodes, by name.
        """
        pod = pod or PodWithClaims("", "", ())
        names = [item.node for item in allocations]
        ranked = [claim for claim in claims if any(item.first_available for item in claim.spec.devices.requests)]
        alternatives = [
            2 * score for score in _of_most([_alternative_score(claims, item) if ranked else 0 for item in allocations])
        ]
        totals, complete = alternatives, self._is_complete(pod, names)
        if complete:
            rest = zip(*(self._weighted(pod, names)), strict=True)
            totals = [first + sum(others) for first, others in zip(alternatives, rest, strict=True)]
        best = max(totals)
        if totals.count(best) > 1:
            return replace(allocations[totals.index(best)], choice="name")
        return replace(allocations[totals.index(best)], choice="score" if complete else "alternative")

    def _is_complete(self, pod: PodWithClaims, names: Sequence[str]) -> bool:
        """Whether everything else that kube-scheduler scores is known."""
        spec = pod.spec
        constraints = spec.topology_spread_constraints
        images = {item.image for item in (*spec.containers, *spec.init_containers) if item.image}
        return (
            all(self._allocatable[name].get(resource) for name in names for resource in SCORED)
            and spec.scheduler_name in ("", "default-scheduler")
            and spec.scheduling_group is None
            and all(
                item.when_unsatisfiable == "ScheduleAnyway"
                and (item.node_affinity_policy, item.node_taints_policy) == ("Honor", "Ignore")
                and not item.match_label_keys
                for item in constraints
            )
            and spec.affinity.pod_affinity is None
            and spec.affinity.pod_anti_affinity is None
            and not any(_is_meant(pod, other) for other in self._picky)
            and len({frozenset(_normal(images) & self._images[name]) for name in names}) == 1
        )

    def _weighted(self, pod: PodWithClaims, names: Sequence[str]) -> list[list[int]]:
        """The weighted scores of every plugin except that of the claims, by node."""
        parts = (
            (1, self._least_allocated(pod, names)),
            (1, self._balanced(pod, names)),
            (2, self._spread(pod, names)),
            (2, _of_most([self._preferred(pod, self._nodes[name]) for name in names])),
            (3, [MAX_SCORE - score for score in _of_most([_disliked(pod, self._nodes[name]) for name in names])]),
        )
        return [[weight * score for score in scores] for weight, scores in parts]

    def _least_allocated(self, pod: PodWithClaims, names: Sequence[str]) -> list[int]:
        wanted = of_pod(pod.spec, _UNSAID)
        scores = []
        for name in names:
            free = [
                max(has - wants, 0) * MAX_SCORE // has
                for wants, has in self._of(name, wanted, self._loads[name].counted)
            ]
            scores.append(sum(free) // len(free))
        return scores

    def _balanced(self, pod: PodWithClaims, names: Sequence[str]) -> list[int]:
        wanted = of_pod(pod.spec)
        if not any(wanted.get(resource) for resource in SCORED):
            return [0] * len(names)
        scores = []
        for name in names:
            requested = self._loads[name].requested
            after = _balance(self._of(name, wanted, requested))
            before = _balance(self._of(name, {}, requested))
            scores.append(MAX_SCORE // 2 + (MAX_SCORE // 2 + after - before) // 2)
        return scores

    def _of(self, name: str, wanted: Mapping[str, int], load: Mapping[str, int]) -> list[tuple[int, int]]:
        """The resulting request of each scored resource and the node's capacity, in the scheduler's units."""
        has = self._allocatable[name]
        return [
            (_rounded(resource, wanted.get(resource, 0)) + _rounded(resource, load.get(resource, 0)),
             _rounded(resource, has[resource]))
            for resource in SCORED
        ]  # fmt: skip

    def _preferred(self, pod: PodWithClaims, node: Node) -> int:
        affinity = pod.spec.affinity.node_affinity
        terms = affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else ()
        meta = node.metadata
        return sum(item.weight for item in terms if selects(NodeSelector((item.preference,)), meta.name, meta.labels))

    def _spread(self, pod: PodWithClaims, names: Sequence[str]) -> list[int]:
        """Fewer similar pods are better, counted per node or per zone, row and so on."""
        own = pod.spec.topology_spread_constraints
        constraints = own or (_UNASKED if pod.spread_with else ())
        if not constraints:
            return [0] * len(names)
        keys = [item.topology_key for item in own]
        able = [name for name in names if all(key in self._nodes[name].metadata.labels for key in keys)]
        counts = dict.fromkeys(able, 0.0)
        for item in constraints:
            of_node = self._like_it(pod, item) if own else self._together[pod.spread_with]
            for name, score in self._constraint(pod, item, able, of_node, keys).items():
                counts[name] += score
        rounded = {name: math.floor(score + 0.5) for name, score in counts.items()}
        most, least = max(rounded.values(), default=0), min(rounded.values(), default=0)
        return [
            0 if name not in rounded else MAX_SCORE * (most + least - rounded[name]) // most if most else MAX_SCORE
            for name in names
        ]

    def _constraint(
        self,
        pod: PodWithClaims,
        item: TopologySpreadConstraint,
        able: Sequence[str],
        of_node: Counter[str],
        keys: list[str],
    ) -> dict[str, float]:
        """The number of pods in each node's topology domain, weighted higher if there are many domains."""
        key = item.topology_key
        places = {name: self._nodes[name].metadata.labels.get(key, "") for name in able}
        if key == _HOSTNAME:
            weight, counts = math.log(len(able) + 2), {name: of_node[name] for name in able}
        else:
            weight, in_place = math.log(len(set(places.values())) + 2), Counter[str]()
            for name, count in of_node.items():
                node = self._nodes.get(name)
                if node is not None and self._counts(pod, node, keys):
                    in_place[node.metadata.labels.get(key, "")] += count
            counts = {name: in_place[place] for name, place in places.items()}
        has_key = [name for name in able if key in self._nodes[name].metadata.labels]
        return {name: counts[name] * weight + item.max_skew - 1 for name in has_key}

    def _counts(self, pod: PodWithClaims, node: Node, keys: list[str]) -> bool:
        """Whether the node's pods are counted: it has the labels, and the pod might be scheduled there."""
        labels, affinity = node.metadata.labels, pod.spec.affinity.required_nodes
        return (
            all(key in labels for key in keys)
            and all(labels.get(key) == value for key, value in pod.spec.node_selector.items())
            and (affinity is None or selects(affinity, node.metadata.name, labels))
        )

    def _like_it(self, pod: PodWithClaims, item: TopologySpreadConstraint) -> Counter[str]:
        """Number of pods that the constraint counts, by node."""
        selector = item.label_selector
        return Counter(
            {
                name: sum(
                    other.namespace == pod.namespace and selector is not None and _selects(selector, other.labels)
                    for other in load.pods
                )
                for name, load in self._loads.items()
            }
        )


def _alternative_score(claims: Sequence[ResourceClaim], allocation: Allocation) -> int:
    """Higher for earlier subrequests, by 1 each; existing allocations count too."""
    results = iter(allocation.results)
    return sum(_of_claim(claim, claim.status.allocation or next(results)) for claim in claims)


def _of_claim(claim: ResourceClaim, result: AllocationResult) -> int:
    taken = {device.request for device in result.devices.results}
    return sum(
        limits.MAX_SUBREQUESTS - place
        for request in claim.spec.devices.requests
        for place, option in enumerate(request.first_available)
        if f"{request.name}/{option.name}" in taken
    )


def _of_most(scores: Sequence[int]) -> list[int]:
    """Scores normalised so that the highest is 100."""
    most = max(scores)
    return [MAX_SCORE * score // most if most else 0 for score in scores]


def _disliked(pod: PodWithClaims, node: Node) -> int:
    """Number of PreferNoSchedule taints that the pod does not tolerate."""
    taints = [taint for taint in node.spec.taints if taint.effect == "PreferNoSchedule"]
    return sum(not any(tolerates(toleration, taint) for toleration in pod.spec.tolerations) for taint in taints)


def _rounded(resource: str, amount: int) -> int:
    """CPU in millicores, memory in bytes."""
    return -(-amount // (UNIT // 1000 if resource == "cpu" else UNIT))


def _balance(pairs: Iterable[tuple[int, int]]) -> int:
    """Higher, the more similar the utilisations of CPU and memory are."""
    one, other = (1 if wants >= has else wants / has for wants, has in pairs)
    return int((1 - abs(one - other) / 2) * MAX_SCORE)


def _normal(images: Iterable[str]) -> set[str]:
    return {image if image.rfind(":") > image.rfind("/") else f"{image}:latest" for image in images}


def _is_meant(pod: PodWithClaims, other: PodWithClaims) -> bool:
    """Whether a pod affinity of the other pod may apply to the pod."""
    return any(
        (term.namespace_selector is not None or pod.namespace in (term.namespaces or (other.namespace,)))
        and term.label_selector is not None
        and _selects(term.label_selector, pod.labels)
        for term in other.spec.affinity.pod_terms
    )


_LABEL_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


def _selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether the labels match; a selector with an unknown operator matches nothing."""
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        item.operator in _LABEL_OPERATORS and OPERATORS[item.operator](labels.get(item.key), item.values)
        for item in selector.match_expressions
    )

"""Explanations for everything in the files: pod after pod, each considering what the pods before it have taken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import msgspec
from msgspec import structs

from dra_driver.driver.settings import PARTITIONS_LABEL
from dra_driver.kube.node_affinity import CORDON, removable
from dra_driver.kube.objects.core import Node, Taint
from dra_driver.kube.objects.resource import ResourceClaim
from dra_driver.neuron.names import NODES_OF
from dra_driver.neuron.topology.instance_types import HYPERPOD_PREFIX, INSTANCE_TYPE_LABEL
from dra_driver.simulator.allocator import Allocation, Deadline, NodeView, Refusal, Scheduler, World, unlimited
from dra_driver.simulator.binding import waits
from dra_driver.simulator.cluster import cluster_of, missing_labels, obstacle, rules_of
from dra_driver.simulator.emulated_nodes import ec2_nodes
from dra_driver.simulator.explain.explanation import Question, decide, exclusions, explain, placed_on
from dra_driver.simulator.explain.traps import NOT_OFFERED
from dra_driver.simulator.explain.values import Explanation, Refused
from dra_driver.simulator.manifests import (
    Attempt,
    ManifestError,
    Manifests,
    MissingObjectError,
    PodWithClaims,
    attempts,
)
from dra_driver.simulator.own_variables import own_variables
from dra_driver.simulator.placement import Outcome, SoFar
from dra_driver.simulator.preparation import (
    NodeDrivers,
    Prepared,
    StoredObjects,
    containers,
    prepared_on_nodes,
    unused,
)
from dra_driver.util.errors import DriverError
from dra_driver.util.text import shorten
from dra_driver.util.wording import counted, listed, natural


@dataclass(frozen=True, slots=True)
class Target:
    """The pod or claim to explain."""

    kind: str
    """``pod`` or ``claim``."""
    namespace: str
    name: str

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name


def explanations(
    manifests: Manifests,
    kubernetes: str,
    *,
    target: Target | None = None,
    server: str = "",
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    deadline: Deadline = unlimited,
) -> Iterator[Explanation]:
    """One explanation for each pod, and each claim that no pod uses, in the order in which they are placed.

    Allocated claims are omitted unless there is nothing else.

    Args:
        manifests: everything that was read.
        kubernetes: the release whose behaviour is simulated.
        target: explain only this one, on the cluster as it is: other pending pods take nothing; None for all.
        server: release of the live cluster, "" if there is none.
        progress: called after each pod or claim with the number done and the total.
        deadline: begins the time for a pod on one node; a pod for which it is too short is not explained.

    Raises:
        ManifestError: something is missing; DriverError for input that Kubernetes could not read either.
    """
    world, nodes = cluster_of(manifests, kubernetes, deadline)
    try:
        queue = attempts(manifests if target is None else _reduced(manifests, target))
    except MissingObjectError as error:
        if target is None:
            raise
        subject = f"pod {target.namespace}/{target.name}"
        yield Explanation(subject, error.what, fits=False, remedies=(error.remedy,))
        return
    queue = tuple(item for item in queue if _waits(item)) or queue
    batch = _Batch(manifests, world, nodes, kubernetes, server, deadline)
    for done, attempt in enumerate(queue, 1):
        yield batch.next(attempt, alone=len(queue) == 1)
        progress(done, len(queue))


def _waits(attempt: Attempt) -> bool:
    return bool(attempt.extended) or any(claim.status.allocation is None for claim in attempt.claims)


def _reduced(manifests: Manifests, target: Target) -> Manifests:
    """Only the target's pod and claims, so that errors in others do not matter."""
    pods = tuple(pod for pod in manifests.pods if ("pod", pod.namespace, pod.name) == (target.kind, *target.key))
    wanted = {target.key} if target.kind == "claim" else set()
    wanted |= {(pod.namespace, reference.claim) for pod in pods for reference in pod.claims}
    claims = tuple(item for item in manifests.claims if item.metadata.key in wanted)
    if not pods and not (target.kind == "claim" and claims):
        raise _absent(manifests, target)
    return replace(manifests, pods=pods, claims=claims, standby=frozenset())


def _absent(manifests: Manifests, target: Target) -> ManifestError:
    if target.kind == "pod" and target.key in manifests.beside:
        text = manifests.beside[target.key]
        subject = f"pod {target.namespace}/{target.name}"
        return ManifestError(f"{subject} waits for no devices: it is a {text[:1].lower()}{text[1:]}")
    names = (
        [f"{pod.namespace}/{pod.name}" for pod in manifests.pods]
        if target.kind == "pod"
        else [item.metadata.full_name for item in manifests.claims]
    )
    of_claims = " with resource claims" if target.kind == "pod" else ""
    there = f"those that exist: {', '.join(sorted(names)[:_SHOWN])}" if names else "there is none"
    return ManifestError(f"{target.kind}{of_claims} {target.namespace}/{target.name} does not exist; {there}")


_SHOWN = 8
_OTHER_KIND = "other extended resources than here are devices of a class there, so kube-scheduler makes another claim"


class _Batch:
    """What has been placed so far is in use, and known by the name of its claim."""

    def __init__(
        self,
        manifests: Manifests,
        world: World,
        nodes: Sequence[NodeView],
        kubernetes: str,
        server: str,
        deadline: Deadline,
    ) -> None:
        self._manifests = manifests
        self._world = world
        self._nodes = nodes
        self._kubernetes = kubernetes
        self._server = server
        self._deadline = deadline
        self._scheduler = Scheduler(world, nodes)
        self._so_far = SoFar(manifests, nodes)
        self._drivers = NodeDrivers(manifests)
        self._holders = [item for item in manifests.claims if item.status.allocation is not None]
        self._refused: dict[object, Explanation] = {}
        self._excluded: dict[object, dict[str, str]] = {}

    def next(self, attempt: Attempt, *, alone: bool) -> Explanation:
        """Explain an attempt, and take the devices that it gets."""
        *others, last = self._questions(attempt)
        for question in others:
            explanation = self._explained(attempt, question, alone=alone)
            if explanation.node is not None:
                return explanation
        return self._explained(attempt, last, alone=alone)

    def _explained(self, attempt: Attempt, question: Question, *, alone: bool) -> Explanation:
        waiting = question.waiting
        if alone or not waiting:
            explanation = explain(question)
            if explanation.node is not None:
                self._so_far.take(attempt.pod, explanation.node)
            return self._with_ways(attempt.pod, question, explanation)
        excluded = exclusions(question)
        on = [node for node in self._nodes if node.name not in excluded] if excluded else None
        answer = self._scheduler.place(waiting, on, question.choose)
        if isinstance(answer, Allocation):
            explanation = placed_on(question, answer)
            self._so_far.allocate(waiting, answer)
            self._so_far.take(attempt.pod, answer.node)
            self._holders += map(self._so_far.claim, waiting)
            self._refused.clear()
            return explanation
        key = (msgspec.json.encode([claim.spec for claim in waiting]), tuple(sorted(excluded.items())))
        if key in self._refused:
            return replace(self._refused[key], subject=question.subject, like=self._refused[key].subject)
        explanation = self._refused[key] = self._with_ways(attempt.pod, question, explain(question, answer))
        return explanation

    def _with_ways(self, pod: PodWithClaims | None, question: Question, explanation: Explanation) -> Explanation:
        """With what would help beside changes of the claims, where these fit on no node."""
        if explanation.node is not None:
            return explanation
        return self._with_types(question, self._opened(pod, question, self._with_labels(pod, question, explanation)))

    def _opened(self, pod: PodWithClaims | None, question: Question, explanation: Explanation) -> Explanation:
        """With the node that would fit without a cordon and the taints that people have put there."""
        if pod is None or not question.waiting:
            return explanation
        excluded, closed = dict(question.excluded), dict[str, list[Taint]]()
        for node in self._manifests.nodes:
            name, spec = node.metadata.name, node.spec
            if excluded.get(name) == self._obstacle(pod, node):
                closed[name], kept = removable(node, pod.spec.tolerations)
                open_ = structs.replace(node, spec=structs.replace(spec, unschedulable=False, taints=tuple(kept)))
                excluded[name] = self._obstacle(pod, open_)
        excluded = {name: text for name, text in excluded.items() if text}
        answer = decide(replace(question, excluded=excluded)) if len(excluded) < len(question.excluded) else None
        if not isinstance(answer, Allocation):
            return explanation
        name, removed = answer.node, closed.get(answer.node, [])
        taints = [f"{taint.key}:{taint.effect}-" for taint in removed if taint != CORDON]
        ways = [f"kubectl uncordon {name}"] if CORDON in removed else []
        ways += [f"kubectl taint node {name} {' '.join(taints)}"] if taints else []
        or_else = ", or have the pod tolerate its taints" if taints else ""
        way = f"open node {name} to the pod, unless it is kept from it for a reason: {listed(ways)}{or_else}"
        return replace(explanation, remedies=(way, *explanation.remedies))

    def _with_labels(self, pod: PodWithClaims | None, question: Question, explanation: Explanation) -> Explanation:
        """With the labels that would make the pod fit, where no node has them."""
        labels = missing_labels(pod, self._manifests.nodes) if pod is not None and explanation.node is None else {}
        if pod is None or not labels:
            return explanation
        excluded = dict(question.excluded)
        for node in self._manifests.nodes:
            name, meta = node.metadata.name, node.metadata
            if excluded.get(name) == self._obstacle(pod, node):
                labelled = structs.replace(node, metadata=structs.replace(meta, labels={**meta.labels, **labels}))
                excluded[name] = self._obstacle(pod, labelled)
        excluded = {name: text for name, text in excluded.items() if text}
        if not isinstance(decide(replace(question, excluded=excluded)), Allocation):
            return explanation
        emulated = any(node.metadata.name in self._manifests.inventories for node in self._manifests.nodes)
        there = {key for node in self._manifests.nodes for key in node.metadata.labels}
        meant = [f"write the label {near} in place of {key}" for key in labels for near in _nearly(key, there)]
        otherwise = [] if meant else [_labelling(labels, emulated=emulated)]
        return replace(explanation, remedies=(*meant, *explanation.remedies, *otherwise))

    def _with_types(self, question: Question, explanation: Explanation) -> Explanation:
        """With the EC2 types that have the devices that the claims ask for, if nothing else would help."""
        if explanation.node is not None or explanation.error or not explanation.nearest:
            return explanation
        if explanation.remedies or any(trap.name == NOT_OFFERED for trap in explanation.traps):
            return explanation
        world, nodes = self._ec2
        prepared = world.prepare(question.waiting)
        if isinstance(prepared, Refusal):
            return explanation
        able = [node.labels[INSTANCE_TYPE_LABEL] for node in nodes if isinstance(world.ask(prepared, node), Allocation)]
        there = [node for node in self._manifests.nodes if _type(node) in able]
        if there:
            ways = filter(None, map(_partitions, there))
            return replace(explanation, remedies=tuple(dict.fromkeys(ways)))
        return replace(explanation, remedies=(f"use a node of type {listed(able, 'or')}",)) if able else explanation

    @cached_property
    def _ec2(self) -> tuple[World, tuple[NodeView, ...]]:
        """An empty node of each type."""
        return cluster_of(replace(ec2_nodes(), classes=self._manifests.classes), self._kubernetes, self._deadline)

    def _questions(self, attempt: Attempt) -> list[Question]:
        """Usually one; several if nodes differ in which extended resources they offer without devices of a class."""
        question = self._question(attempt)
        if not attempt.extended:
            return [question]
        pod = attempt.pod
        lacking = {node.name: self._so_far.extended.obstacle(attempt, node.name) for node in self._nodes}
        excluded = {**{name: text for name, text in lacking.items() if text}, **question.excluded}
        free = [node for node in self._nodes if node.name not in excluded]
        questions = []
        for special, on in self._so_far.extended.claims(attempt, free):
            claims = (*question.claims, *((special,) if special is not None else ()))
            here = {node.name for node in on}
            others = {node.name: _OTHER_KIND for node in free if node.name not in here}
            choose = partial(self._so_far.scores.choose, pod, claims)
            questions.append(replace(question, claims=claims, excluded={**others, **excluded}, choose=choose))
        return questions or [replace(question, excluded=excluded)]

    def _question(self, attempt: Attempt) -> Question:
        claims = tuple(map(self._so_far.claim, attempt.claims))
        pod = attempt.pod
        subject = f"pod {pod.namespace}/{pod.name}" if pod is not None else f"claim {claims[0].metadata.full_name}"
        excluded = self._obstacles(pod) if pod is not None else {}
        nowhere = _nowhere(pod, claims)
        if nowhere:
            excluded = {node.name: nowhere for node in self._nodes}
        return Question(
            subject,
            self._world,
            self._nodes,
            claims,
            self._others(pod),
            excluded,
            self._server,
            choose=partial(self._so_far.scores.choose, pod, claims),
            refused=partial(self._refused_by_driver, pod),
            warnings=partial(self._warnings, pod),
        )

    def _others(self, pod: PodWithClaims | None) -> Sequence[ResourceClaim]:
        """Claims that have devices, but for those of the pod's own group: these end with the pod, not before it."""
        if pod is None or pod.group is None:
            return self._holders
        own = {(item.namespace, reference.claim) for item in self._members(pod) for reference in item.claims}
        return [item for item in self._holders if item.metadata.key not in own]

    def _members(self, pod: PodWithClaims) -> list[PodWithClaims]:
        """The pods of the pod's group, itself included."""
        every = (*self._manifests.pods, *self._manifests.running)
        return [item for item in every if (item.namespace, item.group) == (pod.namespace, pod.group)]

    def _refused_by_driver(
        self, pod: PodWithClaims | None, claims: Sequence[ResourceClaim], node: str
    ) -> tuple[Refused, ...]:
        _, preparations = self._prepared(pod, claims, node)
        return tuple(Refused("/".join(name), item.problem) for name, item in preparations.items() if item.problem)

    def _warnings(self, pod: PodWithClaims | None, claims: Sequence[ResourceClaim], node: str) -> tuple[str, ...]:
        if pod is None:
            return ()
        stored, preparations = self._prepared(pod, claims, node)
        rows = containers(stored.pods[pod.namespace, pod.name], list(preparations.values()))
        own = own_variables(pod.written.get("spec") or {}, rows, self._drivers.hardware(node).kind)
        idle = unused(stored.pods[pod.namespace, pod.name], claims)
        return (*self._sizes(pod, claims), *idle, *own, *waits(claims))

    def _sizes(self, pod: PodWithClaims, claims: Sequence[ResourceClaim]) -> Iterator[str]:
        """Numbers of nodes that do not agree: of the group's pods, of its topology, and of the UltraServer's mode."""
        modes = [mode for claim in claims for mode in _modes(claim)]
        if pod.group is None or pod.group.topology not in NODES_OF or not modes:
            return
        size, nodes = len(self._members(pod)), NODES_OF[pod.group.topology]
        if {size, nodes, *modes} != {nodes}:
            yield (
                f"the group has {counted(size, 'pod')}, its topology {pod.group.topology} has {nodes} nodes, and its "
                f"ultraserverMode is {listed(natural(map(str, {*modes})))}: the three are to be the same number, or "
                "the nodes of the group do not work together"
            )

    def _prepared(
        self, pod: PodWithClaims | None, claims: Sequence[ResourceClaim], node: str
    ) -> tuple[StoredObjects, dict[tuple[str, str], Prepared]]:
        outcomes = [Outcome(pod, tuple(claims), node, "")]
        stored = StoredObjects.of(outcomes)
        return stored, prepared_on_nodes(outcomes, stored, self._drivers)

    def _obstacle(self, pod: PodWithClaims, node: Node) -> str:
        """Why the pod cannot run on the node, or the group of the pod cannot."""
        return _obstacle(pod, node) or (self._so_far.places.obstacle(pod, node) if pod.group is not None else "")

    def _obstacles(self, pod: PodWithClaims) -> dict[str, str]:
        """The nodes on which the pod cannot run, with reasons. They are the same for all pods of one controller."""
        key = rules_of(pod)
        if key not in self._excluded:
            texts = {node.metadata.name: _obstacle(pod, node) for node in self._manifests.nodes}
            self._excluded[key] = {name: text for name, text in texts.items() if text}
        if pod.group is None:
            return self._excluded[key]
        # The eligible nodes of a group change with every group that is placed.
        of_group = {node.metadata.name: self._so_far.places.obstacle(pod, node) for node in self._manifests.nodes}
        return {**{name: text for name, text in of_group.items() if text}, **self._excluded[key]}


def _type(node: Node) -> str:
    return node.metadata.labels.get(INSTANCE_TYPE_LABEL, "").removeprefix(HYPERPOD_PREFIX)


def _partitions(node: Node) -> str:
    """What a node of the right type offers instead, if its label says so; "" otherwise."""
    name, value = node.metadata.name, node.metadata.labels.get(PARTITIONS_LABEL)
    if value is None:
        return ""
    return (
        f"node {name} is of such a type, and offers what its label {PARTITIONS_LABEL}={shorten(value, 63)} says: "
        f"change the label, or remove it: kubectl label node {name} {PARTITIONS_LABEL}-"
    )


def _nearly(key: str, there: Collection[str]) -> list[str]:
    """Labels that nodes have, and that differ from this one by their case or their domain alone."""
    name = key.rpartition("/")[2].lower()
    return sorted(other for other in there if other != key and other.rpartition("/")[2].lower() == name)[:1]


def _modes(claim: ResourceClaim) -> Iterator[int]:
    """What the claim's UltraServerConfigs say."""
    for config in claim.spec.devices.config:
        parameters = config.opaque.parameters if config.opaque is not None else None
        mode = parameters.get("ultraserverMode") if isinstance(parameters, Mapping) else None
        if isinstance(mode, int) and not isinstance(mode, bool):
            yield mode


def _labelling(labels: Mapping[str, str], *, emulated: bool) -> str:
    texts = [f"{key}={value}" for key, value in sorted(labels.items())]
    if emulated:
        options = " ".join(f"--node-label {text}" for text in texts)
        return f"declare that nodes have {'it' if len(texts) == 1 else 'them'}, if those of your cluster do: {options}"
    return f"label a node (kubectl label node NODE {' '.join(texts)}), or remove that requirement from the pod"


def _nowhere(pod: PodWithClaims | None, claims: Sequence[ResourceClaim]) -> str:
    """Why no node is eligible; "" if some may be."""
    leaving = next((claim for claim in claims if claim.metadata.deletion_timestamp is not None), None)
    if leaving is not None:
        return f"claim {leaving.metadata.full_name} is being deleted, so nothing is allocated for it"
    if pod is not None and pod.spec.node_name and any(claim.status.allocation is None for claim in claims):
        return (
            "the pod sets nodeName, which bypasses the scheduler, so nothing is allocated for it; use "
            "a nodeSelector on kubernetes.io/hostname instead"
        )
    return ""


def _obstacle(pod: PodWithClaims, node: Node) -> str:
    try:
        return obstacle(pod, node)
    except DriverError as error:
        return f"the pod's node affinity cannot be read: {error.what}"

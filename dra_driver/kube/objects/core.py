"""Nodes and pods, and the objects with which programs report on themselves (``v1``, ``coordination.k8s.io/v1``).

``PartialNode`` is for programs that hold all Nodes of a cluster, as Kubernetes has PartialObjectMetadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from dra_driver.kube.objects.meta import ApiObject, Condition, ObjectMeta, Quantity

# What nodes and pods share


class Taint(ApiObject, frozen=True):
    """``spec.taints[]`` of a Node; NoSchedule and NoExecute keep pods away."""

    key: str
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class Toleration(ApiObject, frozen=True):
    """``spec.tolerations[]`` of a pod; an empty key or effect matches all."""

    key: str = ""
    operator: str = ""
    """``Exists``, or ``Equal``, which is the default."""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSelectorRequirement(ApiObject, frozen=True):
    """``matchExpressions[]`` or ``matchFields[]``."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(ApiObject, frozen=True):
    """All requirements must hold; a term without any matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(ApiObject, frozen=True):
    """At least one of the terms must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


# Nodes


class ManagedFields(ApiObject, frozen=True):
    """Which manager owns which fields; ``fields_v1`` is a tree of names."""

    manager: str = ""
    operation: str = ""
    fields_v1: Any = None


class NodeMeta(ObjectMeta, frozen=True):
    """``metadata`` of a Node."""

    managed_fields: tuple[ManagedFields, ...] = ()


class NodeSpec(ApiObject, frozen=True):
    """``spec``, the fields in use; ``provider_id`` is the cloud's name of the machine."""

    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    provider_id: str = msgspec.field(name="providerID", default="")


class NodeImage(ApiObject, frozen=True):
    """``status.images[]``."""

    names: tuple[str, ...] = ()


class NodeSystemInfo(ApiObject, frozen=True):
    """``status.nodeInfo``, the fields in use."""

    kubelet_version: str = ""


class NodeStatus(ApiObject, frozen=True):
    """``status``, the fields in use."""

    allocatable: dict[str, Quantity] = msgspec.field(default_factory=dict)
    images: tuple[NodeImage, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()
    conditions: tuple[Condition, ...] = ()


class Node(ApiObject, frozen=True):
    """A cluster node."""

    metadata: NodeMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class PartialNodeStatus(ApiObject, frozen=True):
    """``status``: the conditions."""

    conditions: tuple[Condition, ...] = ()


class PartialNode(ApiObject, frozen=True):
    """A Node without managed fields and images: 5,000 of them take 37 MB, in place of 196."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: PartialNodeStatus = PartialNodeStatus()


MAX_NODE_LABELS: Final = 1000
MAX_NODE_TAINTS: Final = 1000
"""One more is kept, so that it is seen that these are not all: who changes some writes all of them."""
MAX_NODE_CONDITIONS: Final = 100
MAX_CONDITION_CHARACTERS: Final = 4096
"""Of a message, and of an annotation."""
MAX_WORD_CHARACTERS: Final = 1024
"""Of a condition's type and reason, and of the provider id."""


def in_short(node: PartialNode, annotations: Sequence[str] = ()) -> PartialNode:
    """The Node as far as any kubelet makes it: one that somebody has taken over writes a megabyte into its own.

    ``annotations``: those that are read, by name.
    """
    meta, labels = node.metadata, node.metadata.labels
    return PartialNode(
        msgspec.structs.replace(
            meta,
            labels=dict(islice(labels.items(), MAX_NODE_LABELS)) if len(labels) > MAX_NODE_LABELS else labels,
            annotations={
                key: value[:MAX_CONDITION_CHARACTERS] for key, value in meta.annotations.items() if key in annotations
            },
            owner_references=(),
            finalizers=(),
        ),
        msgspec.structs.replace(
            node.spec,
            taints=node.spec.taints[: MAX_NODE_TAINTS + 1],
            provider_id=node.spec.provider_id[:MAX_WORD_CHARACTERS],
        ),
        PartialNodeStatus(tuple(map(_condition_in_short, node.status.conditions[:MAX_NODE_CONDITIONS]))),
    )


def _condition_in_short(condition: Condition) -> Condition:
    return msgspec.structs.replace(
        condition,
        type=condition.type[:MAX_WORD_CHARACTERS],
        reason=condition.reason[:MAX_WORD_CHARACTERS],
        message=condition.message[:MAX_CONDITION_CHARACTERS],
        last_transition_time=(condition.last_transition_time or "")[:MAX_WORD_CHARACTERS] or None,
    )


# Pods


class LabelSelectorRequirement(ApiObject, frozen=True):
    """``matchExpressions[]`` of a label selector."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(ApiObject, frozen=True):
    """All requirements must hold; an empty selector selects everything."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class PreferredSchedulingTerm(ApiObject, frozen=True):
    """``preferredDuringSchedulingIgnoredDuringExecution[]``: the weight of a node that matches."""

    weight: int
    preference: NodeSelectorTerm


class NodeAffinity(ApiObject, frozen=True):
    """Preferred terms only affect the order of the nodes, not whether a node fits."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredSchedulingTerm, ...] = ()


class PodAffinityTerm(ApiObject, frozen=True):
    """The pods that an affinity is about; without namespaces, those in the pod's own namespace."""

    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(ApiObject, frozen=True):
    """``preferredDuringSchedulingIgnoredDuringExecution[]`` of a pod affinity."""

    weight: int
    pod_affinity_term: PodAffinityTerm


class PodAffinity(ApiObject, frozen=True):
    """``podAffinity`` or ``podAntiAffinity``."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodAffinityTerm, ...] = ()

    @property
    def terms(self) -> tuple[PodAffinityTerm, ...]:
        """The required and the preferred terms."""
        preferred = self.preferred_during_scheduling_ignored_during_execution
        return (
            *self.required_during_scheduling_ignored_during_execution,
            *(item.pod_affinity_term for item in preferred),
        )


class Affinity(ApiObject, frozen=True):
    """``affinity`` of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None

    @property
    def required_nodes(self) -> NodeSelector | None:
        """The node affinity that keeps the pod off nodes."""
        nodes = self.node_affinity
        return nodes.required_during_scheduling_ignored_during_execution if nodes is not None else None

    @property
    def pod_terms(self) -> tuple[PodAffinityTerm, ...]:
        """The terms of pod affinity and anti-affinity."""
        return tuple(term for part in (self.pod_affinity, self.pod_anti_affinity) if part for term in part.terms)


class TopologySpreadConstraint(ApiObject, frozen=True):
    """``topologySpreadConstraints[]`` of a pod; without a selector it selects nothing."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: str
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"


class ContainerClaim(ApiObject, frozen=True):
    """``resources.claims[]``: a claim of the pod by its name there; ``request`` "" means all its requests."""

    name: str
    request: str = ""


class ResourceRequirements(ApiObject, frozen=True):
    """``resources`` of a container or a pod."""

    claims: tuple[ContainerClaim, ...] = ()
    requests: dict[str, Quantity] = msgspec.field(default_factory=dict)
    limits: dict[str, Quantity] = msgspec.field(default_factory=dict)


class Container(ApiObject, frozen=True):
    """A container, the fields in use."""

    name: str
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[dict[str, Any], ...] = ()
    restart_policy: str = ""
    """``Always`` makes an init container a sidecar."""


class PodResourceClaim(ApiObject, frozen=True):
    """``resourceClaims[]``: exactly one of claim and template is set."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSchedulingGate(ApiObject, frozen=True):
    """``schedulingGates[]``: while a pod has one, the scheduler ignores it."""

    name: str = ""


class PodSchedulingGroup(ApiObject, frozen=True):
    """``schedulingGroup``: the group of pods with which the pod is scheduled."""

    pod_group_name: str | None = None


class PodSpec(ApiObject, frozen=True):
    """``spec``, the fields in use."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    node_name: str = ""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: Affinity = Affinity()
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    overhead: dict[str, Quantity] = msgspec.field(default_factory=dict)
    runtime_class_name: str | None = None
    scheduler_name: str = ""
    priority: int = 0
    """What admission makes of ``priorityClassName``."""
    scheduling_group: PodSchedulingGroup | None = None

    @property
    def pod_group(self) -> str:
        """Name of the PodGroup that the pod is of, or ""."""
        return (self.scheduling_group.pod_group_name or "") if self.scheduling_group is not None else ""


class PodResourceClaimStatus(ApiObject, frozen=True):
    """``status.resourceClaimStatuses[]``: the claim that was made from a template; none where none was needed."""

    name: str
    resource_claim_name: str | None = None


class ContainerExtendedResourceRequest(ApiObject, frozen=True):
    """``status.extendedResourceClaimStatus.requestMappings[]``: the request of the claim that a container uses."""

    container_name: str
    request_name: str
    resource_name: str = ""


class PodExtendedResourceClaimStatus(ApiObject, frozen=True):
    """``status.extendedResourceClaimStatus``: the claim that kube-scheduler made for the pod's extended resources."""

    resource_claim_name: str
    request_mappings: tuple[ContainerExtendedResourceRequest, ...] = ()


class PodStatus(ApiObject, frozen=True):
    """``status``, the fields in use."""

    phase: str = "Pending"
    conditions: tuple[Condition, ...] = ()
    nominated_node_name: str = ""
    """The node on which the scheduler makes room for the pod by preemption."""
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None


class Pod(ApiObject, frozen=True):
    """A pod; changed only by patches."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class ClaimingContainer(ApiObject, frozen=True):
    """A container, what tells which claims it uses."""

    name: str
    resources: ResourceRequirements = ResourceRequirements()


class ClaimingPodSpec(ApiObject, frozen=True):
    """``spec``, likewise."""

    containers: tuple[ClaimingContainer, ...] = ()
    init_containers: tuple[ClaimingContainer, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()


class ClaimingPodStatus(ApiObject, frozen=True):
    """``status``, likewise."""

    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None


MAX_CLAIM_USES: Final = 4096
"""Of claims by containers that anybody reads: far more than any pod that runs can have."""


class ClaimingPod(ApiObject, frozen=True):
    """A pod, what tells which of its containers use which claims."""

    metadata: ObjectMeta
    spec: ClaimingPodSpec = ClaimingPodSpec()
    status: ClaimingPodStatus = ClaimingPodStatus()

    @property
    def in_short(self) -> Pod:
        """The pod with the first of all containers, and of all init containers, that use the same claims.

        Of everything one more than ``MAX_CLAIM_USES`` at most, so that it is seen that there are too many.
        """
        extended = self.status.extended_resource_claim_status
        if extended is not None:
            extended = PodExtendedResourceClaimStatus(
                extended.resource_claim_name, extended.request_mappings[: MAX_CLAIM_USES + 1]
            )
        mapped = {item.container_name for item in extended.request_mappings} if extended is not None else set()

        def first(containers: tuple[ClaimingContainer, ...]) -> tuple[Container, ...]:
            seen: set[object] = set()
            kept: list[Container] = []
            for container in containers:
                if len(kept) > MAX_CLAIM_USES:
                    break
                uses = container.name if container.name in mapped else container.resources.claims
                if uses not in seen:
                    seen.add(uses)
                    resources = ResourceRequirements(container.resources.claims)
                    kept.append(Container(container.name, resources=resources))
            return tuple(kept)

        meta = self.metadata
        return Pod(
            meta.identity,
            PodSpec(
                first(self.spec.containers),
                first(self.spec.init_containers),
                self.spec.resource_claims[: MAX_CLAIM_USES + 1],
            ),
            PodStatus(
                resource_claim_statuses=self.status.resource_claim_statuses[: MAX_CLAIM_USES + 1],
                extended_resource_claim_status=extended,
            ),
        )


class ContainerStateWaiting(ApiObject, frozen=True):
    """``state.waiting``."""

    reason: str = ""
    message: str = ""


class ContainerStateTerminated(ApiObject, frozen=True):
    """``state.terminated``; the message is the end of the log where the container has FallbackToLogsOnError."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(ApiObject, frozen=True):
    """``state``, ``lastState``: at most one is set."""

    waiting: ContainerStateWaiting | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(ApiObject, frozen=True):
    """``status.containerStatuses[]``."""

    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class ReportedPodStatus(PodStatus, frozen=True):
    """``status`` with what kubelet reports of the containers: its messages have images and commands of users."""

    reason: str = ""
    message: str = ""
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class ReportedPod(Pod, frozen=True):
    """A pod with what kubelet reports of it, which takes half as long again to decode."""

    status: ReportedPodStatus = ReportedPodStatus()


# Objects with which programs report on themselves and their decisions


class LeaseSpec(ApiObject, frozen=True):
    """``spec``: times are RFC 3339 with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(ApiObject, frozen=True):
    """A lease: the current leader, and since when it has been leading."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class ObjectReference(ApiObject, frozen=True):
    """The object that an event is about; ``namespace`` is "" for Nodes."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = "v1"


class EventSource(ApiObject, frozen=True):
    """``source``; ``host`` is the node that it tells of."""

    component: str = ""
    host: str = ""


class Event(ApiObject, frozen=True):
    """An event as ``kubectl describe`` shows it; its name makes it unique."""

    metadata: ObjectMeta
    involved_object: ObjectReference
    reason: str
    message: str
    type_: str = msgspec.field(name="type", default="")
    """``Normal`` or ``Warning``."""
    source: EventSource = EventSource()
    reporting_component: str = ""
    reporting_instance: str = ""
    first_timestamp: str = ""
    last_timestamp: str = ""
    count: int = 0


class ConfigMap(ApiObject, frozen=True):
    """A ConfigMap: a few texts by name."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None

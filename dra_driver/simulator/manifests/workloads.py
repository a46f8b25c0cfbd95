"""Nodes and pods, with the fields that decide where a pod's claims are tried.

Valid fields that are never read are listed in ``manifests.fields``, so that misspelt ones are detected.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dra_driver.kube.api.objects import Condition, NodeSystemInfo, ObjectMeta
from dra_driver.simulator.manifests.objects import NodeSelector, NodeSelectorTerm, Quantity, ResourceClaimSpec


class _Object(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Camel case on the wire, defaults omitted (inherited by subclasses)."""


class Taint(_Object, frozen=True):
    """``spec.taints[]`` of a Node; NoSchedule and NoExecute keep pods away."""

    key: str
    value: str = ""
    effect: str = ""


class NodeSpec(_Object, frozen=True):
    """``spec`` of a Node, the fields in use."""

    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeImage(_Object, frozen=True):
    """``status.images[]`` of a Node."""

    names: tuple[str, ...] = ()


class NodeStatus(_Object, frozen=True):
    """``status`` of a Node, the fields in use."""

    allocatable: dict[str, Quantity] = msgspec.field(default_factory=dict)
    images: tuple[NodeImage, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()
    conditions: tuple[Condition, ...] = ()


class Node(_Object, frozen=True):
    """A Node."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Toleration(_Object, frozen=True):
    """``tolerations[]`` of a pod."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class PreferredNodes(_Object, frozen=True):
    """``preferredDuringSchedulingIgnoredDuringExecution[]``: the weight of a node that matches."""

    weight: int
    preference: NodeSelectorTerm


class NodeAffinity(_Object, frozen=True):
    """Preferred terms only affect the order of the nodes, not whether a node fits."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredNodes, ...] = ()


class LabelSelectorRequirement(_Object, frozen=True):
    """``matchExpressions[]`` of a label selector."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(_Object, frozen=True):
    """All requirements must hold; an empty selector selects everything."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class PodAffinityTerm(_Object, frozen=True):
    """The pods that an affinity is about; without namespaces, those in the pod's own namespace."""

    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    topology_key: str = ""
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(_Object, frozen=True):
    """``preferredDuringSchedulingIgnoredDuringExecution[]`` of a pod affinity."""

    weight: int
    pod_affinity_term: PodAffinityTerm


class PodAffinity(_Object, frozen=True):
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


class Affinity(_Object, frozen=True):
    """``affinity`` of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None

    @property
    def pod_terms(self) -> tuple[PodAffinityTerm, ...]:
        """The terms of pod affinity and anti-affinity."""
        return tuple(term for part in (self.pod_affinity, self.pod_anti_affinity) if part for term in part.terms)


class ContainerClaim(_Object, frozen=True):
    """``resources.claims[]`` of a container; an empty request means all requests of the claim."""

    name: str
    request: str = ""


class Resources(_Object, frozen=True):
    """``resources`` of a container."""

    claims: tuple[ContainerClaim, ...] = ()
    requests: dict[str, Quantity] = msgspec.field(default_factory=dict)
    limits: dict[str, Quantity] = msgspec.field(default_factory=dict)


class Container(_Object, frozen=True):
    """A container, the fields in use."""

    name: str
    image: str = ""
    resources: Resources = Resources()
    ports: tuple[dict[str, Any], ...] = ()
    restart_policy: str = ""
    """``Always`` makes an init container a sidecar."""


class PodResourceClaim(_Object, frozen=True):
    """``resourceClaims[]`` of a pod: exactly one of claim and template is set."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class SpreadConstraint(_Object, frozen=True):
    """``topologySpreadConstraints[]`` of a pod; without a selector it selects nothing."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: str
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"


class PodSpec(_Object, frozen=True):
    """``spec`` of a pod, the fields in use."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    node_name: str = ""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: Affinity = Affinity()
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[dict[str, Any], ...] = ()
    topology_spread_constraints: tuple[SpreadConstraint, ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    resources: Resources = Resources()
    overhead: dict[str, Quantity] = msgspec.field(default_factory=dict)
    runtime_class_name: str | None = None
    scheduler_name: str = ""
    scheduling_group: Any = None


class PodClaimStatus(_Object, frozen=True):
    """``status.resourceClaimStatuses[]``: the claim that was created from a template."""

    name: str
    resource_claim_name: str | None = None


class ExtendedClaimStatus(_Object, frozen=True):
    """``status.extendedResourceClaimStatus``: the claim created by kube-scheduler for the pod's extended resources."""

    resource_claim_name: str
    request_mappings: tuple[dict[str, str], ...] = ()
    """Containers by request of the claim."""


class PodStatus(_Object, frozen=True):
    """``status`` of a pod, the fields in use."""

    phase: str = ""
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()
    extended_resource_claim_status: ExtendedClaimStatus | None = None


class Pod(_Object, frozen=True):
    """A Pod."""

    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus = PodStatus()


class PodTemplate(_Object, frozen=True):
    """``template`` of a controller."""

    spec: PodSpec
    metadata: ObjectMeta = ObjectMeta()


class ReplicaSpec(_Object, frozen=True):
    """``spec`` of a Deployment or a ReplicaSet."""

    template: PodTemplate
    replicas: int = 1


class Ordinals(_Object, frozen=True):
    """``ordinals``: the first number of a StatefulSet's pods."""

    start: int = 0


class StatefulSpec(_Object, frozen=True):
    """``spec`` of a StatefulSet."""

    template: PodTemplate
    replicas: int = 1
    ordinals: Ordinals = Ordinals()


class JobSpec(_Object, frozen=True):
    """``spec`` of a Job."""

    template: PodTemplate
    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool = False


class JobTemplate(_Object, frozen=True):
    """``jobTemplate`` of a CronJob."""

    spec: JobSpec
    metadata: ObjectMeta = ObjectMeta()


class CronJobSpec(_Object, frozen=True):
    """``spec`` of a CronJob."""

    job_template: JobTemplate
    suspend: bool = False


class DaemonSpec(_Object, frozen=True):
    """``spec`` of a DaemonSet."""

    template: PodTemplate


class LeaderWorkerTemplate(_Object, frozen=True):
    """One group of a LeaderWorkerSet; without a leader template, all pods use the worker's."""

    worker_template: PodTemplate
    leader_template: PodTemplate | None = None
    size: int = 1


class LeaderWorkerSpec(_Object, frozen=True):
    """``spec`` of a LeaderWorkerSet."""

    leader_worker_template: LeaderWorkerTemplate
    replicas: int = 1


class Deployment(_Object, frozen=True):
    """A Deployment."""

    metadata: ObjectMeta
    spec: ReplicaSpec


class ReplicaSet(_Object, frozen=True):
    """A ReplicaSet."""

    metadata: ObjectMeta
    spec: ReplicaSpec


class StatefulSet(_Object, frozen=True):
    """A StatefulSet."""

    metadata: ObjectMeta
    spec: StatefulSpec


class Job(_Object, frozen=True):
    """A Job."""

    metadata: ObjectMeta
    spec: JobSpec


class CronJob(_Object, frozen=True):
    """A CronJob."""

    metadata: ObjectMeta
    spec: CronJobSpec


class DaemonSet(_Object, frozen=True):
    """A DaemonSet."""

    metadata: ObjectMeta
    spec: DaemonSpec


class ReplicationController(_Object, frozen=True):
    """A ReplicationController."""

    metadata: ObjectMeta
    spec: ReplicaSpec


class LeaderWorkerSet(_Object, frozen=True):
    """A LeaderWorkerSet."""

    metadata: ObjectMeta
    spec: LeaderWorkerSpec


class PodSet(_Object, frozen=True):
    """The pods of one pod template of a job kind."""

    template: PodTemplate
    path: tuple[str | int, ...]
    """From the object to the pod's ``spec``."""
    count: int
    role: str
    """Part of the pods' names; unique in the object."""
    assumed: str = ""
    """What is not known of their number; "": nothing."""


class CustomWorkload(_Object, frozen=True):
    """An object of a kind that is no part of Kubernetes, with pod templates."""

    metadata: ObjectMeta
    sets: tuple[PodSet, ...]


class ClaimTemplate(_Object, frozen=True):
    """``spec`` of a ResourceClaimTemplate."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
    metadata: ObjectMeta = ObjectMeta()


class ResourceClaimTemplate(_Object, frozen=True):
    """A ResourceClaimTemplate."""

    metadata: ObjectMeta
    spec: ClaimTemplate

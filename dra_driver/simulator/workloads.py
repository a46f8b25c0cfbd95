"""Nodes and pods as far as they decide where a pod's claims are tried.

Legal fields that are read nowhere are in ``manifests.fields``, so that a misspelt one is noticed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dra_driver.kube.objects import ObjectMeta
from dra_driver.simulator.objects import NodeSelector, ResourceClaimSpec


class _Object(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Camel-case on the wire, defaults left out (subclasses inherit that)."""


class Taint(_Object, frozen=True):
    """``spec.taints[]`` of a Node; NoSchedule and NoExecute keep pods away."""

    key: str
    value: str = ""
    effect: str = ""


class NodeSpec(_Object, frozen=True):
    """``spec`` of a Node, the part in use."""

    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class Node(_Object, frozen=True):
    """A Node."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()


class Toleration(_Object, frozen=True):
    """``tolerations[]`` of a pod."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class NodeAffinity(_Object, frozen=True):
    """What is only preferred changes the order of the nodes, not whether one fits."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: Any = None


class Affinity(_Object, frozen=True):
    """``affinity`` of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: Any = None
    pod_anti_affinity: Any = None


class ContainerClaim(_Object, frozen=True):
    """``resources.claims[]`` of a container; an empty request means all of the claim."""

    name: str
    request: str = ""


class Resources(_Object, frozen=True):
    """``resources`` of a container."""

    claims: tuple[ContainerClaim, ...] = ()
    requests: dict[str, Any] = msgspec.field(default_factory=dict)
    limits: dict[str, Any] = msgspec.field(default_factory=dict)


class Container(_Object, frozen=True):
    """A container, the part in use."""

    name: str
    resources: Resources = Resources()
    ports: tuple[dict[str, Any], ...] = ()


class PodResourceClaim(_Object, frozen=True):
    """``resourceClaims[]`` of a pod: exactly one of claim and template."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(_Object, frozen=True):
    """``spec`` of a pod, the part in use."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    node_name: str = ""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: Affinity = Affinity()
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[dict[str, Any], ...] = ()
    topology_spread_constraints: tuple[dict[str, Any], ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    resources: Resources = Resources()
    overhead: dict[str, Any] = msgspec.field(default_factory=dict)
    runtime_class_name: str | None = None
    scheduler_name: str = ""
    scheduling_group: Any = None


class PodClaimStatus(_Object, frozen=True):
    """``status.resourceClaimStatuses[]``: which claim was made from a template."""

    name: str
    resource_claim_name: str | None = None


class PodStatus(_Object, frozen=True):
    """``status`` of a pod, the part in use."""

    phase: str = ""
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()


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
    """The first number of a StatefulSet's pods."""

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


class LeaderWorkerTemplate(_Object, frozen=True):
    """One group of a LeaderWorkerSet; without a leader's template all pods are made from the worker's."""

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


class LeaderWorkerSet(_Object, frozen=True):
    """A LeaderWorkerSet."""

    metadata: ObjectMeta
    spec: LeaderWorkerSpec


class ClaimTemplate(_Object, frozen=True):
    """``spec`` of a ResourceClaimTemplate."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
    metadata: ObjectMeta = ObjectMeta()


class ResourceClaimTemplate(_Object, frozen=True):
    """A ResourceClaimTemplate."""

    metadata: ObjectMeta
    spec: ClaimTemplate

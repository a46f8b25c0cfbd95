"""What was read: the objects of a cluster and of a user, and where each was written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_driver.host.inventory import NodeInventory
from dra_driver.manifests.documents import Origin
from dra_driver.manifests.objects import DeviceClass, DeviceTaintRule, NodeSelector, ResourceClaim, ResourceSlice
from dra_driver.manifests.workloads import Container, Node, PodSpec, ResourceClaimTemplate, Toleration
from dra_driver.quantity import UNIT, nanos

SCORED: Final = ("cpu", "memory")
"""The resources that the default profile scores."""
IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass: the extended resource that every class offers."""

Amounts = dict[str, int]
"""Resources by name, in units of 10^-9."""


def is_extended(name: str) -> bool:
    """Whether it is neither Kubernetes' own resource nor one that belongs to quotas, or what a DeviceClass is for."""
    own = "/" not in name or "kubernetes.io/" in name or name.startswith("requests.")
    return not own or name.startswith(IMPLICIT)


def of_container(container: Container) -> Amounts:
    """What a container requests."""
    return {
        name: nanos(amount) for name, amount in {**container.resources.limits, **container.resources.requests}.items()
    }


def of_pod(spec: PodSpec, missing: Mapping[str, int] | None = None) -> Amounts:
    """What the pod requests: the containers that run together, or an init container where that is more.

    Args:
        spec: of the pod.
        missing: what a container counts as that does not say how much it requests of a resource.
    """
    beside: Amounts = {}
    most: Amounts = {}
    for container in spec.init_containers:
        wanted = {**(missing or {}), **of_container(container)}
        if container.restart_policy == "Always":
            beside = _sum((beside, wanted))
            wanted = beside
        else:
            wanted = _sum((beside, wanted))
        most = _most(most, wanted)
    running = _sum((beside, *({**(missing or {}), **of_container(item)} for item in spec.containers)))
    of_whole_pod = {
        name: nanos(amount) for name, amount in {**spec.resources.limits, **spec.resources.requests}.items()
    }
    overhead = {name: nanos(amount) for name, amount in spec.overhead.items()}
    return _sum(({**_most(most, running), **of_whole_pod}, overhead))


def _sum(amounts: Iterable[Mapping[str, int]]) -> Amounts:
    total: Amounts = {}
    for item in amounts:
        for name, amount in item.items():
            total[name] = total.get(name, 0) + amount
    return total


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in (*one, *other)}


Key = tuple[str, str, str]
"""Kind, namespace ("" for kinds without) and name."""


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """One entry of a pod's ``resourceClaims``: ``claim`` by name, or made from ``template``."""

    name: str
    """What the pod calls it."""
    claim: str
    """The ResourceClaim's name; for one from a template, the name it gets."""
    template: str = ""
    path: tuple[str | int, ...] = ()
    """To the entry from ``PodWithClaims.origin``."""


@dataclass(frozen=True, slots=True)
class ExclusiveGroup:
    """A group of a LeaderWorkerSet that has a place, such as an UltraServer, for itself.

    Source: LeaderWorkerSet, annotation ``leaderworkerset.sigs.k8s.io/exclusive-topology``.
    """

    leader: str
    """The name of its leader, which is placed first."""
    topology: str
    """The node label whose value is equal in one place."""


@dataclass(frozen=True, slots=True)
class PodWithClaims:
    """A pod, its claims if it has any, and on which nodes it may run."""

    namespace: str
    name: str
    claims: tuple[ClaimReference, ...]
    """In the pod's order, in which they are allocated."""
    node_name: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_affinity: NodeSelector | None = None
    """The required one."""
    tolerations: tuple[Toleration, ...] = ()
    group: ExclusiveGroup | None = None
    controller: str = ""
    """Whose pod it is, such as ``Deployment default/web``; "" for one that stands alone."""
    spread_with: str = ""
    """Equal for the pods that kube-scheduler spreads over nodes unasked: those of one ReplicaSet or StatefulSet."""
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: PodSpec = field(default=PodSpec(), compare=False, repr=False)
    origin: Origin | None = field(default=None, compare=False, repr=False)

    @property
    def extended_resources(self) -> dict[str, int]:
        """How many of each extended resource its containers ask for together."""
        return {name: amount // UNIT for name, amount in of_pod(self.spec).items() if amount and is_extended(name)}


@dataclass(frozen=True, slots=True)
class Manifests:
    """Objects by kind, each kind in the order in which they were read."""

    nodes: tuple[Node, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    taint_rules: tuple[DeviceTaintRule, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    templates: tuple[ResourceClaimTemplate, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    pods: tuple[PodWithClaims, ...] = ()
    """That have claims, or wait and ask for extended resources, which a DeviceClass may offer."""
    running: tuple[PodWithClaims, ...] = ()
    """On nodes, and not asked about: what their containers request is in use there."""
    not_considered: tuple[str, ...] = ()
    """What was read and does not influence the answer, in words."""
    standby: frozenset[tuple[str, str]] = frozenset()
    """Claims by namespace and name that are there for pods to use, and not asked about themselves."""
    inventories: Mapping[str, NodeInventory] = field(default_factory=dict)
    """By node, for emulated nodes."""
    origins: Mapping[Key, Origin] = field(default_factory=dict, compare=False, repr=False)
    """Objects that were read from a file."""

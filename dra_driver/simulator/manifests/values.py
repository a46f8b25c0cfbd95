"""What was read: the objects of a cluster and of a user, and where each was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.host.inventory import NodeInventory
from dra_driver.simulator.manifests.documents import Origin
from dra_driver.simulator.manifests.requested import is_extended, of_pod
from dra_driver.simulator.objects import DeviceClass, DeviceTaintRule, NodeSelector, ResourceClaim, ResourceSlice
from dra_driver.simulator.quantity import UNIT
from dra_driver.simulator.workloads import Node, PodSpec, ResourceClaimTemplate, Toleration

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

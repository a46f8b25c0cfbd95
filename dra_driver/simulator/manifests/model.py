"""The result of reading: the objects of a cluster and of a user, and where each was defined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from dra_driver.kube.documents import Origin
from dra_driver.kube.objects.core import Container, Node, PodSpec, ResourceRequirements
from dra_driver.kube.objects.meta import OwnerReference
from dra_driver.kube.objects.resource import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dra_driver.kube.objects.scheduling import PodGroup
from dra_driver.kube.quantity import UNIT, nanos
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.simulator.manifests.names import uid

SCORED: Final = ("cpu", "memory")
"""The resources that kube-scheduler's default profile scores."""
IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of a DeviceClass's name in the extended resource that every class offers."""

Amounts = dict[str, int]
"""Amounts by resource name, in units of 10^-9."""


def is_extended(name: str) -> bool:
    """Whether a resource is extended: neither native nor quota-related, or implicitly offered by a DeviceClass."""
    own = "/" not in name or "kubernetes.io/" in name or name.startswith("requests.")
    return not own or name.startswith(IMPLICIT)


def of_container(container: Container) -> Amounts:
    """The requests of a container."""
    return _requests(container.resources)


def _requests(resources: ResourceRequirements) -> Amounts:
    return {name: nanos(amount) for name, amount in {**resources.limits, **resources.requests}.items()}


def of_pod(spec: PodSpec, missing: Mapping[str, int] | None = None) -> Amounts:
    """The effective requests of a pod: of the containers that run together, or of an init container if that is more.

    Args:
        spec: of the pod.
        missing: the amounts to assume for a container that does not request a resource.
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
    overhead = {name: nanos(amount) for name, amount in spec.overhead.items()}
    return _sum(({**_most(most, running), **_requests(spec.resources)}, overhead))


def _sum(amounts: Iterable[Mapping[str, int]]) -> Amounts:
    total: Amounts = {}
    for item in amounts:
        for name, amount in item.items():
            total[name] = total.get(name, 0) + amount
    return total


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in (*one, *other)}


class Packed(Mapping[str, Any]):
    """An object as JSON, a tenth of what it takes as plain values; each access to one of these decodes them anew."""

    __slots__ = ("_json",)

    def __init__(self, value: Mapping[str, Any]) -> None:
        self._json = msgspec.json.encode(value)

    def plain(self) -> dict[str, Any]:
        """The plain values."""
        value: dict[str, Any] = msgspec.json.decode(self._json)
        return value

    def __getitem__(self, key: str) -> Any:
        return self.plain()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.plain())

    def __len__(self) -> int:
        return len(self.plain())


Key = tuple[str, str, str]
"""Kind, namespace ("" for cluster-scoped kinds) and name."""


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """One entry of a pod's ``resourceClaims``: an existing ``claim``, or one created from ``template``."""

    name: str
    """The entry's name within the pod."""
    claim: str
    """The name of the ResourceClaim; for one created from a template, the name that it will have."""
    template: str = ""
    path: tuple[str | int, ...] = ()
    """Path to the entry, relative to ``PodWithClaims.origin``."""
    group: OwnerReference | None = None
    """The pod's PodGroup, if the claim is for the group and not for the pod alone."""


@dataclass(frozen=True, slots=True)
class ExclusiveGroup:
    """A group of a LeaderWorkerSet that has a topology domain, such as an UltraServer, to itself.

    Source: LeaderWorkerSet, annotation ``leaderworkerset.sigs.k8s.io/exclusive-topology``.
    """

    leader: str
    """The name of the leader pod, which is placed first."""
    topology: str
    """The node label whose value identifies the domain."""


@dataclass(frozen=True, slots=True)
class PodWithClaims:
    """A pod, its claims if it has any, and the nodes on which it may run."""

    namespace: str
    name: str
    claims: tuple[ClaimReference, ...]
    """In the order of the pod's spec, in which they are allocated."""
    group: ExclusiveGroup | None = None
    controller: str = ""
    """The pod's controller, such as ``Deployment default/web``; "" for a pod without one."""
    spread_with: str = ""
    """Equal for pods that kube-scheduler spreads over nodes by default: those of one ReplicaSet or StatefulSet."""
    labels: Mapping[str, str] = field(default_factory=dict)
    by_operator: bool = False
    """Whether an operator may make its claims: that of its kind, or of an object that names their template."""
    spec: PodSpec = field(default=PodSpec(), repr=False)
    written: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The pod or the pod template as it was read, with all its fields."""
    origin: Origin | None = field(default=None, compare=False, repr=False)

    @property
    def uid(self) -> str:
        """Its own, which only a pod of a cluster has, or a placeholder."""
        own: str = (self.written.get("metadata") or {}).get("uid") or ""
        return own or uid(f"Pod {self.namespace}/{self.name}")

    @property
    def extended_resources(self) -> dict[str, int]:
        """The amounts of extended resources that its containers request together."""
        return {name: amount // UNIT for name, amount in of_pod(self.spec).items() if amount and is_extended(name)}

    @property
    def waits(self) -> bool:
        """Whether it has claims, or may be given one for extended resources."""
        return bool(self.claims or (self.extended_resources and not self.spec.node_name))


@dataclass(frozen=True, slots=True)
class Manifests:
    """Objects by kind, each kind in the order in which they were read."""

    nodes: tuple[Node, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    taint_rules: tuple[DeviceTaintRule, ...] = ()
    classes: tuple[DeviceClass, ...] = ()
    templates: tuple[ResourceClaimTemplate, ...] = ()
    claims: tuple[ResourceClaim, ...] = ()
    pod_groups: tuple[PodGroup, ...] = ()
    pods: tuple[PodWithClaims, ...] = ()
    """Pods with claims, and pending pods that request extended resources, which a DeviceClass may offer."""
    running: tuple[PodWithClaims, ...] = ()
    """Other pods that are on nodes: the requests of their containers are in use there."""
    beside: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Pods of files that wait for no devices, by namespace and name, with a note on each."""
    not_considered: tuple[str, ...] = ()
    """Descriptions of input that has no influence on the result."""
    standby: frozenset[tuple[str, str]] = frozenset()
    """Claims, by namespace and name, that exist for pods to use, and are not to be allocated by themselves."""
    unserved: Mapping[str, str] = field(default_factory=dict)
    """Nodes of a live cluster whose driver offers nothing or is not well, and why."""
    inventories: Mapping[str, NodeInventory] = field(default_factory=dict)
    """Inventories of emulated nodes, by node."""
    origins: Mapping[Key, Origin] = field(default_factory=dict, compare=False, repr=False)
    """Origins of the objects that were read from files."""

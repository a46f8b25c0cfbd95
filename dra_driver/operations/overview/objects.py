"""What is kept of the objects of a cluster for an overview. Everything else is skipped while it is decoded.

The largest clusters have 150,000 pods, of which few are of interest here; nodes of one type publish equal devices,
apart from what is of no interest, and these are kept once for all of them. Of 1,000 nodes that offer chips and cores,
with 5,000 pods, 13 MB stay this way, and 220 MB as the structs of ``kube.objects``, most of them slices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from dra_driver.kube.api import codec
from dra_driver.kube.api.codec import Resource
from dra_driver.kube.objects import core
from dra_driver.kube.objects.apps import DaemonSet
from dra_driver.kube.objects.core import NodeSystemInfo, PartialNode, PartialNodeStatus
from dra_driver.kube.objects.meta import ApiObject, Condition, ObjectMeta, Quantity
from dra_driver.kube.objects.resource import (
    DeviceAttribute,
    DeviceRequest,
    DeviceTaint,
    DeviceTaintRule,
    PartialAllocatedDeviceStatus,
    PartialResourceClaim,
    PartialResourceClaimStatus,
    ResourceClaimConsumerReference,
    ResourcePool,
)
from dra_driver.kube.objects.scheduling import GROUP, POD_GROUPS
from dra_driver.kube.podstate import PodState, state_of
from dra_driver.neuron.device_status import own_conditions
from dra_driver.neuron.names import DRIVER_NAME, SERVER_2, SERVER_4
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL
from dra_driver.operations.overview.serving import Daemon, daemon_of
from dra_driver.util.text import first_of, one_line

EXTENDED_RESOURCES: Final = ("aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "aws.amazon.com/neurondevice")
"""What device plugins offer, and DeviceClasses where that is enabled."""
GROUP_KEY: Final = "leaderworkerset.sigs.k8s.io/group-key"
"""Label of the pods of a LeaderWorkerSet: one value for each group."""
GROUP_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
"""Annotation of the same pods: how many pods a group has."""
ENDED: Final = frozenset({"Succeeded", "Failed"})
"""Phases of pods that have no devices any more."""
PREPARE: Final = "FailedPrepareDynamicResources"
"""Reason of kubelet's Events about pods whose claims could not be prepared."""
CREATE: Final = "FailedResourceClaimCreation"
"""Reason of kube-controller-manager's Events about pods whose claims could not be created."""
MESSAGE_BYTES: Final = 700
"""An Event has at most 1,024."""

if TYPE_CHECKING:
    from dra_driver.legacy.rules import NodeHardware
    from dra_driver.legacy.usage import Holding

T = TypeVar("T")

Servers = tuple[tuple[int, str], ...]
"""UltraServers that a node is part of: number of nodes that share the server, and its id."""


class NodeStatus(PartialNodeStatus, frozen=True):
    """``status``, with kubelet's version and what device plugins offer."""

    node_info: NodeSystemInfo = NodeSystemInfo()
    capacity: dict[str, Quantity] = msgspec.field(default_factory=dict)
    allocatable: dict[str, Quantity] = msgspec.field(default_factory=dict)


class Node(PartialNode, frozen=True):
    """A Node, and what it says of its devices."""

    status: NodeStatus = NodeStatus()

    @property
    def instance_type(self) -> str:
        """Of its label, which HyperPod begins with ``ml.``; "": it has none."""
        return self.metadata.labels.get(INSTANCE_TYPE_LABEL, "")

    @property
    def servers(self) -> Servers:
        """By its labels."""
        return _servers(self.metadata.labels.get(SERVER_4), self.metadata.labels.get(SERVER_2))

    @property
    def plugin(self) -> NodeHardware | None:
        """What a device plugin offers there; None: nothing. kubelet keeps the capacity of one that is gone."""
        if not any(name in self.status.capacity for name in EXTENDED_RESOURCES):
            return None
        from dra_driver.operations.overview.deviceplugin import offered_hardware

        return offered_hardware(self.instance_type, self.status.capacity, self.status.allocatable)

    def condition(self, kind: str) -> Condition | None:
        """Its condition of this type."""
        return next((entry for entry in self.status.conditions if entry.type == kind), None)


def _servers(server_4: str | None, server_2: str | None) -> Servers:
    return tuple((size, server) for size, server in ((4, server_4), (2, server_2)) if server)


# Slices


class _Attributes(ApiObject, frozen=True):
    resource: DeviceAttribute = msgspec.field(name="resourceType", default=DeviceAttribute())
    instance_type: DeviceAttribute = DeviceAttribute()
    device_id: DeviceAttribute = DeviceAttribute()
    logical_core_size: DeviceAttribute = DeviceAttribute()
    server_4: DeviceAttribute = msgspec.field(name="ultraserverServerId4", default=DeviceAttribute())
    server_2: DeviceAttribute = msgspec.field(name="ultraserverServerId2", default=DeviceAttribute())


class _Basic(ApiObject, frozen=True):
    attributes: _Attributes = _Attributes()
    taints: tuple[DeviceTaint, ...] = ()


class _Device(_Basic, frozen=True):
    name: str = ""
    basic: _Basic | None = None
    """v1beta1 has the other fields in here."""


class _SliceSpec(ApiObject, frozen=True):
    driver: str
    pool: ResourcePool
    node_name: str = ""
    devices: tuple[_Device, ...] | None = ()
    """None: there are none, on a server before 1.35."""


class _Slice(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: _SliceSpec


class Offered(NamedTuple):
    """A device on offer. Compared and hashed by the hundred thousand."""

    name: str
    resource: str = ""
    """``resourceType``."""
    chip: int | None = None
    """``deviceId``."""
    core_size: int | None = None
    """``logicalCoreSize``."""
    taints: tuple[DeviceTaint, ...] = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice of this driver."""

    metadata: ObjectMeta
    node: str
    pool: str
    generation: int
    instance_type: str = ""
    servers: Servers = ()
    devices: tuple[Offered, ...] = ()


def _slice(item: _Slice, _: str) -> Slice:
    spec = item.spec
    own = (spec.devices or ()) if spec.driver == DRIVER_NAME else ()
    found = [(device.name, device.basic or device) for device in own]
    first = found[0][1].attributes if found else _Attributes()
    devices = tuple(
        Offered(
            name,
            basic.attributes.resource.string or "",
            basic.attributes.device_id.int_,
            basic.attributes.logical_core_size.int_,
            basic.taints,
        )
        for name, basic in found
    )
    return Slice(
        item.metadata.identity,
        spec.node_name,
        spec.pool.name,
        spec.pool.generation,
        first.instance_type.string or "",
        _servers(first.server_4.string, first.server_2.string),
        _once(devices),
    )


@lru_cache(maxsize=4096)
def _once(value: T) -> T:
    """The first of equal values."""
    return value


# Claims


class _Request(DeviceRequest, frozen=True):
    device_class_name: str = ""
    """v1beta1 has the fields of ``exactly`` here."""
    allocation_mode: str = ""
    count: int = 0


class _DeviceClaim(ApiObject, frozen=True):
    requests: tuple[_Request, ...] | None = ()
    """None: there are none, on a server before 1.35."""


class _ClaimSpec(ApiObject, frozen=True):
    devices: _DeviceClaim = _DeviceClaim()


class _ClaimStatus(PartialResourceClaimStatus, frozen=True):
    devices: tuple[PartialAllocatedDeviceStatus, ...] = ()


class _Claim(PartialResourceClaim, frozen=True):
    status: _ClaimStatus = _ClaimStatus()
    spec: _ClaimSpec = _ClaimSpec()


class Claim(PartialResourceClaim, frozen=True):
    """A claim, and what it has of this driver."""

    spec: _ClaimSpec = _ClaimSpec()
    complaints: tuple[tuple[str, Condition], ...] = ()
    """What its status says of devices that are not ready or not healthy, by their names."""

    @property
    def asks(self) -> str:
        """Such as ``4 x neuron.aws.com``."""
        return first_of([_asked(request) for request in self.spec.devices.requests or ()], 3)

    @property
    def held(self) -> tuple[tuple[str, str], ...]:
        """Pool and name of this driver's devices that it has, without those that it only looks at (admin access)."""
        return tuple(
            (entry.pool, entry.device)
            for entry in self.status.results
            if entry.driver == DRIVER_NAME and not entry.admin_access
        )

    @property
    def pods(self) -> tuple[ResourceClaimConsumerReference, ...]:
        """The pods that may use it, of its namespace; those of a PodGroup are not named."""
        return tuple(entry for entry in self.status.reserved_for if entry.is_pod)

    @property
    def of_group(self) -> bool:
        """Whether the pods of a PodGroup may use it."""
        return any((entry.resource, entry.api_group) == (POD_GROUPS, GROUP) for entry in self.status.reserved_for)


def _claim(item: _Claim, _: str) -> Claim:
    status = item.status
    complaints = (
        (device, condition)
        for (_, device), conditions in own_conditions(status, status.devices).items()
        for condition in conditions
        if condition.status != "True"
    )
    kept = Claim(
        _identity(item.metadata),
        PartialResourceClaimStatus(status.allocation, status.reserved_for),
        item.spec,
        tuple(complaints),
    )
    # Of those that have devices of other drivers alone, nothing is shown but that they exist.
    foreign = status.allocation is not None and not kept.held
    return Claim(kept.metadata) if foreign else kept


def _identity(meta: ObjectMeta) -> ObjectMeta:
    """Which object it is and, of one that is being deleted, since when and what keeps it."""
    if meta.deletion_timestamp is None:
        return meta.identity
    return msgspec.structs.replace(
        meta.identity, deletion_timestamp=meta.deletion_timestamp, finalizers=meta.finalizers
    )


def _asked(request: _Request) -> str:
    alternatives = request.first_available or (request.exactly or request,)
    return " or ".join(
        f"{'all' if one.allocation_mode == 'All' else one.count or 1} x {one.device_class_name}" for one in alternatives
    )


# Pods


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod."""

    metadata: ObjectMeta
    state: PodState
    node: str = ""
    """"": it has none yet."""
    phase: str = "Pending"
    ending: bool = False
    claims: tuple[str, ...] = ()
    """Names of its ResourceClaims, as far as they exist."""
    lacking: tuple[str, ...] = ()
    """Its own names of claims that were not made yet."""
    asks: str = ""
    """Its limits of extended resources, such as ``2 x aws.amazon.com/neuron``; "" where it has none."""
    holding: Holding | None = None
    """What the device plugin's and the extender's clusters record for it."""
    created: str = ""
    """RFC 3339, or ""."""
    gates: tuple[str, ...] = ()
    """Names of its scheduling gates."""
    templates: tuple[str, ...] = ()
    """Names of the ResourceClaimTemplates of which no claim was made yet."""
    scheduler: str = ""
    scheduled: Condition | None = None
    """Its condition ``PodScheduled``, without a node."""
    group: tuple[str, int] = ("", 0)
    """Of a LeaderWorkerSet: the group's key, and how many pods it has."""
    daemon: Daemon | None = None
    """What it is if it serves the devices of its node."""
    pod_group: str = ""
    """Name of its PodGroup, or ""."""

    @property
    def counts(self) -> bool:
        """Whether it may have Neuron devices, or may get some."""
        return self.phase not in ENDED and bool(self.claims or self.lacking or self.asks)


def _pod(item: core.ReportedPod, _: str) -> Pod:
    meta, spec, status = item.metadata, item.spec, item.status
    made = {entry.name: entry.resource_claim_name for entry in status.resource_claim_statuses}
    named = {entry.name: entry.resource_claim_name or made.get(entry.name) for entry in spec.resource_claims}
    extended = status.extended_resource_claim_status
    claims = [name for name in named.values() if name]
    asks, holding = "", None
    if _extended(spec):
        from dra_driver.operations.overview.deviceplugin import requested

        asks, holding = requested(item)
    daemon = daemon_of(item)
    # Of most pods of a cluster nobody asks how they are.
    concerned = spec.resource_claims or extended is not None or asks or daemon is not None
    unmade = named.keys() - made.keys()
    return Pod(
        _identity(meta),
        state_of(item) if concerned else PodState(status.phase),
        spec.node_name,
        status.phase,
        meta.deletion_timestamp is not None,
        (*claims, *((extended.resource_claim_name,) if extended is not None else ())),
        # A template may make no claim at all: the status then has the entry without a name.
        tuple(entry for entry, name in named.items() if not name and entry not in made),
        asks,
        holding,
        meta.creation_timestamp or "",
        () if spec.node_name else tuple(gate.name for gate in spec.scheduling_gates),
        tuple(
            entry.resource_claim_template_name
            for entry in spec.resource_claims
            if entry.resource_claim_template_name and entry.name in unmade
        ),
        spec.scheduler_name,
        None if spec.node_name else next((entry for entry in status.conditions if entry.type == "PodScheduled"), None),
        _group(meta) if concerned else ("", 0),
        daemon,
        spec.pod_group,
    )


def _group(meta: ObjectMeta) -> tuple[str, int]:
    size = meta.annotations.get(GROUP_SIZE, "")
    return meta.labels.get(GROUP_KEY, ""), int(size) if size.isdecimal() and len(size) < 5 else 0


def may_have_devices(spec: core.PodSpec) -> bool:
    """Whether such pods may get Neuron devices: no template of a claim is read for it."""
    return bool(spec.resource_claims) or _extended(spec)


def _extended(spec: core.PodSpec) -> bool:
    """Whether a container asks for Neuron devices by extended resources."""
    return any(
        name in amounts
        for item in (*spec.init_containers, *spec.containers)
        for amounts in (item.resources.limits, item.resources.requests)
        for name in EXTENDED_RESOURCES
    )


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A warning about a pod, kubelet's or a controller's, or about what lacks one that cannot be created."""

    metadata: ObjectMeta
    kind: str
    name: str
    uid: str
    """Of the pod, or of what lacks it."""
    reason: str
    last: str
    """RFC 3339, or ""."""
    text: str
    """One line: without the writer's own words before those of others."""


class _Event(ApiObject, frozen=True):
    metadata: ObjectMeta
    involved_object: core.ObjectReference = core.ObjectReference()
    reason: str = ""
    message: str = ""
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    """In place of the others in those that are written by events.k8s.io, such as kube-scheduler's."""


def _event(item: _Event, _: str) -> PodEvent:
    return PodEvent(
        item.metadata.identity,
        item.involved_object.kind,
        item.involved_object.name,
        item.involved_object.uid,
        one_line(item.reason, 64),
        item.last_timestamp or item.first_timestamp or item.event_time or "",
        one_line(item.message.rpartition("dynamic resources: ")[2], MESSAGE_BYTES),
    )


def _kept(of: Resource[Any], struct: type[T], convert: Any = None, wire: Any = None) -> Resource[T]:
    return Resource(struct, of.kind, of.plural, of.versions, convert, None, wire)


NODES: Final = _kept(codec.NODES, Node)
SLICES: Final = _kept(codec.RESOURCE_SLICES, Slice, _slice, _Slice)
TAINT_RULES: Final = codec.DEVICE_TAINT_RULES
DAEMON_SETS: Final = codec.DAEMON_SETS
CLAIMS: Final = _kept(codec.PARTIAL_RESOURCE_CLAIMS, Claim, _claim, _Claim)
PODS: Final = _kept(codec.PODS, Pod, _pod, core.ReportedPod)
TEMPLATES: Final = codec.AS_SENT["ResourceClaimTemplate"]
EVENTS: Final = _kept(codec.EVENTS, PodEvent, _event, _Event)


@dataclass(frozen=True)
class ClusterView:
    """The objects of a cluster, in any order, and what they are looked up by."""

    nodes: Sequence[Node] = ()
    slices: Sequence[Slice] = ()
    claims: Sequence[Claim] = ()
    pods: Sequence[Pod] = ()
    taint_rules: Sequence[DeviceTaintRule] = ()
    events: Sequence[PodEvent] = ()
    """Warnings about pods, and about DaemonSets whose pods cannot be created."""
    daemon_sets: Sequence[DaemonSet] | None = None
    """Of the driver; None: the user may not list them."""
    whole: bool = True
    """False: claims and pods of one namespace, since the user may not list the rest."""
    with_nodes: bool = True
    """Whether Nodes could be listed."""
    with_slices: bool = True
    """Whether ResourceSlices could be."""
    with_claims: bool = True
    """Whether all claims could be read; else that one is not there means nothing."""
    group: Sequence[Pod] = ()
    """The other pods of the group of the pod in question, without their claims."""
    templates: Collection[str] | None = None
    """Names of the ResourceClaimTemplates in the namespace of the pod in question; None: not known."""

    @cached_property
    def pods_by_key(self) -> Mapping[tuple[str, str], Pod]:
        """By namespace and name."""
        return {pod.metadata.key: pod for pod in self.pods}

    @cached_property
    def claims_by_key(self) -> Mapping[tuple[str, str], Claim]:
        """By namespace and name."""
        return {claim.metadata.key: claim for claim in self.claims}

    @cached_property
    def nodes_by_name(self) -> Mapping[str, Node]:
        """Each once."""
        return {node.metadata.name: node for node in self.nodes}

    @cached_property
    def groups(self) -> Mapping[tuple[str, str], Sequence[Pod]]:
        """Pods of LeaderWorkerSets by namespace and key of their group."""
        groups: dict[tuple[str, str], list[Pod]] = defaultdict(list)
        for pod in (*self.pods, *self.group):
            if pod.group[0]:
                groups[pod.metadata.namespace, pod.group[0]].append(pod)
        return groups

    @cached_property
    def _warnings(self) -> Mapping[tuple[str, str], Sequence[PodEvent]]:
        """By namespace and UID of their pod or DaemonSet, the last one last: tenants name any UID in theirs."""
        events: dict[tuple[str, str], list[PodEvent]] = defaultdict(list)
        for item in sorted(self.events, key=lambda item: item.last):
            if item.uid:
                events[item.metadata.namespace, item.uid].append(item)
        return events

    @cached_property
    def _members(self) -> Mapping[tuple[str, str], Sequence[str]]:
        """Names of pods on nodes by namespace and name of the claim that they have of their PodGroup."""
        members: dict[tuple[str, str], list[str]] = {item.metadata.key: [] for item in self.claims if item.of_group}
        for pod in self.pods if members else ():
            for name in pod.claims if pod.node and pod.phase not in ENDED else ():
                members.get((pod.metadata.namespace, name), []).append(pod.metadata.name)
        return members

    def own(self, pod: Pod) -> list[Claim]:
        """The pod's claims, as far as they exist."""
        found = (self.claims_by_key.get((pod.metadata.namespace, name)) for name in pod.claims)
        return [claim for claim in found if claim is not None]

    def gone(self, pod: Pod) -> list[str]:
        """Names of the pod's claims that do not exist."""
        names = pod.claims if self.with_claims else ()
        return [name for name in names if (pod.metadata.namespace, name) not in self.claims_by_key]

    def users(self, claim: Claim) -> list[str]:
        """Names of the pods that have the claim; not of one that has no more than the name of one that is gone."""
        namespace = claim.metadata.namespace
        named = [(user, self.pods_by_key.get((namespace, user.name))) for user in claim.pods]
        own = [user.name for user, pod in named if pod is None or pod.metadata.uid == user.uid]
        return [*own, *sorted(self._members.get(claim.metadata.key, ()))]

    def refusal(self, of: ObjectMeta) -> str:
        """The last warning about a DaemonSet; "": there is none."""
        return next((f"{item.text} ({item.last})" for item in self._warnings.get((of.namespace, of.uid), ())[::-1]), "")

    def last(self, pod: Pod, reasons: Collection[str]) -> PodEvent | None:
        """The last warning about a pod with one of these reasons."""
        of_pod = self._warnings.get((pod.metadata.namespace, pod.metadata.uid), ())
        return next((item for item in reversed(of_pod) if item.reason in reasons), None)

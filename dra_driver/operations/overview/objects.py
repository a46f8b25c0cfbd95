"""What is kept of Nodes, ResourceSlices, DeviceTaintRules, ResourceClaims and Pods for an overview of a cluster.

Everything else is skipped while it is decoded. Nodes of one type publish equal devices, apart from what is of no
interest here, so these are kept once for all of them: 5,000 nodes with 144 devices each take some megabytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from dra_driver.kube.api.codec import DEVICE_TAINT_RULES, PARTIAL_RESOURCE_CLAIMS, Resource
from dra_driver.kube.kubelet.versions import kubelet_problem
from dra_driver.kube.objects.core import (
    NodeSpec,
    NodeSystemInfo,
    PodExtendedResourceClaimStatus,
    PodResourceClaim,
    PodSchedulingGate,
)
from dra_driver.kube.objects.meta import ApiObject, Condition, ObjectMeta
from dra_driver.kube.objects.resource import (
    DeviceAttribute,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    ResourceClaimConsumerReference,
)
from dra_driver.kube.objects.resource import DeviceTaint as KubeTaint
from dra_driver.legacy.annotations import NodeAnnotations, PodAnnotations
from dra_driver.legacy.resource_requests import ENDED, Container, Limits, PodRequest, pod_request, quantity
from dra_driver.legacy.rules import INSTANCE_TYPE_LABEL, Hardware, hardware
from dra_driver.legacy.usage import Holding, holding
from dra_driver.neuron.health.condition import DEVICE_PLUGIN, told
from dra_driver.neuron.health.condition import TYPE as HEALTH_CONDITION
from dra_driver.neuron.names import DRIVER_NAME, SERVER_2, SERVER_4
from dra_driver.util.errors import DriverError
from dra_driver.util.text import first_of, one_line

REASON_BYTES: Final = 400
"""The scheduler lists a reason for each kind of node."""

T = TypeVar("T")

Servers = tuple[tuple[int, str], ...]
"""UltraServers that a node is part of: number of nodes that share the server, and its id."""


# Nodes


class _NodeLabels(ApiObject, frozen=True):
    instance_type: str = msgspec.field(name=INSTANCE_TYPE_LABEL, default="")
    server_4: str = msgspec.field(name=SERVER_4, default="")
    server_2: str = msgspec.field(name=SERVER_2, default="")


class _NodeMeta(ApiObject, frozen=True):
    name: str = ""
    resource_version: str = ""
    labels: _NodeLabels = _NodeLabels()
    annotations: NodeAnnotations = NodeAnnotations()


class _NodeStatus(ApiObject, frozen=True):
    node_info: NodeSystemInfo = NodeSystemInfo()
    capacity: Limits = Limits()
    conditions: tuple[Condition, ...] = ()


class _Node(ApiObject, frozen=True):
    metadata: _NodeMeta = _NodeMeta()
    spec: NodeSpec = NodeSpec()
    status: _NodeStatus = _NodeStatus()


@dataclass(frozen=True, slots=True)
class Node:
    """A node."""

    metadata: ObjectMeta
    instance_type: str = ""
    """Of its label, which HyperPod begins with ``ml.``; "": it has none."""
    ready: bool = False
    cordoned: bool = False
    taints: tuple[str, ...] = ()
    """Those that keep pods away, as kubectl writes them, but for the one of a cordon."""
    servers: Servers = ()
    health: Condition | None = None
    """The condition ``NeuronHealth``."""
    plugin: Hardware | None = None
    """What a device plugin offers there; None: nothing."""
    unusable: str = ""
    """Value of the annotation of devices that no pod may get from the plugin."""
    kubelet_problem: str = ""
    """Why the driver offers nothing anew there, or ""."""
    held_back: str = ""
    """Why the driver offers some or all chips not anew, or "": the condition about a device plugin."""


def _node(item: _Node, _: str) -> Node:
    meta, conditions = item.metadata, {entry.type: entry for entry in item.status.conditions}
    ready, labels = conditions.get("Ready"), meta.labels
    servers = ((4, labels.server_4), (2, labels.server_2))
    return Node(
        _meta(meta.name, resource_version=meta.resource_version),
        labels.instance_type,
        ready is not None and ready.status == "True",
        item.spec.unschedulable,
        tuple(
            f"{taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}"
            for taint in item.spec.taints
            if taint.effect in ("NoSchedule", "NoExecute") and taint.key != "node.kubernetes.io/unschedulable"
        ),
        tuple((size, server) for size, server in servers if server),
        conditions.get(HEALTH_CONDITION),
        _plugin(labels.instance_type, item.status.capacity),
        meta.annotations.unusable or "",
        kubelet_problem(item.status.node_info.kubelet_version),
        told(DEVICE_PLUGIN, item.status.conditions),
    )


def _plugin(instance_type: str, capacity: Limits) -> Hardware | None:
    counts = [0 if value is None else quantity(value) or 0 for value in (capacity.devices, capacity.cores)]
    try:
        return hardware(instance_type, *counts) if any(counts) else None
    except DriverError:  # what the node reports fits no hardware: its devices cannot be told apart
        return None


# Taints of devices


class Taint(NamedTuple):
    """A taint of a device."""

    taint: DeviceTaint
    """``TaintOfRule`` where a DeviceTaintRule adds it."""
    since: str = ""
    """RFC 3339, or ""."""


def _taint(given: KubeTaint) -> Taint:
    return Taint(DeviceTaint(given.key, given.value, given.effect), given.time_added or "")


class _TaintRuleSpec(ApiObject, frozen=True):
    taint: KubeTaint
    device_selector: DeviceTaintSelector | None = None


class _TaintRule(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: _TaintRuleSpec


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule."""

    metadata: ObjectMeta
    rule: DeviceTaintRule
    since: str = ""
    """RFC 3339, or ""."""


def _taint_rule(item: _TaintRule, _: str) -> TaintRule:
    meta = _meta(item.metadata.name, resource_version=item.metadata.resource_version)
    taint, since = _taint(item.spec.taint)
    return TaintRule(meta, DeviceTaintRule(meta, DeviceTaintRuleSpec(taint, item.spec.device_selector)), since)


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
    taints: tuple[KubeTaint, ...] = ()


class _Device(_Basic, frozen=True):
    name: str = ""
    basic: _Basic | None = None
    """v1beta1 has the other fields in here."""


class _Pool(ApiObject, frozen=True):
    name: str = ""
    generation: int = 0


class _SliceSpec(ApiObject, frozen=True):
    driver: str = ""
    pool: _Pool = _Pool()
    node_name: str = ""
    devices: tuple[_Device, ...] | None = ()
    """None: there are none, on a server before 1.35."""


class _Slice(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: _SliceSpec = _SliceSpec()


class Offered(NamedTuple):
    """A device on offer. Compared and hashed by the hundred thousand."""

    name: str
    resource: str = ""
    """``resourceType``."""
    chip: int | None = None
    """``deviceId``."""
    core_size: int | None = None
    """``logicalCoreSize``."""
    taints: tuple[Taint, ...] = ()


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
    servers = ((4, first.server_4.string), (2, first.server_2.string))
    return Slice(
        _meta(item.metadata.name, resource_version=item.metadata.resource_version),
        spec.node_name,
        spec.pool.name,
        spec.pool.generation,
        first.instance_type.string or "",
        tuple((size, server) for size, server in servers if server),
        _once(
            tuple(
                Offered(
                    name,
                    basic.attributes.resource.string or "",
                    basic.attributes.device_id.int_,
                    basic.attributes.logical_core_size.int_,
                    tuple(map(_taint, basic.taints)),
                )
                for name, basic in found
            )
        ),
    )


@lru_cache(maxsize=4096)
def _once(value: T) -> T:
    """The first of equal values."""
    return value


# Claims


class _Exactly(ApiObject, frozen=True):
    device_class_name: str = ""
    allocation_mode: str = ""
    count: int = 0


class _Request(_Exactly, frozen=True):
    name: str = ""
    exactly: _Exactly | None = None
    """v1beta1 has its fields beside it."""
    first_available: tuple[_Exactly, ...] = ()


class _Requests(ApiObject, frozen=True):
    requests: tuple[_Request, ...] | None = ()
    """None: there are none, on a server before 1.35."""


class _ClaimSpec(ApiObject, frozen=True):
    devices: _Requests = _Requests()


class _Result(ApiObject, frozen=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None


class _Results(ApiObject, frozen=True):
    results: tuple[_Result, ...] = ()


class _Allocation(ApiObject, frozen=True):
    devices: _Results = _Results()


class _ClaimStatus(ApiObject, frozen=True):
    allocation: _Allocation | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()


class _Claim(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: _ClaimSpec = _ClaimSpec()
    status: _ClaimStatus = _ClaimStatus()


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim."""

    metadata: ObjectMeta
    asks: str
    """Such as ``4 x neuron.aws.com``."""
    allocated: bool = False
    held: tuple[tuple[str, str], ...] = ()
    """Pool and name of this driver's devices that it has, without those that it only looks at (admin access)."""
    pods: tuple[str, ...] = ()
    """Names of the pods that may use it, of its namespace."""


def _claim(item: _Claim, _: str) -> Claim:
    meta, allocation = item.metadata, item.status.allocation
    results = allocation.devices.results if allocation is not None else ()
    return Claim(
        _meta(meta.name, meta.namespace, resource_version=meta.resource_version),
        _once(first_of([_asked(request) for request in item.spec.devices.requests or ()], 3)),
        allocation is not None,
        tuple(
            (entry.pool, entry.device) for entry in results if entry.driver == DRIVER_NAME and not entry.admin_access
        ),
        tuple(entry.name for entry in item.status.reserved_for if entry.resource == "pods" and not entry.api_group),
    )


def _asked(request: _Request) -> str:
    alternatives = request.first_available or (request.exactly or request,)
    return " or ".join(
        f"{'all' if one.allocation_mode == 'All' else one.count or 1} x {one.device_class_name}" for one in alternatives
    )


# Pods


class _PodMeta(ApiObject, frozen=True):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    annotations: PodAnnotations = PodAnnotations()


class _PodSpec(ApiObject, frozen=True):
    node_name: str = ""
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class _PodStatus(ApiObject, frozen=True):
    phase: str = "Pending"
    conditions: tuple[Condition, ...] = ()
    resource_claim_statuses: tuple[PodResourceClaim, ...] = ()
    extended_resource_claim_status: PodExtendedResourceClaimStatus | None = None


class _Pod(ApiObject, frozen=True):
    metadata: _PodMeta = _PodMeta()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod."""

    metadata: ObjectMeta
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
    waits: str = ""
    """Why it has no node yet, in one line."""

    @property
    def counts(self) -> bool:
        """Whether it may have Neuron devices, or may get some."""
        return self.phase not in ENDED and bool(self.claims or self.lacking or self.asks)


def _pod(item: _Pod, _: str) -> Pod:
    meta, spec, status = item.metadata, item.spec, item.status
    made = {entry.name: entry.resource_claim_name for entry in status.resource_claim_statuses}
    named = {entry.name: entry.resource_claim_name or made.get(entry.name) for entry in spec.resource_claims}
    extended = status.extended_resource_claim_status
    claims = [name for name in named.values() if name]
    requests = _requests(spec.init_containers, spec.containers)
    held = None
    if spec.node_name and extended is None:
        held = holding(f"{meta.namespace}/{meta.name}", meta.annotations, requests)
    return Pod(
        _meta(meta.name, meta.namespace, resource_version=meta.resource_version),
        spec.node_name,
        status.phase,
        meta.deletion_timestamp is not None,
        (*claims, *((extended.resource_claim_name,) if extended is not None else ())),
        # A template may make no claim at all: the status then has the entry without a name.
        tuple(entry for entry, name in named.items() if not name and entry not in made),
        ", ".join(f"{request.count} x {request.resource.value}" for request in requests or ()),
        held,
        "" if spec.node_name else one_line(_why(item), REASON_BYTES),
    )


@lru_cache(maxsize=4096)
def _requests(init: tuple[Container, ...], main: tuple[Container, ...]) -> PodRequest | None:
    try:
        return pod_request(init, main)
    except DriverError:
        return None


def _why(item: _Pod) -> str:
    if item.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    if item.spec.scheduling_gates:
        return f"scheduling gates: {first_of([gate.name for gate in item.spec.scheduling_gates], 3)}"
    scheduled = next((entry for entry in item.status.conditions if entry.type == "PodScheduled"), None)
    if scheduled is None or scheduled.status == "True":
        return "no scheduler has looked at it yet"
    return scheduled.message or scheduled.reason


def _meta(name: str, namespace: str = "", *, resource_version: str) -> ObjectMeta:
    return ObjectMeta(name=name, namespace=namespace, resource_version=resource_version)


def _resource(struct: type[T], kind: str, plural: str, versions: Iterable[str], convert: Any, wire: Any) -> Resource[T]:
    return Resource(struct, kind, plural, tuple(versions), convert, None, wire)


NODES: Final = _resource(Node, "Node", "nodes", ("v1",), _node, _Node)
SLICES: Final = _resource(Slice, "ResourceSlice", "resourceslices", PARTIAL_RESOURCE_CLAIMS.versions, _slice, _Slice)
TAINT_RULES: Final = _resource(
    TaintRule, "DeviceTaintRule", "devicetaintrules", DEVICE_TAINT_RULES.versions, _taint_rule, _TaintRule
)
CLAIMS: Final = _resource(Claim, "ResourceClaim", "resourceclaims", PARTIAL_RESOURCE_CLAIMS.versions, _claim, _Claim)
PODS: Final = _resource(Pod, "Pod", "pods", ("v1",), _pod, _Pod)

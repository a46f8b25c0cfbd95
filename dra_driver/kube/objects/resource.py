"""Devices and claims: the group ``resource.k8s.io`` in the shape of ``v1``.

``v1beta2`` has the same shape; ``v1`` makes it of ``v1beta1``, which wraps a device's attributes and capacity in
``basic``, and has in the request itself what is below ``exactly`` since then.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dra_driver.kube.objects.core import NodeSelector
from dra_driver.kube.objects.meta import ApiObject, Condition, JsonObject, ObjectMeta, Quantity

GROUP: Final = "resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Versions of the group, newest first."""
TAINT_RULE_VERSIONS: Final = ("v1", "v1beta2", "v1alpha3")
"""Those in which DeviceTaintRules may be served; most servers before 1.37 serve none."""


class ObjectIdentity(ApiObject, frozen=True):
    """``metadata``: which object it is. What its author writes as he likes is skipped while it is decoded."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


# Resource slices


class DeviceAttribute(ApiObject, frozen=True):
    """Exactly one of the fields is set; lists with the feature gate DRAListTypeAttributes (KEP-5491) only."""

    int_: int | None = msgspec.field(name="int", default=None)
    bool_: bool | None = msgspec.field(name="bool", default=None)
    string: str | None = None
    version: str | None = None
    ints: tuple[int, ...] | None = None
    bools: tuple[bool, ...] | None = None
    strings: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None


class CapacityRange(ApiObject, frozen=True):
    """``requestPolicy.validRange``."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(ApiObject, frozen=True):
    """How much of a capacity one request may consume."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(ApiObject, frozen=True):
    """``capacity[name]`` of a device."""

    value: Quantity = 0
    request_policy: CapacityRequestPolicy | None = None


class Counter(ApiObject, frozen=True):
    """One counter of a set, or the consumed amount of it."""

    value: Quantity = 0


class CounterSet(ApiObject, frozen=True):
    """``sharedCounters[]`` of a slice: counters that devices of the same pool consume from."""

    name: str
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)


class DeviceCounterConsumption(ApiObject, frozen=True):
    """``consumesCounters[]`` of a device: what it consumes of a counter set while it is allocated."""

    counter_set: str
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)
    compatibility_groups: tuple[str, ...] = ()


class DeviceTaint(ApiObject, frozen=True):
    """Why a device should not be used.

    Kubernetes sets ``timeAdded`` (RFC 3339, whole seconds) where it is not given; a writer that wants its objects to
    compare equal gives it.
    """

    key: str
    value: str = ""
    effect: str = ""
    """``None``, or ``NoSchedule`` or ``NoExecute``, which prevent allocation."""
    time_added: str | None = None


class DeviceToleration(ApiObject, frozen=True):
    """A taint that a request puts up with; an empty key or effect matches all."""

    key: str = ""
    operator: str = ""
    """``Exists``, or ``Equal``, which is the default."""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Device(ApiObject, frozen=True):
    """One device of a slice."""

    name: str
    attributes: dict[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    capacity: dict[str, DeviceCapacity] = msgspec.field(default_factory=dict)
    consumes_counters: tuple[DeviceCounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] | None = None
    binding_failure_conditions: tuple[str, ...] | None = None
    allow_multiple_allocations: bool | None = None


class ResourcePool(ApiObject, frozen=True):
    """Pool identity of a slice. Only slices of the highest generation are effective."""

    name: str
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(ApiObject, frozen=True):
    """``spec``: devices or (from Kubernetes 1.35 on) shared counters, for one node, some nodes or all nodes."""

    driver: str
    pool: ResourcePool
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(ApiObject, frozen=True):
    """A ResourceSlice. ``metadata.name`` determines the order within its pool."""

    metadata: ObjectMeta
    spec: ResourceSliceSpec


class PartialDevice(ApiObject, frozen=True):
    """A device's name; it has the same path in every version of the API."""

    name: str


class PartialResourceSliceSpec(ApiObject, frozen=True):
    """``spec``, what tells which devices there are."""

    driver: str
    pool: ResourcePool
    node_name: str | None = None
    devices: tuple[PartialDevice, ...] | None = ()
    """None: there are none, on a server before 1.35."""


class PartialResourceSlice(ApiObject, frozen=True):
    """A ResourceSlice with the names of its devices."""

    metadata: ObjectIdentity
    spec: PartialResourceSliceSpec


class DeviceTaintSelector(ApiObject, frozen=True):
    """``deviceSelector`` of a DeviceTaintRule: all given fields must match."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(ApiObject, frozen=True):
    """``spec`` of a DeviceTaintRule; without a selector it taints nothing."""

    taint: DeviceTaint
    device_selector: DeviceTaintSelector | None = None


class DeviceTaintRule(ApiObject, frozen=True):
    """A DeviceTaintRule: an administrator's taint for published devices."""

    metadata: ObjectMeta
    spec: DeviceTaintRuleSpec


# Device classes


class CELDeviceSelector(ApiObject, frozen=True):
    """``selectors[].cel``."""

    expression: str


class DeviceSelector(ApiObject, frozen=True):
    """``cel`` is None for a kind of selector that is not known here."""

    cel: CELDeviceSelector | None = None


class OpaqueDeviceConfiguration(ApiObject, frozen=True):
    """Parameters for one driver; ``parameters`` is any JSON object of at most 10 KiB, unchecked by the API server."""

    driver: str
    parameters: Any = None
    """See ``json_value``."""


def json_value(field: object) -> object:
    """The value of a field of any JSON, which ``ReceivedClaim`` leaves as text: 10 KiB may take 250 as a value.

    The API server keeps bytes that are no text, numbers that are none here, and any number of levels: then the value is
    that text itself, which no program has written.
    """
    if not isinstance(field, msgspec.Raw):
        return field
    try:
        return msgspec.json.decode(field)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return bytes(field).decode(errors="replace")


class DeviceClassConfiguration(ApiObject, frozen=True):
    """``config[]`` of a class."""

    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(ApiObject, frozen=True):
    """``spec`` of a class."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceClassConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(ApiObject, frozen=True):
    """A DeviceClass."""

    metadata: ObjectMeta
    spec: DeviceClassSpec = DeviceClassSpec()


# Resource claims: what they ask for


class CapacityRequirements(ApiObject, frozen=True):
    """``capacity`` of a request."""

    requests: dict[str, Quantity] = msgspec.field(default_factory=dict)


class ExactDeviceRequest(ApiObject, frozen=True):
    """``exactly`` of a request."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 0
    """0 means 1 with ExactCount."""
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(ApiObject, frozen=True):
    """``firstAvailable[]`` of a request."""

    name: str
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 0
    """0 means 1 with ExactCount."""
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceRequest(ApiObject, frozen=True):
    """Either ``exactly`` or ``first_available`` is set."""

    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(ApiObject, frozen=True):
    """Exactly one of the attributes is set; empty ``requests`` means all requests of the claim."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaimConfiguration(ApiObject, frozen=True):
    """``config[]`` of a claim; empty ``requests`` means all requests of the claim."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(ApiObject, frozen=True):
    """``spec.devices`` of a claim."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceClaimConfiguration, ...] = ()


class ResourceClaimSpec(ApiObject, frozen=True):
    """``spec`` of a claim."""

    devices: DeviceClaim = DeviceClaim()


class ResourceClaimTemplateSpec(ApiObject, frozen=True):
    """``spec`` of a ResourceClaimTemplate."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
    metadata: ObjectMeta = ObjectMeta()


class ResourceClaimTemplate(ApiObject, frozen=True):
    """A ResourceClaimTemplate."""

    metadata: ObjectMeta
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


# Resource claims: what was allocated


class DeviceRequestAllocationResult(ApiObject, frozen=True):
    """``status.allocation.devices.results[]``: one device; ``request`` is ``name`` or ``name/subrequest``."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    """A copy of the request's."""
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, str] = msgspec.field(default_factory=dict)


class DeviceAllocationConfiguration(ApiObject, frozen=True):
    """``status.allocation.devices.config[]``; empty ``requests`` means all requests of the claim."""

    source: str
    """``FromClass`` or ``FromClaim``."""
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationResult(ApiObject, frozen=True):
    """``status.allocation.devices``."""

    results: tuple[DeviceRequestAllocationResult, ...] = ()
    config: tuple[DeviceAllocationConfiguration, ...] = ()


class AllocationResult(ApiObject, frozen=True):
    """``status.allocation``."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None


class ResourceClaimConsumerReference(ApiObject, frozen=True):
    """A consumer that may use the claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""
    api_group: str = ""

    @property
    def is_pod(self) -> bool:
        """Whether it is a pod."""
        return self.resource == "pods" and not self.api_group

    @property
    def text(self) -> str:
        """Its name; of what is no pod, after what it is."""
        return self.name if self.is_pod else f"{self.resource}.{self.api_group} {self.name}"


class PartialAllocatedDeviceStatus(ApiObject, frozen=True):
    """``status.devices[]`` without ``data``: what a driver says of a device that is allocated to the claim."""

    driver: str
    pool: str
    device: str
    conditions: tuple[Condition, ...] = ()


class AllocatedDeviceStatus(PartialAllocatedDeviceStatus, frozen=True):
    """``status.devices[]`` (KEP-4817)."""

    data: Any = None
    """A JSON object of the driver's own, of at most 10 KiB: see ``json_value``."""


class PartialResourceClaimStatus(ApiObject, frozen=True):
    """``status``; ``allocation`` is None until the scheduler has allocated."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()

    @property
    def results(self) -> tuple[DeviceRequestAllocationResult, ...]:
        """The allocated devices; none before there is an allocation."""
        return self.allocation.devices.results if self.allocation is not None else ()


class ResourceClaimStatus(PartialResourceClaimStatus, frozen=True):
    """``status`` with what drivers say of the devices."""

    devices: tuple[AllocatedDeviceStatus, ...] = ()


class PartialResourceClaim(ApiObject, frozen=True):
    """A ResourceClaim without what it asks for and what drivers say of it: the same in every version of the API.

    5,000 of them take 22 MB, in place of 30, and 9 MB more with what the driver says of their devices.
    """

    metadata: ObjectMeta
    status: PartialResourceClaimStatus = PartialResourceClaimStatus()


POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim made from a template: what the pod calls it (k8s.io/api, ``resource/v1/types.go``)."""
EXTENDED_RESOURCE_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of a claim that the scheduler made for the extended resources in a pod's limits (Kubernetes,
``staging/src/k8s.io/api/resource/v1/types.go``)."""


class ReportedClaim(PartialResourceClaim, frozen=True):
    """The same with what drivers say of its devices, up to 10 KiB each: for one claim at a time."""

    status: ResourceClaimStatus = ResourceClaimStatus()


class ResourceClaim(ReportedClaim, frozen=True):
    """A ResourceClaim."""

    spec: ResourceClaimSpec = ResourceClaimSpec()


class ReceivedConfiguration(OpaqueDeviceConfiguration, frozen=True):
    """The same, not decoded."""

    parameters: msgspec.Raw = msgspec.Raw(b"null")


class ReceivedAllocationConfiguration(DeviceAllocationConfiguration, frozen=True):
    """``status.allocation.devices.config[]``, likewise."""

    opaque: ReceivedConfiguration | None = None


class ReceivedAllocationResult(DeviceAllocationResult, frozen=True):
    """``status.allocation.devices``, likewise."""

    config: tuple[ReceivedAllocationConfiguration, ...] = ()


class ReceivedAllocation(AllocationResult, frozen=True):
    """``status.allocation``, likewise."""

    devices: ReceivedAllocationResult = ReceivedAllocationResult()


class ReceivedDeviceStatus(AllocatedDeviceStatus, frozen=True):
    """``status.devices[]``, likewise."""

    data: msgspec.Raw = msgspec.Raw(b"null")


class ReceivedClaimStatus(ResourceClaimStatus, frozen=True):
    """``status``, likewise."""

    allocation: ReceivedAllocation | None = None
    devices: tuple[ReceivedDeviceStatus, ...] = ()


class ReceivedClaim(ReportedClaim, frozen=True):
    """The same, in which JSON that people write as they like is not decoded."""

    status: ReceivedClaimStatus = ReceivedClaimStatus()

    @property
    def in_short(self) -> ReportedClaim:
        """The claim without what tenants write as they like into its metadata, and apart from the body that it was in.

        It is kept while it is prepared.
        """
        annotations = {
            key: value
            for key, value in self.metadata.annotations.items()
            if key in (POD_CLAIM, EXTENDED_RESOURCE_CLAIM)
        }
        owners = tuple(owner for owner in self.metadata.owner_references if owner.controller)
        meta = replace(self.metadata.identity, annotations=annotations, owner_references=owners)
        status = self.status
        devices = tuple(replace(entry, data=entry.data.copy()) for entry in status.devices)
        if (allocation := status.allocation) is not None:
            config = tuple(
                entry
                if (opaque := entry.opaque) is None
                else replace(entry, opaque=replace(opaque, parameters=opaque.parameters.copy()))
                for entry in allocation.devices.config
            )
            allocation = replace(allocation, devices=replace(allocation.devices, config=config))
        return ReportedClaim(meta, ResourceClaimStatus(allocation, status.reserved_for, devices))


class AllocatedDevice(ApiObject, frozen=True):
    """``status.allocation.devices.results[]``: which device it is."""

    driver: str
    pool: str
    device: str
    admin_access: bool | None = None


class AllocatedDevices(ApiObject, frozen=True):
    """``status.allocation.devices``, without parameters."""

    results: tuple[AllocatedDevice, ...] = ()


class Allocation(ApiObject, frozen=True):
    """``status.allocation``, the field in use."""

    devices: AllocatedDevices = AllocatedDevices()


class AllocatedClaimStatus(ApiObject, frozen=True):
    """``status``: what is allocated, and to whom."""

    allocation: Allocation | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()

    @property
    def results(self) -> tuple[AllocatedDevice, ...]:
        """The allocated devices; none before there is an allocation."""
        return self.allocation.devices.results if self.allocation is not None else ()


class AllocatedClaim(ApiObject, frozen=True):
    """A ResourceClaim as one of all of a cluster: who has which devices, the same in every version of the API.

    What tenants write as they like (annotations, labels, parameters) is skipped while it is decoded. What is left has
    bounds: a claim has at most 32 devices and 256 consumers.
    """

    metadata: ObjectIdentity
    status: AllocatedClaimStatus = AllocatedClaimStatus()

    def has_devices(self, driver: str, pool: str = "") -> bool:
        """Whether it has devices of a driver, and of a pool of it if one is named."""
        return any(item.driver == driver and pool in ("", item.pool) for item in self.status.results)


# Older versions


def v1(document: JsonObject, kind: str, version: str) -> JsonObject:
    """An object of ``version`` in the shape of ``v1``. Malformed parts are passed through: decoding reports them."""
    spec = document.get("spec")
    if version != "v1beta1" or not isinstance(spec, dict):
        return document
    if kind == "ResourceSlice":
        return {**document, "spec": _each(spec, "devices", _unwrapped)}
    if kind == "ResourceClaim":
        return {**document, "spec": _exact_requests(spec)}
    if kind == "ResourceClaimTemplate" and isinstance(spec.get("spec"), dict):
        return {**document, "spec": {**spec, "spec": _exact_requests(spec["spec"])}}
    return document


def _each(holder: JsonObject, name: str, change: Any) -> JsonObject:
    items = holder.get(name)
    if not isinstance(items, list):
        return holder
    return {**holder, name: [change(item) if isinstance(item, dict) else item for item in items]}


def _unwrapped(device: JsonObject) -> JsonObject:
    basic = device.get("basic")
    if not isinstance(basic, dict):
        return device
    return {**{key: item for key, item in device.items() if key != "basic"}, **basic}


def _exact_requests(spec: JsonObject) -> JsonObject:
    devices = spec.get("devices")
    return {**spec, "devices": _each(devices, "requests", _exact)} if isinstance(devices, dict) else spec


def _exact(request: JsonObject) -> JsonObject:
    if "firstAvailable" in request or "exactly" in request:
        return request
    return {"name": request.get("name"), "exactly": {key: item for key, item in request.items() if key != "name"}}

"""The Kubernetes objects that determine an allocation, with the fields that kube-scheduler evaluates.

They have more fields than ``kube.api.objects``, which declares only what the driver itself reads and writes. Quantities
are kept as texts; ``kube.quantity`` parses them. Undeclared fields are ignored on reading.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dra_driver.kube.api.objects import DeviceAttribute, ObjectMeta, ResourceClaimConsumerReference


class _Object(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Camel case on the wire, defaults omitted (inherited by subclasses)."""


Quantity = str | int | float
"""A quantity as YAML or JSON gives it: ``10Gi``, ``"4"``, or a bare number."""


class NodeSelectorRequirement(_Object, frozen=True):
    """``matchExpressions[]`` or ``matchFields[]``."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(_Object, frozen=True):
    """All requirements must hold; a term without any matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(_Object, frozen=True):
    """At least one of the terms must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class CapacityRange(_Object, frozen=True):
    """``requestPolicy.validRange``."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(_Object, frozen=True):
    """How much of a capacity one request may consume."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(_Object, frozen=True):
    """``capacity[name]`` of a device."""

    value: Quantity
    request_policy: CapacityRequestPolicy | None = None


class Counter(_Object, frozen=True):
    """One counter of a set, or the consumed amount of it."""

    value: Quantity


class CounterSet(_Object, frozen=True):
    """``sharedCounters[]`` of a slice."""

    name: str
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)


class CounterConsumption(_Object, frozen=True):
    """``consumesCounters[]`` of a device."""

    counter_set: str
    counters: dict[str, Counter] = msgspec.field(default_factory=dict)
    compatibility_groups: tuple[str, ...] = ()


class DeviceTaint(_Object, frozen=True):
    """Only the effects NoSchedule and NoExecute prevent allocation."""

    key: str
    value: str = ""
    effect: str = ""


class DeviceToleration(_Object, frozen=True):
    """``tolerations[]`` of a request; an empty effect or key matches all."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Device(_Object, frozen=True):
    """One device of a slice."""

    name: str
    attributes: dict[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    capacity: dict[str, DeviceCapacity] = msgspec.field(default_factory=dict)
    consumes_counters: tuple[CounterConsumption, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool | None = None
    binding_conditions: tuple[str, ...] | None = None
    binding_failure_conditions: tuple[str, ...] | None = None
    allow_multiple_allocations: bool | None = None


class ResourcePool(_Object, frozen=True):
    """Pool identity of a slice."""

    name: str
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(_Object, frozen=True):
    """``spec`` of a slice: devices or shared counters, for one node, some nodes or all nodes."""

    driver: str
    pool: ResourcePool
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(_Object, frozen=True):
    """A ResourceSlice. ``metadata.name`` determines the order within its pool."""

    metadata: ObjectMeta
    spec: ResourceSliceSpec


class DeviceTaintSelector(_Object, frozen=True):
    """``deviceSelector`` of a DeviceTaintRule: all given fields must match."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(_Object, frozen=True):
    """``spec`` of a DeviceTaintRule; without a selector it taints nothing."""

    taint: DeviceTaint
    device_selector: DeviceTaintSelector | None = None


class DeviceTaintRule(_Object, frozen=True):
    """A DeviceTaintRule: an administrator's taint for published devices."""

    metadata: ObjectMeta
    spec: DeviceTaintRuleSpec


class CelSelector(_Object, frozen=True):
    """``selectors[].cel``."""

    expression: str


class DeviceSelector(_Object, frozen=True):
    """``cel`` is None for a kind of selector that is not known here."""

    cel: CelSelector | None = None


class OpaqueDeviceConfiguration(_Object, frozen=True):
    """Parameters for one driver, any JSON object."""

    driver: str
    parameters: Any = None


class ClassConfiguration(_Object, frozen=True):
    """``config[]`` of a class."""

    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClassSpec(_Object, frozen=True):
    """``spec`` of a class."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[ClassConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(_Object, frozen=True):
    """A DeviceClass."""

    metadata: ObjectMeta
    spec: DeviceClassSpec = DeviceClassSpec()


class CapacityRequirements(_Object, frozen=True):
    """``capacity`` of a request."""

    requests: dict[str, Quantity] = msgspec.field(default_factory=dict)


class ExactDeviceRequest(_Object, frozen=True):
    """``exactly`` of a request."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 0
    """0 means 1 with ExactCount."""
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(_Object, frozen=True):
    """``firstAvailable[]`` of a request."""

    name: str
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 0
    """0 means 1 with ExactCount."""
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceRequest(_Object, frozen=True):
    """Either ``exactly`` or ``first_available`` is set."""

    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(_Object, frozen=True):
    """Exactly one of the attributes is set; empty ``requests`` means all requests of the claim."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class ClaimConfiguration(_Object, frozen=True):
    """``config[]`` of a claim; empty ``requests`` means all requests of the claim."""

    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(_Object, frozen=True):
    """``spec.devices`` of a claim."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[ClaimConfiguration, ...] = ()


class ResourceClaimSpec(_Object, frozen=True):
    """``spec`` of a claim."""

    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(_Object, frozen=True):
    """``status.allocation.devices.results[]``."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = msgspec.field(name="shareID", default=None)
    consumed_capacity: dict[str, str] = msgspec.field(default_factory=dict)


class AllocatedConfiguration(_Object, frozen=True):
    """``status.allocation.devices.config[]``; empty ``requests`` means all requests of the claim."""

    source: str
    requests: tuple[str, ...] = ()
    opaque: OpaqueDeviceConfiguration | None = None


class AllocatedDevices(_Object, frozen=True):
    """``status.allocation.devices``."""

    results: tuple[AllocatedDevice, ...] = ()
    config: tuple[AllocatedConfiguration, ...] = ()


class AllocationResult(_Object, frozen=True):
    """``status.allocation``."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None


class ResourceClaimStatus(_Object, frozen=True):
    """``status`` of a claim."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] = ()


class ResourceClaim(_Object, frozen=True):
    """A ResourceClaim."""

    metadata: ObjectMeta
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

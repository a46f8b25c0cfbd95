"""The API server's validation of objects that drivers and administrators write: slices and DeviceTaintRules.

Source: ``pkg/apis/resource/validation`` of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from dra_driver.kube import formats
from dra_driver.kube.documents import Origin
from dra_driver.kube.objects import limits
from dra_driver.kube.objects.resource import (
    CapacityRange,
    CapacityRequestPolicy,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_driver.kube.quantity import nanos
from dra_driver.simulator.manifests.corevalidation import node_selector
from dra_driver.simulator.manifests.validation import (
    EFFECTS,
    Problem,
    amount,
    below,
    each,
    many,
    raise_first,
    twice,
    wrong,
)


def check_slice(item: ResourceSlice, origin: Origin) -> None:
    """Raise ManifestError for the first problem in a slice."""
    raise_first(_slice(item.spec), origin, ("spec",))


def check_taint_rule(item: DeviceTaintRule, origin: Origin) -> None:
    """Raise ManifestError for the first problem in a rule."""
    raise_first(_rule(item.spec), origin, ("spec",))


def _rule(spec: DeviceTaintRuleSpec) -> Iterator[Problem]:
    selector = spec.device_selector
    if selector is not None:
        for name, value, check in (
            ("driver", selector.driver, formats.driver),
            ("pool", selector.pool, formats.pool),
            ("device", selector.device, formats.label),
        ):
            if value is not None:
                yield from wrong(check(value), "deviceSelector", name)
    yield from below(("taint",), _taint(spec.taint))


def _taint(taint: DeviceTaint) -> Iterator[Problem]:
    yield from wrong(formats.label_key(taint.key), "key")
    yield from wrong(formats.label_value(taint.value), "value")
    if taint.time_added is not None:
        yield from wrong(formats.time(taint.time_added), "timeAdded")
    if taint.effect not in EFFECTS:
        yield ("effect",), f"{formats.shown(taint.effect)} is not one of {', '.join(EFFECTS)}"


def _slice(spec: ResourceSliceSpec) -> Iterator[Problem]:
    yield from wrong(formats.driver(spec.driver), "driver")
    yield from wrong(formats.pool(spec.pool.name), "pool", "name")
    if spec.pool.resource_slice_count < 1:
        yield ("pool", "resourceSliceCount"), f"{spec.pool.resource_slice_count} is less than 1"
    if spec.pool.generation < 0:
        yield ("pool", "generation"), f"{spec.pool.generation} is negative"
    yield from _nodes(spec, per_device=spec.per_device_node_selection)
    if spec.node_selector is not None and len(spec.node_selector.node_selector_terms) != 1:
        yield ("nodeSelector", "nodeSelectorTerms"), "exactly one term is required"
    special = any(device.taints or device.consumes_counters for device in spec.devices)
    yield from many("devices", spec.devices, limits.MAX_SPECIAL_DEVICES if special else limits.MAX_DEVICES)
    yield from twice([device.name for device in spec.devices], "devices")
    per_device = bool(spec.per_device_node_selection)
    yield from each("devices", spec.devices, lambda device: _device(device, per_device=per_device))
    yield from many("sharedCounters", spec.shared_counters, limits.MAX_COUNTER_SETS)
    yield from twice([group.name for group in spec.shared_counters], "sharedCounters")
    yield from each("sharedCounters", spec.shared_counters, _counter_set)


def _nodes(item: ResourceSliceSpec | Device, *, per_device: bool | None = None) -> Iterator[Problem]:
    """Check that exactly one of the ways to select nodes is used."""
    ways = {
        "nodeName": item.node_name,
        "nodeSelector": item.node_selector,
        "allNodes": item.all_nodes,
        "perDeviceNodeSelection": per_device,
    }
    if item.node_name is not None:
        yield from wrong(formats.subdomain(item.node_name), "nodeName")
    if item.node_selector is not None:
        yield from below(("nodeSelector",), node_selector(item.node_selector))
    yield from (((name,), "must be true or left out") for name, value in ways.items() if value is False)
    if sum(value is not None for value in ways.values()) != 1:
        yield (), f"exactly one of {', '.join(ways)} is required"


def _counter_set(group: CounterSet) -> Iterator[Problem]:
    yield from wrong(formats.label(group.name), "name")
    yield from _counters(group.counters)


def _counters(counters: dict[str, Counter]) -> Iterator[Problem]:
    if not counters:
        yield ("counters",), "must not be empty"
    yield from many("counters", counters, limits.MAX_COUNTERS)
    for name, counter in counters.items():
        yield from wrong(formats.label(name), "counters", name)
        yield from amount(counter.value, "counters", name)


def _device(device: Device, *, per_device: bool) -> Iterator[Problem]:
    yield from wrong(formats.label(device.name), "name")
    yield from many("", (*device.attributes, *device.capacity), limits.MAX_ATTRIBUTES)
    for name, attribute in device.attributes.items():
        yield from wrong(formats.attribute(name), "attributes", name)
        yield from below(("attributes", name), _attribute(attribute))
    for name, capacity in device.capacity.items():
        yield from wrong(formats.attribute(name), "capacity", name)
        yield from below(("capacity", name), _capacity(capacity, shared=bool(device.allow_multiple_allocations)))
    yield from many("taints", device.taints, limits.MAX_TAINTS)
    yield from each("taints", device.taints, _taint)
    yield from many("consumesCounters", device.consumes_counters, limits.MAX_COUNTER_SETS_OF_DEVICE)
    consumed = [entry.counter_set for entry in device.consumes_counters]
    yield from twice(consumed, "consumesCounters", field="counterSet")
    for place, entry in enumerate(device.consumes_counters):
        yield from wrong(formats.label(entry.counter_set), "consumesCounters", place, "counterSet")
        yield from below(("consumesCounters", place), _counters(entry.counters))
    if per_device:
        yield from _nodes(device)
    elif any(item is not None for item in (device.node_name, device.node_selector, device.all_nodes)):
        yield (), "nodeName, nodeSelector and allNodes of a device go with the slice's perDeviceNodeSelection"
    yield from _binding(device.binding_conditions or (), device.binding_failure_conditions or ())


def _attribute(attribute: DeviceAttribute) -> Iterator[Problem]:
    values = [getattr(attribute, name) for name in attribute.__struct_fields__]
    if values.count(None) != len(values) - 1:
        yield (), "exactly one of int, bool, string and version (or a list of them) is required"
    for name, text in (("string", attribute.string), ("version", attribute.version)):
        if text is not None and len(text.encode()) > limits.MAX_ATTRIBUTE_BYTES:
            yield (name,), f"it is longer than {limits.MAX_ATTRIBUTE_BYTES} bytes"
    if attribute.version is not None:
        yield from wrong(formats.version(attribute.version), "version")


def _capacity(capacity: DeviceCapacity, *, shared: bool) -> Iterator[Problem]:
    yield from amount(capacity.value, "value")
    policy = capacity.request_policy
    if policy is None:
        return
    given: dict[tuple[str | int, ...], object] = {("default",): policy.default}
    given |= {("validValues", place): value for place, value in enumerate(policy.valid_values)}
    span = policy.valid_range or CapacityRange()
    given |= {("validRange", name): getattr(span, name) for name in ("min", "max", "step")}
    for path, value in given.items():
        if value is not None:
            yield from amount(value, "requestPolicy", *path)
    if not shared:
        yield ("requestPolicy",), "is only valid with allowMultipleAllocations"
    yield from below(("requestPolicy",), _policy(policy, nanos(capacity.value)))


def _policy(policy: CapacityRequestPolicy, most: int) -> Iterator[Problem]:
    if policy.valid_values and policy.valid_range is not None:
        yield (), "must have either validValues or validRange, not both"
    if policy.default is None:
        if policy.valid_values or policy.valid_range is not None:
            yield ("default",), "is required"
        return
    if policy.valid_values:
        values = [nanos(value) for value in policy.valid_values]
        yield from below(("validValues",), _valid_values(values, nanos(policy.default), most))
    elif policy.valid_range is not None:
        yield from below(("validRange",), _valid_range(policy.valid_range, nanos(policy.default), most))


def _valid_values(values: Sequence[int], default: int, most: int) -> Iterator[Problem]:
    yield from many("", values, limits.MAX_VALID_VALUES)
    if any(before >= after for before, after in pairwise(values)):
        yield (), "must be in ascending order"
    if values[-1] > most:
        yield (len(values) - 1,), "is more than the capacity"
    if default not in values:
        yield (), "the default is not among them"


def _valid_range(span: CapacityRange, default: int, most: int) -> Iterator[Problem]:
    if span.min is None:
        yield ("min",), "is required"
        return
    least, highest = nanos(span.min), most if span.max is None else nanos(span.max)
    if not least <= highest <= most:
        yield (), "min, max and the capacity must be in ascending order"
    if not least <= default <= (default if span.max is None else highest):
        yield (), "the default is not within it"
    if span.step is None:
        return
    step = nanos(span.step)
    if step <= 0 or least + step > most:
        yield ("step",), "must be more than 0, and one step above min within the capacity"
    elif any((value - least) % step for value in (default, *((highest,) if span.max is not None else ()))):
        yield ("step",), "the default and max must be whole steps above min"


def _binding(conditions: Sequence[str], failures: Sequence[str]) -> Iterator[Problem]:
    for name, items in (("bindingConditions", conditions), ("bindingFailureConditions", failures)):
        yield from many(name, items, limits.MAX_BINDING_CONDITIONS)
        yield from twice(items, name, field="")
        yield from each(name, items, lambda item: wrong(formats.label_key(item)))
    if bool(conditions) != bool(failures):
        yield (), "bindingConditions and bindingFailureConditions must be set together"
    if set(conditions) & set(failures):
        yield ("bindingFailureConditions",), "must not repeat what bindingConditions lists"

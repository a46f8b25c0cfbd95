"""A real API server's validation of ResourceSlices (``resource.k8s.io/v1``, Kubernetes 1.37), for the test server."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.doubles.apiserver.store import Object, Refused

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_LABEL_VALUE = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_SCOPES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")


def validate_slice(item: Object, stored: Object | None) -> None:
    """Refuse an invalid slice in the shape of v1, or an invalid change of ``stored``."""
    spec = item["spec"]
    devices = spec.get("devices") or []
    problems = [*_spec_problems(spec), *_device_list_problems(devices), *_counter_problems(spec, devices)]
    if stored is not None:
        problems += _change_problems(spec, stored["spec"])
    if problems:
        raise Refused(422, "Invalid", "ResourceSlice is invalid: " + "; ".join(problems), "slice")


def _spec_problems(spec: Object) -> Iterator[str]:
    driver, pool = spec.get("driver", ""), spec.get("pool", {})
    if not _SUBDOMAIN.fullmatch(driver) or len(driver) > 63:
        yield "spec.driver: must be a DNS subdomain of at most 63 characters"
    if not all(_SUBDOMAIN.fullmatch(part) for part in pool.get("name", "").split("/")) or len(pool["name"]) > 253:
        yield "spec.pool.name: must be DNS subdomains joined by slashes"
    if type(pool.get("generation")) is not int or pool["generation"] < 0:
        yield "spec.pool.generation: must be 0 or more"
    if type(pool.get("resourceSliceCount")) is not int or pool["resourceSliceCount"] < 1:
        yield "spec.pool.resourceSliceCount: must be greater than 0"
    if sum(bool(spec.get(field)) for field in _SCOPES) != 1:
        yield f"spec: exactly one of {', '.join(_SCOPES)} is required"


def _change_problems(spec: Object, stored: Object) -> Iterator[str]:
    if (spec.get("driver"), spec.get("nodeName")) != (stored["driver"], stored.get("nodeName")):
        yield "spec.driver, spec.nodeName: field is immutable"
    if spec["pool"].get("name") != stored["pool"]["name"]:
        yield "spec.pool.name: field is immutable"


def _device_list_problems(devices: list[Object]) -> Iterator[str]:
    limit = 64 if any(device.get("taints") or device.get("consumesCounters") for device in devices) else 128
    if len(devices) > limit:
        yield f"spec.devices: must have at most {limit} items"
    names = [device.get("name") for device in devices]
    yield from (f"spec.devices[].name: duplicate {name}" for name in set(names) if names.count(name) > 1)
    for device in devices:
        yield from _device_problems(device)


def _counter_problems(spec: Object, devices: list[Object]) -> Iterator[str]:
    sets = spec.get("sharedCounters") or []
    if sets and devices:
        yield "spec: only one of devices and sharedCounters may be set"
    if len(sets) > 8 or len({item["name"] for item in sets}) < len(sets):
        yield "spec.sharedCounters: at most 8 sets of different names"
    consumptions = [used for device in devices for used in device.get("consumesCounters") or []]
    if any(len(device.get("consumesCounters") or []) > 2 for device in devices):
        yield "spec.devices[].consumesCounters: at most 2 items"
    for name, counters in [
        *((item["name"], item["counters"]) for item in sets),
        *((used["counterSet"], used["counters"]) for used in consumptions),
    ]:
        if not all(_LABEL.fullmatch(label) for label in (name, *counters)) or not 0 < len(counters) <= 32:
            yield f"counters of {name!r}: 1 to 32 with DNS labels"
        if not all(_QUANTITY.fullmatch(counter["value"]) for counter in counters.values()):
            yield f"counters of {name!r}: no quantity"
    if sum(len(used["counters"]) for used in consumptions) > 1024:
        yield "spec.devices[].consumesCounters: at most 1024 counters"


def _device_problems(device: Object) -> Iterator[str]:
    if not _LABEL.fullmatch(device.get("name", "")):
        yield f"spec.devices[].name: {device.get('name')!r} is no DNS label"
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacity) > 32:
        yield "spec.devices[]: at most 32 attributes and capacities"
    yield from (f"spec.devices[]: {name!r} is no qualified name" for name in (*attributes, *capacity) if _odd(name))
    for name, value in attributes.items():
        yield from (f"spec.devices[].attributes[{name}]: {problem}" for problem in _value_problems(value))
    yield from _taint_problems(device.get("taints") or [])
    for name, value in capacity.items():
        if not _QUANTITY.fullmatch(value.get("value", "")):
            yield f"spec.devices[].capacity[{name}]: no quantity"


def _taint_problems(taints: list[Object]) -> Iterator[str]:
    if len(taints) > 16:
        yield "spec.devices[].taints: must have at most 16 items"
    for taint in taints:
        domain, _, name = taint.get("key", "").rpartition("/")
        if (domain and not _SUBDOMAIN.fullmatch(domain)) or not re.fullmatch(_LABEL_VALUE, name):
            yield f"spec.devices[].taints[].key: {taint.get('key')!r} is no qualified name"
        if taint.get("effect") not in ("None", "NoSchedule", "NoExecute"):
            yield f"spec.devices[].taints[].effect: unsupported value {taint.get('effect')!r}"
        if not re.fullmatch(f"({_LABEL_VALUE})?", taint.get("value", "")):
            yield "spec.devices[].taints[].value: no label value"
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", taint.get("timeAdded", "2026-01-01T00:00:00Z")):
            yield "spec.devices[].taints[].timeAdded: no time"


def _odd(name: str) -> bool:
    domain, slash, identifier = name.rpartition("/")
    in_domain = not slash or (_SUBDOMAIN.fullmatch(domain) is not None and len(domain) < 64)
    return _IDENTIFIER.fullmatch(identifier) is None or not in_domain


def _value_problems(value: Object) -> Iterator[str]:
    if len(value) != 1:
        yield "exactly one value must be set"
    if any(len(text.encode()) > 64 for text in (value.get("string"), value.get("version")) if text is not None):
        yield "at most 64 bytes"
    if "version" in value and not _SEMVER.fullmatch(value["version"]):
        yield "no semantic version"

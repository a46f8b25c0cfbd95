"""What the API server would refuse in claims and classes, as far as it concerns the allocation.

Source: ``pkg/apis/resource/validation`` of Kubernetes 1.37.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from dra_driver.errors import DriverError
from dra_driver.simulator.manifests.documents import Origin
from dra_driver.simulator.objects import (
    CapacityRequirements,
    ClaimConfiguration,
    ClassConfiguration,
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceSlice,
)
from dra_driver.simulator.quantity import QuantityError, stored

Problem = tuple[tuple[str | int, ...], str]
"""Path and text."""
Compile = Callable[[str], object]
"""Raises a DriverError for an expression that is not legal."""

MOST: Final = 32
"""Requests, constraints, selectors and configurations, each."""
MOST_SUBREQUESTS: Final = 8
MOST_TOLERATIONS: Final = 16
MOST_PARAMETERS: Final = 10 << 10
"""Bytes of one opaque configuration."""

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_SUBDOMAIN: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII
)
_QUALIFIED: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?/[A-Za-z_][A-Za-z0-9_]{0,31}", re.ASCII)


def check_claim(claim: DeviceClaim, origin: Origin, path: tuple[str | int, ...], compile_: Compile) -> None:
    """ManifestError for the first thing that is wrong with ``spec.devices`` of a claim."""
    _raise_first(_claim(claim, compile_), origin, (*path, "devices"))


def check_class(device_class: DeviceClass, origin: Origin, compile_: Compile) -> None:
    """ManifestError for the first thing that is wrong with a class."""
    spec = device_class.spec
    found = _below(("selectors",), _selectors(spec.selectors, compile_))
    _raise_first(found, origin, ("spec",))
    _raise_first(_configs(spec.config, ()), origin, ("spec", "config"))


def check_slice(item: ResourceSlice, origin: Origin) -> None:
    """ManifestError for a quantity that is none."""
    _raise_first(_amounts(item), origin, ("spec",))


def _raise_first(problems: Iterator[Problem], origin: Origin, path: tuple[str | int, ...]) -> None:
    for place, what in problems:
        raise origin.error((*path, *place), what)


def _below(path: tuple[str | int, ...], problems: Iterator[Problem]) -> Iterator[Problem]:
    return (((*path, *place), what) for place, what in problems)


def _claim(claim: DeviceClaim, compile_: Compile) -> Iterator[Problem]:
    yield from _many("requests", claim.requests)
    yield from _many("constraints", claim.constraints)
    yield from _many("config", claim.config)
    names = [request.name for request in claim.requests]
    for place, request in enumerate(claim.requests):
        yield from _below(("requests", place), _name(request.name, names[:place]))
        yield from _below(("requests", place), _request(request, compile_))
    known = {
        name
        for request in claim.requests
        for name in (request.name, *(f"{request.name}/{sub.name}" for sub in request.first_available))
    }
    for place, constraint in enumerate(claim.constraints):
        yield from _below(("constraints", place), _constraint(constraint, known))
    yield from _below(("config",), _configs(claim.config, known))


def _many(name: str, items: Sequence[object], most: int = MOST) -> Iterator[Problem]:
    if len(items) > most:
        yield (name,) if name else (), f"{len(items)} are more than the {most} that Kubernetes allows"


def _name(name: str, before: Sequence[str]) -> Iterator[Problem]:
    if not _LABEL.fullmatch(name):
        yield ("name",), f"{name[:80]!r} is no name: lower-case letters, digits and -, at most 63"
    if name in before:
        yield ("name",), f"the name {name} comes twice"


def _request(request: DeviceRequest, compile_: Compile) -> Iterator[Problem]:
    if (request.exactly is None) == (not request.first_available):
        yield (), "exactly one of exactly and firstAvailable is needed"
    if request.exactly is not None:
        yield from _below(("exactly",), _wanted(request.exactly, compile_))
    yield from _many("firstAvailable", request.first_available, MOST_SUBREQUESTS)
    names = [sub.name for sub in request.first_available]
    for place, sub in enumerate(request.first_available):
        yield from _below(("firstAvailable", place), _name(sub.name, names[:place]))
        yield from _below(("firstAvailable", place), _wanted(sub, compile_))


def _wanted(item: ExactDeviceRequest | DeviceSubRequest, compile_: Compile) -> Iterator[Problem]:
    if not _SUBDOMAIN.fullmatch(item.device_class_name):
        yield ("deviceClassName",), f"{item.device_class_name[:80]!r} is no name of a DeviceClass"
    if item.allocation_mode not in ("ExactCount", "All"):
        yield ("allocationMode",), f"{item.allocation_mode[:80]!r} is neither ExactCount nor All"
    if item.allocation_mode == "ExactCount" and item.count < 1:
        yield ("count",), f"{item.count} is less than 1"
    if item.allocation_mode == "All" and item.count != 1:
        yield ("count",), "goes with allocationMode ExactCount only"
    yield from _below(("selectors",), _selectors(item.selectors, compile_))
    yield from _many("tolerations", item.tolerations, MOST_TOLERATIONS)
    for place, toleration in enumerate(item.tolerations):
        yield from _below(("tolerations", place), _toleration(toleration))
    yield from _below(("capacity", "requests"), _capacity(item.capacity))


def _selectors(selectors: Sequence[DeviceSelector], compile_: Compile) -> Iterator[Problem]:
    yield from _many("", selectors)
    for place, selector in enumerate(selectors):
        if selector.cel is None:
            yield (place,), "cel is needed"
            continue
        try:
            compile_(selector.cel.expression)
        except DriverError as error:
            yield (place, "cel", "expression"), f"the expression is refused: {error}"


def _toleration(toleration: DeviceToleration) -> Iterator[Problem]:
    if toleration.operator not in ("", "Equal", "Exists"):
        yield ("operator",), f"{toleration.operator[:80]!r} is neither Equal nor Exists"
    if toleration.operator == "Exists" and toleration.value:
        yield ("value",), "goes with operator Equal only"
    if not toleration.key and toleration.operator != "Exists":
        yield ("operator",), "must be Exists when there is no key"
    if toleration.effect not in ("", "None", "NoSchedule", "NoExecute"):
        yield ("effect",), f"{toleration.effect[:80]!r} is no effect of a device taint"


def _capacity(capacity: CapacityRequirements | None) -> Iterator[Problem]:
    for name, value in (capacity.requests if capacity is not None else {}).items():
        try:
            stored(value)
        except QuantityError as error:
            yield (name,), str(error)


def _constraint(constraint: DeviceConstraint, known: set[str]) -> Iterator[Problem]:
    yield from _requests_exist(constraint.requests, known)
    given = [
        (name, value)
        for name, value in (
            ("matchAttribute", constraint.match_attribute),
            ("distinctAttribute", constraint.distinct_attribute),
        )
        if value is not None
    ]
    if len(given) != 1:
        yield (), "exactly one of matchAttribute and distinctAttribute is needed"
    for name, value in given:
        if not _QUALIFIED.fullmatch(value):
            yield (name,), f"{value[:80]!r} is no full name of an attribute, such as resource.aws.com/devicegroup4_id"


def _requests_exist(requests: Sequence[str], known: set[str]) -> Iterator[Problem]:
    for place, name in enumerate(requests):
        if name not in known:
            yield ("requests", place), f"the claim has no request {name[:80]}"


def _configs(
    entries: Sequence[ClaimConfiguration | ClassConfiguration], known: set[str] | tuple[()]
) -> Iterator[Problem]:
    for place, entry in enumerate(entries):
        if isinstance(entry, ClaimConfiguration):
            yield from _below((place,), _requests_exist(entry.requests, set(known)))
        yield from _below((place,), _opaque(entry.opaque))


def _opaque(opaque: Any) -> Iterator[Problem]:
    if opaque is None:
        yield (), "opaque is needed"
    elif not _SUBDOMAIN.fullmatch(opaque.driver):
        yield ("opaque", "driver"), f"{opaque.driver[:80]!r} is no name of a driver"
    elif not isinstance(opaque.parameters, dict):
        yield ("opaque", "parameters"), "an object is needed"
    elif len(msgspec.json.encode(opaque.parameters)) > MOST_PARAMETERS:
        yield ("opaque", "parameters"), f"they are longer than {MOST_PARAMETERS} bytes"


def _amounts(item: ResourceSlice) -> Iterator[Problem]:
    for place, group in enumerate(item.spec.shared_counters):
        for name, counter in group.counters.items():
            yield from _quantity(("sharedCounters", place, "counters", name), counter.value)
    for place, device in enumerate(item.spec.devices):
        for name, capacity in device.capacity.items():
            yield from _quantity(("devices", place, "capacity", name), capacity.value)
        for number, entry in enumerate(device.consumes_counters):
            for name, counter in entry.counters.items():
                path = ("devices", place, "consumesCounters", number, "counters", name)
                yield from _quantity(path, counter.value)


def _quantity(path: tuple[str | int, ...], value: str | float) -> Iterator[Problem]:
    try:
        stored(value)
    except QuantityError as error:
        yield path, str(error)

"""The API server's validation of claims and classes.

Source: ``pkg/apis/resource/validation`` of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from dra_driver.kube import formats
from dra_driver.kube.documents import Origin
from dra_driver.kube.objects import limits
from dra_driver.kube.objects.resource import (
    CapacityRequirements,
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceClass,
    DeviceClassConfiguration,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
)
from dra_driver.kube.quantity import QuantityError, stored
from dra_driver.util.errors import DriverError

T = TypeVar("T")
Path = tuple[str | int, ...]
Problem = tuple[Path, str]
"""Path and message."""
Compile = Callable[[str], object]
"""Raises a DriverError for an invalid expression."""

EFFECTS: Final = ("None", "NoSchedule", "NoExecute")
"""Effects of a device taint."""
_OF_QUOTA: Final = "requests."


def check_claim(claim: DeviceClaim, origin: Origin, path: tuple[str | int, ...], compile_: Compile) -> None:
    """Raise ManifestError for the first problem in ``spec.devices`` of a claim."""
    raise_first(_claim(claim, compile_), origin, (*path, "devices"))


def check_class(device_class: DeviceClass, origin: Origin, compile_: Compile) -> None:
    """Raise ManifestError for the first problem in a class."""
    spec = device_class.spec
    problems = below(("selectors",), _selectors(spec.selectors, compile_))
    raise_first(problems, origin, ("spec",))
    raise_first(many("config", spec.config), origin, ("spec",))
    raise_first(_configs(spec.config, ()), origin, ("spec", "config"))
    if spec.extended_resource_name is not None:
        raise_first(_extended_resource(spec.extended_resource_name), origin, ("spec",))


def raise_first(problems: Iterator[Problem], origin: Origin, path: Path) -> None:
    """Raise ManifestError for the first problem, with its path below ``path``."""
    for place, what in problems:
        raise origin.error((*path, *place), what)


def below(path: Path, problems: Iterator[Problem]) -> Iterator[Problem]:
    """The problems of a part, with ``path`` prepended to their paths."""
    return (((*path, *place), what) for place, what in problems)


def each(name: str, items: Sequence[T], check: Callable[[T], Iterator[Problem]]) -> Iterator[Problem]:
    """The problems of each item of a list."""
    for place, item in enumerate(items):
        yield from below((name, place), check(item))


def _claim(claim: DeviceClaim, compile_: Compile) -> Iterator[Problem]:
    yield from many("requests", claim.requests)
    yield from many("constraints", claim.constraints)
    yield from many("config", claim.config)
    yield from twice([request.name for request in claim.requests], "requests")
    yield from each("requests", claim.requests, lambda request: _request(request, compile_))
    request_names = {
        name
        for request in claim.requests
        for name in (request.name, *(f"{request.name}/{sub.name}" for sub in request.first_available))
    }
    yield from each("constraints", claim.constraints, lambda constraint: _constraint(constraint, request_names))
    yield from below(("config",), _configs(claim.config, request_names))


def many(name: str, items: Collection[object], most: int = limits.MAX_ITEMS) -> Iterator[Problem]:
    """A problem if there are more items than Kubernetes allows."""
    if len(items) > most:
        yield (name,) if name else (), f"{len(items)} are more than the {most} items that Kubernetes allows"


def wrong(problem: str, *path: str | int) -> Iterator[Problem]:
    """The result of a check of ``formats`` as a problem; none for ""."""
    if problem:
        yield path, problem


def twice(names: Sequence[str], *path: str | int, field: str = "name") -> Iterator[Problem]:
    """Duplicate names in a list of objects, or of strings if ``field`` is ""."""
    seen: set[str] = set()
    for place, name in enumerate(names):
        if name in seen:
            yield (*path, place, *((field,) if field else ())), f"duplicate value {formats.shown(name)}"
        seen.add(name)


def _request(request: DeviceRequest, compile_: Compile) -> Iterator[Problem]:
    yield from wrong(formats.label(request.name), "name")
    if (request.exactly is None) == (not request.first_available):
        yield (), "exactly one of exactly and firstAvailable is required"
    if request.exactly is not None:
        yield from below(("exactly",), _wanted(request.exactly, compile_))
    yield from many("firstAvailable", request.first_available, limits.MAX_SUBREQUESTS)
    yield from twice([sub.name for sub in request.first_available], "firstAvailable")
    for place, sub in enumerate(request.first_available):
        yield from wrong(formats.label(sub.name), "firstAvailable", place, "name")
        yield from below(("firstAvailable", place), _wanted(sub, compile_))


def _wanted(item: ExactDeviceRequest | DeviceSubRequest, compile_: Compile) -> Iterator[Problem]:
    yield from wrong(formats.subdomain(item.device_class_name), "deviceClassName")
    if item.allocation_mode not in ("", "ExactCount", "All"):
        yield ("allocationMode",), f"{item.allocation_mode[:80]!r} is neither ExactCount nor All"
    if item.allocation_mode != "All" and item.count < 0:
        yield ("count",), f"{item.count} is less than 1"
    if item.allocation_mode == "All" and item.count:
        yield ("count",), "is only valid with allocationMode ExactCount"
    yield from below(("selectors",), _selectors(item.selectors, compile_))
    yield from each("tolerations", item.tolerations, _toleration)
    yield from below(("capacity", "requests"), _capacity(item.capacity))


def _selectors(selectors: Sequence[DeviceSelector], compile_: Compile) -> Iterator[Problem]:
    yield from many("", selectors)
    for place, selector in enumerate(selectors):
        if selector.cel is None:
            yield (place,), "cel is required"
            continue
        try:
            compile_(selector.cel.expression)
        except DriverError as error:
            yield (place, "cel", "expression"), f"the expression is refused: {error}"


def _toleration(toleration: DeviceToleration) -> Iterator[Problem]:
    if toleration.key:
        yield from wrong(formats.label_key(toleration.key), "key")
    yield from wrong(formats.label_value(toleration.value), "value")
    if toleration.operator not in ("", "Equal", "Exists"):
        yield ("operator",), f"{toleration.operator[:80]!r} is neither Equal nor Exists"
    if toleration.operator == "Exists" and toleration.value:
        yield ("value",), "is only valid with operator Equal"
    if toleration.effect not in ("", *EFFECTS):
        yield ("effect",), f"{toleration.effect[:80]!r} is not an effect of a device taint"


def _capacity(capacity: CapacityRequirements | None) -> Iterator[Problem]:
    for name, value in (capacity.requests if capacity is not None else {}).items():
        yield from amount(value, name)


def amount(value: object, *path: str | int) -> Iterator[Problem]:
    """A problem if the value is not a quantity."""
    try:
        stored(value if isinstance(value, str | float) else str(value))
    except QuantityError as error:
        yield path, str(error)


def _constraint(constraint: DeviceConstraint, request_names: set[str]) -> Iterator[Problem]:
    yield from _requests_exist(constraint.requests, request_names)
    given = [
        (name, value)
        for name, value in (
            ("matchAttribute", constraint.match_attribute),
            ("distinctAttribute", constraint.distinct_attribute),
        )
        if value is not None
    ]
    if not given:
        yield (), "matchAttribute or distinctAttribute is required"
    for name, value in given:
        yield from wrong(formats.full_attribute(value), name)


def _requests_exist(requests: Sequence[str], request_names: set[str]) -> Iterator[Problem]:
    yield from many("requests", requests)
    yield from twice(requests, "requests", field="")
    for place, name in enumerate(requests):
        if name not in request_names:
            yield ("requests", place), f"the claim has no request {name[:80]}"


def _extended_resource(name: str) -> Iterator[Problem]:
    own = "/" in name and "kubernetes.io/" not in name and not name.startswith(_OF_QUOTA)
    if not own or formats.label_key(f"{_OF_QUOTA}{name}"):
        yield ("extendedResourceName",), f"{formats.shown(name)} is not an extended resource like aws.amazon.com/neuron"


def _configs(
    entries: Sequence[DeviceClaimConfiguration | DeviceClassConfiguration], request_names: set[str] | tuple[()]
) -> Iterator[Problem]:
    for place, entry in enumerate(entries):
        if isinstance(entry, DeviceClaimConfiguration):
            yield from below((place,), _requests_exist(entry.requests, set(request_names)))
        yield from below((place,), _opaque(entry.opaque))


def _opaque(opaque: Any) -> Iterator[Problem]:
    if opaque is None:
        yield (), "opaque is required"
        return
    yield from wrong(formats.driver(opaque.driver), "opaque", "driver")
    if not isinstance(opaque.parameters, dict):
        yield ("opaque", "parameters"), "must be an object"
    elif len(msgspec.json.encode(opaque.parameters)) > limits.MAX_PARAMETERS_BYTES:
        yield ("opaque", "parameters"), f"they are longer than {limits.MAX_PARAMETERS_BYTES} bytes"

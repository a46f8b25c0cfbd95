"""A device as selectors see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.kube.objects.resource import Device, DeviceAttribute
from dra_driver.kube.quantity import Quantity, stored
from dra_driver.simulator.cel.errors import CelError
from dra_driver.simulator.cel.values import DeviceMap, DomainMap, Semver, read_quantity

Value = bool | int | str | Semver | list[bool] | list[int] | list[str] | list[Semver]
"""The types of attribute values."""


@dataclass(frozen=True, slots=True)
class CelDevice:
    """The variable ``device``. Build it once per device, not once per expression; the maps must not be modified.

    ``attributes`` and ``capacity`` map domain -> name -> value; names without a domain belong to the driver's domain.
    """

    driver: str
    attributes: Mapping[str, Mapping[str, Value]]
    capacity: Mapping[str, Mapping[str, Quantity]]
    allow_multiple_allocations: bool | None = None

    def __post_init__(self) -> None:
        """Give the maps the same lookup behaviour as in Kubernetes."""
        for name in ("attributes", "capacity"):
            given = getattr(self, name)
            if not isinstance(given, DomainMap):
                object.__setattr__(self, name, DomainMap({domain: DeviceMap(ids) for domain, ids in given.items()}))

    @classmethod
    def of(cls, driver: str, device: Device) -> CelDevice:
        """A device of a slice; raises CelError (runtime) for a value that Kubernetes could not pass to a selector."""
        attributes: dict[str, dict[str, Value]] = {}
        for name, attribute in device.attributes.items():
            domain, identifier = _split(name, driver)
            attributes.setdefault(domain, {})[identifier] = _value(name, attribute)
        capacity: dict[str, dict[str, Quantity]] = {}
        for name, entry in device.capacity.items():
            domain, identifier = _split(name, driver)
            try:
                capacity.setdefault(domain, {})[identifier] = read_quantity(stored, str(entry.value))
            except ValueError as error:
                raise CelError("runtime", f"capacity {name}: {error}") from None
        return cls(driver, attributes, capacity, device.allow_multiple_allocations)


FIELDS: dict[str, Callable[[CelDevice], Any]] = {
    "driver": lambda device: device.driver,
    "attributes": lambda device: device.attributes,
    "capacity": lambda device: device.capacity,
    "allowMultipleAllocations": lambda device: bool(device.allow_multiple_allocations),
}
"""Fields of ``device`` and their types."""


def _split(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _value(name: str, attribute: DeviceAttribute) -> Value:
    for value in (attribute.int_, attribute.bool_, attribute.string):
        if value is not None:
            return value
    for several in (attribute.ints, attribute.bools, attribute.strings):
        if several is not None:
            return list(several)  # type: ignore[return-value] # of one of the three types
    if attribute.versions is not None:
        return [_version(name, text) for text in attribute.versions]
    if attribute.version is None:
        raise CelError("runtime", f"attribute {name}: unsupported attribute value")
    return _version(name, attribute.version)


def _version(name: str, text: str) -> Semver:
    try:
        return Semver.parse(text)
    except ValueError as error:
        raise CelError("runtime", f"attribute {name}: parse semantic version: {error}") from None

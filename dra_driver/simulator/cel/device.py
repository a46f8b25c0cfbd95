"""A device as selectors see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dra_driver.kube.quantity import Quantity, stored
from dra_driver.simulator.cel.errors import CelError, EvaluationError
from dra_driver.simulator.cel.values import DeviceMap, DomainMap, Semver, read_quantity

Value = bool | int | str | Semver
"""The types of attribute values."""


class PublishedAttribute(Protocol):
    """An attribute in a slice, such as ``kube.api.objects.DeviceAttribute``; selectors do not support list values."""

    @property
    def int_(self) -> int | None:
        """An integer."""

    @property
    def bool_(self) -> bool | None:
        """A boolean."""

    @property
    def string(self) -> str | None:
        """A string."""

    @property
    def version(self) -> str | None:
        """A semantic version."""


class PublishedCapacity(Protocol):
    """A capacity in a slice."""

    @property
    def value(self) -> str | int | float:
        """A quantity; may be a number in files."""


class PublishedDevice(Protocol):
    """A device in a slice, such as ``kube.api.objects.Device``, with or without ``allow_multiple_allocations``."""

    @property
    def attributes(self) -> Mapping[str, PublishedAttribute]:
        """Attributes by name."""

    @property
    def capacity(self) -> Mapping[str, PublishedCapacity]:
        """Capacities by name."""


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
    def of(cls, driver: str, device: PublishedDevice) -> CelDevice:
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
        return cls(driver, attributes, capacity, getattr(device, "allow_multiple_allocations", None))

    def field(self, name: str) -> Any:
        """``device.name``."""
        if name in FIELDS:
            return FIELDS[name](self)
        raise EvaluationError(f"no such key: {name}")

    def has_field(self, name: str) -> bool:
        """``has(device.name)``."""
        return name in FIELDS


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


def _value(name: str, attribute: PublishedAttribute) -> Value:
    for value in (attribute.int_, attribute.bool_, attribute.string):
        if value is not None:
            return value
    if attribute.version is None:
        # For example a list: list attributes need a feature that is off by default.
        raise CelError("runtime", f"attribute {name}: unsupported attribute value")
    try:
        return Semver.parse(attribute.version)
    except ValueError as error:
        raise CelError("runtime", f"attribute {name}: parse semantic version: {error}") from None

"""matchAttribute and distinctAttribute, updated device by device.

Both are monotonic: a device that cannot be added now cannot be added after more devices either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable

from dra_driver.kube.objects.resource import DeviceAttribute, DeviceConstraint
from dra_driver.simulator.allocator.pool_devices import PoolDevice
from dra_driver.simulator.allocator.release import Release

Value = tuple[str, Hashable]
"""Type and value: 1 differs from "1" and from true."""

_UNKNOWN: Value = ("", None)
"""An attribute of a type that the release does not know."""


class Constraint(ABC):
    """One constraint of a claim."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        self.attribute = attribute
        self._requests = frozenset(requests)

    def concerns(self, request: str, subrequest: str) -> bool:
        """Whether devices of the (sub-)request must satisfy it."""
        return not self._requests or request in self._requests or f"{request}/{subrequest}" in self._requests

    @abstractmethod
    def allows(self, request: str, value: Value | None) -> bool:
        """Whether a device with this attribute value (None: without the attribute) can be added."""

    @abstractmethod
    def add(self, request: str, value: Value) -> None:
        """Add a device that is allowed."""

    @abstractmethod
    def remove(self, request: str) -> None:
        """Remove the device that was added last."""

    @abstractmethod
    def state(self) -> Hashable:
        """Determines which devices can be added; equal states give equal results."""


class Match(Constraint):
    """All devices have the same value, of the same type."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        super().__init__(attribute, requests)
        self._value: Value | None = None
        self._count = 0

    @property
    def undecided(self) -> bool:
        """Whether no device has set the value yet."""
        return not self._count

    def allows(self, request: str, value: Value | None) -> bool:  # noqa: ARG002 - one set for all requests
        """Any value for the first device."""
        if value is None:
            return False
        return not self._count or (value == self._value and value != _UNKNOWN)

    def add(self, request: str, value: Value) -> None:  # noqa: ARG002 - one set for all requests
        """The first device sets the value."""
        if not self._count:
            self._value = value
        self._count += 1

    def remove(self, request: str) -> None:  # noqa: ARG002 - one set for all requests
        """Removing the last device clears the value."""
        self._count -= 1

    def state(self) -> Hashable:
        """The value, if set."""
        return self._value if self._count else None


class Distinct(Constraint):
    """No two devices have the same value."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        super().__init__(attribute, requests)
        self._values: list[Value] = []

    def allows(self, request: str, value: Value | None) -> bool:  # noqa: ARG002 - one set for all requests
        """Any value that no device has."""
        return value is not None and not _repeats(value, self._values)

    def add(self, request: str, value: Value) -> None:  # noqa: ARG002 - one set for all requests
        """Keep the value."""
        self._values.append(value)

    def remove(self, request: str) -> None:  # noqa: ARG002 - one set for all requests
        """Remove the last value."""
        self._values.pop()

    def state(self) -> Hashable:
        """All values."""
        return frozenset(self._values)


class DistinctByRequest(Constraint):
    """distinctAttribute as implemented up to 1.36: one value is remembered per request, and none after backtracking.

    It therefore does not compare all devices of a request, and its result depends on what was tried before.
    """

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        super().__init__(attribute, requests)
        self._values: dict[str, Value] = {}
        self._count = 0

    def allows(self, request: str, value: Value | None) -> bool:  # noqa: ARG002 - compared with every request
        """Any value that is not remembered; any at all for the first device."""
        if value is None:
            return False
        return not self._count or not _repeats(value, list(self._values.values()))

    def add(self, request: str, value: Value) -> None:
        """Remember the value for its request, replacing the previous one."""
        self._values[request] = value
        self._count += 1

    def remove(self, request: str) -> None:
        """Forget the request's value."""
        self._values.pop(request, None)
        self._count -= 1

    def state(self) -> Hashable:
        """Values by request."""
        return (self._count, frozenset(self._values.items()))


def _repeats(value: Value, others: list[Value]) -> bool:
    """Whether a value is among others; one of unknown type equals any."""
    return value in others or (value == _UNKNOWN and bool(others))


def constraint(spec: DeviceConstraint, release: Release) -> Constraint | None:
    """The constraint of a claim; None if the release does not know its kind."""
    if spec.match_attribute is not None:
        return Match(spec.match_attribute, spec.requests)
    if spec.distinct_attribute is not None:
        kind = DistinctByRequest if release.distinct_by_request else Distinct
        return kind(spec.distinct_attribute, spec.requests)
    return None


def value(offer: PoolDevice, attribute: str) -> Value | None:
    """Type and value of a device's attribute; None if it is missing."""
    found = offer.attribute(attribute)
    return None if found is None else _value(found)


def _value(found: DeviceAttribute) -> Value:
    for kind, content in (
        ("string", found.string),
        ("int", found.int_),
        ("bool", found.bool_),
        ("version", found.version),
    ):
        if content is not None:
            return (kind, content)
    return _UNKNOWN

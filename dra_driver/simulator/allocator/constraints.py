"""matchAttribute and distinctAttribute, updated device by device.

Both are monotonic: a device that cannot be added now cannot be added after more devices either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable
from typing import Final, cast

from dra_driver.kube.objects.resource import DeviceAttribute, DeviceConstraint
from dra_driver.simulator.allocator.pool_devices import PoolDevice
from dra_driver.simulator.allocator.release import Release

Value = tuple[str, Hashable]
"""Type and value: 1 differs from "1" and from true. Of a list, ``LIST`` and the values in it."""
LIST: Final = "list"
_UNKNOWN: Value = ("", None)
"""An attribute of a type that is not known here."""


def alternatives(value: Value) -> Collection[Value]:
    """The values that an attribute has: one; those of a list; none if its type is not known."""
    kind, content = value
    if kind == LIST:
        return cast("frozenset[Value]", content)
    return () if value == _UNKNOWN else (value,)


def concerns(requests: Collection[str], request: str, subrequest: str) -> bool:
    """Whether devices of the (sub-)request must satisfy a constraint on these requests; none: on all."""
    return not requests or request in requests or f"{request}/{subrequest}" in requests


class Constraint(ABC):
    """One constraint of a claim."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        self.attribute = attribute
        self.requests = frozenset(requests)

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
    """All devices have a value in common, of the same type."""

    def __init__(self, attribute: str, requests: tuple[str, ...]) -> None:
        super().__init__(attribute, requests)
        self._common: list[frozenset[Value]] = []
        """The values in common of the devices up to each."""

    @property
    def undecided(self) -> bool:
        """Whether no device has set the value yet."""
        return not self._common

    def allows(self, request: str, value: Value | None) -> bool:  # noqa: ARG002 - one set for all requests
        """Any value for the first device."""
        if value is None:
            return False
        return not self._common or not self._common[-1].isdisjoint(alternatives(value))

    def add(self, request: str, value: Value) -> None:  # noqa: ARG002 - one set for all requests
        """The first device sets the values, the others narrow them."""
        values = frozenset(alternatives(value))
        self._common.append(values & self._common[-1] if self._common else values)

    def remove(self, request: str) -> None:  # noqa: ARG002 - one set for all requests
        """Back to what the devices before have in common."""
        self._common.pop()

    def state(self) -> Hashable:
        """The values, if there is a device."""
        return self._common[-1] if self._common else None


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
    """Whether a value is among others, or a list has one in common with them; one of unknown type equals any."""
    if value == _UNKNOWN:
        return bool(others)
    mine = frozenset(alternatives(value))
    return any(not mine.isdisjoint(alternatives(other)) for other in others)


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
    entry = offer.attribute(attribute)
    return None if entry is None else _value(entry)


def _value(attribute: DeviceAttribute) -> Value:
    for kind, one, several in (
        ("string", attribute.string, attribute.strings),
        ("int", attribute.int_, attribute.ints),
        ("bool", attribute.bool_, attribute.bools),
        ("version", attribute.version, attribute.versions),
    ):
        if one is not None:
            return (kind, one)
        if several is not None:
            return (LIST, frozenset((kind, content) for content in several))
    return _UNKNOWN

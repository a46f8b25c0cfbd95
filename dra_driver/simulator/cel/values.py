"""Run-time values and their equality.

CEL's bool, int, double, string, bytes, null, list and map are Python's bool, int, float, str, bytes, None, list and
dict; the others are the classes here. Python takes True for 1 as a key, CEL does not: see ``to_key``.
"""

from __future__ import annotations

import ipaddress
import operator
from dataclasses import dataclass
from typing import Any

from dra_driver.simulator.cel.errors import EvaluationError

INT_MIN, INT_MAX, UINT_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1


class Uint(int):
    """An unsigned 64-bit integer; arithmetic is in ``operators``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{int(self)}u"


class Key:
    """A bool as a key of a map: neither equal to 1 or 0 nor to anything but itself."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:  # the value itself
        self.value = value


_TRUE, _FALSE = Key(True), Key(False)  # the values themselves
KEY_TYPES = (bool, int, Uint, str)


def to_key(value: Any) -> Any:
    """A value as a key to look up with; one that no map can have is equal to none."""
    if value is True:
        return _TRUE
    if value is False:
        return _FALSE
    return value


def from_key(key: Any) -> Any:
    """The value that a map's key stands for."""
    return key.value if type(key) is Key else key


class DeviceMap(dict[str, Any]):
    """A map of the device: what is not in it cannot be read."""

    __slots__ = ()

    def __missing__(self, key: object) -> Any:
        if type(key) is Key:
            key = str(key.value).lower()
        raise EvaluationError(f"no such key: {key}")


class DomainMap(dict[str, DeviceMap]):
    """``device.attributes`` and ``device.capacity``: every domain can be read, though only some are in it."""

    __slots__ = ()

    def __missing__(self, key: object) -> DeviceMap:
        return EMPTY


EMPTY = DeviceMap()


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value: ``type(1)``, ``int``."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Optional:
    """``optional.of(value)``, or ``optional.none()`` when not ``present``."""

    present: bool
    value: Any = None


NONE = Optional(present=False)


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of a URL as they were written, but for a lower-case ``scheme`` and a ``host`` without escapes.

    ``host`` has the port; ``opaque`` is all that follows the scheme when that is no path.
    """

    scheme: str
    opaque: str
    user: str
    host: str
    path: str
    query: str
    fragment: str


@dataclass(frozen=True, slots=True)
class Cidr:
    """A network that keeps the address it was written with."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    bits: int


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A row of the format library."""

    name: str


TYPE_NAMES: dict[type, str] = {
    bool: "bool", int: "int", Uint: "uint", float: "double", str: "string", bytes: "bytes", type(None): "null_type",
    list: "list", dict: "map", DeviceMap: "map", DomainMap: "map", TypeValue: "type", Optional: "optional_type",
    Url: "kubernetes.URL", Cidr: "net.CIDR", NamedFormat: "kubernetes.NamedFormat",
    ipaddress.IPv4Address: "net.IP", ipaddress.IPv6Address: "net.IP",
}  # fmt: skip
"""What ``type()`` calls them; modules that add a class of values add its row."""


def type_name(value: Any) -> str:
    """CEL's name of a value's type."""
    return TYPE_NAMES.get(type(value), "kubernetes.DRADevice")


NUMBERS = frozenset({int, Uint, float})
MAPS = frozenset({dict, DeviceMap, DomainMap})


def paired(left: Any, right: Any) -> tuple[Any, Any]:
    """Two numbers as Kubernetes compares them: next to a double a whole number is made one, which may round it."""
    return (float(left), float(right)) if float in (type(left), type(right)) else (left, right)


def equal(left: Any, right: Any) -> bool:
    """CEL's ``==``: numbers by value whatever their type, otherwise values of different types differ."""
    kind, other = type(left), type(right)
    if kind is not other:
        if kind in NUMBERS:
            return other in NUMBERS and operator.eq(*paired(left, right))
        return kind in MAPS and other in MAPS and _equal_maps(left, right)
    if kind is list:
        return len(left) == len(right) and all(equal(a, b) for a, b in zip(left, right, strict=True))
    if kind in MAPS:
        return _equal_maps(left, right)
    if kind is Optional:
        return left.present == right.present and (not left.present or equal(left.value, right.value))
    return bool(left == right)


def _equal_maps(left: dict[Any, Any], right: dict[Any, Any]) -> bool:
    return len(left) == len(right) and all(key in right and equal(value, right[key]) for key, value in left.items())

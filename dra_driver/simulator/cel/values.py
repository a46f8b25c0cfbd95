"""Run-time values and their equality.

CEL's bool, int, double, string, bytes, null, list and map are Python's bool, int, float, str, bytes, None, list and
dict; the others are the classes here. As dict keys, Python treats True and 1 as equal, CEL does not: see ``to_key``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra_driver.kube.quantity import LongQuantityError, Quantity, QuantityError
from dra_driver.simulator.cel.errors import EvaluationError, UnsupportedError

INT_MIN, INT_MAX, UINT_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1


class Uint(int):
    """An unsigned 64-bit integer; arithmetic is in ``operators``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{int(self)}u"


class Key:
    """A bool as a map key: equal only to itself, not to 1 or 0."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:  # the value itself
        self.value = value


_TRUE, _FALSE = Key(True), Key(False)  # the values themselves


def to_key(value: Any) -> Any:
    """A value as a lookup key; a value that no map can have as a key becomes one that equals nothing."""
    if value is True:
        return _TRUE
    if value is False:
        return _FALSE
    return value


def from_key(key: Any) -> Any:
    """The value that a map key stands for."""
    return key.value if type(key) is Key else key


class DeviceMap(dict[str, Any]):
    """A map of the device; reading a missing key is an error."""

    __slots__ = ()

    def __missing__(self, key: object) -> Any:
        if type(key) is Key:
            key = str(key.value).lower()
        raise EvaluationError(f"no such key: {key}")


class DomainMap(dict[str, DeviceMap]):
    """``device.attributes`` and ``device.capacity``: any domain can be read, even one that is not in the map."""

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


TYPE_NAMES: dict[type, str] = {
    Quantity: "kubernetes.Quantity",
    bool: "bool", int: "int", Uint: "uint", float: "double", str: "string", bytes: "bytes", type(None): "null_type",
    list: "list", dict: "map", DeviceMap: "map", DomainMap: "map", TypeValue: "type", Optional: "optional_type",
}  # fmt: skip
"""The names that ``type()`` returns; modules that define a class of values add it here."""


def type_name(value: Any) -> str:
    """CEL's name of a value's type."""
    return TYPE_NAMES.get(type(value), "kubernetes.DRADevice")


NUMBERS = frozenset({int, Uint, float})
MAPS = frozenset({dict, DeviceMap, DomainMap})


def paired(left: Any, right: Any) -> tuple[Any, Any]:
    """Two numbers as Kubernetes compares them: next to a double, an integer is converted to one, which may round it."""
    return (float(left), float(right)) if float in (type(left), type(right)) else (left, right)


def equal(left: Any, right: Any) -> bool:
    """CEL's ``==``: numbers compare by value whatever their type; other values of different types are unequal."""
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


def read_quantity(reader: Callable[[str], Quantity], text: str) -> Quantity:
    """Parse a quantity with this reader; ValueError has Kubernetes' wording for an invalid one."""
    try:
        return reader(text)
    except LongQuantityError as error:
        raise UnsupportedError("runtime", error.what) from None
    except QuantityError as error:
        raise ValueError(error.reason) from None


_NUMBER = r"(?:0|[1-9][0-9]*)"
_PART = r"[0-9A-Za-z-]+"
_SYNTAX = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_PART}(?:\.{_PART})*))?(?:\+({_PART}(?:\.{_PART})*))?", re.ASCII
)
_DIGITS = re.compile(r"[0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A semantic version. ``order`` implements its precedence; build metadata after ``+`` does not count."""

    major: int
    minor: int
    patch: int
    order: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self.order == other.order

    def __hash__(self) -> int:
        return hash(self.order)

    @classmethod
    def parse(cls, text: str) -> Semver:
        """Parse a version; raises ValueError with the reason if it is invalid."""
        match = _SYNTAX.fullmatch(text)
        if match is None:
            raise ValueError(_complaint(text))
        major, minor, patch = int(match[1]), int(match[2]), int(match[3])
        if max(major, minor, patch) > UINT_MAX:
            raise ValueError("value out of range")
        release: tuple[Any, ...] = (
            (1,) if match[4] is None else (0, tuple(_release_part(part) for part in match[4].split(".")))
        )
        return cls(major, minor, patch, (major, minor, patch, release))

    @classmethod
    def normalized(cls, text: str) -> Semver:
        """Parse a version that may start with ``v``, omit parts, or have leading zeros."""
        parts = text.removeprefix("v").split(".", 2)
        for place, part in enumerate(parts):
            if len(part) > 1:
                bare = part.lstrip("0")
                parts[place] = bare if bare[:1].isdigit() and bare[:1].isascii() else "0" + bare
        if len(parts) < 3 and ("+" in parts[-1] or "-" in parts[-1]):  # major.minor.patch
            raise ValueError("short version cannot contain PreRelease/Build meta data")
        return cls.parse(".".join([*parts, "0", "0"][:3]))


TYPE_NAMES[Semver] = "kubernetes.Semver"


def _release_part(part: str) -> tuple[int, Any]:
    if not _DIGITS.fullmatch(part):
        return (1, part)
    if len(part) > 1 and part[0] == "0":
        raise ValueError(f"Numeric PreRelease version must not contain leading zeroes {part!r}")
    return (0, int(part))


def _complaint(text: str) -> str:
    if not text:
        return "Version string empty"
    parts = text.split(".", 2)
    if len(parts) != 3:  # major.minor.patch
        return "No Major.Minor.Patch elements found"
    return f"Invalid character(s) or leading zeroes found in version {text!r}"

"""Sizes of values and sums of costs: unsigned 64-bit numbers that stop at the largest one."""

from __future__ import annotations

import math
from typing import NamedTuple

from dra_driver.simulator.cel.syntax import ListLiteral, Literal, MapLiteral, Node

UNLIMITED = (1 << 64) - 1

Size = tuple[int, int]
"""Least and most characters of a text, bytes, elements or entries; a scalar has 1."""

ONE: Size = (1, 1)
SIZE_UNKNOWN: Size = (0, UNLIMITED)
SCALARS = frozenset({"bool", "double", "int", "uint", "google.protobuf.Timestamp", "google.protobuf.Duration"})


class EntrySize(NamedTuple):
    """Sizes of the keys (or indices) and values of a container."""

    container: str
    key: Size
    value: Size


MAP_ENTRIES, DOMAIN_LENGTH, ID_LENGTH, VALUE_LENGTH = 32, 63, 32, 64

_ATTRIBUTES = "attributes"
_PARTS: dict[tuple[str, ...], int] = {
    (): 0,
    ("driver",): DOMAIN_LENGTH,
    ("allowMultipleAllocations",): 1,
    **{
        (field, *part): size
        for field in (_ATTRIBUTES, "capacity")
        for part, size in (
            ((), MAP_ENTRIES),
            (("@keys",), DOMAIN_LENGTH),
            (("@values",), MAP_ENTRIES),
            (("@values", "@keys"), ID_LENGTH),
        )
    },
    (_ATTRIBUTES, "@values", "@values"): VALUE_LENGTH,
    ("capacity", "@values", "@values"): 0,
}
"""Part of the device -> its largest size, by the limits of the ResourceSlice API."""


def size_at(path: tuple[str, ...]) -> Size | None:
    """The size of a part of the device, or None for anything else."""
    if not path or path[0] != "device":
        return None
    part = path[1:]
    if (
        len(part) == 3 and part[:2] == (_ATTRIBUTES, "@values") and not part[2].startswith("@")
    ):  # attributes, domain, name
        return (0, VALUE_LENGTH)
    found = _PARTS.get(part)
    return None if found is None else (0, found)


def literal_size(node: Node) -> Size | None:
    """The exact size of a literal."""
    if isinstance(node, Literal):
        length = len(node.value) if isinstance(node.value, str | bytes) else 1
    elif isinstance(node, ListLiteral):
        length = len(node.elements)
    elif isinstance(node, MapLiteral):
        length = len(node.entries)
    else:
        return None
    return (length, length)


def add(left: int, right: int) -> int:
    """A sum."""
    return min(left + right, UNLIMITED)


def times(left: int, right: int) -> int:
    """A product."""
    return min(left * right, UNLIMITED)


def scaled(value: int, factor: float) -> int:
    """A product with a factor, rounded up."""
    product = float(value) * factor
    return UNLIMITED if product >= 2.0**64 else math.ceil(product)


def union(left: Size, right: Size) -> Size:
    """The range that has both."""
    return min(left[0], right[0]), max(left[1], right[1])


def sum_of(left: Size, right: Size) -> Size:
    """The sizes added."""
    return add(left[0], right[0]), add(left[1], right[1])


def product_of(left: Size, right: Size) -> Size:
    """The sizes multiplied."""
    return times(left[0], right[0]), times(left[1], right[1])

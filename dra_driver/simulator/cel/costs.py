"""What a call costs at most, and how large its result can be. The factors are Kubernetes' and part of its API."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dra_driver.simulator.cel.listcosts import Cost, Rule, flatten, listed, range_cost, sets, slice_cost, squared
from dra_driver.simulator.cel.sizes import (
    SIZE_UNKNOWN,
    UNLIMITED,
    EntrySize,
    Size,
    add,
    product_of,
    scaled,
    sum_of,
    times,
    union,
)  # fmt: skip
from dra_driver.simulator.cel.syntax import Call, Literal, Node
from dra_driver.simulator.cel.types import BYTES, STRING

if TYPE_CHECKING:
    from dra_driver.simulator.cel.estimate import Estimator, Operand

TRAVERSAL, PATTERN = 0.1, 0.25
"""Cost of a character of a text, and of a pattern."""
LONGEST_FORMAT_PATTERN, LONGEST_FORMAT = 128, 64


def call_cost(estimator: Estimator, node: Call, overload: str, target: Operand | None, args: list[Operand]) -> Cost:
    """Cost of a call by one overload, the arguments' included and the target's not, and the size of its result."""
    inside = 0
    for arg in args:
        inside = add(inside, arg.cost)
    if overload == "conditional":
        estimator.set_entries(node, _joined(estimator, node.args[1], node.args[2]))
        return add(args[0].cost, max(args[1].cost, args[2].cost)), union(
            args[1].known_size or SIZE_UNKNOWN, args[2].known_size or SIZE_UNKNOWN
        )
    if overload in {"logical_and", "logical_or"}:
        return inside, None
    if overload in {"add_list", "add_string", "add_bytes"}:
        estimator.set_entries(node, _joined(estimator, node.args[0], node.args[1]))
    rule = OVERLOADS.get(overload) or FUNCTIONS.get(node.function)
    found = rule(target, args) if rule is not None else None
    cost, size = found or (1, None)
    return add(cost, inside), size


def _joined(estimator: Estimator, left: Node, right: Node) -> EntrySize | None:
    """Sizes of the entries of what is one or the other, or one after the other."""
    first, second = estimator.entries(left), estimator.entries(right)
    if first is None or second is None:
        return None
    return EntrySize(first.container, union(first.key, second.key), union(first.value, second.value))


def _known(operand: Operand) -> Size:
    return operand.known_size or SIZE_UNKNOWN


def _constant(cost: int) -> Rule:
    return lambda *_: (cost, None)


def _compared(_: Operand | None, args: list[Operand]) -> Cost:
    return scaled(min(_known(args[0])[1], _known(args[1])[1]), TRAVERSAL), None


def _equal(target: Operand | None, args: list[Operand]) -> Cost:
    left, right = args
    if left.type == right.type:
        if left.type.kind in {"net.IP", "net.CIDR", "kubernetes.Quantity", "kubernetes.Semver"}:
            return 1, None
        if left.type.kind == "kubernetes.NamedFormat":
            return scaled(LONGEST_FORMAT, TRAVERSAL), None
        if left.type.kind == "kubernetes.URL":
            return scaled(right.known_size[1] if right.known_size else 1, TRAVERSAL), None
    return _compared(target, args)


def _argument(factor: float, *, sized: bool = False) -> Rule:
    """Proportional to the first argument; with ``sized`` the result is as large as it."""
    return lambda _, args: (scaled(args[0].size[1], factor), args[0].size if sized else None)


def _whole_target(factor: float) -> Rule:
    """Proportional to what the method is called on, and the result as large."""
    return lambda target, _: (scaled(target.size[1], factor), target.size) if target else None


def _over_list(target: Operand | None, _: list[Operand]) -> Cost | None:
    """Each element is looked at; texts are compared."""
    if target is None:
        return None
    element = target.element
    if element is None:
        return scaled(target.size[1], TRAVERSAL), None
    kind, size = element
    each = 1 + scaled(size[1], TRAVERSAL) if kind in (STRING, BYTES) else 1
    return times(target.size[1], min(each, UNLIMITED)), None


def _prefix(_: Operand | None, args: list[Operand]) -> Cost:
    return scaled(_known(args[0])[1], TRAVERSAL), None


def _in_list(_: Operand | None, args: list[Operand]) -> Cost:
    return scaled(_known(args[1])[1], 1), None


def _within(target: Operand | None, args: list[Operand]) -> Cost | None:
    if target is None:
        return None
    return times(scaled(_known(target)[1], TRAVERSAL), scaled(_known(args[0])[1], TRAVERSAL)), None


def _pattern_cost(text: Size, pattern: Size) -> int:
    return times(scaled(add(text[1], 1), TRAVERSAL), scaled(pattern[1], PATTERN))


def _matches(target: Operand | None, args: list[Operand]) -> Cost | None:
    return (_pattern_cost(_known(target), _known(args[0])), None) if target else None


def _find(target: Operand | None, args: list[Operand]) -> Cost | None:
    return (_pattern_cost(target.size, args[0].size), (0, target.size[1])) if target else None


def _replace(target: Operand | None, args: list[Operand]) -> Cost | None:
    if target is None:
        return None
    text, old, new = target.size, args[0].size, args[1].size
    if old[0] == 0:
        most, kept = min(text[1] + 1, UNLIMITED), text[1]
    elif new[1] <= old[0]:
        most, kept = 0, text[1]
    else:
        most, kept = math.ceil(text[1] / old[0]), 0
    if old[1] == 0:
        least, kept_least = min(text[0] + 1, UNLIMITED), text[0]
    elif old[1] <= new[0]:
        least, kept_least = 0, text[0]
    else:
        least, kept_least = math.ceil(text[0] / old[1]), 0
    size = sum_of(product_of((least, most), new), (kept_least, kept))
    return scaled(text[1], 2 * TRAVERSAL), size


def _split(target: Operand | None, args: list[Operand]) -> Cost | None:
    if target is None:
        return None
    most = target.size[1]
    if len(args) > 1 and isinstance(args[1].node, Literal) and type(args[1].node.value) is int:
        most = args[1].node.value & UNLIMITED
    return scaled(target.size[1], 2 * TRAVERSAL), (0, most)


def _join(target: Operand | None, args: list[Operand]) -> Cost | None:
    if target is None:
        return None
    count, element = target.size, target.element
    size: Size = product_of(count, element[1]) if element else (0, 0)
    if args:
        between = (max(count[0] - 1, 0), max(count[1] - 1, 0))
        size = sum_of(size, product_of(args[0].size, between))
    return scaled(size[1], TRAVERSAL), size


def _contains_address(string_overload: bool, base: int) -> Rule:  # a row of the table below
    return lambda _, args: (add(base, scaled(args[0].size[1], TRAVERSAL)) if string_overload else base, None)


def _added(factor: float) -> Rule:
    """Texts are copied, lists are not."""

    def rule(_: Operand | None, args: list[Operand]) -> Cost:
        size = sum_of(_known(args[0]), _known(args[1]))
        return (scaled(size[1], factor) if factor else 1), size

    return rule


def _to_bytes(_: Operand | None, args: list[Operand]) -> Cost:
    least, most = _known(args[0])
    return scaled(most, TRAVERSAL), (least, most * 4 & UNLIMITED)


def _to_text(_: Operand | None, args: list[Operand]) -> Cost:
    least, most = _known(args[0])
    return scaled(most, TRAVERSAL), (least // 4, most)


def _quoted(_: Operand | None, args: list[Operand]) -> Cost:
    least, most = _known(args[0])
    return scaled(most, TRAVERSAL), (least + 2, most * 2 + 2 & UNLIMITED)


def _validate(_: Operand | None, args: list[Operand]) -> Cost:
    return scaled(scaled(args[0].size[1], TRAVERSAL), LONGEST_FORMAT_PATTERN * PATTERN), None


_SORTED = ("int", "uint", "double", "bool", "string", "bytes")
_TEXT_FACTOR = 2 + TRAVERSAL

OVERLOADS: dict[str, Rule] = {
    **dict.fromkeys(
        (
            f"{word}_{kind}"
            for word in ("less", "less_equals", "greater", "greater_equals")
            for kind in ("string", "bytes")
        ),
        _compared,
    ),
    "equals": _equal,
    "not_equals": _compared,
    "in_list": _in_list,
    "starts_with_string": _prefix,
    "ends_with_string": _prefix,
    "contains_string": _within,
    "matches_string": _matches,
    "string_format": lambda target, _: (scaled(_known(target)[1], TRAVERSAL), None) if target else None,
    "strings_quote": _quoted,
    "string_to_bytes": _to_bytes,
    "bytes_to_string": _to_text,
    "add_string": _added(TRAVERSAL),
    "add_bytes": _added(TRAVERSAL),
    "add_list": _added(0),
    "list_slice": slice_cost,
    "list_flatten": flatten,
    "list_flatten_int": flatten,
    "lists_range": range_cost,
    "list_reverse": lambda target, _: listed(1, target.size) if target else None,
    "list_distinct": squared(2),
    **{f"list_{kind}_sort": squared(_TEXT_FACTOR if kind in {"string", "bytes"} else 2) for kind in _SORTED},
    **{
        f"list_{kind}_sortByAssociatedKeys": squared(
            _TEXT_FACTOR if kind in {"string", "bytes"} else 2, of_argument=True
        )
        for kind in _SORTED
    },
    "list_sets_contains_list": sets(1),
    "list_sets_intersects_list": sets(1),
    "list_sets_equivalent_list": sets(2),
    "cidr_ip": _constant(1),
    "cidr_contains_ip_string": _contains_address(True, 4),  # a row
    "cidr_contains_ip_ip": _contains_address(False, 4),  # a row
    "cidr_contains_cidr_string": _contains_address(True, 7),  # a row
    "cidr_contains_cidr": _contains_address(False, 7),  # a row
}
"""By overload; these come first."""

FUNCTIONS: dict[str, Rule] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _over_list),
    "url": _argument(TRAVERSAL, sized=True),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _whole_target(TRAVERSAL)),
    "replace": _replace,
    "split": _split,
    "join": _join,
    **dict.fromkeys(("find", "findAll"), _find),
    **dict.fromkeys(
        ("cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"), _argument(TRAVERSAL)
    ),
    "ip.isCanonical": _argument(2 * TRAVERSAL),
    "validate": _validate,
}
"""By the name of the function. What is in neither table costs 1."""

"""List functions: Kubernetes' own library and cel-go's, version 3; and sets."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import Any

from dra_driver.simulator.cel import operators
from dra_driver.simulator.cel.errors import EvaluationError
from dra_driver.simulator.cel.overloads import Functions, Overload, function, method, no_overload
from dra_driver.simulator.cel.types import BOOL, BYTES, DOUBLE, DYN, INT, STRING, UINT, Type, list_of, param
from dra_driver.simulator.cel.values import Uint, equal

T = param("T")
LIST = list_of(T)
COMPARABLE = (INT, UINT, DOUBLE, BOOL, STRING, BYTES)
ZEROS: dict[Type, Any] = {INT: 0, UINT: Uint(0), DOUBLE: 0.0}

_order = operators.order("_<_")
_add = operators.arithmetic("_+_")


def _less(left: Any, right: Any) -> bool:
    """Whether one value sorts before the other; values without an order keep their relative position."""
    try:
        return bool(_order(left, right))
    except EvaluationError:
        return False


def _is_sorted(items: list[Any]) -> bool:
    return not any(_less(after, before) for before, after in pairwise(items))


def _extreme(name: str, is_better: Callable[[Any, Any], bool]) -> Callable[[list[Any]], Any]:
    def run(items: list[Any]) -> Any:
        if not items:
            raise ValueError(f"{name} called on empty list")
        return reduce(lambda best, item: item if is_better(item, best) else best, items)

    return run


def _sum_from(zero: Any) -> Callable[[list[Any]], Any]:
    return lambda items: reduce(_add, items, zero)


def _index_of(items: list[Any], wanted: Any) -> int:
    return next((place for place, item in enumerate(items) if equal(item, wanted)), -1)


def _last_index_of(items: list[Any], wanted: Any) -> int:
    return next((place for place in reversed(range(len(items))) if equal(items[place], wanted)), -1)


def _slice(items: list[Any], start: int, end: int) -> list[Any]:
    call = f"cannot slice({start}, {end})"
    if start < 0 or end < 0:
        raise ValueError(f"{call}, negative indexes not supported")
    if start > end:
        raise ValueError(f"{call}, start index must be less than or equal to end index")
    if len(items) < end:
        raise ValueError(f"{call}, list is length {len(items)}")
    return items[start:end]


def _flatten(items: Any, depth: int = 1) -> list[Any]:
    if type(items) is not list:
        raise no_overload("flatten", items)
    if depth < 0:
        raise ValueError("level must be non-negative")
    flat = items
    while depth and any(type(item) is list for item in flat):
        flat = [part for item in flat for part in (item if type(item) is list else (item,))]
        depth -= 1
    return flat


def _sort(items: list[Any]) -> list[Any]:
    return _sort_by(items, items)


def _sort_by(items: list[Any], keys: list[Any]) -> list[Any]:
    if any(type(key) is not type(keys[0]) for key in keys):
        raise ValueError("list elements must have the same type")
    return [items[place] for place in sorted(range(len(items)), key=keys.__getitem__)]


def _distinct(items: list[Any]) -> list[Any]:
    distinct: list[Any] = []
    for item in items:
        if not any(equal(item, other) for other in distinct):
            distinct.append(item)
    return distinct


def _range(count: int) -> list[int]:
    if count < 0:
        raise ValueError(f"lists.range: size must be non-negative, got {count}")
    return list(range(count))


def _contains(items: list[Any], part: list[Any]) -> bool:
    return all(any(equal(item, wanted) for item in items) for wanted in part)


def _intersects(items: list[Any], others: list[Any]) -> bool:
    return any(equal(item, other) for item in items for other in others)


def _per_type(
    name: str, kinds: tuple[Type, ...], run: Callable[..., Any], result: Type | None = None
) -> tuple[Overload, ...]:
    return tuple(method(f"list_{kind}_{name}", (list_of(kind),), result or kind, run) for kind in kinds)


FUNCTIONS: Functions = {
    "isSorted": _per_type("is_sorted_bool", COMPARABLE, _is_sorted, BOOL),
    "sum": tuple(method(f"list_{kind}_sum", (list_of(kind),), kind, _sum_from(zero)) for kind, zero in ZEROS.items()),
    "max": _per_type("max", COMPARABLE, _extreme("max", lambda item, best: _less(best, item))),
    "min": _per_type("min", COMPARABLE, _extreme("min", _less)),
    "indexOf": (method("list_a_index_of_int", (LIST, T), INT, _index_of),),
    "lastIndexOf": (method("list_a_last_index_of_int", (LIST, T), INT, _last_index_of),),
    "slice": (method("list_slice", (LIST, INT, INT), LIST, _slice),),
    "flatten": (
        method("list_flatten", (list_of(LIST),), LIST, _flatten),
        method("list_flatten_int", (list_of(DYN), INT), list_of(DYN), _flatten),
    ),
    "sort": tuple(method(f"list_{kind}_sort", (list_of(kind),), list_of(kind), _sort) for kind in COMPARABLE),
    "@sortByAssociatedKeys": tuple(
        method(f"list_{kind}_sortByAssociatedKeys", (LIST, list_of(kind)), LIST, _sort_by) for kind in COMPARABLE
    ),
    "lists.range": (function("lists_range", (INT,), list_of(INT), _range),),
    "reverse": (method("list_reverse", (LIST,), LIST, lambda items: items[::-1]),),
    "distinct": (method("list_distinct", (LIST,), LIST, _distinct),),
    "sets.contains": (function("list_sets_contains_list", (LIST, LIST), BOOL, _contains),),
    "sets.equivalent": (
        function("list_sets_equivalent_list", (LIST, LIST), BOOL, lambda a, b: _contains(a, b) and _contains(b, a)),
    ),
    "sets.intersects": (function("list_sets_intersects_list", (LIST, LIST), BOOL, _intersects),),
}

BEFORE_1_37 = {"lists_range": lambda count: list(range(count))}
"""How Kubernetes 1.36 runs some overloads, by overload."""

"""The cost of an expression as the API server estimates it, with a limit, before it stores the expression.

Kubernetes also counts the actual cost during evaluation, with the same limit. That is not simulated: admitted
expressions stay below the limit, except for the few units by which the estimate of some expressions (``device ==
null``) is too low.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dra_driver.kube.objects import limits
from dra_driver.simulator.cel.checker import Checked
from dra_driver.simulator.cel.syntax import (
    Bind,
    Call,
    Fold,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Select,
    SyntaxNode,
)
from dra_driver.simulator.cel.types import BYTES, QUANTITY, SEMVER, STRING, Type

UNLIMITED = (1 << 64) - 1

Size = tuple[int, int]
"""Minimum and maximum size: characters of a string, bytes, elements or entries; a scalar has 1."""

ONE: Size = (1, 1)
SIZE_UNKNOWN: Size = (0, UNLIMITED)
SCALARS = frozenset({"bool", "double", "int", "uint", "google.protobuf.Timestamp", "google.protobuf.Duration"})


class EntrySize(NamedTuple):
    """Sizes of the keys (or indices) and of the values of a container."""

    container: str
    key: Size
    value: Size


_ATTRIBUTES = "attributes"
_PARTS: dict[tuple[str, ...], int] = {
    (): 0,
    ("driver",): limits.MAX_DOMAIN_CHARACTERS,
    ("allowMultipleAllocations",): 1,
    **{
        (field, *part): size
        for field in (_ATTRIBUTES, "capacity")
        for part, size in (
            ((), limits.MAX_ATTRIBUTES),
            (("@keys",), limits.MAX_DOMAIN_CHARACTERS),
            (("@values",), limits.MAX_ATTRIBUTES),
            (("@values", "@keys"), limits.MAX_ID_CHARACTERS),
        )
    },
    (_ATTRIBUTES, "@values", "@values"): limits.MAX_ATTRIBUTE_BYTES,
    ("capacity", "@values", "@values"): 0,
}
"""Maximum size of each part of the device, from the limits of the ResourceSlice API."""


def size_at(path: tuple[str, ...]) -> Size | None:
    """The size of a part of the device; None for anything else."""
    if not path or path[0] != "device":
        return None
    part = path[1:]
    if (
        len(part) == 3 and part[:2] == (_ATTRIBUTES, "@values") and not part[2].startswith("@")
    ):  # attributes, domain, name
        return (0, limits.MAX_ATTRIBUTE_BYTES)
    most = _PARTS.get(part)
    return None if most is None else (0, most)


def literal_size(node: SyntaxNode) -> Size | None:
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
    """Saturating addition."""
    return min(left + right, UNLIMITED)


def times(left: int, right: int) -> int:
    """Saturating multiplication."""
    return min(left * right, UNLIMITED)


def scaled(value: int, factor: float) -> int:
    """Saturating multiplication by a factor, rounded up."""
    product = float(value) * factor
    return UNLIMITED if product >= 2.0**64 else math.ceil(product)


def union(left: Size, right: Size) -> Size:
    """The smallest range that covers both."""
    return min(left[0], right[0]), max(left[1], right[1])


def sum_of(left: Size, right: Size) -> Size:
    """The sum of two ranges."""
    return add(left[0], right[0]), add(left[1], right[1])


def product_of(left: Size, right: Size) -> Size:
    """The product of two ranges."""
    return times(left[0], right[0]), times(left[1], right[1])


Cost = tuple[int, Size | None]
"""Cost excluding the arguments, and the size of the result if it is known."""
Rule = Callable[["list[Operand]"], Cost]
"""Takes the target, if the call is of a method, and the arguments."""


def listed(factor: float, size: Size) -> Cost:
    """A call that creates a list: its elements, the call and the list itself."""
    return add(scaled(size[1], factor), 11), size


def _literal_int(operand: Operand, default: int) -> int:
    if isinstance(operand.node, Literal) and type(operand.node.value) is int:
        return max(operand.node.value, 0)
    return default


def slice_cost(parts: list[Operand]) -> Cost:
    """``slice()``."""
    items, first, last = parts
    start, end = _literal_int(first, 0), _literal_int(last, items.size[1])
    count = (end - start) & UNLIMITED
    return listed(1, (count, count))


def range_cost(parts: list[Operand]) -> Cost:
    """``lists.range()``."""
    count = _literal_int(parts[0], UNLIMITED)
    return listed(1, (count, count))


def flatten(parts: list[Operand]) -> Cost:
    """``flatten()``."""
    depth = _literal_int(parts[1], UNLIMITED) if len(parts) > 1 else 1
    return listed(float(depth), parts[0].size)


def squared(factor: float, place: int = 0) -> Rule:
    """Each element of the list at ``place`` is compared with each."""
    return lambda parts: listed(factor, product_of(parts[place].size, parts[place].size))


def sets(factor: float) -> Rule:
    """Each element of one list is compared with each element of the other."""
    return lambda parts: (add(scaled(product_of(parts[0].size, parts[1].size)[1], factor), 1), None)


TRAVERSAL, PATTERN = 0.1, 0.25
"""Cost per character of a string, and per character of a pattern."""


def call_cost(estimator: Estimator, node: Call, overload: str, parts: list[Operand]) -> Cost:
    """Cost of a call by one overload, including its parts, and the size of its result."""
    inside = 0
    for part in parts:
        inside = add(inside, part.cost)
    if overload == "conditional":
        condition, yes, no = parts
        estimator.set_entries(node, _joined(estimator, yes.node, no.node))
        return add(condition.cost, max(yes.cost, no.cost)), union(_own_size(yes), _own_size(no))
    if overload in {"logical_and", "logical_or"}:
        return inside, None
    if overload in {"add_list", "add_string", "add_bytes"}:
        estimator.set_entries(node, _joined(estimator, node.args[0], node.args[1]))
    rule = OVERLOADS.get(overload) or FUNCTIONS.get(node.function)
    cost, size = rule(parts) if rule is not None else (1, None)
    return add(cost, inside), size


def _joined(estimator: Estimator, left: SyntaxNode, right: SyntaxNode) -> EntrySize | None:
    """Sizes of the entries of a value that is either of two nodes, or their concatenation."""
    first, second = estimator.entries(left), estimator.entries(right)
    if first is None or second is None:
        return None
    return EntrySize(first.container, union(first.key, second.key), union(first.value, second.value))


def _own_size(operand: Operand) -> Size:
    """The size of the operand itself, whatever the API allows the part of the device that it denotes."""
    return operand.known_size or SIZE_UNKNOWN


def _compared(parts: list[Operand]) -> Cost:
    return scaled(min(_own_size(part)[1] for part in parts), TRAVERSAL), None


def _equal(parts: list[Operand]) -> Cost:
    left, right = parts
    if left.type == right.type and left.type in (QUANTITY, SEMVER):
        return 1, None
    return _compared(parts)


def _first(parts: list[Operand]) -> Cost:
    """Proportional to the size of the first part."""
    return scaled(parts[0].size[1], TRAVERSAL), None


def _whole(parts: list[Operand]) -> Cost:
    """Proportional to the size of the target, which is also the size of the result."""
    return scaled(parts[0].size[1], TRAVERSAL), parts[0].size


def _over_list(parts: list[Operand]) -> Cost:
    """Each element is visited; strings are compared."""
    element = parts[0].element
    if element is None:
        return _first(parts)
    kind, size = element
    each = 1 + scaled(size[1], TRAVERSAL) if kind in (STRING, BYTES) else 1
    return times(parts[0].size[1], min(each, UNLIMITED)), None


def _prefix(parts: list[Operand]) -> Cost:
    return scaled(_own_size(parts[1])[1], TRAVERSAL), None


def _in_list(parts: list[Operand]) -> Cost:
    return scaled(_own_size(parts[1])[1], 1), None


def _within(parts: list[Operand]) -> Cost:
    return times(scaled(_own_size(parts[0])[1], TRAVERSAL), scaled(_own_size(parts[1])[1], TRAVERSAL)), None


def _pattern_cost(text: Size, pattern: Size) -> int:
    return times(scaled(add(text[1], 1), TRAVERSAL), scaled(pattern[1], PATTERN))


def _matches(parts: list[Operand]) -> Cost:
    return _pattern_cost(_own_size(parts[0]), _own_size(parts[1])), None


def _find(parts: list[Operand]) -> Cost:
    return _pattern_cost(parts[0].size, parts[1].size), (0, parts[0].size[1])


def _replace(parts: list[Operand]) -> Cost:
    text, old, new = (part.size for part in parts[:3])  # the fourth limits how often
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


def _split(parts: list[Operand]) -> Cost:
    most = length = parts[0].size[1]
    limit = parts[2].node if len(parts) > 2 else None
    if isinstance(limit, Literal) and type(limit.value) is int:
        most = limit.value & UNLIMITED
    return scaled(length, 2 * TRAVERSAL), (0, most)


def _join(parts: list[Operand]) -> Cost:
    count, element = parts[0].size, parts[0].element
    size: Size = product_of(count, element[1]) if element else (0, 0)
    if len(parts) > 1:
        between = (max(count[0] - 1, 0), max(count[1] - 1, 0))
        size = sum_of(size, product_of(parts[1].size, between))
    return scaled(size[1], TRAVERSAL), size


def _added(factor: float) -> Rule:
    """Strings are copied, lists are not."""

    def rule(parts: list[Operand]) -> Cost:
        size = sum_of(_own_size(parts[0]), _own_size(parts[1]))
        return (scaled(size[1], factor) if factor else 1), size

    return rule


def _to_bytes(parts: list[Operand]) -> Cost:
    least, most = _own_size(parts[0])
    return scaled(most, TRAVERSAL), (least, most * 4 & UNLIMITED)


def _to_text(parts: list[Operand]) -> Cost:
    least, most = _own_size(parts[0])
    return scaled(most, TRAVERSAL), (least // 4, most)


def _quoted(parts: list[Operand]) -> Cost:
    least, most = _own_size(parts[0])
    return scaled(most, TRAVERSAL), (least + 2, most * 2 + 2 & UNLIMITED)


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
    "list_reverse": lambda parts: listed(1, parts[0].size),
    "list_distinct": squared(2),
    **{f"list_{kind}_sort": squared(_TEXT_FACTOR if kind in {"string", "bytes"} else 2) for kind in _SORTED},
    **{
        f"list_{kind}_sortByAssociatedKeys": squared(_TEXT_FACTOR if kind in {"string", "bytes"} else 2, 1)
        for kind in _SORTED
    },
    "list_sets_contains_list": sets(1),
    "list_sets_intersects_list": sets(1),
    "list_sets_equivalent_list": sets(2),
}
"""Costs by overload; these take precedence."""

FUNCTIONS: dict[str, Rule] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _over_list),
    **dict.fromkeys(("lowerAscii", "upperAscii", "substring", "trim"), _whole),
    "replace": _replace,
    "split": _split,
    "join": _join,
    **dict.fromkeys(("find", "findAll"), _find),
    **dict.fromkeys(("quantity", "isQuantity", "semver", "isSemver"), _first),
}
"""Costs by function name. A function in neither table costs 1."""


Path = tuple[str, ...]
LIST_COST, MAP_COST, BIND_COST = 10, 30, 10


@dataclass(frozen=True, slots=True)
class _Local:
    path: Path
    size: Size | None
    entries: EntrySize | None


@dataclass(frozen=True, slots=True)
class Operand:
    """What the cost of a call needs to know about a target or argument; ``cost`` is the cost of evaluating it."""

    node: SyntaxNode
    path: Path
    type: Type
    known_size: Size | None
    cost: int

    @property
    def size(self) -> Size:
        """The size; (0, unlimited) if nothing is known."""
        return self.known_size or size_at(self.path) or SIZE_UNKNOWN

    @property
    def element(self) -> tuple[Type, Size] | None:
        """Type and size of the elements of a list."""
        if not self.type.params:
            return None
        return self.type.params[0], (size_at((*self.path, "@items")) if self.path else None) or SIZE_UNKNOWN


def estimate(root: SyntaxNode, checked: Checked) -> int:
    """The maximum cost, in Kubernetes' units; UNLIMITED if there is no bound."""
    return Estimator(checked).cost(root)


class Estimator:
    """Walks an expression once. Known sizes and device paths of nodes are kept for the nodes that use them."""

    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self._locals: dict[str, list[_Local]] = {}
        self._paths: dict[SyntaxNode, Path] = {}
        self._sizes: dict[SyntaxNode, Size] = {}
        self._entries: dict[SyntaxNode, EntrySize] = {}
        self._costs: dict[SyntaxNode, int] = {}

    def cost(self, node: SyntaxNode) -> int:
        """The maximum cost of a node."""
        if node not in self._costs:
            # Macro expansion may use a node twice, at the same cost.
            self._costs[node] = _COSTS[type(node)](self, node)
        return self._costs[node]

    def operand(self, node: SyntaxNode, cost: int) -> Operand:
        """A node as the target or an argument of a call."""
        return Operand(node, self.path(node), self.checked.types[node], self.size(node), cost)

    def path(self, node: SyntaxNode) -> Path:
        """The part of the device that a node denotes, or ()."""
        if isinstance(node, Ident) and self._locals.get(node.name):
            return self._locals[node.name][-1].path
        return self._paths.get(node, ())

    def size(self, node: SyntaxNode) -> Size | None:
        """The size of a node, as far as it is known."""
        size = self._sizes.get(node) or literal_size(node)
        if size is not None:
            return size
        size = size_at(self.path(node))
        if size is not None:
            self._sizes[node] = size
            return size
        kind = self.checked.types[node]
        if kind.kind in SCALARS or (kind.kind == "optional_type" and kind.params[0].kind in SCALARS):
            return ONE
        if isinstance(node, Ident) and self._locals.get(node.name):
            return self._locals[node.name][-1].size
        return None

    def entries(self, node: SyntaxNode) -> EntrySize | None:
        """The sizes of the entries of a list or map, as far as they are known."""
        if node in self._entries:
            return self._entries[node]
        if isinstance(node, Ident) and self._locals.get(node.name):
            return self._locals[node.name][-1].entries
        return None

    def set_entries(self, node: SyntaxNode, entries: EntrySize | None) -> None:
        """Record the sizes of a node's entries."""
        if entries is not None:
            self._entries[node] = entries

    def _push(self, name: str, local: _Local) -> None:
        self._locals.setdefault(name, []).append(local)

    def _literal(self, _: Literal) -> int:
        return 0

    def _ident(self, node: Ident) -> int:
        stack = self._locals.get(node.name)
        self._paths[node] = stack[-1].path if stack else (node.name,)
        return 1

    def _select(self, node: Select) -> int:
        if node in self.checked.named_types:
            return 1
        cost = self.cost(node.operand)
        if node.test:
            return cost
        self._paths[node] = (*self.path(node.operand), node.field)
        kind = self.checked.types[node.operand].kind
        return add(cost, 1) if kind in {"map", "kubernetes.DRADevice"} else cost

    def _call(self, node: Call) -> int:
        if node.function == "dyn":
            (arg,) = node.args
            cost = add(self.cost(arg), 1)
            size = self.size(arg)
            if size is not None:
                self._sizes[node] = size
            self.set_entries(node, self.entries(arg))
            return cost
        parts = []
        for arg in node.args:
            # Determines size and path; called here, because each frame counts in a deep expression.
            cost = self.cost(arg)
            parts.append(self.operand(arg, cost))
        if node.target is not None:
            cost = self.cost(node.target)
            parts.insert(0, self.operand(node.target, cost))
        highest, size = 0, None
        for overload in self.checked.overloads[node]:
            cost, result = call_cost(self, node, overload.id, parts)
            highest = max(highest, cost)
            if result is not None:
                size = result if size is None else union(size, result)
            if overload.id in {"index_list", "index_map"}:
                entries = self.entries(node.args[0])
                size = entries.value if entries is not None else None
                part = "@items" if overload.id == "index_list" else "@values"
                self._paths[node] = (*self.path(node.args[0]), part)
            if size is None:
                size = self.size(node)
        if size is not None:
            self._sizes[node] = size
        return highest

    def _list(self, node: ListLiteral) -> int:
        cost = 0
        value: Size = (UNLIMITED if node.elements else 0, 0)
        for element in node.elements:
            cost = add(cost, self.cost(element))
            value = union(value, self.size(element) or SIZE_UNKNOWN)
        self._entries[node] = EntrySize("list", ONE, value)
        return add(cost, LIST_COST)

    def _map(self, node: MapLiteral) -> int:
        cost = 0
        key_size: Size = (UNLIMITED if node.entries else 0, 0)
        value_size = key_size
        for key, value, _ in node.entries:
            cost = add(add(cost, self.cost(key)), self.cost(value))
            key_size = union(key_size, self.size(key) or SIZE_UNKNOWN)
            value_size = union(value_size, self.size(value) or SIZE_UNKNOWN)
        self._entries[node] = EntrySize("map", key_size, value_size)
        return add(cost, MAP_COST)

    def _bind(self, node: Bind) -> int:
        cost = add(self.cost(node.value), BIND_COST)
        self._push(node.name, _Local(self.path(node.value), self.size(node.value), self.entries(node.value)))
        cost = add(cost, self.cost(node.body))
        self._locals[node.name].pop()
        size = self.size(node.body)
        if size is not None:
            self._sizes[node] = size
        self.set_entries(node, self.entries(node.body))
        return cost

    def _fold(self, node: Fold) -> int:
        cost = add(self.cost(node.range), self.cost(node.initial))
        initial = _Local(self.path(node.initial), self.size(node.initial), self.entries(node.initial))
        self._push(node.accumulator, initial)
        variables = self._loop_variables(node)
        for name, local in variables:
            self._push(name, local)
        loop = add(self.cost(node.condition), self.cost(node.step))
        for name, _ in variables:
            self._locals[name].pop()
        cost = add(cost, self.cost(node.result))
        self._locals[node.accumulator].pop()
        count = self.size(node.range) or SIZE_UNKNOWN
        if isinstance(node.initial, Literal):
            self._sizes[node] = self.size(node.initial) or SIZE_UNKNOWN
        else:
            self._sizes[node] = count
            self.set_entries(node, self.entries(node.step))
        return add(cost, times(count[1], loop))

    def _loop_variables(self, node: Fold) -> list[tuple[str, _Local]]:
        entries, path = self.entries(node.range), self.path(node.range)
        is_list = (entries.container if entries is not None else self.checked.types[node.range].kind) == "list"
        key = _Local((*path, "@indices" if is_list else "@keys"), entries.key if entries else None, None)
        value = _Local((*path, "@items" if is_list else "@values"), entries.value if entries else None, None)
        if node.variable2 is not None:
            return [(node.variable, key), (node.variable2, value)]
        return [(node.variable, value if is_list else key)]


_COSTS: dict[type, Callable[[Estimator, Any], int]] = {
    Literal: Estimator._literal, Ident: Estimator._ident, Select: Estimator._select, Call: Estimator._call,  # noqa: SLF001 # one table of this module's own methods
    ListLiteral: Estimator._list, MapLiteral: Estimator._map, Bind: Estimator._bind, Fold: Estimator._fold,  # noqa: SLF001
}  # fmt: skip

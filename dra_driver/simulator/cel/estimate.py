"""The cost that an expression may have at most, as the API server estimates it before it stores one.

Kubernetes counts the real cost as well when it evaluates, with the same limit. That is not simulated: what is admitted
stays below the limit, but for the few units by which the estimate of some expressions (``device == null``) is too low.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra_driver.simulator.cel.checker import Checked
from dra_driver.simulator.cel.sizes import (
    ONE,
    SCALARS,
    SIZE_UNKNOWN,
    UNLIMITED,
    EntrySize,
    Size,
    add,
    literal_size,
    size_at,
    times,
    union,
)  # fmt: skip
from dra_driver.simulator.cel.syntax import Bind, Call, Fold, Ident, ListLiteral, Literal, MapLiteral, Node, Select
from dra_driver.simulator.cel.types import Type

Path = tuple[str, ...]
LIST_COST, MAP_COST, BIND_COST = 10, 30, 10


@dataclass(frozen=True, slots=True)
class _Local:
    path: Path
    size: Size | None
    entries: EntrySize | None


@dataclass(frozen=True, slots=True)
class Operand:
    """A target or argument as the cost of a call depends on it; ``cost`` is that of computing it."""

    node: Node
    path: Path
    type: Type
    known_size: Size | None
    cost: int = 0

    @property
    def size(self) -> Size:
        """The size, (0, unlimited) when nothing is known."""
        return self.known_size or size_at(self.path) or SIZE_UNKNOWN

    @property
    def element(self) -> tuple[Type, Size] | None:
        """Type and size of a list's elements."""
        if not self.type.params:
            return None
        return self.type.params[0], (size_at((*self.path, "@items")) if self.path else None) or SIZE_UNKNOWN


def estimate(root: Node, checked: Checked) -> int:
    """The highest cost, in Kubernetes' units; UNLIMITED when there is no bound."""
    return Estimator(checked).cost(root)


class Estimator:
    """Walks an expression once. Sizes and places of nodes that are known are kept for those that use them."""

    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self._locals: dict[str, list[_Local]] = {}
        self._paths: dict[Node, Path] = {}
        self._sizes: dict[Node, Size] = {}
        self._entries: dict[Node, EntrySize] = {}
        self._costs: dict[Node, int] = {}

    def cost(self, node: Node) -> int:
        """The highest cost of a node."""
        if node not in self._costs:
            # Macros may use a node twice, at the same cost.
            self._costs[node] = _COSTS[type(node)](self, node)
        return self._costs[node]

    def operand(self, node: Node, cost: int = 0) -> Operand:
        """A node as a call's target or argument."""
        return Operand(node, self.path(node), self.checked.types[node], self.size(node), cost)

    def path(self, node: Node) -> Path:
        """Which part of the device a node is, or ()."""
        if isinstance(node, Ident) and self._locals.get(node.name):
            return self._locals[node.name][-1].path
        return self._paths.get(node, ())

    def size(self, node: Node) -> Size | None:
        """What is known of a node's size."""
        known = self._sizes.get(node) or literal_size(node)
        if known is not None:
            return known
        known = size_at(self.path(node))
        if known is not None:
            self._sizes[node] = known
            return known
        kind = self.checked.types[node]
        if kind.kind in SCALARS or (kind.kind == "optional_type" and kind.params[0].kind in SCALARS):
            return ONE
        if isinstance(node, Ident) and self._locals.get(node.name):
            return self._locals[node.name][-1].size
        return None

    def entries(self, node: Node) -> EntrySize | None:
        """What is known of the sizes of a list's or map's entries."""
        if node in self._entries:
            return self._entries[node]
        if isinstance(node, Ident) and self._locals.get(node.name):
            return self._locals[node.name][-1].entries
        return None

    def set_entries(self, node: Node, entries: EntrySize | None) -> None:
        """Remember them."""
        if entries is not None:
            self._entries[node] = entries

    def _push(self, name: str, local: _Local) -> None:
        self._locals.setdefault(name, []).append(local)

    def _literal(self, _: Literal) -> int:
        return 0

    def _ident(self, node: Ident) -> int:
        found = self._locals.get(node.name)
        self._paths[node] = found[-1].path if found else (node.name,)
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
        from dra_driver.simulator.cel.costs import call_cost

        if node.function == "dyn":
            (arg,) = node.args
            cost = add(self.cost(arg), 1)
            size = self.size(arg)
            if size is not None:
                self._sizes[node] = size
            self.set_entries(node, self.entries(arg))
            return cost
        args = []
        for arg in node.args:
            cost = self.cost(arg)
            args.append(self.operand(arg, cost))
        target_cost = self.cost(node.target) if node.target is not None else 0
        target = self.operand(node.target) if node.target is not None else None
        highest, size = 0, None
        for overload in self.checked.overloads[node]:
            cost, result = call_cost(self, node, overload.id, target, args)
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
        return add(target_cost, highest)

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

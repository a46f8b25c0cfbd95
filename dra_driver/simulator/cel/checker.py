"""The checks that the API server makes before it stores an expression: names, types and literals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dra_driver.simulator.cel import syntax
from dra_driver.simulator.cel.errors import CelError, Position, UnsupportedError
from dra_driver.simulator.cel.libraries import FUNCTIONS, NOT_SIMULATED, TYPES_NOT_SIMULATED
from dra_driver.simulator.cel.libraries.regex import compiled
from dra_driver.simulator.cel.overloads import Overload
from dra_driver.simulator.cel.syntax import (
    Call,
    Fold,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Select,
    SyntaxNode,
    qualified_name,
)
from dra_driver.simulator.cel.types import (
    ANY,
    BOOL,
    BYTES,
    DEVICE,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    NULL,
    QUANTITY,
    STRING,
    TIMESTAMP,
    UINT,
    Bindings,
    Type,
    assignable,
    is_dyn,
    list_of,
    map_of,
    most_general,
    optional_of,
    param,
    substitute,
    text_of,
    type_of,
)  # fmt: skip
from dra_driver.simulator.cel.values import Uint

DEVICE_FIELDS = {
    "driver": STRING,
    "attributes": map_of(STRING, map_of(STRING, ANY)),
    "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
    "allowMultipleAllocations": BOOL,
}
LITERALS: dict[type, Type] = {
    bool: BOOL, int: INT, Uint: UINT, float: DOUBLE, str: STRING, bytes: BYTES, type(None): NULL,
}  # fmt: skip
TYPE_IDENTS: dict[str, Type] = {
    kind.kind: kind
    for kind in (BOOL, INT, UINT, DOUBLE, STRING, BYTES, NULL, DURATION, TIMESTAMP, list_of(DYN),
                 map_of(DYN, DYN), optional_of(DYN), type_of(DYN))
}  # fmt: skip
"""Identifiers that denote types."""


@dataclass(slots=True)
class Checked:
    """The checker's results, by node."""

    types: dict[SyntaxNode, Type] = field(default_factory=dict)
    overloads: dict[SyntaxNode, tuple[Overload, ...]] = field(default_factory=dict)
    named_types: dict[SyntaxNode, str] = field(default_factory=dict)


def check(root: SyntaxNode) -> Checked:
    """Check an expression; raises CelError (compile) for the first problem for which Kubernetes would refuse it.

    Calls of functions with a dotted name lose their target in the process: ``sets.contains(a, b)`` has two arguments.
    """
    checker = _Checker()
    checker.check(root)
    checked = checker.checked
    for node, kind in checked.types.items():
        checked.types[node] = substitute(checker.bound, kind, free_is_dyn=True)
    wrong = [error for node in checker.aggregates for error in same_types(node, checked.types)]
    wrong += [error for call in checker.matches for error in invalid_pattern(call)]
    if wrong:
        raise min(wrong, key=lambda error: error.position or Position(1, 1))
    return checked


class _Checker:
    def __init__(self) -> None:
        self.checked = Checked()
        self.bound: Bindings = {}
        self.scopes: list[dict[str, Type]] = [{"device": DEVICE}]
        self.aggregates: list[ListLiteral | MapLiteral] = []
        self.matches: list[Call] = []
        self._variables = 0
        self._calls = 0

    def check(self, node: SyntaxNode) -> Type:
        """The type of a node, which may still have free variables."""
        kind = self.checked.types.get(node)
        if kind is None:
            # Macro expansion may use a node twice; check it once.
            kind = _BY_KIND[type(node)](self, node)
            self.checked.types[node] = kind
        return kind

    def _literal(self, node: Literal) -> Type:
        return LITERALS[type(node.value)]

    def _ident(self, node: Ident) -> Type:
        kind = self._lookup(node, node.name, [self.scopes[0]] if node.absolute else self.scopes)
        if kind is None:
            name = f".{node.name}" if node.absolute else node.name
            raise CelError("compile", f"undeclared reference to '{name}'", node.position)
        return kind

    def _lookup(self, node: SyntaxNode, name: str, scopes: list[dict[str, Type]]) -> Type | None:
        for scope in reversed(scopes):
            if name in scope:
                return scope[name]
        if name in TYPES_NOT_SIMULATED:
            raise UnsupportedError("compile", f"the simulator does not have the type {name}", node.position)
        if name not in TYPE_IDENTS:
            return None
        self.checked.named_types[node] = name
        return type_of(TYPE_IDENTS[name])

    def _select(self, node: Select) -> Type:
        name = None if node.test else qualified_name(node)
        kind = self._lookup(node, name, []) if name is not None else None
        if kind is not None:
            return kind
        selected = self._field(node.operand, node.field, node.position, optional=False)
        return BOOL if node.test else substitute(self.bound, selected)

    def _field(self, operand: SyntaxNode, name: str, position: Position, *, optional: bool) -> Type:
        kind = substitute(self.bound, self.check(operand))
        is_optional = kind.kind == "optional_type"
        target = kind.params[0] if is_optional else kind
        if target.kind == "map":
            selected = target.params[1]
        elif target == DEVICE:
            if name not in DEVICE_FIELDS:
                raise CelError("compile", f"undefined field '{name}'", position)
            selected = DEVICE_FIELDS[name]
        elif target.kind == "param":
            self._assignable([DYN], [target])
            selected = DYN
        elif is_dyn(target):
            selected = DYN
        else:
            raise CelError("compile", f"type '{text_of(target)}' does not support field selection", position)
        return optional_of(selected) if is_optional or optional else selected

    def _call(self, node: Call) -> Type:
        if node.function == "_?._":
            operand, name = node.args
            if not isinstance(name, Literal) or not isinstance(name.value, str):
                raise CelError("compile", "unsupported optional field selection", node.position)
            self.checked.overloads[node] = FUNCTIONS[node.function]
            self.check(name)
            return substitute(self.bound, self._field(operand, name.value, node.position, optional=True))
        self._adopt_namespace(node)
        if node.function not in FUNCTIONS:
            self._unknown(node)
        self._check_parts(node)
        if node.function == "matches":
            self.matches.append(node)
        return self._resolve(node)

    def _check_parts(self, node: Call) -> None:
        try:
            for arg in node.args:
                self.check(arg)
        except CelError:
            if node.target is not None:
                # If both sides have errors, the one that comes first in the text is reported.
                self.check(node.target)
            raise
        if node.target is not None:
            self.check(node.target)

    def _unknown(self, node: Call) -> NoReturn:
        if node.target is not None:
            self.check(node.target)
        if node.function in NOT_SIMULATED:
            raise UnsupportedError("compile", f"the simulator does not have {node.function}()", node.position)
        raise CelError("compile", f"undeclared reference to '{node.function}'", node.position)

    def _adopt_namespace(self, node: Call) -> None:
        """``sets.contains(a, b)`` is a function with a dotted name, not a method of ``sets``."""
        prefix = qualified_name(node.target) if node.target is not None else None
        if prefix is not None and f"{prefix}.{node.function}" in FUNCTIONS.keys() | NOT_SIMULATED:
            node.function, node.target = f"{prefix}.{node.function}", None

    def _resolve(self, node: Call) -> Type:
        """Find the overloads that may apply, and the type of the result."""
        parts = node.args if node.target is None else (node.target, *node.args)
        kinds = [self.checked.types[part] for part in parts]
        if node.function in {"_&&_", "_||_"}:
            return self._all_bool(node, kinds)
        is_method = node.target is not None
        self._calls += 1
        fitting: list[Overload] = []
        result: Type | None = None
        for place, overload in enumerate(FUNCTIONS[node.function]):
            if overload.method != is_method or len(overload.args) != len(kinds):
                continue
            suffix = f"{self._calls}.{place}"
            if not self._assignable(kinds, [_fresh(kind, suffix) for kind in overload.args]):
                continue
            fitting.append(overload)
            given = substitute(self.bound, _fresh(overload.result, suffix))
            if result is None:
                result = given
            elif not is_dyn(result) and given != result:
                result = DYN  # known only if all overloads agree on it
        if result is None:
            texts = [text_of(substitute(self.bound, kind, free_is_dyn=True)) for kind in kinds]
            raise CelError("compile", _no_match(node.function, texts, is_method=is_method), node.position)
        self.checked.overloads[node] = tuple(fitting)
        return result

    def _all_bool(self, node: Call, kinds: list[Type]) -> Type:
        for arg, kind in zip(node.args, kinds, strict=True):
            if not self._assignable([kind], [BOOL]):
                raise CelError("compile", f"expected type 'bool' but found '{text_of(kind)}'", arg.position)
        self.checked.overloads[node] = FUNCTIONS[node.function]
        return BOOL

    def _list(self, node: ListLiteral) -> Type:
        joined: Type | None = None
        for place, element in enumerate(node.elements):
            kind = self._unwrapped(element, optional=place in node.optional)
            joined = self._join(joined, kind)
        self.aggregates.append(node)
        return list_of(joined or self._variable())

    def _map(self, node: MapLiteral) -> Type:
        key_kind: Type | None = None
        value_kind: Type | None = None
        for key, value, optional in node.entries:
            key_kind = self._join(key_kind, self.check(key))
            value_kind = self._join(value_kind, self._unwrapped(value, optional=optional))
        self.aggregates.append(node)
        return map_of(key_kind or self._variable(), value_kind or self._variable())

    def _unwrapped(self, node: SyntaxNode, *, optional: bool) -> Type:
        kind = self.check(node)
        if not optional or is_dyn(kind):
            return kind
        if kind.kind != "optional_type":
            expected = text_of(optional_of(kind))
            raise CelError("compile", f"expected type '{expected}' but found '{text_of(kind)}'", node.position)
        return kind.params[0]

    def _join(self, common: Type | None, kind: Type) -> Type:
        if common is None:
            return kind
        return most_general(common, kind) if self._assignable([common], [kind]) else DYN

    def _struct(self, node: syntax.Struct) -> Type:
        if node.name == DEVICE.kind or node.name.startswith("google.protobuf."):
            raise UnsupportedError("compile", f"the simulator makes no value of type {node.name}", node.position)
        raise CelError("compile", f"undeclared reference to '{node.name}': no type can be made here", node.position)

    def _fold(self, node: Fold) -> Type:
        kind = substitute(self.bound, self.check(node.range))
        accumulated = self.check(node.initial)
        first, second = self._elements(node, kind)
        self.scopes.append({node.accumulator: accumulated})
        loop = {node.variable: first}
        if node.variable2 is not None:
            loop = {node.variable: INT if kind.kind == "list" else first, node.variable2: second}
        self.scopes.append(loop)
        for part, expected in ((node.condition, BOOL), (node.step, accumulated)):
            actual = self.check(part)
            if not self._assignable([expected], [actual]):
                expected_text = text_of(substitute(self.bound, expected, free_is_dyn=True))
                raise CelError(
                    "compile", f"expected type '{expected_text}' but found '{text_of(actual)}'", part.position
                )
        self.scopes.pop()
        result = self.check(node.result)
        self.scopes.pop()
        return substitute(self.bound, result)

    def _elements(self, node: Fold, kind: Type) -> tuple[Type, Type]:
        if kind.kind == "list":
            return kind.params[0], kind.params[0]
        if kind.kind == "map":
            return kind.params[0], kind.params[1]
        if kind.kind not in {"dyn", "param"}:
            message = (
                f"expression of type '{text_of(kind)}' cannot be range of a comprehension"
                " (must be list, map, or dynamic)"
            )
            raise CelError("compile", message, node.range.position)
        self._assignable([DYN], [kind])
        return DYN, DYN

    def _bind(self, node: syntax.Bind) -> Type:
        self.scopes.append({node.name: self.check(node.value)})
        kind = self.check(node.body)
        self.scopes.pop()
        return substitute(self.bound, kind)

    def _variable(self) -> Type:
        self._variables += 1
        return param(f"_{self._variables}")

    def _assignable(self, left: list[Type], right: list[Type]) -> bool:
        bindings = assignable(self.bound, left, right)
        if bindings is not None:
            self.bound = bindings
        return bindings is not None


_BY_KIND: dict[type, Callable[[_Checker, Any], Type]] = {
    Literal: _Checker._literal, Ident: _Checker._ident, Select: _Checker._select, Call: _Checker._call,  # noqa: SLF001 # one table of this module's own methods
    ListLiteral: _Checker._list, MapLiteral: _Checker._map, syntax.Struct: _Checker._struct,  # noqa: SLF001
    Fold: _Checker._fold, syntax.Bind: _Checker._bind,  # noqa: SLF001
}  # fmt: skip


def _no_match(function: str, kinds: Sequence[str], *, is_method: bool) -> str:
    """The error message for a call that no overload accepts."""
    applied = f"{kinds[0]}.({', '.join(kinds[1:])})" if is_method else f"({', '.join(kinds)})"
    return f"found no matching overload for '{function}' applied to '{applied}'"


def _fresh(kind: Type, suffix: str) -> Type:
    """The declared type with its type variables renamed so that they are unique to this call."""
    if kind.kind == "param":
        return param(f"{kind.name}{suffix}")
    return Type(kind.kind, tuple(_fresh(part, suffix) for part in kind.params), kind.name) if kind.params else kind


def same_types(node: ListLiteral | MapLiteral, types: dict[SyntaxNode, Type]) -> Iterator[CelError]:
    """Kubernetes requires all elements of a literal to have one type, even where CEL would not."""
    if isinstance(node, ListLiteral):
        columns = [[(element, place in node.optional) for place, element in enumerate(node.elements)]]
    else:
        columns = [[(key, False) for key, _, _ in node.entries], [(value, opt) for _, value, opt in node.entries]]
    for column in columns:
        first: Type | None = None
        for element, optional in column:
            kind = types[element]
            kind = kind.params[0] if optional and kind.params else kind
            first = first or kind
            if kind != first:
                message = f"expected type '{text_of(first)}' but found '{text_of(kind)}'"
                yield CelError("compile", message, element.position)


def invalid_pattern(call: Call) -> Iterator[CelError]:
    """A pattern given as a literal must be valid."""
    pattern = call.args[-1]
    if isinstance(pattern, Literal) and isinstance(pattern.value, str):
        try:
            compiled(pattern.value)
        except ValueError as error:
            yield CelError("compile", f"invalid matches argument: {error}", pattern.position)

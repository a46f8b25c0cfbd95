"""Splits a selector into the conjuncts that all have to be true, and finds what each of them reads of a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dra_driver.simulator.cel.errors import CelError
from dra_driver.simulator.cel.parse import parse
from dra_driver.simulator.cel.parse import tokens as tokens_of
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

if TYPE_CHECKING:
    from lark import Token

_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
_INDEXING = frozenset({"_[_]", "_[?_]", "_?._"})
_PLAIN = frozenset({"driver", "allowMultipleAllocations"})
_QUALIFIED = frozenset({"attributes", "capacity"})


MAX_LEVELS = 8
"""Maximum depth of nested brackets that are opened; more would not be readable anyway."""


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """A field of a device that an expression reads. ``domain`` and ``name`` are "" for fields without them."""

    field: str
    domain: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        """The reference as written in CEL."""
        if not self.domain:
            return f"device.{self.field}"
        part = f".{self.name}" if self.name.isidentifier() else f'["{self.name}"]'
        return f'device.{self.field}["{self.domain}"]{part}'


@lru_cache(maxsize=1024)
def clauses(expression: str) -> tuple[str, ...]:
    """The operands of the expression's outermost ``&&``, with enclosing brackets removed; else the expression itself.

    An expression that cannot be parsed is one clause, and so are operands nested in more than ``MAX_LEVELS`` brackets.
    """
    return _clauses(expression, MAX_LEVELS)


def _clauses(expression: str, levels: int) -> tuple[str, ...]:
    try:
        node = parse(expression)
    except (CelError, RecursionError):
        return (expression,)
    if not isinstance(node, Call) or node.function != "_&&_" or not levels:
        return (expression.strip(),)
    tokens = list(tokens_of(expression))
    if node.bracketed:
        return _clauses(expression[_place(tokens[0]) + 1 : _place(tokens[-1])], levels - 1)
    parts = _parts(expression, tokens)
    if len(parts) != len(node.args):
        return (expression.strip(),)
    return tuple(clause for part in parts for clause in _clauses(part, levels - 1))


def _parts(expression: str, tokens: Sequence[Token]) -> list[str]:
    """The text between those ``&&`` that are outside all brackets."""
    parts, depth, start = [], 0, 0
    for token in tokens:
        text = str(token)
        depth += (text in _OPEN) - (text in _CLOSE)
        if text == "&&" and not depth:
            parts.append(expression[start : _place(token)].strip())
            start = _place(token) + len(text)
    return [*parts, expression[start:].strip()]


def _place(token: Token) -> int:
    return token.start_pos or 0


@lru_cache(maxsize=1024)
def references(expression: str) -> tuple[Reference, ...]:
    """The device fields that an expression reads by constant names, in the order of the text, each once.

    Empty if the expression is invalid or nested too deeply.
    """
    try:
        return tuple(dict.fromkeys(_references(parse(expression), {})))
    except (CelError, RecursionError):
        return ()


def _references(node: SyntaxNode, bound: Mapping[str, SyntaxNode | None]) -> Iterator[Reference]:
    reference = _reference(_path(node, bound))
    if reference is None and isinstance(node, Call) and node.function == "@in" and isinstance(node.args[0], Literal):
        reference = _reference((*(_path(node.args[1], bound) or ()), str(node.args[0].value)))
    if reference is not None:
        yield reference
        return
    for child, scope in _children(node, bound):
        yield from _references(child, scope)


def _reference(path: tuple[str, ...] | None) -> Reference | None:
    match path:
        case ("device", field) if field in _PLAIN:
            return Reference(field)
        case ("device", field, domain, name) if field in _QUALIFIED:
            return Reference(field, domain, name)
    return None


def _path(node: SyntaxNode, bound: Mapping[str, SyntaxNode | None]) -> tuple[str, ...] | None:
    """The names from ``device`` down to the field that the node reads; None if it reads no field."""
    if isinstance(node, Ident):
        if node.name not in bound:
            return (node.name,)
        value = bound[node.name]
        return None if value is None else _path(value, {key: item for key, item in bound.items() if key != node.name})
    if isinstance(node, Select):
        above, key = _path(node.operand, bound), node.field
    elif isinstance(node, Call) and node.function in _INDEXING and isinstance(node.args[1], Literal):
        above, key = _path(node.args[0], bound), str(node.args[1].value)
    else:
        return None
    return None if above is None else (*above, key)


def _children(
    node: SyntaxNode, bound: Mapping[str, SyntaxNode | None]
) -> Iterator[tuple[SyntaxNode, Mapping[str, SyntaxNode | None]]]:
    match node:
        case Select():
            yield node.operand, bound
        case Call():
            for part in (node.target, *node.args):
                if part is not None:
                    yield part, bound
        case ListLiteral():
            yield from ((element, bound) for element in node.elements)
        case MapLiteral():
            yield from ((part, bound) for key, value, _ in node.entries for part in (key, value))
        case Bind():
            yield node.value, bound
            yield node.body, {**bound, node.name: node.value}
        case Fold():
            yield node.range, bound
            inside: dict[str, Any] = {**bound, node.variable: None, node.accumulator: None}
            if node.variable2 is not None:
                inside[node.variable2] = None
            yield from ((part, inside) for part in (node.initial, node.condition, node.step, node.result))

"""The syntax tree of an expression: CEL's node kinds, with macros already expanded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dra_driver.simulator.cel.errors import Position


@dataclass(eq=False, slots=True, kw_only=True)
class SyntaxNode:
    """An expression. Nodes are compared by identity: the checker and the estimator store their results by node.

    ``depth`` is the maximum nesting depth of brackets of any kind inside, ``chain`` the number of operators and
    selections that follow each other from the left, and ``bracketed`` whether the whole is in parentheses.
    """

    position: Position
    depth: int = 0
    chain: int = 0
    bracketed: bool = False


@dataclass(eq=False, slots=True)
class Literal(SyntaxNode):
    """A constant: bool, int, Uint, float, str, bytes or None. ``signs`` counts the minus signs in front (0 to 2)."""

    value: Any
    signs: int = 0


@dataclass(eq=False, slots=True)
class Ident(SyntaxNode):
    """A name; ``absolute`` when written with a leading dot."""

    name: str
    absolute: bool = False


@dataclass(eq=False, slots=True)
class Select(SyntaxNode):
    """``operand.field``; a presence test inside ``has()``."""

    operand: SyntaxNode
    field: str
    test: bool = False


@dataclass(eq=False, slots=True)
class Call(SyntaxNode):
    """A function, an operator (named like ``_+_``), or a method if there is a target."""

    function: str
    target: SyntaxNode | None
    args: tuple[SyntaxNode, ...]


@dataclass(eq=False, slots=True)
class ListLiteral(SyntaxNode):
    """``[a, ?b]``; ``optional`` holds the indexes of elements with a question mark."""

    elements: tuple[SyntaxNode, ...]
    optional: frozenset[int] = frozenset()


@dataclass(eq=False, slots=True)
class MapLiteral(SyntaxNode):
    """``{key: value, ?key: value}`` as (key, value, optional)."""

    entries: tuple[tuple[SyntaxNode, SyntaxNode, bool], ...]


@dataclass(eq=False, slots=True)
class Struct(SyntaxNode):
    """``Name{field: value}``. No type available to selectors can be constructed this way, so it is always an error."""

    name: str
    values: tuple[SyntaxNode, ...] = field(default=())


@dataclass(eq=False, slots=True)
class Fold(SyntaxNode):
    """A loop with one accumulator: the expansion of every macro over lists and maps.

    For each element, while ``condition`` holds: accumulator = step. The value is ``result``. With ``variable2``, the
    first variable is the index or key and the second the value.
    """

    range: SyntaxNode
    variable: str
    variable2: str | None
    accumulator: str
    initial: SyntaxNode
    condition: SyntaxNode
    step: SyntaxNode
    result: SyntaxNode


@dataclass(eq=False, slots=True)
class Bind(SyntaxNode):
    """``cel.bind(name, value, body)``: the value is computed when it is first needed."""

    name: str
    value: SyntaxNode
    body: SyntaxNode


ACCUMULATOR = "@result"
"""The accumulator's name in macros; no identifier in an expression can have this name."""


def qualified_name(node: SyntaxNode) -> str | None:
    """``a.b.c`` as a dotted name; None for anything else."""
    fields: list[str] = []
    while isinstance(node, Select):
        if node.test:
            return None
        fields.append(node.field)
        node = node.operand
    return ".".join([node.name, *reversed(fields)]) if isinstance(node, Ident) else None

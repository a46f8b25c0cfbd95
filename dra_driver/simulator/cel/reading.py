"""From text to syntax, with the messages a person gets for text that is no expression."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from lark import Lark
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken, VisitError

from dra_driver.simulator.cel.building import builder, number
from dra_driver.simulator.cel.errors import CelError, Position
from dra_driver.simulator.cel.grammar import parser
from dra_driver.simulator.cel.syntax import Node


def read(expression: str, *, before_1_37: bool = False) -> Node:
    """The expression's syntax with its macros expanded; CelError with the position when it has none."""
    if not expression.strip():
        raise CelError("compile", "the expression is empty", Position(1, 1))
    try:
        # Lark's signature is that of a tree; the transformer makes nodes.
        node: Any = _parser(before_1_37=before_1_37).parse(expression)
    except VisitError as error:
        if isinstance(error.orig_exc, CelError):
            raise error.orig_exc from None
        raise
    except UnexpectedInput as error:
        raise _syntax_error(expression, error) from None
    return number(node)


@lru_cache(maxsize=2)
def _parser(*, before_1_37: bool) -> Lark:
    return parser(builder(before_1_37=before_1_37))


def _syntax_error(expression: str, error: UnexpectedInput) -> CelError:
    lines = expression.split("\n")
    position = Position(error.line, error.column)
    if isinstance(error, UnexpectedCharacters):
        return CelError("compile", f"syntax error: unexpected {lines[error.line - 1][error.column - 1]!r}", position)
    if isinstance(error, UnexpectedEOF) or (isinstance(error, UnexpectedToken) and error.token.type == "$END"):
        return CelError(
            "compile", "syntax error: the expression ends too early", Position(len(lines), len(lines[-1]) + 1)
        )
    return CelError("compile", f"syntax error: unexpected {str(getattr(error, 'token', ''))!r}", position)

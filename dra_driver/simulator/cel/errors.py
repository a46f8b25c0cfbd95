"""The ways in which an expression can fail."""

from __future__ import annotations

from typing import Literal, NamedTuple

from dra_driver.util.errors import DriverError

Kind = Literal["compile", "runtime"]


class Position(NamedTuple):
    """A position in the expression; both count from 1, columns in characters."""

    line: int
    column: int


class CelError(DriverError):
    """An expression that Kubernetes refuses (``compile``), or whose evaluation fails on a device (``runtime``).

    ``message`` is the bare reason; ``position`` is where the compiler found the error (None at run time).
    """

    def __init__(self, kind: Kind, message: str, position: Position | None = None) -> None:
        super().__init__(f"{position.line}:{position.column}: {message}" if position else message)
        self.kind = kind
        self.message = message
        self.position = position


class EvaluationError(Exception):
    """A CEL error value. ``&&``, ``||`` and the macros on them may absorb it, so it is not yet a failure."""


class InternalError(Exception):
    """Kubernetes' evaluator itself fails: the whole evaluation ends with this error, and nothing absorbs it."""


class UnsupportedError(CelError):
    """Kubernetes accepts the expression, but its result cannot be simulated; the message names the construct."""

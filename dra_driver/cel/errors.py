"""How an expression fails."""

from __future__ import annotations

from typing import Literal, NamedTuple

from dra_driver.util.errors import DriverError

Kind = Literal["compile", "runtime"]


class Position(NamedTuple):
    """Where in the expression; both count from 1, columns in characters."""

    line: int
    column: int


class CelError(DriverError):
    """An expression that Kubernetes refuses (``compile``), or whose evaluation on one device fails (``runtime``).

    ``message`` is the reason alone, ``position`` where the compiler saw it (None at run time).
    """

    def __init__(self, kind: Kind, message: str, position: Position | None = None) -> None:
        super().__init__(f"{position.line}:{position.column}: {message}" if position else message)
        self.kind = kind
        self.message = message
        self.position = position


class EvaluationError(Exception):
    """A CEL error value. ``&&``, ``||`` and the macros on them may absorb it, so it is not yet a failure."""


class InternalError(Exception):
    """Kubernetes' evaluation itself breaks down, and fails as a whole: nothing absorbs it."""


class UnsupportedError(CelError):
    """Kubernetes accepts this, but the simulator cannot tell what it would do; the message names the construct."""

"""Loops of the macros as closures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dra_driver.simulator.cel.errors import EvaluationError
from dra_driver.simulator.cel.syntax import ACCUMULATOR, Call, Fold, Ident, ListLiteral, MapLiteral, Node
from dra_driver.simulator.cel.values import MAPS, from_key, to_key, type_name

if TYPE_CHECKING:
    from dra_driver.simulator.cel.closures import Code, Frame
    from dra_driver.simulator.cel.compiler import Compiler


class _Failed:
    """In a frame: an accumulator that is an error, which a later step may still absorb."""

    __slots__ = ("error",)

    def __init__(self, error: EvaluationError) -> None:
        self.error = error


def fold(compiler: Compiler, node: Fold) -> Code:
    """The closure of a loop."""
    source, initial = compiler.code(node.range), compiler.code(node.initial)
    place, first, second = compiler.slot(), compiler.slot(), compiler.slot()

    def accumulated(frame: Frame) -> Any:
        value = frame[place]
        if type(value) is _Failed:
            raise value.error
        return value

    outer: dict[str, Code] = {node.accumulator: accumulated}
    inner: dict[str, Code] = {**outer, node.variable: lambda frame: frame[first]}
    if node.variable2 is not None:
        inner[node.variable2] = lambda frame: frame[second]
    condition = compiler.scoped(inner, node.condition)
    step = _growing(compiler, node, inner, accumulated) or compiler.scoped(inner, node.step)
    result = compiler.scoped(outer, node.result)
    entries = _pairs if node.variable2 is not None else _singles

    def run(frame: Frame) -> Any:
        elements = entries(source(frame))
        try:
            frame[place] = initial(frame)
        except EvaluationError as error:
            frame[place] = _Failed(error)
        for frame[first], frame[second] in elements:
            if condition(frame) is False:
                break
            try:
                frame[place] = step(frame)
            except EvaluationError as error:
                frame[place] = _Failed(error)
        return result(frame)

    return run


def _singles(value: Any) -> Iterator[tuple[Any, None]]:
    kind = type(value)
    if kind is list:
        return ((item, None) for item in value)
    if kind in MAPS:
        return ((from_key(key), None) for key in value)
    raise EvaluationError(f"got '{type_name(value)}', expected iterable type")


def _pairs(value: Any) -> Iterator[tuple[Any, Any]]:
    kind = type(value)
    if kind is list:
        return iter(enumerate(value))
    if kind in MAPS:
        return ((from_key(key), entry) for key, entry in value.items())
    raise EvaluationError(f"got '{type_name(value)}', expected iterable type")


def _growing(compiler: Compiler, node: Fold, scope: dict[str, Code], accumulated: Code) -> Code | None:
    """The step of a macro that makes a list or a map: the fresh container grows in place.

    Copying it at each step, as the expansion says literally, would take quadratic time.
    """
    if not isinstance(node.initial, ListLiteral | MapLiteral):
        return None
    step, keep = node.step, None
    if isinstance(step, Call) and step.function == "_?_:_":
        keep, step = compiler.scoped(scope, step.args[0]), step.args[1]
    if not isinstance(step, Call) or not isinstance(step.args[0], Ident) or step.args[0].name != ACCUMULATOR:
        return None
    grow = _append if isinstance(node.initial, ListLiteral) else _insert
    parts = [_element(part) for part in step.args[1:]]
    codes = [compiler.scoped(scope, part) for part in parts]

    def run(frame: Frame) -> Any:
        if keep is not None:
            chosen = keep(frame)
            if chosen is False:
                return accumulated(frame)
            if chosen is not True:
                raise EvaluationError("no such overload")
        return grow(accumulated(frame), *[code(frame) for code in codes])

    return run


def _element(part: Node) -> Node:
    """What a step adds: ``[x]`` stands for x."""
    return part.elements[0] if isinstance(part, ListLiteral) else part


def _append(items: list[Any], item: Any) -> list[Any]:
    items.append(item)
    return items


def _insert(target: dict[Any, Any], *added: Any) -> dict[Any, Any]:
    if len(added) == 2:  # key and value; otherwise a map of them
        entries = [(to_key(added[0]), added[1])]
    elif type(added[0]) in MAPS:
        entries = list(added[0].items())
    else:
        raise EvaluationError("no such overload")
    for key, value in entries:
        if key in target:
            raise EvaluationError(f"insert failed: key {from_key(key)} already exists")
        target[key] = value
    return target

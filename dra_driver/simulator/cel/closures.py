"""Closures that the compiler puts together. Each takes the frame: a list with the device and the local variables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dra_driver.simulator.cel import operators
from dra_driver.simulator.cel.declarations import Run, no_overload
from dra_driver.simulator.cel.errors import EvaluationError, InternalError
from dra_driver.simulator.cel.semver import Semver
from dra_driver.simulator.cel.values import NUMBERS, Key, Optional, to_key

Frame = list[Any]
Code = Callable[[Frame], Any]
BROKEN_SORT = "internal error: interface conversion: *types.Err is not traits.Lister: missing method Add"


def applied(run: Run, codes: list[Code]) -> Code:
    """A closure that calls a function; a ValueError of it is an error of the expression."""
    if len(codes) == 1:
        (only,) = codes

        def unary(frame: Frame) -> Any:
            try:
                return run(only(frame))
            except ValueError as error:
                raise EvaluationError(str(error)) from None

        return unary
    if len(codes) == 2:  # the usual case, worth its own closure
        first, second = codes

        def binary(frame: Frame) -> Any:
            try:
                return run(first(frame), second(frame))
            except ValueError as error:
                raise EvaluationError(str(error)) from None

        return binary

    def call(frame: Frame) -> Any:
        try:
            return run(*(code(frame) for code in codes))
        except ValueError as error:
            raise EvaluationError(str(error)) from None

    return call


def sorting(run: Run, codes: list[Code]) -> Code:
    """``sort()``: where its list is an error Kubernetes breaks down, counting the cost of it."""

    def call(frame: Frame) -> Any:
        try:
            values = [code(frame) for code in codes]
        except EvaluationError:
            raise InternalError(BROKEN_SORT) from None
        try:
            return run(*values)
        except ValueError as error:
            raise EvaluationError(str(error)) from None

    return call


def logical(parts: list[Code], *, absorbing: bool) -> Code:
    """``&&`` (absorbing False) or ``||``: that value anywhere wins over errors everywhere else."""
    neutral = not absorbing

    def run(frame: Frame) -> Any:
        done = 0
        try:
            for part in parts:
                done += 1
                value = part(frame)
                if value is absorbing:
                    return absorbing
                if value is not neutral:
                    raise no_overload("", value)
        except EvaluationError as error:
            if _absorbed(parts[done:], frame, absorbing):
                return absorbing
            raise error from None
        return neutral

    return run


def _absorbed(parts: list[Code], frame: Frame, absorbing: bool) -> bool:  # a value
    """Whether any of the parts has the value that wins."""
    for part in parts:
        try:
            if part(frame) is absorbing:
                return True
        except EvaluationError:
            continue
    return False


def in_constants(item: Code, constants: list[Any]) -> Code:
    """``item in [1, 2, 3]``: constants are looked up by hash, as in Kubernetes."""
    numbers = [value for value in constants if type(value) in NUMBERS]
    # Next to a double a whole number is made one, which may round it.
    doubles = frozenset(float(value) for value in numbers if value == value)  # not NaN
    wholes = frozenset(int(value) for value in numbers if math.isfinite(value) and value == int(value))
    others = {kind: frozenset(value for value in constants if type(value) is kind) for kind in (str, bool)}

    def run(frame: Frame) -> bool:
        value = item(frame)
        kind = type(value)
        if kind is int:
            return value in wholes
        if kind in NUMBERS:
            return value in (doubles if kind is float else wholes)
        if kind is Semver:
            # A version has no hash there.
            raise InternalError(operators.UNHASHABLE)
        return kind in others and value in others[kind]

    return run


def _literal_key(value: Any) -> Any:
    """What a map that is a literal has for this key."""
    try:
        hash(value)
    except TypeError:
        # A key that nothing is equal to; Kubernetes makes such maps too.
        return Key(value)
    return to_key(value)


def made_list(rows: list[tuple[Code, bool]]) -> Code:
    """``[a, ?b]``: elements, and whether each is an optional of which only a value counts."""

    def run(frame: Frame) -> list[Any]:
        made = []
        for code, optional in rows:
            value = code(frame)
            if optional:
                if type(value) is not Optional:
                    raise no_overload("[?_]", value)
                if not value.present:
                    continue
                value = value.value
            made.append(value)
        return made

    return run


def made_map(rows: list[tuple[Code, Code, bool]]) -> Code:
    """``{a: b, ?c: d}``: keys, values, and whether each value is an optional."""

    def run(frame: Frame) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for key_code, value_code, optional in rows:
            key, value = _literal_key(key_code(frame)), value_code(frame)
            if optional:
                if type(value) is not Optional:
                    raise no_overload("{?_:_}", value)
                if not value.present:
                    continue
                value = value.value
            made[key] = value
        return made

    return run

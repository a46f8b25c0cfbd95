"""The closures that the compiler combines. Each takes a frame: a list of the device and the local variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from dra_driver.simulator.cel import operators
from dra_driver.simulator.cel.errors import EvaluationError, InternalError
from dra_driver.simulator.cel.overloads import Run, no_overload
from dra_driver.simulator.cel.values import MAPS, NUMBERS, Key, Optional, Semver, from_key, to_key, type_name

Frame = list[Any]
Code = Callable[[Frame], Any]


def applied(run: Run, codes: list[Code]) -> Code:
    """A closure that calls a function; a ValueError from it becomes an evaluation error."""
    if len(codes) == 1:
        (only,) = codes

        def unary(frame: Frame) -> Any:
            try:
                return run(only(frame))
            except ValueError as error:
                raise EvaluationError(str(error)) from None

        return unary
    if len(codes) == 2:  # the most common case, worth its own closure
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


def logical(parts: list[Code], *, absorbing: bool) -> Code:
    """``&&`` (absorbing=False) or ``||`` (absorbing=True): that value in any operand wins over errors in the others."""
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
    """Whether any operand has the absorbing value."""
    for part in parts:
        try:
            if part(frame) is absorbing:
                return True
        except EvaluationError:
            continue
    return False


def in_constants(item: Code, constants: list[Any]) -> Code:
    """``item in [1, 2, 3]``: constants are looked up by hash, as Kubernetes does."""
    numbers = [value for value in constants if type(value) in NUMBERS]
    # Compared with a double, an integer is converted to one, which may round it.
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
            # Versions are not hashable in Kubernetes' implementation.
            raise InternalError(operators.UNHASHABLE)
        return kind in others and value in others[kind]

    return run


def _literal_key(value: Any) -> Any:
    """The key that a map literal stores for this value."""
    try:
        hash(value)
    except TypeError:
        # A key that nothing equals; Kubernetes builds such maps too.
        return Key(value)
    return to_key(value)


def list_code(rows: list[tuple[Code, bool]]) -> Code:
    """``[a, ?b]``: elements, each with a flag for optional elements, which are added only if they have a value."""

    def run(frame: Frame) -> list[Any]:
        elements = []
        for code, optional in rows:
            value = code(frame)
            if optional:
                if type(value) is not Optional:
                    raise no_overload("[?_]", value)
                if not value.present:
                    continue
                value = value.value
            elements.append(value)
        return elements

    return run


def map_code(rows: list[tuple[Code, Code, bool]]) -> Code:
    """``{a: b, ?c: d}``: keys and values, each with a flag for optional values."""

    def run(frame: Frame) -> dict[Any, Any]:
        entries: dict[Any, Any] = {}
        for key_code, value_code, optional in rows:
            key, value = _literal_key(key_code(frame)), value_code(frame)
            if optional:
                if type(value) is not Optional:
                    raise no_overload("{?_:_}", value)
                if not value.present:
                    continue
                value = value.value
            entries[key] = value
        return entries

    return run


class _Failed:
    """An erroneous accumulator in a frame; a later step may still absorb the error."""

    __slots__ = ("error",)

    def __init__(self, error: EvaluationError) -> None:
        self.error = error


def accumulator(place: int) -> Code:
    """Reads the accumulator in this slot of the frame; an error that was not absorbed is raised here."""

    def read(frame: Frame) -> Any:
        value = frame[place]
        if type(value) is _Failed:
            raise value.error
        return value

    return read


def looped(
    slots: tuple[int, int, int],
    source: Code,
    initial: Code,
    condition: Code,
    step: Code,
    result: Code,
    *,
    paired: bool,
) -> Code:
    """The loop of a macro: its expressions, and the frame slots of the accumulator and of the two variables.

    ``paired`` sets both variables: index or key, and value.
    """
    place, first, second = slots

    def run(frame: Frame) -> Any:
        entries = _entries(source(frame), paired=paired)
        try:
            frame[place] = initial(frame)
        except EvaluationError as error:
            frame[place] = _Failed(error)
        for frame[first], frame[second] in entries:
            if condition(frame) is False:
                break
            try:
                frame[place] = step(frame)
            except EvaluationError as error:
                frame[place] = _Failed(error)
        return result(frame)

    return run


def growing(container: Code, keep: Code | None, codes: list[Code], *, is_list: bool) -> Code:
    """The step of a loop that builds a list or a map: the new container grows in place.

    Copying it at each step, as the literal expansion does, would take quadratic time.
    """
    grow = _append if is_list else _insert

    def run(frame: Frame) -> Any:
        if keep is not None:
            chosen = keep(frame)
            if chosen is False:
                return container(frame)
            if chosen is not True:
                raise EvaluationError("no such overload")
        return grow(container(frame), *[code(frame) for code in codes])

    return run


def _entries(value: Any, *, paired: bool) -> Iterator[tuple[Any, Any]]:
    """What the two variables are set to; a loop that is not ``paired`` has no second one."""
    kind = type(value)
    if kind is list:
        return iter(enumerate(value)) if paired else ((item, None) for item in value)
    if kind in MAPS:
        return ((from_key(key), entry) for key, entry in value.items())
    raise EvaluationError(f"got '{type_name(value)}', expected iterable type")


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

"""How functions are declared, and how run-time values are matched with declared types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.simulator.cel.errors import EvaluationError
from dra_driver.simulator.cel.types import Type
from dra_driver.simulator.cel.values import MAPS, from_key, type_name

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function. For a method, the first of ``args`` is the target.

    ``run`` takes the arguments; it raises EvaluationError, or ValueError, whose text becomes one.
    """

    id: str
    args: tuple[Type, ...]
    result: Type
    run: Run
    method: bool = False


Functions = Mapping[str, tuple[Overload, ...]]
"""Overloads by function name."""


def function(id_: str, args: tuple[Type, ...], result: Type, run: Run) -> Overload:
    """An entry of a function table: called as ``name(args)``."""
    return Overload(id_, args, result, run)


def method(id_: str, args: tuple[Type, ...], result: Type, run: Run) -> Overload:
    """An entry of a function table: called as ``args[0].name(args[1:])``."""
    return Overload(id_, args, result, run, method=True)


def merge(*tables: Functions) -> dict[str, tuple[Overload, ...]]:
    """Merge tables; a name that is in several tables gets the overloads of all of them."""
    merged: dict[str, tuple[Overload, ...]] = {}
    for table in tables:
        for name, overloads in table.items():
            merged[name] = (*merged.get(name, ()), *overloads)
    return merged


def accepts(declared: Type, value: Any) -> bool:
    """Whether a value can be passed for a declared type; only the first entry of a list or map is checked."""
    kind = declared.kind
    if kind in {"dyn", "any", "param"}:
        return True
    if type_name(value) != kind:
        return False
    if kind == "list":
        return not value or accepts(declared.params[0], value[0])
    if type(value) in MAPS and value:
        key, entry = next(iter(value.items()))
        return accepts(declared.params[0], from_key(key)) and accepts(declared.params[1], entry)
    return True


def is_certain(static: Type) -> bool:
    """Whether a static type leaves nothing open about the values at run time."""
    return static.kind not in {"dyn", "any", "param", "!error!"} and all(map(is_certain, static.params))


def no_overload(name: str, *values: Any) -> EvaluationError:
    """The error for a call that no overload accepts."""
    return EvaluationError(
        f"no such overload: {name}({', '.join(map(type_name, values))})" if name else "no such overload"
    )

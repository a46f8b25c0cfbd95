"""Which overloads of a function fit its arguments, by the static types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.simulator.cel.declarations import Overload
from dra_driver.simulator.cel.types import DYN, Bindings, Type, assignable, is_dyn, param, substitute


@dataclass(frozen=True, slots=True)
class Resolution:
    """The overloads that may run, the type of the result, and what is known of type variables from here on."""

    overloads: tuple[Overload, ...]
    result: Type
    bound: Bindings


def resolve(
    overloads: Sequence[Overload],
    is_method: bool,  # the call's shape, beside its types
    kinds: list[Type],
    bound: Bindings,
    call: int,
) -> Resolution | None:
    """What a call resolves to; None when nothing fits. ``call`` numbers the calls of an expression.

    With several overloads left the result is known only if all agree on it.
    """
    fitting: list[Overload] = []
    result: Type | None = None
    for place, overload in enumerate(overloads):
        if overload.method != is_method or len(overload.args) != len(kinds):
            continue
        suffix = f"{call}.{place}"
        found = assignable(bound, kinds, [_fresh(kind, suffix) for kind in overload.args])
        if found is None:
            continue
        bound = found
        fitting.append(overload)
        given = substitute(bound, _fresh(overload.result, suffix))
        if result is None:
            result = given
        elif not is_dyn(result) and given != result:
            result = DYN
    return None if result is None else Resolution(tuple(fitting), result, bound)


def no_match(function: str, kinds: Sequence[str], *, is_method: bool) -> str:
    """The error's text."""
    applied = f"{kinds[0]}.({', '.join(kinds[1:])})" if is_method else f"({', '.join(kinds)})"
    return f"found no matching overload for '{function}' applied to '{applied}'"


def _fresh(kind: Type, suffix: str) -> Type:
    """The declared type with variables of its own for this call."""
    if kind.kind == "param":
        return param(f"{kind.name}{suffix}")
    return Type(kind.kind, tuple(_fresh(part, suffix) for part in kind.params), kind.name) if kind.params else kind

"""Arithmetic, ordering, lookup and presence, by the run-time types of values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from dra_driver.kube.quantity import Quantity
from dra_driver.simulator.cel.allowance import ITEM, take
from dra_driver.simulator.cel.device import FIELDS, CelDevice
from dra_driver.simulator.cel.errors import EvaluationError, InternalError
from dra_driver.simulator.cel.overloads import no_overload
from dra_driver.simulator.cel.values import (
    INT_MAX,
    INT_MIN,
    MAPS,
    NONE,
    NUMBERS,
    UINT_MAX,
    DomainMap,
    Optional,
    Semver,
    Uint,
    equal,
    paired,
    to_key,
    type_name,
)

Binary = Callable[[Any, Any], Any]

PICKY = frozenset({Quantity, Semver})
"""Kubernetes' own types: on the left of ``==``, a right operand of another type is an error instead of unequal."""


UNHASHABLE = "internal error: runtime error: hash of unhashable type cel.Semver"
"""Kubernetes' error for a version that is looked up by hash."""


def _int(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    raise EvaluationError("integer overflow")


def _uint(value: int) -> Uint:
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise EvaluationError("unsigned integer overflow")


def _quotient(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("division by zero")
    # Division truncates towards zero, unlike Python's.
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationError("modulus by zero")
    if left == INT_MIN and right == -1:
        raise EvaluationError("integer overflow")
    return left - right * _quotient(left, right)


def _divide_doubles(left: float, right: float) -> float:
    if right:
        return left / right
    if left == 0 or left != left:  # NaN
        return float("nan")
    return float("inf") if (left > 0) == (str(right)[0] != "-") else float("-inf")


def _concatenation(weight: int) -> Binary:
    def concatenate(left: Any, right: Any) -> Any:
        take(weight * (len(left) + len(right)))
        return left + right

    return concatenate


ARITHMETIC: dict[str, dict[type, Binary]] = {
    "_+_": {
        int: lambda a, b: _int(a + b),
        Uint: lambda a, b: _uint(int(a) + int(b)),
        float: operator.add,
        str: _concatenation(1),
        bytes: _concatenation(1),
        list: _concatenation(ITEM),
    },
    "_-_": {int: lambda a, b: _int(a - b), Uint: lambda a, b: _uint(int(a) - int(b)), float: operator.sub},
    "_*_": {int: lambda a, b: _int(a * b), Uint: lambda a, b: _uint(int(a) * int(b)), float: operator.mul},
    "_/_": {int: lambda a, b: _int(_quotient(a, b)), Uint: lambda a, b: _uint(_quotient(a, b)), float: _divide_doubles},
    "_%_": {int: _remainder, Uint: lambda a, b: _uint(_remainder(a, b))},
}
"""Operator -> type of both operands -> implementation."""

ORDER: dict[str, Binary] = {"_<_": operator.lt, "_<=_": operator.le, "_>_": operator.gt, "_>=_": operator.ge}
ORDERED = frozenset({bool, str, bytes})


def arithmetic(name: str) -> Binary:
    """The operator as a function of two values of any types."""
    by_type = ARITHMETIC[name]

    def run(left: Any, right: Any) -> Any:
        kind = type(left)
        if kind is type(right) and kind in by_type:
            return by_type[kind](left, right)
        raise no_overload(name, left, right)

    return run


def order(name: str) -> Binary:
    """The comparison as a function of two values of any types; numbers compare by value."""
    compare = ORDER[name]

    def run(left: Any, right: Any) -> Any:
        kind, other = type(left), type(right)
        if kind in NUMBERS and other in NUMBERS:
            if left != left or right != right:  # NaN
                raise EvaluationError("NaN values cannot be ordered")
            # Compared with a double, an integer is converted to one, which may round it.
            return compare(left, right) if kind is other else compare(*paired(left, right))
        if kind is other and kind in ORDERED:
            return compare(left, right)
        raise no_overload(name, left, right)

    return run


def equals(left: Any, right: Any) -> bool:
    """The operator ``left == right``."""
    if (
        type(left) in PICKY
        and right is not None
        and (type_name(right) != type_name(left) or (type(right) is Quantity and right.computed))
    ):
        raise no_overload("", left, right)
    return equal(left, right)


def differs(left: Any, right: Any) -> bool:
    """The operator ``left != right``; true where ``==`` fails."""
    return not equal(left, right)


def negate(value: Any) -> Any:
    """``-value``."""
    if type(value) is int:
        return _int(-value)
    if type(value) is float:
        return -value
    raise no_overload("-_", value)


def invert(value: Any) -> bool:
    """``!value``."""
    if value is True or value is False:
        return not value
    raise no_overload("!_", value)


def contains(item: Any, container: Any) -> bool:
    """``item in container``."""
    if type(container) is list:
        return any(equal(entry, item) for entry in container)
    if type(container) in MAPS:
        return has_key(container, item)
    raise no_overload("@in", item, container)


def has_key(container: dict[Any, Any], key: Any) -> bool:
    """Whether a map has a key; False for a value that cannot be a key, except that a version is an error."""
    if type(key) is Semver:
        raise InternalError(UNHASHABLE)
    try:
        return to_key(key) in container
    except TypeError:
        return False


def index(container: Any, key: Any) -> Any:
    """``container[key]``."""
    if type(container) is list:
        place = _place(key)
        if 0 <= place < len(container):
            return container[place]
        raise EvaluationError(f"index out of bounds: {place}")
    if type(container) in MAPS:
        try:
            return container[to_key(key)]
        except (KeyError, TypeError):
            raise EvaluationError(f"no such key: {text_of(key)}") from None
    if type(container) is Optional:
        return optional_index(container, key)
    if type(container) is CelDevice and isinstance(key, str) and key in FIELDS:
        return FIELDS[key](container)
    raise EvaluationError(f"no such key: {text_of(key)}")


def _place(key: Any) -> int:
    if type(key) not in NUMBERS or key != key:  # NaN
        raise EvaluationError(f"unsupported index type '{type(key).__name__}' in list")
    if int(key) != key:
        raise EvaluationError(f"unsupported index value {key} in list")
    return int(key)


def optional_index(container: Any, key: Any) -> Optional:
    """``container[?key]`` and ``container.?key``."""
    if type(container) is Optional:
        return optional_index(container.value, key) if container.present else NONE
    if type(container) is list:
        place = _place(key)
        return Optional(present=True, value=container[place]) if 0 <= place < len(container) else NONE
    if not present(container, key):
        return NONE
    return Optional(present=True, value=index(container, key))


def present(container: Any, key: Any) -> bool:
    """``has(container.key)``; every domain of the device counts as present, because any domain can be read."""
    kind = type(container)
    if kind is DomainMap:
        return True
    if kind in MAPS:
        return has_key(container, key)
    if kind is CelDevice:
        return isinstance(key, str) and key in FIELDS
    return kind is Optional and bool(container.present) and present(container.value, key)


def text_of(value: Any) -> str:
    """A value as it appears in an error message."""
    return str(value).lower() if isinstance(value, bool) else str(value)

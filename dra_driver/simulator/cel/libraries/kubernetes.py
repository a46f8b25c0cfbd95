"""Kubernetes' quantity and semver libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra_driver.kube.quantity import Quantity, parse
from dra_driver.simulator.cel.errors import UnsupportedError
from dra_driver.simulator.cel.overloads import Functions, Run, function, method
from dra_driver.simulator.cel.types import BOOL, DOUBLE, INT, QUANTITY, SEMVER, STRING
from dra_driver.simulator.cel.values import INT_MIN, Semver, read_quantity


def _reads(parse: Callable[..., Any]) -> Callable[..., bool]:
    def run(*args: Any) -> bool:
        try:
            parse(*args)
        except ValueError:
            return False
        return True

    return run


def _semver(text: str, normalize: bool) -> Semver:  # CEL passes it by position
    return Semver.normalized(text) if normalize else Semver.parse(text)


def _quantity(text: str) -> Quantity:
    return read_quantity(parse, text)


def _sub(left: Quantity, right: Quantity) -> Quantity:
    if right.amount is not None and right.amount[0] == INT_MIN:
        raise UnsupportedError("runtime", f"Kubernetes subtracts {INT_MIN} wrongly: not simulated")
    return left.sub(right)


def _integer(quantity: Quantity) -> int:
    whole = quantity.integer()
    if whole is None:
        raise ValueError("cannot convert value to integer")
    return whole


def _sign(value: Any) -> int:
    return int(value > 0) - int(value < 0)


def _adding_in_place(run: Callable[[Quantity, Any], Quantity]) -> Callable[[Quantity, Any], Quantity]:
    """Kubernetes 1.36 adds in place to numbers of more than 18 digits, which modifies the device itself."""

    def checked(quantity: Quantity, other: Any) -> Quantity:
        if quantity.amount is None:
            raise UnsupportedError(
                "runtime", "Kubernetes 1.36 changes the quantity that add() and sub() are called on: not simulated"
            )
        return run(quantity, other)

    return checked


FUNCTIONS: Functions = {
    "quantity": (function("string_to_quantity", (STRING,), QUANTITY, _quantity),),
    "isQuantity": (function("is_quantity_string", (STRING,), BOOL, _reads(_quantity)),),
    "sign": (function("quantity_sign", (QUANTITY,), INT, lambda q: _sign(q.nanos)),),
    "isGreaterThan": (
        method("quantity_is_greater_than", (QUANTITY, QUANTITY), BOOL, lambda a, b: a.nanos > b.nanos),
        method("semver_is_greater_than", (SEMVER, SEMVER), BOOL, lambda a, b: a.order > b.order),
    ),
    "isLessThan": (
        method("quantity_is_less_than", (QUANTITY, QUANTITY), BOOL, lambda a, b: a.nanos < b.nanos),
        method("semver_is_less_than", (SEMVER, SEMVER), BOOL, lambda a, b: a.order < b.order),
    ),
    "compareTo": (
        method("quantity_compare_to", (QUANTITY, QUANTITY), INT, lambda a, b: _sign(a.nanos - b.nanos)),
        method("semver_compare_to", (SEMVER, SEMVER), INT, lambda a, b: (a.order > b.order) - (a.order < b.order)),
    ),
    "asApproximateFloat": (method("quantity_get_float", (QUANTITY,), DOUBLE, Quantity.approximate),),
    "asInteger": (method("quantity_get_int", (QUANTITY,), INT, _integer),),
    "isInteger": (method("quantity_is_integer", (QUANTITY,), BOOL, lambda q: q.integer() is not None),),
    "add": (
        method("quantity_add", (QUANTITY, QUANTITY), QUANTITY, Quantity.add),
        method("quantity_add_int", (QUANTITY, INT), QUANTITY, lambda q, n: q.add(Quantity.of(n))),
    ),
    "sub": (
        method("quantity_sub", (QUANTITY, QUANTITY), QUANTITY, _sub),
        method("quantity_sub_int", (QUANTITY, INT), QUANTITY, lambda q, n: _sub(q, Quantity.of(n))),
    ),
    "semver": (
        function("string_to_semver", (STRING,), SEMVER, Semver.parse),
        function("string_bool_to_semver", (STRING, BOOL), SEMVER, _semver),
    ),
    "isSemver": (
        function("is_semver_string", (STRING,), BOOL, _reads(Semver.parse)),
        function("is_semver_string_bool", (STRING, BOOL), BOOL, _reads(_semver)),
    ),
    "major": (method("semver_major", (SEMVER,), INT, lambda version: version.major),),
    "minor": (method("semver_minor", (SEMVER,), INT, lambda version: version.minor),),
    "patch": (method("semver_patch", (SEMVER,), INT, lambda version: version.patch),),
}

BEFORE_1_37: dict[str, Run] = {row.id: _adding_in_place(row.run) for name in ("add", "sub") for row in FUNCTIONS[name]}
"""How Kubernetes 1.36 runs some overloads, by overload."""

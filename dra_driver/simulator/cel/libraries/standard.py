"""CEL's standard operators, conversions and string tests."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from itertools import product
from typing import Any

from dra_driver.simulator.cel import operators
from dra_driver.simulator.cel.libraries.regex import matches
from dra_driver.simulator.cel.overloads import Functions, Overload, function, method
from dra_driver.simulator.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    list_of,
    map_of,
    optional_of,
    param,
    type_of,
)  # fmt: skip
from dra_driver.simulator.cel.values import INT_MAX, INT_MIN, UINT_MAX, TypeValue, Uint, type_name

A, B = param("A"), param("B")
LIST, MAP = list_of(A), map_of(A, B)
NUMERIC = (INT, UINT, DOUBLE)
TIMES = (TIMESTAMP, DURATION)
"""No value has these types here, but the type checker accepts ``null`` for them."""

_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
_REAL = re.compile(
    r"[+-]?(?:(?:[0-9]++(?:_[0-9]++)*+\.?[0-9]*+|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    r"|0[xX][0-9a-fA-F]*+\.?[0-9a-fA-F]*+[pP][+-]?[0-9]+|(?i:inf|infinity|nan))",
    re.ASCII,
)
"""Without a way back into the digits: else, a long text with a wrong end takes quadratic time."""
_BOOLS = dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), False
)


PLAIN_BELOW = 6
"""Decimal exponent from which on Go writes a double in scientific notation."""


def to_int(value: Any) -> int:
    """``int(value)``."""
    if isinstance(value, str):
        if not _WHOLE.fullmatch(value):
            raise ValueError("type conversion error from 'string' to 'int'")
        value = int(value) if len(value) < 32 else INT_MAX + 1  # far too long for 64 bits
    elif isinstance(value, float) and not INT_MIN < value < INT_MAX:
        raise ValueError("integer overflow")
    whole = int(value)
    if not INT_MIN <= whole <= INT_MAX:
        raise ValueError("integer overflow")
    return whole


def to_uint(value: Any) -> Uint:
    """``uint(value)``."""
    if isinstance(value, str):
        if not _WHOLE.fullmatch(value) or not value[0].isdigit():
            raise ValueError("type conversion error from 'string' to 'uint'")
        value = int(value) if len(value) < 32 else UINT_MAX + 1  # far too long for 64 bits
    elif isinstance(value, float) and (math.isnan(value) or math.isinf(value)):
        raise ValueError("unsigned integer overflow")
    whole = int(value)
    if not 0 <= whole <= UINT_MAX or (isinstance(value, float) and value >= UINT_MAX):
        raise ValueError("unsigned integer overflow")
    return Uint(whole)


def to_double(value: Any) -> float:
    """``double(value)``."""
    if not isinstance(value, str):
        return float(value)
    if not _REAL.fullmatch(value):
        raise ValueError("type conversion error from 'string' to 'double'")
    try:
        real = float.fromhex(value) if "x" in value.lower() else float(value)
    except (ValueError, OverflowError):
        raise ValueError("type conversion error from 'string' to 'double'") from None
    if math.isinf(real) and "inf" not in value.lower():
        raise ValueError("type conversion error from 'string' to 'double'")
    return real


def to_bool(value: str) -> bool:
    """``bool("true")``."""
    if value not in _BOOLS:
        raise ValueError("type conversion error from 'string' to 'bool'")
    return _BOOLS[value]


def to_string(value: Any) -> str:
    """``string(value)``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return double_text(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError("invalid UTF-8 in bytes, cannot convert to string") from None
    return str(int(value)) if isinstance(value, int) else str(value)


def double_text(value: float) -> str:
    """The shortest digits that round-trip to the same value, as Go's format ``g`` writes them."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    power = len(digits) - 1 + int(exponent)
    if -4 <= power < PLAIN_BELOW:
        return format(Decimal(repr(value)).normalize(), "f")
    text = "".join(map(str, digits))
    mantissa = text[0] + (f".{text[1:]}" if len(text) > 1 else "")
    return f"{'-' if sign else ''}{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}"


def _same(value: Any) -> Any:
    return value


def _comparison(name: str) -> tuple[Overload, ...]:
    run = operators.order(name)
    pairs = [(BOOL, BOOL), *product(NUMERIC, NUMERIC), *((kind, kind) for kind in (STRING, BYTES, *TIMES))]
    words = {"_<_": "less", "_<=_": "less_equals", "_>_": "greater", "_>=_": "greater_equals"}[name]
    return tuple(
        function(f"{words}_{left}{'' if left == right else f'_{right}'}", (left, right), BOOL, run)
        for left, right in pairs
    )


def _arithmetic(name: str, word: str, *kinds: Type) -> tuple[Overload, ...]:
    run = operators.arithmetic(name)
    return tuple(function(f"{word}_{kind.kind}", (kind, kind), kind, run) for kind in kinds)


def _of_times(name: str, *rows: tuple[Type, Type, Type]) -> tuple[Overload, ...]:
    run = operators.arithmetic(name)
    return tuple(function(f"{name}_{left}_{right}", (left, right), result, run) for left, right, result in rows)


FUNCTIONS: Functions = {
    "_?_:_": (function("conditional", (BOOL, A, A), A, _same),),
    "_&&_": (function("logical_and", (BOOL, BOOL), BOOL, _same),),
    "_||_": (function("logical_or", (BOOL, BOOL), BOOL, _same),),
    "@not_strictly_false": (function("not_strictly_false", (BOOL,), BOOL, _same),),
    "!_": (function("logical_not", (BOOL,), BOOL, operators.invert),),
    "_==_": (function("equals", (A, A), BOOL, operators.equals),),
    "_!=_": (function("not_equals", (A, A), BOOL, operators.differs),),
    **{name: _comparison(name) for name in operators.ORDER},
    "_+_": (
        *_arithmetic("_+_", "add", BYTES, DOUBLE, INT, LIST, STRING, UINT),
        *_of_times("_+_", (DURATION, DURATION, DURATION), (DURATION, TIMESTAMP, TIMESTAMP)),
        *_of_times("_+_", (TIMESTAMP, DURATION, TIMESTAMP)),
    ),
    "_-_": (
        *_arithmetic("_-_", "subtract", DOUBLE, INT, UINT),
        *_of_times("_-_", (DURATION, DURATION, DURATION), (TIMESTAMP, DURATION, TIMESTAMP)),
        *_of_times("_-_", (TIMESTAMP, TIMESTAMP, DURATION)),
    ),
    "_*_": _arithmetic("_*_", "multiply", DOUBLE, INT, UINT),
    "_/_": _arithmetic("_/_", "divide", DOUBLE, INT, UINT),
    "_%_": _arithmetic("_%_", "modulo", INT, UINT),
    "-_": tuple(function(f"negate_{kind}", (kind,), kind, operators.negate) for kind in (DOUBLE, INT)),
    "_[_]": (
        function("index_list", (LIST, INT), A, operators.index),
        function("index_map", (MAP, A), B, operators.index),
        function("optional_list_index_int", (optional_of(LIST), INT), optional_of(A), operators.index),
        function("optional_map_index_value", (optional_of(MAP), A), optional_of(B), operators.index),
    ),
    "_[?_]": (
        function("list_optindex_optional_int", (LIST, INT), optional_of(A), operators.optional_index),
        function(
            "optional_list_optindex_optional_int", (optional_of(LIST), INT), optional_of(A), operators.optional_index
        ),
        function("map_optindex_optional_value", (MAP, A), optional_of(B), operators.optional_index),
        function(
            "optional_map_optindex_optional_value", (optional_of(MAP), A), optional_of(B), operators.optional_index
        ),
    ),
    "_?._": (function("select_optional_field", (DYN, STRING), optional_of(A), operators.optional_index),),
    "@in": (
        function("in_list", (A, LIST), BOOL, operators.contains),
        function("in_map", (A, MAP), BOOL, operators.contains),
    ),
    "size": tuple(
        row
        for kind in (BYTES, LIST, MAP, STRING)
        for row in (
            function(f"size_{kind.kind}", (kind,), INT, len),
            method(f"{kind.kind}_size", (kind,), INT, len),
        )
    ),
    "type": (function("type", (A,), type_of(A), lambda value: TypeValue(type_name(value))),),
    "dyn": (function("to_dyn", (A,), DYN, _same),),
    "bool": (
        function("bool_to_bool", (BOOL,), BOOL, _same),
        function("string_to_bool", (STRING,), BOOL, to_bool),
    ),
    "bytes": (
        function("bytes_to_bytes", (BYTES,), BYTES, _same),
        function("string_to_bytes", (STRING,), BYTES, str.encode),
    ),
    "double": tuple(function(f"{kind}_to_double", (kind,), DOUBLE, to_double) for kind in (DOUBLE, INT, STRING, UINT)),
    "int": tuple(function(f"{kind}_to_int64", (kind,), INT, to_int) for kind in (INT, DOUBLE, STRING, UINT)),
    "string": tuple(
        function(f"{kind}_to_string", (kind,), STRING, to_string) for kind in (STRING, BOOL, BYTES, DOUBLE, INT, UINT)
    ),
    "uint": tuple(function(f"{kind}_to_uint64", (kind,), UINT, to_uint) for kind in (UINT, DOUBLE, INT, STRING)),
    "contains": (method("contains_string", (STRING, STRING), BOOL, lambda text, part: part in text),),
    "endsWith": (method("ends_with_string", (STRING, STRING), BOOL, str.endswith),),
    "startsWith": (method("starts_with_string", (STRING, STRING), BOOL, str.startswith),),
    "matches": (
        function("matches", (STRING, STRING), BOOL, matches),
        method("matches_string", (STRING, STRING), BOOL, matches),
    ),
}

CONVERSIONS = frozenset({"bool", "bytes", "double", "int", "string", "uint"})
"""Functions that Kubernetes evaluates at compile time if the argument is a constant."""

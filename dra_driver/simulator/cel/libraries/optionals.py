"""Optional values, and the internal function with which macros build maps."""

from __future__ import annotations

from typing import Any

from dra_driver.simulator.cel.overloads import Functions, function, method
from dra_driver.simulator.cel.types import BOOL, list_of, map_of, optional_of, param
from dra_driver.simulator.cel.values import NONE, Optional

K, V = param("K"), param("V")
OPTIONAL, MAP = optional_of(V), map_of(K, V)
ZERO_TYPES = frozenset({bool, float, str, bytes, list, dict, type(None)})


def _of(value: Any) -> Optional:
    return Optional(present=True, value=value)


def _of_non_zero(value: Any) -> Optional:
    is_zero = not value and (type(value) in ZERO_TYPES or isinstance(value, int | dict))
    return NONE if is_zero else _of(value)


def _value(optional: Optional) -> Any:
    if not optional.present:
        raise ValueError("optional.none() dereference")
    return optional.value


def _unwrap(items: list[Any]) -> list[Any]:
    if not all(isinstance(item, Optional) for item in items):
        raise ValueError("value is not optional")
    return [item.value for item in items if item.present]


def _by_compiler(*values: Any) -> Any:
    """Never called: the compiler implements the function, whose arguments are not all evaluated at once."""
    raise NotImplementedError(values)


FUNCTIONS: Functions = {
    "optional.of": (function("optional_of", (V,), OPTIONAL, _of),),
    "optional.ofNonZeroValue": (function("optional_ofNonZeroValue", (V,), OPTIONAL, _of_non_zero),),
    "optional.none": (function("optional_none", (), OPTIONAL, lambda: NONE),),
    "value": (method("optional_value", (OPTIONAL,), V, _value),),
    "hasValue": (method("optional_hasValue", (OPTIONAL,), BOOL, lambda optional: optional.present),),
    "or": (method("optional_or_optional", (OPTIONAL, OPTIONAL), OPTIONAL, _by_compiler),),
    "orValue": (method("optional_orValue_value", (OPTIONAL, V), V, _by_compiler),),
    "first": (method("list_first", (list_of(V),), OPTIONAL, lambda items: _of(items[0]) if items else NONE),),
    "last": (method("list_last", (list_of(V),), OPTIONAL, lambda items: _of(items[-1]) if items else NONE),),
    "optional.unwrap": (function("optional_unwrap", (list_of(OPTIONAL),), list_of(V), _unwrap),),
    "unwrapOpt": (method("optional_unwrapOpt", (list_of(OPTIONAL),), list_of(V), _unwrap),),
    # transformMap() and transformMapEntry() expand to this.
    "cel.@mapInsert": (
        function("@mapInsert_map_key_value", (MAP, K, V), MAP, _by_compiler),
        function("@mapInsert_map_map", (MAP, MAP), MAP, _by_compiler),
    ),
}

"""``"%s".format([...])``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from dra_driver.simulator.cel.errors import UnsupportedError
from dra_driver.simulator.cel.types import Type
from dra_driver.simulator.cel.values import MAPS, TypeValue, from_key, type_name

CLAUSE = re.compile(r"%(?:(%)|(?:\.([0-9]+))?(.)|$)", re.DOTALL)

_WHOLE = frozenset({"int", "uint"})
_TEXT = _WHOLE | {"string", "bool", "bytes", "double", "list", "map", "type", "null_type"}
_BINARY = _WHOLE | {"string", "bytes"}
_STRING_CLAUSE = (
    "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, "
    "durations, and timestamps"
)
_HEX_CLAUSE = "only integers, byte buffers, and strings can be formatted as hex"
CLAUSES: dict[str, tuple[str, frozenset[str]]] = {
    "s": (_STRING_CLAUSE, _TEXT),
    "d": ("decimal clause can only be used on integers", _WHOLE),
    "f": ("fixed-point clause can only be used on doubles", frozenset({"double"})),
    "e": ("scientific clause can only be used on doubles", frozenset({"double"})),
    "b": ("only integers and bools can be formatted as binary", _WHOLE | {"bool"}),
    "x": (_HEX_CLAUSE, _BINARY),
    "X": (_HEX_CLAUSE, _BINARY),
    "o": ("octal clause can only be used on integers", _WHOLE),
}
"""Letter -> what is said of other types, the types it takes."""

LONG_NUMBERS = ("NaN", "Infinity", "-Infinity")


def format_text(text: str, args: list[Any]) -> str:
    """``text.format(args)``; ValueError when they do not fit together."""
    waiting = iter(enumerate(args))

    def clause(match: re.Match[str]) -> str:
        escaped, precision, letter = match.groups()
        if escaped:
            return "%"
        _known(letter)
        place, value = next(waiting, (-1, None))
        if place < 0:
            raise ValueError(f"index {len(args)} out of range")
        _, kinds = CLAUSES[letter]
        if type_name(value) not in kinds and not (letter in "fe" and value in LONG_NUMBERS):
            raise ValueError(f"error during formatting: {CLAUSES[letter][0]}, was given {type_name(value)}")
        return WRITERS[letter](value, 6 if precision is None else int(precision))

    return CLAUSE.sub(clause, text)


Place = tuple[int, int]
"""Argument, and which of its types."""


def check_literal(text: str, kinds: list[list[Type]]) -> tuple[str, Place | None] | None:
    """What is wrong with a literal text and its literal list of arguments, and where when one of them is to blame.

    Of each argument ``kinds`` has the static type, followed by those of all that is in it if it is a literal itself.
    """
    used = 0
    for escaped, _, letter in CLAUSE.findall(text):
        if escaped:
            continue
        if not letter:
            return "unexpected end of string", None
        if letter not in CLAUSES:
            return f'could not parse formatting clause: unrecognized formatting clause "{letter}"', None
        if used >= len(kinds):
            return f"index {used} out of range", None
        allowed = CLAUSES[letter][1] | ({"string"} if letter in "fe" else set()) | {"dyn"}
        for place, kind in enumerate(kinds[used] if letter == "s" else kinds[used][:1]):
            if kind.kind not in allowed:
                return f"error during formatting: {CLAUSES[letter][0]}, was given {kind}", (used, place)
        used += 1
    if used < len(kinds):
        return f"too many arguments supplied to string.format (expected {used}, got {len(kinds)})", None
    return None


def _known(letter: str | None) -> None:
    if not letter:
        raise ValueError("unexpected end of string")
    if letter not in CLAUSES:
        raise ValueError(f'could not parse formatting clause: unrecognized formatting clause "{letter}"')


def _text(value: Any, _: int = 0) -> str:
    kind = type(value)
    if kind is list:
        return f"[{', '.join(map(_inside, value))}]"
    if kind in MAPS:
        keys = [(_inside(from_key(key)), _inside(entry)) for key, entry in value.items()]
        return f"{{{', '.join(f'{key}:{entry}' for key, entry in sorted(keys))}}}"
    if value is None:
        return "null"
    if kind is TypeValue:
        return str(value.name)
    from dra_driver.simulator.cel.libraries.standard import to_string

    return to_string(value)


def _inside(value: Any) -> str:
    """An entry of a list or a map."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bytes):
        return f"b{json.dumps(value.decode(errors='backslashreplace'), ensure_ascii=False)}"
    if isinstance(value, float):
        return f'"{_text(value)}"' if not math.isfinite(value) else f"{value:.6f}"
    if type_name(value) not in _TEXT:
        raise ValueError(f"no formatting function for {type_name(value)}")
    return _text(value)


def _fixed(value: Any, precision: int) -> str:
    number = float(value)
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "∞" if number > 0 else "-∞"
    if number == 0 and math.copysign(1, number) < 0:
        raise UnsupportedError("runtime", "%f of -0.0 is not simulated: its text depends on Go's printer")
    if abs(number) >= 1e15:  # where digits beyond a double's precision begin
        raise UnsupportedError(
            "runtime", "%f of a number of 1e15 or more is not simulated: its digits depend on Go's printer"
        )
    return f"{number:,.{min(precision, 100)}f}"


def _scientific(value: Any, precision: int) -> str:
    raise UnsupportedError(
        "runtime", f"%e is not simulated: Kubernetes writes {value} ({precision} digits) in a locale's way"
    )


def _hexadecimal(letter: str) -> Callable[[Any, int], str]:
    def run(value: Any, _: int) -> str:
        if isinstance(value, int):
            return format(int(value), letter)
        octets = value.encode() if isinstance(value, str) else value
        return str(octets.hex() if letter == "x" else octets.hex().upper())

    return run


WRITERS: dict[str, Callable[[Any, int], str]] = {
    "s": _text,
    "d": lambda value, _: str(int(value)),
    "f": _fixed,
    "e": _scientific,
    "b": lambda value, _: format(int(value), "b"),
    "x": _hexadecimal("x"),
    "X": _hexadecimal("X"),
    "o": lambda value, _: format(int(value), "o"),
}

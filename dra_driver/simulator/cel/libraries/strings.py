"""The strings library, version 2. Positions count characters, not bytes."""

from __future__ import annotations

from dra_driver.simulator.cel.allowance import ITEM, take
from dra_driver.simulator.cel.overloads import Functions, function, method
from dra_driver.simulator.cel.types import INT, STRING, list_of

_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_QUOTED = str.maketrans(
    {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", "\\": r"\\", '"': r"\""}
)


def _char_at(text: str, place: int) -> str:
    if not 0 <= place <= len(text):
        raise ValueError(f"index out of range: {place}")
    return text[place : place + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if start < 0:
        raise ValueError(f"index out of range: {start}")
    return text.find(part, start) if part else min(start, len(text))


def _last_index_before(text: str, part: str, last: int) -> int:
    if last < 0:
        raise ValueError(f"index out of range: {last}")
    if not part:
        return min(last, len(text))
    return -1 if last >= len(text) else text.rfind(part, 0, last + len(part))


def _replace(text: str, old: str, new: str, most: int = -1) -> str:
    places = text.count(old) if old else len(text) + 1
    take(len(text) + (places if most < 0 else min(places, most)) * max(len(new) - len(old), 0))
    return text.replace(old, new, most)


def _split(text: str, separator: str, most: int = -1) -> list[str]:
    if most == 0:
        return []
    take(ITEM * len(text))
    if separator:
        return text.split(separator, most - 1 if most > 0 else -1)
    if most < 0 or most >= len(text):
        return list(text)
    return [*text[: most - 1], text[most - 1 :]]


def _substring(text: str, start: int, end: int | None = None) -> str:
    stop = len(text) if end is None else end
    if end is not None and start > end:
        raise ValueError(f"invalid substring range. start: {start}, end: {end}")
    for place in (start, stop):
        if not 0 <= place <= len(text):
            raise ValueError(f"index out of range: {place}")
    return text[start:stop]


def _join(texts: list[object], separator: str = "") -> str:
    if not all(isinstance(item, str) for item in texts):
        raise ValueError("join: invalid input")
    return separator.join(map(str, texts))


FUNCTIONS: Functions = {
    "charAt": (method("string_char_at_int", (STRING, INT), STRING, _char_at),),
    "indexOf": (
        method("string_index_of_string", (STRING, STRING), INT, _index_of),
        method("string_index_of_string_int", (STRING, STRING, INT), INT, _index_of),
    ),
    "lastIndexOf": (
        method("string_last_index_of_string", (STRING, STRING), INT, str.rfind),
        method("string_last_index_of_string_int", (STRING, STRING, INT), INT, _last_index_before),
    ),
    "lowerAscii": (method("string_lower_ascii", (STRING,), STRING, lambda text: text.translate(_LOWER)),),
    "upperAscii": (method("string_upper_ascii", (STRING,), STRING, lambda text: text.translate(_UPPER)),),
    "replace": (
        method("string_replace_string_string", (STRING, STRING, STRING), STRING, _replace),
        method("string_replace_string_string_int", (STRING, STRING, STRING, INT), STRING, _replace),
    ),
    "split": (
        method("string_split_string", (STRING, STRING), list_of(STRING), _split),
        method("string_split_string_int", (STRING, STRING, INT), list_of(STRING), _split),
    ),
    "substring": (
        method("string_substring_int", (STRING, INT), STRING, _substring),
        method("string_substring_int_int", (STRING, INT, INT), STRING, _substring),
    ),
    "trim": (method("string_trim", (STRING,), STRING, lambda text: text.strip(_SPACE)),),
    "strings.quote": (function("strings_quote", (STRING,), STRING, lambda text: f'"{text.translate(_QUOTED)}"'),),
    "join": (
        method("list_join", (list_of(STRING),), STRING, _join),
        method("list_join_string", (list_of(STRING), STRING), STRING, _join),
    ),
}

BEFORE_1_37 = {
    "string_index_of_string_int": lambda text, part, start: _index_of(text, part, start) if part else start,
    "string_last_index_of_string_int": lambda text, part, last: _last_index_before(text, part, last) if part else last,
}
"""How Kubernetes 1.36 runs some overloads: an empty substring is found at the given position, without a check."""

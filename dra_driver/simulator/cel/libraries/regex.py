r"""Regular expressions: those of RE2, which equal those of Go except for ``\C``."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from dra_driver.simulator.cel.allowance import ITEM, take
from dra_driver.simulator.cel.overloads import Functions, method
from dra_driver.simulator.cel.types import INT, STRING, list_of


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """Compile a pattern; raises ValueError with the reason if it is invalid."""
    import re2  # loaded only when there is a pattern

    options = re2.Options()
    options.log_errors = False
    try:
        if r"\C" in pattern.replace(r"\\", ""):
            raise ValueError(r"error parsing regexp: invalid escape sequence: `\C`")
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else "invalid"
        raise ValueError(f"error parsing regexp: {reason.decode() if isinstance(reason, bytes) else reason}") from None


_PLAIN = re.compile(
    r"\^?(?:(?:[A-Za-z0-9_/:@, =~-]|\\[.+*?()|{}^$]|\.|\[[A-Za-z0-9_.]+\]|\[(?:a-z|A-Z|0-9)+\])[*+?]?)*\$?"
)
"""Patterns that mean the same to Python's engine, which is three times as fast: no groups, only simple classes."""
_MAX_REPETITIONS = 2
"""With more repetitions, of which ``?`` is one, backtracking could take long."""


_SHORT = 64
"""Characters of a text that Python's engine may search: as long as a device's attribute. Its time may grow with the
third power of them."""


@lru_cache(maxsize=256)
def _searcher(pattern: str) -> Callable[[str], object] | None:
    """Python's search for a pattern that it is quick with; None for others."""
    repetitions = len(re.findall(r"[*+?]", pattern))
    if _PLAIN.fullmatch(pattern) and repetitions <= _MAX_REPETITIONS and "-" not in pattern[1:-1]:
        return re.compile(
            pattern[:-1] + r"\Z" if pattern.endswith("$") and not pattern.endswith(r"\$") else pattern
        ).search
    return None


def matches(text: str, pattern: str) -> bool:
    """``text.matches(pattern)``: whether the pattern is found anywhere."""
    search = _searcher(pattern) if len(text) <= _SHORT else None
    return (search or compiled(pattern).search)(text) is not None


def find(text: str, pattern: str) -> str:
    """``text.find(pattern)``: the first match, or an empty string."""
    match = compiled(pattern).search(text)
    return "" if match is None else str(match.group())


def find_all(text: str, pattern: str, most: int = -1) -> list[str]:
    """``text.findAll(pattern)``: all matches, limited to ``most`` unless that is negative."""
    texts: list[str] = []
    last_end = -1
    # As bytes: re2 counts the characters before each match of a text, which takes long if there are many.
    data = text.encode()
    for match in compiled(pattern).finditer(data):
        if 0 <= most <= len(texts):
            break
        empty, inside = match.start() == match.end(), data[match.start() : match.start() + 1]
        # Go does not report an empty match directly after another match; there is none within a character.
        if empty and (match.start() == last_end or (inside and inside[0] & 0xC0 == 0x80)):
            continue
        take(8 * ITEM)
        texts.append(match.group().decode())
        last_end = match.end()
    return texts


FUNCTIONS: Functions = {
    "find": (method("string_find_string", (STRING, STRING), STRING, find),),
    "findAll": (
        method("string_find_all_string", (STRING, STRING), list_of(STRING), find_all),
        method("string_find_all_string_int", (STRING, STRING, INT), list_of(STRING), find_all),
    ),
}

PATTERN_ARGUMENT = {"matches": 1, "find": 1, "findAll": 1}
"""Index of a function's pattern among its arguments (target included); constant patterns are checked early."""

"""What the text of a literal stands for."""

from __future__ import annotations

import re
from typing import Any

from dra_driver.simulator.cel.values import INT_MAX, UINT_MAX, Uint

SIMPLE_ESCAPES = {
    "a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "'": 39, '"': 34, "`": 96, "?": 63,
}  # fmt: skip
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|X[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", re.DOTALL)


def number(kind: str, text: str) -> Any:
    """An int, Uint or float; ValueError says that it does not fit in 64 bits."""
    if kind == "FLOAT_LIT":
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError("invalid double literal")
        return value
    digits = text.rstrip("uU")
    whole = int(digits, 16 if digits.startswith("0x") else 10)
    if kind == "UINT_LIT":
        if whole > UINT_MAX:
            raise ValueError("invalid uint literal")
        return Uint(whole)
    # One more than fits: with a minus sign in front it does, which the caller sees.
    if whole > INT_MAX + 1:
        raise ValueError("invalid int literal")
    return whole


def text(literal: str) -> str:
    """A string literal's value; ValueError for an escape that CEL does not have."""
    body, raw = _body(literal)
    return body if raw else ESCAPE.sub(lambda match: chr(_code_point(match.group(1))), body)


def octets(literal: str) -> bytes:
    """A bytes literal's value: escapes of code below 256 are single bytes, other characters are UTF-8."""
    body, raw = _body(literal[1:])
    if raw:
        return body.encode()
    value, place = bytearray(), 0
    for match in ESCAPE.finditer(body):
        value += body[place : match.start()].encode()
        if match.group(1)[0] in "uU":
            raise ValueError("unable to unescape string")
        value.append(_code_point(match.group(1)))
        place = match.end()
    return bytes(value + body[place:].encode())


def _body(literal: str) -> tuple[str, bool]:
    raw = literal[0] in "rR"
    quoted = literal[1:] if raw else literal
    width = 3 if quoted[:3] in ('"""', "'''") and len(quoted) >= 6 else 1
    return quoted[width:-width].replace("\r\n", "\n").replace("\r", "\n"), raw


def _code_point(escape: str) -> int:
    if escape in SIMPLE_ESCAPES:
        return SIMPLE_ESCAPES[escape]
    if len(escape) == 1:
        raise ValueError("unable to unescape string")
    code = int(escape[1:], 16) if escape[0] in "xXuU" else int(escape, 8)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ValueError("invalid unicode code point")
    return code

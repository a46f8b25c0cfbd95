"""Kubernetes quantities as whole numbers of 10^-9, which is the precision that Kubernetes keeps.

Source: ``k8s.io/apimachinery/pkg/api/resource``: a suffix of a power of 1000 or of 1024 or an exponent; what is finer
than 10^-9 is rounded away from zero.
"""

from __future__ import annotations

import re
from decimal import ROUND_UP, Decimal
from functools import lru_cache

from dra_driver.errors import DriverError

UNIT = 10**9
"""One, in the numbers of this module."""
LARGEST = (1 << 63) - 1
"""Kubernetes caps quantities at this many."""

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_TEXT = re.compile(
    r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([KMGTPE]i)|([numkMGTPE]?)|[eE]([+-]?[0-9]{1,3}))", re.ASCII
)
_MOST_CHARACTERS = 100


class QuantityError(DriverError):
    """A text that is no quantity."""


@lru_cache(maxsize=4096)
def parse(text: str | float) -> int:
    """A quantity in units of 10^-9. QuantityError when it is none."""
    written = str(text)
    match = _TEXT.fullmatch(written) if len(written) <= _MOST_CHARACTERS else None
    if match is None:
        raise QuantityError(f"{written[:40]!r} is no quantity", remedy="write one such as 16, 500m or 96Gi")
    sign, digits, binary, decimal, exponent = match.groups()
    if binary:
        number = Decimal(digits) * (1 << _BINARY[binary])
    else:
        number = Decimal(digits).scaleb(int(exponent) if exponent else _DECIMAL[decimal or ""])
    if number > LARGEST:
        number = Decimal(LARGEST)
    nanos = int((number * UNIT).to_integral_value(ROUND_UP))
    return -nanos if sign == "-" else nanos


def suffix_of(text: str | float) -> str:
    """The format that Kubernetes keeps beside the number: ``binary``, ``exponent`` or ``decimal``."""
    match = _TEXT.fullmatch(str(text))
    if match is None:
        return "decimal"
    return "binary" if match[3] else "exponent" if match[5] else "decimal"


def render(nanos: int, style: str = "decimal") -> str:
    """The canonical text: no fraction, and the largest suffix for which there is none."""
    sign, number = ("-", -nanos) if nanos < 0 else ("", nanos)
    if style == "binary" and number >= 1024 * UNIT and number % UNIT == 0:
        return sign + _binary(number // UNIT)
    power = -9
    while number and number % 1000 == 0 and power < 18:
        number //= 1000
        power += 3
    if not number:
        return "0"
    if style == "exponent":
        return f"{sign}{number}" if power == 0 else f"{sign}{number}e{power}"
    return sign + str(number) + next(suffix for suffix, value in _DECIMAL.items() if value == power)


def _binary(number: int) -> str:
    suffix = ""
    for name in _BINARY:
        if number % 1024:
            break
        number //= 1024
        suffix = name
    return f"{number}{suffix}"

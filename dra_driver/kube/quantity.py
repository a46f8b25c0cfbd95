"""Kubernetes quantities such as ``96Gi``, as integers in units of 10^-9, the precision of Kubernetes.

Source: ``k8s.io/apimachinery/pkg/api/resource``. Finer values are rounded away from zero.
``tests/data/cel-outcomes.json`` has the results of Kubernetes itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_UP, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal

from dra_driver.util.errors import DriverError

UNIT: Final = 10**9
"""The value 1 in units of this module."""
MAX_INT64: Final = (1 << 63) - 1
"""The largest int64."""
_SMALLEST: Final = -MAX_INT64 - 1

Format = Literal["BinarySI", "DecimalSI", "DecimalExponent"]
"""The notation of a quantity: ``1Ki``, ``1k`` or ``1e3``."""
Amount = tuple[int, int]
"""An int64 and its decimal scale."""

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_TEXT: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:([KMGTPE]i)|([numkMGTPE]?)|[eE]([+-]?[0-9]+))", re.ASCII)
_FORM: Final = re.compile(r"[+-]?[0-9.]++[eEinumkKMGTP]*[-+]?[0-9]*", re.ASCII)
"""Without a way back into the digits: else, a long text with a wrong end takes quadratic time."""
_FORM_WRONG: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_SUFFIX_WRONG: Final = "unable to parse quantity's suffix"
_NANO: Final = -9
_MAX_DIGITS: Final = 18
"""Maximum number of decimal digits that Kubernetes keeps in an int64 rather than in a big number."""
_MAX_SIMULATED: Final = 1000
_WIDE: Final = Context(prec=40, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Has all 64-bit values in parts of a billion, and no number that is too large for it."""
_SHOWN: Final = 40


class QuantityError(DriverError):
    """A text that is not a quantity; ``reason`` is Kubernetes' message."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(f"{text[:_SHOWN]!r} is not a quantity: {reason}", remedy="write one such as 16, 500m or 96Gi")
        self.reason = reason


class LongQuantityError(QuantityError):
    """A text that Kubernetes may accept, but that is too long for this module; ``nearest`` is a quantity for it."""

    def __init__(self, text: str, nearest: Quantity) -> None:
        super().__init__(text, f"more than {_MAX_SIMULATED} digits are not simulated")
        self.nearest = nearest


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """A parsed quantity with Kubernetes' semantics."""

    nanos: int
    """The value in units of 10^-9."""
    amount: Amount | None
    """Kubernetes' 64-bit form, if it has one. ``asInteger()`` depends on it: 1 is an integer, 1000m is not."""
    format: Format
    text: str
    """The text as Kubernetes formats it again."""
    computed: bool = False
    """Whether it results from ``add()`` or ``sub()``: in Kubernetes, no value equals such a right operand of ``==``."""

    @classmethod
    def of(cls, value: int) -> Quantity:
        """The quantity of a 64-bit integer."""
        return cls(value * UNIT, (value, 0), "DecimalSI", canonical(value * UNIT, "DecimalSI"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and not other.computed and self.nanos == other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)

    def integer(self) -> int | None:
        """The value as an int64; None if Kubernetes cannot convert it."""
        if self.amount is None or self.amount[1] < 0:
            return None
        value = int(self.amount[0] * 10 ** self.amount[1])
        return value if _SMALLEST <= value <= MAX_INT64 else None

    def approximate(self) -> float:
        """The nearest double; infinity for what is larger than any."""
        if self.amount is None:
            try:
                return float(self.nanos) * 1e-9
            except OverflowError:
                return float(f"{self.nanos}e-9")
        value, scale = self.amount
        return float(value) * float(f"1e{scale}") if scale else float(value)

    def add(self, other: Quantity) -> Quantity:
        """The sum."""
        return self._computed(self.nanos + other.nanos, _sum(self.amount, other.amount))

    def sub(self, other: Quantity) -> Quantity:
        """The difference."""
        amount = None if other.amount is None else (-other.amount[0], other.amount[1])
        return self._computed(self.nanos - other.nanos, _sum(self.amount, amount))

    def _computed(self, nanos: int, amount: Amount | None) -> Quantity:
        return Quantity(nanos, amount, self.format, canonical(nanos, self.format), computed=True)


def parse(text: str) -> Quantity:
    """Parse a quantity as ``ParseQuantity`` does. Raises QuantityError for an invalid text."""
    match = _TEXT.fullmatch(text)
    if match is None or not text:
        raise QuantityError(text, _SUFFIX_WRONG if text and _FORM.fullmatch(text) else _FORM_WRONG)
    sign, before, after, binary, decimal, power = match.groups(default="")
    # The digits may be missing altogether: `m` is 0.
    whole = before.lstrip("0") or "0"
    exponent = _BINARY[binary] if binary else _int32(text, power) if power else _DECIMAL[decimal]
    if len(whole + after) > _MAX_SIMULATED or abs(exponent) > _MAX_SIMULATED:
        number = Decimal(f"{sign}{whole}.{after}e{0 if binary else exponent}")
        raise LongQuantityError(text, _nearest(_WIDE.multiply(number, 1 << exponent) if binary else number))
    digits = int(whole + after) * (-1 if sign == "-" else 1)
    amount = _amount(digits, whole, after, exponent, binary=bool(binary))
    if amount is None and not before + after:
        raise QuantityError(text, "unable to parse numeric part of quantity")
    value = Fraction(digits, 10 ** len(after)) * Fraction(2 if binary else 10) ** exponent
    nanos = _nanos(value, capped=bool(binary))
    format_: Format = "DecimalExponent" if power else "DecimalSI"
    if binary and (amount is not None or not 0 < abs(nanos) < UNIT):
        format_ = "BinarySI"
    kept = amount is not None and _kept(digits, whole + after, amount[1], binary=bool(binary))
    return Quantity(nanos, amount, format_, text if kept else canonical(nanos, format_))


def canonical(nanos: int, format_: Format) -> str:
    """Kubernetes' canonical text: no fraction, and the largest suffix that allows for that."""
    sign, number = ("-", -nanos) if nanos < 0 else ("", nanos)
    if not number:
        return "0"
    if format_ == "BinarySI" and number >= 1024 * UNIT and number % UNIT == 0:
        number, exponent = _without_factors(number // UNIT, 1024, 0, 10)
        suffixes = _BINARY
    else:
        number, exponent = _without_factors(number, 1000, -9, 3)
        suffixes = _DECIMAL
    if format_ == "DecimalExponent" and exponent:
        return f"{sign}{number}e{exponent}"
    # Beyond the last suffix Kubernetes writes none at all, which changes the value.
    return sign + str(number) + next((suffix for suffix, power in suffixes.items() if power == exponent), "")


@lru_cache(maxsize=4096)
def nearest(text: str | float) -> Quantity:
    """``stored``, but of a text that is too long the nearest 64-bit value: no node and no device has more than that.

    So what somebody else has stored ends no simulation. Raises QuantityError for an invalid text.
    """
    try:
        return stored(text)
    except LongQuantityError as error:
        return error.nearest


@lru_cache(maxsize=4096)
def stored(text: str | float) -> Quantity:
    """Parse a quantity as read after the API server has stored it. Raises QuantityError for an invalid text."""
    return parse(parse(str(text).strip(" ")).text)


def nanos(text: str | float) -> int:
    """The value in units of 10^-9, after the API server has stored it, as ``simulated``."""
    return nearest(text).nanos


def _int32(text: str, power: str) -> int:
    """Kubernetes parses 64 bits and keeps 32 of them."""
    number = int(power) if len(power) <= _MAX_SIMULATED else MAX_INT64 + 1
    if not -MAX_INT64 - 1 <= number <= MAX_INT64:
        raise QuantityError(text, _SUFFIX_WRONG)
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _nearest(number: Decimal) -> Quantity:
    """Compared first: as an integer, a number of so many digits would take all time or memory."""
    within = max(Decimal(-MAX_INT64), min(number, Decimal(MAX_INT64)))
    amount = int(within.quantize(Decimal("1e-9"), ROUND_UP, _WIDE) * UNIT)
    return Quantity(amount, None, "DecimalSI", canonical(amount, "DecimalSI"))


def _nanos(exact: Fraction, *, capped: bool) -> int:
    """Rounded away from zero to 10^-9; with ``capped`` limited to the largest int64."""
    scaled = abs(exact) * UNIT
    number = -(-scaled.numerator // scaled.denominator)
    return (min(number, MAX_INT64 * UNIT) if capped else number) * (-1 if exact < 0 else 1)


def _amount(digits: int, whole: str, after: str, exponent: int, *, binary: bool) -> Amount | None:
    if not binary:
        scale = exponent - len(after)
        return (digits, scale) if len(whole + after) <= _MAX_DIGITS and scale >= _NANO else None
    room = 15 - len(whole) - int(exponent * 3 / 10) - 1
    value = digits << exponent
    return (value, 0) if room >= 0 and not after and abs(value) <= MAX_INT64 else None


def _kept(digits: int, shifted: str, scale: int, *, binary: bool) -> bool:
    """Whether Kubernetes considers the text canonical and therefore keeps it as written."""
    if binary:
        return abs(digits) % 8 != 0
    return scale % 3 == 0 and not shifted.endswith("000") and shifted[0] != "0"


def _without_factors(number: int, base: int, exponent: int, step: int) -> tuple[int, int]:
    while number % base == 0:
        number, exponent = number // base, exponent + step
    return number, exponent


def _sum(left: Amount | None, right: Amount | None) -> Amount | None:
    if left is None or right is None:
        return None
    if not left[0] or not right[0]:
        return right if not left[0] else left
    scale = min(left[1], right[1])
    total = left[0] * 10 ** (left[1] - scale) + right[0] * 10 ** (right[1] - scale)
    return (total, scale) if _SMALLEST <= total <= MAX_INT64 else None

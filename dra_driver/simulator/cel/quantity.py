"""Kubernetes quantities, as far as CEL sees them: ``quantity("96Gi")`` and what ``device.capacity`` holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from dra_driver.simulator.cel.errors import UnsupportedError
from dra_driver.simulator.cel.values import INT_MAX, INT_MIN, TYPE_NAMES

_SYNTAX = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?([numkMGTPE]?|[KMGTPE]i|[eE][+-]?[0-9]+)", re.ASCII)
_FORM = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_MOST_DIGITS = 18
"""Decimal digits that Kubernetes keeps in an int64 rather than in a big number."""
_MOST_SIMULATED = 1000
_NANO = 10**9


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact value in units of 1e-9.

    ``amount`` is (value, decimal scale) while Kubernetes would hold it in 64 bits: ``asInteger()`` depends on that, so
    1 is an integer and 1000m is not. ``computed`` is the result of ``add()`` or ``sub()``: in Kubernetes nothing is
    equal to one, though one can be equal to something.
    """

    nanos: int
    amount: tuple[int, int] | None
    computed: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and not other.computed and self.nanos == other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)

    def integer(self) -> int | None:
        """The value as an int, or None when Kubernetes cannot tell it as one."""
        if self.amount is None or self.amount[1] < 0:
            return None
        value = int(self.amount[0] * 10 ** self.amount[1])
        return value if INT_MIN <= value <= INT_MAX else None

    def approximate(self) -> float:
        """The nearest double."""
        if self.amount is None:
            return float(self.nanos) * 1e-9
        value, scale = self.amount
        return float(value) * float(f"1e{scale}") if scale else float(value)

    def add(self, other: Quantity) -> Quantity:
        """The sum."""
        return Quantity(self.nanos + other.nanos, _sum(self.amount, other.amount), computed=True)

    def sub(self, other: Quantity) -> Quantity:
        """The difference."""
        amount = None if other.amount is None else (-other.amount[0], other.amount[1])
        if other.amount is not None and other.amount[0] == INT_MIN:
            raise UnsupportedError("runtime", f"Kubernetes subtracts {INT_MIN} wrongly: not simulated")
        return Quantity(self.nanos - other.nanos, _sum(self.amount, amount), computed=True)

    @classmethod
    def of(cls, value: int) -> Quantity:
        """A whole number."""
        return cls(value * _NANO, (value, 0))

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Read what Kubernetes reads; ValueError otherwise."""
        match = _SYNTAX.fullmatch(text)
        if match is None or not text:
            known = text and re.fullmatch(_FORM, text, re.ASCII)
            raise ValueError(
                "unable to parse quantity's suffix"
                if known
                else f"quantities must match the regular expression '{_FORM}'"
            )
        # Digits may be missing altogether: `m` is 0.
        whole, fraction, suffix = match[2] or "0", match[3] or "", match[4]
        binary = _BINARY.get(suffix)
        exponent = binary if binary is not None else _decimal_exponent(suffix)
        if len(whole) + len(fraction) > _MOST_SIMULATED or abs(exponent) > _MOST_SIMULATED:
            raise UnsupportedError("runtime", f"a quantity of more than {_MOST_SIMULATED} digits is not simulated")
        digits = int(whole + fraction) * (-1 if match[1] == "-" else 1)
        amount = _amount(digits, whole, fraction, exponent, binary=binary is not None)
        factor = Fraction(2) ** exponent if binary is not None else Fraction(10) ** exponent
        return cls(_nanos(Fraction(digits, 10 ** len(fraction)) * factor, capped=binary is not None), amount)

    @classmethod
    def stored(cls, text: str) -> Quantity:
        """Read what the API server makes of it on storing: the shortest form, in which 1000m and 1.0 are integers."""
        found = cls.parse(text)
        number, sign = abs(found.nanos), -1 if found.nanos < 0 else 1
        if not number:
            return cls.of(0)
        binary = text.endswith("i") and number >= 1024 * _NANO and number % _NANO == 0
        if binary:
            number //= _NANO
        base, step, exponent, most = (1024, 10, 0, 60) if binary else (1000, 3, -9, 18)
        while number % base == 0 and exponent < most:
            number, exponent = number // base, exponent + step
        return cls(found.nanos, _amount(sign * number, str(number), "", exponent, binary=binary))


TYPE_NAMES[Quantity] = "kubernetes.Quantity"


def _decimal_exponent(suffix: str) -> int:
    return _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])


def _nanos(exact: Fraction, *, capped: bool) -> int:
    """In units of 1e-9: what is finer is rounded away from zero, and binary ones end at the largest int64."""
    scaled = abs(exact) * _NANO
    nanos = -(-scaled.numerator // scaled.denominator)
    return (min(nanos, INT_MAX * _NANO) if capped else nanos) * (-1 if exact < 0 else 1)


def _amount(digits: int, whole: str, fraction: str, exponent: int, *, binary: bool) -> tuple[int, int] | None:
    if not binary:
        scale = exponent - len(fraction)
        room = _MOST_DIGITS - len(whole) - len(fraction)
        return (digits, scale) if room >= 0 and scale >= -9 else None  # nano
    room = 15 - len(whole) - int(exponent * 3 / 10) - 1
    value = digits << exponent
    return (value, 0) if room >= 0 and not fraction and INT_MIN <= value <= INT_MAX else None


def _sum(left: tuple[int, int] | None, right: tuple[int, int] | None) -> tuple[int, int] | None:
    if left is None or right is None:
        return None
    if not left[0] or not right[0]:
        return right if not left[0] else left
    scale = min(left[1], right[1])
    total = left[0] * 10 ** (left[1] - scale) + right[0] * 10 ** (right[1] - scale)
    return (total, scale) if INT_MIN <= total <= INT_MAX else None

"""Kubernetes quantities, as far as CEL sees them: ``quantity("96Gi")`` and what ``device.capacity`` holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.simulator import quantity
from dra_driver.simulator.cel.errors import UnsupportedError
from dra_driver.simulator.cel.values import INT_MAX, INT_MIN, TYPE_NAMES


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """A quantity that can be computed with; ``nanos`` and ``amount`` are those of ``simulator.quantity``.

    ``computed`` is the result of ``add()`` or ``sub()``: in Kubernetes nothing is
    equal to one, though one can be equal to something.
    """

    nanos: int
    amount: quantity.Amount | None
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
        return cls(value * quantity.UNIT, (value, 0))

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Read what Kubernetes reads; ValueError otherwise."""
        return cls._read(quantity.parse, text)

    @classmethod
    def stored(cls, text: str) -> Quantity:
        """Read what the API server makes of it on storing, in which 1000m and 1.0 are integers."""
        return cls._read(quantity.stored, text)

    @classmethod
    def _read(cls, reader: Callable[[str], quantity.Quantity], text: str) -> Quantity:
        try:
            found = reader(text)
        except quantity.LongQuantityError as error:
            raise UnsupportedError("runtime", error.what) from None
        except quantity.QuantityError as error:
            raise ValueError(error.reason) from None
        return cls(found.nanos, found.amount)


TYPE_NAMES[Quantity] = "kubernetes.Quantity"


def _sum(left: quantity.Amount | None, right: quantity.Amount | None) -> quantity.Amount | None:
    if left is None or right is None:
        return None
    if not left[0] or not right[0]:
        return right if not left[0] else left
    scale = min(left[1], right[1])
    total = left[0] * 10 ** (left[1] - scale) + right[0] * 10 ** (right[1] - scale)
    return (total, scale) if INT_MIN <= total <= INT_MAX else None

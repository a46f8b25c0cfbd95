"""What calls cost that make lists, and those that compare each element with each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dra_driver.simulator.cel.sizes import UNLIMITED, Size, add, product_of, scaled
from dra_driver.simulator.cel.syntax import Literal

if TYPE_CHECKING:
    from dra_driver.simulator.cel.estimate import Operand

Cost = tuple[int, Size | None]
"""Cost without that of the arguments, and the size of the result when it is known."""
Rule = Callable[["Operand | None", "list[Operand]"], Cost | None]


def listed(factor: float, size: Size) -> Cost:
    """A call that makes a list: its elements, the call and the list itself."""
    return add(scaled(size[1], factor), 11), size


def _literal_int(operand: Operand, default: int) -> int:
    if isinstance(operand.node, Literal) and type(operand.node.value) is int:
        return max(operand.node.value, 0)
    return default


def slice_cost(target: Operand | None, args: list[Operand]) -> Cost | None:
    """``slice()``."""
    if target is None:
        return None
    start, end = _literal_int(args[0], 0), _literal_int(args[1], target.size[1])
    count = (end - start) & UNLIMITED
    return listed(1, (count, count))


def range_cost(_: Operand | None, args: list[Operand]) -> Cost:
    """``lists.range()``."""
    count = _literal_int(args[0], UNLIMITED)
    return listed(1, (count, count))


def flatten(target: Operand | None, args: list[Operand]) -> Cost | None:
    """``flatten()``."""
    depth = _literal_int(args[0], UNLIMITED) if args else 1
    return listed(float(depth), target.size) if target else None


def squared(factor: float, *, of_argument: bool = False) -> Rule:
    """Each element with each of the target, or of the argument."""

    def rule(target: Operand | None, args: list[Operand]) -> Cost | None:
        operand = args[0] if of_argument else target
        return listed(factor, product_of(operand.size, operand.size)) if operand else None

    return rule


def sets(factor: float) -> Rule:
    """Each element of one list with each of the other."""
    return lambda _, args: (add(scaled(product_of(args[0].size, args[1].size)[1], factor), 1), None)

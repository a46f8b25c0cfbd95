"""The picture for a terminal: ASCII only, so that it works with any locale, log and pager.

Marked chips differ by their brackets, sick ones by the signs at their number, and marked links by their strokes, so the
picture is readable without colour.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

from dra_driver.topology.drawing.layout import FOLD
from dra_driver.topology.drawing.sickness import SIGNS, WELL, Sickness, by_kind, checked, listed
from dra_driver.topology.fabric import Chain, Fabric, Ring, Single, Switched, Torus2D
from dra_driver.topology.instance_types import InstanceType

BLOCK = 4
"""Chips per line where no links determine the arrangement."""

_INDENT = "  "
_LINK, _MARKED_LINK, _GAP = "---", "===", "   "


@dataclass(frozen=True, slots=True)
class _Chips:
    """Which chips are marked, and which are sick."""

    marked: frozenset[int]
    sick: Mapping[int, Sickness]


def text(instance_type: InstanceType, marked: Collection[int] = (), sick: Mapping[int, Sickness] = WELL) -> str:
    """Draw the chips of a host of this type, with the ``marked`` and the ``sick`` ones told apart, and a legend.

    Returns several lines without a final newline; every chip appears once. Raises DriverError if a marked or sick chip
    does not exist.
    """
    fabric = instance_type.fabric
    checked(fabric, (*marked, *sick))
    if not fabric.size:
        return f"{_INDENT}(how many devices {instance_type.name} has is not public)"
    chosen = _Chips(frozenset(marked), sick)
    return "\n".join(line.rstrip() for line in (*_picture(fabric, chosen), "", *_legend(fabric, chosen)))


def _picture(fabric: Fabric, chosen: _Chips) -> list[str]:
    match fabric:
        case Torus2D():
            return _torus(fabric, chosen)
        case Ring() | Chain():
            return _line(fabric, chosen)
        case Switched():
            return _switch(fabric, chosen)
        case _:
            return [_INDENT + _GAP.join(_cells(row, chosen)) for row in _rows(fabric.size)]


def _cell(index: int, chosen: _Chips) -> str:
    """Six characters, such as ``(  4 )``, marked ``[* 4*]``, sick ``(x 4x)``, or both ``[x 4x]``."""
    sickness, is_marked = chosen.sick.get(index), index in chosen.marked
    sign = SIGNS[sickness] if sickness else "*" if is_marked else " "
    return f"[{sign}{index:2}{sign}]" if is_marked else f"({sign}{index:2}{sign})"


def _cells(indexes: Collection[int], chosen: _Chips) -> list[str]:
    return [_cell(index, chosen) for index in indexes]


def _rows(count: int) -> list[range]:
    return [range(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]


def _across(indexes: list[int], chosen: _Chips) -> str:
    """A row of linked chips."""
    line = _cell(indexes[0], chosen)
    for left, right in pairwise(indexes):
        line += (_MARKED_LINK if {left, right} <= chosen.marked else _LINK) + _cell(right, chosen)
    return line


def _torus(torus: Torus2D, chosen: _Chips) -> list[str]:
    margin = f"{_INDENT}{'':5}  "
    top, bottom = range(torus.columns), range(torus.size - torus.columns, torus.size)
    # The centres of two cells are one cell width and one link apart.
    heads = margin + _GAP.join(f"{f'y={column}':^6}" for column in range(torus.columns))
    around = margin + _GAP.join(
        f"{_wrap({first, last} <= chosen.marked, torus.rows, ':', '||'):^6}"
        for first, last in zip(top, bottom, strict=True)
    )
    stubs = [around] if around.strip() else []
    lines = [heads, *stubs]
    for row in range(torus.rows):
        members = [row * torus.columns + column for column in range(torus.columns)]
        end = _wrap({members[0], members[-1]} <= chosen.marked, torus.columns, "..", "==")
        lines.append(f"{_INDENT}{f'x={row}':5}{end:2}{_across(members, chosen)}{end}")
        if row + 1 < torus.rows:
            below = [{index, index + torus.columns} <= chosen.marked for index in members]
            lines.append(margin + _GAP.join(f"{'||' if both else '|':^6}" for both in below))
    return [*lines, *stubs]


def _wrap(both: bool, length: int, plain: str, strong: str) -> str:
    """The stub of a link around the end of a row or column; none if it would only repeat the direct link."""
    if length <= 2:
        return ""
    return strong if both else plain


def _line(fabric: Ring | Chain, chosen: _Chips) -> list[str]:
    """A ring in two lines closed at both ends; a chain in one line or, if it is long, two lines joined at the right."""
    count = fabric.size
    closed = isinstance(fabric, Ring) and count > 2
    if not closed and count <= FOLD:
        return [_INDENT + _across(list(range(count)), chosen)]
    half = (count + 1) // 2
    upper, lower = list(range(half)), list(range(count - 1, half - 1, -1))
    # An odd ring has one chip fewer in the lower line: a longer link takes its place.
    tops, bottoms = _across(upper, chosen), _across(lower, chosen)
    turn_left = {0, count - 1} <= chosen.marked
    turn_right = {half - 1, half} <= chosen.marked
    bottoms += ("=" if turn_right else "-") * (len(tops) - len(bottoms))
    left = [_corner(turn_left), _upright(turn_left)] if closed else ["   ", " "]
    right = [_corner(turn_right), _upright(turn_right)]
    return [
        f"{_INDENT}{left[0]}{tops}{right[0][::-1]}",
        f"{_INDENT}{left[1]:3}{'':{len(tops)}}{right[1]:>3}",
        f"{_INDENT}{left[0]}{bottoms}{right[0][::-1]}",
    ]


def _corner(both: bool) -> str:
    return "+==" if both else "+--"


def _upright(both: bool) -> str:
    return "#" if both else "|"


def _switch(fabric: Switched, chosen: _Chips) -> list[str]:
    rows = [_GAP.join(_cells(row, chosen)) for row in _rows(fabric.size)]
    width = max(len(row) for row in rows) + 4
    lid = f"{_INDENT}+{' NeuronSwitch ':-^{width}}+"
    return [lid, *(f"{_INDENT}|  {row:{width - 2}}|" for row in rows), f"{_INDENT}+{'':-^{width}}+"]


def _legend(fabric: Fabric, chosen: _Chips) -> list[str]:
    match fabric:
        case Torus2D():
            links = ["--- |  link", ".. :   link around to the other end of the row or column"]
        case Ring() | Chain():
            links = ["--- |  link"]
        case Switched():
            links = ["every device reaches every other through the switch; no pair is nearer than another"]
        case Single():
            links = ["no links on this host"]
        case _:
            links = ["how the devices are linked is not public"]
    marked = chosen.marked
    chips = ["( n )  device n", *(["[*n*]  marked device"] if marked else [])]
    for sickness, indexes in by_kind(chosen.sick):
        sign = SIGNS[sickness]
        chips.append(f"({sign}n{sign})  {sickness} device: {listed(indexes)}")
    if marked & chosen.sick.keys():
        chips.append("[?n?]  marked, with the sign of its state".replace("?", SIGNS[_gravest(chosen)]))
    if any(marked & set(fabric.neighbours(index)) for index in marked):
        links.append(f"{'== ||' if isinstance(fabric, Torus2D) else '== #'}".ljust(7) + "link between marked devices")
    return [_INDENT + line for line in (*chips, *links)]


def _gravest(chosen: _Chips) -> Sickness:
    """State of the gravest chip that is marked too."""
    return next(sickness for sickness, indexes in by_kind(chosen.sick) if chosen.marked & {*indexes})

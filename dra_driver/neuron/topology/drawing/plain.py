"""The picture for a terminal: ASCII only, so that it works with any locale, log and pager.

Marked chips differ by their brackets, sick ones by the signs at their number, and marked links by their strokes, so the
picture is readable without colour. Where cores are drawn, each is one character below its chip.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

from dra_driver.neuron.topology.drawing.layout import FOLD
from dra_driver.neuron.topology.drawing.marks import Marks
from dra_driver.neuron.topology.drawing.sickness import SIGNS, WELL, Sickness, by_kind, checked, listed
from dra_driver.neuron.topology.fabric import Chain, Fabric, Ring, Single, Switched, Torus2D
from dra_driver.neuron.topology.instance_types import InstanceType

BLOCK = 4
"""Chips per line where no links determine the arrangement."""

_INDENT = "  "
_LINK, _MARKED_LINK, _GAP = "---", "===", "   "


@dataclass(frozen=True, slots=True)
class _Chips:
    """What is marked, and which chips are sick."""

    marks: Marks
    sick: Mapping[int, Sickness]

    @property
    def marked(self) -> frozenset[int]:
        """The chips that are marked, wholly or in part."""
        return self.marks.chips


def text(instance_type: InstanceType, marked: Collection[int] | Marks = (), sick: Mapping[int, Sickness] = WELL) -> str:
    """Draw the chips of a host of this type, with the ``marked`` and the ``sick`` ones told apart, and a legend.

    Returns several lines without a final newline; every chip appears once. Raises DriverError if a marked or sick chip
    does not exist.
    """
    fabric = instance_type.fabric
    marks = marked if isinstance(marked, Marks) else Marks(frozenset(marked))
    checked(fabric, (*marks.chips, *marks.cores, *(chip for _, chips in marks.groups for chip in chips), *sick))
    if not fabric.size:
        return f"{_INDENT}(how many devices {instance_type.name} has is not public)"
    chosen = _Chips(marks, sick)
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
            return [
                line
                for row in _rows(fabric.size)
                for line in (_INDENT + _GAP.join(_cells(row, chosen)), *_cores_below(_INDENT, row, chosen))
            ]


def _cell(index: int, chosen: _Chips) -> str:
    """Six characters: ``(  4 )``, marked ``[* 4*]``, marked in part ``[+ 4+]``, sick ``(x 4x)``, or both ``[x 4x]``."""
    sickness, is_marked = chosen.sick.get(index), index in chosen.marked
    mark = "+" if chosen.marks.partly(index) else "*" if is_marked else " "
    sign = SIGNS[sickness] if sickness else mark
    return f"[{sign}{index:2}{sign}]" if is_marked else f"({sign}{index:2}{sign})"


def _cells(indexes: Collection[int], chosen: _Chips) -> list[str]:
    return [_cell(index, chosen) for index in indexes]


def _cores_below(margin: str, indexes: Collection[int], chosen: _Chips) -> list[str]:
    """The cores of a row of chips, centred below them; no line if no cores of these chips are drawn.

    The most cores that a chip has, eight, are as wide as the distance between two chips allows.
    """
    drawn = chosen.marks.cores
    if not drawn.keys() & set(indexes):
        return []
    width = 6 + len(_GAP)
    line = [" "] * (len(margin) + width * len(indexes))
    for place, index in enumerate(indexes):
        signs = ["#" if marked else "." for marked in drawn.get(index, ())]
        start = len(margin) + width * place + (6 - len(signs)) // 2
        line[start : start + len(signs)] = signs
    return ["".join((*margin[: len(margin) - 1], *line[len(margin) - 1 :])).rstrip()]


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
        lines += _cores_below(margin, members, chosen)
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
        return [_INDENT + _across(list(range(count)), chosen), *_cores_below(_INDENT, range(count), chosen)]
    half = (count + 1) // 2
    upper, lower = list(range(half)), list(range(count - 1, half - 1, -1))
    # An odd ring has one chip fewer in the lower line: a longer link takes its place.
    tops, bottoms = _across(upper, chosen), _across(lower, chosen)
    turn_left = {0, count - 1} <= chosen.marked
    turn_right = {half - 1, half} <= chosen.marked
    bottoms += ("=" if turn_right else "-") * (len(tops) - len(bottoms))
    left = [_corner(turn_left), _upright(turn_left)] if closed else ["   ", " "]
    right = [_corner(turn_right), _upright(turn_right)]
    margin = f"{_INDENT}{left[1]:3}"
    wide = len(margin) + len(tops)
    return [
        f"{_INDENT}{left[0]}{tops}{right[0][::-1]}",
        *(f"{line:{wide}}{right[1]:>3}" for line in _cores_below(margin, upper, chosen)),
        f"{margin}{'':{len(tops)}}{right[1]:>3}",
        f"{_INDENT}{left[0]}{bottoms}{right[0][::-1]}",
        *_cores_below(f"{_INDENT}   ", lower, chosen),
    ]


def _corner(both: bool) -> str:
    return "+==" if both else "+--"


def _upright(both: bool) -> str:
    return "#" if both else "|"


def _switch(fabric: Switched, chosen: _Chips) -> list[str]:
    rows = [
        line
        for row in _rows(fabric.size)
        for line in (f" {_GAP.join(_cells(row, chosen))}", *_cores_below(" ", row, chosen))
    ]
    width = max(len(row) for row in rows) + 3
    lid = f"{_INDENT}+{' NeuronSwitch ':-^{width}}+"
    return [lid, *(f"{_INDENT}| {row:{width - 1}}|" for row in rows), f"{_INDENT}+{'':-^{width}}+"]


def _legend(fabric: Fabric, chosen: _Chips) -> list[str]:
    match fabric:
        case Torus2D():
            links = ["--- |  link", ".. :   link around to the other end of the row or column"]
        case Ring() | Chain():
            links = ["--- |  link"]
        case Switched():
            links = ["every device reaches every other through the switch; all pairs are equally near"]
        case Single():
            links = ["no links on this host"]
        case _:
            links = ["how the devices are linked is not public"]
    marked, word = chosen.marked, chosen.marks.word
    parted = sorted(index for index in marked if chosen.marks.partly(index))
    chips = ["( n )  device n", *([f"[*n*]  {word} device"] if marked - {*parted} else [])]
    if parted:
        shares = ", ".join(f"{index} ({chosen.marks.share(index)})" for index in parted)
        chips.append(f"[+n+]  device {word} in part: {shares}")
    if chosen.marks.cores:
        whole = any(any(cores) for cores in chosen.marks.cores.values())
        chips.append("#...".ljust(7) + "its logical cores, from core 0 on" + (f": # {word}, . not" if whole else ""))
    chips += [f"{'group':7}{name}: devices {_span(members)}" for name, members in chosen.marks.groups]
    for sickness, indexes in by_kind(chosen.sick):
        sign = SIGNS[sickness]
        chips.append(f"({sign}n{sign})  {sickness} device: {listed(indexes)}")
    if marked & chosen.sick.keys():
        chips.append(f"[?n?]  {word}, with the mark of its state".replace("?", SIGNS[_gravest(chosen)]))
    if any(marked & set(fabric.neighbours(index)) for index in marked):
        links.append(f"{'== ||' if isinstance(fabric, Torus2D) else '== #'}".ljust(7) + f"link between {word} devices")
    return [_INDENT + line for line in (*chips, *links)]


def _span(indexes: tuple[int, ...]) -> str:
    return f"{indexes[0]} to {indexes[-1]}" if len(indexes) > 2 else listed(indexes)


def _gravest(chosen: _Chips) -> Sickness:
    """State of the gravest chip that is marked too."""
    return next(sickness for sickness, indexes in by_kind(chosen.sick) if chosen.marked & {*indexes})

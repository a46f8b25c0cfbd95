"""Positions of chips and links on a drawing: plain geometry, in pixels, origin at the top left."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.neuron.topology.fabric import Chain, Fabric, Ring, Switched, Torus2D

CHIP = 60.0
"""Edge of a chip's square."""
PITCH = 120.0
"""Distance between the centres of linked chips."""
FOLD = 8
"""A chain longer than this is drawn in two lines, the second one reversed."""

_HALF = CHIP / 2
_BAND = 12.0
"""How far the band of a row extends beyond its chips."""
_LOOP_ASIDE, _LOOP_OUT, _LOOP_BEND = 50.0, 36.0, 16.0
"""A wrap-around link: distance from the chips' centres, extension at the ends, and radius of the corners."""
_LEFT, _TOP, _RIGHT, _BOTTOM = 124.0, 116.0, 92.0, 92.0
"""From the edges of a torus drawing to the centres of the outermost chips, with room for captions and loops."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the drawing."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Link:
    """The line between two chips: an SVG path, and whether it wraps around the end of a row, column or ring."""

    ends: tuple[int, int]
    path: str
    around: bool = False


@dataclass(frozen=True, slots=True)
class Caption:
    """Small text beside the chips."""

    at: Point
    text: str


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle: the band behind the chips of one group, or the switch."""

    corner: Point
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Layout:
    """All positions of a drawing. ``chips[N]`` is the centre of chip N."""

    width: float
    height: float
    chips: tuple[Point, ...]
    links: tuple[Link, ...] = ()
    bands: tuple[Box, ...] = ()
    captions: tuple[Caption, ...] = ()
    switch: Box | None = None
    switch_lines: tuple[str, ...] = ()
    """Paths from the chips to the switch, in the order of the chips."""


def lay_out(fabric: Fabric) -> Layout:
    """Compute a position for every chip and link of a fabric."""
    match fabric:
        case Torus2D():
            return _torus(fabric)
        case Ring(count) if count > 2:
            return _ring(fabric)
        case Switched():
            return _switched(fabric.size)
        case Ring() | Chain():
            return _chain(fabric.size)
        case _:
            return _row(fabric.size)


def _straight(start: Point, end: Point) -> str:
    return f"M{start.x:.1f} {start.y:.1f}L{end.x:.1f} {end.y:.1f}"


def _torus(torus: Torus2D) -> Layout:
    chips = tuple(
        Point(_LEFT + PITCH * column, _TOP + PITCH * row)
        for row in range(torus.rows)
        for column in range(torus.columns)
    )
    across, down = PITCH * (torus.columns - 1), PITCH * (torus.rows - 1)
    bands = tuple(
        Box(Point(_LEFT - _HALF - _BAND, chips[first].y - _HALF - _BAND), across + CHIP + 2 * _BAND, CHIP + 2 * _BAND)
        for first in range(0, torus.size, torus.columns)
    )
    rows = [Caption(Point(32, _TOP + PITCH * row), f"x={row}") for row in range(torus.rows)]
    columns = [Caption(Point(_LEFT + PITCH * column, 26), f"y={column}") for column in range(torus.columns)]
    width, height = _LEFT + across + _RIGHT, _TOP + down + _BOTTOM
    return Layout(width, height, chips, tuple(_torus_links(torus, chips)), bands, (*rows, *columns))


def _torus_links(torus: Torus2D, chips: tuple[Point, ...]) -> Iterator[Link]:
    for index, at in enumerate(chips):
        row, column = torus.position(index)
        if column + 1 < torus.columns:
            yield Link((index, index + 1), _straight(at, chips[index + 1]))
        elif torus.columns > 2:
            first = row * torus.columns
            yield Link((first, index), _loop_over(chips[first], at), around=True)
        if row + 1 < torus.rows:
            yield Link((index, index + torus.columns), _straight(at, chips[index + torus.columns]))
        elif torus.rows > 2:
            yield Link((column, index), _loop_beside(chips[column], at), around=True)


def _loop_over(first: Point, last: Point) -> str:
    """From the last chip of a row around its end and back above the row to the first chip."""
    bend, lead, rise = _LOOP_BEND, _LOOP_OUT - _LOOP_BEND, _LOOP_ASIDE - 2 * _LOOP_BEND
    return (
        f"M{last.x + _HALF:.1f} {last.y:.1f}h{lead}q{bend} 0 {bend} {-bend}v{-rise}q0 {-bend} {-bend} {-bend}"
        f"H{first.x - _HALF - lead:.1f}q{-bend} 0 {-bend} {bend}v{rise}q0 {bend} {bend} {bend}h{lead}"
    )


def _loop_beside(first: Point, last: Point) -> str:
    """From the last chip of a column around its end and back at its left side to the first chip."""
    bend, lead, rise = _LOOP_BEND, _LOOP_OUT - _LOOP_BEND, _LOOP_ASIDE - 2 * _LOOP_BEND
    return (
        f"M{last.x:.1f} {last.y + _HALF:.1f}v{lead}q0 {bend} {-bend} {bend}h{-rise}q{-bend} 0 {-bend} {-bend}"
        f"V{first.y - _HALF - lead:.1f}q0 {-bend} {bend} {-bend}h{rise}q{bend} 0 {bend} {bend}v{lead}"
    )


def _ring(ring: Ring) -> Layout:
    radius = max(PITCH * 0.8, PITCH * 0.84 / (2 * math.sin(math.pi / ring.count)))
    centre = Point(radius + 64, radius + 64)
    chips = tuple(
        Point(centre.x + radius * math.sin(turn), centre.y - radius * math.cos(turn))
        for turn in (2 * math.pi * index / ring.count for index in range(ring.count))
    )
    links = tuple(
        Link((index, index + 1), _straight(chips[index], chips[index + 1])) for index in range(ring.count - 1)
    )
    closing = Link((0, ring.count - 1), _straight(chips[-1], chips[0]), around=True)
    return Layout(2 * radius + 128, 2 * radius + 128, chips, (*links, closing))


def _chain(count: int) -> Layout:
    half = count if count <= FOLD else (count + 1) // 2
    chips = tuple(
        Point(
            _HALF + 34 + PITCH * 0.9 * (index if index < half else 2 * half - 1 - index), 60 + PITCH * (index >= half)
        )
        for index in range(count)
    )
    links = tuple(Link((index, index + 1), _straight(chips[index], chips[index + 1])) for index in range(count - 1))
    return Layout(chips[half - 1].x + _HALF + 34, 120 + PITCH * (count > half), chips, links)


def _switched(count: int) -> Layout:
    """Two lines of chips with the switch between them; up to four chips need only one line."""
    half = count if count <= 4 else (count + 1) // 2
    step = PITCH * 0.75
    bar = Box(Point(34, 128), CHIP + step * (half - 1), 46)
    chips = tuple(
        Point(34 + _HALF + step * (index % half), 50 if index < half else bar.corner.y + bar.height + 78)
        for index in range(count)
    )
    lines = tuple(
        _straight(at, Point(at.x, bar.corner.y if index < half else bar.corner.y + bar.height))
        for index, at in enumerate(chips)
    )
    height = bar.corner.y + bar.height + (128 if count > half else 30)
    return Layout(bar.width + 68, height, chips, switch=bar, switch_lines=lines)


def _row(count: int) -> Layout:
    chips = tuple(Point(_HALF + 34 + PITCH * 0.75 * index, 56) for index in range(count))
    return Layout(68 + CHIP + PITCH * 0.75 * max(count - 1, 0), 112, chips)

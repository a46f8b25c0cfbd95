"""The picture as SVG: one self-contained file without external fonts, scripts or styles.

Marked chips are dark with a light number and an outer ring, others light with a dark number, and sick ones have a badge
with a sign in a corner, so that the picture is readable in print and with colour blindness; ``<title>`` and ``<desc>``
describe it in words. Cores, where they are drawn, are small squares in their chip, filled if marked. Groups are
outlined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from html import escape

from dra_driver.neuron.topology.drawing.layout import CHIP, Box, Layout, Point, lay_out
from dra_driver.neuron.topology.drawing.marks import Marks
from dra_driver.neuron.topology.drawing.sickness import SIGNS, WELL, Sickness, by_kind, checked, listed
from dra_driver.neuron.topology.fabric import Fabric
from dra_driver.neuron.topology.hardware import GIB
from dra_driver.neuron.topology.instance_types import InstanceType

_STYLE = """
text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#16202e}
.head{font-size:22px;font-weight:650}.sub{font-size:13.5px;fill:#5b6778}
.caption{font-size:12.5px;fill:#7b8798;text-anchor:middle}
.page{fill:#fff}.card{fill:#f7f9fc;stroke:#e1e7ef}.band{fill:#edf1f7}
.chip{fill:#fff;stroke:#8795a8;stroke-width:1.6}
.number{font-size:19px;font-weight:600;text-anchor:middle}
.link{fill:none;stroke:#8795a8;stroke-width:2.4;stroke-linecap:round}
.around{stroke:#a3afbf;stroke-width:1.7;stroke-linecap:butt;stroke-dasharray:5 5}
.switch{fill:#dfe6f0;stroke:#8795a8;stroke-width:1.6}
.marked .chip{fill:#0b3d91;stroke:#0b3d91}.marked .ring{fill:none;stroke:#f08c00;stroke-width:3.2}
.marked .number{fill:#fff}.link.marked{stroke:#f08c00;stroke-width:5.5}
.around.marked{stroke-width:4;stroke-dasharray:6 7}
""".strip().replace("\n", "")

_SICK_STYLE = """
.badge{stroke:#fff;stroke-width:1.6}.sign{font-size:15px;font-weight:700;text-anchor:middle;fill:#fff}
.unhealthy .badge{fill:#b3261e}.unhealthy .chip{stroke:#b3261e;stroke-width:3.2}
.tainted .badge{fill:#7a3e9d}.tainted .chip{stroke:#7a3e9d;stroke-width:3.2}
.unknown .badge{fill:#5b6778}.unknown .chip{stroke:#5b6778;stroke-width:3.2}
.degraded .badge{fill:#8a6100}.degraded .chip{stroke:#8a6100;stroke-width:3.2}
.device.unhealthy:not(.marked) .chip{fill:#fbe3e1}.device.unknown:not(.marked) .chip{fill:#e6eaf0}
.device.degraded:not(.marked) .chip{fill:#fbf0d9}.device.tainted:not(.marked) .chip{fill:#f1e7f7}
""".strip().replace("\n", "")
"""Only in pictures with a sick chip."""

_CORE_STYLE = """
.core{fill:#fff;stroke:#8795a8;stroke-width:1.2}.core.marked{fill:#0b3d91;stroke:#0b3d91}
.marked .core{stroke:#fff}.marked .core.marked{fill:#f08c00;stroke:#fff}
.partly .chip{fill:#e3ebf8;stroke:#0b3d91}.partly .ring{fill:none;stroke:#f08c00;stroke-width:3.2;stroke-dasharray:7 5}
""".strip().replace("\n", "")
"""Only in pictures with cores."""

_GROUP_STYLE = """
.outline,.inside{fill:none;stroke-linecap:round;stroke-linejoin:round}
.outline{stroke:#2b8a3e}.inside{stroke:#eaf5ec}
""".strip().replace("\n", "")
"""Only in pictures with groups."""

_EDGE, _HEAD, _LEGEND = 24.0, 76.0, 30.0
_MIN_WIDTH = 520.0
_CORE = 10.0
"""Edge of a core's square, where there is room for it."""
_OUTLINE = 15.0
"""How much broader than a chip the outline of a group is; of a larger group by as much again."""


def svg(instance_type: InstanceType, marked: Collection[int] | Marks = (), sick: Mapping[int, Sickness] = WELL) -> str:
    """Draw the chips of a host of this type, ``marked`` and ``sick`` ones told apart: an SVG document.

    It ends with a newline, and equal arguments give equal bytes. Raises DriverError if one of the chips does not exist.
    """
    fabric = instance_type.fabric
    marks = marked if isinstance(marked, Marks) else Marks(frozenset(marked))
    checked(fabric, (*marks.chips, *marks.cores, *(chip for _, chips in marks.groups for chip in chips), *sick))
    layout = lay_out(fabric)
    legend = _legend_entries(layout, marks, sick)
    card_width = max(layout.width, _MIN_WIDTH - 2 * _EDGE)
    width = card_width + 2 * _EDGE
    height = _HEAD + layout.height + _LEGEND * len(legend) + _EDGE
    shift = f"translate({_EDGE + (card_width - layout.width) / 2:.1f} {_HEAD:.1f})"
    below = _HEAD + layout.height + 14
    size = f'width="{width:.0f}" height="{height:.0f}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {size}'
    styles = ((_SICK_STYLE, sick), (_CORE_STYLE, marks.cores), (_GROUP_STYLE, marks.groups))
    parts = [
        f'{opening} role="img" aria-labelledby="title description">',
        f'<title id="title">{escape(_title(instance_type, marks, sick))}</title>',
        f'<desc id="description">{escape(_description(instance_type, marks, sick))}</desc>',
        f"<style>{_STYLE}{''.join(style for style, used in styles if used)}</style>",
        f'<rect class="page" {size}/>',
        _words("head", _EDGE, 36, instance_type.name),
        _words("sub", _EDGE, 58, _subtitle(instance_type)),
        _rectangle("card", Box(Point(_EDGE, _HEAD), card_width, layout.height), 14),
        f'<g transform="{shift}">',
        *_scene(layout, fabric, marks, sick),
        "</g>",
        *(_legend_line(swatch, words, below + _LEGEND * line) for line, (swatch, words) in enumerate(legend)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _rectangle(style: str, box: Box, corner: float) -> str:
    place = f'x="{box.corner.x:.1f}" y="{box.corner.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    return f'<rect class="{style}" {place} rx="{corner}"/>'


def _square(style: str, centre: Point, edge: float, corner: float) -> str:
    return _rectangle(style, Box(Point(centre.x - edge / 2, centre.y - edge / 2), edge, edge), corner)


def _words(style: str, x: float, y: float, words: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _centred(style: str, at: Point, words: str) -> str:
    return f'<text class="{style}" x="{at.x:.1f}" y="{at.y:.1f}" dy=".35em">{escape(words)}</text>'


def _title(instance_type: InstanceType, marks: Marks, sick: Mapping[int, Sickness]) -> str:
    parts = [f"{_marked(marks)} {marks.word}"] if marks.chips else []
    parts += [f"{listed(indexes)} {sickness}" for sickness, indexes in by_kind(sick)]
    return f"Neuron devices of {instance_type.name}" + (f" with {' and '.join(parts)}" if parts else "")


def _marked(marks: Marks) -> str:
    """The marked chips, and of those that are marked in part, how many cores."""
    return ", ".join(
        f"{chip} ({marks.share(chip)})" if marks.partly(chip) else str(chip) for chip in sorted(marks.chips)
    )


def _subtitle(instance_type: InstanceType) -> str:
    chip = instance_type.chip
    count = f"{instance_type.devices} x " if instance_type.devices else ""
    return (
        f"{count}{chip.sysfs.device_name} · {instance_type.fabric.describe()} · "
        f"{chip.cores} cores and {chip.memory_bytes // GIB} GiB each"
    )


def _description(instance_type: InstanceType, marks: Marks, sick: Mapping[int, Sickness]) -> str:
    fabric = instance_type.fabric
    sentences = [f"The devices are arranged as: {fabric.describe()}."]
    if fabric.adjacency_promised and fabric.size > 1:
        sentences += [
            f"Device {index} is linked to {listed(fabric.neighbours(index))}." for index in range(fabric.size)
        ]
    if marks.chips:
        sentences.append(f"{marks.word.capitalize()}: {_marked(marks)}.")
    sentences += [f"Group {name}: {listed(members)}." for name, members in marks.groups]
    sentences += [f"{sickness.capitalize()}: {listed(indexes)}." for sickness, indexes in by_kind(sick)]
    return " ".join(sentences)


def _scene(layout: Layout, fabric: Fabric, marks: Marks, sick: Mapping[int, Sickness]) -> list[str]:
    """From back to front: bands, groups, links, switch, captions, chips. Marked links are above the others."""
    chosen = marks.chips
    by_mark = sorted(layout.links, key=lambda link: set(link.ends) <= chosen)
    return [
        *(_rectangle("band", band, 16) for band in layout.bands),
        *_outlines(layout, fabric, marks),
        *(_path(link.path, link.around, set(link.ends) <= chosen) for link in by_mark),
        *(_path(path, False, index in chosen) for index, path in enumerate(layout.switch_lines)),
        *_switch(layout.switch),
        *(_centred("caption", caption.at, caption.text) for caption in layout.captions),
        *(_chip(index, at, marks, sick.get(index)) for index, at in enumerate(layout.chips)),
    ]


def _outlines(layout: Layout, fabric: Fabric, marks: Marks) -> Iterator[str]:
    """The groups, the largest first: a broad stroke along the links inside each, and a narrower one on top."""
    sizes = sorted({len(members) for _, members in marks.groups})
    for name, members in reversed(marks.groups):
        breadth = CHIP + _OUTLINE * (1 + sizes.index(len(members)))
        path = "".join(_inside(layout, fabric, members))
        yield f'<g class="group" data-group="{escape(name)}"><title>{escape(name)}: devices {listed(members)}</title>'
        for style, width in (("outline", breadth), ("inside", breadth - 5)):
            yield f'<path class="{style}" stroke-width="{width:.0f}" d="{path}"/>'
        yield "</g>"


def _inside(layout: Layout, fabric: Fabric, members: Sequence[int]) -> Iterator[str]:
    """Lines between neighbours in the group that are drawn beside each other; those around an end are left out."""
    around = {link.ends for link in layout.links if link.around}
    promised = fabric.adjacency_promised
    for index in members:
        at = layout.chips[index]
        yield f"M{at.x:.1f} {at.y:.1f}h0"
        for other in members:
            linked = other in fabric.neighbours(index) if promised else other == index + 1
            if index < other and linked and (index, other) not in around:
                to = layout.chips[other]
                yield f"M{at.x:.1f} {at.y:.1f}L{to.x:.1f} {to.y:.1f}"


def _path(path: str, around: bool, marked: bool) -> str:
    return f'<path class="link{" around" if around else ""}{" marked" if marked else ""}" d="{path}"/>'


def _switch(bar: Box | None) -> list[str]:
    if bar is None:
        return []
    middle = Point(bar.corner.x + bar.width / 2, bar.corner.y + bar.height / 2)
    return [_rectangle("switch", bar, 12), _centred("number", middle, "NeuronSwitch")]


def _chip(index: int, at: Point, marks: Marks, sickness: Sickness | None) -> str:
    partly, cores = marks.partly(index), marks.cores.get(index, ())
    mark = "partly" if partly else "marked" if index in marks.chips else ""
    ring = _square("ring", at, CHIP + 10, 15) if mark else ""
    notes = [
        word
        for word in (f"{marks.share(index)} {marks.word}" if partly else mark and marks.word, sickness or "")
        if word
    ]
    words = f" ({', '.join(notes)})" if notes else ""
    badge = _badge(Point(at.x + CHIP / 2 - 4, at.y - CHIP / 2 + 4), sickness) if sickness else ""
    number = Point(at.x, at.y - 9) if cores else at
    return (
        f'<g class="{" ".join(filter(None, ["device", mark, sickness or ""]))}" data-device="{index}">'
        f"<title>device {index}{words}</title>"
        f"{ring}{_square('chip', at, CHIP, 11)}{_centred('number', number, str(index))}{_cores(at, cores)}{badge}</g>"
    )


def _cores(at: Point, cores: Sequence[bool]) -> str:
    """A line of squares near the lower edge of a chip: one for each logical core, those that are marked filled."""
    edge, step = _CORE, min(_CORE + 3, (CHIP - 4) / max(len(cores), 1))
    edge = min(edge, step - 1)
    first = at.x - step * (len(cores) - 1) / 2
    return "".join(
        _square("core marked" if marked else "core", Point(first + step * place, at.y + 15), edge, 1)
        for place, marked in enumerate(cores)
    )


def _badge(at: Point, sickness: Sickness) -> str:
    sign = _centred("sign", at, SIGNS[sickness])
    return f'<circle class="badge" cx="{at.x:.1f}" cy="{at.y:.1f}" r="10"/>{sign}'


def _legend_entries(layout: Layout, marks: Marks, sick: Mapping[int, Sickness]) -> list[tuple[str, str]]:
    """Swatch and label of each legend entry, only for what is drawn."""
    entries = []
    if whole := [chip for chip in marks.chips if not marks.partly(chip)]:
        entries.append(("marked", f"{marks.word}: {listed(whole)}"))
    if parted := [chip for chip in sorted(marks.chips) if marks.partly(chip)]:
        shares = ", ".join(f"{chip} ({marks.share(chip)})" for chip in parted)
        entries.append(("partly", f"{marks.word} in part: {shares}"))
    if marks.cores:
        entries.append(("core", "logical cores, from core 0 on"))
    if marks.groups:
        entries.append(("group", f"group: {', '.join(name for name, _ in marks.groups)}"))
    entries += [(sickness, f"{sickness}: {listed(indexes)}") for sickness, indexes in by_kind(sick)]
    if any(link.around for link in layout.links):
        entries.append(("around", "link around to the other end"))
    if layout.switch is not None:
        entries.append(("", "The switch joins every device with every other."))
    elif not layout.chips:
        entries.append(("", "The number of devices is not public."))
    elif len(layout.chips) > 1 and not layout.links:
        entries.append(("", "How the devices are linked is not public."))
    return entries


def _legend_line(swatch: str, words: str, y: float) -> str:
    """One line of the legend with its swatch."""
    middle = Point(_EDGE + 12, y + 9)
    if not swatch:
        return _words("sub", _EDGE, middle.y + 4.5, words)
    samples = {
        "around": f'<path class="link around" d="M{_EDGE:.1f} {middle.y:.1f}h28"/>',
        **{
            mark: f'<g class="{mark}">{_square("ring", middle, 18, 5)}{_square("chip", middle, 10, 2)}</g>'
            for mark in ("marked", "partly")
        },
        "core": _square("core", middle, _CORE, 1),
        "group": f'<path class="outline" stroke-width="18" d="M{_EDGE + 9:.1f} {middle.y:.1f}h10"/>'
        f'<path class="inside" stroke-width="13" d="M{_EDGE + 9:.1f} {middle.y:.1f}h10"/>',
    }
    samples |= {kind: f'<g class="{kind}">{_badge(middle, kind)}</g>' for kind in SIGNS}
    return samples[swatch] + _words("sub", _EDGE + 40, middle.y + 4.5, words)

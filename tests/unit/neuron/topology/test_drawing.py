"""The pictures: complete, readable without colour, and well-formed."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.neuron.topology.drawing import Marks, Sickness, marks_of, svg, text
from dra_driver.neuron.topology.fabric import Chain, Fabric, Ring, Single, Switched, Torus2D, Unknown
from dra_driver.neuron.topology.hardware import TRAINIUM2
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES, InstanceType
from dra_driver.neuron.topology.partitions import parts_of
from dra_driver.util.errors import DriverError
from tests.golden import golden, golden_error

SVG = "{http://www.w3.org/2000/svg}"
CELL = re.compile(r"\( ([ 0-9]{2}) \)|\[\*([ 0-9]{2})\*\]")

counts = st.integers(1, 20)
fabrics: st.SearchStrategy[Fabric] = st.one_of(
    st.builds(Torus2D, st.integers(1, 5), st.integers(1, 5)),
    st.builds(Ring, counts),
    st.builds(Chain, counts),
    st.builds(Switched, counts),
    st.just(Single()),
    st.builds(Unknown, counts),
)


@st.composite
def marked_types(draw: st.DrawFn) -> tuple[InstanceType, frozenset[int]]:
    """A type with any fabric, one of the table now and then, and a set of its devices."""
    row = draw(
        st.one_of(
            st.sampled_from([row for row in INSTANCE_TYPES.values() if row.devices]),
            fabrics.map(lambda fabric: InstanceType("trn9.<&>\"'xlarge", TRAINIUM2, fabric)),
        )
    )
    return row, draw(st.frozensets(st.integers(0, row.fabric.size - 1)))


def link_classes(root: ET.Element) -> list[set[str]]:
    """The style names of every link between two chips, without the legend's samples."""
    scene = root.find(f"{SVG}g")
    assert scene is not None
    return [set(path.attrib["class"].split()) for path in scene.findall(f"{SVG}path")]


@given(marked_types())
def test_text_shows_every_device_once_and_marks_the_marked_ones(example: tuple[InstanceType, frozenset[int]]) -> None:
    row, marked = example
    picture, _, legend = text(row, marked).partition("\n\n")
    cells = CELL.findall(picture)
    assert sorted(int(plain or strong) for plain, strong in cells) == list(range(row.fabric.size))
    assert {int(strong) for _, strong in cells if strong} == marked
    assert ("[*n*]" in legend) == bool(marked)


@given(marked_types())
def test_text_is_ascii_without_trailing_blanks_and_fits_a_terminal(
    example: tuple[InstanceType, frozenset[int]],
) -> None:
    lines = text(*example).split("\n")
    assert all(line.isascii() and line == line.rstrip() and len(line) <= 100 for line in lines)


@given(marked_types())
def test_text_explains_marked_links_exactly_when_marked_devices_are_linked(
    example: tuple[InstanceType, frozenset[int]],
) -> None:
    row, marked = example
    linked = any(marked & set(row.fabric.neighbours(index)) for index in marked)
    picture, _, legend = text(row, marked).partition("\n\n")
    assert ("allocated devices" in legend) == linked
    assert bool(re.search(r"==|\|\||#", picture)) == linked


def held(kind: InstanceType, size: int, *names: str, drawn: bool = False) -> Marks:
    """The marks of devices of a host of this type, at this logical core size."""
    chips = range(kind.devices or 0)
    found = [(name, parts_of(name, chips, lambda _: size) or ()) for name in names]
    return marks_of(found, kind.cores_per_device, lambda _: size, drawn=chips if drawn else ())


@st.composite
def core_marks(draw: st.DrawFn) -> tuple[InstanceType, int, Marks]:
    """A type of the table, a logical core size, and the marks of some of its cores and chips."""
    kind = draw(st.sampled_from([row for row in INSTANCE_TYPES.values() if row.devices]))
    size = draw(st.sampled_from(kind.lnc_values))
    chip, core = st.integers(0, (kind.devices or 1) - 1), st.integers(0, kind.cores_per_device // size - 1)
    names = st.one_of(st.builds("neuron-core-{}-{}".format, chip, core), st.builds("neuron-device-{}".format, chip))
    return kind, size, held(kind, size, *draw(st.lists(names, max_size=12)), drawn=draw(st.booleans()))


@given(core_marks())
def test_text_has_one_sign_for_each_core_that_is_drawn_and_keeps_the_chips_where_they_are(
    example: tuple[InstanceType, int, Marks],
) -> None:
    kind, size, marks = example
    picture, _, legend = text(kind, marks).partition("\n\n")
    below = [line for line in picture.splitlines() if re.fullmatch(r"[ |#.]+", line)]
    # A single sign is a link between the two lines of a ring: every chip has two cores at least.
    signs = [run for line in below for run in re.findall(r"[#.]{2,}", line)]
    assert sorted(signs) == sorted("".join("#" if core else "." for core in row) for row in marks.cores.values())
    assert all(len(row) == kind.cores_per_device // size for row in marks.cores.values())
    whole = [line for line in text(kind).partition("\n\n")[0].splitlines() if "(" in line]
    assert [re.findall(r"[0-9]+", line) for line in picture.splitlines() if re.search(r"[(\[].[ 0-9]{2}", line)] == [
        re.findall(r"[0-9]+", line) for line in whole
    ]
    assert ("[+n+]" in legend) == any(marks.partly(chip) for chip in marks.chips)


@given(core_marks())
def test_svg_fills_the_cores_that_are_marked(example: tuple[InstanceType, int, Marks]) -> None:
    kind, _, marks = example
    root = ET.fromstring(svg(kind, marks))
    for device in (group for group in root.iter(f"{SVG}g") if "data-device" in group.attrib):
        cores = [box.attrib["class"] for box in device.iter(f"{SVG}rect") if "core" in box.attrib["class"].split()]
        chip = int(device.attrib["data-device"])
        assert tuple(name == "core marked" for name in cores) == marks.cores.get(chip, ())
        assert ("partly" in device.attrib["class"]) == marks.partly(chip)
        assert ("marked" in device.attrib["class"].split()) == (chip in marks.chips and not marks.partly(chip))


def test_cores_that_are_held_are_told_in_the_legend_with_their_share_of_the_chip() -> None:
    kind = INSTANCE_TYPES["trn2.48xlarge"]
    lines = text(kind, held(kind, 2, "neuron-core-1-0", "neuron-core-1-3", "neuron-device-4")).splitlines()
    assert lines[2:4] == ["  x=0  ..(  0 )---[+ 1+]---(  2 )---(  3 )..", "                   #..#"]
    golden(lines)


def test_a_group_is_outlined_along_its_links_and_named() -> None:
    kind = INSTANCE_TYPES["inf2.48xlarge"]
    marks = held(kind, 1, "neuron-window3-5")
    golden(text(kind, marks).splitlines())
    root = ET.fromstring(svg(kind, marks))
    outline = next(group for group in root.iter(f"{SVG}g") if group.attrib.get("data-group") == "neuron-window3-5")
    assert [path.attrib["d"].count("L") for path in outline.iter(f"{SVG}path")] == [2, 2]
    assert "Group neuron-window3-5: 5, 6, 7." in (root.findtext(f"{SVG}desc") or "")


@given(marked_types())
def test_svg_shows_every_device_once_and_marks_the_marked_ones(example: tuple[InstanceType, frozenset[int]]) -> None:
    row, marked = example
    root = ET.fromstring(svg(row, marked))
    devices = [group for group in root.iter(f"{SVG}g") if "data-device" in group.attrib]
    assert [int(group.attrib["data-device"]) for group in devices] == list(range(row.fabric.size))
    assert [group.findtext(f"{SVG}text") for group in devices] == [str(index) for index in range(row.fabric.size)]
    assert {int(group.attrib["data-device"]) for group in devices if "marked" in group.attrib["class"]} == marked


@given(marked_types())
def test_svg_draws_every_link_once(example: tuple[InstanceType, frozenset[int]]) -> None:
    row, marked = example
    classes = link_classes(ET.fromstring(svg(row, marked)))
    pairs = {frozenset((i, other)) for i in range(row.fabric.size) for other in row.fabric.neighbours(i)}
    if isinstance(row.fabric, Switched):
        assert len(classes) == row.fabric.size
    else:
        assert len(classes) == len(pairs)
        assert sum("marked" in names for names in classes) == sum(pair <= marked for pair in pairs)


@given(marked_types())
def test_svg_keeps_every_chip_on_its_card_and_apart_from_the_others(
    example: tuple[InstanceType, frozenset[int]],
) -> None:
    row, marked = example
    root = ET.fromstring(svg(row, marked))
    card = next(box for box in root.iter(f"{SVG}rect") if box.attrib["class"] == "card")
    left, top, width, height = (float(card.attrib[name]) for name in ("x", "y", "width", "height"))
    scene = root.find(f"{SVG}g")
    assert scene is not None
    offset = [float(value) for value in re.findall(r"-?[0-9.]+", scene.attrib["transform"])]
    corners = [
        (float(rectangle.attrib["x"]) + offset[0], float(rectangle.attrib["y"]) + offset[1])
        for rectangle in root.iter(f"{SVG}rect")
        if rectangle.attrib["class"] == "chip" and float(rectangle.attrib["width"]) > 50
    ]
    assert len(corners) == row.fabric.size
    assert all(left + 9 < x < left + width - 69 and top + 9 < y < top + height - 69 for x, y in corners)
    for index, (x, y) in enumerate(corners):
        assert all(abs(x - u) > 62 or abs(y - v) > 62 for u, v in corners[:index])


def test_svg_says_in_words_what_it_shows_and_needs_nothing_from_elsewhere() -> None:
    picture = svg(INSTANCE_TYPES["trn2.48xlarge"], (4, 5, 6, 7))
    root = ET.fromstring(picture)
    golden(root.findtext(f"{SVG}title") or "")
    golden(root.findtext(f"{SVG}desc") or "")
    assert root.attrib["role"] == "img"
    assert "href" not in picture
    assert "url(" not in picture
    assert picture.count("http") == 1


def test_svg_draws_the_links_around_the_torus_in_a_stroke_of_their_own() -> None:
    classes = link_classes(ET.fromstring(svg(INSTANCE_TYPES["trn2.48xlarge"], (4, 5, 6, 7))))
    assert len(classes) == 32
    assert sum("around" in names for names in classes) == 8
    assert sum("around" in names and "marked" in names for names in classes) == 1


def test_a_marked_row_reads_in_plain_text() -> None:
    lines = text(INSTANCE_TYPES["trn2.48xlarge"], (4, 5, 6, 7)).split("\n")
    assert "  x=0  ..(  0 )---(  1 )---(  2 )---(  3 )..".rstrip() in lines
    assert "  x=1  ==[* 4*]===[* 5*]===[* 6*]===[* 7*]==" in lines


def test_a_ring_is_closed_and_a_chain_is_open() -> None:
    ring, chain = text(INSTANCE_TYPES["inf2.48xlarge"]).split("\n"), text(INSTANCE_TYPES["inf2.24xlarge"]).split("\n")
    assert ring[0] == "  +--(  0 )---(  1 )---(  2 )---(  3 )---(  4 )---(  5 )--+"
    assert ring[2] == "  +--( 11 )---( 10 )---(  9 )---(  8 )---(  7 )---(  6 )--+"
    assert chain[0] == "  (  0 )---(  1 )---(  2 )---(  3 )---(  4 )---(  5 )"


@given(st.integers(3, 40), st.data())
def test_a_ring_of_any_size_is_drawn_as_a_closed_frame(count: int, data: st.DataObject) -> None:
    row = InstanceType("trn9.48xlarge", TRAINIUM2, Ring(count))
    lines = text(row, data.draw(st.frozensets(st.integers(0, count - 1)))).split("\n")[:3]
    assert len({len(line) for line in lines}) == 1
    assert {(line[2], line[-1]) for line in lines[::2]} == {("+", "+")}


def test_a_long_chain_is_folded_and_stays_open_at_its_ends() -> None:
    upper, turn, lower = text(INSTANCE_TYPES["inf1.24xlarge"], (7, 8)).split("\n")[:3]
    assert upper.strip().startswith("(  0 )---(  1 )")
    assert upper.endswith("[* 7*]==+")
    assert turn.strip() == "#"
    assert lower.strip().startswith("( 15 )---( 14 )")
    assert lower.endswith("[* 8*]==+")


@pytest.mark.parametrize("name", ["trn2p.48xlarge", "trn3sn.3xlarge"])
def test_an_unknown_number_of_devices_is_said_and_not_drawn(name: str) -> None:
    row = INSTANCE_TYPES[name]
    assert "is not public" in text(row)
    root = ET.fromstring(svg(row))
    assert not [group for group in root.iter(f"{SVG}g") if "data-device" in group.attrib]
    golden([words.text or "" for words in root.iter(f"{SVG}text")])


@pytest.mark.parametrize("draw", [text, svg])
@pytest.mark.parametrize("name", ["trn2.48xlarge", "trn2p.48xlarge", "inf2.48xlarge"])
def test_a_mark_on_a_device_that_does_not_exist_is_refused(draw: object, name: str) -> None:
    with golden_error(DriverError):
        draw(INSTANCE_TYPES[name], (16,))  # type: ignore[operator] # parametrize does not carry the types


@given(marked_types())
def test_equal_input_gives_equal_bytes_in_any_order_of_the_marks(example: tuple[InstanceType, frozenset[int]]) -> None:
    row, marked = example
    ascending, descending = sorted(marked), sorted(marked, reverse=True)
    assert svg(row, ascending) == svg(row, descending)
    assert text(row, ascending) == text(row, descending)


# Sick chips

STATES: tuple[Sickness, ...] = ("unhealthy", "tainted", "unknown", "degraded")
SIGN: dict[Sickness, str] = {"unhealthy": "x", "tainted": "!", "unknown": "?", "degraded": "~"}
SICK_CELL = re.compile(r"([(\[])([ *x!?~])([ 0-9]{2})\2[)\]]")


@given(marked_types(), st.data())
def test_a_sick_chip_has_a_sign_and_stands_in_the_legend(
    example: tuple[InstanceType, frozenset[int]], data: st.DataObject
) -> None:
    row, marked = example
    sick = data.draw(st.dictionaries(st.integers(0, row.fabric.size - 1), st.sampled_from(STATES)))
    drawn = text(row, marked, sick)
    assert drawn.isascii() and max(map(len, drawn.split("\n"))) <= 100
    picture, _, legend = drawn.partition("\n\n")
    shown = {int(number): (bracket == "[", sign) for bracket, sign, number in SICK_CELL.findall(picture)}
    expected = {
        index: (index in marked, SIGN[sick[index]] if index in sick else "*" if index in marked else " ")
        for index in range(row.fabric.size)
    }
    assert shown == expected
    for state in STATES:
        indexes = [str(index) for index in sorted(sick) if sick[index] == state]
        assert (f"{state} device: {', '.join(indexes)}" in legend) == bool(indexes)

    root = ET.fromstring(svg(row, marked, sick))
    words = (root.findtext(f"{SVG}title") or "") + (root.findtext(f"{SVG}desc") or "")
    for group in root.iter(f"{SVG}g"):
        if "data-device" in group.attrib:
            index = int(group.attrib["data-device"])
            said = group.attrib["class"].split()[1:]
            assert said == [*(["marked"] if index in marked else []), *([sick[index]] if index in sick else [])]
            assert (group.find(f"{SVG}circle") is not None) == (index in sick)
    assert all(state in words for state in sick.values())


def test_pictures_without_sick_chips_are_as_they_were() -> None:
    row = INSTANCE_TYPES["trn2.48xlarge"]
    assert svg(row, (4, 5), {}) == svg(row, (4, 5))
    assert "badge" not in svg(row, (4, 5))


def test_a_sick_chip_that_does_not_exist_is_refused() -> None:
    for draw in (text, svg):
        with pytest.raises(DriverError, match="16"):
            draw(INSTANCE_TYPES["trn2.48xlarge"], (), {16: "unhealthy"})


@pytest.mark.parametrize(
    "fabric", [Switched(2), Unknown(2), Unknown(0)], ids=["a switch", "links that are not known", "no number"]
)
def test_the_legend_says_what_no_line_can_show(fabric: Fabric) -> None:
    kind = InstanceType("trn9.48xlarge", TRAINIUM2, fabric)
    golden([element.text or "" for element in ET.fromstring(svg(kind)).iter(f"{SVG}text")], "svg")
    golden(text(kind), "text")

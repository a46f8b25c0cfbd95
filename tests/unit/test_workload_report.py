from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from functools import cache
from itertools import pairwise

import pytest

from dra_driver.simulator.fragmentation import POLICIES, simulate
from dra_driver.simulator.fragmentation.report import Report, document, svg, text
from tests.builders.workload import cluster, workload

SVG = "{http://www.w3.org/2000/svg}"
BOTH = ("lowest-id", "lowest-id-spread")


@cache
def report(*policies: str, seeds: int = 2) -> Report:
    world, where = cluster(("trn2.48xlarge", 2))
    stream = workload()
    runs = tuple(
        simulate(stream, where, world, POLICIES[name], seed) for name in policies for seed in range(1, seeds + 1)
    )
    return Report("workload.yaml", stream, len(where), 32, runs)


def test_the_text_has_a_line_for_each_policy_and_each_kind() -> None:
    found = text(report(*BOTH))
    assert found.startswith("workload.yaml: 2 nodes with 32 chips, 6 pods an hour for 10 d, the first 24 h left out\n")
    assert "means over the seeds 1 to 2;" in found
    figures = re.findall(r"^(lowest-id\S*) +([0-9.]+) +([0-9.]+) ", found, re.MULTILINE)
    assert [name for name, _, _ in figures] == list(BOTH)
    for name, placed, refused in figures:
        runs = report(*BOTH).of(name)
        assert float(placed) == sum(run.placed for run in runs) / 2
        assert float(refused) == sum(run.refused for run in runs) / 2
    assert re.search(r"^refused of kind +single +row +half$", found, re.MULTILINE)
    assert re.search(r"^lowest-id-spread .* [0-2] of 2 seeds$", found, re.MULTILINE)
    assert found.isascii()
    assert all(line == line.rstrip() for line in found.split("\n"))


def test_the_text_of_one_policy_shows_it_over_time() -> None:
    found = text(report("lowest-id", seeds=1))
    assert "\nseed 1; fragmentation" in found
    assert "fewer refused in" not in found
    lines = found.split("\n\n")[-1].split("\n")
    assert lines[0].split() == ["until", "utilisation", "fragmentation"]
    assert [line.split()[:2] for line in lines[1:]][-1] == ["10", "d"]
    assert len(lines) == 13


def test_the_document_has_all_figures_of_all_runs() -> None:
    found = json.loads(json.dumps(document(report(*BOTH)), allow_nan=False))
    assert (found["nodes"], found["chips"], found["lengthHours"], found["warmUpHours"]) == (2, 32, 240, 24)
    assert [item["name"] for item in found["policies"]] == list(BOTH)
    assert [(run["policy"], run["seed"]) for run in found["runs"]] == [(name, seed) for name in BOTH for seed in (1, 2)]
    for run in found["runs"]:
        assert run["placed"] == sum(kind["placed"] for kind in run["kinds"])
        assert run["refused"] == sum(kind["refused"] for kind in run["kinds"])
        assert run["refusedWithChipsFree"] <= run["refused"]
        assert set(run["fragmentationBySize"]) == {"4", "8", "16"}
        assert len(run["overTime"]) == 120
        assert run["overTime"][-1]["hour"] == pytest.approx(240)


def test_the_picture_has_two_curves_for_each_policy_inside_its_card() -> None:
    root = ET.fromstring(svg(report(*BOTH)))
    card = next(box for box in root.iter(f"{SVG}rect") if box.attrib["class"] == "card")
    left, top, width, height = (float(card.attrib[name]) for name in ("x", "y", "width", "height"))
    curves = [path for path in root.iter(f"{SVG}path") if "data-policy" in path.attrib]
    assert [path.attrib["data-policy"] for path in curves] == [*BOTH, *BOTH]
    for path in curves:
        points = [tuple(map(float, point.split())) for point in path.attrib["d"].removeprefix("M").split("L")]
        assert len(points) == 120
        assert all(left < x < left + width and top < y < top + height for x, y in points)
        assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert len({(path.attrib["stroke"], path.attrib.get("stroke-dasharray")) for path in curves}) == 2


def test_the_higher_the_utilisation_the_higher_the_curve() -> None:
    found = report("lowest-id", seeds=1)
    root = ET.fromstring(svg(found))
    path = next(path for path in root.iter(f"{SVG}path") if "data-policy" in path.attrib)
    heights = [-float(point.split()[1]) for point in path.attrib["d"].removeprefix("M").split("L")]
    used = [moment.utilisation for moment in found.curve("lowest-id")]
    order = sorted(range(120), key=lambda place: used[place])
    assert all(heights[low] <= heights[high] + 0.11 for low, high in pairwise(order))


def test_the_picture_says_in_words_what_it_shows_and_needs_nothing_from_elsewhere() -> None:
    picture = svg(report(*BOTH))
    root = ET.fromstring(picture)
    description = root.findtext(f"{SVG}desc") or ""
    assert all(POLICIES[name].meaning in description for name in BOTH)
    assert root.attrib["role"] == "img"
    assert "href" not in picture
    assert "url(" not in picture
    assert picture.count("http") == 1
    assert picture == svg(report(*BOTH))

"""The dashboard's file and its picture."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

from dashboard.drawing import Series, dashboard, legend

from tests.paths import DOCS, ROOT

PANELS = json.loads((ROOT / "deploy/grafana/neuron-dra-driver.json").read_text())["panels"]


def texts(svg: str) -> list[str]:
    return [item.text or "" for item in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_page_s_picture_has_the_panels_of_the_dashboard_and_says_that_it_is_not_grafanas() -> None:
    shown = texts((DOCS / "dashboard.svg").read_text())
    assert {panel["title"] for panel in PANELS} <= set(shown), "run scripts/render-dashboard"
    assert any("not by Grafana" in text for text in shown)


def test_a_table_has_the_columns_and_names_of_the_panel() -> None:
    panel = next(panel for panel in PANELS if panel["title"] == "Chips by pod")
    row = Series("", {"node": "n<1>", "device": "neuron3", "neuron_device_index": "3", "job": "hidden"}, [(0.0, 1.0)])
    shown = texts(dashboard([panel], {panel["id"]: [row]}, "Title", "sub"))
    assert {"n<1>", "neuron3", "3", "index"} <= set(shown)
    assert not {"hidden", "neuron_device_index"} & set(shown)


def test_lines_are_drawn_for_each_series_between_zero_and_the_greatest_value() -> None:
    panel = next(panel for panel in PANELS if panel["title"] == "Prepared claims")
    lines = [Series(name, {}, [(0.0, 0.0), (60.0, top)]) for name, top in (("a", 2.0), ("b", 4.0))]
    svg = dashboard([panel], {panel["id"]: lines}, "Title", "sub")
    assert svg.count("<polyline") == 2
    assert {"0", "2", "4", "a", "b"} <= set(texts(svg))


def test_series_are_named_as_grafana_would() -> None:
    assert legend("{{namespace}}/{{ pod }}", {"namespace": "n", "pod": "p"}, "x") == "n/p"
    assert legend("__auto", {}, "x") == "x"

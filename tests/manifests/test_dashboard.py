"""The dashboard's file and its picture; and queries of it and of the page by the real promtool."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree as ET

import yaml
from dashboard.drawing import Series, dashboard, legend

from dra_driver.neuron.health.faults import State
from tests.builders.prometheus import asked, needs_prometheus, promtool
from tests.manifests.chart import CHART
from tests.paths import DOCS, ROOT

PANELS = json.loads((ROOT / "deploy/grafana/neuron-dra-driver.json").read_text())["panels"]


def texts(svg: str) -> list[str]:
    return [item.text or "" for item in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_page_s_picture_has_the_panels_of_the_dashboard_and_says_that_it_is_not_grafanas() -> None:
    shown = texts((DOCS / "operate/dashboard.svg").read_text())
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


def test_chips_are_drawn_in_the_colours_of_their_states() -> None:
    """Not by the order of the series, by which Grafana would have unhealthy chips green."""
    (panel,) = (panel for panel in PANELS if panel["title"] == "Chips by state")
    states = get_args(State)
    points = ((0.0, 1.0), (1.0, 2.0))
    drawn = dashboard([panel], {panel["id"]: [Series(state, {}, points) for state in states]}, "", "")
    colours = dict(zip(states, re.findall(r'polyline fill="none" stroke="(\w+)"', drawn), strict=True))
    assert (colours["healthy"], colours["unhealthy"]) == ("green", "red")
    assert len({*colours.values()}) == len(states)


def test_series_are_named_as_grafana_would() -> None:
    assert legend("{{namespace}}/{{ pod }}", {"namespace": "n", "pod": "p"}, "x") == "n/p"
    assert legend("__auto", {}, "x") == "x"


JOINS = re.findall(
    r"```text\n(.*?)```",
    (DOCS / "operate/monitoring.md").read_text().partition("\n### Joins\n")[2].partition("\n### ")[0],
    re.DOTALL,
)
CHIP = 'instance="n1:9100",node="n1",device="neuron4",neuron_device_index="4",namespace="team",pod="train",claim="c"'
SERIES = {
    # Two containers of a pod use one claim.
    **{f'neuron_dra_driver_chip_allocation{{{CHIP},container="{name}"}}': "1x70" for name in ("main", "side")},
    'neuron_dra_driver_device_allocation{node="n1",device="neuron-device-4",container="main"}': "1x70",
    'neuron_dra_driver_device_allocation{node="n1",device="neuron-device-4",container="side"}': "1x70",
    'neuron_dra_driver_chip_health{instance="n1:9100",device="neuron4",state="unhealthy"}': "1x70",
    'hardware_ecc_events_total{node="n1",neuron_device_index="4",event_type="mem_ecc_corrected"}': "0+1x70",
    'hardware_ecc_events_total{node="n1",neuron_device_index="4",event_type="sram_ecc_corrected"}': "0+1x70",
    'kube_pod_info{namespace="team",pod="train",node="n1",created_by_kind="Job",created_by_name="j"}': "1x70",
    'kube_pod_status_phase{namespace="team",pod="train",phase="Running"}': "0x70",
}
POD = 'namespace="team",node="n1",pod="train"'


def query_of(title: str, metric: str) -> str:
    (found,) = [
        target["expr"]
        for panel in PANELS
        if panel["title"] == title
        for target in panel["targets"]
        if metric in target["expr"]
    ]
    return asked(found)


@needs_prometheus
def test_a_chip_that_two_containers_share_counts_once(tmp_path: Path) -> None:
    expected = {
        JOINS[0]: (f'{{neuron_device_index="4",{POD}}}', 120),
        JOINS[1]: ('{created_by_kind="Job",created_by_name="j"}', 1),
        JOINS[2]: (f'{{device="neuron4",{POD}}}', 1),
        JOINS[3]: ('{device="neuron4",instance="n1:9100",namespace="team",pod="train"}', 1),
        query_of("ECC events within an hour by pod", "hardware_ecc_events_total"): (
            '{namespace="team",pod="train"}',
            120,
        ),
        query_of("Chips in use", "chip_allocation"): ("{}", 1),
        query_of("Chips in use by namespace", "chip_allocation"): ('{namespace="team"}', 1),
        query_of("Devices in use and on offer", "device_allocation"): ("{}", 1),
        query_of("Unhealthy chips in use", "chip_allocation"): ("{}", 1),
    }
    assert len(expected) == len(JOINS) + 5
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in SERIES.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": "65m", "exp_samples": [{"labels": labels, "value": value}]}
            for query, (labels, value) in expected.items()
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout


def allocation(metric: str, device: str, claim: str, pod: str, namespace: str = "team", container: str = "main") -> str:
    """A series of it; the pod's UID is its name."""
    return (
        f'neuron_dra_driver_{metric}_allocation{{node="n1",device="{device}",claim="{claim}",namespace="{namespace}",'
        f'pod="{pod}",pod_uid="{pod}",container="{container}"}}'
    )


@needs_prometheus
def test_chip_hours_are_of_whole_chips_and_core_hours_of_single_cores(tmp_path: Path) -> None:
    """A pod has two chips for half an hour, in two containers; another has three cores of a chip for an hour."""
    half, whole = "1x29 stale", "1x59 stale"
    series = {
        allocation(metric, device, "c", "chips", container=container): half
        for container in ("main", "side")
        for metric, number in (("chip", "neuron"), ("device", "neuron-device-"))
        for device in (f"{number}4", f"{number}12")
    }
    series |= {allocation("chip", "neuron1", "d", "cores"): whole}
    series |= {allocation("device", f"neuron-core-1-{core}", "d", "cores"): whole for core in (0, 1, 3)}
    series |= {allocation("chip", "neuron2", "e", "other", namespace="b"): whole}
    series |= {'neuron_dra_driver_devices{node="n1",instance="n1:9100"}': "16x70"}
    series |= {'node_total_hourly_cost{node="n1",instance="i"}': "32x70"}
    hours, cost = (
        asked(query)
        for query in re.findall(
            r"```text\n(.*?)```",
            (DOCS / "operate/monitoring.md").read_text().partition("\n### Chip-hours")[2].partition("\n### ")[0],
            re.DOTALL,
        )
    )
    expected = [
        (hours, {"team": 1.0, "b": 1.0}, "70m"),
        (hours.replace("chips", "cores"), {"team": 3.0}, "70m"),
        (query_of("Chip-hours by namespace", "chips"), {"team": 1.0, "b": 1.0}, "70m"),
        (query_of("Core-hours by namespace", "cores"), {"team": 3.0}, "70m"),
        (cost, {"team": 4.0, "b": 2.0}, "20m"),
    ]
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": query,
                "eval_time": at,
                "exp_samples": [
                    *({"labels": f'{{namespace="{name}"}}', "value": value} for name, value in values.items()),
                    *([{"labels": "{}", "value": 0}] if "vector(0)" in query else []),
                ],
            }
            for query, values, at in expected
        ],
    }
    file = tmp_path / "test.yaml"
    rules = CHART / "files/alerts.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout

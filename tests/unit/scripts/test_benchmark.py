"""The figures and the report of scripts/benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.burst import Burst, BurstFigures, burst_figures
from bench.burst import Extent as BurstExtent
from bench.burst import report as burst_report
from bench.burstobjects import scheduler_configuration
from bench.calls import AT_ONCE, Extent, Situation
from bench.drivers import BARE, OURS
from bench.extender import Asked, ExtenderFigures
from bench.extender import Extent as ExtenderExtent
from bench.extender import report as extender_report
from bench.figures import Round, call_figures, percentile
from bench.procfs import cpu_ticks, start_ticks, status_number
from bench.report import targets, text
from bench.rest import RestFigures, dispatched, published_at
from hypothesis import given
from hypothesis import strategies as st
from lab.errors import LabError

METRICS = """\
apiserver_flowcontrol_dispatched_requests_total{flow_schema="benchmark-watch",priority_level="workload-high"} 12
apiserver_flowcontrol_dispatched_requests_total{flow_schema="service-accounts",priority_level="workload-low"} 7
apiserver_flowcontrol_dispatched_requests_total{flow_schema="benchmark-read",priority_level="workload-high"} 3
"""
STATUS = "Name:\tdra-driver\nVmRSS:\t   50432 kB\nThreads:\t19\n"
STAT = "1 (a) b (c) S 0 1 1 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 19 0 2130 1241612288 12608"


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_a_percentile_is_one_of_the_values_and_enough_of_them_are_not_above_it(
    values: list[float], percent: float
) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100 - 1e-6


def test_the_percentiles_of_a_hundred_values() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (0, 50, 99, 100)] == [1, 50, 99, 100]
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def slow_round(get: float, prepare: float, seconds: float) -> Round:
    return Round({"get": [get] * 3, "prepare": [prepare] * 3, "unprepare": [1.0] * 3}, seconds)


def test_one_disturbed_round_does_not_move_the_figures() -> None:
    found = call_figures([slow_round(1, 3, 0.015), slow_round(30, 50, 0.3), slow_round(2, 3.5, 0.015)])
    assert (found.get, found.prepare, found.above_get, found.calls) == (2, 3.5, 2, 9)
    assert found.pairs_per_second == 200
    assert found.prepare_p99 == 50, "but the slowest calls are told"


def test_without_a_get_there_is_no_difference_to_it() -> None:
    found = call_figures([Round({"prepare": [3.0], "unprepare": [1.0]}, 0.004)])
    assert (found.get, found.above_get) == (None, None)


def test_requests_are_counted_for_the_driver_only() -> None:
    assert dispatched(METRICS) == {"watch": 12, "read": 3, "write": 0}


def test_a_process_is_read_whatever_its_name() -> None:
    assert (status_number(STATUS, "VmRSS"), status_number(STATUS, "Threads")) == (50432, 19)
    assert (cpu_ticks(STAT), start_ticks(STAT)) == (200, 2130)
    with pytest.raises(LabError, match="VmSwap"):
        status_number(STATUS, "VmSwap")


def test_the_start_ends_with_the_first_publication() -> None:
    controller = "INFO driver.resourceslices.controller published generation"
    lines = [
        "1970-01-01T00:01:00.250Z INFO driver neuron-dra-driver 0.1.0 on node node-1",
        f"1970-01-01T00:01:00.500Z {controller} 1: 0 deleted, 0 updated, 1 created",
        f"1970-01-01T00:02:00.500Z {controller} 2: 0 deleted, 1 updated, 0 created",
    ]
    assert published_at("\n".join(lines)) == 60.5
    with pytest.raises(LabError, match="nothing is reported"):
        published_at(lines[0])


def report(prepare: float, memory_mb: float, writes: int) -> str:
    calls = {
        Situation(label, at_once, held): call_figures([slow_round(1, took, 0.003 * took)])
        for label, took in ((OURS, prepare), (BARE, 3.0), ("Go test driver", 2.0))
        for at_once in (1, AT_ONCE)
        for held in (0, 100)
    }
    rest = RestFigures("3.13.1", 0.4, memory_mb, memory_mb, 19, 600.0, 0.2, {"watch": 2, "read": 1, "write": writes})
    starts = {OURS: [0.5, 0.4, 2.0], "Go test driver": [1.0]}
    memory = {OURS: (48.0, 51.0), "Go test driver": (40.0, 60.0)}
    return text("a machine", 0.1, "1.37.1", Extent(1, 3, 100, 1), starts, calls, memory, rest)


def test_the_report_says_of_each_target_whether_it_was_met() -> None:
    good = report(3.0, 50.0, 0)
    assert good.count("| met |") == 16
    assert "MISSED" not in good
    assert "extrapolated to an hour: 18 watches and reads, 0 writes" in good
    bad = [line for line in report(20.0, 61.0, 1).splitlines() if "MISSED" in line]
    assert len(bad) == 2 * (2 + 1 + 2) + 1 + 1, "above GET and pairs a second twice each, and p99"


def test_without_a_time_at_rest_its_targets_are_left_out() -> None:
    assert targets({OURS: [0.5]}, {}, None) == [("start to slices stored: at most 1 s", "0.50", "met")]


def extender_figures(slow: float, memory: float) -> ExtenderFigures:
    asked = Asked([1.0] * 98 + [slow] * 2, [2.5], 4000, 215_000)
    different = {
        "filter for 64 containers": Asked([90.0] * 98 + [10 * slow] * 2, [1.0], 5, 6, [4000], [2.0, 80 * slow])
    }
    return ExtenderFigures(7.0, {"4 devices": asked}, [1.0], [3.5], [1.0], memory, memory + 1, different)


def test_the_report_of_the_extender_has_every_figure_and_judges_them() -> None:
    found = extender_report("a machine", 0.5, ExtenderExtent(5000, 20000, 100), extender_figures(12.0, 119.0))
    assert "| filter for 4 devices | 1.00 | 12.00 | 2.50 | 4000 | 215 |" in found
    assert "| bind | 3.50 | 3.50 |" in found
    assert "| bind p50 above the API server's: at most 3 ms | 2.50 | met |" in found
    assert "Resident memory 119 MB, at most 120 MB" in found
    assert "| filter for 64 containers | 90 | 120 | 4000 | 960 |" in found
    assert "MISSED" not in found


def test_targets_of_the_extender_that_are_missed_are_marked() -> None:
    found = extender_report("a machine", 0.5, ExtenderExtent(5000, 20000, 100), extender_figures(20.1, 150.5))
    assert found.count("MISSED") == 4


def test_a_burst_is_told_by_its_medians_and_its_rate() -> None:
    bursts = [
        Burst([10.0] * 98 + [tail] * 2, seconds, 70.0, 0.2) for tail, seconds in ((50.0, 1.0), (90.0, 2.0), (70.0, 4.0))
    ]
    assert burst_figures(bursts) == BurstFigures(10.0, 70.0, 50.0, 70.0, 2.0)
    both = {"with the extender": bursts, "without it": [Burst([8.0, 9.0], 0.01)]}
    found = burst_report("a machine", 0.4, "1.37.1", BurstExtent(500, 100, 3), both)
    assert "| with the extender | 10 | 70 | 50 |" in found
    assert "| without it | 8 | 9 | 200 |" in found
    assert "The extender: 2.0 ms of CPU time per pod, resident 70 MB." in found


def test_the_forms_of_a_burst_differ_in_the_extender_only() -> None:
    extended, plain = (scheduler_configuration(Path("/k"), form) for form in (True, False))
    (extender,) = extended.pop("extenders")
    assert plain.pop("extenders") == []
    assert extended == plain
    assert [item["name"] for item in extender["managedResources"]] == [
        "aws.amazon.com/neuron",
        "aws.amazon.com/neuroncore",
    ]

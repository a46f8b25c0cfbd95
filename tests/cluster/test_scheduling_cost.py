"""What claims cost a real kube-scheduler: no template of the project has become slower by more than a third.

Processor time is counted in that of plain pods of the same run, so the machine's speed and load matter little. After a
change that is meant to cost something, write the file anew: ``scripts/benchmark scheduling --nodes 100 --pods 40
--rounds 1 --baseline tests/data/scheduling-cost.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from bench.scheduling import Extent, check, check_rows, relative
from lab.cluster import Cluster
from lab.progress import Progress

from tests.paths import ROOT

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.control_plane,
    pytest.mark.kubernetes("1.37"),
    pytest.mark.timeout(600, func_only=True),
]

BASELINE = ROOT / "tests" / "data" / "scheduling-cost.json"


@pytest.fixture
def alone(lab: Cluster) -> Iterator[Cluster]:
    """The control plane, whose controllers and scheduler the benchmark stops."""
    yield lab
    for name in ("kube-controller-manager", "kube-scheduler"):
        lab.control_plane.start(name)


def test_no_template_costs_the_scheduler_a_third_more_than_it_did(alone: Cluster, figures: list[str]) -> None:
    rows = check_rows()
    baseline = json.loads(BASELINE.read_text())
    found, slower = check(alone, Extent(nodes=100, pods=40, rounds=1), rows, baseline, Progress())
    figures.append("scheduler's time in plain pods: " + ", ".join(f"{k}: {v:g}" for k, v in relative(found).items()))
    assert slower == []
    assert {item.key for item in found} == set(baseline), "rows that only the file has, or only the benchmark"

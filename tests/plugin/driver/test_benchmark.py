"""What ``scripts/benchmark`` starts must publish: it has no kubelet other than its own stand-in."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from bench import drivers
from bench.drivers import Running

from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually
from tests.paths import ROOT


def test_the_driver_publishes_when_the_benchmark_starts_it(server: ApiServer, tmp_path: Path) -> None:
    driver = drivers.ours(Path(sys.executable), server.kubeconfig(tmp_path / "kubeconfig"), tmp_path / "a")
    driver = replace(driver, environment={**driver.environment, "PYTHONPATH": str(ROOT)})
    server.add_node(driver.node)
    drivers.emulate_host(Path(sys.executable), driver.directory)
    with Running(driver):
        eventually(server.slices, 20)

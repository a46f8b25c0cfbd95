"""What ``scripts/benchmark`` starts must publish: it has no kubelet other than its own stand-in."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from bench import drivers
from bench.drivers import Running

from tests.doubles.apiserver.server import ApiServer
from tests.doubles.sample_driver import node_directory
from tests.eventually import eventually
from tests.paths import ROOT


def test_the_driver_publishes_when_the_benchmark_starts_it(server: ApiServer) -> None:
    with node_directory() as short:
        driver = drivers.ours(Path(sys.executable), server.kubeconfig(short / "kubeconfig"), short / "a")
        driver = replace(driver, environment={**driver.environment, "PYTHONPATH": str(ROOT)})
        server.add_node(driver.node)
        drivers.emulate_host(Path(sys.executable), driver.directory)
        with Running(driver):
            eventually(server.slices, 20)

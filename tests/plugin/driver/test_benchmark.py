"""What ``scripts/benchmark`` starts must publish, and it takes another checkout to compare with."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench import drivers
from bench.drivers import Running
from bench.main import main

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


@pytest.mark.parametrize(("checkout", "is_one"), [(ROOT, True), (ROOT / "tests", False)], ids=["checkout", "folder"])
def test_a_checkout_of_this_project_can_be_compared_with(
    capsys: pytest.CaptureFixture[str], checkout: Path, is_one: bool
) -> None:
    """Where it is one, the next thing that is wrong is told: no claim has so many devices."""
    with pytest.raises(SystemExit):
        main(["--before", str(checkout), "--devices", "1000"])
    text = capsys.readouterr().err
    assert ("is no checkout" in text, "at most" in text) == (not is_one, is_one)

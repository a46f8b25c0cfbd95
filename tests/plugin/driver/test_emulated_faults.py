"""A fault that is rehearsed on a running emulated node, as the API server sees it."""

from __future__ import annotations

import pytest

from tests.builders.agent import World, agent
from tests.eventually import eventually
from tests.golden import golden, lines


def test_a_line_in_the_file_of_faults_becomes_a_taint_that_outlasts_a_killed_driver(world: World) -> None:
    sick = {"neuron-device-3": {"hbm-uncorrectable": "NoSchedule"}}
    faults = world.host / "faults"
    with agent(world) as running:
        running.ready()
        assert world.taints() == {}
        assert "hbm-uncorrectable@3" in faults.read_text()
        faults.write_text("hbm-uncorrectable@3\n")
        eventually(lambda: world.taints() == sick)
    with agent(world, "--emulated-faults", "device-lost@1") as running:
        running.ready()
        assert world.taints() == sick


def test_a_driver_can_start_with_faults(world: World) -> None:
    with agent(world, "--emulated-faults", "hbm-unhealthy@4-5 device-invalid@7") as running:
        running.ready()
        eventually(lambda: sorted(world.taints()) == ["neuron-device-4", "neuron-device-5", "neuron-device-7"])


@pytest.mark.parametrize(
    "options",
    [
        ("--emulated-faults", "hbm@3"),
        ("--emulated-faults", "device-lost@16"),
        ("--emulate", "", "--emulated-faults", "device-lost@1"),
    ],
)
def test_faults_that_cannot_be_end_the_start(world: World, options: tuple[str, ...]) -> None:
    with agent(world, *options) as running:
        assert running.process.wait(timeout=30) == 2
        golden(lines(running.log, "--emulated-faults"))

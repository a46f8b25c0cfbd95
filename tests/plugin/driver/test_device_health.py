"""What kubelet learns of the health of the devices that the agent offers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.driver.node import decide
from dra_driver.neuron.emulation.tree import DEVICES
from dra_driver.neuron.emulation.writer import write_host
from dra_driver.neuron.names import DRIVER_NAME
from tests.builders.agent import NODE, THIRD, TRN2U, World, agent, agent_here, agent_on_host, node
from tests.eventually import eventually
from tests.golden import golden


@pytest.fixture(params=["1.36", "1.37"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="h-") as name, node(Path(name), watches_health=request.param) as made:
        yield made


def told(world: World, device: str) -> tuple[str, str]:
    return world.kubelet.health.of(DRIVER_NAME, NODE, device)


def set_errors(world: World, chip: int, errors: int) -> None:
    path = world.host / DEVICES / f"neuron{chip}" / "stats/hardware/mem_ecc_uncorrected"
    path.write_text(f"{errors}\n")


def test_a_fault_of_a_chip_reaches_kubelet_with_what_to_do_and_its_end_does_too(world: World) -> None:
    with agent(world) as running:
        running.ready()
        eventually(lambda: {told(world, f"neuron-device-{n}") for n in range(16)} == {("Healthy", "")})
        set_errors(world, 3, 2)
        eventually(lambda: told(world, "neuron-device-3")[0] == "Unhealthy")
        message = told(world, "neuron-device-3")[1]
        golden(message)
        assert told(world, "neuron-device-2") == ("Healthy", "")
        assert told(world, "neuron-node") == ("Unknown", ""), "this type is not offered as a whole"
        set_errors(world, 3, 0)
        eventually(lambda: told(world, "neuron-device-3") == ("Healthy", ""))


def test_a_killed_driver_leaves_devices_unknown_and_the_first_that_the_next_one_tells_is_the_fault(
    world: World,
) -> None:
    with agent(world) as running:
        running.ready()
        set_errors(world, 5, 1)
        eventually(lambda: told(world, "neuron-device-5")[0] == "Unhealthy")
        running.kill()
        eventually(lambda: told(world, "neuron-device-5") == ("Unknown", ""))
        reports = len(world.kubelet.health.reports)
    with agent_on_host(world) as running:
        running.ready()
        eventually(lambda: len(world.kubelet.health.reports) > reports)
        assert told(world, "neuron-device-5")[0] == "Unhealthy", "never healthy in between"


def test_the_whole_node_is_told_of_under_its_own_name_and_is_as_sick_as_its_sickest_chip(world: World) -> None:
    write_host(world.host, TRN2U, THIRD)
    with agent_on_host(world) as running:
        running.ready()
        eventually(lambda: told(world, "neuron-node") == ("Healthy", ""))
        set_errors(world, 7, 1)
        eventually(lambda: told(world, "neuron-node")[0] == "Unhealthy")
        assert told(world, "neuron-node")[1].startswith("neuron7: uncorrectable errors")


def test_what_cannot_be_decided_is_unknown_to_kubelet_and_the_driver_is_not_ready(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("on purpose")

    running = agent_here(world, "inf2.xlarge", faster=5.0)
    running.start()
    try:
        eventually(lambda: told(world, "neuron-device-0") == ("Healthy", ""))
        with monkeypatch.context() as patch:
            patch.setattr(decide, "device_health", fail)
            set_errors(world, 0, 1)
            eventually(lambda: told(world, "neuron-device-0")[0] == "Unknown")
            golden(told(world, "neuron-device-0")[1])
            eventually(lambda: any("on purpose" in problem for problem in running.readiness()))
        eventually(lambda: told(world, "neuron-device-0")[0] == "Unhealthy")
    finally:
        running.stop()

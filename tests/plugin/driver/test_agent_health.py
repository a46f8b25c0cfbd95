"""The whole agent and the health of its chips, as its metrics tell it, over kills, restarts and a lost record."""

from __future__ import annotations

import shutil
import socket

import pytest

from dra_driver.cli.main import main
from dra_driver.neuron.emulation.tree import DEVICES
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.instance_types import resolve_emulation
from tests.builders.agent import START_SECONDS, World, agent_on_host, free_port, health, scraped
from tests.eventually import eventually
from tests.golden import golden

CHIP = 3


@pytest.fixture
def world(world: World) -> World:
    write_host(world.host, resolve_emulation("trn2.48xlarge"), EmulationOptions())
    return world


def put(world: World, text: str, file: str = "mem_ecc_uncorrected") -> None:
    path = world.host / DEVICES / f"neuron{CHIP}" / "stats/hardware" / file
    path.with_name("new").write_text(text)
    path.with_name("new").replace(path)


def state(port: int) -> str:
    """The chip's state in the metrics."""
    start = f'neuron_dra_driver_chip_health{{device="neuron{CHIP}",state="'
    (line,) = [line for line in scraped(port).splitlines() if line.startswith(start)]
    return line.removeprefix(start).partition('"')[0]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def options(port: int) -> tuple[str, ...]:
    return ("--metrics-port", str(port), "--health-hints-dir", "")


@pytest.mark.parametrize("record", ["kept", "lost", "damaged"])
def test_an_agent_killed_and_started_again_never_shows_a_sick_chip_as_healthy(world: World, record: str) -> None:
    port = free_port()
    with agent_on_host(world, *options(port)) as running:
        running.ready()
        assert state(port) == "healthy"
        put(world, "1\n")
        eventually(lambda: state(port) == "unhealthy", START_SECONDS, "the fault")
        running.kill()
    directory = world.kubelet.plugins_dir / DRIVER_NAME / "health"
    if record == "lost":
        shutil.rmtree(directory)
    elif record == "damaged":
        (directory / "health.json").write_bytes(b"{")
    seen: set[str] = set()
    with agent_on_host(world, *options(port)) as running:
        eventually(lambda: listens(port), START_SECONDS, "the metrics port")

        def ready() -> bool:
            seen.add(state(port))
            return bool(world.kubelet.instances.get(DRIVER_NAME))

        eventually(ready, START_SECONDS, "registration")
        assert seen | {state(port)} == {"unhealthy"}
        assert ("cannot be used" in running.log) == (record == "damaged")


def test_a_fault_that_only_the_driver_remembers_is_cleared_by_the_command(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    directory = str(world.kubelet.plugins_dir / DRIVER_NAME / "health")
    errors = "../../neuron_core1/stats/status/hw_nc_ue_error/total"
    (world.host / DEVICES / f"neuron{CHIP}/neuron_core1/stats/status/hw_nc_ue_error").mkdir(parents=True)
    with agent_on_host(world, *options(port)) as running:
        running.ready()
        put(world, "2\n", errors)
        eventually(lambda: state(port) == "unhealthy", START_SECONDS, "the fault")
        assert main(["health", "clear", f"neuron{CHIP}", "--state-dir", directory]) == 0
        assert capsys.readouterr().out == f"neuron{CHIP}: cleared core-uncorrectable\n"
        eventually(lambda: state(port) == "healthy", START_SECONDS, "the clearing")

        put(world, "1\n")
        eventually(lambda: state(port) == "unhealthy", START_SECONDS, "another fault")
        assert main(["health", "clear", str(CHIP), "--state-dir", directory]) == 1
        golden(capsys.readouterr().err)


def test_an_idle_agent_with_a_sick_chip_is_ready(world: World) -> None:
    port = free_port()
    put(world, "1\n")
    health_options = ("--healthcheck-port", str(port), "--healthcheck-address", "127.0.0.1")
    with agent_on_host(world, *health_options) as running:
        running.ready()
        eventually(lambda: health(port, "readiness") == "SERVING", START_SECONDS, "readiness")
        assert health(port, "liveness") == "SERVING"

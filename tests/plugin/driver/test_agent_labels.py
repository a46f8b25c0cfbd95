"""What the agent as a process publishes and labels on a node of an UltraServer, through an election and restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from dra_driver.driver.node_labels import KEYS, MANAGER
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.topology.partitions import NODE_DEVICE, device_name
from tests.builders.agent import (
    NODE,
    START_SECONDS,
    THIRD,
    TRN2U,
    Agent,
    World,
    agent_on_host,
    free_port,
    scraped,
    third_of_four,
)
from tests.eventually import eventually
from tests.golden import golden, lines

pytestmark = pytest.mark.slow

LABELS = {
    "neuron.amazonaws.com/ultraserver-mode": "1_2_4",
    "neuron.amazonaws.com/ultraserver-server-id-2": "1a2b3c4d5e6f7080",
    "neuron.amazonaws.com/ultraserver-node-id-2": "0",
    "neuron.amazonaws.com/ultraserver-server-id-4": "1a2b3c4d5e6f7081",
    "neuron.amazonaws.com/ultraserver-node-id-4": "2",
}


@pytest.fixture
def world() -> Iterator[World]:
    with third_of_four() as made:
        yield made


def labels(world: World) -> dict[str, str]:
    found = world.server.store.get("nodes", NODE)["metadata"]["labels"]
    return {key: value for key, value in found.items() if key in KEYS}


def labelled(world: World, running: Agent, wanted: dict[str, str]) -> None:
    running.ready()
    eventually(lambda: labels(world) == wanted, what=f"{wanted}")


def offers(world: World, names: list[str]) -> None:
    eventually(lambda: world.offered() == names, within=START_SECONDS, what=f"{names}")


def patches(world: World) -> int:
    """How often the labels of the UltraServer were written."""
    return sum(request.query.get("fieldManager") == MANAGER for request in world.server.requests)


def test_labels_are_written_once_in_a_life_and_survive_elections_and_restarts(world: World) -> None:
    with agent_on_host(world) as running:
        labelled(world, running, LABELS)
        write_host(world.host, TRN2U, EmulationOptions(busy=True))
        eventually(lambda: world.attributes("ultraserverModes") == {"electing"}, what="the election")
        assert labels(world) == LABELS
        write_host(world.host, TRN2U, THIRD)
        eventually(lambda: world.attributes("ultraserverModes") == {"X4,X2V,X1"}, what="its end")
        assert running.terminate() == 0
    with agent_on_host(world) as running:
        labelled(world, running, LABELS)
        time.sleep(0.5)
    assert patches(world) == 1


def test_turned_off_the_labels_are_taken_away(world: World) -> None:
    with agent_on_host(world) as running:
        labelled(world, running, LABELS)
    for _ in range(2):
        with agent_on_host(world, "--ultraserver-labels", "off") as running:
            labelled(world, running, {})
    assert patches(world) == 2


def test_the_setting_decides_what_is_offered(world: World) -> None:
    chips = [device_name(index) for index in range(16)]
    port = free_port()
    for partitions, names in (("node", [NODE_DEVICE]), ("chip.node", [*chips, NODE_DEVICE]), ("chip", chips)):
        with agent_on_host(world, "--partitions", partitions) as running:
            running.ready()
            offers(world, names)
    world.server.git_version = "v1.36.3"
    with agent_on_host(world, "--partitions", "chip.node", "--metrics-port", str(port)) as running:
        running.ready()
        offers(world, [NODE_DEVICE])
        eventually(lambda: "neuron_dra_driver_slices_fallback 1.0" in scraped(port), what="the metric")
        golden(lines(running.log, "1.37"))


def test_a_node_that_lacks_a_chip_says_so_and_offers_nothing(world: World) -> None:
    port = free_port()
    write_host(world.host, TRN2U, EmulationOptions(missing=frozenset({3})))
    with agent_on_host(world, "--metrics-port", str(port)) as running:
        running.ready()
        eventually(lambda: "neuron_dra_driver_node_not_offered 1.0" in scraped(port), what="the metric")
        # Of several threads, so in any order; that the condition is written may come later.
        golden(sorted(line for line in lines(running.log, "neuron3") if " INFO " not in line))
        assert world.offered() == []

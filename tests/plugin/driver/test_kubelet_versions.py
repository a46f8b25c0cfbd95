"""What the agent does on nodes with a kubelet that stops calling drivers, and once that has been updated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dra_driver.driver.agent import NodeAgent
from dra_driver.driver.resourceslices import kept
from dra_driver.neuron.health.condition import KUBELET
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.partitions import device_name
from tests.builders.agent import NODE, START_SECONDS, World, agent_here
from tests.eventually import eventually

CHIPS = [device_name(index) for index in range(16)]
GOOD, BROKEN = "v1.34.2-eks-113cf36", "v1.34.1-eks-113cf36"
TAINTS = "spec.devices[].taints"
SECONDS = START_SECONDS
"""Timeout of what takes less than one."""


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(kept, "SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(kept, "HELD_SECONDS", 0.3)
    monkeypatch.setattr(kept, "MAX_HELD_SECONDS", 0.3)  # however long the test takes between two steps
    return world


def kubelet_is(world: World, version: str) -> None:
    found = world.server.store.get("nodes", NODE)
    status = {**found["status"], "nodeInfo": {"kubeletVersion": version}}
    world.server.store.update("nodes", NODE, {**found, "status": status})


@contextmanager
def running(world: World) -> Iterator[NodeAgent]:
    made = agent_here(world, "trn2.48xlarge", faster=50)
    made.start()
    try:
        eventually(lambda: world.kubelet.instances.get(DRIVER_NAME), SECONDS, "registration")
        yield made
    finally:
        made.stop()


def offers(world: World, *chips: int) -> None:
    wanted = [CHIPS[index] for index in chips]
    eventually(lambda: world.server.slices() and world.offered() == wanted, SECONDS, f"{wanted}")


def conditions(world: World) -> list[dict[str, Any]]:
    found = world.server.store.get("nodes", NODE)["status"].get("conditions", [])
    return [item for item in found if item["type"] == KUBELET.type]


def events(world: World) -> list[dict[str, Any]]:
    return [item for item in world.server.store.list("events")[0] if item["reason"] == KUBELET.reason]


def metric(agent: NodeAgent) -> float:
    return next(sample.value for sample in agent.samples() if sample.name == "kubelet_unsupported")


def works(agent: NodeAgent) -> None:
    """It is ready and live, and so stops no rollout."""
    eventually(lambda: not agent.readiness() and not agent.liveness(), SECONDS, "readiness")


@pytest.mark.parametrize("wiped", [False, True], ids=["slices there", "kubelet deletes the slices at its start"])
@pytest.mark.parametrize("server", [("v1.36.3", ()), ("v1.34.4", (TAINTS,))], ids=["taints", "without taints"])
def test_a_kubelet_that_becomes_a_broken_one_gets_no_new_claims_and_those_that_are_there_go_on(
    world: World, server: tuple[str, tuple[str, ...]], wiped: bool
) -> None:
    world.server.git_version, world.server.dropped_fields = server
    kubelet_is(world, GOOD)
    with running(world) as agent:
        offers(world, *range(16))
        prepared = world.add_claim("default", "prepared", devices=[("r", CHIPS[2])])
        allocated = world.add_claim("default", "allocated", devices=[("r", CHIPS[5])])
        world.kubelet.prepare("pod", [prepared])
        if wiped:
            world.server.wipe_slices(NODE)
        kubelet_is(world, BROKEN)
        offers(world, 2, 5)
        works(agent)
        world.kubelet.prepare("pod", [prepared])
        assert world.kubelet.prepare("late", [allocated])[allocated.uid]
        world.kubelet.unprepare("pod")
        world.server.delete_claim("default", "prepared")
        offers(world, 5)
        world.kubelet.unprepare("late")
        world.server.delete_claim("default", "allocated")
        offers(world)
        works(agent)


def test_a_node_says_why_it_offers_nothing_until_its_kubelet_is_updated(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    kubelet_is(world, "v1.34.0")
    for _ in range(2):  # a restart of the driver repeats no Event
        with running(world) as agent:
            offers(world)
            works(agent)
            eventually(lambda: conditions(world), SECONDS, "the condition")
            (said,) = conditions(world)
            assert (said["status"], said["reason"]) == ("True", KUBELET.reason)
            assert metric(agent) == 1
            eventually(lambda: events(world), SECONDS, "the Event")
            assert said["message"] in caplog.text
    (event,) = events(world)
    assert (event["type"], event["count"], event["message"]) == ("Warning", 1, said["message"])
    assert event["involvedObject"]["name"] == NODE
    assert caplog.text.count(said["message"]) == 2, "once in each run"
    with running(world) as agent:
        offers(world)
        kubelet_is(world, "v1.34.2")
        offers(world, *range(16))
        eventually(lambda: not conditions(world), SECONDS, "no condition")
        assert metric(agent) == 0
    assert len(events(world)) == 1


def test_an_update_while_the_driver_is_down_is_noticed(world: World) -> None:
    kubelet_is(world, BROKEN)
    with running(world):
        eventually(lambda: conditions(world), SECONDS, "the condition")
    kubelet_is(world, GOOD)
    with running(world):
        offers(world, *range(16))
        eventually(lambda: not conditions(world), SECONDS, "no condition")


def test_nothing_is_offered_before_the_version_is_known_when_the_api_server_comes_late(world: World) -> None:
    kubelet_is(world, BROKEN)
    world.server.stop()
    with running(world) as agent:
        world.server.start()
        offers(world)
        works(agent)
        assert world.slice_writes() == 1, "the empty slice is the first one"

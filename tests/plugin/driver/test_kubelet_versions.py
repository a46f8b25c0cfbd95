"""What the agent does for kubelets of certain versions, whenever it learns which one it has."""

from __future__ import annotations

import time

import pytest

from dra_driver.driver import agent
from dra_driver.kubelet import server
from dra_driver.names import DRIVER_NAME
from tests.builders.agent import NODE, World, agent_here
from tests.eventually import eventually


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "REREGISTER_SECONDS", 0.3)
    defaults = server.KubeletPlugin.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "check_interval", 0.1)


def kubelet_is(world: World, version: str) -> None:
    found = world.server.store.get("nodes", NODE)
    world.server.store.update("nodes", NODE, {**found, "status": {"nodeInfo": {"kubeletVersion": version}}})


@pytest.mark.usefixtures("quick")
def test_a_kubelet_that_forgets_idle_drivers_is_kept_awake_although_the_api_server_came_late(world: World) -> None:
    kubelet_is(world, "v1.34.1-eks-113cf36")
    world.server.stop()
    agent = agent_here(world, "trn1.2xlarge")
    try:
        agent.start()
        world.kubelet.wait_registered(DRIVER_NAME)
        assert world.kubelet.registrations == 1, "nothing is known of the kubelet yet"
        world.server.start()
        eventually(lambda: world.kubelet.registrations >= 3, 20.0, "registrations one after the other")
    finally:
        agent.stop()


@pytest.mark.usefixtures("quick")
def test_an_updated_kubelet_is_left_alone_from_then_on(world: World) -> None:
    kubelet_is(world, "v1.34.0")
    agent = agent_here(world, "trn1.2xlarge")
    try:
        agent.start()
        eventually(lambda: world.kubelet.registrations >= 3, 20.0, "registrations one after the other")
        kubelet_is(world, "v1.34.4")

        def left_alone() -> bool:
            before = world.kubelet.registrations
            time.sleep(1.0)
            return world.kubelet.registrations == before

        eventually(left_alone, 20.0, "no further registration")
    finally:
        agent.stop()

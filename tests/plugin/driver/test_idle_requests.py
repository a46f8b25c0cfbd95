"""What a node at rest asks of the API server: an hour of it in six seconds, with every interval 600 times shorter."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

from dra_driver.driver import agent as agent_module
from dra_driver.driver.agent import NodeAgent
from dra_driver.driver.claims import observe, reconcile
from dra_driver.driver.resourceslices import controller
from dra_driver.kube.api import watch
from dra_driver.neuron.names import DRIVER_NAME
from tests.builders.agent import World, agent_here, node
from tests.eventually import eventually

pytestmark = pytest.mark.slow

FASTER = 600
HOUR = 3600 / FASTER
MAX_AN_HOUR = 30
"""Requests of one node, renewals of watches included."""


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    # The waits between watches depend on these two together: the server ends a watch after whole seconds only.
    seconds = watch.WATCH_SECONDS / FASTER
    assert seconds == 1
    follow = watch.Reflector.__init__.__kwdefaults__
    assert follow is not None
    monkeypatch.setitem(follow, "watch_seconds", seconds)
    faster = partial(controller.SlicePolicy, watch_seconds=seconds, resync_seconds=controller.RESYNC_SECONDS / FASTER)
    monkeypatch.setattr(agent_module, "SlicePolicy", faster)
    for module, name in (
        (watch, "STABLE_SECONDS"),
        (reconcile, "INTERVAL"),
        (observe, "CHECK_AGAIN"),
        (observe, "CHECK_SPACING"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name) / FASTER)


def started(world: World) -> NodeAgent:
    agent = agent_here(world, "trn2.48xlarge", faster=FASTER)
    agent.start()
    return agent


@pytest.mark.parametrize("claims", [0, 16])
@pytest.mark.usefixtures("fast")
def test_an_idle_hour_is_at_most_thirty_requests_and_no_write(claims: int) -> None:
    with tempfile.TemporaryDirectory(prefix="i-") as directory, node(Path(directory)) as world:
        agent = started(world)
        try:
            world.kubelet.wait_registered(DRIVER_NAME)
            for index in range(claims):
                devices = [("chip", f"neuron-device-{index}")]
                wanted = world.add_claim("default", f"claim-{index}", devices=devices)
                world.kubelet.prepare(f"pod-{index}", [wanted])
            eventually(lambda: agent.readiness() == [], what="slices and registration")
            world.node_told()
            stored = world.server.store
            keys = [f"default/claim-{index}" for index in range(claims)]
            eventually(lambda: all(stored.get("resourceclaims", key)["status"].get("devices") for key in keys))
            time.sleep(0.5)
            world.server.requests.clear()
            began = time.monotonic()

            time.sleep(HOUR)

            asked = [(request.method, request.path) for request in list(world.server.requests)]
            hours = (time.monotonic() - began) / HOUR
        finally:
            agent.stop()
    assert {method for method, _ in asked} == {"GET"}
    assert 10 <= len(asked) <= MAX_AN_HOUR * hours, asked

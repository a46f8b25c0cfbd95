"""The agent of a node that the API server cannot be reached from: what it says, and what goes on."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kube.api import reachability
from dra_driver.kube.api.client import RestConfig, Transport
from dra_driver.neuron.names import DRIVER_NAME
from tests.builders.agent import NODE, TOKEN, World, agent_here, node
from tests.doubles.kubelet import KubeletError
from tests.doubles.wire import Wire
from tests.eventually import eventually
from tests.golden import golden

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="c-") as name, node(Path(name)) as made:
        yield made


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "GRACE_SECONDS", 2.0)
    monkeypatch.setattr(reachability, "ASK_SECONDS", 0.2)


def plain(text: str, wire: Wire) -> str:
    return re.sub(
        r"since \S+ \(.*?\); the published", "since TIME (ERROR); the published", text.replace(wire.url, "URL")
    )


def test_a_node_that_is_cut_off_says_so_is_not_ready_and_goes_on_with_what_it_has(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def told(level: int) -> list[str]:
        found = [item for item in caplog.records if item.name == reachability.__name__ and item.levelno == level]
        return [item.getMessage() for item in found]

    with Wire(world.server.port) as wire:
        config = RestConfig(server=wire.url, authorization=lambda: f"Bearer {TOKEN}", place=f"node {NODE}")
        agent = agent_here(world, "trn2.48xlarge", transport=Transport(config))
        agent.start()
        try:
            world.kubelet.wait_registered(DRIVER_NAME)
            eventually(lambda: not agent.readiness(), what="readiness")
            held = world.add_claim("default", "held", devices=[("n", "neuron-device-0")])
            late = world.add_claim("default", "late", devices=[("n", "neuron-device-1")])
            world.kubelet.prepare("pod", [held])
            # All that a start and a prepared claim have the driver write: nothing of it is to be counted later.
            world.node_told()
            eventually(lambda: world.server.store.get("resourceclaims", "default/held")["status"].get("devices"))
            begun, offered = len(world.server.requests), world.offered()

            wire.die()
            with pytest.raises(KubeletError) as caught:
                world.kubelet.prepare("late", [late])
            golden(plain(str(caught.value), wire))
            eventually(lambda: told(logging.WARNING), what="the warning")
            (text,) = agent.readiness()
            assert text.startswith(f"{NODE}: the API server has not answered since ")
            golden(plain(text, wire))
            assert agent.liveness() == []
            world.kubelet.prepare("pod", [held])
            assert world.offered() == offered

            wire.mend()
            eventually(lambda: not agent.readiness(), what="readiness again")
            world.kubelet.prepare("late", [late])
            eventually(lambda: told(logging.INFO), what="the news")
            assert (len(told(logging.WARNING)), len(told(logging.INFO))) == (1, 1)
            assert world.write_paths(since=begun) <= {f"{CLAIMS}/late/status"}, "no slice is written"
        finally:
            agent.stop()

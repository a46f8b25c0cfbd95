"""Moments of a simulated node that histories come upon seldom, arranged."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.histories import DIRECTORY
from tests.simulation.node import Node, simulated_node


@pytest.fixture
def node() -> Iterator[Node]:
    with (
        tempfile.TemporaryDirectory(dir=DIRECTORY, prefix="sim-") as name,
        simulated_node(Path(name), "inf1.6xlarge", seed=1) as simulated,
    ):
        yield simulated


def test_a_driver_that_kubelet_registers_before_it_knows_its_node_waits(node: Node) -> None:
    """It would take turns without end: it is the seed's scheduler that raises then."""
    node.server.mood.away = True
    node.kubelet.start()
    node.start()
    node.pass_time(30.0)
    assert node.kubelet.health, "it is registered"
    node.server.mood.away = False
    node.pass_time(30.0)
    assert len(node.offered()) == 4


def test_what_the_former_instance_wrote_last_of_a_claim_does_not_stay(node: Node) -> None:
    node.kubelet.start()
    node.start()
    node.pass_time(10.0)
    node.allocate("neuron-device-0")
    node.pass_time(20.0)
    (claim,) = node.claims()
    healthy = claim["status"]["devices"][0]["conditions"][1]
    assert (healthy["type"], healthy["status"]) == ("Healthy", "True")
    healthy["status"] = "False"
    node.server.store.update("resourceclaims", f"default/{claim['metadata']['name']}", claim)
    node.pass_time(60.0)
    (claim,) = node.claims()
    assert claim["status"]["devices"][0]["conditions"][1]["status"] == "True"

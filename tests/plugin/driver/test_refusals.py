"""What the driver says of itself, in its log and in health reports, when something around it is not as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_driver.cli import kubelet_plugin
from dra_driver.driver import agent as agent_module
from dra_driver.driver.claims.checkpoint import Checkpoint
from dra_driver.driver.claims.model import PreparedClaims
from dra_driver.driver.device_health import device_health
from dra_driver.driver.device_use import ContainerWatch
from dra_driver.driver.node.loop import NodeLoop
from dra_driver.driver.node.review import read_prepared
from dra_driver.driver.resourceslices.holders import allocated_devices
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.neuron.health.faults import NodeHealth
from dra_driver.neuron.names import DRIVER_NAME
from tests.builders.agent import NODE, World, agent_here
from tests.builders.claims import SETTINGS, claim, host, plan
from tests.eventually import eventually
from tests.golden import golden, logged

pytestmark = pytest.mark.timeout(60)


def test_a_start_a_label_that_cannot_be_read_and_a_kubelet_that_is_updated(
    world: World, log: pytest.LogCaptureFixture
) -> None:
    kubelet_is(world, "v1.34.0")
    agent = agent_here(world, "trn2.48xlarge", faster=50)
    agent.start()
    try:
        eventually(lambda: "registered the driver" in log.text and world.server.slices())
        kubelet_is(world, "v1.34.2")
        eventually(world.offered)
        eventually(lambda: "offered again" in log.text)
        found = world.server.store.get("nodes", NODE)
        labels = {"neuron.aws.com/partitions": "chips.and.more"}
        world.server.store.update("nodes", NODE, {**found, "metadata": {**found["metadata"], "labels": labels}})
        eventually(lambda: "is ignored" in log.text)
    finally:
        agent.stop()
    lines = logged(
        log, "EMULATED", "are offered as", "is ignored", "stopping", "registered the driver", "offered again"
    )
    # The Node's condition has the same words, and may be written before the driver stops, or not.
    golden(sorted(line for line in lines if not line.startswith("conditions ")))


def test_what_a_host_has_not_is_not_offered(world: World, log: pytest.LogCaptureFixture) -> None:
    found = world.server.store.get("nodes", NODE)
    labels = {"neuron.aws.com/partitions": "chip.group"}
    world.server.store.update("nodes", NODE, {**found, "metadata": {**found["metadata"], "labels": labels}})
    agent = agent_here(world, "inf1.xlarge", faster=50)
    agent.start()
    try:
        eventually(lambda: "so it is not offered" in log.text)
    finally:
        agent.stop()
    golden(sorted(logged(log, "so it is not offered")))


def kubelet_is(world: World, version: str) -> None:
    found = world.server.store.get("nodes", NODE)
    status = {**found["status"], "nodeInfo": {"kubeletVersion": version}}
    world.server.store.update("nodes", NODE, {**found, "status": status})


def test_what_is_not_published_yet_is_a_reason_not_to_be_ready(world: World) -> None:
    agent = agent_here(world, "trn2.48xlarge")
    golden([text for text in agent.readiness() if "slices" in text])


def test_in_doubt_about_claims_it_says_so(world: World, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    world.server.fail(403, path="resourceclaims")
    assert allocated_devices(ResourceApi(world.server.transport()), NODE) is None
    (tmp_path / "file").write_text("")
    loop = NodeLoop(kubelet_plugin.read_settings({"node_name": NODE}, {})[0], lambda _: None)
    read_prepared(Checkpoint(tmp_path / "file"), loop)
    assert loop.sources.prepared is None
    golden(sorted(logged(log, "not known")))


def test_the_health_of_a_chip_that_was_not_read_yet() -> None:
    golden(device.message for device in device_health(NodeHealth(), [0], [], NODE))


def test_a_kubelet_that_cannot_be_asked_for_containers(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    prepared = plan(claim(1, [4]), host(), PreparedClaims(), SETTINGS)
    watch = ContainerWatch(tmp_path, lambda: [prepared], lambda: None)
    watch.worker.beat(-1.0)
    golden(watch.worker.problem(), "hangs")
    watch.start()
    eventually(lambda: "name no containers" in log.text)
    watch.worker.stop()
    golden(logged(log, "name no containers"), "log")


def test_without_an_api_server_and_with_a_checkpoint_that_cannot_be_read(
    world: World, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "NODE_PATIENCE", 0.1)
    world.server.fail(503, 1000, path="/nodes")
    state = world.kubelet.plugins_dir / DRIVER_NAME
    state.mkdir(parents=True)
    (state / "claims").write_text("a file in its place")
    agent = agent_here(world, "trn2.48xlarge", faster=50)
    agent.start()
    try:
        eventually(lambda: "label attributes" in log.text)
    finally:
        agent.stop()
    golden(sorted(logged(log, "not known", "cannot be checked")))

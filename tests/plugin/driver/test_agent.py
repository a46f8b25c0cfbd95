"""The whole agent as a process: what an administrator sees of it from start to stop."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dra_driver.neuron.emulation.faults import FAULTS_FILE
from dra_driver.neuron.emulation.tree import DEVICES
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.health.condition import STOPPED_REASON
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.instance_types import resolve_emulation
from tests.builders.agent import NODE, TOKEN, World, agent, free_port, health, node, scraped
from tests.builders.host import renumber
from tests.doubles.kubelet import Claim, KubeletError
from tests.eventually import eventually
from tests.golden import golden, golden_error

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/"
ROW = [("neurons", f"neuron-device-{index}") for index in (4, 5, 6, 7)]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: sockets lie below it, and theirs may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="a-") as name:
        yield Path(name)


@pytest.fixture
def world(directory: Path) -> Iterator[World]:
    with node(directory) as made:
        yield made


def claim(world: World, name: str = "claim", devices: list[tuple[str, str]] = ROW) -> Claim:
    return world.add_claim("default", name, devices=devices)


def test_a_claim_is_prepared_from_registration_to_cdi_spec_and_taken_back(world: World) -> None:
    with agent(world) as running:
        running.ready()
        wanted = claim(world)

        prepared = world.kubelet.prepare("pod", [wanted])[wanted.uid]

        assert [device.name for device in prepared] == [name for _, name in ROW]
        (spec,) = world.specs()
        named = {f"{spec['kind']}={device['name']}": device["containerEdits"] for device in spec["devices"]}
        paths = [named[device.cdi_ids[0]]["deviceNodes"][0]["path"] for device in prepared]
        assert paths == ["/dev/neuron0", "/dev/neuron1", "/dev/neuron2", "/dev/neuron3"]
        assert "NEURON_LOGICAL_NC_CONFIG=2" in named[prepared[0].cdi_ids[0]]["env"]

        world.kubelet.unprepare("pod")
        assert world.specs() == []


def test_slices_come_back_when_kubelet_has_restarted(world: World) -> None:
    with agent(world) as running:
        running.ready()
        world.kubelet.stop()
        world.server.wipe_slices(NODE)
        world.kubelet.start()
        eventually(lambda: len(world.offered()) == 16, what="16 devices again")


def test_a_restart_that_changes_nothing_writes_only_that_the_chips_are_watched_again(world: World) -> None:
    with agent(world) as running:
        running.ready()
        world.node_told()
        assert running.terminate() == 0
    assert len(world.offered()) == 16, "the slices stay when the driver stops"
    assert list(world.kubelet.registry_dir.iterdir()) == [], "its sockets do not"
    stopped, begun = world.condition(), len(world.server.requests)
    with agent(world) as running:
        running.ready()
        eventually(lambda: "kubelet registered the driver" in running.log, what="the look after registration")
        world.kubelet.wait_registered(DRIVER_NAME)
        eventually(lambda: world.condition()["reason"] == "NeuronHasNoError", what="the condition")
        time.sleep(0.5)
        # The last word of the first one has two seconds, and a busy machine may need more.
        assert world.server.writes(since=begun) == (stopped["reason"] == STOPPED_REASON)
        assert world.write_paths(since=begun) <= {f"/api/v1/nodes/{NODE}/status"}


def test_an_idle_agent_asks_for_nothing(world: World) -> None:
    with agent(world) as running:
        running.ready()
        eventually(lambda: "reconciling the slices" in running.log, what="the look after registration")
        world.node_told()
        for kind in ("/nodes$", "/resourceslices$"):
            eventually(partial(world.server.count, "GET", kind, watch=True), what=f"a watch of {kind}")
        requests = -1
        while requests != len(world.server.requests):  # the look asks twice
            requests = len(world.server.requests)
            time.sleep(1.5)
        time.sleep(2.0)
        assert len(world.server.requests) == requests


def test_a_label_that_the_cloud_sets_later_becomes_an_attribute(world: World) -> None:
    with agent(world) as running:
        running.ready()
        assert world.attributes("networkNodeLayer1") == set()
        world.server.store.update("nodes", NODE, labelled(world, {"topology.k8s.aws/network-node-layer-1": "nn-1"}))
        eventually(lambda: world.attributes("networkNodeLayer1") == {"nn-1"}, what="the attribute")


def test_slices_are_published_for_a_node_with_an_image_that_has_no_name(world: World) -> None:
    (item,) = world.server.store.list("nodes", lambda item: item["metadata"]["name"] == NODE)[0]
    images = [{"names": None, "sizeBytes": 1}]
    world.server.store.update("nodes", NODE, {**item, "status": {**item["status"], "images": images}})
    with agent(world) as running:
        running.ready()


def test_without_an_api_server_kubelet_is_served_and_the_first_write_is_complete(directory: Path) -> None:
    with node(directory) as world:
        labels = labelled(world, {"topology.k8s.aws/network-node-layer-1": "nn-1"})
        world.server.store.update("nodes", NODE, labels)
        world.server.stop()
        with agent(world) as running:
            running.ready(published=False)
            world.server.start()
            eventually(world.offered, what="slices")
            assert world.attributes("networkNodeLayer1") == {"nn-1"}
            assert world.slice_writes() == 1


def test_the_emulated_host_has_the_kernel_driver_version_asked_for(world: World) -> None:
    with agent(world, "--emulated-driver-version", "2.24.7.0") as running:
        running.ready()
        assert world.attributes("neuronDriverVersion") == {"2.24.7.0"}


def test_a_chip_that_falls_off_is_tainted_and_its_claim_refused_with_the_reason(world: World) -> None:
    with agent(world) as running:
        running.ready()
        # Of a directory that is merely deleted, the running emulation puts files back.
        (world.host / FAULTS_FILE).write_text("device-lost@5\n")
        eventually(lambda: set(world.taints()) == {"neuron-device-5"}, what="a taint")
        assert len(world.offered()) == 16, "a device that is allocated must not vanish"
        with golden_error(KubeletError):
            world.kubelet.prepare("pod", [claim(world)])


SELDOM = ("--rescan-seconds", "3600")
"""The host is scanned at the start, and not again while the test runs."""


def device_numbers(world: World) -> set[tuple[int, int]]:
    """Major and minor of all nodes in the CDI specs."""
    devices = [device for spec in world.specs() for device in spec["devices"]]
    nodes = [node for device in devices for node in device["containerEdits"]["deviceNodes"]]
    return {(node["major"], node["minor"]) for node in nodes}


def test_a_claim_gets_the_device_numbers_of_its_preparation_not_those_of_the_last_scan(world: World) -> None:
    with agent(world, *SELDOM) as running:
        running.ready()
        for index in range(16):  # the kernel module is loaded anew and gets another major
            renumber(world.host, index, 251)
        wanted = claim(world)
        world.kubelet.prepare("pod", [wanted])
        assert device_numbers(world) == {(251, index) for index in (4, 5, 6, 7)}
        # A retry too: kubelet forgets at its restart what is prepared.
        for index in range(16):
            renumber(world.host, index, 252)
        world.kubelet.restart()
        world.kubelet.wait_registered(DRIVER_NAME)
        world.kubelet.prepare("pod", [wanted])
        assert device_numbers(world) == {(252, index) for index in (4, 5, 6, 7)}


def test_a_chip_is_given_or_refused_by_what_the_host_has_at_the_preparation(world: World) -> None:
    with agent(world, *SELDOM) as running:
        running.ready()
        directory = world.host / DEVICES / "neuron5"
        directory.rename(world.root / "neuron5")
        wanted = claim(world)
        with golden_error(KubeletError):
            world.kubelet.prepare("pod", [wanted])
        (world.root / "neuron5").rename(directory)
        (world.host / "dev/neuron5").unlink()
        with golden_error(KubeletError):
            world.kubelet.prepare("pod", [wanted])
        (world.host / "dev/neuron5").touch()
        assert world.kubelet.prepare("pod", [wanted])


def test_a_chip_that_came_after_the_last_scan_is_given_to_the_claim_that_has_it(world: World) -> None:
    """As after a boot in which the kernel module is loaded later than the driver starts."""
    write_host(world.host, resolve_emulation("trn2.48xlarge"), EmulationOptions(missing=frozenset({5})))
    with agent(world, "--emulate", "", "--host-root", str(world.host), *SELDOM) as running:
        running.ready()
        write_host(world.host, resolve_emulation("trn2.48xlarge"), EmulationOptions())
        assert world.kubelet.prepare("pod", [claim(world)])
        assert "neuron-device-5" not in world.offered(), "what is published waits for the next scan"


def test_readiness_tells_at_once_that_slices_cannot_be_published_and_liveness_does_not_restart_for_it(
    world: World,
) -> None:
    port = free_port()
    with agent(world, "--healthcheck-port", str(port), "--healthcheck-address", "127.0.0.1") as running:
        running.ready()
        eventually(lambda: health(port, "readiness") == "SERVING", what="readiness")
        assert health(port, "liveness") == "SERVING"
        world.server.fail(500, times=10_000)
        world.server.wipe_slices(NODE)
        world.server.close_watches()
        world.kubelet.restart()
        eventually(lambda: health(port, "readiness") == "NOT_SERVING", what="no readiness")
        eventually(lambda: health(port, "liveness") == "SERVING", what="liveness")


def test_liveness_tells_that_kubelet_refuses_the_driver(directory: Path) -> None:
    port = free_port()
    with node(directory) as world:
        world.kubelet.refuse = lambda driver: f"{driver} is not wanted"
        with agent(world, "--healthcheck-port", str(port), "--healthcheck-address", "127.0.0.1") as running:
            eventually(lambda: "is not wanted" in running.log, what="kubelet's reason in the log")
            eventually(lambda: health(port, "liveness") == "NOT_SERVING", what="the truth")


def test_metrics_count_what_was_done(world: World) -> None:
    port = free_port()
    with agent(world, "--metrics-port", str(port)) as running:
        running.ready()
        world.kubelet.prepare("pod", [claim(world)])
        # A slice that is seen is counted once its writer has the answer.
        eventually(lambda: 'neuron_dra_driver_slice_writes_total{verb="create"} 1.0' in scraped(port), what="the count")
        text = scraped(port)
        assert 'neuron_dra_driver_claim_operation_seconds_count{operation="prepare",result="ok"} 1.0' in text
        assert "neuron_dra_driver_prepared_claims 1.0" in text


def test_the_log_holds_no_token_at_the_highest_verbosity(world: World) -> None:
    with agent(world, "--v=10", "--log-format", "json") as running:
        running.ready()
        world.kubelet.prepare("pod", [claim(world)])
        running.terminate()
        assert "neuron-device-4" in running.log
        assert TOKEN not in running.log


def test_the_highest_verbosity_logs_each_request_to_the_api_server(world: World) -> None:
    with agent(world, "--v=6") as running:
        running.ready()
        eventually(lambda: "POST /apis/resource.k8s.io/v1/resourceslices: 201" in running.log, what="the write")
        assert f"GET /api/v1/nodes/{NODE}: 200" in running.log


def test_emulated_hardware_is_announced_however_it_came_about(world: World) -> None:
    write_host(world.host, resolve_emulation("trn1.32xlarge"), EmulationOptions())
    with agent(world, "--emulate", "", "--host-root", str(world.host)) as running:
        running.ready()
        assert "EMULATED hardware (trn1.32xlarge)" in running.log


def test_a_second_instance_takes_over_without_a_write_and_serves_what_the_first_prepared(world: World) -> None:
    first_uid, second_uid = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
    with agent(world, "--pod-uid", first_uid) as first:
        first.ready()
        wanted = claim(world)
        world.kubelet.prepare("pod", [wanted])
        world.node_told()
        eventually(lambda: world.server.count("PATCH", CLAIMS) == 1, what="the claim's status")
        begun = len(world.server.requests)
        with agent(world, "--pod-uid", second_uid) as second:
            world.kubelet.wait_registered(DRIVER_NAME, instances=2)
            eventually(lambda: "kubelet registered the driver" in second.log, what="the second's look")
            assert first.terminate() == 0
            world.kubelet.wait_registered(DRIVER_NAME, instances=1)
            other = claim(world, "other", devices=[("neurons", "neuron-device-5")])
            with golden_error(KubeletError):
                world.kubelet.prepare("other-pod", [other])
            world.kubelet.unprepare("pod")
            assert world.specs() == []
            assert world.write_paths(since=begun) <= {f"{CLAIMS}other/status"}


@pytest.mark.parametrize(
    "options",
    [
        ("--node-name", ""),
        ("--emulate", "p5.48xlarge"),
        ("--emulated-driver-version", "newest"),
        ("--emulated-ultraservers", "2x3"),
        ("--emulated-ultraservers", "2x4"),
        ("--device-numbering", "random"),
        ("--partitions", "all"),
        ("--shared-counters", "always"),
        ("--ultraserver-labels", "yes"),
        ("--healthcheck-port", "many"),
        ("--rescan-seconds", "0"),
        ("--rescan-seconds", "nan"),
    ],
)
def test_bad_options_are_explained_with_exit_status_2(world: World, options: tuple[str, str]) -> None:
    done = subprocess.run(world.command(*options), check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    golden(done.stderr)
    assert "Traceback" not in done.stderr


def test_a_name_in_the_environment_is_checked_as_the_options_is(world: World) -> None:
    command = [part for part in world.command() if part not in ("--node-name", NODE)]
    environment = {**os.environ, "NODE_NAME": "Node_1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 2, done.stderr
    golden(done.stderr)


def test_a_missing_kubeconfig_is_explained(world: World, tmp_path: Path) -> None:
    command = world.command("--kubeconfig", str(tmp_path / "nowhere"))
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    golden(done.stderr)
    assert "Traceback" not in done.stderr


def test_a_taken_health_port_ends_the_agent_with_the_reason(world: World) -> None:
    port = free_port()
    with agent(world, "--healthcheck-port", str(port), "--healthcheck-address", "127.0.0.1") as first:
        first.ready()
        with agent(world, "--healthcheck-port", str(port), "--healthcheck-address", "127.0.0.1") as second:
            assert second.process.wait(timeout=30) == 1
            assert "cannot listen" in second.log
            assert "Traceback" not in second.log


def labelled(world: World, labels: dict[str, str]) -> dict[str, object]:
    """The Node object with more labels."""
    (item,) = world.server.store.list("nodes", lambda item: item["metadata"]["name"] == NODE)[0]
    return {**item, "metadata": {**item["metadata"], "labels": {**item["metadata"].get("labels", {}), **labels}}}

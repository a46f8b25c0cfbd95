"""``dra-driver device-plugin`` as a process, and what it and the DRA driver say to each other's presence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.builders.agent import START_SECONDS, World, agent, free_port, health, node, scraped
from tests.builders.device_plugin import CORE, NEURON, NODE, PluginNode, chips, plugin_node
from tests.doubles.device_manager import sockets
from tests.doubles.kubelet_connection import KubeletError
from tests.doubles.sample_driver import node_directory
from tests.eventually import eventually
from tests.golden import golden, lines
from tests.paths import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture
def plugin_world() -> Iterator[PluginNode]:
    with node_directory() as root, plugin_node(root, "trn1.32xlarge", emulated=False) as made:
        yield made


class Process:
    """A running device plugin."""

    def __init__(self, world: PluginNode, options: tuple[str, ...], environment: dict[str, str]) -> None:
        self._log = world.root / "plugin.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command(world, *options), stdout=log, stderr=log, env=environment)

    @property
    def log(self) -> str:
        return self._log.read_text()


def command(world: PluginNode, *options: str) -> list[str]:
    kubeconfig = world.server.kubeconfig(world.root / "kubeconfig")
    values = {
        "--kubeconfig": str(kubeconfig),
        "--kubelet-directory": str(world.root),
        "--cdi-root": str(world.cdi),
        "--emulate": world.kind,
        "--emulation-root": str(world.host),
        "--healthcheck-port": "-1",
        "--rescan-seconds": "0.2",
        "--state-dir": str(world.root / "state"),
    }
    given = [word for pair in values.items() for word in pair]
    return [sys.executable, "-m", "dra_driver", "device-plugin", *given, *options]


@contextmanager
def plugin(world: PluginNode, *options: str, **environment: str) -> Iterator[Process]:
    """The process, killed in the end if it still runs."""
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "NODE_NAME": NODE}
    running = Process(world, options, base | environment)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()


def test_runs_from_registration_to_a_container_and_ends_cleanly(plugin_world: PluginNode) -> None:
    port = free_port()
    options = ("--healthcheck-port", str(port), "--healthcheck-address", "127.0.0.1")
    with plugin(plugin_world, *options) as running:
        plugin_world.manager.wait_for(NEURON, 16, START_SECONDS)
        plugin_world.manager.wait_for(CORE, 32, START_SECONDS)
        answers = plugin_world.manager.admit(plugin_world.chosen("p", CORE, range(8)))
        (answer,) = answers.values()
        assert chips(answer) == [0, 1, 2, 3]
        paths = [Path(device.host_path) for device in answer.devices]
        assert all(path.exists() and path.parent == plugin_world.host / "dev" for path in paths), "emulated nodes"
        assert "EMULATED hardware (trn1.32xlarge)" in running.log
        eventually(lambda: {health(port, name) for name in ("", "liveness", "readiness")} == {"SERVING"}, what="health")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=START_SECONDS) == 0
        assert "Traceback" not in running.log
    assert sockets(plugin_world.manager.directory) == []


def test_metrics_tell_of_devices_and_requests(plugin_world: PluginNode) -> None:
    port = free_port()
    with plugin(plugin_world, "--metrics-port", str(port)):
        plugin_world.manager.wait_for(NEURON, 16, START_SECONDS)
        plugin_world.manager.wait_for(CORE, 32, START_SECONDS)
        plugin_world.manager.admit(plugin_world.chosen("p", CORE, range(8)))
        with pytest.raises(KubeletError):
            plugin_world.manager.admit(plugin_world.plain("q", NEURON, 2))
        scraped_lines = scraped(port).splitlines()
    golden(line for line in scraped_lines if line.startswith("# HELP neuron_"))
    found = dict(line.rsplit(" ", 1) for line in scraped_lines if not line.startswith("#"))
    prefix = "neuron_dra_driver_device_plugin_"
    for resource, count in ((NEURON, "16.0"), (CORE, "32.0")):
        for name in ("devices", "healthy_devices"):
            assert found[f'{prefix}{name}{{resource="{resource}"}}'] == count
        assert found[f'{prefix}registrations_total{{resource="{resource}"}}'] == "1.0"
        assert found[f'{prefix}followed{{resource="{resource}"}}'] == "1.0"
    assert found[f'{prefix}request_seconds_count{{operation="allocate",result="ok"}}'] == "1.0"
    assert found[f'{prefix}request_seconds_count{{operation="allocate",result="error"}}'] == "1.0"


def test_a_killed_process_is_replaced_by_the_next_one(plugin_world: PluginNode) -> None:
    pods = []
    for number in range(3):
        with plugin(plugin_world):
            plugin_world.manager.wait_for(NEURON, 16, START_SECONDS)
            pods.append(plugin_world.chosen(f"p{number}", NEURON, (number,)))
            answers = plugin_world.manager.admit(pods[-1])
            assert [chips(answer) for answer in answers.values()] == [[number]]
        eventually(lambda: plugin_world.manager.allocatable(NEURON) == 0, what="its end")
    assert len(sockets(plugin_world.manager.directory)) == 2, "of the last one only"


def test_the_environment_sets_what_the_command_line_does_not(plugin_world: PluginNode) -> None:
    with plugin(plugin_world, DEVICE_INJECTION="cdi", VISIBLE_CORES_VARIABLE="AWS_NEURON_VISIBLE_DEVICES") as running:
        plugin_world.manager.wait_for(NEURON, 16, START_SECONDS)
        (answer,) = plugin_world.manager.admit(plugin_world.chosen("p", NEURON, (3,))).values()
        assert [device.name for device in answer.cdi_devices] == ["k8s.neuron.aws.com/chip=neuron3"], running.log
        assert dict(answer.envs) == {"AWS_NEURON_VISIBLE_DEVICES": "3"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--node-name", ""), "NODE_NAME"),
        (("--emulate", "p5.48xlarge"), "p5.48xlarge"),
        (("--device-injection", "mounts"), "nodes, cdi"),
        (("--device-numbering", "random"), "host, renumber"),
        (("--visible-cores-variable", "PATH"), "NEURON_RT_VISIBLE_CORES, AWS_NEURON_VISIBLE_DEVICES"),
        (
            ("--visible-cores-variable", "AWS_NEURON_VISIBLE_DEVICES", "--device-numbering", "renumber"),
            "exclude each other",
        ),
        (("--healthcheck-port", "many"), "--healthcheck-port"),
        (("--rescan-seconds", "0"), "from 0.1"),
        (("--rescan-seconds", "nan"), "--rescan-seconds"),
        (("--emulated-driver-version", "newest"), "newest"),
    ],
)
def test_bad_options_are_explained_with_exit_status_2(
    plugin_world: PluginNode, options: tuple[str, ...], text: str
) -> None:
    done = subprocess.run(
        [*command(plugin_world), "--node-name", NODE, *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_too_long_for_sockets_is_explained(plugin_world: PluginNode, tmp_path: Path) -> None:
    with plugin(plugin_world, "--kubelet-directory", str(tmp_path / ("x" * 120))) as running:
        assert running.process.wait(timeout=START_SECONDS) == 1
        assert "a shorter directory" in running.log
        assert "Traceback" not in running.log


# -- both on one node


@pytest.fixture
def dra_world() -> Iterator[World]:
    with node_directory() as root, node(root) as made:
        yield made


def set_allocatable(world: World, **counts: str) -> None:
    item = world.server.store.get("nodes", NODE)
    allocatable = {"cpu": "4", **{f"aws.amazon.com/{name}": count for name, count in counts.items()}}
    world.server.store.update("nodes", NODE, {**item, "status": {**item["status"], "allocatable": allocatable}})


def test_the_dra_driver_runs_where_a_device_plugin_was(dra_world: World) -> None:
    set_allocatable(dra_world, neuron="0", neuroncore="0")
    with agent(dra_world) as running:
        running.ready()


def test_the_device_plugin_refuses_to_run_beside_the_running_dra_driver(plugin_world: PluginNode) -> None:
    spec = {
        "driver": "neuron.aws.com",
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "neuron-device-0"}],
    }
    plugin_world.server.store.create("resourceslices", {"metadata": {"name": "slice"}, "spec": spec})
    with plugin(plugin_world) as running:
        assert running.process.wait(timeout=START_SECONDS) == 1
        golden(lines(running.log, "publishes"))
        assert "Traceback" not in running.log
    assert plugin_world.manager.registrations == []

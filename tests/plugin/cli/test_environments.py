"""The image's two environments: what programs of a node need is all that theirs has; other commands start in the other.

The node's environment is made here of the installed packages that requirements/node.txt names; the environment of the
tests stands for the other one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest

from dra_driver.cli.main import COMMANDS, DAEMONS, WITHOUT_EXTRAS
from tests.golden import golden
from tests.paths import ROOT

PROGRAMS = (
    "driver.agent",
    "legacy.device_plugin.agent",
    "neuron.emulation.running",
    "neuron.health.detector",
    "ultraserver.placer.controller",
    "ultraserver.rendezvous.leader",
    "ultraserver.rendezvous.worker",
)
"""Modules of what `WITHOUT_EXTRAS` starts."""


def pinned(file: str) -> set[str]:
    return set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / file).read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment of the driver with the packages of requirements/node.txt alone."""
    made = tmp_path_factory.mktemp("environments") / "node"
    venv.create(made, symlinks=True)
    (packages,) = made.glob("lib/python3*/site-packages")
    (packages / "driver.pth").write_text(f"{ROOT}\n")
    for name in pinned("node.txt"):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (packages / top).symlink_to(Path(str(found.locate_file(top))))
    return made / "bin/python"


@pytest.fixture
def other(node: Path, request: pytest.FixtureRequest) -> Path:
    """The link in the node's environment that names the other one, which has to be made."""
    link = node.parents[1] / "commands"
    request.addfinalizer(lambda: link.unlink(missing_ok=True))
    return link


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "dra_driver", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, cwd="/")


def test_the_nodes_environment_has_what_its_programs_load_and_nothing_else() -> None:
    needed = {"grpcio", "protobuf", "msgspec", "urllib3", "pyyaml", "prometheus-client", "pydantic", "h2", "h11"}
    of_pydantic = {"annotated-types", "pydantic-core", "typing-extensions", "typing-inspection"}
    assert pinned("node.txt") == needed | of_pydantic | {"hpack", "hyperframe"}


def test_the_other_environment_has_all_packages() -> None:
    assert pinned("commands.txt") > pinned("node.txt") | {"aiohttp", "boto3", "cel-python", "kubernetes", "rich"}


@pytest.mark.parametrize("module", PROGRAMS)
def test_the_programs_of_a_node_load_in_its_environment(module: str, node: Path) -> None:
    subprocess.run([str(node), "-c", f"import dra_driver.{module}"], check=True, timeout=120)


def test_metrics_are_served_in_the_nodes_environment(node: Path) -> None:
    code = (
        "import dra_driver.util.metrics as m, dra_driver.util.door as d; door = d.Door(); "
        "m.serve(door, m.Collector(m.Operations(), list, 'a', 'b'), '127.0.0.1', 0); door.stop()"
    )
    subprocess.run([str(node), "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("command", [*COMMANDS, *DAEMONS])
def test_each_command_starts_in_its_environment(command: str, node: Path, other: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text('#!/bin/sh\necho started elsewhere: "$@"\n')
    (tmp_path / "bin/python").chmod(0o755)
    other.symlink_to(tmp_path)
    words = [command.replace("_", "-"), "--help"]
    started_there = run(node, *words).stdout == f"started elsewhere: -m dra_driver {' '.join(words)}\n"
    assert started_there == (command not in WITHOUT_EXTRAS)


def test_a_command_goes_on_in_the_other_environment_with_its_arguments_and_status(node: Path, other: Path) -> None:
    other.symlink_to(sys.prefix)
    done = run(node, "select", "--instance-type=trn1.32xlarge", "device.attributes[")
    assert done.returncode == 2
    golden(done.stderr)


@pytest.mark.parametrize("command", ["kubelet-plugin", "placer", "device-plugin", "check-unused"])
def test_a_daemon_with_a_kubeconfig_names_the_extra_that_reads_it(command: str, node: Path) -> None:
    options = ["--node-name=node-1"] if command in ("kubelet-plugin", "device-plugin") else []
    done = run(node, command, "--kubeconfig=admin.conf", *options)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    golden(done.stderr)


def test_in_the_image_it_names_the_other_environment(node: Path, other: Path) -> None:
    other.symlink_to(sys.prefix)
    done = run(node, "kubelet-plugin", "--kubeconfig=admin.conf", "--node-name=node-1")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    golden(done.stderr.replace(sys.prefix, "/opt/commands"))


@pytest.mark.parametrize("command", ["extender", "top", "explain web-0", "completion bash"])
def test_a_command_without_its_extra_names_it(command: str, node: Path) -> None:
    done = run(node, *command.split())
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    golden(done.stderr)

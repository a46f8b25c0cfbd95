"""``scripts/emulated-efa-driver`` against a test kubelet and API server, as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from efadriver.main import EmulatedEfaDriver, main

from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.cdi import SpecDirectory
from dra_driver.kube.kubelet.dra import ClaimRef
from dra_driver.neuron.emulation.efa import EFA_CDI_KIND, EFA_CLASS, EFA_DRIVER_NAME, published
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.util.errors import DriverError
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.kubelet import Claim, Kubelet
from tests.doubles.sample_driver import claim, node_directory
from tests.eventually import eventually
from tests.golden import golden_error
from tests.paths import ROOT

pytestmark = pytest.mark.slow

NODE = "node-a"
TYPE = INSTANCE_TYPES["trn2.48xlarge"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "efadriver.main", *map(str, arguments)]


ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'tools'}:{ROOT}", "GRPC_ENABLE_FORK_SUPPORT": "0"}


@pytest.fixture
def root() -> Iterator[Path]:
    with node_directory() as directory:
        yield directory


@pytest.fixture
def kubelet(root: Path) -> Iterator[Kubelet]:
    with Kubelet(root) as running:
        yield running


@contextmanager
def running(root: Path, kubelet: Kubelet, server: ApiServer) -> Iterator[subprocess.Popen[bytes]]:
    """The driver, registered with kubelet."""
    options = ["--node-name", NODE, "--instance-type", TYPE.name, "--kubeconfig", server.kubeconfig(root / "config")]
    options += ["--kubelet-directory", root, "--cdi-root", root / "cdi"]
    process = subprocess.Popen(command(*options), env=ENVIRONMENT)
    try:
        kubelet.wait(lambda: EFA_DRIVER_NAME in kubelet.instances or process.poll() is not None, "registered", 30)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def driver(root: Path, kubelet: Kubelet, server: ApiServer) -> Iterator[subprocess.Popen[bytes]]:
    server.add_node(NODE)
    with running(root, kubelet, server) as process:
        yield process


def offered(server: ApiServer) -> list[str]:
    return [device["name"] for item in server.slices() for device in item["spec"]["devices"]]


def wanted(server: ApiServer, *devices: str, pool: str = NODE) -> Claim:
    made = claim("pair", drivers=(EFA_DRIVER_NAME,))
    results = [{"request": "efa", "driver": EFA_DRIVER_NAME, "pool": pool, "device": name} for name in devices]
    chip = {"request": "neurons", "driver": "neuron.aws.com", "pool": pool, "device": "neuron-device-4"}
    server.add_claim(made.namespace, made.name, uid=made.uid, results=[chip, *results])
    return made


def test_it_publishes_its_devices_and_the_class_and_again_after_kubelet_took_them_away(
    driver: subprocess.Popen[bytes], kubelet: Kubelet, server: ApiServer
) -> None:
    names = [device.name for device in published(TYPE)]
    eventually(lambda: offered(server) == names)
    (item,) = server.slices()
    assert (item["spec"]["driver"], item["spec"]["nodeName"]) == ("dra.net", NODE)
    (made,) = server.store.list("deviceclasses")[0]
    assert made["metadata"]["name"] == EFA_CLASS
    server.wipe_slices(NODE)
    kubelet.restart()
    eventually(lambda: offered(server) == names)


def test_a_class_that_is_there_stays_as_it_is(root: Path, kubelet: Kubelet, server: ApiServer) -> None:
    server.add_node(NODE)
    made = server.store.create("deviceclasses", {"metadata": {"name": EFA_CLASS, "namespace": ""}, "spec": {}})
    with running(root, kubelet, server):
        eventually(lambda: len(offered(server)) == 16)
    assert server.store.list("deviceclasses")[0] == [made]


def test_it_prepares_the_devices_of_a_claim_that_are_its_own_also_after_a_reboot(
    driver: subprocess.Popen[bytes], kubelet: Kubelet, server: ApiServer, root: Path
) -> None:
    given = wanted(server, "pci-0000-6c-00-0")
    for _ in range(2):
        (device,) = kubelet.prepare("pod", [given])[given.uid]
        assert (device.requests, device.pool, device.name) == (("efa",), NODE, "pci-0000-6c-00-0")
        (spec_file,) = (root / "cdi").iterdir()
        spec = json.loads(spec_file.read_text())
        (edits,) = [
            found["containerEdits"]
            for found in spec["devices"]
            if (f"{spec['kind']}={found['name']}",) == device.cdi_ids
        ]
        assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/infiniband/uverbs2"]
        spec_file.unlink()
        kubelet.restart()
        kubelet.wait_registered(EFA_DRIVER_NAME)
    kubelet.unprepare("pod")
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(timeout=30) == 0
    assert list(kubelet.registry_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "pool"),
    [
        ("pci-0000-00-00-0", NODE),
        ("pci-0000-6c-00-0", "node-b"),
        ("", NODE),
    ],
)
def test_it_refuses_what_the_node_has_not(server: ApiServer, tmp_path: Path, name: str, pool: str) -> None:
    driver = EmulatedEfaDriver(ResourceApi(server.transport()), NODE, TYPE, SpecDirectory(tmp_path, EFA_CDI_KIND))
    given = wanted(server, *([name] if name else []), pool=pool)
    with golden_error(DriverError):
        driver.prepare(ClaimRef(given.namespace, given.name, given.uid), time.monotonic() + 10)
    with golden_error(DriverError):
        driver.prepare(ClaimRef(given.namespace, given.name, "another"), time.monotonic() + 10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [("inf2.48xlarge", "no EFA pairing of inf2.48xlarge is known"), ("trn9", "unknown instance type 'trn9'")],
)
def test_it_ends_where_there_can_be_no_such_devices(
    kind: str, text: str, server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = server.kubeconfig(tmp_path / "config")
    assert main(["--node-name", NODE, "--instance-type", kind, "--kubeconfig", str(config)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {text}")

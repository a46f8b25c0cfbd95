"""The driver of docs/develop/library.md as a process, and what the page says of the library."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.objects.meta import ApiObject
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.kubelet import Claim, Kubelet, KubeletError
from tests.doubles.sample_driver import node_directory
from tests.eventually import eventually
from tests.golden import golden, golden_error
from tests.manifests.pages import listings
from tests.paths import ROOT

pytestmark = pytest.mark.slow

DRIVER, NODE = "board.example.com", "node-a"
CODE = listings()["driver.py"]
PAGE = (ROOT / "docs/develop/library.md").read_text()


@dataclass
class Node:
    """A node with two boards, one of them unhealthy, and the driver on it."""

    server: ApiServer
    kubelet: Kubelet
    root: Path

    @property
    def boards(self) -> Path:
        return self.root / f"plugins/{DRIVER}/boards"

    def offered(self) -> dict[str, list[str]] | None:
        """Effects of the taints by published device; None without a slice."""
        for item in self.server.slices():
            devices = item["spec"].get("devices", [])
            return {device["name"]: [taint["effect"] for taint in device.get("taints", ())] for device in devices}
        return None

    def wait_offered(self, devices: dict[str, list[str]]) -> None:
        eventually(lambda: self.offered() == devices, what=f"the offer of {devices}")

    def claim(self, name: str, *boards: str) -> Claim:
        """A claim with boards, and with a device of another driver."""
        devices = [("board", DRIVER, board) for board in boards] + [("gpu", "gpu.example.com", "gpu-0")]
        results = [{"request": r, "driver": of, "pool": NODE, "device": device} for r, of, device in devices]
        made = self.server.add_claim("default", name, results=results)
        return Claim("default", name, made["metadata"]["uid"], (DRIVER,))

    def specs(self) -> list[Any]:
        return [json.loads(path.read_text()) for path in sorted((self.root / "cdi").glob("*"))]


@contextmanager
def driver(root: Path, server: ApiServer) -> Iterator[subprocess.Popen[bytes]]:
    """The driver of the page; fails if it logs an error or, until the block ends, does not run."""
    server.add_node(NODE, uid="node-uid")
    (root / "driver.py").write_text(CODE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NODE_NAME": NODE}
    environment["KUBECONFIG"] = str(server.kubeconfig(root / "config"))
    command = [sys.executable, "-W", "error", *map(str, (root / "driver.py", root, root / "cdi"))]
    log = root / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, env=environment, stderr=stderr)
    try:
        yield process
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        text = log.read_text()
        sys.stdout.write(text)
    assert re.findall(r"^\S+ (?:ERROR|CRITICAL) .*|.*Traceback.*", text, re.MULTILINE) == []


@contextmanager
def node(release: str | None = None) -> Iterator[Node]:
    """The driver has published; at the end, its slice stays and its sockets do not."""
    with node_directory() as root, ApiServer() as server, Kubelet(root, watches_health=release) as kubelet:
        made = Node(server, kubelet, root)
        made.boards.mkdir(parents=True)
        (made.boards / "zero").touch()
        (made.boards / "full").write_text("its fan stands still\n")
        with driver(root, server):
            eventually(made.offered, what="the driver to publish")
            kubelet.wait_registered(DRIVER)
            yield made
        assert list(kubelet.registry_dir.iterdir()) == []
        assert made.offered()


def test_the_driver_is_complete_in_one_page() -> None:
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 120


def test_devices_are_published_once_and_again_when_their_slice_is_gone() -> None:
    offer: dict[str, list[str]] = {"full": ["NoSchedule"], "zero": []}
    with node() as made:
        made.wait_offered(offer)
        (item,) = made.server.slices()
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", NODE, "node-uid")
        assert item["spec"]["nodeName"] == NODE
        writes, version = made.server.writes(), item["metadata"]["resourceVersion"]
        made.kubelet.stop()
        made.server.wipe_slices(NODE)
        made.kubelet.start()
        made.kubelet.wait_registered(DRIVER)
        made.wait_offered(offer)
        made.server.wipe_slices(NODE)
        made.wait_offered(offer)
        assert made.server.slices()[0]["metadata"]["resourceVersion"] != version
        (made.boards / "full").write_text("")
        (made.boards / "null").touch()
        made.wait_offered({"full": [], "null": [], "zero": []})
        last = made.server.slices()
        assert made.server.writes() - writes < 20
        made.server.close_watches()
        eventually(lambda: made.server.count("GET", "resourceslices", watch=True) > 1)
        assert made.server.slices() == last


def test_there_is_no_slice_before_kubelet_knows_the_driver() -> None:
    with node_directory() as root, ApiServer() as server, driver(root, server):
        eventually(lambda: server.count("GET", "resourceslices", watch=True))
        assert server.writes() == 0
        with Kubelet(root):
            eventually(server.slices, 15)


def test_a_claim_is_prepared_again_after_a_reboot_and_unprepared() -> None:
    with node() as made:
        wanted = made.claim("two", "zero", "full")
        for _ in range(2):
            devices = made.kubelet.prepare("pod", [wanted])[wanted.uid]
            assert [(device.requests, device.pool, device.name) for device in devices] == [
                (("board",), NODE, "zero"),
                (("board",), NODE, "full"),
            ]
            (spec,) = made.specs()
            edits = {f"{spec['kind']}={device['name']}": device["containerEdits"] for device in spec["devices"]}
            found = [edits[name] for device in devices for name in device.cdi_ids]
            assert [item["env"] for item in found] == [["BOARD_ZERO=/dev/board/zero"], ["BOARD_FULL=/dev/board/full"]]
            assert found[0]["deviceNodes"] == [{"path": "/dev/board/zero", "hostPath": "/dev/zero"}]
            for path in (made.root / "cdi").iterdir():
                path.unlink()
            made.kubelet.restart()
            made.kubelet.wait_registered(DRIVER)
        made.kubelet.prepare("pod", [wanted])
        made.kubelet.unprepare("pod")
        assert made.specs() == []


def test_a_claim_is_refused_that_is_not_what_kubelet_has_seen() -> None:
    with node() as made:
        replaced = made.claim("replaced", "zero")
        for name, claim in (
            ("replaced", Claim("default", "replaced", "another-uid", (DRIVER,))),
            ("gone", Claim("default", "gone", "some-uid", (DRIVER,))),
            ("another driver's", made.claim("other")),
            ("lost device", made.claim("lost", "one")),
        ):
            with golden_error(KubeletError, name):
                made.kubelet.prepare(name, [claim])
            del made.kubelet.claims["default", claim.name]
        assert made.specs() == []
        made.kubelet.prepare("pod", [replaced])


@pytest.mark.parametrize("release", ["1.36", "1.37"])
def test_the_health_of_devices_is_reported(release: str) -> None:
    with node(release) as made:

        def reported(health: str, message: str) -> bool:
            return made.kubelet.health.of(DRIVER, NODE, "zero") == (health, message)

        for text, expected in (("", "Healthy"), ("it is wet", "Unhealthy"), ("", "Healthy")):
            (made.boards / "zero").write_text(text)
            eventually(partial(reported, expected, text))
        golden(made.kubelet.health.of(DRIVER, NODE, "full"))
    assert made.kubelet.health.of(DRIVER, NODE, "full") == ("Unknown", "")


def stable_names() -> set[tuple[str, str]]:
    """Modules and names that the page calls stable."""
    found = set()
    for package, text in re.findall(r"^- `((?:kube|util)\S*)`: ((?:.*\n)(?:  .*\n)*)", PAGE, re.MULTILINE):
        for name in re.findall(r"`([\w.]+)`", text):
            module, _, attribute = f"dra_driver.{package}.{name}".rpartition(".")
            if attribute.islower() and package == "kube.objects" and "." not in name:
                structs = vars(import_module(f"{module}.{attribute}"))
                found |= {(f"{module}.{attribute}", one) for one, it in structs.items() if is_struct(it)}
            else:
                found.add((module, attribute))
    return found


def is_struct(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, ApiObject)


def test_the_stable_names_exist_and_the_driver_uses_no_others() -> None:
    stable = stable_names()
    assert len(stable) > 20
    assert [(module, name) for module, name in stable if not hasattr(import_module(module), name)] == []
    used = {
        (node.module, name.name)
        for node in ast.walk(ast.parse(CODE))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dra_driver")
        for name in node.names
    }
    assert used - stable == set()


def test_the_library_loads_the_packages_that_the_page_names() -> None:
    imports = "\n".join(f"import {module}" for module, _ in stable_names())
    code = f"import sys\n{imports}\nfor name, module in sys.modules.items(): print(name, vars(module).get('__file__'))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (paragraph,) = re.findall(r"^That installs .*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([a-z0-9-]+)`", paragraph)) - {"kubernetes", "cli"}
    modules = {{"grpcio": "grpc", "protobuf": "google"}.get(name, name.replace("-", "_")) for name in named}
    found = set(re.findall(r"^(\w+)\S* .*/site-packages/", loaded, re.MULTILINE)) - {"_distutils_hack"}
    assert found == modules
    pins = re.findall(r"^\S+==", (ROOT / "requirements/node.txt").read_text(), re.MULTILINE)
    assert f"{len(pins)} other packages" in paragraph

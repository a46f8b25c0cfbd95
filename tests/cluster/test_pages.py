"""The commands of the pages that need a cluster, run as a reader runs them, page by page.

Words that stand for something of the reader's are replaced by what this cluster has, see ``words``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.cluster import Cluster

from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import Kube, eventually
from tests.manifests.pages import PAGES, Command, commands_of, is_shown, listings
from tests.manifests.support import name_of
from tests.paths import DATA, ROOT

pytestmark = pytest.mark.nightly

CLUSTER = "on a cluster"
WITH_RUNS = [page for page in PAGES if any(block.key == CLUSTER for block in commands_of(page))]
EXAMPLE = "examples/specs/1x4-connected-devices.yaml"
DEVICES = ("--emulate", EMULATED, "--partitions", "chip.core.group.node")
"""What the driver of the pages offers: of all kinds, so that each page finds its own."""
PAGE_SECONDS = 200
LOGS_SECONDS = 10.0
"""Within which a container that runs has printed what it prints."""


@pytest.fixture
def desk(lab: Cluster, kube: Kube, tmp_path: Path) -> Iterator[Path]:
    """A reader's directory: the files that pages name, and the kubeconfig where kubectl looks for it."""
    for name in ("examples", "charts", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    for path in (DATA / "pages").iterdir():
        shutil.copy(path, tmp_path)
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube/config").symlink_to(kube.access.kubeconfig)
    programs = tmp_path / "bin"
    programs.mkdir()
    # Without the lab's options: kubectl takes none before the name of a plugin.
    (programs / "kubectl").symlink_to(lab.kubectl_command()[0])
    yield tmp_path
    for kind in ("deployments", "pods", "resourceclaims", "resourceclaimtemplates"):
        for namespace in ("default", "shop"):
            kube.kubectl(
                *("delete", kind, "--all", f"--namespace={namespace}", "--grace-period=1", "--wait=false"), check=False
            )
    eventually("the pages' pods to be gone", lambda: not kube.find("pods", "default"), 60)
    kube.kubectl("delete", "--ignore-not-found", "--wait=false", "namespace/shop")
    eventually("the namespace shop to be gone", lambda: kube.get("namespaces", "shop") is None, 60)
    kube.kubectl("taint", "nodes", "--all", "aws.amazon.com/neuron-", check=False)
    kube.kubectl("label", "nodes", "--all", "neuron.aws.com/partitions-", check=False)


def words(installation: Installation) -> dict[str, str]:
    """What stands in the pages for something of the reader's, and what it is here."""
    return {
        "DRIVER-POD": str(installation.pod("node-1")["metadata"]["name"]),
        "NODE": "node-1",
        "IMAGE": f"--yes {installation.image}",
        "POD": "pod0",
        "NAMESPACE": "default",
    }


def filled(text: str, replaced: dict[str, str]) -> str:
    """A command with the reader's own words; what only contains one, such as NODE_NAME, stays."""
    for word, value in replaced.items():
        text = " ".join(value if part == word else part.replace(f"/{word}", f"/{value}") for part in text.split(" "))
    return text.replace('"NODE"', f'"{replaced["NODE"]}"')


def run(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run what a reader types; both streams in one."""
    path = f"{directory / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=directory,
        env={"PATH": path, "HOME": str(directory)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PAGE_SECONDS,
        check=False,
    )


def check(name: str, command: Command, text: str, directory: Path) -> None:
    """Run a command, and compare what it prints with what the page shows."""
    end = time.monotonic() + LOGS_SECONDS
    while True:
        result = run(text, directory)
        if "kubectl logs" not in text or is_shown(command.printed, result.stdout) or time.monotonic() > end:
            break
        time.sleep(0.5)
    said = f"{name}: {text}\n{result.stdout}"
    assert result.returncode in ((0, 1) if command.printed else (0,)), said
    if command.printed:
        assert is_shown(command.printed, result.stdout), said


@pytest.mark.timeout(PAGE_SECONDS, func_only=True)
@pytest.mark.parametrize("page", WITH_RUNS, ids=name_of)
def test_commands_of_a_page_work_on_a_cluster(
    request: pytest.FixtureRequest, kube: Kube, installation: Installation, desk: Path, page: Path
) -> None:
    if name_of(page) == "docs/use/limits.md":
        request.getfixturevalue("no_device_plugin_remembered")  # the trap that the page describes
    installation.ensure(*DEVICES)
    kube.apply((desk / "shop.yaml").read_text())
    if name_of(page) == "docs/operate/on-call.md":
        kube.apply((ROOT / EXAMPLE).read_text(), namespace="default")  # the pod that the page is about
    for name, text in listings().items():
        (desk / name).write_text(text)
    for block in commands_of(page):
        # Functions that a block defines are used in later ones.
        defined = [
            command.text for other in commands_of(page) for command in other.commands() if "() {" in command.text
        ]
        for command in block.commands() if block.key in ("", CLUSTER) else ():
            if block.value == "install":
                installation.changed()
            replaced = words(installation)
            before = "".join(f"{filled(text, replaced)}\n" for text in defined if text != command.text)
            check(block.name, command, before + filled(command.text, replaced), desk)
        if block.value == "install":
            installation.wait_ready()

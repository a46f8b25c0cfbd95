"""Another driver on the same node, in the same claim: the example of docs/develop/library.md, its slice by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.cluster import Cluster

from tests.cluster.lib.installation import Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.lifecycle import Stopwatch, is_ready, nudge, uid_of, wait_driver_ready, wait_gone
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.lib.objects import pod, request, template
from tests.paths import ROOT

pytestmark = pytest.mark.nightly

NODE = "node-1"
CLOCK = "clock.example.com"
CLASS: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": CLOCK},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{CLOCK}'"}}]},
}
SLICE: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": f"{NODE}-clock"},
    "spec": {
        "driver": CLOCK,
        "nodeName": NODE,
        "pool": {"name": "node", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "clock", "allowMultipleAllocations": False}, {"name": "clock-2"}],
    },
}


class ClockDriver:
    """The example, as a process in the mount namespace of a node."""

    def __init__(self, lab: Cluster, directory: Path) -> None:
        page = (ROOT / "docs/develop/library.md").read_text()
        code, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)  # the other one reports health as well
        script = directory / "clock.py"
        script.write_text(code)
        command = [sys.executable, str(script), "/var/lib/kubelet", "/run/cdi"]
        self._command = lab.node(NODE).enter_command(command)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "GRPC_ENABLE_FORK_SUPPORT": "0"}
        self._process = subprocess.Popen(self._command, env=environment)

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        if self._process is not None:
            self._process.terminate()
            assert self._process.wait(15) == 0
            self._process = None


@pytest.fixture
def clock_driver(lab: Cluster, kube: Kube, tmp_path: Path) -> Iterator[ClockDriver]:
    """The other driver, running, with its class and slice."""
    made = ClockDriver(lab, tmp_path)
    made.start()
    kube.apply(CLASS, SLICE)
    yield made
    made.stop()
    kube.kubectl("delete", "--ignore-not-found", "deviceclass", CLOCK)
    kube.kubectl("delete", "--ignore-not-found", "resourceslice", SLICE["metadata"]["name"])


def test_a_claim_of_two_drivers_waits_for_both_and_neither_disturbs_the_other(
    driver: Installation,
    lab: Cluster,
    kube: Kube,
    clock_driver: ClockDriver,
    namespace: Namespace,
    node_files: dict[str, NodeFiles],
) -> None:
    files = node_files[NODE]
    wait_driver_ready(driver, NODE)
    both = template("both", request("neurons", 2), request("clock", device_class=CLOCK))
    namespace.apply(both, template("own", request()), pod("first", templates={"both": "both"}, node=NODE))
    _wait_ready(namespace, "first")
    assert namespace.numbers("first") == [0, 1]
    assert namespace.exec("first", "echo $PREPARED_AT").strip().isdecimal()
    first = uid_of(namespace.claim_of("first", "both"))

    stopwatch = Stopwatch()
    clock_driver.stop()
    namespace.kubectl("delete", "pod", "first", "--grace-period=1", "--wait=false")
    namespace.apply(
        pod("second", templates={"both": "both"}, node=NODE), pod("own", templates={"own": "own"}, node=NODE)
    )
    namespace.wait_ready("own")
    stopwatch.lap("a pod that needs only this driver is ready while the other driver is away")
    message = namespace.wait_event("second", CLOCK)
    stopwatch.lap(f"kubelet says: {message}")
    lab.node(NODE).restart_kubelet()
    eventually("the slice of this driver to be there again", lambda: kube.slices(NODE))
    assert namespace.phase("second") == "Pending"
    assert namespace.pod("first") is not None

    clock_driver.start()
    _wait_ready(namespace, "second")
    nudge(namespace, "first")
    wait_gone(namespace, "first")
    stopwatch.lap("one pod runs, the other is gone")
    assert first not in files.specs()
    assert set(files.checkpoint()) == {
        uid_of(namespace.claim_of("second", "both")),
        uid_of(namespace.claim_of("own", "own")),
    }
    assert namespace.numbers("second") == [0, 1]


def _wait_ready(namespace: Namespace, name: str) -> None:
    """Wait for a pod whose other driver kubelet may not have registered yet, which only kubelet knows."""

    def probe() -> bool:
        nudge(namespace, name)
        found = namespace.pod(name)
        return found is not None and is_ready(found)

    eventually(f"pod {name} to be Ready", probe, 60, every=2)

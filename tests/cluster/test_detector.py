"""The node problem detector of the chart on a real containerd: what it may do, and what becomes of a line in the log.

The nodes of the cluster share the machine's kernel. So the detector reads the real log only to show that it may; lines
about chips come from a file on one node.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.cluster import Cluster

from tests.cluster.lib.installation import EMULATED
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.release import DETECTOR_NAMESPACE, DRA, Release
from tests.cluster.test_security import listening

pytestmark = pytest.mark.nightly

DAEMONSET = "neuron-node-problem-detector"
DRIVER = "neuron-dra-driver"
SYSLOG = 1 << 34
SERIAL = "19fcda00f5ff6eb9"
LOG = "kernel.log"


@pytest.fixture
def detector(release: Release) -> Release:
    """The DRA driver and the detector; ready, so the detector has read the kernel log."""
    release.ensure({**DRA, "npd.enabled": "true"}, EMULATED)
    return release


def pod(kube: Kube, namespace: str, app: str, node: str) -> Object:
    found = kube.find("pods", namespace, labels=f"app={app}", fields=f"spec.nodeName={node}")
    (item,) = [item for item in found if "deletionTimestamp" not in item["metadata"]]
    return item


def execute(kube: Kube, item: Object, *command: str, check: bool = True) -> str:
    metadata = item["metadata"]
    return kube.kubectl(f"--namespace={metadata['namespace']}", "exec", metadata["name"], "--", *command, check=check)


@pytest.mark.kubernetes("1.37", "1.34")
def test_the_kernel_log_is_read_with_one_capability_and_no_device(detector: Release, kube: Kube) -> None:
    item = pod(kube, DETECTOR_NAMESPACE, DAEMONSET, "node-1")
    status = dict(line.split(":", 1) for line in execute(kube, item, "cat", "/proc/1/status").splitlines())
    assert {key: int(status[key], 16) for key in ("CapPrm", "CapEff", "CapBnd")} == {
        "CapPrm": SYSLOG,
        "CapEff": SYSLOG,
        "CapBnd": SYSLOG,
    }
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
    mounts = [line.split() for line in execute(kube, item, "cat", "/proc/1/mounts").splitlines()]
    own = ("/proc", "/dev", "/sys/fs/cgroup", "/etc/host", "/etc/resolv.conf")
    writable = {fields[1] for fields in mounts if "rw" in fields[3].split(",") and not fields[1].startswith(own)}
    assert writable == {"/run/neuron-health"}
    assert "/var/run/secrets/kubernetes.io/serviceaccount" not in {fields[1] for fields in mounts}
    assert "kmsg" not in execute(kube, item, "ls", "/dev")
    tables = execute(kube, item, "cat", "/proc/net/tcp", "/proc/net/tcp6")
    assert listening(tables) == {(item["status"]["podIP"], 51515)}


@pytest.fixture
def log(detector: Release, lab: Cluster, kube: Kube) -> Iterator[Path]:
    """A file on node-1 that the detectors read in place of the kernel's log; each node has a directory of its own."""
    path = lab.layout.node(1).health / LOG
    for node in lab.nodes:
        (node.layout.health / LOG).write_text("<6>[    0.000000] Linux version 6\n")
    where = (f"--namespace={DETECTOR_NAMESPACE}", f"daemonset/{DAEMONSET}")
    rollout = ("rollout", "status", *where, "--timeout=100s")
    kube.kubectl("set", "env", *where, f"KERNEL_LOG=/run/neuron-health/{LOG}", "RESCAN_SECONDS=1")
    kube.kubectl(*rollout, timeout=110)
    try:
        yield path
    finally:
        kube.kubectl("set", "env", *where, "KERNEL_LOG-", "RESCAN_SECONDS-")
        kube.kubectl(*rollout, timeout=110)
        for node in lab.nodes:
            for left in node.layout.health.iterdir():
                left.unlink()


def test_a_line_reaches_the_driver_of_its_node_and_of_no_other(log: Path, lab: Cluster, kube: Kube) -> None:
    name = f"SRAM_UNCORRECTABLE_ERROR-{SERIAL}.json"
    uptime = time.clock_gettime(time.CLOCK_MONOTONIC)
    with log.open("a") as file:
        file.write(
            f"<3>[{uptime:12.6f}] neuron: NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0 hostname=node-1 "
            f"nd-id=3 nc-id=1 serial-num={SERIAL} action=TERMINATE_INSTANCE\n"
        )
    driver = pod(kube, DRIVER, "neuron-dra-driver-kubelet-plugin", "node-1")

    def read() -> Object | None:
        text = execute(kube, driver, "cat", f"/run/neuron-health/{name}", check=False)
        hint: Object | None = json.loads(text) if text else None
        return hint

    hint = eventually("the hint in the driver's container", read, 20)
    assert (hint["kind"], hint["device"], hint["core"], hint["serial"]) == ("SRAM_UNCORRECTABLE_ERROR", 3, 1, SERIAL)
    assert abs(time.time() - hint["seen"]) < 60
    refused = execute(kube, driver, "sh", "-c", "echo x >/run/neuron-health/x || echo refused", check=False)
    assert "refused" in refused
    assert [path.name for path in lab.layout.node(2).health.glob("*.json")] == []

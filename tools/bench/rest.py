"""Measures the idle driver, in its container as the installer starts it on a node with Neuron devices."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lab.cluster import Cluster
from lab.errors import LabError
from lab.images import ImageBuilder
from lab.progress import Progress
from lab.settings import REPOSITORY, Settings
from lab.spec import ClusterSpec

from bench import objects, procfs
from bench.drivers import INSTANCE_TYPE, emulate_host
from dra_driver.kube.api.client import Transport

IMAGE = "neuron-dra-driver:benchmark"
HARDWARE = "/opt/aws/neuron"
"""The path of the host that containers see as it is; here with the tree of an emulated host (`HOST_ROOT`), so that the
driver itself emulates nothing."""
SETTLE_SECONDS = 40.0
"""From the pod's readiness to the first measurement."""
NAMESPACE, ACCOUNT = "neuron-dra-driver", "neuron-dra-driver-sa"
_SELECTOR = "app=neuron-dra-driver-kubelet-plugin"
_FLOW_SCHEMAS_PATH = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
_KINDS = {
    "watch": ["watch"],
    "read": ["get", "list"],
    "write": ["create", "update", "patch", "delete", "deletecollection"],
}
_COUNTED = re.compile(r'apiserver_flowcontrol_dispatched_requests_total\{.*flow_schema="benchmark-(\w+)".*\} (\S+)')
_PUBLISHED = re.compile(r"^(\S+Z) INFO driver\.resourceslices\.controller published generation", re.MULTILINE)
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class RestFigures:
    """The idle driver.

    Attributes:
        python: Version of Python in the image.
        start_seconds: From the start of its process until its slices were stored, according to its log.
        resident_mb: VmRSS after `SETTLE_SECONDS`, in MB of 1024 kB.
        resident_later_mb: VmRSS at the end.
        threads: Number of its threads.
        seconds: Duration of the observation after that.
        cpu_percent: Of one core, including kubelet's probes.
        requests: Requests that the API server counted in that time, by kind: watch, read, write.
    """

    python: str
    start_seconds: float
    resident_mb: float
    resident_later_mb: float
    threads: int
    seconds: float
    cpu_percent: float
    requests: Mapping[str, int]

    def an_hour(self, kind: str) -> float:
        """Return the requests of a kind per hour, extrapolated."""
        return self.requests[kind] * 3600 / self.seconds


def cluster_spec(kubernetes: str) -> ClusterSpec:
    """Return a cluster whose nodes are of the type that is emulated, with files of their own below `HARDWARE`."""
    labels = {"*": {"node.kubernetes.io/instance-type": INSTANCE_TYPE}}
    return ClusterSpec(name="benchmark", kubernetes=kubernetes, labels=labels, node_directories=(HARDWARE,))


def measure(
    cluster: Cluster, transport: Transport, python: Path, settings: Settings, progress: Progress, seconds: float
) -> RestFigures:
    """Install the driver and observe it for `seconds` while it is idle.

    Args:
        cluster: made of `cluster_spec`.
        transport: to its API server.
        python: with the driver, to emulate the hosts.
        settings: where things are built.
        progress: tells how far it is.
        seconds: to observe.

    Raises:
        LabError: It cannot be built or installed, or did not become idle.
    """
    for precedence, (kind, verbs) in enumerate(_KINDS.items(), start=100):
        body = objects.flow_schema(f"benchmark-{kind}", precedence, (NAMESPACE, ACCOUNT), verbs)
        transport.request("POST", _FLOW_SCHEMAS_PATH, body=body)
    for number in range(1, cluster.spec.nodes + 1):
        emulate_host(python, cluster.layout.node(number).own_directory(HARDWARE))
    _install(cluster, settings, progress)
    with progress.step(f"letting the driver come to rest for {SETTLE_SECONDS:.0f} s"):
        time.sleep(SETTLE_SECONDS)
    pod = cluster.kubectl("-n", NAMESPACE, "get", "pods", "-l", _SELECTOR, "-o", "name").stdout.split()[0]

    def read(path: str) -> str:
        return cluster.kubectl("-n", NAMESPACE, "exec", pod, "--", "cat", path).stdout

    version = cluster.kubectl("-n", NAMESPACE, "exec", pod, "--", "python3", "--version").stdout.split()[-1]
    log = cluster.kubectl("-n", NAMESPACE, "logs", pod).stdout
    status = read("/proc/1/status")
    requests, ticks, begun = _requests(transport), procfs.cpu_ticks(read("/proc/1/stat")), time.monotonic()
    with progress.step(f"watching the driver at rest for {seconds / 60:.0f} minutes"):
        time.sleep(seconds)
    ticks_later, lasted = procfs.cpu_ticks(read("/proc/1/stat")), time.monotonic() - begun
    requests_later = _requests(transport)
    later = read("/proc/1/status")
    return RestFigures(
        python=version,
        start_seconds=published_at(log) - _boot_time() - procfs.start_ticks(read("/proc/1/stat")) / _TICKS,
        resident_mb=procfs.status_number(status, "VmRSS") / 1024,
        resident_later_mb=procfs.status_number(later, "VmRSS") / 1024,
        threads=procfs.status_number(later, "Threads"),
        seconds=lasted,
        cpu_percent=(ticks_later - ticks) / _TICKS / lasted * 100,
        requests={kind: requests_later[kind] - requests[kind] for kind in _KINDS},
    )


def published_at(log: str) -> float:
    """Return when the driver had published for the first time, in seconds since 1970, from its log.

    Raises:
        LabError: The log does not contain it.
    """
    found = _PUBLISHED.search(log)
    if found is None:
        raise LabError("The driver's log does not say that its slices were published, so nothing is reported.")
    return datetime.fromisoformat(found[1]).timestamp()


def dispatched(metrics: str) -> dict[str, int]:
    """Return the number of requests that the API server dispatched for each of our FlowSchemas, from its metrics."""
    counts = dict.fromkeys(_KINDS, 0)
    for kind, number in _COUNTED.findall(metrics):
        counts[kind] += int(float(number))
    return counts


def _boot_time() -> float:
    return time.time() - float(Path("/proc/uptime").read_text().split()[0])


def _requests(transport: Transport) -> dict[str, int]:
    return dispatched(transport.request("GET", "/metrics").body.decode())


def _install(cluster: Cluster, settings: Settings, progress: Progress) -> None:
    with tempfile.TemporaryDirectory() as directory:
        archive = Path(directory) / "driver.tar"
        ImageBuilder(settings, progress).build(IMAGE, archive, or_newest=True)
        cluster.load(archive)
    kubectl = f"{REPOSITORY}/scripts/cluster --name {cluster.spec.name} kubectl"
    command = [str(REPOSITORY / "scripts/install-dra-driver.sh"), "--yes", "--kubectl", kubectl]
    with progress.step("installing the driver"):
        done = subprocess.run(
            [*command, "--env", f"HOST_ROOT={HARDWARE}/host", IMAGE],
            check=False,
            capture_output=True,
            text=True,
            timeout=400,
        )
    if done.returncode != 0:
        raise LabError(f"The driver was not installed:\n{done.stderr[-2000:]}")

"""What tests of restarts, updates and failures need beside the other helpers: watches, kills, faults, and nudges."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.cluster import Cluster
from lab.layout import API_ADDRESS
from lab.node import Node

from dra_driver.kube.api.client import Transport
from dra_driver.util.errors import DriverError
from tests.cluster.lib.installation import DAEMONSET, NAMESPACE, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.nodefiles import NodeFiles

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
SELECTOR = "spec.driver=neuron.aws.com"
WATCH_SECONDS = 170


@dataclass(frozen=True, slots=True)
class SliceEvent:
    """One event of the watch.

    Attributes:
        at: when it came, on the monotonic clock.
        kind: ``ADDED``, ``MODIFIED`` or ``DELETED``.
        object: the slice.
    """

    at: float
    kind: str
    object: Object

    @property
    def node(self) -> str:
        """The slice's node."""
        return str(self.object["spec"]["nodeName"])

    def __str__(self) -> str:
        metadata = self.object["metadata"]
        return f"{self.at:.3f} {self.kind} {metadata['name']} version {metadata['resourceVersion']}"


class SliceWatch:
    """All that happens to the driver's slices inside of the ``with`` block, missing nothing.

    ``before`` holds the slices as they were when it began, by name.
    """

    def __init__(self, kube: Kube) -> None:
        self._transport = Transport.from_kubeconfig(os.fspath(kube.access.kubeconfig), user_agent="slice-watch")
        self._thread = threading.Thread(target=self._run, name="slice watch", daemon=True)
        self._leaving = False
        self._events: list[SliceEvent] = []
        self._error: Exception | None = None
        self.before: dict[str, Object] = {}

    def __enter__(self) -> Self:
        listed = json.loads(self._transport.request("GET", SLICES, query=(("fieldSelector", SELECTOR),)).body)
        self.before = {item["metadata"]["name"]: item for item in listed["items"]}
        self._version = listed["metadata"]["resourceVersion"]
        self._opened = threading.Event()
        self._thread.start()
        assert self._opened.wait(10), f"the watch did not begin: {self._error}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leaving = True
        self._stream.abort()
        self._thread.join(10)
        self._transport.close()

    def events(self, node: str = "") -> list[SliceEvent]:
        """What happened so far, of one node or of all; AssertionError when the watch broke."""
        assert self._error is None, f"the watch broke: {self._error}"
        return [event for event in list(self._events) if node in {"", event.node}]

    def gap(self, node: str) -> float:
        """Seconds from the first deletion of the node's slice until it was there again."""

        def probe() -> float | None:
            events = self.events(node)
            gone = next((event for event in events if event.kind == "DELETED"), None)
            back = next((event for event in events if gone and event.kind == "ADDED" and event.at >= gone.at), None)
            return back.at - gone.at if gone and back else None

        return eventually(f"the slice of {node} to be deleted and to come back", probe, 60, every=0.02)

    def _run(self) -> None:
        query = (("fieldSelector", SELECTOR), ("watch", "true"), ("resourceVersion", self._version))
        try:
            with self._transport.stream(SLICES, query=query, timeout=WATCH_SECONDS) as self._stream:
                self._opened.set()
                for line in self._stream:
                    event = json.loads(line)
                    assert event["type"] in {"ADDED", "MODIFIED", "DELETED"}, event
                    self._events.append(SliceEvent(time.monotonic(), event["type"], event["object"]))
                assert self._leaving, "the API server ended it"
        except (DriverError, AssertionError, OSError, ValueError) as error:
            if not self._leaving:
                self._error = error


class Stopwatch:
    """Says how long things took since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def lap(self, what: str) -> None:
        """Say when this was reached."""
        say(f"after {time.monotonic() - self._start:5.2f} s: {what}")


def say(text: str) -> None:
    """Put a measured figure into the test's output (shown by ``pytest -rP``, and for tests that fail)."""
    sys.stdout.write(f"  {text}\n")


# The driver's process


def process_of(pod: Object) -> int:
    """Process id, on the host, of the first process of a pod's only container."""
    (status,) = pod["status"]["containerStatuses"]
    container = status["containerID"].removeprefix("containerd://")

    def probe() -> int | None:
        return min(_processes_in(container), default=None)

    return eventually(f"the process of container {container}", probe, 10)


def _processes_in(container: str) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            if container in path.read_text():
                yield int(path.parent.name)
        except OSError:
            continue


def kill_driver(installation: Installation, node: str) -> Object:
    """Kill the driver's process on a node as the kernel does when memory is short; returns the pod as it was.

    kubelet restarts the container at once the first time, and ever more slowly after that: see ``renew_driver``.
    """
    pod = installation.pod(node)
    os.kill(process_of(pod), signal.SIGKILL)
    return pod


def renew_driver(installation: Installation, node: str, *, grace: int = 1) -> Object:
    """Have the DaemonSet make a new driver pod on a node, and wait until it is Ready; returns it."""
    old = installation.pod(node)["metadata"]
    installation.kube.kubectl(
        "--namespace", NAMESPACE, "delete", "pod", old["name"], f"--grace-period={grace}", "--wait=false"
    )
    return wait_driver_ready(installation, node, other_than=old["uid"])


def wait_driver_ready(
    installation: Installation, node: str, *, other_than: str = "", restarts: int = 0, within: float = 60.0
) -> Object:
    """Wait until the only driver pod of a node is Ready, not the one with that UID and restarted that often."""

    def probe() -> Object | None:
        pods = installation.pods(node)
        if len(pods) != 1 or pods[0]["metadata"]["uid"] == other_than or not is_ready(pods[0]):
            return None
        return pods[0] if restart_count(pods[0]) >= restarts else None

    return eventually(f"the driver on {node} to be ready", probe, within)


def is_ready(pod: Object) -> bool:
    """Whether a pod is Ready and not about to end."""
    conditions = {entry["type"]: entry["status"] for entry in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def restart_count(pod: Object) -> int:
    """How often the pod's containers were restarted."""
    return sum(int(status["restartCount"]) for status in pod["status"].get("containerStatuses", ()))


def container_id(pod: Object) -> str:
    """Id of a pod's only container: another one after a restart."""
    (status,) = pod["status"]["containerStatuses"]
    return str(status["containerID"])


def driver_log(lab: Cluster, installation: Installation, node: str) -> str:
    """Log of the driver on a node, of all starts of its container; from the files, so kubelet need not run."""
    pod = installation.pod(node)
    directory = lab.node(node).layout.logs / f"pods/{NAMESPACE}_{pod['metadata']['name']}_{uid_of(pod)}"
    return "".join(path.read_text() for path in sorted(directory.glob("*/*.log")))


def registrations(lab: Cluster, installation: Installation, node: str) -> int:
    """How often kubelet has registered the driver's pod on a node."""
    return driver_log(lab, installation, node).count("kubelet has registered")


def patch_daemonset(installation: Installation, patch: Object) -> None:
    """Patch the DaemonSet; the next test installs again."""
    installation.changed()
    where = ("--namespace", NAMESPACE, "daemonset", DAEMONSET)
    installation.kube.kubectl("patch", *where, "--type=strategic", "-p", json.dumps(patch))


@contextmanager
def driver_absent(installation: Installation, node: str) -> Iterator[None]:
    """Keep the driver off one node, as for a node of a kind that it does not run on; it comes back after the block."""
    installation.kube.kubectl("label", "node", node, "eks.amazonaws.com/compute-type=hybrid")
    try:
        eventually(f"no driver on {node}", lambda: not installation.pods(node), 40)
        yield
    finally:
        installation.kube.kubectl("label", "node", node, "eks.amazonaws.com/compute-type-")
        wait_driver_ready(installation, node)


# Faults


@contextmanager
def unwritable(directory: Path) -> Iterator[None]:
    """Take away the driver's right to write to a directory: it is root without capabilities, so modes bind it."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    directory.chmod(0o500)
    try:
        yield
    finally:
        directory.chmod(mode)


@contextmanager
def pods_cut_off(node: Node) -> Iterator[None]:
    """Keep the API server's answers from the pods of a node, as before kube-proxy works there; kubelet gets them."""
    rule = ("from", API_ADDRESS, "to", node.layout.pod_range, "prohibit")
    subprocess.run(["ip", "rule", "add", *rule], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "rule", "del", *rule], check=True)


def emulated_root(lab: Cluster, installation: Installation, node: str) -> Path:
    """The emulated host that the driver on a node reads, as this machine sees it."""
    uid = installation.pod(node)["metadata"]["uid"]
    tmp = lab.node(node).layout.kubelet / "pods" / uid / "volumes/kubernetes.io~empty-dir/tmp"
    # One for each start of the container; those of killed ones stay.
    roots: list[Path] = list(tmp.glob("neuron-emulation-*/host"))
    return max(roots, key=lambda path: path.stat().st_ctime)


def keep_emulated_host(daemonset: Object) -> None:
    """Have the emulated host at a fixed place, so that what is put there is found by the driver after a reboot."""
    daemonset["spec"]["template"]["spec"]["containers"][0]["env"].append(
        {"name": "EMULATION_ROOT", "value": "/tmp/host"}
    )


def kept_host(lab: Cluster, node: str, driver: Object) -> Path:
    """That host, as this machine sees it; ``driver`` is the driver's pod on the node."""
    volumes: Path = lab.node(node).layout.kubelet / "pods" / uid_of(driver) / "volumes"
    return volumes / "kubernetes.io~empty-dir/tmp/host"


def set_boot_id(host: Path, boot_id: str) -> None:
    """Let an emulated host tell a boot of its own: a reboot of a lab's node does not change the machine's."""
    path = host / "proc/sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(boot_id + "\n")


# Pods


def nudge(namespace: Namespace, *pods: str) -> None:
    """Have kubelet look at pods now; after a failed prepare it would do so when they change, or after 60 to 90 s.

    Pods that are gone are passed over.
    """
    namespace.kubectl("annotate", "--overwrite", "pod", *pods, f"nudged={time.monotonic()}", check=False)


def wait_unprepared(files: NodeFiles, uid: str, within: float = 30.0) -> None:
    """Wait until nothing of a claim is left in the CDI directory and the checkpoint."""

    def probe() -> bool:
        return uid not in files.specs() and uid not in files.checkpoint()

    eventually(f"claim {uid} to be unprepared", probe, within)


def wait_gone(namespace: Namespace, *pods: str, within: float = 30.0) -> None:
    """Wait until pods are gone from the API server."""
    left = set(pods)
    eventually(f"pods {', '.join(pods)} to be gone", lambda: not left & set(names(namespace.pods())), within)


def names(objects: Iterable[Object]) -> list[str]:
    """Names of objects."""
    return [str(item["metadata"]["name"]) for item in objects]


def uid_of(item: Object) -> str:
    """UID of an object."""
    return str(item["metadata"]["uid"])


@contextmanager
def own_namespace(kube: Kube, name: str) -> Iterator[Namespace]:
    """A namespace for several tests of one module that look at the same events."""
    made = Namespace(kube, f"{name}-{os.getpid()}")
    made.create()
    try:
        yield made
    finally:
        made.remove()


def unchanged(pod: Object, before: Object) -> bool:
    """Whether a pod runs in the same containers as before, never restarted."""
    return container_id(pod) == container_id(before) and restart_count(pod) == restart_count(before)

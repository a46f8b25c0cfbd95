"""Nodes without kubelet and containers, for tests with more nodes than one machine can hold, or none of its own.

Each has a Node object whose lease is kept, a process of the real driver, and the project's test kubelet between that
and the real API server and scheduler: pods that the scheduler binds have their claims prepared over the driver's
socket and become Ready without any container; pods that end have them unprepared, and go.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from dra_driver.kube.api.client import JSON, Transport
from dra_driver.kube.api.errors import ApiError
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util.errors import DriverError
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.doubles.kubelet import Claim, Kubelet, KubeletError
from tests.oracles.visible_cores import View, injected
from tests.paths import ROOT

ROUND_SECONDS = 0.2
LEASE_SECONDS = 40
RENEW_SECONDS = 10.0
START_SECONDS = 120.0
CAPACITY = {"cpu": "192", "memory": "2Ti", "pods": "110"}


@dataclass
class LightNode:
    """One node: its directories, its kubelet, and the driver's process."""

    name: str
    directory: Path
    kubelet: Kubelet
    process: subprocess.Popen[bytes]
    running: dict[str, str] = field(default_factory=dict)
    """Names of the pods whose claims are prepared, by UID."""

    def view(self, *claims: str, namespace: str = "default") -> View:
        """What a container sees that uses claims with these names, in this order."""
        prepared = [self.kubelet.claims[namespace, name].devices[DRIVER_NAME] for name in claims]
        return injected(self.cdi, [found for devices in prepared for device in devices for found in device.cdi_ids])

    @property
    def cdi(self) -> Path:
        """The directory of CDI specs."""
        return self.directory / "cdi"

    @property
    def state(self) -> Path:
        """The driver's own directory, with the files of prepared claims."""
        return self.kubelet.plugins_dir / DRIVER_NAME

    @property
    def log(self) -> str:
        """What the driver has said."""
        return (self.directory / "driver.log").read_text()

    @property
    def prepared(self) -> int:
        """How many CDI specs the driver has written and not removed."""
        return len(list(self.cdi.glob("*.json")))


class LightNodes:
    """Some nodes with these names; they exist inside of the ``with`` block. Node objects that are there are taken over.

    Args:
        kube: the cluster.
        names: of the nodes.
        directory: for all files of the nodes; the path has to be short, since sockets lie in it.
        instance_type: which hardware they pretend to be; one for all, or by name of the node.
        options: further ones of ``dra-driver kubelet-plugin``.
    """

    def __init__(
        self,
        kube: Kube,
        names: Sequence[str],
        directory: Path,
        instance_type: str | Mapping[str, str],
        options: Sequence[str] = (),
    ) -> None:
        self._kube = kube
        self._names = names
        self._directory = directory
        self._types = dict.fromkeys(names, instance_type) if isinstance(instance_type, str) else instance_type
        self._options = options
        self._transport = Transport.from_kubeconfig(os.fspath(kube.access.kubeconfig), user_agent="light-nodes")
        self._nodes: dict[str, LightNode] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="light-nodes", daemon=True)
        self._fault: Exception | None = None
        self._pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="light-node")
        self.failures: list[str] = []
        """Why claims could not be prepared or unprepared; it is retried, as kubelet does."""

    def __enter__(self) -> Self:
        try:
            for name in self._names:
                self._send("POST", "/api/v1/nodes", _node(name, self._types[name]))
                self._send("PATCH", f"/api/v1/nodes/{name}/status", _ready())
                self._send("POST", LEASES, _lease(name))
                self._nodes[name] = self._start(name)
            self._thread.start()
            eventually("the drivers to have published", self._published, START_SECONDS, every=0.5)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()
        if kind is None:
            self.check()

    def __iter__(self) -> Iterator[LightNode]:
        return iter(self._nodes.values())

    def __getitem__(self, name: str) -> LightNode:
        return self._nodes[name]

    def restart(self, name: str, options: Sequence[str] | None = None) -> None:
        """End the driver of a node in order, and start it again; returns when kubelet has registered it.

        Args:
            name: of the node.
            options: instead of those of all nodes; None: the same.
        """
        node = self._nodes[name]
        self.stop(name)
        node.process = self._run_driver(node.directory, name, self._options if options is None else options)
        eventually(f"{name}'s driver to be registered", lambda: node.kubelet.instances.get(DRIVER_NAME), START_SECONDS)

    def stop(self, name: str) -> None:
        """End the driver of a node in order."""
        node = self._nodes[name]
        node.process.terminate()
        node.process.wait(20)
        eventually(f"{name}'s driver to be gone", lambda: not node.kubelet.instances.get(DRIVER_NAME), 10)

    def check(self) -> None:
        """AssertionError when a node has failed."""
        if self._fault is not None:
            raise AssertionError("the light nodes have failed") from self._fault
        ended = [node.name for node in self._nodes.values() if node.process.poll() not in {None, 0}]
        assert not ended, f"the drivers of {ended} have ended: {self._nodes[ended[0]].log[-2000:]}"

    # Life

    def _start(self, name: str) -> LightNode:
        directory = self._directory / str(len(self._nodes))  # not the name, which may be too long for a socket's path
        kubelet = Kubelet(directory, reconcile_seconds=0.2).start()
        return LightNode(name, directory, kubelet, self._run_driver(directory, name, self._options))

    def _run_driver(self, directory: Path, name: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
        values = {
            "--node-name": name,
            "--kubeconfig": os.fspath(self._kube.access.kubeconfig),
            "--cdi-root": os.fspath(directory / "cdi"),
            "--registrar-dir": os.fspath(directory / "plugins_registry"),
            "--plugins-dir": os.fspath(directory / "plugins"),
            "--emulate": self._types[name],
            "--emulation-root": os.fspath(directory / "host"),
            "--healthcheck-port": "-1",
        }
        common = [word for pair in values.items() for word in pair]
        command = [sys.executable, "-m", "dra_driver", "kubelet-plugin", *common, *options]
        with (directory / "driver.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]}, cwd=ROOT)

    def _published(self) -> bool:
        self.check()
        missing: dict[tuple[str, int], int] = {}
        for item in self._kube.slices():
            pool = item["spec"]["pool"]
            key = item["spec"]["nodeName"], pool["generation"]
            missing[key] = missing.get(key, pool["resourceSliceCount"]) - 1
        complete = {node for (node, _), count in missing.items() if count <= 0}
        registered = all(node.kubelet.instances.get(DRIVER_NAME) for node in self._nodes.values())
        return registered and complete >= set(self._names)

    def _end(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(30)
        self._pool.shutdown()
        for node in self._nodes.values():
            node.process.terminate()
        for node in self._nodes.values():
            node.process.wait(20)
            node.kubelet.stop()
        for name in self._names:
            # The driver's slices are owned by the Node.
            self._send("DELETE", f"/api/v1/nodes/{name}")
            self._send("DELETE", f"{LEASES}/{name}")
        self._transport.close()

    # What kubelet does

    def _run(self) -> None:
        renewed = 0.0
        while not self._stop.wait(ROUND_SECONDS):
            try:
                if time.monotonic() - renewed > RENEW_SECONDS:
                    renewed = time.monotonic()
                    for name in self._names:
                        patch = {"spec": {"renewTime": _now()}}
                        self._send("PATCH", f"{LEASES}/{name}", patch)
                found = json.loads(self._transport.request("GET", "/api/v1/pods").body)["items"]
                pods: dict[str, list[Object]] = {name: [] for name in self._nodes}
                for pod in found:
                    pods.get(pod["spec"].get("nodeName", ""), []).append(pod)
                list(self._pool.map(self._sync, self._nodes.values(), pods.values()))
            except DriverError:
                continue  # the API server is busy: the next round sees
            except Exception as error:  # noqa: BLE001 - told by check()
                self._fault = error
                return

    def _sync(self, node: LightNode, pods: Sequence[Object]) -> None:
        for uid in set(node.running) - {pod["metadata"]["uid"] for pod in pods}:
            self._unprepare(node, uid)
        for pod in pods:
            ends, uid = "deletionTimestamp" in pod["metadata"], pod["metadata"]["uid"]
            if ends and (uid not in node.running or self._unprepare(node, uid)):
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                self._send("DELETE", _path(pod), options)
            elif not ends and uid not in node.running and self._prepare(node, pod):
                self._send("PATCH", f"{_path(pod)}/status", _running(pod))

    def _prepare(self, node: LightNode, pod: Object) -> bool:
        # From a template or not: both lists name the pod's claims, and only one of the entries names the object.
        entries = [*pod["spec"].get("resourceClaims", ()), *pod["status"].get("resourceClaimStatuses", ())]
        namespace, name, uid = (pod["metadata"][key] for key in ("namespace", "name", "uid"))
        try:
            names = [entry["resourceClaimName"] for entry in entries if "resourceClaimName" in entry]
            claims = [self._claim(namespace, claim) for claim in names]
            node.kubelet.prepare(uid, claims)
        except (KubeletError, ApiError) as error:
            self.failures.append(f"{node.name}: {name}: {error}")
            return False
        node.running[uid] = name
        return True

    def _unprepare(self, node: LightNode, uid: str) -> bool:
        try:
            node.kubelet.unprepare(uid)
        except KubeletError as error:
            self.failures.append(f"{node.name}: {node.running[uid]}: {error}")
            return False
        del node.running[uid]
        return True

    def _claim(self, namespace: str, name: str) -> Claim:
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
        found = json.loads(self._transport.request("GET", path).body)
        results = found["status"]["allocation"]["devices"]["results"]
        drivers = tuple(sorted({item["driver"] for item in results}))
        return Claim(namespace, name, found["metadata"]["uid"], drivers)

    def _send(self, method: str, path: str, body: Object | None = None) -> None:
        """Do it unless the object is gone, or there already."""
        try:
            kind = PATCH if method == "PATCH" else JSON
            self._transport.request(method, path, body=body, content_type=kind)
        except ApiError as error:
            if error.status not in {404, 409}:
                raise


PATCH = "application/strategic-merge-patch+json"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def _now() -> str:
    """Now, as a MicroTime; the API server partitions it to a Time where it wants one."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _condition(kind: str) -> Object:
    return {"type": kind, "status": "True", "reason": "Light", "message": "", "lastHeartbeatTime": _now()}


def _node(name: str, instance_type: str) -> Object:
    labels = {"kubernetes.io/hostname": name, "node.kubernetes.io/instance-type": instance_type}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def _ready() -> Object:
    return {"status": {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": [_condition("Ready")]}}


def _lease(name: str) -> Object:
    spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": _now()}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _running(pod: Object) -> Object:
    names = [item["name"] for item in pod["spec"]["containers"]]
    running = {"running": {"startedAt": _now()}}
    status = {"ready": True, "restartCount": 0, "image": "", "imageID": "", "state": running}
    containers = [{"name": name, **status} for name in names]
    conditions = [{"type": kind, "status": "True"} for kind in ("Initialized", "Ready", "ContainersReady")]
    return {"status": {"phase": "Running", "conditions": conditions, "containerStatuses": containers}}

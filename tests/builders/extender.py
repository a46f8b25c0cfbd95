"""Nodes and pods without DRA in the test API server, the extender in this process or its own, and a scheduler."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dra_driver.kube.api.election import Times
from dra_driver.legacy.extender.server import Tls
from dra_driver.legacy.extender.service import ExtenderService, ExtenderSettings
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from tests.builders.agent import free_port
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.eventually import eventually

DEVICE, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
FAST = Times(lease=2, act=1.0, renew=0.1)
"""A lease that is easily lost."""
STEADY = Times(lease=300, act=200.0, renew=0.1)
"""A lease that no busy machine loses."""
MAPS = ("NEURON_DEV_USAGE_MAP", "NEURON_CORE_USAGE_MAP")


def add_node(server: ApiServer, name: str, kind: str = "trn1.32xlarge", lnc: int | None = None, **more: Any) -> Object:
    """A node after the device plugin has registered; ``more`` replaces parts of its metadata or capacity."""
    row = INSTANCE_TYPES.get(kind)
    devices = (row.devices if row else None) or 16
    cores = devices * row.cores_per_device // (lnc or row.default_lnc) if row else 2 * devices
    meta = {"name": name, "labels": {"node.kubernetes.io/instance-type": kind}} | more.get("metadata", {})
    capacity = {"cpu": "8", DEVICE: str(devices), CORE: str(cores)} | more.get("capacity", {})
    status = {"capacity": {key: value for key, value in capacity.items() if value is not None}}
    return server.store.create("nodes", {"metadata": meta, "spec": {}, "status": status})


def limits(devices: Any = None, cores: Any = None) -> Object:
    found = {key: str(value) for key, value in ((DEVICE, devices), (CORE, cores)) if value is not None}
    return {"limits": {"cpu": "1", **found}, "requests": found}


def pod_document(name: str, *asked: Object, init: Sequence[Object] = (), node: str = "", **annotations: str) -> Object:
    containers = [{"name": f"c{number}", "resources": item} for number, item in enumerate(asked or (limits(1),))]
    spec: Object = {"containers": containers, "schedulerName": "my-scheduler"}
    if init:
        spec["initContainers"] = [{"name": f"i{number}", **item} for number, item in enumerate(init)]
    if node:
        spec["nodeName"] = node
    meta = {"namespace": "a", "name": name, "annotations": annotations}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running" if node else "Pending"}}


def add_pod(server: ApiServer, name: str, *asked: Object, **more: Any) -> Object:
    return server.store.create("pods", pod_document(name, *asked, **more))


def pod(server: ApiServer, name: str) -> Object:
    return server.store.get("pods", f"a/{name}")


def notes(server: ApiServer, name: str) -> dict[str, str]:
    return dict(pod(server, name)["metadata"].get("annotations") or {})


def ids(server: ApiServer, name: str) -> list[int]:
    """The ids in the pod's annotation, read without the project's code."""
    text = notes(server, name).get("AWS_NEURON_IDS", "")
    return [int(part) for part in text.split(",")] if text else []


def end_pod(server: ApiServer, name: str, phase: str = "Succeeded") -> None:
    with server.store.changed:
        found = pod(server, name)
        found["status"]["phase"] = phase
        server.store.update("pods", f"a/{name}", found)


def annotate(server: ApiServer, kind: str, key: str, **changes: str | None) -> None:
    """Change annotations as another client would; None removes one."""
    with server.store.changed:
        found = server.store.get(kind, key)
        now = (found["metadata"].get("annotations") or {}) | changes
        found["metadata"]["annotations"] = {name: text for name, text in now.items() if text is not None}
        server.store.update(kind, key, found)


def cores_in_use(server: ApiServer) -> dict[str, dict[int, str]]:
    """Node -> core -> pod, from the vendor's annotations alone; an assertion fails if two pods have the same core."""
    found: dict[str, dict[int, str]] = {}
    nodes = {item["metadata"]["name"]: item for item in server.store.list("nodes")[0]}
    for item in server.store.list("pods")[0]:
        name, node = item["metadata"]["name"], item["spec"].get("nodeName")
        if not node or item["status"]["phase"] in ("Succeeded", "Failed"):
            continue
        said = item["metadata"]["annotations"]
        capacity = nodes[node]["status"]["capacity"]
        width = int(capacity[CORE]) // int(capacity[DEVICE]) if said["NEURON_RESOURCE_TYPE"] == DEVICE else 1
        there = found.setdefault(node, {})
        for number in map(int, said["AWS_NEURON_IDS"].split(",")):
            for core in range(number * width, (number + 1) * width):
                assert core not in there, f"core {core} of {node} is given to {there[core]} and {name}"
                there[core] = name
    return found


@dataclass
class Client:
    """The part of kube-scheduler that an extender sees."""

    port: int
    address: str = "127.0.0.1"

    def post(self, path: str, body: Any, timeout: float = 30.0) -> tuple[int, Any]:
        """Status, and the response as JSON or text."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout)
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(text) if is_json else text.decode()
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def filter(self, item: Object, nodes: Sequence[str]) -> Any:
        status, answer = self.post("/filter", {"Pod": item, "Nodes": None, "NodeNames": list(nodes)})
        assert status == 200, answer
        return answer

    def fits(self, item: Object, nodes: Sequence[str]) -> list[str]:
        return list(self.filter(item, nodes)["NodeNames"])

    def scores(self, item: Object, nodes: Sequence[str]) -> dict[str, int]:
        status, answer = self.post("/prioritize", {"Pod": item, "Nodes": None, "NodeNames": list(nodes)})
        assert status == 200, answer
        return {entry["Host"]: entry["Score"] for entry in answer}

    def preempt(
        self, item: Object, proposed: Mapping[str, Sequence[str]], *, whole: bool = False
    ) -> dict[str, list[str]]:
        """The UIDs of the pods to evict, by node; with ``whole``, pods are sent as objects."""
        victims = {
            node: {
                "Pods": [{"metadata": {"uid": uid}} if whole else {"UID": uid} for uid in uids],
                "NumPDBViolations": 1,
            }
            for node, uids in proposed.items()
        }
        forms = {"NodeNameToVictims": victims if whole else None, "NodeNameToMetaVictims": None if whole else victims}
        status, answer = self.post("/preempt", {"Pod": item, **forms})
        assert status == 200, answer
        found = answer["NodeNameToMetaVictims"]
        assert all(entry["NumPDBViolations"] == 1 for entry in found.values())
        return {node: [pod["UID"] for pod in entry["Pods"]] for node, entry in found.items()}

    def bind(self, item: Object, node: str) -> str:
        """The error, or ""."""
        meta = item["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        status, answer = self.post("/bind", body)
        return str(answer.get("Error", "")) if status == 200 else f"{status}: {answer}"

    def schedule(self, item: Object, nodes: Sequence[str]) -> str:
        """Filter, prioritize, bind; returns the node to which the pod is bound, or ""."""
        fitting = self.fits(item, nodes)
        if not fitting:
            return ""
        scores = self.scores(item, fitting)
        best = max(fitting, key=lambda name: (scores[name], name))
        return best if self.bind(item, best) == "" else ""


@dataclass
class Extender(Client):
    """A service in a thread of this process."""

    port: int = 0
    server: ApiServer = field(default_factory=ApiServer)
    settings: ExtenderSettings | None = None
    scheme: str = "http"

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="extender", daemon=True)
        self._thread.start()
        self._transport = self.server.transport()
        self.service = self._run(self._start())
        self.port = self.service.port
        return self

    def __exit__(self, *exc: object) -> None:
        self._run(self.service.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()
        self._transport.close()

    async def _start(self) -> ExtenderService:
        assert self.settings is not None
        service = ExtenderService(self._transport, self.settings)
        await service.start()
        return service

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def ready(self) -> Self:
        """Wait until it responds, by itself or on behalf of the leader."""
        eventually(lambda: self.post("/filter", _PROBE)[0] == 200, what="an answer")
        return self


def known(client: Extender) -> Extender:
    client.ready()
    eventually(lambda: client.filter(pod_document("probe", limits(17)), ["n"])["FailedAndUnresolvableNodes"])
    return client


def known_nodes(one: Client, *nodes: str, size: int = 1) -> list[str]:
    """Wait until the extender knows the nodes, with this many devices free."""
    probe = pod_document("probe", limits(size))
    eventually(lambda: one.fits(probe, nodes) == list(nodes), what="the nodes")
    return list(nodes)


def sample(one: Extender, name: str) -> float:
    return float({item.name: item.value for item in one.service.samples()}[f"extender_{name}"])


def everything_is_accounted_for(server: ApiServer, one: Extender) -> None:
    """Assert that the extender's allocations equal those of the pods."""
    held = sum(map(len, cores_in_use(server).values()))
    eventually(lambda: (sample(one, "taken_cores"), sample(one, "pending_choices")) == (held, 0), what=f"{held} cores")


_PROBE = {"Pod": {"metadata": {"name": "probe"}, "spec": {}}, "NodeNames": []}


def extender(
    server: ApiServer, identity: str = "one", *, elect: bool = False, tls: Tls | None = None, times: Times = STEADY
) -> Extender:
    advertise = "127.0.0.1" if elect else ""
    settings = ExtenderSettings("127.0.0.1", 0, tls, "kube-system", identity, advertise, elect, times)
    return Extender(server=server, settings=settings)


@contextmanager
def process(server: ApiServer, root: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Client]]:
    """The command in a process of its own; killed at the end if it is still running."""
    config = root / "kubeconfig"
    server.kubeconfig(config)
    port = free_port()
    command = [sys.executable, "-m", "dra_driver", "extender", "--kubeconfig", str(config)]
    command += ["--port", str(port), "--bind-address", "127.0.0.1", *options]
    environment = {key: value for key, value in os.environ.items() if key not in ("POD_IP", "PORT")}
    with (root / f"extender-{port}.log").open("wb") as log:
        running = subprocess.Popen(command, stderr=log, stdout=log, env=environment)
    client = Client(port)
    try:
        eventually(lambda: running.poll() is not None or _answers(client), within=40, what="the extender")
        yield running, client
    finally:
        if running.poll() is None:
            running.kill()
        running.wait(30)


def _answers(client: Client) -> bool:
    try:
        return client.post("/filter", _PROBE)[0] == 200
    except OSError:
        return False

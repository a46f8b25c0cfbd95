"""Nodes without kubelet and containers, each with a process of the real device plugin.

The project's double of kubelet's device manager admits the pods that the scheduler binds, asks the plugin for their
devices as kubelet does, writes their status, and ends them.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_driver.kube.api.client import Transport
from tests.cluster.lib.kube import Object, eventually
from tests.cluster.lib.legacy.extender import Program
from tests.cluster.lib.legacy.pods import Pods, limits_of, node
from tests.cluster.lib.legacy.rules import CORE, DEVICE, KINDS, Kind
from tests.doubles.device_manager import Container, DeviceManager, KnownPod
from tests.doubles.kubelet_connection import KubeletError

START_SECONDS = 120.0
STATUS = "application/strategic-merge-patch+json"
END = "END"


@dataclass(frozen=True)
class Given:
    """What a container was told: numbers of its device nodes, and its cores where it asked for cores."""

    devices: tuple[int, ...]
    cores: tuple[int, ...] | None


def given(answer: Any) -> Given:
    """An answer of the plugin to Allocate."""
    devices = tuple(sorted(int(entry.host_path.rpartition("neuron")[2]) for entry in answer.devices))
    cores = answer.envs.get("NEURON_RT_VISIBLE_CORES")
    return Given(devices, tuple(map(int, cores.split(","))) if cores is not None else None)


@dataclass
class NeuronNode:
    """One node: its device manager, and the plugin's process."""

    name: str
    kind: str
    manager: DeviceManager
    plugin: Program
    pods: Pods
    events: queue.SimpleQueue[tuple[str, Object] | None] = field(default_factory=queue.SimpleQueue)
    admitted: dict[str, dict[str, Given]] = field(default_factory=dict)
    """By UID of a pod that has not ended what its containers were given."""
    seen: set[str] = field(default_factory=set)
    """UIDs of pods that were admitted or refused."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why a pod failed here, by its name."""
    too_late: int = 0
    """Pods that were gone when they were to be admitted."""
    told: Callable[[NeuronNode, Object, dict[str, Given]], None] = lambda *_: None
    """Called with what a pod was given."""
    left: Callable[[NeuronNode, str], None] = lambda *_: None
    """Called with the UID of a pod that has ended, before anybody is told."""
    fault: Exception | None = None

    @property
    def shape(self) -> Kind:
        """What the node has."""
        return KINDS[self.kind]

    def run(self) -> None:
        """Do what events tell, one after the other, as kubelet admits pods."""
        while (event := self.events.get()) is not None:
            try:
                self._act(*event)
            except Exception as error:  # noqa: BLE001 # told by check()
                self.fault = error
                return

    def _act(self, kind: str, item: Object) -> None:
        meta = item["metadata"]
        uid, name = meta["uid"], meta["name"]
        if kind == "DELETED":
            self._end(uid)
        elif "deletionTimestamp" in meta:
            self._end(uid)
            self.pods.send("DELETE", name, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
        elif kind == END:
            self._end(uid)
            self._status(item, {"phase": item["phase"]})
        elif uid not in self.seen and item["status"].get("phase") == "Pending":
            self._admit(item)

    def _end(self, uid: str) -> None:
        self.seen.add(uid)
        self.manager.remove(uid)
        if self.admitted.pop(uid, None) is not None:
            self.left(self, uid)

    def _admit(self, item: Object) -> None:
        meta = item["metadata"]
        self.seen.add(meta["uid"])
        inits = {entry["name"] for entry in item["spec"].get("initContainers", ())}
        asked = limits_of(item)
        containers = tuple(
            Container(
                entry["name"], dict([asked[entry["name"]]] if entry["name"] in asked else []), entry["name"] in inits
            )
            for entry in (*item["spec"].get("initContainers", ()), *item["spec"]["containers"])
        )
        try:
            answers = self.manager.admit(KnownPod(meta["namespace"], meta["name"], meta["uid"], containers))
        except KubeletError as error:
            if not self.pods.stored(meta["name"], meta["uid"]):
                # It was bound while it was being deleted, and is gone before its node has heard of it.
                self.too_late += 1
                return
            self.refused[meta["name"]] = str(error)
            text = f"Pod was rejected: Allocate failed due to {error}, which is unexpected"
            self._status(item, {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": text})
            return
        found = {name: given(answer) for (name, _), answer in answers.items()}
        self.admitted[meta["uid"]] = found
        self.told(self, item, found)
        self._status(item, _running(item))

    def _status(self, item: Object, status: Object) -> None:
        uid, name = item["metadata"]["uid"], item["metadata"]["name"]
        self.pods.send("PATCH", f"{name}/status", {"metadata": {"uid": uid}, "status": status}, kind=STATUS)

    def end(self, item: Object, phase: str) -> None:
        """Its containers have ended."""
        self.events.put((END, {"metadata": item["metadata"], "phase": phase, "status": {}}))


class NeuronNodes:
    """Nodes of these types by name, inside of the ``with`` block of ``neuron_nodes``."""

    def __init__(self, nodes: Mapping[str, NeuronNode]) -> None:
        self._nodes = nodes

    def __getitem__(self, name: str) -> NeuronNode:
        return self._nodes[name]

    def __iter__(self) -> Iterator[NeuronNode]:
        return iter(self._nodes.values())

    def hear(self, kind: str, item: Object) -> None:
        """An event of a pod."""
        found = self._nodes.get(item["spec"].get("nodeName", ""))
        if found is not None:
            found.events.put((kind, item))

    def check(self) -> None:
        """AssertionError when a node has failed."""
        for found in self:
            if found.fault is not None:
                raise AssertionError(f"{found.name} has failed") from found.fault
            assert found.plugin.runs, f"the plugin of {found.name} has ended: {found.plugin.text[-2000:]}"
            assert "Traceback" not in found.plugin.text, found.plugin.text[-4000:]


@contextmanager
def neuron_nodes(
    transport: Transport,
    pods: Pods,
    kinds: Mapping[str, str],
    directory: Path,
    kubeconfig: Path,
    before: Callable[[str, Object], None] = lambda *_: None,
) -> Iterator[NeuronNodes]:
    """Nodes by name and type; their paths have to be short, since sockets lie in them.

    ``before`` hears of each event of a pod before the nodes do.
    """
    made: dict[str, NeuronNode] = {}
    threads = []
    try:
        for name, kind in kinds.items():
            transport.request("POST", "/api/v1/nodes", body=node(name, kind, None))
            manager = DeviceManager(directory / name).start()
            command = [
                *(sys.executable, "-m", "dra_driver", "device-plugin", f"--node-name={name}", f"--emulate={kind}"),
                *(f"--kubeconfig={kubeconfig}", f"--kubelet-directory={directory / name}", "--healthcheck-port=-1"),
                *(f"--cdi-root={directory / name / 'cdi'}", f"--emulation-root={directory / name / 'host'}"),
                f"--state-dir={directory / name / 'state'}",
            ]
            plugin = Program(f"plugin of {name}", command, directory / name / "plugin.log")
            made[name] = NeuronNode(name, kind, manager, plugin, pods)
        found = NeuronNodes(made)
        for item in found:
            _register(transport, found, item)
            threads.append(threading.Thread(target=item.run, name=item.name, daemon=True))
        for thread in threads:
            thread.start()
        pods.heard += [before, found.hear]
        yield found
        found.check()
    finally:
        for item in made.values():
            item.events.put(None)
            item.plugin.process.terminate()
        for thread in threads:
            thread.join(30)
        for item in made.values():
            item.plugin.stop()
            item.manager.stop()
            transport.request("DELETE", f"/api/v1/nodes/{item.name}")


def _register(transport: Transport, nodes: NeuronNodes, item: NeuronNode) -> None:
    """Write into the Node's status what the plugin offers, as kubelet does."""

    def offered() -> tuple[int, ...]:
        nodes.check()
        return tuple(item.manager.allocatable(resource) for resource in (DEVICE, CORE))

    expected = tuple(item.shape.units(resource) for resource in (DEVICE, CORE))
    eventually(f"{expected} devices and cores of {item.name}", lambda: offered() == expected, START_SECONDS)
    status = node(item.name, item.kind, item.shape)["status"]
    path = f"/api/v1/nodes/{item.name}/status"
    transport.request("PATCH", path, body={"status": status}, content_type=STATUS)


def _running(item: Object) -> Object:
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    state = {"ready": True, "restartCount": 0, "image": "", "imageID": "", "state": {"running": {"startedAt": started}}}
    conditions = [{"type": kind, "status": "True"} for kind in ("Initialized", "Ready", "ContainersReady")]
    containers = [{"name": entry["name"], **state} for entry in item["spec"]["containers"]]
    return {"phase": "Running", "conditions": conditions, "containerStatuses": containers}

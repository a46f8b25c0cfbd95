"""A simulated node: host, kubelet, API server with the rest of the cluster, and the instances of the driver on it."""

from __future__ import annotations

import logging
import math
import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from dra_driver.cli import kubelet_plugin
from dra_driver.driver import agent as agents
from dra_driver.driver.agent import NodeAgent
from dra_driver.driver.settings import DriverSettings
from dra_driver.neuron import exclusion
from dra_driver.neuron.emulation.tree import CLASS, DEFAULT_SERVER_ID, DEVICES
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.host.discover import BOOT_ID
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL, lookup
from dra_driver.neuron.topology.partitions import parts_of
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from tests.doubles.apiserver.store import Object, Refused
from tests.simulation.apiserver import SimulatedServer
from tests.simulation.kubelet import Claim, Pod, SimulatedKubelet, SimulatedPlugin
from tests.simulation.scheduler import Life, Scheduler
from tests.simulation.seams import Disk
from tests.simulation.workloads import NAMESPACE, TAINT, Workloads, mark_of

NAME: Final = "node-a"
MAJOR: Final = 240
Part = tuple[int, int | None]
"""A chip, and a physical core of it; None: all of them."""


@dataclass
class Instance:
    """A process of the driver."""

    life: Life
    agent: NodeAgent | None = None
    started: bool = False
    stopping: bool = False


class Node:
    """The node; see ``simulated_node``."""

    def __init__(self, root: Path, instance_type: str, seed: int, *, has_workloads: bool = False) -> None:
        kind = lookup(instance_type)
        assert kind is not None
        assert kind.devices
        self.root, self.kind = root, kind
        self.chips = frozenset(range(kind.devices))
        self.scheduler = Scheduler(seed)
        self.random = self.scheduler.random
        self.server = SimulatedServer(self.scheduler)
        self.disk = Disk(self.scheduler)
        self.cdi = root / "cdi"
        self.cdi.mkdir()
        self.kubelet = SimulatedKubelet(self.scheduler, root / "kubelet", self.cdi, self._wipe_slices)
        self.instances: list[Instance] = []
        """All that live, the oldest first."""
        self.wrong: list[str] = []
        """What was seen in passing, and must never be."""
        self.changed: dict[int, float] = {}
        """When a chip fell ill or got well, was lost or came back last."""
        self.renumbered = -math.inf
        self.labelled: dict[str, set[str | None]] = {}
        """All values that a label of the Node has had."""
        self.instance_ended = -math.inf
        """When one of the driver did last."""
        self.damaged: set[str] = set()
        """Claims whose checkpoint file was spoiled or removed: the driver may know no more of them than their chips."""
        self.spec_removed = -math.inf
        """When somebody removed a CDI spec last."""
        self.watching: set[str] = set()
        """Claims with admin access, which have nothing for themselves."""
        self.elsewhere: set[str] = set()
        """Claims that a pod of another node has, too, by their present allocation."""
        self.allocated_again: dict[str, float] = {}
        """When a claim was that last, by its UID."""
        self.major = MAJOR
        self.partitions: str | None = None
        """What the next instance of the driver is set to offer on all nodes."""
        self.supported = True
        """Whether kubelet is a version that goes on calling drivers."""
        self.number = 0
        self.elected: str | None = DEFAULT_SERVER_ID
        """Id of the server that the host says the node is part of; None: it elects."""
        self.has_workloads = has_workloads
        """Whether drivers are to read whose workload the node is allocated to."""
        self.workloads = Workloads(self, NAME)
        self._write_host()
        self.server.api.add_node(NAME, labels={INSTANCE_TYPE_LABEL: instance_type})
        self.change_node(lambda node: node["status"].update(nodeInfo={"kubeletVersion": "v1.37.1"}))

    # The host

    @property
    def host(self) -> Path:
        return self.root / "host"

    @property
    def state(self) -> Path:
        """The driver's directory."""
        return self.root / "kubelet/plugins" / DRIVER_NAME

    def checkpoint_files(self) -> list[Path]:
        return sorted((self.state / "claims").glob("*.json"))

    def _write_host(self) -> None:
        write_host(self.host, self.kind, EmulationOptions())
        self._put(BOOT_ID, str(uuid.UUID(int=self.random.getrandbits(128))))
        self.renumber(self.major)

    def _put(self, path: str, text: str) -> None:
        target = self.host / path
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(".staged")
        staged.write_text(f"{text}\n")
        staged.replace(target)

    def chip_path(self, chip: int) -> Path:
        return self.host / DEVICES / f"neuron{chip}"

    def renumber(self, major: int) -> None:
        """The kernel module is loaded anew: other device numbers."""
        self.major, self.renumbered = major, self.scheduler.clock
        for chip in self.present:
            self._put(f"{DEVICES}/neuron{chip}/dev", f"{major}:{chip}")
        self._put("proc/devices", f"Character devices:\n{major:3} neuron\n\nBlock devices:")

    @property
    def present(self) -> frozenset[int]:
        """Chips that the kernel driver has."""
        return frozenset(chip for chip in self.chips if self.chip_path(chip).is_dir())

    def lose(self, chip: int) -> None:
        """The chip falls off the bus."""
        self.changed[chip] = self.scheduler.clock
        self.chip_path(chip).rename(self.root / f"lost-{chip}")
        (self.host / CLASS / f"neuron{chip}").unlink()

    def bring_back(self, chip: int) -> None:
        self.changed[chip] = self.scheduler.clock
        (self.root / f"lost-{chip}").rename(self.chip_path(chip))
        (self.host / CLASS / f"neuron{chip}").symlink_to(f"../../devices/virtual/neuron_device/neuron{chip}")
        self._put(f"{DEVICES}/neuron{chip}/dev", f"{self.major}:{chip}")

    def ail(self, chip: int, *, ill: bool) -> None:
        """Whether the kernel driver says that the chip is in the state that only a reset ends."""
        self.changed[chip] = self.scheduler.clock
        self._put(f"{DEVICES}/neuron{chip}/reset", "2" if ill else "1")

    def ails(self, chip: int) -> bool:
        path = self.chip_path(chip)
        return path.is_dir() and (path / "reset").read_text().strip() == "2"

    def elect(self, server: str | None) -> None:
        """The hosts of the node's UltraServer find this id, or ("") not each other, or (None) are about to."""
        self.elected = server
        busy = server is None
        for size in (2, 4):
            self._put(f"{CLASS}/server_id_{size}", server or "0" * 16)
            self._put(f"{CLASS}/node_id_{size}", "busy" if busy else "0" if server else "-1")
        self._put(f"{CLASS}/ultraserver_mode", "busy" if busy else "1,3,4" if server else "4")

    def reboot(self, *, power_fails: bool = False) -> None:
        """Containers, processes and what is on tmpfs are gone; with the power also what was not synced, it may be."""
        for instance in list(self.instances):
            self.kill(instance)
        if self.kubelet.alive:
            self.kubelet.kill()
        for pod in self.kubelet.pods.values():
            pod.clear()
        for path in self.cdi.iterdir():
            path.unlink()
        if power_fails:
            self.disk.lose_power(self.state)
        self._put(BOOT_ID, str(uuid.UUID(int=self.random.getrandbits(128))))
        for chip in self.chips - self.present:
            self.bring_back(chip)
        for chip in self.chips:
            self.ail(chip, ill=False)
        self.scheduler.boot = 20.0 - self.scheduler.clock

    # The cluster

    def change_node(self, change: Callable[[Object], object]) -> None:
        node = self.server.store.get("nodes", NAME)
        change(node)
        self.server.store.update("nodes", NAME, node)

    def label(self, **labels: str | None) -> None:
        for key, value in labels.items():
            self.labelled.setdefault(key, set()).add(value)

        def change(node: Object) -> None:
            for key, value in labels.items():
                if value is None:
                    node["metadata"]["labels"].pop(key, None)
                else:
                    node["metadata"]["labels"][key] = value

        self.change_node(change)

    def _wipe_slices(self) -> None:
        self.server.api.wipe_slices(NAME)

    def slices(self) -> list[Object]:
        """The newest generation of the node's pool, if it is whole."""
        stored = self.server.api.slices()
        newest = max((item["spec"]["pool"]["generation"] for item in stored), default=0)
        current = [item for item in stored if item["spec"]["pool"]["generation"] == newest]
        whole = current and len(current) == current[0]["spec"]["pool"]["resourceSliceCount"]
        return current if whole else []

    def offered(self) -> dict[str, Object]:
        """Published devices by name."""
        return {device["name"]: device for item in self.slices() for device in item["spec"].get("devices") or ()}

    def parts(self, device: str) -> frozenset[Part]:
        """What a device of that name is made of, core by core."""
        size = 2 if self.kind.family in ("trn2", "trn3") else 1
        cores = range(self.kind.cores_per_device)
        found = parts_of(device, self.chips, lambda _: size) or ()
        return frozenset((part.chip, core) for part in found for core in part.cores or cores)

    def claims(self) -> list[Object]:
        return self.server.store.list("resourceclaims")[0]

    def allocations(self) -> dict[str, tuple[str, ...]]:
        """Devices by UID of the claim, as the API server has them."""
        found = {}
        for claim in self.claims():
            allocation = claim["status"].get("allocation")
            if allocation:
                found[claim["metadata"]["uid"]] = tuple(result["device"] for result in allocation["devices"]["results"])
        return found

    def exclusive_allocations(self) -> dict[str, tuple[str, ...]]:
        """The same, but of claims that only watch."""
        return {uid: devices for uid, devices in self.allocations().items() if uid not in self.watching}

    @property
    def reused(self) -> set[str]:
        """Claims that kubelet had prepared by a call from before they were allocated again: it does not call anew."""
        called = self.kubelet.called
        return {uid for uid, again in self.allocated_again.items() if called.get(uid, math.inf) <= again}

    def free_devices(self, workload: str | None = None, *, late: bool = False) -> list[str]:
        """What the scheduler could allocate now.

        Args:
            workload: whose claims are to get it.
            late: the scheduler has not seen whose workload the node is allocated to.
        """
        held = {device for devices in self.exclusive_allocations().values() for device in devices}
        taken = {part for device in held for part in self.parts(device)}
        return sorted(
            name
            for name, device in self.offered().items()
            if not any(
                taint["effect"] in ("NoSchedule", "NoExecute") and not ((workload or late) and taint["key"] == TAINT)
                for taint in device.get("taints") or ()
            )
            and (late or mark_of(device) == workload)
            and not self.parts(name) & taken
        )

    def allocate(
        self, *devices: str, claim: Object | None = None, admin: bool = False, workload: str | None = None
    ) -> Pod:
        """A pod with a claim is scheduled to the node: a new claim, or one that is there without devices.

        Args:
            devices: names of what it gets.
            claim: the one that is there.
            admin: the claim is for watching the devices, which others may have at the same time.
            workload: UID of the one that a new claim is of.
        """
        self.number += 1
        pod = f"pod-{self.number}"
        pod_uid = str(uuid.UUID(int=self.random.getrandbits(128)))
        results: list[Object] = [
            {
                "request": "r",
                "driver": DRIVER_NAME,
                "pool": NAME,
                "device": device,
                **({"adminAccess": True} if admin else {}),
            }
            for device in devices
        ]
        if claim is None:
            uid = str(uuid.UUID(int=self.random.getrandbits(128)))
            if workload is not None:
                self.workloads.of_claims[uid] = workload
            config, users = self.workloads.config(uid), [(pod, pod_uid)]
            claim = self.server.api.add_claim(
                "default", f"claim-{self.number}", uid=uid, results=results, node=NAME, pods=users, config=config
            )
            if admin:
                self.watching.add(uid)
        else:
            self.allocated_again[claim["metadata"]["uid"]] = self.scheduler.clock
            self.elsewhere.discard(claim["metadata"]["uid"])
            claim["status"] = {
                "allocation": {
                    "devices": {"results": results, "config": self.workloads.config(claim["metadata"]["uid"])}
                },
                "reservedFor": [{"resource": "pods", "name": pod, "uid": pod_uid}],
            }
            claim = self.server.store.update("resourceclaims", f"default/{claim['metadata']['name']}", claim)
        return self._add_pod(pod, pod_uid, claim)

    def join(self, claim: Object) -> Pod:
        """A further pod of the node uses the claim."""
        self.number += 1
        pod = f"pod-{self.number}"
        pod_uid = str(uuid.UUID(int=self.random.getrandbits(128)))
        claim["status"]["reservedFor"].append({"resource": "pods", "name": pod, "uid": pod_uid})
        claim = self.server.store.update("resourceclaims", f"default/{claim['metadata']['name']}", claim)
        return self._add_pod(pod, pod_uid, claim)

    def join_elsewhere(self, claim: Object) -> None:
        """A pod of another node uses the claim, too, from now on."""
        self.number += 1
        self.elsewhere.add(claim["metadata"]["uid"])
        uid = str(uuid.UUID(int=self.random.getrandbits(128)))
        claim["status"]["reservedFor"].append({"resource": "pods", "name": f"elsewhere-{self.number}", "uid": uid})
        self.server.store.update("resourceclaims", f"default/{claim['metadata']['name']}", claim)

    def _add_pod(self, name: str, uid: str, claim: Object) -> Pod:
        meta = claim["metadata"]
        spec = {
            "nodeName": NAME,
            "resourceClaims": [{"name": "r", "resourceClaimName": meta["name"]}],
            "containers": [{"name": "main", "resources": {"claims": [{"name": "r"}]}}],
        }
        self.server.store.create(
            "pods", {"metadata": {"namespace": "default", "name": name, "uid": uid}, "spec": spec, "status": {}}
        )
        pod = Pod(name, uid, (Claim("default", meta["name"], meta["uid"]),))
        self.kubelet.add(pod)
        return pod

    def end(self, pod: Pod, *, force: bool, keep_claim: bool) -> None:
        """The pod is deleted; ``force``: the API server forgets it before kubelet has ended it."""

        def clean() -> None:
            if not force:
                self.scheduler.wait(lambda: pod.gone)
            self._forget(pod, keep_claim=keep_claim)

        pod_ends = self.random.choice((0.0, 1.0, 15.0)) if force else 0.0

        def end() -> None:
            self.scheduler.sleep(pod_ends)
            pod.ending = True

        self.scheduler.spawn(end, f"end of {pod.name}")
        self.scheduler.spawn(clean, f"clean-up of {pod.name}")

    def _forget(self, pod: Pod, *, keep_claim: bool) -> None:
        """What controllers do: the pod's object, and its claims' reservations and allocations, go."""
        store = self.server.store
        store.delete("pods", f"default/{pod.name}")
        for of in pod.claims:
            try:
                claim = store.get("resourceclaims", f"default/{of.name}")
            except Refused:
                continue
            users = [user for user in claim["status"].get("reservedFor") or () if user["uid"] != pod.uid]
            if users:
                claim["status"]["reservedFor"] = users
                store.update("resourceclaims", f"default/{of.name}", claim)
            elif keep_claim:
                claim["status"] = {}
                store.update("resourceclaims", f"default/{of.name}", claim)
            else:
                store.delete("resourceclaims", f"default/{of.name}")

    # The driver

    def _settings(self) -> DriverSettings:
        options = {
            "node_name": NAME,
            "cdi_root": str(self.cdi),
            "registrar_dir": str(self.root / "registry"),
            "plugins_dir": str(self.root / "kubelet/plugins"),
            "host_root": str(self.host),
        }
        if self.partitions is not None:
            options["partitions"] = self.partitions
        if self.has_workloads:
            options["ultraserver_namespace"] = NAMESPACE
        settings = kubelet_plugin.read_settings(options, {})[0]
        return replace(settings, health_port=-1, metrics_port=-1, node_address="")

    def start(self) -> Instance:
        """A further instance of the driver starts."""
        self.number += 1
        instance = Instance(Life(f"driver-{self.number}"))
        self.instances.append(instance)

        def main() -> None:
            try:
                agent = NodeAgent(self._settings(), self.server.transport(), lambda: None)
                instance.agent = agent
                agent.start()
            except DriverError:
                self.kill(instance)  # the runtime starts it again
                return
            instance.started = True

        self.scheduler.spawn(main, "main", instance.life)
        return instance

    def stop(self, instance: Instance) -> None:
        """Tell an instance to stop, as kubelet does; it ends within its time."""
        instance.stopping = True

        def end() -> None:
            agent = instance.agent
            if agent is not None and instance.started:
                agent.stop()
            self.kill(instance)

        self.scheduler.spawn(end, "main", instance.life)

    def kill(self, instance: Instance) -> None:
        """An instance ends where it stands."""
        if instance in self.instances:
            self.instances.remove(instance)
            self.instance_ended = self.scheduler.clock
        self.disk.killed(instance.life)
        self.scheduler.kill(instance.life)

    def pass_time(self, seconds: float) -> None:
        self.scheduler.sleep(seconds)


@contextmanager
def simulated_node(root: Path, instance_type: str, seed: int, *, has_workloads: bool = False) -> Iterator[Node]:
    """A node without a driver, below an empty directory, for as long as the body runs."""
    random.seed(seed)
    node = Node(root, instance_type, seed, has_workloads=has_workloads)
    door = SimpleNamespace(worker=SimpleNamespace(stuck=lambda *_: "", problem=lambda: ""), stop=lambda *_: None)
    probes = SimpleNamespace(start=lambda: None, stop=lambda *_: None)

    def plugin(*arguments: Any, **options: Any) -> SimulatedPlugin:
        made = SimulatedPlugin(node.kubelet, *arguments, **options)
        node.kubelet.plugins.append(made)
        return made

    with ExitStack() as stack:
        stack.enter_context(runtime.use(node.scheduler.runtime()))
        stack.enter_context(node.disk.used())
        for module, name, double in (
            (agents, "KubeletPlugin", plugin),
            (agents, "Door", lambda *_: door),
            (agents, "HealthServer", lambda *_, **__: probes),
            (agents, "own_addresses", lambda *_: frozenset()),
            (exclusion, "list_pods", node.kubelet.list_pods),
        ):
            stack.enter_context(mock.patch.object(module, name, double))
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, logging.NOTSET)
        stack.callback(shutil.rmtree, root / "host", ignore_errors=True)
        stack.callback(node.scheduler.close)
        yield node

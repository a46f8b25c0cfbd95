"""A node with a device plugin: a test kubelet's device manager, a test API server, an emulated host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dra_driver.legacy.annotations import ContainerShare, write
from dra_driver.legacy.device_plugin.agent import DevicePluginAgent
from dra_driver.legacy.device_plugin.settings import DevicePluginSettings
from dra_driver.legacy.rules import NeuronResource, NodeHardware
from dra_driver.neuron.emulation.tree import DEVICES
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.topology.instance_types import resolve_emulation
from dra_driver.util.options import read_table
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.device_manager import Container, DeviceManager, KnownPod
from tests.doubles.sample_driver import node_directory
from tests.eventually import eventually

NODE = "node-a"
NEURON, CORE = NeuronResource.DEVICE.value, NeuronResource.CORE.value
Object = dict[str, Any]


@dataclass
class PluginNode:
    """A node without its plugin."""

    root: Path
    kind: str
    manager: DeviceManager
    server: ApiServer
    fatal: list[str] = field(default_factory=list)

    @property
    def host(self) -> Path:
        return self.root / "host"

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    @property
    def hardware(self) -> NodeHardware:
        row = resolve_emulation(self.kind)
        return NodeHardware(row.name, row.fabric, row.cores_per_device // row.default_lnc)

    def emulate(self, **options: Any) -> None:
        """Rewrite the emulated host."""
        write_host(self.host, resolve_emulation(self.kind), EmulationOptions(**options))

    def set_errors(self, chip: int, errors: int) -> None:
        """Let the emulated chip count uncorrectable errors of its memory: more than none is a fault."""
        path = self.host / DEVICES / f"neuron{chip}" / "stats/hardware/mem_ecc_uncorrected"
        path.write_text(f"{errors}\n")

    def settings(self, *, rescan_seconds: float = 0.1, **changes: Any) -> DevicePluginSettings:
        options = {
            "node_name": NODE,
            "host_root": str(self.host),
            "kubelet_directory": str(self.root),
            "cdi_root": str(self.cdi),
            "healthcheck_port": "-1",
            "healthcheck_address": "127.0.0.1",
            "rescan_seconds": str(rescan_seconds),
            "state_dir": str(self.root / "state"),
            "health_hints_dir": str(self.root / "hints"),
        }
        settings = read_table(DevicePluginSettings, options, {})
        return replace(settings, look_seconds=0.05, guard_seconds=0.2, **changes)

    @contextmanager
    def plugin(self, *, ready: bool = True, **changes: Any) -> Iterator[DevicePluginAgent]:
        """Start the plugin; with ``ready``, wait until kubelet can allocate all devices."""
        agent = DevicePluginAgent(self.settings(**changes), self.server.transport(), lambda: self.fatal.append("ended"))
        try:
            agent.start()
            if ready:
                self.wait_registered()
            yield agent
        finally:
            agent.stop()

    def wait_registered(self) -> None:
        """Wait until kubelet has devices, from sockets that are still there: it removes all when it starts."""

        def registered() -> bool:
            connections = [self.manager.connections.get(resource) for resource in (NEURON, CORE)]
            known = self.manager.capacity(NEURON) and self.manager.capacity(CORE)
            return bool(known) and all(item is not None and item.path.exists() for item in connections)

        eventually(registered, what="registration")

    @staticmethod
    def wait_for_news(agent: DevicePluginAgent, *names: str) -> None:
        """Wait until the plugin's watch has told it of these pods."""
        eventually(lambda: {*names} <= {pod.metadata.name for pod in agent._sources.pods()}, what=f"news of {names}")

    # -- pods

    def pod(
        self,
        name: str,
        *containers: Container,
        shares: Sequence[ContainerShare] = (),
        annotations: Mapping[str, str] | None = None,
        at: int = 0,
        stored: bool = True,
    ) -> KnownPod:
        """A pod that the scheduler has bound to the node, with annotations for ``shares`` like the extender's."""
        uid = f"uid-{name}-{time.monotonic_ns()}"
        told = write(self.hardware, uid, tuple(shares), at or time.time_ns()) if shares else {}
        if stored:
            self.store(name, uid, containers, {**told, **(annotations or {})})
        return KnownPod("default", name, uid, containers)

    def store(self, name: str, uid: str, containers: Sequence[Container], annotations: Mapping[str, str]) -> None:
        specs = [
            ({"name": c.name, "resources": {"limits": {r: str(n) for r, n in c.limits.items()}}}, c) for c in containers
        ]
        self.server.store.create(
            "pods",
            {
                "metadata": {"namespace": "default", "name": name, "uid": uid, "annotations": dict(annotations)},
                "spec": {
                    "nodeName": NODE,
                    "containers": [spec for spec, c in specs if not c.init],
                    "initContainers": [spec for spec, c in specs if c.init],
                },
                "status": {"phase": "Pending"},
            },
        )

    def chosen(self, name: str, resource: str, ids: Sequence[int], at: int = 0) -> KnownPod:
        """A pod with one container and ids that an extender has chosen for it."""
        share = ContainerShare("main", NeuronResource(resource), tuple(ids))
        return self.pod(name, Container("main", {resource: len(ids)}), shares=(share,), at=at)

    def plain(self, name: str, resource: str, count: int) -> KnownPod:
        """A pod with one container that no extender has processed."""
        return self.pod(name, Container("main", {resource: count}))

    def annotations(self, name: str) -> Object:
        found: Object = self.server.store.get("pods", f"default/{name}")["metadata"].get("annotations") or {}
        return found

    def node_annotations(self) -> Object:
        found: Object = self.server.store.get("nodes", NODE)["metadata"].get("annotations") or {}
        return found

    def annotate(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change annotations as another client would; None removes one."""
        key = f"default/{name}"
        with self.server.store.changed:
            pod = self.server.store.get("pods", key)
            now = {**(pod["metadata"].get("annotations") or {}), **changes}
            pod["metadata"]["annotations"] = {name: text for name, text in now.items() if text is not None}
            self.server.store.update("pods", key, pod)

    def set_phase(self, name: str, phase: str) -> None:
        key = f"default/{name}"
        with self.server.store.changed:
            pod = self.server.store.get("pods", key)
            self.server.store.update("pods", key, {**pod, "status": {"phase": phase}})

    def end(self, pod: KnownPod, phase: str = "Succeeded") -> None:
        """End the pod: kubelet forgets it, and reports its phase."""
        self.manager.remove(pod.uid)
        self.set_phase(pod.name, phase)

    def delete(self, pod: KnownPod) -> None:
        """Delete the pod."""
        self.manager.remove(pod.uid)
        self.server.store.delete("pods", f"default/{pod.name}")


MakeNode = Callable[..., PluginNode]
"""Creates a node of an instance type; options as for ``plugin_node``."""


@contextmanager
def plugin_nodes() -> Iterator[MakeNode]:
    """As many nodes as requested, each with a short path of its own; all of them end together."""
    with ExitStack() as stack:

        def made(kind: str = "trn1.32xlarge", **options: Any) -> PluginNode:
            root: Path = stack.enter_context(node_directory())
            return stack.enter_context(plugin_node(root, kind, **options))

        yield made


@contextmanager
def plugin_node(
    root: Path, kind: str, *, emulated: bool = True, server: ApiServer | None = None, **manager: Any
) -> Iterator[PluginNode]:
    """A node of an instance type, with its kubelet; ``server``: in place of one that asks nobody for a token."""
    with server or ApiServer() as api, DeviceManager(root, **manager) as kubelet:
        api.add_node(NODE)
        node = PluginNode(root, kind, kubelet, api)
        if emulated:
            node.emulate()
        yield node


def admit(node: PluginNode, pod: KnownPod) -> Any:
    """The plugin's response for a pod with one container."""
    (answer,) = node.manager.admit(pod).values()
    return answer


def chips(answer: Any) -> list[int]:
    """Host indexes of the chips in a response with device nodes."""
    return sorted(int(device.host_path.rpartition("neuron")[2]) for device in answer.devices)


def cores(answer: Any) -> list[int]:
    """Cores in a response."""
    return [int(text) for text in answer.envs["NEURON_RT_VISIBLE_CORES"].split(",")]

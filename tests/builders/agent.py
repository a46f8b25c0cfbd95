"""The whole agent in a process of its own, with a test kubelet and a test API server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from dra_driver.cli import kubelet_plugin
from dra_driver.driver.agent import NodeAgent
from dra_driver.kube.api.client import Transport
from dra_driver.kube.kubelet.api import health_v1_pb2
from dra_driver.neuron.emulation.ultraservers import Servers
from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.instance_types import resolve_emulation
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.kubelet import Claim, Kubelet
from tests.eventually import eventually
from tests.paths import ROOT

NODE = "node-a"
TRN2U = resolve_emulation("trn2u.48xlarge")
THIRD = Servers.parse("2x4").options(TRN2U, 3)
"""The emulation options of the third node of an UltraServer of four."""
TOKEN = "do-not-log-me"
START_SECONDS = 90.0
"""Timeout of a start, which takes half a second; test machines are shared."""


@dataclass
class World:
    """A node without its driver: kubelet, API server, directories."""

    root: Path
    kubelet: Kubelet
    server: ApiServer

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    @property
    def host(self) -> Path:
        """The emulated host's root."""
        return self.root / "host"

    def command(self, *options: str, program: Sequence[str] = (sys.executable, "-m", "dra_driver")) -> list[str]:
        """The agent's command line on this node; later options win."""
        values = {
            "--node-name": NODE,
            "--kubeconfig": str(self.kubeconfig()),
            "--cdi-root": str(self.cdi),
            "--registrar-dir": str(self.kubelet.registry_dir),
            "--plugins-dir": str(self.kubelet.plugins_dir),
            "--emulate": "trn2.48xlarge",
            "--emulation-root": str(self.host),
            "--healthcheck-port": "-1",
            "--rescan-seconds": "0.2",
        }
        given = [word for pair in values.items() for word in pair]
        return [*program, "kubelet-plugin", *given, *options]

    def kubeconfig(self) -> Path:
        return self.server.kubeconfig(self.root / "kubeconfig")

    def add_claim(self, namespace: str, name: str, devices: Sequence[tuple[str, str]], **more: Any) -> Claim:
        """Store a claim that has ``devices`` of this node, and return it as kubelet knows it; see ``ApiServer``."""
        stored = self.server.add_claim(namespace, name, devices=devices, node=NODE, **more)
        return Claim(namespace, name, stored["metadata"]["uid"], (DRIVER_NAME,))

    def specs(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.cdi.glob("*.json"))]

    def attributes(self, name: str) -> set[str]:
        """Values of a string attribute over all published devices."""
        return {
            device["attributes"][name]["string"]
            for item in self.server.slices()
            for device in item["spec"].get("devices") or ()
            if name in device["attributes"]
        }

    def write_paths(self, *, since: int) -> set[str]:
        """Where the requests wrote that came after the first ``since`` ones."""
        return {item.path for item in list(self.server.requests)[since:] if item.method != "GET"}

    def slice_writes(self) -> int:
        """Number of requests so far that write slices."""
        return sum(request.method != "GET" and "slices" in request.path for request in list(self.server.requests))

    def condition(self) -> dict[str, Any]:
        """What the Node says about its chips, {} when nothing."""
        conditions = self.server.store.get("nodes", NODE)["status"].get("conditions", [])
        return next((item for item in conditions if item["type"] == "NeuronHealth"), {})

    def node_told(self) -> None:
        """Wait until label and condition of a node with chips are there: that is all that a start writes but slices."""
        present = "neuron.amazonaws.com/present"
        eventually(lambda: present in self.server.store.get("nodes", NODE)["metadata"]["labels"], what="the label")
        eventually(self.condition, what="the condition")

    def offered(self) -> list[str]:
        return [device["name"] for item in self.server.slices() for device in item["spec"].get("devices") or ()]

    def taints(self) -> dict[str, dict[str, str]]:
        """By device that has any: effect by fault."""
        return {
            device["name"]: {taint["key"].partition("/")[2]: taint["effect"] for taint in device["taints"]}
            for item in self.server.slices()
            for device in item["spec"].get("devices") or ()
            if device.get("taints")
        }


class Agent:
    """A running agent."""

    def __init__(self, world: World, command: list[str], search_path: Path = ROOT) -> None:
        self.world = world
        self._log = world.root / f"agent-{os.urandom(3).hex()}.log"
        # Nothing is inherited from this process's environment: a KUBECONFIG there would be used.
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(search_path)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=search_path)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def ready(self, published: bool = True) -> None:
        """Wait until kubelet has registered it and (``published``) its slices are stored."""

        def done() -> bool:
            assert self.process.poll() is None, self.log
            registered = bool(self.world.kubelet.instances.get(DRIVER_NAME))
            return registered and (not published or bool(self.world.server.slices()))

        eventually(done, START_SECONDS, "registration and publication")

    def terminate(self, within: float = START_SECONDS) -> int:
        """Send SIGTERM, as kubelet does to end a container; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=within)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def node(root: Path, *, watches_health: str | None = None, **server: Any) -> Iterator[World]:
    """A node with its Node object, and without a driver; ``watches_health`` as for ``Kubelet``."""
    with ApiServer(token=TOKEN, **server) as api, Kubelet(root / "kubelet", watches_health=watches_health) as kubelet:
        api.add_node(NODE)
        yield World(root, kubelet, api)


@contextmanager
def third_of_four() -> Iterator[World]:
    """The third node of an UltraServer of four, as its kernel driver reports it; without an agent."""
    with tempfile.TemporaryDirectory(prefix="u-") as name, node(Path(name)) as made:
        write_host(made.host, TRN2U, THIRD)
        yield made


def agent_on_host(world: World, *options: str, search_path: Path = ROOT) -> AbstractContextManager[Agent]:
    """Like ``agent``, but the agent uses the host as it is, and does not write one."""
    return agent(world, "--emulate", "", "--host-root", str(world.host), *options, search_path=search_path)


def agent_here(
    world: World,
    instance_type: str,
    *,
    faster: float = 1.0,
    ports: int = -1,
    transport: Transport | None = None,
    servers: str | None = None,
) -> NodeAgent:
    """An agent in this process, not started, on a host of this type; it scans ``faster`` times as often.

    ``ports`` are those of probes and metrics: -1: none, 0: free ones of the loopback address. ``transport``: its way to
    the API server, if it is not the straight one. ``servers``: namespace of the UltraServers' objects.
    """
    write_host(world.host, resolve_emulation(instance_type), EmulationOptions())
    options = {
        "node_name": NODE,
        "cdi_root": str(world.cdi),
        "registrar_dir": str(world.kubelet.registry_dir),
        "plugins_dir": str(world.kubelet.plugins_dir),
        "host_root": str(world.host),
    }
    settings = kubelet_plugin.read_settings(options, {})[0]
    settings = replace(
        settings,
        ultraserver_namespace=servers,
        rescan_seconds=settings.rescan_seconds / faster,
        health_port=ports,
        health_address="127.0.0.1",
        node_address="",
        metrics_port=ports,
        metrics_address="127.0.0.1",
    )
    straight = world.server.transport(authorization=lambda: f"Bearer {TOKEN}")
    return NodeAgent(settings, transport or straight, lambda: None)


@contextmanager
def agent(world: World, *options: str, search_path: Path = ROOT, **command: Any) -> Iterator[Agent]:
    """A started agent, killed at the end if it is still running.

    ``search_path``: where its package is; ``command`` as for ``World.command``.
    """
    running = Agent(world, world.command(*options, **command), search_path)
    try:
        yield running
    except BaseException:
        sys.stderr.write(running.log[-8000:])  # pytest shows it with the failure
        raise
    finally:
        running.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def health(port: int, service: str) -> str:
    """The result of a gRPC health probe of the service: SERVING, NOT_SERVING, or the name of an error."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_v1_pb2.HealthCheckRequest.SerializeToString,
            health_v1_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = check(health_v1_pb2.HealthCheckRequest(service=service), timeout=30)
        except grpc.RpcError as error:
            return str(error.code().name)
        return str(health_v1_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def scraped(port: int) -> str:
    """The metrics as Prometheus would read them; waits until the port is open."""

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    eventually(listens, what="the metrics port")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
        return text

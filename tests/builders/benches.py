"""What is around each program that the chart deploys, and the work that it is to do there.

All of it listens on the loopback address.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPSConnection
from pathlib import Path

from lab import pki

from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.names import DRIVER_NAME, SERVER_2, SERVER_4
from dra_driver.neuron.topology.instance_types import resolve_emulation
from dra_driver.operations.recovery.nodes import REQUEST
from dra_driver.ultraserver.placer.values import GATE, LWS_GROUP_LABEL
from tests.builders import device_plugin as plugin_nodes
from tests.builders import extender as schedulers
from tests.builders import recovery as clusters
from tests.builders.agent import NODE, World, free_port, health, node
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.doubles.kubelet import Claim, KubeletError
from tests.doubles.pod_resources import answering, shared_claim
from tests.eventually import eventually

LOOPBACK = "127.0.0.1"
AT_ONCE = 16
"""Claims that kubelet has a driver prepare at the same time."""
KIND = "trn1.32xlarge"
"""Of the nodes that the extender knows."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Of HTTP/2, with empty settings: what a client of gRPC says before its first call."""
HALF_A_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
STRANGERS = 240
"""As many as the extender keeps connections of."""
CLIENT_HELLO = bytes([0x16, 3, 1, 2, 0, 1])
"""The beginning of one of 512 bytes."""


@dataclass
class Bench:
    """What is around a program.

    Attributes:
        server: the API server.
        environment: variables of the container that differ from those of the chart, or that kubelet would fill in.
        ports: on which it listens, with what a client says first.
        probe: what kubelet asks, if it is not the health service; OSError if there is no answer.
        lists: starts what makes it list, if it does not do so by itself.
        listed: whether it has listed everything, as far as can be seen from outside.
        works: has it do its work; an assertion fails if it does not.
    """

    server: ApiServer
    environment: dict[str, str]
    ports: dict[int, bytes] = field(default_factory=dict)
    probe: Callable[[], bool] | None = None
    lists: Callable[[], None] = lambda: None
    listed: Callable[[], bool] = lambda: True
    works: Callable[[], object] = lambda: None

    def ready(self) -> bool:
        """Whether kubelet finds it ready; OSError if it does not answer."""
        if self.probe is not None:
            return self.probe()
        return health(int(self.environment["HEALTHCHECK_PORT"]), "readiness") == "SERVING"


Make = Callable[[Path, tuple[str, str]], AbstractContextManager[Bench]]
"""Makes a bench in a directory in which ``container.account`` was called, from what that returned."""


@contextmanager
def driver(root: Path, tls: tuple[str, str]) -> Iterator[Bench]:
    """A node whose label changes while it runs: only lists of all claims tell whether one holds what goes.

    A tenant shares a claim among 17,000 containers of the node, of which kubelet makes a list of 60 MB.
    """
    shared = shared_claim(DRIVER_NAME, pods=100, containers=170)
    asked = threading.Event()

    def listing() -> bytes:
        asked.set()
        return shared

    with _node_with_chips(root, tls) as (world, bench), answering(world.kubelet.plugins_dir.parent, listing):

        def relabel() -> None:
            with world.server.store.changed:
                mine = world.server.store.get("nodes", NODE)
                mine["metadata"].setdefault("labels", {})["neuron.aws.com/partitions"] = "group4"
                world.server.store.update("nodes", NODE, mine)

        bench.lists = relabel
        bench.listed = lambda: (
            asked.is_set() and bool(world.offered()) and all("group4" in name for name in world.offered())
        )
        yield bench


@contextmanager
def _node_with_chips(root: Path, tls: tuple[str, str]) -> Iterator[tuple[World, Bench]]:
    """A node, and the bench of its driver, which is to prepare a claim."""
    with node(root, tls=tls) as world:
        write_host(world.host, resolve_emulation("trn2.48xlarge"), EmulationOptions())
        environment = {
            "CDI_ROOT": str(world.cdi),
            "HOST_ROOT": str(world.host),
            "KUBELET_REGISTRAR_DIRECTORY_PATH": str(world.kubelet.registry_dir),
            "KUBELET_PLUGINS_DIRECTORY_PATH": str(world.kubelet.plugins_dir),
            "HEALTH_HINTS_DIR": str(root / "hints"),
        }

        def works() -> None:
            claim = world.add_claim("default", "claim", devices=[("r", world.offered()[-1])])
            assert world.kubelet.prepare("pod", [claim])[claim.uid]
            world.kubelet.unprepare("pod")

        yield world, Bench(world.server, {"NODE_NAME": NODE, **environment}, works=works)


def preparing(add: Callable[[World], Sequence[Claim]]) -> Make:
    """A bench of a node that offers cores, where kubelet has claims prepared, as many at once as it may.

    ``add`` stores them; some of them may be refused.
    """

    @contextmanager
    def bench(root: Path, tls: tuple[str, str]) -> Iterator[Bench]:
        with _node_with_chips(root, tls) as (world, made), ThreadPoolExecutor(AT_ONCE) as pool:
            calls: list[Future[object]] = []

            def prepare(claim: Claim) -> None:
                with suppress(KubeletError):
                    world.kubelet.prepare(claim.uid, [claim])

            def lists() -> None:
                eventually(world.offered, 60, "the node's slices")
                calls.extend([pool.submit(prepare, claim) for claim in add(world)])

            made.environment["PARTITIONS"] = "core"
            made.lists, made.listed = lists, lambda: all(call.done() for call in calls)
            yield made

    return bench


@contextmanager
def unused(root: Path, tls: tuple[str, str]) -> Iterator[Bench]:
    """A cluster from which the driver is to be uninstalled."""
    with ApiServer(token="token", tls=tls) as server:
        yield Bench(server, {})


@contextmanager
def placer(root: Path, tls: tuple[str, str]) -> Iterator[Bench]:
    """A cluster with one free UltraServer."""
    with ApiServer(token="token", tls=tls) as server:
        for number in range(4):
            name, labels = f"us-{number}", {SERVER_4: "us", SERVER_2: f"us-{number // 2}"}
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            server.store.create("nodes", {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": ready})
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": DRIVER_NAME, "nodeName": name, "pool": pool, "devices": [{"name": "neuron-node"}]}
            server.store.create("resourceslices", {"metadata": {"name": name}, "spec": spec})

        def works() -> None:
            labels = {LWS_GROUP_LABEL: "group", "leaderworkerset.sigs.k8s.io/worker-index": "0"}
            lws = {"leaderworkerset.sigs.k8s.io/size": "4", "leaderworkerset.sigs.k8s.io/exclusive-topology": SERVER_4}
            meta = {"namespace": "a", "name": "group-0", "labels": labels, "annotations": lws}
            spec = {"schedulingGates": [{"name": GATE}], "resourceClaims": [{"name": "node"}], "containers": []}
            server.store.create("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
            eventually(lambda: not server.store.get("pods", "a/group-0")["spec"]["schedulingGates"], 60, "a server")

        def listed() -> bool:
            return [watches(server, kind) for kind in ("pods", "resourceclaims", "resourceslices")] == [3, 1, 1]

        yield Bench(server, {"POD_NAMESPACE": "neuron-dra-driver"}, listed=listed, works=works)


@contextmanager
def placer_of_workloads(root: Path, tls: tuple[str, str]) -> Iterator[Bench]:
    """The same that serves workloads as well."""
    with placer(root, tls) as bench:
        read, server = bench.listed, bench.server
        kinds = ("neuronultraserverworkloads", "resourceclaimtemplates")
        bench.environment |= {"ULTRASERVER_OPERATOR": "on"}
        bench.listed = lambda: read() and all(watches(server, kind) for kind in kinds)
        yield bench


@contextmanager
def placer_of_waiting_groups(root: Path, tls: tuple[str, str]) -> Iterator[Bench]:
    """The same with groups that wait, of which the placer has told one why once it has judged all of them."""
    with placer(root, tls) as bench:
        read = bench.listed
        bench.listed = lambda: read() and bench.server.count("POST", "/events") > 0
        yield bench


@contextmanager
def device_plugin(root: Path, tls: tuple[str, str]) -> Iterator[Bench]:
    """A node of the device plugin."""
    with plugin_nodes.plugin_node(root / "k", "trn2.48xlarge", server=ApiServer(token="token", tls=tls)) as world:
        environment = {
            "NODE_NAME": NODE,
            "KUBELET_DIRECTORY": str(world.root),
            "CDI_ROOT": str(world.cdi),
            "HOST_ROOT": str(world.host),
            "STATE_DIR": str(root / "state"),
            "HEALTH_HINTS_DIR": str(root / "hints"),
        }

        def works() -> None:
            pod = world.plain("work", plugin_nodes.NEURON, 1)
            assert plugin_nodes.chips(plugin_nodes.admit(world, pod))

        yield Bench(
            world.server,
            environment,
            listed=lambda: watches(world.server, "pods") == 1,
            works=works,
        )


@contextmanager
def extender(root: Path, tls: tuple[str, str]) -> Iterator[Bench]:
    """A cluster of 1,250 nodes and one that is free."""
    pki.certificate(root, "ca", pki.Identity("client", "/CN=scheduler"))
    with ApiServer(token="token", tls=tls) as server:
        names = [f"node-{number:06}" for number in range(1250)]
        for name in [*names, "free"]:
            schedulers.add_node(server, name, KIND)
        port = free_port()

        def ask(path: str, body: Object | None = None) -> tuple[int, str]:
            context = ssl.create_default_context(cafile=str(root / "ca.crt"))
            context.load_cert_chain(root / "client.crt", root / "client.key")
            connection = HTTPSConnection(LOOPBACK, port, context=context, timeout=20)
            try:
                connection.request("POST" if body else "GET", path, json.dumps(body) if body else None)
                answer = connection.getresponse()
                return answer.status, answer.read().decode()
            finally:
                connection.close()

        def works() -> None:
            pod = schedulers.add_pod(server, "work", schedulers.limits(16))
            question = {"Pod": pod, "Nodes": None, "NodeNames": [*names, "free"]}
            eventually(lambda: "free" in json.loads(ask("/filter", question)[1]).get("NodeNames", ()), 60, "an answer")

        environment = {
            "PORT": str(port),
            "BIND_ADDRESS": LOOPBACK,
            "POD_NAMESPACE": "kube-system",
            "POD_IP": LOOPBACK,
            "TLS_CERT": tls[0],
            "TLS_KEY": tls[1],
            "TLS_CLIENT_CA": str(root / "ca.crt"),
        }
        yield Bench(
            server,
            environment,
            {port: CLIENT_HELLO},
            probe=lambda: ask("/readyz")[0] == 200,
            listed=lambda: watches(server, "pods") == 1,
            works=works,
        )


@contextmanager
def extender_among_strangers(root: Path, tls: tuple[str, str]) -> Iterator[Bench]:
    """Strangers fill its connections with heads of requests that do not end.

    Every second one sends as many lines as it may, as long as they may be, the others more and longer ones.
    """
    with extender(root, tls) as bench, ExitStack() as opened:
        (port,) = bench.ports
        context = ssl.create_default_context(cafile=str(root / "ca.crt"))
        context.check_hostname = False

        def connect(number: int) -> None:
            lines, length = ((7, 1000), (124, 8100))[number % 2]
            source = (f"127.0.0.{2 + number % 8}", 0)  # one address would have to wait
            plain = opened.enter_context(socket.create_connection((LOOPBACK, port), 20, source))
            connection = opened.enter_context(context.wrap_socket(plain))
            connection.sendall(b"POST /filter HTTP/1.1\r\nHost: x\r\n")
            for line in range(lines - 1):
                connection.sendall(b"h%d: %b\r\n" % (line, b"\xff" * length))

        def lists() -> None:
            for number in range(STRANGERS):
                with suppress(OSError):  # it is sent away
                    connect(number)

        bench.lists = lists
        yield bench


@contextmanager
def detector(root: Path, tls: tuple[str, str]) -> Iterator[Bench]:
    """A node whose kernel log names a chip."""
    log, hints = root / "kernel.log", root / "hints"
    log.write_text("<3>[    0.000000] Linux version 6\n")

    def works() -> None:
        fault = "NEURON_HW_ERR=DMA_ERROR instance-id=i-0 nd-id=0 nc-id=1 serial-num=19fcda00f5ff6eb9 action=NONE"
        with log.open("a") as file:
            file.write(f"<3>[{time.clock_gettime(time.CLOCK_MONOTONIC):12.6f}] {fault}\n")
        eventually(lambda: any(hints.iterdir()), 20, "a hint")

    with ApiServer(token="token", tls=tls) as server:
        yield Bench(server, {"HEALTH_HINTS_DIR": str(hints), "KERNEL_LOG": str(log)}, works=works)


@contextmanager
def recovery(root: Path, tls: tuple[str, str]) -> Iterator[Bench]:
    """A sick node, whose pods recovery lists when it drains it."""
    (root / "policy.yaml").write_text("persistSeconds: 0\npauseSeconds: 0\n")
    with ApiServer(token="token", tls=tls) as server:
        for name in (NODE, "node-b"):
            clusters.add_node(server, name)
        clusters.add_pod(server, "training", NODE)
        clusters.sicken(server, NODE)

        def drained() -> bool:
            return not server.store.list("pods")[0]

        def works() -> None:
            notes = "annotations"
            eventually(lambda: REQUEST in server.store.get("nodes", NODE)["metadata"].get(notes, {}), 60, "its request")

        environment = {
            "POD_NAMESPACE": "neuron-healthcheck-system",
            "RECOVERY_POLICY": str(root / "policy.yaml"),
        }
        yield Bench(server, environment, listed=drained, works=works)


def watches(server: ApiServer, plural: str) -> int:
    """How many lists of the kind are followed by a watch, which begins when the list has been read."""
    found = [request for request in list(server.requests) if request.watch and request.path.endswith(f"/{plural}")]
    return len({(request.query.get("fieldSelector"), request.query.get("labelSelector")) for request in found})

"""Every container that the chart deploys stays within its limit of memory, whatever tenants, growth and strangers do.

The real program runs in a control group with the limit of the chart's values. Connections that say nothing are open on
each of its ports, and its lists have more than its memory could hold. ``tests/data/memory.json`` says how much it may
need, and the page of measurements shows that (``scripts/generate memory``).
"""

from __future__ import annotations

import json
import resource
import selectors
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube.quantity import parse
from dra_driver.neuron.names import DRIVER_NAME
from tests.builders import benches, crowds, heavy
from tests.builders.agent import NODE, free_port
from tests.builders.benches import Bench
from tests.builders.container import Container, account, container, lacking
from tests.doubles.apiserver.crowd import Crowd
from tests.doubles.apiserver.store import Object
from tests.eventually import eventually
from tests.manifests.chart import EVERYTHING, VALUES, needs_helm, template
from tests.manifests.support import pod_spec
from tests.paths import DATA

CONNECTIONS = 2_000
"""On each port."""
CONNECT_SECONDS = 10.0
"""How long a server may leave some of them waiting: they count only once it has accepted them."""
LISTS_SECONDS = 240.0
"""Timeout of lists, the longest of which take a minute; test machines are shared."""
MIB = 1 << 20
IN_USE = "These claims are in use"
ROWS: dict[str, Any] = json.loads((DATA / "memory.json").read_text())
"""By container: where its values are, and at most how many MiB it needs under each load."""
LEAST = 0.6
"""Share of such a bound below which it says too little."""

ALONE, FEW = "connections alone", "400 claims of 250 kB"
BIG, SMALL = "20,000 claims of 250 kB", "200,000 claims of 2 kB"
SMALL_PODS, BIG_PODS = "20,000 pods of 2 kB", "2,000 pods of 250 kB"
SLICES = "1,000 slices of 250 kB"
CONTAINERS = "500 pods of 15,000 containers"
RECORDS, RECORDS_OF_NODE = "2,000 pods with long records", "300 pods with long records"
HEADS = "240 strangers whose requests do not end"
GATED = "20,000 gated pods of 6 kB"
NODES = "5,000 nodes of 20 kB and 200 of 1 MB"
OWNERS = "12 pods with 22,000 owners"
TOLERATIONS = "4,000 gated pods with 270 tolerations"
TAINTS = "400 gated pods and a Node with 30,000 taints"
WORKLOADS = "6,000 long workloads and 1,000 with a long status"
TEMPLATES = "30,000 templates with long owners"
PARAMETERS = "16 claims with nested parameters"
OTHERS_PARAMETERS = "16 claims with nested parameters of others"
MAPPINGS = "8 pods with 50,000 mappings"
REPORTED = "63 claims whose status is long and refused"
Load = Callable[[], Sequence[Crowd | Object]]
"""Crowds, or pods to be stored."""
CLAIMS: dict[str, Load] = {
    ALONE: list,
    FEW: lambda: crowds.claims_of_a_tenant(400, 250_000),
    BIG: lambda: crowds.claims_of_a_tenant(20_000, 250_000),
    SMALL: lambda: crowds.claims_of_a_cluster(200_000, 2_000),
}


PREPARED: dict[str, benches.Make] = {
    OTHERS_PARAMETERS: benches.preparing(
        lambda world: heavy.claims_with_parameters(world, "gpu.example.com", 16, heavy.MOST)
    ),
    PARAMETERS: benches.preparing(lambda world: heavy.claims_with_parameters(world, DRIVER_NAME, 16, heavy.SMALL)),
    MAPPINGS: benches.preparing(lambda world: heavy.claim_of_pods_with_mappings(world, 8, 50_000)),
    REPORTED: benches.preparing(lambda world: heavy.claims_with_devices(world, 8, 32_000)),
}
"""Of the node's driver, by their load, where kubelet has claims prepared that a tenant has made."""


@dataclass(frozen=True)
class Program:
    """A container of the chart.

    Attributes:
        command: as the chart has it, with arguments.
        bench: what is around it.
        loads: what is in the API server, by its name.
        instead: what is around it under some of the loads.
        ports: what a client says first to a port, by what the port's variables begin with.
    """

    command: tuple[str, ...]
    bench: benches.Make
    loads: Mapping[str, Load]
    ports: Mapping[str, bytes] = field(default_factory=dict)
    instead: Mapping[str, benches.Make] = field(default_factory=dict)


def pods(make: Callable[[int, int], list[Crowd]]) -> dict[str, Load]:
    return {ALONE: list, SMALL_PODS: lambda: make(20_000, 2_000), BIG_PODS: lambda: make(2_000, 250_000)}


HEALTH = {"HEALTHCHECK": benches.PREFACE}
METRICS = {"METRICS": benches.HALF_A_REQUEST}
BOTH = HEALTH | METRICS
OF_NODE = pods(partial(crowds.pods_of_a_node, NODE))
OF_CLUSTER = pods(partial(crowds.pods_with_limits, benches.KIND))
OF_SERVERS: dict[str, Load] = {NODES: lambda: crowds.nodes_of_servers(5_000, 20_000, 100)}
PROGRAMS = {
    "neuron-dra-driver": Program(
        ("k8s-neuron-dra-driver",), benches.driver, CLAIMS | dict.fromkeys(PREPARED, list), BOTH, PREPARED
    ),
    "check-unused": Program(
        (
            "dra-driver",
            "check-unused",
        ),
        benches.unused,
        CLAIMS,
    ),
    "placer": Program(
        (
            "dra-driver",
            "placer",
        ),
        benches.placer,
        CLAIMS
        | pods(crowds.pods_of_groups)
        | {
            GATED: lambda: crowds.pods_with_the_gate(20_000, 6_000),
            SLICES: lambda: crowds.slices_of_a_node(1_000, 250_000),
            **OF_SERVERS,
            TOLERATIONS: lambda: crowds.pods_with_tolerations(5, 100, 8),
            TAINTS: lambda: crowds.pods_that_tolerate_a_node(30_000, 100, 4),
            WORKLOADS: lambda: crowds.workloads_of_a_tenant(6_000, 1_000),
            TEMPLATES: lambda: crowds.templates_of_a_tenant(30_000),
        },
        HEALTH,
        dict.fromkeys((TOLERATIONS, TAINTS), benches.placer_of_waiting_groups)
        | dict.fromkeys((WORKLOADS, TEMPLATES), benches.placer_of_workloads),
    ),
    "neuron-device-plugin": Program(
        (
            "dra-driver",
            "device-plugin",
        ),
        benches.device_plugin,
        OF_NODE
        | {
            CONTAINERS: lambda: crowds.pods_with_containers(NODE, 500, 15_000),
            RECORDS_OF_NODE: lambda: crowds.pods_with_records(NODE, 300),
        },
        BOTH,
    ),
    "neuron-scheduler": Program(
        (
            "dra-driver",
            "extender",
        ),
        benches.extender,
        OF_CLUSTER
        | {
            CONTAINERS: lambda: crowds.pods_with_containers(crowds.NODE, 500, 15_000),
            RECORDS: lambda: crowds.pods_with_records(crowds.NODE, 2_000),
            HEADS: list,
        },
        METRICS,
        {HEADS: benches.extender_among_strangers},
    ),
    "neuron-node-problem-detector": Program(
        (
            "dra-driver",
            "node-problem-detector",
        ),
        benches.detector,
        {ALONE: list},
        BOTH,
    ),
    "neuron-node-recovery": Program(
        ("dra-driver", "recover", "--act"),
        benches.recovery,
        OF_NODE | OF_SERVERS | {OWNERS: lambda: crowds.pods_with_owners(NODE, 12, 22_000)},
        BOTH,
    ),
}
"""By the container's name. The container my-scheduler is Kubernetes' own kube-scheduler, and has no limit; first-pod,
of `helm test`, is a shell that opens files."""
OTHERS = {"my-scheduler", "first-pod"}


def limit_of(name: str) -> int:
    """Bytes."""
    values: Any = VALUES
    for part in ROWS[name]["values"].split("."):
        values = values[part]
    amount = parse(values["resources"]["limits"]["memory"]).integer()
    assert amount
    return amount


@needs_helm
def test_every_container_of_the_chart_is_one_of_these_with_this_limit() -> None:
    made = template(*EVERYTHING, options=("--no-hooks=false",))
    specs = [pod_spec(item) for item in made if item["kind"] in ("DaemonSet", "Deployment", "Job", "Pod")]
    containers = {
        item["name"]: item
        for spec in specs
        for item in [*spec["containers"], *spec.get("initContainers", []), *spec.get("ephemeralContainers", [])]
    }
    assert containers.keys() == PROGRAMS.keys() | OTHERS
    for name, program in PROGRAMS.items():
        assert containers[name]["command"] == list(program.command[:2])
        assert parse(containers[name]["resources"]["limits"]["memory"]).integer() == limit_of(name)


def test_every_container_and_load_has_a_bound_below_the_limit() -> None:
    loads = {name: [load for load in program.loads if load != FEW] for name, program in PROGRAMS.items()}
    assert {name: list(row["MiB"]) for name, row in ROWS.items()} == loads
    assert all(max(row["MiB"].values()) * MIB < limit_of(name) for name, row in ROWS.items())


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("neuron-dra-driver", BIG),
        ("neuron-dra-driver", SMALL),
        ("check-unused", BIG),
        ("placer", BIG),
        ("placer", SLICES),
    ],
)
def test_a_list_that_nothing_is_kept_of_costs_at_most_20_mib(name: str, load: str) -> None:
    assert ROWS[name]["MiB"][load] - ROWS[name]["MiB"][ALONE] <= 20


def cases() -> Iterator[Any]:
    for name, program in PROGRAMS.items():
        for load in program.loads:
            tier = pytest.mark.slow if load == FEW else pytest.mark.nightly
            yield pytest.param(name, load, marks=tier, id=f"{name}, {load}")


@pytest.mark.skipif(bool(lacking()), reason=lacking())
@pytest.mark.timeout(280)
@pytest.mark.parametrize(("name", "load"), list(cases()))
def test_it_stays_within_its_limit_and_does_its_work(name: str, load: str) -> None:
    program = PROGRAMS[name]
    with tempfile.TemporaryDirectory(prefix="m-") as directory, ExitStack() as stack:
        root = Path(directory)
        bench = stack.enter_context(program.instead.get(load, program.bench)(root, account(root)))
        for made in program.loads[load]():
            if isinstance(made, Crowd):
                bench.server.crowds.append(made)
            else:
                bench.server.store.create("pods", made)
        for kind, first in program.ports.items():
            port = free_port()
            bench.environment |= {f"{kind}_PORT": str(port), f"{kind}_ADDRESS": benches.LOOPBACK}
            bench.ports[port] = first
        limit = limit_of(name)
        started = stack.enter_context(container(bench.server, root, limit, program.command, bench.environment))
        run = Run(bench, started)
        if program.ports:
            run.until(run.ready, "readiness")
            for port, first in bench.ports.items():
                stack.enter_context(idle(port, first))
            bench.lists()
            run.until(bench.listed, "its lists")
            bench.works()
            run.until(run.ready, "readiness, with all connections open")
        else:
            run.until(run.ended, "its end")
            assert (started.process.returncode, IN_USE in started.log) == ((1, True) if load == SMALL else (0, False))
        assert started.kills() == 0
        found = run.used / MIB
    print(f"{name}, {load}: {found:.0f} MiB")  # noqa: T201 # shown where a test fails, and with -rP
    if load != FEW:
        assert LEAST * ROWS[name]["MiB"][load] <= found <= ROWS[name]["MiB"][load]


@dataclass
class Run:
    """A container whose memory is looked at while something else is awaited."""

    bench: Bench
    container: Container
    used: int = 0
    """Bytes, the most so far."""

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait; an assertion fails, too, if the kernel ends the container."""

        def done() -> bool:
            if resident := self.container.resident():
                self.used = max(self.used, resident + self.container.kernel())
            log = self.container.log[-2000:]
            assert not self.container.kills(), f"ended for memory, at {self.used >> 20} MiB: {log}"
            assert not self.ended() or condition == self.ended, log
            return condition()

        eventually(done, LISTS_SECONDS, what)

    def ready(self) -> bool:
        """Whether kubelet would find it ready."""
        with suppress(OSError):
            return self.bench.ready()
        return False

    def ended(self) -> bool:
        return self.container.process.poll() is not None


@contextmanager
def idle(port: int, first: bytes) -> Iterator[None]:
    """Connections that say nothing, or, every second one, no more than that. The server may close them, or be slow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        waiting = opened.enter_context(selectors.DefaultSelector())
        for number in range(CONNECTIONS):
            connection = opened.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex((benches.LOOPBACK, port))
            waiting.register(connection, selectors.EVENT_WRITE, first if number % 2 else b"")
        end = time.monotonic() + CONNECT_SECONDS
        while waiting.get_map() and (left := end - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                connection = waiting.unregister(key.fileobj).fileobj  # type: ignore[assignment] # one of these
                with suppress(OSError):
                    connection.send(key.data)
        yield

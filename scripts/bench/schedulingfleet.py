"""A control plane with Node objects and slices, bursts of pods on it, and what kube-scheduler does meanwhile."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Self, TypeVar

from lab.cluster import Cluster
from lab.errors import LabError
from lab.layout import ETCD_PORT, SCHEDULER_PORT

from bench import procfs
from bench.burst import Watching
from bench.figures import percentile
from bench.schedulingrows import (
    Object,
    Row,
    State,
    World,
    allocated,
    claim,
    classes,
    efa_class,
    fitting,
    node,
    node_name,
    pod,
    scheduler_configuration,
    taken,
)
from bench.schedulingslices import devices_of, slices
from dra_driver.kube.client import Transport
from dra_driver.names import DRIVER_NAME

T = TypeVar("T")

PODS: Final = "/api/v1/namespaces/default/pods"
NODES: Final = "/api/v1/nodes"
_RESOURCES: Final = "/apis/resource.k8s.io/v1"
CLAIMS: Final = f"{_RESOURCES}/namespaces/default/resourceclaims"
SLICES: Final = f"{_RESOURCES}/resourceslices"
CLASSES: Final = f"{_RESOURCES}/deviceclasses"
_MERGE: Final = "application/merge-patch+json"
WRITERS: Final = 6
RESULTS: Final = 32
"""Devices of one claim (Kubernetes limit)."""
LIMIT_SECONDS: Final = 240.0
SETTLE_SECONDS: Final = 1.0
UID: Final = "00000000-0000-0000-0000-000000000000"
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """One burst.

    Attributes:
        pods: How many.
        seconds: From the first pod's creation until the last one had a node.
        p50: Milliseconds from before a pod's creation until it was observed with a node.
        p99: The same.
        processor: CPU milliseconds of kube-scheduler for each pod.
    """

    pods: int
    seconds: float
    p50: float
    p99: float
    processor: float


@dataclass(frozen=True)
class Size:
    """What the slices of a node are to the API server.

    Attributes:
        objects: Number of slices.
        devices: In them.
        bytes: Of their JSON as published.
        etcd: Bytes by which etcd's data grew, for each node.
    """

    objects: int
    devices: int
    bytes: int
    etcd: float


class Scheduler:
    """kube-scheduler as a process of its own."""

    def __init__(self, cluster: Cluster, directory: Path, percentage: int = 0) -> None:
        self._cluster = cluster
        self._config, self._log = directory / "scheduler.yaml", directory / "scheduler.log"
        kubeconfig = cluster.layout.pki / "scheduler.kubeconfig"
        self._config.write_text(json.dumps(scheduler_configuration(kubeconfig, percentage)))
        self.program = cluster.state.programs["kube-scheduler"]

    def __enter__(self) -> Self:
        pki = self._cluster.layout.pki
        command = [
            *(str(self.program), f"--config={self._config}"),
            *("--bind-address=127.0.0.1", f"--secure-port={SCHEDULER_PORT}"),
            *(f"--tls-cert-file={pki / 'apiserver.crt'}", f"--tls-private-key-file={pki / 'apiserver.key'}"),
            "--authorization-always-allow-paths=/debug/pprof/*,/healthz",
        ]
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def check(self) -> None:
        """LabError when it has ended."""
        if self._process.poll() is not None:
            raise LabError(f"kube-scheduler has ended, so nothing is reported: {self._log.read_text()[-2000:]}")

    def processor_seconds(self) -> float:
        """CPU time used so far."""
        return procfs.cpu_ticks(Path(f"/proc/{self._process.pid}/stat").read_text()) / _TICKS

    def profile(self, seconds: int) -> bytes:
        """A CPU profile of the seconds that follow."""
        context = ssl.create_default_context(cafile=str(self._cluster.layout.pki / "ca.crt"))
        address = f"https://127.0.0.1:{SCHEDULER_PORT}/debug/pprof/profile?seconds={seconds}"
        with urllib.request.urlopen(address, context=context, timeout=seconds + 30) as answer:
            data: bytes = answer.read()
        return data


class Fleet:
    """Node objects, their slices, and claims that others hold; pods come and go in bursts."""

    def __init__(self, cluster: Cluster, nodes: int) -> None:
        self.nodes = nodes
        self._transport = Transport.from_kubeconfig(str(cluster.kubeconfig), user_agent="benchmark")
        self._writers = ThreadPoolExecutor(WRITERS)
        self._bursts = 0

    def close(self) -> None:
        """End connections."""
        self._writers.shutdown()
        self._transport.close()

    def build(self, more_classes: Sequence[Object]) -> None:
        """Make nodes and classes."""
        self._all(lambda item: self._create(CLASSES, item), [*classes(), efa_class(), *more_classes])
        self._all(lambda number: self._create(NODES, node(number)), range(self.nodes))

    def remove(self) -> None:
        """Remove all that was made."""
        self.clear()
        self._collection(SLICES)
        self._collection(CLASSES)
        self._collection(NODES)

    @contextmanager
    def offering(self, world: World) -> Iterator[Size]:
        """The nodes offer what the world says meanwhile."""
        before = etcd_bytes()
        self._all(self._publish, [(world, number) for number in range(self.nodes)])
        one = slices(world, node_name(0), UID)
        yield Size(
            objects=len(one),
            devices=sum(len(item["spec"].get("devices", ())) for item in one),
            bytes=sum(len(json.dumps(item, separators=(",", ":"))) for item in one),
            etcd=(etcd_bytes() - before) / self.nodes,
        )
        self._collection(SLICES)

    def _publish(self, job: tuple[World, int]) -> None:
        world, number = job
        for item in slices(world, node_name(number), UID):
            self._create(SLICES, item)

    @contextmanager
    def filled(self, row: Row, state: State) -> Iterator[None]:
        """Chips are taken by claims without pods meanwhile."""
        chips, nodes = taken(row, state, self.nodes)
        names = devices_of(row.world, range(chips))
        parts = [names[start : start + RESULTS] for start in range(0, len(names), RESULTS)]
        jobs = [
            (f"others-{number}-{place}", node_name(number), part)
            for number in range(nodes)
            for place, part in enumerate(parts)
        ]
        self._all(self._take, jobs)
        time.sleep(SETTLE_SECONDS)
        yield
        self._all(self._forget, [name for name, _, _ in jobs])

    def _take(self, job: tuple[str, str, Sequence[str]]) -> None:
        name, pool, devices = job
        request = {"name": "neurons", "exactly": {"deviceClassName": DRIVER_NAME}}
        self._create(CLAIMS, claim(name, {"devices": {"requests": [request]}}))
        self._patch(f"{CLAIMS}/{name}/status", allocated(devices, pool))

    def burst(self, scheduler: Scheduler, row: Row, count: int) -> Sample:
        """Create pods, whose claims are there, wait until all have a node, and delete them."""
        self._bursts += 1
        names = [f"b{self._bursts}-{number}" for number in range(count)]
        spec = row.claim
        if spec is not None:
            self._all(lambda name: self._create(CLAIMS, claim(name, spec)), names)
        made: dict[str, float] = {}

        def make(name: str) -> None:
            made[name] = time.perf_counter()
            self._create(PODS, pod(name, row))

        before = scheduler.processor_seconds()
        with Watching(self._transport) as watching:
            self._all(make, names)
            watching.wait(count, LIMIT_SECONDS)
        used = scheduler.processor_seconds() - before
        scheduler.check()
        self.clear()
        waits = [1000 * (watching.bound[name] - began) for name, began in made.items()]
        seconds = max(watching.bound.values()) - min(made.values())
        return Sample(count, seconds, median(waits), percentile(waits, 99), 1000 * used / count)

    def refused(self, scheduler: Scheduler, row: Row) -> tuple[float, float]:
        """Seconds, and CPU seconds of kube-scheduler, until it says that a pod gets no node."""
        name = "refused"
        self._create(CLAIMS, claim(name, row.claim or {}))
        before, began = scheduler.processor_seconds(), time.perf_counter()
        self._create(PODS, pod(name, row))
        while time.perf_counter() - began < LIMIT_SECONDS:
            found = json.loads(self._transport.request("GET", f"{PODS}/{name}").body)
            if any(item.get("reason") == "Unschedulable" for item in found["status"].get("conditions", ())):
                break
            time.sleep(0.01)
        else:
            raise LabError(f"After {LIMIT_SECONDS:g} s kube-scheduler has not answered; nothing is reported.")
        seconds, used = time.perf_counter() - began, scheduler.processor_seconds() - before
        self.clear()
        return seconds, used

    def clear(self) -> None:
        """Remove all pods, and their claims."""
        self._collection(PODS)
        left = json.loads(self._transport.request("GET", CLAIMS, timeout=60).body)["items"]
        names = [item["metadata"]["name"] for item in left]
        self._all(self._forget, [name for name in names if not name.startswith("others-")])

    def _forget(self, name: str) -> None:
        # Nobody else removes the finalizer that keeps allocated claims.
        self._patch(f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}})
        self._transport.request("DELETE", f"{CLAIMS}/{name}")

    def _create(self, path: str, body: Object) -> None:
        self._transport.request("POST", path, body=body, timeout=60)

    def _patch(self, path: str, body: Object) -> None:
        self._transport.request("PATCH", path, body=body, content_type=_MERGE, timeout=60)

    def _collection(self, path: str) -> None:
        self._transport.request("DELETE", path, body={"gracePeriodSeconds": 0}, timeout=120)

    def _all(self, work: Callable[[T], object], items: Iterable[T]) -> None:
        list(self._writers.map(work, items))


def etcd_bytes() -> float:
    """What etcd's data takes, without what it could free."""
    with urllib.request.urlopen(f"http://127.0.0.1:{ETCD_PORT}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = re.search(r"^etcd_mvcc_db_total_size_in_use_in_bytes (\S+)", text, re.MULTILINE)
    if found is None:
        raise LabError("etcd does not tell the size of its data, so nothing is reported.")
    return float(found[1])


def run_rows(
    fleet: Fleet,
    scheduler: Scheduler,
    rows: Sequence[Row],
    states: Sequence[State],
    pods: int,
    rounds: int,
    tell: Callable[[str], None],
) -> Iterator[tuple[Row, State, Sequence[Sample], Sequence[Sample]]]:
    """Measure rows of one world, whose slices are there; before each burst one of plain pods.

    Yields:
        The row, the state of the fleet, the bursts, and those of plain pods.
    """
    plain = Row("plain", World(), 0)
    for state in states:
        for row in rows:
            count = min(pods, fitting(row, state, fleet.nodes))
            with fleet.filled(row, state):
                fleet.burst(scheduler, row, max(count // 10, 5))  # Caches are filled.
                mine, beside = [], []
                for _ in range(rounds):
                    beside.append(fleet.burst(scheduler, plain, pods))
                    mine.append(fleet.burst(scheduler, row, count))
            tell(
                f"{row.name} on {state.name} fleet, {row.world}: {mine[-1].pods / mine[-1].seconds:.0f} pods/s, "
                f"{mine[-1].processor:.1f} ms each, a plain pod {beside[-1].processor:.1f} ms"
            )
            yield row, state, mine, beside


def profiled(fleet: Fleet, scheduler: Scheduler, row: Row, pods: int, seconds: int) -> bytes:
    """A CPU profile of kube-scheduler while bursts of the row follow each other."""
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(scheduler.profile(seconds)))
    thread.start()
    while thread.is_alive():
        fleet.burst(scheduler, row, min(pods, fitting(row, State("empty"), fleet.nodes)))
    thread.join()
    if not found:
        raise LabError("kube-scheduler gave no profile; its log says why.")
    return found[0]

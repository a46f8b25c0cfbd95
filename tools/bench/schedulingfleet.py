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
from lab.layout import SCHEDULER_PORT

from bench import procfs
from bench.figures import percentile
from bench.schedulingrows import (
    Object,
    Row,
    World,
    claim,
    classes,
    efa_class,
    fitting,
    node,
    node_name,
    pod,
    scheduler_configuration,
)
from bench.schedulingslices import slices
from dra_driver.kube.api.client import Stream, Transport

T = TypeVar("T")

PODS: Final = "/api/v1/namespaces/default/pods"
NODES: Final = "/api/v1/nodes"
_RESOURCES: Final = "/apis/resource.k8s.io/v1"
CLAIMS: Final = f"{_RESOURCES}/namespaces/default/resourceclaims"
SLICES: Final = f"{_RESOURCES}/resourceslices"
CLASSES: Final = f"{_RESOURCES}/deviceclasses"
_MERGE: Final = "application/merge-patch+json"
WRITERS: Final = 6
LIMIT_SECONDS: Final = 240.0
SETTLE_SECONDS: Final = 1.0
UID: Final = "00000000-0000-0000-0000-000000000000"
_ATTEMPTS: Final = re.compile(r"^scheduler_schedule_attempts_total\{.*\} (\S+)", re.MULTILINE)
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


class Watching:
    """When each pod was first seen with a node. The server ends watches of slow readers, so the watch is resumed."""

    def __init__(self, transport: Transport) -> None:
        self.bound: dict[str, float] = {}
        self._transport = transport
        self._changed = threading.Condition()
        self._over = False
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._version = json.loads(self._transport.request("GET", PODS).body)["metadata"]["resourceVersion"]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        if self._stream is not None:
            self._stream.abort()
        self._thread.join(10)

    def _follow(self) -> None:
        while not self._over:
            query = [("watch", "1"), ("resourceVersion", self._version), ("fieldSelector", "spec.nodeName!=")]
            with self._transport.stream(PODS, query=query, timeout=600) as self._stream:
                for line in self._stream:
                    self._hear(json.loads(line)["object"], time.perf_counter())

    def _hear(self, item: Object, now: float) -> None:
        self._version = item["metadata"]["resourceVersion"]
        with self._changed:
            self.bound.setdefault(item["metadata"]["name"], now)
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        """Wait until this number of pods have a node.

        Raises:
            LabError: It takes too long.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.bound) >= count, LIMIT_SECONDS):
                raise LabError(
                    f"After {LIMIT_SECONDS:g} s {len(self.bound)} of {count} pods have a node; nothing is reported."
                )


class Scheduler:
    """kube-scheduler as a process of its own. ``tells``: whether it serves metrics."""

    def __init__(self, cluster: Cluster, directory: Path, *, tells: bool = False) -> None:
        self._config, self._log = directory / "scheduler.yaml", directory / "scheduler.log"
        kubeconfig = cluster.layout.pki / "scheduler.kubeconfig"
        self._config.write_text(json.dumps(scheduler_configuration(kubeconfig)))
        self._program = cluster.state.programs["kube-scheduler"]
        self._certificates = directory
        self._options = ["--secure-port=0"]
        if tells:
            self._options = [
                *("--bind-address=127.0.0.1", f"--secure-port={SCHEDULER_PORT}", f"--cert-dir={directory}"),
                "--authorization-always-allow-paths=/metrics",
            ]

    def __enter__(self) -> Self:
        command = [str(self._program), f"--config={self._config}", *self._options]
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

    def attempts(self) -> int:
        """How often it has looked for a node for a pod so far, if it tells."""
        url = f"https://127.0.0.1:{SCHEDULER_PORT}/metrics"
        certificate = ssl.create_default_context(cafile=self._certificates / "kube-scheduler.crt")
        certificate.check_hostname = False
        with urllib.request.urlopen(url, timeout=30, context=certificate) as answer:
            found = _ATTEMPTS.findall(answer.read().decode())
        return int(sum(map(float, found)))


class Fleet:
    """Node objects and their slices; pods come and go in bursts."""

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
    def offering(self, world: World) -> Iterator[None]:
        """The nodes offer what the world says meanwhile."""
        self._all(self._publish, [(world, number) for number in range(self.nodes)])
        time.sleep(SETTLE_SECONDS)
        yield
        self._collection(SLICES)

    def _publish(self, job: tuple[World, int]) -> None:
        world, number = job
        for item in slices(world, node_name(number), UID):
            self._create(SLICES, item)

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
            watching.wait(count)
        used = scheduler.processor_seconds() - before
        scheduler.check()
        self.clear()
        waits = [1000 * (watching.bound[name] - began) for name, began in made.items()]
        seconds = max(watching.bound.values()) - min(made.values())
        return Sample(count, seconds, median(waits), percentile(waits, 99), 1000 * used / count)

    def clear(self) -> None:
        """Remove all pods, and their claims."""
        self._collection(PODS)
        left = json.loads(self._transport.request("GET", CLAIMS, timeout=60).body)["items"]
        self._all(self._forget, [item["metadata"]["name"] for item in left])

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


def run_rows(
    fleet: Fleet,
    scheduler: Scheduler,
    rows: Sequence[Row],
    pods: int,
    rounds: int,
    tell: Callable[[str], None],
) -> Iterator[tuple[Row, Sequence[Sample], Sequence[Sample]]]:
    """Measure rows of one world, whose slices are there; before each burst one of plain pods.

    Yields:
        The row, its bursts, and those of plain pods.
    """
    plain = Row("plain", World(), 0)
    for row in rows:
        count = min(pods, fitting(row, fleet.nodes))
        fleet.burst(scheduler, row, max(count // 10, 5))  # Caches are filled.
        mine, beside = [], []
        for _ in range(rounds):
            beside.append(fleet.burst(scheduler, plain, pods))
            mine.append(fleet.burst(scheduler, row, count))
        tell(
            f"{row.name} on {row.world}: {mine[-1].pods / mine[-1].seconds:.0f} pods/s, "
            f"{mine[-1].processor:.1f} ms each, a plain pod {beside[-1].processor:.1f} ms"
        )
        yield row, mine, beside

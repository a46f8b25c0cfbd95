"""A burst of pods through a real kube-scheduler, with the extender and without: `scripts/benchmark burst`; as root."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Self

from lab import command
from lab.cluster import Cluster
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import Settings
from lab.spec import DEFAULT_KUBERNETES, ClusterSpec

from bench import drivers, extender, machine
from bench.burstobjects import PORT, TYPE, Object, node, pod, scheduler_configuration
from bench.figures import percentile
from bench.report import table
from dra_driver.kube.client import Stream, Transport

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
FORMS = ("with the extender", "without it")
LIMIT_SECONDS = 120.0
WRITERS = 8


@dataclass(frozen=True)
class Extent:
    """What is measured: number of nodes, of pods per burst, and of bursts with and without the extender."""

    nodes: int
    pods: int
    rounds: int


@dataclass(frozen=True)
class Burst:
    """One burst.

    Attributes:
        milliseconds: By pod, from before its creation until it was observed with a node.
        seconds: From the first pod's creation until the last one had a node.
        resident_mb: Of the extender afterwards, in MB of 1024 kB; 0 without an extender.
        processor: CPU seconds that the extender has used; 0 without an extender.
    """

    milliseconds: Sequence[float]
    seconds: float
    resident_mb: float = 0.0
    processor: float = 0.0


@dataclass(frozen=True)
class BurstFigures:
    """Medians over the bursts of one variant; the extender's CPU time is in milliseconds per pod."""

    p50: float
    p99: float
    pods_per_second: float
    resident_mb: float
    processor: float


def burst_figures(bursts: Sequence[Burst]) -> BurstFigures:
    """Return the figures of some bursts of one variant (at least one)."""
    return BurstFigures(
        p50=median(median(burst.milliseconds) for burst in bursts),
        p99=median(percentile(burst.milliseconds, 99) for burst in bursts),
        pods_per_second=median(len(burst.milliseconds) / burst.seconds for burst in bursts),
        resident_mb=median(burst.resident_mb for burst in bursts),
        processor=median(1000 * burst.processor / len(burst.milliseconds) for burst in bursts),
    )


def report(machine_: str, load: float, kubernetes: str, extent: Extent, found: Mapping[str, Sequence[Burst]]) -> str:
    """The figures in Markdown."""
    figures = {form: burst_figures(bursts) for form, bursts in found.items()}
    rows = [
        (form, f"{item.p50:.0f}", f"{item.p99:.0f}", f"{item.pods_per_second:.0f}") for form, item in figures.items()
    ]
    extended = figures[FORMS[0]]
    lines = [
        f"Machine: {machine_}; load before the run {load:.1f}. Kubernetes {kubernetes}.",
        f"{extent.pods} pods at once, with 1 or 4 devices each, on {extent.nodes} nodes of {TYPE}; medians of",
        f"{extent.rounds} bursts of each form, by turns. From the creation of a pod until it has a node:",
        "",
        *table(("kube-scheduler", "p50 ms", "p99 ms", "pods per second"), rows),
        "",
        f"The extender: {extended.processor:.1f} ms of CPU time per pod, resident {extended.resident_mb:.0f} MB.",
    ]
    return "\n".join(lines)


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

    def wait(self, count: int, seconds: float = LIMIT_SECONDS) -> None:
        """Wait until this number of pods have a node.

        Raises:
            LabError: It takes too long.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.bound) >= count, seconds):
                raise LabError(
                    f"After {seconds:g} s {len(self.bound)} of {count} pods have a node; nothing is reported."
                )


def burst(transport: Transport, count: int) -> Burst:
    """Create pods, wait until all have a node, and delete them."""
    made: dict[str, float] = {}

    def make(number: int) -> None:
        body = pod(number)
        made[body["metadata"]["name"]] = time.perf_counter()
        transport.request("POST", PODS, body=body, timeout=60)

    with Watching(transport) as watching, ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(make, range(count)))
        watching.wait(count)
    with ThreadPoolExecutor(WRITERS) as writers:
        delete = [("gracePeriodSeconds", "0")]
        list(writers.map(lambda name: transport.request("DELETE", f"{PODS}/{name}", query=delete), made))
    bound = watching.bound
    seconds = max(bound.values()) - min(made.values())
    return Burst([1000 * (bound[name] - began) for name, began in made.items()], seconds)


def measure(
    cluster: Cluster, python: Path, scratch: Path, extent: Extent, progress: Progress
) -> dict[str, list[Burst]]:
    """Measure both variants, alternating.

    Raises:
        LabError: A program failed.
    """
    # Controllers would evict pods from nodes without kubelet; and only one scheduler must be active.
    for name in ("kube-controller-manager", "kube-scheduler"):
        cluster.control_plane.stop(name)
    transport = Transport.from_kubeconfig(str(cluster.kubeconfig))
    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(lambda number: transport.request("POST", NODES, body=node(number)), range(extent.nodes)))
    found: dict[str, list[Burst]] = {form: [] for form in FORMS}
    with progress.step(f"{extent.rounds} bursts of {extent.pods} pods in each form"):
        for _ in range(extent.rounds):
            for form in FORMS:
                found[form].append(_round(cluster, transport, python, scratch, extent, extended=form == FORMS[0]))
    return found


def _round(
    cluster: Cluster, transport: Transport, python: Path, scratch: Path, extent: Extent, *, extended: bool
) -> Burst:
    with ExitStack() as stack:
        process = None
        if extended:
            process = stack.enter_context(extender.running(python, cluster.kubeconfig, PORT, scratch / "extender.log"))
        stack.enter_context(_scheduler(cluster, scratch, extended=extended))
        # Warm-up: caches are filled, connections are opened, code is loaded.
        burst(transport, max(extent.pods // 20, 10))
        before = extender.processor_seconds(process) if process else 0.0
        found = burst(transport, extent.pods)
        if process is None:
            return found
        used = extender.processor_seconds(process) - before
        return replace(found, resident_mb=extender.resident_mb(process), processor=used)


@contextmanager
def _scheduler(cluster: Cluster, scratch: Path, *, extended: bool) -> Iterator[None]:
    config, log = scratch / "scheduler.yaml", scratch / "scheduler.log"
    kubeconfig = cluster.layout.pki / "scheduler.kubeconfig"
    config.write_text(json.dumps(scheduler_configuration(kubeconfig, extended)))
    program = [str(cluster.state.programs["kube-scheduler"]), f"--config={config}", "--secure-port=0"]
    with log.open("ab") as output:
        process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/")
    try:
        yield
        if process.poll() is not None:
            raise LabError(f"kube-scheduler has ended, so nothing is reported: {log.read_text()[-2000:]}")
    finally:
        process.terminate()
        process.wait(30)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status as for `lab.command.run`."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/benchmark burst",
        description="Measure bursts of pods through a real kube-scheduler, alternately with and without the extender. "
        "Needs root; starts a control plane and removes it at the end.",
        epilog="Example: scripts/benchmark burst --rounds 5",
    )
    parser.add_argument("--kubernetes", default=DEFAULT_KUBERNETES, help="Kubernetes version (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=500, help="number of Node objects (default: %(default)s)")
    parser.add_argument("--pods", type=int, default=1000, help="pods per burst (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=3, help="bursts with and without the extender (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if min(options.nodes, options.pods, options.rounds) < 1:
        parser.error("nodes, pods and rounds must be at least 1")
    return command.run(lambda: _run(options.kubernetes, Extent(options.nodes, options.pods, options.rounds)))


def _run(kubernetes: str, extent: Extent) -> int:
    settings, progress = Settings.from_environment(os.environ), Progress()
    python = drivers.runtime_python(settings, progress)
    load = machine.load()
    cluster = Cluster(
        ClusterSpec(name="benchmark", nodes=0, kubernetes=kubernetes), settings=settings, progress=progress
    )
    with cluster, tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        found = measure(cluster, python, Path(scratch), extent, progress)
    print(report(machine.describe(), load, kubernetes, extent, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

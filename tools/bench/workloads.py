"""UltraServers for many workloads at once: `scripts/benchmark workloads`; as root.

The operator is a process of its own. Of the nodes' drivers, the publisher of slices and the watch of the own
UltraServer are the real ones, each with connections of its own; many run in one process, without kubelet.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Self

from lab import command
from lab.cluster import Cluster
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import REPOSITORY, Settings
from lab.spec import DEFAULT_KUBERNETES, ClusterSpec

from bench import machine, procfs
from bench.figures import percentile
from bench.publication import STARTS
from bench.report import table
from bench.schedulingfleet import CLAIMS, CLASSES, NODES, PODS, WRITERS, Scheduler
from bench.schedulingrows import Object, Row, World, claim, classes, node, node_name, pod
from bench.schedulingslices import inventory
from dra_driver.driver.resourceslices.controller import SliceController
from dra_driver.driver.resourceslices.devices import offer
from dra_driver.driver.resourceslices.instance import DriverInstance
from dra_driver.driver.resourceslices.messages import Desired
from dra_driver.driver.ultraserver_watch import UltraServerWatch
from dra_driver.driver.workload import SeenServer, Tenancy
from dra_driver.kube.api.client import Stream, Transport
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.neuron.names import DRIVER_NAME, PLACE_OF, SERVER_2, SERVER_4, object_name
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL
from dra_driver.neuron.topology.partitions import Partitions

SYSTEM: Final = "neuron-dra-driver"
SHARES: Final = 8
"""Namespaces that the workloads are in."""
SIZES: Final = (1, 2, 1, 4, 1, 2, 1)
"""Nodes of each server, by turns: 1.7 at an average."""
ONE_BY_ONE: Final = 50
"""Workloads of which each is made once the one before has its servers."""
WORLD: Final = World("chip.node", "trn2u.48xlarge")
KINDS: Final = "/apis/neuron.aws.com/v1beta1"
WORKLOADS: Final = f"{KINDS}/neuronultraserverworkloads"
DEFINITIONS: Final = REPOSITORY / "charts/neuron-helm-chart/files/ultraserver-definitions.yaml"
LIMIT_SECONDS: Final = 600.0
_OF_OPERATOR: Final = {
    "neuronultraservers": ("POST", "PATCH"),
    "neuronultraserverworkloads": ("PATCH",),
    "resourceclaimtemplates": ("POST", "DELETE", "PATCH", "GET"),
    "configmaps": ("POST", "PUT", "PATCH", "GET"),
}
"""Requests that nobody else makes here, but for a few."""
_REQUEST: Final = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Extent:
    """What is measured: so many servers, workloads at once, processes for the drivers, and pods that wait."""

    servers: int
    workloads: int
    processes: int
    waiting: int


@dataclass(frozen=True)
class Burst:
    """Workloads that were made at once, and deleted at once when all had their servers.

    Attributes:
        waits: Seconds from before a workload's creation until it was observed as Allocated.
        seconds: From the first creation until the last was Allocated.
        gone: Seconds from the first deletion until no workload was there any more.
        allocation: Requests until the last was Allocated, by resource and verb.
        removal: Those after that.
        processor: CPU seconds of the operator for both.
    """

    waits: Sequence[float]
    seconds: float
    gone: float
    allocation: Mapping[tuple[str, str], int]
    removal: Mapping[tuple[str, str], int]
    processor: float


@dataclass(frozen=True)
class Attempts:
    """What kube-scheduler did while pods waited that no node has room for.

    Attributes:
        quiet: Attempts while nothing happened.
        busy: Attempts in the same time, while workloads came and went.
        seconds: So long each.
        quiet_processor: CPU seconds of kube-scheduler.
        busy_processor: The same.
        writes: Of slices, while workloads came and went.
    """

    quiet: int
    busy: int
    seconds: float
    quiet_processor: float
    busy_processor: float
    writes: int


@dataclass(frozen=True)
class Memory:
    """Of the operator, in MB of 1024 kB: before the workloads, after them, and at most."""

    before: float
    after: float
    peak: float


# The drivers


class MarkedNode:
    """What the driver of one node says of its devices, and whose they are."""

    def __init__(self, kubeconfig: str, number: int) -> None:
        self._name = name = node_name(number)
        self._server = object_name(server_of(number))
        transport = Transport.from_kubeconfig(kubeconfig, user_agent="dra-driver")
        self._publisher = SliceController(
            ResourceApi(transport), DRIVER_NAME, name, instance=DriverInstance.here("boot")
        )
        self._watch = UltraServerWatch(transport, SYSTEM, name, lambda read: self._hear(read()))

    def start(self) -> None:
        """Publish what belongs to nobody, and follow the server's object."""
        self._publish(Tenancy())
        self._publisher.start()
        self._watch.follow(self._server)

    def wait_published(self, timeout: float) -> bool:
        """Whether the slices are stored."""
        return self._publisher.wait_published(timeout)

    def _hear(self, seen: SeenServer | None) -> None:
        if seen is not None:
            self._publish(Tenancy(seen.workload, certain=True))

    def _publish(self, tenancy: Tenancy) -> None:
        found = offer(inventory(WORLD.instance_type), Partitions.parse(WORLD.partitions), tenancy=tenancy)
        self._publisher.set_desired(Desired(found.devices, found.fallback, counters=found.counters))


def drive(kubeconfig: str, first: int, count: int, pause: float) -> None:
    """Be the drivers of these nodes, one more every ``pause`` seconds; say how many have published, and go on.

    Returns never: the process ends when standard input does.
    """
    nodes = []
    began = time.monotonic()
    for place, number in enumerate(range(first, first + count)):
        time.sleep(max(0.0, began + place * pause - time.monotonic()))
        nodes.append(MarkedNode(kubeconfig, number))
        nodes[-1].start()
    end = time.monotonic() + LIMIT_SECONDS
    print(sum(item.wait_published(max(0.0, end - time.monotonic())) for item in nodes), flush=True)
    sys.stdin.read()
    os._exit(0)  # thousands of threads are not waited for


@contextmanager
def _drivers(cluster: Cluster, count: int, processes: int) -> Iterator[None]:
    """The drivers of so many nodes, which all have published."""
    share = -(-count // processes)
    with ExitStack() as stack:
        running = []
        for first in range(0, count, share):
            words = [sys.executable, "-P", "-m", "bench.workloads", "--drive", str(cluster.kubeconfig)]
            words += [str(first), str(min(share, count - first)), str(processes / STARTS)]
            started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
            stack.callback(started.wait)
            stack.callback(started.kill)
            running.append(started)
        done = sum(int((item.stdout and item.stdout.readline()) or 0) for item in running)
        if done < count:
            raise LabError(f"{done} of {count} drivers have published within {LIMIT_SECONDS:g} s; nothing is reported.")
        yield


# The operator


class OperatorProcess:
    """``dra-driver placer`` with the operator, as a process of this machine."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._log = directory / "operator.log"
        self._command = [
            *(sys.executable, "-P", "-m", "dra_driver", "placer", f"--kubeconfig={cluster.kubeconfig}"),
            *(f"--namespace={SYSTEM}", "--identity=benchmark", "--ultraserver-operator=on"),
        ]

    def __enter__(self) -> Self:
        with self._log.open("wb") as output:
            environment = {"PATH": os.defpath}
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env=environment, cwd=REPOSITORY
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def megabytes(self, field: str) -> float:
        """Of /proc/PID/status. Raises LabError when the process has ended."""
        if self._process.poll() is not None:
            raise LabError(f"The operator has ended, so nothing is reported: {self._log.read_text()[-2000:]}")
        return procfs.status_number(Path(f"/proc/{self._process.pid}/status").read_text(), field) / 1024

    def processor_seconds(self) -> float:
        """CPU time used so far."""
        return procfs.cpu_ticks(Path(f"/proc/{self._process.pid}/stat").read_text()) / _TICKS


# Workloads


class Watching:
    """When each workload was first seen as Allocated, and which are there. A watch that the server ends is resumed."""

    def __init__(self, transport: Transport) -> None:
        self.allocated: dict[str, float] = {}
        self.present: set[str] = set()
        self._transport = transport
        self._changed = threading.Condition()
        self._over = False
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._version = json.loads(self._transport.request("GET", WORKLOADS).body)["metadata"]["resourceVersion"]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        if self._stream is not None:
            self._stream.abort()
        self._thread.join(10)

    def _follow(self) -> None:
        while not self._over:
            query = [("watch", "1"), ("resourceVersion", self._version)]
            with self._transport.stream(WORKLOADS, query=query, timeout=LIMIT_SECONDS) as self._stream:
                for line in self._stream:
                    event = json.loads(line)
                    self._hear(event["type"], event["object"], time.perf_counter())

    def _hear(self, kind: str, item: Object, now: float) -> None:
        self._version, name = item["metadata"]["resourceVersion"], item["metadata"]["name"]
        with self._changed:
            if kind == "DELETED":
                self.present.discard(name)
            else:
                self.present.add(name)
            if item.get("status", {}).get("state") == "Allocated":
                self.allocated.setdefault(name, now)
            self._changed.notify_all()

    def wait_allocated(self, count: int) -> None:
        """Wait until so many have had their servers. Raises LabError when it takes too long."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.allocated) >= count, LIMIT_SECONDS):
                text = f"{len(self.allocated)} of {count} workloads have servers after {LIMIT_SECONDS:g} s"
                raise LabError(f"{text}; nothing is reported.")

    def wait_gone(self) -> None:
        """Wait until there is none any more. Raises LabError when it takes too long."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self.present, LIMIT_SECONDS):
                text = f"{len(self.present)} workloads are still there after {LIMIT_SECONDS:g} s"
                raise LabError(f"{text}; nothing is reported.")


def wanted(name: str, number: int) -> Object:
    """A workload of nodes of one server; the size and the namespace are by turns."""
    spec = {"instanceType": WORLD.instance_type, "serverCount": 1, "topologySize": SIZES[number % len(SIZES)]}
    metadata = {"name": name, "namespace": f"team-{number % SHARES}"}
    return {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": metadata,
        "spec": spec,
    }


class Tenants:
    """Those who make workloads and delete them."""

    def __init__(self, cluster: Cluster) -> None:
        self._transport = Transport.from_kubeconfig(str(cluster.kubeconfig), user_agent="benchmark")
        self._writers = ThreadPoolExecutor(WRITERS)
        self._bursts = 0

    def close(self) -> None:
        """End connections."""
        self._writers.shutdown()
        self._transport.close()

    def create(self, path: str, item: Object) -> None:
        """POST it."""
        self._transport.request("POST", path, body=item, timeout=60)

    def create_all(self, path: str, items: Sequence[Object]) -> None:
        """POST all, several at once."""
        list(self._writers.map(lambda item: self.create(path, item), items))

    def statuses(self, path: str) -> list[Object]:
        """``status`` of all objects there."""
        found = json.loads(self._transport.request("GET", path, timeout=60).body)["items"]
        return [item.get("status", {}) for item in found]

    def requests(self) -> Counter[tuple[str, str]]:
        """How many the API server has answered so far, by resource and verb."""
        found: Counter[tuple[str, str]] = Counter()
        for text, number in _REQUEST.findall(self._transport.request("GET", "/metrics", timeout=60).body.decode()):
            labels = dict(_LABEL.findall(text))
            if not labels["dry_run"]:
                found[labels["resource"], labels["verb"]] += int(float(number))
        return found

    def burst(self, count: int, operator: OperatorProcess) -> Burst:
        """Make so many at once, wait until all have servers, and delete all."""
        self._bursts += 1
        items = [wanted(f"b{self._bursts}-{number}", number) for number in range(count)]
        made: dict[str, float] = {}
        before, processor = self.requests(), operator.processor_seconds()
        with Watching(self._transport) as watching:

            def make(item: Object) -> None:
                made[item["metadata"]["name"]] = time.perf_counter()
                self.create(_path(item).rpartition("/")[0], item)

            list(self._writers.map(make, items))
            watching.wait_allocated(count)
            between, began = self.requests(), time.perf_counter()
            list(self._writers.map(self._delete, items))
            watching.wait_gone()
            gone = time.perf_counter() - began
        waits = [watching.allocated[name] - moment for name, moment in made.items()]
        return Burst(
            waits,
            max(watching.allocated.values()) - min(made.values()),
            gone,
            between - before,
            self.requests() - between,
            operator.processor_seconds() - processor,
        )

    def one_by_one(self, count: int) -> list[float]:
        """Make each when the one before has its servers; seconds that each waited."""
        waits = []
        for number in range(count):
            item = wanted(f"o-{number}", number)
            with Watching(self._transport) as watching:
                began = time.perf_counter()
                self.create(_path(item).rpartition("/")[0], item)
                watching.wait_allocated(1)
                waits.append(watching.allocated[item["metadata"]["name"]] - began)
                self._delete(item)
                watching.wait_gone()
        return waits

    def _delete(self, item: Object) -> None:
        self._transport.request("DELETE", _path(item), timeout=60)


def _path(item: Object) -> str:
    meta = item["metadata"]
    return f"{KINDS}/namespaces/{meta['namespace']}/neuronultraserverworkloads/{meta['name']}"


# The cluster


def server_of(number: int) -> str:
    """Id of the UltraServer of a node."""
    return f"{number // 4:016x}"


def labelled_node(number: int) -> Object:
    """A Node as its driver labels it."""
    made = node(number)
    server, place = server_of(number), number % 4
    made["metadata"]["labels"] |= {
        INSTANCE_TYPE_LABEL: WORLD.instance_type,
        SERVER_4: server,
        PLACE_OF[SERVER_4]: str(place),
        SERVER_2: f"{server}-{place // 2}",
        PLACE_OF[SERVER_2]: str(place % 2),
    }
    return made


def measure(cluster: Cluster, extent: Extent, progress: Progress) -> str:
    """Build the cluster, play the workloads, and report.

    Raises:
        LabError: A program failed, or workloads got no servers.
    """
    for name in ("kube-controller-manager", "kube-scheduler"):
        cluster.control_plane.stop(name)
    tenants = Tenants(cluster)
    count = 4 * extent.servers
    try:
        with progress.step(f"{count} Node objects"):
            cluster.kubectl("apply", "--server-side", "-f", str(DEFINITIONS))
            cluster.kubectl("wait", "--for=create", "customresourcedefinition", "--all", "--timeout=60s")
            cluster.kubectl("wait", "--for=condition=Established", "customresourcedefinition", "--all")
            names = (SYSTEM, *(f"team-{number}" for number in range(SHARES)))
            tenants.create_all("/api/v1/namespaces", [{"metadata": {"name": name}} for name in names])
            tenants.create_all(CLASSES, classes())
            tenants.create_all(NODES, [labelled_node(number) for number in range(count)])
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            with progress.step(f"{count} drivers publish"):
                stack.enter_context(_drivers(cluster, count, extent.processes))
            operator = stack.enter_context(OperatorProcess(cluster, directory))
            with progress.step("the operator makes an object of each UltraServer"):
                _await_objects(tenants, extent.servers)
            before = operator.megabytes("VmRSS")
            with progress.step(f"{extent.workloads} workloads at once"):
                burst = tenants.burst(extent.workloads, operator)
            with progress.step(f"{ONE_BY_ONE} workloads, one after the other"):
                single = tenants.one_by_one(ONE_BY_ONE)
            scheduler = stack.enter_context(Scheduler(cluster, directory, tells=True))
            with progress.step(f"{extent.waiting} pods wait while workloads come and go"):
                attempts = _attempts(tenants, operator, scheduler, extent)
            memory = Memory(before, operator.megabytes("VmRSS"), operator.megabytes("VmHWM"))
    finally:
        tenants.close()
    head = (
        f"Machine: {machine.describe()}; load at the end {machine.load():.1f}. Kubernetes {cluster.spec.kubernetes}; "
        f"{extent.servers} UltraServers of four nodes, each with a driver, in {extent.processes} processes."
    )
    return report(head, extent, burst, single, attempts, memory)


def _await_objects(tenants: Tenants, servers: int) -> None:
    """Wait until each UltraServer has an object that says that it is in order. Raises LabError."""
    end = time.monotonic() + LIMIT_SECONDS
    ready = 0
    while time.monotonic() < end:
        ready = sum(item.get("state") == "Ready" for item in tenants.statuses(f"{KINDS}/neuronultraservers"))
        if ready == servers:
            return
        time.sleep(1)
    raise LabError(f"{ready} of {servers} UltraServers have objects that are Ready; nothing is reported.")


def _attempts(tenants: Tenants, operator: OperatorProcess, scheduler: Scheduler, extent: Extent) -> Attempts:
    """Let pods wait for two whole nodes in one: nothing that workloads do makes room for them."""
    selector = f"device.attributes['{DRIVER_NAME}'].resourceType == 'neuron_node'"
    exactly = {"deviceClassName": DRIVER_NAME, "count": 2, "selectors": [{"cel": {"expression": selector}}]}
    spec: Object = {"devices": {"requests": [{"name": "neurons", "exactly": exactly}]}}
    names = [f"w-{number}" for number in range(extent.waiting)]
    tenants.create_all(CLAIMS, [claim(name, spec) for name in names])
    tenants.create_all(PODS, [pod(name, Row("waiting", WORLD, 0, spec)) for name in names])
    end = time.monotonic() + LIMIT_SECONDS
    while not all(_is_refused(status) for status in tenants.statuses(PODS)):
        scheduler.check()
        if time.monotonic() > end:
            raise LabError(f"kube-scheduler has not looked at {extent.waiting} pods within {LIMIT_SECONDS:g} s.")
        time.sleep(1)
    time.sleep(20)  # what the pods' own creation makes it try again is over
    moments = [(scheduler.attempts(), scheduler.processor_seconds())]
    began = time.monotonic()
    before = _slice_writes(tenants.requests())
    tenants.burst(extent.workloads // 5, operator)
    seconds = time.monotonic() - began
    moments.append((scheduler.attempts(), scheduler.processor_seconds()))
    writes = _slice_writes(tenants.requests()) - before
    time.sleep(20)
    moments.append((scheduler.attempts(), scheduler.processor_seconds()))
    time.sleep(seconds)
    moments.append((scheduler.attempts(), scheduler.processor_seconds()))
    scheduler.check()
    (first, first_used), (second, second_used), (third, third_used), (last, last_used) = moments
    return Attempts(last - third, second - first, seconds, last_used - third_used, second_used - first_used, writes)


def _is_refused(status: Object) -> bool:
    return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in status.get("conditions", ()))


def _slice_writes(requests: Mapping[tuple[str, str], int]) -> int:
    return sum(requests.get(("resourceslices", verb), 0) for verb in ("POST", "PUT", "PATCH", "DELETE"))


def _operators(requests: Mapping[tuple[str, str], int]) -> int:
    """Requests of the operator among all."""
    return sum(requests.get((resource, verb), 0) for resource, verbs in _OF_OPERATOR.items() for verb in verbs)


def report(head: str, extent: Extent, burst: Burst, single: Sequence[float], attempts: Attempts, memory: Memory) -> str:
    """The figures in Markdown."""
    count = len(burst.waits)
    rows = [
        (f"{count} at once", *_waits(burst.waits), f"{burst.seconds:.0f}"),
        (f"{len(single)}, one after the other", *_waits(single), f"{sum(single):.0f}"),
    ]
    given, taken_back = _slice_writes(burst.allocation), _slice_writes(burst.removal)
    requests, removals = (_operators(part) / count for part in (burst.allocation, burst.removal))
    before, after, most = (f"{number:.0f} MB" for number in (memory.before, memory.after, memory.peak))
    served = (
        f"requests of the operator for each: {requests:.1f} until it was Allocated, {removals:.1f} until it was gone"
    )
    written = (
        f"writes of slices, by {4 * extent.servers} drivers: {given} while nodes were given, {taken_back} while they"
    )
    kept = f"memory of the operator: {before} before, {after} after, at most {most}, with a kubeconfig"
    tried = (
        f"attempts of kube-scheduler for {extent.waiting} pods that wait: {attempts.busy} in {attempts.seconds:.0f} s"
    )
    used = f"CPU time {attempts.busy_processor:.1f} s and {attempts.quiet_processor:.1f} s"
    texts = (
        f"all {count} deleted: none is there any more after {burst.gone:.1f} s",
        f"{served}; its CPU time {burst.processor:.0f} s",
        f"{written} were given back",
        f"{kept}, whose parser costs some 22 MB that it does not need in a pod",
        f"{tried} with {attempts.writes} writes of slices, {attempts.quiet} in as long without any; its {used}",
    )
    heads = ("workloads", "creation to Allocated, p50 s", "p99 s", "until the last, s")
    return "\n".join([head, "", *table(heads, rows), "", *(f"- {text}" for text in texts)])


def _waits(seconds: Sequence[float]) -> tuple[str, str]:
    return f"{median(seconds):.2f}", f"{percentile(seconds, 99):.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status as for `lab.command.run`."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/benchmark workloads",
        description="Serve many NeuronUltraServerWorkloads at once on a control plane whose nodes are objects with a "
        "driver each. Needs root; starts a control plane and removes it at the end. Drivers, operator and API server "
        "share this machine.",
        epilog="Example: scripts/benchmark workloads --servers 25 --workloads 50 --waiting 20",
    )
    parser.add_argument("--kubernetes", default=DEFAULT_KUBERNETES, help="Kubernetes version (default: %(default)s)")
    parser.add_argument("--cluster", default="benchmark", help="name of the lab's cluster (default: %(default)s)")
    parser.add_argument("--servers", type=int, default=250, help="number of UltraServers (default: %(default)s)")
    parser.add_argument("--workloads", type=int, default=500, help="workloads at once (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=8, help="that the drivers run in (default: %(default)s)")
    parser.add_argument("--waiting", type=int, default=200, help="pods that wait (default: %(default)s)")
    parser.add_argument("--drive", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.drive:
        kubeconfig, first, count, pause = options.drive
        drive(kubeconfig, int(first), int(count), float(pause))
        return 0
    extent = Extent(options.servers, options.workloads, options.processes, options.waiting)
    if min(extent.servers, extent.processes, extent.waiting) < 1 or extent.workloads < 5:
        parser.error("servers, processes and waiting pods must be at least 1, workloads at least 5")
    if extent.workloads > 2 * extent.servers:
        parser.error("more than two workloads for each UltraServer may not fit at once")
    return command.run(lambda: _run(options, extent))


def _run(options: argparse.Namespace, extent: Extent) -> int:
    settings, progress = Settings.from_environment(os.environ), Progress()
    spec = ClusterSpec(name=options.cluster, nodes=0, kubernetes=options.kubernetes)
    with Cluster(spec, settings=settings, progress=progress) as cluster:
        print(measure(cluster, extent, progress))
    return 0


if __name__ == "__main__":
    sys.exit(main())

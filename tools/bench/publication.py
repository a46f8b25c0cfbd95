"""Many drivers publish through one API server: `scripts/benchmark publication`; as root.

Each driver is the real publisher with connections of its own; many run in one process, without kubelet, and each for a
Node object of its own. Then the API server is restarted, and what the publishers send in the minute after is counted.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import command, process
from lab.cluster import Cluster
from lab.errors import LabError
from lab.layout import API_PORT, ETCD_PORT
from lab.progress import Progress
from lab.settings import REPOSITORY, Settings
from lab.spec import DEFAULT_KUBERNETES, ClusterSpec

from bench import machine, procfs
from bench.report import table
from bench.schedulingfleet import NODES, WRITERS
from bench.schedulingrows import World, node, node_name
from bench.schedulingslices import offered
from dra_driver.driver.resourceslices.controller import SliceController
from dra_driver.driver.resourceslices.instance import DriverInstance
from dra_driver.driver.resourceslices.messages import Desired
from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.neuron.names import DRIVER_NAME

PUBLISH_SECONDS = 900.0
STARTS = 20.0
"""Pods a second that the DaemonSet controller creates at most (``--kube-api-qps`` of kube-controller-manager)."""
AFTER_SECONDS = 60.0
_REQUESTS = re.compile(r'^apiserver_request_total\{.*resource="resourceslices".*verb="(\w+)".*\} (\S+)', re.MULTILINE)
_WRITES = ("POST", "PUT", "PATCH", "DELETE")
_ESTABLISHED = "01"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Moment:
    """What the API server has done since its start.

    Attributes:
        requests: By verb, for ResourceSlices.
        processor: CPU seconds.
        connections: Open ones.
    """

    requests: Mapping[str, int]
    processor: float
    connections: int

    def since(self, before: Moment) -> Moment:
        """What it has done after another moment of the same process."""
        requests = {verb: count - before.requests.get(verb, 0) for verb, count in self.requests.items()}
        return Moment(requests, self.processor - before.processor, self.connections)

    @property
    def writes(self) -> int:
        """Requests that change slices."""
        return sum(self.requests.get(verb, 0) for verb in _WRITES)


def counted(metrics: str) -> dict[str, int]:
    """Requests for ResourceSlices by verb, from the API server's metrics; watches count when they end."""
    found: Counter[str] = Counter()
    for verb, count in _REQUESTS.findall(metrics):
        found[verb] += int(float(count))
    return dict(found)


def established(tcp: str, port: int) -> int:
    """Connections to a port in the text of /proc/net/tcp."""
    rows = (line.split() for line in tcp.splitlines()[1:])
    return sum(row[2].endswith(f":{port:04X}") and row[3] == _ESTABLISHED for row in rows)


def etcd_bytes() -> float:
    """What etcd's data takes, without what it could free."""
    with urllib.request.urlopen(f"http://127.0.0.1:{ETCD_PORT}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    found = re.search(r"^etcd_mvcc_db_total_size_in_use_in_bytes (\S+)", text, re.MULTILINE)
    if found is None:
        raise LabError("etcd does not tell the size of its data, so nothing is reported.")
    return float(found[1])


def drive(kubeconfig: str, first: int, count: int, world: World, pause: float) -> None:
    """Publish for so many nodes, one more every ``pause`` seconds; say so when all is stored, and go on.

    Returns never: the process ends when standard input does.
    """
    found = offered(world)
    publishers = []
    began = time.monotonic()
    for place, number in enumerate(range(first, first + count)):
        time.sleep(max(0.0, began + place * pause - time.monotonic()))
        api = ResourceApi(Transport.from_kubeconfig(kubeconfig, user_agent="dra-driver"))
        publisher = SliceController(api, DRIVER_NAME, node_name(number), instance=DriverInstance.here("boot"))
        publisher.set_desired(Desired(found.devices, found.fallback, counters=found.counters))
        publisher.start()
        publishers.append(publisher)
    end = time.monotonic() + PUBLISH_SECONDS
    done = sum(publisher.wait_published(max(0.0, end - time.monotonic())) for publisher in publishers)
    logging.disable()  # now the API server is restarted, and each of them would report each lost connection
    print(done, flush=True)
    sys.stdin.read()
    os._exit(0)  # thousands of threads are not waited for


@contextmanager
def _drivers(cluster: Cluster, count: int, processes: int, starts: float, world: World) -> Iterator[None]:
    """So many publishers, which all have published; ``starts`` of them start in a second."""
    share = -(-count // processes)
    with ExitStack() as stack:
        running = []
        for first in range(0, count, share):
            words = [
                sys.executable,
                "-P",
                "-m",
                "bench.publication",
                "--drive",
                str(cluster.kubeconfig),
                world.partitions,
            ]
            words += [str(first), str(min(share, count - first)), str(processes / starts)]
            started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
            stack.callback(started.wait)
            stack.callback(started.kill)
            running.append(started)
        done = sum(int((item.stdout and item.stdout.readline()) or 0) for item in running)
        if done < count:
            ended = [item.returncode for item in running if item.poll() is not None]
            raise LabError(
                f"{done} of {count} drivers have published within {PUBLISH_SECONDS:g} s, and {len(ended)} of their "
                f"processes have ended (status {ended}); nothing is reported. Try fewer drivers."
            )
        yield


def _moment(cluster: Cluster) -> Moment:
    record = process.load("kube-apiserver", cluster.layout.records)
    if record is None:
        raise LabError("kube-apiserver has ended, so nothing is reported.")
    transport = Transport.from_kubeconfig(str(cluster.kubeconfig))
    requests = counted(transport.request("GET", "/metrics", timeout=60).body.decode())
    transport.close()
    ticks = procfs.cpu_ticks(Path(f"/proc/{record.pid}/stat").read_text())
    return Moment(requests, ticks / _TICKS, established(Path("/proc/net/tcp").read_text(), API_PORT))


def report(head: str, count: int, rollout: Moment, seconds: float, restarted: tuple[Moment, float] | str) -> str:
    """The figures in Markdown.

    Args:
        head: What was measured.
        count: Drivers.
        rollout: What the API server did until all had published.
        seconds: Until then.
        restarted: What the restarted API server did in the minute after it was ready, and the seconds until it was; or
            why there is nothing to report.
    """
    columns = ("", "seconds", "writes", "a node", "lists", "watches ended", "connections", "API server CPU s")
    moments = [("rollout", seconds, rollout)]
    if isinstance(restarted, str):
        last = f"The restart of the API server was not measured: {restarted}"
    else:
        restart, resumed = restarted
        last = f"The restarted API server was ready after {resumed:.0f} s."
        moments.append((f"restart of the API server, {AFTER_SECONDS:.0f} s after it was ready", AFTER_SECONDS, restart))
    rows = [
        (
            *(name, f"{took:.0f}", str(moment.writes), f"{moment.writes / count:.2f}"),
            *(str(moment.requests.get("LIST", 0)), str(moment.requests.get("WATCH", 0))),
            *(str(moment.connections), f"{moment.processor:.0f}"),
        )
        for name, took, moment in moments
    ]
    return "\n".join([head, "", *table(columns, rows), "", last])


def measure(cluster: Cluster, count: int, processes: int, starts: float, world: World, progress: Progress) -> str:
    """Publish, restart the API server, and count."""
    for name in ("kube-controller-manager", "kube-scheduler"):
        cluster.control_plane.stop(name)
    transport = Transport.from_kubeconfig(str(cluster.kubeconfig))
    with progress.step(f"{count} Node objects"), ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(lambda number: transport.request("POST", NODES, body=node(number)), range(count)))
    transport.close()
    size, before, began = etcd_bytes(), _moment(cluster), time.monotonic()
    with progress.step(f"{count} drivers publish"), _drivers(cluster, count, processes, starts, world):
        seconds = time.monotonic() - began
        rollout = _moment(cluster).since(before)
        grown = etcd_bytes() - size
        restarted: tuple[Moment, float] | str
        try:
            restarted = _restart(cluster, progress)
        except (LabError, ApiError) as error:
            # Thousands of drivers on the machine of the API server may keep it from starting again.
            restarted = str(error).splitlines()[0]
    head = (
        f"Machine: {machine.describe()}; load at the end {machine.load():.1f}. Kubernetes {cluster.spec.kubernetes}; "
        f"{count} drivers in {processes} processes, each on a node of {world}; {starts:g} start in a second. etcd grew "
        f"by {grown / 1e6:.1f} MB."
    )
    return report(head, count, rollout, seconds, restarted)


def _restart(cluster: Cluster, progress: Progress) -> tuple[Moment, float]:
    """What the restarted API server did in the minute after it was ready, and the seconds until it was."""
    began = time.monotonic()
    with progress.step("the API server starts again"):
        cluster.stop_apiserver()
        cluster.start_apiserver()
    resumed = time.monotonic() - began
    with progress.step(f"{AFTER_SECONDS:.0f} s pass"):
        time.sleep(AFTER_SECONDS)
    return _moment(cluster), resumed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status as for `lab.command.run`."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/benchmark publication",
        description="Let many drivers publish through one API server, and restart it. Needs root; starts a control "
        "plane and removes it at the end. Drivers and API server share this machine: on two cores, an API server does "
        "not start again under 5,000 drivers, and only the rollout is reported.",
        epilog="Example: scripts/benchmark publication --drivers 500 --starts 500 (all at once)",
    )
    parser.add_argument("--kubernetes", default=DEFAULT_KUBERNETES, help="Kubernetes version (default: %(default)s)")
    parser.add_argument("--cluster", default="benchmark", help="name of the lab's cluster (default: %(default)s)")
    parser.add_argument("--drivers", type=int, default=500, help="number of drivers (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=10, help="that they run in (default: %(default)s)")
    parser.add_argument("--devices", default="chip", help="what the nodes offer (default: %(default)s)")
    parser.add_argument(
        "--starts",
        type=float,
        default=STARTS,
        help="drivers that start in a second (default: %(default)g, as fast as the DaemonSet controller makes pods)",
    )
    parser.add_argument("--drive", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.drive:
        kubeconfig, partitions, first, count, pause = options.drive
        drive(kubeconfig, int(first), int(count), World(partitions), float(pause))
        return 0
    if min(options.drivers, options.processes) < 1 or options.starts <= 0:
        parser.error("drivers and processes must be at least 1, starts more than 0")
    return command.run(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    settings, progress = Settings.from_environment(os.environ), Progress()
    spec = ClusterSpec(name=options.cluster, nodes=0, kubernetes=options.kubernetes)
    with Cluster(spec, settings=settings, progress=progress) as cluster:
        world = World(options.devices)
        print(measure(cluster, options.drivers, options.processes, options.starts, world, progress))
    return 0


if __name__ == "__main__":
    sys.exit(main())

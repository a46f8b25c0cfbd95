"""The command `scripts/benchmark`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from lab import command, components
from lab.build import Builder
from lab.cluster import Cluster
from lab.progress import Progress
from lab.settings import Settings
from lab.spec import DEFAULT_KUBERNETES

from bench import calls, drivers, extender, machine, objects, report, rest, start
from bench.drivers import BEFORE, Driver, Running
from bench.figures import CallFigures, ProcessFigures, call_figures
from dra_driver.kube.api.client import Transport

# No component of the cluster must be busy while calls are measured, nor act on pods that exist in name only.
_PAUSED = ("kube-controller-manager", "kube-scheduler")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status as for `lab.command.run`."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/benchmark",
        description="Compare the driver with Kubernetes' own DRA test driver, on a real control plane: calls of "
        "kubelet, start-up, and the idle driver in its container. Needs root; starts a cluster and removes it at the "
        "end. Other load on the machine distorts the figures. The drivers' files are below TMPDIR: where that is in "
        "memory, syncing them costs nothing.",
        epilog="Other parts, with a control plane: scripts/benchmark scheduling (what claims cost kube-scheduler), "
        "scripts/benchmark publication (what many drivers cost the API server), scripts/benchmark claimstatus (what it "
        "costs that claims say which devices they got), scripts/benchmark workloads (many UltraServer workloads). "
        "Example: scripts/benchmark --rest-minutes 12 >figures.md",
    )
    parser.add_argument("--kubernetes", default=DEFAULT_KUBERNETES, help="Kubernetes version (default: %(default)s)")
    parser.add_argument(
        "--before",
        type=Path,
        metavar="CHECKOUT",
        help="another checkout of this project, whose driver is called and started by turns with this one's",
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of calls of each kind (default: %(default)s)")
    parser.add_argument("--claims", type=int, default=100, help="claims per round (default: %(default)s)")
    parser.add_argument("--held", type=int, default=100, help="claims that are already prepared (default: %(default)s)")
    parser.add_argument("--devices", type=int, default=1, help="devices per claim (default: %(default)s)")
    parser.add_argument("--starts", type=int, default=7, help="starts of each driver (default: %(default)s)")
    parser.add_argument(
        "--rest-minutes", type=float, default=12, help="how long to observe the idle driver; 0 skips this (default: 12)"
    )
    parser.add_argument(
        "--extender",
        action="store_true",
        help="measure only the scheduler extender, with --nodes, --pods and --calls calls of each kind; needs neither "
        "root nor a cluster",
    )
    parser.add_argument("--nodes", type=int, default=5000, help="nodes that the extender knows (default: %(default)s)")
    parser.add_argument("--pods", type=int, default=20000, help="pods bound to them (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=1000, help="calls of each kind (default: %(default)s)")
    options = parser.parse_args(arguments)
    if min(options.nodes, options.calls) < 1 or options.pods < 0:
        parser.error("nodes and calls must be at least 1, pods at least 0")
    if min(options.rounds, options.claims, options.starts, options.devices) < 1 or options.held < 0:
        parser.error("rounds, claims, devices and starts must be at least 1, held at least 0")
    if options.before and not (options.before / "requirements/commands.txt").exists():
        parser.error(f"{options.before} is no checkout of this project")
    if options.devices > drivers.DEVICES:
        parser.error(f"a claim can have at most {drivers.DEVICES} devices")
    return command.run(lambda: _run_extender(options) if options.extender else _run(options))


def _run_extender(options: argparse.Namespace) -> int:
    settings, progress = Settings.from_environment(os.environ), Progress()
    programs = Builder(settings, progress).build([components.extender_load()])
    python = drivers.runtime_python(settings, progress)
    extent = extender.Extent(options.nodes, options.pods, options.calls)
    load = machine.load()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        found = extender.measure(programs["extender-load"], python, Path(scratch), extent, progress)
    print(extender.report(machine.describe(), load, extent, found))
    return 0


def _run(options: argparse.Namespace) -> int:
    settings, progress = Settings.from_environment(os.environ), Progress()
    programs = Builder(settings, progress).build(
        [components.dra_test_driver(options.kubernetes), components.benchmark_client()]
    )
    python = drivers.runtime_python(settings, progress)
    before = options.before and drivers.runtime_python(settings, progress, options.before)
    extent = calls.Extent(options.rounds, options.claims, options.held, options.devices)
    cluster = Cluster(rest.cluster_spec(options.kubernetes), settings=settings, progress=progress)
    with cluster, tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        transport = Transport.from_kubeconfig(str(cluster.kubeconfig))
        for name in _PAUSED:
            cluster.control_plane.stop(name)
        whole = _prepare(cluster, transport, python, before, programs["dra-test-driver"], Path(scratch))
        bare = [
            drivers.bare(python, cluster.kubeconfig, Path(scratch) / folder, files=files)
            for folder, files in (("d", False), ("e", True))
        ]
        load = machine.load()
        starts = _starts(transport, whole, options.starts, progress)
        called = (*whole, *bare)
        measured, processes = _calls(cluster, transport, called, programs["benchmark-client"], extent, progress)
        # These nodes have no kubelet, so the installer would wait for a driver on them forever.
        for driver in whole:
            transport.request("DELETE", f"/api/v1/nodes/{driver.node}")
        for name in _PAUSED:
            cluster.control_plane.start(name)
        resting = None
        if options.rest_minutes:
            resting = rest.measure(cluster, transport, python, settings, progress, options.rest_minutes * 60)
        where = f"{machine.describe()}, files on {machine.file_system(Path(scratch))}"
        print(report.text(where, load, options.kubernetes, extent, starts, measured, processes, resting))
    return 0


def _prepare(
    cluster: Cluster, transport: Transport, python: Path, before: Path | None, test_driver: Path, scratch: Path
) -> list[Driver]:
    """The drivers that publish, with what they need in the API server; `python` and `before` have ours."""
    found = [drivers.ours(python, cluster.kubeconfig, scratch / "a")]
    drivers.emulate_host(python, found[0].directory)
    if before is not None:
        found.append(drivers.ours(before, cluster.kubeconfig, scratch / "b", label=BEFORE, number=1))
        drivers.emulate_host(before, found[1].directory)
    found.append(drivers.test_driver(test_driver, cluster.kubeconfig, scratch / "c"))
    transport.request("POST", "/api/v1/namespaces", body=objects.namespace())
    for name in {driver.name for driver in found}:
        transport.request("POST", "/apis/resource.k8s.io/v1/deviceclasses", body=objects.device_class(name))
    for driver in found:
        driver.directory.mkdir(exist_ok=True)
        transport.request("POST", "/api/v1/nodes", body=objects.node(driver.node))
    return found


def _starts(transport: Transport, whole: Sequence[Driver], count: int, progress: Progress) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {driver.label: [] for driver in whole}
    with progress.step(f"starting each driver {count} times"):
        for _ in range(count):
            for driver in whole:
                found[driver.label].append(start.start_seconds(transport, driver))
    return found


def _calls(
    cluster: Cluster,
    transport: Transport,
    called: Sequence[Driver],
    client: Path,
    extent: calls.Extent,
    progress: Progress,
) -> tuple[dict[calls.Situation, CallFigures], dict[str, ProcessFigures]]:
    with progress.step(f"making {extent.held + extent.claims} claims for each driver"):
        claims = {driver.label: calls.make_claims(transport, driver, extent) for driver in called}
    with ExitStack() as stack:
        running = {driver.label: stack.enter_context(Running(driver)) for driver in called}
        for process in running.values():
            process.await_socket()
        before = {label: process.resident_mb() for label, process in running.items()}
        with progress.step("calling the drivers by turns"):
            found = calls.measure(client, calls.Access.of(cluster), called, claims, extent)
        processes = {
            label: ProcessFigures(before[label], process.resident_mb(), process.threads())
            for label, process in running.items()
        }
    calls.delete_claims(transport)
    return {situation: call_figures(rounds) for situation, rounds in found.items()}, processes


if __name__ == "__main__":
    sys.exit(main())

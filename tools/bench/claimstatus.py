"""Measures what it costs that claims say which devices they got (`--claim-status`), beside drivers that are silent."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from lab import command, components
from lab.build import Builder
from lab.cluster import Cluster
from lab.errors import LabError
from lab.progress import Progress
from lab.settings import Settings
from lab.spec import DEFAULT_KUBERNETES, ClusterSpec

from bench import calls, drivers, machine, objects, report
from bench.drivers import BEFORE, Driver, Running
from bench.figures import Round, percentile
from dra_driver.kube.api.client import Transport

ON, OFF = "on", "off"
_WRITTEN_SECONDS = 60.0
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_REQUESTS = re.compile(
    r'(?m)^apiserver_request_total\{[^}]*resource="resourceclaims"[^}]*verb="(GET|PATCH|APPLY)"[^}]*\} (\S+)'
)


@dataclass
class Figures:
    """What was measured of one driver, an entry for each round."""

    single: list[Round] = field(default_factory=list)
    """Prepare calls, one at a time."""
    pairs: list[tuple[Round, Round]] = field(default_factory=list)
    """Prepare and unprepare calls, `calls.AT_ONCE` at a time."""
    cpu_ms: list[float] = field(default_factory=list)
    """Of the driver, for each claim of `single`, until it is written."""
    behind: list[float] = field(default_factory=list)
    """Seconds from the last reply of `single` until all claims say what they got."""
    requests: list[Mapping[str, int]] = field(default_factory=list)
    """Of `single`, by verb."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status as for `lab.command.run`."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/benchmark claimstatus",
        description="Call drivers that write status.devices and drivers that do not by turns, on a real control plane. "
        "Needs root; starts a control plane and removes it at the end.",
        epilog="Example: scripts/benchmark claimstatus --before ../before",
    )
    parser.add_argument("--kubernetes", default=DEFAULT_KUBERNETES, help="Kubernetes version (default: %(default)s)")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="another checkout, whose driver is called, too")
    parser.add_argument("--rounds", type=int, default=25, help="rounds of calls (default: %(default)s)")
    parser.add_argument(
        "--claims", type=int, default=64, help="claims of a round: a trn2.48xlarge has 64 cores (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if min(options.rounds, options.claims) < 1:
        parser.error("rounds and claims must be at least 1")
    return command.run(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    settings, progress = Settings.from_environment(os.environ), Progress()
    client = Builder(settings, progress).build([components.benchmark_client()])["benchmark-client"]
    python = drivers.runtime_python(settings, progress)
    spec = ClusterSpec(name="benchmark", nodes=0, kubernetes=options.kubernetes)
    cluster = Cluster(spec, settings=settings, progress=progress)
    with cluster, tempfile.TemporaryDirectory(prefix="bench-") as scratch, ExitStack() as stack:
        transport = Transport.from_kubeconfig(str(cluster.kubeconfig))
        for name in ("kube-controller-manager", "kube-scheduler"):
            cluster.control_plane.stop(name)
        called = [
            drivers.ours(
                python, cluster.kubeconfig, Path(scratch) / word, label=word, number=number,
                options=(f"--claim-status={word}",),
            )
            for number, word in enumerate((ON, OFF))
        ]  # fmt: skip
        pythons = [python, python]
        if options.before:
            pythons.append(drivers.runtime_python(settings, progress, options.before))
            directory = Path(scratch) / "before"
            called.append(drivers.ours(pythons[-1], cluster.kubeconfig, directory, label=BEFORE, number=2))
        for own, driver in zip(pythons, called, strict=True):
            drivers.emulate_host(own, driver.directory)
            transport.request("POST", "/api/v1/nodes", body=objects.node(driver.node))
        transport.request("POST", "/api/v1/namespaces", body=objects.namespace())
        device_class = objects.device_class(called[0].name)
        transport.request("POST", "/apis/resource.k8s.io/v1/deviceclasses", body=device_class)
        load = machine.load()
        extent = calls.Extent(options.rounds, options.claims, 0, 1)
        claims = {driver.label: calls.make_claims(transport, driver, extent) for driver in called}
        running = {driver.label: stack.enter_context(Running(driver)) for driver in called}
        for process in running.values():
            process.await_socket()
        found = {driver.label: Figures() for driver in called}
        access = calls.Access.of(cluster)
        with progress.step("calling the drivers by turns"):
            for number in range(-1, options.rounds):
                for driver in called if number % 2 else reversed(called):
                    # The first round only warms up.
                    into = found[driver.label] if number >= 0 else Figures()
                    _round(transport, client, access, driver, running[driver.label], claims[driver.label], into)
        where = f"{machine.describe()}, files on {machine.file_system(Path(scratch))}"
        print(text(where, load, options.kubernetes, extent, found))
    return 0


def _round(
    transport: Transport,
    client: Path,
    access: calls.Access,
    driver: Driver,
    process: Running,
    claims: Sequence[Mapping[str, str]],
    into: Figures,
) -> None:
    def step(action: str, at_once: int) -> dict[str, object]:
        return {"socket": str(driver.socket), "claims": claims, "atOnce": at_once, "do": [action]}

    _silence(transport, claims)
    ticks, requests = process.cpu_ticks(), _requests(transport)
    into.single += calls.run(client, access, [step("prepare", 1)])
    into.behind.append(_await_written(transport, driver, len(claims)) if driver.label == ON else 0.0)
    into.cpu_ms.append((process.cpu_ticks() - ticks) * _TICK_MS / len(claims))
    into.requests.append({verb: count - requests[verb] for verb, count in _requests(transport).items()})
    calls.run(client, access, [step("unprepare", 1)])
    _silence(transport, claims)
    prepared, unprepared = calls.run(client, access, [step(what, calls.AT_ONCE) for what in ("prepare", "unprepare")])
    into.pairs.append((prepared, unprepared))
    time.sleep(0.5)  # what was still to be written


def _silence(transport: Transport, claims: Sequence[Mapping[str, str]]) -> None:
    """Have the claims say nothing, as new ones do."""
    for claim in claims:
        transport.request(
            "PATCH",
            f"{claim['path']}/status",
            body={"status": {"devices": None}},
            content_type="application/merge-patch+json",
        )


def _await_written(transport: Transport, driver: Driver, count: int) -> float:
    """Return the seconds until so many claims of the driver's node say what they got."""
    begun = time.monotonic()
    while True:
        items = json.loads(transport.request("GET", calls.CLAIMS_PATH).body)["items"]
        said = [entry for item in items for entry in item["status"].get("devices", []) if entry["pool"] == driver.node]
        waited = time.monotonic() - begun
        if len(said) >= count:
            return waited
        if waited > _WRITTEN_SECONDS:
            raise LabError(f"{len(said)} of {count} claims say what they got; nothing is reported. {driver.log}")
        time.sleep(0.1)


def _requests(transport: Transport) -> dict[str, int]:
    """Return how many requests about single claims the API server has counted, by verb."""
    counts = dict.fromkeys(("GET", "PATCH", "APPLY"), 0)
    for verb, number in _REQUESTS.findall(transport.request("GET", "/metrics").body.decode()):
        counts[verb] += int(float(number))
    return counts


def text(where: str, load: float, kubernetes: str, extent: calls.Extent, found: Mapping[str, Figures]) -> str:
    """Return the report in Markdown: a pure function."""
    at_once = f"pairs per second, {calls.AT_ONCE} at once"
    header = ["claims' status", "prepare p50", "p99", at_once, "prepare p50", "p99"]
    header += ["requests a claim", "CPU ms a claim", "s until all is written"]
    return "\n".join(
        [
            f"Machine: {where}; load before the run {load:.1f}. Kubernetes {kubernetes}.",
            f"Medians of {extent.rounds} rounds of {extent.claims} claims with 1 device each; p99 over all calls.",
            "",
            *report.table(header, [_row(label, figures) for label, figures in found.items()]),
        ]
    )


def _row(label: str, found: Figures) -> list[str]:
    single = [item.milliseconds["prepare"] for item in found.single]
    at_once = [prepared.milliseconds["prepare"] for prepared, _ in found.pairs]
    pairs = median(len(one.milliseconds["prepare"]) / (one.seconds + other.seconds) for one, other in found.pairs)
    claims = len(single[0])
    reads = median(item["GET"] / claims for item in found.requests)
    writes = median((item["PATCH"] + item["APPLY"]) / claims for item in found.requests)
    return [
        label,
        *(f"{value:.2f}" for value in _middle_and_worst(single)),
        f"{pairs:.0f}",
        *(f"{value:.2f}" for value in _middle_and_worst(at_once)),
        f"{reads:.2f} reads, {writes:.2f} writes",
        f"{median(found.cpu_ms):.1f}",
        f"{median(found.behind):.1f}",
    ]


def _middle_and_worst(rounds: Sequence[Sequence[float]]) -> tuple[float, float]:
    return median(map(median, rounds)), percentile([value for item in rounds for value in item], 99)


if __name__ == "__main__":
    sys.exit(main())

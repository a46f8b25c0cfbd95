"""The allocator of the simulator on a large cluster: `scripts/benchmark allocation`. Needs no cluster and no root."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lab.errors import LabError

from bench import machine
from dra_driver.kube.types import ObjectMeta
from dra_driver.manifests import Manifests, objects
from dra_driver.names import DRIVER_NAME
from dra_driver.simulator.allocator import Allocation, Refusal, Scheduler
from dra_driver.simulator.cluster import cluster_of, merge
from dra_driver.simulator.emulated_nodes import emulated
from dra_driver.topology.cuts import device_name

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "specs" / "1x4-connected-devices.yaml"
TYPE = "trn2.48xlarge"
KUBERNETES = "1.37"


@dataclass(frozen=True)
class Figures:
    """Seconds measured in one process.

    Attributes:
        nodes: Number of nodes, with 16 chips each.
        claims: Number of claims that were allocated until the cluster was full.
        fill: Time for all of them.
        cold: Time for one claim, from Kubernetes objects, if the first node has room.
        cold_last: The same if only the last node has room.
        start: `dra-driver simulate` of one pod on one node, from start to end; the best of several runs.
    """

    nodes: int
    claims: int
    fill: float
    cold: float
    cold_last: float
    start: float


def connected_four() -> objects.ResourceClaim:
    """Return a claim for four connected chips."""
    selector = objects.CelSelector(f"device.attributes['{DRIVER_NAME}'].instanceType == '{TYPE}'")
    exactly = objects.ExactDeviceRequest(DRIVER_NAME, (objects.DeviceSelector(selector),), count=4)
    devices = objects.DeviceClaim(
        (objects.DeviceRequest("chips", exactly),),
        (objects.DeviceConstraint(match_attribute="resource.aws.com/devicegroup4_id"),),
    )
    return objects.ResourceClaim(ObjectMeta(name="c", namespace="default"), objects.ResourceClaimSpec(devices))


def fill(cluster: Manifests) -> int:
    """Allocate claims of four connected chips until one is refused; return the number of allocated ones."""
    scheduler, claim, count = Scheduler(*cluster_of(cluster, KUBERNETES)), connected_four(), 0
    while isinstance(scheduler.place([claim]), Allocation):
        count += 1
    return count


def cold(cluster: Manifests) -> str:
    """Allocate one claim on a cluster for which nothing is cached yet; return its node."""
    answer = Scheduler(*cluster_of(cluster, KUBERNETES)).place([connected_four()])
    if isinstance(answer, Refusal):
        raise LabError(f"a claim that fits was refused: {answer.reason}")
    return answer.node


def room_on_the_last_node(cluster: Manifests) -> Manifests:
    """Return the cluster with one chip of each group of four in use on all nodes except the last."""
    used = []
    for node in cluster.nodes[:-1]:
        name = node.metadata.name
        results = tuple(objects.AllocatedDevice("r", DRIVER_NAME, name, device_name(chip)) for chip in (0, 5, 10, 15))
        allocation = objects.AllocationResult(objects.AllocatedDevices(results))
        meta = ObjectMeta(name=name, namespace="used")
        used.append(objects.ResourceClaim(meta, status=objects.ResourceClaimStatus(allocation)))
    return merge(cluster, Manifests(claims=tuple(used)))


def measure(nodes: int, starts: int) -> Figures:
    """Measure everything once, the start several times."""
    cluster = emulated([(TYPE, nodes)])
    scarce = room_on_the_last_node(cluster)
    cold_seconds, _ = _timed(lambda: cold(cluster))
    last_seconds, _ = _timed(lambda: cold(scarce))
    fill_seconds, claims = _timed(lambda: fill(cluster))
    command = [sys.executable, "-m", "dra_driver", "simulate", str(EXAMPLE), "--node", TYPE]
    start = min(
        _timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))[0] for _ in range(starts)
    )
    return Figures(nodes, claims, fill_seconds, cold_seconds, last_seconds, start)


def text(found: Figures) -> str:
    """Return the report in Markdown."""
    rows = [
        (f"{found.claims} claims of four connected chips until {found.nodes} nodes are full", found.fill, 60.0),
        ("one claim, cold, room on the first node", found.cold, 2.0),
        ("one claim, cold, room on the last node only", found.cold_last, 2.0),
        ("`dra-driver simulate` with one node, start to end", found.start, 0.6),
    ]
    lines = ["| allocation | seconds | target |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {what} | {seconds:.2f} | {most:g} |" for what, seconds, most in rows)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/benchmark allocation",
        description="Measure the allocator of dra-driver simulate.",
    )
    parser.add_argument("--nodes", type=int, default=5000, help="number of nodes with 16 chips (default: %(default)s)")
    parser.add_argument("--starts", type=int, default=5, help="number of runs of the command (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.nodes < 1 or options.starts < 1:
        parser.error("nodes and starts must be at least 1")
    print(f"Machine: {machine.describe()}; load before the run {machine.load():.1f}.\n")
    print(text(measure(options.nodes, options.starts)))
    return 0


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    answer = call()
    return time.perf_counter() - started, answer


if __name__ == "__main__":
    sys.exit(main())

"""What claims cost a real kube-scheduler: `scripts/benchmark scheduling`; as root."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from lab import command
from lab.cluster import Cluster
from lab.progress import Progress
from lab.settings import REPOSITORY, Settings
from lab.spec import DEFAULT_KUBERNETES, ClusterSpec

from bench import machine
from bench.report import table
from bench.schedulingfleet import Fleet, Sample, Scheduler, run_rows
from bench.schedulingrows import Row, own_rows, template_classes, template_rows

TEMPLATES = REPOSITORY / "examples" / "specs"
SLOWER = 4 / 3
"""What a check allows."""
SPREAD = 0.5
"""CPU milliseconds a pod that a check allows besides: what the clock of processes cannot tell from nothing."""


@dataclass(frozen=True)
class Extent:
    """What is measured.

    Attributes:
        nodes: Number of Node objects.
        pods: Of a burst, if so many find room.
        rounds: Bursts of each row, each after one of plain pods.
    """

    nodes: int
    pods: int
    rounds: int


@dataclass(frozen=True)
class Figures:
    """A row: medians over its bursts.

    Attributes:
        row: Name.
        world: What the nodes offer.
        pods: Of a burst.
        pods_a_second: From the first pod's creation until the last had a node.
        p50: Milliseconds from creation to node.
        p99: The same.
        processor: CPU milliseconds of kube-scheduler for each pod.
        plain_pods_a_second: Of plain pods, by turns with these.
        plain_processor: The same.
    """

    row: str
    world: str
    pods: int
    pods_a_second: float
    p50: float
    p99: float
    processor: float
    plain_pods_a_second: float
    plain_processor: float

    @property
    def key(self) -> str:
        """What identifies it in a file of figures."""
        return f"{self.row} / {self.world}"


def figures(row: Row, mine: Sequence[Sample], plain: Sequence[Sample]) -> Figures:
    """Of at least one burst each."""
    return Figures(
        row=row.name,
        world=str(row.world),
        pods=mine[0].pods,
        pods_a_second=median(item.pods / item.seconds for item in mine),
        p50=median(item.p50 for item in mine),
        p99=median(item.p99 for item in mine),
        processor=median(item.processor for item in mine),
        plain_pods_a_second=median(item.pods / item.seconds for item in plain),
        plain_processor=median(item.processor for item in plain),
    )


def slower(found: Sequence[Figures], baseline: Mapping[str, float]) -> list[str]:
    """Keys of what became slower by more than a third, against plain pods of the same run.

    Args:
        found: now; at least one.
        baseline: processor time in plain pods by key, as `relative` gives it.
    """
    plain = plain_processor(found)
    return [
        item.key
        for item in found
        if item.key in baseline and item.processor > baseline[item.key] * plain * SLOWER + SPREAD
    ]


def plain_processor(found: Sequence[Figures]) -> float:
    """CPU milliseconds of a plain pod: of all in the run, since the clock of processes is coarse."""
    return max(mean(item.plain_processor for item in found), 0.1)


def relative(found: Sequence[Figures]) -> dict[str, float]:
    """Processor time in plain pods of the run, by key."""
    return {item.key: round(item.processor / plain_processor(found), 1) for item in found}


def check(
    cluster: Cluster, extent: Extent, rows: Sequence[Row], baseline: Mapping[str, float], progress: Progress
) -> tuple[list[Figures], list[str]]:
    """Measure rows; those that are too slow once more.

    Returns:
        The figures, and a text for each row that was too slow twice.
    """
    found = measure(cluster, extent, rows, progress)
    late = set(slower(found, baseline))
    if late:
        suspects = [row for row in rows if any(f"{row.name} / {row.world}" == key for key in late)]
        again = measure(cluster, extent, suspects, progress)
        late = set(slower(again, baseline))
        found = [*(item for item in found if item.key not in {other.key for other in again}), *again]
    now = relative(found)
    return found, [
        f"{key}: costs kube-scheduler as much processor time as {now[key]:g} plain pods; it was {baseline[key]:g}"
        for key in sorted(late)
    ]


def check_rows() -> list[Row]:
    """What the check measures: templates of the project, and each class on nodes that offer its devices alone."""
    return [*(row for row in own_rows() if row.claim and "." not in row.world.partitions), *template_rows(TEMPLATES)]


def report(machine_: str, load: float, kubernetes: str, extent: Extent, found: Sequence[Figures]) -> str:
    """The figures in Markdown."""
    lines = [
        f"Machine: {machine_}; load before the run {load:.1f}. Kubernetes {kubernetes}, {extent.nodes} nodes,",
        f"bursts of up to {extent.pods} pods, medians of {extent.rounds}. A plain pod costs kube-scheduler",
        f"{plain_processor(found):.1f} ms of CPU time in this run.",
        "",
        *table(
            ("pods", "nodes", "burst", "pods/s", "plain", "p50 ms", "p99 ms", "CPU ms a pod", "in plain pods"),
            [
                (
                    *(item.row, item.world, str(item.pods)),
                    *(f"{item.pods_a_second:.1f}", f"{item.plain_pods_a_second:.0f}"),
                    *(f"{item.p50:.0f}", f"{item.p99:.0f}"),
                    *(f"{item.processor:.1f}", f"{relative(found)[item.key]:.1f}"),
                )
                for item in found
            ],
        ),
    ]
    return "\n".join(lines)


def measure(cluster: Cluster, extent: Extent, rows: Sequence[Row], progress: Progress) -> list[Figures]:
    """Measure these rows.

    Raises:
        LabError: A program failed, or pods got no node.
    """
    found: list[Figures] = []
    with _fleet(cluster, extent) as (fleet, scheduler):
        for world in dict.fromkeys(row.world for row in rows):
            of_world = [row for row in rows if row.world == world]
            with fleet.offering(world):
                results = run_rows(fleet, scheduler, of_world, extent.pods, extent.rounds, progress.say)
                found += [figures(*result) for result in results]
    return found


@contextmanager
def _fleet(cluster: Cluster, extent: Extent) -> Iterator[tuple[Fleet, Scheduler]]:
    # Controllers would evict pods from nodes without kubelet; and only one scheduler must be active.
    for name in ("kube-controller-manager", "kube-scheduler"):
        cluster.control_plane.stop(name)
    fleet = Fleet(cluster, extent.nodes)
    try:
        fleet.build(template_classes(TEMPLATES))
        with (
            tempfile.TemporaryDirectory(prefix="bench-") as directory,
            Scheduler(cluster, Path(directory)) as scheduler,
        ):
            yield fleet, scheduler
    finally:
        fleet.remove()
        fleet.close()


def chosen(rows: Sequence[Row], pattern: str) -> list[Row]:
    """Those whose name and nodes, joined by " / ", match the regular expression."""
    return [row for row in rows if re.search(pattern, f"{row.name} / {row.world}")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status as for `lab.command.run`."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="scripts/benchmark scheduling",
        description="Measure what pods with claims cost a real kube-scheduler, on Node objects with the slices that "
        "the driver would publish. Needs root; starts a control plane and removes it at the end.",
        epilog="Example: scripts/benchmark scheduling --rows '^chip / '",
    )
    parser.add_argument("--kubernetes", default=DEFAULT_KUBERNETES, help="Kubernetes version (default: %(default)s)")
    parser.add_argument("--cluster", default="benchmark", help="name of the lab's cluster (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=500, help="number of Node objects (default: %(default)s)")
    parser.add_argument("--pods", type=int, default=500, help="pods of a burst (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="bursts of each row (default: %(default)s)")
    parser.add_argument("--rows", default="", metavar="REGEX", help='only rows whose "pods / nodes" matches')
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="measure the rows of the cluster test, and write its file",
    )
    options = parser.parse_args(arguments)
    if min(options.nodes, options.pods, options.rounds) < 1:
        parser.error("nodes, pods and rounds must be at least 1")
    rows = chosen(check_rows() if options.baseline else (*own_rows(), *template_rows(TEMPLATES)), options.rows)
    if not rows:
        parser.error("no row matches")
    return command.run(lambda: _run(options, rows))


def _run(options: argparse.Namespace, rows: Sequence[Row]) -> int:
    settings, progress = Settings.from_environment(os.environ), Progress()
    extent = Extent(options.nodes, options.pods, options.rounds)
    spec = ClusterSpec(name=options.cluster, nodes=0, kubernetes=options.kubernetes)
    load = machine.load()
    with Cluster(spec, settings=settings, progress=progress) as cluster:
        found = measure(cluster, extent, rows, progress)
    if options.baseline:
        options.baseline.write_text(json.dumps(relative(found), indent=1) + "\n")
    print(report(machine.describe(), load, options.kubernetes, extent, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``dra-driver fragmentation``: pods that arrive and leave over time, under one or several policies."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from dra_driver.cli import vocabulary
from dra_driver.cli.clusterinput import add_node_arguments
from dra_driver.util.errors import DriverError, UsageError

if TYPE_CHECKING:
    from dra_driver.manifests import Manifests
    from dra_driver.simulator.fragmentation import Workload
    from dra_driver.simulator.fragmentation.report import Report

EXAMPLES: Final = (
    "fragmentation examples/workloads/mixed.yaml",
    "fragmentation examples/workloads/mixed.yaml --seed 1-8 --policy all",
    "fragmentation examples/workloads/notebooks.yaml --instance-type trn2.48xlarge=8 -o svg > picture.svg",
)
POLICY_NAMES = (
    "lowest-id",
    "broken-sets-first",
    "lowest-id-spread",
    "broken-sets-first-spread",
    "lowest-id-packed",
    "broken-sets-first-packed",
    "lowest-id-fitting",
    "broken-sets-first-fitting",
)
"""Names of the policies, repeated from ``simulator.fragmentation``, whose import would slow ``--help`` by 0.1 s."""
MAX_SEEDS = 100
MAX_SEED = 2**53
"""JSON readers that use doubles would round larger numbers."""

_SEEDS = re.compile(r"([0-9]{1,16})(?:-([0-9]{1,16}))?", re.ASCII)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = vocabulary.add_command(
        subparsers,
        "fragmentation",
        about="Simulate the stream of pods in a file on emulated nodes, and show how full the cluster gets, which pods "
        "are refused and how many connected sets remain unbroken, under one or more orders in which devices and nodes "
        "are tried.",
        examples=EXAMPLES,
        done="simulated",
        refused="not possible",
    )
    vocabulary.add_files(parser, "the stream of pods (docs/placement.md), and the nodes unless others are named")
    parser.set_defaults(workload=None)
    add_stream_arguments(parser)
    add_node_arguments(parser)
    vocabulary.add_output(parser, "text", "json", "yaml", "svg")
    parser.set_defaults(run=run)


def add_stream_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup, *, hidden: bool = False) -> None:
    """Add the options for the simulated pod streams and for the order in which devices are tried."""
    seed = "seed of the stream, or several, such as 1-8 (default: 1)"
    policy = f"order of devices and nodes (repeatable): {', '.join(POLICY_NAMES)}, all (default: {POLICY_NAMES[0]})"
    parser.add_argument("--seed", metavar="N", help=argparse.SUPPRESS if hidden else seed)
    parser.add_argument("--policy", action="append", metavar="NAME", help=argparse.SUPPRESS if hidden else policy)


def run(args: argparse.Namespace) -> int:
    """Print the results as text, JSON, YAML or SVG; raises UsageError for invalid arguments."""
    if args.workload is None:
        args.workload = vocabulary.one_file(args, "the stream of pods")
    seeds, policies = parse_seeds(args.seed or "1"), parse_policies(args.policy)
    try:
        found = report(args, seeds, policies)
    except UsageError:
        raise
    except DriverError as error:
        raise UsageError(str(error)) from error
    print_report(found, args.output)
    return 0


def report(args: argparse.Namespace, seeds: Sequence[int], policies: Sequence[str]) -> Report:
    """Simulate the workload of a file for each policy and seed; raises DriverError if it cannot be simulated."""
    from dra_driver.cel import RELEASES
    from dra_driver.cli.clusterinput import MAX_MANIFEST_BYTES, emulated_nodes, read_text
    from dra_driver.cli.terminal import Progress
    from dra_driver.simulator.cluster import cluster_of
    from dra_driver.simulator.fragmentation import POLICIES, read_workload, simulate, sites
    from dra_driver.simulator.fragmentation.report import Report

    release = args.kubernetes or RELEASES[-1]
    stream = read_workload(args.workload, read_text(args.workload, MAX_MANIFEST_BYTES), release)
    if args.devices is None and stream.devices is not None:
        args.devices = str(stream.devices)
    manifests = emulated_nodes(args) if args.node else _nodes_of_file(args, stream)
    world, views = cluster_of(manifests, release)
    where = sites(views, manifests.slices)
    jobs = [(name, seed) for name in policies for seed in seeds]
    with Progress("simulating", "runs", scale=1000) as progress:
        runs = [
            simulate(stream, where, world, POLICIES[name], seed, _share_of(place, len(jobs), progress))
            for place, (name, seed) in enumerate(jobs)
        ]
    return Report(args.workload, stream, len(where), sum(len(site.chips) for site in where), tuple(runs))


def _nodes_of_file(args: argparse.Namespace, stream: Workload) -> Manifests:
    from dra_driver.cli.clusterinput import emulated_nodes

    if not stream.nodes:
        raise UsageError(f"{args.workload}: nodes is missing", remedy="write nodes: {trn2.48xlarge: 4}, or give --node")
    args.node = [f"{name}={count}" for name, count in stream.nodes.items()]
    try:
        return emulated_nodes(args)
    except UsageError as error:
        raise UsageError(f"{args.workload}: nodes: {error}") from error


def _share_of(place: int, jobs: int, progress: Callable[[int, int], None]) -> Callable[[float], None]:
    """Converts the progress of one job to the overall progress, in per mille."""
    return lambda share: progress(int(1000 * (place + share)), 1000 * jobs)


def print_report(found: Report, output: str) -> None:
    """Print the report in the format selected with ``-o``."""
    from dra_driver.cli.slices import print_object
    from dra_driver.cli.terminal import show
    from dra_driver.simulator.fragmentation.report import document, svg, text

    if output == "svg":
        print(svg(found), end="")
    elif output in ("json", "yaml"):
        print_object(document(found), output)
    else:
        show(text(found))


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse ``3`` or ``1-8``; raises UsageError for anything else."""
    match = _SEEDS.fullmatch(text)
    if match is None:
        raise UsageError(f"--seed cannot be read: {text[:24]!r}", remedy="give a number, or a range such as 1-8")
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last < first + MAX_SEEDS or last > MAX_SEED:
        raise UsageError(f"--seed {text}: 1 to {MAX_SEEDS} ascending seeds up to {MAX_SEED} are possible")
    return tuple(range(first, last + 1))


def parse_policies(names: Sequence[str] | None) -> tuple[str, ...]:
    """The policies of these names, each once, in the given order; raises UsageError for an unknown one."""
    wanted: list[str] = []
    for name in names or POLICY_NAMES[:1]:
        if name not in (*POLICY_NAMES, "all"):
            raise UsageError(
                f"--policy {name[:60]!r} is not known", remedy=f"give one of {', '.join(POLICY_NAMES)}, all"
            )
        wanted += POLICY_NAMES if name == "all" else [name]
    return tuple(dict.fromkeys(wanted))

"""``dra-driver simulate --workload``: pods that come and go over a cluster, under one or several policies."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dra_driver.cli.errors import UsageError
from dra_driver.errors import DriverError

if TYPE_CHECKING:
    from dra_driver.simulator.workload.report import Report

POLICY_NAMES = (
    "lowest-id",
    "broken-sets-first",
    "lowest-id-spread",
    "broken-sets-first-spread",
    "lowest-id-packed",
    "broken-sets-first-packed",
)
"""Those of ``simulator.workload.policies``, which would cost ``--help`` a tenth of a second."""
MOST_SEEDS = 100
MOST_SEED = 2**53
"""Programs that read JSON take larger numbers for others."""
MOST_BYTES = 1 << 20
"""Of a workload file; far more than any needs."""
PATIENCE = 1.0
"""Seconds until progress is shown."""

_SEEDS = re.compile(r"([0-9]{1,16})(?:-([0-9]{1,16}))?", re.ASCII)
_COUNT = re.compile(r"[0-9]{1,6}", re.ASCII)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``simulate`` that are about workloads; ``--node``, ``--kubernetes`` and ``-o`` are its own."""
    group = parser.add_argument_group("a stream of pods")
    group.add_argument(
        "--workload", metavar="FILE", help="let the pods of this file come and go (docs/placement.md); - is stdin"
    )
    group.add_argument("--seed", metavar="N", help="which stream; 1-8 for several of them (default: 1)")
    group.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"what is tried first, repeatable: {', '.join(POLICY_NAMES)}, all (default: {POLICY_NAMES[0]})",
    )


def run_workload(args: argparse.Namespace) -> int:
    """Print what became of the pods: as text, JSON, YAML or SVG.

    Reads ``workload``, ``seed``, ``policy``, ``node`` (texts such as ``trn2.48xlarge=3``), ``kubernetes`` and
    ``output`` of the arguments. UsageError for whatever of it cannot be used.
    """
    try:
        found = report(
            args.workload, parse_seeds(args.seed or "1"), parse_policies(args.policy), args.node, args.kubernetes
        )
    except UsageError:
        raise
    except DriverError as error:
        raise UsageError(str(error)) from error
    print_report(found, args.output)
    return 0


def report(
    filename: str, seeds: Sequence[int], policies: Sequence[str], nodes: Sequence[str] | None, kubernetes: str | None
) -> Report:
    """Run the workload of a file for each policy and seed; DriverError for what cannot be simulated."""
    from dra_driver.simulator.manifests import RELEASES, cluster_of, emulated
    from dra_driver.simulator.workload import POLICIES, read_workload, simulate, sites
    from dra_driver.simulator.workload.report import Report

    release = kubernetes or RELEASES[-1]
    stream = read_workload(filename, read_text(filename), release)
    types = [parse_node(text) for text in nodes or ()] or list(stream.nodes.items())
    if not types:
        raise UsageError(f"{filename}: there are no nodes", remedy="write nodes: {trn2.48xlarge: 4}, or give --node")
    manifests = emulated(types)
    world, views = cluster_of(manifests, release)
    where = sites(views, manifests.slices)
    jobs = [(name, seed) for name in policies for seed in seeds]
    with Progress(len(jobs)) as progress:
        runs = [
            simulate(stream, where, world, POLICIES[name], seed, progress.of(place))
            for place, (name, seed) in enumerate(jobs)
        ]
    return Report(filename, stream, len(where), sum(len(site.devices) for site in where), tuple(runs))


def print_report(found: Report, output: str) -> None:
    """Print it in the form that ``-o`` names."""
    from dra_driver.cli.slices import print_object
    from dra_driver.simulator.workload.drawing import svg
    from dra_driver.simulator.workload.report import document, text

    if output == "svg":
        print(svg(found), end="")
    elif output in ("json", "yaml"):
        print_object(document(found), output)
    else:
        print(text(found))


def read_text(filename: str) -> str:
    """The text of a file or of standard input; UsageError when it cannot be read or is too large."""
    try:
        if filename == "-":
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(filename).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UsageError(f"{filename}: larger than {MOST_BYTES} bytes, so it is no workload")
        return data.decode()
    except OSError as error:
        raise UsageError(f"{filename}: {error.strerror or error}") from error
    except ValueError as error:
        # Also for a name that no file can have.
        raise UsageError(f"{filename!r}: {error}") from error


def parse_seeds(text: str) -> tuple[int, ...]:
    """``3`` or ``1-8``; UsageError for anything else."""
    match = _SEEDS.fullmatch(text)
    if match is None:
        raise UsageError(f"--seed cannot be read: {text[:24]!r}", remedy="give a number, or a range such as 1-8")
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last < first + MOST_SEEDS or last > MOST_SEED:
        raise UsageError(f"--seed {text}: 1 to {MOST_SEEDS} ascending seeds up to {MOST_SEED} are possible")
    return tuple(range(first, last + 1))


def parse_policies(names: Sequence[str] | None) -> tuple[str, ...]:
    """The policies of that name, each once, in the order given; UsageError for an unknown one."""
    wanted: list[str] = []
    for name in names or POLICY_NAMES[:1]:
        if name not in (*POLICY_NAMES, "all"):
            raise UsageError(
                f"--policy {name[:60]!r} is not known", remedy=f"give one of {', '.join(POLICY_NAMES)}, all"
            )
        wanted += POLICY_NAMES if name == "all" else [name]
    return tuple(dict.fromkeys(wanted))


def parse_node(text: str) -> tuple[str, int]:
    """``TYPE`` or ``TYPE=N``; UsageError for anything else."""
    name, sign, count = text.partition("=")
    if not name or (sign and not _COUNT.fullmatch(count)):
        raise UsageError(f"--node cannot be read: {text[:60]!r}", remedy="give TYPE or TYPE=N, such as trn2.48xlarge=4")
    return name, int(count) if sign else 1


class Progress:
    """How much is done, on standard error, when that is a terminal and it takes a while."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._next = time.monotonic() + PATIENCE
        self._shown = False

    def of(self, place: int) -> Callable[[float], None]:
        """To be told which share of the job at this place is done."""

        def told(share: float) -> None:
            now = time.monotonic()
            if now >= self._next and sys.stderr.isatty():
                self._next = now + 0.1
                self._shown = True
                print(f"\r{100 * (place + share) / self._jobs:3.0f} % simulated", end="", file=sys.stderr, flush=True)

        return told

    def __enter__(self) -> Self:
        """Nothing is shown yet."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Make room for what is printed next."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

"""``dra-driver simulate``: which nodes and devices pods and claims would get, without a cluster or beside one."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dra_driver.cli.errors import UsageError
from dra_driver.cli.workload import add_arguments, is_about_workload, run_workload

if TYPE_CHECKING:
    from dra_driver.simulator.manifests import Manifests
    from dra_driver.simulator.placement import Simulation

RELEASES = ("1.36", "1.37")
"""Kubernetes releases whose behaviour is known, oldest first."""
MOST_BYTES = 256 << 20
"""Of one file: several times the objects of the largest cluster that Kubernetes is tested for."""
_NODE = re.compile(r"([^=]{1,80})(?:=([0-9]{1,9}))?", re.ASCII)

EXAMPLES = """\
examples:
  dra-driver simulate examples/specs/1x4-connected-devices.yaml --node trn2.48xlarge
  dra-driver simulate deployment.yaml --node trn2.48xlarge=4 --node trn1.32xlarge -o svg > picture.svg
  dra-driver simulate group.yaml --node trn2u.48xlarge=8
  dra-driver simulate pod.yaml --from-cluster --kubeconfig ~/.kube/config
  dra-driver simulate --workload examples/workloads/mixed.yaml --seed 1-8 --policy all
  kubectl get nodes,resourceslices,deviceclasses,resourceclaims,pods -A -o json | dra-driver simulate --objects -
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "simulate",
        help="show which devices pods would get, without a cluster",
        description="Allocate devices to the claims of pods as kube-scheduler does, and show per pod the node, the "
        "devices, what its containers get, and what is left. Exit status 0: all placed, 1: not all, 2: bad input.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="pods, Deployments, ReplicaSets, StatefulSets, Jobs, LeaderWorkerSets, claims, templates, classes; YAML "
        "or JSON; - is stdin",
    )
    add_cluster_arguments(parser)
    add_arguments(parser)
    parser.add_argument(
        "--kubernetes", choices=RELEASES, help=f"whose behaviour is meant (default: the cluster's, else {RELEASES[-1]})"
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "yaml", "svg"), default="text", help="default: %(default)s"
    )
    parser.set_defaults(run=run)


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``read_input`` takes beside the files: where the nodes come from."""
    cluster = parser.add_argument_group("cluster (one or several of)")
    cluster.add_argument(
        "--node",
        metavar="TYPE[=N]",
        action="append",
        default=[],
        help="one or N emulated nodes of this EC2 type; may be repeated",
    )
    cluster.add_argument(
        "--objects",
        metavar="FILE",
        action="append",
        default=[],
        help="Nodes, ResourceSlices, DeviceClasses, ResourceClaims and Pods as objects; without FILE, what waits among "
        "them is placed; - is stdin",
    )
    cluster.add_argument("--from-cluster", action="store_true", help="read them from a cluster; nothing is changed")
    cluster.add_argument("--kubeconfig", metavar="FILE", help="for --from-cluster (default: as kubectl)")
    emulation = parser.add_argument_group("emulated nodes")
    emulation.add_argument(
        "--emulated-ultraservers", metavar="SxN", default="", help="nodes make up S servers of N (default: of 4 nodes)"
    )
    emulation.add_argument("--emulated-driver-version", metavar="V", help="kernel driver (default: the newest known)")
    emulation.add_argument(
        "--ultraserver-layout",
        choices=("node", "chips", "both"),
        default="node",
        help="what nodes of UltraServers offer (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Place everything and show it; 1 when something waits."""
    if is_about_workload(args):
        return run_workload(args)
    from dra_driver.cli.simulateoutput import show
    from dra_driver.simulator.manifests import ManifestError
    from dra_driver.simulator.placement import simulate

    try:
        manifests, kubernetes = read_input(args)
        with Progress("placing") as progress:
            simulation = simulate(manifests, kubernetes, progress)
    except ManifestError as error:
        raise UsageError(str(error)) from error
    _refuse_nothing(simulation)
    show(manifests, simulation, args.output)
    return 0 if all(outcome.placed for outcome in simulation.outcomes) else 1


def read_input(args: argparse.Namespace) -> tuple[Manifests, str]:
    """The cluster together with what is applied to it, and the release that is meant.

    Raises:
        UsageError: the arguments do not fit together, or a file cannot be read. ManifestError: what is in it is wrong.
    """
    from dra_driver.simulator.manifests import Manifests, merge, read_manifests, waiting_left_out

    _check(args)
    release, cluster = "", Manifests()
    if args.from_cluster:
        from dra_driver.cli.clusterobjects import read_cluster

        cluster, release = read_cluster(args.kubeconfig)
    kubernetes = args.kubernetes or _nearest(release)
    notes = []
    if release and release not in RELEASES and args.kubernetes is None:
        notes.append(f"the cluster's release {release}: {kubernetes} is simulated")
    if args.objects:
        with Progress("reading") as progress:
            cluster = merge(cluster, read_manifests(_texts(args.objects), kubernetes, progress))
    if args.node:
        cluster = merge(_beside(emulated_nodes(args), cluster), cluster)
    if args.files:
        cluster = merge(waiting_left_out(cluster), read_manifests(_texts(args.files), kubernetes))
    return merge(cluster, Manifests(not_considered=tuple(notes))), kubernetes


def _nearest(release: str) -> str:
    """The release that is known and closest to the cluster's; the newest when that is not told."""
    parts = tuple(int(part) for part in release.split(".")) if release else ()
    older = parts and parts < tuple(int(part) for part in RELEASES[0].split("."))
    return release if release in RELEASES else RELEASES[0] if older else RELEASES[-1]


def _check(args: argparse.Namespace) -> None:
    if args.kubeconfig is not None and not args.from_cluster:
        raise UsageError("--kubeconfig goes with --from-cluster", remedy="give --from-cluster too, or leave it out")
    if not args.node and not args.objects and not args.from_cluster and not args.files:
        raise UsageError("nothing is given", remedy="give a FILE and --node TYPE; see dra-driver simulate --help")
    if args.node and not args.files and not args.objects and not args.from_cluster:
        raise UsageError("no FILE is given, so nothing is to be placed", remedy="give the YAML of pods or claims")
    if [*args.files, *args.objects].count("-") > 1:
        raise UsageError("- (standard input) is given twice", remedy="read one of the two from a file")
    if args.emulated_ultraservers and not args.node:
        raise UsageError("--emulated-ultraservers goes with --node", remedy="name the nodes too")


def _beside(nodes: Manifests, cluster: Manifests) -> Manifests:
    """The emulated nodes, if the cluster has none of their names."""
    names = {node.metadata.name for node in cluster.nodes} & {node.metadata.name for node in nodes.nodes}
    if names:
        raise UsageError(
            f"--node: the cluster has a node {min(names)} already", remedy="rename it, or leave --node out"
        )
    return nodes


def emulated_nodes(args: argparse.Namespace) -> Manifests:
    """The nodes of ``--node``; UsageError for those that cannot be emulated."""
    from dra_driver.errors import DriverError
    from dra_driver.simulator.manifests import emulated

    try:
        return emulated(
            [_node(text) for text in args.node],
            ultraservers=args.emulated_ultraservers,
            layout=args.ultraserver_layout,
            driver_version=args.emulated_driver_version,
        )
    except DriverError as error:
        raise UsageError(str(error)) from error


def _node(text: str) -> tuple[str, int]:
    found = _NODE.fullmatch(text)
    if found is None:
        raise UsageError(f"--node cannot be read: {text[:60]!r}", remedy="write trn2.48xlarge, or trn2.48xlarge=4")
    return found[1], int(found[2] or 1)


def _texts(names: list[str]) -> list[tuple[str, str]]:
    return [(name, read_text(name)) for name in names]


def read_text(name: str) -> str:
    """The text of a file; UsageError when there is none."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UsageError(f"{name}: longer than {MOST_BYTES} bytes", remedy="leave out what is not needed")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name}: not UTF-8 text: {error.reason} at byte {error.start}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{name}: {getattr(error, 'strerror', None) or error}") from error


def _refuse_nothing(simulation: Simulation) -> None:
    if not simulation.outcomes:
        raise UsageError(
            "nothing is to be placed: there is neither a pod with resource claims nor a claim",
            remedy="give the YAML of pods or claims as FILE",
        )


class Progress:
    """A bar on a terminal's standard error for what takes longer than a second."""

    _WIDTH = 40
    _STEP = 0.1

    def __init__(self, what: str) -> None:
        self._what = what
        self._next = time.monotonic() + 1.0
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            print(f"\r{'':{self._WIDTH + 40}}\r", end="", file=sys.stderr, flush=True)

    def __call__(self, done: int, total: int) -> None:
        """Draw, if it is time."""
        now = time.monotonic()
        if now < self._next or not sys.stderr.isatty():
            return
        self._next = now + self._STEP
        self._drawn = True
        filled = self._WIDTH * done // max(total, 1)
        bar = "#" * filled + "." * (self._WIDTH - filled)
        print(f"\r{self._what} [{bar}] {done}/{total}", end="", file=sys.stderr, flush=True)

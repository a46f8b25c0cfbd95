"""Where the simulator's commands have their cluster from: emulated nodes, files, a live cluster; and their options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dra_driver.cel import RELEASES, nearest
from dra_driver.cli.errors import UsageError
from dra_driver.cli.objectfile import read_text
from dra_driver.cli.progress import Progress

if TYPE_CHECKING:
    from dra_driver.manifests import Manifests

MOST_BYTES: Final = 256 << 20
"""Of one file: several times the objects of the largest cluster that Kubernetes is tested for."""
_NODE: Final = re.compile(r"([^=]{1,80})(?:=([0-9]{1,9}))?", re.ASCII)


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``read_input`` takes beside the files: where the nodes come from, and the release that is meant."""
    cluster = add_node_arguments(parser, "cluster (one or more of these)")
    cluster.add_argument(
        "--objects",
        metavar="FILE",
        action="append",
        default=[],
        help="Nodes, ResourceSlices, DeviceClasses, ResourceClaims and Pods as objects; without FILE, "
        "those that are pending are placed; - is stdin",
    )
    cluster.add_argument(
        "--from-cluster", action="store_true", help="read these objects from a cluster, without changing it"
    )
    cluster.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help="kubeconfig of the cluster (default: as for kubectl); implies --from-cluster",
    )


def add_node_arguments(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """What ``emulated_nodes`` takes, and the release that is meant; the group with ``--node``."""
    cluster = parser.add_argument_group(title)
    cluster.add_argument(
        "--node",
        metavar="TYPE[=N]",
        action="append",
        default=[],
        help="one or N emulated nodes of this EC2 type (repeatable)",
    )
    emulation = parser.add_argument_group("emulated nodes")
    emulation.add_argument(
        "--emulated-ultraservers",
        metavar="SxN",
        default="",
        help="group the nodes into S servers of N nodes (default: servers of 4 nodes)",
    )
    emulation.add_argument(
        "--emulated-driver-version", metavar="V", help="version of the kernel driver (default: the newest known)"
    )
    emulation.add_argument(
        "--ultraserver-layout",
        choices=("node", "chips", "both"),
        default="node",
        help="what nodes of UltraServers offer (default: %(default)s)",
    )
    parser.add_argument(
        "--kubernetes", choices=RELEASES, help=f"release to simulate (default: the cluster's, or else {RELEASES[-1]})"
    )
    return cluster


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """The format of the output."""
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "yaml", "svg"),
        default="text",
        help="output format (default: %(default)s)",
    )


@dataclass(frozen=True, slots=True)
class ClusterInput:
    """A cluster together with what is applied to it."""

    manifests: Manifests
    kubernetes: str
    """The release that is meant."""
    server: str
    """The release of the live cluster, "" without one."""


def read_input(args: argparse.Namespace, files: Sequence[str]) -> ClusterInput:
    """Read what ``add_cluster_arguments`` names, and the files to apply.

    Raises:
        UsageError: the arguments do not fit together, or a file cannot be read. ManifestError: what is in it is wrong.
    """
    from dra_driver.manifests import Manifests, left_out, read_manifests
    from dra_driver.simulator.allocator.release import release
    from dra_driver.simulator.cluster import merge, waiting_left_out

    live = args.from_cluster or args.kubeconfig is not None
    _check(args, files, live=live)
    server, cluster = "", Manifests()
    if live:
        from dra_driver.cli.clusterobjects import read_cluster

        cluster, server = read_cluster(args.kubeconfig)
    kubernetes = args.kubernetes or nearest(server)
    notes = []
    if server and server not in RELEASES and args.kubernetes is None:
        notes.append(f"the cluster's release {server}: {kubernetes} is simulated")
    if args.objects:
        with Progress("reading") as progress:
            cluster = merge(cluster, read_manifests(_texts(args.objects), kubernetes, progress))
    if args.node:
        cluster = merge(_beside(emulated_nodes(args), cluster), cluster)
    if files:
        cluster = merge(waiting_left_out(cluster), read_manifests(_texts(files), kubernetes))
    if cluster.taint_rules and release(kubernetes).follows_no_taint_rules:
        why = f"DRADeviceTaintRules is off by default in {kubernetes}"
        notes.append(f"DeviceTaintRule: {len(cluster.taint_rules)} ({why})")
    with_notes = merge(cluster, Manifests(not_considered=(*left_out(cluster), *notes)))
    return ClusterInput(with_notes, kubernetes, server)


def _check(args: argparse.Namespace, files: Sequence[str], *, live: bool) -> None:
    if not args.node and not args.objects and not live and not files:
        raise UsageError("nothing is given", remedy="give a FILE and --node TYPE; --help has examples")
    if args.node and not files and not args.objects and not live:
        raise UsageError("no FILE is given, so nothing is to be placed", remedy="give the YAML of pods or claims")
    if [*files, *args.objects].count("-") > 1:
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
    from dra_driver.simulator.emulated_nodes import emulated
    from dra_driver.util.errors import DriverError

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


def _texts(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, read_text(name, MOST_BYTES)) for name in names]

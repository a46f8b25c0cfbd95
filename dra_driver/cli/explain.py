"""``dra-driver explain``: whether a pod's claims fit, and if not, what is in the way, in sentences."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dra_driver.cli.errors import UsageError
from dra_driver.cli.select import RELEASES
from dra_driver.errors import DriverError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dra_driver.simulator.explain import Explanation, Target
    from dra_driver.simulator.manifests import Manifests

MOST_BYTES: Final = 256 << 20
"""Of one file: the slices of 5,000 nodes are some 150 MiB of YAML."""
MOST_REPLICAS: Final = 1_000_000
"""What ``--node TYPE=N`` is read for; the simulator has a limit of its own."""

_TARGET: Final = re.compile(r"(pods?|po|claims?|resourceclaims?)/([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)", re.ASCII)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "explain",
        help="say why a claim fits or does not fit",
        description="Say for each node what keeps a pod's claims off it: the clause of a selector that is false, the "
        "constraint that is short of devices, the devices in use; and what would help. Exit status: 0 all fit, 1 not "
        "all, 2 bad input.",
        epilog="examples: dra-driver explain examples/specs/1x4-connected-devices.yaml --node trn2.48xlarge=2; "
        "dra-driver explain pod/web-0 -n shop --kubeconfig ~/.kube/config",
    )
    parser.add_argument(
        "items",
        nargs="*",
        metavar="FILE|pod/NAME|claim/NAME",
        help="YAML or JSON with pods, what makes pods, claims, templates, classes (- is stdin); or one pod or claim "
        "of the cluster; without any, everything of --objects or of the cluster that waits for devices",
    )
    parser.add_argument(
        "--node", action="append", default=[], metavar="TYPE[=N]", help="a cluster of N new nodes of this EC2 type"
    )
    parser.add_argument(
        "--objects", action="append", default=[], metavar="FILE", help="the cluster as Kubernetes objects"
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="the cluster that is reached with this file")
    parser.add_argument("-n", "--namespace", default="default", help="of pod/NAME and claim/NAME (default: default)")
    parser.add_argument(
        "--kubernetes", choices=RELEASES, help=f"whose behaviour is meant (default: the cluster's, else {RELEASES[-1]})"
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the explanations; 0 when everything fits."""
    try:
        from dra_driver.simulator.explain import explanations, plain, texts
    except ModuleNotFoundError as error:
        raise DriverError(
            f"the simulator needs the Python package {error.name}, which is not installed",
            remedy="install the driver with its simulator: pip install 'neuron-dra-driver[simulator]'",
        ) from error
    from dra_driver.simulator.allocator.nodes import NodeSelectorError
    from dra_driver.simulator.manifests import ManifestError, merge, read_manifests

    target, files = _items(args)
    found: list[Explanation] = []
    try:
        cluster, kubernetes, server = _cluster(args)
        given = read_manifests([(name, _text(name)) for name in files], kubernetes)
        asked = given if files else None
        found += explanations(merge(cluster, given), kubernetes, target=target, given=asked, server=server)
    except (ManifestError, NodeSelectorError) as error:
        raise UsageError(str(error)) from error
    if not found:
        raise UsageError("there is nothing to explain", remedy="give a file with pods or claims that have no devices")
    if args.output == "json":
        import json

        document = {
            "kubernetes": kubernetes,
            "explanations": [plain(item) for item in found],
            "notConsidered": list(given.not_considered),
        }
        print(json.dumps(document, indent=2))
        return _status(found)
    print(texts(found))
    if given.not_considered:
        print(f"\nNot considered: {'; '.join(given.not_considered)}.")
    return _status(found)


def _status(found: Sequence[Explanation]) -> int:
    return 0 if all(item.fits for item in found) else 1


def _items(args: argparse.Namespace) -> tuple[Target | None, list[str]]:
    from dra_driver.simulator.explain import Target

    targets, files = [], []
    for item in args.items:
        match = _TARGET.fullmatch(item)
        if match is None or Path(item).exists():
            files.append(item)
        else:
            targets.append(Target("pod" if match[1].startswith("po") else "claim", args.namespace, match[2]))
    if len(targets) > 1:
        raise UsageError("more than one pod or claim is named", remedy="explain them one by one")
    if not (args.node or args.objects or args.kubeconfig):
        raise UsageError("no cluster is given", remedy="give --node TYPE[=N], --objects FILE or --kubeconfig FILE")
    return (targets[0] if targets else None), files


def _cluster(args: argparse.Namespace) -> tuple[Manifests, str, str]:
    """What there is without FILE, the release that is meant, and that of the live server ("" without one)."""
    from dra_driver.simulator.manifests import Manifests, emulated, merge, read_manifests

    found, server = Manifests(), ""
    if args.kubeconfig is not None:
        from dra_driver.cli.clusterobjects import read_cluster

        found, server = read_cluster(args.kubeconfig)
    kubernetes = args.kubernetes or _nearest(server)
    if args.node:
        nodes = [_node(item) for item in args.node]
        try:
            found = merge(found, emulated(nodes))
        except DriverError as error:
            raise UsageError(str(error)) from error
    objects = read_manifests([(name, _text(name)) for name in args.objects], kubernetes)
    return merge(found, objects), kubernetes, server


def _node(item: str) -> tuple[str, int]:
    name, sign, count = item.partition("=")
    if not name or (sign and not (count.isdecimal() and count.isascii() and 0 < int(count[:8]) <= MOST_REPLICAS)):
        raise UsageError(f"--node {item}: TYPE or TYPE=N expected, such as trn2.48xlarge=3")
    return name, int(count or 1)


def _text(filename: str) -> str:
    """UsageError when the file cannot be read, is no text or is too large."""
    try:
        if filename == "-":
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(filename).open("rb") as file:
                data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{filename}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MOST_BYTES:
        raise UsageError(f"{filename}: larger than {MOST_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{filename}: not UTF-8 at byte {error.start}") from error


def _nearest(server: str) -> str:
    """The release that is known and nearest to the server's."""
    if not server:
        return RELEASES[-1]
    numbers = tuple(int(part) for part in server.split("."))
    older = [item for item in RELEASES if tuple(int(part) for part in item.split(".")) <= numbers]
    return older[-1] if older else RELEASES[0]

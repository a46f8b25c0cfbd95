"""``dra-driver explain``: whether the claims of pods fit and, if not, which obstacles there are, in sentences."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dra_driver.cli.clusterinput import add_cluster_arguments, read_input
from dra_driver.util.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dra_driver.manifests import Manifests
    from dra_driver.simulator.explain import Explanation, Target

EXAMPLES: Final = """\
examples:
  dra-driver explain examples/specs/1x4-connected-devices.yaml --node trn2.48xlarge=2
  dra-driver explain pod/web-0 -n shop --kubeconfig ~/.kube/config
  dra-driver explain deployment.yaml --from-cluster
  kubectl get nodes,resourceslices,deviceclasses,resourceclaims,pods -A -o json | dra-driver explain --objects -
"""
_TARGET: Final = re.compile(
    r"(pods?|po|claims?|resourceclaims?(?:\.resource\.k8s\.io)?)/([a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)", re.ASCII
)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "explain",
        description="Explain for each node what keeps a pod's claims off it: the clause of a selector that is false,\n"
        "the group that lacks devices, the devices in use; then what would help, and known traps.\n"
        "Exit status 0: all fit, 1: not all fit, 2: invalid input.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "items",
        nargs="*",
        metavar="FILE|pod/NAME|claim/NAME",
        help="files as for simulate, or one pod or claim of the cluster (default: all that are pending in the cluster)",
    )
    parser.add_argument(
        "-n", "--namespace", default="default", help="namespace of pod/NAME and claim/NAME (default: default)"
    )
    add_cluster_arguments(parser)
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output format (default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the explanations; returns 0 if everything fits."""
    from dra_driver.manifests import ManifestError
    from dra_driver.simulator.explain import explanations

    target, files = _items(args)
    if target is not None and not (files or args.objects or args.from_cluster or args.kubeconfig):
        raise UsageError(f"{target.kind}/{target.name} is in no cluster", remedy="give --objects, --kubeconfig or FILE")
    try:
        given = read_input(args, files)
        found = list(explanations(given.manifests, given.kubernetes, target=target, server=given.server))
    except ManifestError as error:
        raise UsageError(str(error)) from error
    if not found:
        raise UsageError("nothing waits for devices", remedy="give the YAML of pods or claims as FILE")
    _show(found, given.manifests, given.kubernetes, args.output)
    return 0 if all(item.fits for item in found) else 1


def _show(found: Sequence[Explanation], manifests: Manifests, kubernetes: str, output: str) -> None:
    from dra_driver.simulator.explain import plain, texts

    if output == "text":
        print(texts(found))
        if manifests.not_considered:
            print(f"\nNot considered: {'; '.join(manifests.not_considered)}.")
        return
    import json

    document = {
        "kubernetes": kubernetes,
        "explanations": [plain(item) for item in found],
        "notConsidered": list(manifests.not_considered),
    }
    print(json.dumps(document, indent=2))


def _items(args: argparse.Namespace) -> tuple[Target | None, list[str]]:
    """The single pod or claim to explain, if one is named, and the files; an argument that exists as a file is one."""
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
    return (targets[0] if targets else None), files

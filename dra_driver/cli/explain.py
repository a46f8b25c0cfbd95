"""``dra-driver explain``: whether the claims of pods fit and, if not, which obstacles there are, in sentences."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dra_driver.cli import vocabulary
from dra_driver.cli.clusterinput import add_cluster_arguments, asking, beside_nothing, namespace, read_input
from dra_driver.cli.terminal import Progress, print_object, say, show
from dra_driver.util.envelope import envelope
from dra_driver.util.errors import UsageError
from dra_driver.util.text import first_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dra_driver.operations.overview.bound import BoundPod
    from dra_driver.simulator.explain import Explanation, Target
    from dra_driver.simulator.manifests import Manifests

EXAMPLES: Final = (
    "explain examples/specs/1x4-connected-devices.yaml --instance-type trn2.48xlarge=2",
    "explain web-0 -n shop",
    "explain deployment.yaml --from-cluster",
    "explain -A",
    "kubectl get nodes,resourceslices,deviceclasses,resourceclaims,pods -A -o json | {} explain --objects - pod/web-0",
)
_EACH: Final = 8
"""Maximum number of what fits that is shown one by one without -o wide."""
_TARGET: Final = re.compile(r"(?:(pods?|po|claims?|resourceclaims?(?:\.resource\.k8s\.io)?)/)?([^/]+)")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = vocabulary.add_command(
        subparsers,
        "explain",
        about="Explain for each node why a pod's claims do not fit: the clause of a selector that is false, the group "
        "that lacks devices, the devices in use; what would help, and known traps. For a pod that is scheduled: why it "
        "does not start, does not terminate, or runs on an unhealthy chip.",
        examples=EXAMPLES,
        done="everything fits, the nodes' drivers would prepare it, and no scheduled pod has a problem",
        refused="something does not fit, a node's driver would refuse a claim, or a scheduled pod has a problem",
    )
    parser.add_argument(
        "items",
        nargs="*",
        metavar="FILE|POD|claim/NAME",
        help="files as for simulate, or one pod (NAME or pod/NAME) or claim (default: all pending ones of the cluster)",
    )
    vocabulary.add_files(parser, "files as for simulate", positional=False)
    add_cluster_arguments(parser)
    vocabulary.add_output(parser, "text", "wide", "json", "yaml")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the explanations; returns 0 if everything fits."""
    from dra_driver.cli.searchtime import deadline
    from dra_driver.simulator.explain import Explanation, explanations
    from dra_driver.simulator.manifests import ManifestError, Manifests

    target, files = _items(args)
    try:
        look = _look_at(args, target) if target is not None and not files else None
        if target is not None and look is not None and look.ended:
            subject = f"pod {target.namespace}/{target.name}"
            ended = Explanation(subject, f"{subject} has ended: {look.state}", fits=not look.causes)
            _show([ended], Manifests(), "", args.output)
            return 0 if ended.fits else 1
        given = read_input(args, files, named=target is not None)
        with Progress("explaining", "pods") as progress:
            found = list(
                explanations(
                    given.manifests,
                    given.kubernetes,
                    target=target,
                    server=given.server,
                    progress=progress,
                    deadline=deadline,
                )
            )
    except ManifestError as error:
        raise UsageError(str(error)) from error
    if not found:
        beside = beside_nothing(given.manifests.not_considered)
        raise UsageError(f"nothing waits for devices{beside}", remedy="give the YAML of pods or claims as FILE")
    if look is not None:
        found = [item.with_state(look.state, look.causes, look.remedies) for item in found]
    _show(found, given.manifests, given.kubernetes, args.output)
    return 0 if all(item.fits for item in found) else 1


def _look_at(args: argparse.Namespace, target: Target) -> BoundPod | None:
    """How a pod of a live cluster is on its node; None for one that has none, or is in no live cluster."""
    from dra_driver.kube.api.errors import ApiError
    from dra_driver.operations.overview.bound import bound
    from dra_driver.operations.overview.following import around

    if target.kind != "pod" or not vocabulary.from_cluster(args):
        return None
    with asking(args) as transport:
        try:
            pod, cluster = around(transport, target.namespace, target.name)
        except ApiError as error:
            if error.status != 404:
                raise
            return None  # which pods there are is said below
    return bound(pod, cluster) if pod.node else None


def _show(found: Sequence[Explanation], manifests: Manifests, kubernetes: str, output: str) -> None:
    from dra_driver.simulator.explain import brief, plain, texts

    if output in ("text", "wide"):
        fit = [item for item in found if item.fits]
        each = fit if output == "wide" else fit[:_EACH]
        more = fit[len(each) :]
        # What the reader came for is first.
        shown = [*(item for item in found if not item.fits), *each]
        lines = [brief(item) for item in shown] if output == "text" and len(found) > 1 else []
        long = [item for item, line in zip(shown, lines, strict=True) if not line] if lines else shown
        show("\n\n".join(filter(None, (texts(long), "\n".join(filter(None, lines))))))
        if more:
            nodes = Counter(item.node or "" for item in more)
            on = first_of([f"{count} on {node}" for node, count in nodes.items()], _EACH)
            say(f"\n{len(more)} more fit: {on} (-o wide shows each).")
        if manifests.not_considered:
            say(f"\nNot considered: {'; '.join(manifests.not_considered)}.")
        return

    beside = {"kubernetes": kubernetes or None, "notConsidered": list(manifests.not_considered)}
    print_object(envelope("Explanation", map(plain, found), **beside), output)


def _items(args: argparse.Namespace) -> tuple[Target | None, list[str]]:
    """The single pod or claim to explain, if one is named, and the files; an argument that exists as a file is one.

    Without files, objects and emulated nodes, the live cluster is meant.
    """
    from dra_driver.kube.formats import subdomain
    from dra_driver.simulator.explain import Target

    named, files = [], vocabulary.files(args)
    for item in args.items:
        match = _TARGET.fullmatch(item)
        problem = subdomain(match[2]) if match is not None else ""
        if match is None or Path(item).exists() or (not match[1] and (problem or item.endswith(vocabulary.MANIFESTS))):
            files.append(item)
        elif problem:
            raise UsageError(f"{item[:80]}: {problem}")
        else:
            named.append(match)
    if len(named) > 1:
        raise UsageError("more than one pod or claim is named", remedy="explain them one by one")
    args.from_cluster = args.from_cluster or not (files or args.objects or args.instance_type)
    targets = [
        Target("claim" if (kind or "p")[0] in "cr" else "pod", namespace(args), name)
        for kind, name in map(re.Match.groups, named)
    ]
    return (targets[0] if targets else None), vocabulary.expanded(files)

"""``dra-driver explain``: whether the claims of pods fit and, if not, which obstacles there are, in sentences."""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dra_driver.cli import vocabulary
from dra_driver.cli.clusterinput import (
    add_cluster_arguments,
    asking,
    beside_nothing,
    check_namespace,
    namespace,
    read_input,
)
from dra_driver.cli.terminal import Progress, print_object, say, show
from dra_driver.util.envelope import envelope
from dra_driver.util.errors import DriverError, UsageError
from dra_driver.util.text import first_of, printable
from dra_driver.util.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dra_driver.operations.overview.findings import Finding
    from dra_driver.operations.overview.pods import PodEvidence
    from dra_driver.operations.overview.workloads import Podless
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


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
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


def run(args: argparse.Namespace) -> int:
    """Print the explanations; returns 0 if everything fits."""
    from dra_driver.cli.searchtime import SearchTime
    from dra_driver.simulator.explain import explanations
    from dra_driver.simulator.manifests import ManifestError, Manifests

    target, files = _items(args)
    live = vocabulary.from_cluster(args) and not files
    evidence, lacking_pods = _evidence(args, target) if live else ({}, ())
    workloads = list(map(_of_workload, lacking_pods))
    alone = evidence.get(target.key) if target is not None and target.kind == "pod" else None
    if target is not None and workloads:
        _show(workloads, Manifests(), "", args.output)
        return 1
    if target is not None and alone is not None and alone.ended:
        _show([_by_itself(target, alone)], Manifests(), "", args.output)
        return 1 if alone.findings else 0
    try:
        given = read_input(args, files, named=target is not None)
    except UsageError as error:
        if target is None or alone is None or not alone.findings or isinstance(error, ManifestError):
            raise
        # What the cluster says of the pod is more than what is worked out, and this user may read it.
        vocabulary.warn(str(error))
        _show([_by_itself(target, alone)], Manifests(), "", args.output)
        return 1
    with Progress("explaining", "pods") as progress:
        found = list(
            explanations(
                given.manifests,
                given.kubernetes,
                target=target,
                server=given.server,
                progress=progress,
                deadline=SearchTime().begin,
            )
        )
    if not found and not workloads:
        beside = beside_nothing(given.manifests.not_considered)
        raise UsageError(f"nothing waits for devices{beside}", remedy="give the YAML of pods or claims as FILE")
    explained = [*(_with_evidence(found, evidence, given.manifests) if evidence else found), *workloads]
    _show(explained, given.manifests, given.kubernetes, args.output)
    return 0 if all(item.fits for item in explained) else 1


def _evidence(
    args: argparse.Namespace, target: Target | None
) -> tuple[Mapping[tuple[str, str], PodEvidence], Sequence[Podless]]:
    """What a live cluster says of a pod, or of all that may have devices, by namespace and name; and who lacks pods.

    Of the node of a pod that is named, a few small requests are made, however large the cluster is.
    """
    from dra_driver.kube.api.errors import ApiError, DecodeError
    from dra_driver.operations.overview.pods import evidence
    from dra_driver.operations.overview.reading import around, listed, readable, workloads_without_pods
    from dra_driver.operations.overview.view import view

    lacking: list[Podless] = []
    if target is not None and target.kind != "pod":
        return {}, lacking
    now = time.time()
    with asking(args) as transport:
        if args.namespace:
            check_namespace(transport, args.namespace)
        try:
            if target is not None:
                pod, cluster = around(transport, target.namespace, target.name)
                pods = [pod]
            else:
                cluster = listed(transport, readable(transport, namespace(args)))
                pods = [pod for pod in cluster.pods if pod.counts]
                lacking = workloads_without_pods(transport, "" if args.all_namespaces else namespace(args))
        except DecodeError as error:
            vocabulary.warn(printable(f"not considered: what the cluster says of pods ({error})"))
            return {}, lacking
        except DriverError as error:
            if isinstance(error, ApiError) and error.status not in (403, 404):
                raise
            if target is not None:
                lacking = [
                    item for item in workloads_without_pods(transport, target.namespace) if item.concerns(target.name)
                ]
            return {}, lacking  # which pods there are follows below, and what the user may not read
    rows = {row.name: row for row in view(cluster).nodes}
    return {pod.metadata.key: evidence(pod, cluster, rows.get(pod.node), now) for pod in pods}, lacking


def _of_workload(item: Podless) -> Explanation:
    return _explanation(item.subject, f"{item.subject} lacks pods", (item.finding,))


def _by_itself(target: Target, evidence: PodEvidence) -> Explanation:
    """A pod by what the cluster says of it alone."""
    subject = f"pod {target.namespace}/{target.name}"
    if evidence.ended:
        return replace(_explanation(subject, f"{subject} has ended: {evidence.state}", evidence.findings), causes=())
    return _explanation(subject, f"{subject} is not well: {evidence.state}", evidence.findings)


def _explanation(subject: str, verdict: str, findings: Sequence[Finding]) -> Explanation:
    from dra_driver.simulator.explain import Explanation

    return Explanation(
        subject,
        verdict,
        fits=not findings,
        causes=tuple(item.text for item in findings),
        remedies=_remedies(findings),
        evidence=tuple(item.document() for item in findings),
    )


def _remedies(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.remedy for item in findings if item.remedy))


def _with_evidence(
    items: Sequence[Explanation], evidence: Mapping[tuple[str, str], PodEvidence], manifests: Manifests
) -> Iterator[Explanation]:
    """The explanations of pods with what the cluster says of them, which comes first."""
    from dra_driver.operations.overview.priority import Priorities

    priorities = Priorities.of(manifests)
    by_subject = {f"pod {space}/{name}": of_pod for (space, name), of_pod in evidence.items()}
    for item in items:
        of_pod = by_subject.get(item.subject)
        if of_pod is None:
            yield item
            continue
        lower = None if of_pod.bound else priorities.lower_holders(item)
        findings = (*of_pod.findings, *filter(None, (lower,)))
        answer, ways = replace(item, evidence=tuple(each.document() for each in findings)), _remedies(findings)
        if of_pod.bound:
            # What a claim says is printed with the claim.
            causes = tuple(each.text for each in of_pod.findings if not each.claim)
            yield answer.on_node(of_pod.state, causes, ways)
        else:
            yield answer.waiting(of_pod.state, ways, blocked=bool(of_pod.findings))


def _show(items: Sequence[Explanation], manifests: Manifests, kubernetes: str, output: str) -> None:
    from dra_driver.simulator.explain import brief, plain, texts

    if output in ("text", "wide"):
        # Of those that run, nothing is to be said but that they do.
        folded = output == "text" and len(items) > 1
        running: list[Explanation] = []
        rest: list[Explanation] = []
        for item in items:
            (running if folded and item.fits and item.bound and not item.warnings else rest).append(item)
        fit = [item for item in rest if item.fits]
        each = fit if output == "wide" else fit[:_EACH]
        more = fit[len(each) :]
        # What the reader came for is first.
        shown = [*(item for item in rest if not item.fits), *each]
        lines = [brief(item) for item in shown] if folded else []
        long = [item for item, line in zip(shown, lines, strict=True) if not line] if lines else shown
        if shown:
            show("\n\n".join(filter(None, (texts(long), "\n".join(filter(None, lines))))))
        for some, what in ((more, f"{len(more)} more fit"), (running, f"{counted(len(running), 'pod')} run")):
            nodes = Counter(item.node or "" for item in some)
            on = first_of([f"{count} on {node}" for node, count in nodes.items()], _EACH)
            if some:
                say(("\n" if shown else "") + f"{what}: {on} (-o wide shows each).")
        if manifests.not_considered:
            say(f"\nNot considered: {'; '.join(manifests.not_considered)}.")
        return

    beside = {"kubernetes": kubernetes or None, "notConsidered": list(manifests.not_considered)}
    print_object(envelope("Explanation", map(plain, items), **beside), output)


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

"""``dra-driver plan``: shows what would be prepared for allocated claims, without changing anything."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dra_driver.cli import vocabulary
from dra_driver.cli.hostinput import add_host_arguments, read_host
from dra_driver.cli.simulateoutput import container_lines
from dra_driver.cli.terminal import print_object, say
from dra_driver.util.envelope import envelope, plain, reference
from dra_driver.util.errors import UsageError
from dra_driver.util.text import quoted, ranges

if TYPE_CHECKING:
    from dra_driver.kube.objects.core import Pod
    from dra_driver.kube.objects.resource import ResourceClaim
    from dra_driver.neuron.host.inventory import NodeInventory
    from dra_driver.neuron.topology.partitions import Partitions
    from dra_driver.simulator.preparation import Container, PlanDocument, Prepared

EXAMPLES = (
    "kubectl get resourceclaim NAME -o yaml | {} plan --instance-type trn2.48xlarge -f -",
    "kubectl get pods,resourceclaims -o yaml | {} plan --instance-type trn2.48xlarge --node-name NODE -f -",
    "{} simulate pod.yaml --instance-type trn2.48xlarge -o yaml | {} plan -f - --instance-type trn2.48xlarge",
)


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Show what the driver would prepare for allocated ResourceClaims, without changing anything. With the "
        "pods that use them, also show what each container gets.",
        examples=EXAMPLES,
        done="the claims can be prepared",
        refused="the driver would refuse a claim",
    )
    add_host_arguments(parser)
    vocabulary.add_files(parser, "claims, and pods that use them, YAML or JSON")
    vocabulary.add_output(parser, "text", "json", "yaml")
    vocabulary.add_node_name(
        parser,
        "plan only the claims of this node (default: all claims, each on the node whose pool has its "
        "first device of this driver)",
    )
    vocabulary.add_partitions(
        parser, "what the node offers; a claim of other devices is refused", "default: any that this driver can offer"
    )
    text = "the driver's option (default: %(default)s)"
    parser.add_argument("--device-numbering", choices=("renumber", "host"), default="renumber", help=text)
    parser.add_argument("--contiguity", choices=("refuse", "warn", "allow"), default="warn", help=text)


def run(args: argparse.Namespace) -> int:
    """Print the plans; returns 1 if a claim is refused, and prints the text that kubelet would receive."""
    from dra_driver.driver.claims.model import PlanSettings
    from dra_driver.simulator.preparation import containers, node_of, prepared

    partitions = vocabulary.partitions(args.partitions)
    claims, pods, others = _read(vocabulary.files(args))
    inventory = read_host(args)
    by_node: dict[str, list[ResourceClaim]] = {}
    for claim in _wanted(claims, args.node_name):
        if partitions is not None and node_of(claim) is not None:
            _check_offered(claim, inventory, partitions)
        by_node.setdefault(args.node_name or node_of(claim) or "", []).append(claim)
    found: list[Prepared] = []
    for node, own in by_node.items():
        found += prepared(own, pods, inventory, PlanSettings(node, args.device_numbering, args.contiguity))
    for kind, count in others.items():
        vocabulary.tell(f"not considered: {kind}: {count}")
    for line in _absent(claims, pods):
        vocabulary.warn(line)
    for item in found:
        _tell(item)
    status = 1 if any(item.problem for item in found) else 0
    given = [(pod, rows) for pod in pods if (rows := containers(pod, found))]
    if args.output != "text":
        print_object(envelope("Plan", map(_item, found), pods=[_of_pod(*each) for each in given]), args.output)
        return status
    alone = len(claims) == 1 and not pods
    lines = [
        text(item.document, node_of(item.claim) if not alone else None) for item in found if item.document is not None
    ]
    if lines := [*lines, *("\n".join(_pod(*each)) for each in given)]:
        say("\n\n".join(lines))
    return status


def _wanted(claims: Sequence[ResourceClaim], node: str | None) -> Sequence[ResourceClaim]:
    """Without those of other drivers, and with a node without those of others; what is left out is told.

    If nothing is left, all of them, so that the driver says what is wrong.
    """
    from dra_driver.simulator.preparation import node_of

    kept, left = [], []
    for claim in claims:
        own = node_of(claim)
        if claim.status.allocation is None or (own is not None and own == (node or own)):
            kept.append(claim)
        else:
            why = f"is of node {own}" if own is not None else "has no device of this driver"
            left.append(f"claim {claim.metadata.namespace}/{claim.metadata.name} {why}")
    for line in left if kept else ():
        vocabulary.tell(f"not considered: {line}")
    return kept or claims


def _absent(claims: Sequence[ResourceClaim], pods: Sequence[Pod]) -> Iterator[str]:
    """Which claims of containers are not there, so that it is not known what they add."""
    from dra_driver.driver.claims.sharing import claims_of_containers

    there = {(claim.metadata.namespace, claim.metadata.name) for claim in claims}
    for pod in pods:
        namespace = pod.metadata.namespace
        for container, uses in claims_of_containers(pod):
            for name in sorted({claim for claim, _ in uses if (namespace, claim) not in there}):
                what = f"claim {name}, which is not in the input" if name else "a claim that does not exist yet"
                yield f"container {container} of pod {namespace}/{pod.metadata.name} uses {what}"


def _tell(item: Prepared) -> None:
    """Say on standard error why a claim is refused, and what is odd about it."""
    for warning in item.plan.warnings if item.plan is not None else ():
        vocabulary.warn(warning)
    if problem := _problem(item):
        vocabulary.tell(f"error: claim {item.claim.metadata.namespace}/{item.claim.metadata.name}: {problem}")


def _problem(item: Prepared) -> str:
    """Why a claim is refused, or ""."""
    if item.problem and item.claim.status.allocation is None:
        return (
            "it is not allocated, so its devices are not known; give it as it is in the cluster once its pod is "
            "scheduled, or as dra-driver simulate -o yaml prints it"
        )
    return item.problem


def _item(item: Prepared) -> dict[str, Any]:
    from dra_driver.simulator.preparation import node_of

    meta = item.claim.metadata
    claim = reference(meta.namespace, meta.name) | {"uid": meta.uid}
    parts = plain(item.document) if item.document is not None else {}
    return {"claim": claim, "node": node_of(item.claim), "refusal": _problem(item) or None, **parts}


def _of_pod(pod: Pod, rows: Sequence[Container]) -> dict[str, Any]:
    return reference(pod.metadata.namespace, pod.metadata.name) | {"containers": list(map(plain, rows))}


def _pod(pod: Pod, rows: Sequence[Container]) -> Iterator[str]:
    yield f"pod          {pod.metadata.full_name}"
    for container in rows:
        yield from (f"  {line}" for line in container_lines(container))


def text(document: PlanDocument, node: str | None) -> str:
    """The plan as text, with the node if there is one."""
    lines = [f"claim        {document.claim.full_name} ({document.claim.uid})"]
    lines += [f"node         {node}"] if node is not None else []
    lines.append("devices")
    for row in document.device_nodes:
        cores = f", physical cores {ranges(row.cores)}" if row.cores else ""
        lines.append(
            f"  {row.container_path:<14} is {row.host_path} of the host ({row.device}, request {row.request}{cores})"
        )
        lines += [f"    {name}={value}" for name, value in row.environment.items()]
    lines.append("environment")
    lines += [f"  {name}={value}" for name, value in document.environment.items()] or ["  (none)"]
    lines.append("CDI devices")
    lines += [f"  {document.cdi.kind}={device.name}" for device in document.cdi.devices]
    return "\n".join(lines)


def _check_offered(claim: ResourceClaim, inventory: NodeInventory, partitions: Partitions) -> None:
    """Raise UsageError for a claim with a device that the host does not offer."""
    from dra_driver.driver.claims.situation import claim_facts
    from dra_driver.driver.resourceslices.devices import devices

    offered = {device.name for device in devices(inventory, partitions)}
    for result in claim_facts(claim).results:
        if result.device not in offered:
            raise UsageError(
                f"with --partitions {partitions}, {inventory.instance_type or 'the host'} offers no device "
                f"{quoted(result.device)}",
                remedy="dra-driver slices with the same options lists what it offers",
            )


def _read(files: Sequence[str]) -> tuple[list[ResourceClaim], list[Pod], Counter[str]]:
    """The claims and pods, and how many objects of other kinds there are.

    Raises UsageError with the place and the reason if something is invalid, or if there is no claim.
    """
    import msgspec

    from dra_driver.cli.clusterinput import texts
    from dra_driver.kube.documents import documents, items_of
    from dra_driver.kube.objects.resource import GROUP
    from dra_driver.simulator.manifests import NAMESPACE
    from dra_driver.simulator.manifests.fields import KINDS
    from dra_driver.simulator.manifests.read import read_object

    claims: list[ResourceClaim] = []
    pods: list[Pod] = []
    others: Counter[str] = Counter()
    found = (
        item
        for name, text in texts(files)
        for origin, document in documents(name, text)
        for item in items_of(document, origin)
    )
    for value, origin in found:
        name = str(value.get("kind"))[:60]
        kind = KINDS.get((GROUP if name == "ResourceClaim" else "", name))
        if kind is None or name not in ("ResourceClaim", "Pod"):
            others[name] += 1
            continue
        item, _ = read_object(value, kind, origin)
        namespace = item.metadata.namespace or NAMESPACE
        item = msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, namespace=namespace))
        (pods if name == "Pod" else claims).append(item)
    if not claims:
        raise UsageError(
            f"{', '.join(files) or 'no file'}: there is no ResourceClaim",
            remedy="give what `kubectl get resourceclaims -o yaml` or `dra-driver simulate -o yaml` prints",
        )
    return claims, pods, others

"""Merges objects from several sources, and builds the allocator's cluster from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from dra_driver.kube.documents import ManifestError
from dra_driver.kube.kubelet.versions import kubelet_problem
from dra_driver.kube.node_affinity import selects, unselected, untolerated
from dra_driver.kube.objects.core import Node, NodeMeta, NodeSelector
from dra_driver.kube.objects.resource import ResourceClaim, ResourceSlice
from dra_driver.neuron.health.condition import DEVICE_PLUGIN, KERNEL_DRIVER, message_of
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL
from dra_driver.neuron.topology.node_hardware import text_of
from dra_driver.simulator.allocator import Deadline, NodeView, Selectors, Usage, World, unlimited
from dra_driver.simulator.cel import CelDevice, compile_for
from dra_driver.simulator.manifests.model import Manifests, PodWithClaims
from dra_driver.simulator.manifests.podgroups import in_groups

T = TypeVar("T")


def merge(first: Manifests, second: Manifests) -> Manifests:
    """Merge both. An object that is in both is taken from ``second``, as if it was applied to the cluster."""
    replaced = {_pod(pod) for pod in second.pods}
    merged = Manifests(
        nodes=_joined(first.nodes, second.nodes),
        slices=_joined(first.slices, second.slices),
        taint_rules=_joined(first.taint_rules, second.taint_rules),
        classes=_joined(first.classes, second.classes),
        templates=_joined(first.templates, second.templates),
        claims=_joined(first.claims, second.claims),
        pod_groups=_joined(first.pod_groups, second.pod_groups),
        pods=_joined(first.pods, second.pods, key=_pod),
        beside={**first.beside, **second.beside},
        running=tuple(pod for pod in _joined(first.running, second.running, key=_pod) if _pod(pod) not in replaced),
        not_considered=tuple(dict.fromkeys((*first.not_considered, *second.not_considered))),
        standby=first.standby - {item.metadata.key for item in second.claims} | second.standby,
        unserved={**first.unserved, **second.unserved},
        inventories={**first.inventories, **second.inventories},
        origins={**first.origins, **second.origins},
    )
    return in_groups(merged)


_key: Final = attrgetter("metadata.key")


def _pod(pod: PodWithClaims) -> tuple[str, str]:
    return pod.namespace, pod.name


def _joined(first: Iterable[T], second: Iterable[T], key: Callable[[T], Any] = _key) -> tuple[T, ...]:
    return tuple({key(item): item for item in (*first, *second)}.values())


def cluster_of(
    manifests: Manifests, kubernetes: str, deadline: Deadline = unlimited
) -> tuple[World, tuple[NodeView, ...]]:
    """The cluster with the devices of allocated claims in use, and its nodes by name.

    Raises:
        ManifestError: there is no node, or a consumed capacity of an allocation is not a quantity.
        DriverError: a release that the simulator does not know, or CEL's parser is not installed.
    """
    if not manifests.nodes:
        raise ManifestError(
            "there is no node", remedy="give --instance-type TYPE, --from-cluster, or the cluster's Node objects"
        )
    usage = Usage(manifests.claims)
    world = World(
        manifests.slices,
        manifests.classes,
        selectors(kubernetes),
        usage,
        kubernetes,
        taint_rules=manifests.taint_rules,
        deadline=deadline,
    )
    views = (
        NodeView(
            node.metadata.name,
            node.metadata.labels,
            manifests.unserved.get(node.metadata.name, "") or _withheld(node),
        )
        for node in manifests.nodes
    )
    return world, tuple(sorted(views, key=lambda view: view.name))


def nodes_of(slices: Iterable[ResourceSlice]) -> tuple[Node, ...]:
    """The nodes that slices name, with the labels that these tell: for users who may not read Nodes."""
    kinds: dict[str, str] = {}
    for item in slices:
        for device in item.spec.devices[:1]:
            kinds.setdefault(item.spec.node_name or "", text_of(device, "instanceType"))
    return tuple(
        Node(
            NodeMeta(
                name=name, labels={"kubernetes.io/hostname": name, **({INSTANCE_TYPE_LABEL: kind} if kind else {})}
            )
        )
        for name, kind in sorted(kinds.items())
        if name
    )


def waiting_left_out(cluster: Manifests, keep: str | None = None) -> Manifests:
    """The cluster without its pending pods, for questions about something else; they are listed as not considered.

    Its unallocated claims stay, because a pod in question may use them.

    Args:
        cluster: all that was read of it.
        keep: namespace whose pending pods and claims are in question; None for none.
    """
    others = tuple(pod for pod in cluster.pods if pod.namespace != keep)
    waiting = sum(not pod.spec.node_name for pod in others)
    whose = "the cluster" if keep is None else f"other namespaces than {keep}"
    return replace(
        cluster,
        pods=tuple(pod for pod in cluster.pods if pod.namespace == keep),
        running=(*cluster.running, *(pod for pod in others if pod.spec.node_name)),
        standby=frozenset(item.metadata.key for item in cluster.claims if item.metadata.namespace != keep),
        not_considered=(*cluster.not_considered, *((f"pods of {whose}: {waiting}",) if waiting else ())),
    )


def _withheld(node: Node) -> str:
    """Why a driver offers less than the node has, as far as the Node says it."""
    messages = (message_of(problem, node.status.conditions) for problem in (KERNEL_DRIVER, DEVICE_PLUGIN))
    return kubelet_problem(node.status.node_info.kubelet_version) or next(filter(None, messages), "")


def selectors(kubernetes: str) -> Selectors:
    """CEL of this release. Raises DriverError for an unknown release, and if the parser is not installed."""
    return Selectors(compile_for(kubernetes), CelDevice.of)


def obstacle(pod: PodWithClaims, node: Node) -> str:
    """Why the pod may not run on the node, as half a sentence; "" if it may.

    Raises NodeSelectorError (a DriverError) for a node affinity that Kubernetes could not parse either.
    """
    spec = pod.spec
    if spec.node_name and spec.node_name != node.metadata.name:
        return f"the pod is for node {spec.node_name}"
    reason = unselected(node, spec.node_selector, spec.affinity.required_nodes)
    # A pod with a node bypasses the scheduler, so taints that do not affect running pods are irrelevant.
    return reason if reason or spec.node_name else untolerated(node, spec.tolerations)


def rules_of(pod: PodWithClaims) -> bytes:
    """Equal for pods that ``obstacle`` keeps off the same nodes, such as all of one controller."""
    spec = pod.spec
    rules = (spec.node_name, spec.node_selector, spec.affinity.required_nodes, spec.tolerations)
    return msgspec.json.encode(rules, order="sorted")


def missing_labels(pod: PodWithClaims, nodes: Sequence[Node]) -> dict[str, str]:
    """The labels that the pod, or its group, wants and no node has, with whatever value."""
    terms = (pod.spec.affinity.required_nodes or NodeSelector()).node_selector_terms[:1]
    wanted = pod.spec.node_selector | {
        item.key: item.values[0]
        for term in terms
        for item in term.match_expressions
        if item.operator == "In" and item.values
    }
    if pod.group is not None:
        wanted.setdefault(pod.group.topology, "NAME")
    return {key: value for key, value in wanted.items() if all(key not in node.metadata.labels for node in nodes)}


def allocated_elsewhere(claims: Sequence[ResourceClaim], node: Node) -> str:
    """The name of a claim whose allocation cannot be used on the node; "" if there is none."""
    for claim in claims:
        selector = claim.status.allocation.node_selector if claim.status.allocation is not None else None
        if selector is not None and not selects(selector, node.metadata.name, node.metadata.labels):
            return claim.metadata.name
    return ""

"""Whether a pod may run on a node, apart from devices: the scheduler's filters before that of DRA.

Looked at are ``nodeName``, ``spec.unschedulable``, taints, ``nodeSelector``, required node affinity, and the node
selector of claims that are allocated already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_driver.simulator.allocator import NodeView
from dra_driver.simulator.allocator.nodes import matches
from dra_driver.simulator.manifests.values import PodWithClaims
from dra_driver.simulator.objects import NodeSelector, ResourceClaim
from dra_driver.simulator.workloads import Node, Taint, Toleration

_BLOCKING: Final = ("NoSchedule", "NoExecute")
_UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def obstacle(pod: PodWithClaims, node: Node) -> str:
    """Why the pod may not run on the node, as half a sentence; "" when it may.

    NodeSelectorError (a DriverError) for a node affinity that Kubernetes could not read either.
    """
    name, labels = node.metadata.name, node.metadata.labels
    if pod.node_name and pod.node_name != name:
        return f"the pod is for node {pod.node_name}"
    for key, value in sorted(pod.node_selector.items()):
        if labels.get(key) != value:
            has = f"is {labels[key]}" if key in labels else "is not set"
            return f"the pod's nodeSelector wants the label {key}={value}, which {has}"
    if pod.node_affinity is not None and not selects(pod.node_affinity, node):
        return "the pod's node affinity does not match"
    if pod.node_name:
        # Such a pod does not go through the scheduler, so taints without effect on running pods do not matter.
        return ""
    taints = [taint for taint in node.spec.taints if taint.effect in _BLOCKING]
    if node.spec.unschedulable and _UNSCHEDULABLE not in taints:
        taints.append(_UNSCHEDULABLE)
    for taint in taints:
        if not any(tolerates(toleration, taint) for toleration in pod.tolerations):
            value = f"={taint.value}" if taint.value else ""
            return f"the pod does not tolerate the taint {taint.key}{value}:{taint.effect}"
    return ""


def allocated_elsewhere(claims: Sequence[ResourceClaim], node: Node) -> str:
    """The name of a claim whose allocation cannot be used on the node; "" when there is none."""
    for claim in claims:
        selector = claim.status.allocation.node_selector if claim.status.allocation is not None else None
        if selector is not None and not selects(selector, node):
            return claim.metadata.name
    return ""


def selects(selector: NodeSelector, node: Node) -> bool:
    """Whether one of the selector's terms matches the node."""
    return matches(NodeView(node.metadata.name, node.metadata.labels), None, None, selector)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether the toleration is for the taint."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"

"""Whether a pod may run on a node, by selector, affinity and tolerations, and which of these keeps it off.

The rules are those of Kubernetes (``k8s.io/component-helpers/scheduling/corev1/nodeaffinity``, kube-scheduler's plugins
TaintToleration and NodeUnschedulable).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from dra_driver.kube.matching import BLOCKING, OPERATORS, takes, tolerates
from dra_driver.kube.objects.core import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    NodeSpec,
    Taint,
    Toleration,
)
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.util.errors import DriverError
from dra_driver.util.text import first_of

MAX_TERMS: Final = 3
"""Terms of a node affinity that are named."""
CORDON: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""What kubectl cordon puts on a node."""
_OF_CONDITIONS: Final = frozenset(
    f"node.kubernetes.io/{name}"
    for name in ("not-ready", "unreachable", "network-unavailable", "disk-pressure", "memory-pressure", "pid-pressure")
)
"""Taints that Kubernetes puts on a node by its conditions, and takes away again
(``k8s.io/kubernetes/pkg/controller/nodelifecycle``)."""


class NodeSelectorError(DriverError):
    """A node selector that Kubernetes could not parse either: it ends the scheduling of the pod."""


class AnyNode(Protocol):
    """A Node, or what is kept of one."""

    @property
    def metadata(self) -> ObjectMeta: ...  # noqa: D102
    @property
    def spec(self) -> NodeSpec: ...  # noqa: D102


def selects(selector: NodeSelector, name: str, labels: Mapping[str, str]) -> bool:
    """Whether one of the terms matches the node of this name; NodeSelectorError for a malformed selector."""
    return any(_matches(name, labels, term) for term in selector.node_selector_terms)


def unselected(node: AnyNode, node_selector: Mapping[str, str], affinity: NodeSelector | None) -> str:
    """Why a pod with this selector and required affinity may not run on the node, as half a sentence; "" if it may.

    Raises NodeSelectorError for a malformed affinity.
    """
    name, labels = node.metadata.name, node.metadata.labels
    for key, value in sorted(node_selector.items()):
        if labels.get(key) != value:
            has = f"is {labels[key]}" if key in labels else "is not set"
            return f"the pod's nodeSelector requires the label {key}={value}, which {has}"
    if affinity is None or selects(affinity, name, labels):
        return ""
    fields = {**labels, "metadata.name": name}
    unmet = [item for term in affinity.node_selector_terms if (item := _unmet(name, labels, term)) is not None]
    wanted = " or ".join(_requirement(item, fields) for item in unmet[:MAX_TERMS])
    return f"the pod's node affinity does not match{wanted and f': it requires {wanted}'}"


def untolerated(node: AnyNode, tolerations: Sequence[Toleration]) -> str:
    """Which taints of the node keep a pod off, as half a sentence; "" if none does."""
    texts = []
    for taint in _untolerated(node, tolerations):
        value = f"={taint.value}" if taint.value else ""
        text = f"the pod does not tolerate the taint {taint.key}{value}:{taint.effect}"
        if taint == CORDON:
            text = f"the node is cordoned (kubectl uncordon {node.metadata.name} makes it schedulable again)"
        if taint.key in _OF_CONDITIONS:
            text += f", which goes away once the node is well: kubectl describe node {node.metadata.name}"
        texts.append(text)
    return ", and ".join(texts)


def removable(node: AnyNode, tolerations: Sequence[Toleration]) -> tuple[list[Taint], list[Taint]]:
    """The taints of the node that keep a pod off and that people put there, a cordon as ``CORDON``; and the others."""
    taints = [taint for taint in _untolerated(node, tolerations) if taint.key not in _OF_CONDITIONS]
    return taints, [taint for taint in node.spec.taints if taint not in taints and taint.key != CORDON.key]


def _untolerated(node: AnyNode, tolerations: Sequence[Toleration]) -> list[Taint]:
    taints = [taint for taint in node.spec.taints if taint.effect in BLOCKING and taint.key != CORDON.key]
    if node.spec.unschedulable or any(taint.key == CORDON.key for taint in node.spec.taints):
        taints.append(CORDON)
    return [taint for taint in taints if not any(tolerates(toleration, taint) for toleration in tolerations)]


def _requirement(item: NodeSelectorRequirement, fields: Mapping[str, str]) -> str:
    values = f" {first_of(item.values, MAX_TERMS)}" if item.values else ""
    has = f"is {fields[item.key]}" if item.key in fields else "is not set"
    return f"{item.key} {item.operator}{values}, which {has}"


def _unmet(name: str, labels: Mapping[str, str], term: NodeSelectorTerm) -> NodeSelectorRequirement | None:
    """The first requirement that the node does not meet."""
    for item in term.match_expressions:
        if not _expression(labels, item):
            return item
    return next((item for item in term.match_fields if not _field(name, item)), None)


def _matches(name: str, labels: Mapping[str, str], term: NodeSelectorTerm) -> bool:
    return bool(term.match_expressions or term.match_fields) and _unmet(name, labels, term) is None


def _field(name: str, item: NodeSelectorRequirement) -> bool:
    if item.operator not in ("In", "NotIn") or len(item.values) != 1:
        raise NodeSelectorError(f"field selector {item.key}: operator {item.operator} with {len(item.values)} values")
    value = name if item.key == "metadata.name" else ""
    return (value == item.values[0]) == (item.operator == "In")


def _expression(labels: Mapping[str, str], item: NodeSelectorRequirement) -> bool:
    if not takes(item.operator, len(item.values)):
        raise NodeSelectorError(f"node selector {item.key}: operator {item.operator} with {len(item.values)} values")
    return OPERATORS[item.operator](labels.get(item.key), item.values)

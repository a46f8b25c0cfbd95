"""The nodes that a slice or a device is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.kube.matching import OPERATORS
from dra_driver.kube.objects.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_driver.util.errors import DriverError


class NodeSelectorError(DriverError):
    """A node selector that Kubernetes could not parse either: it ends the scheduling of the pod."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """The parts of a node that allocation depends on."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    offer_problem: str = ""
    """For people: why the driver offers less there than the node has, or ""."""


def matches(node: NodeView, node_name: str | None, all_nodes: bool | None, selector: NodeSelector | None) -> bool:
    """Whether the node has the name, or all nodes or it are selected; NodeSelectorError for a malformed selector."""
    if node_name:
        return node.name == node_name
    if all_nodes:
        return True
    return selector is not None and any(_term(node, term) for term in selector.node_selector_terms)


def unmet(node: NodeView, selector: NodeSelector) -> tuple[NodeSelectorRequirement, ...]:
    """Of each term that does not match the node, the first requirement that it does not meet."""
    return tuple(
        next(item for item in requirements if not _meets(node, term, item))
        for term in selector.node_selector_terms
        if (requirements := (*term.match_expressions, *term.match_fields)) and not _term(node, term)
    )


def _meets(node: NodeView, term: NodeSelectorTerm, item: NodeSelectorRequirement) -> bool:
    return _expression(node.labels, item) if item in term.match_expressions else _field(node, item)


def _term(node: NodeView, term: NodeSelectorTerm) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_expression(node.labels, item) for item in term.match_expressions) and all(
        _field(node, item) for item in term.match_fields
    )


def _field(node: NodeView, item: NodeSelectorRequirement) -> bool:
    if item.operator not in ("In", "NotIn") or len(item.values) != 1:
        raise NodeSelectorError(f"field selector {item.key}: operator {item.operator} with {len(item.values)} values")
    found = node.name if item.key == "metadata.name" else ""
    return (found == item.values[0]) == (item.operator == "In")


_VALUES = {"In": range(1, 1 << 20), "NotIn": range(1, 1 << 20), "Gt": range(1, 2), "Lt": range(1, 2)}
"""Number of values that an operator takes; none for operators not listed."""


def _expression(labels: Mapping[str, str], item: NodeSelectorRequirement) -> bool:
    operator = OPERATORS.get(item.operator)
    if operator is None or len(item.values) not in _VALUES.get(item.operator, range(1)):
        raise NodeSelectorError(f"node selector {item.key}: operator {item.operator} with {len(item.values)} values")
    return operator(labels.get(item.key), item.values)

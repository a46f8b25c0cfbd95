"""The nodes that a slice or a device is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.kube.node_affinity import selects
from dra_driver.kube.objects.core import NodeSelector


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
    return bool(all_nodes) or (selector is not None and selects(selector, node.name, node.labels))

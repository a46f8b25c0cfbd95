"""Which labels a node of an UltraServer has, and whether its Node object must be written for that.

Names and values are those of AWS (aws-neuron-sdk, ``deploy/eks/ultraserver.rst``): LeaderWorkerSets and placement rules
written for the vendor's components find the same labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dra_driver.host.inventory import Membership
from dra_driver.kube.types import Node

PREFIX: Final = "neuron.amazonaws.com/ultraserver-"
MODE: Final = f"{PREFIX}mode"
SET_SIZES: Final = (2, 4)
"""Nodes of the sets that have labels."""
SERVER_ID: Final = {size: f"{PREFIX}server-id-{size}" for size in SET_SIZES}
NODE_ID: Final = {size: f"{PREFIX}node-id-{size}" for size in SET_SIZES}
KEYS: Final = frozenset({MODE, *SERVER_ID.values(), *NODE_ID.values()})
"""All labels that this driver ever writes."""
MANAGER: Final = "neuron-dra-driver"
"""Field manager of the labels: the API server keeps account of what is ours under this name."""


def labels(membership: Membership | None) -> Mapping[str, str] | None:
    """The labels that the own Node should have; None: leave all as they are, because the election is running.

    The mode is the numbers of nodes that the node can work with now, ascending, such as ``1_2_4``. Sets that do not
    exist have no label. A host that is no UltraServer node (``membership`` None) has none at all.
    """
    if membership is None:
        return {}
    if membership.electing:
        return None
    found = {MODE: "_".join(map(str, sorted({mode.nodes for mode in membership.modes})))} if membership.modes else {}
    for item in membership.sets:
        if item.nodes in SET_SIZES:
            found |= {SERVER_ID[item.nodes]: item.server_id, NODE_ID[item.nodes]: str(item.node_id)}
    return found


def owned(node: Node) -> frozenset[str]:
    """The labels of ours that the Node has because this driver wrote them."""
    return KEYS & {
        key.removeprefix("f:")
        for entry in node.metadata.managed_fields
        if entry.manager == MANAGER and entry.operation == "Apply"
        for key in _fields(entry.fields_v1, "f:metadata", "f:labels")
    }


def needs_write(node: Node, wanted: Mapping[str, str]) -> bool:
    """Whether the Node lacks a label, has it with another value, or has one of this driver that is not wanted.

    A label that somebody else wrote with the value wanted is right as it is; one that is not wanted and not ours stays.
    """
    has = node.metadata.labels
    return any(has.get(key) != value for key, value in wanted.items()) or bool(owned(node) - set(wanted))


def _fields(fields: Any, *path: str) -> Any:
    """The names below ``path`` in a ``fieldsV1``; none for any other shape."""
    for name in path:
        fields = fields.get(name) if isinstance(fields, dict) else None
    return fields if isinstance(fields, dict) else {}

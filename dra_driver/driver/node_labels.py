"""The labels that name the UltraServer of a node.

Names and values are those of AWS (aws-neuron-sdk, ``deploy/eks/ultraserver.rst``): LeaderWorkerSets and placement rules
written for the vendor's components find the same labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dra_driver.kube.api.own_node import OwnLabels
from dra_driver.neuron.host.inventory import Membership
from dra_driver.neuron.names import NODES_OF, PLACE_OF, SERVER_MODE

MODE: Final = SERVER_MODE
SERVER_ID: Final = {size: label for label, size in NODES_OF.items()}
NODE_ID: Final = {size: PLACE_OF[label] for label, size in NODES_OF.items()}
KEYS: Final = frozenset({MODE, *SERVER_ID.values(), *NODE_ID.values()})
"""All labels of UltraServers that this driver ever writes."""
MANAGER: Final = "neuron-dra-driver"
"""Field manager of the labels: the API server keeps account of what is ours under this name."""
LABELS: Final = OwnLabels("labels of the UltraServer", KEYS, MANAGER)


def labels(membership: Membership | None) -> Mapping[str, str] | None:
    """The labels that the own Node should have; None: leave all as they are, because the election is running.

    The mode is the numbers of nodes that the node can work with now, ascending, such as ``1_2_4``. Sets that do not
    exist have no label. A host that is no UltraServer node (``membership`` None) has none at all.
    """
    if membership is None:
        return {}
    if membership.electing:
        return None
    labels = {MODE: "_".join(map(str, sorted({mode.nodes for mode in membership.modes})))} if membership.modes else {}
    for item in membership.sets:
        if item.nodes in SERVER_ID:
            labels |= {SERVER_ID[item.nodes]: item.server_id, NODE_ID[item.nodes]: str(item.node_id)}
    return labels

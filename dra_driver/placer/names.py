"""Names that the placer shares with pods, nodes and other controllers.

Sources: Kubernetes 1.37 API; aws-neuron-sdk ``deploy/eks/ultraserver.rst`` (node labels); LeaderWorkerSet v0.10 (labels
and annotations of its pods).
"""

from __future__ import annotations

from typing import Final

GATE: Final = "neuron.aws.com/ultraserver"
"""Scheduling gate of the pods that the placer handles."""

SERVER_4: Final = "neuron.amazonaws.com/ultraserver-server-id-4"
SERVER_2: Final = "neuron.amazonaws.com/ultraserver-server-id-2"
NODES_OF: Final = {SERVER_4: 4, SERVER_2: 2}
"""Node label to the number of nodes that share one value of it."""

GROUP_LABEL: Final = "neuron.aws.com/ultraserver-group"
"""Label of plain pods: those of a namespace with one value are a group."""
NODES_ANNOTATION: Final = "neuron.aws.com/ultraserver-nodes"
"""Annotation of plain pods: how many pods, each on a node of its own, the group has."""
PLACED_ANNOTATION: Final = "neuron.aws.com/ultraserver-placed-on"
"""Written with the gate's removal: the server's id, which is in the node selector too."""
SINCE_ANNOTATION: Final = "neuron.aws.com/ultraserver-incomplete-since"
"""Since when a placed group lacks nodes; absent while all its pods have theirs."""
STUCK_ANNOTATION: Final = "neuron.aws.com/ultraserver-unschedulable-since"
"""Since when the scheduler finds no node for a pod of a placed group, though all nodes of its server are in order."""

LWS_GROUP_LABEL: Final = "leaderworkerset.sigs.k8s.io/group-key"
LWS_WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
LWS_TOPOLOGY: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"

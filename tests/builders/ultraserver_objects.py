"""NeuronUltraServer objects as the placer writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dra_driver.neuron.ultraserver_objects import WORKLOAD_UIDS

ALLOCATED_AT = "2026-01-01T00:00:00Z"


def allocation(workload: str, nodes: Sequence[str], *, bound: bool = True) -> dict[str, Any]:
    """``workload``: ``namespace/name``."""
    return {
        "workloadRef": workload,
        "allocatedNodes": list(nodes),
        "nodeCount": len(nodes),
        "leaderNodeName": nodes[0],
        "ultraserverIndex": 0,
        "phase": "Bound" if bound else "Pending",
        "allocatedAt": ALLOCATED_AT,
    }


def ultraserver(
    name: str, *allocations: dict[str, Any], uids: dict[str, str] | None = None, namespace: str = "neuron-dra-driver"
) -> dict[str, Any]:
    """A server with these allocations; ``uids`` of their workloads."""
    annotations = {WORKLOAD_UIDS: json.dumps(uids)} if uids else {}
    return {
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {"instanceType": "trn2u.48xlarge", "topology": []},
        "status": {"state": "Ready", "observedGeneration": 1, "conditions": [], "allocations": list(allocations)},
    }

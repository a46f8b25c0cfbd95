"""What the placer keeps of the objects that it watches: tenants make as many, and as large ones, as they like."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dra_driver.kube.api.codec import PODS, Resource
from dra_driver.kube.objects.core import Affinity, PartialNode, Pod, PodSpec, PodStatus
from dra_driver.kube.objects.resource import AllocatedClaim
from dra_driver.neuron.names import DRIVER_NAME, NODES_OF
from dra_driver.ultraserver.placer.values import (
    GATE,
    GROUP_LABEL,
    LWS_GROUP_LABEL,
    LWS_SIZE,
    LWS_TOPOLOGY,
    LWS_WORKER_INDEX,
    NODES_ANNOTATION,
    SINCE_ANNOTATION,
    STUCK_ANNOTATION,
)

LABELS: Final = (GROUP_LABEL, LWS_GROUP_LABEL, LWS_WORKER_INDEX)
"""Of pods, those in use."""
ANNOTATIONS: Final = (NODES_ANNOTATION, SINCE_ANNOTATION, STUCK_ANNOTATION, LWS_SIZE, LWS_TOPOLOGY)
"""Of pods, those in use."""
LONGEST: Final = 256
"""Characters of an annotation that are kept; no value that means anything is as long."""


def _in_short(pod: Pod, _: str) -> Pod:
    """The pod with what a decision may rest on: where it may go, not what runs in it."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    return Pod(
        replace(
            meta,
            labels={key: meta.labels[key] for key in LABELS if key in meta.labels},
            annotations={key: meta.annotations[key][:LONGEST] for key in ANNOTATIONS if key in meta.annotations},
            finalizers=(),
        ),
        PodSpec(
            node_name=spec.node_name,
            resource_claims=spec.resource_claims,
            node_selector=spec.node_selector,
            affinity=Affinity(spec.affinity.node_affinity),
            tolerations=spec.tolerations,
            scheduling_gates=spec.scheduling_gates,
        ),
        PodStatus(phase=status.phase, conditions=status.conditions, nominated_node_name=status.nominated_node_name),
    )


MEMBERS: Final = Resource(Pod, PODS.kind, PODS.plural, PODS.versions, _in_short, None, Pod)
"""Pods of groups, and those with the gate."""


def has_gate(pod: Pod) -> bool:
    """Whether the pod waits for the placer."""
    return any(gate.name == GATE for gate in pod.spec.scheduling_gates)


def is_member(pod: Pod) -> bool:
    """Whether the pod is of a group, or waits for the placer: of all others, nobody here asks."""
    return has_gate(pod) or GROUP_LABEL in pod.metadata.labels or LWS_GROUP_LABEL in pod.metadata.labels


def of_a_server(node: PartialNode) -> bool:
    """Whether the Node names an UltraServer."""
    return any(node.metadata.labels.get(label) for label in NODES_OF)


def has_our_devices(claim: AllocatedClaim) -> bool:
    """Whether the claim has devices of this driver."""
    return claim.has_devices(DRIVER_NAME)

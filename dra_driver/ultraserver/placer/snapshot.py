"""From API objects to the values that decisions are based on. What users wrote is not trusted."""

from __future__ import annotations

import json
from collections.abc import Iterable

from dra_driver.kube.matching import BLOCKING
from dra_driver.kube.objects.core import NodeSelectorTerm, PartialNode
from dra_driver.kube.objects.core import Pod as ApiPod
from dra_driver.kube.objects.meta import seconds, timestamp
from dra_driver.kube.objects.resource import AllocatedClaim, PartialResourceSlice
from dra_driver.neuron.names import DRIVER_NAME, NODES_OF
from dra_driver.neuron.topology.partitions import NODE_DEVICE
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
    GroupPod,
    PlacerRecord,
    Released,
    ServerNode,
    Snapshot,
)

MAX_RELEASED = 200
"""Released groups that are remembered; the latest stay."""


def snapshot(
    nodes: Iterable[PartialNode],
    offers: Iterable[PartialResourceSlice],
    claims: Iterable[AllocatedClaim],
    members: Iterable[ApiPod],
    kept: PlacerRecord,
) -> Snapshot:
    """The cluster as values."""
    offering = _offering(offers)
    holders = _holders(claims)
    return Snapshot(
        nodes=tuple(
            _node(node, node.metadata.name in offering, holders.get(node.metadata.name, ""))
            for node in nodes
            if any(node.metadata.labels.get(label) for label in NODES_OF)
        ),
        pods=tuple(pod_of(pod, kept.placed.get(pod.metadata.uid, "")) for pod in members),
        released=kept.released,
        members=kept.members,
    )


def _offering(offers: Iterable[PartialResourceSlice]) -> set[str]:
    """Nodes whose whole-node device is in the newest generation of their pool."""
    newest: dict[str, int] = {}
    found: dict[str, tuple[int, str]] = {}
    for offer in offers:
        spec = offer.spec
        if spec.driver != DRIVER_NAME or not spec.node_name:
            continue
        generation = spec.pool.generation
        newest[spec.pool.name] = max(generation, newest.get(spec.pool.name, generation))
        if any(device.name == NODE_DEVICE for device in spec.devices):
            found[spec.pool.name] = max((generation, spec.node_name), found.get(spec.pool.name, (generation, "")))
    return {node for pool, (generation, node) in found.items() if generation == newest[pool]}


def _holders(claims: Iterable[AllocatedClaim]) -> dict[str, str]:
    """By node: a claim that holds any of our devices there. Each node's pool has the node's name."""
    found: dict[str, str] = {}
    for claim in claims:
        for result in claim.status.results:
            if result.driver == DRIVER_NAME and not result.admin_access:
                found.setdefault(result.pool.partition("/")[0], f"{claim.metadata.namespace}/{claim.metadata.name}")
    return found


def _node(node: PartialNode, offers: bool, claim: str) -> ServerNode:
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)
    troubles = (
        (node.metadata.deletion_timestamp is not None, "is being deleted"),
        (not ready, "is not Ready"),
        (node.spec.unschedulable, "is cordoned"),
        (not offers, f"offers no device {NODE_DEVICE}"),
    )
    return ServerNode(
        name=node.metadata.name,
        labels=node.metadata.labels,
        uid=node.metadata.uid,
        created=seconds(node.metadata.creation_timestamp) or 0.0,
        trouble=next((text for is_so, text in troubles if is_so), ""),
        taints=tuple(taint for taint in node.spec.taints if taint.effect in BLOCKING),
        claim=claim,
    )


def pod_of(pod: ApiPod, place: str = "") -> GroupPod:
    """A pod as a value.

    Args:
        pod: the pod. Times in its annotations that the placer cannot have written count as absent.
        place: where the placer assigned it, as ``label=server``, or "". Nothing on the pod can prove that: its author
            chooses labels, annotations and node selector, and with the name of a field manager also managedFields.
    """
    meta, spec = pod.metadata, pod.spec
    of_lws = LWS_GROUP_LABEL in meta.labels
    gates = tuple(gate.name for gate in spec.scheduling_gates)
    gated = GATE in gates
    selector = spec.node_selector
    placed = next((item for item in selector.items() if item[0] in NODES_OF and "=".join(item) == place), None)
    return GroupPod(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        created=seconds(meta.creation_timestamp) or 0.0,
        group=meta.labels.get(LWS_GROUP_LABEL if of_lws else GROUP_LABEL, ""),
        size=meta.annotations.get(LWS_SIZE if of_lws else NODES_ANNOTATION, ""),
        topology=meta.annotations.get(LWS_TOPOLOGY, "") if of_lws else "",
        of_lws=of_lws,
        leader=of_lws and meta.labels.get(LWS_WORKER_INDEX) == "0",
        gated=gated,
        other_gates=tuple(name for name in gates if name != GATE),
        node=spec.node_name,
        owner=next((owner.kind for owner in meta.owner_references if owner.controller), ""),
        phase=pod.status.phase,
        ending=meta.deletion_timestamp is not None,
        placed=None if gated else placed,
        since=seconds(meta.annotations.get(SINCE_ANNOTATION)),
        stuck=seconds(meta.annotations.get(STUCK_ANNOTATION)),
        unschedulable=_unschedulable(pod),
        selector=selector,
        terms=_terms(pod),
        tolerations=spec.tolerations,
    )


def _terms(pod: ApiPod) -> tuple[NodeSelectorTerm, ...]:
    affinity = pod.spec.affinity.node_affinity
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return required.node_selector_terms if required is not None else ()


def _unschedulable(pod: ApiPod) -> str:
    """The scheduler's message about a pod for which it finds no node, or ""."""
    if pod.spec.node_name or pod.status.nominated_node_name:
        return ""
    found = (item for item in pod.status.conditions if item.type == "PodScheduled" and item.status == "False")
    return next((item.message or item.reason for item in found if item.reason == "Unschedulable"), "")


def read_kept(text: str) -> PlacerRecord:
    """What is kept in the ConfigMap; entries that cannot be parsed are ignored."""
    try:
        document = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return PlacerRecord()
    if not isinstance(document, dict):
        return PlacerRecord()
    placed, members = (found if isinstance(found := document.get(key), dict) else {} for key in ("placed", "members"))
    return PlacerRecord(
        {uid: place for uid, place in placed.items() if isinstance(place, str)},
        _released(document.get("released")),
        {
            place: tuple(names)
            for place, names in members.items()
            if isinstance(names, list) and all(isinstance(name, str) for name in names)
        },
    )


def _released(entries: object) -> tuple[Released, ...]:
    found = []
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        namespace, group, server = (entry.get(name) for name in ("namespace", "group", "server"))
        until = seconds(entry["until"]) if isinstance(entry.get("until"), str) else None
        if isinstance(namespace, str) and isinstance(group, str) and isinstance(server, str) and until is not None:
            found.append(Released(namespace, group, server, until))
    return tuple(found)


def write_kept(kept: PlacerRecord, now: float) -> str:
    """The text for the ConfigMap, without expired entries."""
    current = sorted((item for item in kept.released if item.until > now), key=lambda item: item.until)
    released = [
        {
            "namespace": item.namespace,
            "group": item.group,
            "server": item.server,
            "until": timestamp(item.until, micro=True),
        }
        for item in current[-MAX_RELEASED:]
    ]
    return json.dumps({"placed": dict(kept.placed), "released": released, "members": dict(kept.members)})

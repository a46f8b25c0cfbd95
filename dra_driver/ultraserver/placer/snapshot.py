"""From API objects to the values that decisions are based on. What users wrote is not trusted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from dra_driver.kube.matching import BLOCKING
from dra_driver.kube.objects.core import PartialNode
from dra_driver.kube.objects.meta import seconds, timestamp
from dra_driver.kube.objects.resource import AllocatedClaim
from dra_driver.neuron.names import DRIVER_NAME, NODES_OF, node_of
from dra_driver.neuron.topology.partitions import NODE_DEVICE
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.ultraserver.placer.values import MAX_TAINTS, GroupPod, PlacerRecord, Released, ServerNode, Snapshot
from dra_driver.ultraserver.placer.watched import Offer

MAX_RELEASED = 200
"""Released groups that are remembered: the latest of each namespace, by turns."""


def snapshot(
    nodes: Iterable[PartialNode],
    offers: Iterable[Offer],
    claims: Iterable[AllocatedClaim],
    pods: Iterable[GroupPod],
    kept: PlacerRecord,
) -> Snapshot:
    """The cluster as values."""
    slices = tuple(offers)
    offering, published = _offering(slices), _published(slices)
    holders = _holders(claims)
    return Snapshot(
        nodes=tuple(
            replace(
                _node(node, offering.get(node.metadata.name), holders.get(node.metadata.name, {})),
                mark=_mark(published.get(node.metadata.name, set())),
            )
            for node in nodes
            if any(node.metadata.labels.get(label) for label in NODES_OF)
        ),
        pods=tuple(_with_place(pod, kept.placed.get(pod.uid, "")) for pod in pods),
        released=kept.released,
        members=kept.members,
        published={node: frozenset(uids - {""}) for node, uids in published.items() if uids - {""}},
    )


def _with_place(pod: GroupPod, place: str) -> GroupPod:
    """The pod where the placer assigned it, if it is still there.

    Nothing on the pod can prove that: its author chooses labels, annotations and node selector, and with the name of a
    field manager also managedFields.
    """
    label, _, server = place.partition("=")
    return replace(pod, placed=(label, server)) if place in pod.servers and not pod.gated else pod


def _offering(offers: Iterable[Offer]) -> dict[str, Offer]:
    """By node, the offer of its whole-node device, if the newest generation of its pool has it; each is its node's."""
    newest: dict[str, Offer] = {}
    for offer in offers:
        latest = newest.get(offer.pool, offer)
        newest[offer.pool] = max(offer, latest, key=lambda one: (one.generation, one.of_whole_node))
    return {offer.node: offer for offer in newest.values() if offer.of_whole_node}


def _published(offers: Iterable[Offer]) -> dict[str, set[str]]:
    """By node, the workloads that devices of its pools say they are of; "" if one says none, or a slice is missing."""
    pools: dict[str, list[Offer]] = {}
    for offer in offers:
        pools.setdefault(offer.pool, []).append(offer)
    marks: dict[str, set[str]] = {}
    for of_pool in pools.values():
        newest = max(offer.generation for offer in of_pool)
        slices = [offer for offer in of_pool if offer.generation == newest]
        is_complete = len(slices) == slices[0].slices
        marks.setdefault(slices[0].node, set()).update(*(one.marks for one in slices), () if is_complete else ("",))
    return marks


def _mark(uids: set[str]) -> str:
    """The workload that all devices say they are of: only then no other claim fits there."""
    return next(iter(uids)) if len(uids) == 1 else ""


def _holders(claims: Iterable[AllocatedClaim]) -> dict[str, dict[str, bool]]:
    """By node, the claims that hold any of our devices there, and whether it is the whole node.

    Each node's pool has the node's name.
    """
    holders: dict[str, dict[str, bool]] = {}
    for claim in claims:
        for result in claim.status.results:
            if result.driver == DRIVER_NAME and not result.admin_access:
                of_node = holders.setdefault(node_of(result.pool), {})
                name = f"{claim.metadata.namespace}/{claim.metadata.name}"
                of_node[name] = of_node.get(name, False) or result.device == NODE_DEVICE
    return holders


def _namespace(claim: str) -> str:
    return claim.partition("/")[0]


def _node(node: PartialNode, offer: Offer | None, claims: Mapping[str, bool]) -> ServerNode:
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)
    taints = tuple(taint for taint in node.spec.taints if taint.effect in BLOCKING)
    troubles = (
        (node.metadata.deletion_timestamp is not None, "is being deleted"),
        (not ready, "is not Ready"),
        (node.spec.unschedulable, "is cordoned"),
        (len(taints) > MAX_TAINTS, f"has more than {MAX_TAINTS} taints"),
        (offer is None, f"offers no device {NODE_DEVICE}"),
    )
    return ServerNode(
        name=node.metadata.name,
        labels=node.metadata.labels,
        uid=node.metadata.uid,
        created=seconds(node.metadata.creation_timestamp) or 0.0,
        trouble=next((text for is_so, text in troubles if is_so), ""),
        taints=taints[:MAX_TAINTS],
        claim=next(iter(claims), ""),
        tenants=frozenset(map(_namespace, claims)),
        owner=next((_namespace(claim) for claim, whole in claims.items() if whole), ""),
        modes=_modes(offer.modes) if offer is not None else (),
    )


def _modes(text: str) -> tuple[Mode, ...]:
    """Those of them that there are: a node writes what it likes."""
    names = text.split(",")
    return tuple(mode for mode in Mode if mode.name in names)


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
    latest = sorted((item for item in kept.released if item.until > now), key=lambda item: -item.until)
    older: Counter[str] = Counter()
    turns: dict[Released, int] = {}
    for item in latest:
        turns[item] = older[item.namespace]
        older[item.namespace] += 1
    remembered = sorted(latest, key=lambda item: turns[item])[:MAX_RELEASED]
    released = [
        {
            "namespace": item.namespace,
            "group": item.group,
            "server": item.server,
            "until": timestamp(item.until, micro=True),
        }
        for item in sorted(remembered, key=lambda item: item.until)
    ]
    return json.dumps({"placed": dict(kept.placed), "released": released, "members": dict(kept.members)})

"""Which pods are evicted for a pod of higher priority.

kube-scheduler chooses them by count, but the devices that they release may not be connected, so that they would be
evicted in vain. They are therefore chosen again by the devices that they hold, with kube-scheduler's own algorithm
(``SelectVictimsOnNode``): if the pod fits without all pods of lower priority, every pod is kept with which it still
fits, those of higher priority first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.legacy.placement import Packing, cores_of
from dra_driver.legacy.resource_requests import PodRequest, at_once
from dra_driver.legacy.rules import NeuronResource, NodeHardware, free_candidates
from dra_driver.legacy.usage import Holding, held_by, usage


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod on a node: its UID, what it holds, and its priority (None if the watch has not delivered the pod yet)."""

    uid: str
    holding: Holding
    priority: int | None


@dataclass(frozen=True, slots=True)
class Tenancy:
    """A node and all its pods that have Neuron devices; ``unusable`` is its annotation of that name."""

    hardware: NodeHardware
    unusable: str | None
    tenants: Sequence[Tenant]


def victims(
    node: Tenancy, requests: PodRequest, priority: int, proposed: Sequence[str], in_time: Callable[[], bool]
) -> list[str] | None:
    """UIDs of the pods to evict, highest priority first; None if that makes no room or takes too long.

    Args:
        node: the node.
        requests: of the pod.
        priority: of the pod.
        proposed: UIDs that kube-scheduler would evict, highest priority first. Those that are not tenants stay: they
            hold something else that the pod needs.
        in_time: called from time to time; whether there is time left.
    """
    asked, packing = frozenset(proposed), Packing(node.hardware, requests)
    if _is_enough(node, packing, asked, asked):
        return list(proposed)
    lower = {item.uid: item for item in node.tenants if item.uid in asked or _priority(item, priority) < priority}
    found = frozenset(lower)
    if not _is_enough(node, packing, asked, found):
        return None
    crowd = _crowd(node, requests, lower.values())
    for item in sorted(lower.values(), key=lambda item: (-_priority(item, 0), -crowd[item.uid], item.uid in asked)):
        if not in_time():
            return None
        fewer = found - {item.uid}
        if _is_enough(node, packing, asked, fewer):
            found = fewer
    return _ordered(proposed, lower, found)


def _is_enough(node: Tenancy, packing: Packing, asked: frozenset[str], evicted: frozenset[str]) -> bool:
    """Whether the pod fits without some others, also by count: they must free as much as the proposed ones."""
    staying = [item for item in node.tenants if item.uid not in evicted]
    counts = zip(_counts(node, evicted), _counts(node, asked), strict=True)
    by_count = all(freed >= needed for freed, needed in counts)
    return by_count and packing.fits(_taken(node, staying)) is None


def _taken(node: Tenancy, staying: Iterable[Tenant]) -> int:
    return usage(node.hardware, (item.holding for item in staying), node.unusable).taken


def _counts(node: Tenancy, uids: frozenset[str]) -> list[int]:
    """Usage of some pods as kube-scheduler counts it, for each resource."""
    asked = [item.holding.requests or () for item in node.tenants if item.uid in uids]
    return [
        sum(at_once(request for request in requests if request.resource is kind) for requests in asked)
        for kind in NeuronResource
    ]


def _crowd(node: Tenancy, requests: PodRequest, lower: Collection[Tenant]) -> dict[str, int]:
    """By UID, the smallest number of pods that must go to free a set that overlaps with the pod's devices."""
    machine, uids = node.hardware, {item.uid for item in lower}
    masks = {item.uid: held_by(machine, item.holding)[0] for item in lower}
    request = max(requests, key=lambda request: cores_of(machine, request))
    staying = _taken(node, (item for item in node.tenants if item.uid not in uids))
    sets = [
        (candidate, sum(bool(mask & candidate) for mask in masks.values()))
        for candidate in free_candidates(machine, staying, request.resource, request.count)
    ]
    return {
        uid: min((number for candidate, number in sets if mask & candidate), default=len(masks))
        for uid, mask in masks.items()
    }


def _ordered(proposed: Sequence[str], lower: Mapping[str, Tenant], found: frozenset[str]) -> list[str]:
    """Highest priority first, as kube-scheduler ranks nodes by the first. A non-tenant counts at least as the next."""
    ranks: dict[str, float] = {}
    rank = -math.inf
    for uid in reversed(proposed):
        rank = max(rank, _priority(lower[uid], 0)) if uid in lower else rank
        ranks[uid] = rank
    ranks |= {uid: _priority(lower[uid], 0) for uid in found}
    kept = [uid for uid in proposed if uid in found or uid not in lower]
    return sorted([*kept, *sorted(found.difference(proposed))], key=lambda uid: -ranks[uid])


def _priority(item: Tenant, unknown: int) -> int:
    return unknown if item.priority is None else item.priority

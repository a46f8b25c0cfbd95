"""Which pods are evicted for a pod of higher priority.

kube-scheduler chooses them by count, and what they leave may not be connected: they would be evicted in vain. So they
are chosen once more, by what they have, in the way in which it chooses them (``SelectVictimsOnNode``): does the pod fit
without all pods of lower priority? Then each may stay beside which it still fits, those of higher priority first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.legacy.placement import Packing, cores_of
from dra_driver.legacy.resource_requests import PodRequest, at_once
from dra_driver.legacy.rules import Hardware, Resource, free_candidates
from dra_driver.legacy.usage import Holding, held_by, usage


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod on a node: its UID, what it has, and its priority (None for one that no watch has told of yet)."""

    uid: str
    holding: Holding
    priority: int | None


@dataclass(frozen=True, slots=True)
class Tenancy:
    """A node and all its pods that have Neuron devices; ``unusable`` is its annotation of that name."""

    hardware: Hardware
    unusable: str | None
    tenants: Sequence[Tenant]


def victims(
    node: Tenancy, requests: PodRequest, priority: int, proposed: Sequence[str], in_time: Callable[[], bool]
) -> list[str] | None:
    """UIDs of the pods to evict, of falling priority; None where that makes no room, or when it takes too long.

    Args:
        node: where.
        requests: what the pod asks for.
        priority: of the pod.
        proposed: UIDs that kube-scheduler would evict, of falling priority. Those that are no tenants stay among them:
            they have something else that the pod needs.
        in_time: asked now and then.
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
    """Whether the pod fits without some others, also by count: they must free as much as those that were asked for."""
    staying = [item for item in node.tenants if item.uid not in evicted]
    counts = zip(_counts(node, evicted), _counts(node, asked), strict=True)
    by_count = all(freed >= needed for freed, needed in counts)
    return by_count and packing.fits(_taken(node, staying)) is None


def _taken(node: Tenancy, staying: Iterable[Tenant]) -> int:
    return usage(node.hardware, (item.holding for item in staying), node.unusable).taken


def _counts(node: Tenancy, uids: frozenset[str]) -> list[int]:
    """What kube-scheduler counts as used by some pods, for each resource."""
    asked = [item.holding.requests or () for item in node.tenants if item.uid in uids]
    return [
        sum(at_once(request for request in requests if request.resource is kind) for requests in asked)
        for kind in Resource
    ]


def _crowd(node: Tenancy, requests: PodRequest, lower: Collection[Tenant]) -> dict[str, int]:
    """By UID the least number of pods that must go for a set in which the pod has something."""
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
    """By falling priority: kube-scheduler ranks nodes by the first. What is no tenant has that of the next at least."""
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

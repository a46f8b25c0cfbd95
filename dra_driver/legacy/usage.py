"""What is taken on a node: derived from the pods that are bound to it, and from nothing else.

A pod holds what its annotations record until it has ended or been deleted. If they do not record it (another scheduler
placed the pod and its devices are not recorded yet, or somebody edited the annotations), everything that the pod may
have is reserved for it until that is known: no device is ever handed out twice. A record of more than the pod requests
is no record: a pod may be created with any annotations, and must not withhold what it could not have been given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import msgspec

from dra_driver.legacy.annotations import UNUSABLE, PodAnnotations, RecordedAllocation, ids_mask, said
from dra_driver.legacy.placement import union
from dra_driver.legacy.resource_requests import PodRequest, at_once
from dra_driver.legacy.rules import MAX_CORES_PER_DEVICE, NeuronResource, NodeHardware, bits, free_candidates
from dra_driver.util.errors import DriverError
from dra_driver.util.text import shorten

_DOUBTFUL: Final = 32
"""Pods of a node whose devices are not known; with more of them, all its devices may be in use."""
_SHOWN: Final = 100
"""Characters of a pod, and of what is doubtful about it, in the reason of a refusal."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one bound pod holds.

    Attributes:
        pod: ``namespace/name``.
        allocations: from its annotations, one for each key that records no more than the pod can have.
        requests: of the pod; None if they cannot be parsed.
        trouble: why the pod may hold more than the allocations, or "".
    """

    pod: str
    allocations: tuple[RecordedAllocation, ...]
    requests: PodRequest | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """What is taken on a node.

    Attributes:
        taken: mask of the cores that some pod has or may have.
        trouble: why some of them are reserved for a pod that may not have them, as a sentence, or "".
    """

    taken: int
    trouble: str = ""


def holding(
    pod: str, annotations: PodAnnotations, requests: PodRequest | None, *, of_another: bool = False
) -> Holding | None:
    """What a bound pod that has not ended holds; None if it holds nothing.

    Args:
        pod: ``namespace/name``.
        annotations: of the pod.
        requests: of the pod; None if they cannot be parsed.
        of_another: whether the annotations are of a pod whose manifest was copied.
    """
    if requests is not None and not requests:
        # Annotations on a pod without requests entitle it to nothing: kubelet gives it nothing.
        return None
    # None of these affects what is held.
    bare = msgspec.structs.replace(annotations, allocated=None, alloc_time=None, of=None)
    asked = frozenset(request.resource for request in requests or ())
    found, unreadable = said(bare, asked)
    more = ""
    if requests is not None and any(exceeds(allocation, requests) for allocation in found):
        found = tuple(allocation for allocation in found if not exceeds(allocation, requests))
        more = "its annotations list more devices than it requests"
    most = max(map(_ids, found), default=0)
    # Fewer ids than are in use at one time cannot be everything.
    if requests is not None and most >= at_once(requests) and not of_another:
        # A key that cannot be parsed, or lists too much, does not invalidate the others.
        return Holding(pod, found, requests)
    fewer = "its annotations list fewer devices than it requests" if requests else "its requests cannot be read"
    missing = fewer if found else "no annotation says which devices it has"
    if found and of_another:
        missing = "its annotations were copied from another pod"
    return Holding(pod, found, requests, unreadable or more or missing)


def exceeds(allocation: RecordedAllocation, requests: PodRequest) -> bool:
    """Whether an allocation has more ids than the pod requests, in all or for one container."""
    most: dict[tuple[str, NeuronResource], int] = {}
    for request in requests:
        limits = {(request.container, request.resource): request.count, ("", request.resource): request.count}
        if request.resource is NeuronResource.DEVICE:
            # The vendor's key may list the cores of devices, and their number may have changed since.
            limits["", NeuronResource.CORE] = request.count * MAX_CORES_PER_DEVICE
        for key, count in limits.items():
            most[key] = most.get(key, 0) + count
    masks: dict[tuple[str, NeuronResource], int] = {}
    for share in allocation.shares:
        masks[share.container, share.resource] = masks.get((share.container, share.resource), 0) | share.mask
    return any(mask.bit_count() > most.get(key, 0) for key, mask in masks.items())


def in_short(item: Holding) -> Holding:
    """The same for ``usage``, without which container has what: some hundred bytes, however long the annotations."""
    return replace(item, allocations=tuple(_shared(allocation.whole) for allocation in item.allocations))


@lru_cache(maxsize=4096)
def _shared(whole: RecordedAllocation) -> RecordedAllocation:
    """The first of equal ones: thousands of pods have few different allocations."""
    return whole


def usage(hardware: NodeHardware, holdings: Iterable[Holding], unusable: str | None = None) -> NodeUsage:
    """What is taken on a node: by the pods bound to it, and devices that no pod may get (``annotations.UNUSABLE``)."""
    failed, taken, possible, doubtful, trouble = 0, 0, 0, 0, ""
    asked: set[tuple[NeuronResource, int]] = set()
    if unusable:
        try:
            failed = _mask(hardware, NeuronResource.DEVICE, ids_mask(UNUSABLE, unusable))
        except DriverError as error:
            return NodeUsage(_everything(hardware), str(error))
    for item in holdings:
        mask, text = held_by(hardware, item)
        if not text:
            taken |= mask
            continue
        doubtful += 1
        # In short: the extender keeps it for each node and for each kind of pod that it was asked for.
        whose, why = shorten(item.pod, _SHOWN), shorten(text, _SHOWN)
        trouble = trouble or f"Devices that it may have are reserved for pod {whose}: {why}"
        if not item.requests or doubtful > _DOUBTFUL:
            return NodeUsage(_everything(hardware), trouble)
        possible |= mask
        asked.update((request.resource, request.count) for request in item.requests)
    # Devices that failed under a pod still belong to it; the annotations of a doubtful pod prove nothing about others.
    possible |= _may_have(hardware, taken, asked)
    return NodeUsage(failed | taken | possible, trouble)


def held_by(hardware: NodeHardware, holding: Holding) -> tuple[int, str]:
    """The cores recorded for a pod; and why it may hold more, or ""."""
    mask, trouble = 0, holding.trouble
    for allocation in holding.allocations:
        try:
            mask |= held(hardware, allocation)
        except DriverError as error:
            trouble = trouble or str(error)
    return mask, trouble


def _may_have(hardware: NodeHardware, taken: int, asked: Iterable[tuple[NeuronResource, int]]) -> int:
    """Everything that may have been given for these amounts, except what others hold (``taken``)."""
    found = 0
    for resource, count in sorted(asked, key=lambda amount: amount[1]):
        masks = free_candidates(hardware, taken, resource, count)
        if not masks:
            return _everything(hardware)  # some recorded fact is wrong
        found |= union(masks)
    return found


def _everything(hardware: NodeHardware) -> int:
    return (1 << hardware.cores) - 1


def held(hardware: NodeHardware, allocation: RecordedAllocation) -> int:
    """The cores of an allocation. Raises DriverError if the node has no such ids."""
    found = 0
    for share in allocation.shares:
        resource, ids, width = share.resource, share.mask, allocation.cores_per_device
        if resource is NeuronResource.CORE and width not in (0, hardware.cores_per_device):
            # The node's logical core size has changed: the same core ids are now on other devices.
            resource, ids = NeuronResource.DEVICE, union(1 << number // width for number in share.ids)
        found |= _mask(hardware, resource, ids)
    return found


def held_if_there(hardware: NodeHardware, allocation: RecordedAllocation) -> int:
    """The cores of an allocation; 0 if the node has no such ids."""
    try:
        return held(hardware, allocation)
    except DriverError:
        return 0


def _mask(hardware: NodeHardware, resource: NeuronResource, ids: int) -> int:
    """The cores of some ids, given as a mask of these."""
    last = ids.bit_length() - 1
    if last >= hardware.units(resource):
        raise DriverError(
            f"{resource.noun} {last} is recorded as in use, but the node has {hardware.units(resource)} of them"
        )
    return ids if resource is NeuronResource.CORE else hardware.mask(resource, bits(ids))


def _ids(allocation: RecordedAllocation) -> int:
    return sum(share.mask.bit_count() for share in allocation.whole.shares)

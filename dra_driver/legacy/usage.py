"""What is taken on a node: derived from the pods that are bound to it, and from nothing else.

A pod holds what its annotations record until it has ended or been deleted. If they do not record it (another scheduler
placed the pod and its devices are not recorded yet, or somebody edited the annotations), everything that the pod may
have is reserved for it until that is known: no device is ever handed out twice. A record of more than the pod requests
is no record: a pod may be created with any annotations, and must not withhold what it could not have been given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from dra_driver.legacy.annotations import UNUSABLE, PodAnnotations, RecordedAllocation, parse_ids, said
from dra_driver.legacy.placement import union
from dra_driver.legacy.resource_requests import PodRequest, at_once
from dra_driver.legacy.rules import MAX_CORES_PER_DEVICE, NeuronResource, NodeHardware, free_candidates
from dra_driver.util.errors import DriverError

_USUAL: Final = 2048
"""Characters of annotations that are cached; larger ones must not fill the memory."""


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
    size = sum(len(text) for text in msgspec.structs.astuple(bare) if text)
    found, unreadable = _said(bare, asked) if size <= _USUAL else said(bare, asked)
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
    ids: dict[tuple[str, NeuronResource], set[int]] = {}
    for share in allocation.shares:
        ids.setdefault((share.container, share.resource), set()).update(share.ids)
    return any(len(numbers) > most.get(key, 0) for key, numbers in ids.items())


@lru_cache(maxsize=4096)
def _said(annotations: PodAnnotations, asked: frozenset[NeuronResource]) -> tuple[tuple[RecordedAllocation, ...], str]:
    """Cached, since thousands of pods share few different allocations."""
    return said(annotations, asked)


def usage(hardware: NodeHardware, holdings: Iterable[Holding], unusable: str | None = None) -> NodeUsage:
    """What is taken on a node: by the pods bound to it, and devices that no pod may get (``annotations.UNUSABLE``)."""
    failed, taken, doubtful, trouble = 0, 0, [], ""
    if unusable:
        try:
            failed = _mask(hardware, NeuronResource.DEVICE, parse_ids(UNUSABLE, unusable))
        except DriverError as error:
            return NodeUsage(_everything(hardware), str(error))
    for item in holdings:
        mask, text = held_by(hardware, item)
        if text:
            doubtful.append((mask, item.requests))
            trouble = trouble or f"Devices that it may have are reserved for pod {item.pod}: {text}"
        else:
            taken |= mask
    # Devices that failed under a pod still belong to it; the annotations of a doubtful pod prove nothing about others.
    possible = union(mask | _may_have(hardware, taken, requests) for mask, requests in doubtful)
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


def _may_have(hardware: NodeHardware, taken: int, requests: PodRequest | None) -> int:
    """Everything that a pod may have been given, except what others hold (``taken``)."""
    found = 0
    for request in requests or ():
        masks = free_candidates(hardware, taken, request.resource, request.count)
        if not masks:
            return _everything(hardware)  # some recorded fact is wrong
        found |= union(masks)
    return found if requests else _everything(hardware)


def _everything(hardware: NodeHardware) -> int:
    return (1 << hardware.cores) - 1


def held(hardware: NodeHardware, allocation: RecordedAllocation) -> int:
    """The cores of an allocation. Raises DriverError if the node has no such ids."""
    found = 0
    for share in allocation.shares:
        resource, ids, width = share.resource, share.ids, allocation.cores_per_device
        if resource is NeuronResource.CORE and width not in (0, hardware.cores_per_device):
            # The node's logical core size has changed: the same core ids are now on other devices.
            resource, ids = NeuronResource.DEVICE, tuple(sorted({number // width for number in ids}))
        found |= _mask(hardware, resource, ids)
    return found


def held_if_there(hardware: NodeHardware, allocation: RecordedAllocation) -> int:
    """The cores of an allocation; 0 if the node has no such ids."""
    try:
        return held(hardware, allocation)
    except DriverError:
        return 0


def _mask(hardware: NodeHardware, resource: NeuronResource, ids: tuple[int, ...]) -> int:
    if ids[-1] >= hardware.units(resource):
        raise DriverError(
            f"{resource.noun} {ids[-1]} is recorded as in use, but the node has {hardware.units(resource)} of them"
        )
    return hardware.mask(resource, ids)


def _ids(allocation: RecordedAllocation) -> int:
    return len({(share.resource, number) for share in allocation.shares for number in share.ids})

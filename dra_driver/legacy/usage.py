"""What is taken on a node: it follows from the pods that are bound there, and from nothing else.

A pod takes what its annotations say until it has ended or is gone. Where they do not say it (a pod that another
scheduler has placed and whose devices nobody has written down yet, or annotations that somebody has edited), what the
pod has is not known, and the node gives nothing until it is: no device is given twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from dra_driver.errors import DriverError
from dra_driver.legacy.annotations import Allocation, PodAnnotations, parse_ids, said
from dra_driver.legacy.demand import Demand, Role
from dra_driver.legacy.hardware import Hardware
from dra_driver.legacy.names import UNUSABLE, Resource

_USUAL: Final = 2048
"""Characters of annotations that are worth remembering; larger ones must not fill the memory."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one bound pod has.

    Attributes:
        pod: ``namespace/name``.
        allocations: what its annotations say, each key by itself.
        trouble: why that is not all that it has, or "".
    """

    pod: str
    allocations: tuple[Allocation, ...]
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """What is taken on a node.

    Attributes:
        taken: mask of cores.
        trouble: why more may be taken than that, or ""; nothing can be given then.
    """

    taken: int
    trouble: str = ""


def holding(pod: str, annotations: PodAnnotations, wants: Demand | None) -> Holding | None:
    """What a bound pod that has not ended has; None when it has nothing.

    Args:
        pod: ``namespace/name``.
        annotations: of the pod.
        wants: what it asks for; None when that cannot be read.
    """
    if wants is not None and not wants:
        # Annotations on a pod that asks for nothing are no claim to anything: kubelet gives it nothing.
        return None
    try:
        # Neither of these changes what is held.
        bare = msgspec.structs.replace(annotations, allocated=None, alloc_time=None)
        asked = frozenset(want.resource for want in wants or ())
        size = sum(len(text) for text in msgspec.structs.astuple(bare) if text)
        found = _said(bare, asked) if size <= _USUAL else tuple(said(bare, asked))
    except DriverError as error:
        return Holding(pod, (), str(error))
    if not found:
        return Holding(pod, (), "no annotation tells which of its devices it has")
    most = max(_ids(allocation) for allocation in found)
    if wants is None or most < _least(wants):
        return Holding(pod, found, "its annotations tell of fewer devices than it asks for")
    return Holding(pod, found)


@lru_cache(maxsize=4096)
def _said(annotations: PodAnnotations, asked: frozenset[Resource]) -> tuple[Allocation, ...]:
    """Equal for all pods with equal devices: thousands of pods have few different ones."""
    return tuple(said(annotations, asked))


def usage(hardware: Hardware, holdings: Iterable[Holding], unusable: str | None = None) -> Usage:
    """What is taken on a node by the pods bound to it, and by devices that nobody is to get (``names.UNUSABLE``)."""
    taken, trouble = 0, ""
    if unusable:
        try:
            taken = _mask(hardware, Resource.DEVICE, parse_ids(UNUSABLE, unusable))
        except DriverError as error:
            trouble = str(error)
    for item in holdings:
        text = item.trouble
        for allocation in item.allocations:
            try:
                taken |= held(hardware, allocation)
            except DriverError as error:
                text = text or str(error)
        if text and not trouble:
            trouble = f"pod {item.pod}: {text}"
    return Usage(taken, trouble)


def held(hardware: Hardware, allocation: Allocation) -> int:
    """The cores of an allocation; DriverError when the node has no such ids."""
    found = 0
    for share in allocation.shares:
        resource, ids, width = share.resource, share.ids, allocation.cores_per_device
        if resource is Resource.CORE and width not in (0, hardware.cores_per_device):
            # The node's logical core size has changed since: the same core ids lie on other devices now.
            resource, ids = Resource.DEVICE, tuple(sorted({number // width for number in ids}))
        found |= _mask(hardware, resource, ids)
    return found


def _mask(hardware: Hardware, resource: Resource, ids: tuple[int, ...]) -> int:
    if ids[-1] >= hardware.units(resource):
        raise DriverError(
            f"{resource.noun} {ids[-1]} is said to be in use, but the node has {hardware.units(resource)} of them"
        )
    return hardware.mask(resource, ids)


def _ids(allocation: Allocation) -> int:
    return len({(share.resource, number) for share in allocation.shares for number in share.ids})


def _least(wants: Demand) -> int:
    """Fewer ids than this cannot be all that a pod has: the most of what is in use at one time."""
    later = sum(want.count for want in wants if want.role is not Role.INIT)
    return max(later, max((want.count for want in wants), default=0))

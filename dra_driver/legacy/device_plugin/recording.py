"""What the device plugin writes to the API server: the devices that pods have, and the chips that are unusable.

The extender, and the plugin itself after a restart, learn what is taken from the annotations alone. A pod that got its
devices without an extender therefore gets the annotations that the extender would have written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.legacy.annotations import ALLOCATED, UNUSABLE, ContainerShare, RecordedAllocation, parse_ids, write
from dra_driver.legacy.device_plugin.snapshot import (
    CHOSEN_BY,
    DEVICE_PLUGIN,
    BoundPod,
    NodeSnapshot,
    allocation_of,
    share_of,
)
from dra_driver.legacy.resource_requests import ContainerRequest, Role
from dra_driver.util.errors import DriverError
from dra_driver.util.text import ranges

FAILED: Final = "neuron.aws.com/failed-devices"
"""Node annotation: the entries of UNUSABLE that this plugin added; the others were added by hand, and stay."""

_YES: Final = {ALLOCATED: "true"}


@dataclass(frozen=True, slots=True)
class Record:
    """Annotations to write to a pod."""

    pod: BoundPod
    annotations: Mapping[str, str]


def records(world: NodeSnapshot, now: int) -> list[Record]:
    """The missing annotations of all pods. ``now`` is in nanoseconds since the epoch."""
    found = []
    for pod in world.pods:
        annotations = _lacking(world, pod, now)
        if annotations:
            found.append(Record(pod, annotations))
    return found


def record_of(world: NodeSnapshot, pod: BoundPod, share: ContainerShare, now: int) -> Record | None:
    """The missing annotations of a pod once it has this share, too; None if there are none."""
    handed = {**world.handed.get(pod.uid, {}), share.container: share}
    later = replace(world, handed={**world.handed, pod.uid: handed})
    annotations = _lacking(later, pod, now)
    return Record(pod, annotations) if annotations else None


def _lacking(world: NodeSnapshot, pod: BoundPod, now: int) -> Mapping[str, str]:
    said = allocation_of(pod)
    if isinstance(said, DriverError) or not pod.requests:
        return {}
    decisive = [request for request in pod.requests if _is_shown(request)] or pod.requests
    if said is not None and all(share_of(pod, said, request.container) for request in decisive):
        done = all(_share(world, pod, request) is not None for request in decisive)
        return _YES if done and not said.handed_out else {}
    shares = tuple(share for request in pod.requests if (share := _share(world, pod, request)) is not None)
    if not shares or _same(said, shares):
        return {}
    # Parts of an extender's choice that somebody removed are restored as they were.
    who = {} if pod.uid in world.placed else {CHOSEN_BY: f"{DEVICE_PLUGIN} {pod.uid}"}
    return write(world.offer.hardware, pod.uid, shares, now) | _YES | who


def _same(said: RecordedAllocation | None, shares: tuple[ContainerShare, ...]) -> bool:
    return said is not None and set(said.shares) == set(shares)


def _is_shown(request: ContainerRequest) -> bool:
    """Whether kubelet lists the devices of the container."""
    return request.role is not Role.INIT


def _share(world: NodeSnapshot, pod: BoundPod, request: ContainerRequest) -> ContainerShare | None:
    """The devices of a container, from this process's memory or from kubelet's list."""
    handed = world.handed.get(pod.uid, {}).get(request.container)
    if handed is not None:
        return handed
    counted = world.counted(pod, request.container, request.resource)
    ids = tuple(sorted(number for number in counted or () if number < world.offer.hardware.units(request.resource)))
    return ContainerShare(request.container, request.resource, ids) if len(ids) == request.count else None


def unusable_annotations(annotations: Mapping[str, str], unusable: tuple[int, ...]) -> dict[str, str | None]:
    """Changes to the node's annotations so that they list the unusable chips; {} if they already do.

    Args:
        annotations: of the Node.
        unusable: chips, ascending.
    """
    by_us, listed = _ids(annotations, FAILED), _ids(annotations, UNUSABLE)
    wanted = {FAILED: ranges(unusable) or None, UNUSABLE: ranges(sorted((listed - by_us) | set(unusable))) or None}
    return {
        key: value
        for key, value in wanted.items()
        if annotations.get(key) != value
        and not (value is not None and _ids(annotations, key) == set(parse_ids(key, value)))
    }


def _ids(annotations: Mapping[str, str], key: str) -> set[int]:
    try:
        return set(parse_ids(key, annotations[key])) if key in annotations else set()
    except DriverError:
        return set()

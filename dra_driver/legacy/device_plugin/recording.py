"""What the device plugin writes to the API server: the devices that pods have, and the chips that are unusable.

The extender, and the plugin itself after a restart, learn what is taken from the annotations alone. A pod that got its
devices without an extender therefore gets the annotations that the extender would have written, in place of any that
it was created with and that are not true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.legacy.annotations import (
    ALLOCATED,
    UNUSABLE,
    ContainerShare,
    RecordedAllocation,
    parse_ids,
    present,
    said,
    write,
)
from dra_driver.legacy.device_plugin.snapshot import (
    CHOSEN_BY,
    DEVICE_PLUGIN,
    BoundPod,
    NodeSnapshot,
    all_handed,
    allocation_of,
    handed_mask,
    share_of,
)
from dra_driver.legacy.placement import union
from dra_driver.legacy.resource_requests import ContainerRequest, Role
from dra_driver.legacy.rules import NeuronResource
from dra_driver.legacy.usage import exceeds, held, held_if_there
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
    if not pod.requests:
        return {}
    reading = allocation_of(pod)
    choice = reading if isinstance(reading, RecordedAllocation) else None
    decisive = [request for request in pod.requests if _is_shown(request)] or pod.requests
    untrue = _is_untrue(world, pod) and _is_certain(world, pod, choice, decisive)
    if not untrue:
        if isinstance(reading, DriverError):
            return {}
        if choice is not None and all(share_of(pod, choice, request.container) for request in decisive):
            done = all(_share(world, pod, request) is not None for request in decisive)
            return _YES if done and not choice.handed_out else {}
    shares = _shares(world, pod, choice if untrue else None)
    if not shares or (not untrue and _same(choice, shares)):
        return {}
    # Parts of an extender's choice that somebody removed are restored as they were.
    who = {} if pod.uid in world.placed else {CHOSEN_BY: f"{DEVICE_PLUGIN} {pod.uid}"}
    truth = write(world.offer.hardware, pod.uid, shares, now) | _YES | who
    return {key: "" for key in present(pod.annotations) if key not in truth} | truth


def _is_untrue(world: NodeSnapshot, pod: BoundPod) -> bool:
    """Whether one of the keys cannot be read, or records what the pod cannot have or was not given."""
    machine, possible = world.offer.hardware, _possible(pod)
    if any(
        share.resource is NeuronResource.CORE and allocation.cores_per_device not in (0, machine.cores_per_device)
        for allocation in possible
        for share in allocation.shares
    ):
        # The logical core size has changed: what was handed out has the ids of the former one, too.
        return False
    allocations, unreadable = _said(pod)
    more = len(possible) < len(allocations)
    return more or bool(unreadable) or any(_is_denied(world, pod, allocation) for allocation in possible)


def _said(pod: BoundPod) -> tuple[tuple[RecordedAllocation, ...], str]:
    return said(pod.annotations, {request.resource for request in pod.requests or ()})


def _possible(pod: BoundPod) -> list[RecordedAllocation]:
    return [allocation for allocation in _said(pod)[0] if not exceeds(allocation, pod.requests or ())]


def _is_denied(world: NodeSnapshot, pod: BoundPod, allocation: RecordedAllocation) -> bool:
    """Whether the node has no such devices, or this process has handed out others to the pod."""
    try:
        mask = held(world.offer.hardware, allocation)
    except DriverError:
        return True
    return all_handed(world, pod) and bool(mask & ~handed_mask(world, pod))


def _is_certain(
    world: NodeSnapshot, pod: BoundPod, choice: RecordedAllocation | None, decisive: Iterable[ContainerRequest]
) -> bool:
    """Whether it is so well known what the containers have that any annotation can be replaced.

    kubelet may count other devices than those handed out. Unless this process remembers them, its list must therefore
    have all that the pod may have by a key: else an edit of another key would free what the pod uses.
    """
    machine, handed = world.offer.hardware, world.handed.get(pod.uid, {})
    truth = {request: _share(world, pod, request) for request in decisive}
    if not all(truth.values()):
        return False
    counted = [request for request in truth if request.container not in handed]
    if any(_choice_for(world, pod, choice, request) not in (None, truth[request]) for request in counted):
        return False
    shares = _shares(world, pod, choice)
    mask = union(machine.mask(share.resource, share.ids) for share in shares)
    return not counted or not any(held_if_there(machine, allocation) & ~mask for allocation in _possible(pod))


def _shares(world: NodeSnapshot, pod: BoundPod, choice: RecordedAllocation | None) -> tuple[ContainerShare, ...]:
    """What the containers have; of those that kubelet does not list (init containers), what was chosen for them."""
    shares = (_share(world, pod, request) or _choice_for(world, pod, choice, request) for request in pod.requests or ())
    return tuple(share for share in shares if share is not None)


def _choice_for(
    world: NodeSnapshot, pod: BoundPod, choice: RecordedAllocation | None, request: ContainerRequest
) -> ContainerShare | None:
    """What a container can have been given as its annotations say, or None."""
    share = share_of(pod, choice, request.container) if choice is not None else None
    fits = share is not None and share.resource is request.resource and len(share.ids) == request.count
    return share if share is not None and fits and _is_there(world, share) else None


def _is_there(world: NodeSnapshot, share: ContainerShare) -> bool:
    return share.ids[-1] < world.offer.hardware.units(share.resource)


def _same(said: RecordedAllocation | None, shares: tuple[ContainerShare, ...]) -> bool:
    return said is not None and set(said.shares) == set(shares)


def _is_shown(request: ContainerRequest) -> bool:
    """Whether kubelet lists the devices of the container."""
    return request.role is not Role.INIT


def _share(world: NodeSnapshot, pod: BoundPod, request: ContainerRequest) -> ContainerShare | None:
    """The devices of a container, from this process's memory or from kubelet's list."""
    handed = world.handed.get(pod.uid, {}).get(request.container)
    if handed is not None:
        # The node may have had more cores then.
        return handed if _is_there(world, handed) else None
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

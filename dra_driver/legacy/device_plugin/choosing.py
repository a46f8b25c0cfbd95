"""Which container kubelet asks for, and which ids it gets.

kubelet names the resource and some ids, of which only the number matters, but not the pod. It admits one pod after
another and the containers of a pod in order (init containers first), so the next container of a pod is the first one
without devices. PodResources lists the pod that is being admitted and shows which containers have devices; the pods
queued behind it are not listed yet. Kubelets before 1.34 keep listing pods that they have rejected: if several listed
pods remain, it is unknown which one is meant. If none is listed, it is assumed to be the one whose devices were chosen
first.

A container gets the ids that the extender has chosen, or without an extender one or all. The choice is checked against
everything known before it is handed out: annotations can be edited, another scheduler may have placed a pod beside the
extender's, and a chip may have failed since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.legacy.annotations import ALLOCATION, ContainerShare, RecordedAllocation
from dra_driver.legacy.device_plugin.snapshot import (
    BoundPod,
    NodeSnapshot,
    allocation_of,
    counted_mask,
    handed_mask,
    share_of,
    taken_by_others,
)
from dra_driver.legacy.placement import union
from dra_driver.legacy.resource_requests import ContainerRequest, beside
from dra_driver.legacy.rules import NeuronResource, candidates, least_breaking_first
from dra_driver.util.errors import DriverError
from dra_driver.util.text import ranges

_LAST: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class WaitingContainer:
    """A container that is waiting for its devices."""

    pod: BoundPod
    request: ContainerRequest
    listed: bool
    """Whether kubelet lists its pod; otherwise it was found by age."""
    rivals: tuple[BoundPod, ...] = ()
    """Other pods that kubelet may equally well mean."""


def find(
    world: NodeSnapshot, resource: NeuronResource, count: int, refused: Collection[str] = (), *, again: bool = False
) -> WaitingContainer | None:
    """The container that a request is for; None if there is none.

    Args:
        world: everything known about the node.
        resource: that is requested.
        count: of the resource.
        refused: UIDs of pods on which kubelet has given up.
        again: consider containers that were served before, too: a restarted kubelet may have lost the answer.
    """
    found = sorted(_candidates(world, resource, count, again=again), key=lambda match: _order(world, match, refused))
    if not found:
        return None
    best, signs = found[0], _signs(world, found[0], refused)
    rivals = (match.pod for match in found[1:] if best.listed and _signs(world, match, refused) == signs)
    return replace(best, rivals=tuple(rivals))


def awaits_unknown_pod(world: NodeSnapshot, known: Collection[tuple[str, str]]) -> bool:
    """Whether kubelet lists a pod without devices that is not known from the API server yet."""
    return any(
        key not in known and not any(any(ids.values()) for ids in found.containers.values())
        for key, found in (world.listed or {}).items()
    )


def _candidates(
    world: NodeSnapshot, resource: NeuronResource, count: int, *, again: bool
) -> Iterable[WaitingContainer]:
    """At most one match for each pod."""
    for pod in world.pods:
        if pod.running:  # all its containers have devices; if kubelet asks again, it means a later pod
            continue
        waiting = [request for request in pod.requests or () if not _served(world, pod, request, again=again)]
        fitting = [request for request in waiting if request.resource is resource and request.count == count]
        if not fitting or (not again and waiting[0] is not fitting[0]):
            continue
        yield WaitingContainer(pod, fitting[0], pod.key in (world.listed or {}))


def _served(world: NodeSnapshot, pod: BoundPod, request: ContainerRequest, *, again: bool) -> bool:
    counted = world.counted(pod, request.container, request.resource)
    if counted is not None:
        return bool(counted)
    # Either kubelet does not list the pod, or this is an init container, which is never listed and comes first.
    later = any(world.counted(pod, other.container, other.resource) for other in pod.requests or ())
    handed = request.container in world.handed.get(pod.uid, {}) or _said_to_be_handed_out(pod)
    return later or (handed and not again)


def _said_to_be_handed_out(pod: BoundPod) -> bool:
    found = allocation_of(pod)
    return isinstance(found, RecordedAllocation) and found.handed_out


def _signs(world: NodeSnapshot, match: WaitingContainer, refused: Collection[str]) -> tuple[bool, bool, bool]:
    """Signs that a pod is not the one that kubelet means; the likeliest pod sorts first."""
    return (
        not match.listed,
        match.pod.uid in refused,
        # It was served but kubelet counts nothing for it: most likely it failed for another reason.
        match.request.container in world.handed.get(match.pod.uid, {}),
    )


def _order(
    world: NodeSnapshot, match: WaitingContainer, refused: Collection[str]
) -> tuple[tuple[bool, bool, bool], bool, int, str, str]:
    found = allocation_of(match.pod)
    chosen_at = found.chosen_at if isinstance(found, RecordedAllocation) else 0
    return _signs(world, match, refused), found is None, chosen_at or _LAST, match.pod.created, match.pod.uid


NEEDS_EXTENDER: Final = "The requested Neuron resources are invalid without the k8s-neuron-scheduler"
"""The vendor's message for a pod that requests several devices that no extender has chosen."""


class AllocateError(DriverError):
    """A container gets no devices. kubelet puts the text into the pod's event and fails the pod."""


@dataclass(frozen=True, slots=True)
class ChosenDevices:
    """The devices of a container.

    Attributes:
        share: container, resource and ids.
        annotated: whether the ids come from the pod's annotations.
    """

    share: ContainerShare
    annotated: bool


def choose(world: NodeSnapshot, match: WaitingContainer, counted: frozenset[int]) -> ChosenDevices:
    """The devices for a container; ``counted`` are the ids that kubelet will count for it. Raises AllocateError."""
    said = allocation_of(match.pod)
    if isinstance(said, DriverError):
        raise AllocateError(f"pod {match.pod}: {said}", remedy=_AGAIN) from said
    share = share_of(match.pod, said, match.request.container) if said is not None else None
    if said is None or share is None:
        return ChosenDevices(_without_extender(world, match, counted), annotated=False)
    _check(world, match, said, share)
    return ChosenDevices(share, annotated=True)


def prefer(
    world: NodeSnapshot,
    match: WaitingContainer | None,
    resource: NeuronResource,
    available: frozenset[int],
    needed: frozenset[int],
    size: int,
) -> Sequence[int]:
    """Ids that kubelet should count for a container: those that it will get, or else a connected set; [] for none."""
    if match is not None:
        # kubelet adds the ids that it must include itself, such as those left over from an init container.
        return [number for number in choose(world, match, frozenset()).share.ids if number in available]
    machine = world.offer.hardware
    free, must = counted_mask(machine, resource, available), counted_mask(machine, resource, needed)
    masks = [mask for mask in candidates(machine, resource, size) if not mask & ~free and not must & ~mask]
    best = least_breaking_first(machine, ((1 << machine.cores) - 1) & ~free, masks)[:1]
    return [number for mask in best for number in machine.ids(resource, mask)]


_AGAIN: Final = "delete the pod, so that its controller creates a new one"


def _check(world: NodeSnapshot, match: WaitingContainer, said: RecordedAllocation, share: ContainerShare) -> None:
    """Raise AllocateError unless the container can be given the devices that were chosen for it."""
    machine, request, pod = world.offer.hardware, match.request, match.pod
    what = f"{share.resource.noun}s {ranges(share.ids)} were chosen for container {request.container!r} of pod {pod}"
    if share.resource is not request.resource or len(share.ids) != request.count:
        raise AllocateError(
            f"{what}, which asks for {request.count} of {request.resource.value}",
            consequence="somebody has edited the annotations",
            remedy=_AGAIN,
        )
    if share.resource is NeuronResource.CORE and said.cores_per_device not in (0, machine.cores_per_device):
        raise AllocateError(
            f"{what} when a device had {said.cores_per_device} cores, now it has {machine.cores_per_device}",
            consequence="the node's logical core size has changed",
            remedy=_AGAIN,
        )
    mask = counted_mask(machine, share.resource, frozenset(share.ids))
    if mask not in candidates(machine, request.resource, request.count):
        raise AllocateError(
            f"{what}, but {machine.instance_type} has no such connected set", remedy=f"check {ALLOCATION}; {_AGAIN}"
        )
    _check_usable(world, mask, what)
    _check_free(world, match, mask, what)


def _check_usable(world: NodeSnapshot, mask: int, what: str) -> None:
    machine = world.offer.hardware
    lost = [chip for chip in machine.ids(NeuronResource.DEVICE, mask) if chip not in world.offer.usable]
    if lost:
        why = "; ".join(world.offer.sick[chip] for chip in lost if chip in world.offer.sick)
        raise AllocateError(
            f"{what}, but {_chips(lost)} cannot be used now{f' ({why})' if why else ''}",
            consequence="the pod fails",
            remedy="look at the log of the device plugin on this node for the reason",
        )


def _chips(indexes: Iterable[int]) -> str:
    return ", ".join(f"neuron{index}" for index in indexes)


def _check_free(world: NodeSnapshot, match: WaitingContainer, mask: int, what: str) -> None:
    for other, taken in taken_by_others(world, match.pod):
        # Devices chosen for a pod that has none yet are reserved when choosing. Here it is enough to refuse the second
        # of two pods; otherwise an edit of one pod would fail another.
        if taken.mask & mask and not taken.waits:
            raise AllocateError(f"{what}, but {other} has some of them", consequence="none is given", remedy=_AGAIN)
    if _of_siblings(world, match) & mask:
        raise AllocateError(f"{what}, but another container of the pod has some of them", remedy=_AGAIN)


def _of_siblings(world: NodeSnapshot, match: WaitingContainer) -> int:
    """The cores of containers of the same pod that run at the same time."""
    requests = match.pod.requests or ()
    own = next(item for item, request in enumerate(requests) if request.container == match.request.container)
    names = {requests[item].container for item in beside(requests, own)}
    shares = world.handed.get(match.pod.uid, {}).items()
    machine = world.offer.hardware
    return union(
        counted_mask(machine, share.resource, frozenset(share.ids)) for container, share in shares if container in names
    )


def _without_extender(world: NodeSnapshot, match: WaitingContainer, counted: frozenset[int]) -> ContainerShare:
    """One device or core, or all of them, out of what no other pod has."""
    machine, request, pod = world.offer.hardware, match.request, match.pod
    if request.count not in (1, machine.units(request.resource)):
        raise AllocateError(
            f"{NEEDS_EXTENDER}: container {request.container!r} of pod {pod} asks for {request.count} of "
            f"{request.resource.value}, and no annotation says which",
            consequence="without it only one or all are available",
            remedy="install the scheduler extension and set the pod's schedulerName, or ask for 1 or "
            f"{machine.units(request.resource)}",
        )
    others = taken_by_others(world, pod)
    for other, taken in others:
        if taken.trouble:
            raise AllocateError(
                f"it is not known which devices {other} has: {taken.trouble}",
                consequence=f"so none can be given to pod {pod} without an extender's choice",
                remedy=f"delete {other}, or let an extender choose",
            )
    busy = union(taken.mask for _, taken in others) | world.offer.mask_of_unusable()
    own = _of_siblings(world, match)
    free = [mask for mask in candidates(machine, request.resource, request.count) if not mask & (busy | own)]
    if not free:
        unusable = world.offer.unusable
        raise AllocateError(
            f"{request.count} of {request.resource.value} for container {request.container!r} of pod {pod} are not "
            f"free{f'; {_chips(unusable)} cannot be used now' if unusable else ''}",
            consequence="the pod fails",
            remedy=f"pods on this node that use {NeuronResource.DEVICE.value} and {NeuronResource.CORE.value} share "
            "its chips; an extender keeps them apart",
        )
    wished = counted_mask(machine, request.resource, counted)
    mask = wished if wished in free else least_breaking_first(machine, busy | own, free, handed_mask(world, pod))[0]
    return ContainerShare(request.container, request.resource, machine.ids(request.resource, mask))

"""Which ids a container gets: those that the extender has chosen, or without an extender one or all.

What was chosen is checked against everything known before it is handed out: annotations can be edited, another
scheduler may have placed a pod beside the extender's, and a chip may have failed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dra_driver.legacy.annotations import Allocation, Share, ranges
from dra_driver.legacy.demand import Role
from dra_driver.legacy.deviceplugin.matching import Match, allocation_of
from dra_driver.legacy.deviceplugin.snapshot import (
    Snapshot,
    counted_mask,
    handed_mask,
    share_of,
    taken_by_others,
)
from dra_driver.legacy.names import ALLOCATION, Resource
from dra_driver.legacy.placement import union
from dra_driver.legacy.rules import by_wholeness, candidates
from dra_driver.util.errors import DriverError

NEEDS_EXTENDER: Final = "The requested Neuron resources are invalid without the k8s-neuron-scheduler"
"""The vendor's text for a pod that asks for several, and whose devices nobody has chosen."""


class Refusal(DriverError):  # noqa: N818 # an answer, no failure of the plugin
    """A container that gets nothing. kubelet puts the text into the pod's event and fails the pod."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a container gets.

    Attributes:
        share: container, resource and ids.
        annotated: whether somebody else has chosen it and written it down.
    """

    share: Share
    annotated: bool


def choose(world: Snapshot, match: Match, counted: frozenset[int]) -> Choice:
    """What the container gets. ``counted`` are the ids that kubelet will count for it. Raises Refusal."""
    said = allocation_of(match.pod)
    if isinstance(said, DriverError):
        raise Refusal(f"pod {match.pod}: {said}", remedy=_AGAIN) from said
    share = share_of(match.pod, said, match.want.container) if said is not None else None
    if said is None or share is None:
        return Choice(_without_extender(world, match, counted), annotated=False)
    _check(world, match, said, share)
    return Choice(share, annotated=True)


def prefer(
    world: Snapshot,
    match: Match | None,
    resource: Resource,
    available: frozenset[int],
    needed: frozenset[int],
    size: int,
) -> Sequence[int]:
    """Ids that kubelet shall count for a container: those that it will get, or a good set by topology; [] for none."""
    if match is not None:
        # kubelet adds what it needs beside them, such as what an init container leaves: of its own pod, mostly.
        return [number for number in choose(world, match, frozenset()).share.ids if number in available]
    machine = world.offer.hardware
    free, must = counted_mask(machine, resource, available), counted_mask(machine, resource, needed)
    masks = [mask for mask in candidates(machine, resource, size) if not mask & ~free and not must & ~mask]
    best = by_wholeness(machine, ((1 << machine.cores) - 1) & ~free, masks)[:1]
    return [number for mask in best for number in machine.ids(resource, mask)]


_AGAIN: Final = "delete the pod, so that its controller makes a new one"


def _check(world: Snapshot, match: Match, said: Allocation, share: Share) -> None:
    """Raise Refusal unless the container can be given what was chosen for it."""
    machine, want, pod = world.offer.hardware, match.want, match.pod
    what = f"{share.resource.noun}s {ranges(share.ids)} were chosen for container {want.container!r} of pod {pod}"
    if share.resource is not want.resource or len(share.ids) != want.count:
        raise Refusal(
            f"{what}, which asks for {want.count} of {want.resource.value}",
            consequence="somebody has edited the annotations",
            remedy=_AGAIN,
        )
    if share.resource is Resource.CORE and said.cores_per_device not in (0, machine.cores_per_device):
        raise Refusal(
            f"{what} when a device had {said.cores_per_device} cores, now it has {machine.cores_per_device}",
            consequence="the node's logical core size has changed",
            remedy=_AGAIN,
        )
    mask = counted_mask(machine, share.resource, frozenset(share.ids))
    if mask not in candidates(machine, want.resource, want.count):
        raise Refusal(
            f"{what}, but {machine.instance_type} has no such connected set", remedy=f"check {ALLOCATION}; {_AGAIN}"
        )
    _check_usable(world, mask, what)
    _check_free(world, match, mask, what)


def _check_usable(world: Snapshot, mask: int, what: str) -> None:
    machine = world.offer.hardware
    lost = [chip for chip in machine.ids(Resource.DEVICE, mask) if chip not in world.offer.usable]
    if lost:
        raise Refusal(
            f"{what}, but {', '.join(f'neuron{chip}' for chip in lost)} cannot be used now",
            consequence="the pod fails",
            remedy="look at the log of the device plugin on this node for the reason",
        )


def _check_free(world: Snapshot, match: Match, mask: int, what: str) -> None:
    for other, taken in taken_by_others(world, match.pod):
        # What was chosen for a pod that has nothing yet counts for those who choose. Here it is enough that the second
        # of two is refused, or an edit of one pod would fail another one.
        if taken.mask & mask and not taken.waits:
            raise Refusal(f"{what}, but pod {other} has some of them", consequence="none is given", remedy=_AGAIN)
    if match.want.role is not Role.INIT and _of_siblings(world, match) & mask:
        raise Refusal(f"{what}, but another container of the pod has some of them", remedy=_AGAIN)


def _of_siblings(world: Snapshot, match: Match) -> int:
    """What containers of the same pod have that run at the same time."""
    lasting = {want.container for want in match.pod.wants or () if want.role is not Role.INIT}
    shares = world.handed.get(match.pod.uid, {}).items()
    machine = world.offer.hardware
    return union(
        counted_mask(machine, share.resource, frozenset(share.ids))
        for container, share in shares
        if container in lasting and container != match.want.container
    )


def _without_extender(world: Snapshot, match: Match, counted: frozenset[int]) -> Share:
    """One or all, of what nobody has."""
    machine, want, pod = world.offer.hardware, match.want, match.pod
    if want.count not in (1, machine.units(want.resource)):
        raise Refusal(
            f"{NEEDS_EXTENDER}: container {want.container!r} of pod {pod} asks for {want.count} of "
            f"{want.resource.value}, and no annotation tells which",
            consequence="without it only one or all can be had",
            remedy="install the scheduler extension and set the pod's schedulerName, or ask for 1 or "
            f"{machine.units(want.resource)}",
        )
    others = taken_by_others(world, pod)
    for other, taken in others:
        if taken.trouble:
            raise Refusal(
                f"which devices pod {other} has is not known: {taken.trouble}",
                consequence=f"so none can be given to pod {pod} without an extender's choice",
                remedy=f"delete pod {other}, or let an extender choose",
            )
    busy = union(taken.mask for _, taken in others) | world.offer.mask_of_unusable()
    own = _of_siblings(world, match) if want.role is not Role.INIT else 0
    free = [mask for mask in candidates(machine, want.resource, want.count) if not mask & (busy | own)]
    if not free:
        raise Refusal(
            f"{want.count} of {want.resource.value} for container {want.container!r} of pod {pod} are not free",
            consequence="the pod fails",
            remedy=f"pods on this node that use {Resource.DEVICE.value} and {Resource.CORE.value} share its chips; "
            "an extender keeps them apart",
        )
    wished = counted_mask(machine, want.resource, counted)
    mask = wished if wished in free else by_wholeness(machine, busy | own, free, handed_mask(world, pod))[0]
    return Share(want.container, want.resource, machine.ids(want.resource, mask))

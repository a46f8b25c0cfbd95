"""Which container kubelet is asking for. It says the resource and ids, whose number is right, and nothing of the pod.

kubelet admits one pod after the other and its containers in order (init containers first), so the next container of a
pod is the first one that has nothing yet. PodResources lists the pod that is being admitted, and shows which containers
have devices; the pods behind it are not listed yet. Kubelets before 1.34 list on what they have rejected: where several
listed pods remain, which one is meant is not known. Where none of them is listed, the one whose devices were chosen
first is taken for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from dra_driver.legacy.annotations import Allocation, read
from dra_driver.legacy.demand import Want
from dra_driver.legacy.deviceplugin.pods import BoundPod
from dra_driver.legacy.deviceplugin.snapshot import Snapshot
from dra_driver.legacy.names import Resource
from dra_driver.util.errors import DriverError

_LAST: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class Match:
    """A container that waits for its devices."""

    pod: BoundPod
    want: Want
    listed: bool
    """Whether kubelet told of it; otherwise it is a guess by age."""
    rivals: tuple[BoundPod, ...] = ()
    """Other pods that kubelet may mean just as well, by all that it tells."""


def find(
    world: Snapshot, resource: Resource, count: int, refused: Collection[str] = (), *, again: bool = False
) -> Match | None:
    """The container that a request is for; None when there is no such container.

    Args:
        world: what is known.
        resource: asked for.
        count: how many of it.
        refused: UIDs of pods whose last request was refused: kubelet has given them up.
        again: containers that were served before count too: kubelet, restarted, may have lost the answer.
    """
    found = sorted(_candidates(world, resource, count, again=again), key=lambda match: _order(world, match, refused))
    if not found:
        return None
    best, signs = found[0], _signs(world, found[0], refused)
    rivals = (match.pod for match in found[1:] if best.listed and _signs(world, match, refused) == signs)
    return replace(best, rivals=tuple(rivals))


def unknown_pods(world: Snapshot, known: Collection[tuple[str, str]]) -> bool:
    """Whether kubelet lists a pod without any device that the API server has not told of yet."""
    return any(
        key not in known and not any(any(ids.values()) for ids in found.containers.values())
        for key, found in (world.listed or {}).items()
    )


def _candidates(world: Snapshot, resource: Resource, count: int, *, again: bool) -> Iterable[Match]:
    """One match a pod at most."""
    for pod in world.pods:
        if pod.running:  # all its containers have their devices; should kubelet tell otherwise, it means a later pod
            continue
        waiting = [want for want in pod.wants or () if not _served(world, pod, want, again=again)]
        fitting = [want for want in waiting if want.resource is resource and want.count == count]
        if not fitting or (not again and waiting[0] is not fitting[0]):
            continue
        yield Match(pod, fitting[0], pod.key in (world.listed or {}))


def _served(world: Snapshot, pod: BoundPod, want: Want, *, again: bool) -> bool:
    counted = world.counted(pod, want.container, want.resource)
    if counted is not None:
        return bool(counted)
    # Not a pod that kubelet lists, or an init container, of which it does not tell: that comes before all others.
    later = any(world.counted(pod, other.container, other.resource) for other in pod.wants or ())
    handed = want.container in world.handed.get(pod.uid, {}) or _said_to_be_handed_out(pod)
    return later or (handed and not again)


def _said_to_be_handed_out(pod: BoundPod) -> bool:
    found = allocation_of(pod)
    return isinstance(found, Allocation) and found.handed_out


def allocation_of(pod: BoundPod) -> Allocation | DriverError | None:
    """What the annotations say, why they cannot be read, or None when they say nothing."""
    try:
        return read(pod.annotations, {want.resource for want in pod.wants or ()})
    except DriverError as error:
        return error


def _signs(world: Snapshot, match: Match, refused: Collection[str]) -> tuple[bool, bool, bool]:
    """What tells that a pod is not meant; the likeliest is first in order."""
    return (
        not match.listed,
        match.pod.uid in refused,
        # Served, and kubelet counts nothing for it: most likely it failed for another reason.
        match.want.container in world.handed.get(match.pod.uid, {}),
    )


def _order(
    world: Snapshot, match: Match, refused: Collection[str]
) -> tuple[tuple[bool, bool, bool], bool, int, str, str]:
    found = allocation_of(match.pod)
    chosen_at = found.chosen_at if isinstance(found, Allocation) else 0
    return _signs(world, match, refused), found is None, chosen_at or _LAST, match.pod.created, match.pod.uid

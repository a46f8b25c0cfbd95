"""Assigns sets to all containers of a pod, or explains why it does not fit.

Containers that run at the same time get disjoint sets. An init container runs alone except for the sidecars started
before it, so it shares the devices of the containers after it. kubelet counts the same way: a pod needs the most that
it uses at one time, not the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Final

from dra_driver.legacy.resource_requests import ContainerRequest, PodRequest, Role, beside
from dra_driver.legacy.rules import (
    NeuronResource,
    NodeHardware,
    bits,
    candidates,
    counts,
    free_candidates,
    free_runs,
    least_breaking_first,
)

MAX_BEST: Final = 16
"""Containers of a pod, the largest, that get the best sets; those after them get the first that are free. Computing the
best for 64 takes a third of a second, while everybody waits."""
MAX_STEPS: Final = 500
"""Ways to pack one pod on one node that are tried before its containers are considered not to fit together."""
MAX_EFFORT: Final = 4000
"""For one pod on one node: how many times the sets of one container are gone through, about 20 µs each where there are
hundreds of them. Everybody waits meanwhile, and who creates pods and nodes chooses how hard they are to match."""
_SHOWN: Final = 8
"""Different amounts that a refusal names: it is kept for each usage of a node."""


@dataclass(frozen=True, slots=True)
class DoesNotFit:
    """Why a pod does not fit on a node.

    Attributes:
        text: for the pod's event, which appends a full stop; equal on nodes of equal type and usage, so that the
            scheduler can count them.
        lasting: whether it never fits, whatever pods end.
    """

    text: str
    lasting: bool


def place(hardware: NodeHardware, taken: int, requests: PodRequest) -> tuple[int, ...] | DoesNotFit:
    """A mask of cores for each of ``requests``, in the same order.

    Args:
        hardware: the node.
        taken: cores that other pods hold.
        requests: of one pod.
    """
    return Packing(hardware, requests).place(taken)


def fits(hardware: NodeHardware, taken: int, requests: PodRequest) -> DoesNotFit | None:
    """Why ``place`` would fail, or None; much faster."""
    return Packing(hardware, requests).fits(taken)


class Packing:
    """A pod's containers on one kind of node: created once, then used for every node of that kind.

    Whether they fit is decided by counting and by packing from one end, which is cheap enough for thousands of nodes.
    The best sets are the best ones after which the rest still fits, so both answers always agree.
    """

    def __init__(self, hardware: NodeHardware, requests: PodRequest) -> None:
        self.hardware = hardware
        self._requests = requests
        # Largest first: small sets fit into what larger ones leave, and into sets that they may share.
        self._order = sorted(range(len(requests)), key=lambda item: (-cores_of(hardware, requests[item]), item))
        self._together = tuple(_mask(beside(requests, item)) for item in range(len(requests)))
        """For each container, a mask of those that may run at the same time."""
        self._sizes = tuple({(request.resource, request.count): request for request in requests}.values())
        """One request of each size."""
        self._inits = [item for item in self._order if requests[item].role is Role.INIT]
        self._groups = self._grouped()

    def fits(self, taken: int) -> DoesNotFit | None:
        """Why ``place`` would fail, or None."""
        return self._refusal(taken) if self._pack(taken, {}, _Effort()) is None else None

    def place(self, taken: int) -> tuple[int, ...] | DoesNotFit:
        """A mask of cores for each container, in the same order.

        Args:
            taken: cores that other pods hold.
        """
        effort = _Effort()
        packed = self._pack(taken, {}, effort)
        if packed is None:
            return self._refusal(taken)
        chosen: dict[int, int] = {}
        for item in self._order[:MAX_BEST]:
            if effort.left <= 0:
                break
            for option in self._options(taken, item, chosen):
                found = packed if option == packed[item] else self._pack(taken, {**chosen, item: option}, effort)
                if found is not None:
                    packed = found
                    break
            chosen[item] = packed[item]
        return tuple(packed[item] for item in range(len(packed)))

    def _options(self, taken: int, item: int, chosen: Mapping[int, int]) -> list[int]:
        """The free sets for a container, best first."""
        request, own = self._requests[item], union(chosen.values())
        free = free_candidates(self.hardware, self._busy(taken, item, chosen), request.resource, request.count)
        return least_breaking_first(self.hardware, taken | own, free, own)

    def _pack(self, taken: int, chosen: Mapping[int, int], effort: _Effort) -> Mapping[int, int] | None:
        """A set for each container by index, including the chosen ones; None if there is no such packing."""
        if effort.left <= 0:
            return None
        groups = self._beside(chosen) if chosen else self._groups
        busy = taken | union(mask for item, mask in chosen.items() if self._requests[item].role is not Role.INIT)
        if sum(group.cores * len(group.items) for group in groups) > self.hardware.cores - busy.bit_count():
            return None
        inits = [item for item in self._inits if item not in chosen]
        effort.left -= len(inits) + 2 * len(groups)
        if not all(self._room(taken, item, chosen) for item in inits):
            return None
        if not _hopeful(busy, groups):
            return None
        for packed in _packings(busy, groups, islice(effort, MAX_STEPS)):
            found = {**chosen, **packed}
            effort.left -= len(inits)
            rooms = self._rooms(taken, inits, found)
            if rooms is not None:
                return found | rooms
        return None

    def _rooms(self, taken: int, inits: list[int], chosen: Mapping[int, int]) -> dict[int, int] | None:
        """The first free set for each of some init containers; None if there is none for one of them.

        That one becomes the first of ``inits``: the next packing most likely leaves it no room either.
        """
        found = {}
        for position, item in enumerate(inits):
            found[item] = self._room(taken, item, chosen)
            if not found[item]:
                inits.insert(0, inits.pop(position))
                return None
        return found

    def _room(self, taken: int, item: int, chosen: Mapping[int, int]) -> int:
        """The first free set for a container; 0 if there is none."""
        request, busy = self._requests[item], self._busy(taken, item, chosen)
        masks = candidates(self.hardware, request.resource, request.count)
        return next((mask for mask in masks if not mask & busy), 0)

    def _busy(self, taken: int, item: int, chosen: Mapping[int, int]) -> int:
        others = self._together[item]
        return taken | union(mask for other, mask in chosen.items() if others >> other & 1)

    def _grouped(self) -> list[_Group]:
        """The containers that run side by side; interchangeable ones form one group."""
        found: dict[tuple[NeuronResource, int, int], list[int]] = {}
        inits = _mask(self._inits)
        for item in self._order:
            request = self._requests[item]
            if request.role is not Role.INIT:
                meets = self._together[item] & inits
                found.setdefault((request.resource, request.count, meets), []).append(item)
        groups = []
        for (resource, count, meets), items in found.items():
            masks = candidates(self.hardware, resource, count)
            groups.append(_Group(tuple(items), meets, masks, union(mask & -mask for mask in masks), 0))
        return [
            replace(group, inside=union(_mask(other.items) for other in groups if other.holds(group)))
            for group in groups
        ]

    def _beside(self, chosen: Mapping[int, int]) -> list[_Group]:
        """The groups without the containers that have their sets already."""
        found = []
        rest = ~_mask(chosen)
        for group in self._groups:
            items = tuple(item for item in group.items if item not in chosen)
            busy = union(mask for item, mask in chosen.items() if group.meets >> item & 1)
            masks = tuple(mask for mask in group.masks if not mask & busy) if busy else group.masks
            if items:
                found.append(replace(group, items=items, masks=masks, inside=group.inside & rest))
        return found

    def _refusal(self, taken: int) -> DoesNotFit:
        hardware = self.hardware
        for request in self._sizes:
            if not candidates(hardware, request.resource, request.count):
                return DoesNotFit(f"{unsupported(hardware, request)} {_fits(hardware, request, taken)}", lasting=True)
        for request in self._sizes:
            if not any(not mask & taken for mask in candidates(hardware, request.resource, request.count)):
                # Not permanent: an empty node always has room for one container.
                return DoesNotFit(f"{_busy(request)} {_fits(hardware, request, taken)}", lasting=False)
        return DoesNotFit(f"{self._not_all} {_free(hardware, self._requests[0], taken)}", self._never)

    @cached_property
    def _never(self) -> bool:
        return self._pack(0, {}, _Effort()) is None

    @cached_property
    def _not_all(self) -> str:
        amounts = list(dict.fromkeys(_amount(request) for request in self._requests))
        asked = " and ".join(amounts[:_SHOWN] + ["others"] * (len(amounts) > _SHOWN))
        return f"No free Neuron sets for all containers of the pod together, which ask for {asked}."


@dataclass(slots=True)
class _Effort:
    """What may still be done for one pod on one node; an item for each thing that is done."""

    left: int = MAX_EFFORT

    def __iter__(self) -> Iterator[int]:
        while self.left > 0:
            self.left -= 1
            yield self.left


@dataclass(frozen=True, slots=True)
class _Group:
    """Containers with equal requests that run beside the same others.

    Attributes:
        items: their indexes in the pod's requests.
        meets: mask of the indexes of the init containers that run beside them.
        masks: the sets that each of them may get, ascending.
        starts: mask of the first cores of all sets of that many cores.
        inside: mask of the indexes of all containers whose sets contain one of these, whatever init containers get.
    """

    items: tuple[int, ...]
    meets: int
    masks: tuple[int, ...]
    starts: int
    inside: int

    @property
    def cores(self) -> int:
        """Number of cores of one of them."""
        return self.masks[0].bit_count() if self.masks else 0

    def holds(self, other: _Group) -> bool:
        """Whether each set of this group contains one of the other; all of them are runs of cores."""
        reach, number, wanted = other.starts, 1, self.cores - other.cores + 1
        while number < wanted:
            reach |= reach >> min(number, wanted - number)
            number *= 2
        return wanted > 0 and not self.starts & ~reach and not other.meets & ~self.meets


def _hopeful(busy: int, groups: Sequence[_Group]) -> bool:
    """Whether each group would fit if only it existed, with the containers whose sets contain its sets."""
    return all(next(_disjoint(busy, group.masks, group.inside.bit_count(), (0,)), None) is not None for group in groups)


def _packings(busy: int, groups: Sequence[_Group], steps: Iterable[int]) -> Iterator[dict[int, int]]:
    """Disjoint sets for the containers of all groups, by index."""
    if not groups:
        yield {}
        return
    first, *rest = groups
    for masks in _disjoint(busy, first.masks, len(first.items), steps):
        for others in _packings(busy | union(masks), rest, steps):
            yield dict(zip(first.items, masks, strict=True)) | others


def _disjoint(busy: int, masks: Sequence[int], number: int, steps: Iterable[int]) -> Iterator[list[int]]:
    """Every way to choose ``number`` disjoint masks, leftmost first.

    All masks have the same length, so if the leftmost choice is too small, no other one is large enough.
    """
    found: list[int] = []
    """Indexes into ``masks``."""
    start = 0
    for _ in steps:
        for position in range(start, len(masks)):
            if not masks[position] & busy:
                busy |= masks[position]
                found.append(position)
                if len(found) == number:
                    yield [masks[item] for item in found]
                    break
        if not found:
            return
        start = found.pop()
        busy ^= masks[start]
        start += 1


def unsupported(hardware: NodeHardware, request: ContainerRequest) -> str:
    """The vendor's message for a count that no node of this type can serve."""
    return (
        f"Instance type {hardware.instance_type} does not support requests for {request.resource.noun}: "
        f"{request.count}. Please request a different number of {request.resource.noun}s."
    )


def union(masks: Iterable[int]) -> int:
    """Union of some masks."""
    found = 0
    for mask in masks:
        found |= mask
    return found


def _mask(items: Iterable[int]) -> int:
    return union(1 << item for item in items)


def cores_of(hardware: NodeHardware, request: ContainerRequest) -> int:
    """Number of cores that a container gets."""
    return request.count * (hardware.cores_per_device if request.resource is NeuronResource.DEVICE else 1)


def _busy(request: ContainerRequest) -> str:
    connected = "" if request.count == 1 else "connected "
    return (
        f"No {_amount(request, connected)} are free." if request.count > 1 else f"No {request.resource.noun} is free."
    )


def _amount(request: ContainerRequest, adjective: str = "") -> str:
    return f"{request.count} {adjective}{request.resource.noun}{'' if request.count == 1 else 's'}"


def _fits(hardware: NodeHardware, request: ContainerRequest, taken: int) -> str:
    """What is possible on the node, and what is free."""
    return f"Possible here: {_possible(hardware, request.resource)}. {_free(hardware, request, taken)}"


@lru_cache(maxsize=1024)
def _possible(hardware: NodeHardware, resource: NeuronResource) -> str:
    return list_counts(counts(hardware, resource))


def _free(hardware: NodeHardware, request: ContainerRequest, taken: int) -> str:
    units = hardware.units(request.resource)
    number = units - hardware.busy(request.resource, taken)
    # No set can be longer than the longest free run.
    longest = max(free_runs(hardware, taken), default=0) // (hardware.cores // units)
    for count in reversed(counts(hardware, request.resource)):
        if count <= longest and any(not mask & taken for mask in candidates(hardware, request.resource, count)):
            return f"Free: {number} of {units} {request.resource.noun}s, at most {count} together"
    return f"Free: {number} of {units} {request.resource.noun}s"


def list_counts(numbers: tuple[int, ...]) -> str:
    """Numbers as text, runs of three or more as ranges: ``1 to 4, 8``."""
    parts: list[str] = []
    mask = sum(1 << number for number in numbers)
    start = 0
    for number in bits(mask):
        if not mask >> (number - 1) & 1:
            start = number
        if not mask >> (number + 1) & 1:
            run = range(start, number + 1)
            parts += [f"{start} to {number}"] if len(run) > 2 else [str(item) for item in run]
    return ", ".join(parts)

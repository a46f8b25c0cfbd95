"""Sets for all containers of a pod at once, or the sentence that says why there are none.

Containers that run at the same time have sets of their own. An init container runs alone but for the sidecars started
before it, so it shares the devices of the containers after it, as kubelet counts it too: a pod needs the most that it
uses at one time, not the sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from dra_driver.legacy.demand import Demand, Role, Want
from dra_driver.legacy.hardware import Hardware, bits
from dra_driver.legacy.names import Resource
from dra_driver.legacy.rules import by_wholeness, candidates, counts, free_candidates

MOST_STEPS: Final = 500
"""Sets tried for one pod on one node before its containers count as not fitting together."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod cannot be here.

    Attributes:
        text: for the pod's event, which ends it with a full stop; equal on nodes of equal type and use, so that the
            scheduler counts them.
        lasting: whether it stays so whatever pods end.
    """

    text: str
    lasting: bool


def place(hardware: Hardware, taken: int, wants: Demand) -> tuple[int, ...] | Refusal:
    """A mask of cores for each of ``wants``, in their order.

    Args:
        hardware: the node.
        taken: cores that others have.
        wants: of one pod.
    """
    refusal = _unsupported(hardware, taken, wants)
    if refusal is not None:
        return refusal
    found = _search(hardware, taken, wants)
    return _no_room(hardware, taken, wants) if found is None else found


def fits(hardware: Hardware, taken: int, wants: Demand) -> Refusal | None:
    """Why ``place`` would refuse, or None: much faster where one container asks."""
    if len(wants) == 1:
        want = wants[0]
        if any(not mask & taken for mask in candidates(hardware, want.resource, want.count)):
            return None
        return _unsupported(hardware, taken, wants) or _no_room(hardware, taken, wants)
    found = place(hardware, taken, wants)
    return found if isinstance(found, Refusal) else None


def _unsupported(hardware: Hardware, taken: int, wants: Demand) -> Refusal | None:
    for want in wants:
        if not candidates(hardware, want.resource, want.count):
            return Refusal(f"{unsupported(hardware, want)} {_fits(hardware, want, taken)}", lasting=True)
    return None


def unsupported(hardware: Hardware, want: Want) -> str:
    """The vendor's sentence for a count that no node of this type can give."""
    return (
        f"Instance type {hardware.instance_type} does not support requests for {want.resource.noun}: {want.count}. "
        f"Please request a different number of {want.resource.noun}s."
    )


def union(masks: Iterable[int]) -> int:
    """All cores of some masks."""
    found = 0
    for mask in masks:
        found |= mask
    return found


def _search(hardware: Hardware, taken: int, wants: Demand) -> tuple[int, ...] | None:
    """Depth first, the best set first; None when nothing was found within the steps."""
    together = _together(wants)
    # The largest first: small sets find room in what larger ones leave, and inside sets that are theirs to share.
    order = sorted(range(len(wants)), key=lambda item: (-cores_of(hardware, wants[item]), item))
    steps = iter(range(MOST_STEPS))

    def extend(chosen: dict[int, int]) -> tuple[int, ...] | None:
        if len(chosen) == len(order):
            return tuple(chosen[item] for item in range(len(wants)))
        item = order[len(chosen)]
        for option in _options(hardware, taken, wants[item], chosen, together[item]):
            if next(steps, None) is None:
                return None
            found = extend({**chosen, item: option})
            if found is not None:
                return found
        return None

    return extend({})


def _options(hardware: Hardware, taken: int, want: Want, chosen: dict[int, int], together: frozenset[int]) -> list[int]:
    own = union(chosen.values())
    beside = union(mask for other, mask in chosen.items() if other in together)
    free = free_candidates(hardware, taken | beside, want.resource, want.count)
    return by_wholeness(hardware, taken | own, free, own)


def _together(wants: Demand) -> tuple[frozenset[int], ...]:
    """For each container the others that may run at the same time."""

    def meet(first: int, second: int) -> bool:
        roles = wants[first].role, wants[second].role
        if Role.INIT not in roles:
            return True
        init, other = (first, second) if roles[0] is Role.INIT else (second, first)
        return wants[other].role is Role.SIDECAR and other < init

    items = range(len(wants))
    return tuple(frozenset(other for other in items if other != item and meet(item, other)) for item in items)


def cores_of(hardware: Hardware, want: Want) -> int:
    """How many cores a container gets."""
    return want.count * (hardware.cores_per_device if want.resource is Resource.DEVICE else 1)


def _no_room(hardware: Hardware, taken: int, wants: Demand) -> Refusal:
    """Why sets that the rules allow are not free."""
    for want in wants:
        if not free_candidates(hardware, taken, want.resource, want.count):
            # Not for ever: on an empty node there is always room for one container.
            return Refusal(f"{_busy(want)} {_fits(hardware, want, taken)}", lasting=False)
    asked = " and ".join(dict.fromkeys(_amount(want) for want in wants))
    lasting = _search(hardware, 0, wants) is None
    text = f"No free Neuron sets for all containers of the pod together, which ask for {asked}."
    return Refusal(f"{text} {_free(hardware, wants[0], taken)}", lasting)


def _busy(want: Want) -> str:
    connected = "" if want.count == 1 else "connected "
    return f"No {_amount(want, connected)} are free." if want.count > 1 else f"No {want.resource.noun} is free."


def _amount(want: Want, adjective: str = "") -> str:
    return f"{want.count} {adjective}{want.resource.noun}{'' if want.count == 1 else 's'}"


def _fits(hardware: Hardware, want: Want, taken: int) -> str:
    """What is asked, what fits, what is free."""
    possible = list_counts(counts(hardware, want.resource))
    return f"Possible here: {possible}. {_free(hardware, want, taken)}"


def _free(hardware: Hardware, want: Want, taken: int) -> str:
    units = hardware.units(want.resource)
    number = units - len(hardware.ids(want.resource, taken))
    now = [count for count in counts(hardware, want.resource) if free_candidates(hardware, taken, want.resource, count)]
    largest = f", at most {now[-1]} together" if now else ""
    return f"Free: {number} of {units} {want.resource.noun}s{largest}"


def list_counts(numbers: tuple[int, ...]) -> str:
    """Numbers as text, runs of three and more as ranges: ``1 to 4, 8``."""
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

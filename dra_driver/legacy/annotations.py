"""The annotations of pods and nodes about devices: written and parsed.

The extender writes the vendor's keys, current and former ones, for their readers, and two keys of its own. They record
which container has which ids, and of which pod all of them are: its UID, and the time that the keys have::

    neuron.aws.com/allocation: {"coresPerDevice":2,"containers":[{"name":"main","resource":"aws.amazon.com/neuroncore",
                                "ids":"0-8"}]}
    neuron.aws.com/allocation-of: 5a0c9c0e-5e0f-4a52-8f0c-3c1f2a9d7b11 1700000000000000000

Anyone who may create or edit a pod may write these. They are therefore parsed strictly and within bounds, and the
devices named by any of the keys count as taken, unless it names more than the pod requests (``usage``): an edit may
withhold a device from the cluster, but never gives one to two pods.

Sources: aws-neuron-sdk ``deploy/infrastructure/scheduler.rst`` and its flow diagrams.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from dra_driver.kube.objects.meta import ApiObject, seconds
from dra_driver.legacy.resource_requests import MAX_CONTAINERS
from dra_driver.legacy.rules import (
    MAX_CORES_PER_DEVICE,
    MAX_DEVICES,
    RETIRED_DEVICE,
    NeuronResource,
    NodeHardware,
    bits,
)
from dra_driver.neuron.names import UNUSABLE_DEVICES
from dra_driver.util.errors import DriverError
from dra_driver.util.text import quoted, ranges, shorten

IDS: Final = "AWS_NEURON_IDS"
ALLOCATED: Final = "NEURON_ALLOCATED"
"""``false`` once the extender has chosen the devices, ``true`` once the device plugin has handed them out."""
ALLOC_TIME: Final = "NEURON_ALLOC_TIME"
"""When the extender chose the devices: nanoseconds since the epoch."""
RESOURCE_TYPE: Final = "NEURON_RESOURCE_TYPE"
"""Resource that the ids belong to."""
CORES: Final = "NEURON_CORES"
DEVICES: Final = "NEURON_DEVS"
"""Former keys for the ids, one for each resource."""
ALLOCATION: Final = "neuron.aws.com/allocation"
"""The extender's own key: which container has which ids, as shown above."""
OF: Final = "neuron.aws.com/allocation-of"
"""UID of the pod that the keys were written for, and their ALLOC_TIME: a copy of the pod has another UID, and who
chooses for it later, another time."""
CLOCKS_DIFFER_SECONDS: Final = 300.0
"""Between the extender's clock and the API server's."""

DEVICE_USAGE: Final = "NEURON_DEV_USAGE_MAP"
CORE_USAGE: Final = "NEURON_CORE_USAGE_MAP"
"""Node annotations, ``true`` or ``false`` for each id: written for their readers, never used for decisions."""
UNUSABLE: Final = UNUSABLE_DEVICES

MAX_LENGTH: Final = 16384
"""Characters of an annotation; longer ones are rejected."""
_SHORT: Final = 64
"""Characters that are shown of a text that cannot be read, and longer than any other one but ids."""
_MAX_IDS: Final = MAX_DEVICES * MAX_CORES_PER_DEVICE
_NANOSECONDS: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_PART: Final = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)


class PodAnnotations(ApiObject, frozen=True):
    """``metadata.annotations`` of a pod: the keys in use."""

    ids: str | None = msgspec.field(name=IDS, default=None)
    allocated: str | None = msgspec.field(name=ALLOCATED, default=None)
    alloc_time: str | None = msgspec.field(name=ALLOC_TIME, default=None)
    resource_type: str | None = msgspec.field(name=RESOURCE_TYPE, default=None)
    cores: str | None = msgspec.field(name=CORES, default=None)
    devices: str | None = msgspec.field(name=DEVICES, default=None)
    allocation: str | None = msgspec.field(name=ALLOCATION, default=None)
    of: str | None = msgspec.field(name=OF, default=None)


class NodeAnnotations(ApiObject, frozen=True):
    """``metadata.annotations`` of a node: the keys in use."""

    device_usage: str | None = msgspec.field(name=DEVICE_USAGE, default=None)
    core_usage: str | None = msgspec.field(name=CORE_USAGE, default=None)
    unusable: str | None = msgspec.field(name=UNUSABLE, default=None)


@dataclass(frozen=True, slots=True, init=False)
class ContainerShare:
    """The ids of one container. ``container`` is "" if the annotations do not name it.

    They are kept as a mask, bit ``i`` for id ``i``: a hundred bytes at most, whatever somebody writes.
    """

    container: str
    resource: NeuronResource
    mask: int

    def __init__(self, container: str, resource: NeuronResource, ids: Iterable[int] = (), mask: int = 0) -> None:
        for number in ids:
            mask |= 1 << number
        object.__setattr__(self, "container", container)
        object.__setattr__(self, "resource", resource)
        object.__setattr__(self, "mask", mask)

    @property
    def ids(self) -> tuple[int, ...]:
        """Ascending, each once."""
        return tuple(bits(self.mask))


@dataclass(frozen=True, slots=True)
class RecordedAllocation:
    """The allocation recorded in the annotations of one pod."""

    shares: tuple[ContainerShare, ...]
    cores_per_device: int = 0
    """Of the node when the devices were chosen; 0 if unknown."""
    handed_out: bool = False
    """Whether the device plugin has handed the devices to the containers."""
    chosen_at: int = 0
    """Nanoseconds since the epoch; 0 if unknown."""

    def of(self, container: str) -> ContainerShare | None:
        """The share of one container, or None."""
        return next((share for share in self.shares if share.container == container), None)

    @property
    def whole(self) -> RecordedAllocation:
        """The same of the pod as a whole, for those who need not know which container has which ids."""
        masks: dict[NeuronResource, int] = {}
        for share in self.shares:
            masks[share.resource] = masks.get(share.resource, 0) | share.mask
        return replace(self, shares=tuple(ContainerShare("", resource, mask=mask) for resource, mask in masks.items()))


class _WireShare(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    resource: str
    ids: str


class _WireAllocation(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    cores_per_device: int
    containers: list[_WireShare]


_DECODER: Final = msgspec.json.Decoder(_WireAllocation)
_KINDS: Final = {kind.value: kind for kind in NeuronResource} | {RETIRED_DEVICE: NeuronResource.DEVICE}


def write(hardware: NodeHardware, uid: str, shares: tuple[ContainerShare, ...], now: int) -> dict[str, str]:
    """The annotations of pod ``uid``, for which ``shares`` (at least one) were chosen at ``now`` (Unix nanoseconds)."""
    kinds = {share.resource for share in shares}
    # If containers request different resources, the single list under the vendor's key holds cores.
    kind = kinds.pop() if len(kinds) == 1 else NeuronResource.CORE
    found = {
        IDS: _csv(_all_ids(hardware, shares, kind)),
        RESOURCE_TYPE: kind.value,
        ALLOCATED: "false",
        ALLOC_TIME: str(now),
        ALLOCATION: msgspec.json.encode(
            _WireAllocation(
                hardware.cores_per_device,
                [_WireShare(share.container, share.resource.value, ranges(share.ids)) for share in shares],
            )
        ).decode(),
        OF: f"{uid} {now}",
    }
    for key, resource in ((CORES, NeuronResource.CORE), (DEVICES, NeuronResource.DEVICE)):
        ids = {number for share in shares if share.resource is resource for number in share.ids}
        if ids:
            found[key] = _csv(sorted(ids))
    return found


POD_KEYS: Final = (
    IDS,
    ALLOCATED,
    ALLOC_TIME,
    RESOURCE_TYPE,
    CORES,
    DEVICES,
    ALLOCATION,
    OF,
)
"""Annotations of a pod that record its devices."""


def from_mapping(annotations: Mapping[str, str]) -> PodAnnotations:
    """The keys in use from ``metadata.annotations``."""
    return msgspec.convert({key: annotations[key] for key in POD_KEYS if key in annotations}, PodAnnotations)


def in_short(found: PodAnnotations, asked: Iterable[NeuronResource] = ()) -> PodAnnotations:
    """Annotations from which everything follows that follows from these, without what makes them long.

    A text that cannot be read is cut, and still cannot be read; ids become ranges.
    """
    asked, kept = tuple(asked), {}
    for field, part in (
        ("allocation", PodAnnotations(allocation=found.allocation)),
        ("ids", PodAnnotations(ids=found.ids, resource_type=found.resource_type)),
        ("cores", PodAnnotations(cores=found.cores)),
        ("devices", PodAnnotations(devices=found.devices)),
    ):
        text = getattr(found, field)
        try:
            allocation = read(part, asked)
        except DriverError:
            kept[field] = shorten(text, _SHORT)
        else:
            kept[field] = text if field == "allocation" or allocation is None else ranges(allocation.shares[0].ids)
    handed_out = (found.allocated or "").strip().lower() == "true"
    return msgspec.structs.replace(
        found,
        **kept,
        allocated="true" if handed_out else _cut(found.allocated),
        alloc_time=_cut(found.alloc_time),
        resource_type=_cut(found.resource_type),
        of=_cut(found.of, 2 * _SHORT),
    )


def _cut(text: str | None, length: int = _SHORT) -> str | None:
    return text if text is None else shorten(text, length)


def present(found: PodAnnotations) -> tuple[str, ...]:
    """The keys in use that are present."""
    return tuple(msgspec.to_builtins(found))


def copied(found: PodAnnotations, uid: str, created: str = "") -> bool:
    """Whether the keys came with the pod's manifest, such as one exported from another pod, and thus choose nothing.

    Args:
        found: the annotations.
        uid: of the pod.
        created: when it was, in RFC 3339; "" to go by the UID alone, which others' extenders do not write.
    """
    owner, _, time = (found.of or "").partition(" ")
    if owner and time == found.alloc_time:
        return owner != uid
    chosen, born = _NANOSECONDS.fullmatch(found.alloc_time or ""), seconds(created)
    return chosen is not None and born is not None and int(chosen[0]) / 1e9 < born - CLOCKS_DIFFER_SECONDS


def read(found: PodAnnotations, asked: Iterable[NeuronResource] = ()) -> RecordedAllocation | None:
    """The allocation in a pod's annotations; None if they have none.

    Args:
        found: the annotations.
        asked: resources in the pod's limits; they decide what the ids are if no key does.

    Raises:
        DriverError: a key cannot be parsed; the text names it.
    """
    handed_out = (found.allocated or "").strip().lower() == "true"
    time = _NANOSECONDS.fullmatch(found.alloc_time or "")
    chosen_at = int(time[0]) if time else 0
    if found.allocation:
        return _read_own(found.allocation, handed_out, chosen_at)
    shares = tuple(
        ContainerShare("", resource, mask=ids_mask(key, text))
        for key, text, resource in (
            (IDS, found.ids, _kind(found, asked) if found.ids else NeuronResource.CORE),
            (CORES, found.cores, NeuronResource.CORE),
            (DEVICES, found.devices, NeuronResource.DEVICE),
        )
        if text
    )
    # The same ids under a former and a current key are one share.
    shares = tuple(dict.fromkeys(shares))
    return RecordedAllocation(shares, 0, handed_out, chosen_at) if shares else None


def said(found: PodAnnotations, asked: Iterable[NeuronResource] = ()) -> tuple[tuple[RecordedAllocation, ...], str]:
    """The allocation under each key by itself; and why one of them cannot be parsed, or ""."""
    asked = tuple(asked)
    allocations, trouble = [], ""
    for part in (
        PodAnnotations(allocation=found.allocation),
        PodAnnotations(ids=found.ids, resource_type=found.resource_type),
        PodAnnotations(cores=found.cores),
        PodAnnotations(devices=found.devices),
    ):
        try:
            allocation = read(part, asked)
        except DriverError as error:
            trouble = trouble or str(error)
        else:
            allocations += [allocation] if allocation is not None else []
    return tuple(allocations), trouble


def _read_own(text: str, handed_out: bool, chosen_at: int) -> RecordedAllocation:
    key = ALLOCATION
    try:
        # Names of containers are ASCII.
        wire = _DECODER.decode(text if len(text) <= MAX_LENGTH and text.isascii() else "")
        shares = tuple(
            ContainerShare(share.name, NeuronResource(share.resource), mask=ids_mask(key, share.ids))
            for share in wire.containers
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise _unreadable(key, text) from error
    if not 1 <= len(shares) <= MAX_CONTAINERS or not 1 <= wire.cores_per_device <= MAX_CORES_PER_DEVICE:
        raise _unreadable(key, text)
    return RecordedAllocation(shares, wire.cores_per_device, handed_out, chosen_at)


def _kind(found: PodAnnotations, asked: Iterable[NeuronResource]) -> NeuronResource:
    kinds = set(asked)
    if found.resource_type:
        kind = _KINDS.get(found.resource_type)
        if kind is None:
            raise _unreadable(RESOURCE_TYPE, found.resource_type)
        return kind
    if len(kinds) == 1:
        return kinds.pop()
    raise DriverError(f"annotation {IDS} is present without {RESOURCE_TYPE}, so the resource of its ids is not known")


def parse_ids(key: str, text: str) -> tuple[int, ...]:
    """Ids such as ``0,1,2`` or ``0-8,12``, ascending. Raises DriverError naming ``key`` for anything else."""
    return tuple(bits(ids_mask(key, text)))


def ids_mask(key: str, text: str) -> int:
    """The same as a mask, bit ``i`` for id ``i``."""
    mask = 0
    for part in text.split(",") if len(text) <= MAX_LENGTH else ("",):
        match = _PART.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < _MAX_IDS:
            raise _unreadable(key, text)
        ids = ((1 << last - first + 1) - 1) << first
        if mask & ids:
            raise _unreadable(key, text)
        mask |= ids
    return mask


def usage_map(hardware: NodeHardware, taken: int, resource: NeuronResource) -> str:
    """``true`` or ``false`` for each id of the resource, as in the vendor's node annotations."""
    busy = set(hardware.ids(resource, taken))
    return ",".join("true" if number in busy else "false" for number in range(hardware.units(resource)))


def _all_ids(hardware: NodeHardware, shares: tuple[ContainerShare, ...], kind: NeuronResource) -> list[int]:
    found: set[int] = set()
    for share in shares:
        found.update(hardware.ids(kind, hardware.mask(share.resource, share.ids)))
    return sorted(found)


def _csv(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))


def _unreadable(key: str, text: str) -> DriverError:
    return DriverError(f"annotation {key} is {quoted(text, _SHORT)}, which cannot be read")

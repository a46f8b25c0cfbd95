"""What a device plugin offers of a node, and what pods have of it, as capacity and annotations say.

Loaded only where a cluster has such nodes or pods: a cluster with the DRA driver alone needs nothing of ``legacy``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import NamedTuple

from dra_driver.kube.objects import core
from dra_driver.kube.objects.meta import Quantity
from dra_driver.legacy.annotations import UNUSABLE, copied, from_mapping, parse_ids
from dra_driver.legacy.resource_requests import (
    Limits,
    LimitsContainer,
    PodRequest,
    Resources,
    pod_request,
    quantity,
)
from dra_driver.legacy.rules import NeuronResource, NodeHardware, hardware
from dra_driver.legacy.usage import Holding, held_by, holding
from dra_driver.neuron.topology.partitions import HardwarePart, device_name
from dra_driver.util.errors import DriverError
from dra_driver.util.text import ranges
from dra_driver.util.wording import named


def offered_hardware(
    instance_type: str, capacity: Mapping[str, Quantity], allocatable: Mapping[str, Quantity]
) -> NodeHardware | None:
    """What a plugin offers on a node of this type; None: nothing. kubelet keeps the capacity of one that is gone."""
    there, usable = (
        [quantity(amounts.get(kind.value, 0)) or 0 for kind in (NeuronResource.DEVICE, NeuronResource.CORE)]
        for amounts in (capacity, allocatable)
    )
    try:
        return hardware(instance_type, *there) if any(usable) else None
    except DriverError:  # what the node reports fits no hardware: its devices cannot be told apart
        return None


def former_hardware(instance_type: str, chips: int) -> NodeHardware | None:
    """What a device plugin that is gone offered of a node; None if that is not known."""
    try:
        return hardware(instance_type, chips, 0)
    except DriverError:
        return None


def requested(item: core.ReportedPod) -> tuple[str, Holding | None]:
    """The limits of a pod, such as ``2 x aws.amazon.com/neuron``, and what its annotations record for it."""
    meta, spec = item.metadata, item.spec
    requests = _requests(_asking(spec.init_containers), _asking(spec.containers))
    record = None
    if spec.node_name and item.status.extended_resource_claim_status is None:
        annotations = from_mapping(meta.annotations)
        of_another = copied(annotations, meta.uid)
        record = holding(f"{meta.namespace}/{meta.name}", annotations, requests, of_another=of_another)
    return ", ".join(f"{request.count} x {request.resource.value}" for request in requests or ()), record


def _asking(containers: tuple[core.Container, ...]) -> tuple[LimitsContainer, ...]:
    return tuple(
        LimitsContainer(
            item.name, Resources(_limits(item.resources.limits), _limits(item.resources.requests)), item.restart_policy
        )
        for item in containers
        if item.resources.limits or item.resources.requests
    )


def _limits(amounts: dict[str, Quantity]) -> Limits:
    return Limits(amounts.get(NeuronResource.DEVICE.value), amounts.get(NeuronResource.CORE.value))


@lru_cache(maxsize=4096)
def _requests(init: tuple[LimitsContainer, ...], main: tuple[LimitsContainer, ...]) -> PodRequest | None:
    try:
        return pod_request(init, main)
    except DriverError:
        return None


class PluginUse(NamedTuple):
    """What a pod has of a device plugin."""

    devices: str
    """Such as ``neuron-device-4 to 7``, or ``neuroncore 0-3``."""
    chips: tuple[int, ...]
    doubt: str
    """Why it may have more or less than that, or ""."""
    parts: tuple[HardwarePart, ...] = ()


def use(record: Holding, offered: NodeHardware | None, physical: int = 0) -> PluginUse:
    """What a pod has of a device plugin.

    Args:
        record: what its annotations record.
        offered: the node's hardware as the plugin counts it; None: not known.
        physical: cores of a chip where those are counted; 0: logical ones are.
    """
    if offered is None:
        return _as_annotated(record)
    size = max(1, physical // offered.cores_per_device)
    mask, doubt = held_by(offered, record)
    cores = offered.ids(NeuronResource.CORE, mask)
    by_chip: dict[int, list[int]] = defaultdict(list)
    for core_id in cores:
        first = core_id % offered.cores_per_device * size
        by_chip[core_id // offered.cores_per_device] += range(first, first + size)
    every = offered.cores_per_device * size
    parts = tuple(HardwarePart(chip, () if len(those) == every else tuple(those)) for chip, those in by_chip.items())
    whole = all(not part.cores for part in parts)
    devices = named(map(device_name, by_chip)) if whole else f"neuroncore {ranges(cores)}"
    return PluginUse(devices if parts else "not known", tuple(by_chip), doubt, parts)


def _as_annotated(record: Holding) -> PluginUse:
    """What a pod has of a device plugin, where the node's hardware is not known."""
    shares = [share for allocation in record.allocations for share in allocation.shares]
    chips = sorted({number for share in shares if share.resource is NeuronResource.DEVICE for number in share.ids})
    cores = sorted({number for share in shares if share.resource is NeuronResource.CORE for number in share.ids})
    devices = [named(map(device_name, chips))] if chips else []
    devices += [f"neuroncore {ranges(cores)}"] if cores else []
    return PluginUse(", ".join(devices) or "not known", tuple(chips), record.trouble)


def unusable_chips(annotation: str, indexes: Collection[int]) -> frozenset[int]:
    """The chips that the node's annotation keeps from pods; of one that cannot be read, all."""
    try:
        ids = parse_ids(UNUSABLE, annotation)
    except DriverError:
        return frozenset(indexes)  # the extender gives nothing away then
    return frozenset(ids)

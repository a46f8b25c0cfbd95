"""Who has which hardware of a node: pods and claims, by what claims and the device plugin's annotations say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from dra_driver.kube.objects.meta import Condition
from dra_driver.neuron.device_status import READY, spelled
from dra_driver.neuron.names import node_of
from dra_driver.neuron.topology.node_hardware import Hardware
from dra_driver.neuron.topology.partitions import HardwarePart
from dra_driver.operations.overview.objects import PREPARE, Claim, ClusterView, Pod
from dra_driver.operations.overview.rows import HolderOfChip
from dra_driver.util.wording import named

if TYPE_CHECKING:
    from dra_driver.legacy.rules import NodeHardware as PluginHardware
    from dra_driver.legacy.usage import Holding


@dataclass(frozen=True, slots=True)
class Use:
    """Hardware of one node that one holder has."""

    holder: HolderOfChip
    parts: tuple[HardwarePart, ...]
    complaints: tuple[tuple[str, Condition], ...] = ()
    """As of the claim, of these devices."""


def _described(holder: HolderOfChip, around: ClusterView) -> HolderOfChip:
    """The holder with the state of its pod."""
    pod = around.pods_by_key.get((holder.namespace, holder.pod))
    if pod is None:
        return holder
    state = pod.state
    if state.ready:
        return replace(holder, phase=state.word)
    refusal = around.last(pod, (PREPARE,))
    problem = refusal.text if refusal is not None and not pod.ending else state.detail
    return replace(holder, phase=state.word, since=state.since, problem=problem)


@lru_cache(maxsize=4096)
def _named(devices: tuple[str, ...]) -> str:
    return named(devices)


def of_claim(claim: Claim, node: str, hardware: Hardware, around: ClusterView) -> Iterator[Use]:
    """What each pod of a claim has of the claim's devices on a node; what the claim has if no pod uses it."""
    namespace, devices = claim.metadata.namespace, tuple(name for pool, name in claim.held if node_of(pool) == node)
    parts = tuple(part for device in devices for part in hardware.parts(device))
    chips = tuple(sorted({part.chip for part in parts}))
    complaints = tuple(item for item in claim.complaints if item[0] in devices)
    for name in around.users(claim) or ("",):
        holder = HolderOfChip(namespace, name, claim.metadata.name, node, _named(devices), chips, names=devices)
        yield Use(_described(holder, around), parts, complaints)


def says(use: Use, sick: Collection[int], hardware: Hardware) -> Iterator[str]:
    """What the claim says, without what kubelet's Event says of the pod, and the slices of the chips."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for device, item in use.complaints:
        if item.type == READY:
            known = repeated(item, use.holder.problem)
        else:
            known = any(part.chip in sick for part in hardware.parts(device))
        if not known:
            alike["" if item.type == READY else " alone", spelled(item)].append(device)
    for (alone, text), names in alike.items():
        yield f"its claim{alone} says of {named(names)}: {text}"


def repeated(complaint: Condition, text: str) -> bool:
    """Whether kubelet's Event, which may be cut off, has the driver's words of the claim, too."""
    return bool(complaint.message) and complaint.message[:_SAME] in text


_SAME: Final = 300
"""Characters."""


def of_plugin(pod: Pod, record: Holding, around: ClusterView, offered: PluginHardware | None, physical: int = 0) -> Use:
    """What a pod has of a device plugin; the other arguments are those of ``deviceplugin.use``."""
    from dra_driver.operations.overview.deviceplugin import use

    item, meta = use(record, offered, physical), pod.metadata
    holder = HolderOfChip(meta.namespace, meta.name, "", pod.node, item.devices, item.chips, doubt=item.doubt)
    return Use(_described(holder, around), item.parts)

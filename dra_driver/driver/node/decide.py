"""What follows from what is known of a node: what it offers, what is held back, and what preparations need to know.

``decide`` asks nobody and remembers nothing: what it has to know of before is in its ``Memory``, which it gives back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.driver.claims.prepare import NodeFacts
from dra_driver.driver.resourceslices.devices import KeptDevice, Offer, completed, offer, shapes, with_faults
from dra_driver.driver.settings import DriverSettings
from dra_driver.kube.kubelet.podresources import PodDevices
from dra_driver.neuron.exclusion import HeldBack, held_back
from dra_driver.neuron.health.faults import ActiveFault, NodeHealth
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.partitions import Partitions


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """What is known of a node at one moment."""

    inventory: NodeInventory
    """What the host shows."""
    health: NodeHealth
    """How well its chips are, as far as the host says it."""
    now: int
    """Unix time in seconds."""
    uptime: float
    """Seconds since the boot."""
    partitions: Partitions | None = None
    """What is to be offered, by the label of the Node, else by the setting for all; None: nothing in particular."""
    kubelet_problem: str = ""
    """Why kubelet's version keeps from the offer what no claim holds, or ""."""
    device_plugin: str = ""
    """What a device plugin offers of the node, or did until a moment ago."""
    plugin_pods: Sequence[PodDevices] | None = None
    """The pods that have chips from it; None: not known."""
    kept: Mapping[str, KeptDevice] = field(default_factory=dict)
    """Devices that claims hold, or may hold, and that stay whatever is to be offered."""
    allocated_core_size: int | None = None
    """Physical cores in a logical one, of what is allocated at the API server; None: as the host has it."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What one decision leaves for the next."""

    whole: NodeInventory | None = None
    """The host with the chips that were lost in this run; None: nothing was offered yet."""
    lost: Mapping[int, ActiveFault] = field(default_factory=dict)
    """What is wrong with those, by host index.

    The slices say so by themselves. The health says it later, after two readings, and not at all of device numbers that
    cannot be read; without a kernel driver it says no more than unknown, which keeps no claim away.
    """
    had_cores: bool = False
    """Whether logical cores were offered."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What follows."""

    offer: Offer
    held_back: HeldBack
    """Because of a device plugin."""
    facts: NodeFacts
    """For preparations."""


def decide(snapshot: NodeSnapshot, memory: Memory, settings: DriverSettings) -> tuple[Wanted, Memory]:
    """What is wanted now, and what has to be known at the next decision."""
    whole, missing = completed(snapshot.inventory, memory.whole)
    lost = {index: _fault(code, memory.lost.get(index), snapshot) for index, code in missing.items()}
    health = with_faults(snapshot.health, lost)
    back = held_back(snapshot.device_plugin, snapshot.plugin_pods, whole)
    # Nothing with a kubelet that might not start the pods; what claims hold stays.
    partitions = Partitions() if snapshot.kubelet_problem else snapshot.partitions
    policy = settings.health_policy
    offered = offer(whole, partitions, health, policy, snapshot.uptime, snapshot.kept, back.chips)
    sick = [chip for chip in health.chips if chip.faults]
    facts = NodeFacts(
        unhealthy=policy.blocking(sick, whole.instance_type, snapshot.uptime) if sick else {},
        held_back=back,
        core_sizes=_core_sizes(snapshot, memory, whole) | dict(offered.core_sizes),
        attributes={device.name: device.attributes for device in (*offered.fallback, *offered.devices)}
        if settings.device_metadata == "on"
        else None,
    )
    had_cores = any(core_size for _, core_size in shapes(offered.devices))
    return Wanted(offered, back, facts), Memory(whole, lost, had_cores)


def _fault(code: str, before: ActiveFault | None, snapshot: NodeSnapshot) -> ActiveFault:
    """Of a lost chip; it begins once."""
    if before is not None and before.code == code:
        return before
    return ActiveFault(code, snapshot.now, uptime=snapshot.uptime)


def _core_sizes(snapshot: NodeSnapshot, memory: Memory, whole: NodeInventory) -> dict[int, int]:
    """By chip, where what is allocated is of another size than the host's."""
    size = snapshot.allocated_core_size
    if size is None or size == whole.core_size or not memory.had_cores:
        return {}
    return dict.fromkeys(whole.chip_indexes, size)

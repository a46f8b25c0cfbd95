"""From what a node has, and how well it is, to the devices that it offers.

A host that is a node of an UltraServer offers the whole node (what AWS documents), its chips, or both; with ``both``, a
claim for the node and a claim for one of its chips exclude each other by shared counters (``pool``). Other hosts offer
their chips in any layout.

A chip with faults is offered with taints. So is one that was lost while the driver runs, or whose device numbers have
become unreadable: a scheduler counts what is allocated by the devices that are offered, so a device that may be in use
must not vanish. A driver that starts later does not know what that chip was like, and does not offer it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from dra_driver.driver.resourceslices.attributes import ATTRIBUTES, Attribute, AttributeSource, Value
from dra_driver.driver.resourceslices.pool import MAX_COUNTERS, consuming
from dra_driver.health.faults import ActiveFault, ChipHealth, NodeHealth, in_order
from dra_driver.health.policy import HealthPolicy
from dra_driver.host.inventory import NeuronDevice, NodeInventory
from dra_driver.kube.types import Device, DeviceAttribute, DeviceCapacity, DeviceTaint, timestamp
from dra_driver.topology.cuts import NODE_DEVICE, device_name
from dra_driver.topology.instance_types import lookup

Layout = Literal["node", "chips", "both"]


def is_ultraserver(inventory: NodeInventory) -> bool:
    """Whether the host is of a type that is part of an UltraServer, whatever files it has."""
    kind = lookup(inventory.instance_type) if inventory.instance_type else None
    return kind is not None and kind.ultraserver is not None


def node_problem(inventory: NodeInventory) -> str:
    """Why an UltraServer host cannot be offered as a whole; "" when it can, and for other hosts."""
    if not is_ultraserver(inventory):
        return ""
    kind = lookup(inventory.instance_type or "")
    usable = {chip.index for chip in inventory.devices if _usable(chip)}
    known = {chip.index for chip in inventory.devices}
    # Where no source says how many chips the type has, the numbers must at least have no gap.
    expected = set(range((kind.devices if kind else None) or max(known, default=0) + 1))
    if surplus := known - expected:
        return f"the instance type {inventory.instance_type} has no {_chips(surplus)}"
    if lost := expected - usable:
        return f"{_chips(lost)} cannot be given to a container"
    if len(expected) > MAX_COUNTERS:
        return f"{len(expected)} chips are more than the {MAX_COUNTERS} of a whole node"
    return ""


def _chips(indexes: set[int]) -> str:
    return ", ".join(f"neuron{index}" for index in sorted(indexes)[:MAX_COUNTERS])


MAX_TEXT_BYTES = 64
"""Bytes of an attribute's text (Kubernetes limit)."""
MAX_ATTRIBUTES = 32
"""Attributes and capacities of one device (Kubernetes limit)."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node offers."""

    devices: tuple[Device, ...]
    """To be published: chips first, by ascending index."""
    fallback: tuple[Device, ...] = ()
    """Published instead where ``devices`` consume counters and the server cannot be trusted with them."""
    problem: str = ""
    """Why the whole node is not offered although it should be, or ""."""
    until: float | None = None
    """Unix time from which on the same node gives another offer, or None."""


def completed(inventory: NodeInventory, before: NodeInventory | None) -> tuple[NodeInventory, Mapping[int, str]]:
    """The inventory with the chips that cannot be given any more as they were, and what is wrong with those.

    Args:
        inventory: what the host shows now.
        before: what this gave for the inventory before it, in this run of the driver; None: nothing yet. Chips of
            another instance type are not missed.

    Returns:
        The inventory, and by host index ``device-lost`` for a chip that sysfs does not have any more, and
        ``device-invalid`` for one whose device numbers it does not tell any more.

    What a complete host told of the chips that are left (their places on the PCI bus) stays as well, so that the loss
    of one chip changes no attribute of another.
    """
    if before is None or inventory.instance_type not in (None, before.instance_type):
        return inventory, {}
    present = {chip.index: chip for chip in inventory.devices}
    former = {chip.index: chip for chip in before.devices if _usable(chip)}
    missed = {index for index in former if index not in present or not _usable(present[index])}
    if not missed:
        return inventory, {}
    merged = {index: former[index] for index in missed}
    for index in present.keys() - missed:
        chip, known = present[index], former.get(index, present[index])
        merged[index] = replace(
            chip,
            pci_bus_id=known.pci_bus_id if chip.pci_bus_id is None else chip.pci_bus_id,
            numa_node=known.numa_node if chip.numa_node is None else chip.numa_node,
        )
    whole = replace(
        inventory,
        instance_type=before.instance_type,
        devices=tuple(merged[index] for index in sorted(merged)),
        driver_version=inventory.driver_version or before.driver_version,
        ultraserver=inventory.ultraserver if present else before.ultraserver,
    )
    return whole, {index: "device-invalid" if index in present else "device-lost" for index in sorted(missed)}


def _usable(chip: NeuronDevice) -> bool:
    """Whether it can be given to a container."""
    return chip.major is not None and chip.minor is not None


def with_faults(health: NodeHealth, found: Mapping[int, ActiveFault]) -> NodeHealth:
    """The health with one more fault for some chips, by host index.

    A fault that the health has as well keeps its text, and the earlier time of the two.
    """
    if not found:
        return health
    chips = {chip.index: chip for chip in health.chips}
    for index, fault in found.items():
        faults = {known.code: known for known in chips[index].faults} if index in chips else {}
        told = faults.get(fault.code, fault)
        faults[fault.code] = replace(told, since=min(told.since, fault.since))
        chips[index] = ChipHealth(index, in_order(faults.values()))
    return NodeHealth(tuple(chips[index] for index in sorted(chips)), health.read_at)


def devices(inventory: NodeInventory, layout: Layout = "node") -> tuple[Device, ...]:
    """The devices of the node's offer, when all is well."""
    return offer(inventory, layout).devices


_WELL = NodeHealth()
_DEFAULT_POLICY = HealthPolicy()


def offer(
    inventory: NodeInventory,
    layout: Layout = "node",
    health: NodeHealth = _WELL,
    policy: HealthPolicy = _DEFAULT_POLICY,
    now: float = 0.0,
) -> Offer:
    """What a node offers; equal arguments give equal offers.

    Args:
        inventory: what the host has (``completed``).
        layout: what nodes of UltraServers offer.
        health: how well it is (``with_faults``).
        policy: which taints follow from that. A whole node has those of all its chips.
        now: Unix time, for grace times.

    A chip whose device numbers cannot be read is not offered: no container could be given it. The device that is the
    whole node is offered only when ``layout.node_problem`` has nothing to say. All chips have the same set of
    attributes. Texts that Kubernetes would refuse are left out. With the layout ``both``, devices consume counters, so
    that the node and its chips exclude each other; they do so also while the node is not offered, so that no allocated
    device changes its shape.
    """
    kind = lookup(inventory.instance_type) if inventory.instance_type else None
    offered = sorted(
        (chip for chip in inventory.devices if _usable(chip)),
        key=lambda chip: chip.index,
    )
    sick = {chip.index: chip for chip in health.chips if chip.faults}
    taints = _Taints(sick, policy, inventory.instance_type, now)
    until = policy.next_change(sick.values(), inventory.instance_type, now) if sick else None
    chips = [(device_name(chip.index), AttributeSource(inventory, kind, "neuron_device", (chip,))) for chip in offered]
    if not is_ultraserver(inventory) or layout == "chips":
        return Offer(_published(chips, taints), until=until)
    problem = node_problem(inventory)
    whole = [] if problem else [(NODE_DEVICE, AttributeSource(inventory, kind, "neuron_node", tuple(offered)))]
    node = _published(whole, taints)
    if layout == "node":
        return Offer(node, problem=problem, until=until)
    shared = chips[:MAX_COUNTERS]
    both = zip((*_published(shared, taints), *node), (*shared, *whole), strict=True)
    counted = tuple(consuming(device, [chip.index for chip in subject.chips]) for device, (_, subject) in both)
    return Offer(counted, node, problem, until)


@dataclass(frozen=True, slots=True)
class _Taints:
    """Gives devices their taints."""

    sick: Mapping[int, ChipHealth]
    policy: HealthPolicy
    instance_type: str | None
    now: float

    def of(self, subject: AttributeSource) -> tuple[DeviceTaint, ...]:
        """Those of all its chips."""
        faulty = [self.sick[chip.index] for chip in subject.chips if chip.index in self.sick]
        if not faulty:
            return ()
        return tuple(
            DeviceTaint(taint.key, taint.value, taint.effect, timestamp(taint.since))
            for taint in self.policy.taints(faulty, self.instance_type, self.now)
        )


def _published(named: Sequence[tuple[str, AttributeSource]], taints: _Taints) -> tuple[Device, ...]:
    """Devices of one resource type."""
    subjects = [subject for _, subject in named]
    rows = [row for row in ATTRIBUTES if subjects and subjects[0].resource in row.of]
    columns = [(row, [_legal(row, row.value(subject)) for subject in subjects]) for row in rows]
    known = [(row, values) for row, values in columns if None not in values][:MAX_ATTRIBUTES]
    return tuple(
        Device(
            name=name,
            attributes={row.name: _attribute(row, v[place]) for row, v in known if row.kind != "capacity"},
            capacity={row.name: DeviceCapacity(str(v[place])) for row, v in known if row.kind == "capacity"},
            taints=taints.of(subject),
        )
        for place, (name, subject) in enumerate(named)
    )


def _attribute(row: Attribute, value: Value) -> DeviceAttribute:
    if isinstance(value, int):
        return DeviceAttribute(int_=value)
    return DeviceAttribute(version=value) if row.kind == "version" else DeviceAttribute(string=value)


def _legal(row: Attribute, value: Value) -> Value:
    """The value, or None for a text that the API server would refuse together with the whole slice."""
    if not isinstance(value, str) or (value and value.isprintable() and len(value.encode()) <= MAX_TEXT_BYTES):
        return value
    if value:
        _report(row.name, value[:80])
    return None


@lru_cache(maxsize=64)
def _report(name: str, value: str) -> None:
    """Log once, not at each reading of the host."""
    log.warning("attribute %s is left out: %r is longer than %d bytes or not printable", name, value, MAX_TEXT_BYTES)

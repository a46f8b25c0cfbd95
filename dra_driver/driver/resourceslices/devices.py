"""From what a node has, and its health, to the devices that it offers.

What is offered is a set of partitions (``neuron.topology.partitions``): chips, connected groups, the whole node,
logical cores. Devices of different partitions overlap, and exclude each other by shared counters (``pool``). Where
nothing else is set, a host that is a node of an UltraServer offers the whole node (what AWS documents), and other hosts
their chips.

A device with a faulty chip is offered with taints. So is one whose chip was lost while the driver runs, or has become
unreadable: a scheduler counts what is allocated by the devices that are offered, so a device that may be in use must
not vanish. A driver that starts later does not know what that chip was like, and does not offer it.

For the same reason a device that a claim holds stays when the partitions or the core size change (``KeptDevice``): as
it was, and with a taint, so that it is not given anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from dra_driver.driver.resourceslices.attributes import AttributeSource, describe
from dra_driver.driver.resourceslices.pool import consuming, counter_set
from dra_driver.driver.workload import Tenancy
from dra_driver.kube.objects import limits
from dra_driver.kube.objects.meta import timestamp
from dra_driver.kube.objects.resource import CounterSet, Device, DeviceTaint
from dra_driver.neuron.health.faults import ActiveFault, ChipHealth, NodeHealth, in_order
from dra_driver.neuron.health.policy import HealthPolicy
from dra_driver.neuron.host.inventory import NeuronDevice, NodeInventory
from dra_driver.neuron.names import RETIRED, RETIRED_FOR_PLUGIN, WORKLOAD_TAINT
from dra_driver.neuron.topology.instance_types import InstanceType, lookup
from dra_driver.neuron.topology.partitions import (
    CHIPS,
    CHIPS_AND_NODE,
    NODE,
    Partition,
    Partitions,
    device_of,
    group_sizes,
    overlap,
)
from dra_driver.neuron.topology.partitions import devices as partition_devices


def is_ultraserver(inventory: NodeInventory) -> bool:
    """Whether the host is of a type that is part of an UltraServer, whatever files it has."""
    kind = lookup(inventory.instance_type)
    return kind is not None and kind.ultraserver is not None


def effective_partitions(inventory: NodeInventory, setting: Partitions | None) -> Partitions:
    """What a host offers: the administrator's ``setting``, else nodes of UltraServers as a whole, and others chips."""
    if setting is not None:
        return setting
    return NODE if is_ultraserver(inventory) else CHIPS


def node_problem(inventory: NodeInventory) -> str:
    """Why a host cannot be offered as a whole; "" when it can."""
    kind = lookup(inventory.instance_type)
    usable = {chip.index for chip in inventory.devices if _usable(chip)}
    indexes = {chip.index for chip in inventory.devices}
    # Where no source says how many chips the type has, the numbers must at least have no gap.
    expected = set(range((kind.devices if kind else None) or max(indexes, default=0) + 1))
    if surplus := indexes - expected:
        return f"the instance type {inventory.instance_type} has no {_chips(surplus)}"
    if lost := expected - usable:
        return f"{_chips(lost)} cannot be given to a container"
    if len(expected) > limits.MAX_COUNTERS:
        return f"{len(expected)} chips are more than the {limits.MAX_COUNTERS} of a whole node"
    return ""


def _chips(indexes: set[int]) -> str:
    return ", ".join(f"neuron{index}" for index in sorted(indexes)[: limits.MAX_COUNTERS])


@dataclass(frozen=True, slots=True)
class KeptDevice:
    """A device that a claim holds, and that must not vanish or become other hardware."""

    since: float
    """Unix time, for its taint."""
    core_size: int | None = None
    """Of a logical core: the physical NeuronCores that it has."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a node offers."""

    devices: tuple[Device, ...]
    """Devices to be published, in this order."""
    counters: tuple[CounterSet, ...] = ()
    """What the devices consume from."""
    fallback: tuple[Device, ...] = ()
    """Published instead where ``devices`` consume counters and the server cannot be trusted with them."""
    problem: str = ""
    """Why the whole node is not offered although it should be, or ""."""
    partitions: Partitions = field(default=Partitions())
    """How the host is divided, with what it cannot be offered in."""
    absent: tuple[str, ...] = ()
    """Partitions that the host cannot be offered in, such as ``group3`` on a torus; not the whole node."""
    core_sizes: Mapping[int, int] = field(default_factory=dict)
    """Chips whose logical cores are not of the node's default size, because of devices kept, with theirs."""
    retired: frozenset[str] = frozenset()
    """Devices on offer, with or without fallback, only because a claim holds them."""
    until: float | None = None
    """Seconds since boot after which the same node gives another offer, or None."""


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
    chips = {index: former[index] for index in missed}
    for index in present.keys() - missed:
        chip, previous = present[index], former.get(index, present[index])
        chips[index] = replace(
            chip,
            pci_bus_id=previous.pci_bus_id if chip.pci_bus_id is None else chip.pci_bus_id,
            numa_node=previous.numa_node if chip.numa_node is None else chip.numa_node,
            pcie_root=previous.pcie_root if chip.pcie_root is None else chip.pcie_root,
        )
    whole = replace(
        inventory,
        instance_type=before.instance_type,
        devices=tuple(chips[index] for index in sorted(chips)),
        driver_version=inventory.driver_version or before.driver_version,
        ultraserver=inventory.ultraserver if present else before.ultraserver,
        chip=inventory.chip or before.chip,
    )
    return whole, {index: "device-invalid" if index in present else "device-lost" for index in sorted(missed)}


def _usable(chip: NeuronDevice) -> bool:
    """Whether it can be given to a container."""
    return chip.major is not None and chip.minor is not None


def with_faults(health: NodeHealth, faults: Mapping[int, ActiveFault]) -> NodeHealth:
    """The health with one more fault for some chips, by host index.

    A fault that the health has as well keeps its text, and the earlier time of the two.
    """
    if not faults:
        return health
    chips = {chip.index: chip for chip in health.chips}
    for index, fault in faults.items():
        by_code = {item.code: item for item in chips[index].faults} if index in chips else {}
        previous = by_code.get(fault.code, fault)
        by_code[fault.code] = replace(previous, since=min(previous.since, fault.since))
        chips[index] = ChipHealth(index, in_order(by_code.values()))
    return NodeHealth(tuple(chips[index] for index in sorted(chips)), health.read_at)


def devices(inventory: NodeInventory, partitions: Partitions | None = None) -> tuple[Device, ...]:
    """The devices of the node's offer, when all is well; ``partitions`` None: those of a host with nothing set."""
    return offer(inventory, partitions).devices


_WELL = NodeHealth()
_DEFAULT_POLICY = HealthPolicy()


def offer(
    inventory: NodeInventory,
    partitions: Partitions | None = None,
    health: NodeHealth = _WELL,
    policy: HealthPolicy = _DEFAULT_POLICY,
    uptime: float = 0.0,
    kept: Mapping[str, KeptDevice] = MappingProxyType({}),
    held_back: Collection[int] = (),
    tenancy: Tenancy | None = None,
) -> Offer:
    """What a node offers; equal arguments give equal offers.

    Args:
        inventory: what the host has (``completed``).
        partitions: how it is to be divided; None: nothing is set (``effective_partitions``).
        health: of its chips (``with_faults``).
        policy: which taints follow from that. A device has those of all its chips.
        uptime: seconds since boot, for grace times.
        kept: devices that claims hold, by name. One that these partitions do not have stays all the same, tainted, and
            so does a core of another size than the host's default; its chip has no other cores meanwhile.
        held_back: chips of which nothing is offered anew, by host index (``exclusion``).
        tenancy: whose workload the node is allocated to, which all its devices say, with a taint that keeps others
            away; None: nodes are not allocated to workloads.

    A chip whose device numbers cannot be read is not offered, and so is nothing that it is a part of: no container
    could be given it. The whole node is offered only when ``node_problem`` has nothing to say. All devices of a type
    and size have the same set of attributes. Texts that Kubernetes would refuse are left out.

    Whether devices consume counters depends on what the host should have, not on what is usable now, so that no
    allocated device changes its shape when a chip is lost. What is published where there are no counters is a part of
    this in which nothing overlaps: the same partitions where it is only because of devices kept that something does,
    else the whole node of an UltraServer of which node and chips are wanted, else chips.
    """
    partitions = effective_partitions(inventory, partitions)
    host = _Host.of(
        inventory, {name: device.core_size for name, device in kept.items() if device.core_size}, held_back, tenancy
    )
    problem = node_problem(inventory) if partitions.node else ""
    sick = {chip.index: chip for chip in health.chips if chip.faults}
    until = policy.next_change(sick.values(), inventory.instance_type, uptime) if sick else None
    why = "partitions" if partitions != Partitions() else "kubelet"

    workload = tenancy.workload if tenancy is not None else None

    def taints(device: Partition, retired: bool) -> tuple[DeviceTaint, ...]:
        """The taints of all its chips; if ``retired``, also the one of what is on offer only because it is held."""
        faulty = [sick[index] for index in device.chips if index in sick]
        policy_taints = policy.taints(faulty, inventory.instance_type, uptime) if faulty else ()
        taints = [DeviceTaint(taint.key, taint.value, taint.effect, timestamp(taint.since)) for taint in policy_taints]
        if retired:
            value = RETIRED_FOR_PLUGIN if host.held_back.intersection(device.chips) else why
            taints.insert(0, DeviceTaint(RETIRED, value, "NoSchedule", timestamp(int(kept[device.name].since))))
        if workload is not None:
            taints.insert(0, DeviceTaint(WORKLOAD_TAINT, workload.uid, "NoSchedule", timestamp(int(workload.since))))
        return tuple(taints[: limits.MAX_TAINTS])

    counted = overlap(host.ideal(partitions))
    wanted = host.devices(partitions, usable=not problem, limit=limits.MAX_COUNTERS if counted else None)
    retired = host.others(kept, wanted)
    fallback: list[Partition] = []
    retired_there: list[Partition] = []
    if counted or overlap([*wanted, *retired]):
        fewer = partitions
        if counted:
            fewer = NODE if partitions == CHIPS_AND_NODE and is_ultraserver(inventory) else CHIPS
        fallback = host.devices(fewer, usable=not problem)
        retired_there = host.others(kept, fallback)
        clash = [device for device in fallback if any(overlap([device, other]) for other in retired_there)]
        fallback = [device for device in fallback if device not in clash]
        # As long as it is not known who holds which of them, none can be given.
        retired_there += [device for device in clash if device.name in kept]
        counted = True
    shown = [*wanted, *retired]
    totals = host.totals(shown) if counted else {}
    return Offer(
        devices=tuple(
            consuming(device, {part.chip: len(part.cores) or totals[part.chip] for part in partition.parts})
            if counted
            else device
            for partition, device in zip(shown, _published_devices(host, wanted, retired, taints), strict=True)
        ),
        counters=(counter_set(totals),) if totals else (),
        fallback=_published_devices(host, fallback, retired_there, taints),
        problem=problem,
        partitions=partitions,
        absent=host.absent(partitions),
        core_sizes=host.core_sizes,
        retired=frozenset(device.name for device in (*retired, *retired_there)),
        until=until,
    )


def shapes(devices: Iterable[Device]) -> set[tuple[str, int | None]]:
    """What tells published devices apart as hardware: the name and, of a logical core, its physical NeuronCores."""
    pairs = ((device.name, device.attributes.get("logicalCoreSize")) for device in devices)
    return {(name, size.int_ if size else None) for name, size in pairs}


@dataclass(frozen=True, slots=True)
class _Host:
    """Makes the devices of a host."""

    inventory: NodeInventory
    kind: InstanceType | None
    usable: Mapping[int, NeuronDevice]
    cores: int | None
    """Physical NeuronCores of a chip; None: not known."""
    core_sizes: Mapping[int, int]
    """Core sizes, as in the offer."""
    held_back: frozenset[int]
    tenancy: Tenancy | None

    @classmethod
    def of(
        cls, inventory: NodeInventory, kept: Mapping[str, int], held_back: Collection[int], tenancy: Tenancy | None
    ) -> _Host:
        """``kept``: core sizes of cores that stay, by name."""
        kind = lookup(inventory.instance_type)
        hardware = inventory.chip or (kind.chip if kind else None)
        sizes: dict[int, int] = {}
        for name, size in sorted(kept.items()):
            device = device_of(name, (), lambda _: 1)
            if device is not None and device.core is not None:
                sizes.setdefault(device.chips[0], size)
        return cls(
            inventory=inventory,
            kind=kind,
            usable={chip.index: chip for chip in inventory.devices if _usable(chip)},
            cores=hardware.cores if hardware else None,
            core_sizes={chip: size for chip, size in sorted(sizes.items()) if size != inventory.core_size},
            held_back=frozenset(held_back),
            tenancy=tenancy,
        )

    def core_size(self, chip: int) -> int:
        """The core size in force on a chip."""
        return self.core_sizes.get(chip, self.inventory.core_size)

    def _partition(self, chips: Collection[int], partitions: Partitions) -> tuple[Partition, ...]:
        return partition_devices(chips, self.kind.fabric if self.kind else None, self.cores, partitions, self.core_size)

    def ideal(self, partitions: Partitions) -> tuple[Partition, ...]:
        """The devices that the host has when it is complete."""
        expected = range((self.kind.devices if self.kind else None) or 0)
        return self._partition({*self.inventory.chip_indexes, *expected}, partitions)

    def devices(self, partitions: Partitions, *, usable: bool, limit: int | None = None) -> list[Partition]:
        """The devices that can be given away, except cores that would keep their chip from getting its size back.

        None has a chip that is held back.

        Args:
            partitions: which.
            usable: whether the whole node is one of them.
            limit: how many chips there may be, where they need counters.
        """
        chips = sorted(self.usable)[:limit]
        devices: Iterable[Partition] = self._partition(chips, replace(partitions, node=partitions.node and usable))
        devices = [device for device in devices if not self.held_back.intersection(device.chips)]
        return [device for device in devices if device.core is None or device.chips[0] not in self.core_sizes]

    def others(self, kept: Mapping[str, KeptDevice], devices: Sequence[Partition]) -> list[Partition]:
        """The devices kept that are not among these ``devices``."""
        names = {device.name for device in devices}
        candidates = [
            device_of(name, self.inventory.chip_indexes, self.core_size) for name in sorted(kept) if name not in names
        ]
        return [device for device in candidates if device is not None]

    def totals(self, devices: Sequence[Partition]) -> dict[int, int]:
        """What each chip of these devices is worth: its physical cores where they can be had apart, else 1."""
        parts = [part for device in devices for part in device.parts]
        cores = [core for part in parts for core in part.cores]
        worth = max(self.cores or 1, max(cores) + 1) if cores else 1
        return dict.fromkeys(sorted({part.chip for part in parts}), worth)

    def absent(self, partitions: Partitions) -> tuple[str, ...]:
        """Words for the partitions of which the host has nothing."""
        sizes = group_sizes(self.kind.fabric) if self.kind else ()
        return tuple(
            word
            for word, there in (
                ("core", not partitions.core or self.cores is not None),
                ("group", not partitions.group or bool(sizes)),
                *((f"group{size}", size in sizes) for size in sorted(partitions.sizes)),
            )
            if not there
        )

    def source(self, device: Partition) -> AttributeSource:
        """What the attributes of a device are made from."""
        chips = tuple(self.usable.get(index) or NeuronDevice(index) for index in device.chips)
        return AttributeSource(
            self.inventory, self.kind, device.resource, chips, device.core or 0, device.core_size or 1, self.tenancy
        )


def _published_devices(
    host: _Host,
    devices: Sequence[Partition],
    retired: Sequence[Partition],
    taints: Callable[[Partition, bool], tuple[DeviceTaint, ...]],
) -> tuple[Device, ...]:
    """The devices as they are published: the ordinary ones, then the retired ones.

    Devices of a type and size have the same attributes; what is not known of a retired one is no reason to take it from
    others.
    """
    alike: dict[tuple[str, int, bool], list[Partition]] = {}
    for some, is_retired in ((devices, False), (retired, True)):
        for device in some:
            alike.setdefault((device.resource, len(device.parts), is_retired), []).append(device)
    by_name: dict[str, Device] = {}
    for (_, _, is_retired), same in alike.items():
        for device, (attributes, capacity) in zip(same, describe([*map(host.source, same)]), strict=True):
            by_name[device.name] = Device(device.name, attributes, capacity, taints=taints(device, is_retired))
    return tuple(by_name[device.name] for device in (*devices, *retired))

"""A node's chips and logical cores, as kubelet counts them and as containers are given them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec.structs import replace

from dra_driver.kube import cdi
from dra_driver.kube.kubelet.deviceplugin import ContainerDevices, PluginDevice, PluginDeviceNode
from dra_driver.legacy.annotations import ContainerShare
from dra_driver.legacy.rules import MAX_CORES_PER_DEVICE, MAX_DEVICES, NeuronResource, NodeHardware, hardware
from dra_driver.neuron.health.faults import NodeHealth
from dra_driver.neuron.host.inventory import NeuronDevice, NodeInventory
from dra_driver.neuron.names import LOGICAL_CORE_VARIABLES, VISIBLE_CORES, VISIBLE_DEVICES
from dra_driver.neuron.topology.instance_types import lookup

BROKEN: Final = frozenset({"device-invalid"})
"""Codes of findings about chips that the kernel driver refuses to open."""
_CHIP: Final = re.compile(r"\bneuron([0-9]{1,3})\b")
_NODE: Final = re.compile(r"/neuron([0-9]{1,3})\Z")


@dataclass(frozen=True, slots=True)
class PluginOffer:
    """A node's devices as kubelet counts them.

    Attributes:
        hardware: how many there are, and how they are linked. A lost chip is still counted, as unhealthy,
            so that the numbers remain those of the instance type.
        numbers: device numbers (major, minor) of each chip that a container can open.
        numa: NUMA node by chip, if known.
        env: variables for every container: the node's logical core size, if the type has a choice.
        sick: what is wrong with each unhealthy chip. Containers that have one keep it, but no other one gets it.
    """

    hardware: NodeHardware
    numbers: Mapping[int, tuple[int, int]]
    numa: Mapping[int, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    sick: Mapping[int, str] = field(default_factory=dict)

    @property
    def usable(self) -> frozenset[int]:
        """Chips that a container can be given."""
        return frozenset(self.numbers) - self.sick.keys()

    @property
    def unusable(self) -> tuple[int, ...]:
        """The other chips, ascending."""
        usable = self.usable
        return tuple(chip for chip in range(self.hardware.devices) if chip not in usable)

    def mask_of_unusable(self) -> int:
        """Mask of the cores of the unusable chips."""
        return self.hardware.mask(NeuronResource.DEVICE, self.unusable)


def unhealthy(health: NodeHealth) -> dict[int, str]:
    """What is wrong with each unhealthy chip, and what to do. kubelet knows two states: others count as healthy."""
    return {chip.index: chip.text for chip in health.chips if chip.state == "unhealthy"}


def offer(
    inventory: NodeInventory, before: PluginOffer | None, sick: Mapping[int, str] | None = None
) -> PluginOffer | None:
    """The devices of an inventory; None until the first chip has appeared.

    Args:
        inventory: of the node.
        before: the previous offer; it remains, without usable chips, while the kernel driver is not loaded.
        sick: see ``unhealthy``.

    Raises:
        DriverError: the numbers of chips and cores are inconsistent.
    """
    if not inventory.devices:
        return None if before is None else PluginOffer(before.hardware, {}, before.numa, before.env)
    kind = lookup(inventory.instance_type) if inventory.instance_type else None
    size = inventory.logical_core_size
    env = {} if size is None else dict.fromkeys(LOGICAL_CORE_VARIABLES, str(size))
    size = size or 1
    highest = max(device.index for device in inventory.devices)
    counts = {device.core_count for device in inventory.devices} - {None}
    physical = kind.cores_per_device if kind else min((count for count in counts if count), default=1)
    per_device = min(max(physical // size, 1), MAX_CORES_PER_DEVICE)
    seen = before.hardware.devices if before is not None else 0
    devices = (kind.devices if kind else None) or min(max(highest + 1, seen), MAX_DEVICES)
    return PluginOffer(
        hardware(inventory.instance_type or "", devices, devices * per_device),
        {chip.index: numbers for chip in inventory.devices if (numbers := _numbers(inventory, chip, devices))},
        {
            chip.index: chip.numa_node
            for chip in inventory.devices
            if chip.numa_node is not None and chip.numa_node >= 0
        },
        env,
        {chip: text for chip, text in (sick or {}).items() if chip < devices},
    )


def _numbers(inventory: NodeInventory, chip: NeuronDevice, devices: int) -> tuple[int, int] | None:
    """Device numbers of a usable chip, else None."""
    if chip.major is None or chip.minor is None or chip.node_present is False or chip.index >= devices:
        return None
    broken = (finding.subject for finding in inventory.findings if finding.code in BROKEN)
    if any(str(chip.index) in _CHIP.findall(subject) for subject in broken):
        return None
    return chip.major, chip.minor


def plugin_devices(
    found: PluginOffer, resource: NeuronResource, withheld: Collection[int] = ()
) -> tuple[PluginDevice, ...]:
    """The devices of one resource, by id. ``withheld`` ids are unhealthy for now, in addition to the unusable chips."""
    width = 1 if resource is NeuronResource.DEVICE else found.hardware.cores_per_device
    usable = found.usable
    return tuple(
        PluginDevice(
            str(number),
            healthy=number // width in usable and number not in withheld,
            numa_nodes=(found.numa[number // width],) if number // width in found.numa else (),
        )
        for number in range(found.hardware.units(resource))
    )


CDI_KIND: Final = "k8s.neuron.aws.com/chip"
"""CDI devices that do not change while the node runs, one for each chip."""
_CDI_NAME: Final = re.compile(rf"{re.escape(CDI_KIND)}=neuron([0-9]{{1,3}})(?:-as-([0-9]{{1,3}}))?")
CDI_OWNER: Final = "node"

_ANYBODY_READS_AND_WRITES: Final = 0o666


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How containers are given their devices, as the administrator sets it.

    Attributes:
        injection: whether kubelet is given device nodes or names of CDI devices.
        numbering: ``host``: chips keep their numbers in containers; ``renumber``: each container counts from 0.
        visible: with VISIBLE_DEVICES, that variable lists the chips for the OCI hook as well; VISIBLE_CORES is set in
            either case.
        node_directory: directory of the host's device nodes, as kubelet sees it.
    """

    injection: Literal["nodes", "cdi"] = "nodes"
    numbering: Literal["host", "renumber"] = "host"
    visible: str = VISIBLE_CORES
    node_directory: str = "/dev"


def answer(found: PluginOffer, share: ContainerShare, settings: AnswerSettings) -> ContainerDevices:
    """What kubelet is told to give the container of ``share``."""
    chips = found.hardware.ids(NeuronResource.DEVICE, found.hardware.mask(share.resource, share.ids))
    as_ = {chip: rank if settings.numbering == "renumber" else chip for rank, chip in enumerate(chips)}
    env = dict(found.env)
    if share.resource is NeuronResource.CORE:
        # Single numbers as in the vendor's documentation, no ranges: programs split the value at commas.
        env[VISIBLE_CORES] = ",".join(str(_core(found.hardware, core, as_)) for core in share.ids)
    if settings.visible == VISIBLE_DEVICES:
        env[VISIBLE_DEVICES] = ",".join(map(str, chips))
    if settings.injection == "cdi":
        return ContainerDevices(env, (), tuple(f"{CDI_KIND}={cdi_name(chip, as_[chip])}" for chip in chips))
    nodes = tuple(
        PluginDeviceNode(f"/dev/neuron{as_[chip]}", f"{settings.node_directory}/neuron{chip}") for chip in chips
    )
    return ContainerDevices(env, nodes)


def ids_in(devices: ContainerDevices, offer: PluginOffer, resource: NeuronResource) -> tuple[int, ...] | None:
    """The ids of the share that ``answer`` made this of, under whatever settings; None if it is no such answer."""
    numbers: dict[int, int] = {}
    """Chips by their numbers in the container."""
    for name in devices.cdi_names:
        match = _CDI_NAME.fullmatch(name)
        if match is None:
            return None
        numbers[int(match[2] or match[1])] = int(match[1])
    for node in devices.nodes:
        ends = _NODE.search(node.container_path), _NODE.search(node.host_path)
        if ends[0] is None or ends[1] is None:
            return None
        numbers[int(ends[0][1])] = int(ends[1][1])
    chips = sorted(chip for chip in numbers.values() if chip < offer.hardware.devices)
    if not chips or len(chips) < len(numbers):
        return None
    if resource is NeuronResource.DEVICE:
        return tuple(chips)
    ids = []
    for text in devices.env.get(VISIBLE_CORES, "").split(","):
        if not (text.isascii() and text.isdigit() and len(text) <= 4):
            return None
        number, within = divmod(int(text), offer.hardware.cores_per_device)
        if number not in numbers:
            return None
        ids.append(numbers[number] * offer.hardware.cores_per_device + within)
    return tuple(sorted(ids))


def _core(machine: NodeHardware, core: int, as_: Mapping[int, int]) -> int:
    chip, within = divmod(core, machine.cores_per_device)
    return as_[chip] * machine.cores_per_device + within


def cdi_name(chip: int, number: int) -> str:
    """Name of the CDI device that makes a chip available as ``/dev/neuron<number>``."""
    return f"neuron{chip}" if chip == number else f"neuron{chip}-as-{number}"


def cdi_spec(found: PluginOffer, settings: AnswerSettings) -> cdi.Spec:
    """The CDI spec of a node, with each chip under every number that it may have in a container."""
    pairs = [
        (chip, number)
        for chip in sorted(found.numbers)
        for number in (range(chip + 1) if settings.numbering == "renumber" else (chip,))
    ]
    devices = tuple(cdi.CdiDevice(cdi_name(chip, number), _edits(found, chip, number)) for chip, number in pairs)
    made = cdi.Spec(cdi_version="", kind=CDI_KIND, devices=devices)
    return replace(made, cdi_version=cdi.minimum_version(made))


def _edits(found: PluginOffer, chip: int, number: int) -> cdi.ContainerEdits:
    major, minor = found.numbers[chip]
    node = cdi.DeviceNode(
        path=f"/dev/neuron{number}",
        host_path=None if chip == number else f"/dev/neuron{chip}",
        type="c",
        major=major,
        minor=minor,
        file_mode=_ANYBODY_READS_AND_WRITES,
        permissions="rw",
    )
    return cdi.ContainerEdits(device_nodes=(node,))

"""What a node has: values only, as ``discover`` reads them and the other packages use them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dra_driver.neuron.topology.hardware import Chip
from dra_driver.neuron.topology.ultraserver import Mode


@dataclass(frozen=True, slots=True)
class Finding:
    """Something odd on the host that an administrator should know; it never stops the driver.

    ``code`` is stable (metrics and tests use it); ``subject`` names what it is about (``neuron3``, ``driver``, a path
    below the host root); ``text`` says what happened, what follows and what to do.
    """

    code: str
    subject: str
    text: str
    severity: Literal["info", "warning", "error"] = "warning"


@dataclass(frozen=True, slots=True)
class NeuronDevice:
    """One Neuron chip as sysfs shows it. ``None`` means: the host does not say, or could not be read."""

    index: int
    """N of ``/dev/neuronN``, host-wide."""
    major: int | None = None
    minor: int | None = None
    """Character device numbers from sysfs ``dev``; both None when unreadable: such a chip is not offered."""
    node_present: bool | None = None
    """Whether ``/dev/neuronN`` exists; None when this process cannot see the host's /dev."""
    core_count: int | None = None
    """Physical NeuronCores."""
    connected: tuple[int, ...] | None = None
    """Neighbours' host indexes as printed by the kernel driver, sorted."""
    serial_number: str | None = None
    architecture: str | None = None
    """``info/architecture/device_name``, such as ``Trainium2``."""
    pci_bus_id: str | None = None
    """``dddd:bb:dd.f``, only where truly known (per-type table of a fully populated node)."""
    numa_node: int | None = None
    pcie_root: str | None = None
    """``pci<domain>:<bus>`` of the root complex above ``pci_bus_id``."""


@dataclass(frozen=True, slots=True)
class ServerSet:
    """A set of nodes that the kernel driver has found to form one server, and this node's place in it."""

    nodes: int
    """How many there are: 2 or 4, or what the firmware says."""
    server_id: str
    """16 lower-case hexadecimal digits, equal on all nodes of the set."""
    node_id: int
    """0 to ``nodes`` - 1, unique in the set."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The part that a node of an UltraServer type takes in its server, as the kernel driver shows it now."""

    modes: tuple[Mode, ...]
    """Modes that the node can be used in now, in the order X4, X2V, X2H, X1; empty while ``electing``."""
    sets: tuple[ServerSet, ...]
    """Sets that exist, the smallest first; while ``electing`` those of the last reading that was not busy."""
    elected: bool
    """Ids come from an election over the links (one set for each size); False: one set from the firmware."""
    electing: bool = False
    """The election is running (minutes after boot, or again): ids and modes are not to be relied on."""

    def set_for(self, nodes: int) -> ServerSet | None:
        """The set that ``nodes`` nodes (2 or 4) working together belong to; None when there is none.

        An election gives each size a set of its own. The firmware gives one, whose ids hold for a part of it too, as
        in AWS's init script.
        """
        if self.elected:
            return next((item for item in self.sets if item.nodes == nodes), None)
        return next((item for item in self.sets if item.nodes >= nodes), None)


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """Everything the driver knows of its node. Equal inventories publish equal slices."""

    instance_type: str | None
    """EC2 name without the HyperPod prefix ``ml.``; None if no source names it."""
    driver_version: str | None
    """Neuron kernel driver version such as ``2.26.10.0``; None: not loaded."""
    devices: tuple[NeuronDevice, ...]
    """Ascending by index, at most one per index; gaps are possible."""
    expected_devices: int = 0
    """How many the instance type has; 0 if it is not known."""
    chip: Chip | None = None
    """What its chips are, by instance type, else by what the kernel driver calls them; None: unknown, or mixed."""
    default_lnc: int | None = None
    """Node-wide logical core size of ``/opt/aws/neuron/logical_nc_config``; None when the file does not say."""
    network_layers: tuple[str | None, str | None, str | None] = (None, None, None)
    """EC2 network topology node ids of layers 1 to 3, from node labels."""
    capacity_block_id: str | None = None
    ultraserver: Membership | None = None
    """None: the instance type is not part of an UltraServer, whatever files the host has."""
    emulated: bool = False
    settling: bool = False
    """Some value said ``busy`` (or a device is resetting): read again soon."""
    findings: tuple[Finding, ...] = field(default=())

    def device(self, index: int) -> NeuronDevice | None:
        """The chip with host index ``index``, or None."""
        return next((device for device in self.devices if device.index == index), None)

    @property
    def chip_indexes(self) -> tuple[int, ...]:
        """Host indexes of all chips that the host has or should have, ascending.

        A chip that the instance type has belongs to the node also while it is lost: a whole node without it is not
        whole.
        """
        return tuple(sorted({*range(self.expected_devices), *(device.index for device in self.devices)}))

    def physical_cores(self, index: int) -> int | None:
        """How many NeuronCores chip ``index`` has; None: neither the host nor its type tells."""
        device = self.device(index)
        count = device.core_count if device is not None else None
        return count or (self.chip.cores if self.chip is not None else None)

    @property
    def logical_core_size(self) -> int | None:
        """The logical core size where none is configured: the node's, else the chip's; None where there is no choice.

        How many physical NeuronCores the runtime joins into one is a setting of runtime and compiler, not of the
        hardware, so two claims on one node may differ. It exists on Trainium2 and later only. From strong to weak: the
        claim's configuration, the DeviceClass's, the node's file, the default of the chip.
        """
        if self.chip is None or len(self.chip.lnc_values) < 2:
            return None
        return self.default_lnc if self.default_lnc in self.chip.lnc_values else self.chip.default_lnc

    @property
    def core_size(self) -> int:
        """Physical NeuronCores in a logical core where none is configured: 1 where there is no choice."""
        return self.logical_core_size or 1

"""What a node has: values only, as ``discover`` reads them and the other rooms use them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


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
    major: int | None
    minor: int | None
    """Character device numbers from sysfs ``dev``; both None when unreadable: such a chip is not offered."""
    node_present: bool | None
    """Whether ``/dev/neuronN`` exists; None when this process cannot see the host's /dev."""
    core_count: int | None
    """Physical NeuronCores."""
    connected: tuple[int, ...] | None
    """Neighbours' host indexes as printed by the kernel driver, sorted."""
    serial_number: str | None
    architecture: str | None
    """``info/architecture/device_name``, such as ``Trainium2``."""
    pci_bus_id: str | None
    """``dddd:bb:dd.f``, only where truly known (per-type table of a fully populated node)."""
    numa_node: int | None


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """Everything the driver knows of its node. Equal inventories publish equal slices."""

    instance_type: str | None
    """EC2 name without the HyperPod prefix ``ml.``; None when no source tells."""
    driver_version: str | None
    """Neuron kernel driver version such as ``2.26.10.0``; None: not loaded."""
    devices: tuple[NeuronDevice, ...]
    """Ascending by index, at most one per index; gaps are possible."""
    default_lnc: int | None = None
    """Node-wide logical core size of ``/opt/aws/neuron/logical_nc_config``; None when the file does not say."""
    network_layers: tuple[str | None, str | None, str | None] = (None, None, None)
    """EC2 network topology node ids of layers 1 to 3, from node labels."""
    capacity_block_id: str | None = None
    emulated: bool = False
    settling: bool = False
    """Some value said ``busy`` (or a device is resetting): read again soon."""
    findings: tuple[Finding, ...] = field(default=())

    def device(self, index: int) -> NeuronDevice | None:
        """The chip with host index ``index``, or None."""
        return next((device for device in self.devices if device.index == index), None)

"""What the rows of the attribute table compute their values from, and how: functions of one subject each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from dra_driver.host.inventory import Membership, NeuronDevice, NodeInventory
from dra_driver.topology.fabric import Chain, Ring, Torus2D
from dra_driver.topology.groups import device_group_ids
from dra_driver.topology.instance_types import InstanceType

Value = int | str | None
ResourceType = Literal["neuron_device", "neuron_node"]

ELECTING: Final = "electing"
"""Stands for the modes while the kernel drivers elect: an attribute that comes and goes would fail claims."""


@dataclass(frozen=True, slots=True)
class AttributeSource:
    """A device to publish."""

    inventory: NodeInventory
    type: InstanceType | None
    """None: the instance type is unknown."""
    resource: ResourceType
    chips: tuple[NeuronDevice, ...]
    """What it is made of, ascending: one chip, or all of the node."""

    @property
    def index(self) -> int:
        """Host index of the first chip."""
        return self.chips[0].index


def _torus(subject: AttributeSource) -> Torus2D | None:
    """The torus of a type whose torus coordinates AWS publishes: not of UltraServers."""
    kind = subject.type
    if kind is None or kind.ultraserver is not None or not isinstance(kind.fabric, Torus2D):
        return None
    return kind.fabric if subject.index < kind.fabric.size else None


def topology_x(subject: AttributeSource) -> Value:
    """Row in the torus."""
    torus = _torus(subject)
    return torus.position(subject.index)[0] if torus else None


def topology_y(subject: AttributeSource) -> Value:
    """Column in the torus."""
    torus = _torus(subject)
    return torus.position(subject.index)[1] if torus else None


def topology_block(rows: int) -> Callable[[AttributeSource], Value]:
    """Block of so many rows of the torus."""

    def value(subject: AttributeSource) -> Value:
        torus = _torus(subject)
        return torus.position(subject.index)[0] // rows if torus and torus.rows >= rows else None

    return value


def device_group(size: int) -> Callable[[AttributeSource], Value]:
    """AWS's id of the block of so many chips; of a whole node if the block is all of it."""

    def value(subject: AttributeSource) -> Value:
        if subject.type is None or len(subject.chips) not in (1, size):
            return None
        return device_group_ids(subject.type, subject.index).get(size)

    return value


def segment(size: int) -> Callable[[AttributeSource], Value]:
    """Run of so many chips on a ring or chain."""

    def value(subject: AttributeSource) -> Value:
        fabric = subject.type.fabric if subject.type else None
        if not isinstance(fabric, (Ring, Chain)) or subject.index >= fabric.size:
            return None
        return subject.index // size if size < fabric.size and fabric.size % size == 0 else None

    return value


def connected(subject: AttributeSource) -> Value:
    """From the type's table; from sysfs only where the kernel driver reads the links from the hardware."""
    kind, chip = subject.type, subject.chips[0]
    if kind is None or not kind.fabric.adjacency_promised or chip.index >= kind.fabric.size:
        return None
    from_hardware = chip.connected if "fabric" in kind.inferred else None
    return ",".join(map(str, from_hardware or kind.fabric.neighbours(chip.index)))


def cores(subject: AttributeSource) -> Value:
    """From the type's table while the host does not tell (a chip in reset): the attribute must not come and go."""
    expected = subject.type.cores_per_device if subject.type else None
    counts = [chip.core_count or expected for chip in subject.chips]
    return None if None in counts else sum(count or 0 for count in counts)


def memory(subject: AttributeSource) -> Value:
    """Device memory of all its chips."""
    return f"{len(subject.chips) * subject.type.device_memory_bytes >> 30}Gi" if subject.type else None


def network_layer(layer: int) -> Callable[[AttributeSource], Value]:
    """The network node of this layer (1 to 3)."""
    return lambda subject: subject.inventory.network_layers[layer - 1]


def capacity_block(subject: AttributeSource) -> Value:
    """Of UltraServers only, as AWS does it."""
    has_ultraserver = subject.type is not None and subject.type.ultraserver is not None
    return subject.inventory.capacity_block_id if has_ultraserver else None


def numa_node(subject: AttributeSource) -> Value:
    """Sysfs says -1 where there is none."""
    node = subject.chips[0].numa_node
    return node if node is not None and node >= 0 else None


def _membership(subject: AttributeSource) -> Membership | None:
    return subject.inventory.ultraserver


def modes(subject: AttributeSource) -> Value:
    """Names of the modes offered, in the order of the membership."""
    membership = _membership(subject)
    if membership is None:
        return None
    return ELECTING if membership.electing else ",".join(map(str, membership.modes)) or None


def server_id(nodes: int) -> Callable[[AttributeSource], Value]:
    """Id of the set of so many nodes."""

    def value(subject: AttributeSource) -> Value:
        membership = _membership(subject)
        sets = membership.sets if membership else ()
        return next((found.server_id for found in sets if found.nodes == nodes), None)

    return value


def node_id(nodes: int) -> Callable[[AttributeSource], Value]:
    """This node's place in the set of so many nodes."""

    def value(subject: AttributeSource) -> Value:
        membership = _membership(subject)
        sets = membership.sets if membership else ()
        return next((found.node_id for found in sets if found.nodes == nodes), None)

    return value

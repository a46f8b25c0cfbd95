"""Every attribute and capacity of a published device: one row each.

``docs/reference/attributes.md`` is made from this table (``scripts/generate attributes``).

Names in AWS's domains keep AWS's meaning and type, so that a claim written for the vendor's driver works unchanged.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from dra_driver.driver.workload import NodeWorkload, Tenancy
from dra_driver.kube.objects import limits
from dra_driver.kube.objects.resource import DeviceAttribute, DeviceCapacity
from dra_driver.neuron.host.inventory import NeuronDevice, NodeInventory, ServerSet
from dra_driver.neuron.names import DRIVER_NAME, GROUP_ATTRIBUTE_DOMAIN, WORKLOAD_ID, WORKLOAD_UID
from dra_driver.neuron.topology.fabric import GROUP_SIZES, SEGMENT_SIZES, Chain, Ring, Torus2D
from dra_driver.neuron.topology.groups import device_group_ids
from dra_driver.neuron.topology.instance_types import InstanceType
from dra_driver.neuron.topology.partitions import ResourceType
from dra_driver.version import VERSION

Value = int | str | None

ELECTING: Final = "electing"
"""Stands for the modes while the kernel drivers elect: an attribute that comes and goes would fail claims."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AttributeSource:
    """A device to publish."""

    inventory: NodeInventory
    type: InstanceType | None
    """None: the instance type is unknown."""
    resource: ResourceType
    chips: tuple[NeuronDevice, ...]
    """What it is made of, or a part of, ascending."""
    core: int = 0
    """Number of a logical core on its chip."""
    core_size: int = 1
    """Physical NeuronCores in a logical core."""
    tenancy: Tenancy | None = None
    """Whose workload the node is allocated to; None: UltraServers are not allocated to workloads here."""

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
    """AWS's id of the block of so many chips, if all of the device is in it."""

    def value(subject: AttributeSource) -> Value:
        if subject.type is None or subject.index // size != subject.chips[-1].index // size:
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
    """The linked chips, from the type's table; from sysfs only where the kernel driver reads them from the hardware."""
    kind, chip = subject.type, subject.chips[0]
    if kind is None or not kind.fabric.adjacency_promised or chip.index >= kind.fabric.size:
        return None
    from_hardware = chip.connected if "fabric" in kind.inferred else None
    return ",".join(map(str, from_hardware or kind.fabric.neighbours(chip.index)))


def cores(subject: AttributeSource) -> Value:
    """NeuronCores of its chips.

    They are from the type's table while the host does not report them (a chip in reset): the attribute must not come
    and go.
    """
    expected = subject.type.cores_per_device if subject.type else None
    counts = [chip.core_count or expected for chip in subject.chips]
    return None if None in counts else sum(count or 0 for count in counts)


def core_run(size: int) -> Callable[[AttributeSource], Value]:
    """Aligned run of so many logical cores, counted over the whole node."""

    def value(subject: AttributeSource) -> Value:
        hardware = subject.inventory.chip or (subject.type.chip if subject.type else None)
        if hardware is None:
            return None
        return (subject.index * (hardware.cores // subject.core_size) + subject.core) // size

    return value


def memory(subject: AttributeSource) -> Value:
    """Device memory of all its chips."""
    return f"{len(subject.chips) * subject.type.device_memory_bytes >> 30}Gi" if subject.type else None


def network_layer(layer: int) -> Callable[[AttributeSource], Value]:
    """The network node of this layer (1 to 3)."""
    return lambda subject: subject.inventory.network_layers[layer - 1]


def capacity_block(subject: AttributeSource) -> Value:
    """The capacity block; of UltraServers only, as AWS does it."""
    has_ultraserver = subject.type is not None and subject.type.ultraserver is not None
    return subject.inventory.capacity_block_id if has_ultraserver else None


def ultraserver_id(subject: AttributeSource) -> Value:
    """The same under another name of AWS's. Nodes are not grouped by it: a capacity block may have many servers."""
    return capacity_block(subject) if subject.tenancy is not None else None


def of_workload(read: Callable[[NodeWorkload], Value]) -> Callable[[AttributeSource], Value]:
    """What ``read`` gives for the workload that the node is allocated to."""

    def value(subject: AttributeSource) -> Value:
        workload = subject.tenancy.workload if subject.tenancy is not None else None
        return None if workload is None else read(workload)

    return value


def numa_node(subject: AttributeSource) -> Value:
    """Sysfs says -1 where there is none."""
    node = subject.chips[0].numa_node
    return node if node is not None and node >= 0 else None


def modes(subject: AttributeSource) -> Value:
    """Names of the modes offered, in the order of the membership."""
    membership = subject.inventory.ultraserver
    if membership is None:
        return None
    return ELECTING if membership.electing else ",".join(map(str, membership.modes)) or None


def server_set(nodes: int, read: Callable[[ServerSet], Value]) -> Callable[[AttributeSource], Value]:
    """What ``read`` gives for the set of so many nodes."""

    def value(subject: AttributeSource) -> Value:
        membership = subject.inventory.ultraserver
        sets = membership.sets if membership else ()
        return next((read(server) for server in sets if server.nodes == nodes), None)

    return value


CHIP: Final[tuple[ResourceType, ...]] = ("neuron_device",)
GROUP: Final[tuple[ResourceType, ...]] = ("neuron_group",)
NODE: Final[tuple[ResourceType, ...]] = ("neuron_node",)
CORE: Final[tuple[ResourceType, ...]] = ("neuron_core",)
# A scheduler reads all attributes of a device, and there are many groups and cores: they have what a claim needs only.
WHOLE: Final = CHIP + NODE
ALL: Final = CHIP + GROUP + NODE + CORE


@dataclass(frozen=True, slots=True)
class Attribute:
    """One row. ``value`` returns None if the value is unknown; the attribute is then omitted on all such devices."""

    name: str
    kind: Literal["int", "string", "version", "capacity"]
    origin: Literal["AWS", "Kubernetes", "this driver"]
    of: tuple[ResourceType, ...]
    when: str
    meaning: str
    value: Callable[[AttributeSource], Value]

    @property
    def short(self) -> str:
        """What has it, in words."""
        return ", ".join(_SHORT[kind] for kind in self.of)


_ALWAYS = "always"
_TORUS = "2D torus types with 16 chips (trn1, trn1n, trn2), except UltraServers"
_EFA = "types with paired EFA devices"
_RING = "rings and chains of more than N chips, if their number is divisible by N"
_LOCATED = "types with published tables, if no chip is missing"
_ULTRASERVER = "UltraServer types, if the kernel driver reports modes"
_ALLOCATED = "nodes that are allocated to an UltraServer workload"
SET_SIZES = (2, 4)
"""Nodes of the sets that AWS names in labels."""
RUN_SIZES: Final = (2, 4)
"""Logical cores of the runs that have an attribute."""
_OF_GROUPS: Final = {min(GROUP_SIZES): CHIP, max(GROUP_SIZES): CHIP + GROUP + NODE}
"""What can be a part of a block or all of it, by size; of the other sizes chips and groups."""
_SHORT: Final = {"neuron_device": "chip", "neuron_group": "group", "neuron_node": "node", "neuron_core": "core"}

ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(
        "deviceId",
        "int",
        "AWS",
        CHIP + CORE,
        _ALWAYS,
        "N of the host's `/dev/neuronN`; of a core, that of its chip",
        lambda s: s.index,
    ),
    Attribute(
        "instanceType",
        "string",
        "AWS",
        ALL,
        "known instance types",
        "EC2 instance type, without HyperPod's `ml.`",
        lambda s: s.inventory.instance_type,
    ),
    Attribute(
        "neuronDriverVersion",
        "string",
        "AWS",
        ALL,
        "hosts with the kernel driver loaded",
        "version of the Neuron kernel driver, which is not a semantic version",
        lambda s: s.inventory.driver_version,
    ),
    Attribute("draDriverVersion", "version", "AWS", WHOLE, _ALWAYS, "version of this driver", lambda _: VERSION),
    Attribute(
        "resourceType",
        "string",
        "AWS",
        ALL,
        _ALWAYS,
        "`neuron_device` (a chip), `neuron_group` (connected chips), `neuron_node` (a whole node) or `neuron_core` "
        "(a logical core)",
        lambda s: s.resource,
    ),
    Attribute("size", "int", "this driver", GROUP, _ALWAYS, "chips in the group", lambda s: len(s.chips)),
    Attribute(
        "firstDeviceId",
        "int",
        "this driver",
        GROUP,
        _ALWAYS,
        "deviceId of its first chip; the others follow it",
        lambda s: s.index,
    ),
    Attribute(
        "coreId", "int", "this driver", CORE, _ALWAYS, "number of the logical core on its chip", lambda s: s.core
    ),
    Attribute(
        "logicalCoreSize",
        "int",
        "this driver",
        CORE,
        _ALWAYS,
        "physical NeuronCores in the logical core",
        lambda s: s.core_size,
    ),
    *(
        Attribute(
            f"coreRun{size}_id",
            "int",
            "this driver",
            CORE,
            _ALWAYS,
            f"equal for {size} consecutive logical cores: the core's number, counted over the node, / {size}",
            core_run(size),
        )
        for size in RUN_SIZES
    ),
    *(
        Attribute(
            f"networkNodeLayer{layer}",
            "string",
            "AWS",
            WHOLE,
            "nodes with the label `topology.k8s.aws/network-node-layer-N`",
            f"EC2 network node of layer {layer} (1 is the top, 3 is closest to the host)",
            network_layer(layer),
        )
        for layer in (1, 2, 3)
    ),
    Attribute(
        "topology_x", "int", "AWS", CHIP, _TORUS, "row in the torus: deviceId / 4, rounded down", topology_block(1)
    ),
    Attribute("topology_y", "int", "AWS", CHIP, _TORUS, "column in the torus: deviceId % 4", topology_y),
    Attribute(
        "topology4_id",
        "int",
        "AWS",
        CHIP,
        _TORUS,
        "row; equal for a connected set of 4",
        topology_block(1),
    ),
    Attribute(
        "topology8_id",
        "int",
        "AWS",
        CHIP,
        _TORUS,
        "pair of rows; equal for a connected set of 8",
        topology_block(2),
    ),
    Attribute(
        "capacityBlockId",
        "string",
        "AWS",
        WHOLE,
        "UltraServer nodes with the label `topology.k8s.aws/capacity-block-id`",
        "EC2 capacity block",
        capacity_block,
    ),
    *(
        Attribute(
            f"{GROUP_ATTRIBUTE_DOMAIN}/devicegroup{size}_id",
            "string",
            "AWS",
            _OF_GROUPS.get(size, CHIP + GROUP),
            _EFA,
            "PCI address of the paired EFA device"
            if size == 1
            else f"equal for the {size} chips of a block, as in AWS's EFA driver",
            device_group(size),
        )
        for size in GROUP_SIZES
    ),
    Attribute(
        "ultraserverModes",
        "string",
        "this driver",
        WHOLE,
        _ULTRASERVER,
        f"currently supported modes, such as `X4,X2V,X1`, or `{ELECTING}`",
        modes,
    ),
    *(
        row
        for nodes in SET_SIZES
        for row in (
            Attribute(
                f"ultraserverServerId{nodes}",
                "string",
                "this driver",
                WHOLE,
                "UltraServer nodes that belong to a set of N nodes",
                f"equal on the {nodes} nodes of the set",
                server_set(nodes, lambda server: server.server_id),
            ),
            Attribute(
                f"ultraserverNodeId{nodes}",
                "int",
                "this driver",
                WHOLE,
                "UltraServer nodes that belong to a set of N nodes",
                f"place in the set of {nodes}, 0 to {nodes - 1}",
                server_set(nodes, lambda server: server.node_id),
            ),
        )
    ),
    Attribute(
        "ultraserverId",
        "string",
        "AWS",
        WHOLE,
        "UltraServer nodes with that label, where UltraServers are allocated to workloads "
        "(`ultraserverOperator.enabled`)",
        "EC2 capacity block, as capacityBlockId",
        ultraserver_id,
    ),
    Attribute(
        WORKLOAD_UID,
        "string",
        "this driver",
        ALL,
        _ALLOCATED,
        "UID of the workload, a NeuronUltraServerWorkload",
        of_workload(lambda workload: workload.uid),
    ),
    Attribute(
        WORKLOAD_ID,
        "string",
        "AWS",
        ALL,
        _ALLOCATED,
        f"name of the workload, if it has at most {limits.MAX_ATTRIBUTE_BYTES} characters",
        of_workload(lambda workload: workload.name or None),
    ),
    Attribute(
        "coreCount",
        "int",
        "this driver",
        CHIP + GROUP + NODE,
        "known instance types, and hosts that report it",
        "physical NeuronCores of all its chips",
        cores,
    ),
    Attribute(
        "connectedDevices",
        "string",
        "this driver",
        CHIP,
        "types with known links and more than one chip",
        "deviceIds of the directly linked chips, ascending, comma-separated",
        connected,
    ),
    *(
        Attribute(
            f"segment{size}_id",
            "int",
            "this driver",
            CHIP,
            _RING,
            f"deviceId / {size}; equal for {size} consecutive, connected chips",
            segment(size),
        )
        for size in SEGMENT_SIZES
    ),
    Attribute(
        "resource.kubernetes.io/pciBusID",
        "string",
        "Kubernetes",
        CHIP,
        _LOCATED,
        "PCI address of the chip",
        lambda s: s.chips[0].pci_bus_id,
    ),
    Attribute(
        "resource.kubernetes.io/pcieRoot",
        "string",
        "Kubernetes",
        CHIP,
        _LOCATED,
        "PCIe root complex above the chip, such as `pci0000:10`, if the host's sysfs shows it",
        lambda s: s.chips[0].pcie_root,
    ),
    Attribute(
        "resource.kubernetes.io/numaNode",
        "int",
        "Kubernetes",
        CHIP,
        _LOCATED,
        "NUMA node of the chip",
        numa_node,
    ),
    Attribute(
        "memory",
        "capacity",
        "this driver",
        WHOLE,
        "known instance types",
        "device memory of the chip or the whole node",
        memory,
    ),
)


def describe(
    subjects: Sequence[AttributeSource],
) -> list[tuple[dict[str, DeviceAttribute], dict[str, DeviceCapacity]]]:
    """Attributes and capacities of devices of one resource type: all have the same ones, what each of them has."""
    rows = [row for row in ATTRIBUTES if subjects[0].resource in row.of]
    columns = [(row, [_legal(row, row.value(subject)) for subject in subjects]) for row in rows]
    full_columns = [(row, values) for row, values in columns if None not in values][: limits.MAX_ATTRIBUTES]
    return [
        (
            {row.name: _attribute(row, values[place]) for row, values in full_columns if row.kind != "capacity"},
            {row.name: DeviceCapacity(str(values[place])) for row, values in full_columns if row.kind == "capacity"},
        )
        for place in range(len(subjects))
    ]


def _attribute(row: Attribute, value: Value) -> DeviceAttribute:
    if isinstance(value, int):
        return DeviceAttribute(int_=value)
    return DeviceAttribute(version=value) if row.kind == "version" else DeviceAttribute(string=value)


def _legal(row: Attribute, value: Value) -> Value:
    """The value, or None for a text that the API server would refuse together with the whole slice."""
    if not isinstance(value, str) or (
        value and value.isprintable() and len(value.encode()) <= limits.MAX_ATTRIBUTE_BYTES
    ):
        return value
    if value:
        _report(row.name, value[:80])
    return None


@lru_cache(maxsize=64)
def _report(name: str, value: str) -> None:
    """Log once, not at each reading of the host."""
    log.warning(
        "attribute %s is left out: %r is longer than %d bytes or not printable", name, value, limits.MAX_ATTRIBUTE_BYTES
    )


def _item(row: Attribute) -> list[str]:
    origin = "" if row.origin == "this driver" else f"; defined by {row.origin}"
    text = f"- `{row.name}` ({row.kind}; {row.short}{origin}): {row.meaning}"
    return textwrap.wrap(text, 118, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)


def markdown() -> str:
    """The page ``docs/reference/attributes.md``."""
    lines = [
        "# Device attributes and capacities",
        "",
        "<!-- Made by `scripts/generate attributes`; do not edit. -->",
        "",
        f"Names without a domain are in the driver's own domain: `device.attributes['{DRIVER_NAME}'].deviceId` in CEL,",
        f"`{DRIVER_NAME}/deviceId` in a `matchAttribute` constraint.",
        "",
        "All chips of a node have the same set of attributes, and so have all cores, and all groups of one size: if a",
        "value is unknown for one of them, the attribute is omitted on all, because a CEL expression that reads a",
        "missing attribute makes the pod unschedulable.",
        f"Guard attributes that are not always published: `has(device.attributes['{DRIVER_NAME}'].topology_x)`.",
        "",
        "Chips, groups, whole nodes and cores have different attributes. Each entry names the type of its value and",
        "the kinds of devices that have it. Where nodes offer several kinds, select the kind first:",
        f"`device.attributes['{DRIVER_NAME}'].resourceType == 'neuron_device' && ...`.",
        "",
        "Attributes defined by AWS have the name, type and meaning that AWS publishes; those defined by Kubernetes are",
        "standard attributes. The others are this driver's own.",
    ]
    sections: dict[str, list[Attribute]] = {}
    for row in ATTRIBUTES:
        sections.setdefault(row.when, []).append(row)
    for when, rows in sections.items():
        lines += [
            "",
            "Published always:" if when == _ALWAYS else f"Published on {when}:",
            "",
            *(line for row in rows for line in _item(row)),
        ]
    return "\n".join(lines) + "\n"

"""Every attribute and capacity of a published device: one row each. ``docs/attributes.md`` is made from this table.

Write the page with ``python -m dra_driver.slices.attributes > docs/attributes.md``.

Names in the domain of AWS keep AWS's meaning and type, so that a claim written for the vendor's driver works unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dra_driver.host.inventory import NeuronDevice, NodeInventory
from dra_driver.names import DRIVER_NAME, GROUP_ATTRIBUTE_DOMAIN
from dra_driver.topology.fabric import GROUP_SIZES, Chain, Ring, Torus2D
from dra_driver.topology.groups import device_group_ids
from dra_driver.topology.instance_types import InstanceType
from dra_driver.version import VERSION

Value = int | str | None


@dataclass(frozen=True, slots=True)
class Subject:
    """What a row computes its value from."""

    inventory: NodeInventory
    device: NeuronDevice
    type: InstanceType | None
    """None: the instance type is unknown."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One row. ``value`` gives None where nothing is known; the attribute is then left out on the whole node."""

    name: str
    kind: Literal["int", "string", "version", "capacity"]
    origin: Literal["AWS", "Kubernetes", "this driver"]
    when: str
    meaning: str
    value: Callable[[Subject], Value]


def _torus(subject: Subject) -> Torus2D | None:
    """The torus of a type whose torus coordinates AWS publishes: not of UltraServers."""
    kind = subject.type
    if kind is None or kind.ultraserver is not None or not isinstance(kind.fabric, Torus2D):
        return None
    return kind.fabric if subject.device.index < kind.fabric.size else None


def _topology_x(subject: Subject) -> Value:
    torus = _torus(subject)
    return torus.position(subject.device.index)[0] if torus else None


def _topology_y(subject: Subject) -> Value:
    torus = _torus(subject)
    return torus.position(subject.device.index)[1] if torus else None


def _topology_block(rows: int) -> Callable[[Subject], Value]:
    def value(subject: Subject) -> Value:
        torus = _torus(subject)
        return torus.position(subject.device.index)[0] // rows if torus and torus.rows >= rows else None

    return value


def _device_group(size: int) -> Callable[[Subject], Value]:
    def value(subject: Subject) -> Value:
        return device_group_ids(subject.type, subject.device.index).get(size) if subject.type else None

    return value


def _segment(size: int) -> Callable[[Subject], Value]:
    def value(subject: Subject) -> Value:
        fabric = subject.type.fabric if subject.type else None
        if not isinstance(fabric, (Ring, Chain)) or subject.device.index >= fabric.size:
            return None
        return subject.device.index // size if size < fabric.size and fabric.size % size == 0 else None

    return value


def _connected(subject: Subject) -> Value:
    """From the type's table; from sysfs only where the kernel driver reads the links from the hardware."""
    kind, device = subject.type, subject.device
    if kind is None or not kind.fabric.adjacency_promised or device.index >= kind.fabric.size:
        return None
    from_hardware = device.connected if "fabric" in kind.inferred else None
    return ",".join(map(str, from_hardware or kind.fabric.neighbours(device.index)))


def _cores(subject: Subject) -> Value:
    """From the type's table while the host does not tell (a chip in reset): the attribute must not come and go."""
    return subject.device.core_count or (subject.type.cores_per_device if subject.type else None)


def _memory(subject: Subject) -> Value:
    return f"{subject.type.device_memory_bytes >> 30}Gi" if subject.type else None


def _network_layer(layer: int) -> Callable[[Subject], Value]:
    return lambda subject: subject.inventory.network_layers[layer - 1]


def _capacity_block(subject: Subject) -> Value:
    has_ultraserver = subject.type is not None and subject.type.ultraserver is not None
    return subject.inventory.capacity_block_id if has_ultraserver else None


_TORUS = "2D torus types that are no UltraServers (trn1, trn1n, trn2 with 16 chips)"
_EFA = "types with paired EFA devices"
_RING = "rings and chains (inf1, inf2) with more chips, if N divides their number"
SEGMENT_SIZES = (2, 3, 4, 6, 8)

ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(
        "deviceId",
        "int",
        "AWS",
        "always",
        "N of the host's `/dev/neuronN`",
        lambda s: s.device.index,
    ),
    Attribute(
        "instanceType",
        "string",
        "AWS",
        "known",
        "EC2 instance type, without HyperPod's `ml.`",
        lambda s: s.inventory.instance_type,
    ),
    Attribute(
        "neuronDriverVersion",
        "string",
        "AWS",
        "kernel driver loaded",
        "version of the Neuron kernel driver; four parts, thus no semantic version",
        lambda s: s.inventory.driver_version,
    ),
    Attribute(
        "draDriverVersion",
        "version",
        "AWS",
        "always",
        "version of this driver",
        lambda _: VERSION,
    ),
    Attribute(
        "resourceType",
        "string",
        "AWS",
        "always",
        "`neuron_device` for a chip",
        lambda _: "neuron_device",
    ),
    *(
        Attribute(
            f"networkNodeLayer{layer}",
            "string",
            "AWS",
            f"node label `topology.k8s.aws/network-node-layer-{layer}` set",
            f"EC2 network node of layer {layer} (1: top of the tree, 3: closest to the host)",
            _network_layer(layer),
        )
        for layer in (1, 2, 3)
    ),
    Attribute("topology_x", "int", "AWS", _TORUS, "row in the torus: deviceId / 4", _topology_x),
    Attribute("topology_y", "int", "AWS", _TORUS, "column in the torus: deviceId % 4", _topology_y),
    Attribute("topology4_id", "int", "AWS", _TORUS, "row: equal for a connected set of 4", _topology_block(1)),
    Attribute("topology8_id", "int", "AWS", _TORUS, "pair of rows: equal for a connected set of 8", _topology_block(2)),
    Attribute(
        "capacityBlockId",
        "string",
        "AWS",
        "UltraServer types with node label `topology.k8s.aws/capacity-block-id`",
        "EC2 capacity block",
        _capacity_block,
    ),
    *(
        Attribute(
            f"{GROUP_ATTRIBUTE_DOMAIN}/devicegroup{size}_id",
            "string",
            "AWS",
            _EFA,
            "PCI address of the paired EFA device"
            if size == 1
            else f"equal for the {size} chips of one block; AWS's EFA driver publishes the same ids",
            _device_group(size),
        )
        for size in GROUP_SIZES
    ),
    Attribute(
        "coreCount",
        "int",
        "this driver",
        "the host tells, or known instance type",
        "physical NeuronCores of the chip",
        _cores,
    ),
    Attribute(
        "connectedDevices",
        "string",
        "this driver",
        "types with known links and more than one chip",
        "deviceIds of the directly linked chips, ascending, comma-separated",
        _connected,
    ),
    *(
        Attribute(
            f"segment{size}_id",
            "int",
            "this driver",
            _RING.replace("N", str(size)),
            f"deviceId / {size}: equal for {size} consecutive, thus connected chips",
            _segment(size),
        )
        for size in SEGMENT_SIZES
    ),
    Attribute(
        "resource.kubernetes.io/pciBusID",
        "string",
        "Kubernetes",
        "truly known (types with published tables, fully populated)",
        "PCI address of the chip",
        lambda s: s.device.pci_bus_id,
    ),
    Attribute(
        "resource.kubernetes.io/numaNode",
        "int",
        "Kubernetes",
        "truly known",
        "NUMA node of the chip",
        lambda s: s.device.numa_node if s.device.numa_node is not None and s.device.numa_node >= 0 else None,
    ),
    Attribute("memory", "capacity", "this driver", "known instance type", "device memory of the chip", _memory),
)


def markdown() -> str:
    """The page ``docs/attributes.md``."""
    lines = [
        "# Device attributes and capacities",
        "",
        "<!-- Written by `python -m dra_driver.slices.attributes > docs/attributes.md`; do not edit. -->",
        "",
        f"A name without a domain is in the driver's own: `device.attributes['{DRIVER_NAME}'].deviceId` in CEL,",
        f"`{DRIVER_NAME}/deviceId` in a `matchAttribute` constraint. All devices of a node have the same set of",
        "attributes: what is not known for one of them is left out on all, because a CEL expression that meets a",
        "missing attribute fails the whole pod. So guard what is not `always` there:",
        f"`has(device.attributes['{DRIVER_NAME}'].topology_x)`.",
        "",
        "`AWS` rows have name, type and meaning as AWS publishes them; `Kubernetes` rows are standard attributes.",
        "",
        "| Name | Type | Defined by | Published when | Meaning |",
        "|---|---|---|---|---|",
        *(f"| `{row.name}` | {row.kind} | {row.origin} | {row.when} | {row.meaning} |" for row in ATTRIBUTES),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(markdown())

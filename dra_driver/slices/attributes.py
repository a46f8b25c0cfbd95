"""Every attribute and capacity of a published device: one row each. ``docs/attributes.md`` is generated from it.

Write the page with ``python -m dra_driver.slices.attributes > docs/attributes.md``.

Names in the domain of AWS keep AWS's meaning and type, so that a claim written for the vendor's driver works unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from dra_driver.names import DRIVER_NAME, GROUP_ATTRIBUTE_DOMAIN
from dra_driver.slices import subject
from dra_driver.slices.subject import ELECTING, AttributeSource, ResourceType, Value
from dra_driver.topology.fabric import GROUP_SIZES
from dra_driver.version import VERSION

CHIP: Final[tuple[ResourceType, ...]] = ("neuron_device",)
NODE: Final[tuple[ResourceType, ...]] = ("neuron_node",)
ALL: Final = CHIP + NODE


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


_ALWAYS = "always"
_TORUS = "2D torus types with 16 chips (trn1, trn1n, trn2), except UltraServers"
_EFA = "types with paired EFA devices"
_RING = "rings and chains (inf1, inf2) of more than N chips, if their number is divisible by N"
_LOCATED = "types with published tables, if no chip is missing"
_ULTRASERVER = "UltraServer types, if the kernel driver reports modes"
SEGMENT_SIZES = (2, 3, 4, 6, 8)
SET_SIZES = (2, 4)
"""Nodes of the sets that AWS names in labels."""
_SHORT = {CHIP: "chip", NODE: "node", ALL: "chip, node"}

ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute("deviceId", "int", "AWS", CHIP, _ALWAYS, "N of the host's `/dev/neuronN`", lambda s: s.index),
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
    Attribute("draDriverVersion", "version", "AWS", ALL, _ALWAYS, "version of this driver", lambda _: VERSION),
    Attribute(
        "resourceType",
        "string",
        "AWS",
        ALL,
        _ALWAYS,
        "`neuron_device` (a chip) or `neuron_node` (a whole node of an UltraServer)",
        lambda s: s.resource,
    ),
    *(
        Attribute(
            f"networkNodeLayer{layer}",
            "string",
            "AWS",
            ALL,
            "nodes with the label `topology.k8s.aws/network-node-layer-N`",
            f"EC2 network node of layer {layer} (1 is the top, 3 is closest to the host)",
            subject.network_layer(layer),
        )
        for layer in (1, 2, 3)
    ),
    Attribute(
        "topology_x", "int", "AWS", CHIP, _TORUS, "row in the torus: deviceId / 4, rounded down", subject.topology_x
    ),
    Attribute("topology_y", "int", "AWS", CHIP, _TORUS, "column in the torus: deviceId % 4", subject.topology_y),
    Attribute(
        "topology4_id",
        "int",
        "AWS",
        CHIP,
        _TORUS,
        "row; equal for a connected set of 4",
        subject.topology_block(1),
    ),
    Attribute(
        "topology8_id",
        "int",
        "AWS",
        CHIP,
        _TORUS,
        "pair of rows; equal for a connected set of 8",
        subject.topology_block(2),
    ),
    Attribute(
        "capacityBlockId",
        "string",
        "AWS",
        ALL,
        "UltraServer nodes with the label `topology.k8s.aws/capacity-block-id`",
        "EC2 capacity block",
        subject.capacity_block,
    ),
    *(
        Attribute(
            f"{GROUP_ATTRIBUTE_DOMAIN}/devicegroup{size}_id",
            "string",
            "AWS",
            ALL if size == max(GROUP_SIZES) else CHIP,
            _EFA,
            "PCI address of the paired EFA device"
            if size == 1
            else f"equal for the {size} chips of a block, as in AWS's EFA driver",
            subject.device_group(size),
        )
        for size in GROUP_SIZES
    ),
    Attribute(
        "ultraserverModes",
        "string",
        "this driver",
        ALL,
        _ULTRASERVER,
        f"currently supported modes, such as `X4,X2V,X1`, or `{ELECTING}`",
        subject.modes,
    ),
    *(
        row
        for nodes in SET_SIZES
        for row in (
            Attribute(
                f"ultraserverServerId{nodes}",
                "string",
                "this driver",
                ALL,
                "UltraServer nodes that belong to a set of N nodes",
                f"equal on the {nodes} nodes of the set",
                subject.server_id(nodes),
            ),
            Attribute(
                f"ultraserverNodeId{nodes}",
                "int",
                "this driver",
                ALL,
                "UltraServer nodes that belong to a set of N nodes",
                f"place in the set of {nodes}, 0 to {nodes - 1}",
                subject.node_id(nodes),
            ),
        )
    ),
    Attribute(
        "coreCount",
        "int",
        "this driver",
        ALL,
        "known instance types, and hosts that report it",
        "physical NeuronCores of the chip or the whole node",
        subject.cores,
    ),
    Attribute(
        "connectedDevices",
        "string",
        "this driver",
        CHIP,
        "types with known links and more than one chip",
        "deviceIds of the directly linked chips, ascending, comma-separated",
        subject.connected,
    ),
    *(
        Attribute(
            f"segment{size}_id",
            "int",
            "this driver",
            CHIP,
            _RING,
            f"deviceId / {size}; equal for {size} consecutive, connected chips",
            subject.segment(size),
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
        "resource.kubernetes.io/numaNode",
        "int",
        "Kubernetes",
        CHIP,
        _LOCATED,
        "NUMA node of the chip",
        subject.numa_node,
    ),
    Attribute(
        "memory",
        "capacity",
        "this driver",
        ALL,
        "known instance types",
        "device memory of the chip or the whole node",
        subject.memory,
    ),
)


def markdown() -> str:
    """The page ``docs/attributes.md``."""
    lines = [
        "# Device attributes and capacities",
        "",
        "<!-- Written by `python -m dra_driver.slices.attributes > docs/attributes.md`; do not edit. -->",
        "",
        f"Names without a domain are in the driver's own domain: `device.attributes['{DRIVER_NAME}'].deviceId` in CEL,",
        f"`{DRIVER_NAME}/deviceId` in a `matchAttribute` constraint.",
        "",
        "All chips of a node have the same set of attributes: if a value is unknown for one chip, the attribute is",
        "omitted on all of them, because a CEL expression that reads a missing attribute makes the pod unschedulable.",
        f"Guard attributes that are not always published: `has(device.attributes['{DRIVER_NAME}'].topology_x)`.",
        "",
        "The device that represents a whole node of an UltraServer has its own set of attributes (column `Of`). Where",
        "nodes may offer both, first select the kind of device:",
        f"`device.attributes['{DRIVER_NAME}'].resourceType == 'neuron_device' && ...`.",
        "",
        "Attributes defined by `AWS` have the name, type and meaning that AWS publishes; those defined by `Kubernetes`",
        "are standard attributes.",
    ]
    sections: dict[str, list[Attribute]] = {}
    for row in ATTRIBUTES:
        sections.setdefault(row.when, []).append(row)
    for when, rows in sections.items():
        lines += [
            "",
            "Published always:" if when == _ALWAYS else f"Published on {when}:",
            "",
            "| Name | Type | Of | Defined by | Meaning |",
            "|---|---|---|---|---|",
            *(f"| `{row.name}` | {row.kind} | {_SHORT[row.of]} | {row.origin} | {row.meaning} |" for row in rows),
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(markdown())

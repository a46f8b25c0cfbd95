"""Every attribute and capacity of a published device: one row each. ``docs/attributes.md`` is made from this table.

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
    """One row. ``value`` gives None where nothing is known: left out on all devices of that resource type."""

    name: str
    kind: Literal["int", "string", "version", "capacity"]
    origin: Literal["AWS", "Kubernetes", "this driver"]
    of: tuple[ResourceType, ...]
    when: str
    meaning: str
    value: Callable[[AttributeSource], Value]


_TORUS = "2D torus types that are no UltraServers (trn1, trn1n, trn2 with 16 chips)"
_EFA = "types with paired EFA devices"
_RING = "rings and chains (inf1, inf2) with more chips, if N divides their number"
_ULTRASERVER = "UltraServer types whose kernel driver tells"
SEGMENT_SIZES = (2, 3, 4, 6, 8)
SET_SIZES = (2, 4)
"""Nodes of the sets that AWS names in labels."""
_SHORT = {CHIP: "chip", NODE: "node", ALL: "chip, node"}

ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute("deviceId", "int", "AWS", CHIP, "always", "N of the host's `/dev/neuronN`", lambda s: s.index),
    Attribute(
        "instanceType",
        "string",
        "AWS",
        ALL,
        "known",
        "EC2 instance type, without HyperPod's `ml.`",
        lambda s: s.inventory.instance_type,
    ),
    Attribute(
        "neuronDriverVersion",
        "string",
        "AWS",
        ALL,
        "kernel driver loaded",
        "version of the Neuron kernel driver; four parts, thus no semantic version",
        lambda s: s.inventory.driver_version,
    ),
    Attribute("draDriverVersion", "version", "AWS", ALL, "always", "version of this driver", lambda _: VERSION),
    Attribute(
        "resourceType",
        "string",
        "AWS",
        ALL,
        "always",
        "`neuron_device` for a chip, `neuron_node` for a whole node of an UltraServer",
        lambda s: s.resource,
    ),
    *(
        Attribute(
            f"networkNodeLayer{layer}",
            "string",
            "AWS",
            ALL,
            f"node label `topology.k8s.aws/network-node-layer-{layer}` set",
            f"EC2 network node of layer {layer} (1: top of the tree, 3: closest to the host)",
            subject.network_layer(layer),
        )
        for layer in (1, 2, 3)
    ),
    Attribute("topology_x", "int", "AWS", CHIP, _TORUS, "row in the torus: deviceId / 4", subject.topology_x),
    Attribute("topology_y", "int", "AWS", CHIP, _TORUS, "column in the torus: deviceId % 4", subject.topology_y),
    Attribute(
        "topology4_id",
        "int",
        "AWS",
        CHIP,
        _TORUS,
        "row: equal for a connected set of 4",
        subject.topology_block(1),
    ),
    Attribute(
        "topology8_id",
        "int",
        "AWS",
        CHIP,
        _TORUS,
        "pair of rows: equal for a connected set of 8",
        subject.topology_block(2),
    ),
    Attribute(
        "capacityBlockId",
        "string",
        "AWS",
        ALL,
        "UltraServer types with node label `topology.k8s.aws/capacity-block-id`",
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
            else f"equal for the {size} chips of one block; AWS's EFA driver publishes the same ids",
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
        f"modes that the node can be used in now, such as `X4,X2V,X1`; `{ELECTING}` while the election runs",
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
                f"UltraServer nodes that are one of a set of {nodes}",
                f"equal on the {nodes} nodes of the set",
                subject.server_id(nodes),
            ),
            Attribute(
                f"ultraserverNodeId{nodes}",
                "int",
                "this driver",
                ALL,
                f"UltraServer nodes that are one of a set of {nodes}",
                f"place in the set, 0 to {nodes - 1}",
                subject.node_id(nodes),
            ),
        )
    ),
    Attribute(
        "coreCount",
        "int",
        "this driver",
        ALL,
        "the host tells, or known instance type",
        "physical NeuronCores of the chip, or of all chips of the node",
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
            _RING.replace("N", str(size)),
            f"deviceId / {size}: equal for {size} consecutive, thus connected chips",
            subject.segment(size),
        )
        for size in SEGMENT_SIZES
    ),
    Attribute(
        "resource.kubernetes.io/pciBusID",
        "string",
        "Kubernetes",
        CHIP,
        "truly known (types with published tables, fully populated)",
        "PCI address of the chip",
        lambda s: s.chips[0].pci_bus_id,
    ),
    Attribute(
        "resource.kubernetes.io/numaNode",
        "int",
        "Kubernetes",
        CHIP,
        "truly known",
        "NUMA node of the chip",
        subject.numa_node,
    ),
    Attribute(
        "memory",
        "capacity",
        "this driver",
        ALL,
        "known instance type",
        "device memory of the chip, or of all chips of the node",
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
        f"A name without a domain is in the driver's own: `device.attributes['{DRIVER_NAME}'].deviceId` in CEL,",
        f"`{DRIVER_NAME}/deviceId` in a `matchAttribute` constraint. All chips of a node have the same set of",
        "attributes: what is not known for one of them is left out on all, because a CEL expression that meets a",
        "missing attribute fails the whole pod. So guard what is not `always` there:",
        f"`has(device.attributes['{DRIVER_NAME}'].topology_x)`. The device that is a whole node of an UltraServer has",
        "a set of its own (column `Of`). Where a node may offer both, say first which is meant:",
        f"`device.attributes['{DRIVER_NAME}'].resourceType == 'neuron_device' && ...`.",
        "",
        "`AWS` rows have name, type and meaning as AWS publishes them; `Kubernetes` rows are standard attributes.",
        "",
        "| Name | Type | Of | Defined by | Published when | Meaning |",
        "|---|---|---|---|---|---|",
        *(
            f"| `{row.name}` | {row.kind} | {_SHORT[row.of]} | {row.origin} | {row.when} | {row.meaning} |"
            for row in ATTRIBUTES
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(markdown())

"""The DeviceClasses that are installed with the driver: one row each.

A class says in one selector which devices it is for, so that a request needs none: a scheduler evaluates each selector
for each device that it looks at. ``neuron.aws.com`` selects what it always did, chips and whole nodes, also on nodes
that offer more.

On a node that a NeuronUltraServerWorkload has, devices carry the workload's UID. One class is for these, and all others
for the rest: whoever asks with them gets no device of such a node. Who may ask with which is for a policy to say
(``ultraserver.neuron.aws.com`` in the chart).

``deploy/deviceclasses.yaml`` is made from this table (``scripts/generate classes``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from dra_driver.neuron.names import ADMIN_CLASS, DRIVER_NAME, WORKLOAD_CLASS, WORKLOAD_UID
from dra_driver.neuron.topology.partitions import ResourceType


@dataclass(frozen=True, slots=True)
class DeviceClassRow:
    """A DeviceClass."""

    name: str
    meaning: str
    """What a request with this class gets, for the documentation."""
    resources: tuple[ResourceType, ...]
    """The values of ``resourceType`` that it selects."""
    conditions: Mapping[str, int | str] = field(default_factory=dict)
    """Further attributes and the values that they must have."""
    extended_resource: str | None = None
    """``extendedResourceName``, where an administrator asks for extended resources; None: it never has one."""
    nodes: Literal["of nobody", "of workloads", "of anybody"] = "of nobody"
    """Whose nodes it selects devices of: a node may have been given to a NeuronUltraServerWorkload."""

    @property
    def expression(self) -> str:
        """The CEL selector. The driver comes first: devices of others have none of our attributes."""
        attributes = f"device.attributes['{DRIVER_NAME}']"
        kinds = " || ".join(f"{attributes}.resourceType == '{kind}'" for kind in self.resources)
        wanted = [
            f"{attributes}.{name} == {value}" if isinstance(value, int) else f"{attributes}.{name} == '{value}'"
            for name, value in self.conditions.items()
        ]
        kinds = f"({kinds})" if len(self.resources) > 1 else kinds
        mark = f"has({attributes}.{WORKLOAD_UID})"
        fence = {"of nobody": [f"!{mark}"], "of workloads": [mark], "of anybody": []}[self.nodes]
        return " && ".join([f"device.driver == '{DRIVER_NAME}'", kinds, *wanted, *fence])


def _group(size: int) -> DeviceClassRow:
    return DeviceClassRow(
        f"group{size}.{DRIVER_NAME}",
        f"{size} connected chips as one device",
        ("neuron_group",),
        {"size": size},
        f"aws.amazon.com/neuron-{size}",
    )


DEVICE_CLASSES: Final[Sequence[DeviceClassRow]] = (
    DeviceClassRow(DRIVER_NAME, "chips and whole nodes", ("neuron_device", "neuron_node")),
    DeviceClassRow(f"chip.{DRIVER_NAME}", "a chip", ("neuron_device",), extended_resource="aws.amazon.com/neuron"),
    DeviceClassRow(
        f"core.{DRIVER_NAME}", "a logical core", ("neuron_core",), extended_resource="aws.amazon.com/neuroncore"
    ),
    DeviceClassRow(f"group.{DRIVER_NAME}", "a connected group of any size", ("neuron_group",)),
    *(_group(size) for size in (2, 4, 8)),
    DeviceClassRow(f"node.{DRIVER_NAME}", "all chips of a node as one device", ("neuron_node",)),
    DeviceClassRow(WORKLOAD_CLASS, "a node of the UltraServers of a workload", ("neuron_node",), nodes="of workloads"),
    DeviceClassRow(
        ADMIN_CLASS,
        "looking at chips and whole nodes that anybody has: adminAccess only",
        ("neuron_device", "neuron_node"),
        nodes="of anybody",
    ),
)


def manifest() -> str:
    """The file ``deploy/deviceclasses.yaml``: the classes as objects, each with its meaning as a comment."""
    head = (
        "# Made by `scripts/generate classes`; do not edit.",
        "# The classes with their extended resources, to simulate with: `dra-driver simulate deviceclasses.yaml ...`.",
    )
    return "\n".join([*head, "\n---\n".join(_document(row) for row in DEVICE_CLASSES)]) + "\n"


def _document(row: DeviceClassRow) -> str:
    # Folded: YAML puts a space in place of each end of a line.
    expression = re.sub(r" (&&|\|\|) ", r" \1\n        ", row.expression)
    lines = [
        f"# For {row.meaning}.",
        "apiVersion: resource.k8s.io/v1",
        "kind: DeviceClass",
        "metadata:",
        f"  name: {row.name}",
        "  labels:",
        "    app.kubernetes.io/name: neuron-dra-driver",
        "    app.kubernetes.io/component: dra-driver",
        "spec:",
        "  selectors:",
        "  - cel:",
        "      expression: >-",
        f"        {expression}",
    ]
    if row.extended_resource is not None:
        lines.append(f"  extendedResourceName: {row.extended_resource}")
    return "\n".join(lines)

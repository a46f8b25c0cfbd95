"""One node's chips are offered by the DRA driver or by a device plugin, never by both: neither knows the other's pods.

The DRA driver looks at the Node before it publishes for the first time; a device plugin (of this project or of the
vendor) shows there. The device plugin looks at the node's slices before it registers and from then on, and ends when
there are devices (``legacy.deviceplugin.exclusion``). So if both are started at one moment, the device plugin gives
way.
"""

from __future__ import annotations

from typing import Final

from dra_driver.kube.types import Node
from dra_driver.util.errors import DriverError

RESOURCES: Final = tuple(f"aws.amazon.com/{kind}" for kind in ("neuron", "neuroncore", "neurondevice"))
"""Extended resources of device plugins for Neuron, the retired one included."""
CHOOSE: Final = (
    "run one of the two on each node: a node selector on their DaemonSets keeps them apart (in the chart: "
    "draDriver.enabled and devicePlugin.enabled)"
)
"""What to do about it."""


class Excluded(DriverError):  # noqa: N818 # reads as what it says: `except Excluded`
    """Somebody else offers the chips of this node."""


def check_node(node: Node) -> None:
    """Raise Excluded if a device plugin offers chips of the node."""
    offered = [f"{name}: {count}" for name in RESOURCES if (count := node.status.allocatable.get(name, "0")) != "0"]
    if offered:
        raise Excluded(
            f"a device plugin offers the Neuron devices of node {node.metadata.name} ({', '.join(offered)})",
            consequence="the DRA driver does not publish the same chips a second time, and ends",
            remedy=CHOOSE,
        )

"""Ensures that only one of the DRA driver and a device plugin offers a node's chips: neither knows the other's pods.

The DRA driver checks the Node before it publishes for the first time; a device plugin (of this project or of the
vendor) is visible there. The device plugin checks the node's slices and the claims of its pods before it registers and
continuously thereafter, and exits if it finds any. If both are started at the same moment, the device plugin therefore
gives way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dra_driver.kube.api import ResourceApi
from dra_driver.kube.errors import ApiError
from dra_driver.kube.types import Node
from dra_driver.kubelet.client import PodDevices
from dra_driver.names import DRIVER_NAME
from dra_driver.util.errors import DriverError

RESOURCES: Final = tuple(f"aws.amazon.com/{kind}" for kind in ("neuron", "neuroncore", "neurondevice"))
"""Extended resources of device plugins for Neuron, the retired one included."""
CHOOSE: Final = (
    "run one of the two on each node: a node selector on their DaemonSets keeps them apart (in the chart: "
    "draDriver.enabled and devicePlugin.enabled)"
)
"""The remedy."""


class Excluded(DriverError):  # noqa: N818 # reads as what it says: `except Excluded`
    """Another component offers the chips of this node."""


def check_node(node: Node) -> None:
    """Raise Excluded if a device plugin offers chips of the node."""
    offered = [f"{name}: {count}" for name in RESOURCES if (count := node.status.allocatable.get(name, "0")) != "0"]
    if offered:
        raise Excluded(
            f"a device plugin offers the Neuron devices of node {node.metadata.name} ({', '.join(offered)})",
            consequence="the DRA driver does not publish the same chips a second time, and ends",
            remedy=CHOOSE,
        )


def check_slices(api: ResourceApi, node: str) -> None:
    """Raise Excluded if the DRA driver publishes devices of the node, or ApiError if that cannot be determined."""
    try:
        slices, _ = api.list_slices(DRIVER_NAME, node)
    except ApiError as error:
        if error.reason == "NotServed":
            return  # a cluster without Dynamic Resource Allocation
        raise
    devices = [device.name for found in slices for device in found.spec.devices]
    if devices:
        raise Excluded(
            f"the DRA driver {DRIVER_NAME} publishes {len(devices)} devices of node {node} ({devices[0]}, ...)",
            consequence="the device plugin does not offer the same chips a second time, and ends",
            remedy=f"{CHOOSE}; if the DRA driver is gone for good, delete its ResourceSlices of this node",
        )


def check_claims(node: str, listed: Iterable[PodDevices]) -> None:
    """Raise Excluded if a pod of the node has chips allocated by a claim."""
    for pod in listed:
        if any(claimed.driver == DRIVER_NAME for claimed in pod.claimed):
            raise Excluded(
                f"pod {pod.namespace}/{pod.name} on node {node} has chips by a claim of the DRA driver {DRIVER_NAME}",
                consequence="the device plugin would give them to others too, so it ends",
                remedy="let such pods end first",
            )

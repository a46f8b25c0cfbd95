"""What keeps the device plugin from offering chips: the DRA driver offers them (``dra_driver.exclusion``)."""

from __future__ import annotations

from collections.abc import Iterable

from dra_driver.exclusion import CHOOSE, Excluded
from dra_driver.kube.api import ResourceApi
from dra_driver.kube.errors import ApiError
from dra_driver.kubeletplugin.podresources import PodDevices
from dra_driver.names import DRIVER_NAME


def check_slices(api: ResourceApi, node: str) -> None:
    """Raise Excluded if the DRA driver publishes devices of the node, ApiError if that cannot be found out."""
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
    """Raise Excluded if a pod of the node has chips by a claim."""
    for pod in listed:
        if any(driver == DRIVER_NAME for driver, _ in pod.claimed):
            raise Excluded(
                f"pod {pod.namespace}/{pod.name} on node {node} has chips by a claim of the DRA driver {DRIVER_NAME}",
                consequence="the device plugin would give them to others too, so it ends",
                remedy="let such pods end first",
            )

"""Kinds that controllers of the whole cluster read: nodes with their health, what drivers offer, and claims."""

from __future__ import annotations

from typing import Final

from dra_driver.kube.codec import GROUP, VERSIONS
from dra_driver.kube.collection import ApiObject, Resource
from dra_driver.kube.objects import ObjectMeta, ResourceClaim, ResourcePool

_RESOURCE_API: Final = tuple(f"{GROUP}/{version}" for version in VERSIONS)


class NodeTaint(ApiObject, frozen=True):
    """``spec.taints[]``."""

    key: str
    value: str = ""
    effect: str = ""


class ClusterNodeSpec(ApiObject, frozen=True):
    """``spec``, the parts in use."""

    unschedulable: bool = False
    taints: tuple[NodeTaint, ...] = ()


class Condition(ApiObject, frozen=True):
    """``status.conditions[]``."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""


class ClusterNodeStatus(ApiObject, frozen=True):
    """``status``, the part in use."""

    conditions: tuple[Condition, ...] = ()


class ClusterNode(ApiObject, frozen=True):
    """A Node as a controller of the cluster sees it."""

    metadata: ObjectMeta
    spec: ClusterNodeSpec = ClusterNodeSpec()
    status: ClusterNodeStatus = ClusterNodeStatus()


class OfferedDevice(ApiObject, frozen=True):
    """A device by its name; the name lies at the same place in every version of the API."""

    name: str


class OfferSpec(ApiObject, frozen=True):
    """``spec`` of a slice, the parts in use."""

    driver: str
    pool: ResourcePool
    node_name: str = ""
    devices: tuple[OfferedDevice, ...] = ()


class Offer(ApiObject, frozen=True):
    """A ResourceSlice as far as it tells which devices there are."""

    metadata: ObjectMeta
    spec: OfferSpec


NODES: Final = Resource(ClusterNode, "Node", "nodes", ("v1",))
OFFERS: Final = Resource(Offer, "ResourceSlice", "resourceslices", _RESOURCE_API)
CLAIMS: Final = Resource(ResourceClaim, "ResourceClaim", "resourceclaims", _RESOURCE_API)

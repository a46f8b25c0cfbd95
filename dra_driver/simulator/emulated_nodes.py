"""Nodes that do not exist, with exactly the slices that this driver publishes on an emulated host of their type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dra_driver.driver.deviceclasses import DEVICE_CLASSES
from dra_driver.driver.node_labels import labels as ultraserver_labels
from dra_driver.driver.resourceslices.devices import Layout, Offer, effective_partitions, offer
from dra_driver.driver.resourceslices.pool import pool
from dra_driver.kube.documents import ManifestError
from dra_driver.kube.objects.core import Node, NodeMeta, NodeStatus
from dra_driver.kube.objects.meta import ObjectMeta, Quantity
from dra_driver.kube.objects.resource import (
    CELDeviceSelector,
    Device,
    DeviceClass,
    DeviceClassSpec,
    DeviceRequest,
    DeviceSelector,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_driver.neuron.emulation import efa
from dra_driver.neuron.emulation.memory import emulated_inventory
from dra_driver.neuron.emulation.options import EmulationOptions
from dra_driver.neuron.emulation.ultraservers import Servers
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.instance_types import resolve_emulation
from dra_driver.neuron.topology.partitions import Partitions
from dra_driver.simulator.manifests.model import Manifests
from dra_driver.simulator.manifests.names import suffix, uid
from dra_driver.util.errors import DriverError

MAX_NODES: Final = 20_000
"""Four times the size that a Kubernetes cluster is tested for."""
_NODES_OF_A_SERVER: Final = 4
_SIZES: Final = {
    "inf1.xlarge": (4, 8),
    "inf1.2xlarge": (8, 16),
    "inf1.6xlarge": (24, 48),
    "inf1.24xlarge": (96, 192),
    "inf2.xlarge": (4, 16),
    "inf2.8xlarge": (32, 128),
    "inf2.24xlarge": (96, 384),
    "inf2.48xlarge": (192, 768),
    "trn1.2xlarge": (8, 32),
    "trn1.32xlarge": (128, 512),
    "trn1n.32xlarge": (128, 512),
    "trn2.3xlarge": (12, 128),
    "trn2.48xlarge": (192, 2048),
    "trn2u.48xlarge": (192, 2048),
}
"""vCPUs and GiB of memory, as far as EC2's pages list them. What kubelet reserves of them depends on its settings."""


def emulated(
    nodes: Sequence[tuple[str, int]],
    *,
    ultraservers: str = "",
    layout: Layout = "node",
    partitions: Partitions | None = None,
    driver_version: str | None = None,
    extended_resources: bool = False,
) -> Manifests:
    """A cluster of healthy nodes: Node objects, slices, the driver's DeviceClasses, and the inventory of each host.

    Nodes are named ``node-1`` and so on, zero-padded to equal length, with types in the given order. Those of
    UltraServers form complete servers of four nodes, or the servers given by ``ultraservers``.

    Args:
        nodes: EC2 types with the number of nodes of each.
        ultraservers: such as ``8x2`` for eight servers of two nodes; "" for as many servers of four as the nodes need.
        layout: what a node of an UltraServer offers, as in the driver's option.
        partitions: what every node offers, as in the driver's option ``--devices``; None: nothing in particular is set.
        driver_version: of the Neuron kernel driver; None for the newest known.
        extended_resources: whether the DeviceClasses offer extended resources.

    Raises:
        DriverError: an unknown type, too many nodes, UltraServers with fewer nodes, or with types that have none.
    """
    total = sum(count for _, count in nodes)
    if not 0 < total <= MAX_NODES or any(count < 1 for _, count in nodes):
        raise ManifestError(f"{total} nodes cannot be emulated", remedy=f"give 1 to {MAX_NODES} in all")
    made = list(zip(_names(total), _hosts(nodes, ultraservers, driver_version), strict=True))
    publisher = _Publisher(layout, partitions)
    return Manifests(
        nodes=tuple(_node(name, inventory) for name, inventory in made),
        slices=tuple(item for name, inventory in made for item in publisher.slices(name, inventory)),
        classes=driver_classes(extended_resources=extended_resources),
        inventories=dict(made),
    )


def driver_classes(*, extended_resources: bool = False) -> tuple[DeviceClass, ...]:
    """The DeviceClasses that are installed with the driver.

    Args:
        extended_resources: whether they offer the extended resources that an administrator can ask for.
    """
    return tuple(
        DeviceClass(
            ObjectMeta(name=row.name),
            DeviceClassSpec(
                (DeviceSelector(CELDeviceSelector(row.expression)),),
                extended_resource_name=row.extended_resource if extended_resources else None,
            ),
        )
        for row in DEVICE_CLASSES
    )


def _names(total: int) -> list[str]:
    width = len(str(total))
    return [f"node-{number:0{width}}" for number in range(1, total + 1)]


def _hosts(nodes: Sequence[tuple[str, int]], ultraservers: str, version: str | None) -> Iterator[NodeInventory]:
    kinds = [(resolve_emulation(name), count) for name, count in nodes]
    if ultraservers and not any(kind.ultraserver for kind, _ in kinds):
        names = ", ".join(dict.fromkeys(kind.name for kind, _ in kinds))
        raise DriverError(f"{names}: not part of an UltraServer", remedy="leave the UltraServers out")
    for kind, count in kinds:
        options = EmulationOptions(driver_version=version)
        if kind.ultraserver is None:
            yield from [emulated_inventory(kind, options)] * count
            continue
        servers = Servers.parse(ultraservers) if ultraservers else Servers(-(-count // _NODES_OF_A_SERVER), 4)
        for number in range(1, count + 1):
            yield emulated_inventory(kind, servers.options(kind, number, options))


def _node(name: str, inventory: NodeInventory) -> Node:
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": name,
        "node.kubernetes.io/instance-type": inventory.instance_type or "",
        **(ultraserver_labels(inventory.ultraserver) or {}),
    }
    size = _SIZES.get(inventory.instance_type or "")
    allocatable: dict[str, Quantity] = {"cpu": str(size[0]), "memory": f"{size[1]}Gi"} if size is not None else {}
    return Node(NodeMeta(name=name, uid=uid(f"Node {name}"), labels=labels), status=NodeStatus(allocatable))


class _Publisher:
    """Identical hosts share their devices, so that a large cluster is built quickly."""

    def __init__(self, layout: Layout, partitions: Partitions | None) -> None:
        self._layout: Layout = layout
        self._partitions = partitions
        self._published: dict[NodeInventory, Offer] = {}

    def slices(self, name: str, inventory: NodeInventory) -> Iterator[ResourceSlice]:
        """The slices that the driver publishes on the node, as stored."""
        if inventory not in self._published:
            partitions = effective_partitions(inventory, self._partitions, self._layout)
            self._published[inventory] = offer(inventory, partitions)
        offered = self._published[inventory]
        for item in pool(offered.devices, name, uid(f"Node {name}"), counters=offered.counters):
            meta = ObjectMeta(
                name=f"{item.metadata.generate_name}{suffix(name)}", owner_references=item.metadata.owner_references
            )
            yield ResourceSlice(meta, item.spec)


def efa_of(cluster: Manifests) -> Manifests:
    """The EFA devices of the cluster's emulated nodes and their DeviceClass, if a claim asks for that class.

    To be merged below the cluster, so that a class of that name in it stays; nodes that have devices of that driver
    get no others.
    """
    claims = [*(item.spec for item in cluster.claims), *(item.spec.spec for item in cluster.templates)]
    if not any(efa.EFA_CLASS in _classes_of(item) for claim in claims for item in claim.devices.requests):
        return Manifests()
    there = {item.spec.node_name for item in cluster.slices if item.spec.driver == efa.EFA_DRIVER_NAME}
    types = {name: item.instance_type for name, item in cluster.inventories.items() if name not in there}
    offers = {name: tuple(efa.published(resolve_emulation(name))) for name in set(types.values()) if name is not None}
    slices = tuple(_efa_slice(node, offers[name]) for node, name in types.items() if name is not None and offers[name])
    selector = DeviceSelector(CELDeviceSelector(efa.EFA_SELECTOR))
    offered = DeviceClass(ObjectMeta(name=efa.EFA_CLASS), DeviceClassSpec((selector,)))
    return Manifests(classes=(offered,) if cluster.inventories else (), slices=slices)


def _classes_of(request: DeviceRequest) -> set[str]:
    asked = [request.exactly] if request.exactly is not None else request.first_available
    return {item.device_class_name for item in asked}


def _efa_slice(node: str, devices: tuple[Device, ...]) -> ResourceSlice:
    return ResourceSlice(
        ObjectMeta(name=f"{node}-{efa.EFA_DRIVER_NAME}-{suffix(node)}"),
        ResourceSliceSpec(driver=efa.EFA_DRIVER_NAME, pool=ResourcePool(node, 1, 1), node_name=node, devices=devices),
    )

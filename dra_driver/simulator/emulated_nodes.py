"""Nodes that do not exist, with exactly the slices that this driver publishes on an emulated host of their type."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs

from dra_driver.driver.deviceclasses import DEVICE_CLASSES
from dra_driver.driver.node_labels import labels as ultraserver_labels
from dra_driver.driver.resourceslices.devices import Offer, offer
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
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_driver.neuron.emulation import efa
from dra_driver.neuron.emulation.memory import emulated_inventory
from dra_driver.neuron.emulation.options import EmulationOptions
from dra_driver.neuron.emulation.ultraservers import Servers
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.names import DRIVER_NAME, PRESENT
from dra_driver.neuron.topology.hardware import INFERENTIA, INFERENTIA2, TRAINIUM, TRAINIUM2
from dra_driver.neuron.topology.instance_types import HYPERPOD_PREFIX, InstanceType, resolve, resolve_emulation
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
        partitions: what every node offers, as in the driver's option; None: nothing in particular is set.
        driver_version: of the Neuron kernel driver; None for the newest known.
        extended_resources: whether the DeviceClasses offer extended resources.

    Raises:
        DriverError: an unknown type, too many nodes, UltraServers with fewer nodes, or with types that have none.
    """
    total = sum(count for _, count in nodes)
    if not 0 < total <= MAX_NODES or any(count < 1 for _, count in nodes):
        raise ManifestError(f"{total} nodes cannot be emulated", remedy=f"give 1 to {MAX_NODES} in all")
    types = (name for name, count in nodes for _ in range(count))
    names = (f"node-{number:0{len(str(total))}}" for number in range(1, total + 1))
    inventories = dict(zip(names, _hosts(nodes, ultraservers, driver_version), strict=True))
    # Identical hosts share their devices, so that a large cluster is built quickly.
    offers = {inventory: offer(inventory, partitions) for inventory in dict.fromkeys(inventories.values())}
    return Manifests(
        nodes=tuple(
            _node(name, inventory, HYPERPOD_PREFIX if kind.startswith(HYPERPOD_PREFIX) else "")
            for (name, inventory), kind in zip(inventories.items(), types, strict=True)
        ),
        slices=tuple(item for name, inventory in inventories.items() for item in _published(name, offers[inventory])),
        classes=driver_classes(extended_resources=extended_resources),
        inventories=inventories,
    )


def ec2_nodes() -> Manifests:
    """One healthy, empty node of each type that EC2's pages list, with the driver's defaults."""
    return emulated([(kind, 1) for kind in _SIZES])


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


def _node(name: str, inventory: NodeInventory, prefix: str) -> Node:
    of_type = prefix + (inventory.instance_type or "")
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": name,
        **dict.fromkeys(("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"), of_type),
        PRESENT: "true",
        **(ultraserver_labels(inventory.ultraserver) or {}),
    }
    size = _SIZES.get(inventory.instance_type or "")
    allocatable: dict[str, Quantity] = {"cpu": str(size[0]), "memory": f"{size[1]}Gi"} if size is not None else {}
    return Node(NodeMeta(name=name, uid=uid(f"Node {name}"), labels=labels), status=NodeStatus(allocatable))


def provisioned(cluster: Manifests, labels: Mapping[str, str]) -> Manifests:
    """The emulated nodes with the labels that provisioners add to real ones, and with ``labels``, which win."""
    nodes = tuple(
        structs.replace(node, metadata=structs.replace(node.metadata, labels={**_labels(cluster, node), **labels}))
        for node in cluster.nodes
    )
    return replace(cluster, nodes=nodes)


def _labels(cluster: Manifests, node: Node) -> dict[str, str]:
    kind = cluster.inventories[node.metadata.name].instance_type
    return (provisioned_labels(resolve(kind)) if kind else {}) | node.metadata.labels


def described(cluster: Manifests, emulated: Manifests) -> Manifests:
    """The cluster, with emulated nodes of which it has Node objects: their labels, amounts and taints are added.

    Raises ManifestError if such a node has Neuron devices of its own.
    """
    own = {item.metadata.name for item in emulated.slices}
    for item in cluster.slices:
        is_neuron = item.spec.driver == DRIVER_NAME and item.metadata.name not in own
        if is_neuron and item.spec.node_name in emulated.inventories:
            raise ManifestError(
                f"--node: the cluster has a node {item.spec.node_name} with Neuron devices already",
                remedy="rename it, or leave --node out",
            )
    nodes = {node.metadata.name: node for node in emulated.nodes}
    return replace(
        cluster, nodes=tuple(_described(nodes.get(node.metadata.name, node), node) for node in cluster.nodes)
    )


def _described(node: Node, given: Node) -> Node:
    meta = structs.replace(node.metadata, labels=node.metadata.labels | given.metadata.labels)
    allocatable = {**node.status.allocatable, **given.status.allocatable}
    return Node(meta, given.spec, structs.replace(given.status, allocatable=allocatable))


def provisioned_labels(kind: InstanceType) -> dict[str, str]:
    """What provisioners add to on-demand nodes of a type, as far as it follows from the type.

    Karpenter and EKS Auto Mode say the same under names of their own. Not the names of node pools, node groups and
    zones, and not who made the node: that is one of them only. Sources: Karpenter, "Well-Known Labels" of AWS's
    provider; EKS user guide, "Managed node groups" and "EKS Auto Mode supported labels".
    """
    family, _, size = kind.name.partition(".")
    labels = {
        "category": re.split(r"[0-9]", family, maxsplit=1)[0],
        "generation": "".join(re.findall(r"[0-9]+", family)[:1]),
        "family": family,
        "size": size,
        "hypervisor": "nitro",
        "accelerator-manufacturer": "aws",
    }
    if kind.chip in _ACCELERATORS:
        labels["accelerator-name"] = _ACCELERATORS[kind.chip]
    if kind.devices is not None:
        labels["accelerator-count"] = str(kind.devices)
    if kind.name in _SIZES:
        cores, memory = _SIZES[kind.name]
        labels |= {"cpu": str(cores), "memory": str(memory << 10)}
    return {
        "karpenter.sh/capacity-type": "on-demand",
        "eks.amazonaws.com/capacityType": "ON_DEMAND",
        **{f"{domain}/instance-{name}": value for domain in _PROVISIONERS for name, value in labels.items()},
    }


_PROVISIONERS: Final = ("karpenter.k8s.aws", "eks.amazonaws.com")


_ACCELERATORS: Final = {
    INFERENTIA: "inferentia",
    INFERENTIA2: "inferentia2",
    TRAINIUM: "trainium",
    TRAINIUM2: "trainium2",
}
"""Karpenter's names of the chips, as far as they are documented."""


def _published(name: str, offered: Offer) -> Iterator[ResourceSlice]:
    """The slices that the driver publishes on the node, as stored."""
    for item in pool(offered.devices, name, uid(f"Node {name}"), counters=offered.counters):
        meta = ObjectMeta(
            name=f"{item.metadata.generate_name}{suffix(name)}", owner_references=item.metadata.owner_references
        )
        yield ResourceSlice(meta, item.spec)


def efa_of(cluster: Manifests) -> Manifests:
    """The EFA devices of the cluster's emulated nodes and their DeviceClass, if any claim or class asks for them.

    To be merged below the cluster, so that a class of that name in it stays; nodes that have devices of that driver
    get no others.
    """
    claims = [*(item.spec for item in cluster.claims), *(item.spec.spec for item in cluster.templates)]
    requests = [one for claim in claims for request in claim.devices.requests for one in _alternatives(request)]
    classes = [item.spec.selectors for item in cluster.classes]
    selectors = [item for group in (*classes, *(one.selectors for one in requests)) for item in group]
    expressions = (item.cel.expression for item in selectors if item.cel is not None)
    if all(one.device_class_name != efa.EFA_CLASS for one in requests) and not any(
        efa.EFA_DRIVER_NAME in text for text in expressions
    ):
        return Manifests()
    there = {item.spec.node_name for item in cluster.slices if item.spec.driver == efa.EFA_DRIVER_NAME}
    types = {name: item.instance_type for name, item in cluster.inventories.items() if name not in there}
    offers = {name: tuple(efa.published(resolve_emulation(name))) for name in set(types.values()) if name is not None}
    slices = tuple(_efa_slice(node, offers[name]) for node, name in types.items() if name is not None and offers[name])
    selector = DeviceSelector(CELDeviceSelector(efa.EFA_SELECTOR))
    offered = DeviceClass(ObjectMeta(name=efa.EFA_CLASS), DeviceClassSpec((selector,)))
    return Manifests(classes=(offered,) if cluster.inventories else (), slices=slices)


def _alternatives(request: DeviceRequest) -> Sequence[ExactDeviceRequest | DeviceSubRequest]:
    return [request.exactly] if request.exactly is not None else request.first_available


def _efa_slice(node: str, devices: tuple[Device, ...]) -> ResourceSlice:
    return ResourceSlice(
        ObjectMeta(name=f"{node}-{efa.EFA_DRIVER_NAME}-{suffix(node)}"),
        ResourceSliceSpec(driver=efa.EFA_DRIVER_NAME, pool=ResourcePool(node, 1, 1), node_name=node, devices=devices),
    )

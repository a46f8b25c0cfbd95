"""Pods and nodes as the extender reads them: only the fields in use are decoded, and less than that is kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from dra_driver.errors import DriverError
from dra_driver.kube.types import ApiObject, Resource
from dra_driver.legacy.annotations import NodeAnnotations, PodAnnotations, present
from dra_driver.legacy.demand import (
    ENDED,
    Container,
    Demand,
    Limits,
    PodSpec,
    PodStatus,
    demand,
    quantity,
)
from dra_driver.legacy.hardware import Hardware, hardware
from dra_driver.legacy.names import INSTANCE_TYPE_LABEL
from dra_driver.legacy.names import Resource as Extended
from dra_driver.legacy.usage import Holding, holding

RUNNING: Final = (("fieldSelector", ",".join(f"status.phase!={phase}" for phase in sorted(ENDED))),)
"""Selects the pods that have not ended."""


class PodMeta(ApiObject, frozen=True):
    """``metadata`` of a pod, the parts in use."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: PodAnnotations | None = None


class PartialPod(ApiObject, frozen=True):
    """A pod; bound by a Binding, changed by patches of annotations only."""

    metadata: PodMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeLabels(ApiObject, frozen=True):
    """``metadata.labels`` of a node, the one in use."""

    instance_type: str | None = msgspec.field(name=INSTANCE_TYPE_LABEL, default=None)


class NodeMeta(ApiObject, frozen=True):
    """``metadata`` of a node, the parts in use."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: NodeLabels | None = None
    annotations: NodeAnnotations | None = None


class NodeStatus(ApiObject, frozen=True):
    """``status`` of a node, the part in use."""

    capacity: Limits | None = None


class PartialNode(ApiObject, frozen=True):
    """A node."""

    metadata: NodeMeta
    status: NodeStatus = NodeStatus()


PODS: Final = Resource(PartialPod, "Pod", "pods", ("v1",))
NODES: Final = Resource(PartialNode, "Node", "nodes", ("v1",))


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod.

    Attributes:
        key: ``namespace/name``.
        version: resource version.
        node: where it is bound, or "".
        wants: what it asks for; None when that cannot be read.
        holding: what it has, once it is bound.
        priority: pods of higher priority may have it evicted.
        stale: keys of ours that were there before it was bound.
        ended: whether its devices are free again.
    """

    key: str
    uid: str
    version: str
    node: str
    wants: Demand | None
    holding: Holding | None
    priority: int = 0
    stale: tuple[str, ...] = ()
    ended: bool = False

    @property
    def counts(self) -> bool:
        """Whether it asks for Neuron resources, or may do so, and has not ended."""
        return not self.ended and self.wants != ()


@dataclass(frozen=True, slots=True)
class Node:
    """A node.

    Attributes:
        hardware: None when it cannot be known.
        trouble: why ``hardware`` is None.
        unusable: value of the annotation of devices that nobody is to get.
        usage_maps: values of the annotations for devices and cores, as stored.
    """

    name: str
    uid: str
    hardware: Hardware | None
    trouble: str
    unusable: str | None
    usage_maps: tuple[str | None, str | None]


_NO_ANNOTATIONS: Final = PodAnnotations()


def pod_of(item: PartialPod) -> Pod:
    """What is of interest of a pod."""
    wants: Demand | None
    try:
        wants = wanted(item)
    except DriverError:
        wants = None
    meta = item.metadata
    key = f"{meta.namespace}/{meta.name}"
    annotations = meta.annotations or _NO_ANNOTATIONS
    bound = item.spec.node_name
    return Pod(
        key=key,
        uid=meta.uid,
        version=meta.resource_version,
        node=bound,
        wants=wants,
        holding=holding(key, annotations, wants) if bound else None,
        priority=item.spec.priority or 0,
        stale=() if bound else present(annotations),
        ended=item.status.phase in ENDED,
    )


def wanted(item: PartialPod) -> Demand:
    """What a pod asks for; DriverError when that cannot be read."""
    return _demand(item.spec.init_containers or (), item.spec.containers or ())


@lru_cache(maxsize=4096)
def _demand(init: tuple[Container, ...], main: tuple[Container, ...]) -> Demand:
    """Pods of one template share what they ask for."""
    return demand(init, main)


def node_of(item: PartialNode) -> Node:
    """What to remember of a node, also of one without Neuron devices: a pod's event tells why it is none for it."""
    meta = item.metadata
    annotations = meta.annotations or NodeAnnotations()
    name = (meta.labels.instance_type if meta.labels else None) or ""
    capacity = item.status.capacity or Limits()
    found, trouble = None, ""
    try:
        found = hardware(name, _capacity(capacity.devices), _capacity(capacity.cores))
    except DriverError as error:
        trouble = str(error)
    return Node(
        name=meta.name,
        uid=meta.uid,
        hardware=found,
        trouble=trouble,
        unusable=annotations.unusable,
        usage_maps=(annotations.device_usage, annotations.core_usage),
    )


def _capacity(value: str | float | None) -> int:
    number = 0 if value is None else quantity(value)
    if number is None:
        raise DriverError(f"the node reports {str(value)[:64]!r} of {Extended.DEVICE.value} or {Extended.CORE.value}")
    return number

"""Objects as the extender decodes them: pods and nodes of the API server, and kube-scheduler's ``extender/v1``.

Only the fields in use are decoded, and even less is kept. The fields of ``extender/v1`` have the names of Go's structs.
Its requests come from whoever reaches the port, so they are decoded strictly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from dra_driver.kube.api.codec import Resource as ApiResource
from dra_driver.kube.objects.meta import ApiObject
from dra_driver.legacy.annotations import MAX_LENGTH, NodeAnnotations, PodAnnotations, copied, present
from dra_driver.legacy.resource_requests import (
    ENDED,
    Limits,
    LimitsPodSpec,
    LimitsPodStatus,
    PodRequest,
    pod_request,
    quantity,
    shared,
)
from dra_driver.legacy.rules import NeuronResource, NodeHardware, hardware
from dra_driver.legacy.usage import Holding, holding, in_short
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL
from dra_driver.util.errors import DriverError

RUNNING: Final = (("fieldSelector", ",".join(f"status.phase!={phase}" for phase in sorted(ENDED))),)
"""Selects the pods that have not ended."""


class PodMeta(ApiObject, frozen=True):
    """``metadata`` of a pod: the fields in use."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: PodAnnotations | None = None


class LimitsPod(ApiObject, frozen=True):
    """A pod; bound by a Binding, changed only by patches of annotations."""

    metadata: PodMeta
    spec: LimitsPodSpec = LimitsPodSpec()
    status: LimitsPodStatus = LimitsPodStatus()


class NodeLabels(ApiObject, frozen=True):
    """``metadata.labels`` of a node: the one in use."""

    instance_type: str | None = msgspec.field(name=INSTANCE_TYPE_LABEL, default=None)


class CapacityNodeMeta(ApiObject, frozen=True):
    """``metadata`` of a node: the fields in use."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: NodeLabels | None = None
    annotations: NodeAnnotations | None = None


class CapacityNodeStatus(ApiObject, frozen=True):
    """``status`` of a node: the field in use."""

    capacity: Limits | None = None


class CapacityNode(ApiObject, frozen=True):
    """A node."""

    metadata: CapacityNodeMeta
    status: CapacityNodeStatus = CapacityNodeStatus()


PODS: Final = ApiResource(LimitsPod, "Pod", "pods", ("v1",))
NODES: Final = ApiResource(CapacityNode, "Node", "nodes", ("v1",))


@dataclass(frozen=True, slots=True)
class ExtenderPod:
    """A pod.

    Attributes:
        key: ``namespace/name``.
        version: resource version.
        node: where it is bound, or "".
        requests: of its containers; None if they cannot be parsed.
        holding: what it holds, once it is bound.
        priority: pods of higher priority may preempt it.
        stale: our annotation keys that were present before it was bound.
        ended: whether it has released its devices.
    """

    key: str
    uid: str
    version: str
    node: str
    requests: PodRequest | None
    holding: Holding | None
    priority: int = 0
    stale: tuple[str, ...] = ()
    ended: bool = False

    @property
    def counts(self) -> bool:
        """Whether it requests Neuron resources, or may do so, and has not ended."""
        return not self.ended and self.requests != ()


@dataclass(frozen=True, slots=True)
class ExtenderNode:
    """A node.

    Attributes:
        hardware: None if it cannot be determined.
        trouble: why ``hardware`` is None.
        unusable: value of the annotation of unusable devices.
        usage_maps: values of the annotations for devices and cores, as stored.
    """

    name: str
    uid: str
    hardware: NodeHardware | None
    trouble: str
    unusable: str | None
    usage_maps: tuple[str | None, str | None]


_NO_ANNOTATIONS: Final = PodAnnotations()


def pod_of(item: LimitsPod) -> ExtenderPod:
    """The parts of a pod that matter here."""
    requests: PodRequest | None
    try:
        requests = shared(requests_of(item))
    except DriverError:
        requests = None
    meta = item.metadata
    key = f"{meta.namespace}/{meta.name}"
    annotations = meta.annotations or _NO_ANNOTATIONS
    bound = item.spec.node_name
    held = holding(key, annotations, requests, of_another=copied(annotations, meta.uid)) if bound else None
    return ExtenderPod(
        key=key,
        uid=meta.uid,
        version=meta.resource_version,
        node=bound,
        requests=requests,
        holding=None if held is None else in_short(held),
        priority=item.spec.priority or 0,
        stale=() if bound else present(annotations),
        ended=item.status.phase in ENDED,
    )


def requests_of(item: LimitsPod) -> PodRequest:
    """What a pod requests. Raises DriverError if it cannot be parsed."""
    return pod_request(item.spec.init_containers, item.spec.containers)


def node_of(item: CapacityNode) -> ExtenderNode:
    """The parts of a node that matter here; also without Neuron devices, so that a pod's event can say why not."""
    meta = item.metadata
    annotations = meta.annotations or NodeAnnotations()
    name = (meta.labels.instance_type if meta.labels else None) or ""
    capacity = item.status.capacity or Limits()
    found, trouble = None, ""
    try:
        found = hardware(name, _capacity(capacity.devices), _capacity(capacity.cores))
    except DriverError as error:
        trouble = str(error)
    return ExtenderNode(
        name=meta.name,
        uid=meta.uid,
        hardware=found,
        trouble=trouble,
        unusable=_cut(annotations.unusable),
        usage_maps=(_cut(annotations.device_usage), _cut(annotations.core_usage)),
    )


def _cut(text: str | None) -> str | None:
    """Of a text that is too long to be read, so much that it still is."""
    return text if text is None else text[: MAX_LENGTH + 1]


def _capacity(value: str | float | None) -> int:
    number = 0 if value is None else quantity(value)
    if number is None:
        raise DriverError(
            f"the node reports {str(value)[:64]!r} of {NeuronResource.DEVICE.value} or {NeuronResource.CORE.value}"
        )
    return number


T = TypeVar("T")


class _Named(msgspec.Struct):
    name: str


class _Uid(msgspec.Struct):
    uid: str


class _HasName(msgspec.Struct):
    metadata: _Named


class NodeList(msgspec.Struct):
    """Whole ExtenderNode objects, passed on unchanged (``nodeCacheCapable: false``)."""

    items: list[msgspec.Raw] | None = None


class Args(msgspec.Struct, rename="pascal"):
    """``ExtenderArgs``: the request of ``filter`` and ``prioritize``."""

    pod: LimitsPod
    nodes: NodeList | None = None
    node_names: list[str] | None = None


class FilterResult(msgspec.Struct, rename="pascal", omit_defaults=True):
    """``ExtenderFilterResult``."""

    nodes: dict[str, Any] | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    """Nodes where evicting other pods is of no use."""
    error: str = ""


class HostPriority(msgspec.Struct, rename="pascal"):
    """One entry of ``HostPriorityList``."""

    host: str
    score: int


class MetaPod(msgspec.Struct):
    """A pod by its UID."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct):
    """Pods to evict on one node, highest priority first, and how many PodDisruptionBudgets that violates."""

    pods: list[MetaPod] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _HasUid(msgspec.Struct):
    metadata: _Uid


class Victims(msgspec.Struct):
    """The same as whole ExtenderPod objects."""

    pods: list[_HasUid] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct, rename="pascal"):
    """``ExtenderPreemptionArgs``: what the scheduler would evict, by node."""

    pod: LimitsPod
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None


class PreemptionResult(msgspec.Struct, rename="pascal"):
    """``ExtenderPreemptionResult``: nodes that are not named are dropped."""

    node_name_to_meta_victims: dict[str, MetaVictims]


class BindingArgs(msgspec.Struct, rename="pascal"):
    """``ExtenderBindingArgs``."""

    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = ""


class BindingResult(msgspec.Struct, rename="pascal"):
    """``ExtenderBindingResult``."""

    error: str = ""


_ARGS: Final = msgspec.json.Decoder(Args)
_PREEMPTION: Final = msgspec.json.Decoder(PreemptionArgs)
_BINDING: Final = msgspec.json.Decoder(BindingArgs)
_NODE: Final = msgspec.json.Decoder(_HasName)
encode: Final = msgspec.json.Encoder().encode


def decode_args(body: bytes) -> Args:
    """Decode the body of ``filter`` or ``prioritize``. Raises DriverError naming the invalid field."""
    return _decode(_ARGS, body)


def decode_binding(body: bytes) -> BindingArgs:
    """Decode the body of ``bind``. Raises DriverError naming the invalid or empty field."""
    found = _decode(_BINDING, body)
    empty = [name for name, text in msgspec.to_builtins(found).items() if not text]
    if empty:
        raise DriverError(f"the request cannot be read: {empty[0]} is empty")
    return found


def decode_preemption(body: bytes) -> PreemptionArgs:
    """Decode the body of ``preempt``. Raises DriverError naming the invalid field."""
    return _decode(_PREEMPTION, body)


def proposed_victims(args: PreemptionArgs) -> dict[str, MetaVictims]:
    """What the scheduler would evict by node, in whichever form it was sent."""
    whole = {
        name: MetaVictims([MetaPod(pod.metadata.uid) for pod in item.pods or ()], item.violations)
        for name, item in (args.node_name_to_victims or {}).items()
    }
    return whole | (args.node_name_to_meta_victims or {})


def named_nodes(args: Args) -> dict[str, msgspec.Raw | None]:
    """The candidates by name, with the object if it was sent. Raises DriverError if there is no list of them."""
    if args.node_names is not None:
        return dict.fromkeys(args.node_names)
    if args.nodes is None:
        raise DriverError("the request cannot be read: it has neither NodeNames nor Nodes")
    return {_decode(_NODE, item).metadata.name: item for item in args.nodes.items or ()}


def _decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DriverError(f"the request cannot be read: {error}") from error

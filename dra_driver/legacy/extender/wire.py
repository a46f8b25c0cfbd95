"""What kube-scheduler sends and expects: ``extender/v1`` of Kubernetes, whose fields have the names of Go's structs.

Requests come from whoever reaches the port, so they are decoded strictly, and only the fields in use.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from dra_driver.errors import DriverError
from dra_driver.legacy.extender.objects import PartialPod

T = TypeVar("T")


class _Named(msgspec.Struct):
    name: str


class _Uid(msgspec.Struct):
    uid: str


class _HasName(msgspec.Struct):
    metadata: _Named


class NodeList(msgspec.Struct):
    """Whole Node objects, passed on as they came (``nodeCacheCapable: false``)."""

    items: list[msgspec.Raw] | None = None


class Args(msgspec.Struct, rename="pascal"):
    """``ExtenderArgs``: what ``filter`` and ``prioritize`` are asked with."""

    pod: PartialPod
    nodes: NodeList | None = None
    node_names: list[str] | None = None


class FilterResult(msgspec.Struct, rename="pascal", omit_defaults=True):
    """``ExtenderFilterResult``."""

    nodes: dict[str, Any] | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    """Nodes where it is no use to evict other pods."""
    error: str = ""


class HostPriority(msgspec.Struct, rename="pascal"):
    """One entry of ``HostPriorityList``."""

    host: str
    score: int


class MetaPod(msgspec.Struct):
    """A pod by its UID."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct):
    """Pods to evict on one node, of falling priority; how many PodDisruptionBudgets that violates."""

    pods: list[MetaPod] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _HasUid(msgspec.Struct):
    metadata: _Uid


class Victims(msgspec.Struct):
    """The same with whole Pod objects."""

    pods: list[_HasUid] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct, rename="pascal"):
    """``ExtenderPreemptionArgs``: by node what the scheduler would evict."""

    pod: PartialPod
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None


class PreemptionResult(msgspec.Struct, rename="pascal"):
    """``ExtenderPreemptionResult``: nodes that are not named are given up."""

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
    """The body of ``filter`` and ``prioritize``; DriverError naming the field that is wrong."""
    return _decode(_ARGS, body)


def decode_binding(body: bytes) -> BindingArgs:
    """The body of ``bind``; DriverError naming the field that is wrong or empty."""
    found = _decode(_BINDING, body)
    empty = [name for name, text in msgspec.to_builtins(found).items() if not text]
    if empty:
        raise DriverError(f"the request cannot be read: {empty[0]} is empty")
    return found


def decode_preemption(body: bytes) -> PreemptionArgs:
    """The body of ``preempt``; DriverError naming the field that is wrong."""
    return _decode(_PREEMPTION, body)


def proposed_victims(args: PreemptionArgs) -> dict[str, MetaVictims]:
    """By node what the scheduler would evict, in whichever form it was sent."""
    whole = {
        name: MetaVictims([MetaPod(pod.metadata.uid) for pod in item.pods or ()], item.violations)
        for name, item in (args.node_name_to_victims or {}).items()
    }
    return whole | (args.node_name_to_meta_victims or {})


def named_nodes(args: Args) -> dict[str, msgspec.Raw | None]:
    """The candidates by name, with the object where it was sent. DriverError when there is no list of them."""
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

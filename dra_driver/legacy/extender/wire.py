"""What kube-scheduler sends and expects: ``extender/v1`` of Kubernetes, whose fields have the names of Go's structs.

Requests come from whoever reaches the port, so they are decoded strictly, and only the fields in use.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from dra_driver.errors import DriverError
from dra_driver.legacy.extender.objects import PodObject

T = TypeVar("T")


class _Named(msgspec.Struct):
    name: str


class _HasName(msgspec.Struct):
    metadata: _Named


class NodeList(msgspec.Struct):
    """Whole Node objects, passed on as they came (``nodeCacheCapable: false``)."""

    items: list[msgspec.Raw] | None = None


class Args(msgspec.Struct, rename="pascal"):
    """``ExtenderArgs``: what ``filter`` and ``prioritize`` are asked with."""

    pod: PodObject
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

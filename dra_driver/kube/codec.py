"""Objects to and from the wire, in each version of ``resource.k8s.io``.

``v1`` and ``v1beta2`` have the same shape; ``v1beta1`` wraps attributes and capacity of a device in ``basic``. What is
read of a claim (``metadata`` and ``status``) is the same in all three. Unknown fields are ignored; a field of the wrong
type is a DecodeError that names its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from dra_driver.kube.errors import DecodeError
from dra_driver.kube.objects import Node, ResourceClaim, ResourceSlice

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Newest first."""

T = TypeVar("T")
JsonObject = dict[str, Any]


class ListMeta(msgspec.Struct, rename="camel"):
    """``metadata`` of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class ObjectList(msgspec.Struct, Generic[T]):
    """A list as the server sends it; ``items`` may be null."""

    metadata: ListMeta
    items: list[T] | None = None


class RawEvent(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def decode(body: bytes | msgspec.Raw, kind: Any, what: str) -> Any:
    """Decode JSON into ``kind``; ``what`` names the object in a DecodeError."""
    try:
        return _decoder(kind).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"the API server sent {what} that cannot be read: {error}") from error


def decode_claim(body: bytes | msgspec.Raw) -> ResourceClaim:
    """A ResourceClaim of any version."""
    claim: ResourceClaim = decode(body, ResourceClaim, "a ResourceClaim")
    return claim


def decode_node(body: bytes | msgspec.Raw) -> Node:
    """A Node."""
    node: Node = decode(body, Node, "a Node")
    return node


def decode_slice(document: JsonObject, version: str) -> ResourceSlice:
    """A stored ResourceSlice, with the names of fields that the structs do not know."""
    if version == "v1beta1":
        document = _flatten(document)
    try:
        stored = msgspec.convert(document, ResourceSlice)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"the API server sent a ResourceSlice that cannot be read: {error}") from error
    unknown = missing_fields(document.get("spec"), msgspec.to_builtins(stored.spec))
    return msgspec.structs.replace(stored, unrecognised=unknown)


def encode_slice(desired: ResourceSlice, version: str) -> JsonObject:
    """A ResourceSlice as a plain object to send."""
    document: JsonObject = msgspec.to_builtins(desired)
    document = {"apiVersion": f"{GROUP}/{version}", "kind": "ResourceSlice", **document}
    if version == "v1beta1" and "devices" in document["spec"]:
        document["spec"]["devices"] = [_wrap(device) for device in document["spec"]["devices"]]
    return document


def _wrap(device: JsonObject) -> JsonObject:
    fields = {key: value for key, value in device.items() if key != "name"}
    return {"name": device["name"], "basic": fields}


def _flatten(document: JsonObject) -> JsonObject:
    """A v1beta1 slice in the shape of v1. Odd shapes pass through: decoding names what is wrong."""
    spec = document.get("spec")
    devices = spec.get("devices") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(devices, list):
        return document
    flat = [
        {**{key: value for key, value in device.items() if key != "basic"}, **device["basic"]}
        if isinstance(device, dict) and isinstance(device.get("basic"), dict)
        else device
        for device in devices
    ]
    return {**document, "spec": {**spec, "devices": flat}}


def missing_fields(wanted: object, present: object, path: str = "") -> tuple[str, ...]:
    """Paths of what ``wanted`` says and ``present`` does not say equally, such as ``devices[].taints``.

    Both are plain JSON values (tuples count as lists). Null, empty lists and empty objects count as absent. List
    positions are left out of the paths, so each path is named once however many devices it concerns.
    """
    if _empty(wanted):
        return ()
    if isinstance(wanted, Mapping) and isinstance(present, Mapping):
        found = [
            missing_fields(value, present.get(key), f"{path}.{key}" if path else str(key))
            for key, value in wanted.items()
        ]
    elif isinstance(wanted, (list, tuple)) and isinstance(present, (list, tuple)) and len(wanted) == len(present):
        found = [missing_fields(value, other, f"{path}[]") for value, other in zip(wanted, present, strict=True)]
    else:
        found = [] if wanted == present else [(path,)]
    return tuple(dict.fromkeys(name for names in found for name in names))


def _empty(value: object) -> bool:
    return value is None or value in ([], {}, ())

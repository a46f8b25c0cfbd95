"""How objects are served, decoded and encoded, and in which versions."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from dra_driver.kube.api.errors import DecodeError
from dra_driver.kube.api.tolerance import readable, without_nulls
from dra_driver.kube.objects.apiextensions import CustomResourceDefinition
from dra_driver.kube.objects.apps import DaemonSet
from dra_driver.kube.objects.core import ClaimingPod, ConfigMap, Event, Lease, Node, PartialNode, Pod, in_short
from dra_driver.kube.objects.meta import ApiObject, JsonObject
from dra_driver.kube.objects.resource import (
    GROUP,
    TAINT_RULE_VERSIONS,
    VERSIONS,
    AllocatedClaim,
    DeviceTaintRule,
    PartialResourceClaim,
    ReceivedClaim,
    ReportedClaim,
    ResourceSlice,
    v1,
)

T = TypeVar("T")

WITHOUT_DRA: Final = (
    "no device can be published or prepared",
    "use Kubernetes 1.34 or later, or enable the API with --runtime-config on older ones",
)
"""What follows where ``resource.k8s.io`` is not served, and what to do about it."""

_RELEASE: Final = re.compile(r"v([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """Where the objects of a kind are served, and how they are decoded and encoded.

    Attributes:
        struct: the type that they are decoded to.
        kind: such as ``Node``.
        plural: their name in paths.
        versions: API versions such as ``v1`` or ``resource.k8s.io/v1``, newest first; the first one that is served is
            used.
        from_version: converts a document of a given version to the struct, if the versions differ in shape
            (``v1beta1``).
        to_version: the inverse.
        wire: the type that ``from_version`` is given: a struct with the few fields that it reads makes the list of a
            large cluster several times smaller while it is decoded.
        unserved: what follows where no version is served, and what to do about it.
    """

    struct: type[T]
    kind: str
    plural: str
    versions: tuple[str, ...]
    from_version: Callable[[Any, str], T] | None = None
    to_version: Callable[[T, str], JsonObject] | None = None
    wire: Any = JsonObject
    unserved: tuple[str, str] = WITHOUT_DRA


class ServerVersion(ApiObject, frozen=True):
    """The response of ``/version``."""

    git_version: str = ""

    @property
    def release(self) -> tuple[int, int] | None:
        """Major and minor version; None if the text is not a version."""
        match = _RELEASE.match(self.git_version)
        return (int(match[1]), int(match[2])) if match else None


class NewerSlice(ResourceSlice, frozen=True):
    """A stored slice with fields in its ``spec`` that these structs do not declare.

    ``unrecognised`` is not a field of the API: it names them, so that the slice never counts as equal to one without.
    """

    unrecognised: tuple[str, ...]


# Encoding and decoding


class ListMeta(ApiObject, frozen=True):
    """``metadata`` of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class ListPage(msgspec.Struct):
    """A page of a list as the server sends it, its objects not decoded yet; ``items`` may be null."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class RawEvent(msgspec.Struct):
    """One line of a watch response."""

    type: str
    object: msgspec.Raw


_BUILDING: Final = threading.Lock()
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    # msgspec 0.22 puts what it knows of a struct on the class before it has looked at all fields, and meanwhile other
    # threads run: one whose type contains the same struct would read what is not there yet, and the process crashes.
    with _BUILDING:
        return msgspec.json.Decoder(kind)


def decode(body: bytes | bytearray | msgspec.Raw, kind: Any, what: str) -> Any:
    """Decode JSON to ``kind``; ``what`` names the object in a DecodeError.

    A field that is null counts as absent where the kind knows no null.
    """
    decoder = _decoder(kind)
    try:
        return decoder.decode(body)
    except _UNREADABLE:
        pass
    text = readable(memoryview(body))
    try:
        return decoder.decode(text)
    except _UNREADABLE:
        pass
    try:
        return decoder.decode(without_nulls(text))
    except _UNREADABLE as error:
        raise DecodeError(f"the API server sent {what} that cannot be read: {error}") from error


def decode_slice(document: JsonObject, version: str) -> ResourceSlice:
    """Decode a stored ResourceSlice; to a ``NewerSlice`` if it has fields that are not known here.

    Servers before 1.35 send ``devices: null`` for a slice without devices (k8s.io/api ``resource/v1``, no omitempty).
    """
    spec = document.get("spec")
    if isinstance(spec, dict) and spec.get("devices", ()) is None:
        document = {**document, "spec": {**spec, "devices": []}}
    document = v1(document, "ResourceSlice", version)
    _decoder(ResourceSlice)  # `convert` would look at the structs without the lock
    try:
        stored = msgspec.convert(document, ResourceSlice)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"the API server sent a ResourceSlice that cannot be read: {error}") from error
    unknown = missing_fields(document.get("spec"), msgspec.to_builtins(stored.spec))
    return NewerSlice(stored.metadata, stored.spec, unknown) if unknown else stored


def unrecognised(item: ResourceSlice) -> tuple[str, ...]:
    """The fields of ``spec`` that are stored and not known here; none in a slice that is to be sent."""
    return item.unrecognised if isinstance(item, NewerSlice) else ()


def encode_slice(desired: ResourceSlice, version: str) -> JsonObject:
    """Encode a ResourceSlice as a plain object to send."""
    document: JsonObject = msgspec.to_builtins(desired)
    document = {"apiVersion": f"{GROUP}/{version}", "kind": "ResourceSlice", **document}
    if version == "v1beta1" and "devices" in document["spec"]:
        document["spec"]["devices"] = [_wrap(device) for device in document["spec"]["devices"]]
    return document


def _wrap(device: JsonObject) -> JsonObject:
    fields = {key: value for key, value in device.items() if key != "name"}
    return {"name": device["name"], "basic": fields}


def missing_fields(wanted: object, present: object, path: str = "") -> tuple[str, ...]:
    """Paths of the fields of ``wanted`` that are missing or different in ``present``, such as ``devices[].taints``.

    Both are plain JSON values (tuples count as lists). Null, empty lists and empty objects count as absent. List
    indexes are left out of the paths, so each path is reported once however many devices it concerns.
    """
    if _empty(wanted):
        return ()
    if isinstance(wanted, Mapping) and isinstance(present, Mapping):
        missing = [
            missing_fields(value, present.get(key), f"{path}.{key}" if path else str(key))
            for key, value in wanted.items()
        ]
    elif isinstance(wanted, (list, tuple)) and isinstance(present, (list, tuple)) and len(wanted) == len(present):
        missing = [missing_fields(value, other, f"{path}[]") for value, other in zip(wanted, present, strict=True)]
    else:
        missing = [] if wanted == present else [(path,)]
    return tuple(dict.fromkeys(name for names in missing for name in names))


def _empty(value: object) -> bool:
    return value is None or value in ([], {}, ())


# Resources

_GROUP_VERSIONS: Final = tuple(f"{GROUP}/{version}" for version in VERSIONS)

NODES: Final = Resource(Node, "Node", "nodes", ("v1",))


def partial_nodes(*annotations: str) -> Resource[PartialNode]:
    """Nodes as far as any kubelet makes them, with these annotations where they have them."""
    return Resource(
        PartialNode, "Node", "nodes", ("v1",), lambda node, _: in_short(node, annotations), None, PartialNode
    )


RESOURCE_SLICES: Final = Resource(
    ResourceSlice, "ResourceSlice", "resourceslices", _GROUP_VERSIONS, decode_slice, encode_slice
)
PARTIAL_RESOURCE_CLAIMS: Final = Resource(PartialResourceClaim, "ResourceClaim", "resourceclaims", _GROUP_VERSIONS)
ALLOCATED_CLAIMS: Final = Resource(AllocatedClaim, "ResourceClaim", "resourceclaims", _GROUP_VERSIONS)
REPORTED_CLAIMS: Final = Resource(
    ReportedClaim,
    "ResourceClaim",
    "resourceclaims",
    _GROUP_VERSIONS,
    lambda claim, _: claim.in_short,
    None,
    ReceivedClaim,
)
DEVICE_TAINT_RULES: Final = Resource(
    DeviceTaintRule,
    "DeviceTaintRule",
    "devicetaintrules",
    tuple(f"{GROUP}/{version}" for version in TAINT_RULE_VERSIONS),
)
PODS: Final = Resource(Pod, "Pod", "pods", ("v1",))
CLAIMING_PODS: Final = Resource(Pod, "Pod", "pods", ("v1",), lambda pod, _: pod.in_short, None, ClaimingPod)
"""Pods with what tells which of their containers use which claims: a pod may be as large as an object can be."""
DAEMON_SETS: Final = Resource(DaemonSet, "DaemonSet", "daemonsets", ("apps/v1",))
LEASES: Final = Resource(Lease, "Lease", "leases", ("coordination.k8s.io/v1",))
EVENTS: Final = Resource(Event, "Event", "events", ("v1",))
CONFIG_MAPS: Final = Resource(ConfigMap, "ConfigMap", "configmaps", ("v1",))
CUSTOM_RESOURCE_DEFINITIONS: Final = Resource(
    CustomResourceDefinition, "CustomResourceDefinition", "customresourcedefinitions", ("apiextensions.k8s.io/v1",)
)

AS_SENT: Final[Mapping[str, Resource[Any]]] = {
    kind: Resource(dict, kind, f"{kind.lower()}{'es' * kind.endswith('s') or 's'}", versions)
    for kinds, versions in (
        ("Node Pod Event ConfigMap Namespace", ("v1",)),
        ("ResourceSlice DeviceClass ResourceClaim ResourceClaimTemplate", _GROUP_VERSIONS),
        ("DeviceTaintRule", DEVICE_TAINT_RULES.versions),
        ("DaemonSet Deployment", DAEMON_SETS.versions),
    )
    for kind in kinds.split()
}
"""By kind, for those who take objects as plain values, in whichever version they are served."""

"""The kinds of objects that are read, those that are legal beside them, and the older versions of the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.simulator import objects, workloads

Json = dict[str, Any]

DRA: Final = "resource.k8s.io"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object; the newest of its API versions comes first."""

    name: str
    group: str
    versions: tuple[str, ...]
    struct: type
    namespaced: bool = True


KINDS: Final[Mapping[tuple[str, str], Kind]] = {
    (kind.group, kind.name): kind
    for kind in (
        Kind("Node", "", ("v1",), workloads.Node, namespaced=False),
        Kind("Pod", "", ("v1",), workloads.Pod),
        Kind("Deployment", "apps", ("v1",), workloads.Deployment),
        Kind("ReplicaSet", "apps", ("v1",), workloads.ReplicaSet),
        Kind("StatefulSet", "apps", ("v1",), workloads.StatefulSet),
        Kind("Job", "batch", ("v1",), workloads.Job),
        Kind("LeaderWorkerSet", "leaderworkerset.x-k8s.io", ("v1",), workloads.LeaderWorkerSet),
        Kind("ResourceSlice", DRA, ("v1", "v1beta2", "v1beta1"), objects.ResourceSlice, namespaced=False),
        Kind("DeviceTaintRule", DRA, ("v1", "v1beta2", "v1alpha3"), objects.DeviceTaintRule, namespaced=False),
        Kind("DeviceClass", DRA, ("v1", "v1beta2", "v1beta1"), objects.DeviceClass, namespaced=False),
        Kind("ResourceClaim", DRA, ("v1", "v1beta2", "v1beta1"), objects.ResourceClaim),
        Kind("ResourceClaimTemplate", DRA, ("v1", "v1beta2", "v1beta1"), workloads.ResourceClaimTemplate),
    )
}

_BESIDE: Final[Mapping[str, str]] = {
    "": "ConfigMap Endpoints LimitRange Namespace PersistentVolume PersistentVolumeClaim ResourceQuota Secret Service "
    "ServiceAccount Event",
    "apps": "ControllerRevision",
    "autoscaling": "HorizontalPodAutoscaler",
    "admissionregistration.k8s.io": "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding "
    "ValidatingWebhookConfiguration MutatingWebhookConfiguration",
    "apiextensions.k8s.io": "CustomResourceDefinition",
    "coordination.k8s.io": "Lease",
    "discovery.k8s.io": "EndpointSlice",
    "networking.k8s.io": "Ingress IngressClass NetworkPolicy",
    "node.k8s.io": "RuntimeClass",
    "policy": "PodDisruptionBudget",
    "rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "scheduling.k8s.io": "PriorityClass",
    "storage.k8s.io": "StorageClass CSIDriver CSINode VolumeAttributesClass",
}
BESIDE: Final = frozenset((group, name) for group, names in _BESIDE.items() for name in names.split())
"""Kinds that users keep in the same files; none of them takes devices. They are listed as not considered."""


def upgraded(value: Json, kind: Kind, version: str) -> Json:
    """An object of ``v1beta1`` in the shape of ``v1``; odd shapes pass through, decoding says what is wrong."""
    if kind.group != DRA or version != "v1beta1":
        return value
    spec = value.get("spec")
    if not isinstance(spec, dict):
        return value
    if kind.struct is objects.ResourceSlice:
        return {**value, "spec": _each(spec, "devices", _flat)}
    if kind.struct is objects.ResourceClaim:
        return {**value, "spec": _requests(spec)}
    if kind.struct is workloads.ResourceClaimTemplate and isinstance(spec.get("spec"), dict):
        return {**value, "spec": {**spec, "spec": _requests(spec["spec"])}}
    return value


def _each(holder: Json, name: str, change: Any) -> Json:
    items = holder.get(name)
    if not isinstance(items, list):
        return holder
    return {**holder, name: [change(item) if isinstance(item, dict) else item for item in items]}


def _flat(device: Json) -> Json:
    """Attributes and capacity were below ``basic``."""
    basic = device.get("basic")
    return (
        {**{key: item for key, item in device.items() if key != "basic"}, **basic}
        if isinstance(basic, dict)
        else device
    )


def _requests(spec: Json) -> Json:
    devices = spec.get("devices")
    return {**spec, "devices": _each(devices, "requests", _exact)} if isinstance(devices, dict) else spec


def _exact(request: Json) -> Json:
    """What is below ``exactly`` since v1beta2 was in the request itself."""
    if "firstAvailable" in request or "exactly" in request:
        return request
    return {"name": request.get("name"), "exactly": {key: item for key, item in request.items() if key != "name"}}

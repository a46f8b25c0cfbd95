"""Which fields are valid: those of the structs, and those of ``UNREAD``, which have no influence here.

Any other field is an error, as it is for ``kubectl apply``; null is equivalent to an absent field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dra_driver.kube.api.objects import Condition, NodeSystemInfo, ObjectMeta
from dra_driver.kube.decoding import Decoder
from dra_driver.kube.documents import Origin
from dra_driver.simulator.manifests import objects, workloads

T = TypeVar("T")

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
        Kind("CronJob", "batch", ("v1",), workloads.CronJob),
        Kind("DaemonSet", "apps", ("v1",), workloads.DaemonSet),
        Kind("ReplicationController", "", ("v1",), workloads.ReplicationController),
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
    "karpenter.sh": "NodePool NodeClaim",
    "kueue.x-k8s.io": "ClusterQueue Cohort LocalQueue ResourceFlavor Topology WorkloadPriorityClass",
    "networking.k8s.io": "Ingress IngressClass NetworkPolicy",
    "node.k8s.io": "RuntimeClass",
    "policy": "PodDisruptionBudget",
    "rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "scheduling.k8s.io": "PriorityClass",
    "storage.k8s.io": "StorageClass CSIDriver CSINode VolumeAttributesClass",
}
BESIDE: Final = frozenset((group, name) for group, names in _BESIDE.items() for name in names.split())
"""Kinds often kept in the same files; none of them uses devices. They are listed as not considered."""


def upgraded(value: Json, kind: Kind, version: str) -> Json:
    """A ``v1beta1`` object in the shape of ``v1``; malformed parts are passed through, decoding reports them."""
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
    """In v1beta1, attributes and capacity are below ``basic``."""
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
    """In v1beta1, the fields that are below ``exactly`` since v1beta2 are in the request itself."""
    if "firstAvailable" in request or "exactly" in request:
        return request
    return {"name": request.get("name"), "exactly": {key: item for key, item in request.items() if key != "name"}}


_REPLICAS: Final = "minReadySeconds selector"
_DEPLOYMENT: Final = "paused progressDeadlineSeconds revisionHistoryLimit strategy"
UNREAD: Final[Mapping[type, frozenset[str]]] = {
    kind: frozenset(names.split())
    for kind, names in {
        ObjectMeta: "deletionGracePeriodSeconds generation managedFields selfLink",
        workloads.Taint: "timeAdded",
        workloads.Toleration: "tolerationSeconds",
        workloads.NodeSpec: "configSource externalID podCIDR podCIDRs podPreemptionPolicy providerID",
        workloads.Node: "apiVersion kind",
        workloads.Container: "args command env envFrom imagePullPolicy lifecycle livenessProbe readinessProbe "
        "resizePolicy restartPolicyRules securityContext startupProbe stdin stdinOnce "
        "terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir",
        workloads.PodSpec: "activeDeadlineSeconds automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks "
        "ephemeralContainers evictionResponders hostAliases hostIPC hostNetwork hostPID hostUsers hostname "
        "hostnameOverride imagePullSecrets os preemptionPolicy priority priorityClassName readinessGates restartPolicy "
        "securityContext serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain "
        "terminationGracePeriodSeconds",
        workloads.Pod: "apiVersion kind",
        workloads.ReplicaSpec: f"{_REPLICAS} {_DEPLOYMENT}",
        workloads.StatefulSpec: f"{_REPLICAS} persistentVolumeClaimRetentionPolicy podManagementPolicy "
        "revisionHistoryLimit serviceName updateStrategy volumeClaimTemplates",
        workloads.JobSpec: "activeDeadlineSeconds backoffLimit backoffLimitPerIndex managedBy manualSelector "
        "maxFailedIndexes podFailurePolicy podReplacementPolicy scheduling selector successPolicy "
        "ttlSecondsAfterFinished",
        workloads.CronJobSpec: "concurrencyPolicy failedJobsHistoryLimit schedule startingDeadlineSeconds "
        "successfulJobsHistoryLimit timeZone",
        workloads.DaemonSpec: f"{_REPLICAS} revisionHistoryLimit updateStrategy",
        workloads.LeaderWorkerSpec: "rolloutStrategy startupPolicy networkConfig",
        workloads.LeaderWorkerTemplate: "restartPolicy resizePolicy subGroupPolicy volumeClaimTemplates "
        "persistentVolumeClaimRetentionPolicy",
        workloads.Deployment: "apiVersion kind status",
        workloads.ReplicaSet: "apiVersion kind status",
        workloads.StatefulSet: "apiVersion kind status",
        workloads.Job: "apiVersion kind status",
        workloads.CronJob: "apiVersion kind status",
        workloads.DaemonSet: "apiVersion kind status",
        workloads.ReplicationController: "apiVersion kind status",
        workloads.LeaderWorkerSet: "apiVersion kind status",
        workloads.ResourceClaimTemplate: "apiVersion kind",
        objects.DeviceTaint: "timeAdded",
        objects.Device: "nodeAllocatableResources",
        objects.ResourceSliceSpec: "skipNodeOperations",
        objects.ResourceSlice: "apiVersion kind",
        objects.DeviceTaintRule: "apiVersion kind status",
        objects.DeviceClass: "apiVersion kind status",
        objects.AllocatedDevice: "skipNodeOperations",
        objects.AllocationResult: "allocationTimestamp",
        objects.ResourceClaim: "apiVersion kind",
    }.items()
}
"""Struct -> the valid fields of the API that it does not declare."""

_SERVERS_OWN: Final = (
    *(workloads.NodeStatus, workloads.NodeImage, workloads.PodStatus, objects.ResourceClaimStatus),
    *(NodeSystemInfo, Condition),
)
"""Written by Kubernetes itself, with new fields in each release: unknown fields are ignored there."""

_DECODER: Final = Decoder(UNREAD, _SERVERS_OWN)


def convert(value: Any, kind: type[T], origin: Origin, unknown: dict[str, None] | None = None) -> T:
    """The object at ``origin`` as a struct (``Decoder.convert``)."""
    return _DECODER.convert(value, kind, origin, unknown)

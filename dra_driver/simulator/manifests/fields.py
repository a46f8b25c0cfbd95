"""Which fields are valid: those of the structs, and those of ``UNREAD``, which have no influence here.

Any other field is an error, as it is for ``kubectl apply``; null is equivalent to an absent field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dra_driver.kube.decoding import Decoder
from dra_driver.kube.documents import Origin
from dra_driver.kube.objects import apps, core, resource, scheduling
from dra_driver.kube.objects.core import NodeSystemInfo
from dra_driver.kube.objects.meta import Condition, ObjectMeta
from dra_driver.simulator.manifests import workloads

T = TypeVar("T")


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
        Kind("Node", "", ("v1",), core.Node, namespaced=False),
        Kind("Pod", "", ("v1",), core.Pod),
        Kind("Deployment", "apps", ("v1",), workloads.Deployment),
        Kind("ReplicaSet", "apps", ("v1",), workloads.ReplicaSet),
        Kind("StatefulSet", "apps", ("v1",), workloads.StatefulSet),
        Kind("Job", "batch", ("v1",), workloads.Job),
        Kind("CronJob", "batch", ("v1",), workloads.CronJob),
        Kind("DaemonSet", "apps", ("v1",), apps.DaemonSet),
        Kind("ReplicationController", "", ("v1",), workloads.ReplicationController),
        Kind("LeaderWorkerSet", "leaderworkerset.x-k8s.io", ("v1",), workloads.LeaderWorkerSet),
        Kind("ResourceSlice", resource.GROUP, resource.VERSIONS, resource.ResourceSlice, namespaced=False),
        Kind(
            "DeviceTaintRule", resource.GROUP, resource.TAINT_RULE_VERSIONS, resource.DeviceTaintRule, namespaced=False
        ),
        Kind("DeviceClass", resource.GROUP, resource.VERSIONS, resource.DeviceClass, namespaced=False),
        Kind("ResourceClaim", resource.GROUP, resource.VERSIONS, resource.ResourceClaim),
        Kind("ResourceClaimTemplate", resource.GROUP, resource.VERSIONS, resource.ResourceClaimTemplate),
        Kind("PodGroup", scheduling.GROUP, scheduling.VERSIONS, scheduling.PodGroup),
    )
}

_BESIDE: Final[Mapping[str, str]] = {
    "": "Binding ComponentStatus ConfigMap Endpoints Event Eviction LimitRange Namespace PersistentVolume "
    "PersistentVolumeClaim ResourceQuota Secret Service ServiceAccount",
    "apps": "ControllerRevision",
    "autoscaling": "HorizontalPodAutoscaler",
    "admissionregistration.k8s.io": "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding "
    "MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding "
    "ValidatingWebhookConfiguration",
    "apiextensions.k8s.io": "CustomResourceDefinition",
    "coordination.k8s.io": "Lease LeaseCandidate",
    "discovery.k8s.io": "EndpointSlice",
    "karpenter.sh": "NodePool NodeClaim Provisioner",
    "kueue.x-k8s.io": "ClusterQueue Cohort LocalQueue ResourceFlavor Topology Workload WorkloadPriorityClass",
    "networking.k8s.io": "Ingress IngressClass IPAddress NetworkPolicy ServiceCIDR",
    "node.k8s.io": "RuntimeClass",
    "policy": "Eviction PodDisruptionBudget PodSecurityPolicy",
    "rbac.authorization.k8s.io": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "resource.k8s.io": "PodSchedulingContext ResourceClaimParameters ResourceClass ResourceClassParameters "
    "ResourcePoolStatusRequest",
    "scheduling.k8s.io": "CompositePodGroup PriorityClass Workload",
    "scheduling.volcano.sh": "PodGroup Queue",
    "storage.k8s.io": "CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment VolumeAttributesClass",
}
BESIDE: Final = frozenset((group, name) for group, names in _BESIDE.items() for name in names.split())
"""Kinds often kept in the same files; none of them uses devices. They are listed as not considered."""


GATED: Final[Mapping[str, str]] = {"derivedAttributes": "DRADerivedAttributes"}
"""Fields of a request that need a feature gate, which is off by default: the API server drops them without it."""
_REPLICAS: Final = "minReadySeconds selector"
_DEPLOYMENT: Final = "paused progressDeadlineSeconds revisionHistoryLimit strategy"
UNREAD: Final[Mapping[type, frozenset[str]]] = {
    kind: frozenset(names.split())
    for kind, names in {
        **dict.fromkeys((kind.struct for kind in KINDS.values()), "apiVersion kind status"),
        **dict.fromkeys((resource.ResourceSlice, resource.ResourceClaimTemplate), "apiVersion kind"),
        core.ManagedFields: "apiVersion fieldsType subresource time",
        ObjectMeta: "deletionGracePeriodSeconds generation managedFields selfLink",
        core.NodeMeta: "deletionGracePeriodSeconds generation selfLink",
        core.NodeSpec: "configSource externalID podCIDR podCIDRs podPreemptionPolicy",
        core.Container: "args command env envFrom imagePullPolicy lifecycle livenessProbe readinessProbe "
        "resizePolicy restartPolicyRules securityContext startupProbe stdin stdinOnce "
        "terminationMessagePath terminationMessagePolicy tty volumeDevices volumeMounts workingDir",
        core.PodSpec: "activeDeadlineSeconds automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks "
        "ephemeralContainers evictionResponders hostAliases hostIPC hostNetwork hostPID hostUsers hostname "
        "hostnameOverride imagePullSecrets os preemptionPolicy priorityClassName readinessGates restartPolicy "
        "securityContext serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain "
        "terminationGracePeriodSeconds",
        workloads.ReplicaSpec: f"{_REPLICAS} {_DEPLOYMENT}",
        workloads.StatefulSpec: f"{_REPLICAS} persistentVolumeClaimRetentionPolicy podManagementPolicy "
        "revisionHistoryLimit serviceName updateStrategy volumeClaimTemplates",
        workloads.JobSpec: "activeDeadlineSeconds backoffLimit backoffLimitPerIndex managedBy manualSelector "
        "maxFailedIndexes podFailurePolicy podReplacementPolicy scheduling selector successPolicy "
        "ttlSecondsAfterFinished",
        workloads.CronJobSpec: "concurrencyPolicy failedJobsHistoryLimit schedule startingDeadlineSeconds "
        "successfulJobsHistoryLimit timeZone",
        apps.DaemonSetSpec: f"{_REPLICAS} revisionHistoryLimit updateStrategy",
        workloads.LeaderWorkerSpec: "rolloutStrategy startupPolicy networkConfig",
        workloads.LeaderWorkerTemplate: "restartPolicy resizePolicy subGroupPolicy volumeClaimTemplates "
        "persistentVolumeClaimRetentionPolicy",
        **dict.fromkeys((resource.ExactDeviceRequest, resource.DeviceSubRequest), " ".join(GATED)),
        resource.Device: "nodeAllocatableResources",
        resource.ResourceSliceSpec: "skipNodeOperations",
        resource.DeviceRequestAllocationResult: "skipNodeOperations",
        resource.AllocationResult: "allocationTimestamp",
        scheduling.PodGroupSpec: "disruptionMode parentCompositePodGroupName podGroupTemplateRef preemptionPolicy "
        "priority priorityClassName schedulingConstraints schedulingPolicy workloadRef",
    }.items()
}
"""Struct -> the valid fields of the API that it does not declare."""


def unread_left_out(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A pod spec that was not validated yet, without the fields of it and its containers that have no influence."""
    kept = {name: part for name, part in spec.items() if name not in UNREAD[core.PodSpec]}
    for name in ("containers", "initContainers"):
        if isinstance(kept.get(name), list):
            kept[name] = [
                {key: part for key, part in item.items() if key not in UNREAD[core.Container]}
                if isinstance(item, dict)
                else item
                for item in kept[name]
            ]
    return kept


_SERVERS_OWN: Final = (
    *(core.NodeStatus, core.NodeImage, core.PodStatus, resource.ResourceClaimStatus),
    *(scheduling.PodGroupStatus, NodeSystemInfo, Condition),
)
"""Written by Kubernetes itself, with new fields in each release: unknown fields are ignored there."""

_DECODER: Final = Decoder(UNREAD, _SERVERS_OWN)


def convert(value: Any, kind: type[T], origin: Origin, unknown: dict[str, None] | None = None) -> T:
    """The object at ``origin`` as a struct (``Decoder.convert``)."""
    return _DECODER.convert(value, kind, origin, unknown)

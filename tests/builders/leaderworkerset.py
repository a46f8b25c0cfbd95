"""The pods that LeaderWorkerSet creates, as plain values.

They reproduce what LeaderWorkerSet 0.10 and its webhooks created on Kubernetes 1.36 and 1.37 for a LeaderWorkerSet with
and without the annotation for exclusive topology. The StatefulSets between the objects and their owners are omitted:
here, a worker is owned by its leader, so that the garbage collector has the same effect when a leader is deleted.

The types below are also the schema of the LeaderWorkerSets in ``examples/``: the fields of leaderworkerset.x-k8s.io/v1
that are reproduced, and no others.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

Object = dict[str, Any]

PREFIX = "leaderworkerset.sigs.k8s.io/"
NAME, GROUP_INDEX, GROUP_KEY = f"{PREFIX}name", f"{PREFIX}group-index", f"{PREFIX}group-key"
WORKER_INDEX, REVISION = f"{PREFIX}worker-index", f"{PREFIX}template-revision-hash"
TOPOLOGY, SIZE, LEADER_NAME = f"{PREFIX}exclusive-topology", f"{PREFIX}size", f"{PREFIX}leader-name"
POD_INDEX = "apps.kubernetes.io/pod-index"

POD_IP: Object = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
"""The leader's address as the leader itself can determine it without DNS."""

Count = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Size = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Name = Annotated[str, msgspec.Meta(pattern="^[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?$")]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Allows no other fields than the declared ones."""


class Metadata(_Strict, frozen=True):
    """``metadata`` of the LeaderWorkerSet."""

    name: Name
    namespace: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class TemplateMetadata(_Strict, frozen=True):
    """``metadata`` of a pod template."""

    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PodTemplate(_Strict, frozen=True):
    """A pod template; its spec is a pod's."""

    spec: Object
    metadata: TemplateMetadata = TemplateMetadata()


class GroupTemplate(_Strict, frozen=True):
    """The template of a group."""

    worker_template: PodTemplate
    leader_template: PodTemplate | None = None
    size: Size = 1
    restart_policy: Literal["RecreateGroupOnPodRestart", "None"] = "RecreateGroupOnPodRestart"


class RollingUpdate(_Strict, frozen=True):
    """How groups are replaced; not reproduced."""

    max_unavailable: Count = 1
    max_surge: Count = 0
    partition: Count = 0


class RolloutStrategy(_Strict, frozen=True):
    """How groups are replaced; not reproduced."""

    type: Literal["RollingUpdate"] = "RollingUpdate"
    rolling_update_configuration: RollingUpdate = RollingUpdate()


class NetworkConfig(_Strict, frozen=True):
    """One headless Service for all groups."""

    subdomain_policy: Literal["Shared"] = "Shared"


class Spec(_Strict, frozen=True):
    """The groups, their template, and when workers are created."""

    leader_worker_template: GroupTemplate
    replicas: Count = 1
    rollout_strategy: RolloutStrategy = RolloutStrategy()
    startup_policy: Literal["LeaderCreated", "LeaderReady"] = "LeaderCreated"
    network_config: NetworkConfig = NetworkConfig()


class LeaderWorkerSet(_Strict, frozen=True):
    """A LeaderWorkerSet document."""

    api_version: Literal["leaderworkerset.x-k8s.io/v1"]
    kind: Literal["LeaderWorkerSet"]
    metadata: Metadata
    spec: Spec

    @property
    def topology(self) -> str:
        """The node label whose value must be the same for a whole group; "" for none."""
        return self.metadata.annotations.get(TOPOLOGY, "")


def decode(document: Object) -> LeaderWorkerSet:
    """Read a LeaderWorkerSet; msgspec.ValidationError names a field that is wrong or not declared here."""
    return msgspec.convert(document, LeaderWorkerSet)


@dataclass(frozen=True, slots=True)
class Group:
    """One group of a LeaderWorkerSet.

    Attributes:
        wanted: the LeaderWorkerSet.
        namespace: the namespace of its pods.
        index: number of the group.
    """

    wanted: LeaderWorkerSet
    namespace: str
    index: int

    @property
    def leader(self) -> str:
        """Name of the leader pod."""
        return f"{self.wanted.metadata.name}-{self.index}"

    @property
    def key(self) -> str:
        """The group's key, which does not change when the group is recreated."""
        return hashlib.sha1(f"{self.namespace}/{self.leader}".encode(), usedforsecurity=False).hexdigest()

    @property
    def address(self) -> Object:
        """The leader's name in the cluster's DNS, without the cluster's domain."""
        return {"value": f"{self.leader}.{self.wanted.metadata.name}.{self.namespace}"}

    def worker(self, number: int) -> str:
        """Name of a worker pod; the first worker is number 1."""
        return f"{self.leader}-{number}"


def leader_pod(group: Group, address: Object | None = None) -> Object:
    """The leader of a group.

    Args:
        group: the group.
        address: ``value`` or ``valueFrom`` of ``LWS_LEADER_ADDRESS``; default: that of LeaderWorkerSet.
    """
    wanted = group.wanted.spec.leader_worker_template
    pod = _pod(group, wanted.leader_template or wanted.worker_template, 0, address or group.address)
    pod["metadata"]["labels"] |= {
        "controller-revision-hash": f"{group.wanted.metadata.name}-{revision(group.wanted)}",
        "statefulset.kubernetes.io/pod-name": group.leader,
    }
    if group.wanted.topology:
        affinity = pod["spec"].setdefault("affinity", {})
        same: list[Object] = [{"key": GROUP_KEY, "operator": "In", "values": [group.key]}]
        other: list[Object] = [
            {"key": GROUP_KEY, "operator": "Exists"},
            {"key": GROUP_KEY, "operator": "NotIn", "values": [group.key]},
        ]
        _require(affinity.setdefault("podAffinity", {}), same, group.wanted.topology)
        _require(affinity.setdefault("podAntiAffinity", {}), other, group.wanted.topology)
    return pod


def worker_pod(group: Group, number: int, leader: Object, domain: str, address: Object | None = None) -> Object:
    """A worker of a group whose leader exists.

    Args:
        group: the group.
        number: of the worker, from 1.
        leader: the leader pod as stored by the API server.
        domain: value of the topology label of the leader's node; unused without exclusive topology.
        address: as for ``leader_pod``.
    """
    template = group.wanted.spec.leader_worker_template.worker_template
    pod = _pod(group, template, number, address or group.address)
    pod["metadata"]["annotations"][LEADER_NAME] = group.leader
    pod["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": group.leader,
            "uid": leader["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    if group.wanted.topology:
        pod["spec"]["nodeSelector"] = pod["spec"].get("nodeSelector", {}) | {group.wanted.topology: domain}
    return pod


def headless_service(wanted: LeaderWorkerSet, namespace: str) -> Object:
    """The Service that provides DNS names for all pods of all groups."""
    name = wanted.metadata.name
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {NAME: name}}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def revision(wanted: LeaderWorkerSet) -> str:
    """Identifies the template; LeaderWorkerSet uses another hash with the same number of digits."""
    text = json.dumps(msgspec.to_builtins(wanted.spec.leader_worker_template), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _pod(group: Group, template: PodTemplate, number: int, address: Object) -> Object:
    annotations = {**template.metadata.annotations, SIZE: str(group.wanted.spec.leader_worker_template.size)}
    if group.wanted.topology:
        annotations[TOPOLOGY] = group.wanted.topology
    labels = {
        **template.metadata.labels,
        POD_INDEX: str(number or group.index),
        NAME: group.wanted.metadata.name,
        GROUP_INDEX: str(group.index),
        GROUP_KEY: group.key,
        REVISION: revision(group.wanted),
        WORKER_INDEX: str(number),
    }
    name = group.worker(number) if number else group.leader
    spec = copy.deepcopy(template.spec) | {"hostname": name, "subdomain": group.wanted.metadata.name}
    environment = [
        {"name": "LWS_LEADER_ADDRESS", **address},
        {"name": "LWS_GROUP_SIZE", "value": annotations[SIZE]},
        {"name": "LWS_WORKER_INDEX", "value": str(number)},
    ]
    ours = {item["name"] for item in environment}
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        others = [item for item in container.get("env", ()) if item["name"] not in ours]
        container["env"] = [*environment, *others]
    metadata = {"name": name, "namespace": group.namespace, "labels": labels, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _require(affinity: Object, expressions: list[Object], topology: str) -> None:
    term = {"labelSelector": {"matchExpressions": expressions}, "topologyKey": topology}
    affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(term)

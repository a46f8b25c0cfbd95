"""A small live cluster in the test API server: Neuron nodes with real slices, and pods that hold some of it."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from functools import cache

from dra_driver.cli.main import main
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object

TRN2, INF2 = "trn2.48xlarge", "inf2.48xlarge"
TYPE_LABEL = "node.kubernetes.io/instance-type"
READY = {"type": "Ready", "status": "True"}


@cache
def _published(kind: str, partitions: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert (
            main(["slices", "--instance-type", kind, "--node-name", "node", "--partitions", partitions, "-o", "json"])
            == 0
        )
    return out.getvalue()


def published(name: str, kind: str = TRN2, partitions: str = "chip") -> list[Object]:
    """The slices that the driver publishes on an emulated node."""
    items: list[Object] = json.loads(_published(kind, partitions))["items"]
    for place, item in enumerate(items):
        item["metadata"] = {"name": f"{name}-neuron.aws.com-{place}"}
        item["spec"]["nodeName"] = item["spec"]["pool"]["name"] = name
    return items


def taint(code: str, value: str = "unhealthy", effect: str = "NoSchedule") -> Object:
    """A taint of the driver's health."""
    return {
        "key": f"health.neuron.aws.com/{code}",
        "value": value,
        "effect": effect,
        "timeAdded": "2026-01-01T00:00:00Z",
    }


def add_neuron_node(
    server: ApiServer,
    name: str,
    kind: str = TRN2,
    *,
    partitions: str = "chip",
    taints: Mapping[str, Sequence[Object]] | None = None,
    conditions: Sequence[Object] = (),
    labels: Mapping[str, str] | None = None,
) -> None:
    """A ready node with its slices; ``taints`` by name of the device."""
    server.store.create(
        "nodes",
        {
            "metadata": {"name": name, "labels": {TYPE_LABEL: kind, **(labels or {})}},
            "spec": {},
            "status": {"conditions": [READY, *conditions], "nodeInfo": {"kubeletVersion": "v1.37.1"}},
        },
    )
    for item in published(name, kind, partitions):
        for device in item["spec"].get("devices", ()):
            if found := (taints or {}).get(device["name"]):
                device["taints"] = list(found)
        server.store.create("resourceslices", item)


def add_plugin_node(server: ApiServer, name: str) -> None:
    """A node whose 12 chips a device plugin offers."""
    capacity = {"aws.amazon.com/neuron": "12", "aws.amazon.com/neuroncore": "24"}
    node: Object = {"metadata": {"name": name, "labels": {TYPE_LABEL: INF2}}, "spec": {}}
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [READY]}
    server.store.create("nodes", {**node, "status": status})


def add_holder(
    server: ApiServer,
    namespace: str,
    pod: str,
    node: str,
    devices: Sequence[str],
    phase: str = "Running",
    *,
    meta: Object | None = None,
    **more: object,
) -> None:
    """A pod on a node, with a claim ``POD-neurons`` that has these devices; ``more`` of its status."""
    claim = f"{pod}-neurons"
    named = {"namespace": namespace, "name": pod, "uid": "7d1e", **(meta or {})}
    server.add_claim(namespace, claim, devices=[("neurons", device) for device in devices], node=node)
    stored = server.store.get("resourceclaims", f"{namespace}/{claim}")
    stored["status"]["reservedFor"] = [{"resource": "pods", "name": pod, "uid": named["uid"]}]
    server.store.update("resourceclaims", f"{namespace}/{claim}", stored)
    spec = {"nodeName": node, "resourceClaims": [{"name": "neurons", "resourceClaimName": claim}]}
    ready = {"type": "Ready", "status": str(phase == "Running"), "lastTransitionTime": "2026-03-01T10:00:00Z"}
    status = {"phase": phase, "conditions": [ready], **more}
    server.store.create("pods", {"metadata": named, "spec": spec, "status": status})


def add_waiting(server: ApiServer, namespace: str, pod: str, message: str) -> None:
    """A pod that the scheduler could not place, whose claim asks for four chips."""
    claim = f"{pod}-neurons"
    exactly = {"deviceClassName": "neuron.aws.com", "allocationMode": "ExactCount", "count": 4}
    spec = {"devices": {"requests": [{"name": "neurons", "exactly": exactly}]}}
    meta = {"namespace": namespace, "name": claim}
    server.store.create("resourceclaims", {"metadata": meta, "spec": spec, "status": {}})
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    server.store.create(
        "pods",
        {
            "metadata": {"namespace": namespace, "name": pod},
            "spec": {"resourceClaims": [{"name": "neurons", "resourceClaimName": claim}]},
            "status": {"phase": "Pending", "conditions": [condition]},
        },
    )


def add_plugin_pod(server: ApiServer, namespace: str, pod: str, node: str, ids: str) -> None:
    """A pod to which the scheduler extender gave chips of a device plugin."""
    annotations = {"AWS_NEURON_IDS": ids, "NEURON_RESOURCE_TYPE": "aws.amazon.com/neuron", "NEURON_ALLOCATED": "true"}
    limits = {"aws.amazon.com/neuron": str(len(ids.split(",")))}
    server.store.create(
        "pods",
        {
            "metadata": {"namespace": namespace, "name": pod, "annotations": annotations},
            "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": "Running"},
        },
    )


REGISTERS: Object = {"name": "registrar-dir", "hostPath": {"path": "/var/lib/kubelet/plugins_registry"}}
"""A volume of the driver's pods."""


def driver_pod(
    node: str, *, state: Object | None = None, last: Object | None = None, ready: bool = True, **status: object
) -> Object:
    """A pod of the driver's DaemonSet; ``state`` and ``last`` are its container's."""
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "neuron-dra-driver-kubelet-plugin", "uid": "d5"}
    meta = {
        "namespace": "neuron-dra-driver",
        "name": f"driver-{node}",
        "labels": {"app": "neuron-dra-driver-kubelet-plugin"},
        "ownerReferences": [{**owner, "controller": True}],
    }
    since = "2026-03-01T10:00:00Z"
    conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": since}]
    container = {"name": "driver", "ready": ready, "restartCount": 5 if last else 0}
    container |= {"state": state or {"running": {}}, "lastState": {"terminated": last} if last else {}}
    made = {"phase": "Running", "conditions": conditions, "containerStatuses": [container], **status}
    return {"metadata": meta, "spec": {"nodeName": node, "volumes": [REGISTERS]}, "status": made}


CRASHED: Object = {
    "exitCode": 2,
    "reason": "Error",
    "message": "usage: dra-driver\nerror: --rescan-seconds must be at least 1\n",
    "finishedAt": "2026-03-01T10:04:00Z",
}
CRASH_LOOP: Object = {
    "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 2m40s restarting failed container"}
}


def daemon_set(name: str, pod: Object) -> Object:
    """A DaemonSet of the driver, with this spec of its pods."""
    labels = {"app": "neuron-dra-driver-kubelet-plugin"}
    meta = {"namespace": "neuron-dra-driver", "name": name, "labels": labels}
    spec = {"volumes": [REGISTERS], **pod}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": {"template": {"spec": spec}}}


def of_device_plugin(pod: Object) -> Object:
    """The same pod as one of the device plugin's DaemonSet."""
    volume = {"name": "device-plugins", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}
    metadata = {**pod["metadata"], "labels": {"name": "neuron-device-plugin-ds"}}
    return {**pod, "metadata": metadata, "spec": {**pod["spec"], "volumes": [volume]}}


def of_a_tenant(item: Object) -> Object:
    """The same pod or DaemonSet in a namespace whose pods may mount no directory of a node, with its labels."""
    metadata = {**item["metadata"], "namespace": "evil"}
    if "template" in item["spec"]:
        pod = {**item["spec"]["template"]["spec"], "volumes": [{"name": "registrar-dir", "emptyDir": {}}]}
        return {**item, "metadata": metadata, "spec": {"template": {"spec": pod}}}
    return {**item, "metadata": metadata, "spec": {**item["spec"], "volumes": []}}

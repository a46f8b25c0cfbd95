"""Objects that a measurement needs in the API server: pure functions."""

from __future__ import annotations

import uuid
from typing import Any

NAMESPACE = "dra-benchmark"
REQUEST = "chips"

Object = dict[str, Any]


def namespace() -> Object:
    """Return a namespace whose claims may use admin access, so that any number of them can share chips."""
    labels = {"resource.kubernetes.io/admin-access": "true"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def node(name: str) -> Object:
    """Return a Node without a kubelet."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def device_class(driver: str) -> Object:
    """Return the class of a driver's devices, named after it."""
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": {"selectors": [selector]},
    }


def claim(name: str, driver: str, devices: int) -> Object:
    """Return a claim for `devices` devices with admin access."""
    exactly = {"deviceClassName": driver, "allocationMode": "ExactCount", "count": devices, "adminAccess": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"devices": {"requests": [{"name": REQUEST, "exactly": exactly}]}},
    }


def allocated(stored: Object, driver: str, pool: str, devices: list[str]) -> Object:
    """Return a stored claim as the scheduler would leave it: allocated, and reserved for its own pod."""
    name = stored["metadata"]["name"]
    results = [
        {"request": REQUEST, "driver": driver, "pool": pool, "device": device, "adminAccess": True}
        for device in devices
    ]
    pod = {"resource": "pods", "name": name, "uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, name))}
    return {**stored, "status": {"allocation": {"devices": {"results": results}}, "reservedFor": [pod]}}


def flow_schema(name: str, precedence: int, account: tuple[str, str], verbs: list[str]) -> Object:
    """Return a FlowSchema that counts the requests of a service account (namespace and name) with these verbs."""
    subject = {"kind": "ServiceAccount", "serviceAccount": {"namespace": account[0], "name": account[1]}}
    anywhere = {"apiGroups": ["*"], "resources": ["*"], "verbs": verbs, "namespaces": ["*"], "clusterScope": True}
    return {
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": name},
        "spec": {
            "priorityLevelConfiguration": {"name": "workload-high"},
            "matchingPrecedence": precedence,
            "rules": [{"subjects": [subject], "resourceRules": [anywhere]}],
        },
    }

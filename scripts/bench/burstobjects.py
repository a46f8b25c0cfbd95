"""The objects that a burst needs in the API server, and kube-scheduler's configuration: pure functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Object = dict[str, Any]

TYPE = "trn1.32xlarge"
ROOM = {
    "cpu": "128",
    "memory": "512Gi",
    "pods": "250",
    "aws.amazon.com/neuron": "16",
    "aws.amazon.com/neuroncore": "32",
}
PORT = 51617
REQUESTS_A_SECOND = 5000
"""Of kube-scheduler; with its default of 50 the rate limit would dominate the variant in which it binds by itself."""


def node(number: int) -> Object:
    """A Node whose device plugin has registered."""
    labels = {"node.kubernetes.io/instance-type": TYPE}
    ready = {"type": "Ready", "status": "True", "reason": "Always", "message": ""}
    status = {"capacity": ROOM, "allocatable": ROOM, "conditions": [ready]}
    return {"metadata": {"name": f"node-{number}", "labels": labels}, "status": status}


def pod(number: int) -> Object:
    """A pod of a burst; they alternately request 1 and 4 devices."""
    limits = {"aws.amazon.com/neuron": "4" if number % 4 == 3 else "1"}
    spec = {
        "schedulerName": "my-scheduler",
        "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
        "automountServiceAccountToken": False,
        # The API server's initial taint on new nodes is never removed, because no controller runs.
        "tolerations": [{"operator": "Exists"}],
    }
    return {"metadata": {"name": f"pod-{number}"}, "spec": spec}


def scheduler_configuration(kubeconfig: Path, extended: bool) -> Object:
    """The KubeSchedulerConfiguration of one variant."""
    managed = [{"name": name, "ignoredByScheduler": False} for name in ROOM if name.startswith("aws.")]
    one = {
        "urlPrefix": f"http://127.0.0.1:{PORT}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "weight": 1,
        "nodeCacheCapable": True,
        "managedResources": managed,
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(kubeconfig),
            "qps": REQUESTS_A_SECOND,
            "burst": REQUESTS_A_SECOND,
        },
        "profiles": [{"schedulerName": "my-scheduler"}],
        "extenders": [one] if extended else [],
    }

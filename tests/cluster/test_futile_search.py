"""What a real kube-scheduler does with a pod that asks for one device more than a node has, by count."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest
from lab.cluster import Cluster

from dra_driver.kube.api.client import Transport
from tests.cluster.lib.kube import Object

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.control_plane,
    pytest.mark.kubernetes("1.37", "1.34"),
    pytest.mark.timeout(300),
]

NAME = "futile.example"
DRA = "/apis/resource.k8s.io/v1"
PODS = "/api/v1/namespaces/default/pods"
ROOM = {"pods": "110", "cpu": "1", "memory": "1Gi"}


@pytest.fixture
def api(lab: Cluster) -> Iterator[Transport]:
    """The API of a control plane without the controllers that would act on nodes without kubelet."""
    lab.control_plane.stop("kube-controller-manager")
    transport = Transport.from_kubeconfig(os.fspath(lab.kubeconfig), user_agent="futile-search-test")
    selector = {"cel": {"expression": f'device.driver == "{NAME}"'}}
    create(transport, f"{DRA}/deviceclasses", {"metadata": {"name": NAME}, "spec": {"selectors": [selector]}})
    yield transport
    transport.close()
    lab.control_plane.start("kube-controller-manager")


def create(api: Transport, path: str, body: Object) -> None:
    api.request("POST", path, body=body, timeout=60)


def answer(api: Transport, devices: int) -> tuple[str, float]:
    """What the pod's first attempt ends with, and how many seconds it takes, on a node with so many free devices."""
    name = f"free-{devices}"
    status = {"capacity": ROOM, "allocatable": ROOM, "conditions": [{"type": "Ready", "status": "True"}]}
    create(api, "/api/v1/nodes", {"metadata": {"name": name, "labels": {"only": name}}, "status": status})
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    offered = [{"name": f"d{number}"} for number in range(devices)]
    spec = {"driver": NAME, "pool": pool, "nodeName": name, "devices": offered}
    create(api, f"{DRA}/resourceslices", {"metadata": {"name": name}, "spec": spec})
    exactly = {"deviceClassName": NAME, "count": devices + 1}
    claim = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    create(api, f"{DRA}/namespaces/default/resourceclaims", {"metadata": {"name": name}, "spec": claim})
    time.sleep(1)  # the scheduler has seen them
    pod: Object = {
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "c"}]}}],
        "automountServiceAccountToken": False,
        "nodeSelector": {"only": name},
        "tolerations": [{"operator": "Exists"}],
        "resourceClaims": [{"name": "c", "resourceClaimName": name}],
    }
    began = time.monotonic()
    create(api, PODS, {"metadata": {"name": name}, "spec": pod})
    while True:
        found = json.loads(api.request("GET", f"{PODS}/{name}").body)
        said = [item for item in found["status"].get("conditions", ()) if item["type"] == "PodScheduled"]
        if said:
            seconds = time.monotonic() - began
            api.request("DELETE", f"{PODS}/{name}", query=[("gracePeriodSeconds", "0")])
            return said[0]["message"], seconds
        time.sleep(0.02)


def test_before_1_36_ten_free_devices_and_a_claim_of_eleven_take_the_schedulers_ten_seconds(
    api: Transport, lab: Cluster, figures: list[str]
) -> None:
    found = {devices: answer(api, devices) for devices in (7, 8, 9, 10, 15)}
    version = lab.spec.kubernetes
    told = ", ".join(f"{devices} free {seconds:.2f} s" for devices, (_, seconds) in found.items())
    figures.append(f"one device too few on {version}: {told}")
    for message, seconds in (found[10], found[15]):
        if version.startswith("1.34."):
            assert "timed out trying to allocate devices" in message
            assert 10 <= seconds < 60  # the limit, on a busy machine
        else:
            assert "cannot allocate all claims" in message
            assert seconds < 5
    for devices in (7, 8):
        message, seconds = found[devices]
        assert "cannot allocate all claims" in message
        assert seconds < 5

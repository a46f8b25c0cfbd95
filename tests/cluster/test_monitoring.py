"""On a real cluster: containers in the metrics, and files about devices in containers."""

from __future__ import annotations

import json

import pytest

from tests.cluster.lib.installation import EMULATED, Installation
from tests.cluster.lib.kube import eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import container, pod, request, template
from tests.cluster.lib.release import DRA, Release

pytestmark = pytest.mark.kubernetes("1.37")

NODE = "node-1"
SETTINGS = {**DRA, "draDriver.metricsPort": "9100", "draDriver.deviceMetadata": "true"}
SCRAPE = (
    "import os, urllib.request as r; "
    "print(r.urlopen('http://' + os.environ['METRICS_ADDRESS'] + ':9100/metrics').read().decode())"
)
FILE = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/neurons/chips/neuron.aws.com-metadata.json"


def test_metrics_name_the_containers_and_containers_see_what_their_devices_are(
    release: Release, installation: Installation, namespace: Namespace
) -> None:
    release.ensure(SETTINGS, EMULATED)
    users = [container("main", "neurons"), container("side", "neurons"), container("none")]
    namespace.apply(
        template("two", request("chips", 2)), pod("train", templates={"neurons": "two"}, containers=users, node=NODE)
    )
    namespace.wait_ready("train")
    claim = namespace.claim_of("train")
    name, chips = claim["metadata"]["name"], sorted(item.chip for item in namespace.allocated(claim))

    def shown() -> set[str]:
        text = installation.exec(NODE, "python3", "-c", SCRAPE)
        return {line for line in text.splitlines() if line.startswith("neuron_dra_driver_chip_allocation{")}

    where = f'namespace="{namespace.name}",neuron_device_index="{{0}}",pod="train"'
    wanted = {
        f'neuron_dra_driver_chip_allocation{{claim="{name}",container="{user}",device="neuron{chip}",'
        f"{where.format(chip)}}} 1.0"
        for user in ("main", "side")
        for chip in chips
    }
    eventually("both containers in the metrics", lambda: shown() == wanted)

    told = json.loads(namespace.exec("train", f"cat {FILE}", "main"))
    devices = {device["name"]: device["attributes"] for device in told["requests"][0]["devices"]}
    assert {attributes["deviceId"]["int"] for attributes in devices.values()} == set(chips)
    assert told["metadata"]["uid"] == claim["metadata"]["uid"]
    assert "Read-only" in namespace.exec("train", f"{{ echo x > {FILE}; }} 2>&1 || true", "side")
    assert namespace.exec("train", "ls /var/run/kubernetes.io 2>/dev/null || echo nothing", "none").split()[-1] in {
        "nothing",
        "serviceaccount",
    }

    namespace.delete_pod("train")
    eventually("the end of the series", lambda: not shown())

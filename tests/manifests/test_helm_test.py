"""What ``helm test`` runs: that it can fail, and that it needs no rights. On a cluster: test_chart_driver.py."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import kubernetes_validate
import pytest

from dra_driver.driver.deviceclasses import DEVICE_CLASSES
from tests.manifests.chart import EVERYTHING, hooks, needs_helm, template
from tests.manifests.support import Object, of_kind

DRIVER, PLUGIN = "neuron-dra-driver-test", "neuron-device-plugin-test"


def pods(*settings: str) -> dict[str, Object]:
    return {item["metadata"]["name"]: item for item in hooks("test", *settings) if item["kind"] == "Pod"}


@needs_helm
def test_there_is_a_pod_for_each_way_to_get_a_chip_that_is_installed() -> None:
    assert set(pods()) == {PLUGIN}
    assert set(pods("draDriver.enabled=true")) == {DRIVER}
    assert set(pods(*EVERYTHING)) == {DRIVER, PLUGIN}
    for item in hooks("test", *EVERYTHING):
        kubernetes_validate.validate(item, "1.36", strict=True)


@needs_helm
def test_the_pods_have_no_rights_no_priority_and_belong_to_no_workload() -> None:
    made = template(*EVERYTHING)
    selectors = [
        item["spec"]["selector"]["matchLabels"] for item in made if item["kind"] in ("DaemonSet", "Deployment")
    ]
    for item in pods(*EVERYTHING).values():
        spec = item["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert not {"serviceAccountName", "priorityClassName", "volumes"} & spec.keys()
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        labels = item["metadata"]["labels"].items()
        assert not any(selector.items() <= labels for selector in selectors)


@needs_helm
def test_the_claim_is_for_the_least_that_a_node_may_offer() -> None:
    made = of_kind(hooks("test", "draDriver.enabled=true"), "ResourceClaimTemplate")
    (request,) = made["spec"]["spec"]["devices"]["requests"]
    classes = [option["deviceClassName"] for option in request["firstAvailable"]]
    assert classes[0] == "chip.neuron.aws.com"
    assert set(classes) <= {row.name for row in DEVICE_CLASSES}
    (pod,) = pods("draDriver.enabled=true").values()
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == made["metadata"]["name"]


@needs_helm
@pytest.mark.parametrize(
    ("kind", "mode", "verdict"),
    [
        ("none", 0o666, "no device file"),
        (stat.S_IFREG, 0o666, "no device file"),
        (stat.S_IFCHR, 0o000, "may not open"),
        (stat.S_IFCHR, 0o666, "can be opened"),
    ],
    ids=["nothing", "a file", "without the right", "a device"],
)
def test_a_pod_without_a_chip_that_it_can_use_fails(kind: str | int, mode: int, verdict: str) -> None:
    (pod,) = pods("draDriver.enabled=true").values()
    (script,) = pod["spec"]["containers"][0]["args"]
    if kind == stat.S_IFCHR and os.geteuid() != 0:
        pytest.skip("device files can be made by root only")
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        device = Path(directory) / "neuron0"
        if kind != "none":
            os.mknod(device, int(kind), os.makedev(1, 3))
            device.chmod(mode)
        done = subprocess.run(
            # Relative, since the directory of temporary files may be closed to that user.
            ["sh", "-ec", script.replace("/dev/", "./")],
            cwd=directory,
            env={"PATH": os.environ["PATH"], "NEURON_LOGICAL_NC_CONFIG": "2"},
            user=65532 if os.geteuid() == 0 else None,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert verdict in done.stdout + done.stderr
    assert (done.returncode == 0) == (verdict == "can be opened")
    assert ("NEURON_LOGICAL_NC_CONFIG=2" in done.stdout) == (verdict == "can be opened")

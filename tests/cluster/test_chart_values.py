"""The chart with the values that people have: those of AWS's chart, tainted nodes, a namespace of their choice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.lib.installation import DAEMONSET, EMULATED, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import IMAGE, SLEEP, pod, request, template
from tests.cluster.lib.release import CHART, NAME, NAMESPACE, TRN1, Release
from tests.manifests.chart import OF_AWS

pytestmark = pytest.mark.nightly

TEAM = "team-ml"
VALUES = CHART / "examples/aws.yaml"
TAINTS = (("example.com/training", "reserved"), ("aws.amazon.com/neuron", "true"))
ACCOUNT = f"system:serviceaccount:{TEAM}:neuron-driver"


@pytest.fixture
def clean(release: Release, installation: Installation) -> Iterator[Release]:
    """A cluster without any of this, before and after; releases of other namespaces are the test's to remove."""
    installation.ensure_absent()
    release.uninstall()
    yield release
    release.uninstall()
    installation.changed()


@pytest.fixture
def tainted(kube: Kube) -> Iterator[None]:
    """Nodes that are kept for one kind of pods."""
    kube.kubectl("taint", "nodes", "--all", *(f"{key}={value}:NoSchedule" for key, value in TAINTS))
    yield
    kube.kubectl("taint", "nodes", "--all", *(f"{key}-" for key, _ in TAINTS))


@pytest.mark.kubernetes("1.37", "1.34")
@pytest.mark.usefixtures("tainted")
def test_a_values_file_of_awss_chart_installs_on_tainted_nodes_in_a_chosen_namespace(
    clean: Release, kube: Kube, namespace: Namespace
) -> None:
    where = ("--namespace", TEAM)
    try:
        settings = {"emulate": EMULATED}
        shown = clean.upgrade(settings, *where, "--create-namespace", "--values", str(VALUES)).stdout
        clean.shell(f"kubectl -n {TEAM} rollout status daemonset/{DAEMONSET} --timeout=100s")
        assert f"kubectl -n {TEAM} rollout status daemonset/{DAEMONSET}" in shown
        eventually("the slices of both nodes", lambda: kube.slices("node-1") and kube.slices("node-2"))
        assert {item["metadata"]["namespace"] for item in kube.find("daemonsets") if "neuron" in str(item)} == {TEAM}

        tolerations = [{"key": key, "operator": "Exists"} for key, _ in TAINTS]
        first = pod("first", templates={"chips": "four"})
        first["spec"]["tolerations"] = tolerations
        namespace.apply(template("four", request(count=4)), first)
        namespace.wait_ready("first")
        assert len(namespace.numbers("first")) == 4

        # The policy follows the account: without the token of a pod it may write no slice.
        item: Object = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "forged"},
            "spec": {
                "driver": "neuron.aws.com",
                "nodeName": "node-2",
                "pool": {"name": "node-2", "generation": 9, "resourceSliceCount": 1},
            },
        }
        forged = kube.access.kubectl("create", f"--as={ACCOUNT}", "-f", "-", stdin=json.dumps(item), check=False)
        assert "ValidatingAdmissionPolicy 'neuron-dra-driver-own-slices'" in forged.stderr
    finally:
        namespace.kubectl("delete", "pods", "--all", "--grace-period=1")
        clean.helm("uninstall", NAME, *where, "--ignore-not-found", "--wait")
        kube.kubectl("delete", "resourceslices", "--field-selector=spec.driver=neuron.aws.com")
        kube.kubectl("delete", "namespace", TEAM, "--ignore-not-found", timeout=100)


def stand_in(directory: Path) -> Path:
    """A chart with the values of AWS's, and of its objects the DaemonSet, whose selector is not this chart's."""
    labels = {"app.kubernetes.io/name": "neuron-device-plugin", "app.kubernetes.io/instance": NAME}
    container = {"name": "neuron-device-plugin", "image": IMAGE, "command": SLEEP}
    daemonset = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "neuron-device-plugin", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    (directory / "templates").mkdir(parents=True)
    (directory / "Chart.yaml").write_text(f"apiVersion: v2\nname: {NAME}\nversion: 1.10.0\n")
    (directory / "values.yaml").write_text(OF_AWS)
    (directory / "templates/daemonset.yaml").write_text(yaml.safe_dump(daemonset))
    return directory


@pytest.mark.kubernetes("1.37")
def test_an_upgrade_of_a_release_of_awss_chart_that_reuses_its_values_works(
    clean: Release, kube: Kube, tmp_path: Path
) -> None:
    def daemonset() -> Object:
        found = kube.get("daemonsets", "neuron-device-plugin", NAMESPACE)
        assert found is not None
        return found

    chart = stand_in(tmp_path / "chart")
    clean.helm("install", NAME, str(chart), "--set", "npd.enabled=false", "--set", "scheduler.enabled=false")
    before = daemonset()
    clean.label_nodes(TRN1)
    try:
        shown = clean.upgrade({"emulate": TRN1}, "--reuse-values").stdout
        clean.wait_ready()
        clean.wait_allocatable(16, 32)
    finally:
        clean.label_nodes(EMULATED)
    after = daemonset()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["spec"]["selector"] == before["spec"]["selector"]
    assert "devicePlugin.image: AWS's image" in shown

"""The DRA driver by the chart: the same objects as by install-dra-driver.sh, and it works."""

from __future__ import annotations

import json

import pytest

from tests.cluster.lib.installation import EMULATED, NAMESPACE, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.release import DRA, NAME, NEURON, Release, notes_of
from tests.paths import ROOT

pytestmark = pytest.mark.kubernetes("1.37", "1.34")


def test_installer_and_chart_make_the_same_objects_and_the_notes_first_claim_runs(
    release: Release, installation: Installation, kube: Kube
) -> None:
    if release.settings:
        release.uninstall()
    installation.ensure("--emulate", EMULATED)
    by_installer = specs(kube, installation.run("--dry-run", "--emulate", EMULATED, installation.image).stdout)
    installation.ensure_absent()
    release.ensure(DRA, EMULATED)
    assert specs(kube, release.helm("get", "manifest", NAME).stdout) == by_installer

    tested = release.tested()
    assert "/dev/neuron0 can be opened\nNEURON_LOGICAL_NC_CONFIG=2" in tested
    assert "/dev/neuron1" not in tested
    assert not kube.find("pods", NAMESPACE, labels="helm.sh/chart"), "what succeeded is gone"

    example = "examples/specs/1x4-connected-devices.yaml"
    try:
        for command in release.commands():
            release.shell(command)
        assert f"kubectl apply -f {example}" in release.commands()
        default = Namespace(kube, "default")
        default.wait_ready("pod0")
        assert default.numbers("pod0") == [0, 1, 2, 3]
    finally:
        kube.kubectl("delete", "--ignore-not-found", "--grace-period=1", "-f", str(ROOT / example), timeout=100)


def specs(kube: Kube, manifests: str) -> dict[tuple[str, str], Object]:
    """Objects as stored, without what the API server adds and by which helm and kubectl know their own."""
    items: list[Object] = json.loads(kube.kubectl("get", "-f", "-", "-o", "json", stdin=manifests))["items"]
    return {(item["kind"], item["metadata"]["name"]): plain(item) for item in items}


def plain(item: Object) -> Object:
    metadata = item["metadata"]
    ours = ("app.kubernetes.io/", "helm.sh/")
    labels = {key: value for key, value in metadata.get("labels", {}).items() if not key.startswith(ours)}
    own = ("helm.sh/", "meta.helm.sh/", "kubectl.kubernetes.io/", "deprecated.daemonset.template.generation")
    notes = {key: value for key, value in notes_of(item).items() if not key.startswith(own)}
    kept = {key: value for key, value in item.items() if key not in ("metadata", "status")}
    of_pods = kept.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})
    of_pods.pop("app.kubernetes.io/instance", None)  # the release
    return kept | {"namespace": metadata.get("namespace"), "labels": labels, "annotations": notes}


@pytest.mark.nightly
@pytest.mark.kubernetes("1.37")
def test_helm_takes_over_what_the_installer_has_installed_and_replaces_no_pod(
    release: Release, installation: Installation
) -> None:
    if release.settings:
        release.uninstall()
    installation.ensure("--emulate", EMULATED)
    before = {item["metadata"]["uid"] for item in installation.pods()}
    installation.changed()
    release.take_over(DRA, EMULATED)
    installation.wait_ready()
    assert {item["metadata"]["uid"] for item in installation.pods()} == before
    assert notes_of(installation.daemonset())["meta.helm.sh/release-name"] == NAME


@pytest.mark.nightly
@pytest.mark.kubernetes("1.37")
def test_driver_and_device_plugin_share_a_cluster_on_different_nodes(release: Release, kube: Kube) -> None:
    if release.settings:
        release.uninstall()
    kube.kubectl("label", "node", "node-1", "example.com/neuron=dra")
    try:
        release.ensure({"draDriver.enabled": "true", "draDriver.nodeSelector.example\\.com/neuron": "dra"}, EMULATED)
        eventually("the slices of the labelled node", lambda: kube.slices("node-1"))
        assert not kube.slices("node-2")
        eventually("the devices of the other one", lambda: allocatable(kube, "node-2") == "16")
        assert allocatable(kube, "node-1") == "0"
    finally:
        kube.kubectl("label", "node", "node-1", "example.com/neuron-")


def allocatable(kube: Kube, node: str) -> str:
    found = kube.get("nodes", node) or {}
    return str(found["status"]["allocatable"].get(NEURON, "0"))

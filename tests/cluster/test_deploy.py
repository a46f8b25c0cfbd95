"""Installed without helm: a kustomization of the driver, and the four files of the documents."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from lab.cluster import Cluster

from tests.cluster.lib.installation import DAEMONSET, Installation
from tests.cluster.lib.kube import Kube, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import DRIVER, pod, request, template
from tests.cluster.lib.release import (
    CORE,
    EXTENDER,
    INF1,
    NAMESPACE,
    NINE,
    PLUGIN,
    SCHEDULER,
    Release,
    limited,
    line_with,
)
from tests.cluster.lib.serviceaddress import ServiceAddress
from tests.paths import ROOT

pytestmark = pytest.mark.nightly

DEPLOY = ROOT / "deploy"
OWN = "neuron-system"
"""The namespace that the setting of that name gives."""
TAINT = "dedicated=neuron:NoSchedule"
TOLERATION = {"key": "dedicated", "operator": "Equal", "value": "neuron", "effect": "NoSchedule"}


def kustomization(directory: Path, image: str, *settings: str) -> Path:
    """What a user writes: the base, settings, and the image."""
    name, _, tag = image.rpartition(":")
    base = os.path.relpath(DEPLOY / "kustomize", directory)
    (directory / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": [f"{base}/driver"],
                "components": [f"{base}/driver-settings/{setting}" for setting in settings],
                "images": [{"name": "NEURON_DRA_IMAGE", "newName": name, "newTag": tag}],
            }
        )
    )
    return directory


@pytest.fixture
def tainted(kube: Kube) -> Iterator[None]:
    """All nodes have the taint that the setting tolerates, and no pod of before minds."""
    kube.kubectl("taint", "nodes", "--all", TAINT)
    yield
    kube.kubectl("taint", "nodes", "--all", f"{TAINT}-")


@pytest.mark.usefixtures("tainted")
def test_a_kustomization_of_the_driver_runs_a_claim_on_tainted_nodes_in_a_namespace_of_choice(
    installation: Installation, kube: Kube, namespace: Namespace, tmp_path: Path
) -> None:
    installation.ensure_absent()
    installation.changed()
    made = str(kustomization(tmp_path, installation.image, "emulate", "tolerations", "namespace"))
    try:
        kube.kubectl("apply", "--server-side", "-k", made)
        where = (f"--namespace={OWN}", f"daemonset/{DAEMONSET}")
        kube.kubectl("rollout", "status", *where, "--timeout=120s", timeout=130)
        assert len(kube.slices()) == len(kube.nodes())
        asks = pod("claims", templates={"neurons": "one"})
        asks["spec"]["tolerations"] = [TOLERATION]
        namespace.apply(template("one", request()), asks)
        namespace.wait_ready("claims")
        assert namespace.numbers("claims") == [0]
        namespace.delete_pod("claims")
        again = kube.kubectl("apply", "--server-side", "-k", made)
        assert "created" not in again
    finally:
        kube.kubectl("delete", "-k", made, "--ignore-not-found", "--wait=true", timeout=120)
        kube.kubectl("delete", "resourceslices", "--field-selector", f"spec.driver={DRIVER}")


@pytest.fixture
def four_files(release: Release, kube: Kube, lab: Cluster, driver_image: str, tmp_path: Path) -> Iterator[Path]:
    """The files with images put in, as the page says; and nothing of them on the cluster afterwards."""
    release.label_nodes(INF1)
    for path in sorted((DEPLOY / "kubectl").glob("*.yml")):
        text = path.read_text().replace("NEURON_DRA_IMAGE", driver_image)
        scheduler = f"registry.k8s.io/kube-scheduler:v{lab.spec.kubernetes}"
        (tmp_path / path.name).write_text(text.replace("KUBE_SCHEDULER_IMAGE", scheduler))
    yield tmp_path
    for path in sorted(tmp_path.glob("*.yml"), reverse=True):
        kube.kubectl("delete", "--ignore-not-found", "-f", str(path), timeout=120)
    kube.kubectl("delete", f"--namespace={NAMESPACE}", "secret", "k8s-neuron-scheduler-tls", "--ignore-not-found")
    release.uninstall()


def test_the_four_files_in_the_documents_order_give_a_pod_connected_cores(
    four_files: Path, release: Release, kube: Kube, namespace: Namespace
) -> None:
    release.shell(f"{DEPLOY}/kubectl/tls-secret.sh | kubectl apply --server-side -f -")
    for name in (
        "k8s-neuron-scheduler-configmap.yml",
        "k8s-neuron-scheduler.yml",
        "k8s-neuron-device-plugin-rbac.yml",
        "k8s-neuron-device-plugin.yml",
    ):
        kube.kubectl("apply", "-f", str(four_files / name))
    emulate = DEPLOY / "kustomize/legacy-settings/emulate/patch.yaml"
    kube.kubectl("patch", f"--namespace={NAMESPACE}", "daemonset", PLUGIN, f"--patch-file={emulate}")
    address = ServiceAddress(kube, NAMESPACE, EXTENDER)
    address.open()
    try:
        # What DNS does in other clusters.
        alias = {"ip": address.address, "hostnames": list(address.names)}
        aliases = json.dumps({"spec": {"template": {"spec": {"hostAliases": [alias]}}}})
        kube.kubectl("patch", f"--namespace={NAMESPACE}", "deployment", SCHEDULER, "--type=merge", "-p", aliases)
        for item in (f"daemonset/{PLUGIN}", f"deployment/{SCHEDULER}", f"deployment/{EXTENDER}"):
            kube.kubectl("rollout", "status", f"--namespace={NAMESPACE}", item, "--timeout=120s", timeout=130)
        release.wait_allocatable(4, 16)
        namespace.apply(limited("nine", {CORE: 9}))
        namespace.wait_ready("nine")
        assert namespace.environment("nine")["NEURON_RT_VISIBLE_CORES"] == NINE
        eventually("the extender to say so", lambda: f"{namespace.name}/nine are:" in release.logs(EXTENDER), 20)
        line_with(release.logs(EXTENDER), f"Allocated ids for POD {namespace.name}/nine are: {CORE} 0-8 for main;")
    finally:
        address.close()


def test_a_file_without_an_image_fails_at_once_and_asks_no_registry(namespace: Namespace) -> None:
    """A kubelet says InvalidImageName."""
    (daemonset,) = yaml.safe_load_all((DEPLOY / "kubectl/k8s-neuron-device-plugin.yml").read_text())
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    spec = {"containers": [{"name": "main", "image": container["image"]}]}
    namespace.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"}, "spec": spec})
    namespace.wait_event("plain", "InvalidImageName")

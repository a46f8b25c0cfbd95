"""What is applied without helm, and by GitOps: up to date, valid, and the same objects as the chart's."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from generating.main import TARGETS

from tests.manifests.chart import HELM, helm, needs_helm
from tests.manifests.support import KUBECTL, Object, documents, name_of, needs_kubectl, of_kind, ordered, pod_spec
from tests.paths import ROOT

DEPLOY = ROOT / "deploy"
FILES = sorted((DEPLOY / "kubectl").glob("k8s-neuron-*.yml"))
SETTINGS = sorted(path.parent for path in (DEPLOY / "kustomize").glob("*-settings/*/kustomization.yaml"))
BASES = ("driver", "legacy", "driver-example", "legacy-example")
PLACEHOLDERS = {"NEURON_DRA_IMAGE", "KUBE_SCHEDULER_IMAGE"}


def kustomized(directory: Path) -> list[Object]:
    """What `kubectl apply -k` would apply."""
    assert KUBECTL is not None
    done = subprocess.run(
        [KUBECTL, "kustomize", str(directory)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def with_settings(directory: Path, base: str, *settings: Path) -> list[Object]:
    """A base with components, as the kustomization of a user has them."""
    directory.mkdir()
    listed = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(DEPLOY / "kustomize" / base, directory)],
        "components": [os.path.relpath(path, directory) for path in settings],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(listed))
    return kustomized(directory)


def templated(*values: str) -> list[Object]:
    """What the chart makes, with the placeholders for images."""
    options = ["image.repository=registry.invalid/neuron", "image.tag=none"]
    options += ["scheduler.customScheduler.image.repository=registry.invalid/scheduler", *values]
    given = [part for value in options for part in ("--set-string" if "nodeSelector" in value else "--set", value)]
    done = helm(
        "template", "neuron", str(ROOT / "charts/neuron-helm-chart"), "--no-hooks", "--kube-version", "1.37.1", *given
    )
    assert done.returncode == 0, done.stderr
    text = re.sub(r'"?registry\.invalid/neuron:[\w.]+"?', "NEURON_DRA_IMAGE", done.stdout)
    return documents(re.sub(r'"?registry\.invalid/scheduler:[\w.]+"?', "KUBE_SCHEDULER_IMAGE", text))


def images(objects: list[Object]) -> set[str]:
    found = [pod_spec(item) for item in objects if item["kind"] in ("DaemonSet", "Deployment")]
    return {container["image"] for spec in found for container in spec["containers"]}


@needs_helm
def test_the_files_are_those_that_the_chart_makes_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELM", str(HELM))
    made = TARGETS["deploy"].make()
    assert {path for path, text in made.items() if text is None or text != (ROOT / path).read_text()} == set(), (
        "run scripts/generate deploy"
    )


DRIVER = ("draDriver.enabled=true", "devicePlugin.enabled=false")
LEGACY = ("scheduler.enabled=true", "scheduler.tls.existingSecret=k8s-neuron-scheduler-tls")
EQUAL = {
    "driver-settings/partitions": ("draDriver.partitions=chip.core",),
    "driver-settings/emulate": ("emulate=trn2.48xlarge",),
    "driver-settings/extended-resources": ("draDriver.extendedResources=true",),
    "driver-settings/node-selector": ("draDriver.nodeSelector.example\\.com/neuron=dra",),
    "driver-settings/placer": ("draDriver.placer.enabled=true",),
    "driver-settings/ultraserver-operator": ("ultraserverOperator.enabled=true",),
    "driver-settings/ultraservers-per-namespace": (
        "ultraserverOperator.enabled=true",
        "ultraserverOperator.maxServersPerNamespace=8",
    ),
    "driver-settings/claim-controller": ("ultraserverOperator.claimController=system:kube-controller-manager",),
    "driver-settings/device-numbering": ("draDriver.deviceNumbering=host",),
    "driver-settings/contiguity": ("draDriver.contiguity=refuse",),
    "driver-settings/metrics": ("draDriver.metricsPort=9100",),
    "driver-settings/kubelet-root": ("kubeletRoot=/var/lib/k0s/kubelet",),
    "driver-settings/image-pull-secret": ("imagePullSecrets={registry}",),
    "legacy-settings/emulate": ("emulate=inf1.6xlarge",),
    "legacy-settings/device-numbering": ("devicePlugin.deviceNumbering=renumber",),
    "legacy-settings/metrics": ("devicePlugin.metricsPort=9100",),
    "legacy-settings/kubelet-root": ("kubeletRoot=/var/lib/k0s/kubelet",),
    "driver-settings/no-parameters-policy": ("draDriver.parametersPolicy.enabled=false",),
    "driver-settings/no-node-status": ("draDriver.nodeStatus=false",),
    "legacy-settings/image-pull-secret": ("imagePullSecrets={registry}",),
}
"""Components, and the values of the chart that do the same."""
AFTER = {
    "driver-settings/ultraserver-operator": ("driver-settings/placer",),
    "driver-settings/ultraservers-per-namespace": ("driver-settings/placer", "driver-settings/ultraserver-operator"),
}
"""Components that others need."""


@needs_helm
@needs_kubectl
@pytest.mark.parametrize(("base", "values"), [("driver", DRIVER), ("legacy", LEGACY)])
def test_a_base_has_the_objects_of_the_chart(base: str, values: tuple[str, ...]) -> None:
    assert ordered(kustomized(DEPLOY / "kustomize" / base)) == ordered(templated(*values))


@needs_helm
@needs_kubectl
@pytest.mark.parametrize("setting", EQUAL)
def test_a_setting_makes_of_the_base_what_values_make_of_the_chart(setting: str, tmp_path: Path) -> None:
    base = setting.partition("-")[0]
    settings = [DEPLOY / "kustomize" / name for name in (*AFTER.get(setting, ()), setting)]
    made = with_settings(tmp_path / "own", base, *settings)
    assert ordered(made) == ordered(templated(*(DRIVER if base == "driver" else LEGACY), *EQUAL[setting]))


def test_every_component_is_compared_with_the_chart_or_has_a_test_of_its_own() -> None:
    own = {f"{base}-settings/tolerations" for base in ("driver", "legacy")} | {"driver-settings/namespace"}
    assert {f"{path.parent.name}/{path.name}" for path in SETTINGS} == own | EQUAL.keys()


@needs_kubectl
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("version", ["1.34", "1.37"])
def test_what_kustomize_makes_is_valid(base: str, version: str) -> None:
    for item in kustomized(DEPLOY / "kustomize" / base):
        kubernetes_validate.validate(item, version, strict=True)


@needs_kubectl
def test_all_settings_together_are_valid_and_in_the_namespace_of_choice(tmp_path: Path) -> None:
    others = [path for path in SETTINGS if path.parent.name == "driver-settings" and path.name != "namespace"]
    made = with_settings(tmp_path / "own", "driver", *others, DEPLOY / "kustomize/driver-settings/namespace")
    for item in made:
        kubernetes_validate.validate(item, "1.37", strict=True)
    assert {item["metadata"].get("namespace") for item in made} == {None, "neuron-system", "default"}
    assert [item["metadata"]["name"] for item in made if item["kind"] == "Namespace"] == ["neuron-system"]
    # What is left of the former one is in names.
    text = yaml.safe_dump_all(made)
    assert not re.search(r"namespace: neuron-dra-driver\b|serviceaccount:neuron-dra-driver:", text)
    policies = [item for item in made if item["kind"] == "ValidatingAdmissionPolicy"]
    of_accounts = [item for item in policies if not item["metadata"]["name"].endswith("-mirror-pods")]
    assert (len(policies), len(of_accounts)) == (12, 11)
    assert all("serviceaccount:neuron-system:" in json.dumps(item["spec"]["matchConditions"]) for item in of_accounts)
    daemonset = pod_spec(of_kind(made, "DaemonSet"))
    assert {"key": "dedicated", "operator": "Equal", "value": "neuron", "effect": "NoSchedule"} in daemonset[
        "tolerations"
    ]


@needs_kubectl
def test_another_namespace_leaves_the_policies_that_name_none_as_they_are(tmp_path: Path) -> None:
    settings = DEPLOY / "kustomize/driver-settings"
    made = with_settings(tmp_path / "own", "driver", settings / "placer", settings / "namespace")
    plain = with_settings(tmp_path / "plain", "driver", settings / "placer")
    before, after = (
        [item for item in all_ if item["metadata"]["name"].endswith(("-parameters", "-mirror-pods"))]
        for all_ in (plain, made)
    )
    assert before == after
    assert len(after) == 4


@needs_kubectl
@pytest.mark.parametrize("base", ["driver", "legacy"])
def test_tolerations_are_added_to_every_pod(base: str, tmp_path: Path) -> None:
    plain = kustomized(DEPLOY / "kustomize" / base)
    made = with_settings(tmp_path / "own", base, DEPLOY / f"kustomize/{base}-settings/tolerations")
    wanted = {"key": "dedicated", "operator": "Equal", "value": "neuron", "effect": "NoSchedule"}
    for before, after in zip(plain, made, strict=True):
        if before["kind"] in ("DaemonSet", "Deployment"):
            pod_spec(before)["tolerations"].append(wanted)
        assert before == after


def test_an_image_that_nobody_has_put_in_is_none() -> None:
    """A kubelet refuses it as InvalidImageName, and asks no registry."""
    reference = re.compile(r"[a-z0-9]+([._/:-]+[a-z0-9]+)*")
    for path in (*FILES, DEPLOY / "kustomize/driver/driver.yaml"):
        assert images(documents(path.read_text())) <= PLACEHOLDERS
    assert not any(reference.fullmatch(name) for name in PLACEHOLDERS)


@needs_kubectl
@pytest.mark.parametrize("base", ["driver-example", "legacy-example"])
def test_the_examples_put_in_all_images(base: str) -> None:
    found = images(kustomized(DEPLOY / "kustomize" / base))
    assert found
    assert not found & PLACEHOLDERS


def test_the_four_files_hold_all_of_the_pair_and_go_one_after_the_other() -> None:
    found = {
        path.name: [(item["kind"], item["metadata"]["name"]) for item in documents(path.read_text())] for path in FILES
    }
    assert list(found) == [
        "k8s-neuron-device-plugin-rbac.yml",
        "k8s-neuron-device-plugin.yml",
        "k8s-neuron-scheduler-configmap.yml",
        "k8s-neuron-scheduler.yml",
    ]
    assert found["k8s-neuron-device-plugin.yml"] == [("DaemonSet", "neuron-device-plugin-daemonset")]
    assert found["k8s-neuron-scheduler-configmap.yml"] == [("ConfigMap", "my-scheduler-config")]
    kinds = {kind for kind, _ in found["k8s-neuron-device-plugin-rbac.yml"]}
    assert {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"} <= kinds
    assert not kinds & {"DaemonSet", "Deployment"}
    workloads = [name for kind, name in found["k8s-neuron-scheduler.yml"] if kind == "Deployment"]
    assert sorted(workloads) == ["k8s-neuron-scheduler", "my-scheduler"]


@pytest.mark.parametrize("path", FILES, ids=name_of)
@pytest.mark.parametrize("version", ["1.34", "1.37"])
def test_the_four_files_are_valid(path: Path, version: str) -> None:
    for item in documents(path.read_text()):
        kubernetes_validate.validate(item, version, strict=True)


# Certificates of scheduler and extender


@pytest.fixture(scope="module")
def secret() -> Object:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    done = subprocess.run([DEPLOY / "kubectl/tls-secret.sh"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = documents(done.stdout)
    return made


def test_the_secret_is_the_one_that_the_pods_mount(secret: Object) -> None:
    kubernetes_validate.validate(secret, "1.37", strict=True)
    pods = [item for path in FILES for item in documents(path.read_text()) if item["kind"] == "Deployment"]
    mounted = [volume["secret"] for item in pods for volume in pod_spec(item)["volumes"] if "secret" in volume]
    assert {item["secretName"] for item in mounted} == {secret["metadata"]["name"]}
    assert {entry["key"] for item in mounted for entry in item["items"]} == set(secret["data"])
    assert {item["metadata"]["namespace"] for item in pods} == {secret["metadata"]["namespace"]}


def context(secret: Object, directory: Path, purpose: ssl.Purpose, name: str) -> ssl.SSLContext:
    """One end of a connection: it shows the certificate `name`, and trusts the authority alone."""
    for key, value in secret["data"].items():
        (directory / key).write_bytes(base64.b64decode(value))
    made = ssl.create_default_context(purpose, cafile=str(directory / "ca.crt"))
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_cert_chain(directory / f"{name}.crt", directory / f"{name}.key")
    return made


def talk(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A handshake in memory; raises what either end says against it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends: Iterator[ssl.SSLObject] = iter(
        (
            client.wrap_bio(to_client, to_server, server_hostname=name),
            server.wrap_bio(to_server, to_client, server_side=True),
        )
    )
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
    assert not waiting


@pytest.mark.parametrize("client", ["client", "tls"])
def test_scheduler_and_extender_know_each_other_by_the_secret(secret: Object, tmp_path: Path, client: str) -> None:
    server = context(secret, tmp_path, ssl.Purpose.CLIENT_AUTH, "tls")
    talk(server, context(secret, tmp_path, ssl.Purpose.SERVER_AUTH, client), "k8s-neuron-scheduler.kube-system.svc")


def test_the_certificate_is_no_other_servers(secret: Object, tmp_path: Path) -> None:
    server = context(secret, tmp_path, ssl.Purpose.CLIENT_AUTH, "tls")
    client = context(secret, tmp_path, ssl.Purpose.SERVER_AUTH, "client")
    with pytest.raises(ssl.SSLCertVerificationError):
        talk(server, client, "kubernetes.default.svc")
    as_server = context(secret, tmp_path, ssl.Purpose.CLIENT_AUTH, "client")
    with pytest.raises(ssl.SSLError):
        talk(as_server, client, "k8s-neuron-scheduler.kube-system.svc")


# GitOps

SCHEMAS = json.loads((ROOT / "tests/data/gitops-schemas.json").read_text())
"""`spec` of Application (Argo CD 3.1.0, without other sources than helm's), HelmRelease v2 and GitRepository v1 (Flux
2.5), of their CRDs: without descriptions, and with unknown fields refused. Both projects are under Apache-2.0."""


def gitops() -> list[Object]:
    return [
        item
        for path in sorted(DEPLOY.glob("*/*.yaml"))
        if path.parent.name in ("argocd", "flux")
        for item in documents(path.read_text())
    ]


@pytest.mark.parametrize("item", gitops(), ids=lambda item: str(item["kind"]))
def test_the_examples_of_gitops_are_what_the_resource_definitions_allow(item: Object) -> None:
    schema = SCHEMAS[item["kind"]]
    jsonschema.validate(item["spec"], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**item["spec"], "misspelt": 1}, schema)


@needs_helm
@pytest.mark.parametrize("kind", ["Application", "HelmRelease"])
def test_the_values_of_gitops_make_the_objects_of_the_base(kind: str, tmp_path: Path) -> None:
    spec = of_kind(gitops(), kind)["spec"]
    chart, values = (
        (spec["source"]["path"], spec["source"]["helm"]["valuesObject"])
        if kind == "Application"
        else (spec["chart"]["spec"]["chart"], spec["values"])
    )
    assert (ROOT / chart / "Chart.yaml").is_file()
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    options = ("--no-hooks", "--namespace=kube-system", "--kube-version=1.37.1", "-f", str(file))
    done = helm("template", "neuron", str(ROOT / chart), *options)
    assert done.returncode == 0, done.stderr
    text = done.stdout.replace('"registry.example/neuron-dra-driver:0.1.0"', "NEURON_DRA_IMAGE")
    text = text.replace("registry.example/neuron-dra-driver:0.1.0", "NEURON_DRA_IMAGE")
    assert ordered(documents(text)) == ordered(documents((DEPLOY / "kustomize/driver/driver.yaml").read_text()))

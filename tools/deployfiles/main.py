"""The files in deploy/kustomize and deploy/kubectl, from what `helm template` makes of the chart."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "charts/neuron-helm-chart"
DEPLOY: Final = ROOT / "deploy"
IMAGES: Final = {"registry.invalid/neuron": "NEURON_DRA_IMAGE", "registry.invalid/scheduler": "KUBE_SCHEDULER_IMAGE"}
"""Repositories that the chart is given, and what the files have in their place. No runtime takes a name in capitals for
an image, so a file that is applied as it is fails with InvalidImageName instead of pulling something."""
KUBERNETES: Final = "1.37.1"
TLS: Final = "k8s-neuron-scheduler-tls"
"""The Secret that deploy/kubectl/tls-secret.sh makes."""

Object = dict[str, Any]
Key = tuple[str, str]
"""Kind and name: no two objects here differ in the namespace alone."""

DRIVER: Final = ("draDriver.enabled=true", "devicePlugin.enabled=false")
PLACER: Final = (*DRIVER, "draDriver.placer.enabled=true")
OPERATOR: Final = (*PLACER, "ultraserverOperator.enabled=true")
LEGACY: Final = ("scheduler.enabled=true", f"scheduler.tls.existingSecret={TLS}")


class Setting(NamedTuple):
    """A kustomize component made of the difference that values of the chart make."""

    base: tuple[str, ...]
    values: tuple[str, ...]
    comment: str


SETTINGS: Final = {
    "driver-settings/emulate": Setting(
        DRIVER, ("emulate=trn2.48xlarge",), "Every node stands for an instance of this type: trials without hardware."
    ),
    "driver-settings/partitions": Setting(
        DRIVER,
        ("draDriver.partitions=chip.core",),
        "What each node offers: one or more of chip, core, group, group4 (or another size) and node. The right to read "
        "pods is needed for cores only.",
    ),
    "driver-settings/extended-resources": Setting(
        DRIVER,
        ("draDriver.extendedResources=true",),
        "Limits such as aws.amazon.com/neuron of unchanged pods; Kubernetes 1.36 or later.",
    ),
    "driver-settings/node-selector": Setting(
        DRIVER, ("draDriver.nodeSelector.example\\.com/neuron=dra",), "Nodes with this label instead of instance types."
    ),
    "driver-settings/placer": Setting(
        DRIVER, ("draDriver.placer.enabled=true",), "Keeps groups of pods on UltraServers from blocking each other."
    ),
    "driver-settings/ultraserver-operator": Setting(
        PLACER,
        ("ultraserverOperator.enabled=true",),
        "UltraServers by workload. List it after `placer`; leave the CustomResourceDefinitions out of a copy of it "
        "where others have them.",
    ),
    "driver-settings/ultraservers-per-namespace": Setting(
        OPERATOR,
        ("ultraserverOperator.maxServersPerNamespace=8",),
        "UltraServers, whole or in part, that the workloads of one namespace may have. List it after "
        "`ultraserver-operator`.",
    ),
    "driver-settings/claim-controller": Setting(
        DRIVER,
        ("ultraserverOperator.claimController=system:kube-controller-manager",),
        "For clusters whose kube-controller-manager runs without --use-service-account-credentials: it makes the "
        "claims of UltraServer workloads under this name.",
    ),
    "driver-settings/device-numbering": Setting(
        DRIVER, ("draDriver.deviceNumbering=host",), "Chips keep the host's numbers in containers."
    ),
    "driver-settings/contiguity": Setting(
        DRIVER,
        ("draDriver.contiguity=refuse",),
        "What becomes of claims whose chips do not have contiguous numbers on the host: refuse, warn or allow.",
    ),
    "driver-settings/metrics": Setting(
        DRIVER, ("draDriver.metricsPort=9100",), "Prometheus metrics, also of which pod has which device."
    ),
    "driver-settings/kubelet-root": Setting(
        DRIVER,
        ("kubeletRoot=/var/lib/k0s/kubelet",),
        "kubelet's root directory on the nodes. The component metrics has it, too: change it in a copy of that.",
    ),
    "legacy-settings/emulate": Setting(
        LEGACY,
        ("emulate=inf1.6xlarge",),
        "Every node stands for an instance of this type; label the nodes node.kubernetes.io/instance-type with it.",
    ),
    "legacy-settings/device-numbering": Setting(
        LEGACY, ("devicePlugin.deviceNumbering=renumber",), "Numbers start at 0 in each container."
    ),
    "legacy-settings/metrics": Setting(
        LEGACY,
        ("devicePlugin.metricsPort=9100",),
        "Prometheus metrics of the device plugin; the extender has them anyway.",
    ),
    "legacy-settings/kubelet-root": Setting(
        LEGACY, ("kubeletRoot=/var/lib/k0s/kubelet",), "kubelet's root directory on the nodes."
    ),
}

TOLERATIONS: Final = """\
# A taint that all pods tolerate, in addition to aws.amazon.com/neuron. For several, repeat the operation.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
- target:
    kind: DaemonSet|Deployment
  patch: |
    - op: add
      path: /spec/template/spec/tolerations/-
      value: {key: dedicated, operator: Equal, value: neuron, effect: NoSchedule}
"""
NO_PARAMETERS_POLICY: Final = """\
# Wrong parameters (NeuronConfig, UltraServerConfig) are refused when a pod starts, not when they are applied. Does not
# delete a policy that is installed.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
- target:
    kind: ValidatingAdmissionPolicy.*
    name: neuron-dra-driver-parameters
  patch: |
    {$patch: delete, apiVersion: v1, kind: any, metadata: {name: any}}
"""
NO_NODE_STATUS: Final = """\
# The driver writes no label and no condition of Nodes, and has no right to patch them. List it after `partitions`. What
# is on the Nodes already stays there.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
- target:
    kind: ClusterRole
    name: neuron-dra-driver-clusterrole
  patch: |
    - {op: test, path: /rules/2/resources, value: [nodes]}
    - {op: replace, path: /rules/2/verbs, value: [get, list, watch]}
    - {op: test, path: /rules/3/resources, value: [nodes/status]}
    - {op: remove, path: /rules/3}
- target:
    kind: DaemonSet
    name: neuron-dra-driver-kubelet-plugin
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: NODE_STATUS, value: "off"}}
"""
REGISTRY_CREDENTIALS: Final = """\
# The Secret with the credentials of your registry; it has to be in the namespace of the pods.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
- target:
    kind: DaemonSet|Deployment
  patch: |
    - op: add
      path: /spec/template/spec/imagePullSecrets
      value: [{name: registry}]
"""
OWN_NAMESPACE: Final = """\
# Another namespace: change the value below, and nothing else. List this component last, and give no `namespace:` to
# kustomize: that would also move the Role which has to be in the namespace default.
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
patches:
- target:
    kind: Namespace
    name: neuron-dra-driver
  options:
    allowNameChange: true
  patch: |
    - op: replace
      path: /metadata/name
      value: neuron-system
replacements:
- source:
    kind: Namespace
    fieldPath: metadata.name
  targets:
  - select: {namespace: neuron-dra-driver}
    fieldPaths: [metadata.namespace]
  - select: {kind: ClusterRoleBinding}
    fieldPaths: [subjects.0.namespace]
  - select: {kind: RoleBinding}
    fieldPaths: [subjects.0.namespace]
  # system:serviceaccount:NAMESPACE:NAME
  - select: {kind: ValidatingAdmissionPolicy}
    reject:
    - {name: neuron-dra-driver-parameters}
    - {name: neuron-dra-driver-placer-mirror-pods}
    fieldPaths: [spec.matchConditions.0.expression]
    options: {delimiter: ':', index: 2}
"""
EXAMPLE: Final = """\
# Copy this file, and keep of the settings what you need: kubectl apply --server-side -k DIRECTORY
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- ../{base}
components:
- ../{base}-settings/emulate
# - ../{base}-settings/tolerations
images:
- name: NEURON_DRA_IMAGE
  newName: registry.example/neuron-dra-driver
  newTag: 0.1.0
{more}"""
SCHEDULER_IMAGE: Final = f"""\
# Of the same minor version as the API server, and not newer.
- name: KUBE_SCHEDULER_IMAGE
  newName: registry.k8s.io/kube-scheduler
  newTag: v{KUBERNETES}
"""

PLUGIN: Final = "neuron-device-plugin-daemonset"
CONFIGURATION: Final = ("ConfigMap", "my-scheduler-config")
FILES: Final = (
    "k8s-neuron-device-plugin-rbac.yml",
    "k8s-neuron-device-plugin.yml",
    "k8s-neuron-scheduler-configmap.yml",
    "k8s-neuron-scheduler.yml",
)
"""The files that AWS's documents apply with kubectl."""


def file_of(key: Key) -> str:
    """Which of the four files an object of the legacy pair belongs to."""
    if key == CONFIGURATION:
        return FILES[2]
    if key[1] == PLUGIN:
        return FILES[1]
    return FILES[0] if key[1].startswith("neuron-device-plugin") else FILES[3]


def template(helm: str, values: Iterable[str]) -> dict[Key, str]:
    """The text of each object that the chart makes with some values, in the order of the chart."""
    ours, scheduler = IMAGES
    given = [f"image.repository={ours}", "image.tag=none", f"scheduler.customScheduler.image.repository={scheduler}"]
    options = [
        part for value in (*given, *values) for part in ("--set-string" if "nodeSelector" in value else "--set", value)
    ]
    done = subprocess.run(
        [helm, "template", "neuron", str(CHART), "--no-hooks", "--kube-version", KUBERNETES, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        sys.exit(f"error: {done.stderr.strip()}\nNothing was written.")
    made: dict[Key, str] = {}
    text = re.sub(r"(?m)^(# Source: .*| +(helm\.sh/chart|app\.kubernetes\.io/managed-by): .*)\n", "", done.stdout)
    text = re.sub(r"(?m)[ \t]+$", "", text)
    for repository, placeholder in IMAGES.items():
        text = re.sub(rf'"?{re.escape(repository)}:[\w.]+"?', placeholder, text)
    for document in re.split(r"(?m)^---$", text):
        item = yaml.safe_load(document)
        if item:
            made[item["kind"], item["metadata"]["name"]] = document.strip()
    return made


_MERGED_BY: Final = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}
"""Lists that kustomize merges by a key of their items; it replaces all others."""
_NAMED_WHOLE: Final = ("env",)
"""Kustomize puts first what a patch names. With all names, the order is the chart's: helm, which takes over what was
installed, replaces no pod. Not for volumes, since a name would bring back what another component has deleted."""


def difference(before: Object, after: Object) -> Object:
    """A strategic merge patch from one object, or part of one, to the other."""
    changed = {key: _change(before.get(key), value, key) for key, value in after.items() if before.get(key) != value}
    return changed | {key: None for key in before if key not in after}


def _change(before: object, after: object, field: str) -> object:
    if isinstance(before, dict) and isinstance(after, dict):
        return difference(before, after)
    if isinstance(before, list) and isinstance(after, list) and field in _MERGED_BY:
        by = _MERGED_BY[field]
        old = {item[by]: item for item in before}
        new = {item[by]: item for item in after}
        changes = [
            {by: name} | difference(old.get(name, {by: name}), item)
            for name, item in new.items()
            if old.get(name) != item or field in _NAMED_WHOLE
        ]
        return [*changes, *({"$patch": "delete", by: name} for name in old if name not in new)]
    return after


def component(base: Mapping[Key, str], made: Mapping[Key, str], comment: str) -> dict[str, str]:
    """The files of a component that makes of the objects of `base` those of `made`."""
    gone = [key for key in base if key not in made]
    if gone:
        sys.exit(f"error: a component cannot take away {gone}. Nothing was written.")
    patches = []
    for key, text in made.items():
        before, after = yaml.safe_load(base.get(key, "null")), yaml.safe_load(text)
        if before is not None and before != after:
            where = {name: after["metadata"][name] for name in ("name", "namespace") if name in after["metadata"]}
            identity = {"apiVersion": after["apiVersion"], "kind": after["kind"], "metadata": where}
            change = difference(before, after)
            change["metadata"] = where | change.get("metadata", {})
            patches.append(yaml.safe_dump(identity | change, sort_keys=False, width=120))
    added = {key: text for key, text in made.items() if key not in base}
    lines = [*_comment(comment), "apiVersion: kustomize.config.k8s.io/v1alpha1", "kind: Component"]
    files = {}
    if added:
        lines += ["resources:", "- resources.yaml"]
        files["resources.yaml"] = joined(added.values())
    if patches:
        lines += ["patches:", "- path: patch.yaml"]
        files["patch.yaml"] = joined(patches)
    return files | {"kustomization.yaml": "\n".join(lines) + "\n"}


def _comment(text: str) -> list[str]:
    words, lines = text.split(), ["#"]
    for word in words:
        if len(lines[-1]) + len(word) > 118:
            lines.append("#")
        lines[-1] += f" {word}"
    return lines


HEADER: Final = "# Made by scripts/generate from charts/neuron-helm-chart; change a copy of it.\n"


def joined(texts: Iterable[str]) -> str:
    """Objects as one file."""
    return HEADER + "---\n".join(f"{text.strip()}\n" for text in texts)


def base(files: Sequence[str]) -> str:
    """The kustomization of a base."""
    listed = "".join(f"- {name}\n" for name in files)
    return f"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{listed}"


def generated(helm: str) -> dict[str, str]:
    """All files by their path below deploy/."""
    driver, legacy = template(helm, DRIVER), template(helm, LEGACY)
    made = {
        "kustomize/driver/kustomization.yaml": base(["driver.yaml"]),
        "kustomize/driver/driver.yaml": joined(driver.values()),
        "kustomize/driver-settings/namespace/kustomization.yaml": OWN_NAMESPACE,
        "kustomize/driver-settings/no-parameters-policy/kustomization.yaml": NO_PARAMETERS_POLICY,
        "kustomize/driver-settings/no-node-status/kustomization.yaml": NO_NODE_STATUS,
        "kubectl/kustomization.yaml": base(FILES),
        "kustomize/legacy/kustomization.yaml": base(["../../kubectl"]),
        "kustomize/driver-example/kustomization.yaml": EXAMPLE.format(base="driver", more=""),
        "kustomize/legacy-example/kustomization.yaml": EXAMPLE.format(base="legacy", more=SCHEDULER_IMAGE),
    }
    for name in ("driver", "legacy"):
        made[f"kustomize/{name}-settings/tolerations/kustomization.yaml"] = TOLERATIONS
        made[f"kustomize/{name}-settings/image-pull-secret/kustomization.yaml"] = REGISTRY_CREDENTIALS
    for file in FILES:
        text = joined(text for key, text in legacy.items() if file_of(key) == file)
        made[f"kubectl/{file}"] = text
    bases: dict[tuple[str, ...], dict[Key, str]] = {DRIVER: driver, LEGACY: legacy}
    bases |= {values: template(helm, values) for values in (PLACER, OPERATOR)}
    for name, setting in SETTINGS.items():
        values = (*setting.base, *setting.values)
        parts = component(bases[setting.base], template(helm, values), setting.comment)
        made |= {f"kustomize/{name}/{file}": text for file, text in parts.items()}
    return made


def present() -> dict[str, str]:
    """The files that are there, of those that this program makes."""
    found = [path for name in ("kustomize", "kubectl") for path in (DEPLOY / name).rglob("*.y*ml")]
    return {str(path.relative_to(DEPLOY)): path.read_text() for path in sorted(found)}


def helm_program() -> str | None:
    """The helm to use: that of $HELM, else one on the PATH."""
    return shutil.which(os.environ.get("HELM") or "helm")

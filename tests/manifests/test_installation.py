"""What the installer applies: valid, least rights, unprivileged, and with the vendor's contract."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from dra_driver.driver.agent import COMPONENT
from dra_driver.driver.deviceclasses import DEVICE_CLASSES
from dra_driver.driver.node_labels import KEYS
from dra_driver.kube.api.codec import AS_SENT
from dra_driver.kube.api.events import CLUSTER_NAMESPACE
from dra_driver.neuron.health.condition import PROBLEMS, TYPE
from dra_driver.neuron.names import DEVICES_VIEWER_ROLE, DRIVER_NAME, PRESENT, VIEWER_ROLE
from dra_driver.neuron.topology.partitions import Partitions
from dra_driver.operations.overview.workloads import WORKLOADS
from dra_driver.operations.report.cluster import POLICIES
from tests.golden import golden
from tests.manifests.chart import needs_helm, template
from tests.manifests.support import (
    IMAGE,
    INSTALLER,
    Object,
    documents,
    install,
    of_kind,
    pod_spec,
    rendered,
)
from tests.paths import ROOT

pytestmark = pytest.mark.slow

DRIVER_ROLE = "neuron-dra-driver-clusterrole"
VARIANTS = {
    "plain": (),
    "emulated": ("--emulate", "trn2.48xlarge"),
    "chosen nodes": ("--node-selector", "feature.node.kubernetes.io/aws-neuron=true"),
    "other kubelet root": ("--kubelet-root", "/var/lib/k0s/kubelet"),
    "cores": ("--partitions", "chip.core"),
    "extended resources": ("--partitions=chip.core.group4.node", "--extended-resources"),
    "of the administrator": (
        "--toleration=dedicated=neuron:NoSchedule",
        "--toleration=example.com/spot",
        "--toleration=*",
        "--image-pull-secret=registry",
        "--env=CONTIGUITY_POLICY=refuse",
        "--resources=requests.cpu=50m,limits.memory=256Mi,limits.cpu=2",
    ),
    "everything": ("--emulate=trn2u", "--node-selector=neuron=", "--kubelet-root=/srv/kubelet"),
}
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


def test_all_pods_have_the_standard_labels() -> None:
    files = (*rendered("--placer", IMAGE), *documents((ROOT / "deploy/verify/job.yaml").read_text()))
    made = [item for item in files if "template" in item.get("spec", {})]
    assert len(made) == 3
    for item in made:
        standard = {f"app.kubernetes.io/{name}" for name in ("name", "instance", "component")}
        assert standard <= item["spec"]["template"]["metadata"]["labels"].keys()


def test_without_labels_and_conditions_of_nodes_there_is_no_right_to_patch_nodes() -> None:
    def verbs(*options: str) -> set[str]:
        made = (item for item in rendered(*options, IMAGE) if item["metadata"]["name"] == DRIVER_ROLE)
        rules = (rule for item in made for rule in item["rules"] if {"nodes", "nodes/status"} & set(rule["resources"]))
        return {verb for rule in rules for verb in rule["verbs"]}

    assert verbs() == {"get", "list", "watch", "patch"}
    assert verbs("--env=NODE_STATUS=off") == {"get", "list", "watch"}
    assert verbs("--partitions=chip.core", "--env=NODE_STATUS=off") == {"get", "list", "watch"}


def daemonset(*options: str) -> Object:
    return of_kind(rendered(*options, IMAGE), "DaemonSet")


def pod(*options: str) -> Object:
    spec: Object = daemonset(*options)["spec"]["template"]["spec"]
    return spec


def container(*options: str) -> Object:
    (only,) = pod(*options)["containers"]
    found: Object = only
    return found


def environment(*options: str) -> dict[str, object]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container(*options)["env"]}


def host_paths(*options: str) -> dict[str, str]:
    return {
        item["hostPath"]["path"]: item["hostPath"]["type"] for item in pod(*options)["volumes"] if "hostPath" in item
    }


def match_expressions(*options: str) -> dict[str, Object]:
    required = pod(*options)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    return {item["key"]: item for item in term["matchExpressions"]}


@variants
@pytest.mark.parametrize("version", ["1.34", "1.36", "1.37"])
def test_what_is_applied_is_valid(version: str, options: tuple[str, ...]) -> None:
    objects = rendered(*options, IMAGE)
    assert Counter(item["kind"] for item in objects) == {
        "Namespace": 1,
        "ServiceAccount": 1,
        "ClusterRole": 4,
        "ClusterRoleBinding": 2,
        "Role": 1,
        "RoleBinding": 1,
        "DeviceClass": len(DEVICE_CLASSES),
        "ValidatingAdmissionPolicy": 8,
        "ValidatingAdmissionPolicyBinding": 8,
        "DaemonSet": 1,
    }
    assert (objects[0]["kind"], objects[-1]["kind"]) == ("Namespace", "DaemonSet"), "pods come after what limits them"
    for item in objects:
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize(("api", "version"), [("v1", "1.37"), ("v1beta2", "1.33"), ("v1beta1", "1.33")])
def test_the_classes_of_the_table_are_written_for_the_served_api_version(api: str, version: str) -> None:
    found = classes("--resource-api", api)
    for item in found:
        kubernetes_validate.validate(item, version, strict=True)
    assert {item["apiVersion"] for item in found} == {f"resource.k8s.io/{api}"}
    assert {item["metadata"]["name"]: item["spec"] for item in found} == {
        row.name: {"selectors": [{"cel": {"expression": row.expression}}]} for row in DEVICE_CLASSES
    }


def classes(*options: str) -> list[Object]:
    return [item for item in rendered(*options, IMAGE) if item["kind"] == "DeviceClass"]


def test_extended_resources_are_on_the_classes_only_when_asked_for() -> None:
    plain, extended = classes(), classes("--extended-resources")
    assert [item["spec"].get("extendedResourceName") for item in plain] == [None] * len(DEVICE_CLASSES)
    names = {item["metadata"]["name"]: item["spec"].pop("extendedResourceName", None) for item in extended}
    assert extended == plain
    assert names == {row.name: row.extended_resource for row in DEVICE_CLASSES}
    offered = [name for name in names.values() if name]
    assert len(offered) == len(set(offered)), "a scheduler would take one of two classes"
    assert {"aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "aws.amazon.com/neuron-4"} <= set(offered)


@pytest.mark.parametrize(
    ("options", "pods"),
    [
        ((), False),
        (("--partitions", "chip.group.node"), False),
        (("--partitions", "chip.core"), True),
        (("--partitions", "core"), True),
        (("--extended-resources",), True),
    ],
)
def test_pods_may_be_read_only_where_cores_are_offered(options: tuple[str, ...], pods: bool) -> None:
    plain = rules()
    assert rules(options=options) == [
        *plain,
        *([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}] if pods else []),
    ]


@pytest.mark.parametrize("words", ["chip", "chip.core", "core.group4.node", "chip.core", "group", "group16"])
def test_what_nodes_offer_reaches_the_driver_as_it_reads_it(words: str) -> None:
    given = environment("--partitions", words)["PARTITIONS"]
    assert given == words
    assert set(re.split("[,.]", str(Partitions.parse(words)))) == set(re.split("[,.]", words))
    assert "PARTITIONS" not in environment()


@variants
def test_nothing_of_the_template_is_left(options: tuple[str, ...]) -> None:
    text = install("--dry-run", *options, IMAGE).stdout
    for mark in (
        "NEURON_DRA_IMAGE",
        "EMULATED_INSTANCE_TYPE",
        "ULTRASERVER_TOPOLOGY",
        "OFFERED_",
        "NODE_SELECTOR_",
        ">>>",
        "<<<",
        "+++",
    ):
        assert mark not in text


def test_the_same_options_give_the_same_bytes() -> None:
    assert install("--dry-run", IMAGE).stdout == install("--dry-run", IMAGE).stdout


@needs_helm
@pytest.mark.parametrize(
    ("options", "values"), [((), ()), (("--emulate", "trn2.48xlarge"), ("emulate=trn2.48xlarge",))], ids=str
)
def test_helm_finds_the_pods_as_the_chart_makes_them_to_the_order_and_replaces_none(
    options: tuple[str, ...], values: tuple[str, ...]
) -> None:
    made = of_kind(template("draDriver.enabled=true", "devicePlugin.enabled=false", *values), "DaemonSet")
    made_pod, ours = made["spec"]["template"]["spec"], pod(*options)
    assert ours | {"containers": [container(*options) | {"image": made_pod["containers"][0]["image"]}]} == made_pod


def test_the_driver_may_do_exactly_this() -> None:
    found = rules()
    assert {(rule["apiGroups"][0], rule["resources"][0]): rule["verbs"] for rule in found} == {
        ("resource.k8s.io", "resourceclaims"): ["get", "list"],
        ("resource.k8s.io", "resourceslices"): ["get", "list", "watch", "create", "update", "delete"],
        ("", "nodes"): ["get", "list", "watch", "patch"],
        ("", "nodes/status"): ["patch"],
    }
    assert all(set(rule) == {"apiGroups", "resources", "verbs"} for rule in found)
    assert all(len(rule["apiGroups"]) == len(rule["resources"]) == 1 for rule in found)
    events = of_kind(rendered(IMAGE), "Role")
    assert events["metadata"]["namespace"] == "default", "where Events about Nodes are"
    assert events["rules"] == [{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]


def test_of_claims_the_driver_may_write_no_more_than_the_entries_of_its_own_devices() -> None:
    assert rules("neuron-dra-driver-claim-status") == [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch"]},
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims/driver"],
            "resourceNames": [DRIVER_NAME],
            "verbs": ["associated-node:patch"],
        },
    ]


@needs_helm
@pytest.mark.parametrize(("values", "kubernetes"), [(("draDriver.claimStatus=false",), "1.37.1"), ((), "1.29.0")])
def test_without_the_policy_or_if_not_wanted_there_is_no_right_to_write_claims(
    values: tuple[str, ...], kubernetes: str
) -> None:
    objects = template("draDriver.enabled=true", "devicePlugin.enabled=false", *values, kubernetes=kubernetes)
    found = [item for item in objects if item["metadata"]["name"].endswith(("-claim-status", "-own-claims"))]
    assert not found
    given = [rule for item in objects if item["kind"] == "ClusterRole" for rule in item["rules"]]
    assert not [rule for rule in given if {"resourceclaims/status", "resourceclaims/driver"} & set(rule["resources"])]


def rules(role: str = DRIVER_ROLE, options: tuple[str, ...] = ()) -> list[Object]:
    """Those of a ClusterRole."""
    found: list[Object] = of_kind([item for item in rendered(*options, IMAGE) if named(item) == role], "ClusterRole")[
        "rules"
    ]
    return found


def named(item: Object) -> str:
    return str(item["metadata"]["name"])


def test_who_looks_at_a_cluster_may_read_and_nothing_else() -> None:
    everything = [rule for role in (VIEWER_ROLE, DEVICES_VIEWER_ROLE) for rule in rules(role)]
    assert {verb for rule in everything for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert {resource for rule in rules(VIEWER_ROLE) for resource in rule["resources"]} == {
        *(kind.plural for name, kind in AS_SENT.items() if name != "Namespace"),
        "pods/log",
        *(kind.plural for kind in WORKLOADS.values()),
    }, "what report reads, which reads the most, and the workloads that explain asks for by name"
    by_name = {kind.plural for kind in WORKLOADS.values()}
    assert {verb for rule in rules(VIEWER_ROLE) if by_name & {*rule["resources"]} for verb in rule["verbs"]} == {"get"}
    (policies,) = [rule for rule in rules(VIEWER_ROLE) if rule["resources"] == ["configmaps"]]
    assert set(policies["resourceNames"]) == POLICIES.keys()


def test_who_may_view_edit_or_administer_sees_the_devices_and_nothing_in_a_namespace_comes_with_it() -> None:
    """Kubernetes' edit and admin aggregate view; claims and templates are in view already."""
    (role,) = [item for item in rendered(IMAGE) if named(item) == DEVICES_VIEWER_ROLE]
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    (rule,) = role["rules"]
    assert rule["resources"] == ["resourceslices", "deviceclasses", "devicetaintrules"]


def test_only_the_drivers_service_account_is_bound() -> None:
    objects = rendered(IMAGE)
    subject = {"kind": "ServiceAccount", "name": "neuron-dra-driver-sa", "namespace": "neuron-dra-driver"}
    bindings = [item for item in objects if item["kind"].endswith("RoleBinding")]
    assert len(bindings) == 3
    for binding in bindings:
        assert binding["subjects"] == [subject]
        kind = binding["kind"].removesuffix("Binding")
        (role,) = [item for item in objects if (item["kind"], named(item)) == (kind, binding["roleRef"]["name"])]
        assert binding["metadata"].get("namespace") == role["metadata"].get("namespace")
    account = of_kind(objects, "ServiceAccount")["metadata"]
    assert (account["name"], account["namespace"]) == (subject["name"], subject["namespace"])
    assert pod()["serviceAccountName"] == subject["name"]


@variants
def test_the_pod_has_no_privilege_but_the_root_user(options: tuple[str, ...]) -> None:
    assert container(*options)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }
    spec = pod(*options)
    assert spec["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(spec)


def test_the_pod_reaches_only_its_own_directories_of_the_host() -> None:
    assert host_paths() == {
        "/var/lib/kubelet/plugins/neuron.aws.com": "DirectoryOrCreate",
        "/var/lib/kubelet/plugins_registry": "Directory",
        "/var/run/cdi": "DirectoryOrCreate",
        "/opt/aws/neuron": "DirectoryOrCreate",
        "/run/neuron-health": "DirectoryOrCreate",
        "/var/lib/kubelet/pod-resources": "DirectoryOrCreate",
    }


@variants
def test_host_paths_are_mounted_where_kubelet_knows_them(options: tuple[str, ...]) -> None:
    """The endpoint that the driver registers is a path that kubelet opens on the host."""
    volumes = {item["name"]: item for item in pod(*options)["volumes"]}
    mounts = {item["name"]: item for item in container(*options)["volumeMounts"]}
    assert set(mounts) == set(volumes)
    for name, volume in volumes.items():
        if "hostPath" in volume:
            assert mounts[name]["mountPath"] == volume["hostPath"]["path"]
        assert mounts[name].get("readOnly", False) == (
            name in {"neuron-settings", "hints", "pod-resources", "health-policy"}
        )


def test_environment_probe_and_update_keep_the_vendors_contract() -> None:
    found = environment()
    assert found == {
        "NODE_NAME": {"fieldRef": {"fieldPath": "spec.nodeName"}},
        "POD_UID": {"fieldRef": {"fieldPath": "metadata.uid"}},
        "CDI_ROOT": "/var/run/cdi",
        "KUBELET_REGISTRAR_DIRECTORY_PATH": "/var/lib/kubelet/plugins_registry",
        "KUBELET_PLUGINS_DIRECTORY_PATH": "/var/lib/kubelet/plugins",
        "HEALTHCHECK_PORT": "51515",
        "HEALTHCHECK_ADDRESS": {"fieldRef": {"fieldPath": "status.podIP"}},
        "NODE_ADDRESS": {"fieldRef": {"fieldPath": "status.hostIP"}},
    }
    assert container()["command"] == ["k8s-neuron-dra-driver"]
    assert "livenessProbe" not in container(), "nobody who can fill the network may have the driver restarted"
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert daemonset()["spec"]["updateStrategy"] == strategy
    assert pod()["priorityClassName"] == "system-node-critical"


def test_names_and_labels_are_the_vendors() -> None:
    found = daemonset()
    assert found["metadata"]["name"] == "neuron-dra-driver-kubelet-plugin"
    assert found["metadata"]["namespace"] == "neuron-dra-driver"
    label = {"app": "neuron-dra-driver-kubelet-plugin"}
    assert found["spec"]["selector"]["matchLabels"] == label
    assert found["spec"]["template"]["metadata"]["labels"].items() >= label.items()
    assert of_kind(rendered(IMAGE), "Namespace")["metadata"]["labels"]["name"] == "neuron-dra-driver"
    assert container()["name"] == "neuron-dra-driver"


def test_every_taint_is_tolerated_since_without_the_driver_no_pod_with_a_claim_can_end() -> None:
    assert pod()["tolerations"] == [{"operator": "Exists"}]


def test_the_driver_has_memory_bounds_and_no_cpu_limit() -> None:
    assert container()["resources"] == {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}


def test_the_driver_runs_on_every_instance_type_it_knows_and_on_hyperpod() -> None:
    from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES

    values = match_expressions()["node.kubernetes.io/instance-type"]["values"]
    assert values == [*INSTANCE_TYPES, *(f"ml.{name}" for name in INSTANCE_TYPES)]


@pytest.mark.parametrize("options", [(), ("--emulate", "trn2.48xlarge")])
def test_the_driver_stays_off_nodes_without_its_directories(options: tuple[str, ...]) -> None:
    assert match_expressions(*options)["eks.amazonaws.com/compute-type"] == {
        "key": "eks.amazonaws.com/compute-type",
        "operator": "NotIn",
        "values": ["fargate", "hybrid", "auto"],
    }


def test_emulation_runs_on_any_node_and_touches_nothing_of_its_hardware_settings() -> None:
    options = ("--emulate", "trn2.48xlarge")
    assert environment(*options)["NEURON_DRA_DRIVER_EMULATION_MODE"] == "trn2.48xlarge"
    assert "node.kubernetes.io/instance-type" not in match_expressions(*options)
    assert "/opt/aws/neuron" not in host_paths(*options)
    assert "nodeSelector" not in pod(*options)


def test_emulated_nodes_are_parts_of_ultraservers_when_that_is_asked_for() -> None:
    options = ("--emulate", "trn2u.48xlarge", "--emulated-ultraservers", "2x4")
    assert environment(*options)["EMULATED_ULTRASERVERS"] == "2x4"
    assert "EMULATED_ULTRASERVERS" not in environment("--emulate", "trn2u.48xlarge")
    assert "EMULATED_ULTRASERVERS" not in environment()


def test_a_node_selector_stands_in_for_the_instance_types() -> None:
    options = ("--node-selector", "example.com/neuron=yes")
    assert pod(*options)["nodeSelector"] == {"example.com/neuron": "yes"}
    assert "node.kubernetes.io/instance-type" not in match_expressions(*options)
    assert "NEURON_DRA_DRIVER_EMULATION_MODE" not in environment(*options)


def test_another_kubelet_root_is_used_throughout() -> None:
    options = ("--kubelet-root", "/srv/kubelet")
    assert environment(*options)["KUBELET_PLUGINS_DIRECTORY_PATH"] == "/srv/kubelet/plugins"
    assert environment(*options)["KUBELET_REGISTRAR_DIRECTORY_PATH"] == "/srv/kubelet/plugins_registry"
    assert {"/srv/kubelet/plugins/neuron.aws.com", "/srv/kubelet/plugins_registry"} < set(host_paths(*options))


BUILT_IN_TOLERATIONS = 1


@pytest.mark.parametrize(
    ("taint", "toleration"),
    [
        ("dedicated=neuron:NoSchedule", {"operator": "Equal", "value": "neuron", "effect": "NoSchedule"}),
        ("dedicated=:NoExecute", {"operator": "Equal", "value": "", "effect": "NoExecute"}),
        ("dedicated:PreferNoSchedule", {"operator": "Exists", "effect": "PreferNoSchedule"}),
        ("dedicated", {"operator": "Exists"}),
    ],
)
def test_a_toleration_is_written_as_kubectl_writes_the_taint(taint: str, toleration: Object) -> None:
    assert pod("--toleration", taint)["tolerations"][BUILT_IN_TOLERATIONS:] == [{"key": "dedicated"} | toleration]


def test_tolerations_are_added_to_the_built_in_ones_of_driver_and_placer() -> None:
    objects = rendered("--placer", "--toleration=a:NoSchedule", "--toleration", "*", IMAGE)
    added = [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}, {"operator": "Exists"}]
    for kind in ("DaemonSet", "Deployment"):
        plain = pod_spec(of_kind(rendered("--placer", IMAGE), kind))
        assert pod_spec(of_kind(objects, kind)) == plain | {"tolerations": [*plain["tolerations"], *added]}


def test_pull_secrets_are_for_driver_and_placer() -> None:
    objects = rendered("--placer", "--image-pull-secret=one", "--image-pull-secret=two", IMAGE)
    for kind in ("DaemonSet", "Deployment"):
        assert pod_spec(of_kind(objects, kind))["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]


@pytest.mark.parametrize(
    "value", ["refuse", "", "a b", "it's", '"q"', "a=b", "\\n", "- x: {y}", "# >>> env", "&|$(HOME)"]
)
def test_a_variable_reaches_the_driver_as_it_was_given(value: str) -> None:
    given = environment("--env", f"SETTING={value}", "--kubelet-root", "/srv/kubelet")
    assert given["SETTING"] == value
    assert set(given) == {*environment(), "SETTING"}


def test_resources_replace_the_default_ones_of_the_driver_alone() -> None:
    options = ("--resources", "requests.cpu=50m,limits.memory=1.5Gi", "--placer")
    assert container(*options)["resources"] == {"requests": {"cpu": "50m"}, "limits": {"memory": "1.5Gi"}}
    plain = of_kind(rendered("--placer", IMAGE), "Deployment")
    assert of_kind(rendered(*options, IMAGE), "Deployment") == plain


VALUES = """\
---
# Settings of the cluster `training`.
image: 'registry.example/neuron-dra-driver:1.2.3'
partitions: chip.core  # chips and cores
emulate: "trn2.48xlarge"
extended-resources: true
toleration:
- dedicated=neuron:NoSchedule
- "*"
env:  # two
  - CONTIGUITY_POLICY=refuse
  - 'HEALTH_POLICY=/etc/it''s.yaml'
resources: limits.memory=256Mi
"""
AS_OPTIONS = (
    "--partitions=chip.core",
    "--emulate=trn2.48xlarge",
    "--extended-resources",
    "--toleration=dedicated=neuron:NoSchedule",
    "--toleration=*",
    "--env=CONTIGUITY_POLICY=refuse",
    "--env=HEALTH_POLICY=/etc/it's.yaml",
    "--resources=limits.memory=256Mi",
)


def test_a_file_of_values_says_what_options_say_and_is_yaml(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(VALUES)
    assert rendered("--values", str(file)) == rendered(*AS_OPTIONS, IMAGE)
    read = yaml.safe_load(VALUES)
    given = [(key, item) for key, value in read.items() for item in (value if isinstance(value, list) else [value])]
    said = [f"--{key}" if item is True else f"--{key}={item}" for key, item in given if key != "image"]
    assert sorted(said) == sorted(AS_OPTIONS), "a program that knows YAML reads the same"


def test_the_file_of_values_on_the_page_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs/operate/install-otherwise.md").read_text()
    (block,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if block.startswith("image:")]
    file = tmp_path / "values.yaml"
    file.write_text(block)
    (found,) = pod_spec(of_kind(rendered("--values", str(file)), "DaemonSet"))["containers"]
    assert {"name": "PARTITIONS", "value": "chip.core"} in found["env"]


def test_the_command_line_prevails_over_a_file_of_values(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(VALUES)
    objects = rendered("--toleration=gpu", "--values", str(file), "--partitions=node", "other.example/n:2")
    spec = pod_spec(of_kind(objects, "DaemonSet"))
    assert spec["tolerations"][BUILT_IN_TOLERATIONS:] == [{"key": "gpu", "operator": "Exists"}]
    (found,) = spec["containers"]
    assert found["image"] == "other.example/n:2"
    assert {"name": "PARTITIONS", "value": "node"} in found["env"]


@pytest.mark.parametrize(
    "text",
    [
        "frobnicate: 1\n",
        "force: true\n",
        "values: other.yaml\n",
        "kubectl: sh\n",
        "partitions: chip\npartitions: core\n",
        "placer: false\n",
        "draDriver:\n  partitions: chip\n",
        "partitions:\n- chip\n",
        "toleration: [a, b]\n",
        "env:\n- - A=1\n",
        "env:\n- A: 1\n",
        "env:\n- &x A=1\n",
        'env:\n- "A=\\n"\n',
        "env:\n- 'A=1\n",
        "- A=1\n",
        "env: A=1\n- B=2\n",
        "devices chip\n",
        "partitions: chips\n",
        "\x00\x01\xff",
    ],
)
def test_a_file_of_values_that_is_not_understood_is_refused_with_the_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(text, encoding="latin-1")
    result = install("--dry-run", "--values", str(file), IMAGE)
    assert (result.returncode, result.stdout) == (2, "")
    golden(result.stderr)


def test_what_the_command_line_overrides_in_a_file_has_to_be_valid_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("partitions: chips\n")
    assert install("--dry-run", "--partitions=chip", "--values", str(file), IMAGE).returncode == 2


@pytest.mark.parametrize(
    ("name", "concerns"),
    [
        (
            "neuron-dra-driver-own-slices",
            {
                "apiGroups": ["resource.k8s.io"],
                "apiVersions": ["v1", "v1beta2", "v1beta1"],
                "resources": ["resourceslices"],
            },
        ),
        ("neuron-dra-driver-own-node", {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["nodes", "nodes/*"]}),
        ("neuron-dra-driver-own-events", {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["events"]}),
        (
            "neuron-dra-driver-own-claims",
            {
                "apiGroups": ["resource.k8s.io"],
                "apiVersions": ["v1", "v1beta2", "v1beta1"],
                "resources": ["resourceclaims", "resourceclaims/*"],
            },
        ),
    ],
)
def test_the_admission_policies_concern_the_driver_and_all_that_it_writes(name: str, concerns: Object) -> None:
    objects = [item for item in rendered(IMAGE) if item["metadata"]["name"] == name]
    spec = of_kind(objects, "ValidatingAdmissionPolicy")["spec"]
    assert spec["failurePolicy"] == "Fail"
    # Scope * is the default, but left out it makes every run of the installer write the policy again.
    everything = {"operations": ["CREATE", "UPDATE", "DELETE"], "scope": "*"}
    assert spec["matchConstraints"]["resourceRules"] == [concerns | everything]
    (condition,) = spec["matchConditions"]
    account = "system:serviceaccount:neuron-dra-driver:neuron-dra-driver-sa"
    assert condition["expression"] == f'request.userInfo.username == "{account}"'
    binding = of_kind(objects, "ValidatingAdmissionPolicyBinding")
    assert binding["spec"] == {"policyName": name, "validationActions": ["Deny"]}


@pytest.mark.parametrize(("options", "there"), [((), True), (("on",), True), (("off",), False)])
def test_the_policy_for_parameters_can_be_left_out(options: tuple[str, ...], there: bool) -> None:
    made = rendered(*(("--parameters-policy", *options) if options else ()), IMAGE)
    assert len([item for item in made if item["metadata"]["name"] == "neuron-dra-driver-parameters"]) == 2 * there
    annotations = of_kind(made, "DaemonSet")["metadata"].get("annotations", {})
    assert (f"--parameters-policy={options[0]}" if options else "") in annotations.get(
        "neuron.aws.com/install-options", ""
    )


def test_nodes_and_their_pods_write_slices_of_this_driver_to_their_own_pools_only() -> None:
    """``tests/cluster/test_security.py`` has an API server judge by it."""
    spec = policy("neuron-dra-driver-own-pools")
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert (rule["apiVersions"], rule["operations"]) == (["v1", "v1beta2", "v1beta1"], ["CREATE", "UPDATE"])
    driver, condition = spec["matchConditions"]
    account = "system:serviceaccount:neuron-dra-driver:neuron-dra-driver-sa"
    assert driver["expression"] == f'request.userInfo.username != "{account}"'
    for part in (
        f"object.spec.driver == '{DRIVER_NAME}'",
        "'system:nodes' in request.userInfo.groups",
        "authentication.kubernetes.io/node-name",
        *(
            f"object.metadata.?{name} != oldObject.metadata.?{name}"
            for name in ("annotations", "labels", "finalizers", "ownerReferences")
        ),
    ):
        assert part in condition["expression"]
    pools, nodes = (item["expression"] for item in spec["validations"])
    assert "object.spec.pool.name" in pools
    assert nodes.endswith("object.spec.?nodeName.orValue('') == variables.userNode")


def test_the_labels_that_the_policy_lets_pass_are_those_that_the_driver_writes() -> None:
    variables = policy("neuron-dra-driver-own-node")["variables"]
    (ours,) = [item["expression"] for item in variables if item["name"] == "ours"]
    assert set(re.findall(r"'([^']+)'", ours)) == KEYS | {PRESENT}


def test_the_conditions_and_the_component_that_the_policies_let_pass_are_the_drivers() -> None:
    variables = policy("neuron-dra-driver-own-node")["variables"]
    (conditions,) = [item["expression"] for item in variables if item["name"] == "conditions"]
    assert set(re.findall(r"'([^']+)'", conditions)) == {TYPE, *(problem.type for problem in PROBLEMS)}
    others = [item["expression"] for item in variables if item["name"].startswith("others")]
    assert [text.count("!(c.type in variables.conditions)") for text in others] == [1, 1]
    texts = [item["expression"] for item in policy("neuron-dra-driver-own-events")["validations"]]
    assert set(re.findall(r"== '([a-z]+(?:-[a-z]+)+)'", " ".join(texts))) == {COMPONENT}
    assert f"request.namespace == '{CLUSTER_NAMESPACE}'" in texts[1]


def policy(name: str) -> Object:
    objects = [item for item in rendered(IMAGE) if item["metadata"]["name"] == name]
    spec: Object = of_kind(objects, "ValidatingAdmissionPolicy")["spec"]
    return spec


def test_the_namespace_admits_host_paths_where_pod_security_is_enforced() -> None:
    labels = of_kind(rendered(IMAGE), "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "which image?"),
        (("a:1", "b:1"), "one image expected"),
        (("--frobnicate", IMAGE), "unknown option --frobnicate"),
        (("--yes=1", IMAGE), "--yes is not an option that takes a value"),
        (("--emulate",), "--emulate needs a value"),
        (("--emulate", "trn2\nx: y", IMAGE), "--emulate"),
        (("--emulate=trn2u", "--emulated-ultraservers", "2x3", IMAGE), "two servers of four nodes"),
        (("--emulated-ultraservers", "2x4", IMAGE), "--emulated-ultraservers goes with --emulate"),
        (("image with spaces",), "IMAGE"),
        (("img|e s/x",), "IMAGE"),
        (("img&",), "IMAGE"),
        (("--kubelet-root", "relative", IMAGE), "--kubelet-root"),
        (("--kubelet-root", "/a|b", IMAGE), "--kubelet-root"),
        (("--node-selector", "nolabel", IMAGE), "--node-selector"),
        (("--node-selector", 'a=b"', IMAGE), "--node-selector"),
        (("--partitions", "chips", IMAGE), "expected chip, core, group"),
        (("--partitions", "chip,", IMAGE), "--partitions"),
        (("--partitions", "group1", IMAGE), "--partitions"),
        (("--partitions", "chip.core\n- x", IMAGE), "--partitions"),
        (("--extended-resources=1", IMAGE), "--extended-resources is not an option that takes a value"),
        (("--resource-api", "v1alpha3", IMAGE), "--resource-api"),
        (("--timeout", "0", IMAGE), "--timeout"),
        (("--placer", "--group-timeout", "0", IMAGE), "--group-timeout"),
        (("--group-timeout", "60", IMAGE), "--group-timeout goes with --placer"),
        (("--ultraserver-operator", "--max-servers-per-namespace", "0", IMAGE), "expected a number of UltraServers"),
        (("--ultraserver-operator", "--max-servers-per-namespace", "5001", IMAGE), "at most 5000"),
        (("--placer", "--max-servers-per-namespace", "2", IMAGE), "goes with --ultraserver-operator"),
        (("--claim-controller", "system:kube-scheduler", IMAGE), "or system:kube-controller-manager"),
        (("--timeout", "soon", IMAGE), "--timeout"),
        (("--kubectl", "", IMAGE), "kubectl command is empty"),
        (("--uninstall", IMAGE), "--uninstall takes no image"),
        (("--toleration", "a=b", IMAGE), "expected KEY=VALUE:EFFECT"),
        (("--toleration", "a:Never", IMAGE), "expected KEY=VALUE:EFFECT"),
        (("--toleration", 'a"b', IMAGE), "expected KEY=VALUE:EFFECT"),
        (("--toleration", "", IMAGE), "expected KEY=VALUE:EFFECT"),
        (("--image-pull-secret", "A_b", IMAGE), "expected the name of a Secret"),
        (("--env", "CONTIGUITY_POLICY", IMAGE), "expected NAME=VALUE"),
        (("--env", "lower=1", IMAGE), "expected NAME=VALUE"),
        (("--env", "A=1\n- name: B", IMAGE), "expected NAME=VALUE"),
        (("--env", "PARTITIONS=core", IMAGE), "--env PARTITIONS is set by the script itself"),
        (("--env", "NODE_NAME=x", IMAGE), "--env NODE_NAME is set by the script itself"),
        (("--resources", "cpu=1", IMAGE), "expected something like requests.cpu"),
        (("--resources", "limits.cpu=1,limits.cpu=2", IMAGE), "one name twice"),
        (("--values", "/nonexistent", IMAGE), "cannot read the file"),
        (("--values", "/", IMAGE), "cannot read the file"),
        (("--uninstall", "--values", "/dev/null"), "--values goes with an installation"),
    ],
)
def test_bad_arguments_are_refused_before_anything_happens(arguments: tuple[str, ...], said: str) -> None:
    result = install("--dry-run", *arguments)
    assert result.returncode == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_help_lists_every_option_and_fits_a_terminal() -> None:
    result = install("--help")
    assert result.returncode == 0
    text = INSTALLER.read_text()
    (flags,) = re.findall(r"(?m)^FLAGS='(.*)'$", text)
    rules = text.partition("\nrule() {")[2].partition("\n}\n")[0]
    valued = re.findall(r"(?m)^ {4}(--[-a-z| ]+)\)", rules)
    taken = {"--help", "-h", "-y", *flags.split(), *(word for pattern in valued for word in pattern.split(" | "))}
    assert len(taken) > 25
    # A line for each, which tells what it does.
    shown = re.findall(r"(?m)^  (--[a-z-]+)(, -[a-z])?(?: [^a-z\s]\S*)?(?: +|\n {23})\S", result.stdout)
    assert {option for option, _ in shown} | {short.removeprefix(", ") for _, short in shown if short} == taken
    assert max(len(line) for line in result.stdout.splitlines()) <= 120

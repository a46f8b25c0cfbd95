"""The helm chart: valid objects, least rights, strict values, and the very manifests of the installer."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import jsonschema
import kubernetes_validate
import pytest
import yaml

from dra_driver.cli import device_plugin, extender, kubelet_plugin, node_problem_detector, placer, recover
from dra_driver.legacy.annotations import (
    ALLOC_TIME,
    ALLOCATED,
    ALLOCATION,
    CORE_USAGE,
    CORES,
    DEVICE_USAGE,
    DEVICES,
    IDS,
    OF,
    RESOURCE_TYPE,
    UNUSABLE,
)
from dra_driver.legacy.device_plugin.recording import FAILED
from dra_driver.legacy.device_plugin.snapshot import CHOSEN_BY
from dra_driver.neuron.health.faults import FAULTS, SEVERITIES
from dra_driver.neuron.health.hints import DIRECTORY
from dra_driver.neuron.health.policy import EFFECTS, MAX_GRACE_SECONDS, MAX_RULES, HealthPolicy, Prepare, Rule
from dra_driver.neuron.names import DEVICES_VIEWER_ROLE, PRESENT, VIEWER_ROLE
from dra_driver.neuron.topology.partitions import Partitions
from dra_driver.util.options import Table, settings_of
from dra_driver.version import VERSION
from tests.golden import golden
from tests.manifests.admission import holds
from tests.manifests.chart import (
    CHART,
    EVERYTHING,
    TEMPLATES,
    VALUES,
    WORKLOADS,
    helm,
    hooks,
    needs_helm,
    notes,
    objects_of,
    refusal,
    template,
)
from tests.manifests.support import (
    IMAGE,
    KUBECTL,
    Object,
    documents,
    needs_kubectl,
    of_kind,
    ordered,
    pod_spec,
    rendered,
)
from tests.paths import ROOT

DIGEST = f"sha256:{'1' * 64}"
YEAR = 365 * 24 * 3600
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def changed(path: str, value: object) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(VALUES))
    *above, last = path.split(".")
    place = made
    for step in above:
        place = place[step]
    place[last] = value
    return made


def test_the_chart_has_the_version_of_the_driver_and_the_documented_name() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["name"], chart["version"], chart["appVersion"]) == ("neuron-helm-chart", VERSION, VERSION)
    assert CHART.name == chart["name"]


def test_the_chart_is_whole_by_itself() -> None:
    """What is packed or copied has no link to what stays behind."""
    assert [path for path in CHART.rglob("*") if path.is_symlink()] == []


def test_documented_values_have_their_documented_defaults() -> None:
    assert VALUES["scheduler"]["enabled"] is False
    assert VALUES["scheduler"]["customScheduler"]["enabled"] is True
    assert VALUES["scheduler"]["defaultScheduler"]["enabled"] is False
    assert VALUES["devicePlugin"]["enabled"] is True
    assert VALUES["draDriver"]["enabled"] is False
    assert VALUES["npd"]["enabled"] is False


def test_the_default_values_are_legal() -> None:
    jsonschema.validate(VALUES, SCHEMA)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("scheduler.enabled", "true"),
        ("scheduler.replicas", 0),
        ("scheduler.replicas", 1.5),
        ("scheduler.defaultScheduler.nodePort", 70000),
        ("scheduler.customSheduler", {}),
        ("unknown", 1),
        ("image.repository", 'a"\nb'),
        ("image.tag", "a b"),
        ("kubeletRoot", "/a: b"),
        ("cdiRoot", "/a\nb"),
        ("emulate", "a: b"),
        ("devicePlugin.deviceInjection", "magic"),
        ("draDriver.nodeSelector", {"a": "x y"}),
        ("draDriver.nodeSelector", {"a": 1}),
        ("draDriver.resourceAPI", "v2"),
        ("draDriver.partitions", ["chip"]),
        ("draDriver.extendedResources", "true"),
        ("draDriver.healthPolicy", {"rule": []}),
        ("draDriver.healthPolicy", {"rules": [{"fault": "hbm", "effect": "None"}]}),
        ("draDriver.healthPolicy", {"rules": [{"fault": "log-hbm"}]}),
        ("draDriver.healthPolicy", {"prepare": "never"}),
        ("npd.enabled", "no"),
        ("npd.nodeRecovery.act", "yes"),
        ("npd.nodeRecovery.policy", {"pause": 1}),
        ("npd.nodeRecovery.policy", {"remedies": {"reboot": ["explode"]}}),
        ("npd.nodeRecovery.policy", {"remedies": {"restart": []}}),
        ("npd.nodeRecovery.hook.key", "../x"),
    ],
)
def test_values_that_mean_nothing_are_refused(path: str, value: object) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed(path, value), SCHEMA)


def keys(values: dict[str, Any]) -> list[str]:
    return [name for key, value in values.items() for name in (key, *(keys(value) if isinstance(value, dict) else ()))]


def test_templates_use_all_values() -> None:
    text = "".join(path.read_text() for path in TEMPLATES)
    assert [name for name in keys(VALUES) if not re.search(rf"""[.\s"']{name}\b""", text)] == []


def workload_of(workload: str, *settings: str) -> Object:
    """The DaemonSet or Deployment."""
    (made,) = [item for item in objects_of(workload, *settings) if item["kind"] in ("DaemonSet", "Deployment")]
    return made


def container_of(workload: str, *settings: str) -> Object:
    (made,) = pod_spec(workload_of(workload, *settings))["containers"]
    container: Object = made
    return container


@needs_helm
@pytest.mark.parametrize("kubernetes", ["1.29.0", "1.34.4", "1.36.3", "1.37.1"])
def test_objects_of_all_parts_are_valid(kubernetes: str) -> None:
    objects = template(*EVERYTHING, kubernetes=kubernetes)
    names = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects]
    assert len(set(names)) == len(names)
    version = kubernetes.rpartition(".")[0]
    for item in objects:
        if version != "1.29" or not item["apiVersion"].startswith("resource.k8s.io"):
            kubernetes_validate.validate(item, version, strict=True)


@needs_helm
@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_name_of_a_list_comes_twice(workload: str) -> None:
    container = container_of(workload)
    for entries in (container.get("env", []), container.get("volumeMounts", []), container["ports"]):
        assert max(Counter(entry["name"] for entry in entries).values(), default=1) == 1
    mounted = {entry["name"] for entry in container.get("volumeMounts", [])}
    assert mounted == {entry["name"] for entry in pod_spec(workload_of(workload)).get("volumes", [])}


@needs_helm
@pytest.mark.parametrize("workload", WORKLOADS)
def test_containers_have_no_rights_that_they_do_not_need(workload: str) -> None:
    item = workload_of(workload)
    spec = pod_spec(item)
    (container,) = spec["containers"]
    # Reading the kernel log takes one capability, and no other component has any.
    added = {"add": ["SYSLOG"]} if workload == "npd" else {}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], **added},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["securityContext"].get("runAsNonRoot", False) is (item["kind"] == "Deployment")
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()


def rules(workload: str) -> set[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return {
        (item["kind"], resource, tuple(rule.get("resourceNames", ())), tuple(rule["verbs"]))
        for item in objects_of(workload)
        if item["kind"] in ("ClusterRole", "Role")
        for rule in item["rules"]
        for resource in rule["resources"]
    }


@needs_helm
def test_rights_are_those_that_the_pages_name() -> None:
    assert rules("devicePlugin") == {
        ("ClusterRole", "pods", (), ("get", "list", "watch", "patch")),
        ("ClusterRole", "nodes", (), ("get", "list", "watch", "patch")),
        ("ClusterRole", "nodes/status", (), ("patch",)),
        ("Role", "events", (), ("create", "patch")),
        ("ClusterRole", "resourceslices", (), ("list",)),
    }
    assert rules("scheduler") == {
        ("ClusterRole", "pods", (), ("get", "list", "watch", "patch")),
        ("ClusterRole", "pods/binding", (), ("create",)),
        ("ClusterRole", "nodes", (), ("list", "watch", "patch")),
        ("Role", "leases", ("neuron-scheduler-extender",), ("get", "update")),
        ("Role", "leases", (), ("create",)),
    }
    assert rules("scheduler.customScheduler") == {
        ("Role", "leases", ("my-scheduler",), ("get", "update")),
        ("Role", "leases", (), ("create",)),
    }


@needs_helm
@needs_kubectl
def test_who_sees_the_devices_is_for_values_to_say() -> None:
    def viewers(*settings: str) -> list[Object]:
        made = template("draDriver.enabled=true", *settings)
        return [item for item in made if item["metadata"]["name"] in (VIEWER_ROLE, DEVICES_VIEWER_ROLE)]

    assert {(item["kind"], item["metadata"]["name"]) for item in viewers()} == {
        ("ClusterRole", VIEWER_ROLE),
        ("ClusterRole", DEVICES_VIEWER_ROLE),
    }
    assert viewers("draDriver.viewerRoles.enabled=false", "draDriver.viewerRoles.bindAuthenticated=true") == []
    binding = of_kind(viewers("draDriver.viewerRoles.bindAuthenticated=true"), "ClusterRoleBinding")
    assert (binding["roleRef"]["name"], [who["name"] for who in binding["subjects"]]) == (
        DEVICES_VIEWER_ROLE,
        ["system:authenticated"],
    )
    # What docs/operate/on-call.md says to type instead.
    command = next(
        line for line in (ROOT / "docs/operate/on-call.md").read_text().splitlines() if "--group=" in line
    ).split()
    assert KUBECTL is not None
    done = subprocess.run(
        [KUBECTL, *command[2:], "--dry-run=client", "--output=yaml"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    (typed,) = documents(done.stdout)
    assert [(typed[field], typed["metadata"]["name"]) for field in ("roleRef", "subjects")] == [
        (binding[field], binding["metadata"]["name"]) for field in ("roleRef", "subjects")
    ]


PODS = {IDS, ALLOCATED, ALLOC_TIME, RESOURCE_TYPE, CORES, DEVICES, ALLOCATION, OF}


@needs_helm
@pytest.mark.parametrize(
    ("workload", "nodes", "pods"),
    [
        ("scheduler", {DEVICE_USAGE, CORE_USAGE}, PODS),
        ("devicePlugin", {UNUSABLE, FAILED}, PODS | {CHOSEN_BY}),
    ],
)
def test_policies_name_the_service_account_and_the_annotations_that_are_written(
    workload: str, nodes: set[str], pods: set[str]
) -> None:
    others = ("-own-events", "-own-objects", "-own-pools", "-mirror-pods", "-scheduler-annotations")
    objects = [item for item in objects_of(workload) if not item["metadata"]["name"].endswith(others)]
    spec = of_kind(objects, "ValidatingAdmissionPolicy")["spec"]
    account = of_kind(objects, "ServiceAccount")["metadata"]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert [item["expression"] for item in spec["matchConditions"]] == [f'request.userInfo.username == "{user}"']
    (ours,) = [item["expression"] for item in spec["variables"] if item["name"] == "ours"]
    condition, of_nodes, of_pods = re.split(r" [?:] ", ours)
    assert condition == "request.resource.resource == 'nodes'"
    assert [set(re.findall(r"'(\S+)'", part)) for part in (of_nodes, of_pods)] == [nodes, pods]
    binding = of_kind(objects, "ValidatingAdmissionPolicyBinding")["spec"]
    assert binding["policyName"] == of_kind(objects, "ValidatingAdmissionPolicy")["metadata"]["name"]


@needs_helm
def test_nobody_but_the_pair_changes_the_annotations_of_pods() -> None:
    made = template(
        "scheduler.enabled=true", "devicePlugin.serviceAccount.name=other", "scheduler.namespaceOverride=ns"
    )
    specs = {item["metadata"]["name"]: item["spec"] for item in made if item["kind"] == "ValidatingAdmissionPolicy"}
    spec = specs["k8s-neuron-scheduler-annotations"]
    (condition,) = spec["matchConditions"]
    assert re.findall(r"'(\S+)'", condition["expression"]) == [
        "system:serviceaccount:ns:k8s-neuron-scheduler",
        "system:serviceaccount:kube-system:other",
    ]
    (changed,) = (item["expression"] for item in spec["variables"] if item["name"] == "changed")
    assert set(re.findall(r"'(\S+)'", changed)) == PODS | {CHOSEN_BY}
    assert spec["matchConstraints"]["resourceRules"][0]["operations"] == ["UPDATE"], "a copied manifest does no harm"
    alone = template("scheduler.enabled=true", "devicePlugin.enabled=false")
    assert "k8s-neuron-scheduler-annotations" not in {item["metadata"]["name"] for item in alone}, (
        "whose account is not known here"
    )


OF_A_PLACE = {"topology.kubernetes.io/zone": "a"}
"""A label that the API server itself adds to a binding."""


@needs_helm
@pytest.mark.parametrize(
    ("operation", "labels", "taken"),
    [
        ("CREATE", None, True),
        ("CREATE", {}, True),
        ("CREATE", OF_A_PLACE, True),
        ("CREATE", OF_A_PLACE | {"app": "payments"}, False),
        ("UPDATE", {"app": "payments"}, True),
    ],
)
def test_the_extender_gives_the_pods_that_it_binds_no_label(
    operation: str, labels: dict[str, str] | None, taken: bool
) -> None:
    policies = (item for item in template("scheduler.enabled=true") if item["kind"] == "ValidatingAdmissionPolicy")
    specs = {item["metadata"]["name"]: item["spec"] for item in policies}
    rules = specs["k8s-neuron-scheduler-own-annotations"]["validations"]
    (rule,) = (item for item in rules if "no label" in item.get("message", ""))
    metadata = {"name": "a-pod"} | ({} if labels is None else {"labels": labels})
    assert holds(rule, {"request": {"operation": operation}, "object": {"metadata": metadata}}) is taken


@needs_helm
def test_no_mirror_pod_answers_for_the_extender() -> None:
    made = template("scheduler.enabled=true")
    service = of_kind([item for item in made if item["kind"] == "Service"], "Service")
    (spec,) = (
        item["spec"]
        for item in made
        if (item["kind"], item["metadata"]["name"]) == ("ValidatingAdmissionPolicy", "k8s-neuron-scheduler-mirror-pods")
    )
    (validation,) = spec["validations"]
    assert re.findall(r"'(\S+=\S+)'", validation["expression"]) == [
        "=".join(item) for item in service["spec"]["selector"].items()
    ]


@needs_helm
@needs_kubectl
def test_the_device_plugin_reports_on_its_own_node_under_the_drivers_rules() -> None:
    """Label, condition and Events are those of the DRA driver's policies; only names differ."""

    def expressions(objects: list[Object], end: str) -> list[str]:
        (found,) = [
            item["spec"]
            for item in objects
            if item["kind"] == "ValidatingAdmissionPolicy" and item["metadata"]["name"].endswith(end)
        ]
        return [item["expression"] for item in found["validations"]]

    own, drivers = objects_of("devicePlugin"), rendered(IMAGE)
    of_events = [text.replace("neuron-device-plugin", "neuron-dra-driver") for text in expressions(own, "-own-events")]
    assert of_events == expressions(drivers, "-own-events")[1:], "the first is that the token has a node"
    of_status = expressions(drivers, "-own-node")[-1].replace("variables.isUpdate && ", "")
    assert expressions(own, "-own-annotations")[-1] == of_status
    assert f"k == '{PRESENT}'" in expressions(own, "-own-annotations")[-2]


@needs_helm
@needs_kubectl
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (("draDriver.enabled=false", "devicePlugin.enabled=true"), "neuron-device-plugin-own-pools"),
        (("draDriver.enabled=true", "devicePlugin.enabled=false"), "neuron-dra-driver-own-pools"),
        (("draDriver.enabled=true", "draDriver.nodeSelector.a=b"), "neuron-dra-driver-own-pools"),
    ],
    ids=["plugin", "driver", "both"],
)
def test_no_token_of_a_node_says_that_the_driver_has_another_one(settings: tuple[str, ...], name: str) -> None:
    """The device plugin ends where slices say so. ``tests/cluster/test_security.py`` has an API server judge by it."""
    made = [item for item in template(*settings) if item["metadata"]["name"].endswith("-own-pools")]
    assert of_kind(made, "ValidatingAdmissionPolicyBinding")["spec"] == {
        "policyName": name,
        "validationActions": ["Deny"],
    }
    spec = of_kind(made, "ValidatingAdmissionPolicy")["spec"]
    drivers = [item for item in rendered(IMAGE) if item["metadata"]["name"] == "neuron-dra-driver-own-pools"]
    expected = of_kind(drivers, "ValidatingAdmissionPolicy")["spec"]
    if "plugin" in name:  # there is no driver, for which others would hold
        expected["matchConditions"] = expected["matchConditions"][1:]
    assert spec == expected


@needs_helm
def test_policies_are_left_out_where_there_are_none() -> None:
    kinds = {item["kind"] for item in template("scheduler.enabled=true", kubernetes="1.29.0")}
    assert not kinds & {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}


COMMANDS: dict[str, tuple[list[str], tuple[type[Table], ...]]] = {
    "devicePlugin": (["dra-driver", "device-plugin"], device_plugin.TABLES),
    "scheduler": (["dra-driver", "extender"], extender.TABLES),
    "draDriver": (["k8s-neuron-dra-driver"], kubelet_plugin.TABLES),
    "draDriver.placer": (["dra-driver", "placer"], placer.TABLES),
    "npd": (["dra-driver", "node-problem-detector"], node_problem_detector.TABLES),
    "npd.nodeRecovery": (["dra-driver", "recover"], recover.TABLES),
}
"""By workload: the command, and the tables of its settings."""
OURS = [workload for workload in WORKLOADS if workload in COMMANDS]


@needs_helm
@pytest.mark.parametrize("workload", OURS)
def test_every_environment_variable_is_one_that_the_command_reads(workload: str) -> None:
    command, tables = COMMANDS[workload]
    container = container_of(workload)
    assert container["command"] == command
    assert {entry["name"] for entry in container["env"]} <= {
        setting.option.variable for setting in settings_of(*tables)
    }


@needs_helm
@pytest.mark.parametrize("settings", [(), ("scheduler.tls.enabled=false",)])
def test_my_scheduler_asks_the_service_of_the_extender(settings: tuple[str, ...]) -> None:
    objects = objects_of("scheduler.customScheduler", *settings)
    config = yaml.safe_load(of_kind(objects, "ConfigMap")["data"]["my-scheduler-config.yaml"])
    service = of_kind(objects_of("scheduler", *settings), "Service")
    (entry,) = config["extenders"]
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert entry["urlPrefix"].endswith(f"://{host}:{service['spec']['ports'][0]['port']}")
    verbs = {f"{verb}Verb": verb for verb in ("filter", "prioritize", "preempt", "bind")}
    assert verbs.items() <= entry.items()
    assert {item["name"] for item in entry["managedResources"]} == {
        "aws.amazon.com/neuron",
        "aws.amazon.com/neuroncore",
    }


@needs_helm
@pytest.mark.parametrize(
    ("workload", "keys"),
    [
        ("scheduler.customScheduler", {"ca.crt", "client.crt", "client.key"}),
        ("scheduler", {"ca.crt", "tls.crt", "tls.key"}),
    ],
)
def test_extender_and_scheduler_never_see_each_others_key(workload: str, keys: set[str]) -> None:
    (tls,) = [item["secret"] for item in pod_spec(workload_of(workload))["volumes"] if item["name"] == "tls"]
    assert {item["key"] for item in tls["items"]} == keys
    assert tls["defaultMode"] == 0o440


@needs_helm
@needs_kubectl
def test_the_device_plugin_runs_where_the_dra_driver_would() -> None:
    plugin = of_kind(template(), "DaemonSet")
    driver = of_kind(rendered("registry.example/n:1"), "DaemonSet")
    assert pod_spec(plugin)["affinity"] == pod_spec(driver)["affinity"]
    assert pod_spec(plugin)["tolerations"] == pod_spec(driver)["tolerations"]


@needs_helm
def test_the_detector_has_no_right_at_the_api_server_and_reaches_one_directory_of_the_host() -> None:
    objects = objects_of("npd")
    assert sorted(item["kind"] for item in objects) == ["DaemonSet", "Namespace", "ServiceAccount"]
    spec = pod_spec(of_kind(objects, "DaemonSet"))
    account = of_kind(objects, "ServiceAccount")
    assert account["automountServiceAccountToken"] is spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    (volume,) = spec["volumes"]
    assert volume["hostPath"] == {"path": DIRECTORY, "type": "DirectoryOrCreate"}
    assert of_kind(objects, "Namespace")["metadata"]["name"] == "neuron-healthcheck-system"


@needs_helm
@pytest.mark.parametrize("workload", ["devicePlugin", "draDriver"])
def test_what_the_detector_writes_is_read_where_it_writes_it(workload: str) -> None:
    reader, writer = (pod_spec(workload_of(name)) for name in (workload, "npd"))
    (volume,) = [item for item in reader["volumes"] if item["name"] == "hints"]
    (mount,) = [item for item in reader["containers"][0]["volumeMounts"] if item["name"] == "hints"]
    assert volume in writer["volumes"]
    expected = {"name": "hints", "mountPath": DIRECTORY, "readOnly": True, "mountPropagation": "HostToContainer"}
    assert mount == expected
    (written,) = writer["containers"][0]["volumeMounts"]
    variables = {item["name"]: item.get("value") for item in writer["containers"][0]["env"]}
    assert written["mountPath"] == variables["HEALTH_HINTS_DIR"] == DIRECTORY


@needs_helm
@pytest.mark.parametrize(
    ("settings", "nodes"),
    [
        ((), [{"types"}]),
        (("draDriver.enabled=true",), [{"types"}]),
        (("draDriver.enabled=true", "draDriver.nodeSelector.neuron=dra"), [{"types"}, {"neuron"}]),
        (
            ("draDriver.enabled=true", "draDriver.nodeSelector.neuron=dra", "devicePlugin.enabled=false"),
            [{"neuron"}],
        ),
        (("devicePlugin.enabled=false",), [{"types"}]),
        (("emulate=trn2.48xlarge",), [set()]),
    ],
)
def test_the_detector_runs_wherever_one_of_its_readers_does(settings: tuple[str, ...], nodes: list[set[str]]) -> None:
    objects = template("npd.enabled=true", *settings)
    for item in objects:
        kubernetes_validate.validate(item, "1.36", strict=True)
    made = by_name(objects)
    spec = pod_spec(made["DaemonSet", "neuron-node-problem-detector"])
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    short = {"node.kubernetes.io/instance-type": "types"}
    keys = [{item["key"] for item in term["matchExpressions"]} - {"eks.amazonaws.com/compute-type"} for term in terms]
    assert [{short.get(key, key) for key in term} for term in keys] == nodes
    for name in ("neuron-device-plugin-daemonset", "neuron-dra-driver-kubelet-plugin"):
        if reader := made.get(("DaemonSet", name)):
            assert pod_spec(reader)["tolerations"] == spec["tolerations"]
            assert pod_spec(reader)["containers"][0]["image"] == spec["containers"][0]["image"]


@needs_helm
def test_without_the_detector_nothing_of_it_is_made() -> None:
    text = yaml.safe_dump(template("draDriver.enabled=true"))
    assert "neuron-healthcheck-system" not in text
    assert "SYSLOG" not in text


def test_named_templates_exist() -> None:
    text = "".join(path.read_text() for path in TEMPLATES)
    defined = set(re.findall(r'define "([^"]+)"', text))
    assert set(re.findall(r'include "([^"]+)"', text)) <= defined
    # The variables of a workload are found by its name.
    assert {name for name in defined if f'include "{name}"' not in text} == set()


INSTALLATIONS = {
    "plain": ((), ()),
    "emulated": (("emulate=trn2.48xlarge",), ("--emulate", "trn2.48xlarge")),
    "ultraservers": (
        ("emulate=trn2u.48xlarge", "draDriver.emulatedUltraservers=2x4"),
        ("--emulate", "trn2u.48xlarge", "--emulated-ultraservers", "2x4"),
    ),
    "chosen nodes": (
        ("draDriver.nodeSelector.neuron=dra", "devicePlugin.enabled=false"),
        ("--node-selector", "neuron=dra"),
    ),
    "other root": (("kubeletRoot=/srv/kubelet",), ("--kubelet-root", "/srv/kubelet")),
    "cores": (("draDriver.partitions=chip.core",), ("--partitions", "chip.core")),
    "extended resources": (
        ("draDriver.partitions=core.node", "draDriver.extendedResources=true"),
        ("--partitions", "core.node", "--extended-resources"),
    ),
    "placer": (
        ("draDriver.placer.enabled=true", "draDriver.placer.groupTimeoutSeconds=60"),
        ("--placer", "--group-timeout", "60"),
    ),
    "operator": (
        (
            "draDriver.placer.enabled=true",
            "ultraserverOperator.enabled=true",
            "ultraserverOperator.maxServersPerNamespace=7",
            "ultraserverOperator.claimController=system:kube-controller-manager",
        ),
        (
            "--ultraserver-operator",
            *("--max-servers-per-namespace", "7", "--claim-controller", "system:kube-controller-manager"),
        ),
    ),
    "of the administrator": (
        (
            "draDriver.placer.enabled=true",
            "imagePullSecrets={registry}",
            "tolerations[0].key=dedicated",
            "tolerations[0].operator=Equal",
            "tolerations[0].value=neuron",
            "tolerations[0].effect=NoSchedule",
            "draDriver.contiguity=refuse",
            "draDriver.resources.requests.cpu=50m",
            "draDriver.resources.limits.memory=256Mi",
        ),
        (
            *("--placer", "--image-pull-secret=registry", "--toleration=dedicated=neuron:NoSchedule"),
            *(
                "--env=CONTIGUITY_POLICY=refuse",
                "--resources=requests.cpu=50m,requests.memory=64Mi,limits.memory=256Mi",
            ),
        ),
    ),
}


@needs_helm
@needs_kubectl
@pytest.mark.parametrize(("settings", "options"), INSTALLATIONS.values(), ids=INSTALLATIONS)
def test_helm_makes_the_objects_of_the_installer(settings: tuple[str, ...], options: tuple[str, ...]) -> None:
    made = template("draDriver.enabled=true", *settings)
    installed = rendered(*options, f"registry.example/n:{VERSION}")
    # What the installer notes for its own next run.
    of_kind(installed, "DaemonSet")["metadata"].pop("annotations", None)
    assert ordered(without_labels(made)) == ordered(without_labels(installed))


def without_labels(objects: list[Object]) -> list[Object]:
    """Without the labels by which helm's users know what belongs to a release, and what keeps helm from deleting it."""
    for item in objects:
        metadata = item["metadata"]
        if metadata.get("annotations") == {"helm.sh/resource-policy": "keep"}:
            metadata.pop("annotations")
        ours = ("app.kubernetes.io/", "helm.sh/")
        labels = {key: value for key, value in metadata.pop("labels", {}).items() if not key.startswith(ours)}
        metadata |= {"labels": labels} if labels else {}
    return objects


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(item["kind"], item["metadata"]["name"]): item for item in objects}


@needs_helm
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("scheduler.enabled=true",),
        ("scheduler.enabled=true", "scheduler.tls.enabled=false"),
        ("scheduler.enabled=true", "scheduler.tls.existingSecret=mine", "emulate=trn1.32xlarge"),
        (
            "scheduler.enabled=true",
            "scheduler.customScheduler.enabled=false",
            "scheduler.defaultScheduler.enabled=true",
        ),
        ("scheduler.enabled=true", "draDriver.enabled=true", "draDriver.nodeSelector.neuron=dra"),
    ],
)
def test_helm_makes_valid_objects(settings: tuple[str, ...]) -> None:
    objects = template(*settings)
    assert "DaemonSet" in {item["kind"] for item in objects}
    for item in objects:
        kubernetes_validate.validate(item, "1.36", strict=True)
    for item in objects:
        if item["metadata"]["name"] == "my-scheduler" and item["kind"] == "Deployment":
            assert pod_spec(item)["containers"][0]["image"] == "registry.k8s.io/kube-scheduler:v1.36.3"


STANDARD = tuple(f"app.kubernetes.io/{name}" for name in ("name", "instance", "component"))


@needs_helm
def test_the_pods_of_every_workload_have_the_standard_labels_and_no_selector_asks_for_them() -> None:
    """Dashboards and suites look for these; a label of a version would have each upgrade replace all pods."""
    made = template(*EVERYTHING)
    workloads = [item for item in made if "template" in item.get("spec", {}) and item["apiVersion"] == "apps/v1"]
    assert len(workloads) == len(WORKLOADS)
    for item in workloads:
        of_pods = item["spec"]["template"]["metadata"]["labels"]
        own = item["spec"]["selector"]["matchLabels"]
        assert of_pods == own | {key: item["metadata"]["labels"][key] for key in STANDARD}
        assert not own.keys() & set(STANDARD)
    (job,) = [item for item in hooks("pre-delete", *EVERYTHING) if item["kind"] == "Job"]
    of_pods = job["spec"]["template"]["metadata"]["labels"]
    assert of_pods.keys() >= set(STANDARD)
    assert of_pods[STANDARD[2]] not in WORKLOADS.values(), "it is not counted as a driver"


@needs_helm
def test_labels_for_pods_win_over_the_standard_ones() -> None:
    labels = json.dumps({"podLabels": {STANDARD[1]: "team-a"}, "nameOverride": "accelerators"})
    for item in template(*EVERYTHING, values=labels):
        if item["kind"] in ("DaemonSet", "Deployment"):
            of_pods = item["spec"]["template"]["metadata"]["labels"]
            assert [of_pods[key] for key in STANDARD[:2]] == ["accelerators", "team-a"]


@needs_helm
def test_a_digest_of_kube_scheduler_is_used_for_the_image_that_it_is_of() -> None:
    image = "scheduler.customScheduler.image"
    pinned = ("scheduler.enabled=true", f"{image}.tag=v1.36.1", f"{image}.digest={DIGEST}")
    assert scheduler_image(*pinned) == f"registry.k8s.io/kube-scheduler:v1.36.1@{DIGEST}"
    # AWS's default, which gives way to the cluster's own version.
    theirs = (f"{image}.repository=registry.example/eks-distro/kubernetes/kube-scheduler", f"{image}.tag=v1.28.5")
    assert scheduler_image("scheduler.enabled=true", *theirs, f"{image}.digest={DIGEST}") == (
        "registry.k8s.io/kube-scheduler:v1.36.3"
    )


@needs_helm
@pytest.mark.parametrize(
    ("repository", "tag", "image"),
    [
        # EKS Distro's tags do not exist in the registry of the chart's default.
        ("", "v1.36.1-eks-1-36-9", "registry.k8s.io/kube-scheduler:v1.36.3"),
        ("", "v1.33.5-eks-1-33-20", "registry.k8s.io/kube-scheduler:v1.36.3"),
        ("registry.example/mirror/kube-scheduler", "v1.36.1-eks-1-36-9", ""),
        ("registry.example/mirror/kube-scheduler", "v1.33.5-eks-1-33-20", "registry.k8s.io/kube-scheduler:v1.36.3"),
        ("registry.example/eks-distro/kubernetes/kube-scheduler", "v1.36.1", ""),
    ],
)
def test_a_kube_scheduler_of_eks_distro_is_known_by_its_tag_or_its_repository(
    repository: str, tag: str, image: str
) -> None:
    of = "scheduler.customScheduler.image"
    given = (f"{of}.tag={tag}", *((f"{of}.repository={repository}",) if repository else ()))
    assert scheduler_image("scheduler.enabled=true", *given) == (image or f"{repository}:{tag}")


@needs_helm
@pytest.mark.parametrize(
    ("repository", "tag", "own"),
    [
        ("registry.example/aws/neuron-device-plugin", "2.32.0.0", False),
        ("registry.example/neuron-device-plugin", "latest", False),
        ("registry.example/aws/plugin", "2.32.0.0", False),
        ("registry.example/neuron/neuron-dra-driver", "1.2.0", False),
        ("registry.example/aws/neuron-dra-driver", "0.2.0", True),
    ],
)
def test_an_image_of_aws_is_known_by_its_name_and_tag_in_any_registry(repository: str, tag: str, *, own: bool) -> None:
    objects = by_name(template(f"devicePlugin.image.repository={repository}", f"devicePlugin.image.tag={tag}"))
    images = {
        container["image"]
        for (kind, _), item in objects.items()
        if kind == "DaemonSet"
        for container in pod_spec(item)["containers"]
    }
    assert (f"{repository}:{tag}" in images) == own


def scheduler_image(*settings: str) -> str:
    found: str = pod_spec(by_name(template(*settings))["Deployment", "my-scheduler"])["containers"][0]["image"]
    return found


@needs_helm
def test_the_certificates_are_for_their_purpose_and_signed_by_the_ca(tmp_path: Path) -> None:
    secret = by_name(template("scheduler.enabled=true"))["Secret", "k8s-neuron-scheduler-tls"]
    for key, value in secret["data"].items():
        (tmp_path / key).write_bytes(base64.b64decode(value))
    ca = tmp_path / "ca.crt"
    for name, purpose in (("tls", "sslserver"), ("tls", "sslclient"), ("client", "sslclient")):
        verified = openssl("verify", "-CAfile", ca, "-purpose", purpose, tmp_path / f"{name}.crt")
        assert verified.endswith(": OK\n")
    shown = openssl("x509", "-in", tmp_path / "tls.crt", "-noout", "-ext", "subjectAltName", "-checkend", str(9 * YEAR))
    assert "DNS:k8s-neuron-scheduler.kube-system.svc," in shown and "IP Address:127.0.0.1" in shown


def openssl(*arguments: str | Path) -> str:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_helm
def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    result = helm("lint", "--strict", str(CHART), "--set", "image.repository=registry.example/n")
    assert result.returncode == 0, result.stdout + result.stderr


@needs_helm
@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("draDriver.emulatedUltraservers=2x4", "requires emulate"),
        ("draDriver.enabled=true,draDriver.nodeStatus=false,npd.nodeRecovery.enabled=true", "exclude each other"),
        ("scheduler.customScheduler.image.tag=v1.99.0", "use a tag of the same minor version"),
        (f"scheduler.customScheduler.image.digest={DIGEST}", "set image.tag to the version of that digest"),
    ],
)
def test_helm_refuses_what_cannot_be_with_plain_text(setting: str, text: str) -> None:
    assert text in refusal("scheduler.enabled=true", setting)


@needs_helm
@pytest.mark.parametrize(
    "setting",
    [
        *(f"kubeletRoot={value}" for value in ("relative", "/var/lib/kubelet/")),
        "cdiRoot=run/cdi",
        *(f"draDriver.partitions={value}" for value in ("chips", "chip.", "group1")),
        "draDriver.emulatedUltraservers=2x3",
        "npd.nodeRecovery.roleARN=arn:aws:iam::1:role/x",
        "monitoring.podMonitor.interval=30x",
    ],
)
def test_a_value_of_the_wrong_form_is_refused_with_one_of_the_right_form(setting: str) -> None:
    golden(refusal(setting).partition("\n\n")[2].partition("\n")[0])


@needs_helm
@pytest.mark.parametrize("options", [(), ("--is-upgrade",)], ids=["install", "upgrade"])
def test_without_an_image_helm_says_where_it_is_to_be_named(options: tuple[str, ...]) -> None:
    golden(refusal("image.repository=", options=options).partition("\n\n")[2].partition("\n\n")[0])


@needs_helm
@pytest.mark.parametrize("words", ["chip", "chip.core", "core.group4.node", "group", "group16", "chip.group128"])
def test_legal_words_for_what_nodes_offer_are_those_of_the_driver(words: str) -> None:
    assert template("draDriver.enabled=true", f"draDriver.partitions={words}")
    assert re.split("[,.]", str(Partitions.parse(words))) == re.split("[,.]", words)


@needs_helm
def test_extended_resources_are_left_out_before_1_36_and_the_notes_say_so() -> None:
    asked = ("draDriver.enabled=true", "draDriver.extendedResources=true")
    assert template(*asked, kubernetes="1.35.0") == template("draDriver.enabled=true", kubernetes="1.35.0")
    golden(notes(*asked, kubernetes="1.35.0"))
    for release in ("1.36.0", "v1.37.1-eks-113cf36"):
        shown = notes(*asked, kubernetes=release)
        golden(shown)
        assert "wait until" not in notes(*asked, "draDriver.partitions=chip.core", kubernetes=release)


@needs_helm
def test_the_notes_name_examples_that_run_on_what_nodes_offer() -> None:
    def named(*settings: str) -> set[str]:
        return set(re.findall(r"/([a-z0-9-]+)\.yaml", notes("draDriver.enabled=true", *settings, kubernetes="1.37.1")))

    extended = "draDriver.extendedResources=true"
    assert named() == named("draDriver.partitions=group4.chip") == {"1x4-connected-devices"}
    assert named("draDriver.partitions=core") == set()
    assert named("draDriver.partitions=core", extended) == {"cores-deployment"}
    assert named("draDriver.partitions=chip.core", extended) == {"1x4-connected-devices", "chip", "cores-deployment"}
    assert named(extended) == {"1x4-connected-devices", "chip"}


def test_the_examples_that_the_notes_name_are_there() -> None:
    named = re.findall(r"-f (examples/\S+)", (CHART / "templates/NOTES.txt").read_text())
    assert len(named) == 3
    assert all((ROOT / name).is_file() for name in named)


@needs_helm
def test_the_dra_driver_and_the_device_plugin_never_share_a_node() -> None:
    both = template("draDriver.enabled=true")
    assert [item["metadata"]["name"] for item in both if item["kind"] == "DaemonSet"] == [
        "neuron-dra-driver-kubelet-plugin"
    ]
    apart = template("draDriver.enabled=true", "draDriver.nodeSelector.neuron=dra")
    plugin = by_name(apart)["DaemonSet", "neuron-device-plugin-daemonset"]
    required = pod_spec(plugin)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    assert {"key": "neuron", "operator": "NotIn", "values": ["dra"]} in term["matchExpressions"]


# The table of effects


def test_the_schema_knows_what_the_driver_knows() -> None:
    table = SCHEMA["properties"]["draDriver"]["properties"]["healthPolicy"]["properties"]
    rule = table["rules"]["items"]["properties"]
    assert rule["fault"]["enum"] == list(FAULTS)
    assert rule["severity"]["enum"] == list(SEVERITIES)
    assert rule["effect"]["enum"] == list(EFFECTS)
    assert rule["graceSeconds"]["maximum"] == MAX_GRACE_SECONDS
    assert table["rules"]["maxItems"] == MAX_RULES
    assert table["prepare"]["enum"] == list(get_args(Prepare))
    assert table.keys() == {"keyDomain", "prepare", "rules"}
    assert rule.keys() == set(Rule.__struct_encode_fields__)


@needs_helm
def test_the_table_of_effects_is_a_config_map_that_the_driver_reads(tmp_path: Path) -> None:
    rule = "draDriver.healthPolicy.rules[0]"
    settings = [
        "draDriver.enabled=true",
        "draDriver.healthPolicy.prepare=refuse",
        f"{rule}.fault=hbm-uncorrectable",
        f"{rule}.effect=NoExecute",
        f"{rule}.graceSeconds=60",
    ]
    objects = template(*settings)
    (table,) = [item for item in objects if item["kind"] == "ConfigMap"]
    (daemonset,) = [item for item in objects if item["kind"] == "DaemonSet"]
    spec = pod_spec(daemonset)
    (volume,) = [item for item in spec["volumes"] if item["name"] == "health-policy"]
    assert volume["configMap"]["name"] == table["metadata"]["name"]
    assert table["metadata"]["namespace"] == daemonset["metadata"]["namespace"]
    (container,) = spec["containers"]
    (mount,) = [item["mountPath"] for item in container["volumeMounts"] if item["name"] == "health-policy"]
    (named,) = [item["value"] for item in container["env"] if item["name"] == "HEALTH_POLICY"]
    file = tmp_path / "policy"
    file.write_text(table["data"][named.removeprefix(f"{mount}/")])
    policy = HealthPolicy.load(file)
    assert (policy.prepare, policy.effect("hbm-uncorrectable", None)) == ("refuse", ("NoExecute", 60))
    others = template(*settings, f"{rule}.graceSeconds=90")
    digests = {
        item["spec"]["template"]["metadata"]["annotations"]["neuron.aws.com/health-policy"]
        for item in (*objects, *others)
        if item["kind"] == "DaemonSet"
    }
    assert len(digests) == 2, "another table replaces the pods"


@needs_helm
def test_without_a_table_there_is_no_config_map() -> None:
    objects = template("draDriver.enabled=true")
    assert [item for item in objects if item["kind"] == "ConfigMap"] == []
    (daemonset,) = [item for item in objects if item["kind"] == "DaemonSet"]
    assert "HEALTH_POLICY" not in str(daemonset)

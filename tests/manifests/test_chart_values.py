"""What the chart's values do: every workload takes the same ones, and those of AWS's chart install, too."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from dra_driver.neuron.names import CLASSES_POLICY, DEVICES_VIEWER_ROLE, VIEWER_ROLE
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.util.options import Setting, settings_of
from tests.golden import golden
from tests.manifests.chart import (
    CHART,
    EVERYTHING,
    HELM3,
    OF_AWS,
    VALUES,
    WORKLOADS,
    needs_helm,
    needs_helm3,
    notes,
    refusal,
    reused,
    template,
)
from tests.manifests.support import Object, pod_spec
from tests.manifests.test_chart import COMMANDS, OURS, by_name, container_of

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
EXAMPLE = (CHART / "examples/aws.yaml").read_text()
KINDS = ("DaemonSet", "Deployment")
COMMENT = re.compile(r"# (.*)\n *([A-Za-z]+):")
"""The last line of a comment, and the key below it."""
DRA = (CHART / "examples/dra.yaml").read_text()


@needs_helm
def test_the_values_for_claims_install_the_dra_driver_alone_with_its_metrics() -> None:
    (workload,) = [item for item in template("image.repository=x", values=DRA) if item["kind"] in KINDS]
    assert workload["metadata"]["name"] == "neuron-dra-driver-kubelet-plugin"
    (container,) = pod_spec(workload)["containers"]
    assert 9100 in [port["containerPort"] for port in container["ports"]]


def at(workload: str, values: object) -> dict[str, Any]:
    """Values of one workload, as they are nested in those of the chart."""
    for key in reversed(workload.split(".")):
        values = {key: values}
    assert isinstance(values, dict)
    return values


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            old = made.get(key)
            made[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return made


def of_workload(workload: str, objects: list[Object]) -> Object:
    part = WORKLOADS[workload]
    (made,) = [
        item
        for item in objects
        if item["kind"] in KINDS and item["metadata"]["labels"]["app.kubernetes.io/component"] == part
    ]
    return made


# Values that every workload takes


class Seen:
    """A workload, and the ServiceAccount that it names."""

    def __init__(self, workload: str, objects: list[Object]) -> None:
        self.item = of_workload(workload, objects)
        self.pod = self.item["spec"]["template"]["metadata"]
        self.spec = pod_spec(self.item)
        (self.container,) = self.spec["containers"]
        name = self.spec["serviceAccountName"]
        self.accounts = [
            item for item in objects if item["kind"] == "ServiceAccount" and item["metadata"]["name"] == name
        ]


TOLERATION = {"key": "example.com/team", "operator": "Exists"}
ZONE = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}
IN_ZONE = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [ZONE]}]}
    }
}
ENTRY = {"name": "HTTPS_PROXY", "value": "http://proxy.example"}
DIGEST = f"sha256:{'0' * 64}"
IMAGE = {"repository": "registry.example/other", "tag": "v1.36.9", "digest": DIGEST, "pullPolicy": "Always"}
Check = Callable[[Seen], bool]


def terms(seen: Seen) -> list[list[Object]]:
    required = seen.spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return [term["matchExpressions"] for term in required["nodeSelectorTerms"]]


EVERYWHERE: dict[str, tuple[object, Check]] = {
    "imagePullSecrets": (
        ["registry", {"name": "other"}],
        lambda seen: seen.spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "other"}],
    ),
    "tolerations": ([TOLERATION], lambda seen: seen.spec["tolerations"][-1] == TOLERATION),
    "nodeSelector": ({"pool": "x"}, lambda seen: seen.spec["nodeSelector"]["pool"] == "x"),
    "affinity": (IN_ZONE, lambda seen: all(ZONE in expressions for expressions in terms(seen))),
    "priorityClassName": ("urgent", lambda seen: seen.spec["priorityClassName"] == "urgent"),
    "runtimeClassName": ("other", lambda seen: seen.spec["runtimeClassName"] == "other"),
    "podAnnotations": ({"example.com/a": "b"}, lambda seen: seen.pod["annotations"]["example.com/a"] == "b"),
    "podLabels": ({"example.com/c": "d"}, lambda seen: seen.pod["labels"]["example.com/c"] == "d"),
    "env": ([ENTRY], lambda seen: seen.container["env"][-1] == ENTRY),
    "logFormat": (
        "json",
        lambda seen: (
            {"name": "LOG_FORMAT", "value": "json"} in seen.container["env"]
            or "--logging-format=json" in seen.container["command"]
        ),
    ),
    "logVerbosity": (4, lambda seen: "--v=4" in (*seen.container["command"], *seen.container.get("args", []))),
}
"""Value by key, and how it shows: for all workloads, or for one."""
ONLY_FOR_ONE: dict[str, tuple[object, Check]] = {
    "image": (
        IMAGE,
        lambda seen: (
            (seen.container["image"], seen.container["imagePullPolicy"])
            == (f"registry.example/other:v1.36.9@{DIGEST}", "Always")
        ),
    ),
    "resources": (
        {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
        lambda seen: (
            (seen.container["resources"]["requests"]["cpu"], seen.container["resources"]["limits"])
            == ("1", {"memory": "1Gi"})
        ),
    ),
    "podSecurityContext": (
        {"supplementalGroups": [7]},
        lambda seen: (
            seen.spec["securityContext"]["supplementalGroups"] == [7] and "runAsUser" in seen.spec["securityContext"]
        ),
    ),
    "extraArgs": (["--x=y"], lambda seen: seen.container["args"][-1] == "--x=y"),
    "updateStrategy": (
        {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        lambda seen: (
            (seen.item["spec"].get("updateStrategy") or seen.item["spec"]["strategy"])
            == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
        ),
    ),
    "serviceAccount": (
        {"name": "mine", "annotations": {"example.com/e": "f"}},
        lambda seen: (
            bool(seen.accounts)
            and all(account["metadata"]["annotations"]["example.com/e"] == "f" for account in seen.accounts)
        ),
    ),
    "nameOverride": (
        "other-name",
        lambda seen: seen.item["metadata"]["labels"]["app.kubernetes.io/name"] == "other-name",
    ),
    "namespaceOverride": ("elsewhere", lambda seen: seen.item["metadata"]["namespace"] == "elsewhere"),
    "selectorLabelsOverride": (
        {"example.com/g": "h"},
        lambda seen: (
            seen.item["spec"]["selector"]["matchLabels"] == {"example.com/g": "h"}
            and seen.pod["labels"]["example.com/g"] == "h"
        ),
    ),
}


def told(values: dict[str, tuple[object, Check]]) -> dict[str, object]:
    return {key: value for key, (value, _) in values.items()}


@needs_helm
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("key", [*EVERYWHERE, *ONLY_FOR_ONE])
def test_every_workload_takes_every_common_value(workload: str, key: str) -> None:
    each = told(EVERYWHERE | ONLY_FOR_ONE)
    objects = template(*EVERYTHING, values=json.dumps(merged(*(at(name, each) for name in WORKLOADS))))
    _, check = (EVERYWHERE | ONLY_FOR_ONE)[key]
    assert check(Seen(workload, objects))


@needs_helm
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("key", EVERYWHERE)
def test_a_value_at_the_top_is_for_all_workloads(workload: str, key: str) -> None:
    _, check = EVERYWHERE[key]
    assert check(Seen(workload, template(*EVERYTHING, values=json.dumps(told(EVERYWHERE)))))


@needs_helm
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_workloads_own_value_is_added_to_the_common_one_or_takes_its_place(workload: str) -> None:
    own = {
        "tolerations": [{"key": "own", "operator": "Exists"}],
        "nodeSelector": {"pool": "y"},
        "env": [{"name": "HTTPS_PROXY", "value": "own"}],
        "priorityClassName": "own",
        "logVerbosity": 0,
    }
    seen = Seen(workload, template(*EVERYTHING, values=json.dumps(merged(told(EVERYWHERE), at(workload, own)))))
    assert seen.spec["tolerations"][-2:] == [TOLERATION, *own["tolerations"]]  # type: ignore[misc]
    assert seen.spec["nodeSelector"]["pool"] == "y"
    assert seen.spec["priorityClassName"] == "own"
    assert seen.container["env"][-1] == {"name": "HTTPS_PROXY", "value": "own"}
    assert "--v=0" in (*seen.container["command"], *seen.container.get("args", []))


@needs_helm
def test_all_these_objects_are_valid() -> None:
    each = told(EVERYWHERE | ONLY_FOR_ONE)
    for item in template(*EVERYTHING, values=json.dumps(merged(*(at(name, each) for name in WORKLOADS)))):
        kubernetes_validate.validate(item, "1.36", strict=True)


@needs_helm
def test_what_is_said_of_nodes_does_not_lead_to_others_than_the_charts() -> None:
    given: Object = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}, "podAffinity": {}}
    plain = Seen("draDriver", template("draDriver.enabled=true"))
    two = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}, {"matchExpressions": [ZONE]}]}}
    values = {"draDriver": {"affinity": merged(given, {"nodeAffinity": two})}}
    seen = Seen("draDriver", template("draDriver.enabled=true", values=json.dumps(values)))
    (own,) = terms(plain)
    assert terms(seen) == [own, [*own, ZONE]]
    assert seen.spec["affinity"]["podAffinity"] == {}


@needs_helm
@pytest.mark.parametrize(
    ("told", "made"),
    [
        ({"type": "RollingUpdate"}, {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
        ({"type": "OnDelete"}, {"type": "OnDelete"}),
    ],
)
def test_a_rolling_update_without_numbers_has_those_of_the_chart(told: Object, made: Object) -> None:
    values = json.dumps({"devicePlugin": {"updateStrategy": told}})
    assert of_workload("devicePlugin", template(values=values))["spec"]["updateStrategy"] == made


# Settings by name

PORTS = {"healthPort": (1234, "HEALTHCHECK_PORT"), "metricsPort": (2345, "METRICS_PORT")}
ADDRESS = {"metricsAddress": ("127.0.0.1", "METRICS_ADDRESS")}
EMULATION = {
    "emulatedFaults": ("device-lost@3", "EMULATED_FAULTS"),
    "emulatedDriverVersion": ("2.1", "EMULATED_DRIVER_VERSION"),
}
SCANS = {"rescanSeconds": (7, "RESCAN_SECONDS")}
SETTINGS: dict[str, dict[str, tuple[Any, str]]] = {
    "devicePlugin": {
        **PORTS,
        **ADDRESS,
        **EMULATION,
        **SCANS,
        "deviceInjection": ("cdi", "DEVICE_INJECTION"),
        "deviceNumbering": ("renumber", "DEVICE_NUMBERING"),
        "visibleCoresVariable": ("NEURON_RT_VISIBLE_CORES", "VISIBLE_CORES_VARIABLE"),
    },
    "scheduler": {"metricsPort": PORTS["metricsPort"], **ADDRESS},
    "draDriver": {
        **PORTS,
        **ADDRESS,
        **EMULATION,
        **SCANS,
        "partitions": ("chip.core", "PARTITIONS"),
        "deviceNumbering": ("host", "DEVICE_NUMBERING"),
        "contiguity": ("refuse", "CONTIGUITY_POLICY"),
        "sharedCounters": ("force", "SHARED_COUNTERS"),
        "emulatedUltraservers": ("2x4", "EMULATED_ULTRASERVERS"),
        "ultraserverLabels": (False, "ULTRASERVER_LABELS"),
        "presentLabel": (False, "PRESENT_LABEL"),
        "nodeStatus": (False, "NODE_STATUS"),
        "claimStatus": (False, "CLAIM_STATUS"),
        "deviceMetadata": (True, "DEVICE_METADATA"),
    },
    "draDriver.placer": {**PORTS, **ADDRESS, "groupTimeoutSeconds": (60, "GROUP_TIMEOUT")},
    "npd": {**PORTS, **ADDRESS, **SCANS, "lookbackSeconds": (300, "LOOKBACK_SECONDS")},
    "npd.nodeRecovery": {**PORTS, **ADDRESS},
}
"""By workload and key: a value that is not the default, and the variable that has it."""
WITHOUT_VALUE = {
    # Where the chart mounts what, and who the pod is.
    *("HOST_ROOT", "STATE_DIR", "HEALTH_HINTS_DIR", "KERNEL_LOG", "EMULATION_ROOT", "KUBECONFIG"),
    *("EXTENDER_IDENTITY", "PLACER_IDENTITY", "RECOVERY_IDENTITY", "PORT", "BIND_ADDRESS", "HEALTHCHECK_ADDRESS"),
    # By other names: the values at the top, and arguments.
    *("LOG_FORMAT", "NEURON_DRA_DRIVER_EMULATION_MODE", "RECOVERY_HOOK", "RECOVERY_HOOK_TIMEOUT", "HEALTH_POLICY"),
    *("ULTRASERVER_OPERATOR", "MAX_SERVERS_PER_NAMESPACE", "ULTRASERVER_NAMESPACE"),
}


@needs_helm
@pytest.mark.parametrize(("workload", "key"), [(workload, key) for workload in OURS for key in SETTINGS[workload]])
def test_settings_arrive_under_the_names_that_the_commands_read(workload: str, key: str) -> None:
    each = merged(*(at(name, {key: value for key, (value, _) in SETTINGS[name].items()}) for name in OURS))
    container = of_container(workload, template(*EVERYTHING, "emulate=trn2u.48xlarge", values=json.dumps(each)))
    value, variable = SETTINGS[workload][key]
    found = {entry["name"]: entry.get("value") for entry in container["env"]}
    words = {False: "off", True: "on"}
    assert found[variable] == (words[value] if isinstance(value, bool) else str(value))


def of_container(workload: str, objects: list[Object]) -> Object:
    container: Object = pod_spec(of_workload(workload, objects))["containers"][0]
    return container


@needs_helm
@pytest.mark.parametrize("workload", OURS)
def test_every_option_of_a_command_has_a_value_or_is_the_charts_own(workload: str) -> None:
    _, tables = COMMANDS[workload]
    variables = {setting.option.variable for setting in settings_of(*tables)}
    by_value = {variable for _, variable in SETTINGS[workload].values()}
    always = {entry["name"] for entry in container_of(workload)["env"]}
    assert variables - by_value - always - WITHOUT_VALUE == set()
    assert by_value <= variables


PLAIN = [
    (workload, setting)
    for workload, (_, tables) in COMMANDS.items()
    for setting in settings_of(*tables)
    if setting.option.chart
]


@pytest.mark.parametrize(
    ("workload", "setting"), PLAIN, ids=[f"{workload}.{setting.option.chart}" for workload, setting in PLAIN]
)
def test_the_chart_takes_what_the_program_takes_and_says_the_same_default(workload: str, setting: Setting) -> None:
    key, default, node, values = setting.option.chart, setting.option.default, SCHEMA, VALUES
    for part in workload.split("."):
        node, values = node["properties"][part], values[part]
    schema, value = node["properties"][key] | {"definitions": SCHEMA["definitions"]}, values[key]
    assert setting.option.variable == SETTINGS[workload][key][1]
    if setting.kind is bool:
        assert value == (default == "on")
        assert "boolean" in schema["type"]
        return
    for legal in (*setting.choices, *(setting.option.bounds or ())):
        jsonschema.validate(legal, schema)
    if setting.choices:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate("neither", schema)
    assert value in ("", default)
    if default and not value:
        comments = COMMENT.findall((CHART / "values.yaml").read_text())
        assert (key, f"Default: {default}.") in {
            (name, text[-len(f"Default: {default}.") :]) for text, name in comments
        }


@needs_helm
@pytest.mark.parametrize("workload", [name for name in OURS if "metricsPort" in SETTINGS[name]])
def test_metrics_have_a_port_with_a_name_and_none_where_they_are_off(workload: str) -> None:
    on = container_of(workload, f"{workload}.metricsPort=2345")
    assert {"name": "metrics", "containerPort": 2345} in on["ports"]
    off = container_of(workload, f"{workload}.metricsPort=0")
    assert "metrics" not in {port["name"] for port in off["ports"]}
    assert not {"METRICS_PORT", "METRICS_ADDRESS"} & {entry["name"] for entry in off["env"]}


@needs_helm
@pytest.mark.parametrize("workload", [name for name in OURS if "healthPort" in SETTINGS[name]])
def test_probes_ask_the_port_of_the_health_service(workload: str) -> None:
    container = container_of(workload, f"{workload}.healthPort=1234")
    assert container["readinessProbe"]["grpc"]["port"] == 1234
    assert {"name": "health", "containerPort": 1234} in container["ports"]


@needs_helm
def test_directories_of_the_host_are_where_the_values_say() -> None:
    objects = template(*EVERYTHING, "kubeletRoot=/srv/kubelet", "cdiRoot=/etc/cdi", "devicePlugin.deviceInjection=cdi")
    for workload in ("draDriver", "devicePlugin"):
        paths = {
            volume["hostPath"]["path"]
            for volume in pod_spec(of_workload(workload, objects))["volumes"]
            if "hostPath" in volume
        }
        assert "/etc/cdi" in paths
        text = json.dumps(of_workload(workload, objects))
        assert "/var/lib/kubelet" not in text and "/var/run/cdi" not in text and "/srv/kubelet/" in text


@needs_helm
def test_the_instance_types_are_those_that_the_driver_knows_or_those_of_the_values() -> None:
    def types(*settings: str) -> list[set[str]]:
        seen = Seen("draDriver", template("draDriver.enabled=true", *settings))
        return [
            {value for item in term if item["key"] == "node.kubernetes.io/instance-type" for value in item["values"]}
            for term in terms(seen)
        ]

    known = set(INSTANCE_TYPES)
    assert types() == [known | {f"ml.{name}" for name in known}]
    assert types("neuronInstances={trn1.2xlarge}") == [{"trn1.2xlarge"}]
    assert types("draDriver.nodeSelector.neuron=dra") == [set()]
    assert types("draDriver.nodeSelector.neuron=dra", "neuronInstances={trn1.2xlarge}") == [{"trn1.2xlarge"}]


@needs_helm
def test_the_device_plugin_stays_off_nodes_that_have_all_labels_of_the_driver() -> None:
    values = {"draDriver": {"enabled": True, "nodeSelector": {"a": "1", "b": "2"}}}
    seen = Seen("devicePlugin", template(values=json.dumps(values)))
    assert [[item for item in term if item["key"] in "ab"] for term in terms(seen)] == [
        [{"key": "a", "operator": "NotIn", "values": ["1"]}],
        [{"key": "b", "operator": "NotIn", "values": ["2"]}],
    ]


# Names and namespaces

PLACES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "chosen namespace": ("--namespace=team-ml",),
    "one namespace": ("--set=namespaceOverride=devices",),
    "names": ("--set=fullnameOverride=acme", "--namespace=team-ml"),
    "numbers": (
        "--namespace=123",
        *(f"--set-string={workload}.fullnameOverride={number}" for number, workload in enumerate(WORKLOADS)),
    ),
    "own accounts": tuple(
        f"--set={workload}.serviceAccount.{setting}"
        for workload in WORKLOADS
        for setting in ("create=false", "name=given")
    ),
    "apart": (
        "--set=scheduler.customScheduler.namespaceOverride=schedulers",
        "--set=scheduler.namespaceOverride=extender",
    ),
}


Name = tuple[str, str | None, str]


def name_of(item: Object) -> Name:
    return item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]


def user_of(item: Object) -> str:
    """Who the pods of a workload are to the API server."""
    return f"system:serviceaccount:{item['metadata']['namespace']}:{pod_spec(item)['serviceAccountName']}"


def named_by_pods(item: Object) -> set[Name]:
    """What has to be in the namespace of a workload."""
    where = item["metadata"]["namespace"]
    volumes = pod_spec(item).get("volumes", [])
    maps = {
        volume["configMap"]["name"]
        for volume in volumes
        if not volume.get("configMap", {"optional": 1}).get("optional")
    }
    secrets = {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    return {("ConfigMap", where, name) for name in maps} | {("Secret", where, name) for name in secrets}


@needs_helm
@pytest.mark.parametrize("options", PLACES.values(), ids=PLACES)
def test_references_follow_names_and_namespaces(options: tuple[str, ...]) -> None:
    objects = template(*EVERYTHING, options=options)
    there = {name_of(item) for item in objects}
    workloads = [item for item in objects if item["kind"] in KINDS]
    for item in workloads:
        assert named_by_pods(item) <= there
        account = ("ServiceAccount", item["metadata"]["namespace"], pod_spec(item)["serviceAccountName"])
        assert (account in there) is (options != PLACES["own accounts"])
        selected = item["spec"]["selector"]["matchLabels"].items()
        assert selected <= item["spec"]["template"]["metadata"]["labels"].items()
    (service,) = [item for item in objects if item["kind"] == "Service"]
    (extender,) = [item for item in workloads if name_of(item)[1:] == name_of(service)[1:]]
    assert service["spec"]["selector"].items() <= extender["spec"]["template"]["metadata"]["labels"].items()


@needs_helm
@pytest.mark.parametrize("options", PLACES.values(), ids=PLACES)
def test_rights_and_policies_follow_names_and_namespaces(options: tuple[str, ...]) -> None:
    objects = template(*EVERYTHING, options=options)
    there = {name_of(item) for item in objects}
    users = {user_of(item) for item in objects if item["kind"] in KINDS}
    for item in objects:
        kind, where, name = name_of(item)
        if kind.endswith("RoleBinding"):
            assert {f"system:serviceaccount:{who['namespace']}:{who['name']}" for who in item["subjects"]} <= users
            role = item["roleRef"]
            known = role["name"].startswith(("system:", "extension-apiserver-"))
            assert known or (role["kind"], where, role["name"]) in there
        if kind == "ValidatingAdmissionPolicy":
            conditions = " ".join(condition["expression"] for condition in item["spec"]["matchConditions"])
            assert set(re.findall(r"system:serviceaccount:[^\"']+", conditions)) <= users
            assert ("ValidatingAdmissionPolicyBinding", None, name) in there


@needs_helm
def test_without_a_choice_of_the_user_each_part_has_the_namespace_it_always_had() -> None:
    plain = template(*EVERYTHING, "scheduler.tls.existingSecret=mine")
    for chosen in ("default", "kube-system"):
        objects = template(*EVERYTHING, "scheduler.tls.existingSecret=mine", options=(f"--namespace={chosen}",))
        assert by_name(objects) == by_name(plain)
    spaces = {item["metadata"].get("namespace") for item in plain if item["kind"] in KINDS}
    assert spaces == {"kube-system", "neuron-dra-driver", "neuron-healthcheck-system"}


@needs_helm
def test_the_namespace_of_the_release_is_that_of_all_parts_and_not_made_by_the_chart() -> None:
    objects = template(*EVERYTHING, options=("--namespace=team-ml",))
    assert {item["metadata"]["namespace"] for item in objects if item["kind"] in KINDS} == {"team-ml"}
    assert "Namespace" not in {item["kind"] for item in objects}
    # Where Kubernetes itself wants them.
    elsewhere = {
        (item["kind"], item["metadata"]["namespace"])
        for item in objects
        if item["metadata"].get("namespace", "team-ml") != "team-ml"
    }
    assert elsewhere == {("Role", "default"), ("RoleBinding", "default"), ("RoleBinding", "kube-system")}
    shown = notes(*EVERYTHING, options=("--namespace=team-ml",))
    assert "kubectl label namespace team-ml pod-security.kubernetes.io/enforce=privileged" in shown
    assert "kubectl -n team-ml rollout status daemonset/neuron-dra-driver-kubelet-plugin" in shown


@needs_helm
def test_other_namespaces_are_made_with_the_level_that_their_pods_need() -> None:
    def made(*settings: str) -> dict[str, str | None]:
        spaces = [item["metadata"] for item in template(*settings) if item["kind"] == "Namespace"]
        return {item["name"]: item["labels"].get("pod-security.kubernetes.io/enforce") for item in spaces}

    assert made("namespaceOverride=devices", "draDriver.enabled=true") == {"devices": "privileged"}
    assert made("npd.nodeRecovery.enabled=true") == {"neuron-healthcheck-system": None}
    assert made("npd.nodeRecovery.enabled=true", "npd.enabled=true") == {"neuron-healthcheck-system": "privileged"}
    assert made("draDriver.enabled=true", "createNamespaces=false") == {}


@needs_helm
def test_names_begin_with_the_users_word() -> None:
    given = {"DeviceClass", "Namespace"}
    named = {VIEWER_ROLE, DEVICES_VIEWER_ROLE, CLASSES_POLICY}  # Messages, pages and the operator name them.
    watched = [f"monitoring.{what}.enabled=true" for what in ("podMonitor", "prometheusRule", "dashboard")]
    objects = template(*EVERYTHING, *watched, "fullnameOverride=acme")
    names = {item["metadata"]["name"] for item in objects if item["kind"] not in given}
    assert {name for name in names if not name.startswith("acme-")} == named


@needs_helm
def test_an_account_of_the_users_gets_the_rights_only_by_name() -> None:
    text = refusal("draDriver.enabled=true", "draDriver.serviceAccount.create=false")
    golden(text)


@needs_helm3
@pytest.mark.parametrize("values", ["", EXAMPLE])
def test_helm_3_makes_the_objects_of_helm_4(values: str) -> None:
    settings = (*EVERYTHING, "scheduler.tls.existingSecret=mine")
    assert template(*settings, values=values, program=HELM3) == template(*settings, values=values)


@needs_helm
def test_the_notes_name_every_workload_that_is_installed() -> None:
    options = ("--set=fullnameOverride=acme", "--namespace=team-ml")
    shown = notes(*EVERYTHING, options=options)
    for workload in WORKLOADS:
        item = of_workload(workload, template(*EVERYTHING, options=options))
        assert f" {item['kind'].lower()}/{item['metadata']['name']}\n" in shown


# Schema, defaults and page


def objects_in(schema: object, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every part of the schema that objects fit, by its path."""
    if isinstance(schema, dict):
        if "object" in schema.get("type", ()) or isinstance(schema.get("properties"), dict):
            yield path, schema
        for key, value in schema.items():
            yield from objects_in(value, f"{path}.{key}")
    elif isinstance(schema, list):
        for number, value in enumerate(schema):
            yield from objects_in(value, f"{path}[{number}]")


FREE = {".properties.global", ".properties.observer", ".definitions.ofAWS"}
"""What has keys of others: helm's own, and those of AWS's chart without a meaning here."""


def test_a_misspelt_key_is_refused_at_every_level_of_the_schema() -> None:
    found = dict(objects_in(SCHEMA))
    assert len(found) > 50
    # Either the keys are listed, or they are the user's own words, such as labels, and their values are checked.
    free = {path for path, schema in found.items() if schema.get("additionalProperties", True) is True}
    assert free == FREE


TYPES = json.loads(
    (files("kubernetes_validate") / "kubernetes-json-schema/v1.37.0-local/_definitions.json").read_text()
)


def fields(kind: str) -> set[str]:
    """The fields of a type of Kubernetes."""
    groups = ("io.k8s.api.core.v1", "io.k8s.apimachinery.pkg.apis.meta.v1")
    (found,) = [TYPES["$defs"][name] for group in groups if (name := f"{group}.{kind}") in TYPES["$defs"]]
    return set(found["properties"])


def test_types_of_kubernetes_have_its_fields() -> None:
    definitions = SCHEMA["definitions"]
    named = {name: name for name in definitions if name[0].isupper()}
    named |= {"podSecurityContext": "PodSecurityContext", "affinity": "Affinity", "resources": "ResourceRequirements"}
    assert {name: set(definitions[name]["properties"]) for name in named} == {
        name: fields(kind) for name, kind in named.items()
    }
    assert set(definitions["tolerations"]["items"]["properties"]) == fields("Toleration")
    assert set(definitions["env"]["items"]["properties"]) == fields("EnvVar")
    of_root = {"runAsUser", "runAsGroup", "runAsNonRoot"}
    assert set(definitions["rootSecurityContext"]["properties"]) == fields("PodSecurityContext") - of_root


@needs_helm
@pytest.mark.parametrize(
    ("setting", "misspelt"),
    [
        ("devicePlugin.toleration=x", "toleration"),
        ("ultraserverOperatr.enabled=true", "ultraserverOperatr"),
        ("npd.nodeRecovery.serviceAccount.nam=x", "nam"),
        ("draDriver.image.tg=1", "tg"),
        ("draDriver.placer.podSecurityContext.fsGrup=1", "fsGrup"),
        ("scheduler.affinity.nodeAffinity.required=x", "required"),
        ("env[0].name=A,env[0].valueFrom.fieldReference.fieldPath=x", "fieldReference"),
    ],
)
def test_helm_refuses_a_misspelt_key_and_names_it(setting: str, misspelt: str) -> None:
    golden(refusal(setting))


@needs_helm
@pytest.mark.parametrize(
    "settings",
    [
        ("emulate=trn2.49xlarge",),
        ("draDriver.emulatedFaults=device-lost@3",),
        ("devicePlugin.emulatedDriverVersion=2.1",),
        ("emulate=trn2.48xlarge", "draDriver.rescanSeconds=0"),
    ],
)
def test_helm_refuses_what_the_driver_would_not_start_with(settings: tuple[str, ...]) -> None:
    golden(refusal("draDriver.enabled=true", *settings))


@needs_helm
@pytest.mark.parametrize("kind", ["trn2u", "ml.trn2.48xlarge", "inf2.24xlarge"])
def test_a_type_is_emulated_by_every_name_that_the_driver_takes(kind: str) -> None:
    container = of_container("draDriver", template("draDriver.enabled=true", f"emulate={kind}"))
    assert {"name": "NEURON_DRA_DRIVER_EMULATION_MODE", "value": kind} in container["env"]


@needs_helm
@pytest.mark.parametrize("workload", OURS)
def test_why_a_container_ended_is_in_the_pods_status(workload: str) -> None:
    assert container_of(workload)["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize(
    "values",
    [
        {"tolerations": [{"effects": "NoSchedule"}]},
        {"imagePullSecrets": [{"nam": "x"}]},
        {"draDriver": {"podSecurityContext": {"runAsUser": 7}}},
        {"draDriver": {"contiguity": "maybe"}},
        {"draDriver": {"updateStrategy": {"type": "Sometimes"}}},
        {"draDriver": {"updateStrategy": {"type": "Recreate"}}},
        {"scheduler": {"updateStrategy": {"type": "OnDelete"}}},
        {"image": {"digest": "sha256:1"}},
        {"logVerbosity": "high"},
        {"neuronInstances": "trn1.2xlarge"},
        {"namespaceOverride": "Not a name"},
        {"npd": {"metricsPort": 70000}},
    ],
)
def test_values_of_the_wrong_kind_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(VALUES, values), SCHEMA)


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def test_the_defaults_in_the_templates_are_those_of_the_values() -> None:
    text = (CHART / "templates/_helpers.tpl").read_text()
    (found,) = re.findall(r'(?s)define "neuron.defaults" -}}\n(.*?)\{\{- end', text)
    filled = {path: value for path, value in leaves(VALUES) if value not in ("", None, {}, [], 0, False)}
    defaults = dict(leaves(yaml.safe_load(found)))
    assert {path: value for path, value in defaults.items() if value is not False} == filled


@needs_helm
@pytest.mark.parametrize("settings", [(), EVERYTHING, ("draDriver.enabled=true", "emulate=trn2.48xlarge")])
def test_values_of_a_release_that_knew_none_of_the_keys_mean_the_defaults(settings: tuple[str, ...]) -> None:
    fixed = (*settings, "scheduler.tls.existingSecret=mine")
    assert by_name(reused("{}", *fixed)) == by_name(template(*fixed))


def test_the_page_has_every_value() -> None:
    page = (CHART / "README.md").read_text()
    shown = set(re.findall(r"`([A-Za-z][A-Za-z.]*)`", page))
    common = {*told(EVERYWHERE), *told(ONLY_FOR_ONE), "resources", "updateStrategy"}
    assert common <= shown
    missing = [path for path, _ in leaves(VALUES) if path not in shown and ".resources." not in path]
    assert missing == []


# Values of AWS's chart


def test_all_values_of_awss_chart_are_accepted() -> None:
    jsonschema.validate(yaml.safe_load(OF_AWS), SCHEMA)
    jsonschema.validate(yaml.safe_load(EXAMPLE), SCHEMA)


ALL_OF_AWS = (
    "scheduler.enabled=true",
    "npd.nodeRecovery.enabled=true",
    "draDriver.enabled=true",
    "draDriver.nodeSelector.x=y",
)


@needs_helm
@pytest.mark.parametrize("kubernetes", ["1.30.0", "1.37.1"])
@pytest.mark.parametrize("settings", [(), ALL_OF_AWS])
def test_an_upgrade_that_reuses_the_values_of_awss_chart_makes_pods_that_can_run(
    settings: tuple[str, ...], kubernetes: str
) -> None:
    objects = reused(OF_AWS, *settings, kubernetes=kubernetes)
    for item in objects:
        if not item["apiVersion"].startswith("resource.k8s.io"):
            kubernetes_validate.validate(item, kubernetes.rpartition(".")[0], strict=True)
    for item in objects:
        if item["kind"] in KINDS:
            (container,) = pod_spec(item)["containers"]
            assert container["image"] in ("registry.example/n:0.1.0", f"registry.k8s.io/kube-scheduler:v{kubernetes}")
            assert "cpu" not in container["resources"].get("limits", {})
            names = [entry["name"] for entry in container.get("env", [])]
            assert len(names) == len(set(names)) and "KUBECONFIG" not in names
            assert "__" not in json.dumps(pod_spec(item)["affinity"])


@needs_helm
def test_awss_default_values_leave_everything_but_names_and_resources_as_it_is_here() -> None:
    types = f"neuronInstances={{{','.join(yaml.safe_load(OF_AWS)['neuronInstances'])}}}"
    own = Seen("draDriver", template("draDriver.enabled=true", "devicePlugin.enabled=false", types))
    found = Seen("draDriver", reused(OF_AWS, "draDriver.enabled=true", "devicePlugin.enabled=false"))
    resources = found.container.pop("resources"), own.container.pop("resources")
    (every,) = own.spec.pop("tolerations")
    assert every in found.spec.pop("tolerations")
    assert resources[0] == {"requests": {"cpu": "10m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}
    for seen in (found, own):
        del seen.pod["labels"]["app.kubernetes.io/name"]
    assert found.item["spec"] == own.item["spec"]


@needs_helm
def test_keys_of_awss_chart_have_their_meaning() -> None:
    objects = template(values=EXAMPLE)
    assert [item["metadata"]["name"] for item in objects if item["kind"] == "DaemonSet"] == [
        "neuron-dra-driver-kubelet-plugin"
    ]
    seen = Seen("draDriver", objects)
    assert seen.spec["imagePullSecrets"] == [{"name": "registry"}]
    assert "example.com/training" in {item.get("key") for item in seen.spec["tolerations"]}
    assert seen.accounts[0]["metadata"] | {"labels": {}} == {
        "name": "neuron-driver",
        "namespace": "neuron-dra-driver",
        "labels": {},
        "annotations": {"example.com/owner": "platform"},
    }
    assert seen.container["image"] == "registry.example/n:0.1.0"
    more = reused(OF_AWS, "scheduler.enabled=true", "scheduler.customScheduler.fullnameOverride=second")
    extender, second = (of_workload(name, more) for name in ("scheduler", "scheduler.customScheduler"))
    assert (extender["spec"]["replicas"], extender["spec"]["strategy"]) == (1, {"type": "Recreate"})
    assert pod_spec(extender)["schedulerName"] == second["metadata"]["name"] == "second"
    assert second["spec"]["replicas"] == 1


@needs_helm
def test_the_role_of_awss_detector_is_that_of_the_recovery() -> None:
    role = "arn:aws:iam::123456789012:role/x"
    values = {"npd": {"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": role}}}}
    objects = template("npd.nodeRecovery.enabled=true", values=json.dumps(values))
    annotations = Seen("npd.nodeRecovery", objects).accounts[0]["metadata"]["annotations"]
    assert annotations == {"eks.amazonaws.com/role-arn": role}


@needs_helm
def test_the_notes_name_the_keys_of_awss_chart_without_effect_and_say_what_takes_their_place() -> None:
    shown = notes(values=EXAMPLE, kubernetes="1.37.1")
    listed = set(re.findall(r"(?m)^  ([A-Za-z.]+)(?::|$)", shown.partition("no effect here:")[2]))
    assert listed == {"draDriver.image", "observer"}
    assert "no effect" not in notes(*EVERYTHING)


@needs_helm
def test_the_notes_of_an_upgrade_from_awss_chart_name_what_is_left_out() -> None:
    shown = notes(*ALL_OF_AWS, before=OF_AWS, kubernetes="1.37.1")
    listed = set(re.findall(r"(?m)^  ([A-Za-z.]+)(?::|$)", shown.partition("no effect here:")[2]))
    assert listed == {
        *("draDriver.image", "draDriver.env", "draDriver.volumes", "draDriver.volumeMounts", "draDriver.livenessProbe"),
        *("draDriver.resources.limits.cpu", "devicePlugin.image", "devicePlugin.env", "devicePlugin.volumes"),
        *("devicePlugin.volumeMounts", "scheduler.image", "scheduler.env", "scheduler.customScheduler.image"),
        *("scheduler.customScheduler.securityContext", "scheduler.customScheduler.livenessProbe"),
        *("scheduler.customScheduler.readinessProbe", "scheduler.defaultScheduler.nodeSelector"),
        *("scheduler.defaultScheduler.tolerations", "npd.config", "npd.nodeProblemDetector", "npd.nodeRecovery.image"),
        *("npd.nodeRecovery.counters", "npd.nodeRecovery.startupDelaySeconds", "npd.nodeRecovery.resources.limits.cpu"),
        "observer",
    }


@needs_helm
def test_awss_image_is_refused_as_that_of_this_project() -> None:
    assert "which is AWS's" in refusal("image.repository=public.ecr.aws/neuron/neuron-dra-driver")

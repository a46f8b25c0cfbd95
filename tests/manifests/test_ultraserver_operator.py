"""The operator of UltraServers: a switch of the placer's Deployment, with its kinds and its rights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from generating.definitions import PATH

from dra_driver.cli import kubelet_plugin
from dra_driver.cli.daemon import read
from dra_driver.cli.placer import Settings
from dra_driver.neuron.names import CLASSES_POLICY, WORKLOAD_CLASS
from dra_driver.neuron.ultraserver_objects import ACCEPTED_SPEC, FINALIZER, GROUP
from dra_driver.ultraserver.definitions import DEFINITIONS, NAMES
from tests.golden import golden
from tests.manifests.admission import admits
from tests.manifests.chart import CHART, KUBERNETES, OF_AWS, VALUES, helm, needs_helm, notes, refusal, template
from tests.manifests.support import IMAGE, Object, documents, needs_kubectl, of_kind, pod_spec, rendered
from tests.manifests.test_chart_in_use import upgrade
from tests.paths import ROOT

DRIVER = ("draDriver.enabled=true", "devicePlugin.enabled=false")
PLACER = (*DRIVER, "draDriver.placer.enabled=true")
ON = (*DRIVER, "ultraserverOperator.enabled=true")
NEW = {
    "CustomResourceDefinition",
    "ClusterRole",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


def text(*settings: str) -> str:
    """What helm prints, byte by byte."""
    named = [part for setting in ("image.repository=registry.example/n", *settings) for part in ("--set", setting)]
    done = helm("template", "neuron", str(CHART), "--kube-version", KUBERNETES, *named)
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_key(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(item["kind"], item["metadata"]["name"]): item for item in objects}


def definitions(objects: list[Object]) -> list[Object]:
    return [item for item in objects if item["kind"] == "CustomResourceDefinition"]


def rules(objects: list[Object], kind: str, name: str) -> list[Object]:
    found: list[Object] = by_key(objects)[kind, name]["rules"]
    return found


# The switch


@needs_helm
@pytest.mark.parametrize("others", [DRIVER, PLACER, ("scheduler.enabled=true", "scheduler.tls.existingSecret=s")])
def test_without_the_switch_its_values_change_no_byte(others: tuple[str, ...]) -> None:
    off = ("ultraserverOperator.enabled=false", "ultraserverOperator.editRole.aggregate=true")
    more = ("ultraserverOperator.crds.create=true", "ultraserverOperator.podAnnotations.a=b")
    plain = text(*others)
    assert text(*others, *off, *more) == plain
    assert "neuronultraserver" not in plain


@needs_helm
@pytest.mark.parametrize("others", [(), ("fullnameOverride=own",), ("draDriver.placer.serviceAccount.name=mine",)])
def test_turned_on_beside_the_placer_it_changes_neither_names_nor_selectors(others: tuple[str, ...]) -> None:
    before, after = by_key(template(*PLACER, *others)), by_key(template(*PLACER, *ON, *others))
    assert before.keys() <= after.keys()
    assert {kind for kind, _ in after.keys() - before.keys()} == NEW
    changed = {key for key, item in before.items() if item != after[key]}
    kinds = {"ClusterRole", "Role", "ValidatingAdmissionPolicy", "Deployment", "DaemonSet"}
    assert {kind for kind, _ in changed} == kinds
    ((key, placer),) = ((key, item) for key, item in before.items() if key[0] == "Deployment")
    container = pod_spec(after[key])["containers"][0]
    assert container["env"].pop() == {"name": "ULTRASERVER_OPERATOR", "value": "on"}
    assert after[key] == placer, "nothing but the variable"


@needs_helm
def test_either_switch_makes_the_deployment_and_only_beside_the_driver() -> None:
    assert by_key(template(*ON)) == by_key(template(*PLACER, *ON))
    (deployment,) = [item for item in template(*ON) if item["kind"] == "Deployment"]
    assert deployment["spec"]["replicas"] == 2
    assert of_kind(template(*ON), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    without = ("draDriver.enabled=false", "ultraserverOperator.enabled=true")
    assert by_key(template(*without)) == by_key(template())
    assert "ultraserverOperator.enabled: it needs draDriver.enabled=true" in notes(*without)


@needs_helm
def test_the_program_takes_the_setting() -> None:
    (deployment,) = [item for item in template(*ON) if item["kind"] == "Deployment"]
    environment = {entry["name"]: entry.get("value", "") for entry in pod_spec(deployment)["containers"][0]["env"]}
    assert read(Settings, {}, environment).ultraserver_operator
    assert not read(Settings, {}, {}).ultraserver_operator
    assert read(Settings, {}, environment).max_servers_per_namespace is None
    (deployment,) = [
        item for item in template(*ON, "ultraserverOperator.maxServersPerNamespace=7") if item["kind"] == "Deployment"
    ]
    environment = {entry["name"]: entry.get("value", "") for entry in pod_spec(deployment)["containers"][0]["env"]}
    assert read(Settings, {}, environment).max_servers_per_namespace == 7
    for value in ("0", "-1", "many", "5001"):
        assert "maxServersPerNamespace" in refusal(*ON, f"ultraserverOperator.maxServersPerNamespace={value}")


@needs_helm
@pytest.mark.parametrize("place", ["neuron-dra-driver", "elsewhere"])
def test_each_nodes_driver_reads_the_servers_where_the_operator_writes_them(place: str) -> None:
    settings = (*ON, f"draDriver.placer.namespaceOverride={place}")
    objects = by_key(template(*settings))
    (daemonset,) = [item for (kind, _), item in objects.items() if kind == "DaemonSet"]
    (deployment,) = [item for (kind, _), item in objects.items() if kind == "Deployment"]
    assert deployment["metadata"]["namespace"] == place
    entries = {entry["name"]: entry for entry in pod_spec(daemonset)["containers"][0]["env"]}
    entry = entries["ULTRASERVER_NAMESPACE"]
    if place == daemonset["metadata"]["namespace"]:
        # Who puts all into another namespace afterwards has to change nothing here.
        assert entry["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    else:
        assert entry["value"] == place
    plain = by_key(template(*DRIVER))
    ((_, daemonset_without),) = [item for item in plain.items() if item[0][0] == "DaemonSet"]
    pod_spec(daemonset)["containers"][0]["env"].remove(entry)
    assert daemonset == daemonset_without, "nothing but the variable"

    role, binding = (objects[kind, "neuron-dra-driver-ultraservers"] for kind in ("Role", "RoleBinding"))
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == place
    reading = {"apiGroups": ["neuron.aws.com"], "resources": ["neuronultraservers"], "verbs": ["get", "list", "watch"]}
    assert role["rules"] == [reading]
    (subject,) = binding["subjects"]
    account = pod_spec(daemonset)["serviceAccountName"], daemonset["metadata"]["namespace"]
    assert (subject["name"], subject["namespace"]) == account
    assert (
        objects["ClusterRole", "neuron-dra-driver-clusterrole"] == plain["ClusterRole", "neuron-dra-driver-clusterrole"]
    )


@needs_helm
def test_the_driver_takes_the_setting() -> None:
    read_from = {"NODE_NAME": "n", "ULTRASERVER_NAMESPACE": "neuron-dra-driver"}
    assert kubelet_plugin.read_settings({}, read_from)[0].ultraserver_namespace == "neuron-dra-driver"
    assert kubelet_plugin.read_settings({}, {"NODE_NAME": "n"})[0].ultraserver_namespace is None


# The kinds


@needs_helm
def test_the_definitions_are_the_programs_and_outlive_the_release() -> None:
    made = definitions(template(*ON))
    assert [{**item, "metadata": {"name": item["metadata"]["name"]}} for item in made] == [*DEFINITIONS]
    assert {item["metadata"]["annotations"]["helm.sh/resource-policy"] for item in made} == {"keep"}
    assert [*yaml.safe_load_all((ROOT / PATH).read_text())] == [*DEFINITIONS], "also for those who apply the file"
    for version in ("1.34", "1.37"):
        for item in made:
            kubernetes_validate.validate(item, version, strict=True)
    assert definitions(template(*ON, "ultraserverOperator.crds.create=false")) == []


def in_cluster(owner: dict[str, str] | None) -> list[Object]:
    """The definitions as somebody has installed them."""
    return [
        {**item, "metadata": {**item["metadata"], "annotations": owner}} if owner is not None else item
        for item in DEFINITIONS
    ]


OWN = {"meta.helm.sh/release-name": "neuron", "meta.helm.sh/release-namespace": "default"}


@needs_helm
@pytest.mark.parametrize(
    ("owner", "made"),
    [
        (OWN, 2),
        (OWN | {"meta.helm.sh/release-name": "aws"}, 0),
        (OWN | {"meta.helm.sh/release-namespace": "other"}, 0),
        (None, 0),
    ],
)
def test_the_definitions_of_others_stay_as_they_are(owner: dict[str, str] | None, made: int, tmp_path: Path) -> None:
    done = upgrade(tmp_path, in_cluster(owner), *ON)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("kind: CustomResourceDefinition\n") == made
    told = done.stdout.partition("UltraServers by workload")[2]
    golden(told.partition("These of your values")[0])


# Rights


@needs_helm
def test_it_may_do_exactly_this_more_than_the_placer() -> None:
    objects, before = template(*ON), template(*PLACER)
    name = "neuron-dra-driver-placer"
    more = {
        kind: [rule for rule in rules(objects, kind, name) if rule not in rules(before, kind, name)]
        for kind in ("ClusterRole", "Role")
    }
    assert more == {
        "ClusterRole": [
            {
                "apiGroups": [GROUP],
                "resources": ["neuronultraserverworkloads"],
                "verbs": ["get", "list", "watch", "patch"],
            },
            {"apiGroups": [GROUP], "resources": ["neuronultraserverworkloads/status"], "verbs": ["patch", "update"]},
            {
                "apiGroups": ["apiextensions.k8s.io"],
                "resources": ["customresourcedefinitions"],
                "resourceNames": [*NAMES],
                "verbs": ["get"],
            },
            {
                "apiGroups": ["resource.k8s.io"],
                "resources": ["resourceclaimtemplates"],
                "verbs": ["get", "list", "watch", "create", "patch", "delete"],
            },
            {"apiGroups": ["resource.k8s.io"], "resources": ["deviceclasses"], "verbs": ["list"]},
            {
                "apiGroups": ["admissionregistration.k8s.io"],
                "resources": ["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
                "resourceNames": [CLASSES_POLICY],
                "verbs": ["get"],
            },
        ],
        "Role": [
            {
                "apiGroups": [GROUP],
                "resources": ["neuronultraservers"],
                "verbs": ["get", "list", "watch", "create", "patch", "update", "delete"],
            },
            {"apiGroups": [GROUP], "resources": ["neuronultraservers/status"], "verbs": ["patch", "update"]},
        ],
    }
    policy = json.dumps(by_key(objects)["ValidatingAdmissionPolicy", f"{name}-own-objects"])
    assert "in ['Pod', 'Node', 'NeuronUltraServer', 'NeuronUltraServerWorkload']" in policy


def tenants(**meta: object) -> Object:
    """A workload as somebody else has made it."""
    spec = {"instanceType": "trn2u.48xlarge", "serverCount": 1, "topologySize": 4}
    return {"metadata": {"name": "w", "namespace": "a", **meta}, "spec": spec}


@needs_helm
def test_of_a_workload_the_placer_changes_its_finalizer_and_its_annotation_alone() -> None:
    policy = by_key(template(*ON))["ValidatingAdmissionPolicy", "neuron-dra-driver-placer-workloads"]["spec"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["neuronultraserverworkloads"], ["UPDATE"])
    (condition,) = policy["matchConditions"]
    account = "system:serviceaccount:neuron-dra-driver:neuron-dra-driver-placer"
    assert condition["expression"] == f'request.userInfo.username == "{account}"'
    of_placer = {**policy, "matchConditions": []}
    plain = tenants()
    full = tenants(
        labels={"a": "b"}, annotations={"a": "b"}, finalizers=["x"], ownerReferences=[{"kind": "Job", "uid": "u"}]
    )
    for before in (plain, full):
        meta = before["metadata"]
        notes, finalizers = meta.get("annotations", {}), meta.get("finalizers", [])

        def changed(before: Object = before, **fields: object) -> Object:
            return {**before, "metadata": {**before["metadata"], **fields}}

        noted = changed(annotations={**notes, ACCEPTED_SPEC: "{}"})
        kept = changed(finalizers=[*finalizers, FINALIZER])
        for allowed in (before, noted, kept):
            assert admits(of_placer, (), before, allowed)
            assert admits(of_placer, (), allowed, before), "and takes them back"
        refused = [
            {**before, "spec": {**before["spec"], "serverCount": 9}},
            changed(annotations={**notes, "other": "x"}),
            changed(annotations={**notes, "a": "c"}),
            changed(labels={"a": "c"}),
            changed(finalizers=[*finalizers, "other"]),
            changed(ownerReferences=[{"kind": "Pod", "uid": "v"}]),
        ]
        for after in refused:
            assert not admits(of_placer, (), before, after)
            assert admits(policy, (), before, after), "who is not the placer is not asked"
    for field in ("labels", "annotations", "finalizers", "ownerReferences"):
        without = {name: value for name, value in full["metadata"].items() if name != field}
        assert not admits(of_placer, (), full, {**full, "metadata": without})


@needs_helm
def test_of_templates_the_placer_writes_those_of_workloads_alone() -> None:
    policy = by_key(template(*ON))["ValidatingAdmissionPolicy", "neuron-dra-driver-placer-templates"]["spec"]
    (condition,) = policy["matchConditions"]
    account = "system:serviceaccount:neuron-dra-driver:neuron-dra-driver-placer"
    assert condition["expression"] == f'request.userInfo.username == "{account}"'
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert set(rule["operations"]) == {"CREATE", "UPDATE", "DELETE"}

    def of(owners: list[Object], *requests: Object, **meta: object) -> Object:
        spec = {"spec": {"devices": {"requests": list(requests)}}}
        return {"metadata": {"name": "t", "ownerReferences": owners, **meta}, "spec": spec}

    owner = {"apiVersion": f"{GROUP}/v1beta1", "kind": "NeuronUltraServerWorkload", "name": "w", "uid": "u"}
    own_class, other_class = ({"deviceClassName": name} for name in (WORKLOAD_CLASS, "neuron.aws.com"))
    own: Object = {"name": "node", "exactly": own_class}
    flat, other = {"name": "node", **own_class}, {"name": "node", "exactly": other_class}
    ranked: Object = {"name": "node", "firstAvailable": [{"name": "a", **own_class}]}
    for request in (own, flat):
        assert admits(policy, (), None, of([owner], request), user=account)
        assert admits(policy, (), of([], request), of([owner], request), user=account)
        assert not admits(policy, (), None, of([], request), user=account)
        assert not admits(policy, (), None, of([{**owner, "kind": "Job"}], request), user=account)
        assert not admits(policy, (), None, of([{**owner, "apiVersion": "v1"}], request), user=account)
        assert not admits(policy, (), None, of([owner], request, finalizers=["x"]), user=account)
        assert not admits(policy, (), of([owner], other), of([owner], request), user=account)
    for requests in ((), (other,), (ranked,), (own, other)):
        assert not admits(policy, (), None, of([owner], *requests), user=account)
        assert admits(policy, (), None, of([], *requests)), "who is not the placer is not asked"


@needs_helm
@pytest.mark.parametrize("aggregated", [False, True])
def test_people_see_both_kinds_and_make_workloads_where_an_administrator_lets_them(aggregated: bool) -> None:
    objects = by_key(template(*ON, f"ultraserverOperator.editRole.aggregate={str(aggregated).lower()}"))
    viewer = objects["ClusterRole", "neuron-ultraservers-viewer"]
    editor = objects["ClusterRole", "neuron-ultraservers-editor"]
    aggregate = "rbac.authorization.k8s.io/aggregate-to-"
    assert viewer["metadata"]["labels"][f"{aggregate}view"] == "true"
    assert (editor["metadata"]["labels"].get(f"{aggregate}edit") == "true") is aggregated
    (seen,), (made,) = viewer["rules"], editor["rules"]
    assert set(seen["resources"]) == {"neuronultraservers", "neuronultraserverworkloads"}
    assert set(seen["verbs"]) == {"get", "list", "watch"}
    assert made["resources"] == ["neuronultraserverworkloads"], "neither the servers nor what is allocated"


# Values of AWS's chart


@needs_helm
def test_what_awss_chart_has_for_the_operators_pods_is_for_the_placers() -> None:
    values = {
        "imagePullSecrets": ["registry"],
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "nodeSelector": {"pool": "system", "zone": "a"},
        "podAnnotations": {"a": "operator", "b": "operator"},
        "podSecurityContext": {"fsGroup": 7},
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    }
    own = {"placer": {"nodeSelector": {"pool": "placer"}, "podAnnotations": {"a": "placer"}}}
    given: Any = {"ultraserverOperator": values, "draDriver": own}
    (deployment,) = [item for item in template(*ON, values=json.dumps(given)) if item["kind"] == "Deployment"]
    spec = pod_spec(deployment)
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["tolerations"][-1] == {"key": "system", "operator": "Exists"}
    assert spec["nodeSelector"] == {"pool": "placer", "zone": "a"}
    assert deployment["spec"]["template"]["metadata"]["annotations"] == {"a": "placer", "b": "operator"}
    assert spec["securityContext"]["fsGroup"] == 7
    assert spec["affinity"] == values["affinity"]
    assert by_key(template(*PLACER, values=json.dumps(given))) == by_key(
        template(*PLACER, values=json.dumps({"draDriver": own}))
    ), "without the switch, they are nobody's"


@needs_helm
def test_the_notes_name_what_has_no_effect() -> None:
    values = {"ultraserverOperator": yaml.safe_load(OF_AWS)["ultraserverOperator"] | {"leaderElect": False}}
    golden(notes(*ON, values=json.dumps(values)).partition("UltraServers by workload")[2])


@needs_helm
def test_a_misspelt_value_is_refused() -> None:
    assert "crd" in refusal(*ON, "ultraserverOperator.crd.create=false")
    assert set(VALUES["ultraserverOperator"]) == {
        "enabled",
        "crds",
        "editRole",
        "maxServersPerNamespace",
        "claimController",
    }


# The installer


@needs_helm
@needs_kubectl
def test_the_installer_makes_what_the_chart_makes() -> None:
    with_it, without = by_key(rendered("--ultraserver-operator", IMAGE)), by_key(rendered("--placer", IMAGE))
    assert {kind for kind, _ in with_it.keys() - without.keys()} == NEW
    assert by_key(rendered("--placer", "--ultraserver-operator", IMAGE)) == with_it
    charts = by_key(template(*ON))
    for key in with_it.keys() - without.keys():
        assert with_it[key].get("spec") == charts[key].get("spec")
        assert with_it[key].get("rules") == charts[key].get("rules")
    (container,) = pod_spec(with_it["Deployment", "neuron-dra-driver-placer"])["containers"]
    assert {"name": "ULTRASERVER_OPERATOR", "value": "on"} in container["env"]


@needs_kubectl
def test_a_values_file_of_the_installer_can_have_it(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("ultraserver-operator: true\ngroup-timeout: 20\n")
    made = by_key(rendered("--values", str(file), IMAGE))
    assert made == by_key(rendered("--ultraserver-operator", "--group-timeout=20", IMAGE))
    assert documents(yaml.safe_dump_all(DEFINITIONS)), "the file is YAML"

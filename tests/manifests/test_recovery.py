"""Node recovery in the chart: least rights, a dry run unless asked otherwise, and a policy that the program reads."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from typing import Any, get_args

import jsonschema
import kubernetes_validate
import pytest
import yaml

from dra_driver.cli import recover
from dra_driver.kube.api.events import CLUSTER_NAMESPACE
from dra_driver.neuron.health.faults import REMEDIES
from dra_driver.operations.recovery.aws import ACTIONS, SERVICES
from dra_driver.operations.recovery.controller import EVENTS, NAME
from dra_driver.operations.recovery.decide import Reason
from dra_driver.operations.recovery.nodes import MARK, REQUEST, TAINT
from dra_driver.operations.recovery.policy import STEPS, Policy, decode_policy
from dra_driver.util.options import settings_of
from tests.manifests.admission import admits
from tests.manifests.chart import CHART, needs_helm, notes, objects_of, template
from tests.manifests.support import Object, of_kind, pod_spec
from tests.paths import DOCS, ROOT

WORKLOAD = "npd.nodeRecovery"
OPTIONS = [setting.option for setting in settings_of(*recover.TABLES)]
SYSTEM = "neuron-healthcheck-system"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
OF_RECOVERY = SCHEMA["properties"]["npd"]["properties"]["nodeRecovery"]["properties"]


def of_chart(*settings: str) -> dict[tuple[str, str], Object]:
    """The objects that recovery adds to a chart with nothing else."""
    options = ("devicePlugin.enabled=false", *(f"npd.nodeRecovery.{setting}" for setting in settings))
    return {
        (item["kind"], item["metadata"]["name"]): item for item in template("npd.nodeRecovery.enabled=true", *options)
    }


@needs_helm
def test_recovery_may_do_exactly_this() -> None:
    objects = objects_of(WORKLOAD)
    rules = [*of_kind(objects, "ClusterRole")["rules"], *of_kind(objects, "Role")["rules"]]
    found = {
        (resource, tuple(rule.get("resourceNames", ())), tuple(rule["verbs"]))
        for rule in rules
        for resource in rule["resources"]
    }
    assert found == {
        ("nodes", (), ("get", "list", "watch", "patch")),
        ("pods", (), ("list",)),
        ("pods/eviction", (), ("create",)),
        ("events", (), ("create",)),
        ("leases", (NAME,), ("get", "update")),
        ("leases", (), ("create",)),
    }
    # Events on Nodes are written where Kubernetes' own controllers write theirs: another namespace.
    assert CLUSTER_NAMESPACE != SYSTEM
    assert any("events" in rule["resources"] for rule in of_kind(objects, "ClusterRole")["rules"])


@needs_helm
def test_the_policy_names_what_recovery_writes_on_nodes_and_nothing_else() -> None:
    policies = [item["spec"] for item in objects_of(WORKLOAD) if item["kind"] == "ValidatingAdmissionPolicy"]
    spec, created, _ = policies
    texts = " ".join(item["expression"] for item in created["validations"])
    assert set(re.findall(r"== '([a-z-]+)'", texts)) == {NAME}
    assert created["matchConditions"][0]["expression"] == spec["matchConditions"][0]["expression"]
    (condition,) = spec["matchConditions"]
    account = of_kind(objects_of(WORKLOAD), "ServiceAccount")["metadata"]
    user = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert condition["expression"] == f'request.userInfo.username == "{user}"'
    (ours,) = [item["expression"] for item in spec["variables"] if item["name"] == "ours"]
    assert set(re.findall(r"'(\S+?)'", ours)) == {MARK, REQUEST}
    taints = {key for item in spec["validations"] for key in re.findall(r"t\.key != '(\S+?)'", item["expression"])}
    assert taints == {TAINT}
    assert spec["failurePolicy"] == "Fail"


@needs_helm
@pytest.mark.parametrize("effect", ["NoSchedule", "PreferNoSchedule", "NoExecute"])
def test_recoverys_taint_only_keeps_new_pods_away(effect: str) -> None:
    """NoExecute would delete pods past their disruption budgets; what somebody else set may stay."""
    spec = of_chart()["ValidatingAdmissionPolicy", "neuron-node-recovery"]["spec"]
    (rule,) = [item for item in spec["validations"] if ".effect" in item["expression"]]
    policy = {"matchConditions": [], "variables": [], "validations": [rule]}

    def node(*taints: Object) -> Object:
        return {"metadata": {}, "spec": {"taints": list(taints)} if taints else {}}

    ours = {"key": TAINT, "value": "hbm-uncorrectable", "effect": effect}
    others = {"key": "example.com/maintenance", "value": "", "effect": "NoExecute"}
    new: list[list[Object]] = [[], [others], [{**ours, "value": "other"}]]
    for before in new:
        assert admits(policy, (), node(*before), node(*before, ours)) == (effect == "NoSchedule")
    harmless: list[tuple[list[Object], list[Object]]] = [
        ([ours, others], [others]),
        ([ours], [ours, others]),
        ([ours], []),
    ]
    for before, after in harmless:
        assert admits(policy, (), node(*before), node(*after))


NODE = ("system:nodes", "system:authenticated")
ADMINISTRATOR = ("system:masters", "system:authenticated")
NOTES = {MARK: "x", REQUEST: "y", "example.com/note": "z"}


@needs_helm
@pytest.mark.parametrize("key", [MARK, REQUEST])
def test_no_node_writes_what_recovery_writes_on_nodes(key: str) -> None:
    """Administrators do, since they take nodes over by hand, and a node writes all else on its Node."""
    policy = of_chart()["ValidatingAdmissionPolicy", "neuron-node-recovery-annotations"]["spec"]

    def node(*without: str, **changes: str) -> Object:
        return {
            "metadata": {"annotations": {name: text for name, text in (NOTES | changes).items() if name not in without}}
        }

    others = (MARK, REQUEST)
    forgeries: list[tuple[Object | None, Object]] = [
        (node(key), node()),
        (node(), node(key)),
        (node(), node(**{key: "other"})),
        (node(), {"metadata": {}}),
        (None, node(*(name for name in others if name != key))),
    ]
    for before, after in forgeries:
        assert not admits(policy, NODE, before, after)
        assert admits(policy, ADMINISTRATOR, before, after)
    legal: list[tuple[Object | None, Object]] = [
        (None, {"metadata": {}}),
        (None, node(*others)),
        (node(), node(**{"example.com/note": "other"})),
        (node(), node("example.com/note")),
        ({"metadata": {}}, node(*others)),
    ]
    for before, after in legal:
        assert admits(policy, NODE, before, after)


@needs_helm
def test_the_policy_for_nodes_covers_all_ways_to_write_annotations_and_fails_closed() -> None:
    objects = of_chart()
    name = "neuron-node-recovery-annotations"
    spec = objects["ValidatingAdmissionPolicy", name]["spec"]
    assert spec["failurePolicy"] == "Fail"
    (rule,) = spec["matchConstraints"]["resourceRules"]
    # Annotations can be written with the status as well.
    assert (rule["resources"], rule["operations"]) == (["nodes", "nodes/*"], ["CREATE", "UPDATE"])
    binding = objects["ValidatingAdmissionPolicyBinding", name]["spec"]
    assert binding == {"policyName": name, "validationActions": ["Deny"]}


@needs_helm
def test_every_environment_variable_is_one_that_the_command_reads() -> None:
    (container,) = pod_spec(of_kind(objects_of(WORKLOAD), "Deployment"))["containers"]
    assert container["command"] == ["dra-driver", "recover"]
    assert {entry["name"] for entry in container["env"]} <= {option.variable for option in OPTIONS}
    assert {item["metadata"].get("namespace") for item in objects_of(WORKLOAD)} == {None, SYSTEM}
    assert {option.flag: option.default for option in OPTIONS}["--namespace"] == SYSTEM


@needs_helm
def test_two_replicas_without_privileges() -> None:
    deployment = of_kind(objects_of(WORKLOAD), "Deployment")
    spec = pod_spec(deployment)
    assert deployment["spec"]["replicas"] == 2
    assert spec["securityContext"]["runAsNonRoot"]
    assert not any("hostPath" in volume for volume in spec["volumes"])


def test_the_schema_has_the_keys_the_bounds_and_the_steps_of_the_policy() -> None:
    properties = OF_RECOVERY["policy"]["properties"]
    assert set(properties) - {"remedies", "faults"} == {
        item.metadata["key"] for item in fields(Policy) if "key" in item.metadata
    }
    for item in fields(Policy):
        if bounds := item.metadata.get("range"):
            schema = properties[item.metadata["key"]]
            assert (schema["minimum"], schema["maximum"]) == bounds
    assert properties["remedies"]["propertyNames"]["enum"] == list(REMEDIES)
    assert SCHEMA["definitions"]["steps"]["items"]["enum"] == list(STEPS)
    (timeout,) = (option for option in OPTIONS if option.flag == "--hook-timeout")
    assert timeout.bounds is not None
    assert OF_RECOVERY["hook"]["properties"]["timeoutSeconds"]["maximum"] == timeout.bounds[1]


def test_the_default_values_are_a_dry_run_with_the_default_policy() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, SCHEMA)
    found = values["npd"]["nodeRecovery"]
    assert (found["enabled"], found["act"], found["cloudwatch"]) == (False, False, False)
    assert decode_policy(yaml.safe_dump(found["policy"])) == Policy()


@needs_helm
def test_without_settings_it_only_says_what_it_would_do() -> None:
    objects = of_chart()
    for item in objects.values():
        kubernetes_validate.validate(item, "1.36", strict=True)
    assert ("Namespace", SYSTEM) in objects
    (container,) = pod_spec(objects["Deployment", "neuron-node-recovery"])["containers"]
    assert "args" not in container
    assert decode_policy(objects["ConfigMap", "neuron-node-recovery-policy"]["data"]["policy.yaml"]) == Policy()
    assert "annotations" not in objects["ServiceAccount", "neuron-node-recovery"]["metadata"]


@needs_helm
def test_settings_arrive_in_the_program() -> None:
    role = "arn:aws:iam::123456789012:role/neuron-recovery"
    objects = of_chart(
        "act=true",
        "cloudwatch=true",
        f"roleARN={role}",
        "hook.configMap=our-hook",
        "policy.pauseSeconds=60",
        "policy.remedies.replacement={cordon,drain,replace}",
    )
    for item in objects.values():
        kubernetes_validate.validate(item, "1.36", strict=True)
    spec = pod_spec(objects["Deployment", "neuron-node-recovery"])
    assert spec["containers"][0]["args"] == ["--act", "--cloudwatch", "--hook=/hook/hook", "--hook-timeout=60"]
    (hook,) = [volume for volume in spec["volumes"] if volume["name"] == "hook"]
    assert hook["configMap"] == {"name": "our-hook", "defaultMode": 0o555}
    account = objects["ServiceAccount", "neuron-node-recovery"]
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": role}
    policy = decode_policy(objects["ConfigMap", "neuron-node-recovery-policy"]["data"]["policy.yaml"])
    assert policy.pause_seconds == 60
    assert policy.steps("hbm-uncorrectable") == ("cordon", "drain", "replace")


@needs_helm
@pytest.mark.parametrize("setting", ["policy.pauseSeconds=60", "policy.maxAtOnce=2"])
def test_another_policy_restarts_the_pods(setting: str) -> None:
    def checksum(*settings: str) -> str:
        pod = of_chart(*settings)["Deployment", "neuron-node-recovery"]["spec"]["template"]
        return str(pod["metadata"]["annotations"]["checksum/policy"])

    assert checksum() != checksum(setting)


@needs_helm
def test_who_has_instances_replaced_is_told_the_right_that_an_older_role_lacks() -> None:
    def steps(*steps: str) -> str:
        given = f"npd.nodeRecovery.policy.remedies.replacement={{{','.join(steps)}}}"
        return notes("npd.nodeRecovery.enabled=true", given)

    assert ACTIONS["DescribeInstances"] in steps("cordon", "drain", "replace")
    assert ACTIONS["DescribeInstances"] not in steps("cordon", "drain", "request")


# The page and the image


PAGE = (DOCS / "operate/health.md").read_text()


def test_the_policy_on_the_page_is_legal_and_shows_every_setting_with_its_default() -> None:
    (text,) = re.findall(r"```yaml\n(persistSeconds.*?)```", PAGE, re.DOTALL)
    keys = [item.metadata["key"] for item in fields(Policy) if "key" in item.metadata]
    assert [*keys, "remedies", "faults"] == sorted(yaml.safe_load(text), key=list(yaml.safe_load(text)).index)
    found = decode_policy(text)
    assert replace(found, remedies={}, faults={}) == Policy()


def test_rights_events_and_names_on_the_page_are_those_of_the_code() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    granted = [action for statement in json.loads(text)["Statement"] for action in statement["Action"]]
    assert sorted(granted) == sorted(ACTIONS.values())
    assert {reason for reason, _ in EVENTS.values()} <= set(re.findall(r"`(NeuronRecovery\w+)`", PAGE))
    assert all(f"`{reason}`" in PAGE for reason in get_args(Reason))
    assert all(f"`{name}`" in PAGE for name in (MARK, REQUEST, *STEPS))


def test_the_image_keeps_what_the_code_asks_aws_for() -> None:
    kept = re.findall(r"! -name (\S+)", (ROOT / "Dockerfile").read_text())
    assert kept == sorted(SERVICES)

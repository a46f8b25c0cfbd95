"""The placer's Deployment: valid, least rights, unprivileged, and only when it is asked for."""

from __future__ import annotations

import re
from collections import Counter

import kubernetes_validate
import pytest

from dra_driver.ultraserver.placer.controller import LEASE_NAME
from dra_driver.ultraserver.placer.controller import NAME as MEMORY_NAME
from dra_driver.ultraserver.placer.values import (
    GATE,
    GROUP_LABEL,
    LWS_GROUP_LABEL,
    PLACED_ANNOTATION,
    SINCE_ANNOTATION,
    STUCK_ANNOTATION,
)
from tests.manifests.admission import admits
from tests.manifests.support import IMAGE, NEEDS_KUBECTL, Object, of_kind, rendered

pytestmark = NEEDS_KUBECTL

PLACER = "neuron-dra-driver-placer"
POLICIES = ("annotations", "own-objects")
"""Ends of the names of the policies beside the one of its own name."""


def added(*of_placer: str, driver: tuple[str, ...] = ()) -> list[Object]:
    """What --placer, with options of its own, adds to a driver with these options."""
    with_it, without = rendered("--placer", *of_placer, *driver, IMAGE), rendered(*driver, IMAGE)
    assert [item for item in with_it if item in without] == without
    return [item for item in with_it if item not in without]


def container() -> Object:
    (only,) = of_kind(added(), "Deployment")["spec"]["template"]["spec"]["containers"]
    found: Object = only
    return found


@pytest.mark.parametrize("version", ["1.34", "1.36", "1.37"])
@pytest.mark.parametrize(("options", "driver"), [((), ()), (("--group-timeout=20",), ("--emulate", "trn2u.48xlarge"))])
def test_what_is_added_is_valid_and_has_the_placers_name(
    version: str, options: tuple[str, ...], driver: tuple[str, ...]
) -> None:
    objects = added(*options, driver=driver)
    assert Counter(item["kind"] for item in objects) == {
        "ServiceAccount": 1,
        "ClusterRole": 1,
        "ClusterRoleBinding": 1,
        "Role": 1,
        "RoleBinding": 1,
        "ValidatingAdmissionPolicy": 3,
        "ValidatingAdmissionPolicyBinding": 3,
        "PodDisruptionBudget": 1,
        "Deployment": 1,
    }
    assert objects[-1]["kind"] == "Deployment", "pods come after what limits them"
    for item in objects:
        kubernetes_validate.validate(item, version, strict=True)
        assert item["metadata"]["name"] in {PLACER, *(f"{PLACER}-{name}" for name in POLICIES)}


def test_the_placer_may_do_exactly_this() -> None:
    rules = [*of_kind(added(), "ClusterRole")["rules"], *of_kind(added(), "Role")["rules"]]
    named = [LEASE_NAME]
    assert [LEASE_NAME] == [MEMORY_NAME]
    assert rules == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims", "resourceslices"],
            "verbs": ["list", "watch"],
        },
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": named,
            "verbs": ["get", "update"],
        },
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": named, "verbs": ["get", "update"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
    ]


@pytest.mark.parametrize("label", [GROUP_LABEL, LWS_GROUP_LABEL])
@pytest.mark.parametrize("placed", [False, True])
def test_who_has_a_place_on_a_server_keeps_the_labels_by_which_the_placer_finds_it(label: str, placed: bool) -> None:
    policies = {item["metadata"]["name"]: item for item in added() if item["kind"] == "ValidatingAdmissionPolicy"}
    policy = policies[f"{PLACER}-annotations"]["spec"]

    def pod(**labels: str) -> Object:
        return {"metadata": {"labels": labels, "annotations": {PLACED_ANNOTATION: "s0"} if placed else {}}}

    named: Object = pod(**{label: "g"})
    unlabelled: Object = {"metadata": {"annotations": named["metadata"]["annotations"]}}
    for before, after in ((named, pod(**{label: "h"})), (named, unlabelled), (unlabelled, named)):
        assert admits(policy, (), before, after) != placed
    assert admits(policy, (), named, pod(**{label: "g", "other": "x"}))
    assert admits(policy, (), None, pod(**{label: "g"})) != placed, "nobody creates a pod with its annotation"


def test_the_policy_limits_the_placer_to_pods_with_its_gate() -> None:
    specs = {item["metadata"]["name"]: item["spec"] for item in added() if item["kind"] == "ValidatingAdmissionPolicy"}
    spec = specs.pop(PLACER)
    others, created = (specs.pop(f"{PLACER}-{name}") for name in POLICIES)
    assert not specs
    (condition,) = spec["matchConditions"]
    account = f"system:serviceaccount:neuron-dra-driver:{PLACER}"
    assert condition["expression"] == f'request.userInfo.username == "{account}"'
    expressions = " ".join(item["expression"] for item in spec["variables"])
    assert f"'{GATE}'" in expressions
    assert f"'{PLACED_ANNOTATION}'" in expressions
    rules = " ".join(item["expression"] for item in spec["validations"])
    assert set(re.findall(r"g\.name != '(\S+?)'", rules)) == {GATE}
    assert "object.spec.?activeDeadlineSeconds == oldObject.spec.?activeDeadlineSeconds" in rules
    assert {item["failurePolicy"] for item in (spec, others, created)} == {"Fail"}
    assert created["matchConditions"][0]["expression"] == condition["expression"]
    texts = " ".join(item["expression"] for item in created["validations"])
    assert set(re.findall(r"== '([a-z-]+)'", texts)) == {LEASE_NAME}
    assert "in ['Pod', 'Node']" in texts
    assert others["matchConditions"][0]["expression"] == f'request.userInfo.username != "{account}"'
    (rule,) = others["matchConstraints"]["resourceRules"]
    assert rule["resources"] == ["pods", "pods/status"], "a kubelet can change annotations together with the status"
    (changed,) = (item["expression"] for item in others["variables"] if item["name"] == "changed")
    assert all(f"'{name}'" in changed for name in (PLACED_ANNOTATION, SINCE_ANNOTATION, STUCK_ANNOTATION))
    (ours,) = (item["expression"] for item in spec["variables"] if item["name"] == "ours")
    assert set(re.findall(r"'(\S+)'", ours)) == {PLACED_ANNOTATION, SINCE_ANNOTATION, STUCK_ANNOTATION}


def test_mirror_pods_are_kept_out_of_groups_without_the_placer_too() -> None:
    """Under the name that the policy had when only the placer brought it."""
    (spec,) = (
        item["spec"]
        for item in rendered(IMAGE)
        if (item["kind"], item["metadata"]["name"]) == ("ValidatingAdmissionPolicy", f"{PLACER}-mirror-pods")
    )
    (condition,) = spec["matchConditions"]
    assert condition["expression"] == "has(request.userInfo.groups) && 'system:nodes' in request.userInfo.groups"
    groups, domain, own = (item["expression"] for item in spec["validations"])
    assert all(text in groups for text in (f"'{GROUP_LABEL}'", f"startsWith('{LWS_GROUP_LABEL.partition('/')[0]}/')"))
    assert "object.spec.?subdomain" in domain
    assert set(re.findall(r"'app=(\S+)'", own)) == {"neuron-dra-driver-kubelet-plugin", PLACER}


def test_the_pods_have_no_privilege() -> None:
    spec = of_kind(added(), "Deployment")["spec"]["template"]["spec"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "volumes", "initContainers"} & set(spec)


def test_two_replicas_of_the_drivers_image_run_with_the_timeout_that_was_given() -> None:
    found = of_kind(added("--group-timeout", "20"), "Deployment")
    assert found["spec"]["replicas"] == 2
    (only,) = found["spec"]["template"]["spec"]["containers"]
    assert (only["image"], only["command"]) == (IMAGE, ["dra-driver", "placer"])
    environment = {item["name"]: item.get("value") for item in only["env"]}
    assert environment["GROUP_TIMEOUT"] == "20"
    assert environment["HEALTHCHECK_PORT"] == str(only["readinessProbe"]["grpc"]["port"])

"""Who may ask with the class of workloads, and how with that for admin access: a policy, on every release."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import pytest
import yaml

from dra_driver.neuron.names import ADMIN_CLASS, CLASSES_POLICY, DRIVER_NAME, WORKLOAD_CLASS
from tests.manifests.admission import admits
from tests.manifests.chart import HELM, needs_helm, refusal, template
from tests.manifests.support import Object
from tests.paths import ROOT

NAME = CLASSES_POLICY
KIND = "ValidatingAdmissionPolicy"
OPERATOR = "system:serviceaccount:neuron-dra-driver:neuron-dra-driver-placer"
CONTROLLER = "system:serviceaccount:kube-system:resource-claim-controller"
SCHEDULER = "system:kube-scheduler"
USERS = (OPERATOR, CONTROLLER, SCHEDULER, "system:kube-controller-manager", "jane", "system:admin")
CLAIMS, TEMPLATES = "resourceclaims", "resourceclaimtemplates"
DRIVER = ("draDriver.enabled=true", "devicePlugin.enabled=false")


@cache
def policy(*settings: str) -> Object:
    """As the chart makes it; where there is no helm, as installer and kustomize have it."""
    installed = yaml.safe_load_all((ROOT / "deploy/kustomize/driver/driver.yaml").read_text())
    objects = template(*DRIVER, *settings) if HELM else installed
    (found,) = (one["spec"] for one in objects if (one["kind"], one["metadata"]["name"]) == (KIND, NAME))
    return dict(found)


def of_class(name: str, /, **fields: object) -> Object:
    return {"deviceClassName": name, **fields}


def forms(name: str, /, **fields: object) -> Iterator[tuple[str, Object]]:
    """Requests with a class in each form that a version has."""
    yield "exactly", {"name": "r", "exactly": of_class(name, **fields)}
    yield "flat", {"name": "r", **of_class(name, **fields)}
    yield "alternative", {"name": "r", "firstAvailable": [of_class("gpu.example.com"), of_class(name, name="s")]}


def sent(resource: str, *requests: Object) -> Object:
    spec: Object = {"devices": {"requests": list(requests)}}
    return {"metadata": {"name": "x"}, "spec": spec if resource == CLAIMS else {"spec": spec}}


def may(user: str, resource: str, *requests: Object) -> bool:
    return admits(policy(), (), None, sent(resource, *requests), user=user, resource=resource)


PLAIN: Object = {"name": "other", "exactly": of_class(DRIVER_NAME)}


@pytest.mark.parametrize("form", ["exactly", "flat", "alternative"])
@pytest.mark.parametrize("user", USERS)
def test_with_the_class_of_workloads_the_operator_makes_templates_and_kubernetes_claims(user: str, form: str) -> None:
    request = dict(forms(WORKLOAD_CLASS))[form]
    for requests in ((request,), (PLAIN, request), (request, PLAIN)):
        assert may(user, TEMPLATES, *requests) is (user == OPERATOR)
        assert may(user, CLAIMS, *requests) is (user == CONTROLLER)


@pytest.mark.parametrize("resource", [CLAIMS, TEMPLATES])
@pytest.mark.parametrize("user", USERS[1:])
def test_the_class_for_looking_is_for_admin_access_alone(user: str, resource: str) -> None:
    for _, request in itertools.islice(forms(ADMIN_CLASS, adminAccess=True), 2):
        assert may(user, resource, PLAIN, request)
    for fields in ({}, {"adminAccess": False}):
        for form, request in forms(ADMIN_CLASS, **fields):
            assert not may(user, resource, PLAIN, request), form
            beside = {"name": "looks", "exactly": of_class(ADMIN_CLASS, adminAccess=True)}
            assert not may(user, resource, request, beside), form


@pytest.mark.parametrize("resource", [CLAIMS, TEMPLATES])
def test_nobody_is_asked_who_asks_for_anything_else(resource: str) -> None:
    for name in (DRIVER_NAME, "chip.neuron.aws.com", "x-ultraserver.neuron.aws.com", "gpu.example.com"):
        for _, request in forms(name):
            assert may("jane", resource, request)
    assert may("jane", resource)
    # The API server shows a list as null that nobody has given.
    specs: tuple[Object, ...] = ({}, {"devices": {}}, {"devices": {"requests": None}}, {"devices": {"requests": []}})
    for devices in specs:
        after = {"metadata": {}, "spec": devices if resource == CLAIMS else {"spec": devices}}
        assert admits(policy(), (), None, after, user="jane", resource=resource)


def test_it_looks_at_both_kinds_in_all_versions_when_they_are_made() -> None:
    assert policy()["matchConstraints"]["resourceRules"] == [
        {
            "apiGroups": ["resource.k8s.io"],
            "apiVersions": ["v1", "v1beta2", "v1beta1"],
            "resources": [CLAIMS, TEMPLATES],
            "operations": ["CREATE"],
            "scope": "*",
        }
    ]
    assert policy()["failurePolicy"] == "Fail"


@needs_helm
def test_where_controllers_have_no_accounts_of_their_own_a_value_says_so() -> None:
    manager = "system:kube-controller-manager"
    found = policy(f"ultraserverOperator.claimController={manager}")
    for user in USERS:
        for _, request in forms(WORKLOAD_CLASS):
            admitted = admits(found, (), None, sent(CLAIMS, request), user=user, resource=CLAIMS)
            assert admitted is (user == manager)
    for wrong in ("system:kube-scheduler", "jane", "'||true||'"):
        assert "claimController" in refusal(*DRIVER, f"ultraserverOperator.claimController={wrong}")

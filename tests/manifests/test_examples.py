"""The examples: valid for the API versions they are written for, consistent in themselves, equal in both spellings."""

from __future__ import annotations

import copy
from pathlib import Path

import kubernetes_validate
import pytest

from tests.manifests.support import EXAMPLES, OLD_EXAMPLES, ROOT, Object, documents, name_of, pod_spec

ALL = EXAMPLES + OLD_EXAMPLES
VENDOR_NAMES = {
    "1x4-connected-devices.yaml",
    "all-devices.yaml",
    "lnc-setting-trn2.yaml",
    "specific-driver-version.yaml",
    "xl-trn2.yaml",
    "l-trn2.yaml",
    "2.26-driver-trn2.yaml",
}
TRN2 = "device.attributes['neuron.aws.com'].instanceType == 'trn2.48xlarge'"


def read(path: Path) -> list[Object]:
    return documents(path.read_text())


def templates(objects: list[Object]) -> dict[str, Object]:
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == "ResourceClaimTemplate"}


def devices(objects: list[Object]) -> list[Object]:
    return [item["spec"]["spec"]["devices"] for item in templates(objects).values()]


def as_v1(item: Object) -> Object:
    """What the API server makes of a v1beta1 object: the fields of a request move into `exactly`."""
    item = copy.deepcopy(item)
    if item["apiVersion"] != "resource.k8s.io/v1beta1":
        return item
    item["apiVersion"] = "resource.k8s.io/v1"
    if item["kind"] == "ResourceClaimTemplate":
        requests = item["spec"]["spec"]["devices"]["requests"]
        requests[:] = [
            {"name": request["name"], "exactly": {key: value for key, value in request.items() if key != "name"}}
            for request in requests
        ]
    return item


def test_every_example_of_the_vendor_exists_under_its_name() -> None:
    assert {path.name for path in EXAMPLES} >= VENDOR_NAMES


def test_every_example_exists_in_both_spellings() -> None:
    assert [path.name for path in EXAMPLES] == [path.name for path in OLD_EXAMPLES]


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
def test_examples_are_valid_where_v1_is_served(path: Path, version: str) -> None:
    for item in read(path):
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("path", OLD_EXAMPLES, ids=name_of)
@pytest.mark.parametrize("version", ["1.33", "1.34"])
def test_old_examples_are_valid_where_v1beta1_is_served(path: Path, version: str) -> None:
    for item in read(path):
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("old", OLD_EXAMPLES, ids=name_of)
def test_both_spellings_ask_for_the_same(old: Path) -> None:
    new = read(old.parents[1] / old.name)
    assert [as_v1(item) for item in read(old)] == new
    assert read(old) != new, "v1beta1 has a spelling of its own"


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_pods_use_a_template_of_the_same_file_and_every_claim_of_theirs(path: Path) -> None:
    objects = read(path)
    pods = [pod_spec(item) for item in objects if item["kind"] in {"Pod", "Deployment"}]
    assert pods
    for pod in pods:
        claims = {claim["name"] for claim in pod["resourceClaims"]}
        assert {claim["resourceClaimTemplateName"] for claim in pod["resourceClaims"]} == set(templates(objects))
        used = {claim["name"] for container in pod["containers"] for claim in container["resources"]["claims"]}
        assert used == claims


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_requests_name_a_class_that_is_installed_or_in_the_file(path: Path) -> None:
    objects = read(path)
    (installed,) = documents((ROOT / "scripts/manifests/deviceclass.yaml").read_text())
    known = {item["metadata"]["name"] for item in [installed, *objects] if item["kind"] == "DeviceClass"}
    for spec in devices(objects):
        assert {request["exactly"]["deviceClassName"] for request in spec["requests"]} <= known


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_constraints_and_configuration_name_requests_of_the_claim(path: Path) -> None:
    for spec in devices(read(path)):
        names = {request["name"] for request in spec["requests"]}
        for entry in [*spec.get("constraints", ()), *spec.get("config", ())]:
            assert set(entry["requests"]) <= names


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_opaque_parameters_are_what_the_driver_accepts(path: Path) -> None:
    from dra_driver.config import decode

    for item in read(path):
        spec = item["spec"].get("spec", item["spec"])
        for index, entry in enumerate(spec.get("devices", spec).get("config", ())):
            assert entry["opaque"]["driver"] == "neuron.aws.com"
            decode(entry["opaque"]["parameters"], f"config[{index}].opaque.parameters")


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_a_connected_set_has_the_size_of_its_group(path: Path) -> None:
    """A count below the group's size may get chips that are not neighbours."""
    for spec in devices(read(path)):
        (request,) = spec["requests"]
        for constraint in spec.get("constraints", ()):
            count = request["exactly"]["count"]
            assert constraint["matchAttribute"] == f"resource.aws.com/devicegroup{count}_id"


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_every_container_image_is_public_pinned_and_not_pulled_twice(path: Path) -> None:
    for item in read(path):
        if item["kind"] in {"Pod", "Deployment"}:
            for container in pod_spec(item)["containers"]:
                assert container["image"] == "public.ecr.aws/ubuntu/ubuntu:22.04"
                assert container["imagePullPolicy"] == "IfNotPresent"


def test_names_of_objects_differ_between_examples_so_that_all_can_be_applied() -> None:
    names = [(item["kind"], item["metadata"]["name"]) for path in EXAMPLES for item in read(path)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_each_example_says_how_to_run_it_and_what_to_expect(path: Path) -> None:
    comment = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert f"#   $ kubectl apply -f {name_of(path)}" in comment
    commands = [line for line in comment if line.startswith("#   $ ")]
    assert len([line for line in comment if line.startswith("#   ")]) > len(commands), "no expected output"


@pytest.mark.parametrize(
    ("name", "request_", "constraint"),
    [
        ("1x4-connected-devices", {"allocationMode": "ExactCount", "count": 4}, "resource.aws.com/devicegroup4_id"),
        ("all-devices", {"allocationMode": "All"}, None),
        ("lnc-setting-trn2", {"allocationMode": "All"}, None),
        ("xl-trn2", {"allocationMode": "ExactCount", "count": 16}, None),
        ("l-trn2", {"allocationMode": "ExactCount", "count": 8}, "resource.aws.com/devicegroup8_id"),
    ],
)
def test_the_claims_are_those_of_the_vendors_documentation(name: str, request_: Object, constraint: str | None) -> None:
    (spec,) = devices(read(ROOT / f"examples/specs/{name}.yaml"))
    assert spec["requests"] == [
        {
            "name": "neurons",
            "exactly": {
                "deviceClassName": "neuron.aws.com",
                "selectors": [{"cel": {"expression": TRN2}}],
                **request_,
            },
        }
    ]
    assert spec.get("constraints") == (constraint and [{"requests": ["neurons"], "matchAttribute": constraint}])


def test_driver_version_is_compared_as_a_string_as_in_the_vendors_documentation() -> None:
    (spec,) = devices(read(ROOT / "examples/specs/2.26-driver-trn2.yaml"))
    (selector,) = spec["requests"][0]["exactly"]["selectors"]
    version = "device.attributes['neuron.aws.com'].neuronDriverVersion == '2.24.7.0'"
    assert selector["cel"]["expression"] == f"{TRN2} && {version}"


def test_all_examples_are_in_the_readme() -> None:
    text = (ROOT / "examples/README.md").read_text()
    assert [path.name for path in EXAMPLES if f"(specs/{path.name})" not in text] == []

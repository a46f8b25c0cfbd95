"""The examples: valid for the API versions they are written for, consistent in themselves, equal in both spellings."""

from __future__ import annotations

import re
from pathlib import Path

import kubernetes_validate
import pytest

from dra_driver.driver.deviceclasses import DEVICE_CLASSES
from tests.builders.leaderworkerset import Group, decode, leader_pod, worker_pod
from tests.manifests.support import EXAMPLES, LIMIT_EXAMPLES, OLD_EXAMPLES, Object, as_v1, documents, name_of, pod_spec
from tests.paths import ROOT

ALL = EXAMPLES + OLD_EXAMPLES
VENDOR_NAMES = {
    "1x4-connected-devices.yaml",
    "all-devices.yaml",
    "lnc-setting-trn2.yaml",
    "specific-driver-version.yaml",
    "xl-trn2.yaml",
    "l-trn2.yaml",
    "2.26-driver-trn2.yaml",
    "2-node-inference-us.yaml",
    "4-node-inference-us.yaml",
    "us-and-lnc-config.yaml",
}
EFA = "efa.networking.k8s.aws"
OTHER_DRIVERS_CLASSES = {EFA}
NODE = "device.attributes['neuron.aws.com'].resourceType == 'neuron_node'"
GATE = "# schedulingGates: [{name: neuron.aws.com/ultraserver}]"
GROUP_CLASS = re.compile(r"group([0-9]+)\.neuron\.aws\.com")
TYPE = re.compile(r"\.instanceType == '([^']+)'")
TRN2 = "device.attributes['neuron.aws.com'].instanceType == 'trn2.48xlarge'"


def read(path: Path) -> list[Object]:
    return documents(path.read_text())


def templates(objects: list[Object]) -> dict[str, Object]:
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == "ResourceClaimTemplate"}


def devices(objects: list[Object]) -> list[Object]:
    return [item["spec"]["spec"]["devices"] for item in templates(objects).values()]


def pods_of(item: Object) -> list[Object]:
    """Specs of the pods that an object brings about; of a group, the leader's and one worker's."""
    if item["kind"] == "LeaderWorkerSet":
        return [pod["spec"] for pod in group_of(item)]
    return [pod_spec(item)] if item["kind"] in {"Pod", "Deployment"} else []


def group_of(item: Object) -> list[Object]:
    """The leader and one worker, as LeaderWorkerSet would make them; refuses fields that do not exist."""
    group = Group(decode(item), "default", 0)
    return [leader_pod(group), worker_pod(group, 1, {"metadata": {"uid": "leader"}}, "server")]


def validate(item: Object, version: str) -> None:
    """Check an object, or the pods of a LeaderWorkerSet, against the API of a Kubernetes version."""
    for each in group_of(item) if item["kind"] == "LeaderWorkerSet" else [item]:
        kubernetes_validate.validate(each, version, strict=True)


def test_every_example_of_the_vendor_exists_under_its_name() -> None:
    assert {path.name for path in EXAMPLES} >= VENDOR_NAMES


def test_every_example_exists_in_both_spellings() -> None:
    assert [path.name for path in EXAMPLES] == [path.name for path in OLD_EXAMPLES]


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36", "1.37"])
def test_examples_are_valid_where_v1_is_served(path: Path, version: str) -> None:
    for item in read(path):
        validate(item, version)


@pytest.mark.parametrize("path", OLD_EXAMPLES, ids=name_of)
@pytest.mark.parametrize("version", ["1.33", "1.34"])
def test_old_examples_are_valid_where_v1beta1_is_served(path: Path, version: str) -> None:
    for item in read(path):
        validate(item, version)


@pytest.mark.parametrize("old", OLD_EXAMPLES, ids=name_of)
def test_both_spellings_ask_for_the_same(old: Path) -> None:
    new = read(old.parents[1] / old.name)
    assert [as_v1(item) for item in read(old)] == new
    assert read(old) != new, "v1beta1 has a spelling of its own"


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_pods_use_a_template_of_the_same_file_and_every_claim_of_theirs(path: Path) -> None:
    objects = read(path)
    pods = [pod for item in objects for pod in pods_of(item)]
    assert pods
    for pod in pods:
        claims = {claim["name"] for claim in pod["resourceClaims"]}
        assert {claim["resourceClaimTemplateName"] for claim in pod["resourceClaims"]} == set(templates(objects))
        used = {claim["name"] for container in pod["containers"] for claim in container["resources"]["claims"]}
        assert used == claims


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_requests_name_a_class_that_is_installed_or_in_the_file(path: Path) -> None:
    objects = read(path)
    known = {item["metadata"]["name"] for item in objects if item["kind"] == "DeviceClass"}
    known |= {row.name for row in DEVICE_CLASSES}
    known |= OTHER_DRIVERS_CLASSES
    for spec in devices(objects):
        assert {request["exactly"]["deviceClassName"] for request in spec["requests"]} <= known


@pytest.mark.parametrize("path", LIMIT_EXAMPLES, ids=name_of)
def test_limits_of_old_pods_name_a_resource_of_a_class_that_is_installed(path: Path) -> None:
    offered = {row.extended_resource for row in DEVICE_CLASSES}
    (item,) = read(path)
    for version in ("1.36", "1.37"):
        kubernetes_validate.validate(item, version, strict=True)
    spec = pod_spec(item)
    assert "resourceClaims" not in spec, "it is a pod as it was"
    assert [set(container["resources"]["limits"]) <= offered for container in spec["containers"]] == [True]


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_constraints_and_configuration_name_requests_of_the_claim(path: Path) -> None:
    for spec in devices(read(path)):
        names = {request["name"] for request in spec["requests"]}
        for entry in [*spec.get("constraints", ()), *spec.get("config", ())]:
            assert set(entry["requests"]) <= names


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_opaque_parameters_are_what_the_driver_accepts(path: Path) -> None:
    from dra_driver.neuron.opaque_config import decode

    for item in read(path):
        spec = item["spec"].get("spec", item["spec"])
        for index, entry in enumerate(spec.get("devices", spec).get("config", ())):
            assert entry["opaque"]["driver"] == "neuron.aws.com"
            decode(entry["opaque"]["parameters"], f"config[{index}].opaque.parameters")


@pytest.mark.parametrize("path", EXAMPLES, ids=name_of)
def test_a_connected_set_has_the_size_of_its_group(path: Path) -> None:
    """A count below the group's size may get chips that are not neighbours. A node counts as all of its chips."""
    for spec in devices(read(path)):
        requests = {request["name"]: request["exactly"] for request in spec["requests"]}
        for constraint in spec.get("constraints", ()):
            asked = [requests[name] for name in constraint["requests"]]
            (chips,) = {chips_of(request) for request in asked if request["deviceClassName"] != EFA}
            assert constraint["matchAttribute"] == f"resource.aws.com/devicegroup{chips}_id"
            for request in (request for request in asked if request["deviceClassName"] == EFA):
                assert request["count"] == efa_devices_of(asked, chips)


def chips_of(request: Object) -> int:
    """The chips that a request is for, on a node of 16."""
    if request["allocationMode"] == "All" or NODE in expressions(request):
        return 16
    group = GROUP_CLASS.fullmatch(request["deviceClassName"])
    return int(request["count"]) * (int(group[1]) if group else 1)


def efa_devices_of(requests: list[Object], chips: int) -> int:
    """EFA devices of a block of so many chips, on the type that the requests select, or a trn2.48xlarge."""
    from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES

    named = [match[1] for request in requests for text in expressions(request) if (match := TYPE.search(text))]
    kind = INSTANCE_TYPES[named[0] if named else "trn2.48xlarge"]
    return len(set((kind.efa_bdfs or ())[:chips]))


def expressions(request: Object) -> list[str]:
    return [selector["cel"]["expression"] for selector in request.get("selectors", ())]


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_every_container_image_is_public_pinned_and_not_pulled_twice(path: Path) -> None:
    for item in read(path):
        for pod in pods_of(item):
            for container in pod["containers"]:
                assert container["image"] == "public.ecr.aws/ubuntu/ubuntu:22.04"
                assert container["imagePullPolicy"] == "IfNotPresent"


def test_names_of_objects_differ_between_examples_so_that_all_can_be_applied() -> None:
    names = [(item["kind"], item["metadata"]["name"]) for path in EXAMPLES for item in read(path)]
    assert len(names) == len(set(names))


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


@pytest.mark.parametrize(
    ("name", "size", "replicas", "kinds"),
    [
        ("2-node-inference-us", 2, 2, {"UltraServerConfig": 2}),
        ("4-node-inference-us", 4, 2, {"UltraServerConfig": 4}),
        ("us-and-lnc-config", 2, 1, {"UltraServerConfig": 2, "NeuronConfig": 1}),
        ("4-node-inference-us-lnc-1", 4, 1, {"UltraServerConfig": 4, "NeuronConfig": 1}),
        ("4-node-inference-us-efa", 4, 1, {"UltraServerConfig": 4}),
    ],
)
def test_groups_claim_a_node_for_each_pod_and_name_the_mode_that_fits_their_size(
    name: str, size: int, replicas: int, kinds: dict[str, int]
) -> None:
    objects = read(ROOT / f"examples/specs/{name}.yaml")
    (spec,) = devices(objects)
    node = {
        "deviceClassName": "neuron.aws.com",
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [{"cel": {"expression": NODE}}],
    }
    assert spec["requests"][0] == {"name": "neurons", "exactly": node}
    parameters = [entry["opaque"]["parameters"] for entry in spec["config"]]
    values = {item["kind"]: item.get("ultraserverMode", item.get("logicalNeuronCore")) for item in parameters}
    assert values == kinds
    (group,) = [decode(item) for item in objects if item["kind"] == "LeaderWorkerSet"]
    assert (group.spec.replicas, group.spec.leader_worker_template.size) == (replicas, size)
    assert group.topology == f"neuron.amazonaws.com/ultraserver-server-id-{size}"


@pytest.mark.parametrize("path", [path for path in ALL if "LeaderWorkerSet" in path.read_text()], ids=name_of)
def test_one_line_gives_the_leader_the_gate_of_the_placer(path: Path) -> None:
    text = path.read_text()
    assert text.count(GATE) == 1
    (item,) = [item for item in documents(text.replace(GATE, GATE[2:])) if item["kind"] == "LeaderWorkerSet"]
    validate(item, "1.34")
    leader, worker = pods_of(item)
    assert leader["schedulingGates"] == [{"name": "neuron.aws.com/ultraserver"}]
    assert "schedulingGates" not in worker


def test_driver_version_is_compared_as_a_string_as_in_the_vendors_documentation() -> None:
    (spec,) = devices(read(ROOT / "examples/specs/2.26-driver-trn2.yaml"))
    (selector,) = spec["requests"][0]["exactly"]["selectors"]
    version = "device.attributes['neuron.aws.com'].neuronDriverVersion == '2.24.7.0'"
    assert selector["cel"]["expression"] == f"{TRN2} && {version}"

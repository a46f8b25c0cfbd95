"""``dra-driver migrate``: the claims ask for what the limits asked for, and what cannot be asked for is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.cli.main import main
from dra_driver.legacy.migration import Nodes, migrate
from dra_driver.legacy.rules import NeuronResource, candidates, counts
from dra_driver.neuron.topology.groups import device_group_ids
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.simulator.manifests.unasked import reaches_devices, unasked
from dra_driver.util.errors import DriverError
from tests.generators.effort import examples
from tests.golden import golden

TYPES = [name for name, row in INSTANCE_TYPES.items() if row.devices is not None]
NEURON, CORE, RETIRED = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "aws.amazon.com/neurondevice"
TYPE_LABEL = "node.kubernetes.io/instance-type"

Object = dict[str, Any]


def container(name: str = "main", resource: str = NEURON, count: Any = 1, **fields: Any) -> Object:
    return {"name": name, "image": "example", "resources": {"limits": {resource: count}}, **fields}


def pod(*containers: Object, name: str = "pod", **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": list(containers) or [container()], **spec},
    }


def controller(kind: str, spec: Object, **fields: Any) -> Object:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "owner", "namespace": "shop"},
        "spec": {"template": {"spec": spec}, **fields},
    }


class Shell:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], directory: Path) -> None:
        self._capsys = capsys
        self._directory = directory
        self.out = self.err = ""

    def __call__(self, *arguments: object) -> int:
        status = main([str(argument) for argument in arguments])
        self.out, self.err = self._capsys.readouterr()
        assert "Traceback" not in self.err
        return status

    def file(self, content: str | Sequence[Object], name: str = "input.yaml") -> Path:
        path = self._directory / name
        path.write_text(content if isinstance(content, str) else "---\n".join(map(yaml.safe_dump, content)))
        return path

    def migrate(self, *items: Object, options: tuple[str, ...] = ()) -> list[Object]:
        assert self("migrate", self.file(items), *options) == 0, self.err
        return [item for item in yaml.safe_load_all(self.out) if item]

    def refused(self, *items: Object, options: tuple[str, ...] = ()) -> str:
        assert self("migrate", self.file(items), *options) == 1
        assert self.out == ""
        return self.err

    def allocated(self, items: list[Object], instance_type: str) -> list[tuple[int, ...]]:
        """Simulate the objects on one node that offers chips: the chips of each claim."""
        found = self.devices(items, "--instance-type", instance_type, "--partitions", "chip")
        return [tuple(sorted(int(device.rpartition("-")[2]) for device in each)) for each in found]

    def devices(self, items: list[Object], *options: str) -> list[list[str]]:
        """Simulate the objects: the devices of each claim."""
        assert self("simulate", self.file(items, "migrated.yaml"), *options, "-o", "json") == 0, self.out + self.err
        results = [claim["allocation"]["devices"]["results"] for claim in json.loads(self.out)["claims"]]
        return [[entry["device"] for entry in each] for each in results]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(capsys, tmp_path)


@pytest.mark.parametrize("name", TYPES)
def test_a_node_is_filled_with_the_connected_sets_of_the_extenders_rules(shell: Shell, name: str) -> None:
    node = Nodes().of(INSTANCE_TYPES[name])
    for count in counts(node, NeuronResource.DEVICE):
        pods = [pod(container(count=count), name=f"pod-{place}") for place in range(node.devices // count)]
        found = shell.allocated(shell.migrate(*pods, options=("--instance-type", name)), name)
        allowed = {node.ids(NeuronResource.DEVICE, mask) for mask in candidates(node, NeuronResource.DEVICE, count)}
        assert set(found) <= allowed, count
        assert sum(map(len, found)) == len({device for each in found for device in each}) == len(pods) * count


def width(name: str, size: int) -> int:
    """Logical cores of a chip; a size that the type does not have changes nothing."""
    return Nodes(None, size).of(INSTANCE_TYPES[name]).cores_per_device


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("size", [1, 2])
def test_cores_become_cores_of_one_chip_or_connected_chips_and_other_numbers_are_refused(name: str, size: int) -> None:
    node, cores = Nodes(INSTANCE_TYPES[name], size), width(name, size)
    legal = [
        *range(1, cores),
        *(cores * chips for chips in counts(node.of(INSTANCE_TYPES[name]), NeuronResource.DEVICE)),
    ]
    for count in range(1, 34):
        texts = [("input", json.dumps(pod(container(resource=CORE, count=count))))]
        if count not in legal:
            with pytest.raises(DriverError, match=f": {', '.join(map(str, legal))} are"):
                migrate(texts, node)
            continue
        made = migrate(texts, node).documents
        if count < cores:
            (request,) = made[0]["spec"]["spec"]["devices"]["requests"]
            assert request["exactly"]["deviceClassName"] == "core.neuron.aws.com"
            assert request["exactly"]["count"] == count
        else:
            chips = [("input", json.dumps(pod(container(count=count // cores))))]
            assert made == migrate(chips, node).documents


@pytest.mark.parametrize(
    ("count", "name", "size", "expected"),
    [
        (1, "trn1.32xlarge", None, []),
        (2, "trn2.48xlarge", None, ["neuron.aws.com/coreRun2_id"]),
        (3, "trn2.48xlarge", None, ["neuron.aws.com/deviceId"]),
        (4, "trn2.48xlarge", 1, ["neuron.aws.com/coreRun4_id"]),
        (5, "trn2.48xlarge", 1, ["neuron.aws.com/deviceId"]),
        (1, None, None, []),
        (2, None, None, ["neuron.aws.com/coreRun2_id"]),
        (3, None, None, ["neuron.aws.com/deviceId"]),
        (4, None, None, ["neuron.aws.com/coreRun4_id", "neuron.aws.com/deviceId"]),
    ],
)
def test_cores_are_of_one_chip_and_consecutive_where_an_attribute_says_so(
    shell: Shell, count: int, name: str | None, size: int | None, expected: list[str]
) -> None:
    options = ("--instance-type", name) if name else ()
    made = shell.migrate(
        pod(container(resource=CORE, count=count)),
        options=(*options, *(("--logical-core-size", str(size)) if size else ())),
    )
    devices = made[0]["spec"]["spec"]["devices"]
    assert [each["matchAttribute"] for each in devices.get("constraints", [])] == expected
    assert ("logicalCoreSize == 1" in shell.out) == (size == 1)
    golden(shell.err)


@pytest.mark.parametrize(
    ("name", "count"),
    [("inf2.24xlarge", 1), ("trn1.32xlarge", 1), *itertools.product(["inf1.6xlarge", "trn2.48xlarge"], [1, 2, 3])],
)
def test_claims_for_cores_fill_the_chips_of_a_node_that_offers_cores(shell: Shell, name: str, count: int) -> None:
    cores = width(name, 0)
    row = INSTANCE_TYPES[name]
    number = (row.devices or 0) * (cores // count)
    pods = [pod(container(resource=CORE, count=count), name=f"pod-{place}") for place in range(number)]
    made = shell.migrate(*pods, options=("--instance-type", name))
    found = shell.devices(made, "--instance-type", name, "--partitions", "core")
    parts = [[tuple(map(int, device.split("-")[2:])) for device in each] for each in found]
    assert all(len({chip for chip, _ in each}) == 1 for each in parts)
    assert len({part for each in parts for part in each}) == sum(map(len, parts)) == number * count
    if count == 2:
        assert all(sorted(core // 2 for _, core in each) in ([0, 0], [1, 1]) for each in parts)


@pytest.mark.parametrize(
    ("name", "count", "device"),
    [
        ("trn2.48xlarge", 4, "neuron-group4-"),
        ("trn1.32xlarge", 8, "neuron-group8-"),
        ("inf2.48xlarge", 5, "neuron-window5-"),
    ],
)
def test_claims_for_groups_get_them_from_a_node_that_offers_groups(
    shell: Shell, name: str, count: int, device: str
) -> None:
    made = shell.migrate(pod(container(count=count)), options=("--instance-type", name, "--groups"))
    ((found,),) = shell.devices(made, "--instance-type", name, "--partitions", "chip.group")
    assert found.startswith(device)


def test_containers_of_one_pod_may_ask_for_cores_and_chips_together_up_to_what_a_node_has(shell: Shell) -> None:
    trn1 = ("--instance-type", "trn1.2xlarge")
    made = shell.migrate(pod(container("a", CORE), container("b", CORE)), options=trn1)
    assert [claim["resourceClaimTemplateName"] for claim in made[-1]["spec"]["resourceClaims"]] == [
        "neuroncores-1-trn1-2xlarge"
    ] * 2
    text = shell.refused(pod(container("a", NEURON), container("b", CORE)), options=trn1)
    golden(text)


def test_an_init_container_that_asks_for_cores_uses_a_claim_that_has_them(shell: Shell) -> None:
    before = pod(container("a", count=1), container("b", CORE, 2), initContainers=[container("first", CORE, 1)])
    after = shell.migrate(before, options=("--instance-type", "trn2.48xlarge"))[-1]["spec"]
    claims = [each["resources"]["claims"] for each in (*after["initContainers"], *after["containers"])]
    assert claims[0] == claims[2] != claims[1]
    golden(shell.err)
    before = pod(container("a", count=1), initContainers=[container("first", CORE, 3)])
    shell.migrate(before, options=("--instance-type", "trn2.48xlarge"))
    golden(shell.err)
    shell.migrate(before)
    golden(shell.err)


def test_neurondevice_is_the_former_name_of_neuron(shell: Shell) -> None:
    options = ("--instance-type", "trn2.48xlarge")
    old = shell.migrate(pod(container(resource=RETIRED, count=4)), options=options)
    assert old == shell.migrate(pod(container(count=4)), options=options)


@pytest.mark.parametrize("count", [4, 8, 16])
def test_without_a_type_the_device_groups_are_asked_for(shell: Shell, count: int) -> None:
    made = shell.migrate(pod(container(count=count)))
    (constraint,) = made[0]["spec"]["spec"]["devices"]["constraints"]
    assert constraint == {"requests": ["neurons"], "matchAttribute": f"resource.aws.com/devicegroup{count}_id"}
    golden(shell.err)
    for name in ("trn1.32xlarge", "trn2.48xlarge"):
        (devices,) = shell.allocated(made, name)
        assert devices == tuple(range(count))


def test_twelve_cores_of_inf1_become_three_connected_devices(shell: Shell) -> None:
    made = shell.migrate(pod(container(resource=CORE, count=12), nodeSelector={TYPE_LABEL: "inf1.6xlarge"}))
    assert shell.allocated(made, "inf1.6xlarge") == [(0, 1, 2)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"nodeSelector": {TYPE_LABEL: "inf2.48xlarge"}}, "neurons-4-inf2-48xlarge"),
        ({"nodeSelector": {TYPE_LABEL: "ml.trn1.32xlarge"}}, "neurons-4-trn1-32xlarge"),
        ({"nodeSelector": {TYPE_LABEL: "m5.large"}}, "neurons-4-trn2-48xlarge"),
        ({"nodeSelector": {TYPE_LABEL: "trn3s-es.48xlarge"}}, "neurons-4-trn2-48xlarge"),
        ({}, "neurons-4-trn2-48xlarge"),
    ],
)
def test_the_pods_own_choice_of_nodes_comes_before_the_option(shell: Shell, spec: Object, expected: str) -> None:
    made = shell.migrate(pod(container(count=4), **spec), options=("--instance-type", "trn2.48xlarge"))
    assert made[0]["metadata"]["name"] == expected


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (["inf2.48xlarge"], "-inf2-48xlarge"),
        (["inf2.48xlarge", "a"], "-inf2-48xlarge"),
        (["inf2.48xlarge", "trn3s-es.48xlarge"], "-inf2-48xlarge"),
        (["trn1.32xlarge", "trn2.48xlarge"], "-trn1-32xlarge-or-trn2-48xlarge"),
    ],
)
def test_a_required_affinity_tells_the_types_too(shell: Shell, types: list[str], expected: str) -> None:
    term = {"matchExpressions": [{"key": TYPE_LABEL, "operator": "In", "values": types}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    made = shell.migrate(pod(container(count=4), affinity={"nodeAffinity": required}))
    assert made[0]["metadata"]["name"] == f"neurons-4{expected}"


def test_a_whole_ultraserver_node_is_found_however_the_driver_offers_it(shell: Shell) -> None:
    made = shell.migrate(pod(container(count=16)), options=("--instance-type", "trn2u.48xlarge"))
    file = shell.file(made, "migrated.yaml")
    for partitions, request in (("node", "neurons/node"), ("chip", "neurons/chips"), ("chip.node", "neurons/node")):
        options = (
            "--instance-type",
            "trn2u.48xlarge=4",
            "--emulated-ultraservers",
            "1x4",
            "--partitions",
            partitions,
        )
        assert shell("simulate", file, *options) == 0, shell.out + shell.err
        assert f"request {request}:" in shell.out, partitions


def kind(name: str, spec: Object) -> Object:
    version, _, plain = name.rpartition(" ")
    return {"apiVersion": version, "kind": plain, "metadata": {"name": "owner", "namespace": "shop"}, "spec": spec}


TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": pod(container(count=4))["spec"]}
JOB_KINDS = [
    kind("batch/v1 CronJob", {"schedule": "@daily", "jobTemplate": {"spec": {"template": TEMPLATE}}}),
    kind("apps/v1 DaemonSet", {"selector": {}, "template": TEMPLATE}),
    kind("v1 ReplicationController", {"template": TEMPLATE}),
    kind("kubeflow.org/v2beta1 MPIJob", {"mpiReplicaSpecs": {"Worker": {"replicas": 1, "template": TEMPLATE}}}),
    kind("kubeflow.org/v1 PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": TEMPLATE}}}),
    kind("ray.io/v1 RayCluster", {"workerGroupSpecs": [{"groupName": "g", "replicas": 1, "template": TEMPLATE}]}),
    kind("jobset.x-k8s.io/v1alpha2 JobSet", {"replicatedJobs": [{"template": {"spec": {"template": TEMPLATE}}}]}),
    kind("example.org/v1 Training", {"steps": [{"podTemplate": TEMPLATE}]}),
]


@pytest.mark.parametrize("owner", JOB_KINDS, ids=lambda owner: str(owner["kind"]))
def test_job_kinds_of_any_operator_are_migrated_and_simulated(shell: Shell, owner: Object) -> None:
    template, made = shell.migrate(owner, options=("--instance-type", "trn2.48xlarge"))
    assert template["metadata"] == {"name": "neurons-4-trn2-48xlarge", "namespace": "shop"}
    assert json.dumps(made).count('"resourceClaimTemplateName"') == 1
    assert NEURON not in shell.out
    golden(shell.err)
    assert shell.allocated([template, made], "trn2.48xlarge") == [(0, 1, 2, 3)]


def test_templates_of_one_object_come_in_its_order_and_its_status_is_left_alone(shell: Shell) -> None:
    groups = [{"podTemplate": {"spec": pod(container(count=count))["spec"]}} for count in (8, 1, 4)]
    owner = kind("example.org/v1 Training", {"groups": groups}) | {"status": {"limits": {NEURON: 1}}}
    made = shell.migrate(owner)
    assert [item["metadata"]["name"] for item in made[:-1]] == ["neurons-8", "neurons-1", "neurons-4"]
    assert made[-1]["status"] == owner["status"]


def test_an_object_within_an_object_has_its_template_beside_it_and_that_is_said(shell: Shell) -> None:
    inner = controller("Deployment", pod(container(count=1))["spec"])
    made = shell.migrate(kind("work.example.org/v1 Bundle", {"manifests": [inner]}))
    assert made[-1]["spec"]["manifests"][0]["spec"]["template"]["spec"]["resourceClaims"]
    golden(shell.err)


def test_schemas_that_look_like_pods_stay_and_a_text_that_asks_for_devices_is_named(shell: Shell) -> None:
    schema = kind("apiextensions.k8s.io/v1 CustomResourceDefinition", {"default": {"template": TEMPLATE}})
    assert shell.migrate(schema) == [schema]
    config = kind("v1 ConfigMap", {}) | {"data": {"pod.yaml": yaml.safe_dump(pod())}}
    assert shell("migrate", shell.file([config, pod()])) == 1
    assert "ConfigMap owner: data.pod.yaml: this is not converted" in shell.err
    kept, _, migrated = yaml.safe_load_all(shell.out)
    assert kept == config
    assert NEURON not in str(migrated)


@pytest.mark.parametrize(
    "text",
    [
        "- key: aws.amazon.com/neuron\n  effect: NoSchedule",
        "kind: KubeSchedulerConfiguration\nmanagedResources: [{name: aws.amazon.com/neuron}]",
        "nodeSelector: {aws.amazon.com/neuron.present: 'true'}",
    ],
)
def test_a_text_that_names_the_resource_otherwise_is_not_named(shell: Shell, text: str) -> None:
    config = kind("v1 ConfigMap", {}) | {"data": {"a": text}}
    assert shell.migrate(config) == [config]


def test_of_a_live_object_stays_what_a_user_writes(shell: Shell) -> None:
    made = pod()
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "1"}
    live = {"uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [owner]}
    _, stripped = shell.migrate(
        {**made, "metadata": {**made["metadata"], **live, "annotations": annotations}, "status": {"phase": "Running"}}
    )
    assert stripped["metadata"] == {**made["metadata"], "annotations": {"mine": "1"}}
    assert "status" not in stripped
    golden(shell.err)


def test_what_reaches_past_a_claim_is_named(shell: Shell) -> None:
    made = pod(
        container(count=1)
        | {"securityContext": {"privileged": True}, "volumeMounts": [{"name": "d", "mountPath": "/d"}]}
    )
    made["spec"]["volumes"] = [{"name": "d", "hostPath": {"path": "/dev/neuron0"}}]
    shell.migrate(made)
    golden(shell.err)


@pytest.mark.parametrize("path", ["/", "/dev", "/dev/", "/dev/neuron3"])
def test_directories_with_device_files_reach_devices(path: str) -> None:
    assert reaches_devices(path)


@pytest.mark.parametrize("path", ["/device", "/dev/shm", "/var", ""])
def test_other_directories_do_not(path: str) -> None:
    assert not reaches_devices(path)


@pytest.mark.parametrize(
    ("resource", "entry"),
    [
        (NEURON, {"name": "NEURON_LOGICAL_NC_CONFIG", "value": "3"}),
        (CORE, {"name": "NEURON_LOGICAL_NC_CONFIG", "value": "1"}),
        (NEURON, {"name": "NEURON_RT_VIRTUAL_CORE_SIZE", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}),
        (NEURON, {"name": "AWS_NEURON_VISIBLE_DEVICES", "value": "0"}),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value['name']}={value.get('value', 'from')}",
)
def test_what_a_container_says_of_its_devices_is_named(shell: Shell, resource: str, entry: Object) -> None:
    made = container(resource=resource, count={NEURON: 4, CORE: 1}[resource], env=[entry])
    *_, migrated = shell.migrate(pod(made), options=("--instance-type", "trn2.48xlarge"))
    assert ("env" in migrated["spec"]["containers"][0]) == ("valueFrom" in entry)
    golden(shell.err)


def test_every_kind_and_all_of_its_pod_templates_are_migrated(shell: Shell) -> None:
    spec = pod(container(count=4))["spec"]
    group = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "group", "namespace": "shop"},
        "spec": {
            "leaderWorkerTemplate": {
                "size": 2,
                "leaderTemplate": {"spec": spec},
                "workerTemplate": {"spec": pod(container(count=8))["spec"]},
            }
        },
    }
    owners = [controller(kind, spec) for kind in ("Deployment", "ReplicaSet", "StatefulSet", "Job")]
    made = shell.migrate(*owners, group, options=("--instance-type", "trn2.48xlarge"))
    kinds = [item["kind"] for item in made]
    template = "ResourceClaimTemplate"
    assert kinds == [template, "Deployment", "ReplicaSet", "StatefulSet", "Job", template, "LeaderWorkerSet"]
    assert {item["metadata"]["namespace"] for item in made} == {"shop"}
    assert NEURON not in shell.out
    assert len(shell.allocated(made[:2], "trn2.48xlarge")) == 1
    assert len(shell.allocated([made[0], *made[5:]], "trn2.48xlarge")) == 2


def test_everything_else_stays_as_it_was(shell: Shell) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "no", "b": "1:30\n2"}}
    own = {
        "apiVersion": "example.org/v1",
        "kind": "Other",
        "metadata": {"name": "o"},
        "spec": {"deep": [[{"x": None}]]},
    }
    plain = pod({"name": "main", "resources": {"limits": {"cpu": 1}}}, name="plain")
    assert shell.migrate(config, own, plain) == [config, own, plain]
    golden(shell.err)


def test_other_limits_claims_and_fields_of_a_pod_stay(shell: Shell) -> None:
    main = container(command=["run", "a\nb\n"])
    main["resources"] = {
        "limits": {"cpu": "4", NEURON: 1},
        "requests": {"memory": "1Gi", NEURON: "1"},
        "claims": [{"name": "neurons"}],
    }
    before = pod(main, resourceClaims=[{"name": "neurons", "resourceClaimName": "efa"}], tolerations=[{"key": "x"}])
    (_, after) = shell.migrate(before)
    (made,) = after["spec"]["containers"]
    assert made["command"] == ["run", "a\nb\n"]
    assert made["resources"] == {
        "limits": {"cpu": "4"},
        "requests": {"memory": "1Gi"},
        "claims": [{"name": "neurons"}, {"name": "neurons-0"}],
    }
    assert after["spec"]["resourceClaims"] == [
        {"name": "neurons", "resourceClaimName": "efa"},
        {"name": "neurons-0", "resourceClaimTemplateName": "neurons-1"},
    ]
    assert after["spec"]["tolerations"] == [{"key": "x"}]


def test_an_init_container_uses_the_smallest_sufficient_claim_of_a_container_after_it(shell: Shell) -> None:
    before = pod(
        container("small", count=1),
        container("large", count=4),
        initContainers=[container("first", count=2), container("beside", count=8, restartPolicy="Always")],
        nodeSelector={TYPE_LABEL: "inf1.24xlarge"},
    )
    after = shell.migrate(before)[-1]["spec"]
    claims = {
        item["name"]: item["resources"]["claims"][0]["name"] for item in after["initContainers"] + after["containers"]
    }
    assert claims["first"] == claims["large"]
    assert len(set(claims.values())) == 3
    golden(shell.err)
    golden(shell.err)


def test_an_init_container_that_needs_more_than_all_others_gets_a_claim_and_a_warning(shell: Shell) -> None:
    before = pod(container(count=1), initContainers=[container("a", count=4), container("b", count=2)])
    after = shell.migrate(before, options=("--instance-type", "inf1.24xlarge"))
    init = [item["resources"]["claims"] for item in after[-1]["spec"]["initContainers"]]
    assert init[0] == init[1] != after[-1]["spec"]["containers"][0]["resources"]["claims"]
    golden(shell.err)


def test_what_belongs_to_the_extender_is_taken_away(shell: Shell) -> None:
    before = pod(schedulerName="my-scheduler")
    before["metadata"]["annotations"] = {"AWS_NEURON_IDS": "0", "NEURON_ALLOCATED": "true", "mine": "1"}
    (_, after) = shell.migrate(before)
    assert "schedulerName" not in after["spec"]
    assert after["metadata"]["annotations"] == {"mine": "1"}
    golden(shell.err)
    (_, other) = shell.migrate(pod(schedulerName="mine"))
    assert other["spec"]["schedulerName"] == "mine"


def test_migrating_twice_is_migrating_once(shell: Shell) -> None:
    once = shell.migrate(pod(container(count=3), container("b", CORE, 2)), options=("--instance-type", "inf2.24xlarge"))
    assert shell.migrate(*once) == once


@pytest.mark.parametrize(
    ("item", "options"),
    [
        (pod(container(count=7)), ("--instance-type", "trn1.32xlarge")),
        (pod(container(count=17)), ("--instance-type", "trn2.48xlarge")),
        (pod(container(resource=CORE, count=5)), ("--instance-type", "trn1.32xlarge")),
        (pod(container("a", count=8), container("b", count=16)), ("--instance-type", "trn1.32xlarge")),
        (pod(container("a", CORE, 2), container("b", CORE)), ("--instance-type", "inf2.xlarge")),
    ],
)
def test_what_no_node_could_run_or_no_claim_can_say_is_refused(
    shell: Shell, item: Object, options: tuple[str, ...]
) -> None:
    error = shell.refused(item, options=options)
    golden(error)
    assert "input.yaml:" in error


BAD = [
    (pod(container(count=-1)), "containers[0].resources.limits.aws.amazon.com/neuron: '-1' is not a number"),
    (pod(container(count=1.5)), "'1.5' is not a number"),
    (pod(container(count=10**9)), "1000000000 is more than any node has"),
    (pod(container(count=True)), "containers[0].resources.limits: Expected `int | float | str`, got `bool`"),
    (pod(container(count=[1])), "containers[0].resources.limits: Expected `int | float | str`, got `array`"),
    (pod({"name": "a", "resources": {"requests": {NEURON: 1}}}), "must be equal to the limit, which is missing"),
    (pod({"name": "a", "resources": {"limits": {NEURON: 1}, "requests": {NEURON: 2}}}), "the limit, which is 1"),
    (pod({"name": "a", "resources": {"limits": {NEURON: 1, CORE: 2}}}), "asks for aws.amazon.com/neuron and"),
    (pod({"name": "a", "resources": {"limits": {NEURON: 1, RETIRED: 1}}}), "asks for aws.amazon.com/neuron and"),
    (pod(container(count=3)), "which 3 devices are connected depends on the instance type; give the nodes' type"),
    (pod(container(resource=CORE, count=5)), "how many devices have 5 cores depends on the instance type"),
    (pod(container(resorces={})), "unknown field; did you mean resources?"),
    (pod(*(container(f"c{number}") for number in range(65))), "65 containers ask for Neuron resources"),
    ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": 1}}, "spec.containers"),
    ({"kind": "Pod"}, "apiVersion is missing"),
    ({"apiVersion": "v1", "kind": "Pod"}, "metadata"),
    ({"apiVersion": "v1", "kind": "List", "items": 3}, "expected a list"),
]


@pytest.mark.parametrize(("item", "text"), BAD)
def test_bad_input_is_named_with_file_line_and_path(shell: Shell, item: Object, text: str) -> None:
    assert shell("migrate", shell.file([item])) == 2
    assert text in shell.err
    assert f"{shell.file([item])}:" in shell.err
    assert shell.out == ""


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "a: [",
            "3",
            "a: &x 1\nb: *x\n",
            "\x00",
            "!!binary aGk=",
            "apiVersion: v1\nkind: A\nb: .inf\n",
            "[" * 3000,
        ),
        f"{{apiVersion: v1, kind: A, spec: {'[' * 500}{']' * 500}}}",
    ],
)
def test_text_that_is_no_object_is_bad_input(shell: Shell, text: str) -> None:
    assert shell("migrate", shell.file(text)) == 2
    golden(shell.err)


def test_a_name_that_the_files_use_for_another_template_is_not_taken(shell: Shell) -> None:
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "neurons-1"},
        "spec": {"spec": {}},
    }
    for items in ([template, pod()], [pod(), template]):
        assert shell("migrate", shell.file(items)) == 2
        golden(shell.err)


def test_arguments_that_do_not_fit_are_bad_input(shell: Shell) -> None:
    assert shell("migrate") == 2
    golden(shell.err)
    assert shell("migrate", "/nonexistent") == 2
    assert shell("migrate", shell.file([pod()]), "--instance-type", "trn9") == 2
    assert shell("migrate", shell.file([pod()]), "--instance-type", "trn3s-es.48xlarge") == 2


def test_comments_are_lost_and_it_says_so(shell: Shell) -> None:
    text = yaml.safe_dump(pod())
    shell("migrate", shell.file(text))
    assert "comments" not in shell.err
    shell("migrate", shell.file(f"# mine\n{text}"))
    golden(shell.err)


def test_a_list_in_json_becomes_a_list_in_json(shell: Shell) -> None:
    text = json.dumps(
        {"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}, "spec": {}}, pod()]}
    )
    assert shell("migrate", shell.file(text), "-o", "json") == 0, shell.err
    made = json.loads(shell.out)
    assert [item["kind"] for item in made["items"]] == ["Pod", "ResourceClaimTemplate", "Pod"]


def test_quotas_for_limits_are_pointed_out(shell: Shell) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {f"requests.{NEURON}": "4"}},
    }
    assert quota in shell.migrate(quota, pod())
    golden(shell.err)


def test_equal_warnings_are_said_once(shell: Shell) -> None:
    shell.migrate(*(pod(container(count=4), name=f"pod-{place}") for place in range(5)))
    (line,) = shell.err.splitlines()
    assert line.endswith("(and 4 more places)")


def test_the_class_for_old_pods_serves_the_claim_that_the_scheduler_makes_for_them(shell: Shell) -> None:
    assert shell("migrate", "--extended-resources") == 0
    (made,) = yaml.safe_load_all(shell.out)
    assert made["spec"]["extendedResourceName"] == NEURON
    request = {"name": "container-0-request-0", "exactly": {"deviceClassName": made["metadata"]["name"], "count": 4}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "pod-extended-resources"},
        "spec": {"devices": {"requests": [request]}},
    }
    assert shell.allocated([made, claim], "trn2.48xlarge") == [(0, 1, 2, 3)]


def test_classes_are_those_that_the_pods_need(shell: Shell) -> None:
    file = shell.file([pod(container("a"), container("b", RETIRED, 16)), pod(name="two", schedulerName="my-scheduler")])
    assert shell("migrate", "--extended-resources", file) == 0
    made = list(yaml.safe_load_all(shell.out))
    assert [item["spec"]["extendedResourceName"] for item in made] == [NEURON, RETIRED]
    golden(shell.err)
    assert shell("migrate", "--extended-resources", "--instance-type", "trn2.48xlarge", file) == 0
    assert "'trn2.48xlarge'" in shell.out


def test_cores_have_a_class_too_which_cannot_ask_for_one_chip(shell: Shell) -> None:
    file = shell.file([pod(container(resource=CORE, count=2))])
    assert shell("migrate", "--extended-resources", file) == 0
    (made,) = yaml.safe_load_all(shell.out)
    assert made["spec"]["extendedResourceName"] == CORE
    assert "resourceType == 'neuron_core'" in shell.out
    golden(shell.err)


def test_files_that_can_stay_as_they_are_are_named(shell: Shell) -> None:
    one, two = shell.file([pod(), pod(name="b")], "one.yaml"), shell.file([pod({"name": "main"})], "two.yaml")
    assert shell("migrate", "--extended-resources", one, two) == 0
    golden(shell.err)


@pytest.mark.parametrize(
    ("before", "together", "devices"),
    [((), (20, 12), 32), ((), (20, 20), 40), ((33,), (1,), 33), ((16,), (16, 16), 32), ((), (128,), 128)],
)
def test_pods_whose_claim_would_be_too_large_cannot_stay_as_migrate_and_simulate_both_say(
    shell: Shell, before: tuple[int, ...], together: tuple[int, ...], devices: int
) -> None:
    containers = [container(f"c{place}", CORE, count) for place, count in enumerate(together)]
    init = [container(f"i{place}", CORE, count) for place, count in enumerate(before)]
    item = pod(*containers)
    item["spec"] |= {"initContainers": init} if init else {}
    file = shell.file([item])
    assert shell("migrate", "--extended-resources", file) == (devices > 32)
    assert ("can stay as written" in shell.err) == (devices <= 32)
    assert (f"ask for {devices} devices" in shell.err) == (devices > 32)
    golden(shell.err)
    nodes = ("--instance-type", "trn2.48xlarge", "--partitions", "core", "--extended-resources")
    assert shell("simulate", file, *nodes) == (devices > 32)
    assert (f"devices {devices} exceeds the claim limit of 32" in shell.out) == (devices > 32)


@pytest.mark.parametrize("counts", [(128,), (64, 64), (8, 100)])
def test_cores_that_fit_with_the_other_core_size_only_are_refused_with_it(shell: Shell, counts: Sequence[int]) -> None:
    item = pod(*(container(f"c{place}", CORE, count) for place, count in enumerate(counts)))
    refusal = shell.refused(item, options=("--instance-type", "trn2.48xlarge"))
    assert ("give --logical-core-size 1" in refusal) == (counts != (8, 100))
    assert "--extended-resources" not in refusal
    golden(refusal)
    if counts != (8, 100):
        assert shell("migrate", shell.file([item]), "--instance-type", "trn2.48xlarge", "--logical-core-size", 1) == 0


def test_of_equal_places_outside_pod_templates_the_first_is_named(shell: Shell) -> None:
    roles = [container(name)["resources"] for name in ("first", "second", "third")]
    item = {"apiVersion": "example.org/v1", "kind": "Team", "metadata": {"name": "team"}, "spec": {"roles": roles}}
    assert shell("migrate", "--extended-resources", shell.file([item])) == 0
    assert f"spec.roles[0].limits.{NEURON}: " in shell.err
    assert " (and 2 more places)" in shell.err


def shares(*requests: str, attribute: str) -> Object:
    return {"requests": list(requests), "matchAttribute": attribute}


EFA = "vpc.amazonaws.com/efa"
GROUP4 = "resource.aws.com/devicegroup4_id"


def with_efa(chips: int, efa: Any, resource: str = NEURON) -> Object:
    made = container(resource=resource, count=chips)
    made["resources"]["limits"] |= {"cpu": 1, EFA: efa}
    return pod(made)


@pytest.mark.parametrize(
    ("chips", "efa", "name", "constraints", "text"),
    [
        (4, 4, "trn2.48xlarge", [shares("neurons", "efa", attribute=GROUP4)], ""),
        (4, 2, "trn1.32xlarge", [shares("neurons", "efa", attribute=GROUP4)], ""),
        (1, 1, "trn1.32xlarge", [shares("neurons", "efa", attribute="resource.aws.com/devicegroup1_id")], ""),
        (16, 16, "trn2u.48xlarge", [shares("neurons", "efa", attribute="resource.aws.com/devicegroup16_id")], ""),
        (4, 4, None, [shares("neurons", "efa", attribute=GROUP4)], "on trn1.32xlarge there are fewer than 4 EFA"),
        (4, 4, "trn1.32xlarge", [shares("neurons", attribute=GROUP4)], "4 EFA devices are more than the 2 next to 4"),
        (
            2,
            1,
            "inf2.48xlarge",
            [shares("neurons", attribute="neuron.aws.com/segment2_id")],
            "on inf2.48xlarge there is no group of 2 devices with EFA",
        ),
    ],
)
def test_efa_devices_become_a_part_of_the_claim_next_to_the_chips_where_counts_make_a_pair(
    shell: Shell, chips: int, efa: int, name: str | None, constraints: list[Object], text: str
) -> None:
    options = ("--efa", *(("--instance-type", name) if name else ()))
    template, made = shell.migrate(with_efa(chips, efa), options=options)
    devices = template["spec"]["spec"]["devices"]
    assert devices["requests"][1] == {
        "name": "efa",
        "exactly": {"deviceClassName": "efa.networking.k8s.aws", "allocationMode": "ExactCount", "count": efa},
    }
    assert devices["constraints"] == constraints
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"cpu": 1}
    assert text in shell.err
    golden(shell.err)


def efa_driver(name: str) -> list[Object]:
    """Class and slice of AWS's EFA DRA driver on ``node-1``, with the attributes that both drivers publish."""
    row = INSTANCE_TYPES[name]
    groups = {ids[1]: ids for chip in range(row.devices or 0) if (ids := device_group_ids(row, chip))}
    devices = [
        {
            "name": f"efa-{number}",
            "attributes": {f"resource.aws.com/devicegroup{size}_id": {"string": each} for size, each in ids.items()},
        }
        for number, ids in enumerate(reversed(groups.values()))
    ]
    driver = "efa.networking.k8s.aws"
    common = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": driver}}
    pool = {"name": "node-1", "generation": 1, "resourceSliceCount": 1}
    return [
        common
        | {"kind": "DeviceClass", "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]}},
        common
        | {"kind": "ResourceSlice", "spec": {"driver": driver, "nodeName": "node-1", "pool": pool, "devices": devices}},
    ]


@pytest.mark.parametrize(("name", "chips", "efa"), [("trn2.48xlarge", 4, 4), ("trn1.32xlarge", 8, 4)])
def test_pods_get_the_efa_devices_next_to_their_chips(shell: Shell, name: str, chips: int, efa: int) -> None:
    row = INSTANCE_TYPES[name]
    pods = [with_efa(chips, efa) | {"metadata": {"name": f"pod-{place}"}} for place in range(16 // chips)]
    made = shell.migrate(*pods, options=("--efa", "--instance-type", name))
    file = shell.file([*efa_driver(name), *made], "migrated.yaml")
    assert shell("simulate", file, "--instance-type", name, "-o", "json") == 0, shell.out + shell.err
    addresses = list(dict.fromkeys(device_group_ids(row, chip)[1] for chip in range(16)))[::-1]
    for claim in json.loads(shell.out)["claims"]:
        found = [entry["device"].rpartition("-") for entry in claim["allocation"]["devices"]["results"]]
        beside = {device_group_ids(row, int(number))[1] for kind, _, number in found if kind == "neuron-device"}
        assert {addresses[int(number)] for kind, _, number in found if kind == "efa"} == beside
        assert len(found) == chips + efa


def test_without_efa_the_limit_stays_and_a_warning_says_so(shell: Shell) -> None:
    _, made = shell.migrate(with_efa(4, 4), options=("--instance-type", "trn2.48xlarge"))
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"cpu": 1, EFA: 4}
    golden(shell.err)
    shell.migrate(pod(), options=("--efa",))
    assert EFA not in shell.err


def test_efa_devices_of_containers_without_chips_stay_limits(shell: Shell) -> None:
    alone = {"name": "alone", "resources": {"limits": {EFA: 1}}}
    _, made = shell.migrate(pod(container(count=1), alone), options=("--efa",))
    assert made["spec"]["containers"][1] == alone
    golden(shell.err)


def test_cores_have_nothing_in_common_with_efa_devices(shell: Shell) -> None:
    template, _ = shell.migrate(with_efa(2, 1, CORE), options=("--efa", "--instance-type", "trn2.48xlarge"))
    (constraint,) = template["spec"]["spec"]["devices"]["constraints"]
    assert constraint == shares("neurons", attribute="neuron.aws.com/coreRun2_id")
    golden(shell.err)


def test_what_is_wrong_with_efa_limits_is_refused(shell: Shell) -> None:
    golden(shell.refused(with_efa(16, 17), options=("--efa",)))
    assert shell("migrate", shell.file([with_efa(4, "many")]), "--efa") == 2
    golden(shell.err)


@pytest.mark.parametrize(
    ("count", "name", "device_class", "selectors"),
    [
        (4, "trn2.48xlarge", "group4.neuron.aws.com", 1),
        (8, "trn2u.48xlarge", "group8.neuron.aws.com", 1),
        (3, "inf2.48xlarge", "group.neuron.aws.com", 2),
        (4, None, "group4.neuron.aws.com", 0),
        (2, None, "group2.neuron.aws.com", 0),
        (1, "trn2.48xlarge", "neuron.aws.com", 1),
        (16, "trn2.48xlarge", "neuron.aws.com", 1),
        (16, None, "neuron.aws.com", 1),
    ],
)
def test_with_groups_connected_chips_are_one_device(
    shell: Shell, count: int, name: str | None, device_class: str, selectors: int
) -> None:
    options = ("--groups", *(("--instance-type", name) if name else ()))
    template, _ = shell.migrate(pod(container(count=count)), options=options)
    devices = template["spec"]["spec"]["devices"]
    (request,) = devices["requests"]
    assert request["exactly"]["deviceClassName"] == device_class
    assert len(request["exactly"].get("selectors", ())) == selectors
    grouped = device_class.startswith("group")
    assert request["exactly"]["count"] == (1 if grouped else count)
    assert "constraints" not in devices or not grouped
    golden(shell.err)


def test_a_group_and_its_efa_devices_share_the_groups_attribute(shell: Shell) -> None:
    options = ("--groups", "--efa", "--instance-type", "trn2.48xlarge")
    template, _ = shell.migrate(with_efa(4, 4), options=options)
    assert template["metadata"]["name"] == "neurons-group4-efa-4-trn2-48xlarge"
    assert template["spec"]["spec"]["devices"]["constraints"] == [shares("neurons", "efa", attribute=GROUP4)]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 20) | st.sampled_from([NEURON, "1", "Always", "name", ""]),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "resources", "limits", "requests", NEURON, CORE, "claims", "nodeSelector"]), below
        )
    ),
    max_leaves=12,
)


@settings(max_examples=examples(150))
@given(spec=st.dictionaries(st.sampled_from(["containers", "initContainers", "resourceClaims", "affinity"]), VALUES))
def test_no_pod_spec_ends_in_a_traceback(spec: Object) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    try:
        made = migrate([("input", text)], Nodes(INSTANCE_TYPES["inf2.48xlarge"]))
    except DriverError as error:
        assert "input:1" in str(error)
    else:
        assert made.documents


CONTAINER_KEYS = st.sampled_from(
    ["containers", "env", "name", "volumeMounts", "volumes", "hostPath", "path", "resources"]
)


@settings(max_examples=examples(150))
@given(
    spec=st.dictionaries(CONTAINER_KEYS, st.recursive(VALUES, lambda below: st.lists(below, max_size=2)), max_size=4)
)
def test_any_pod_spec_of_any_kind_is_searched_for_devices_that_are_not_asked_for(spec: Object) -> None:
    assert list(unasked(spec)) == []
    env = spec["env"] if isinstance(spec.get("env"), list) else []
    using = {**spec, "env": [*env, {"name": "NEURON_RT_NUM_CORES"}], "resources": None}
    assert [*unasked({"containers": [using]})] == [("containers", 0, "env", len(env))]


KEYS = st.sampled_from(["spec", "template", "jobTemplate", "podSpec", "containers", "a", "limits", "default", NEURON])
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, 4, NEURON, "main"])
    | st.sampled_from([{"template": TEMPLATE}, {"podSpec": TEMPLATE["spec"]}, {"aTemplate": TEMPLATE}])
    | st.just(TEMPLATE["spec"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4),
    max_leaves=12,
)


def without_claims(value: Any) -> Any:
    """The value without what migration takes away and adds."""
    if isinstance(value, list):
        return [without_claims(each) for each in value]
    if not isinstance(value, dict):
        return value
    gone = {"resourceClaims", "claims", "limits", "resources"}
    return {key: without_claims(each) for key, each in value.items() if key not in gone}


@settings(max_examples=examples(150))
@given(body=st.dictionaries(KEYS, ANYTHING, max_size=4))
def test_pod_templates_anywhere_are_migrated_or_named_and_all_else_stays(body: Object) -> None:
    before = {"apiVersion": "example.org/v1", "kind": "Other", "metadata": {"name": "o"}, **body}
    try:
        made = migrate([("input", json.dumps(before))], Nodes(INSTANCE_TYPES["trn2.48xlarge"]))
    except DriverError as error:
        assert str(error).startswith("input:1")
        return
    after = made.documents[-1]
    assert f'"limits": {{"{NEURON}"' not in json.dumps(after) or made.left
    assert without_claims(after) == without_claims(before)
    assert (len(made.documents) > 1) == bool(made.changed) == (after != before)
    again = migrate([("input", json.dumps(after))], Nodes(INSTANCE_TYPES["trn2.48xlarge"]))
    assert again.documents == (after,)

"""``dra-driver migrate``: the claims ask for what the limits asked for, and what cannot be asked for is refused."""

from __future__ import annotations

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
from dra_driver.legacy.rules import Resource, candidates, counts
from dra_driver.topology.instance_types import INSTANCE_TYPES
from tests.generators.effort import examples

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
        """Simulate the objects on one node: the chips of each claim."""
        file = self.file(items, "migrated.yaml")
        options = ("--node", instance_type, "--ultraserver-layout", "chips", "-o", "json")
        assert self("simulate", file, *options) == 0, self.out + self.err
        results = [claim["allocation"]["devices"]["results"] for claim in json.loads(self.out)["claims"]]
        return [tuple(sorted(int(entry["device"].rpartition("-")[2]) for entry in each)) for each in results]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    return Shell(capsys, tmp_path)


@pytest.mark.parametrize("name", TYPES)
def test_a_node_is_filled_with_the_connected_sets_of_the_extenders_rules(shell: Shell, name: str) -> None:
    node = Nodes().of(INSTANCE_TYPES[name])
    for count in counts(node, Resource.DEVICE):
        pods = [pod(container(count=count), name=f"pod-{place}") for place in range(node.devices // count)]
        found = shell.allocated(shell.migrate(*pods, options=("--instance-type", name)), name)
        allowed = {node.ids(Resource.DEVICE, mask) for mask in candidates(node, Resource.DEVICE, count)}
        assert set(found) <= allowed, count
        assert sum(map(len, found)) == len({device for each in found for device in each}) == len(pods) * count


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("size", [1, 2])
def test_cores_get_the_fewest_devices_on_which_the_extender_could_put_them(shell: Shell, name: str, size: int) -> None:
    node = Nodes(None, size).of(INSTANCE_TYPES[name])
    options = ("--instance-type", name, "--logical-core-size", str(size))
    for count in counts(node, Resource.CORE)[:20]:
        made = shell.migrate(pod(container(resource=CORE, count=count)), options=options)
        fewest = min(len(node.ids(Resource.DEVICE, mask)) for mask in candidates(node, Resource.CORE, count))
        assert made[0]["metadata"]["name"].startswith(f"neurons-{fewest}-")
        exact = fewest * node.cores_per_device == count
        assert (f"set NEURON_RT_NUM_CORES={count}" in shell.err) != exact


@pytest.mark.parametrize("count", [4, 8, 16])
def test_without_a_type_the_device_groups_are_asked_for(shell: Shell, count: int) -> None:
    made = shell.migrate(pod(container(count=count)))
    (constraint,) = made[0]["spec"]["spec"]["devices"]["constraints"]
    assert constraint == {"requests": ["neurons"], "matchAttribute": f"resource.aws.com/devicegroup{count}_id"}
    assert "trn1.32xlarge" in shell.err
    for name in ("trn1.32xlarge", "trn2.48xlarge"):
        (devices,) = shell.allocated(made, name)
        assert devices == tuple(range(count))


def test_nine_cores_of_inf1_become_three_connected_devices(shell: Shell) -> None:
    made = shell.migrate(pod(container(resource=CORE, count=9), nodeSelector={TYPE_LABEL: "inf1.6xlarge"}))
    assert "9 cores become 3 whole devices of inf1.6xlarge with 12 cores" in shell.err
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


@pytest.mark.parametrize(("types", "expected"), [(["inf2.48xlarge"], "-inf2-48xlarge"), (["inf2.48xlarge", "a"], "")])
def test_a_required_affinity_for_one_type_tells_it_too(shell: Shell, types: list[str], expected: str) -> None:
    term = {"matchExpressions": [{"key": TYPE_LABEL, "operator": "In", "values": types}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    made = shell.migrate(pod(container(count=4), affinity={"nodeAffinity": required}))
    assert made[0]["metadata"]["name"] == f"neurons-4{expected}"


def test_a_whole_ultraserver_node_is_found_however_the_driver_offers_it(shell: Shell) -> None:
    made = shell.migrate(pod(container(count=16)), options=("--instance-type", "trn2u.48xlarge"))
    file = shell.file(made, "migrated.yaml")
    for layout, request in (("node", "neurons/node"), ("chips", "neurons/chips"), ("both", "neurons/node")):
        options = ("--node", "trn2u.48xlarge=4", "--emulated-ultraservers", "1x4", "--ultraserver-layout", layout)
        assert shell("simulate", file, *options) == 0, shell.out + shell.err
        assert f"request {request}:" in shell.out, layout


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
    assert "nothing asks for Neuron resources" in shell.err


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
    assert "the init container sees 4 devices" in shell.err
    assert "initContainers[0]" in shell.err


def test_an_init_container_that_needs_more_than_all_others_gets_a_claim_and_a_warning(shell: Shell) -> None:
    before = pod(container(count=1), initContainers=[container("a", count=4), container("b", count=2)])
    after = shell.migrate(before, options=("--instance-type", "inf1.24xlarge"))
    init = [item["resources"]["claims"] for item in after[-1]["spec"]["initContainers"]]
    assert init[0] == init[1] != after[-1]["spec"]["containers"][0]["resources"]["claims"]
    assert "the pod keeps its devices to the end" in shell.err


def test_what_belongs_to_the_extender_is_taken_away(shell: Shell) -> None:
    before = pod(schedulerName="my-scheduler")
    before["metadata"]["annotations"] = {"AWS_NEURON_IDS": "0", "NEURON_ALLOCATED": "true", "mine": "1"}
    (_, after) = shell.migrate(before)
    assert "schedulerName" not in after["spec"]
    assert after["metadata"]["annotations"] == {"mine": "1"}
    assert "my-scheduler is left out" in shell.err
    (_, other) = shell.migrate(pod(schedulerName="mine"))
    assert other["spec"]["schedulerName"] == "mine"


def test_migrating_twice_is_migrating_once(shell: Shell) -> None:
    once = shell.migrate(pod(container(count=3), container("b", CORE, 2)), options=("--instance-type", "inf2.24xlarge"))
    assert shell.migrate(*once) == once


@pytest.mark.parametrize(
    ("item", "options", "text"),
    [
        (pod(container(count=7)), ("--instance-type", "trn1.32xlarge"), "does not support requests for device: 7."),
        (pod(container(count=17)), ("--instance-type", "trn2.48xlarge"), "does not support requests for device: 17."),
        (pod(container(resource=CORE, count=5)), ("--instance-type", "trn1.32xlarge"), "requests for core: 5."),
        (pod(container("a", count=8), container("b", count=16)), ("--instance-type", "trn1.32xlarge"), "together"),
        (pod(container("a", CORE), container("b", CORE)), ("--instance-type", "inf2.xlarge"), "would need 2 of them"),
        (
            {
                "apiVersion": "batch/v1",
                "kind": "CronJob",
                "metadata": {"name": "c"},
                "spec": {"jobTemplate": {"spec": {"template": {"spec": pod()["spec"]}}}},
            },
            (),
            "is not a kind that can be migrated",
        ),
    ],
)
def test_what_no_node_could_run_or_no_claim_can_say_is_refused(
    shell: Shell, item: Object, options: tuple[str, ...], text: str
) -> None:
    error = shell.refused(item, options=options)
    assert text in error
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
    (pod(container(resource=CORE, count=1)), "how many devices hold 1 cores depends on the instance type"),
    (pod(container(resorces={})), "there is no such field; did you mean resources?"),
    (pod(*(container(f"c{number}") for number in range(65))), "65 containers ask for Neuron resources"),
    ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": 1}}, "spec.containers"),
    ({"kind": "Pod"}, "apiVersion is missing"),
    ({"apiVersion": "v1", "kind": "Pod"}, "metadata"),
    ({"apiVersion": "v1", "kind": "List", "items": 3}, "a list expected"),
]


@pytest.mark.parametrize(("item", "text"), BAD)
def test_bad_input_is_named_with_file_line_and_path(shell: Shell, item: Object, text: str) -> None:
    assert shell("migrate", shell.file([item])) == 2
    assert text in shell.err
    assert f"{shell.file([item])}:" in shell.err
    assert shell.out == ""


@pytest.mark.parametrize(
    "text",
    ["", "a: [", "3", "a: &x 1\nb: *x\n", "\x00", "!!binary aGk=", "apiVersion: v1\nkind: A\nb: .inf\n", "[" * 3000],
)
def test_text_that_is_no_object_is_bad_input(shell: Shell, text: str) -> None:
    assert shell("migrate", shell.file(text)) == 2
    assert "input.yaml" in shell.err


def test_a_name_that_the_files_use_for_another_template_is_not_taken(shell: Shell) -> None:
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "neurons-1"},
        "spec": {"spec": {}},
    }
    for items in ([template, pod()], [pod(), template]):
        assert shell("migrate", shell.file(items)) == 2
        assert "different content" in shell.err


def test_arguments_that_do_not_fit_are_bad_input(shell: Shell) -> None:
    assert shell("migrate") == 2
    assert "FILE is missing" in shell.err
    assert shell("migrate", "/nonexistent") == 2
    assert shell("migrate", shell.file([pod()]), "--instance-type", "trn9") == 2
    assert shell("migrate", shell.file([pod()]), "--instance-type", "trn3s-es.48xlarge") == 2


def test_comments_are_lost_and_it_says_so(shell: Shell) -> None:
    text = yaml.safe_dump(pod())
    shell("migrate", shell.file(text))
    assert "comments" not in shell.err
    shell("migrate", shell.file(f"# mine\n{text}"))
    assert "its comments are lost" in shell.err


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
    assert "it counts limits, of which the migrated pods have none" in shell.err


def test_equal_warnings_are_said_once(shell: Shell) -> None:
    shell.migrate(*(pod(container(count=4), name=f"pod-{place}") for place in range(5)))
    (line,) = shell.err.splitlines()
    assert line.endswith("(and 4 more places)")


def test_the_class_for_old_pods_serves_the_claim_that_the_scheduler_makes_for_them(shell: Shell) -> None:
    assert shell("migrate", "--extended-resource") == 0
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
    assert shell("migrate", "--extended-resource", file) == 0
    made = list(yaml.safe_load_all(shell.out))
    assert [item["spec"]["extendedResourceName"] for item in made] == [NEURON, RETIRED]
    assert "the 16 devices need not be connected" in shell.err
    assert "remove this line" in shell.err
    assert shell("migrate", "--extended-resource", "--instance-type", "trn2.48xlarge", file) == 0
    assert "need not be connected" not in shell.err
    assert "'trn2.48xlarge'" in shell.out


def test_a_class_cannot_count_cores(shell: Shell) -> None:
    file = shell.file([pod(container(resource=CORE, count=2))])
    assert shell("migrate", "--extended-resource", file) == 1
    assert "a DeviceClass cannot count cores" in shell.err


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


@settings(max_examples=examples(150), deadline=None)
@given(spec=st.dictionaries(st.sampled_from(["containers", "initContainers", "resourceClaims", "affinity"]), VALUES))
def test_no_pod_spec_ends_in_a_traceback(spec: Object) -> None:
    from dra_driver.util.errors import DriverError

    text = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    try:
        made = migrate([("input", text)], Nodes(INSTANCE_TYPES["inf2.48xlarge"]))
    except DriverError as error:
        assert "input:1" in str(error)
    else:
        assert made.documents

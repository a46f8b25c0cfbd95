"""Reading what users and clusters have: kinds, controllers, names, versions, and errors that lead to the line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from kubernetes.client import models

from dra_driver.kube.documents import documents
from dra_driver.kube.objects import apps, core, resource
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.simulator.cluster import cluster_of, merge, obstacle
from dra_driver.simulator.emulated_nodes import emulated
from dra_driver.simulator.manifests import ManifestError, Manifests, attempts, read_manifests, workloads
from dra_driver.simulator.manifests.fields import UNREAD
from tests.builders.yamlfiles import as_yaml
from tests.golden import golden, golden_error
from tests.paths import SPECS

CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec:
  devices:
    requests:
    - name: r
      exactly:
        deviceClassName: neuron.aws.com
        count: 2
"""


def read(*documents: object) -> Manifests:
    return read_manifests([("input.yaml", as_yaml(*documents))])


def failure(text: str) -> str:
    with pytest.raises(ManifestError) as caught:
        read_manifests([("input.yaml", text)])
    return str(caught.value)


def pod_spec(*claims: str, **more: Any) -> dict[str, Any]:
    entries = [{"name": name, "resourceClaimTemplateName": name} for name in claims]
    return {"containers": [{"name": "main", "image": "x"}], "resourceClaims": entries, **more}


def controller(kind: str, version: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "work"}, "spec": spec}


def names_of(document: object) -> list[str]:
    return [pod.name for pod in read(document).pods]


def test_names_of_pods_are_those_that_the_controllers_give() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod_spec("t")}
    stateful = controller("StatefulSet", "apps/v1", replicas=2, ordinals={"start": 3}, template=template)
    assert names_of(stateful) == ["work-3", "work-4"]
    group = {"size": 3, "workerTemplate": template}
    leaders = controller("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", replicas=2, leaderWorkerTemplate=group)
    assert names_of(leaders) == ["work-0", "work-0-1", "work-0-2", "work-1", "work-1-1", "work-1-2"]


@pytest.mark.parametrize(
    ("document", "count", "parts"),
    [
        (controller("Deployment", "apps/v1", replicas=3, template={"spec": pod_spec("t")}), 3, 3),
        (controller("ReplicaSet", "apps/v1", replicas=2, template={"spec": pod_spec("t")}), 2, 2),
        (controller("Job", "batch/v1", parallelism=4, completions=2, template={"spec": pod_spec("t")}), 2, 2),
        (controller("Job", "batch/v1", suspend=True, template={"spec": pod_spec("t")}), 0, 2),
        (controller("Job", "batch/v1", completionMode="Indexed", template={"spec": pod_spec("t")}), 1, 3),
    ],
)
def test_random_parts_of_names_are_always_the_same(document: object, count: int, parts: int) -> None:
    names = names_of(document)
    assert len(set(names)) == len(names) == count
    assert names == names_of(document)
    assert all(name.startswith("work-") and len(name.split("-")) == parts for name in names)


def test_each_pod_gets_a_claim_of_its_own_from_a_template() -> None:
    template = yaml.safe_load(CLAIM) | {"kind": "ResourceClaimTemplate", "metadata": {"name": "t"}}
    template["spec"] = {"spec": template["spec"]}
    stateful = controller("StatefulSet", "apps/v1", replicas=2, template={"spec": pod_spec("t")})
    made = attempts(merge(emulated([("trn2.48xlarge", 1)]), read(template, stateful)))
    assert [attempt.pod and attempt.pod.name for attempt in made] == ["work-0", "work-1"]
    names = [claim.metadata.name for attempt in made for claim in attempt.claims]
    assert len(set(names)) == 2
    assert all(name.startswith(f"work-{place}-t-") for place, name in enumerate(names))
    assert [claim.spec.devices.requests[0].exactly for attempt in made for claim in attempt.claims] == [
        resource.ExactDeviceRequest("neuron.aws.com", count=2)
    ] * 2


def test_pods_that_share_a_claim_have_the_same_one_and_other_claims_stand_alone() -> None:
    users = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "main"}], "resourceClaims": [{"name": "mine", "resourceClaimName": "c"}]},
        }
        for name in ("a", "b")
    ]
    other = yaml.safe_load(CLAIM) | {"metadata": {"name": "alone"}}
    made = attempts(merge(emulated([("trn2.48xlarge", 1)]), read(yaml.safe_load(CLAIM), other, *users)))
    assert [attempt.pod and attempt.pod.name for attempt in made] == ["a", "b", None]
    assert made[0].claims == made[1].claims
    assert made[2].claims[0].metadata.name == "alone"


def test_a_pod_whose_claims_are_known_to_the_server_uses_those() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": pod_spec("t", "unused"),
        "status": {
            "resourceClaimStatuses": [{"name": "t", "resourceClaimName": "c"}, {"name": "unused"}],
            "somethingNew": 1,
        },
    }
    (attempt,) = attempts(merge(emulated([("trn2.48xlarge", 1)]), read(yaml.safe_load(CLAIM), pod)))
    assert [claim.metadata.name for claim in attempt.claims] == ["c"]


def test_older_versions_are_read_as_v1() -> None:
    for path in sorted(SPECS.glob("*.yaml")):
        newest, oldest = (
            read_manifests([(str(file), file.read_text())]) for file in (path, SPECS / "v1beta1" / path.name)
        )
        assert newest.templates == oldest.templates, path.name
        assert newest.pods == oldest.pods, path.name
        assert newest.classes == oldest.classes, path.name


def test_a_list_and_a_typed_list_have_their_items_read() -> None:
    node = {"metadata": {"name": "n"}, "status": {"anything": 1}}
    typed = {"apiVersion": "v1", "kind": "NodeList", "metadata": {}, "items": [node]}
    plain = {"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Node", **node}]}
    assert read(typed) == read(plain)
    assert [item.metadata.name for item in read(plain).nodes] == ["n"]
    assert read_manifests([("x.json", json.dumps(plain))]) == read(plain)


def test_what_kubelet_reports_of_a_node_is_read_whatever_fields_it_has() -> None:
    condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-26T00:00:00Z", "observed": 1}
    status = {
        "nodeInfo": {"architecture": "amd64", "kubeletVersion": "v1.37.1", "swap": {"capacity": 1}},
        "conditions": [condition],
        "images": [{"names": ["a"], "sizeBytes": 1}],
    }
    (node,) = read({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": status}).nodes
    assert node.status.node_info.kubelet_version == "v1.37.1"
    assert [item.type for item in node.status.conditions] == ["Ready"]


def test_slices_that_were_never_stored_get_names_in_their_order() -> None:
    item = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "00000-a-"},
        "spec": {
            "driver": "a.example",
            "pool": {"name": "p", "resourceSliceCount": 1},
            "allNodes": True,
            "devices": [{"name": "d"}],
        },
    }
    first, second = read(item, item | {"metadata": {"generateName": "00001-a-"}}).slices
    assert first.metadata.name.startswith("00000-a-")
    assert first.metadata.name < second.metadata.name


@pytest.mark.parametrize(
    ("change", "line", "parts"),
    [
        (("count: 2", "cuont: 2"), 10, ("ResourceClaim c", "requests[0].exactly.cuont", "did you mean count?")),
        (("count: 2", "count: many"), 10, ("requests[0].exactly.count", "Expected `int`, got `str`")),
        (("count: 2", "count: -1"), 10, ("count", "less than 1")),
        (("count: 2", "allocationMode: all"), 10, ("allocationMode", "neither ExactCount nor All")),
        (("name: r", "name: R"), 7, ("requests[0].name", "lowercase")),
        (("deviceClassName: neuron.aws.com", "deviceClassName: a b"), 9, ("deviceClassName",)),
        (("kind: ResourceClaim", "kind: ResourceClam"), 2, ("ResourceClam", "did you mean ResourceClaim?")),
        (("kind: ResourceClaim", "kind: DaemonSet"), 2, ("has no kind 'DaemonSet'",)),
        (("resource.k8s.io/v1", "resource.k8s.io/v1alpha3"), 1, ("apiVersion", "write resource.k8s.io/v1")),
        (("metadata: {name: c}", "metadata: {}"), 3, ("name is required",)),
        (("count: 2", "count: 2\n        count: 3"), 11, ("duplicate key",)),
        (("count: 2", "count: [2"), 11, ("not YAML or JSON",)),
        (
            ("count: 2", "selectors: [{cel: {expression: 'device.attributes[1]'}}]"),
            10,
            ("selectors[0].cel.expression", "the expression is refused"),
        ),
        (("count: 2", "selectors: [{}]"), 10, ("cel is required",)),
        (("count: 2", "tolerations: [{operator: In}]"), 10, ("neither Equal nor Exists",)),
        (("count: 2", "capacity: {requests: {memory: 1Q}}"), 10, ("capacity.requests.memory", "is not a quantity")),
        (("    requests:", "    constraints: [{matchAttribute: numa}]\n    requests:"), 6, ("not a fully qualified",)),
        (
            ("    requests:", "    constraints: [{requests: [x], matchAttribute: a/b}]\n    requests:"),
            6,
            ("request x",),
        ),
        (("    requests:", "    config: [{opaque: {driver: a}}]\n    requests:"), 6, ("parameters", "an object")),
    ],
)
def test_an_error_names_file_line_object_and_path(change: tuple[str, str], line: int, parts: tuple[str, ...]) -> None:
    message = failure(CLAIM.replace(*change))
    golden(message)
    assert message.startswith(f"input.yaml:{line}: ")
    assert all(part in message for part in parts), message


def test_a_pod_of_a_controller_is_read_as_the_api_server_shows_it() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    metadata = {"name": "d-x", "namespace": "default", "ownerReferences": [owner | {"blockOwnerDeletion": True}]}
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
    found = read({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    assert [pod.name for pod in found.running] == ["d-x"]


def test_an_error_in_the_second_document_and_in_a_list_names_its_own_line() -> None:
    assert failure(f"{CLAIM}---\n{CLAIM.replace('count: 2', 'count: -1')}".replace("c}", "d}", 1)).startswith(
        "input.yaml:21: "
    )
    listed = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {nome: n}\n"
    assert failure(listed).startswith("input.yaml:6: Pod: items[0].metadata.nome: ")


def test_in_long_files_name_and_path_have_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_driver.kube.documents.MAX_SEARCHED_LENGTH", 10)
    message = failure(CLAIM.replace("count: 2", "count: -1"))
    golden(message)


@pytest.mark.parametrize(
    "text",
    ["", "---\n---\n", "just words", "- 1", "a: &x 1\nb: *y", "{", "kind: Pod", "\t- x", "!!bool maybe", "[" * 5000],
)
def test_what_is_no_manifest_is_one_error_that_names_the_file(text: str) -> None:
    assert failure(text).startswith("input.yaml")


WITH_ALIASES = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c, labels: &labels {app: a}, annotations: *labels}
spec:
  devices:
    requests:
    - name: r
      exactly: &one
        deviceClassName: &class neuron.aws.com
        count: 2
    - name: s
      exactly: *one
    - name: t
      exactly: {<<: *one, count: 4}
    - name: u
      firstAvailable:
      - {name: a, deviceClassName: *class}
      - {<<: [{count: 3, name: b}, *one]}
"""


def test_anchors_aliases_and_merge_keys_are_taken() -> None:
    (found,) = read_manifests([("input.yaml", WITH_ALIASES)]).claims
    assert found.metadata.annotations == {"app": "a"}
    requests = found.spec.devices.requests
    exact = [request.exactly for request in requests if request.exactly]
    assert [(one.device_class_name, one.count) for one in exact] == [("neuron.aws.com", count) for count in (2, 2, 4)]
    either = [(one.name, one.device_class_name, one.count or 1) for one in requests[3].first_available]
    assert either == [("a", "neuron.aws.com", 1), ("b", "neuron.aws.com", 3)]


def test_an_error_in_what_an_alias_stands_for_is_at_the_line_where_that_was_written() -> None:
    text = WITH_ALIASES.replace("&one\n", "&one\n        cuont: 1\n")
    golden(failure(text))


def test_a_key_that_a_merge_brings_may_be_given_again_but_not_written_twice() -> None:
    base = "a: {deep: &b {<<: &a {x: 1}, x: 2}}\nb: {<<: *b, x: 3}\n"
    assert [value for _, value in documents("input.yaml", base)] == [{"a": {"deep": {"x": 2}}, "b": {"x": 3}}]
    assert "duplicate key" in failure(base.replace("x: 3", "x: 3, x: 4"))
    golden(failure("a: &a 1\nb: {<<: *a}\n"))


def doubled(times: int) -> str:
    """Text in which each line stands for twice what the line before stands for."""
    lines = ["l0: &l0 [x, x]", *(f"l{n}: &l{n} [*l{n - 1}, *l{n - 1}]" for n in range(1, times))]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [doubled(30), doubled(1000), "a: &a [*a]", "a: &a {b: *a}", "a: &a\n  <<: *a", "kind: List\nitems: &a [*a, *a]"],
    ids=["30 times", "1000 times", "list in itself", "mapping in itself", "merged with itself", "two of itself"],
)
def test_aliases_that_stand_for_too_much_are_refused_soon(text: str) -> None:
    started = time.process_time()
    golden(failure(text))
    assert time.process_time() - started < 5.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (10, doubled),
        (112, lambda count: f"a: &a [{'x, ' * 1000}]\nb: [{'*a, ' * count}]"),
        (649, lambda count: f"p: [{'x, ' * 60_000}]\na: &a [{'x, ' * 1000}]\nb: [{'*a, ' * count}]"),
    ],
    ids=["nested", "side by side", "in a large document"],
)
def test_aliases_are_bounded_where_kubectl_bounds_them(refused: int, text: Callable[[int], str]) -> None:
    """The first counts that kubectl 1.37.1 refuses (``kubectl label --local``)."""
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
    assert len(list(documents("input.yaml", head + text(refused - 1)))) == 1
    assert "too much" in failure(head + text(refused))


def test_two_objects_of_one_name_are_an_error() -> None:
    other = CLAIM.replace("count: 2", "count: 3")
    golden(failure(f"{CLAIM}---\n{other}"))


def test_the_same_object_again_is_read_once_and_said() -> None:
    found = read(yaml.safe_load(CLAIM), yaml.safe_load(CLAIM))
    assert [item.metadata.name for item in found.claims] == ["c"]
    golden(found.not_considered)


def test_missing_templates_claims_and_classes_are_errors_at_the_line_that_names_them() -> None:
    cluster = emulated([("trn2.48xlarge", 1)])
    spec = pod_spec("t")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    with golden_error(ManifestError):
        attempts(merge(cluster, read(pod)))
    claim = yaml.safe_load(CLAIM.replace("neuron.aws.com", "other"))
    with golden_error(ManifestError):
        attempts(merge(cluster, read(claim)))
    spec["resourceClaims"] = [{"name": "t", "resourceClaimName": "d"}]
    with golden_error(ManifestError):
        attempts(merge(cluster, read(pod)))


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "t"},
        {"name": "t", "resourceClaimName": "a", "resourceClaimTemplateName": "b"},
        {"name": "other", "resourceClaimName": "a"},
    ],
)
def test_a_pod_that_does_not_fit_together_is_refused(entry: dict[str, str]) -> None:
    spec = pod_spec()
    spec["resourceClaims"] = [entry]
    spec["containers"][0]["resources"] = {"claims": [{"name": "t"}]}
    with golden_error(ManifestError):
        read({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})


def test_what_does_not_decide_is_listed() -> None:
    spec = pod_spec("t", schedulingGates=[{"name": "g"}], affinity={"podAffinity": {}, "nodeAffinity": {}})
    spec["containers"][0]["resources"] = {"requests": {"cpu": 1, "memory": "1Gi"}}
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{i}"}, "spec": spec} for i in range(5)]
    idle = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "idle"}, "spec": {"containers": [{"name": "main"}]}}
    over = {**pods[0], "metadata": {"name": "over"}, "status": {"phase": "Succeeded"}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    listed = read(*pods, idle, over, service).not_considered
    golden(listed)
    assert any(line.startswith("resources: memory: ") for line in listed)
    assert any(line.startswith("schedulingGates") for line in listed)
    assert "Service: 1" in listed


def test_emulated_nodes_publish_what_the_driver_publishes() -> None:
    cluster = emulated([("trn2.48xlarge", 2), ("inf2.xlarge", 1)])
    world, nodes = cluster_of(cluster, "1.37")
    assert [node.name for node in nodes] == ["node-1", "node-2", "node-3"]
    assert [len(pool.offers) for node in nodes for pool in world.pools.pools(node)] == [16, 16, 1]
    assert cluster.inventories["node-3"].instance_type == "inf2.xlarge"


def test_emulated_ultraserver_nodes_make_up_whole_servers() -> None:
    def servers(**options: Any) -> list[str]:
        cluster = emulated([("trn2u.48xlarge", 8)], **options)
        size = "2" if options else "4"
        return [node.metadata.labels[f"neuron.amazonaws.com/ultraserver-server-id-{size}"] for node in cluster.nodes]

    of_four, of_two = servers(), servers(ultraservers="4x2")
    assert [of_four.count(name) for name in dict.fromkeys(of_four)] == [4, 4]
    assert [of_two.count(name) for name in dict.fromkeys(of_two)] == [2, 2, 2, 2]


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_an_impossible_number_of_nodes_is_refused(count: int) -> None:
    with golden_error(ManifestError):
        emulated([("trn2.48xlarge", count)])


def test_what_is_applied_replaces_what_the_cluster_has() -> None:
    cluster = read(yaml.safe_load(CLAIM))
    changed = read(yaml.safe_load(CLAIM.replace("count: 2", "count: 3")))
    (claim,) = merge(cluster, changed).claims
    assert claim.spec.devices.requests[0].exactly == resource.ExactDeviceRequest("neuron.aws.com", count=3)


TAINT = {"key": "k", "value": "v", "effect": "NoExecute"}
NOT_IN_A = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}]}


@pytest.mark.parametrize(
    ("pod", "node", "words"),
    [
        ({}, {}, ""),
        ({"nodeName": "other"}, {}, "is for node other"),
        ({"nodeSelector": {"zone": "b"}}, {}, "zone=b, which is a"),
        ({"nodeSelector": {"disk": "b"}}, {}, "disk=b, which is not set"),
        ({}, {"unschedulable": True}, "kubectl uncordon"),
        ({"tolerations": [{"operator": "Exists"}]}, {"unschedulable": True}, ""),
        ({}, {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}, "k=v:NoSchedule"),
        ({}, {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}, ""),
        ({"tolerations": [{"key": "k", "value": "v"}]}, {"taints": [TAINT]}, ""),
        ({"tolerations": [{"key": "k", "value": "w"}]}, {"taints": [TAINT]}, "k=v:NoExecute"),
        (
            {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": NOT_IN_A}}},
            {},
            "node affinity",
        ),
    ],
)
def test_nodes_that_a_pod_may_not_run_on(pod: dict[str, Any], node: dict[str, Any], words: str) -> None:
    made = read(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": pod_spec("t", **pod)},
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": {"zone": "a"}}, "spec": node},
    )
    found = obstacle(made.pods[0], made.nodes[0])
    assert (words in found) if words else not found


MODELS: dict[type, str] = {
    core.Taint: "V1Taint",
    core.Toleration: "V1Toleration",
    core.NodeSpec: "V1NodeSpec",
    core.Node: "V1Node",
    core.Container: "V1Container",
    core.PodSpec: "V1PodSpec",
    core.Affinity: "V1Affinity",
    core.NodeAffinity: "V1NodeAffinity",
    core.ResourceRequirements: "V1ResourceRequirements",
    core.PodResourceClaim: "V1PodResourceClaim",
    core.Pod: "V1Pod",
    workloads.ReplicaSpec: "V1DeploymentSpec",
    workloads.StatefulSpec: "V1StatefulSetSpec",
    workloads.JobSpec: "V1JobSpec",
    workloads.JobTemplate: "V1JobTemplateSpec",
    workloads.CronJobSpec: "V1CronJobSpec",
    apps.DaemonSetSpec: "V1DaemonSetSpec",
    ObjectMeta: "V1ObjectMeta",
    resource.Device: "V1Device",
    resource.ResourceSliceSpec: "V1ResourceSliceSpec",
    resource.DeviceClassSpec: "V1DeviceClassSpec",
    resource.DeviceClaim: "V1DeviceClaim",
    resource.DeviceRequest: "V1DeviceRequest",
    resource.ExactDeviceRequest: "V1ExactDeviceRequest",
    resource.DeviceSubRequest: "V1DeviceSubRequest",
    resource.DeviceConstraint: "V1DeviceConstraint",
    resource.DeviceToleration: "V1DeviceToleration",
    resource.DeviceRequestAllocationResult: "V1DeviceRequestAllocationResult",
    resource.AllocationResult: "V1AllocationResult",
    resource.DeviceCounterConsumption: "V1DeviceCounterConsumption",
}
NOT_UNDERSTOOD = {"partitionTypeAttribute"}
"""Alpha fields of 1.37 that change what is allocated: named as not considered in slices."""


@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_the_legal_fields_are_those_of_the_api(kind: Any) -> None:
    legal = {*kind.__struct_encode_fields__, *UNREAD.get(kind, ())}
    assert legal == set(getattr(models, MODELS[kind]).attribute_map.values()) - NOT_UNDERSTOOD

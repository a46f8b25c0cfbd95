"""Job kinds of any operator: their pod templates are found, and the table says how many pods they stand for."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.simulator.manifests import ManifestError, Manifests, Origin, podtemplates, read_manifests
from dra_driver.simulator.manifests.podtemplates import MAX_LEVELS, MAX_TEMPLATES, at, find
from tests.builders.yamlfiles import as_yaml
from tests.generators.effort import examples
from tests.golden import golden, golden_error

Object = dict[str, Any]
ORIGIN = Origin("input.yaml", "")
SPEC: Object = {"containers": [{"name": "main"}], "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]}
TEMPLATE: Object = {"metadata": {"labels": {"a": "b"}}, "spec": SPEC}


def item(kind: str, spec: Any, name: str = "work") -> Object:
    version, _, plain = kind.rpartition(" ")
    return {"apiVersion": version, "kind": plain, "metadata": {"name": name}, "spec": spec}


def read(*items: Object, resume: bool = False) -> Manifests:
    return read_manifests([("input.yaml", as_yaml(*items))], resume=resume)


def parts(*pairs: tuple[str, int]) -> Object:
    return {name: {"replicas": count, "template": TEMPLATE} for name, count in pairs}


JOB: Object = {"template": {"spec": {"parallelism": 3, "completions": 2, "template": TEMPLATE}}}
RAY: Object = {
    "headGroupSpec": {"template": TEMPLATE},
    "workerGroupSpecs": [
        {"groupName": "Large", "replicas": 1, "minReplicas": 2, "numOfHosts": 2, "template": TEMPLATE},
        {"groupName": "off", "replicas": 4, "suspend": True, "template": TEMPLATE},
        {"replicas": 1, "template": TEMPLATE},
    ],
}
RAY_PODS = ["work-head-0", "work-large-0", "work-large-1", "work-large-2", "work-large-3", "work-2-0"]
COUNTED: list[tuple[Object, list[str]]] = [
    (
        item("kubeflow.org/v2beta1 MPIJob", {"mpiReplicaSpecs": parts(("Launcher", 1), ("Worker", 2))}),
        ["work-launcher-0", "work-worker-0", "work-worker-1"],
    ),
    (
        item("kubeflow.org/v1 PyTorchJob", {"pytorchReplicaSpecs": parts(("Master", 1), ("Worker", 1))}),
        ["work-master-0", "work-worker-0"],
    ),
    (
        item("kubeflow.org/v1 TFJob", {"runPolicy": {"suspend": True}, "tfReplicaSpecs": parts(("Worker", 2))}),
        [],
    ),
    (item("ray.io/v1 RayCluster", RAY), RAY_PODS),
    (item("ray.io/v1 RayService", {"rayClusterConfig": RAY}), RAY_PODS),
    (
        item("ray.io/v1 RayJob", {"rayClusterSpec": RAY, "submitterPodTemplate": TEMPLATE}),
        [*RAY_PODS, "work-submitter-0"],
    ),
    (item("ray.io/v1 RayCluster", {"suspend": True, **RAY}), []),
    (
        item("jobset.x-k8s.io/v1alpha2 JobSet", {"replicatedJobs": [{"name": "w", "replicas": 2, **JOB}]}),
        ["work-w-0", "work-w-1", "work-w-2", "work-w-3"],
    ),
    (
        item("batch.volcano.sh/v1alpha1 Job", {"tasks": [{"name": "t", "replicas": 2, "template": TEMPLATE}]}),
        ["work-t-0", "work-t-1"],
    ),
    (item("argoproj.io/v1alpha1 Rollout", {"replicas": 2, "template": TEMPLATE}), ["work-0", "work-1"]),
]


@pytest.mark.parametrize(("owner", "expected"), COUNTED, ids=[str(owner["kind"]) for owner, _ in COUNTED])
def test_pods_of_known_job_kinds_are_counted_as_their_operators_do(owner: Object, expected: list[str]) -> None:
    found = read(owner)
    assert [pod.name for pod in found.pods] == expected
    assert all(pod.labels == {"a": "b"} for pod in found.pods)
    assert not any("how many" in text for text in found.not_considered)


def placed(path: tuple[str, ...], value: Object) -> Object:
    """The value at a path; * is the only item of a list, which has a name."""
    for step in reversed(path):
        value = {"name": "group", **value} if step == "*" else value
        value = [value] if step == "*" else {step: value}  # type: ignore[assignment]
    return value


NONE = {"replicas": 0}
OF_KUBERNETES = ("v1 ReplicationController", "apps/v1 Deployment", "apps/v1 ReplicaSet", "apps/v1 StatefulSet")
WITHOUT_PODS: list[Object] = [
    *(item(kind, {"template": TEMPLATE, **NONE}) for kind in OF_KUBERNETES),
    item("batch/v1 Job", {"template": TEMPLATE, "parallelism": 0}),
    item("batch/v1 Job", {"template": TEMPLATE, "completions": 0}),
    item("batch/v1 CronJob", {"jobTemplate": {"spec": {"template": TEMPLATE, "suspend": True}}}),
    item("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", {"leaderWorkerTemplate": {"workerTemplate": TEMPLATE}, **NONE}),
    item("example.org/v1 Serve", {"decode": {"template": TEMPLATE, **NONE}}),
    item("example.org/v1 Serve", {"decode": {"template": SPEC, **NONE}}),
    item("example.org/v1 Serve", {"decode": {"podSpec": SPEC, **NONE}}),
    item("example.org/v1 Serve", {"suspend": True, "template": TEMPLATE}),
    item("example.org/v1 Runtime", {"jobs": [{**JOB, **NONE}]}),
    item("example.org/v1 Runtime", {"job": {"parallelism": 0, "template": TEMPLATE}}),
    item("kubeflow.org/v2beta1 MPIJob", {"mpiReplicaSpecs": {"Worker": {"template": TEMPLATE}}}),
    item("ray.io/v1 RayCluster", {"workerGroupSpecs": [{"groupName": "w", "template": TEMPLATE}]}),
    item("ray.io/v1 RayCluster", {"workerGroupSpecs": [{"replicas": 1, "suspend": True, "template": TEMPLATE}]}),
    item("jobset.x-k8s.io/v1alpha2 JobSet", {"replicatedJobs": [{"name": "w", **JOB, **NONE}]}),
    *(
        item(f"{group}/v1 {kind}", {}) | placed(rule.holder, placed(rule.template, TEMPLATE) | NONE)
        for (group, kind), rules in podtemplates.KNOWN.items()
        for rule in rules
        if not rule.role and not rule.assumed  # of which there is always one
    ),
]


@pytest.mark.parametrize("owner", WITHOUT_PODS, ids=[str(owner["kind"]) for owner in WITHOUT_PODS])
def test_what_makes_no_pods_now_is_named_and_can_be_taken_as_resumed(owner: Object) -> None:
    found, resumed = read(owner), read(owner, resume=True)
    state = "suspended" if '"suspend": true' in json.dumps(owner) else "scaled to zero"
    assert found.pods == ()
    assert [text for text in found.not_considered if text.startswith(f"{state}, so")]
    assert resumed.pods
    assert [text for text in resumed.not_considered if text.startswith(f"{state}, taken as resumed")]


def test_a_group_without_pods_beside_others_is_named_by_its_own_name() -> None:
    found = read(item("ray.io/v1 RayCluster", RAY))
    (text,) = found.not_considered
    assert text.endswith(": RayCluster default/work (off)")


@pytest.mark.parametrize("where", ["metadata", "run"])
def test_a_queue_resumes_what_it_has_suspended_and_scales_nothing(where: str) -> None:
    labels = {"labels": {"kueue.x-k8s.io/queue-name": "q"}}
    job = {"spec": {**JOB["template"]["spec"], "suspend": True}}
    run = item("batch/v1 CronJob", {"jobTemplate": {**job, "metadata": labels}})
    ray = item("ray.io/v1 RayCluster", {"suspend": True, **RAY})
    ray["metadata"] |= labels
    found = read({"metadata": ray, "run": run}[where])
    assert len(found.pods) == {"metadata": len(RAY_PODS), "run": 2}[where]


def test_a_set_of_an_old_revision_is_neither_named_nor_resumed_and_its_deployment_is() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u", "controller": True}
    old = item("apps/v1 ReplicaSet", {"replicas": 0, "selector": {}, "template": TEMPLATE}, "web-1")
    old["metadata"] |= {"uid": "r", "ownerReferences": [owner]}
    assert read(old, resume=True) == read(old)
    assert read(old).not_considered == ()
    web = item("apps/v1 Deployment", {"replicas": 0, "selector": {}, "template": TEMPLATE}, "web")
    web["metadata"] |= {"uid": "u"}
    (text,) = read(old, web).not_considered
    assert text.endswith("Deployment default/web")
    assert [pod.controller for pod in read(old, web, resume=True).pods] == ["Deployment default/web"]


def test_a_cron_job_is_read_as_one_run_and_a_daemon_set_as_one_pod() -> None:
    cron = item("batch/v1 CronJob", {"schedule": "@daily", "jobTemplate": {"spec": JOB["template"]["spec"]}})
    daemon = item("apps/v1 DaemonSet", {"selector": {}, "template": TEMPLATE})
    old = item("v1 ReplicationController", {"replicas": 2, "template": TEMPLATE})
    found = read(cron, daemon, old)
    assert [pod.controller.partition(" ")[0] for pod in found.pods] == [
        *["CronJob"] * 2,
        "DaemonSet",
        *["ReplicationController"] * 2,
    ]
    (text,) = (text for text in found.not_considered if "how many" in text)
    golden(text)
    assert read(item("batch/v1 CronJob", {"suspend": True, "jobTemplate": cron["spec"]["jobTemplate"]})).pods == ()


def test_any_other_kind_is_one_pod_for_each_template_and_that_is_said() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}, "spec": SPEC}
    spec = {"replicas": 5, "driverTemplate": TEMPLATE, "parts": [{"podSpec": SPEC}, {"manifest": pod}]}
    found = read(item("example.org/v1 Train", spec))
    assert [pod.name for pod in found.pods] == ["work-drivertemplate-0", "work-parts-0-0", "work-parts-1-manifest-0"]
    assert [dict(pod.labels) for pod in found.pods] == [{"a": "b"}, {}, {"a": "b"}]
    (text,) = found.not_considered
    golden(text)


def test_pods_of_other_kinds_may_have_fields_of_their_own_and_those_of_the_table_may_not() -> None:
    spec = {"template": {"spec": {**SPEC, "containerConcurrency": 3}}}
    found = read(item("serving.knative.dev/v1 Service", spec))
    assert "field Service.containerConcurrency" in found.not_considered
    with golden_error(ManifestError):
        read(item("argoproj.io/v1alpha1 Rollout", spec))


NO_TEMPLATES: list[Object] = [
    item("example.org/v1 Other", {"template": {"spec": {"containers": []}}}),
    item("example.org/v1 Other", {"template": {"spec": {"containers": ["main"]}}}),
    item("example.org/v1 Other", {"template": {"spec": {"containers": [{"image": "x"}]}}}),
    item("example.org/v1 Other", {"template": {"spec": {"containers": {"name": "main"}}}}),
    item("example.org/v1 Other", {"template": "spec: {containers: [{name: main}]}"}),
    item("example.org/v1 Other", {"templates": [TEMPLATE]}),
    item("example.org/v1 Other", {"schema": {"openAPIV3Schema": {"default": {"template": TEMPLATE}}}}),
    item("example.org/v1 Other", {}) | {"status": {"template": TEMPLATE}},
]


@pytest.mark.parametrize("owner", NO_TEMPLATES)
def test_what_only_resembles_a_pod_template_is_none(owner: Object) -> None:
    assert find(owner, ORIGIN) == ()
    found = read(owner)
    assert found.pods == ()
    assert found.not_considered == ("Other: 1",)


@pytest.mark.parametrize("kind", ["v1 ConfigMap", "apiextensions.k8s.io/v1 CustomResourceDefinition"])
def test_kinds_that_hold_text_and_schemas_are_not_searched(kind: str) -> None:
    found = read(item(kind, {"template": TEMPLATE}))
    assert found.pods == ()
    assert found.not_considered == (f"{kind.rpartition(' ')[2]}: 1",)


BAD: list[tuple[Any, str]] = [
    ({"replicas": -1, "template": TEMPLATE}, "spec.replicas: -1 is not a number from 0 to 150000"),
    ({"replicas": True, "template": TEMPLATE}, "True is not a number"),
    ({"replicas": "2", "template": TEMPLATE}, "2 is not a number"),
    ({"replicas": 10**30, "template": TEMPLATE}, "is not a number"),
    ({"template": {"spec": {**SPEC, "nodeSelector": 3}}}, "spec.template.spec.nodeSelector: Expected `object`"),
    ({"template": {**TEMPLATE, "metadata": [1]}}, "spec.template.metadata: Expected `object`"),
    ({"template": {"spec": {**SPEC, "resourceClaims": []}}}, ""),
    ({"template": {"spec": {**SPEC, "resourceClaims": [{"name": "c"}]}}}, "exactly one of resourceClaimName"),
]


@pytest.mark.parametrize(("spec", "text"), BAD)
def test_what_is_wrong_in_a_job_kind_is_named_with_line_and_path(spec: Any, text: str) -> None:
    owner = item("argoproj.io/v1alpha1 Rollout", spec)
    if not text:
        assert read(owner).pods == ()
        return
    with pytest.raises(ManifestError) as caught:
        read(owner)
    golden(str(caught.value))
    assert text in str(caught.value)


def test_products_of_replicas_are_bounded() -> None:
    job = {"name": "w", "replicas": 1000, "template": {"spec": {"parallelism": 1000, "template": TEMPLATE}}}
    with golden_error(ManifestError):
        read(item("jobset.x-k8s.io/v1alpha2 JobSet", {"replicatedJobs": [job]}))


def test_depth_and_number_of_templates_are_bounded() -> None:
    deep: Any = {"template": TEMPLATE}
    for _ in range(MAX_LEVELS):
        deep = {"part": deep}
    assert find(deep, ORIGIN) == ()
    many = [{"template": TEMPLATE}] * MAX_TEMPLATES
    assert len(find({"parts": many}, ORIGIN)) == MAX_TEMPLATES
    with golden_error(ManifestError):
        find({"parts": [*many, *many]}, ORIGIN)


def test_templates_that_would_have_one_name_get_two() -> None:
    spec = {"mpiReplicaSpecs": {"Worker": parts(("a", 1))["a"], "worker": parts(("a", 1))["a"]}}
    assert [pod.name for pod in read(item("kubeflow.org/v1 MPIJob", spec)).pods] == ["work-worker-0", "work-worker-1-0"]


KEYS = st.sampled_from(["spec", "template", "jobTemplate", "podSpec", "containers", "kind", "replicas", "a", "b c"])
DECOYS: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["Pod", "v1", "main"]) | st.text(max_size=4),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4),
    max_leaves=12,
)


@st.composite
def nested(draw: st.DrawFn, depth: int = 3) -> tuple[Any, list[tuple[str | int, ...]]]:
    """A value and the paths of the pod specs that were put into it, in the order of the text."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return TEMPLATE["spec"], [()]
    found: list[tuple[str | int, ...]] = []
    if draw(st.booleans()):
        made: Object = {}
        for number in range(draw(st.integers(0, 3))):
            below, paths = draw(nested(depth - 1))
            name = f"{draw(st.sampled_from(['group', 'x', 'spec']))}{number}"
            if paths == [()]:
                name, below = f"{name}Template", {"spec": below}
                paths = [("spec",)]
            made[name] = below
            found += [(name, *path) for path in paths]
        return made, found
    items = []
    for number in range(draw(st.integers(0, 3))):
        below, paths = draw(nested(depth - 1))
        if paths == [()]:
            below, paths = {"podSpec": below}, [("podSpec",)]
        items.append(below)
        found += [(number, *path) for path in paths]
    return items, found


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(nested())
def test_every_template_is_found_wherever_it_is(made: tuple[Any, list[tuple[str | int, ...]]]) -> None:
    value, paths = made
    if paths == [()]:
        value, paths = {"podSpec": value}, [("podSpec",)]
    owner = item("example.org/v1 Other", value)
    found = find(owner, ORIGIN)
    assert found == tuple(("spec", *path) for path in paths)
    assert all(at(owner, path) == SPEC for path in found)
    if found:
        assert len({pod.name for pod in read(owner).pods}) == len(found)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([*podtemplates.KNOWN, ("example.org", "Other")]), DECOYS)
def test_any_object_of_any_kind_is_read_or_refused(kind: tuple[str, str], value: Any) -> None:
    text = json.dumps(item(f"{kind[0]}/v1 {kind[1]}", value) | {"template": value})
    try:
        found = read_manifests([("input", text)])
    except ManifestError as error:
        assert str(error).startswith("input")
    else:
        assert isinstance(found, Manifests)


ASKING = "{containers: [{name: m, image: 'example/a:1', resources: {limits: {aws.amazon.com/neuron: 1}}}]}"
WITHIN: dict[str, tuple[str, dict[str, int]]] = {
    "jobs in an AppWrapper": (
        """
apiVersion: workload.codeflare.dev/v1beta2
kind: AppWrapper
metadata: {name: aw}
spec:
  components:
  - template:
      apiVersion: kubeflow.org/v1
      kind: PyTorchJob
      metadata: {name: pt}
      spec:
        pytorchReplicaSpecs:
          Master: {template: {spec: SPEC}}
          Worker: {replicas: 3, template: {spec: SPEC}}
  - template: {apiVersion: batch/v1, kind: Job, metadata: {name: job}, spec: {parallelism: 2, template: {spec: SPEC}}}
  - template: {apiVersion: batch/v1, kind: Job, metadata: {name: off}, spec: {suspend: true, template: {spec: SPEC}}}
  - template: {apiVersion: v1, kind: Pod, metadata: {name: pod}, spec: SPEC}
""",
        {"aw-pt-master": 1, "aw-pt-worker": 3, "aw-job": 2, "aw-pod": 1},
    ),
    "workloads in a ManifestWork": (
        """
apiVersion: work.open-cluster-management.io/v1
kind: ManifestWork
metadata: {name: mw}
spec:
  workload:
    manifests:
    - {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {replicas: 2, template: {spec: SPEC}}}
    - apiVersion: leaderworkerset.x-k8s.io/v1
      kind: LeaderWorkerSet
      metadata: {name: lws}
      spec:
        replicas: 2
        leaderWorkerTemplate: {size: 3, leaderTemplate: {spec: SPEC}, workerTemplate: {spec: SPEC}}
""",
        {"mw-d": 2, "mw-lws-leader": 2, "mw-lws": 4},
    ),
    "what a kro graph fills in later": (
        """
apiVersion: kro.run/v1alpha1
kind: ResourceGraphDefinition
metadata: {name: graph}
spec:
  resources:
  - id: d
    template:
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: "${schema.spec.name}"}
      spec: {replicas: "${schema.spec.replicas}", template: {spec: SPEC}}
""",
        {"graph-resources-0": 1},
    ),
    "trials of Katib": (
        """
apiVersion: kubeflow.org/v1beta1
kind: Experiment
metadata: {name: ex}
spec:
  parallelTrialCount: 2
  trialTemplate: {trialSpec: {apiVersion: batch/v1, kind: Job, spec: {parallelism: 2, template: {spec: SPEC}}}}
""",
        {"ex": 4},
    ),
    "roles of a DisaggregatedSet": (
        """
apiVersion: disaggregatedset.x-k8s.io/v1
kind: DisaggregatedSet
metadata: {name: pd}
spec:
  slices: 2
  roles:
  - {name: prefill, spec: {replicas: 2, leaderWorkerTemplate: {size: 2, workerTemplate: {spec: SPEC}}}}
  - {name: decode, spec: {replicas: 3, leaderWorkerTemplate: {size: 1, workerTemplate: {spec: SPEC}}}}
""",
        {"pd-prefill": 8, "pd-decode": 6},
    ),
    "a DaemonSet of OpenKruise": (
        "{apiVersion: apps.kruise.io/v1alpha1, kind: DaemonSet, metadata: {name: d}, spec: {template: {spec: SPEC}}}",
        {"d": 1},
    ),
    "a Deployment that a Rollout sizes": (
        """
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: r}
spec: {replicas: 3, workloadRef: {apiVersion: apps/v1, kind: Deployment, name: d}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {replicas: 0, selector: {}, template: {spec: SPEC}}}
""",
        {"d": 3},
    ),
    "a runtime that a TrainJob sizes": (
        """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tj}
spec: {runtimeRef: {name: rt}, trainer: {numNodes: 4}}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: rt}
spec:
  mlPolicy: {numNodes: 1}
  template:
    spec:
      replicatedJobs:
      - {name: model-initializer, template: {spec: {template: {spec: SPEC}}}}
      - {name: node, template: {spec: {template: {spec: SPEC}}}}
""",
        {"rt-model-initializer": 1, "rt-node": 4},
    ),
}


@pytest.mark.parametrize("name", WITHIN)
def test_an_object_within_another_one_counts_as_what_it_is(name: str) -> None:
    text, expected = WITHIN[name]
    found = read_manifests([("input.yaml", text.replace("SPEC", ASKING))])
    makers = Counter(re.sub("(-[a-z0-9]{10}-[a-z0-9]{5}|-[0-9]+)$", "", pod.name) for pod in found.pods)
    assert makers == expected

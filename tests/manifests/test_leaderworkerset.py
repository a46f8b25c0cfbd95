"""The stand-in for LeaderWorkerSet makes the pods that LeaderWorkerSet makes."""

from __future__ import annotations

import copy

import kubernetes_validate
import msgspec
import pytest
import yaml

from tests.builders.leaderworkerset import POD_IP, Group, decode, headless_service, leader_pod, worker_pod
from tests.manifests.support import Object

KEY = "3026934fa959105a39223221cf76941a46fb01bb"
TOPOLOGY = "neuron.amazonaws.com/ultraserver-server-id-4"

WANTED = f"""
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: vllm
  annotations:
    leaderworkerset.sigs.k8s.io/exclusive-topology: {TOPOLOGY}
spec:
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration:
      maxUnavailable: 1
      maxSurge: 1
  replicas: 2
  leaderWorkerTemplate:
    size: 4
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      metadata:
        labels:
          role: leader
      spec:
        containers:
        - name: vllm-leader
          image: public.ecr.aws/ubuntu/ubuntu:22.04
    workerTemplate:
      metadata:
        labels:
          role: worker
      spec:
        initContainers:
        - name: first
          image: public.ecr.aws/ubuntu/ubuntu:22.04
          env:
          - name: A
            value: "1"
          - name: LWS_WORKER_INDEX
            value: the template's own
        containers:
        - name: vllm-worker
          image: public.ecr.aws/ubuntu/ubuntu:22.04
"""

# What LeaderWorkerSet 0.10 and the StatefulSet controller made of it on Kubernetes 1.37, but for the two hashes.
RECORDED_LEADER = f"""
metadata:
  annotations:
    leaderworkerset.sigs.k8s.io/exclusive-topology: {TOPOLOGY}
    leaderworkerset.sigs.k8s.io/size: "4"
  labels:
    apps.kubernetes.io/pod-index: "0"
    statefulset.kubernetes.io/pod-name: vllm-0
    leaderworkerset.sigs.k8s.io/name: vllm
    leaderworkerset.sigs.k8s.io/group-index: "0"
    leaderworkerset.sigs.k8s.io/group-key: {KEY}
    leaderworkerset.sigs.k8s.io/worker-index: "0"
    role: leader
spec:
  hostname: vllm-0
  subdomain: vllm
  affinity:
    podAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
      - labelSelector:
          matchExpressions:
          - {{key: leaderworkerset.sigs.k8s.io/group-key, operator: In, values: [{KEY}]}}
        topologyKey: {TOPOLOGY}
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
      - labelSelector:
          matchExpressions:
          - {{key: leaderworkerset.sigs.k8s.io/group-key, operator: Exists}}
          - {{key: leaderworkerset.sigs.k8s.io/group-key, operator: NotIn, values: [{KEY}]}}
        topologyKey: {TOPOLOGY}
  containers:
  - name: vllm-leader
    image: public.ecr.aws/ubuntu/ubuntu:22.04
    env:
    - {{name: LWS_LEADER_ADDRESS, value: vllm-0.vllm.default}}
    - {{name: LWS_GROUP_SIZE, value: "4"}}
    - {{name: LWS_WORKER_INDEX, value: "0"}}
"""
RECORDED_WORKER = f"""
metadata:
  annotations:
    leaderworkerset.sigs.k8s.io/exclusive-topology: {TOPOLOGY}
    leaderworkerset.sigs.k8s.io/leader-name: vllm-0
    leaderworkerset.sigs.k8s.io/size: "4"
  labels:
    leaderworkerset.sigs.k8s.io/name: vllm
    leaderworkerset.sigs.k8s.io/group-index: "0"
    leaderworkerset.sigs.k8s.io/group-key: {KEY}
    leaderworkerset.sigs.k8s.io/worker-index: "1"
    apps.kubernetes.io/pod-index: "1"
    role: worker
spec:
  hostname: vllm-0-1
  subdomain: vllm
  nodeSelector:
    {TOPOLOGY}: us-aaaa
  initContainers:
  - name: first
    image: public.ecr.aws/ubuntu/ubuntu:22.04
    env:
    - {{name: LWS_LEADER_ADDRESS, value: vllm-0.vllm.default}}
    - {{name: LWS_GROUP_SIZE, value: "4"}}
    - {{name: LWS_WORKER_INDEX, value: "1"}}
    - {{name: A, value: "1"}}
  containers:
  - name: vllm-worker
    image: public.ecr.aws/ubuntu/ubuntu:22.04
    env:
    - {{name: LWS_LEADER_ADDRESS, value: vllm-0.vllm.default}}
    - {{name: LWS_GROUP_SIZE, value: "4"}}
    - {{name: LWS_WORKER_INDEX, value: "1"}}
"""
HASHES = ("controller-revision-hash", "leaderworkerset.sigs.k8s.io/template-revision-hash")
LEADER = {"metadata": {"name": "vllm-0", "uid": "8d6b8b0e-0000-0000-0000-000000000000"}}


def wanted() -> Object:
    document: Object = yaml.safe_load(WANTED)
    return document


def group(document: Object, index: int = 0, namespace: str = "default") -> Group:
    return Group(decode(document), namespace, index)


def test_the_leader_is_the_recorded_one() -> None:
    pod = leader_pod(group(wanted()))
    for label in HASHES:
        assert pod["metadata"]["labels"].pop(label)
    assert (pod["metadata"].pop("name"), pod["metadata"].pop("namespace")) == ("vllm-0", "default")
    assert {key: pod[key] for key in ("metadata", "spec")} == yaml.safe_load(RECORDED_LEADER)


def test_a_worker_is_the_recorded_one_owned_by_the_leader() -> None:
    pod = worker_pod(group(wanted()), 1, LEADER, "us-aaaa")
    assert pod["metadata"]["labels"].pop(HASHES[1])
    assert (pod["metadata"].pop("name"), pod["metadata"].pop("namespace")) == ("vllm-0-1", "default")
    (owner,) = pod["metadata"].pop("ownerReferences")
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "vllm-0", LEADER["metadata"]["uid"])
    assert (owner["controller"], owner["blockOwnerDeletion"]) == (True, True)
    assert {key: pod[key] for key in ("metadata", "spec")} == yaml.safe_load(RECORDED_WORKER)


@pytest.mark.parametrize("version", ["1.34", "1.36", "1.37"])
def test_pods_and_service_are_valid(version: str) -> None:
    made = group(wanted(), 1)
    objects = [leader_pod(made), leader_pod(made, POD_IP), worker_pod(made, 3, LEADER, "us-aaaa")]
    for item in [*objects, headless_service(made.wanted, "default")]:
        kubernetes_validate.validate(item, version, strict=True)


def test_affinity_and_selector_of_the_template_stay() -> None:
    document = wanted()
    templates = document["spec"]["leaderWorkerTemplate"]
    own = {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [own]}}
    templates["leaderTemplate"]["spec"]["affinity"] = affinity
    templates["workerTemplate"]["spec"]["nodeSelector"] = {"a": "b"}
    terms = leader_pod(group(document))["spec"]["affinity"]["podAffinity"]
    assert [term["topologyKey"] for term in terms["requiredDuringSchedulingIgnoredDuringExecution"]] == [
        "kubernetes.io/hostname",
        TOPOLOGY,
    ]
    assert worker_pod(group(document), 1, LEADER, "x")["spec"]["nodeSelector"] == {"a": "b", TOPOLOGY: "x"}
    assert affinity == {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [own]}}


def test_without_the_annotation_nothing_restricts_the_pods_to_a_server() -> None:
    document = wanted()
    del document["metadata"]["annotations"]
    assert "affinity" not in leader_pod(group(document))["spec"]
    assert "nodeSelector" not in worker_pod(group(document), 1, LEADER, "")["spec"]


def test_without_a_leader_template_the_leader_is_a_worker_like_the_others() -> None:
    document = wanted()
    del document["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    assert leader_pod(group(document))["metadata"]["labels"]["role"] == "worker"


def test_groups_differ_in_key_name_and_address() -> None:
    pods = [leader_pod(group(wanted(), index, space)) for index in (0, 1) for space in ("default", "other")]
    label = "leaderworkerset.sigs.k8s.io/group-key"
    assert len({pod["metadata"]["labels"][label] for pod in pods}) == 4
    addresses = [pod["spec"]["containers"][0]["env"][0]["value"] for pod in pods]
    assert addresses == ["vllm-0.vllm.default", "vllm-0.vllm.other", "vllm-1.vllm.default", "vllm-1.vllm.other"]


@pytest.mark.parametrize(
    ("where", "field"),
    [
        ((), "status"),
        (("metadata",), "finalizers"),
        (("spec",), "replica"),
        (("spec", "leaderWorkerTemplate"), "subGroupPolicy"),
        (("spec", "leaderWorkerTemplate", "workerTemplate"), "kind"),
        (("spec", "rolloutStrategy", "rollingUpdateConfiguration"), "maxSurges"),
    ],
)
def test_fields_that_are_unknown_or_not_imitated_are_refused(where: tuple[str, ...], field: str) -> None:
    document = copy.deepcopy(wanted())
    target = document
    for step in where:
        target = target[step]
    target[field] = 1
    with pytest.raises(msgspec.ValidationError, match=field):
        decode(document)

"""Which node a real kube-scheduler takes of several that fit, and what the simulator has said before.

``SEED`` chooses other clusters and pods.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from lab.cluster import Cluster

from dra_driver.cli.main import main
from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError
from tests.cluster.lib.kube import Object
from tests.generators.effort import SEED

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.control_plane,
    pytest.mark.kubernetes("1.37", "1.36"),
    pytest.mark.timeout(600),
]

CLUSTERS, PODS = 4, 12
DRIVER = "choice.example"
RESOURCE = "choice.example/gadget"
LIMITS = f"deviceclass.resource.kubernetes.io/{DRIVER}"
CORE, APPS = "/api/v1", "/apis/apps/v1/namespaces/default/statefulsets"
PODS_PATH = f"{CORE}/namespaces/default/pods"
DRA = "/apis/resource.k8s.io/v1"
CLAIMS_PATH = f"{DRA}/namespaces/default/resourceclaims"
NOT_READY = {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}
"""What the API server taints a new node with; no kubelet takes it away here."""
SETTLED_SECONDS = 3.0
"""For which a pod stays refused: the scheduler may have looked before it had seen the claim."""

Outcome = tuple[str | None, list[tuple[str, str]]]
"""The node that the scheduler takes, None for none; and what it allocates there: request and device."""


@pytest.fixture(scope="module")
def api(lab: Cluster) -> Iterator[Transport]:
    """The API of a control plane without the controllers that would act on nodes without kubelet."""
    lab.control_plane.stop("kube-controller-manager")
    transport = Transport.from_kubeconfig(os.fspath(lab.kubeconfig), user_agent="node-choice-test")
    create(transport, f"{DRA}/deviceclasses", offering())
    yield transport
    transport.close()
    lab.control_plane.start("kube-controller-manager")


def create(api: Transport, path: str, body: Object) -> Object:
    made: Object = json.loads(api.request("POST", path, body=body, timeout=60).body)
    return made


def offering() -> Object:
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    return {"metadata": {"name": DRIVER}, "spec": {"selectors": [selector], "extendedResourceName": RESOURCE}}


@dataclass
class World:
    """Random nodes, and the random pods for them."""

    api: Transport
    number: int

    def __post_init__(self) -> None:
        self.random = Random(f"{SEED} {self.number}")
        self.name = f"w{self.number}"

    def build(self) -> None:
        for place in range(self.random.randint(2, 5)):
            self._node(f"{self.name}-n{place}")
        labels = {"app": self.name}
        spec = {
            "serviceName": self.name,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "m", "image": "none"}]}},
        }
        self.owner = create(self.api, APPS, {"metadata": {"name": self.name}, "spec": spec})

    def _node(self, name: str) -> None:
        random = self.random
        labels = {"kubernetes.io/hostname": name, "world": self.name, "disk": random.choice(("fast", "slow"))}
        if random.random() < 0.7:
            labels["topology.kubernetes.io/zone"] = random.choice("ab")
        taints = [{"key": "k", "effect": "PreferNoSchedule"}] if random.random() < 0.3 else []
        room = {"cpu": random.choice(("16", "32500m")), "memory": random.choice(("64Gi", "100Gi")), "pods": "110"}
        status: Object = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
        node = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}, "status": status}
        create(self.api, f"{CORE}/nodes", node)
        kinds = ["old"] * random.randint(1, 5) + ["new"] * random.randint(0, 5)
        devices = [{"name": f"d{i}", "attributes": {"kind": {"string": kind}}} for i, kind in enumerate(kinds)]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "pool": pool, "nodeName": name, "devices": devices}
        create(self.api, f"{DRA}/resourceslices", {"metadata": {"name": name}, "spec": spec})

    def pod(self, place: int) -> list[Object]:
        """A pod, and its claim if it has one."""
        random, name = self.random, f"{self.name}-p{place}"
        requests: Object = {}
        if random.random() < 0.6:
            requests |= {"cpu": random.choice(("500m", "2", "3500m")), "memory": random.choice(("1Gi", "5Gi"))}
        spec: Object = {
            "containers": [{"name": "main", "image": "none", "resources": {"requests": requests}}],
            "automountServiceAccountToken": False,
            "nodeSelector": {"world": self.name},
            "tolerations": [NOT_READY],
        }
        labels = {"part": self.name}
        if random.random() < 0.25:
            term = {
                "weight": 5,
                "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]},
            }
            spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
        metadata: Object = {"name": name, "labels": labels}
        spreads = random.random()
        if spreads < 0.25:
            key = random.choice(("kubernetes.io/hostname", "topology.kubernetes.io/zone"))
            constraint = {"maxSkew": random.randint(1, 2), "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway"}
            spec["topologySpreadConstraints"] = [{**constraint, "labelSelector": {"matchLabels": labels}}]
        elif spreads < 0.5:
            labels["app"] = self.name
            owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": self.name, "controller": True}
            metadata["ownerReferences"] = [{**owner, "uid": self.owner["metadata"]["uid"]}]
        made: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        kind = random.random()
        if kind < 0.35:
            limit = {random.choice((RESOURCE, LIMITS)): str(random.randint(1, 2))}
            spec["containers"][0]["resources"] = {"requests": {**requests, **limit}, "limits": limit}
            if random.random() < 0.5:
                init = {"name": "init", "image": "none", "resources": {"requests": limit, "limits": limit}}
                spec["initContainers"] = [init]
            return [made]
        spec["resourceClaims"] = [{"name": "c", "resourceClaimName": name}]
        return [self._claim(name, alternatives=kind < 0.7), made]

    def _claim(self, name: str, *, alternatives: bool) -> Object:
        request: Object = {"name": "r", "exactly": {"deviceClassName": DRIVER}}
        if alternatives:
            order = self.random.sample(["old", "new"], 2)
            request = {"name": "r", "firstAvailable": [self._option(kind) for kind in order]}
        spec = {"devices": {"requests": [request]}}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}

    def _option(self, kind: str) -> Object:
        selector = {"cel": {"expression": f'device.attributes["{DRIVER}"].kind == "{kind}"'}}
        return {"name": kind, "deviceClassName": DRIVER, "selectors": [selector], "count": self.random.randint(1, 2)}


def test_the_scheduler_takes_the_node_that_the_simulator_says(
    api: Transport, lab: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], figures: list[str]
) -> None:
    choices: Counter[str] = Counter()
    wrong: list[str] = []
    worlds = [World(api, number) for number in range(CLUSTERS)]
    for world in worlds:
        world.build()
    time.sleep(1)
    for place in range(PODS):
        # The worlds have no node in common: their schedulings do not touch each other, and are waited for together.
        pods = [world.pod(place) for world in worlds]
        answers: list[Object] = []
        for world, objects in zip(worlds, pods, strict=True):
            file = tmp_path / f"{world.number}-{place}.json"
            file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
            main(["simulate", str(file), "--from-cluster", "--kubeconfig", os.fspath(lab.kubeconfig), "-o", "json"])
            answers += json.loads(capsys.readouterr().out)["claims"]
        for said, objects, (node, requests) in zip(answers, pods, _played(api, pods), strict=True):
            choices[said["nodeChoice"] or "none fits"] += 1
            known = said["nodeChoice"] in ("only", "score", None)
            if (known and node != said["node"]) or bool(node) != bool(said["node"]):
                wrong.append(f"{node} and not {said['node']} ({said['nodeChoice']}): {json.dumps(objects)}")
            if node == said["node"] and node is not None:
                allocation = said["allocation"]["devices"]["results"]
                simulated = [(item["request"], item["device"]) for item in allocation]
                if simulated != requests:
                    wrong.append(f"{requests} and not {simulated}: {json.dumps(objects)}")
    figures.append(f"choice of nodes: {', '.join(f'{count} {kind}' for kind, count in choices.most_common())}")
    assert not wrong, "\n".join(wrong)
    assert choices["score"] > CLUSTERS * PODS // 4


def _played(api: Transport, pods: Sequence[list[Object]]) -> list[Outcome]:
    """What the scheduler makes of pods and their claims, all made at once; what does not fit is deleted again."""
    for *claims, pod in pods:
        for claim in claims:
            create(api, CLAIMS_PATH, claim)
        create(api, PODS_PATH, pod)
    outcomes: dict[int, Outcome] = {}
    refused: dict[int, float] = {}
    while len(outcomes) < len(pods):
        for number, (*claims, pod) in enumerate(pods):
            if number in outcomes:
                continue
            now = json.loads(api.request("GET", f"{PODS_PATH}/{pod['metadata']['name']}").body)
            if now["spec"].get("nodeName"):
                outcomes[number] = _allocated(api, now, claims)
            elif _is_refused(now) and time.monotonic() > refused.setdefault(number, time.monotonic()) + SETTLED_SECONDS:
                outcomes[number] = (None, [])
        time.sleep(0.1)
    for number, (*claims, pod) in enumerate(pods):
        if outcomes[number][0] is None:
            paths = [f"{CLAIMS_PATH}/{claim['metadata']['name']}" for claim in claims]
            _delete(api, f"{PODS_PATH}/{pod['metadata']['name']}", *paths)
    return [outcomes[number] for number in range(len(pods))]


def _allocated(api: Transport, pod: Object, claims: Sequence[Object]) -> Outcome:
    special = pod["status"].get("extendedResourceClaimStatus", {}).get("resourceClaimName")
    name = special or claims[0]["metadata"]["name"]
    results = json.loads(api.request("GET", f"{CLAIMS_PATH}/{name}").body)["status"]["allocation"]["devices"]["results"]
    return pod["spec"]["nodeName"], [(item["request"], item["device"]) for item in results]


def _is_refused(pod: Object) -> bool:
    conditions = [item for item in pod["status"].get("conditions", ()) if item["type"] == "PodScheduled"]
    return bool(conditions) and conditions[0]["status"] == "False"


def _delete(api: Transport, *paths: str) -> None:
    for path in paths:
        try:
            api.request("DELETE", path, query=[("gracePeriodSeconds", "0")])
        except ApiError as error:
            assert error.status == 404, error

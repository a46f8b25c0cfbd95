"""Groups of pods on two UltraServers of four nodes, from the examples as they are."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from lab.cluster import Cluster

from tests.cluster.lib.controllers import leaderworkerset_controller
from tests.cluster.lib.installation import NAMESPACE, SERVICE_ACCOUNT, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.leaderworkerset import Groups, LeaderWorkerSets
from tests.cluster.lib.lifecycle import is_ready, renew_driver, uid_of, unchanged, wait_driver_ready
from tests.cluster.lib.namespace import Allocated, Namespace
from tests.cluster.lib.nodefiles import NodeFiles
from tests.cluster.test_efa import node_drivers
from tests.doubles import idle_driver
from tests.paths import ROOT

pytestmark = [pytest.mark.ultraservers, pytest.mark.kubernetes("1.37", "1.34")]

SPECS = ROOT / "examples/specs"
PREFIX = "neuron.amazonaws.com/ultraserver-"
CLAIM = "one-node-from-ultraserver"
EFA = "efa.networking.k8s.aws"
TRN2_GROUP16 = "821d14afaf11327d"
"""``devicegroup16_id`` of Trn2's sixteen EFA devices."""
SERVERS = [{f"node-{number}" for number in range(first, first + 4)} for first in (1, 5)]
HALVES = [{f"node-{number}" for number in (first, first + 1)} for first in (1, 3, 5, 7)]


@pytest.fixture
def groups(kube: Kube, namespace: Namespace) -> Iterator[LeaderWorkerSets]:
    with LeaderWorkerSets(kube) as made:
        yield made


@pytest.fixture
def groups_by_ip(kube: Kube, namespace: Namespace) -> Iterator[LeaderWorkerSets]:
    """The lab has no DNS."""
    with LeaderWorkerSets(kube, leader_address="pod-ip") as made:
        yield made


def example(name: str) -> list[Object]:
    """The objects of an example."""
    return list(yaml.safe_load_all((SPECS / f"{name}.yaml").read_text()))


def running(groups: Groups, namespace: Namespace, name: str, count: int, within: float = 60) -> list[Object]:
    """Wait until a set has just so many pods and all are Ready; return them by group and worker index."""

    def probe() -> list[Object] | None:
        pods = groups.pods(name, namespace.name)
        return pods if len(pods) == count and all(is_ready(pod) for pod in pods) else None

    return eventually(f"the {count} pods of {name} to be Ready", probe, within)


def nodes_of(pods: list[Object]) -> list[str]:
    return [str(pod["spec"]["nodeName"]) for pod in pods]


def labels_of(kube: Kube, node: str) -> dict[str, str]:
    """What a node's labels say of its place, without their prefix."""
    found = kube.get("nodes", node)
    assert found is not None
    labels = found["metadata"]["labels"]
    return {key.removeprefix(PREFIX): value for key, value in labels.items() if key.startswith(PREFIX)}


def check_owns_node(namespace: Namespace, pod: Object, size: int, mode: int, lnc: int = 2) -> None:
    """Check that a pod has all of its node, and is told the right place in the set of that many nodes."""
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    assert namespace.allocated(namespace.claim_of(name, CLAIM)) == [Allocated("neurons", node, "neuron-node")]
    place = labels_of(namespace.kube, node)
    expected = [
        "16",
        f"NEURON_LOGICAL_NC_CONFIG={lnc}",
        f"NEURON_RT_ULTRASERVER_MODE={mode}",
        f"NEURON_RT_ULTRASERVER_NODE_ID={place[f'node-id-{size}']}",
        f"NEURON_RT_ULTRASERVER_SERVER_ID={place[f'server-id-{size}']}",
        f"NEURON_RT_VIRTUAL_CORE_SIZE={lnc}",
    ]
    assert namespace.printed(len(expected), name) == expected


def check_groups_of_four(namespace: Namespace, pods: list[Object]) -> None:
    """Check that two groups have a server each, and each pod all of a node with its 16 chips."""
    first, second = set(nodes_of(pods[:4])), set(nodes_of(pods[4:]))
    assert [first, second] in (SERVERS, SERVERS[::-1])
    for pod in pods:
        check_owns_node(namespace, pod, 4, mode=1)
        assert namespace.numbers(pod["metadata"]["name"]) == list(range(16))
    for server in (pods[:4], pods[4:]):
        assert {labels_of(namespace.kube, node)["node-id-4"] for node in nodes_of(server)} == {"0", "1", "2", "3"}


def end(groups: Groups, namespace: Namespace, *names: str) -> None:
    """Delete sets, and wait until their pods are gone."""
    for name in names:
        groups.delete(name, namespace.name)
    eventually("the groups to be gone", lambda: not any(groups.pods(name, namespace.name) for name in names), 60)


def wait_free(node_files: dict[str, NodeFiles]) -> None:
    """Wait until no node holds anything of a claim."""
    eventually("all nodes to be free", lambda: all(files.is_empty() for files in node_files.values()), 30)


def test_groups_of_four_fill_the_servers_and_the_third_waits_until_one_is_free(
    ultraserver_driver: Installation,
    groups: LeaderWorkerSets,
    namespace: Namespace,
    node_files: dict[str, NodeFiles],
) -> None:
    template, wanted = example("4-node-inference-us")
    groups.apply(template, wanted, namespace=namespace.name)
    pods = running(groups, namespace, "vllm", 8)
    check_groups_of_four(namespace, pods)

    wanted["spec"]["replicas"] = 3
    groups.apply(wanted, namespace=namespace.name)
    namespace.wait_event("vllm-2", "didn't match pod anti-affinity rules")

    # A driver that restarts disturbs no group, and can still clean up after it.
    renew_driver(ultraserver_driver, "node-2")
    assert all(
        unchanged(after, before) for after, before in zip(groups.pods("vllm", namespace.name), pods, strict=False)
    )

    namespace.kubectl("delete", "pod", "vllm-0-1", "--wait=false")
    eventually("group 0 to be made anew", lambda: groups.events, 30)
    assert groups.events == ["Worker pod vllm-0-1 failed, deleted leader pod vllm-0 to recreate group 0"]
    eventually("one group to wait", lambda: len(groups.pods("vllm", namespace.name)) == 9, 60)
    eventually("two groups to run", lambda: sum(map(is_ready, groups.pods("vllm", namespace.name))) == 8, 60)
    end(groups, namespace, "vllm")
    wait_free(node_files)


@pytest.mark.nightly
@pytest.mark.kubernetes("1.37")
def test_leaderworkersets_own_controller_gives_each_group_of_the_example_a_server_also_when_one_is_made_anew(
    ultraserver_driver: Installation,
    lab: Cluster,
    namespace: Namespace,
    node_files: dict[str, NodeFiles],
    tmp_path: Path,
) -> None:
    with leaderworkerset_controller(lab, namespace.kube, tmp_path) as groups:
        namespace.apply(*example("4-node-inference-us"))
        pods = running(groups, namespace, "vllm", 8)
        check_groups_of_four(namespace, pods)
        assert [pod["metadata"]["ownerReferences"][0]["kind"] for pod in pods] == ["StatefulSet"] * 8

        namespace.kubectl("delete", "pod", "vllm-0-1", "--wait=false")
        text = namespace.wait_event("vllm", "to recreate group 0", 30)
        assert text == "Worker pod vllm-0-1 failed, deleted leader pod vllm-0 to recreate group 0"
        before = {uid_of(pod) for pod in pods[:4]}
        eventually(
            "all of it to be made anew", lambda: not before & set(map(uid_of, groups.pods("vllm", namespace.name))), 60
        )
        after = running(groups, namespace, "vllm", 8)
        check_groups_of_four(namespace, after)
        assert all(unchanged(one, other) for one, other in zip(after[4:], pods[4:], strict=True))
        end(groups, namespace, "vllm")
    wait_free(node_files)


def test_pairs_get_halves_of_servers_and_may_have_a_logical_core_size_of_their_own(
    ultraserver_driver: Installation, groups: LeaderWorkerSets, namespace: Namespace, node_files: dict[str, NodeFiles]
) -> None:
    groups.apply(*example("2-node-inference-us"), *example("us-and-lnc-config"), namespace=namespace.name)
    pairs = running(groups, namespace, "vllm-2-node", 4)
    fine = running(groups, namespace, "vllm-lnc-1", 2)
    taken = [set(nodes_of(pair)) for pair in (pairs[:2], pairs[2:], fine)]
    assert all(pair in HALVES for pair in taken)
    assert len(set().union(*taken)) == 6
    for pod in pairs:
        check_owns_node(namespace, pod, 2, mode=3)
    for pod in fine:
        check_owns_node(namespace, pod, 2, mode=3, lnc=1)
    end(groups, namespace, "vllm-2-node", "vllm-lnc-1")
    wait_free(node_files)


def without_claims(wanted: Object) -> Object:
    """The same pods, asking for no devices."""
    wanted = copy.deepcopy(wanted)
    wanted["metadata"]["name"] = "plain"
    for template in ("leaderTemplate", "workerTemplate"):
        spec = wanted["spec"]["leaderWorkerTemplate"][template]["spec"]
        del spec["resourceClaims"]
        del spec["containers"][0]["resources"]
    return wanted


DRIVERS_REQUESTS: Object = {
    "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
    "kind": "FlowSchema",
    "metadata": {"name": "neuron-dra-driver-count"},
    "spec": {
        "priorityLevelConfiguration": {"name": "workload-high"},
        "matchingPrecedence": 100,
        "rules": [
            {
                "subjects": [
                    {"kind": "ServiceAccount", "serviceAccount": {"name": SERVICE_ACCOUNT, "namespace": NAMESPACE}}
                ],
                "resourceRules": [
                    {
                        "verbs": ["*"],
                        "apiGroups": ["*"],
                        "resources": ["*"],
                        "clusterScope": True,
                        "namespaces": ["*"],
                    }
                ],
            }
        ],
    },
}
"""Has the API server count what all instances of the driver ask of it."""


def requests_of_drivers(kube: Kube) -> int:
    """How many requests of the drivers the API server has let through since it counts them."""
    name = DRIVERS_REQUESTS["metadata"]["name"]
    counts = [
        float(line.rpartition(" ")[2])
        for line in kube.raw("/metrics").decode().splitlines()
        if line.startswith("apiserver_flowcontrol_dispatched_requests_total{") and f'flow_schema="{name}"' in line
    ]
    return int(sum(counts))


@pytest.fixture
def counted(kube: Kube) -> Iterator[None]:
    """The API server counts the drivers' requests."""
    kube.apply(DRIVERS_REQUESTS)
    name = DRIVERS_REQUESTS["metadata"]["name"]

    def probe() -> object:
        found = json.loads(kube.raw(f"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/{name}"))
        return found.get("status", {}).get("conditions")

    eventually("the API server to have seen how to count", probe)
    yield
    kube.kubectl("delete", "flowschema", name)


@pytest.mark.nightly
@pytest.mark.kubernetes("1.37")
def test_whole_nodes_cost_a_group_little_time_and_the_api_server_few_requests(
    ultraserver_driver: Installation,
    counted: None,
    groups: LeaderWorkerSets,
    namespace: Namespace,
    node_files: dict[str, NodeFiles],
    figures: list[str],
) -> None:
    template, wanted = example("4-node-inference-us")
    before = requests_of_drivers(namespace.kube)
    for each, what in ((without_claims(wanted), "without claims"), (wanted, "with whole nodes")):
        began = time.monotonic()
        groups.apply(template, each, namespace=namespace.name)
        name = each["metadata"]["name"]
        running(groups, namespace, name, 8)
        figures.append(f"two groups of four pods {what}: all run {time.monotonic() - began:.1f} s after their creation")
        end(groups, namespace, name)
    wait_free(node_files)
    requests = requests_of_drivers(namespace.kube) - before
    figures.append(
        f"requests of the drivers to the API server for the whole life of both groups: {requests / 8:g} a node"
    )
    assert 8 <= requests <= 8 * 4


def with_rank(wanted: Object, image: str) -> Object:
    """The set with ``dra-driver rank`` as an init container, as docs/use/ultraserver.md shows it."""
    wanted = copy.deepcopy(wanted)
    wanted["spec"]["replicas"] = 1
    for template in ("leaderTemplate", "workerTemplate"):
        spec = wanted["spec"]["leaderWorkerTemplate"][template]["spec"]
        mounts = [{"name": "neuron", "mountPath": "/neuron"}]
        (main,) = spec["containers"]
        main["volumeMounts"] = mounts
        main["args"] = [f"set -a; . /neuron/env; {main['args'][0]}"]
        rank = {"name": "rank", "image": image, "imagePullPolicy": "IfNotPresent", "args": ["rank", "--timeout", "120"]}
        spec["initContainers"] = [{**rank, "resources": main["resources"], "volumeMounts": mounts}]
        spec["volumes"] = [{"name": "neuron", "emptyDir": {}}]
    return wanted


def check_places(namespace: Namespace, pods: list[Object]) -> None:
    """Check that each pod has its node id as its rank, and knows where rank 0 is."""
    places = [labels_of(namespace.kube, node)["node-id-4"] for node in nodes_of(pods)]
    first = pods[places.index("0")]["status"]["podIP"]
    for pod, place in zip(pods, places, strict=True):
        container = pod["spec"]["containers"][0]["name"]
        printed = namespace.printed(2, pod["metadata"]["name"], "-c", container)
        assert f"NEURON_GLOBAL_TOPOID={place}" in printed
        assert f"NEURON_GLOBAL_TOPOID0_HOST={first}" in printed


def test_pods_of_a_group_learn_their_places_before_they_start_also_when_it_is_made_anew(
    ultraserver_driver: Installation, groups_by_ip: LeaderWorkerSets, namespace: Namespace, driver_image: str
) -> None:
    template, wanted = example("4-node-inference-us")
    groups_by_ip.apply(template, with_rank(wanted, driver_image), namespace=namespace.name)
    pods = running(groups_by_ip, namespace, "vllm", 4, within=90)
    check_places(namespace, pods)
    before = {uid_of(pod) for pod in pods}
    namespace.kubectl("delete", "pod", "vllm-0-3", "--wait=false")

    def anew() -> list[Object] | None:
        found = groups_by_ip.pods("vllm", namespace.name)
        return found if len(found) == 4 and not before & {uid_of(pod) for pod in found} else None

    eventually("the group to be made anew", anew, 60)
    check_places(namespace, running(groups_by_ip, namespace, "vllm", 4, within=90))


def with_leader_address(wanted: Object) -> Object:
    """``dra-driver rank`` is told the leader's address, since the lab has no DNS: workers have it from a ConfigMap."""
    wanted = copy.deepcopy(wanted)
    sources = {
        "leaderTemplate": {"fieldRef": {"fieldPath": "status.podIP"}},
        "workerTemplate": {"configMapKeyRef": {"name": "leader", "key": "address"}},
    }
    for template, source in sources.items():
        (rank,) = wanted["spec"]["leaderWorkerTemplate"][template]["spec"]["initContainers"]
        rank["env"] = [{"name": "LEADER", "valueFrom": source}]
        rank["args"] += ["--leader-address", "$(LEADER)"]
    return wanted


@pytest.mark.nightly
@pytest.mark.kubernetes("1.37")
def test_pods_that_leaderworkersets_own_controller_made_learn_their_places_before_they_start(
    ultraserver_driver: Installation,
    lab: Cluster,
    namespace: Namespace,
    driver_image: str,
    tmp_path: Path,
) -> None:
    template, wanted = example("4-node-inference-us")

    def address() -> str:
        leader = namespace.pod("vllm-0")
        return str(leader["status"].get("podIP", "")) if leader else ""

    with leaderworkerset_controller(lab, namespace.kube, tmp_path) as groups:
        namespace.apply(template, with_leader_address(with_rank(wanted, driver_image)))
        data = {"address": eventually("the leader to have an address", address, 60)}
        namespace.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "leader"}, "data": data})
        pods = running(groups, namespace, "vllm", 4, within=90)
        assert set(nodes_of(pods)) in SERVERS
        check_places(namespace, pods)
        end(groups, namespace, "vllm")


@pytest.mark.kubernetes("1.37")
def test_a_group_outlives_the_loss_of_kubelet_and_driver_on_one_node(
    ultraserver_driver: Installation, groups: LeaderWorkerSets, namespace: Namespace, lab: Cluster
) -> None:
    template, wanted = example("4-node-inference-us")
    wanted["spec"]["replicas"] = 1
    groups.apply(template, wanted, namespace=namespace.name)
    pods = running(groups, namespace, "vllm", 4)
    node = pods[2]["spec"]["nodeName"]
    driver = ultraserver_driver.pod(node)["metadata"]["name"]
    lab.node(node).stop_kubelet()
    ultraserver_driver.kube.kubectl("--namespace", NAMESPACE, "delete", "pod", driver, "--force", "--grace-period=0")
    found = eventually("the node to be NotReady", lambda: not_ready(namespace.kube, node), 90, every=1)
    assert found
    lab.node(node).start_kubelet()
    wait_driver_ready(ultraserver_driver, node, within=90)
    after = running(groups, namespace, "vllm", 4, within=90)
    assert all(unchanged(one, other) for one, other in zip(after, pods, strict=True))
    assert groups.events == []
    check_owns_node(namespace, after[2], 4, mode=1)


def not_ready(kube: Kube, node: str) -> bool:
    """Whether the control plane has given up a node."""
    found = kube.get("nodes", node)
    conditions = found["status"]["conditions"] if found else []
    return any(entry["type"] == "Ready" and entry["status"] != "True" for entry in conditions)


@pytest.fixture
def efa(lab: Cluster, kube: Kube, tmp_path: Path) -> Iterator[None]:
    """Sixteen EFA devices on each node; on the second server they say that they belong to another set of chips.

    A stand-in prepares them.
    """
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": EFA},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{EFA}'"}}]},
    }
    kube.apply(device_class, *(efa_slice(node.name, number) for number, node in enumerate(lab.nodes)))
    with node_drivers(lab.nodes[:4], tmp_path, lambda node: [idle_driver.__name__, str(lab.kubeconfig), EFA]):
        yield
    kube.kubectl("delete", "--ignore-not-found", "deviceclass", EFA)
    kube.kubectl("delete", "resourceslices", f"--field-selector=spec.driver={EFA}")


def efa_slice(node: str, number: int) -> Object:
    """A slice as AWS's EFA driver publishes it, as far as the example needs it."""
    group = TRN2_GROUP16 if number < 4 else "0123456789abcdef"
    attributes = {"resource.aws.com/devicegroup16_id": {"string": group}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-efa"},
        "spec": {
            "driver": EFA,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"efa-{index}", "attributes": attributes} for index in range(16)],
        },
    }


@pytest.mark.nightly
def test_nodes_come_with_the_efa_devices_that_belong_to_them(
    ultraserver_driver: Installation, efa: None, groups: LeaderWorkerSets, namespace: Namespace
) -> None:
    groups.apply(*example("4-node-inference-us-efa"), namespace=namespace.name)
    pods = running(groups, namespace, "vllm-efa", 4, within=120)
    assert set(nodes_of(pods)) == SERVERS[0]
    for pod in pods:
        node = pod["spec"]["nodeName"]
        results = namespace.allocated(namespace.claim_of(pod["metadata"]["name"], CLAIM))
        assert sorted(results) == sorted(
            [Allocated("neurons", node, "neuron-node"), *(Allocated("efa", node, f"efa-{i}") for i in range(16))]
        )
        assert namespace.numbers(pod["metadata"]["name"]) == list(range(16))

"""UltraServers by workload: kubectl applies what AWS's documents have, and the placer gives servers before any pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL
from tests.cluster.lib.groupstream import complete, lws, one_node, servers
from tests.cluster.lib.installation import EMULATED_ULTRASERVER, NAMESPACE, ULTRASERVERS, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.leaderworkerset import LeaderWorkerSets
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import pod
from tests.cluster.test_placer import FAILOVER_SECONDS, PLACER, acting, servers_of

pytestmark = [pytest.mark.ultraservers, pytest.mark.kubernetes("1.37", "1.34"), pytest.mark.nightly]

WORKLOADS = "neuronultraserverworkloads.neuron.aws.com"
SERVERS = "neuronultraservers.neuron.aws.com"


@pytest.fixture(scope="module")
def operator(installation: Installation, kube: Kube) -> Iterator[None]:
    """Two UltraServers, whose nodes say their instance type, and an operator that acts."""
    kube.kubectl("label", "nodes", "--all", "--overwrite", f"{INSTANCE_TYPE_LABEL}={EMULATED_ULTRASERVER}")
    emulated = ("--emulate", EMULATED_ULTRASERVER, "--emulated-ultraservers", ULTRASERVERS)
    installation.ensure(*emulated, "--ultraserver-operator", "--group-timeout=120")
    eventually("the nodes to be labelled", lambda: len(servers(kube)) == 2, 30)
    eventually("an operator to act", lambda: acting(kube), FAILOVER_SECONDS)
    yield
    kube.kubectl("label", "nodes", "--all", f"{INSTANCE_TYPE_LABEL}-")


def ask(kube: Kube, namespace: Namespace, name: str, *, servers: int = 1, nodes: int = 4, version: str = "v1") -> None:
    """As AWS's documents write it."""
    kube.kubectl("apply", "-n", namespace.name, "-f", "-", stdin=f"""
apiVersion: neuron.aws.com/{version}
kind: NeuronUltraServerWorkload
metadata:
  name: {name}
spec:
  instanceType: {EMULATED_ULTRASERVER}
  serverCount: {servers}
  topologySize: {nodes}
  allocationPolicy:
    failureStrategy: NoOp
  config:
    logicalNeuronCore: 2
  resourceClaimTemplate:
    name: {name}-template
""")  # fmt: skip


def objects(kube: Kube, *arguments: str) -> list[Object]:
    return list(json.loads(kube.kubectl("get", *arguments, "-o", "json"))["items"])


def states(kube: Kube, namespace: Namespace) -> dict[str, str]:
    return {
        item["metadata"]["name"]: item.get("status", {}).get("state", "")
        for item in objects(kube, WORKLOADS, "-n", namespace.name)
    }


def allocations(kube: Kube, namespace: Namespace) -> dict[str, list[tuple[str, ...]]]:
    """By workload, the nodes that it has of each server."""
    given: dict[str, list[tuple[str, ...]]] = {}
    for server in objects(kube, SERVERS, "-n", NAMESPACE):
        members = {one["nodeName"] for one in server["spec"]["topology"]}
        for one in server.get("status", {}).get("allocations", []):
            assert one["phase"] == "Bound"
            assert members.issuperset(one["allocatedNodes"])
            given.setdefault(one["workloadRef"].removeprefix(f"{namespace.name}/"), []).append(
                tuple(one["allocatedNodes"])
            )
    nodes = [node for of_workload in given.values() for names in of_workload for node in names]
    assert len(nodes) == len(set(nodes)), "no node is in two workloads"
    return given


def settle(kube: Kube, namespace: Namespace, **wanted: str) -> None:
    eventually(f"the workloads to be {wanted}", lambda: states(kube, namespace) == wanted, 40)


def delete(kube: Kube, namespace: Namespace, *names: str) -> None:
    kube.kubectl("delete", WORKLOADS, "-n", namespace.name, *names)


@pytest.mark.usefixtures("operator")
def test_workloads_get_servers_and_what_one_gives_back_the_next_one_has(kube: Kube, namespace: Namespace) -> None:
    ask(kube, namespace, "four", version="v1beta1")
    settle(kube, namespace, four="Allocated")
    ask(kube, namespace, "two-a", nodes=2)
    settle(kube, namespace, **{"four": "Allocated", "two-a": "Allocated"})
    ask(kube, namespace, "two-b", nodes=2, version="v1beta1")
    settle(kube, namespace, **{"four": "Allocated", "two-a": "Allocated", "two-b": "Allocated"})
    given = allocations(kube, namespace)
    assert {name: [len(nodes) for nodes in of_workload] for name, of_workload in given.items()} == {
        "four": [4],
        "two-a": [2],
        "two-b": [2],
    }
    ask(kube, namespace, "one", nodes=1)
    settle(kube, namespace, **dict.fromkeys(given, "Allocated"), one="Pending")
    shown = kube.kubectl("get", "nusw", "-n", namespace.name)
    assert "Allocated" in shown
    assert "Pending" in shown
    taken = {node for nodes in given["two-a"] for node in nodes}
    # The leader ends between the deletion and what follows from it.
    kube.kubectl("delete", WORKLOADS, "-n", namespace.name, "two-a", "--wait=false")
    kube.delete("pods", acting(kube), NAMESPACE, grace=0)
    eventually("the next one to have a node", lambda: states(kube, namespace).get("one") == "Allocated", 60)
    ((node,),) = allocations(kube, namespace)["one"]
    assert node in taken
    assert f"{namespace.name}/one: {node}" in kube.kubectl("get", "nus", "-n", NAMESPACE)
    delete(kube, namespace, "four", "two-b", "one")
    eventually("the servers to be free", lambda: not allocations(kube, namespace))
    for item in objects(kube, SERVERS, "-n", NAMESPACE):
        assert "finalizers" not in item["metadata"]


@pytest.mark.usefixtures("operator")
def test_a_workload_of_both_servers_and_a_group_wait_for_each_other(kube: Kube, namespace: Namespace) -> None:
    namespace.apply(one_node())
    with LeaderWorkerSets(kube) as groups:
        groups.apply(lws("group", 4, gated=True), namespace=namespace.name)
        eventually("the group to run", lambda: complete(groups.pods("group", namespace.name), 4), 60)
        (used,) = servers_of(kube, groups.pods("group", namespace.name))
        ask(kube, namespace, "both", servers=2)
        settle(kube, namespace, both="Pending")
        (item,) = objects(kube, WORKLOADS, "-n", namespace.name)
        (ready,) = (one for one in item["status"]["conditions"] if one["type"] == "Ready")
        assert f"group {namespace.name}/group-0" in ready["message"]
        groups.delete("group", namespace.name)
        eventually("the group to be gone", lambda: not groups.pods("group", namespace.name), 60)
        settle(kube, namespace, both="Allocated")
        groups.apply(lws("next", 4, gated=True), namespace=namespace.name)
        namespace.wait_event("next-0", f"is used by workload {namespace.name}/both", 30)
        delete(kube, namespace, "both")
        eventually("the group to run", lambda: complete(groups.pods("next", namespace.name), 4), 60)
        groups.delete("next", namespace.name)
    assert used in servers(kube)


def controller_of(kind: str, count: int, spec: Object) -> Object:
    """A Deployment, StatefulSet or Job with so many pods."""
    name = kind.lower()
    if kind == "Job":
        job: Object = {"parallelism": count, "completions": count, "template": {"spec": spec}}
        return {"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": name}, "spec": job}
    labels = {"app": name}
    pods = {"metadata": {"labels": labels}, "spec": {**spec, "restartPolicy": "Always"}}
    of_kind: Object = {"replicas": count, "selector": {"matchLabels": labels}, "template": pods}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": of_kind}


@pytest.mark.usefixtures("operator")
def test_pods_of_all_kinds_have_the_nodes_until_they_end_though_the_workload_is_deleted(
    kube: Kube, namespace: Namespace
) -> None:
    ask(kube, namespace, "train", servers=2)
    settle(kube, namespace, train="Allocated")
    given = allocations(kube, namespace)["train"]
    nodes = [node for of_server in given for node in of_server]
    kinds = ("Deployment", "StatefulSet", "Job")
    with LeaderWorkerSets(kube) as groups:
        group = lws("group", 2, gated=False)
        for template in group["spec"]["leaderWorkerTemplate"].values():
            for entry in template["spec"]["resourceClaims"] if isinstance(template, dict) else ():
                entry["resourceClaimTemplateName"] = "train-template"
        groups.apply(group, namespace=namespace.name)
        # First, since its pods want to be side by side.
        eventually("the group to run", lambda: complete(groups.pods("group", namespace.name), 2), 120)
        spec = pod("x", templates={"node": "train-template"})["spec"]
        namespace.apply(*(controller_of(kind, 2, spec) for kind in kinds))
        eventually("all to run", lambda: complete(kube.find("pods", namespace.name), len(nodes)), 120)
        pods = [item["metadata"]["name"] for item in kube.find("pods", namespace.name)]
        variables = {namespace.node_of(name): namespace.environment(name) for name in pods}
        assert [variables[node]["NEURON_GLOBAL_TOPOID"] for node in nodes] == [str(rank) for rank in range(len(nodes))]
        assert {one["NEURON_ULTRASERVER_LEADER_NODE"] for one in variables.values()} == {nodes[0]}
        kube.kubectl("delete", WORKLOADS, "-n", namespace.name, "train", "--wait=false")
        ask(kube, namespace, "next")
        settle(kube, namespace, train="Deallocating", next="Pending")
        template_of = partial(kube.get, "resourceclaimtemplates", "train-template", namespace.name)
        eventually("its template to go", lambda: template_of() is None)
        assert complete(kube.find("pods", namespace.name), len(nodes)), "they go on"
        assert allocations(kube, namespace)["train"] == given
        groups.delete("group", namespace.name)
        kube.kubectl("delete", ",".join(kinds), "-n", namespace.name, "--all", "--wait=false")
        kube.delete_all("pods", namespace.name, grace=1)
        eventually("the next one to be served", lambda: states(kube, namespace) == {"next": "Allocated"}, 120)
    delete(kube, namespace, "next")


@pytest.mark.usefixtures("operator")
def test_the_operators_account_changes_of_a_workload_its_annotation_alone(kube: Kube, namespace: Namespace) -> None:
    ask(kube, namespace, "mine", servers=9)
    settle(kube, namespace, mine="Pending")
    account = f"--as=system:serviceaccount:{NAMESPACE}:{PLACER}"

    def patch(text: str) -> str:
        command = ("patch", WORKLOADS, "mine", "-n", namespace.name, account, "--type=merge", "-p", text)
        return kube.access.kubectl(*command, check=False).stderr

    refusals = {
        '{"spec": {"serverCount": 1}}': "neither what a workload asks for",
        '{"metadata": {"labels": {"a": "b"}}}': "nor its labels and owners",
        '{"metadata": {"finalizers": ["example.com/x"]}}': "no finalizer of a workload",
        '{"metadata": {"annotations": {"a": "b"}}}': "no annotation of a workload",
    }
    for text, reason in refusals.items():
        assert reason in patch(text)
    (item,) = objects(kube, WORKLOADS, "-n", namespace.name)
    assert item["spec"]["serverCount"] == 9
    assert not {"labels", "finalizers"} & item["metadata"].keys()
    assert not patch('{"metadata": {"finalizers": ["neuron.aws.com/ultraserver"]}}')
    (item,) = objects(kube, WORKLOADS, "-n", namespace.name)
    assert item["metadata"]["finalizers"] == ["neuron.aws.com/ultraserver"]
    assert not patch('{"metadata": {"finalizers": []}}')
    delete(kube, namespace, "mine")

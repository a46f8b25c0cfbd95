"""A node that a workload has is for its pods alone: whatever others write, none of them gets a device of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

from dra_driver.neuron.names import ADMIN_CLASS, CLASSES_POLICY, WORKLOAD_CLASS
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL
from dra_driver.neuron.topology.partitions import NODE_DEVICE
from tests.cluster.lib.commands import Commands
from tests.cluster.lib.groupstream import servers
from tests.cluster.lib.installation import EMULATED_ULTRASERVER, NAMESPACE, ULTRASERVERS, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import DRIVER, claim, container, first_available, pod, request, template
from tests.cluster.lib.remedies import CLAIM, LATE, allocate, remedy_of, user
from tests.cluster.test_placer import FAILOVER_SECONDS, acting
from tests.cluster.test_ultraserver_operator import WORKLOADS, allocations, ask, delete, settle

pytestmark = [pytest.mark.ultraservers, pytest.mark.kubernetes("1.37", "1.34"), pytest.mark.nightly]

WITH_LIMIT = f"deviceclass.resource.kubernetes.io/{WORKLOAD_CLASS}"


@pytest.fixture(scope="module")
def workload(installation: Installation, kube: Kube) -> Iterator[None]:
    """An operator that acts, and two UltraServers."""
    kube.kubectl("label", "nodes", "--all", "--overwrite", f"{INSTANCE_TYPE_LABEL}={EMULATED_ULTRASERVER}")
    emulated = ("--emulate", EMULATED_ULTRASERVER, "--emulated-ultraservers", ULTRASERVERS)
    installation.ensure(*emulated, "--ultraserver-operator", "--group-timeout=120")
    eventually("the nodes to be labelled", lambda: len(servers(kube)) == 2, 30)
    eventually("an operator to act", lambda: acting(kube), FAILOVER_SECONDS)
    yield
    kube.kubectl("label", "nodes", "--all", f"{INSTANCE_TYPE_LABEL}-")


@pytest.fixture
def team(kube: Kube, namespace: Namespace, workload: None) -> Iterator[tuple[str, ...]]:
    """Nodes of all UltraServers, which a workload of this namespace has."""
    ask(kube, namespace, "team", servers=2)
    settle(kube, namespace, team="Allocated")
    ((first, second),) = (allocations(kube, namespace)["team"],)
    yield (*first, *second)
    kube.delete_all("pods", namespace.name, grace=1)
    delete(kube, namespace, "team")
    eventually("the servers to be free", lambda: not allocations(kube, namespace))


def marks(kube: Kube, node: str) -> set[str | None]:
    """What the devices of the node say whose they are."""
    return {
        device.get("attributes", {}).get("workloadUID", {}).get("string")
        for item in kube.slices(node)
        for device in item["spec"]["devices"]
    }


def says(kube: Kube, namespace: Namespace, *objects: Object, user: str = "") -> str:
    """What the API server says against objects."""
    arguments = ["apply", "-n", namespace.name, "-f", "-", *([f"--as={user}"] if user else [])]
    together = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects]})
    return str(kube.access.kubectl(*arguments, stdin=together, check=False).stderr)


def is_unschedulable(namespace: Namespace, name: str) -> bool:
    conditions = (namespace.pod(name) or {}).get("status", {}).get("conditions", [])
    return any(one["type"] == "PodScheduled" and one["reason"] == "Unschedulable" for one in conditions)


def tolerating(name: str, **more: object) -> Object:
    asked = request(name, **more)  # type: ignore[arg-type] # fields of a request
    asked["exactly"]["tolerations"] = [{"operator": "Exists"}]
    return asked


def test_pods_of_the_workload_run_and_no_stranger_gets_a_device(
    kube: Kube, namespace: Namespace, team: tuple[str, ...]
) -> None:
    (item,) = json.loads(kube.kubectl("get", WORKLOADS, "-n", namespace.name, "-o", "json"))["items"]
    uid = item["metadata"]["uid"]
    assert not {one["type"] for one in item["status"]["conditions"]} & {"Fenced"}, "all of it is installed"
    for node in team:
        assert marks(kube, node) == {uid}
    names = [f"p{number}" for number in range(len(team))]
    namespace.apply(*(pod(name, templates={"node": "team-template"}) for name in names))
    namespace.wait_ready(*names)
    seen = {namespace.node_of(name): namespace.environment(name) for name in names}
    assert [seen[node]["NEURON_GLOBAL_TOPOID"] for node in team] == [str(rank) for rank in range(len(team))]
    assert {one["NEURON_ULTRASERVER_LEADER_NODE"] for one in seen.values()} == {team[0]}
    for name in names:
        namespace.delete_pod(name)
    eventually("the claims to be gone", lambda: not namespace.claims())
    # Now all nodes are free, and the workload's.
    ranked = first_available("r", request("a", device_class="node.neuron.aws.com"), request("b"))
    strangers = {
        "plain": template("plain", request()),
        "of-the-node": template("of-the-node", request(device_class="node.neuron.aws.com")),
        "ranked": template("ranked", ranked),
        "tolerates": template("tolerates", tolerating("neurons")),
        "tolerates-node": template("tolerates-node", tolerating("neurons", device_class="node.neuron.aws.com")),
    }
    namespace.apply(*strangers.values(), *(pod(f"s-{name}", templates={"c": name}) for name in strangers))
    for name in strangers:
        eventually(f"{name} to find no node", partial(is_unschedulable, namespace, f"s-{name}"))
    assert not any(one.get("status", {}).get("allocation") for one in namespace.claims())


def test_nobody_asks_with_the_class_of_workloads(kube: Kube, namespace: Namespace, team: tuple[str, ...]) -> None:
    own = request(device_class=WORKLOAD_CLASS)
    flat: Object = {
        **claim("flat", own),
        "apiVersion": "resource.k8s.io/v1beta1",
        "spec": {"devices": {"requests": [{"name": "r", "deviceClassName": WORKLOAD_CLASS}]}},
    }
    for one in (
        claim("c", own),
        claim("two", request("other"), own),
        claim("ranked", first_available("r", request("a", device_class="gpu.example.com"), own)),
        template("t", own),
        template("ranked", first_available("r", own)),
    ):
        assert CLASSES_POLICY in says(kube, namespace, one)
        assert "orbidden" in says(kube, namespace, one, user="system:kube-scheduler")
    served = kube.kubectl("api-versions").split()
    for version in ("v1beta2", "v1beta1"):
        if f"resource.k8s.io/{version}" in served:
            sent = flat if version == "v1beta1" else {**claim("c2", own), "apiVersion": f"resource.k8s.io/{version}"}
            assert CLASSES_POLICY in says(kube, namespace, sent)
    # For a limit, the scheduler would make the claim.
    limited = pod("limited", containers=[container("main")])
    limited["spec"]["containers"][0]["resources"] = {"limits": {WITH_LIMIT: "1"}}
    namespace.apply(limited)
    eventually(
        "the pod to find no node",
        lambda: is_unschedulable(namespace, "limited") or "FailedScheduling" in str(namespace.events("limited")),
    )
    assert not namespace.node_of("limited") if namespace.pod("limited") else True
    assert not any(one.get("status", {}).get("allocation") for one in namespace.claims())
    status = (kube.get("validatingadmissionpolicies", CLASSES_POLICY) or {})["status"]
    assert status["typeChecking"] == {}, "the API server finds nothing wrong in it"


def test_the_class_for_looking_looks_at_all_and_takes_nothing(
    kube: Kube, namespace: Namespace, team: tuple[str, ...]
) -> None:
    for one in (
        claim("c", request(device_class=ADMIN_CLASS)),
        template("t", request(device_class=ADMIN_CLASS)),
        template("ranked", first_available("r", request("a", device_class=ADMIN_CLASS))),
    ):
        assert CLASSES_POLICY in says(kube, namespace, one)
    kube.kubectl("label", "namespace", namespace.name, "resource.kubernetes.io/admin-access=true")
    looks = tolerating("neurons", count=None, device_class=ADMIN_CLASS, admin=True)
    namespace.apply(template("looks", looks), pod("monitor", templates={"neurons": "looks"}))
    namespace.wait_ready("monitor")
    assert namespace.node_of("monitor") in team
    namespace.apply(pod("p0", templates={"node": "team-template"}, node=namespace.node_of("monitor")))
    namespace.wait_ready("p0")


def test_a_workload_made_anew_under_the_name_gets_nothing_of_its_predecessor(
    kube: Kube, namespace: Namespace, team: tuple[str, ...]
) -> None:
    waits = pod("old", templates={"node": "team-template"})
    waits["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    namespace.apply(waits)
    eventually("its claim to be made", namespace.claims)
    before = {node: marks(kube, node) for node in team}
    kube.kubectl("delete", WORKLOADS, "-n", namespace.name, "team")
    ask(kube, namespace, "team", servers=2)
    settle(kube, namespace, team="Allocated")
    assert all(before[node].isdisjoint(marks(kube, node)) for node in team)
    namespace.kubectl("patch", "pod", "old", "--type=merge", "-p", '{"spec": {"schedulingGates": []}}')
    namespace.apply(pod("new", templates={"node": "team-template"}))
    namespace.wait_ready("new", within=60)
    eventually("the old pod to find no node", partial(is_unschedulable, namespace, "old"))
    assert sum("allocation" in one.get("status", {}) for one in namespace.claims()) == 1


def test_a_template_of_somebody_else_stays(kube: Kube, namespace: Namespace, workload: None) -> None:
    namespace.apply(template("own-template", request()))
    ask(kube, namespace, "own", nodes=1)
    settle(kube, namespace, own="Allocated")
    (item,) = json.loads(kube.kubectl("get", WORKLOADS, "-n", namespace.name, "-o", "json"))["items"]
    (ready,) = (one for one in item["status"]["conditions"] if one["type"] == "Ready")
    assert ready["reason"] == "TemplateNameTaken"
    kube.kubectl("delete", "resourceclaimtemplate", "-n", namespace.name, "own-template")

    def is_made() -> bool:
        found = kube.get("resourceclaimtemplates", "own-template", namespace.name) or {}
        return "'own'" in str(found.get("metadata", {}).get("ownerReferences"))

    eventually("the template to be made", is_made, 60)
    account = f"system:serviceaccount:{NAMESPACE}:neuron-dra-driver-placer"
    refusal = says(kube, namespace, template("any", request(device_class=DRIVER)), user=account)
    assert "neuron-dra-driver-placer-templates" in refusal
    delete(kube, namespace, "own")
    gone = lambda: kube.get("resourceclaimtemplates", "own-template", namespace.name) is None  # noqa: E731
    eventually("the template to go with the workload", gone, 60)


def test_a_strangers_claim_that_has_the_node_of_a_workload_gets_another_one(
    kube: Kube, namespace: Namespace, team: tuple[str, ...], commands: Commands
) -> None:
    node = team[0]
    # As if it had been scheduled before the workload got the node.
    allocate(namespace, node, NODE_DEVICE)
    namespace.apply(user("w", node))
    assert "with the workload's template" in remedy_of(commands, namespace, "w", "UltraServerWorkload")
    namespace.delete_pod("w")
    namespace.kubectl("delete", "resourceclaim", CLAIM)  # one of a template goes with its pod
    namespace.apply(pod("w", templates={"node": "team-template"}))
    namespace.wait_ready("w", within=LATE)

"""The chart on a real cluster, by real helm: the legacy pair and a real second kube-scheduler, all of it as pods."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.release import (
    CORE,
    EXTENDER,
    INF1,
    LEGACY,
    NAMESPACE,
    NEURON,
    NINE,
    PLUGIN,
    SCHEDULER,
    TRN1,
    Release,
    limited,
    line_with,
    notes_of,
)
from tests.cluster.test_security import listening, rules

pytestmark = pytest.mark.nightly

# What kubelet, scheduler and API server decide of the chart's objects; the last one has the control plane of 1.34.
BOTH_ENDS = pytest.mark.kubernetes("1.37", "1.33")

SECRET = "k8s-neuron-scheduler-tls"


@pytest.fixture
def pair(release: Release) -> Release:
    """Device plugin, extender and my-scheduler on emulated nodes with four chips of four cores."""
    release.ensure(LEGACY, INF1)
    release.wait_allocatable(4, 16)
    return release


def handed_out(namespace: Namespace, name: str) -> dict[str, str]:
    """A pod's annotations once the device plugin has handed its devices out."""

    def probe() -> dict[str, str] | None:
        found = notes_of(namespace.pod(name) or {"metadata": {}})
        return found if found.get("NEURON_ALLOCATED") == "true" else None

    return eventually(f"the devices of pod {name} to be handed out", probe, 20)


@BOTH_ENDS
def test_nine_cores_run_by_the_eleven_steps_of_the_flow_diagram(pair: Release, namespace: Namespace) -> None:
    # One node has three of its four devices free, and not side by side: kube-scheduler itself would take it.
    namespace.apply(limited("left", {NEURON: 1}, node="node-2"))
    namespace.wait_ready("left")
    namespace.apply(limited("right", {NEURON: 1}, node="node-2"))
    namespace.wait_ready("left", "right")
    assert (namespace.numbers("left"), namespace.numbers("right")) == ([0], [1])
    namespace.delete_pod("left")
    namespace.apply(limited("nine", {CORE: 9}))
    (nine,) = namespace.wait_ready("nine")
    key = f"{namespace.name}/nine"
    plugin, extender, scheduler = pair.logs(PLUGIN, "node-1"), pair.logs(EXTENDER), pair.logs(SCHEDULER)

    # 1. The device plugin gives kubelet the list of cores and devices.
    assert f"16 of 16 {CORE}" in plugin
    assert f"4 of 4 {NEURON}" in plugin
    # 2. kubelet advertises them to the API server.
    offered = (pair.kube.get("nodes", "node-1") or {})["status"]["allocatable"]
    assert (offered[NEURON], offered[CORE]) == ("4", "16")
    # 3. kube-scheduler, the second one, picks the pod up.
    (scheduled,) = [event for event in namespace.events("nine") if event["reason"] == "Scheduled"]
    assert scheduled["reportingComponent"] == SCHEDULER
    line_with(scheduler, '"Successfully bound pod to node"', f'pod="{key}"', 'node="node-1"')
    # 4. It asks the extender's filter with the nodes and the pod. 5. The filter drops the node whose cores are apart.
    asked = line_with(extender, f"POD {key} (9 of {CORE}) fits in 1 of 2 nodes. Filtered nodes: ['node-1'].")
    assert re.search(r"Failed nodes: {'node-2': .*Free: 12 of 16 cores, at most 8 together", asked), asked
    # 6. It asks the extender to bind; 7. that writes contiguous cores into the pod's annotations, 8. and binds it.
    line_with(extender, f"Allocated ids for POD {key} are: {CORE} 0-8 for main; devices: 0-2; bound to Node:node-1")
    assert nine["spec"]["nodeName"] == "node-1"
    found = handed_out(namespace, "nine")
    assert (found["AWS_NEURON_IDS"], found["NEURON_CORES"], found["NEURON_RESOURCE_TYPE"]) == (NINE, NINE, CORE)
    assert int(found["NEURON_ALLOC_TIME"]) > 0
    # 9. kubelet asks the device plugin, 10. which reads the pod's annotations.
    line_with(plugin, f"container main of pod {key} gets {CORE} 0-8 (as its annotations say)")
    # 11. The container has the devices and the variable.
    assert namespace.environment("nine")["NEURON_RT_VISIBLE_CORES"] == NINE
    assert namespace.numbers("nine") == [0, 1, 2]


@BOTH_ENDS
def test_an_upgrade_keeps_certificate_and_running_pods_and_seven_devices_of_a_torus_wait(
    pair: Release, namespace: Namespace
) -> None:
    namespace.apply(limited("before", {CORE: 9}))
    (before,) = namespace.wait_ready("before")
    secret = pair.kube.get("secrets", SECRET, NAMESPACE)
    uids = {name: {item["metadata"]["uid"] for item in pair.pods(name)} for name in (EXTENDER, SCHEDULER)}

    pair.ensure(LEGACY, TRN1)
    pair.wait_allocatable(16, 32)
    after = pair.kube.get("secrets", SECRET, NAMESPACE)
    assert secret is not None and after is not None
    assert after["data"] == secret["data"]
    assert {name: {item["metadata"]["uid"] for item in pair.pods(name)} for name in uids} == uids
    still = namespace.pod("before") or {}
    assert still["metadata"]["uid"] == before["metadata"]["uid"]
    assert still["status"]["containerStatuses"][0]["restartCount"] == 0
    assert namespace.environment("before")["NEURON_RT_VISIBLE_CORES"] == NINE
    assert namespace.numbers("before") == [0, 1, 2]

    namespace.apply(limited("seven", {NEURON: 7}))
    namespace.wait_event(
        "seven",
        "Instance type trn1.32xlarge does not support requests for device: 7. "
        "Please request a different number of devices.",
    )
    assert namespace.phase("seven") == "Pending"
    namespace.apply(limited("eight", {NEURON: 8}))
    namespace.wait_ready("eight")
    # Beside the pod of before, whose nine cores are those of five devices now; the other node stays whole.
    assert namespace.node_of("eight") == before["spec"]["nodeName"]
    assert handed_out(namespace, "eight")["AWS_NEURON_IDS"] == "8,9,10,11,12,13,14,15"
    assert namespace.numbers("eight") == list(range(8, 16))


def test_the_other_replica_leads_within_seconds_when_the_leading_pod_ends(
    pair: Release, namespace: Namespace, figures: list[str]
) -> None:
    """Long before the lease would run out: the leader gives it back."""

    def leader() -> str:
        lease = pair.kube.get("leases", "neuron-scheduler-extender", NAMESPACE) or {"spec": {}}
        return str(lease["spec"].get("holderIdentity", "")).partition("_")[0]

    first = eventually("a leader", leader, 40)
    assert first in {item["metadata"]["name"] for item in pair.pods(EXTENDER)}
    pair.kube.kubectl(f"--namespace={NAMESPACE}", "delete", "pod", first, "--wait=false")
    ended = time.monotonic()
    second = eventually("another leader", lambda: (found := leader()) != first and found, 20)
    figures.append(f"the extender's other replica led {time.monotonic() - ended:.1f} s after the leader was deleted")
    namespace.apply(limited("after", {CORE: 9}))
    namespace.wait_ready("after")
    assert namespace.environment("after")["NEURON_RT_VISIBLE_CORES"] == NINE
    line_with(pair.logs(EXTENDER), f"Allocated ids for POD {namespace.name}/after are: {CORE} 0-8 for main;")
    assert leader() == second
    pair.wait_ready()


def test_helms_test_gets_a_chip_by_a_limit(pair: Release) -> None:
    assert len(re.findall(r"/dev/neuron\d can be opened", pair.tested())) == 1


def test_the_commands_of_the_notes_run(pair: Release) -> None:
    assert len(pair.commands()) == 5
    for command in pair.commands():
        pair.shell(command)


def test_a_secret_without_the_schedulers_certificate_is_refused_by_name(pair: Release) -> None:
    made = pair.kube.get("secrets", SECRET, NAMESPACE) or {}
    data = {key: value for key, value in made["data"].items() if key != "client.crt"}
    metadata = {"name": "test-incomplete", "namespace": NAMESPACE}
    pair.kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    try:
        done = pair.upgrade({**LEGACY, "scheduler.tls.existingSecret": "test-incomplete"}, check=False)
        assert "lacks client.crt" in done.stderr
    finally:
        pair.kube.kubectl("delete", f"--namespace={NAMESPACE}", "secret", "test-incomplete")


@BOTH_ENDS
def test_nothing_of_the_chart_is_left_after_the_commands_for_its_removal(pair: Release, kube: Kube) -> None:
    made = {(item["kind"], item["metadata"]["name"]) for item in pair.stored()}
    assert len(made) == len(pair.made())
    pair.uninstall()
    listed = kube.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    kinds = ",".join(name for name in listed if not name.startswith(("events", "componentstatuses")))
    items = json.loads(kube.kubectl("get", kinds, "--all-namespaces", "-o", "json", "--chunk-size=0"))["items"]
    assert [(item["kind"], item["metadata"]["name"]) for item in items if of_release(item)] == []
    assert not made & {(item["kind"], item["metadata"]["name"]) for item in items}
    nodes = [item for item in items if item["kind"] == "Node"]
    assert nodes
    labels = {key for item in nodes for key in item["metadata"]["labels"]}
    assert {key for key in labels if key.startswith("neuron.amazonaws.com/")} == set()
    types = {condition["type"] for item in nodes for condition in item["status"]["conditions"]}
    assert "Ready" in types
    assert {name for name in types if name.startswith("Neuron")} == set()


def of_release(item: Object) -> bool:
    """Whether an object is marked as helm's, is named after a part of the chart, or was written to by one."""
    metadata = item["metadata"]
    marked = metadata.get("labels", {}).get("owner") == "helm"
    written = any(key.startswith(("meta.helm.sh/", "NEURON_", "neuron.aws.com/")) for key in notes_of(item))
    return marked or written or any(part in metadata["name"] for part in ("neuron", SCHEDULER))


# What the pods may do


@pytest.mark.parametrize(
    ("name", "user", "writable", "ports"),
    [
        (EXTENDER, "65532", {"/tmp"}, {("0.0.0.0", 12345), ("POD", 9090)}),
        (SCHEDULER, "65532", set(), {("::", 10259)}),
        (
            PLUGIN,
            "0",
            {"/tmp", "/var/lib/kubelet/device-plugins", "/var/lib/neuron-device-plugin", "/run/cdi"},
            {("POD", 51515)},
        ),
    ],
)
def test_pods_have_no_capability_a_root_that_cannot_be_written_and_few_open_ports(
    pair: Release, name: str, user: str, writable: set[str], ports: set[tuple[str, int]]
) -> None:
    found = pair.pods(name)
    assert len(found) == 2
    item = found[0]
    fields = dict(line.split(":", 1) for line in pair.exec(item, "cat", "/proc/1/status").splitlines())
    capabilities = {key: int(fields[key], 16) for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    assert set(capabilities.values()) == {0}
    assert (fields["NoNewPrivs"].strip(), fields["Seccomp"].strip()) == ("1", "2")
    assert set(fields["Uid"].split()) | set(fields["Gid"].split()) == {user}
    mounts = [line.split() for line in pair.exec(item, "cat", "/proc/1/mounts").splitlines()]
    assert "ro" in next(fields[3] for fields in mounts if fields[1] == "/").split(",")
    own = ("/proc", "/dev", "/sys/fs/cgroup", "/etc/host", "/etc/resolv.conf")
    opened = {fields[1] for fields in mounts if "rw" in fields[3].split(",") and not fields[1].startswith(own)}
    assert opened == writable
    address = item["status"]["podIP"]
    tables = pair.exec(item, "cat", "/proc/net/tcp", "/proc/net/tcp6")
    assert {("POD" if host == address else host, port) for host, port in listening(tables)} == ports


LEASE = "coordination.k8s.io", "leases"
RIGHTS = {
    EXTENDER: {
        ("", "pods", ""): ("get", "list", "watch", "patch"),
        ("", "pods/binding", ""): ("create",),
        ("", "nodes", ""): ("list", "watch", "patch"),
        (*LEASE, ""): ("create",),
        (*LEASE, "neuron-scheduler-extender"): ("get", "update"),
    },
    "neuron-device-plugin": {
        ("", "pods", ""): ("get", "list", "watch", "patch"),
        ("", "nodes", ""): ("get", "list", "watch", "patch"),
        ("", "nodes/status", ""): ("patch",),
        ("resource.k8s.io", "resourceslices", ""): ("list",),
    },
}
"""By service account: API group, resource and name, and the verbs."""


@pytest.mark.parametrize("account", RIGHTS)
def test_service_accounts_may_do_exactly_what_the_pages_name(pair: Release, account: str) -> None:
    anybody = rules(pair.kube, "system:serviceaccount:default:default")
    expected = {(verb, *what) for what, verbs in RIGHTS[account].items() for verb in verbs}
    found = rules(pair.kube, f"system:serviceaccount:{NAMESPACE}:{account}") - anybody
    assert {(verb, group, resource, name) for verb, group, resource, name in found} == expected


REFUSED = (
    "get secrets",
    "get configmaps",
    "create pods",
    "update pods",
    "delete pods",
    "create pods --subresource=exec",
    "patch pods --subresource=status",
    "update nodes",
    "delete nodes",
    "update nodes --subresource=status",
    "get nodes --subresource=proxy",
    "create serviceaccounts --subresource=token",
    "create resourceslices",
    "delete leases",
    "escalate clusterroles",
)


@BOTH_ENDS
@pytest.mark.parametrize("account", RIGHTS)
def test_what_a_taken_over_pod_would_want_is_refused(pair: Release, account: str) -> None:
    who = (f"--namespace={NAMESPACE}", f"--as=system:serviceaccount:{NAMESPACE}:{account}")
    answers = {what: pair.kube.kubectl("auth", "can-i", *what.split(), *who, check=False).strip() for what in REFUSED}
    assert answers == dict.fromkeys(REFUSED, "no")


OTHERS: tuple[tuple[Object, str], ...] = (
    ({"metadata": {"annotations": {"example.com/note": "x"}}}, "no annotation but"),
    ({"metadata": {"annotations": {"example.com/kept": None}}}, "no annotation but"),
    ({"metadata": {"finalizers": ["example.com/hold"]}}, "nothing but annotations"),
)
"""Changes of pods and nodes that are nobody's business here, and how they are refused."""
LABEL: Object = {"metadata": {"labels": {"example.com/zone": "x"}}}
OF_NODES: tuple[tuple[Object, str], ...] = (
    ({"spec": {"unschedulable": True}}, "nothing but annotations"),
    ({"spec": {"taints": [{"key": "example.com/away", "effect": "NoExecute"}]}}, "nothing but annotations"),
)
OF_PODS: tuple[tuple[Object, str], ...] = (({"spec": {"activeDeadlineSeconds": 1}}, "nothing but annotations"),)


@pytest.fixture
def waits(pair: Release, namespace: Namespace) -> Iterator[Namespace]:
    """A namespace with a pod that no scheduler takes, and on it and on both nodes a foreign annotation."""
    namespace.apply(limited("waits", {}, scheduler="nobody"))
    namespace.kubectl("annotate", "pod", "waits", "example.com/kept=x")
    pair.kube.kubectl("annotate", "nodes", "--all", "example.com/kept=x")
    yield namespace
    pair.kube.kubectl("annotate", "nodes", "--all", "example.com/kept-")


def patch(client: Transport, path: str, change: Object) -> None:
    client.request("PATCH", f"/api/v1/{path}", body=change, content_type="application/merge-patch+json")


def assert_refused(client: Transport, path: str, changes: Iterable[tuple[Object, str]]) -> None:
    for change, text in changes:
        with pytest.raises(ApiError) as caught:
            patch(client, path, change)
        assert caught.value.status == 403, change
        assert text in caught.value.message, change


@BOTH_ENDS
def test_the_extender_may_change_its_own_annotations_and_nothing_else(
    pair: Release, waits: Namespace, tmp_path: Path
) -> None:
    client = pair.client(pair.pods(EXTENDER)[0], tmp_path)
    path = f"namespaces/{waits.name}/pods/waits"
    patch(client, path, {"metadata": {"annotations": {"NEURON_ALLOCATED": "false"}}})
    patch(client, path, {"metadata": {"annotations": {"NEURON_ALLOCATED": None}}})
    patch(client, "nodes/node-1", {"metadata": {"annotations": {"NEURON_DEV_USAGE_MAP": None}}})
    assert_refused(client, path, (*OTHERS, *OF_PODS, (LABEL, "nothing but annotations")))
    foreign: Object = {"metadata": {"annotations": {"neuron.aws.com/unusable-devices": "1"}}}
    of_nodes = (*OTHERS, *OF_NODES, (LABEL, "nothing but annotations"), (foreign, "no annotation but"))
    assert_refused(client, "nodes/node-1", of_nodes)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "waits", "annotations": {"example.com/note": "x"}},
        "target": {"kind": "Node", "name": "node-1"},
    }
    with pytest.raises(ApiError, match="no annotation but"):
        client.request("POST", f"/api/v1/{path}/binding", body=binding)
    binding["metadata"] = {"name": "waits", "labels": {"app": "payments"}}
    with pytest.raises(ApiError, match="give them no label"):
        client.request("POST", f"/api/v1/{path}/binding", body=binding)
    assert not waits.node_of("waits")
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "another-controller"}}
    with pytest.raises(ApiError, match="only leases and ConfigMaps that are named neuron-scheduler-extender"):
        client.request("POST", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases", body=lease)


@BOTH_ENDS
def test_nobody_else_changes_the_annotations_that_say_who_has_what(pair: Release, waits: Namespace) -> None:
    """Not the author of the pod either, whose node would be withheld from others."""

    def answer(*arguments: str) -> str:
        done = pair.kube.access.kubectl(f"--namespace={waits.name}", *arguments, check=False)
        return done.stdout + done.stderr

    for key in ("NEURON_DEVS", "NEURON_CORES", "neuron.aws.com/allocation"):
        assert f"may add, change or remove {key}." in answer("annotate", "pod", "waits", f"{key}=0-15")
    assert "annotated" in answer("annotate", "pod", "waits", "example.com/other=x")
    copy = limited("copy", {}, scheduler="nobody")
    copy["metadata"]["annotations"] = {"NEURON_DEVS": "0-15"}
    waits.apply(copy)
    assert "labeled" in answer("label", "pod", "copy", "example.com/other=x")
    assert "may add, change or remove NEURON_DEVS." in answer("annotate", "pod", "copy", "NEURON_DEVS-")


@BOTH_ENDS
def test_no_kubelet_makes_a_pod_that_answers_for_the_extender(pair: Release, waits: Namespace) -> None:
    node = pair.kube.get("nodes", "node-1")
    assert node is not None

    def answer(labels: dict[str, str]) -> str:
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": "node-1",
            "uid": node["metadata"]["uid"],
            "controller": True,
        }
        mirror = limited("mirror", {}, scheduler="")
        mirror["spec"]["nodeName"] = "node-1"
        mirror["metadata"] |= {
            "labels": labels,
            "annotations": {"kubernetes.io/config.mirror": "h"},
            "ownerReferences": [owner],
        }
        as_node = ("--as=system:node:node-1", "--as-group=system:nodes", f"--namespace={waits.name}")
        done = pair.kube.access.kubectl(
            *as_node, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(mirror), check=False
        )
        return done.stdout + done.stderr

    assert "none of another workload" in answer({"app": "neuron-scheduler"})
    assert "created" in answer({"app": "any"})


@BOTH_ENDS
def test_a_device_plugin_may_change_its_own_annotations_on_its_own_node_and_nothing_else(
    pair: Release, waits: Namespace, tmp_path: Path
) -> None:
    (item,) = pair.pods(PLUGIN, "node-1")
    client = pair.client(item, tmp_path)
    waits.apply(limited("here", {}, node="node-1"), limited("there", {}, node="node-2"))
    waits.wait_ready("here", "there")
    waits.kubectl("annotate", "pod", "here", "example.com/kept=x")
    own: Object = {"metadata": {"annotations": {"NEURON_ALLOCATED": "true"}}}
    unusable: Object = {"metadata": {"annotations": {"neuron.aws.com/unusable-devices": None}}}
    patch(client, f"namespaces/{waits.name}/pods/here", own)
    patch(client, "nodes/node-1", unusable)
    assert_refused(
        client, f"namespaces/{waits.name}/pods/here", (*OTHERS, *OF_PODS, (LABEL, "nothing but annotations"))
    )
    assert_refused(client, "nodes/node-1", (*OTHERS, *OF_NODES, (LABEL, "no label but neuron.amazonaws.com/present")))
    capacity: Object = {"status": {"capacity": {"example.com/thing": "1"}}}
    assert_refused(client, "nodes/node-1/status", [(capacity, "nothing of a Node's status but")])
    elsewhere = 'The device plugin of node "node-1" may change only this Node and its pods.'
    for name in ("there", "waits"):
        assert_refused(client, f"namespaces/{waits.name}/pods/{name}", [(own, elsewhere)])
    assert_refused(client, "nodes/node-2", [(unusable, elsewhere)])
    event = {
        "metadata": {"name": "node-2.0123456789abcdef", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": "node-1"},
        "source": {"component": "neuron-device-plugin"},
        "reportingComponent": "neuron-device-plugin",
    }
    with pytest.raises(ApiError, match=r'only events that are named "node-1[.]" and 16 hexadecimal digits'):
        client.request("POST", "/api/v1/namespaces/default/events", body=event)

"""What an overview shows: chips are counted by the hardware behind the devices, whatever objects say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dra_driver.cli.overviewoutput import Cell, sections, share
from dra_driver.kube.api.codec import Resource, decode
from dra_driver.kube.objects.apps import DaemonSet
from dra_driver.kube.objects.meta import seconds
from dra_driver.neuron.health.faults import FAULTS
from dra_driver.operations.overview.findings import REMEDIES, finding
from dra_driver.operations.overview.objects import (
    CLAIMS,
    EVENTS,
    GROUP_KEY,
    GROUP_SIZE,
    NODES,
    PODS,
    SLICES,
    TAINT_RULES,
    ClusterView,
)
from dra_driver.operations.overview.pods import evidence
from dra_driver.operations.overview.rows import Frame, NodeRow
from dra_driver.operations.overview.serving import Serving
from dra_driver.operations.overview.view import view
from tests.builders.overview import (
    CRASH_LOOP,
    CRASHED,
    TYPE_LABEL,
    daemon_set,
    driver_pod,
    of_device_plugin,
    published,
    taint,
)
from tests.golden import golden

T = TypeVar("T")
Object = dict[str, Any]


def kept(resource: Resource[T], item: Object) -> T:
    """What is kept of an object as the API server sends it."""
    convert: Any = resource.from_version
    found: T = decode(json.dumps(item).encode(), resource.struct if convert is None else resource.wire, resource.kind)
    return found if convert is None else convert(found, "v1")


def holders_of(frame: Frame) -> tuple[tuple[Cell, ...], ...]:
    """The rows of the table of those who have devices."""
    return next(section.rows for section in sections(frame) if section.title == "holders of devices")


READY_POD: Object = {"type": "Ready", "status": "True"}


def claim(name: str, node: str, *devices: str, pods: tuple[str, ...] = (), **more: object) -> Object:
    results = [
        {"request": "r", "driver": "neuron.aws.com", "pool": node, "device": device, **more} for device in devices
    ]
    users = [{"resource": "pods", "name": pod, "uid": "u-7"} for pod in pods]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
    return {"metadata": {"namespace": "ml", "name": name}, "status": status}


def frame(
    *claims: Object,
    partitions: str = "chip",
    kind: str = "trn2.48xlarge",
    taints: Mapping[str, list[Object]] | None = None,
    node: Object | None = None,
    pods: tuple[Object, ...] = (),
    generations: tuple[int, ...] = (1,),
    rules: tuple[Object, ...] = (),
) -> Frame:
    slices = []
    for generation in generations:
        for item in published("node-1", kind, partitions):
            item["spec"]["pool"]["generation"] = generation
            for device in item["spec"].get("devices", ()):
                device["taints"] = (taints or {}).get(device["name"], [])
            slices.append(item)
    found = node or {"metadata": {"name": "node-1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    return view(
        ClusterView(
            [kept(NODES, found)],
            [kept(SLICES, item) for item in slices],
            [kept(CLAIMS, item) for item in claims],
            [kept(PODS, item) for item in pods],
            [kept(TAINT_RULES, item) for item in rules],
        )
    )


def row(*claims: Object, **more: Any) -> NodeRow:
    (found,) = frame(*claims, **more).nodes
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "partitions", "held"),
    [
        (["neuron-device-3"], "chip", {3: 4}),
        (["neuron-core-3-1", "neuron-core-3-2"], "chip.core", {3: 2}),
        (["neuron-group4-1"], "chip.group", {4: 4, 5: 4, 6: 4, 7: 4}),
        (["neuron-node"], "chip.node", dict.fromkeys(range(16), 4)),
    ],
    ids=["chip", "cores", "group", "node"],
)
def test_chips_are_held_by_whatever_device_is_made_of_them(
    devices: list[str], partitions: str, held: dict[int, int]
) -> None:
    found = row(claim("c", "node-1", *devices, pods=("p",)), partitions=partitions)
    assert {chip.index: chip.held for chip in found.chips if chip.held} == held
    assert (found.held, found.free) == (len(held), 16 - len(held))
    assert all(found.chips[index].holders == ("ml/p",) for index in held)


def test_who_only_looks_at_a_chip_does_not_hold_it() -> None:
    assert row(claim("c", "node-1", "neuron-device-3", adminAccess=True)).free == 16


def test_a_claim_without_a_pod_still_holds() -> None:
    found = row(claim("c", "node-1", "neuron-device-3"))
    assert (found.free, found.chips[3].holders) == (15, ("ml/claim c",))


def test_pods_that_share_a_claim_hold_the_chip_once() -> None:
    found = frame(claim("c", "node-1", "neuron-device-3", pods=("a", "b")))
    assert [holder.pod for holder in found.holders] == ["a", "b"]
    assert (found.nodes[0].held, found.nodes[0].chips[3].holders) == (1, ("ml/a", "ml/b"))


@pytest.mark.parametrize("uid", ["u-7", "u-8"])
def test_a_pod_that_was_made_anew_does_not_have_what_its_predecessor_has(uid: str) -> None:
    """As long as no controller takes the former claim back."""
    pod: Object = {
        "metadata": {"namespace": "ml", "name": "web-0", "uid": uid},
        "spec": {"nodeName": "node-1", "resourceClaims": [{"name": "n", "resourceClaimName": "c"}]},
        "status": {"phase": "Running", "conditions": [READY_POD]},
    }
    of_first = claim("c", "node-1", "neuron-device-3", pods=("web-0",), namespace="ml")
    cluster = ClusterView(
        slices=[kept(SLICES, item) for item in published("node-1")],
        claims=[kept(CLAIMS, of_first)],
        pods=[kept(PODS, pod), kept(PODS, driver_pod("node-1"))],
    )
    shown = view(cluster)
    (node,) = shown.nodes
    assert (node.free, node.chips[3].holders) == (15, ("ml/web-0",) if uid == "u-7" else ("ml/claim c",))
    assert [item.phase for item in shown.holders] == (["Running"] if uid == "u-7" else [""])


def test_slices_of_an_older_generation_do_not_count() -> None:
    assert row(generations=(1, 2)).offers == (("chips", 16),)


def test_a_node_takes_no_claims_of_another_one_by_slices_in_its_pool() -> None:
    (forged,) = published("node-1", "trn2.48xlarge", "chip")[:1]
    forged["spec"]["nodeName"] = "evil"
    held = claim("c", "node-1", "neuron-device-3", pods=("p",))
    slices = [*published("node-1", "trn2.48xlarge", "chip"), forged]
    found = view(ClusterView(slices=[kept(SLICES, item) for item in slices], claims=[kept(CLAIMS, held)]))
    assert [(node.name, node.held) for node in found.nodes] == [("node-1", 1)]


def test_claims_outlast_the_slices() -> None:
    cluster = ClusterView(claims=[kept(CLAIMS, claim("c", "node-1", "neuron-device-3", pods=("p",)))])
    found = view(cluster)
    assert [(node.name, node.status, node.held) for node in found.nodes] == [("node-1", "Unknown", 1)]


@pytest.mark.parametrize(
    ("taints", "state", "free"),
    [
        ([taint("hbm-uncorrectable")], "unhealthy", 15),
        ([taint("hbm-repairable", "degraded", "None")], "degraded", 16),
        ([{"key": "team", "value": "a", "effect": "NoExecute"}], "tainted", 15),
        ([{"key": "neuron.aws.com/retired", "value": "partitions", "effect": "NoSchedule"}], "healthy", 15),
        ([{"key": "neuron.aws.com/ultraserver-workload", "value": "u", "effect": "NoSchedule"}], "healthy", 15),
        ([{"key": "note", "effect": "None"}], "healthy", 16),
    ],
    ids=["unhealthy", "degraded", "tainted", "retired", "workload", "told"],
)
def test_taints_say_how_well_a_chip_is_and_whether_it_is_free(taints: list[Object], state: str, free: int) -> None:
    found = row(taints={"neuron-device-3": taints})
    assert (found.chips[3].state, found.free) == (state, free)


def rule(name: str, selector: Mapping[str, str] | None, taint: Object) -> Object:
    return {"metadata": {"name": name}, "spec": {"taint": taint, **({"deviceSelector": selector} if selector else {})}}


PLUGIN = {"aws.amazon.com/neuron": "12", "aws.amazon.com/neuroncore": "24"}
REPAIR = {"key": "example.com/repair", "value": "fan", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("selector", "free"),
    [
        ({"pool": "node-1", "device": "neuron-device-3"}, 15),
        ({"driver": "neuron.aws.com"}, 0),
        ({"pool": "node-2"}, 16),
        ({"driver": "gpu.example.com", "pool": "node-1"}, 16),
        (None, 16),
    ],
    ids=["a device", "a driver", "another pool", "another driver", "nothing"],
)
def test_taint_rules_keep_from_pods_what_they_select(selector: Mapping[str, str] | None, free: int) -> None:
    assert row(rules=(rule("r", selector, REPAIR),)).free == free


def test_a_taint_rule_says_nothing_about_the_chip_whatever_its_key() -> None:
    selector = {"device": "neuron-device-3"}
    found = row(
        rules=(rule("b", selector, taint("hbm-uncorrectable")), rule("a", selector, REPAIR)),
        taints={"neuron-device-3": [taint("hbm-repairable", "degraded", "None")]},
    )
    assert [(fault.code, fault.severity) for fault in found.chips[3].faults] == [
        ("hbm-repairable", "degraded"),
        ("example.com/repair=fan:NoExecute", "tainted"),
        ("health.neuron.aws.com/hbm-uncorrectable=unhealthy:NoSchedule", "tainted"),
    ]
    assert found.chips[3].state == "tainted"


def test_a_group_does_not_tell_which_of_its_chips_is_sick() -> None:
    found = row(partitions="chip.group", taints={"neuron-group4-0": [taint("hbm-uncorrectable")]})
    assert (found.sick, found.free) == (0, 16)


@pytest.mark.parametrize("offered", [(), ("neuron-device-3",)], ids=["nothing", "what a claim holds"])
def test_a_node_whose_kubelet_stops_calling_drivers_has_no_free_chips_and_says_why(offered: tuple[str, ...]) -> None:
    (slice_,) = published("node-1", "trn2.48xlarge", "chip")
    slice_["spec"]["devices"] = [item for item in slice_["spec"]["devices"] if item["name"] in offered]
    status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.34.1-eks-1"}}
    node = {"metadata": {"name": "node-1", "labels": {TYPE_LABEL: "trn2.48xlarge"}}, "status": status}
    holder = claim("c", "node-1", "neuron-device-3", pods=("p",))
    pods = [kept(PODS, driver_pod("node-1"))]
    found = view(ClusterView([kept(NODES, node)], [kept(SLICES, slice_)], [kept(CLAIMS, holder)], pods))
    (row,) = found.nodes
    assert (len(row.chips), row.free, row.held) == (16, 0, 1)
    golden(row.kubelet_problem)
    assert found.document("")["items"][0]["kubeletProblem"] == row.kubelet_problem
    nodes = list(sections(found))[1]
    assert dict(zip(nodes.columns, (cell.text for cell in nodes.rows[0]), strict=True)) == {
        "NODE": "node-1",
        "TYPE": "trn2.48xlarge",
        "STATUS": "Ready,KubeletUnsupported",
        "DRIVER": "Ready" if offered else "NothingOffered",
        "OFFERS": "1 chip" if offered else "nothing",
        "FREE": "0/16",
        "CHIPS": "!!!#!!!!!!!!!!!!" if offered else "???#????????????",
        "SICK": "-" if offered else "unknown",
    }
    problems = [item.rows[0][-1].text for item in sections(found) if item.title == "problems of nodes"]
    assert problems == ([] if offered else [row.kubelet_problem])


def test_a_node_with_a_device_plugin_is_read_from_capacity_annotations_and_condition() -> None:
    conditions = [
        {"type": "Ready", "status": "True"},
        {
            "type": "NeuronHealth",
            "status": "True",
            "reason": FAULTS["hbm-uncorrectable"].reason,
            "message": "neuron3: hbm-uncorrectable",
        },
    ]
    node: Object = {
        "metadata": {
            "name": "old",
            "labels": {TYPE_LABEL: "ml.inf2.48xlarge"},
            "annotations": {"neuron.aws.com/unusable-devices": "3"},
        },
        "status": {"capacity": PLUGIN, "allocatable": PLUGIN},
    }
    node["status"]["conditions"] = conditions
    pod: Object = {
        "metadata": {
            "name": "p",
            "namespace": "ml",
            "annotations": {"AWS_NEURON_IDS": "0,1,2", "NEURON_RESOURCE_TYPE": "aws.amazon.com/neuroncore"},
        },
        "spec": {
            "nodeName": "old",
            "containers": [{"name": "c", "resources": {"limits": {"aws.amazon.com/neuroncore": "3"}}}],
        },
        "status": {"phase": "Running"},
    }
    (found,) = view(ClusterView([kept(NODES, node)], pods=[kept(PODS, pod)])).nodes
    assert [(chip.held, chip.cores) for chip in found.chips[:3]] == [(2, 2), (1, 2), (0, 2)]
    assert (found.instance_type, found.free) == ("inf2.48xlarge", 9)
    assert [fault.code for fault in found.chips[3].faults] == ["hbm-uncorrectable"]
    assert found.chips[3].blocked


def test_annotations_that_came_with_a_copied_manifest_do_not_tell_what_a_pod_has() -> None:
    node: Object = {
        "metadata": {"name": "old", "labels": {TYPE_LABEL: "inf2.48xlarge"}},
        "status": {"capacity": PLUGIN, "allocatable": PLUGIN, "conditions": [{"type": "Ready", "status": "True"}]},
    }

    def unsure(owner: str) -> bool:
        annotations = {"NEURON_DEVS": "3", "NEURON_ALLOC_TIME": "7", "neuron.aws.com/allocation-of": f"{owner} 7"}
        limits = {"limits": {"aws.amazon.com/neuron": "1"}}
        pod: Object = {
            "metadata": {"name": "p", "namespace": "ml", "uid": "own", "annotations": annotations},
            "spec": {"nodeName": "old", "containers": [{"name": "c", "resources": limits}]},
            "status": {"phase": "Running"},
        }
        return "copied from another pod" in str(
            holders_of(view(ClusterView([kept(NODES, node)], pods=[kept(PODS, pod)])))
        )

    assert unsure("another")
    assert not unsure("own")


# Whether anybody serves a node

NEURON_NODE: Object = {
    "metadata": {"name": "node-1", "labels": {TYPE_LABEL: "trn2.48xlarge"}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}
WELL = {"type": "NeuronHealth", "status": "False", "reason": "NeuronHasNoError", "message": "Neuron has no error"}
STOPPED = {
    "type": "NeuronHealth",
    "status": "Unknown",
    "reason": "NeuronDriverStopped",
    "lastTransitionTime": "2026-03-01T09:00:00Z",
}
UNLOADED = {
    "type": "NeuronDriverNotLoaded",
    "status": "True",
    "reason": "KernelDriverNotLoaded",
    "message": "the kernel driver is not loaded; load it: modprobe neuron",
    "lastTransitionTime": "2026-03-01T08:00:00Z",
}
EVICTED: dict[str, Any] = {
    "phase": "Failed",
    "reason": "Evicted",
    "message": "The node was low on resource: memory.",
    "containerStatuses": [],
}


@pytest.mark.parametrize(
    ("pods", "conditions", "word"),
    [
        ([driver_pod("node-1", state=CRASH_LOOP, last=CRASHED, ready=False)], [WELL], "CrashLoopBackOff"),
        ([driver_pod("node-1", ready=False, **EVICTED)], [WELL], "Evicted"),
        ([driver_pod("node-1", ready=False)], [WELL], "NotReady"),
        ([], [WELL], "None"),
        ([], [STOPPED], "None"),
        ([driver_pod("node-1")], [WELL, UNLOADED], "KernelDriverNotLoaded"),
        ([], [WELL, UNLOADED], "None"),
        ([driver_pod("node-1")], [WELL], "NothingOffered"),
    ],
    ids=["crash loop", "evicted", "not ready", "gone", "stopped", "kernel driver", "gone before", "silent"],
)
def test_nothing_is_free_and_no_chip_is_called_healthy_where_nobody_serves_a_node(
    pods: list[Object], conditions: list[Object], word: str
) -> None:
    node = {**NEURON_NODE, "status": {"conditions": [*NEURON_NODE["status"]["conditions"], *conditions]}}
    holder = claim("c", "node-1", "neuron-device-3", pods=("p",))
    cluster = ClusterView([kept(NODES, node)], (), [kept(CLAIMS, holder)], [kept(PODS, pod) for pod in pods])
    (found,) = view(cluster).nodes
    assert (found.serving.word, found.free, found.held, len(found.chips)) == (word, 0, 1, 16)
    assert {chip.state for chip in found.chips} == {"unknown"}
    assert found.condition == ""
    golden(f"{found.serving.problem}; since {found.serving.since or '-'}; {found.serving.remedy}")


def test_what_a_device_plugin_offered_is_not_free_when_it_has_gone() -> None:
    status = {"capacity": PLUGIN, "allocatable": dict.fromkeys(PLUGIN, "0")}
    node = {"metadata": {"name": "old", "labels": {TYPE_LABEL: "inf2.48xlarge"}}, "status": status}
    (found,) = view(ClusterView([kept(NODES, node)])).nodes
    assert (found.offers, found.free, len(found.chips)) == ((), 0, 12)


def test_chips_that_were_there_before_the_kernel_driver_was_unloaded_have_no_faults_of_their_own() -> None:
    node = {**NEURON_NODE, "status": {"conditions": [*NEURON_NODE["status"]["conditions"], UNLOADED]}}
    lost = {f"neuron-device-{chip}": [taint("device-lost")] for chip in range(16)}
    found = row(node=node, taints=lost, pods=(driver_pod("node-1"),))
    assert (found.serving.word, found.free, found.sick) == ("KernelDriverNotLoaded", 0, 0)
    assert {chip.state for chip in found.chips} == {"unknown"}


def test_a_driver_that_crashes_is_told_while_its_slices_are_still_there() -> None:
    found = row(pods=(driver_pod("node-1", state=CRASH_LOOP, last=CRASHED, ready=False),))
    assert (found.free, found.serving.word) == (16, "CrashLoopBackOff")
    assert {chip.state for chip in found.chips} == {"unknown"}
    assert row(pods=(driver_pod("node-1"),)).serving == Serving("Ready")


def test_during_an_update_the_pod_that_is_ready_counts_and_a_pod_of_nobodys_daemonset_never() -> None:
    broken = driver_pod("node-1", state=CRASH_LOOP, last=CRASHED, ready=False)
    broken["metadata"]["name"] = "driver-node-1-new"
    updating = row(pods=(broken, driver_pod("node-1"))).serving
    assert (updating.word, updating.serves) == ("Ready", True)
    golden(updating.problem)
    broken["metadata"]["ownerReferences"] = []
    assert row(pods=(broken,)).serving.problem == ""


def test_who_sees_one_namespace_is_not_told_that_chips_are_free() -> None:
    slices = [kept(SLICES, item) for item in published("node-1")]
    found = view(ClusterView(slices=slices, whole=False, with_nodes=False))
    (only,) = found.nodes
    assert (only.free, only.status, only.instance_type) == (None, "-", "trn2.48xlarge")
    types, nodes, _ = sections(found)
    assert (types.rows[0][3].text, nodes.rows[0][5].text, nodes.rows[0][6].text) == ("-", "-/16", "?" * 16)


def test_a_pod_that_does_not_start_says_why_and_which_of_its_chips_are_sick() -> None:
    pod: Object = {
        "metadata": {"name": "p", "namespace": "ml", "uid": "u-7", "creationTimestamp": "2026-03-01T10:00:00Z"},
        "spec": {"nodeName": "node-1", "resourceClaims": [{"name": "n", "resourceClaimName": "c"}]},
    }
    waiting = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
    pod["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
    texts = ("NeuronConfig: expected 1 or 2, got 3", "the second try")
    events: list[Object] = [
        {
            "metadata": {"name": f"e{place}", "namespace": "ml"},
            "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "p", "uid": uid},
            "reason": "FailedPrepareDynamicResources",
            "message": f"Failed to prepare dynamic resources: {text}",
            "lastTimestamp": f"2026-03-01T10:0{place}:00Z",
        }
        for place, (uid, text) in enumerate([("u-6", "of a pod before"), *zip(("u-7", "u-7"), texts, strict=True)])
    ]
    (offered,) = published("node-1")
    offered["spec"]["devices"][3]["taints"] = [taint("hbm-uncorrectable")]
    slices = [kept(SLICES, offered)]
    refusals = [kept(EVENTS, event) for event in reversed(events)]
    holder = kept(CLAIMS, claim("c", "node-1", "neuron-device-3", "neuron-device-4", pods=("p",)))
    found = view(ClusterView(slices=slices, claims=[holder], pods=[kept(PODS, pod)], events=refusals))
    (only,) = found.holders
    assert (only.phase, only.since, only.problem) == ("ContainerCreating", "2026-03-01T10:00:00Z", "the second try")
    assert only.sick == ("neuron3: hbm-uncorrectable",)
    golden(" | ".join(cell.text for cell in holders_of(found)[0]))


def saying(item: Object, device: str, *conditions: tuple[str, str, str, str], driver: str = "neuron.aws.com") -> Object:
    """The claim with an entry in ``status.devices``; conditions are type, status, reason and message."""
    keys = ("type", "status", "reason", "message")
    told = [dict(zip(keys, each, strict=True)) | {"lastTransitionTime": "2026-03-01T10:02:00Z"} for each in conditions]
    entry = {"driver": driver, "pool": "node-1", "device": device, "conditions": told, "data": {"chips": 7}}
    item["status"].setdefault("devices", []).append(entry)
    return item


READY, HEALTHY = ("Ready", "True", "Prepared", "chip 3 as /dev/neuron0"), ("Healthy", "True", "Healthy", "")
REFUSED = ("Ready", "False", "InvalidParameters", "NeuronConfig: expected 1 or 2, got 3")
SICK = ("Healthy", "False", "Unhealthy", "neuron3: hbm-uncorrectable")


def test_what_a_claim_says_is_shown_where_nothing_else_says_it() -> None:
    ill = {"neuron-device-3": [taint("hbm-uncorrectable")]}
    told = [
        (saying(claim("well", "node-1", "neuron-device-3"), "neuron-device-3", READY, HEALTHY), None),
        (saying(claim("refused", "node-1", "neuron-device-3"), "neuron-device-3", REFUSED, HEALTHY), None),
        (saying(claim("sick", "node-1", "neuron-device-3"), "neuron-device-3", READY, SICK), None),
        (saying(claim("sick, and told", "node-1", "neuron-device-3"), "neuron-device-3", READY, SICK), ill),
        (saying(claim("of another", "node-1", "neuron-device-3"), "neuron-device-3", SICK, driver="x.example"), None),
        (saying(claim("not allocated", "node-1", "neuron-device-4"), "neuron-device-3", SICK), None),
        (saying(claim("of two", "node-1", "neuron-device-3", "neuron-device-4"), "neuron-device-3", REFUSED), None),
    ]
    saying(told[-1][0], "neuron-device-4", REFUSED)
    shown = []
    for item, taints in told:
        (holder,) = frame(item, taints=taints).holders
        shown.append(f"{holder.claim}: {'; '.join(holder.says)}")
    golden(shown)


def test_what_kubelets_event_says_is_not_said_again() -> None:
    pod: Object = {"metadata": {"name": "p", "namespace": "ml", "uid": "u-7"}, "spec": {"nodeName": "node-1"}}
    pod["spec"]["resourceClaims"] = [{"name": "n", "resourceClaimName": "c"}]
    pod["status"] = {"phase": "Pending"}
    event: Object = {
        "metadata": {"name": "e", "namespace": "ml"},
        "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "p", "uid": "u-7"},
        "reason": "FailedPrepareDynamicResources",
        "message": f"Failed to prepare dynamic resources: NodePrepareResources failed for c: {REFUSED[3]}",
    }
    item = saying(claim("c", "node-1", "neuron-device-3", pods=("p",)), "neuron-device-3", REFUSED)
    cluster = ClusterView(claims=[kept(CLAIMS, item)], pods=[kept(PODS, pod)])
    for refusals, times in (([kept(EVENTS, event)], 0), ([], 1)):
        found = view(replace(cluster, events=refusals))
        (holder,) = found.holders
        assert len(holder.says) == times
        assert " | ".join(cell.text for cell in holders_of(found)[0]).count(REFUSED[3]) == 1
        assert found.document("")["holders"][0]["claimSays"] == list(holder.says)


WORDS = st.text(st.characters(codec="utf-8"), max_size=12)
NAMES = st.one_of(WORDS, st.from_regex(r"neuron-(device|core|group4|window3|node)(-[0-9]{1,3}){0,2}", fullmatch=True))


@given(st.lists(NAMES, max_size=6), WORDS, st.lists(st.sampled_from(["a", "b", ""]), max_size=3))
@example(["neuron-core-8-10", "neuron-group4-2"], "", [])
def test_claims_of_any_content_count_no_chip_twice(devices: list[str], pool: str, pods: list[str]) -> None:
    found = frame(claim("c", pool or "node-1", *devices, pods=tuple(pods)))
    for node in found.nodes:
        assert node.free is not None
        assert node.free + node.held <= len(node.chips)
        assert all(0 <= chip.held <= chip.cores for chip in node.chips)
    json.dumps(found.document(""))


CONDITION = st.tuples(st.sampled_from(["Ready", "Healthy", "Other"]), WORDS, WORDS, st.text(max_size=3000))


@given(st.lists(st.tuples(NAMES, st.lists(CONDITION, max_size=3), WORDS), max_size=4))
@example([("neuron-device-3", [("Ready", "False", "R", "\x1b[2J\n" * 999)], "neuron.aws.com")])
def test_whatever_claims_say_counts_no_chip_and_drives_no_terminal(entries: list[tuple[str, Any, str]]) -> None:
    item = claim("c", "node-1", "neuron-device-3", "neuron-device-5", pods=("p",))
    for device, conditions, driver in entries:
        saying(item, device, *conditions, driver=driver)
    found, silent = frame(item), frame(claim("c", "node-1", "neuron-device-3", "neuron-device-5", pods=("p",)))
    assert found.nodes[0].chips == silent.nodes[0].chips
    says = found.holders[0].says
    assert all(text.isprintable() and len(text.encode()) < 2000 for text in says)
    assert len(says) <= 4


@given(st.integers(-5, 60), st.lists(st.integers(0, 40), max_size=5))
def test_lines_are_shared_so_that_none_is_wasted_and_no_table_is_left_out(lines: int, wanted: list[int]) -> None:
    given_ = share(lines, wanted)
    assert all(min(1, want) <= got <= want for got, want in zip(given_, wanted, strict=True))
    assert sum(given_) == min(sum(wanted), max(lines, sum(want > 0 for want in wanted)))


def test_equal_objects_give_equal_frames_in_any_order() -> None:
    claims = [claim(name, "node-1", f"neuron-device-{place}", pods=(name,)) for place, name in enumerate("cab")]
    assert frame(*claims).document("")["holders"] == frame(*reversed(claims)).document("")["holders"]


@pytest.mark.parametrize(
    ("requests", "asks"),
    [
        ([{"name": "r", "exactly": {"deviceClassName": "neuron.aws.com", "count": 4}}], "4 x neuron.aws.com"),
        ([{"name": "r", "deviceClassName": "neuron.aws.com", "allocationMode": "All"}], "all x neuron.aws.com"),
        ([{"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "x"}, {"name": "b"}]}], "1 x x or 1 x "),
        (None, ""),
    ],
    ids=["v1", "v1beta1", "alternatives", "null of servers before 1.35"],
)
def test_claims_of_any_version_say_what_they_ask_for(requests: list[Object] | None, asks: str) -> None:
    found = kept(CLAIMS, {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}})
    assert found.asks == asks


def test_pods_that_wait_say_for_what_and_why() -> None:
    spec = {"resourceClaims": [{"name": "mine", "resourceClaimName": "gone"}], "containers": [{"name": "c"}]}
    pods = tuple(
        {"metadata": {"namespace": "ml", "name": name, **more}, "spec": spec, "status": {"phase": "Pending"}}
        for name, more in (("new", {}), ("ending", {"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    )
    made = [{"name": "mine", "resourceClaimTemplateName": "row"}]
    pods += ({"metadata": {"namespace": "ml", "name": "unmade"}, "spec": {"resourceClaims": made}},)
    golden(f"{item.pod} waits for {item.asks}: {item.reason}" for item in frame(pods=pods).pending)


def test_what_is_said_of_a_driver_where_pods_cannot_be_read_or_it_ended_just_now() -> None:
    ended = driver_pod("node-1", state={"terminated": CRASHED}, ready=False)
    begun = driver_pod("node-1", last=CRASHED, ready=False)
    updated = driver_pod("node-1", last={"exitCode": 0, "reason": "Completed"}, ready=False)
    node = kept(NODES, NEURON_NODE)
    frames = [
        view(ClusterView([node], pods=[kept(PODS, ended)])),
        view(ClusterView([node], pods=[kept(PODS, begun)])),
        view(ClusterView([node], pods=[kept(PODS, updated)])),
        view(ClusterView([node], whole=False)),
    ]
    golden(f"{found.nodes[0].serving.word}: {found.nodes[0].serving.problem}" for found in frames)


def starting(waiting: Object | None = None) -> Object:
    """A pod with claim ``c`` on ``node-1`` whose container does not run yet."""
    state = {"waiting": waiting or {"reason": "ContainerCreating"}}
    return {
        "metadata": {"name": "p", "namespace": "ml", "uid": "u-7"},
        "spec": {"nodeName": "node-1", "resourceClaims": [{"name": "n", "resourceClaimName": "c"}]},
        "status": {"phase": "Pending", "containerStatuses": [{"state": state}]},
    }


def warning(reason: str, message: str) -> Object:
    """Kubelet's Event about that pod."""
    return {
        "metadata": {"name": "e", "namespace": "ml"},
        "involvedObject": {"kind": "Pod", "namespace": "ml", "name": "p", "uid": "u-7"},
        "reason": reason,
        "message": message,
        "lastTimestamp": "2026-03-01T10:00:00Z",
    }


def test_texts_about_a_pod_that_has_a_node() -> None:
    pod = starting()
    event = warning(
        "FailedPrepareDynamicResources", "Failed to prepare dynamic resources: prepare dynamic resources: got 3"
    )
    slices = [kept(SLICES, item) for item in published("node-1")]
    served = ClusterView(slices=slices, pods=[kept(PODS, driver_pod("node-1"))], events=[kept(EVENTS, event)])
    unserved = ClusterView([kept(NODES, NEURON_NODE)])
    for around in (served, unserved):
        row = next(iter(view(around).nodes), None)
        found = evidence(kept(PODS, pod), around, row, 0.0)
        golden([found.state, *(f"{item.reason}: {item.text}; {item.remedy}" for item in found.findings)])


# What the cluster says comes first (each a case that was told wrongly once)


def test_a_device_of_all_chips_has_the_fault_of_the_chip_that_the_condition_names_and_of_no_other() -> None:
    lost = {"neuron-node": [taint("device-lost")]}
    reason = FAULTS["device-lost"].reason
    word = {"type": "NeuronHealth", "status": "True", "reason": reason, "message": "neuron5: device-lost"}
    node = {"metadata": {"name": "node-1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}, word]}}
    told = row(partitions="node", taints=lost, node=node)
    assert [chip.index for chip in told.chips if chip.faults] == [5]
    assert (told.sick, told.free) == (1, 0)
    untold = row(partitions="node", taints=lost)
    assert {chip.state for chip in untold.chips} == {"unknown"}


def test_a_device_plugin_serves_no_claims() -> None:
    plugin = of_device_plugin(driver_pod("node-1", state=CRASH_LOOP, last=CRASHED, ready=False))
    held = row(claim("c", "node-1", "neuron-device-3", pods=("p",)), pods=(plugin,), node=NEURON_NODE)
    assert "device plugin" in row(pods=(plugin,), node=NEURON_NODE).serving.problem
    assert "device plugin" not in held.serving.problem


def test_a_driver_that_has_stopped_offers_nothing_while_its_slices_are_still_there() -> None:
    conditions = [*NEURON_NODE["status"]["conditions"], STOPPED]
    node = {**NEURON_NODE, "status": {**NEURON_NODE["status"], "conditions": conditions}}
    stopped = row(node=node)
    assert (stopped.serving.word, stopped.free, stopped.serving.since) == ("None", 0, STOPPED["lastTransitionTime"])
    assert row(node=node, pods=(driver_pod("node-1"),)).serving.word == "Ready"


def test_nobody_knows_the_chips_of_a_node_whose_kubelet_is_silent() -> None:
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting."}
    silent = row(node={"metadata": {"name": "node-1"}, "status": {"conditions": [ready]}})
    assert {chip.state for chip in silent.chips} == {"unknown"}
    golden(f"{item.reason}: {item.text}; {item.remedy}" for item in silent.findings)


def test_who_lost_its_claim_keeps_its_chips_and_nobody_says_which() -> None:
    pod: Object = {
        "metadata": {"name": "p", "namespace": "ml", "uid": "u-7"},
        "spec": {"nodeName": "node-1", "resourceClaims": [{"name": "n", "resourceClaimName": "gone"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    lost = row(pods=(pod, driver_pod("node-1")))
    assert (lost.free, lost.serving.word) == (None, "Ready")
    golden(f"{item.reason}: {item.text}; {item.remedy}" for item in lost.findings)
    kept_claim = claim("gone", "node-1", "neuron-device-3", pods=("p",), namespace="ml")
    assert row(kept_claim, pods=(pod, driver_pod("node-1"))).free == 15


QUOTA = 'resourceclaims.resource.k8s.io "w-n-x" is forbidden: exceeded quota: claims, requested: count=1, used: count=4'
WEBHOOK = 'admission webhook "deny.example.com" denied the request: no'
POLICY = "\"w-n-x\" is forbidden: ValidatingAdmissionPolicy 'deny' with binding 'deny' denied request: no"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ("", "ClaimNotCreated"),
        (QUOTA, "QuotaExceeded"),
        (WEBHOOK, "WebhookRefused"),
        ('failed calling webhook "x": connection refused', "WebhookRefused"),
        (POLICY, "PolicyRefused"),
        ("the field is immutable", "FailedResourceClaimCreation"),
    ],
)
def test_why_no_claim_is_created_is_what_the_controller_says(event: str, reason: str) -> None:
    pod: Object = {
        "metadata": {"name": "w", "namespace": "ml", "uid": "u-8", "creationTimestamp": "2026-03-01T10:00:00Z"},
        "spec": {"resourceClaims": [{"name": "n", "resourceClaimTemplateName": "row"}]},
        "status": {"phase": "Pending"},
    }
    about = {"kind": "Pod", "namespace": "ml", "name": "w", "uid": "u-8"}
    said = {
        "metadata": {"name": "e", "namespace": "ml"},
        "involvedObject": about,
        "lastTimestamp": "2026-03-01T10:00:01Z",
    }
    said |= {"reason": "FailedResourceClaimCreation", "message": f"PodResourceClaim n: {event}"}
    events = [kept(EVENTS, said)] if event else []
    (waiting,) = view(ClusterView(pods=[kept(PODS, pod)], events=events)).pending
    assert waiting.finding.reason == reason
    golden(f"{waiting.reason}; {waiting.finding.remedy} ({waiting.finding.who})")


def of_group(name: str, *, claimed: bool = True, node: str = "node-1", phase: str = "Running") -> Object:
    """A pod of the PodGroup ``workers``, whose claim is ``shared``."""
    made = {"resourceClaimStatuses": [{"name": "n", "resourceClaimName": "shared"}]} if claimed else {}
    entry = {"name": "n", "resourceClaimTemplateName": "row"}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": name, "creationTimestamp": "2026-03-01T10:00:00Z"},
        "spec": {"nodeName": node, "schedulingGroup": {"podGroupName": "workers"}, "resourceClaims": [entry]},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": str(phase == "Running")}], **made},
    }


def test_the_pods_of_a_group_that_are_on_nodes_are_those_who_have_its_claim() -> None:
    shared = claim("shared", "node-1", "neuron-device-3")
    user = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "workers", "uid": "g"}
    shared["status"]["reservedFor"] = [user]
    pods = (of_group("b"), of_group("a"), of_group("waits", node=""), of_group("over", phase="Succeeded"))
    held = row(shared, pods=(*pods, driver_pod("node-1")))
    assert [(item.pod, item.claim) for item in held.holders] == [("a", "shared"), ("b", "shared")]
    assert held.free == 15
    assert [item.pod for item in row(shared, pods=(driver_pod("node-1"),)).holders] == [""], "the group keeps it"


@pytest.mark.parametrize("claimed", [True, False])
def test_a_pod_that_waits_for_its_group_is_told_so(claimed: bool) -> None:
    pod = kept(PODS, of_group("w", claimed=claimed, node="", phase="Pending"))
    claims = [kept(CLAIMS, claim("shared", "node-1"))]
    (waiting,) = view(ClusterView(pods=[pod], claims=claims)).pending
    assert waiting.finding.reason == "PodGroupNotReady"
    golden(f"{waiting.reason}; {waiting.finding.remedy} ({waiting.finding.who})")


@pytest.mark.parametrize(
    "text",
    [
        "ResourceClaim ml/shared was not created for Pod ml/w (Pod is not owner)",
        "pod w (u) is not allowed to use ResourceClaim shared (s)",
    ],
)
def test_a_kubelet_that_knows_no_groups_refuses_their_claims(text: str) -> None:
    said = {"metadata": {"name": "e", "namespace": "ml"}, "lastTimestamp": "2026-03-01T10:00:01Z"}
    said |= {"involvedObject": {"kind": "Pod", "namespace": "ml", "name": "w", "uid": "w"}}
    said |= {"reason": "FailedPrepareDynamicResources", "message": f"Failed to prepare dynamic resources: {text}"}
    pod, claims = kept(PODS, of_group("w", phase="Pending")), [kept(CLAIMS, claim("shared", "node-1"))]
    around = ClusterView(pods=[pod], claims=claims, events=[kept(EVENTS, said)])
    (item,) = evidence(pod, around, None, 1e10).findings
    assert item.reason == "PodGroupClaimRefused"
    assert "kubelet of node node-1" in item.remedy


@pytest.mark.parametrize(
    ("message", "reason"),
    [(WEBHOOK, "WebhookRefused"), (POLICY, "PolicyRefused"), ("the object has been modified", "SchedulerError")],
)
def test_who_refuses_the_scheduler_its_allocation_is_named(message: str, reason: str) -> None:
    scheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulerError",
        "message": f'running PreBind plugin "DynamicResources": add allocation to claim ml/c: {message}',
    }
    pod: Object = {
        "metadata": {"name": "w", "namespace": "ml", "uid": "u-8", "creationTimestamp": "2026-03-01T10:00:00Z"},
        "spec": {"resourceClaims": [{"name": "n", "resourceClaimName": "c"}]},
        "status": {"phase": "Pending", "conditions": [scheduled]},
    }
    claims = [kept(CLAIMS, claim("c", "node-1", namespace="ml"))]
    (waiting,) = view(ClusterView(claims=claims, pods=[kept(PODS, pod)])).pending
    assert waiting.finding.reason == reason
    golden(f"{waiting.reason}; {waiting.finding.remedy} ({waiting.finding.who})")


UNRESOLVABLE = "CDI device injection failed: unresolvable CDI devices k8s.neuron.aws.com/claim=1-neuron-device-3"


@pytest.mark.parametrize(
    ("waiting", "reason", "message"),
    [
        ({"reason": "CreateContainerError", "message": UNRESOLVABLE}, "", ""),
        ({"reason": "CreateContainerError", "message": "no such file"}, "", ""),
        ({"reason": "ContainerCreating"}, "NetworkNotReady", "network is not ready: cni plugin not initialized"),
        (
            {"reason": "ErrImagePull", "message": "401 Unauthorized"},
            "FailedToRetrieveImagePullSecret",
            "Unable to retrieve some image pull secrets (registry); attempting to pull the image may not succeed.",
        ),
        (
            {"reason": "ContainerCreating"},
            "FailedCreatePodSandBox",
            'unable to get OCI runtime for sandbox "0d5b": no runtime for "neuron" is configured',
        ),
    ],
    ids=["CDI", "another container error", "network", "secret", "runtime class"],
)
def test_what_keeps_kubelet_from_starting_containers_has_its_own_remedy(
    waiting: Object, reason: str, message: str
) -> None:
    pod = starting(waiting)
    event = warning(reason, message)
    held = kept(CLAIMS, claim("c", "node-1", "neuron-device-3", pods=("p",), namespace="ml"))
    around = ClusterView(claims=[held], events=[kept(EVENTS, event)] if reason else [])
    findings = evidence(kept(PODS, pod), around, None, 0.0).findings
    golden(f"{item.reason}: {item.text}; {item.remedy} ({item.who})" for item in findings)


def test_a_driver_that_is_not_ready_has_still_said_why_it_refuses_a_claim() -> None:
    refused = saying(
        claim("c", "node-1", "neuron-device-3", pods=("p",), namespace="ml"),
        "neuron-device-3",
        ("Ready", "False", "NotPrepared", "No space left on device; check the free space"),
    )
    pod = starting()
    cluster = ClusterView(
        slices=[kept(SLICES, item) for item in published("node-1")],
        claims=[kept(CLAIMS, refused)],
        pods=[kept(PODS, driver_pod("node-1", ready=False))],
    )
    (node,) = view(cluster).nodes
    assert node.serving.word == "NotReady"
    findings = evidence(kept(PODS, pod), cluster, node, 0.0).findings
    golden(f"{item.reason}: {item.text}; {item.remedy} ({item.who})" for item in findings)


def test_each_remedy_names_what_it_is_given() -> None:
    objects = ["retry", "node", "namespace", "pod", "log", "other", "driver", "scheduler", "daemon_set", "label"]
    objects += ["group", "holders"]
    names = {name: name.upper() for name in objects}
    items = [finding(reason, "It is so.", **names) for reason in REMEDIES]
    assert {item.text for item in items} == {"It is so"}
    golden(f"{item.reason} ({item.who}): {item.remedy}" for item in items)


def test_a_pod_that_runs_alone_of_its_group_is_told_who_does_not() -> None:
    def member(name: str, *, ready: bool) -> Object:
        labels, annotations = {GROUP_KEY: "g-1"}, {GROUP_SIZE: "3"}
        return {
            "metadata": {"name": name, "namespace": "ml", "uid": name, "labels": labels, "annotations": annotations},
            "spec": {"nodeName": "node-1", "resourceClaims": [{"name": "n", "resourceClaimName": f"c-{name}"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
        }

    claims = [kept(CLAIMS, claim(f"c-g-{place}", "node-1", f"neuron-device-{place}")) for place in range(3)]
    for ready in ((True, False), (True, True), (True, True, True)):
        pods = [kept(PODS, member(f"g-{place}", ready=each)) for place, each in enumerate(ready)]
        around = ClusterView(claims=claims, pods=pods)
        golden(f"{item.reason}: {item.text}; {item.remedy}" for item in evidence(pods[0], around, None, 0.0).findings)


@pytest.mark.parametrize(
    "message",
    [
        "DRA driver nic.example.com is not registered",
        "old ResourceClaim with same name c and different UID 1 still exists (previous pod force-deleted?!)",
        "NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded",
        "NodePrepareResources failed for ResourceClaim c: got 3",
        'pod "ml/p": ResourceClaim not created yet',
        "pod p (u-7) is not allowed to use ResourceClaim c (u-9)",
    ],
    ids=["driver", "old claim", "no answer", "refused", "no claim yet", "not reserved"],
)
def test_what_kubelet_says_of_a_preparation_has_its_own_remedy(message: str) -> None:
    pod = starting()
    event = warning("FailedPrepareDynamicResources", f"Failed to prepare dynamic resources: {message}")
    held = kept(CLAIMS, claim("c", "node-1", "neuron-device-3", pods=("p",)))
    around = ClusterView(claims=[held], events=[kept(EVENTS, event)])
    golden(
        f"{item.reason}: {item.text}; {item.remedy}" for item in evidence(kept(PODS, pod), around, None, 0.0).findings
    )


@pytest.mark.parametrize("scheduler", ["default-scheduler", "volcano"])
def test_a_pod_that_no_scheduler_has_looked_at_says_for_which_one_it_waits(scheduler: str) -> None:
    pod: Object = {
        "metadata": {"name": "w", "namespace": "ml", "uid": "u-8", "creationTimestamp": "2026-03-01T10:00:00Z"},
        "spec": {"schedulerName": scheduler, "resourceClaims": [{"name": "n", "resourceClaimName": "c"}]},
        "status": {"phase": "Pending"},
    }
    waiting = kept(PODS, pod)
    around = ClusterView(claims=[kept(CLAIMS, claim("c", "node-1", namespace="ml"))])
    created = seconds(waiting.created)
    assert created is not None
    assert not evidence(waiting, around, None, created + 5).findings
    (told,) = evidence(waiting, around, None, created + 60).findings
    golden(f"{told.reason}: {told.text}; {told.remedy} ({told.who})")


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "InvalidImageName"])
def test_a_driver_whose_image_cannot_be_pulled_says_what_to_correct(reason: str) -> None:
    waiting = {"waiting": {"reason": reason, "message": 'Back-off pulling image "registry.example/driver:1"'}}
    driver = driver_pod("node-1", state=waiting, ready=False, phase="Pending")
    told = row(node=NEURON_NODE, pods=(driver,)).findings
    golden(f"{item.reason}: {item.text}; {item.remedy} ({item.who})" for item in told)


@pytest.mark.parametrize("age", [5, 60])
def test_that_nobody_has_looked_at_a_pod_means_something_after_seconds(age: int) -> None:
    pod: Object = {
        "metadata": {"name": "w", "namespace": "ml", "uid": "u-8", "creationTimestamp": "2026-03-01T10:00:00Z"},
        "spec": {"resourceClaims": [{"name": "n", "resourceClaimName": "c"}]},
        "status": {"phase": "Pending"},
    }
    waiting = kept(PODS, pod)
    around = ClusterView(claims=[kept(CLAIMS, claim("c", "node-1"))])
    created = seconds(waiting.created)
    assert created is not None
    found = evidence(waiting, around, None, created + age)
    assert bool(found.findings) is (age > 10)
    golden(found.state)


@pytest.mark.parametrize("reason", [*REMEDIES, "", "{node}"])
def test_a_reason_that_somebody_else_wrote_ends_nothing_whatever_row_it_names(reason: str) -> None:
    """Nodes write claims' conditions, and kubelets the reasons of pods: an administrator reads them of all."""
    refused = saying(claim("c", "node-1", "neuron-device-3"), "neuron-device-3", ("Ready", "False", reason, "no"))
    spec = {"nodeName": "node-1", "resourceClaims": [{"name": "n", "resourceClaimName": "c"}]}
    word = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "no"}
    statuses: list[Object] = [
        {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": "no"}}}]},
        {"phase": "Failed", "reason": reason, "message": "no"},
        {"phase": "Pending", "conditions": [word]},
    ]
    for status in statuses:
        own = spec if "conditions" not in status else {"resourceClaims": spec["resourceClaims"]}
        pod = kept(PODS, {"metadata": {"name": "p", "namespace": "ml", "uid": "u"}, "spec": own, "status": status})
        around = ClusterView(claims=[kept(CLAIMS, refused)], pods=[pod])
        assert all("{" not in item.remedy for item in evidence(pod, around, None, 0.0).findings)


@pytest.mark.parametrize("node", ["node-1", ""])
@pytest.mark.parametrize("phase", ["Pending", "Failed", "Succeeded"])
@pytest.mark.parametrize("finalizers", [[], ["example.com/audit"]])
def test_a_pod_that_a_finalizer_keeps_is_told_by_that(node: str, phase: str, finalizers: list[str]) -> None:
    meta = {"name": "p", "namespace": "ml", "uid": "u", "deletionTimestamp": "2026-11-30T12:00:00Z"}
    spec = {"nodeName": node, "resourceClaims": [{"name": "n", "resourceClaimName": "c"}]}
    pod = kept(PODS, {"metadata": meta | {"finalizers": finalizers}, "spec": spec, "status": {"phase": phase}})
    held = kept(CLAIMS, claim("c", "node-1", "neuron-device-3", namespace="ml"))
    found = evidence(pod, ClusterView(claims=[held], pods=[pod]), None, 0.0)
    assert ("example.com/audit" in "".join(item.text for item in found.findings)) is bool(
        finalizers and (phase != "Pending" or not node)
    )
    golden([found.state, *(f"{item.reason}: {item.text}; {item.remedy}" for item in found.findings)])


def ended(code: int, **more: object) -> Object:
    """The state of a container that has ended."""
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", **more}}


BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff"}}
WAITS = {"waiting": {"reason": "PodInitializing"}}
RUNS: Object = {"running": {}}


@pytest.mark.parametrize(
    ("phase", "prepare", "main", "event"),
    [
        ("Pending", (ended(3), {}), (WAITS, {}), ""),
        ("Pending", (BACK_OFF, ended(3)), (WAITS, {}), ""),
        ("Running", (ended(0), {}), (RUNS, ended(1)), ""),
        ("Running", (ended(0), {}), (BACK_OFF, ended(0)), "Liveness probe failed: no answer"),
        ("Running", (ended(0), {}), (BACK_OFF, ended(1)), "Readiness probe failed: no answer"),
        ("Running", (ended(0), {}), (BACK_OFF, ended(137, reason="OOMKilled", message="step 7")), ""),
        ("Running", (ended(0), {}), (RUNS, {}), "Readiness probe failed: no answer"),
        ("Failed", (ended(0), {}), (ended(1, message="cannot open model"), {}), ""),
    ],
    ids=["init", "init again", "between", "liveness", "readiness of a crash", "memory", "readiness", "failed"],
)
def test_a_container_that_does_not_run_is_named_with_the_log_that_there_is(
    phase: str, prepare: tuple[Object, Object], main: tuple[Object, Object], event: str
) -> None:
    statuses = [
        {"name": name, "state": state, "lastState": last, "restartCount": len(last)}
        for name, (state, last) in (("prepare", prepare), ("main", main))
    ]
    pod = starting()
    pod["spec"] |= {"initContainers": [{"name": "prepare"}], "containers": [{"name": "main"}]}
    pod["status"] = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": "False"}],
        "initContainerStatuses": statuses[:1],
        "containerStatuses": statuses[1:],
    }
    events = [kept(EVENTS, warning("Unhealthy", event))] if event else []
    held = kept(CLAIMS, claim("c", "node-1", "neuron-device-3", pods=("p",), namespace="ml"))
    findings = evidence(kept(PODS, pod), ClusterView(claims=[held], events=events), None, 0.0).findings
    assert findings
    golden(f"{item.reason}: {item.text}; {item.remedy} ({item.who})" for item in findings)


def test_a_container_that_only_kubelet_names_is_in_no_command() -> None:
    pod = starting()
    pod["spec"] |= {"initContainers": [{"name": "prepare"}], "containers": [{"name": "main"}]}
    status = {"name": "x; curl evil", "state": BACK_OFF, "lastState": ended(1), "restartCount": 1}
    pod["status"] = {"phase": "Running", "containerStatuses": [status]}
    held = kept(CLAIMS, claim("c", "node-1", "neuron-device-3", pods=("p",), namespace="ml"))
    (told,) = evidence(kept(PODS, pod), ClusterView(claims=[held]), None, 0.0).findings
    assert told.remedy == "read why: kubectl -n ml logs p"


def test_a_claim_that_is_being_deleted_is_why_its_pod_waits() -> None:
    ending = claim("c", "node-1", namespace="ml")
    ending["metadata"] |= {"deletionTimestamp": "2026-03-01T10:00:00Z", "finalizers": ["example.com/audit"]}
    pod: Object = {
        "metadata": {"name": "w", "namespace": "ml", "uid": "u-8", "creationTimestamp": "2026-03-01T10:00:00Z"},
        "spec": {"resourceClaims": [{"name": "n", "resourceClaimName": "c"}]},
        "status": {"phase": "Pending"},
    }
    (waiting,) = view(ClusterView(claims=[kept(CLAIMS, ending)], pods=[kept(PODS, pod)])).pending
    golden(f"{waiting.finding.reason}: {waiting.reason}; {waiting.finding.remedy} ({waiting.finding.who})")


def test_a_driver_that_the_kernel_ends_says_that_it_needs_more_memory() -> None:
    last = {"exitCode": 137, "reason": "OOMKilled"}
    again = driver_pod("node-1", state=CRASH_LOOP, last=last, ready=False)
    once = driver_pod("node-1", state={"terminated": last}, ready=False)
    items = [item for driver in (again, once) for item in row(node=NEURON_NODE, pods=(driver,)).findings]
    golden(f"{item.reason}: {item.text}; {item.remedy}" for item in items)


def test_why_the_drivers_pod_cannot_be_created_is_what_the_controller_says() -> None:
    made = daemon_set("d", {"tolerations": [{"operator": "Exists"}]})
    made["metadata"]["uid"] = "u-5"
    said = warning("FailedCreate", 'Error creating: pods "d-x" is forbidden: violates PodSecurity "restricted:latest"')
    namespace = made["metadata"]["namespace"]
    said["involvedObject"] = {"kind": "DaemonSet", "namespace": namespace, "name": "d", "uid": "u-5"}
    said["metadata"]["namespace"] = namespace
    nodes, sets = [kept(NODES, NEURON_NODE)], [decode(json.dumps(made).encode(), DaemonSet, "DaemonSet")]
    (told,) = view(ClusterView(nodes, events=[kept(EVENTS, said)], daemon_sets=sets)).nodes
    golden(f"{item.reason}: {item.text}; {item.remedy} ({item.who})" for item in told.findings)


def test_an_event_of_another_namespace_tells_nothing_whatever_uid_it_names() -> None:
    forged = warning("FailedCreatePodSandBox", "ask evil.example for help")
    forged["metadata"]["namespace"] = "tenant"
    held = kept(CLAIMS, claim("c", "node-1", "neuron-device-3", pods=("p",), namespace="ml"))
    around = ClusterView(claims=[held], events=[kept(EVENTS, forged)])
    assert not evidence(kept(PODS, starting()), around, None, 0.0).findings

"""The extender behind a real kube-scheduler, as the chart sets both up: over HTTPS, with the accounts of the chart."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from lab.cluster import Cluster

from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.legacy.abuse import Abuse
from tests.cluster.lib.legacy.extender import DEVICE_PLUGIN, WHOLE_NODES, ExtenderLab, extender_lab
from tests.cluster.lib.legacy.nodes import Given, neuron_nodes
from tests.cluster.lib.legacy.pods import Pods, container, ids, node, notes, pod, refusal
from tests.cluster.lib.legacy.rules import CORE, DEVICE, KINDS, NOUNS, Kind

pytestmark = [pytest.mark.control_plane, pytest.mark.kubernetes("1.37", "1.34")]

COUNTS = range(1, 17)
MORE_CORES = (17, 18, 24, 31, 32, 33, 47, 48, 63, 64)
"""Counts of cores on larger nodes that tell more than those up to 16: they need several rows, or all."""
FAILED = "reason=FailedScheduling"
TORUS = KINDS["trn1.32xlarge"]
RING_AND_TORUS = ("inf1.6xlarge", "trn1.32xlarge")


@pytest.fixture(scope="module")
def side(kube: Kube, lab: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExtenderLab]:
    """`my-scheduler` and one extender."""
    with extender_lab(kube, lab, tmp_path_factory.mktemp("extender")) as made:
        replica = made.start_extender()
        eventually("the extender to lead", lambda: made.leader() is replica and replica.get("/readyz") == 200, 60)
        yield made


@pytest.fixture
def transport(lab: Cluster) -> Iterator[Transport]:
    made = Transport.from_kubeconfig(os.fspath(lab.kubeconfig), user_agent="extender-test")
    yield made
    made.close()


@pytest.fixture
def pods(side: ExtenderLab, transport: Transport) -> Iterator[Pods]:
    """The pods of a test; its nodes go with them."""
    made = Pods(transport)
    with made.following():
        yield made
    transport.request("DELETE", "/api/v1/nodes")
    side.check()


def add_nodes(transport: Transport, *items: Object) -> None:
    for item in items:
        transport.request("POST", "/api/v1/nodes", body=item)


# Counts


def questions(types: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """What is asked of a node of its own: type, resource and count."""
    for name, kind in ((name, KINDS[name]) for name in types):
        for resource in (DEVICE, CORE):
            counts = [*COUNTS, *(MORE_CORES if resource == CORE else ())]
            yield from ((name, resource, count) for count in counts if count <= kind.units(resource))


@pytest.mark.parametrize(
    "types",
    [
        pytest.param(RING_AND_TORUS, id="a ring and a torus"),
        pytest.param([name for name in KINDS if name not in RING_AND_TORUS], marks=pytest.mark.nightly, id="others"),
    ],
)
@pytest.mark.timeout(300, func_only=True)
def test_counts_on_every_fabric_run_or_stay_pending_with_the_documented_sentence(
    types: Sequence[str], pods: Pods, transport: Transport, kube: Kube, figures: list[str]
) -> None:
    asked = {f"p{number}": question for number, question in enumerate(questions(types))}
    for name, (kind, resource, count) in asked.items():
        add_nodes(transport, node(f"n-{name}", kind, KINDS[kind], {"for": name}))
        pods.create(pod(name, container("main", {resource: count}), where={"for": name}))
    can = {name for name, (kind, resource, count) in asked.items() if KINDS[kind].possible(resource, count)}
    pods.wait_bound(*can, within=200)
    assert not [text for name in can if (text := _wrong_set(pods.known[name], *asked[name]))]

    refused = {name: _sentence(kind, NOUNS[resource], count) for name, (kind, resource, count) in asked.items()}
    refused = {name: sentence for name, sentence in refused.items() if name not in can}

    def unanswered() -> list[str]:
        return [name for name, sentence in refused.items() if sentence not in refusal(pods.known[name])]

    pods.wait("the sentence for the others", lambda: not unanswered(), 90)

    def untold() -> list[str]:
        events = kube.find("events", "default", fields=FAILED)
        told = {(event["involvedObject"]["name"], event["message"]) for event in events}
        return [name for name, text in refused.items() if not any(who == name and text in said for who, said in told)]

    eventually("an event for each of them", lambda: not untold(), 60)
    pending = {(item["status"]["phase"], "nodeName" in item["spec"]) for item in map(pods.known.__getitem__, refused)}
    assert pending == {("Pending", False)}
    figures.append(
        f"extender: of {len(asked)} counts on {len(types)} types {len(can)} ran, {len(refused)} were refused"
    )


def _sentence(kind: str, noun: str, count: int) -> str:
    return (
        f"Instance type {kind} does not support requests for {noun}: {count}. "
        f"Please request a different number of {noun}s."
    )


def _wrong_set(item: Object, kind: str, resource: str, count: int) -> str:
    """What is wrong with the devices that a pod has; "" when nothing is."""
    told = notes(item)
    given = ids(told["AWS_NEURON_IDS"])
    right = len(given) == count and KINDS[kind].allows(resource, given) and told["NEURON_RESOURCE_TYPE"] == resource
    return "" if right else f"{kind}, {count} of {resource}: {told}"


@pytest.mark.nightly
def test_nine_cores_are_handed_out_as_documented(
    side: ExtenderLab, pods: Pods, transport: Transport, kube: Kube
) -> None:
    kinds, account = {"inf": "inf1.6xlarge"}, side.kubeconfig(DEVICE_PLUGIN)
    with (
        tempfile.TemporaryDirectory(prefix="nne-", dir="/tmp") as directory,
        neuron_nodes(transport, pods, kinds, Path(directory), account) as nodes,
    ):
        pods.create(pod("nrt-test", container("main", {CORE: 9})))
        pods.wait("a running pod", lambda: pods.phase("nrt-test") == "Running", 60)
        (answers,) = nodes["inf"].admitted.values()
        assert answers == {"main": Given((0, 1, 2), tuple(range(9)))}
        pods.wait("the plugin's word", lambda: _told(pods, "nrt-test", "NEURON_ALLOCATED") == "true", 30)
        expected = {"AWS_NEURON_IDS": "0,1,2,3,4,5,6,7,8", "NEURON_RESOURCE_TYPE": CORE}
        assert notes(pods.known["nrt-test"]).items() >= expected.items()

        def maps() -> list[str]:
            found = notes(kube.get("nodes", "inf") or {"metadata": {}})
            return [found.get(key, "") for key in ("NEURON_DEV_USAGE_MAP", "NEURON_CORE_USAGE_MAP")]

        usage = ["true,true,true,false", ",".join(["true"] * 9 + ["false"] * 7)]
        eventually("the usage maps", lambda: maps() == usage, 30)
        text = side.logs()
        asked = "POD default/nrt-test (9 of aws.amazon.com/neuroncore)"
        assert f"{asked} fits in 1 of 1 nodes. Filtered nodes: ['inf']. Failed nodes: {{}}" in text
        allocated = "Allocated ids for POD default/nrt-test are: aws.amazon.com/neuroncore 0-8 for main; devices: 0-2"
        assert f"{allocated}; bound to Node:inf (inf1.6xlarge)" in text


def _told(pods: Pods, name: str, key: str) -> str:
    return notes(pods.known[name]).get(key, "")


def test_a_scheduler_that_sends_whole_nodes_is_answered_too(
    side: ExtenderLab, pods: Pods, transport: Transport
) -> None:
    add_nodes(transport, node("full", "trn1.32xlarge", TORUS), node("free", "trn1.32xlarge", TORUS))
    pods.create(pod("first", container("main", {DEVICE: 16}), where={"kubernetes.io/hostname": "full"}))
    pods.wait_bound("first")
    other = side.start_scheduler(whole_nodes=True)
    try:
        pods.create(
            pod("p", container("main", {DEVICE: 8}), scheduler=WHOLE_NODES),
            pod("seven", container("main", {DEVICE: 7}), scheduler=WHOLE_NODES),
        )
        (found,) = pods.wait_bound("p")
        assert found["spec"]["nodeName"] == "free"
        assert ids(_told(pods, "p", "AWS_NEURON_IDS")) == list(range(8))
        sentence = _sentence("trn1.32xlarge", "device", 7)
        pods.wait("the refusal", lambda: sentence in refusal(pods.known.get("seven", {})), 60)
    finally:
        other.stop()


# Preemption


@pytest.fixture
def low_priority(transport: Transport) -> Iterator[str]:
    """Name of a PriorityClass below that of pods without one."""
    name, path = "extender-test-low", "/apis/scheduling.k8s.io/v1/priorityclasses"
    transport.request("POST", path, body={"metadata": {"name": name}, "value": -10})
    yield name
    transport.request("DELETE", f"{path}/{name}")


# Before 1.35 kube-scheduler may start a second preemption before it has seen the evictions of the first one, and evict
# one pod more: kubernetes/kubernetes#134249.
@pytest.mark.nightly
@pytest.mark.kubernetes("1.37")
@pytest.mark.parametrize("scheduler", ["my-scheduler", WHOLE_NODES])
def test_a_pod_of_high_priority_evicts_pods_whose_devices_are_connected_and_no_others(
    side: ExtenderLab, pods: Pods, transport: Transport, low_priority: str, scheduler: str
) -> None:
    add_nodes(transport, node("n", "trn1.32xlarge", TORUS))
    given: dict[str, list[int]] = {}
    for number in range(16):
        name = f"p{number}"
        item = pod(name, container("main", {DEVICE: 1}))
        item["spec"]["terminationGracePeriodSeconds"] = 0  # there is no kubelet that would end it
        if number % 4 == 3:
            # By count, the last of each row would go first: four devices of four rows.
            item["spec"]["priorityClassName"] = low_priority
        pods.create(item)
        (bound,) = pods.wait_bound(name)
        given[name] = ids(notes(bound)["AWS_NEURON_IDS"])
    assert sorted(given.values()) == [[number] for number in range(16)]
    assert {given[f"p{number}"][0] for number in range(3, 16, 4)} == {3, 7, 11, 15}

    other = side.start_scheduler(whole_nodes=True) if scheduler == WHOLE_NODES else None
    try:
        urgent = pod("urgent", container("main", {DEVICE: 4}), scheduler=scheduler)
        urgent["spec"]["priorityClassName"] = "system-cluster-critical"
        pods.create(urgent)
        (bound,) = pods.wait_bound("urgent")
    finally:
        if other is not None:
            other.stop()
    taken = ids(_told(pods, "urgent", "AWS_NEURON_IDS"))
    assert TORUS.allows(DEVICE, taken)
    evicted = given.keys() - pods.known.keys()
    assert sorted(chip for name in evicted for chip in given[name]) == taken


# Bad input


@pytest.mark.nightly
def test_bad_requests_keep_nobody_from_being_scheduled(side: ExtenderLab, pods: Pods, transport: Transport) -> None:
    add_nodes(transport, *(node(f"n{number}", "trn1.32xlarge", TORUS) for number in range(5)))
    (replica,) = side.replicas
    names = [f"p{number}" for number in range(80)]
    with Abuse(replica.port, replica.tls) as abuse:
        for name in names:
            pods.create(pod(name, container("main", {DEVICE: 1})))
        pods.wait_bound(*names, within=120)
        abuse.wait_done()
    huge = {"100 MB 413", "100 MB without saying so 413"}
    assert set(abuse.statuses) == {"wrong JSON 400", "no HTTP 400", "no certificate 401", *huge}
    resident = int(Path(f"/proc/{replica.process.pid}/status").read_text().split("VmHWM:")[1].split()[0])
    assert resident < 400 * 1024, f"{resident} kB"


@pytest.mark.nightly
@pytest.mark.parametrize("count", ["-1", "1.5", "two"])
def test_counts_that_are_no_counts_do_not_get_past_the_api_server(pods: Pods, count: str) -> None:
    with pytest.raises(ApiError, match=r"must be an integer|must be greater than or equal to 0|quantit"):
        pods.create(pod("p", container("main", {DEVICE: count})))


@pytest.mark.nightly
def test_none_and_a_billion_devices(pods: Pods, transport: Transport) -> None:
    add_nodes(transport, node("n", "trn1.32xlarge", TORUS))
    pods.create(pod("none", container("main", {DEVICE: 0})), pod("many", container("main", {DEVICE: 10**9})))
    pods.wait_bound("none")
    pods.wait("an answer", lambda: "Insufficient aws.amazon.com/neuron" in refusal(pods.known.get("many", {})), 60)


ODD_NODES: Mapping[str, tuple[str, Kind, str]] = {
    "unlabelled": ("", TORUS, "Instance type unknown does not support requests for device: 4."),
    "damaged": ("trn1.32xlarge", Kind(15, 2, "blocks"), "The node reports 15 devices, but trn1.32xlarge has 16"),
    "odd-cores": (
        "trn1.32xlarge",
        Kind(16, 3, "blocks"),
        "The node reports 48 cores on 16 devices, which trn1.32xlarge",
    ),
}
"""Nodes that give no four devices, and the reason."""


@pytest.mark.nightly
def test_nodes_that_cannot_be_understood_are_passed_over_with_the_reason(pods: Pods, transport: Transport) -> None:
    add_nodes(transport, *(node(name, kind, shape, {"for": name}) for name, (kind, shape, _) in ODD_NODES.items()))
    pods.create(*(pod(name, container("main", {DEVICE: 4}), where={"for": name}) for name in ODD_NODES))
    for name, (_, _, sentence) in ODD_NODES.items():
        pods.wait(sentence, lambda: sentence in refusal(pods.known.get(name, {})), 60)  # noqa: B023 - asked at once
    add_nodes(transport, node("good", "trn1.32xlarge", TORUS))
    pods.create(pod("any", container("main", {DEVICE: 4})))
    (found,) = pods.wait_bound("any")
    assert found["spec"]["nodeName"] == "good"


@pytest.mark.nightly
def test_a_node_keeps_for_a_pod_of_unknown_devices_what_it_may_have_until_they_are_known(
    side: ExtenderLab, pods: Pods, transport: Transport
) -> None:
    add_nodes(transport, node("n", "trn1.32xlarge", TORUS))
    pods.create(pod("stranger", container("main", {DEVICE: 1}), scheduler="default-scheduler"))
    pods.wait_bound("stranger")
    pods.create(pod("p", container("main", {DEVICE: 4})))
    text = "pod default/stranger: no annotation says which devices it has"
    pods.wait("the pod to be named", lambda: text in refusal(pods.known.get("p", {})), 60)
    pods.delete("stranger", at_once=True)
    pods.wait_bound("p")
    keys = ("AWS_NEURON_IDS", "NEURON_DEVS", "neuron.aws.com/allocation")
    pods.annotate("p", {**dict.fromkeys(keys, "nonsense"), "k8s.ovn.org/pod-networks": "{}"})
    # The one that has chosen would not be misled.
    side.end_extender(side.replicas[0], hard=False)
    side.start_extender()
    pods.create(pod("q", container("main", {DEVICE: 4})))
    pods.wait("the pod to be named", lambda: "reserved for pod default/p: " in refusal(pods.known.get("q", {})), 60)
    pods.annotate("p", {"AWS_NEURON_IDS": "0,1,2,3"})  # one that can be read is enough
    pods.wait_bound("q")
    assert _told(pods, "p", "k8s.ovn.org/pod-networks") == "{}"
    assert ids(_told(pods, "q", "AWS_NEURON_IDS")) != [0, 1, 2, 3]

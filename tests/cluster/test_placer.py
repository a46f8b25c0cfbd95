"""Groups on two UltraServers that block each other, and the placer that keeps them from it.

``NEURON_DRA_PLACER_TRIES`` and ``NEURON_DRA_PLACER_GROUPS`` make the repeated tests longer than they are by default
(50 and 200 are what the placer's claims rest on); their time limits grow with them.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from lab.cluster import Cluster

from dra_driver.kube.api.events import new_event
from dra_driver.kube.objects.core import ObjectReference
from dra_driver.neuron.names import SERVER_2, SERVER_4
from dra_driver.ultraserver.placer.values import (
    GATE,
    GROUP_LABEL,
    LWS_GROUP_LABEL,
    PLACED_ANNOTATION,
    SINCE_ANNOTATION,
)
from tests.cluster.lib.controllers import leaderworkerset_controller
from tests.cluster.lib.groupstream import Stream, complete, lws, one_node, servers
from tests.cluster.lib.installation import EMULATED_ULTRASERVER, NAMESPACE, ULTRASERVERS, Installation
from tests.cluster.lib.kube import Kube, Object, eventually
from tests.cluster.lib.leaderworkerset import Groups, LeaderWorkerSets
from tests.cluster.lib.lifecycle import own_namespace, process_of
from tests.cluster.lib.namespace import Namespace
from tests.cluster.lib.objects import pod as plain_pod
from tests.generators.effort import SEED

pytestmark = [pytest.mark.ultraservers, pytest.mark.kubernetes("1.37", "1.34")]

TRIES = int(os.environ.get("NEURON_DRA_PLACER_TRIES", "2"))
BARE_TRIES = 10
"""Groups without the gate until one hangs: every second one does."""
GROUPS = int(os.environ.get("NEURON_DRA_PLACER_GROUPS", "6"))
GROUP_TIMEOUT = 120
"""Longer than any test waits for a group that the scheduler finds no nodes for."""
STUCK_SECONDS = 20.0
"""In which a group for whose pod the scheduler finds no node is released."""
PLACER = "neuron-dra-driver-placer"
FAILOVER_SECONDS = 30.0
"""A killed leader's lease lasts 20 s; and its successor reads the cluster first."""


@pytest.fixture
def placer(installation: Installation, kube: Kube) -> Installation:
    """The driver on two UltraServers, and the placer, which acts."""
    installation.ensure(
        "--emulate",
        EMULATED_ULTRASERVER,
        "--emulated-ultraservers",
        ULTRASERVERS,
        "--placer",
        f"--group-timeout={GROUP_TIMEOUT}",
    )
    eventually("the nodes to be labelled", lambda: len(servers(kube)) == 2, 30)
    eventually("a placer to act", lambda: acting(kube), FAILOVER_SECONDS)
    return installation


@pytest.fixture
def groups(kube: Kube, namespace: Namespace) -> Iterator[LeaderWorkerSets]:
    with LeaderWorkerSets(kube) as made:
        yield made


def acting(kube: Kube) -> str:
    """Name of the placer's pod that holds the lease, or ""."""
    lease = kube.get("leases", PLACER, NAMESPACE)
    holder = str(lease["spec"].get("holderIdentity") or "") if lease else ""
    return holder.rpartition("_")[0]


def take(namespace: Namespace, node: str) -> str:
    """A pod that has nothing to do with groups takes a node; its name."""
    name = f"taker-{node}"
    namespace.apply(plain_pod(name, templates={"neurons": "one-node"}, node=node))
    namespace.wait_ready(name)
    return name


def servers_of(kube: Kube, pods: Sequence[Object]) -> set[str]:
    """Ids of the servers whose nodes the pods have."""
    nodes = {str(pod["spec"].get("nodeName", "")) for pod in pods}
    return {server for server, names in servers(kube).items() if names & nodes}


def end(groups: Groups, namespace: Namespace, *names: str) -> None:
    """Delete groups and wait until their pods are gone."""
    for name in names:
        groups.delete(name, namespace.name)
    eventually("the groups to be gone", lambda: not any(groups.pods(name, namespace.name) for name in names), 60)


def is_stuck(groups: Groups, namespace: Namespace, name: str, reason: str = "cannot allocate all claims") -> bool:
    """Whether a pod of the group was told by the scheduler that no node will do, and why."""
    for pod in groups.pods(name, namespace.name):
        conditions = {entry["type"]: entry for entry in pod["status"].get("conditions", ())}
        if reason in str(conditions.get("PodScheduled", {}).get("message", "")):
            return "nodeName" not in pod["spec"]
    return False


@pytest.mark.nightly
@pytest.mark.timeout(120 + 15 * TRIES, func_only=True)
def test_without_the_gate_a_group_hangs_half_placed_while_a_server_is_free_and_with_it_never(
    placer: Installation, groups: LeaderWorkerSets, namespace: Namespace, kube: Kube, figures: list[str]
) -> None:
    """Of equal servers the scheduler takes any, so the node of each one is taken in turn until a group has hung."""
    namespace.apply(one_node())
    stuck = False
    taken = itertools.islice(itertools.cycle(servers(kube).values()), BARE_TRIES)
    for number, nodes in enumerate(taken):
        taker = take(namespace, sorted(nodes)[1])
        name = f"bare{number}"
        groups.apply(lws(name, 4, gated=False), namespace=namespace.name)

        def decided(name: str = name) -> str:
            if is_stuck(groups, namespace, name):
                return "stuck"
            return "runs" if complete(groups.pods(name, namespace.name), 4) else ""

        stuck = eventually(f"{name} to run or to hang", decided, 60) == "stuck"
        end(groups, namespace, name)
        namespace.delete_pod(taker)
        if stuck:
            break
    assert stuck, "the deadlock that the placer is there for does not exist on this cluster"

    began = time.monotonic()
    for number in range(TRIES):
        chosen = number % 2
        nodes = list(servers(kube).values())[chosen]
        taker = take(namespace, random.choice(sorted(nodes)))
        name = f"gated{number}"
        groups.apply(lws(name, 4, gated=True), namespace=namespace.name)
        eventually(f"{name} to run", lambda name=name: complete(groups.pods(name, namespace.name), 4), 45)  # type: ignore[misc] # bound at once
        assert servers_of(kube, groups.pods(name, namespace.name)) == {list(servers(kube))[1 - chosen]}
        end(groups, namespace, name)
        namespace.delete_pod(taker)
    spent = time.monotonic() - began
    figures.append(f"with the gate {TRIES} of {TRIES} groups beside a taken node ran, {spent / TRIES:.1f} s each")


@pytest.mark.nightly
@pytest.mark.timeout(120 + 15 * TRIES, func_only=True)
def test_two_groups_of_two_namespaces_at_once_get_a_server_each(
    placer: Installation, groups: LeaderWorkerSets, namespace: Namespace, kube: Kube, figures: list[str]
) -> None:
    with own_namespace(kube, "placer-other") as other:
        for place in (namespace, other):
            place.apply(one_node())
        for number in range(TRIES):
            name = f"both{number}"
            for place in (namespace, other):
                groups.apply(lws(name, 4, gated=True), namespace=place.name)

            def both(name: str = name) -> bool:
                return all(complete(groups.pods(name, place.name), 4) for place in (namespace, other))

            eventually("both groups to run", both, 45)
            found = [servers_of(kube, groups.pods(name, place.name)) for place in (namespace, other)]
            assert sorted(map(sorted, found)) == [[server] for server in servers(kube)]
            for place in (namespace, other):
                end(groups, place, name)
    figures.append(f"with the gate {TRIES} of {TRIES} pairs of groups in two namespaces ran")


@pytest.mark.nightly
def test_a_group_that_the_scheduler_finds_no_nodes_for_is_released_at_once_and_runs_on_the_other_server(
    placer: Installation, groups: LeaderWorkerSets, namespace: Namespace, kube: Kube
) -> None:
    """The placer does not know what else workers need: here a label that only the second server's nodes have."""
    (first, _), (second, nodes) = servers(kube).items()
    namespace.apply(one_node())
    kube.kubectl("label", "node", *sorted(nodes), "placer-test=ok", "--overwrite")
    try:
        wanted = lws("picky", 4, gated=True, worker_selector={"placer-test": "ok"})
        groups.apply(wanted, namespace=namespace.name)
        eventually("a worker to find no node", lambda: is_stuck(groups, namespace, "picky", "affinity/selector"), 30)
        assert servers_of(kube, groups.pods("picky", namespace.name)) == {first}
        began = time.monotonic()
        namespace.wait_event("picky-0", f"the scheduler does not find a node of {first} for picky-0-1: 0/8 nodes", 60)
        assert time.monotonic() - began <= STUCK_SECONDS
        eventually("the group to run", lambda: complete(groups.pods("picky", namespace.name), 4), 60)
        assert servers_of(kube, groups.pods("picky", namespace.name)) == {second}
        end(groups, namespace, "picky")
    finally:
        kube.kubectl("label", "node", *sorted(nodes), "placer-test-")


@pytest.mark.nightly
@pytest.mark.kubernetes("1.37")
def test_with_leaderworkersets_own_controller_a_group_beside_a_taken_node_runs_and_one_without_a_node_is_released(
    placer: Installation, lab: Cluster, namespace: Namespace, kube: Kube, tmp_path: Path
) -> None:
    """The example with its gate, once for each server; then with a label that only the second server's nodes have."""
    (first, _), (second, last_nodes) = servers(kube).items()
    namespace.apply(one_node())
    kube.kubectl("label", "node", *sorted(last_nodes), "placer-test=ok", "--overwrite")
    try:
        with leaderworkerset_controller(lab, kube, tmp_path) as groups:
            for taken, free in ((first, second), (second, first)):
                taker, name = take(namespace, sorted(servers(kube)[taken])[1]), f"on-{free}"
                namespace.apply(lws(name, 4, gated=True))
                eventually("the group to run", lambda name=name: complete(groups.pods(name, namespace.name), 4), 60)  # type: ignore[misc] # bound at once
                assert servers_of(kube, groups.pods(name, namespace.name)) == {free}
                end(groups, namespace, name)
                namespace.delete_pod(taker)
            namespace.apply(lws("picky", 4, gated=True, worker_selector={"placer-test": "ok"}))
            namespace.wait_event("picky-0", f"the scheduler does not find a node of {first} for picky-0-", 60)
            eventually("the group to run", lambda: complete(groups.pods("picky", namespace.name), 4), 60)
            assert servers_of(kube, groups.pods("picky", namespace.name)) == {second}
            end(groups, namespace, "picky")
    finally:
        kube.kubectl("label", "node", *sorted(last_nodes), "placer-test-")


@pytest.mark.nightly
def test_a_third_group_is_told_what_it_waits_for_and_pairs_share_a_server(
    placer: Installation, groups: LeaderWorkerSets, namespace: Namespace, kube: Kube
) -> None:
    namespace.apply(one_node())
    for name in ("pair-a", "pair-b"):
        groups.apply(lws(name, 2, gated=True), namespace=namespace.name)
        eventually("the pair to run", lambda name=name: complete(groups.pods(name, namespace.name), 2), 45)  # type: ignore[misc] # bound at once
    pairs = [*groups.pods("pair-a", namespace.name), *groups.pods("pair-b", namespace.name)]
    assert len(servers_of(kube, pairs)) == 1
    assert all(SERVER_2 in pod["spec"]["nodeSelector"] for pod in pairs)
    groups.apply(lws("four", 4, gated=True), namespace=namespace.name)
    eventually("the four to run", lambda: complete(groups.pods("four", namespace.name), 4), 45)

    def noted() -> bool:
        leader = namespace.pod("four-0")
        return leader is not None and SINCE_ANNOTATION not in leader["metadata"]["annotations"]

    eventually("the placer to note that all have their nodes", noted, 10)
    groups.apply(lws("third", 4, gated=True), namespace=namespace.name)
    text = namespace.wait_event("third-0", "it waits for an UltraServer with 4 free nodes", 30)
    assert all(server in text for server in servers(kube))
    end(groups, namespace, "four")
    eventually("the third to run", lambda: complete(groups.pods("third", namespace.name), 4), 45)
    end(groups, namespace, "third", "pair-a", "pair-b")


@pytest.mark.nightly
def test_the_placers_account_may_touch_only_pods_that_have_or_had_the_gate(
    placer: Installation, namespace: Namespace, kube: Kube
) -> None:
    gated = plain_pod("gated")
    gated["spec"]["schedulingGates"] = [{"name": GATE}, {"name": "example.com/quota"}]
    namespace.apply(plain_pod("other"), gated)
    namespace.wait_event("gated", "add the label", 30)

    def answer(*arguments: str) -> str:
        account = f"--as=system:serviceaccount:{NAMESPACE}:{PLACER}"
        done = kube.access.kubectl(account, f"--namespace={namespace.name}", *arguments, check=False)
        return done.stdout + done.stderr

    image = '{"spec": {"containers": [{"name": "main", "image": "localhost/evil:1"}]}}'
    assert "had the gate" in answer("annotate", "pod", "other", "a=b")
    assert "had the gate" in answer("delete", "pod", "other")
    assert "had the gate" in answer("delete", "pod", "gated")
    assert "images nor labels" in answer("patch", "pod", "gated", "-p", image)
    assert "images nor labels" in answer("label", "pod", "gated", "a=b")
    hold = '{"metadata": {"finalizers": ["example.com/hold"]}}'
    assert "images nor labels" in answer("patch", "pod", "gated", "-p", hold)
    for change in (
        '{"schedulingGates": []}',
        f'{{"schedulingGates": [{{"name": "{GATE}"}}]}}',
        '{"activeDeadlineSeconds": 1}',
    ):
        patch = f'{{"spec": {change}}}'
        assert "another gate than" in answer("patch", "pod", "gated", "--type=merge", "-p", patch)
    assert "no annotation but" in answer("annotate", "pod", "gated", "a=b")
    assert "annotated" in answer("annotate", "pod", "gated", "neuron.aws.com/ultraserver-incomplete-since=x")
    assert "forbidden" in answer("create", "configmap", "x")
    assert "forbidden" in answer("get", "secrets")


@pytest.mark.nightly
def test_the_placer_creates_only_what_it_needs_under_its_own_names(
    placer: Installation, namespace: Namespace, kube: Kube
) -> None:
    namespace.apply(plain_pod("about"))
    account = f"--as=system:serviceaccount:{NAMESPACE}:{PLACER}"

    def answer(item: Object) -> str:
        document = json.dumps({"apiVersion": "v1", **item})
        done = kube.access.kubectl(account, "create", "--dry-run=server", "-f", "-", stdin=document, check=False)
        return done.stdout + done.stderr

    for kind in ({"kind": "ConfigMap"}, {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1"}):
        named = {**kind, "metadata": {"namespace": NAMESPACE, "name": "aws-auth"}}
        assert f"are named {PLACER}" in answer(named)
    event: Object = {
        "kind": "Event",
        "metadata": {"namespace": namespace.name, "name": "about.0123456789abcdef"},
        "involvedObject": {"kind": "Pod", "namespace": namespace.name, "name": "about"},
        "source": {"component": PLACER},
        "reportingComponent": PLACER,
        "type": "Normal",
        "reason": "Test",
        "message": "a test",
    }
    assert "created" in answer(event)
    changes: tuple[Object, ...] = (
        {"metadata": event["metadata"] | {"name": "other.0123456789abcdef"}},
        {"metadata": event["metadata"] | {"name": "about.x"}},
        {"source": {"component": "kubelet"}},
        {"reportingComponent": "kubelet"},
        {"involvedObject": event["involvedObject"] | {"kind": "Secret"}},
        {"related": {"kind": "Pod", "namespace": namespace.name, "name": "about"}},
    )
    for change in changes:
        assert "only events of the component" in answer(event | change), change
    for cut in ("-", ".", "--", "x"):  # kube/api/events.py cuts a name, and the policy has to do the same
        about = ObjectReference("Pod", namespace.name, f"{'a' * (200 - len(cut))}{cut}b", "uid")
        name = new_event(about, "Test", "a test", PLACER, key="", moment=0.0, wrong=False).metadata.name
        long: Object = {"involvedObject": event["involvedObject"] | {"name": about.name}}
        assert "created" in answer(event | long | {"metadata": event["metadata"] | {"name": name}}), cut
        name = f"{about.name[:150]}.{name.rpartition('.')[2]}"
        assert "created" not in answer(event | long | {"metadata": event["metadata"] | {"name": name}}), cut
    held = {"metadata": event["metadata"] | {"finalizers": ["example.com/hold"]}}
    assert "neither finalizers nor owners" in answer(event | held)


def test_a_node_that_takes_a_servers_label_keeps_no_group_off_it_and_is_named_in_an_event(
    placer: Installation, groups: LeaderWorkerSets, namespace: Namespace, kube: Kube
) -> None:
    namespace.apply(one_node())
    strangers = {f"stranger-{place}": server for place, server in enumerate(servers(kube))}
    for name, server in strangers.items():
        kube.create("nodes", {"metadata": {"name": name, "labels": {SERVER_4: server}}})
    try:
        groups.apply(lws("four", 4, gated=True), namespace=namespace.name)
        eventually("the four to run", lambda: complete(groups.pods("four", namespace.name), 4), 45)
        leader = namespace.pod("four-0")
        assert leader is not None
        affinity = leader["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (excluded,) = affinity["nodeSelectorTerms"][0]["matchFields"]
        assert (excluded["key"], excluded["operator"]) == ("metadata.name", "NotIn")
        assert [strangers[name] for name in excluded["values"]] == [leader["spec"]["nodeSelector"][SERVER_4]]

        def named() -> set[str]:
            told = kube.find("events", "default", fields="reason=UltraServerLabels")
            return {event["involvedObject"]["name"] for event in told}

        eventually("the nodes to be named", lambda: named() >= strangers.keys(), 10)
        end(groups, namespace, "four")
    finally:
        for name in strangers:
            kube.delete("nodes", name)


def test_nobody_but_the_placer_writes_its_annotations(placer: Installation, namespace: Namespace) -> None:
    placed = plain_pod("placed")
    placed["spec"]["schedulingGates"] = [{"name": GATE}]
    namespace.apply(plain_pod("other"), placed)

    def answer(*arguments: str) -> str:
        done = namespace.kube.access.kubectl(f"--namespace={namespace.name}", *arguments, check=False)
        return done.stdout + done.stderr

    assert "Only the placer may" in answer("annotate", "pod", "other", f"{PLACED_ANNOTATION}=s0")
    assert "annotated" in answer("annotate", "pod", "other", "a=b")
    patch = json.dumps({"metadata": {"annotations": {SINCE_ANNOTATION: "2026-01-01T00:00:00Z"}}})
    assert "Only the placer may" in answer("patch", "pod", "other", "--subresource=status", f"--patch={patch}")
    assert "labeled" in answer("label", "pod", "other", f"{GROUP_LABEL}=free")
    account = f"--as=system:serviceaccount:{NAMESPACE}:{PLACER}"
    assert "annotated" in answer(account, "annotate", "pod", "placed", f"{PLACED_ANNOTATION}=s0")
    assert "on a pod that has been assigned" in answer("label", "pod", "placed", f"{GROUP_LABEL}=g")
    assert "labeled" in answer("label", "pod", "placed", "a=b")
    made = ("run", "made", "--image=localhost/none:1", "--restart=Never")
    assert "Leave such annotations out of the pod" in answer(*made, f"--annotations={PLACED_ANNOTATION}=s0")
    assert "created" in answer(*made, "--annotations=a=b")
    assert "deleted" in answer("delete", "pod", "made", "--now")


def test_a_kubelet_makes_no_mirror_pod_with_the_key_of_a_group(
    placer: Installation, namespace: Namespace, kube: Kube
) -> None:
    """LeaderWorkerSet's affinity would send the group to that kubelet's node, and its Service name that node's pod."""
    node = kube.get("nodes", min(next(iter(servers(kube).values()))))
    assert node is not None
    name = node["metadata"]["name"]

    def answer(labels: dict[str, str], **spec: str) -> str:
        mirror = plain_pod("mirror")
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"], "controller": True}
        mirror["metadata"] |= {
            "labels": labels,
            "annotations": {"kubernetes.io/config.mirror": "h"},
            "ownerReferences": [owner],
        }
        mirror["spec"] |= {"nodeName": name, **spec}
        as_node = (f"--as=system:node:{name}", "--as-group=system:nodes", f"--namespace={namespace.name}")
        done = kube.access.kubectl(
            *as_node, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(mirror), check=False
        )
        return done.stdout + done.stderr

    for key in (LWS_GROUP_LABEL, GROUP_LABEL, "leaderworkerset.sigs.k8s.io/name"):
        assert "A static pod is of no group" in answer({key: "any"})
    assert "no name in the domain" in answer({"app": "any"}, hostname="four-0-1", subdomain="four")
    assert "none of another workload" in answer({"app": "neuron-dra-driver-placer"})
    assert "created" in answer({"app": "any"}, hostname="any")
    assert "created" in answer({})


def kill(kube: Kube, *, hard: bool) -> None:
    """End the placer that acts: its process at once, or its pod in order."""
    name = acting(kube)
    pod = kube.get("pods", name, NAMESPACE) if name else None
    if pod is None:
        return
    if hard and pod["status"].get("containerStatuses", [{}])[0].get("state", {}).get("running"):
        os.kill(process_of(pod), signal.SIGKILL)
    else:
        kube.kubectl("--namespace", NAMESPACE, "delete", "pod", name, "--wait=false")


@pytest.mark.timeout(240 + 20 * GROUPS, func_only=True)
def test_groups_that_come_and_go_in_three_namespaces_while_the_placer_is_killed(
    placer: Installation, groups: LeaderWorkerSets, kube: Kube, figures: list[str]
) -> None:
    stream = Stream(kube, groups, chance=random.Random(SEED))
    seen = stream.run(count=GROUPS, at_once=5, kill=partial(kill, kube))
    figures.append(str(stream))
    assert stream.served == stream.made
    assert seen.longest_half <= STUCK_SECONDS + FAILOVER_SECONDS
    assert seen.longest_wait <= FAILOVER_SECONDS + 15

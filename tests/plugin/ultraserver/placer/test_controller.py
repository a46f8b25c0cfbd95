"""The placer against an API server: what it writes, also when answers are lost and when two of it run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, repeat
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest

from dra_driver.kube.api.election import Times
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.leading import RESIGN_SECONDS
from dra_driver.kube.objects.meta import timestamp
from dra_driver.neuron.names import SERVER_2, SERVER_4
from dra_driver.ultraserver.placer import controller
from dra_driver.ultraserver.placer.controller import LEASE_NAME, MAX_EVENTS, Placer, PlacerService
from dra_driver.ultraserver.placer.trouble import SHARE_SECONDS
from dra_driver.ultraserver.placer.values import (
    GATE,
    GROUP_LABEL,
    NODES_ANNOTATION,
    PLACED_ANNOTATION,
    SINCE_ANNOTATION,
    STUCK_ANNOTATION,
    Rules,
)
from dra_driver.util.worker import STOP_SECONDS
from tests.doubles.apiserver.http import Fault
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object, Refused
from tests.eventually import eventually
from tests.golden import golden

SYSTEM = "neuron-dra-driver"
STEADY = Times(lease=300, act=200.0, renew=0.1)
"""A lease that no busy machine loses."""


def add_server(server: ApiServer, name: str) -> None:
    """Four Ready nodes of an UltraServer that offer themselves."""
    for index in range(4):
        node = f"{name}-n{index}"
        labels = {SERVER_4: name, SERVER_2: f"{name}-h{index // 2}"}
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        server.store.create("nodes", {"metadata": {"name": node, "labels": labels}, "spec": {}, "status": status})
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "neuron.aws.com", "nodeName": node, "pool": pool, "devices": [{"name": "neuron-node"}]}
        server.store.create("resourceslices", {"metadata": {"name": node}, "spec": spec})


def add_leader(server: ApiServer, name: str, size: int = 4, namespace: str = "a", **labels: str) -> Object:
    """A leader as LeaderWorkerSet makes it, with the gate."""
    prefix = "leaderworkerset.sigs.k8s.io/"
    meta = {
        "namespace": namespace,
        "name": name,
        "labels": {f"{prefix}group-key": f"key of {name}", f"{prefix}worker-index": "0", **labels},
        "annotations": {
            f"{prefix}size": str(size),
            f"{prefix}exclusive-topology": SERVER_4 if size == 4 else SERVER_2,
        },
    }
    spec = {"schedulingGates": [{"name": GATE}], "resourceClaims": [{"name": "node"}], "containers": [{"name": "c"}]}
    return server.store.create("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})


def pod(server: ApiServer, name: str, namespace: str = "a") -> Object:
    return server.store.get("pods", f"{namespace}/{name}")


def server_of(server: ApiServer, name: str, namespace: str = "a") -> str:
    found = pod(server, name, namespace)["spec"].get("nodeSelector", {})
    return str(found.get(SERVER_4) or found.get(SERVER_2) or "")


def messages(server: ApiServer, name: str) -> list[str]:
    events = server.store.list("events", lambda item: item["involvedObject"]["name"] == name)[0]
    return [str(event["message"]) for event in events]


def bind(server: ApiServer, name: str, node: str) -> None:
    """What the scheduler does: the pod gets a node, and its claim the node's device."""
    found = pod(server, name)
    found["spec"]["nodeName"] = node
    server.store.update("pods", f"a/{name}", found)
    server.add_claim("a", f"{name}-node", devices=[("r", "neuron-node")], node=node)


def add_workers(server: ApiServer, leader: str, *nodes: str, first: int = 1) -> None:
    """Workers that have their nodes already."""
    template = pod(server, leader)
    for index, node in enumerate(nodes, first):
        meta = {key: template["metadata"][key] for key in ("namespace", "annotations")}
        meta["annotations"] = {key: value for key, value in meta["annotations"].items() if "neuron" not in key}
        labels = template["metadata"]["labels"] | {"leaderworkerset.sigs.k8s.io/worker-index": str(index)}
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": leader, "uid": "u", "controller": True}
        meta |= {"name": f"{leader}-{index}", "labels": labels, "ownerReferences": [owner]}
        spec = {"nodeName": node, "containers": [{"name": "c"}]}
        server.store.create("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Running"}})


@contextmanager
def placing(
    server: ApiServer, identity: str = "one", timeout: float = 300.0, times: Times = STEADY
) -> Iterator[PlacerService]:
    service = PlacerService(server.transport(), SYSTEM, identity, Rules(timeout=timeout, avoid=60.0), times)
    service.start()
    try:
        yield service
    finally:
        service.stop()


@contextmanager
def term_of(
    server: ApiServer,
    pods: int,
    well: Callable[[float], None] = lambda _: None,
    clock: Callable[[], float] = time.time,
    rules: Rules | None = None,
) -> Iterator[Placer]:
    """A term whose looks the test takes, once it has seen two servers and so many pods."""
    term = Placer(server.transport(), SYSTEM, rules or Rules(), lambda: True, well, clock)
    for informer in term.informers():
        informer.start()
    try:
        eventually(lambda: all(informer.current for informer in term.informers()))
        eventually(lambda: sum(len(informer.objects()) for informer in term.informers()) >= 8 + 8 + pods)
        yield term
    finally:
        for informer in term.informers():
            informer.stop()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        add_server(running, "s0")
        add_server(running, "s1")
        yield running


def test_a_clock_that_is_set_forward_makes_no_group_give_up(server: ApiServer) -> None:
    wall = [time.time()]
    term = Placer(server.transport(), SYSTEM, Rules(), lambda: True, lambda _: None, clock=lambda: wall[0])
    for informer in term.informers():
        informer.start()
    try:
        eventually(lambda: all(informer.current for informer in term.informers()))
        add_leader(server, "four")

        def placed() -> bool:
            term.look()
            return server_of(server, "four") != ""

        eventually(placed)
        wall[0] += 86_400
        term.look()
    finally:
        for informer in term.informers():
            informer.stop()
    assert SINCE_ANNOTATION in pod(server, "four")["metadata"]["annotations"]
    assert server.count("DELETE", "pods") == 0


def test_who_takes_over_with_a_clock_that_is_ahead_releases_no_group_at_once(server: ApiServer) -> None:
    add_leader(server, "four")
    with placing(server):
        eventually(lambda: server_of(server, "four"))
    with term_of(server, 1, clock=lambda: time.time() + 3600) as term:
        term.look()
        term.look()
    assert server.count("DELETE", "pods") == 0


def test_a_crowd_that_waits_keeps_nobody_from_a_server_and_few_from_being_told(server: ApiServer) -> None:
    for number in range(2 * MAX_EVENTS):
        add_leader(server, f"crowd-{number}", 3, namespace="a")
    add_leader(server, "other", namespace="b")
    add_leader(server, "confused", 3, namespace="c")
    add_leader(server, "late", namespace="d")
    promises: list[float] = []
    with term_of(server, 2 * MAX_EVENTS + 3, promises.append) as term:
        term.look()
    writes = [request for request in server.requests if request.method in ("PATCH", "POST")]
    kinds = ["event" if "/events" in request.path else "pod" for request in writes if "configmaps" not in request.path]
    assert kinds == ["pod"] * 2 + ["event"] * (2 + MAX_EVENTS), "two get a server, and are told so beside the others"
    assert len(promises) >= len(kinds), "each write may take its time"
    assert messages(server, "confused")


def test_pods_of_one_name_in_two_namespaces_are_two_groups(server: ApiServer) -> None:
    for namespace in ("a", "b"):
        add_leader(server, "train", namespace=namespace)
    with term_of(server, 2) as term:
        term.look()
    assert {server_of(server, "train", namespace) for namespace in ("a", "b")} == {"s0", "s1"}


@pytest.mark.parametrize("since", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:00"])
def test_a_year_that_there_is_not_keeps_nobody_from_a_server(server: ApiServer, since: str) -> None:
    """A kubelet writes what it likes on the pods of its node, and a time with an offset may be in no year of UTC."""
    add_leader(server, "evil-0", namespace="a")
    with placing(server) as service:
        eventually(lambda: server_of(server, "evil-0"))
        with server.store.changed:
            evil = pod(server, "evil-0")
            evil["metadata"]["annotations"] |= {SINCE_ANNOTATION: since, STUCK_ANNOTATION: "2026-01-01T00:00:00Z"}
            server.store.update("pods", "a/evil-0", evil)
        add_leader(server, "other", namespace="b")
        eventually(lambda: server_of(server, "other", "b"))
        eventually(lambda: pod(server, "evil-0")["metadata"]["annotations"][SINCE_ANNOTATION] != since)
        assert service.problems() == []


def test_a_defect_in_one_action_keeps_no_other_from_a_server(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = Mock(side_effect=chain([ValueError("year 10000")], repeat(DEFAULT)), wraps=timestamp)
    monkeypatch.setattr(controller, "timestamp", written)
    add_leader(server, "first", namespace="a")
    add_leader(server, "second", namespace="b")
    with term_of(server, 2) as term:
        term.look()
        assert (server_of(server, "first", "a"), server_of(server, "second", "b")) == ("", "s1")
    assert "namespace a: internal error" in caplog.text


def test_a_leader_gets_node_selector_and_loses_its_gate_in_one_write(server: ApiServer) -> None:
    add_leader(server, "four-0")
    with placing(server):
        eventually(lambda: server_of(server, "four-0") == "s0")
        found = pod(server, "four-0")
        assert found["spec"]["schedulingGates"] == []
        assert found["metadata"]["annotations"][PLACED_ANNOTATION] == "s0"
        eventually(lambda: messages(server, "four-0"))
        golden(messages(server, "four-0"))
    assert server.count("PATCH") == 1


def test_slices_in_the_pool_of_another_node_hide_no_server(server: ApiServer) -> None:
    for pool in ("s0-n1", "s1-n1", "evil"):
        of_pool = {"name": pool, "generation": 10**9, "resourceSliceCount": 1}
        spec = {"driver": "neuron.aws.com", "nodeName": "evil", "pool": of_pool, "devices": []}
        server.store.create("resourceslices", {"metadata": {"name": f"evil-{pool}"}, "spec": spec})
    add_leader(server, "four")
    with term_of(server, 1) as term:
        eventually(lambda: len(term.informers()[1].objects()) == 9)
        term.look()
    assert server_of(server, "four") == "s0"


OLDER, YOUNGER = "2025-01-01T00:00:00Z", "2026-01-01T00:00:05Z"
"""Than all that the double of the API server creates."""


def add_liar(server: ApiServer, created: str) -> None:
    """A node that has the labels of the first server's first node."""
    meta = {"name": "a-node", "labels": {SERVER_4: "s0", SERVER_2: "s0-h0"}, "creationTimestamp": created}
    server.store.create("nodes", {"metadata": meta, "spec": {}, "status": {}})


@pytest.mark.parametrize("created", [YOUNGER, OLDER], ids=["younger", "older"])
def test_a_node_that_takes_a_servers_label_is_warned_and_kept_from_pods_beside_their_own_affinity(
    server: ApiServer, created: str
) -> None:
    add_liar(server, created)
    own = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["1", "2"]}]}
    leader = add_leader(server, "four-0")
    leader["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [own]}},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
    }
    server.store.update("pods", "a/four-0", leader)
    with placing(server):
        eventually(lambda: server_of(server, "four-0") == "s0")
        eventually(lambda: messages(server, "a-node"))
    affinity = pod(server, "four-0")["spec"]["affinity"]
    (term,) = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    excluded = {"key": "metadata.name", "operator": "NotIn", "values": ["a-node"]}
    assert term == own | {"matchFields": [excluded]}
    assert "podAntiAffinity" in affinity
    golden(messages(server, "a-node"))


def record(server: ApiServer) -> dict[str, Any]:
    """What the placer keeps, once it keeps something."""
    found, _ = server.store.list("configmaps", lambda item: item["metadata"]["name"] == "neuron-dra-driver-placer")
    kept: dict[str, Any] = json.loads(found[0]["data"]["state"]) if found else {}
    return kept


def test_a_server_keeps_the_nodes_that_it_had_when_an_older_one_with_chips_takes_its_label(server: ApiServer) -> None:
    with placing(server):
        eventually(lambda: record(server).get("members", {}).get(f"{SERVER_4}=s0"))
    add_liar(server, OLDER)
    node = server.store.get("nodes", "a-node")
    node["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    server.store.update("nodes", "a-node", node)
    pool = {"name": "a-node", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "neuron.aws.com", "nodeName": "a-node", "pool": pool, "devices": [{"name": "neuron-node"}]}
    server.store.create("resourceslices", {"metadata": {"name": "a-node"}, "spec": spec})
    add_leader(server, "four-0")
    with placing(server, "two"):
        eventually(lambda: server_of(server, "four-0") == "s0")
        eventually(lambda: messages(server, "a-node") and messages(server, "four-0"))
    assert messages(server, "four-0") == ["UltraServer s0 is its group's: s0-n0, s0-n1, s0-n2, s0-n3"]
    assert not [name for name in ("s0-n0", "s0-n1", "s0-n2", "s0-n3") if messages(server, name)]


def test_a_mirror_pod_with_the_key_of_a_group_keeps_it_from_no_server(server: ApiServer) -> None:
    """As kubelet makes it: of its node, with the labels that the file on its disk says."""
    leader = add_leader(server, "four-0")
    owner = {"apiVersion": "v1", "kind": "Node", "name": "evil", "uid": "u", "controller": True}
    meta = {
        "namespace": "a",
        "name": "any-evil",
        "labels": leader["metadata"]["labels"],
        "annotations": {**leader["metadata"]["annotations"], "kubernetes.io/config.mirror": "h"},
        "ownerReferences": [owner],
    }
    spec = {"nodeName": "evil", "containers": [{"name": "c"}]}
    server.store.create("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Running"}})
    with placing(server):
        eventually(lambda: server_of(server, "four-0") == "s0")


def test_pods_that_have_ended_take_no_room_in_the_record(server: ApiServer) -> None:
    """A Job may leave thousands of them, and a ConfigMap has one MiB for all groups."""
    first = add_leader(server, "four-0")["metadata"]["uid"]
    with placing(server):
        eventually(lambda: server_of(server, "four-0") == "s0")
        assert list(record(server)["placed"]) == [first]
        ended = pod(server, "four-0")
        ended["status"] = {"phase": "Succeeded"}
        server.store.update("pods", "a/four-0", ended)
        second = add_leader(server, "four-1")["metadata"]["uid"]
        eventually(lambda: list(record(server)["placed"]) == [second])


def test_a_group_that_is_complete_is_noted_and_costs_two_writes_and_an_event(server: ApiServer) -> None:
    add_leader(server, "four-0")
    with placing(server):
        eventually(lambda: server_of(server, "four-0"))
        bind(server, "four-0", "s0-n0")
        add_workers(server, "four-0", "s0-n1", "s0-n2")
        eventually(lambda: SINCE_ANNOTATION in pod(server, "four-0")["metadata"]["annotations"])
        add_workers(server, "four-0", "s0-n3", first=3)
        eventually(lambda: SINCE_ANNOTATION not in pod(server, "four-0")["metadata"]["annotations"])
    assert (server.count("PATCH", "pods"), server.count("POST", "events")) == (2, 1)


def test_who_waits_is_told_why_once(server: ApiServer) -> None:
    for name in ("four-0", "four-1", "four-2"):
        add_leader(server, name, namespace="a")
    with placing(server):
        eventually(lambda: messages(server, "four-2"))
        add_leader(server, "later-0", 2)  # makes it look again
        eventually(lambda: messages(server, "later-0"))
    assert [len(messages(server, f"four-{number}")) for number in range(3)] == [1, 1, 1]
    golden(messages(server, "four-2")[0])
    with placing(server, "two"):
        eventually(lambda: server.count("POST", "events", watch=False) >= 6)
    assert len(messages(server, "four-2")) == 1, "a successor says the same thing under the same name"


def test_a_group_that_stays_incomplete_is_deleted_in_the_foreground_and_kept_off_the_server(server: ApiServer) -> None:
    add_leader(server, "four-0")
    with placing(server, timeout=1.0):
        eventually(lambda: server_of(server, "four-0") == "s0")
        bind(server, "four-0", "s0-n0")
        eventually(lambda: "deletionTimestamp" in pod(server, "four-0")["metadata"])
        assert pod(server, "four-0")["metadata"]["finalizers"] == ["foregroundDeletion"]
        eventually(lambda: len(messages(server, "four-0")) > 1)
        golden(messages(server, "four-0")[1])
        server.store.delete("pods", "a/four-0")
        server.delete_claim("a", "four-0-node")
        add_leader(server, "four-0")
        eventually(lambda: server_of(server, "four-0") == "s1")
    assert server.count("DELETE", "pods") == 1


def test_a_group_for_whose_worker_the_scheduler_finds_no_node_is_made_anew(server: ApiServer) -> None:
    """The placer is killed in between, and its successor goes on from what is written on the pod."""
    add_leader(server, "four-0")
    with placing(server):
        eventually(lambda: server_of(server, "four-0") == "s0")
        bind(server, "four-0", "s0-n0")
        add_workers(server, "four-0", "s0-n1", "s0-n2", "")
        worker = pod(server, "four-0-3")
        reason = {"reason": "Unschedulable", "message": "0/8 nodes are available: 4 Insufficient cpu."}
        worker["status"] = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"} | reason]}
        server.store.update("pods", "a/four-0-3", worker)
        said = time.monotonic()
        time.sleep(3.0)
    with placing(server, "two"):
        eventually(lambda: "deletionTimestamp" in pod(server, "four-0")["metadata"], within=60)
        assert time.monotonic() - said > 10.0, "the scheduler backs off for so long before it looks again"
        eventually(lambda: len(messages(server, "four-0")) > 1)
        golden(messages(server, "four-0")[1])


def forge(server: ApiServer, name: str, namespace: str = "forger") -> None:
    """A pod as if the placer had assigned it to a server, with a gate of its author so that it never needs a node."""
    add_leader(server, name, namespace=namespace)
    found = pod(server, name, namespace)
    server.store.delete("pods", f"{namespace}/{name}")
    found["metadata"]["annotations"][PLACED_ANNOTATION] = name
    found["metadata"]["managedFields"] = [{"manager": "neuron-dra-driver-placer", "operation": "Update"}]
    found["spec"] |= {"nodeSelector": {SERVER_4: name}, "schedulingGates": [{"name": "example.com/mine"}]}
    server.store.create("pods", found)


def test_a_pod_that_its_author_declares_placed_takes_no_server_from_anybody(server: ApiServer) -> None:
    for name in ("s0", "s1"):
        forge(server, name)
    add_leader(server, "four-0")
    with placing(server):
        eventually(lambda: server_of(server, "four-0") == "s0")
        bind(server, "four-0", "s0-n0")
        add_workers(server, "four-0", "s0-n1", "s0-n2")
        forge(server, "s0", "another")
        add_leader(server, "four-1")
        eventually(lambda: server_of(server, "four-1") == "s1")
        assert "deletionTimestamp" not in pod(server, "four-0")["metadata"]


def test_where_pods_were_assigned_outlives_the_placer(server: ApiServer) -> None:
    for number in range(2):
        add_leader(server, f"four-{number}")
    with placing(server):
        eventually(lambda: server_of(server, "four-1"))
    add_leader(server, "four-2")
    with placing(server, "two"):
        eventually(lambda: messages(server, "four-2"))
    assert not server_of(server, "four-2")


def test_a_record_of_a_pod_that_still_has_the_gate_means_nothing(server: ApiServer) -> None:
    """The placer was killed between the record and the pod; then the author of the pod removed the gate."""
    add_leader(server, "four-0")
    add_leader(server, "four-1")
    refusal = server.fail(503, 10**6, method="PATCH", path="/pods/four-0$")
    # Its last write may still be carried out, so it hands no lease over.
    with placing(server, times=Times(lease=2, act=1.0, renew=0.1)):
        eventually(lambda: refusal.times < 10**6)
    refusal.times = 0
    found = pod(server, "four-0")
    server.store.delete("pods", "a/four-0")
    with placing(server, "two"):
        eventually(lambda: server_of(server, "four-1") == "s0")
        found["spec"] |= {"nodeSelector": {SERVER_4: "s0"}, "schedulingGates": []}
        server.store.create("pods", found)
        bind(server, "four-1", "s0-n0")
        add_leader(server, "four-2")
        eventually(lambda: server_of(server, "four-2") == "s1")
        assert "deletionTimestamp" not in pod(server, "four-1")["metadata"]


def test_what_it_remembers_outlives_it(server: ApiServer) -> None:
    add_leader(server, "four-0")
    with placing(server, timeout=3.0):
        eventually(lambda: "deletionTimestamp" in pod(server, "four-0")["metadata"])
    server.store.delete("pods", "a/four-0")
    add_leader(server, "four-0")
    with placing(server, "two", timeout=3.0):
        eventually(lambda: server_of(server, "four-0") == "s1")


@pytest.mark.parametrize("after", [True, False], ids=["carried out", "not carried out"])
def test_a_lost_answer_gives_no_server_away_twice(server: ApiServer, after: bool) -> None:
    for number in range(3):
        add_leader(server, f"four-{number}", namespace="abc"[number])
    server.drop(2, method="PATCH", path="/pods/", after=after)
    with placing(server):
        eventually(lambda: messages(server, "four-2"))
        eventually(lambda: sum(bool(server_of(server, f"four-{i}", "abc"[i])) for i in range(3)) == 2)
    placed = [server_of(server, f"four-{number}", "abc"[number]) for number in range(3)]
    assert sorted(placed) == ["", "s0", "s1"]


def test_a_pod_that_the_server_refuses_to_change_keeps_no_server_from_others(server: ApiServer) -> None:
    add_leader(server, "four-0")
    add_leader(server, "four-1")
    add_leader(server, "four-2")
    server.fail(403, 100, method="PATCH", path="/pods/four-0$", message="a policy says no")
    with placing(server):
        eventually(lambda: server_of(server, "four-1") and server_of(server, "four-2"))
        eventually(lambda: messages(server, "four-0"))
    golden(messages(server, "four-0"))


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (500, "etcdserver: request is too large"),
        (500, "rpc error: desc = trying to send message larger than max (2179626 vs. 2097152)"),
        (500, 'Internal error occurred: failed calling webhook "of-a.tenant": no such host'),
        (503, 'admission webhook "of-a.tenant" denied the request: later'),
        (413, "limit"),
    ],
)
def test_a_pod_that_cannot_be_written_keeps_nobody_waiting(server: ApiServer, status: int, message: str) -> None:
    """It may be as long as an object can be, or its namespace may have a webhook that fails."""
    add_leader(server, "four-0")
    add_leader(server, "four-1", namespace="b")
    add_leader(server, "four-2", namespace="b")
    server.fail(status, 10**6, method="PATCH", path="/pods/four-0$", message=message)
    with placing(server):
        eventually(lambda: server_of(server, "four-1", "b") and server_of(server, "four-2", "b"))
        eventually(lambda: messages(server, "four-0"))
    golden(messages(server, "four-0")[0])


@pytest.mark.parametrize("status", [0, 401, 429, 500, 503])
def test_a_pod_of_which_nobody_knows_whether_it_is_assigned_holds_its_server_and_no_other(
    server: ApiServer, status: int
) -> None:
    """A webhook of its namespace may hang, or refuse with what it likes: 0 is an answer that never comes."""
    for number in range(2):
        add_leader(server, f"four-{number}", namespace="a")
    add_leader(server, "other-0", namespace="b")
    add_leader(server, "other-1", namespace="b")
    if status:
        server.fail(status, 10**6, method="PATCH", path="/namespaces/a/pods/")
    else:
        server.drop(10**6, method="PATCH", path="/namespaces/a/pods/")
    with placing(server):
        eventually(lambda: server_of(server, "other-0", "b"))
        eventually(lambda: server.count("PATCH", "/pods/four-0$") > 1)
        eventually(lambda: messages(server, "other-1"))
        eventually(lambda: messages(server, "four-0"))
    assert server_of(server, "other-0", "b") == "s1"
    golden(messages(server, "four-0")[0])
    assert server.count("PATCH", "/pods/four-1$") == 0


@pytest.mark.parametrize("status", [0, 401, 403, 500, 503])
def test_a_pod_that_cannot_be_written_keeps_no_other_of_its_namespace_waiting(server: ApiServer, status: int) -> None:
    add_leader(server, "bad-0")
    if status:
        server.fail(status, 10**6, method="PATCH", path="/pods/bad-0$")
    else:
        server.drop(10**6, method="PATCH", path="/pods/bad-0$")
    with placing(server):
        eventually(lambda: server.count("PATCH", "/pods/bad-0$") > 3)
        add_leader(server, "four-0")
        eventually(lambda: server_of(server, "four-0"))


def test_a_group_beside_a_pod_that_cannot_be_written_is_released(server: ApiServer) -> None:
    add_leader(server, "old-0")
    with placing(server, timeout=1.0):
        eventually(lambda: server_of(server, "old-0"))
        server.fail(500, 10**6, method="PATCH", path="/pods/")
        add_leader(server, "bad-0")
        eventually(lambda: server.count("PATCH", "/pods/bad-0$") > 1)
        eventually(lambda: "deletionTimestamp" in pod(server, "old-0")["metadata"])


@pytest.mark.parametrize("status", [0, 403], ids=["allows", "denies"])
def test_a_namespace_whose_webhook_on_pods_is_slow_keeps_nobody_waiting(server: ApiServer, status: int) -> None:
    for number in range(2):
        add_leader(server, f"four-{number}", namespace="a")
    slow = SHARE_SECONDS + 0.2
    if status:
        server.fail(status, 10**6, method="PATCH", path="/namespaces/a/pods/", delay=slow)
    else:
        server.delay(slow, 10**6, method="PATCH", path="/namespaces/a/pods/")
    with term_of(server, pods=2) as term:
        term.look()
        assert server.count("PATCH", "/namespaces/a/pods/") == 1


def test_pods_of_a_group_that_are_slow_to_delete_keep_nobody_waiting(server: ApiServer) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "g", "uid": "u", "controller": True}
    for number in range(4):
        meta = {"labels": {GROUP_LABEL: "g"}, "annotations": {NODES_ANNOTATION: "4"}, "ownerReferences": [owner]}
        meta |= {"namespace": "a", "name": f"g-{number}"}
        spec = {"schedulingGates": [{"name": GATE}], "containers": [{"name": "c"}]}
        server.store.create("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
    server.delay(SHARE_SECONDS + 0.2, 10**6, method="DELETE", path="/namespaces/a/pods/")
    with term_of(server, pods=4, rules=Rules(timeout=0.1)) as term:
        counts = [0]
        while counts[-1] < 4:
            term.look()
            counts.append(server.count("DELETE", "/namespaces/a/pods/"))
    assert sorted(set(counts)) == [0, 1, 2, 3, 4]


def test_of_a_namespace_where_events_hang_one_is_tried_and_others_are_told(server: ApiServer) -> None:
    for number in range(10):
        add_leader(server, f"crowd-{number}", 3, namespace="a")
    add_leader(server, "four-0", namespace="b")
    server.delay(60.0, 10**6, method="POST", path="/namespaces/a/events$")
    with term_of(server, pods=11) as term:
        term.look()
        assert server.count("POST", "/namespaces/a/events$") == 1
        for _ in range(3):
            term.look()
    assert server.count("POST", "/namespaces/a/events$") < 4, "not at each look"
    assert server_of(server, "four-0", "b")
    assert messages(server, "four-0")


def test_where_an_assignment_may_take_effect_late_its_server_is_held(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its repeat is refused, but not what was sent before."""
    monkeypatch.setattr(controller, "LATE_SECONDS", 10**6)
    add_leader(server, "late-0")
    for name in ("other-0", "other-1"):
        add_leader(server, name, namespace="b")
    server.drop(1, method="PATCH", path="/pods/late-0$")
    server.fail(403, 10**6, method="PATCH", path="/pods/late-0$", message="a policy says no")
    with placing(server):
        eventually(lambda: server.count("PATCH", "/pods/late-0$") > 1)
        add_leader(server, "confused", 3, namespace="c")
        eventually(lambda: messages(server, "confused"))  # by a later decision
        assert [server_of(server, name, "b") for name in ("other-0", "other-1")] == ["s1", ""]
        monkeypatch.setattr(controller, "LATE_SECONDS", 0)
        eventually(lambda: server_of(server, "other-1", "b") == "s0")


def test_who_takes_over_holds_what_the_leader_before_may_yet_assign(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was sent without an answer, takes effect late, and the record is all that is known of it."""
    monkeypatch.setattr(controller, "LATE_SECONDS", 10**6)
    add_leader(server, "late-0")
    add_leader(server, "other-0", namespace="b")
    add_leader(server, "other-1", namespace="b")
    server.drop(10**6, method="PATCH", path="/pods/")
    with term_of(server, pods=3) as term, pytest.raises(ApiError):
        term.look()
    server.faults.clear()
    server.store.delete("pods", "b/other-0")
    with placing(server, "two"):
        add_leader(server, "other-2", namespace="b")
        eventually(lambda: server_of(server, "other-1", "b"))
        eventually(lambda: messages(server, "other-2"))
        assert [server_of(server, name, "b") for name in ("other-1", "other-2")] == ["s1", ""]
        assert not server_of(server, "late-0"), "it is left alone meanwhile"
        monkeypatch.setattr(controller, "LATE_SECONDS", 0)
        eventually(lambda: server_of(server, "late-0") == "s0")


def test_a_placer_that_can_write_nothing_says_so(server: ApiServer) -> None:
    add_leader(server, "four-0", namespace="a")
    add_leader(server, "four-1", namespace="b")
    failure = server.fail(503, 10**6, method="PATCH", path="/pods/", message="shutting down")
    with placing(server) as service:
        eventually(service.problems)
        assert "shutting down" in service.problems()[0]
        failure.times = 0
        eventually(lambda: server_of(server, "four-0") and server_of(server, "four-1", "b"))
        eventually(lambda: not service.problems())


def test_for_a_record_that_cannot_be_written_no_namespace_answers(server: ApiServer) -> None:
    add_leader(server, "old-0")
    with placing(server, timeout=1.0) as service:
        eventually(lambda: server_of(server, "old-0"))
        failure = server.fail(500, 10**6, method="PUT", path="/configmaps/", message="whatever")
        eventually(service.problems)
        assert "configmaps" in service.problems()[0]
        failure.times = 0
        eventually(lambda: "deletionTimestamp" in pod(server, "old-0")["metadata"])


def fill_record(server: ApiServer) -> Fault:
    """The record does not fit its ConfigMap any more."""
    message = "ConfigMap is invalid: []: Too long: may not be more than 1048576 bytes"
    return server.fail(422, 10**6, method="PUT", path="/configmaps/", reason="Invalid", message=message)


def test_while_the_record_cannot_be_written_nobody_is_placed_and_all_else_is_done(server: ApiServer) -> None:
    add_leader(server, "old-0", size=2)
    with placing(server) as service:
        eventually(lambda: server_of(server, "old-0"))
        failure = fill_record(server)
        add_leader(server, "new-0")
        eventually(service.problems)
        bind(server, "old-0", "s0-n0")
        add_workers(server, "old-0", "s0-n1")
        eventually(lambda: SINCE_ANNOTATION not in pod(server, "old-0")["metadata"]["annotations"])
        assert not server_of(server, "new-0")
        assert "Too long" in service.problems()[0]
        failure.times = 0
        eventually(lambda: server_of(server, "new-0"))


def test_a_group_whose_release_cannot_be_recorded_keeps_no_other_from_what_is_due(server: ApiServer) -> None:
    add_leader(server, "whole-0", size=2)
    with placing(server, timeout=1.0) as service:
        eventually(lambda: server_of(server, "whole-0"))
        bind(server, "whole-0", "s0-n0")
        add_workers(server, "whole-0", "s0-n1")
        eventually(lambda: SINCE_ANNOTATION not in pod(server, "whole-0")["metadata"]["annotations"])
        add_leader(server, "part-0")
        eventually(lambda: server_of(server, "part-0"))
        failure = fill_record(server)
        eventually(service.problems)
        server.store.delete("pods", "a/whole-0-1")
        eventually(lambda: SINCE_ANNOTATION in pod(server, "whole-0")["metadata"]["annotations"])
        assert "deletionTimestamp" not in pod(server, "part-0")["metadata"]
        failure.times = 0
        eventually(lambda: "deletionTimestamp" in pod(server, "part-0")["metadata"])


@pytest.mark.parametrize("message", ["etcdserver: request is too large", "whatever"])
def test_a_crowd_that_cannot_be_written_keeps_nobody_waiting(server: ApiServer, message: str) -> None:
    for number in range(30):
        add_leader(server, f"evil-{number:02}", namespace="a")
    add_leader(server, "four-0", namespace="b")
    server.fail(500, 10**6, method="PATCH", path="/pods/evil-", message=message)
    with placing(server):
        eventually(lambda: server_of(server, "four-0", "b"))


def test_pods_that_come_and_end_without_nodes_do_not_fill_the_record(server: ApiServer) -> None:
    """Finalizers of their author keep them, and room is made for their successors."""

    def add(name: str) -> None:
        meta = {"namespace": "a", "name": name, "labels": {GROUP_LABEL: "g"}, "annotations": {NODES_ANNOTATION: "2"}}
        spec = {"schedulingGates": [{"name": GATE}], "containers": [{"name": "c"}]}
        document = {
            "metadata": {**meta, "finalizers": ["a.example/stay"]},
            "spec": spec,
            "status": {"phase": "Pending"},
        }
        server.store.create("pods", document)

    add("p-0")
    add("p-1")
    with placing(server):
        eventually(lambda: server_of(server, "p-0") and server_of(server, "p-1"))
        for number in range(1, 7):
            ending = pod(server, f"p-{number}")
            ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            server.store.update("pods", f"a/p-{number}", ending)
            add(f"p-{number + 1}")
            eventually(partial(server_of, server, f"p-{number + 1}"))
    assert len(json.loads(server.store.get("configmaps", f"{SYSTEM}/{LEASE_NAME}")["data"]["state"])["placed"]) == 2


def test_pods_that_are_too_large_to_be_written_cost_one_look(server: ApiServer) -> None:
    for number in range(5):
        add_leader(server, f"large-{number}")
    add_leader(server, "other", namespace="b")
    server.fail(500, 10**6, method="PATCH", path="/pods/large-", message="etcdserver: request is too large")
    with term_of(server, pods=6) as term:
        for _ in range(3):  # two servers, six groups
            term.look()
    assert server_of(server, "other", "b")


def test_a_group_whose_times_cannot_be_written_keeps_nobody_waiting(server: ApiServer) -> None:
    add_leader(server, "two-0", 2)
    with placing(server):
        eventually(lambda: server_of(server, "two-0") == "s0-h0")
    server.fail(500, 10**6, method="PATCH", path="/pods/two-0$", message="whatever")
    bind(server, "two-0", "s0-n0")
    add_workers(server, "two-0", "s0-n1")
    before = server.count("PATCH", "/pods/two-0$")
    with placing(server, "two"):
        eventually(lambda: server.count("PATCH", "/pods/two-0$") > before + 2)
        add_leader(server, "four-0", namespace="b")
        eventually(lambda: server_of(server, "four-0", "b") == "s1")


def test_a_group_that_cannot_be_deleted_keeps_nobody_waiting(server: ApiServer) -> None:
    add_leader(server, "four-0")
    with placing(server, timeout=1.0):
        eventually(lambda: server_of(server, "four-0") == "s0")
        server.fail(500, 10**6, method="DELETE", path="/pods/four-0$", message="failed calling webhook")
        eventually(lambda: server.count("DELETE", "/pods/four-0$"))
        add_leader(server, "four-1", namespace="b")
        eventually(lambda: server_of(server, "four-1", "b") == "s1")


def test_a_pod_that_changed_meanwhile_is_looked_at_again(server: ApiServer) -> None:
    add_leader(server, "four-0")
    server.fail(409, 1, method="PATCH", path="/pods/")
    with placing(server):
        eventually(lambda: server_of(server, "four-0") == "s0")


def test_what_was_decided_about_a_pod_is_not_done_to_what_has_become_of_it(server: ApiServer) -> None:
    with placing(server) as service:
        eventually(lambda: service.leads)
        write = server.delay(0.5, method="PATCH", path="pods")
        add_leader(server, "group")
        eventually(lambda: not write.times)
        changed = pod(server, "group")
        prefix = "leaderworkerset.sigs.k8s.io/"
        changed["metadata"]["annotations"] = {f"{prefix}size": "2", f"{prefix}exclusive-topology": SERVER_2}
        server.store.update("pods", "a/group", changed)
        eventually(lambda: server_of(server, "group"))
        assert server_of(server, "group") == "s0-h0"


def test_nothing_is_decided_while_the_cluster_cannot_be_followed(server: ApiServer) -> None:
    add_leader(server, "four-0")
    fault = server.fail(403, 10**6, path="resourceclaims")
    with placing(server) as service:
        eventually(service.problems)
        assert "resourceclaims" in service.problems()[0]
        assert not server_of(server, "four-0")
        fault.times = 0
        eventually(lambda: server_of(server, "four-0") == "s0")
        eventually(lambda: not service.problems())


def test_of_two_one_acts_and_the_other_takes_over_at_once_when_it_ends(server: ApiServer) -> None:
    with placing(server, "one") as first, placing(server, "two") as second:
        eventually(lambda: first.leads or second.leads)
        time.sleep(0.3)
        assert first.leads != second.leads
        leader, other = (first, second) if first.leads else (second, first)
        leader.stop()
        eventually(lambda: other.leads)
        add_leader(server, "four-0")
        eventually(lambda: server_of(server, "four-0") == "s0")
    lease = server.store.get("leases", f"{SYSTEM}/{LEASE_NAME}")
    assert lease["spec"]["leaseTransitions"] == 1
    assert not lease["spec"].get("holderIdentity")


def test_a_leader_stops_in_time_though_the_api_server_never_answers(server: ApiServer) -> None:
    with placing(server) as service:
        add_leader(server, "four-0")
        eventually(lambda: server_of(server, "four-0") == "s0")
        server.delay(120.0, times=10**6)
        server.close_watches()
        add_leader(server, "four-1")
        time.sleep(0.2)
        stopped = time.monotonic()
        service.stop()
        assert time.monotonic() - stopped < STOP_SECONDS + 15


def test_a_leader_that_cannot_renew_stops_before_another_one_can_take_over(server: ApiServer) -> None:
    times = Times(lease=20, act=2.0, renew=0.1)
    with placing(server, "one", times=times) as first:
        eventually(lambda: first.leads)
        # From now on only the other one reaches the leases.
        server.fail(503, 10**6, method="PUT", path="leases")
        renewed = time.monotonic()
        eventually(lambda: not first.leads)
        stopped = time.monotonic()
        assert stopped < renewed + times.lease
        add_leader(server, "four-0")
        time.sleep(0.4)
        assert not server_of(server, "four-0")
        server.faults.clear()
        eventually(lambda: server_of(server, "four-0") == "s0")


def test_a_leader_whose_write_is_under_way_does_not_hand_its_lease_over(server: ApiServer) -> None:
    with placing(server) as service:
        eventually(lambda: service.leads)
        write = server.delay(60.0, method="PATCH", path="pods")
        add_leader(server, "four-0")
        eventually(lambda: not write.times)
        service.stop(RESIGN_SECONDS + 0.5)
        assert server.store.get("leases", f"{SYSTEM}/{LEASE_NAME}")["spec"]["holderIdentity"] == "one"


def test_who_leads_again_knows_nothing_of_before(server: ApiServer) -> None:
    def lists() -> int:
        return server.count("GET", "/nodes", watch=False)

    with placing(server) as service:
        eventually(lambda: service.leads and lists() == 1)
        lease = server.store.get("leases", f"{SYSTEM}/{LEASE_NAME}")
        lease["spec"] |= {"holderIdentity": "two", "leaseDurationSeconds": 1}
        del lease["metadata"]["resourceVersion"]
        server.store.update("leases", f"{SYSTEM}/{LEASE_NAME}", lease)
        eventually(lambda: not service.leads)
        eventually(lambda: service.leads and lists() == 2)


def test_who_waits_for_the_lease_says_so_once_and_who_holds_it(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with placing(server, "one") as first:
        eventually(lambda: first.leads)
        with placing(server, "two"):
            waits = f"two: one holds the lease {SYSTEM}/{LEASE_NAME}; this instance waits until it expires"
            eventually(lambda: waits in caplog.messages)
            time.sleep(0.5)
            assert caplog.messages.count(waits) == 1
            first.stop()
            eventually(lambda: "two: this instance leads now" in caplog.messages)


def test_a_killed_leader_is_replaced_when_its_lease_is_over(server: ApiServer) -> None:
    spec = {"holderIdentity": "dead", "leaseDurationSeconds": 1, "leaseTransitions": 4}
    server.store.create("leases", {"metadata": {"namespace": SYSTEM, "name": LEASE_NAME}, "spec": spec})
    started = time.monotonic()
    with placing(server, "two") as service:
        eventually(lambda: service.leads)
        assert time.monotonic() - started >= 1.0
    assert server.store.get("leases", f"{SYSTEM}/{LEASE_NAME}")["spec"]["leaseTransitions"] == 5


def test_an_idle_placer_asks_only_for_its_lease(server: ApiServer) -> None:
    with placing(server, times=Times()) as service:
        eventually(lambda: service.leads and server.count("GET", watch=True) >= 6)
        time.sleep(0.2)
        before = len(server.requests)
        time.sleep(2.0)
        others = [request for request in server.requests[before:] if "leases" not in request.path]
    assert others == []


def test_the_double_sends_what_begins_and_ends_to_match_a_watch(server: ApiServer) -> None:
    add_leader(server, "four")
    with term_of(server, 1) as term:
        of_groups, of_none = term.informers()[3], term.informers()[5]
        with server.store.changed:
            server.store.update(
                "pods", "a/four", pod(server, "four") | {"metadata": {"name": "four", "namespace": "a"}}
            )
        eventually(lambda: (len(of_groups.objects()), len(of_none.objects())) == (0, 1))


def test_the_double_keeps_kubernetes_rules_for_gates(server: ApiServer) -> None:
    """Guards the tests above: a change that Kubernetes would refuse is refused here."""
    add_leader(server, "four-0")
    transport = server.transport()

    def patch(change: dict[str, Any]) -> int:
        try:
            path, kind = "/api/v1/namespaces/a/pods/four-0", "application/merge-patch+json"
            return transport.request("PATCH", path, body={"spec": change}, content_type=kind).status
        except Exception as error:  # noqa: BLE001 # any refusal
            return int(getattr(error, "status", 0))

    assert patch({"schedulingGates": [{"name": GATE}, {"name": "more"}]}) == 422
    assert patch({"schedulingGates": [], "nodeSelector": {"a": "b"}}) == 200
    assert patch({"nodeSelector": {"c": "d"}}) == 422
    with pytest.raises(Refused):
        server.store.get("pods", "a/other")

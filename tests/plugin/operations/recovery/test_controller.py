"""Recovery against an API server: what it writes and evicts, also in outages and when it is replaced."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.kube.api import eviction
from dra_driver.kube.api.election import Times
from dra_driver.operations.recovery import controller
from dra_driver.operations.recovery.aws import Aws
from dra_driver.operations.recovery.controller import NAME, RecoveryService, RecoverySettings
from dra_driver.operations.recovery.hook import Hook
from dra_driver.operations.recovery.nodes import MARK, REQUEST, TAINT, Mark, NeuronNode, encode_mark
from dra_driver.operations.recovery.policy import Policy
from dra_driver.util.errors import DriverError
from tests.builders.recovery import add_budget, add_node, add_pod, add_server, cure, set_conditions, sicken
from tests.builders.recovery import conditions as conditions_of
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.eventually import eventually
from tests.golden import golden

pytestmark = pytest.mark.slow

SYSTEM = "neuron-healthcheck-system"
STEADY = Times(lease=300, act=200.0, renew=0.1)
"""A lease that no busy machine loses."""
AT_ONCE = Policy(persist_seconds=0, healthy_seconds=0, pause_seconds=0)
FOUR = Policy(persist_seconds=0, healthy_seconds=0, pause_seconds=0, max_at_once=4, max_percent_of_group=50)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often, and take servers for what they are at once, so that tests are short."""
    monkeypatch.setattr(controller, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr("dra_driver.operations.recovery.decide.MEMBER_SECONDS", 0)


@contextmanager
def recovering(
    server: ApiServer, policy: Policy = AT_ONCE, *, act: bool = True, hook: Hook | None = None, identity: str = "one"
) -> Iterator[RecoveryService]:
    settings = RecoverySettings(policy=policy, act=act, hook=hook)
    service = RecoveryService(server.transport(), SYSTEM, identity, settings, STEADY)
    service.start()
    try:
        yield service
    finally:
        service.stop()


@contextmanager
def term_of(server: ApiServer, policy: Policy, hook: Hook | None = None) -> Iterator[controller.Recovery]:
    """A term whose looks the test takes, with the Nodes followed."""
    settings = RecoverySettings(policy=policy, act=True, hook=hook)
    term = controller.Recovery(server.transport(), settings, controller.Numbers(), Aws(), lambda: True, lambda _: None)
    (informer,) = term.informers()
    informer.start()
    try:
        eventually(lambda: informer.current)
        yield term
    finally:
        informer.stop()


def node(server: ApiServer, name: str) -> Object:
    return server.store.get("nodes", name)


def cordoned(server: ApiServer, name: str) -> bool:
    return bool(node(server, name)["spec"].get("unschedulable"))


def notes(server: ApiServer, name: str) -> dict[str, str]:
    found: dict[str, str] = node(server, name)["metadata"].get("annotations") or {}
    return found


def requested(server: ApiServer, name: str) -> Object:
    found: Object = json.loads(notes(server, name).get(REQUEST, "{}"))
    return found


def said(server: ApiServer, name: str, reason: str = "") -> list[str]:
    """Messages of the events about a node."""
    events = server.store.list("events", lambda item: item["involvedObject"]["name"] == name)[0]
    return [str(event["message"]) for event in events if event["reason"].endswith(reason)]


def pods(server: ApiServer) -> set[str]:
    return {item["metadata"]["name"] for item in server.store.list("pods")[0]}


def test_a_sick_node_is_cordoned_drained_and_a_reboot_is_requested(server: ApiServer) -> None:
    add_node(server, "a")
    add_node(server, "b")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "driver", "uid": "1", "controller": True}
    add_pod(server, "driver", "a", metadata={"ownerReferences": [owner]})
    add_pod(server, "static", "a", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}})
    add_pod(server, "done", "a", status={"phase": "Succeeded"})
    add_pod(server, "training", "a", spec={"volumes": [{"name": "scratch", "emptyDir": {}}]})
    add_pod(server, "elsewhere", "b")
    sicken(server, "a")
    with recovering(server):
        eventually(lambda: requested(server, "a"))
    assert cordoned(server, "a")
    assert not cordoned(server, "b")
    assert pods(server) == {"driver", "static", "done", "elsewhere"}
    found = requested(server, "a")
    assert {key: found[key] for key in ("action", "fault", "node")} == {
        "action": "reboot",
        "fault": "heartbeat-stalled",
        "node": "a",
    }
    assert found["at"].endswith("Z")
    (text,) = said(server, "a", "Began")
    golden(text)
    events = server.store.list("events")[0]
    assert {event["involvedObject"]["kind"] for event in events} == {"Node"}
    assert {event["metadata"]["namespace"] for event in events} == {"default"}


def test_the_end_of_the_fault_undoes_what_was_done_and_nothing_else(server: ApiServer) -> None:
    add_node(server, "a")
    theirs = {"key": "example.com/theirs", "value": "x", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    with server.store.changed:
        found = node(server, "a")
        found["spec"]["taints"] = [theirs]
        found["metadata"]["annotations"] = {"example.com/note": "y"}
        server.store.update("nodes", "a", found)
    before = node(server, "a")
    sicken(server, "a")
    policy = Policy(0, 0, 0, remedies={"reboot": ("taint", "cordon", "request")})
    with recovering(server, policy):
        eventually(lambda: requested(server, "a"))
        assert node(server, "a")["spec"]["taints"] == [
            theirs,
            {"key": TAINT, "value": "heartbeat-stalled", "effect": "NoSchedule"},
        ]
        cure(server, "a")
        eventually(lambda: MARK not in notes(server, "a"))
        after = node(server, "a")
        assert after["spec"] == before["spec"]
        assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
        eventually(lambda: said(server, "a", "Ended"))


def test_a_node_that_somebody_else_cordoned_stays_as_it_is_and_its_state_is_said(server: ApiServer) -> None:
    add_node(server, "a")
    with server.store.changed:
        found = node(server, "a")
        found["spec"]["unschedulable"] = True
        server.store.update("nodes", "a", found)
    sicken(server, "a")
    with recovering(server):
        eventually(lambda: said(server, "a", "Waits"))
        cure(server, "a")
        time.sleep(0.3)
    golden(said(server, "a", "Waits")[0])
    assert cordoned(server, "a")
    assert server.count("PATCH", "nodes") == 0


def test_a_node_that_is_uncordoned_by_hand_is_not_cordoned_again(server: ApiServer) -> None:
    add_node(server, "a")
    add_pod(server, "training", "a")
    add_budget(server, "training", 0)
    sicken(server, "a")
    with recovering(server):
        eventually(lambda: cordoned(server, "a"))
        with server.store.changed:
            found = node(server, "a")
            del found["spec"]["unschedulable"]
            server.store.update("nodes", "a", found)
        eventually(lambda: any("uncordoned" in text for text in said(server, "a", "Waits")))
        assert not cordoned(server, "a")
        cure(server, "a")
        eventually(lambda: MARK not in notes(server, "a"))


def test_a_disruption_budget_is_waited_for_and_named(server: ApiServer) -> None:
    add_node(server, "a")
    add_pod(server, "training", "a")
    add_budget(server, "training", 0)
    sicken(server, "a")
    with recovering(server) as service:
        eventually(lambda: said(server, "a", "Drains"))
        golden(said(server, "a", "Drains"))
        assert service.problems() == []
        assert not requested(server, "a")
        with server.store.changed:
            budget = server.store.get("poddisruptionbudgets", "work/training")
            budget["status"]["disruptionsAllowed"] = 1
            server.store.update("poddisruptionbudgets", "work/training", budget)
        eventually(lambda: requested(server, "a"))
    assert pods(server) == set()


SOON = Policy(persist_seconds=0, healthy_seconds=0, pause_seconds=0, drain_seconds=1)


def test_a_pod_that_is_made_again_without_end_keeps_no_node_from_its_remedy(server: ApiServer) -> None:
    """Its owner names the node, or tolerates the cordon."""
    add_node(server, "a")
    add_node(server, "b")
    sicken(server, "a")
    made = 0

    def remade() -> bool:
        nonlocal made
        if not pods(server):
            made += 1
            add_pod(server, f"made-again-{made}", "a", spec={"tolerations": [{"operator": "Exists"}]})
        return bool(requested(server, "a"))

    with recovering(server, SOON):
        eventually(remade)
        sicken(server, "b")
        cure(server, "a")
        eventually(lambda: requested(server, "b"))


@pytest.mark.parametrize("status", [0, 429, 503])
def test_pods_that_come_late_and_cannot_be_evicted_keep_no_node_from_its_remedy(server: ApiServer, status: int) -> None:
    add_node(server, "a")
    add_pod(server, "first", "a")
    add_budget(server, "first", 0)
    sicken(server, "a")
    if status:
        server.fail(status, 10**6, message="failed calling webhook", path="/namespaces/evil/.*/eviction")
    else:
        server.drop(10**6, path="/namespaces/evil/.*/eviction")
    with recovering(server, SOON):
        eventually(lambda: any("drainSeconds" in text for text in said(server, "a", "Waits")))
        add_pod(server, "late", "a", namespace="evil")
        eventually(lambda: server.count("POST", "/namespaces/evil/pods/late/eviction"))
        assert not requested(server, "a")
        server.store.delete("pods", "work/first")
        eventually(lambda: requested(server, "a"))
    assert pods(server) == {"late"}


def test_no_node_takes_all_the_time_for_evictions(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer takes longer than there is time for in a look, and no pod may leave."""
    monkeypatch.setattr(eviction, "EVICT_SECONDS", 0.1)
    for name in "ab":
        add_node(server, name)
        sicken(server, name)
        add_pod(server, f"of-{name}", name)
    server.fail(403, 10**6, message="not now", delay=0.2, path="/eviction")
    with recovering(server, replace(AT_ONCE, max_at_once=2, max_percent_of_group=100)):
        for name in "abab":
            asked = server.count("POST", f"/of-{name}/eviction")
            eventually(lambda name=name, asked=asked: server.count("POST", f"/of-{name}/eviction") > asked)  # type: ignore[misc] # bound at once


def test_pods_that_do_not_leave_keep_other_nodes_waiting_for_a_time_and_their_own_for_ever(server: ApiServer) -> None:
    for name in "ab":
        add_node(server, name)
    add_pod(server, "training", "a")
    add_budget(server, "training", 0)
    sicken(server, "a")
    with recovering(server, SOON) as service:
        eventually(lambda: cordoned(server, "a"))
        sicken(server, "b")
        eventually(lambda: requested(server, "b"))
        golden(next(text for text in said(server, "a", "Waits") if "drainSeconds" in text))
        waits = {dict(s.labels)["reason"]: s.value for s in service.samples() if s.name == "recovery_waiting_nodes"}
        assert waits["drain"] == 1.0
        assert service.problems() == []
        assert not requested(server, "a")
    assert pods(server) == {"training"}


@pytest.mark.timeout(120)
def test_a_node_whose_pods_cannot_be_listed_keeps_other_nodes_waiting_for_a_time(server: ApiServer) -> None:
    for name in "ab":
        add_node(server, name)
    add_pod(server, "training", "a", spec={"terminationGracePeriodSeconds": 300})
    sicken(server, "a")
    fault = server.fail(504, 10**6, method="GET", path="/pods$")
    with recovering(server, SOON):
        eventually(lambda: cordoned(server, "a"))
        sicken(server, "b")
        eventually(lambda: cordoned(server, "b"))
        fault.times = 0
        eventually(lambda: any("training (it is ending)" in text for text in said(server, "a", "Drains")))
        assert not requested(server, "a"), "the pods of the first list are waited for, however late it came"


def test_pods_that_came_while_the_node_was_open_to_all_count_when_its_drain_goes_on(server: ApiServer) -> None:
    add_node(server, "a")
    add_pod(server, "training", "a")
    add_budget(server, "training", 0)
    sicken(server, "a")

    def cordon(state: bool) -> None:
        with server.store.changed:
            found = node(server, "a")
            found["spec"]["unschedulable"] = state
            server.store.update("nodes", "a", found)

    with recovering(server, replace(SOON, drain_seconds=3)):
        eventually(lambda: any("drainSeconds" in text for text in said(server, "a", "Waits")))
        cordon(False)
        eventually(lambda: any("uncordoned" in text for text in said(server, "a", "Waits")))
        add_pod(server, "later", "a", spec={"terminationGracePeriodSeconds": 300})
        cordon(True)
        eventually(lambda: any("later (it is ending)" in text for text in said(server, "a", "Drains")))
        server.store.delete("pods", "work/training")
        eventually(lambda: any("1 pods are still there: work/later" in text for text in said(server, "a", "Drains")))
        assert not requested(server, "a")
        server.store.delete("pods", "work/later")
        eventually(lambda: requested(server, "a"))


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_pods_of_a_namespace_where_nothing_can_be_evicted_keep_no_others_on_the_node(
    server: ApiServer, status: int
) -> None:
    """A webhook there fails, or hangs."""
    add_node(server, "a")
    for name in ("first", "second"):
        add_pod(server, name, "a", metadata={"namespace": "evil"})
    add_pod(server, "training", "a")
    fault: dict[str, str] = {"path": "/namespaces/evil/.*/eviction"}
    if status:
        server.fail(status, 10**6, message="failed calling webhook", **fault)
    else:
        server.drop(10**6, **fault)
    sicken(server, "a")
    with recovering(server):
        eventually(lambda: pods(server) == {"first", "second"})
        eventually(lambda: any("evil/second" in text for text in said(server, "a", "Drains")))
    assert not requested(server, "a")


def test_a_webhook_that_refuses_evictions_and_asks_to_wait_holds_up_no_other_node(server: ApiServer) -> None:
    for name in "abcdef":
        add_node(server, name)
    add_pod(server, "kept", "a", metadata={"namespace": "evil"})
    text = 'admission webhook "of.a.tenant" denied the request: no'
    server.fail(429, 10**6, message=text, retry_after=300, path="/namespaces/evil/.*/eviction")
    sicken(server, "a")
    with recovering(server, Policy(0, 0, pause_seconds=0, max_at_once=2, max_percent_of_group=100)) as service:
        eventually(lambda: any(text in found for found in said(server, "a", "Drains")))
        sicken(server, "b")
        eventually(lambda: requested(server, "b"))
        assert service.problems() == []
    assert pods(server) == {"kept"}


def test_a_pod_that_was_made_again_under_its_name_is_not_evicted(server: ApiServer) -> None:
    add_node(server, "a")
    add_pod(server, "p", "a")
    sicken(server, "a")
    with recovering(server):
        with server.hold(method="POST", path="/eviction") as come:
            eventually(come)
            server.store.delete("pods", "work/p")
            add_pod(server, "p", "b")
        eventually(lambda: requested(server, "a"))
    assert "p" in pods(server)


def test_the_pods_own_grace_period_is_waited_for(server: ApiServer) -> None:
    add_node(server, "a")
    add_pod(server, "slow", "a", spec={"terminationGracePeriodSeconds": 300})
    sicken(server, "a")
    with recovering(server):
        eventually(lambda: "work/slow (it is ending)" in " ".join(said(server, "a", "Drains")))
        evictions = [request for request in server.requests if request.path.endswith("/eviction")]
        assert all("gracePeriodSeconds" not in request.body["deleteOptions"] for request in evictions)
        assert len(evictions) == 1
        server.store.delete("pods", "work/slow")
        eventually(lambda: requested(server, "a"))


def test_a_dry_run_writes_events_and_its_lease_and_nothing_else(server: ApiServer) -> None:
    add_node(server, "a")
    add_pod(server, "training", "a")
    sicken(server, "a")
    with recovering(server, act=False) as service:
        eventually(lambda: said(server, "a", "DryRun"))
        time.sleep(0.5)
        text = said(server, "a", "DryRun")[0]
        golden(text)
        done = {dict(s.labels)["result"]: s.value for s in service.samples() if s.name == "recovery_actions"}
        assert done == {"dry-run": 1.0}
    written = {request.path.split("/")[-1] for request in server.requests if request.method in ("PATCH", "DELETE")}
    assert written == set()
    kinds = {request.path for request in server.requests if request.method in ("POST", "PUT")}
    assert {path.split("/")[-1] for path in kinds} == {"events", "leases", NAME}
    assert {path for path in kinds if path.endswith(NAME)} == {
        f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{NAME}"
    }
    assert "training" in pods(server)


def test_one_node_at_a_time_with_a_pause_in_between_that_outlives_the_process(server: ApiServer) -> None:
    """The first node is replaced while nobody looks, so that its own mark is gone."""
    for name in "abc":
        add_node(server, name)
        sicken(server, name)
    with recovering(server, Policy(0, 0, pause_seconds=2)):
        eventually(lambda: requested(server, "a"))
        eventually(lambda: said(server, "b", "Waits"))
        golden(said(server, "b", "Waits")[0])
    server.store.delete("nodes", "a")
    with recovering(server, Policy(0, 0, pause_seconds=3600), identity="two"):
        eventually(lambda: any("a short time ago" in text for text in said(server, "b", "Waits")))
        assert not cordoned(server, "b")
    with recovering(server, Policy(0, 0, pause_seconds=1), identity="three"):
        eventually(lambda: cordoned(server, "b"))
    assert not cordoned(server, "c")


def test_an_ultraserver_is_drained_as_a_whole_before_anything_is_requested(server: ApiServer) -> None:
    names = add_server(server, "s0")
    others = add_server(server, "s1")
    for name in names:
        add_pod(server, f"pod-{name}", name)
    add_budget(server, f"pod-{names[2]}", 0)
    sicken(server, names[1], "link-interserver-unhealthy")
    with recovering(server, FOUR):
        eventually(lambda: all(cordoned(server, name) for name in names))
        eventually(lambda: pods(server) == {f"pod-{names[2]}"})
        time.sleep(0.3)
        assert not any(requested(server, name) for name in names)
        server.store.delete("pods", f"work/pod-{names[2]}")
        eventually(lambda: all(requested(server, name) for name in names))
        assert {requested(server, name)["node"] for name in names} == {names[1]}
        cure(server, names[1])
        eventually(lambda: not any(cordoned(server, name) for name in names))
    assert not any(said(server, name) for name in others)


def test_an_ultraserver_of_which_a_node_is_not_ready_is_left_alone(server: ApiServer) -> None:
    names = add_server(server, "s0")
    sicken(server, names[1])
    set_conditions(server, names[3], conditions_of(ready=False))
    with recovering(server, FOUR):
        eventually(lambda: said(server, names[1], "Waits"))
    assert f"{names[3]} is not Ready" in said(server, names[1], "Waits")[0]
    assert server.count("PATCH", "nodes") == 0


def test_a_node_that_eks_repairs_is_left_to_eks(server: ApiServer) -> None:
    add_node(server, "a")
    sicken(server, "a")
    found = node(server, "a")["status"]["conditions"]
    set_conditions(server, "a", [*found, {"type": "AcceleratedHardwareReady", "status": "False"}])
    with recovering(server):
        eventually(lambda: said(server, "a", "Waits"))
    golden(said(server, "a", "Waits")[0])
    assert server.count("PATCH", "nodes") == 0


@pytest.mark.parametrize("after", [True, False], ids=["carried out", "not carried out"])
def test_a_lost_answer_begins_no_second_node(server: ApiServer, after: bool) -> None:
    for name in "ab":
        add_node(server, name)
        sicken(server, name)
    server.drop(2, method="PATCH", path="/nodes/", after=after)
    with recovering(server):
        eventually(lambda: requested(server, "a"))
        time.sleep(0.3)
    assert not cordoned(server, "b")


@pytest.mark.parametrize("after", [True, False], ids=["carried out", "not carried out"])
def test_a_lost_answer_does_not_shorten_the_pause_to_the_next_node(server: ApiServer, after: bool) -> None:
    for name in "abc":
        add_node(server, name)
    sicken(server, "a")
    sicken(server, "b")
    server.drop(1, method="PATCH", path="/nodes/", after=after)
    policy = Policy(persist_seconds=0, pause_seconds=1, max_at_once=2, max_percent_of_group=100)

    def begun(term: controller.Recovery) -> bool:
        with suppress(DriverError):
            term.look()
        return cordoned(server, "a")

    with term_of(server, policy) as term:
        eventually(lambda: begun(term), what="the first node")
        term.look()
    assert not cordoned(server, "b")


def write_mark(server: ApiServer, name: str, mark: Mark | None, **spec: object) -> None:
    """What a node can write on itself, where no policy of the chart keeps it from that."""
    with server.store.changed:
        found = node(server, name)
        found["metadata"]["annotations"] = {MARK: encode_mark(mark)} if mark else {}
        found["spec"] |= spec
        server.store.update("nodes", name, found)


@pytest.mark.parametrize(
    ("healthy_seconds", "sick"),
    [(3600, False), (0, False), (0, True)],
    ids=["writes and removes it", "has it undone", "takes back what it says was done"],
)
def test_a_node_that_marks_itself_again_and_again_keeps_recovery_off_no_other(
    server: ApiServer, healthy_seconds: int, sick: bool
) -> None:
    for name in ("a", "evil"):
        add_node(server, name)
    sicken(server, "a")
    if sick:
        sicken(server, "evil")
    forged = Mark("heartbeat-stalled", "evil", 1)
    policy = Policy(0, healthy_seconds, pause_seconds=1, max_at_once=2, max_percent_of_group=100)
    with term_of(server, policy) as term:
        term.look()

        def begun() -> bool:
            marked = MARK in notes(server, "evil")
            write_mark(server, "evil", None if marked and not sick else forged, unschedulable=False)
            version = node(server, "evil")["metadata"]["resourceVersion"]
            (informer,) = term.informers()
            eventually(lambda: version in {item.metadata.resource_version for item in informer.objects()})
            term.look()
            term.look()  # which sees what the one before has done
            return cordoned(server, "a")

        eventually(begun)


@pytest.mark.parametrize("predecessor", [False, True], ids=["of its own", "of a predecessor"])
@pytest.mark.parametrize("replaced", [False, True], ids=["it is well again", "its Node is gone"])
def test_the_pause_counts_from_the_end_of_a_node_too(server: ApiServer, predecessor: bool, replaced: bool) -> None:
    for name in "ab":
        add_node(server, name)
        sicken(server, name)
    if predecessor:
        write_mark(server, "a", Mark("heartbeat-stalled", "a", 1, ("cordon",)), unschedulable=True)
    pause = 1
    with term_of(server, Policy(0, 0, pause)) as term:

        def begun(name: str) -> bool:
            term.look()
            return cordoned(server, name)

        eventually(lambda: begun("a"))
        time.sleep(pause)
        ended = time.monotonic()
        if replaced:
            server.store.delete("nodes", "a")
        else:
            cure(server, "a")
        eventually(lambda: begun("b"))
    assert time.monotonic() - ended >= pause


@pytest.mark.parametrize(
    ("status", "message"), [(500, "etcdserver: request is too large"), (500, "whatever"), (403, "a policy says so")]
)
def test_a_node_that_cannot_be_changed_keeps_no_other_waiting(server: ApiServer, status: int, message: str) -> None:
    """It may have made its Node as long as an object can be."""
    for name in ("a", "b", "c", "d"):
        add_node(server, name)
    sicken(server, "a")
    server.fail(status, 10**6, method="PATCH", path="/nodes/a$", message=message)
    with recovering(server, Policy(0, 0, 0, max_at_once=1)):
        eventually(lambda: said(server, "a", "Failed"))
        sicken(server, "b")
        eventually(lambda: requested(server, "b"))
        eventually(lambda: [text for text in said(server, "a", "Waits") if message in text])
    golden(*[text for text in said(server, "a", "Waits") if message in text])
    assert not cordoned(server, "a")


def test_a_pod_that_cannot_be_evicted_keeps_only_its_own_node_from_its_remedy(server: ApiServer) -> None:
    """It may be as long as an object can be, without room for the condition that an eviction adds."""
    for name in ("a", "b", "c", "d"):
        add_node(server, name)
    add_pod(server, "long", "a")
    add_pod(server, "other", "b")
    server.fail(500, 10**6, method="POST", path="/pods/long/eviction$", message="etcdserver: request is too large")
    with recovering(server, Policy(0, 0, 0, max_at_once=4, max_percent_of_group=100)):
        sicken(server, "a")
        eventually(lambda: server.count("POST", "/pods/long/eviction$"))
        sicken(server, "b")
        eventually(lambda: requested(server, "b"))
    assert not requested(server, "a")


def test_a_node_that_cannot_be_changed_does_not_begin_the_pause(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "REFUSED_SECONDS", 5.0)
    for name in ("a", "b", "c", "d"):
        add_node(server, name)
    sicken(server, "a")
    server.fail(500, 10**6, method="PATCH", path="/nodes/a$", message="whatever")
    with recovering(server, Policy(0, 0, 10, max_at_once=1)):
        eventually(lambda: said(server, "a", "Failed"))
        sicken(server, "b")
        eventually(lambda: requested(server, "b"), within=60)


def test_a_defect_at_one_node_keeps_no_other_from_its_remedy(server: ApiServer) -> None:
    class Defective(Hook):
        def call(self, node: NeuronNode, mark: Mark) -> None:
            del mark
            if node.name == "a":
                raise OverflowError

    for name in "ab":
        add_node(server, name)
        sicken(server, name)
    with recovering(server, replace(AT_ONCE, max_at_once=2, max_percent_of_group=100), hook=Defective("", 1.0)):
        eventually(lambda: '"hookDone"' in notes(server, "b").get(MARK, ""))
        eventually(lambda: any("internal error: OverflowError" in text for text in said(server, "a", "Failed")))


def test_a_node_is_begun_before_the_hook_takes_its_time_for_another_one(server: ApiServer) -> None:
    class Slow(Hook):
        """While it runs, anything may happen to the nodes that the budgets were counted of."""

        def call(self, node: NeuronNode, mark: Mark) -> None:
            del node, mark
            begun.append(cordoned(server, "b"))

    begun: list[bool] = []
    for name in "ab":
        add_node(server, name)
    sicken(server, "a")
    policy = Policy(persist_seconds=0, pause_seconds=0, max_at_once=2, max_percent_of_group=100)
    with term_of(server, policy, Slow("", 1.0)) as term:
        while not requested(server, "a"):
            term.look()
        sicken(server, "b")
        version = node(server, "b")["metadata"]["resourceVersion"]
        (nodes,) = term.informers()
        eventually(lambda: version in {item.metadata.resource_version for item in nodes.objects()})
        term.look()
    assert begun == [True]


def test_an_outage_in_the_middle_of_a_drain_is_said_and_survived(server: ApiServer) -> None:
    add_node(server, "a")
    add_pod(server, "training", "a")
    sicken(server, "a")
    fault = server.fail(503, 10**6, path="/eviction")
    with recovering(server) as service:
        eventually(lambda: any("eviction" in text for text in service.problems()))
        assert any("503" in text for text in said(server, "a", "Failed"))
        fault.times = 0
        server.stop()
        time.sleep(1.2)
        server.start()
        eventually(lambda: requested(server, "a"))
        eventually(lambda: not service.problems())


def test_nothing_is_done_while_the_nodes_cannot_be_followed(server: ApiServer) -> None:
    add_node(server, "a")
    add_pod(server, "training", "a")
    with recovering(server) as service:
        eventually(lambda: server.count("GET", "nodes", watch=True))
        fault = server.fail(403, 10**6, path="/nodes")
        server.close_watches()
        eventually(service.problems)
        sicken(server, "a")
        time.sleep(0.5)
        assert server.count("PATCH") == 0
        fault.times = 0
        eventually(lambda: requested(server, "a"))


def test_a_node_that_changed_since_the_decision_is_looked_at_again_before_pods_are_evicted(server: ApiServer) -> None:
    """The watch says nothing for a while, and in that time the chip is healthy again."""
    add_node(server, "a")
    add_pod(server, "training", "a")
    add_budget(server, "training", 0)
    sicken(server, "a")
    with recovering(server):
        eventually(lambda: said(server, "a", "Drains"))
        server.delay(3.0, 10**6, path="/nodes$", watch=True)
        server.close_watches()
        time.sleep(0.2)
        cure(server, "a")
        evictions = server.count("POST", "/eviction")
        eventually(lambda: not cordoned(server, "a"))
        assert server.count("POST", "/eviction") - evictions <= 1


def test_the_hook_is_called_with_what_it_needs_until_it_succeeds(server: ApiServer, tmp_path: Path) -> None:
    add_node(server, "a")
    sicken(server, "a")
    program = tmp_path / "hook"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" "$NEURON_RECOVERY_NODE" "$NEURON_RECOVERY_REQUESTED_AT" >>{tmp_path}/calls\n'
        f"test -e {tmp_path}/works\n"
    )
    program.chmod(0o755)
    with recovering(server, hook=Hook(str(program), 60.0)):
        eventually(lambda: any("it exited with status 1" in text for text in said(server, "a", "Failed")))
        mark = json.loads(notes(server, "a")[MARK])
        assert mark["hookTries"] == 1
        assert mark["hookNext"] - time.time() > 20
        (tmp_path / "works").touch()
        with server.store.changed:  # time passes
            found = node(server, "a")
            found["metadata"]["annotations"][MARK] = json.dumps(mark | {"hookNext": int(time.time()) - 1})
            server.store.update("nodes", "a", found)
        eventually(lambda: "hookDone" in json.loads(notes(server, "a")[MARK]))
        time.sleep(0.3)
    provider = node(server, "a")["spec"]["providerID"]
    line = f"a {provider} reboot heartbeat-stalled a {mark['requested']}"
    assert (tmp_path / "calls").read_text().splitlines() == [line, line]


@pytest.mark.parametrize(
    "provider_id",
    ["-x", "aws:///us-east-1a/i-0 $(reboot)", "aws:///a/`x`", "x;y", "x y", "x*"],
)
def test_the_hook_is_called_with_words_only(server: ApiServer, tmp_path: Path, provider_id: str) -> None:
    """A kubelet registers its Node with any provider id, and an administrator's program may hand it to a shell."""
    add_node(server, "a")
    with server.store.changed:
        found = node(server, "a")
        found["spec"]["providerID"] = provider_id
        server.store.update("nodes", "a", found)
    sicken(server, "a")
    program = tmp_path / "hook"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    program.chmod(0o755)
    with recovering(server, hook=Hook(str(program), 5.0)):
        eventually(lambda: any("PROVIDER_ID would be" in text for text in said(server, "a", "Failed")))
        golden(next(text for text in said(server, "a", "Failed") if "PROVIDER_ID would be" in text), provider_id)
    assert not (tmp_path / "called").exists()


def test_a_hook_that_hangs_is_killed_with_all_that_it_started(server: ApiServer, tmp_path: Path) -> None:
    add_node(server, "a")
    sicken(server, "a")
    program = tmp_path / "hook"
    program.write_text(f"#!/bin/sh\nsleep 60 & echo $! >{tmp_path}/child\nyes | head -c 9999999\nwait\n")
    program.chmod(0o755)
    with recovering(server, hook=Hook(str(program), 3.0)):
        eventually(lambda: any("did not finish within 3 s" in text for text in said(server, "a", "Failed")))
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}")
    eventually(lambda: not child.exists() or " Z " in (child / "stat").read_text())


def test_a_condition_that_says_to_be_well_for_years_undoes_nothing_before_it_was_seen_long_enough(
    server: ApiServer,
) -> None:
    add_node(server, "a")
    sicken(server, "a")
    with recovering(server, Policy(0, healthy_seconds=2, pause_seconds=0)):
        eventually(lambda: requested(server, "a"))
        began = time.monotonic()
        cure(server, "a")
        eventually(lambda: not cordoned(server, "a"))
        assert time.monotonic() - began >= 2


@pytest.mark.parametrize(
    "policy", [Policy(3600, 0, 0), Policy(0, 0, pause_seconds=3600)], ids=["a fault of a second", "a pause"]
)
def test_a_clock_that_is_set_forward_makes_nothing_older(server: ApiServer, policy: Policy) -> None:
    add_node(server, "a")
    sicken(server, "a")
    wall = [time.time()]
    term = controller.Recovery(
        server.transport(),
        RecoverySettings(policy=policy, act=True),
        controller.Numbers(),
        Aws(),
        lambda: True,
        lambda _: None,
        clock=lambda: wall[0],
    )
    for informer in term.informers():
        informer.start()
    try:
        eventually(lambda: all(informer.current for informer in term.informers()))
        for _ in range(2):
            term.look()
            wall[0] += 3601
    finally:
        for informer in term.informers():
            informer.stop()
    assert server.count("PATCH", "nodes") == 0


def test_a_stranger_that_takes_the_label_of_a_server_keeps_recovery_off_none_of_its_nodes(server: ApiServer) -> None:
    """The one that is sick is acted on, the others are not, and it is told that the labels are in dispute."""
    names = add_server(server, "s0")
    labels = node(server, names[0])["metadata"]["labels"]
    add_node(server, "evil", **labels)
    sicken(server, names[1])
    with recovering(server, Policy(0, 0, 0, max_at_once=100, max_percent_of_group=100)) as service:
        eventually(lambda: requested(server, names[1]))
        shown = {dict(s.labels)["what"]: s.value for s in service.samples() if s.name == "recovery_disputed_nodes"}
    assert shown == {"server": 5.0, "instance": 0.0}
    assert [name for name in (*names, "evil") if notes(server, name)] == [names[1]]


def name_machine(server: ApiServer, name: str, provider_id: str) -> None:
    """What kubelet says when it registers."""
    with server.store.changed:
        found = node(server, name)
        found["spec"]["providerID"] = provider_id
        server.store.update("nodes", name, found)


def test_the_hook_is_not_given_a_machine_that_two_nodes_name(server: ApiServer, tmp_path: Path) -> None:
    program = tmp_path / "hook"
    program.write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/calls\n')
    program.chmod(0o755)
    for name in ("victim", "evil", "other"):
        add_node(server, name)
    name_machine(server, "evil", node(server, "victim")["spec"]["providerID"].replace("us-east-1a", "us-east-1b"))
    sicken(server, "evil")
    with recovering(server, hook=Hook(str(program), 5.0)) as service:
        eventually(lambda: any("providerID" in text for text in said(server, "evil", "Waits")))
        golden(said(server, "evil", "Waits")[0])
        shown = {dict(s.labels)["what"]: s.value for s in service.samples() if s.name == "recovery_disputed_nodes"}
        assert shown == {"server": 0.0, "instance": 2.0}
        assert requested(server, "evil"), "which is about the Node"
        assert not (tmp_path / "calls").exists()
        server.store.delete("nodes", "victim")
        eventually((tmp_path / "calls").exists)
    assert (tmp_path / "calls").read_text() == "evil\n"


def test_a_provider_id_that_no_program_can_be_given_keeps_no_other_node_waiting(
    server: ApiServer, tmp_path: Path
) -> None:
    program = tmp_path / "hook"
    program.write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/calls\n')
    program.chmod(0o755)
    for name in ("a-evil", "b"):
        add_node(server, name)
        sicken(server, name)
    name_machine(server, "a-evil", "aws:///us-east-1a/\0")
    with recovering(server, Policy(0, 0, 0, max_at_once=2, max_percent_of_group=100), hook=Hook(str(program), 5.0)):
        eventually((tmp_path / "calls").exists, within=10)
    assert (tmp_path / "calls").read_text() == "b\n"

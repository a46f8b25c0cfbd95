"""The placer as it serves workloads of UltraServers, against an API server: what it writes, and in which order."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from dra_driver.kube.api.election import Times
from dra_driver.kube.api.errors import ApiError
from dra_driver.neuron.names import PLACE_OF, SERVER_2, SERVER_4, WORKLOAD_UID
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL
from dra_driver.neuron.ultraserver_objects import ACCEPTED_SPEC, FINALIZER, LEFT_OUT, RELEASED_MARKS, WORKLOAD_UIDS
from dra_driver.ultraserver.placer.controller import Placer, PlacerService
from dra_driver.ultraserver.placer.operator import MAX_REPORTS, Operator
from dra_driver.ultraserver.placer.trouble import SHARE_SECONDS
from dra_driver.ultraserver.placer.values import GATE, GROUP_LABEL, NODES_ANNOTATION, PLACED_ANNOTATION, LeaveOut, Rules
from dra_driver.ultraserver.placer.workload import Extent, Workload
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object, Refused
from tests.eventually import eventually
from tests.golden import golden

SYSTEM = "neuron-dra-driver"
STEADY = Times(lease=300, act=200.0, renew=0.1)
KIND = "trn2u.48xlarge"


def add_server(server: ApiServer, name: str, modes: str = "X4,X2V,X2H,X1") -> None:
    """Four Ready nodes of an UltraServer, as their drivers publish them."""
    for index in range(4):
        node = f"{name}-n{index}"
        labels = {SERVER_4: name, SERVER_2: f"{name}-h{index // 2}", INSTANCE_TYPE_LABEL: KIND}
        labels |= {PLACE_OF[SERVER_4]: str(3 - index), PLACE_OF[SERVER_2]: str(index % 2)}
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        server.store.create("nodes", {"metadata": {"name": node, "labels": labels}, "spec": {}, "status": status})
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        device = {"name": "neuron-node", "attributes": {"ultraserverModes": {"string": modes}}}
        spec = {"driver": "neuron.aws.com", "nodeName": node, "pool": pool, "devices": [device]}
        server.store.create("resourceslices", {"metadata": {"name": node}, "spec": spec})


def ask(server: ApiServer, name: str, servers: int = 1, nodes: int = 4, namespace: str = "a") -> Object:
    spec = {"instanceType": KIND, "serverCount": servers, "topologySize": nodes}
    meta = {"namespace": namespace, "name": name, "generation": 1}
    return server.store.create("neuronultraserverworkloads", {"metadata": meta, "spec": spec})


def workload(server: ApiServer, name: str) -> Object:
    return server.store.get("neuronultraserverworkloads", f"a/{name}")


def state(server: ApiServer, name: str) -> str:
    return str(workload(server, name).get("status", {}).get("state", ""))


def ultraserver(server: ApiServer, name: str) -> Object:
    """The object; nothing if it is not there."""
    return next((one for one in server.store.list("neuronultraservers")[0] if one["metadata"]["name"] == name), {})


def allocations(server: ApiServer, name: str) -> list[dict[str, Any]]:
    return list(ultraserver(server, name).get("status", {}).get("allocations", []))


def conditions(item: Object) -> dict[str, tuple[str, str, str]]:
    return {one["type"]: (one["status"], one["reason"], one["message"]) for one in item["status"]["conditions"]}


def mark(server: ApiServer) -> None:
    """What drivers do: the devices of a node say whose they are."""
    holders: dict[str, str] = {}
    for item in server.store.list("neuronultraservers")[0]:
        uids = json.loads(item["metadata"].get("annotations", {}).get(WORKLOAD_UIDS) or "{}")
        for one in item.get("status", {}).get("allocations", []):
            holders |= dict.fromkeys(one["allocatedNodes"], uids.get(one["workloadRef"], ""))
    for item in server.store.list("resourceslices")[0]:
        (device,) = item["spec"]["devices"]
        others = {name: value for name, value in device["attributes"].items() if name != WORKLOAD_UID}
        uid = holders.get(item["spec"]["nodeName"])
        wanted = others | ({WORKLOAD_UID: {"string": uid}} if uid else {})
        if wanted != device["attributes"]:
            device["attributes"] = wanted
            server.store.update("resourceslices", item["metadata"]["name"], item)


@contextmanager
def drivers(server: ApiServer) -> Iterator[None]:
    """Those of all nodes."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.1):
            with suppress(ValueError, Refused):  # what the tests spoil, and nodes that go
                mark(server)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def placing(server: ApiServer, identity: str = "one") -> Iterator[PlacerService]:
    """A placer, and the drivers of all nodes."""
    service = PlacerService(server.transport(), SYSTEM, identity, Rules(), STEADY, operator=True)
    service.start()
    try:
        with drivers(server):
            yield service
    finally:
        service.stop()


@contextmanager
def term_of(server: ApiServer) -> Iterator[Placer]:
    """A term whose looks the test takes."""
    term = Placer(server.transport(), SYSTEM, Rules(), lambda: True, lambda _: None, operator=True)
    for informer in term.informers():
        informer.start()
    try:
        eventually(lambda: all(informer.current for informer in term.informers()))
        yield term
    finally:
        for informer in term.informers():
            informer.stop()


def number_of(term: Placer) -> int:
    """Objects that it has seen."""
    return sum(len(informer.objects()) for informer in term.informers())


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        add_server(running, "s0")
        add_server(running, "s1")
        yield running


def test_a_workload_gets_servers_and_all_objects_say_so(server: ApiServer) -> None:
    made = ask(server, "train", servers=2)
    with placing(server):
        eventually(lambda: state(server, "train") == "Allocated")
    item = workload(server, "train")
    assert item["status"]["allocatedUltraServers"] == ["ultraserver-s0", "ultraserver-s1"]
    assert json.loads(item["metadata"]["annotations"][ACCEPTED_SPEC]) == {
        "instanceType": KIND,
        "serverCount": 2,
        "topologySize": 4,
        "resourceClaimTemplate": {"name": ""},
        "config": {"logicalNeuronCore": 2},
    }
    assert conditions(item)["Ready"] == (
        "True",
        "Allocated",
        "2 of 2 UltraServers: ultraserver-s0, ultraserver-s1",
    )
    one = ultraserver(server, "ultraserver-s1")
    (allocation,) = one["status"]["allocations"]
    del allocation["allocatedAt"]
    assert allocation == {
        "workloadRef": "a/train",
        "allocatedNodes": ["s1-n3", "s1-n2", "s1-n1", "s1-n0"],
        "nodeCount": 4,
        "leaderNodeName": "s0-n3",
        "ultraserverIndex": 1,
        "phase": "Bound",
    }
    assert json.loads(one["metadata"]["annotations"][WORKLOAD_UIDS]) == {"a/train": made["metadata"]["uid"]}
    assert one["metadata"]["finalizers"] == [FINALIZER]
    assert conditions(one)["Allocated"] == ("True", "Workloads", "a/train: s1-n3, s1-n2, s1-n1, s1-n0")


def test_a_server_says_what_it_consists_of(server: ApiServer) -> None:
    add_server(server, "s2", modes="X2V,X1")
    with placing(server):
        eventually(lambda: ultraserver(server, "ultraserver-s2").get("status", {}).get("state") == "Ready")
        node = server.store.get("nodes", "s2-n0")
        node["status"]["conditions"][0]["status"] = "False"
        server.store.update("nodes", "s2-n0", node)
        eventually(lambda: ultraserver(server, "ultraserver-s2")["status"]["state"] == "Degraded")
    item = ultraserver(server, "ultraserver-s2")
    assert item["spec"]["instanceType"] == KIND
    assert item["spec"]["topology"] == [
        {"nodeName": f"s2-n{3 - place}", "nodeId": place, "linkStatusHorizontal": "down", "linkStatusVertical": "up"}
        for place in range(4)
    ]
    assert conditions(item)["Degraded"] == ("True", "Nodes", "s2-n0 is not Ready")


def test_what_a_deleted_workload_had_is_given_to_who_waits(server: ApiServer) -> None:
    ask(server, "first", servers=2)
    with placing(server):
        eventually(lambda: state(server, "first") == "Allocated")
        ask(server, "second")
        eventually(lambda: state(server, "second") == "Pending")
        assert "ultraserver-s0: s0-n0 is used by workload a/first" in conditions(workload(server, "second"))["Ready"][2]
        server.store.delete("neuronultraserverworkloads", "a/first")
        eventually(lambda: state(server, "second") == "Allocated")
        eventually(lambda: not allocations(server, "ultraserver-s1"))
        eventually(lambda: not ultraserver(server, "ultraserver-s1")["metadata"].get("finalizers"))
    assert [one["workloadRef"] for one in allocations(server, "ultraserver-s0")] == ["a/second"]


def test_a_server_that_is_gone_has_no_object(server: ApiServer) -> None:
    with placing(server):
        eventually(lambda: len(server.store.list("neuronultraservers")[0]) == 2)
        for index in range(4):
            server.store.delete("nodes", f"s1-n{index}")
        eventually(
            lambda: (
                [one["metadata"]["name"] for one in server.store.list("neuronultraservers")[0]] == ["ultraserver-s0"]
            )
        )


@pytest.mark.parametrize("writes", range(1, 10))
def test_a_leader_that_ends_between_two_writes_leaves_what_the_next_one_completes(
    server: ApiServer, writes: int
) -> None:
    with placing(server):
        eventually(lambda: len(server.store.list("neuronultraservers")[0]) == 2)
    ask(server, "train", servers=2)
    before = len(server.requests)
    term = Placer(
        server.transport(),
        SYSTEM,
        Rules(),
        lambda: server.writes(since=before) < writes,
        lambda _: None,
        operator=True,
    )
    for informer in term.informers():
        informer.start()
    try:
        eventually(lambda: all(informer.current for informer in term.informers()))

        def ended() -> bool:
            term.look()
            mark(server)
            return server.writes(since=before) >= writes

        eventually(ended)
    finally:
        for informer in term.informers():
            informer.stop()
    with placing(server, "two"):
        eventually(lambda: state(server, "train") == "Allocated")
    assert [one["phase"] for name in ("s0", "s1") for one in allocations(server, f"ultraserver-{name}")] == [
        "Bound"
    ] * 2


def test_who_cannot_be_written_keeps_nobody_waiting(server: ApiServer) -> None:
    server.fail(422, times=10**6, method="PATCH", path="neuronultraserverworkloads/odd")
    ask(server, "odd")
    ask(server, "train")
    with placing(server):
        eventually(lambda: state(server, "train") == "Allocated")
    assert state(server, "odd") == ""


def add_group(server: ApiServer, name: str, namespace: str = "a") -> None:
    """Four pods with the gate."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "u", "controller": True}
    for index in range(4):
        labels = {GROUP_LABEL: name}
        meta = {
            "namespace": namespace,
            "name": f"{name}-{index}",
            "labels": labels,
            "annotations": {NODES_ANNOTATION: "4"},
            "ownerReferences": [owner],
        }
        spec = {"schedulingGates": [{"name": GATE}], "containers": []}
        server.store.create("pods", {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})


def placed_on(server: ApiServer, group: str) -> set[str]:
    """The servers of a group's pods; "" for pods that wait."""
    pods = [pod for pod in server.store.list("pods")[0] if pod["metadata"]["labels"].get(GROUP_LABEL) == group]
    return {str(pod["metadata"]["annotations"].get(PLACED_ANNOTATION, "")) for pod in pods}


def test_without_the_kinds_groups_are_placed_and_workloads_served_once_they_are_there(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.custom_versions = ()
    add_group(server, "g")
    with placing(server) as service:
        eventually(lambda: placed_on(server, "g") == {"s0"})
        assert (service.problems(), service.stuck()) == ([], [])
        told = [record.getMessage() for record in caplog.records if "install the Custom" in record.getMessage()]
        assert len(told) == len(set(told)) == 2, "once for each kind"
        ask(server, "train")
        server.custom_versions = ("v1beta1", "v1")
        eventually(lambda: state(server, "train") == "Allocated", 30)
        assert [one["workloadRef"] for one in allocations(server, "ultraserver-s1")] == ["a/train"]
        server.custom_versions = ()
        server.close_watches()
        for index in range(4):
            server.store.delete("pods", f"a/g-{index}")
        add_group(server, "h")
        eventually(lambda: placed_on(server, "h") != {""}, 30)
        eventually(lambda: not service.problems())


@pytest.mark.parametrize("version", ["v1beta1", "v1"])
def test_one_of_the_two_versions_is_enough(server: ApiServer, version: str) -> None:
    server.custom_versions = (version,)
    ask(server, "train")
    with placing(server):
        eventually(lambda: state(server, "train") == "Allocated")
        server.store.delete("neuronultraserverworkloads", "a/train")
        eventually(lambda: not allocations(server, "ultraserver-s0"))


def events(server: ApiServer, reason: str) -> list[Object]:
    return [event for event in server.store.list("events")[0] if event["reason"] == reason]


def write_status_as(server: ApiServer, manager: str, *names: str) -> None:
    """As if another program wrote the status of servers; none: as if nobody else had."""
    for item in server.store.list("neuronultraservers")[0]:
        name = item["metadata"]["name"]
        entry = {"manager": manager, "operation": "Update", "subresource": "status"}
        meta = {**item["metadata"], "managedFields": [entry] if name in names else []}
        server.store.update("neuronultraservers", f"{SYSTEM}/{name}", {**item, "metadata": meta})


def test_while_another_operator_writes_its_status_nothing_is_given(server: ApiServer) -> None:
    with placing(server):
        ask(server, "first")
        eventually(lambda: state(server, "first") == "Allocated")
        write_status_as(server, "dra-driver", "ultraserver-s0", "ultraserver-s1")
        ask(server, "second")
        eventually(lambda: state(server, "second") == "Allocated")
        write_status_as(server, "neuron-ultraserver-operator", "ultraserver-s1")
        eventually(lambda: events(server, "ForeignOperator"))
        before = len(server.requests)
        ask(server, "third")
        server.store.delete("neuronultraserverworkloads", "a/first")
        add_group(server, "g")
        eventually(lambda: events(server, "WaitsForUltraServer"))  # a decision has been carried out
        written = [one.path for one in server.requests[before:] if one.method not in ("GET", "")]
        assert not [path for path in written if "neuronultraserver" in path]
        for index in range(4):
            server.store.delete("pods", f"a/g-{index}")
        write_status_as(server, "neuron-ultraserver-operator")
        eventually(lambda: state(server, "third") == "Allocated")
    (event,) = events(server, "ForeignOperator")
    about = event["involvedObject"]
    assert (about["kind"], about["apiVersion"]) == ("NeuronUltraServer", "neuron.aws.com/v1beta1")
    assert (about["namespace"], about["name"]) == (SYSTEM, "ultraserver-s1")
    golden(event["message"])


def test_a_server_that_cannot_be_written_leaves_no_workload_half_served(server: ApiServer) -> None:
    add_server(server, "s2")
    with placing(server):
        eventually(lambda: len(server.store.list("neuronultraservers")[0]) == 3)
        server.fail(403, times=10**6, method="PATCH", path="neuronultraservers/ultraserver-s1")
        ask(server, "train", servers=2)
        eventually(lambda: state(server, "train") == "Allocated", within=60)
    assert workload(server, "train")["status"]["allocatedUltraServers"] == ["ultraserver-s0", "ultraserver-s2"]


def test_an_object_that_somebody_deletes_says_again_who_has_the_server(server: ApiServer) -> None:
    ask(server, "train")
    with placing(server):
        eventually(lambda: state(server, "train") == "Allocated")
        before = ultraserver(server, "ultraserver-s0")
        ask(server, "other", servers=2)
        eventually(lambda: state(server, "other") == "Pending")
        remove(server, "ultraserver-s0")
        eventually(lambda: bool(allocations(server, "ultraserver-s0")))
        assert ultraserver(server, "ultraserver-s0")["metadata"]["uid"] != before["metadata"]["uid"]
        eventually(
            lambda: ultraserver(server, "ultraserver-s0")["status"]["allocations"] == before["status"]["allocations"]
        )
    assert state(server, "train") == "Allocated"


def remove(server: ApiServer, name: str) -> None:
    """Delete an object whatever finalizers it has."""
    item = ultraserver(server, name)
    item["metadata"]["finalizers"] = []
    key = f"{item['metadata']['namespace']}/{name}"
    server.store.update("neuronultraservers", key, item)
    server.store.delete("neuronultraservers", key)


def test_a_finalizer_that_somebody_removes_comes_back(server: ApiServer) -> None:
    ask(server, "train")
    with placing(server):
        eventually(lambda: state(server, "train") == "Allocated")
        item = ultraserver(server, "ultraserver-s0")
        item["metadata"]["finalizers"] = ["example.com/other"]
        server.store.update("neuronultraservers", f"{SYSTEM}/ultraserver-s0", item)
        eventually(
            lambda: ultraserver(server, "ultraserver-s0")["metadata"]["finalizers"] == ["example.com/other", FINALIZER]
        )


def test_an_object_of_another_type_under_the_name_is_made_anew(server: ApiServer) -> None:
    meta = {"namespace": SYSTEM, "name": "ultraserver-s0", "generation": 1}
    server.store.create(
        "neuronultraservers", {"metadata": meta, "spec": {"instanceType": "trn1.2xlarge", "topology": []}}
    )
    with placing(server):
        eventually(lambda: ultraserver(server, "ultraserver-s0").get("spec", {}).get("instanceType") == KIND)
        ask(server, "train")
        eventually(lambda: state(server, "train") == "Allocated")


@pytest.mark.parametrize("note", [None, "[", '{"a/train": 1}', "x" * 10000])
def test_an_annotation_that_somebody_spoils_is_written_again(server: ApiServer, note: str | None) -> None:
    made = ask(server, "train")
    with placing(server):
        eventually(lambda: state(server, "train") == "Allocated")
        item = ultraserver(server, "ultraserver-s0")
        before = item["status"]["allocations"]
        item["metadata"]["annotations"] = {} if note is None else {WORKLOAD_UIDS: note}
        server.store.update("neuronultraservers", f"{SYSTEM}/ultraserver-s0", item)
        right = json.dumps({"a/train": made["metadata"]["uid"]}, separators=(",", ":"))
        eventually(
            lambda: ultraserver(server, "ultraserver-s0")["metadata"].get("annotations", {}).get(WORKLOAD_UIDS) == right
        )
    assert ultraserver(server, "ultraserver-s0")["status"]["allocations"] == before


@pytest.mark.parametrize(
    "note",
    [
        "[",
        '{"instanceType":"x","serverCount":-1,"topologySize":4}',
        '{"instanceType":"","serverCount":1e400,"topologySize":1}',
    ],
)
def test_a_tenant_s_annotation_of_what_was_accepted_counts_for_nothing(server: ApiServer, note: str) -> None:
    meta = {"namespace": "a", "name": "train", "generation": 1, "annotations": {ACCEPTED_SPEC: note}}
    spec = {"instanceType": KIND, "serverCount": 1, "topologySize": 4}
    server.store.create("neuronultraserverworkloads", {"metadata": meta, "spec": spec})
    with placing(server):
        eventually(lambda: state(server, "train") == "Allocated")
    accepted = json.loads(workload(server, "train")["metadata"]["annotations"][ACCEPTED_SPEC])
    assert (accepted["serverCount"], accepted["topologySize"]) == (1, 4)


def test_nobody_waits_until_the_thousands_of_another_namespace_are_written(server: ApiServer) -> None:
    for index in range(MAX_REPORTS + 50):
        ask(server, f"w{index}", servers=2**63 - 1)
    meta = {"namespace": "b", "name": "late", "generation": 1}
    spec = {"instanceType": KIND, "serverCount": 5, "topologySize": 4}
    server.store.create("neuronultraserverworkloads", {"metadata": meta, "spec": spec})
    before = len(server.requests)
    with term_of(server) as term:
        term.look()
    assert server.writes(since=before) <= MAX_REPORTS + 20
    late = server.store.get("neuronultraserverworkloads", "b/late")
    assert late["status"]["state"] == "Pending"


def lie(server: ApiServer, node: str, uid: str) -> None:
    """Let one more device of the node say that it is this workload's."""
    item = server.store.get("resourceslices", node)
    liar = {"name": "neuron-device-0", "attributes": {WORKLOAD_UID: {"string": uid}}}
    item["spec"] = {**item["spec"], "devices": [item["spec"]["devices"][0], liar]}
    server.store.update("resourceslices", node, item)


LEFT_OUT_NODES = "placer_left_out_nodes"
NOBODY_LEFT_OUT = {"placer_leads": 1.0, LEFT_OUT_NODES: 0.0}


def test_a_node_that_says_that_it_is_a_workload_s_and_is_not_is_named_and_left_out(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    made = ask(server, "train", nodes=2)
    with placing(server) as service:
        eventually(lambda: state(server, "train") == "Allocated")
        assert {sample.name: sample.value for sample in service.samples()} == NOBODY_LEFT_OUT
        started = time.monotonic()
        lie(server, "s1-n2", made["metadata"]["uid"])
        eventually(lambda: "MarksCredible" in conditions(workload(server, "train")))
        assert time.monotonic() - started < 10.0
        status, reason, message = conditions(workload(server, "train"))["MarksCredible"]
        assert (status, reason) == ("False", "ForeignMark")
        assert "s1-n2 said that it is a node of this workload" in message
        assert f"kubectl annotate neuronultraservers -n {SYSTEM} ultraserver-s1 {LEFT_OUT}-" in message
        eventually(lambda: events(server, "UltraServerMark"))
        assert time.monotonic() - started < 10.0
        assert {event["involvedObject"]["name"] for event in events(server, "UltraServerMark")} == {"s1-n2"}
        assert {sample.name: sample.value for sample in service.samples()} == {**NOBODY_LEFT_OUT, LEFT_OUT_NODES: 1.0}
        log = [text for text in caplog.messages if "s1-n2" in text]
        golden("\n".join([*log, *(sample.help for sample in service.samples())]))
        note = json.loads(ultraserver(server, "ultraserver-s1")["metadata"]["annotations"][LEFT_OUT])
        assert note == {"s1-n2": f"a/train {made['metadata']['uid']}"}
        ask(server, "whole")
        eventually(lambda: state(server, "whole"))
        assert state(server, "whole") == "Pending"
        eventually(lambda: "s1-n2 is left out" in conditions(ultraserver(server, "ultraserver-s1"))["Degraded"][2])
    item = server.store.get("resourceslices", "s1-n2")
    item["spec"]["devices"] = item["spec"]["devices"][:1]
    server.store.update("resourceslices", "s1-n2", item)
    with placing(server, "two"):
        eventually(lambda: conditions(workload(server, "train")).get("MarksCredible", ("",))[0] == "False")
        one = ultraserver(server, "ultraserver-s1")
        del one["metadata"]["annotations"][LEFT_OUT]
        server.store.update("neuronultraservers", f"{SYSTEM}/ultraserver-s1", one)
        eventually(lambda: state(server, "whole") == "Allocated")
        eventually(lambda: "MarksCredible" not in conditions(workload(server, "train")))


def add_pair(server: ApiServer) -> None:
    """Two Ready nodes of an UltraServer of two, ``p-n0`` and ``p-n1``."""
    for index in range(2):
        labels = {SERVER_2: "p", PLACE_OF[SERVER_2]: str(index), INSTANCE_TYPE_LABEL: KIND}
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        meta = {"name": f"p-n{index}", "labels": labels}
        server.store.create("nodes", {"metadata": meta, "spec": {}, "status": status})
        pool = {"name": f"p-n{index}", "generation": 1, "resourceSliceCount": 1}
        device = {"name": "neuron-node", "attributes": {"ultraserverModes": {"string": "X2V,X1"}}}
        spec = {"driver": "neuron.aws.com", "nodeName": f"p-n{index}", "pool": pool, "devices": [device]}
        server.store.create("resourceslices", {"metadata": {"name": f"p-n{index}"}, "spec": spec})


def rename_type(server: ApiServer, node: str, kind: str) -> None:
    """What a kubelet may do to its own Node."""
    item = server.store.get("nodes", node)
    item["metadata"]["labels"][INSTANCE_TYPE_LABEL] = kind
    server.store.update("nodes", node, item)


def left_out_nodes(server: ApiServer, name: str) -> set[str]:
    return set(json.loads(ultraserver(server, name).get("metadata", {}).get("annotations", {}).get(LEFT_OUT) or "{}"))


def test_a_node_that_is_left_out_stays_so_when_it_says_that_it_is_of_another_type(server: ApiServer) -> None:
    add_pair(server)
    made = ask(server, "train", nodes=4)
    with placing(server):
        eventually(lambda: state(server, "train") == "Allocated")
        lie(server, "p-n1", made["metadata"]["uid"])
        eventually(lambda: left_out_nodes(server, "ultraserver-p") == {"p-n1"})
        item = server.store.get("resourceslices", "p-n1")
        item["spec"]["devices"] = item["spec"]["devices"][:1]
        server.store.update("resourceslices", "p-n1", item)
        rename_type(server, "p-n1", "another")
        eventually(lambda: "unlike most" in json.dumps(ultraserver(server, "ultraserver-p")))
        assert left_out_nodes(server, "ultraserver-p") == {"p-n1"}
        item = ultraserver(server, "ultraserver-p")
        del item["metadata"]["annotations"][LEFT_OUT]
        server.store.update("neuronultraservers", f"{SYSTEM}/ultraserver-p", item)
        eventually(lambda: ultraserver(server, "ultraserver-p").get("spec", {}).get("instanceType") == "another")


def test_what_a_driver_may_say_for_a_while_is_not_forgotten_when_another_node_changes_its_type(
    server: ApiServer,
) -> None:
    """A node whose driver is being updated meanwhile would be taken for one that lies, and left out."""
    add_pair(server)
    made = ask(server, "train", servers=2, nodes=1)
    with term_of(server) as term:

        def looked() -> list[dict[str, Any]]:
            term.look()
            return allocations(server, "ultraserver-p")

        eventually(looked)
        assert allocations(server, "ultraserver-p")[0]["allocatedNodes"] == ["p-n0"]
        lie(server, "p-n0", made["metadata"]["uid"])  # which is true, and the last that its driver says
        rename_type(server, "p-n1", "another")
        eventually(lambda: not looked())
        for _ in range(10):
            looked()
            time.sleep(0.05)
    released = json.loads(ultraserver(server, "ultraserver-p")["metadata"].get("annotations", {})[RELEASED_MARKS])
    assert released.keys() == {"p-n0"}


def test_nobody_is_left_out_before_the_objects_are_read_again(server: ApiServer) -> None:
    """The leader's watch may be later than that of the driver that it would accuse."""
    made = ask(server, "train", nodes=2)
    uid = made["metadata"]["uid"]
    with placing(server):
        eventually(lambda: state(server, "train") == "Allocated")
    operator = Operator(server.transport(), SYSTEM, lambda: None, lambda: True, lambda _: None, time.time)
    mine = Workload("a", "train", uid, 0.0, Extent(KIND, 1, 2))
    before = ultraserver(server, "ultraserver-s0")["metadata"]["resourceVersion"]
    for accused in (mine, dataclasses.replace(mine, uid="another"), dataclasses.replace(mine, name="gone")):
        operator.carry_out([LeaveOut("ultraserver-s0", "s0-n0" if accused is mine else "s0-n3", accused)])
    assert ultraserver(server, "ultraserver-s0")["metadata"]["resourceVersion"] == before
    operator.carry_out([LeaveOut("ultraserver-s0", "s0-n3", mine)])
    assert LEFT_OUT in ultraserver(server, "ultraserver-s0")["metadata"]["annotations"]


def test_a_node_that_does_not_mark_itself_is_given_up_for_another(server: ApiServer) -> None:
    """What was taken back is written down first: the driver may say it for a while."""
    made = ask(server, "train", nodes=4)
    service = PlacerService(server.transport(), SYSTEM, "one", Rules(marking=1.5), STEADY, operator=True)
    service.start()
    try:
        eventually(lambda: allocations(server, "ultraserver-s0"))
        eventually(lambda: allocations(server, "ultraserver-s1"))
        released = json.loads(ultraserver(server, "ultraserver-s0")["metadata"]["annotations"][RELEASED_MARKS])
        assert {node: set(uids) for node, uids in released.items()} == {
            f"s0-n{number}": {made["metadata"]["uid"]} for number in range(4)
        }
        with drivers(server):
            eventually(lambda: state(server, "train") == "Allocated")
        assert workload(server, "train")["status"]["allocatedUltraServers"] == ["ultraserver-s1"]
    finally:
        service.stop()


STATUS_OF_A = "/namespaces/a/neuronultraserverworkloads/[^/]*/status$"


@pytest.mark.parametrize("status", [0, 403], ids=["allows", "denies"])
def test_a_namespace_whose_webhook_is_slow_gets_little_time_and_comes_last(server: ApiServer, status: int) -> None:
    for index in range(3):
        ask(server, f"w{index}", servers=9)
    slow = SHARE_SECONDS + 0.2
    if status:
        server.fail(status, 10**6, method="PATCH", path=STATUS_OF_A, delay=slow)
    else:
        server.delay(slow, 10**6, method="PATCH", path=STATUS_OF_A)
    with term_of(server) as term:
        term.look()
        assert server.count("PATCH", STATUS_OF_A) == 1
        eventually(lambda: number_of(term) == 8 + 8 + 2 + 3)
        ask(server, "late", servers=9, namespace="b")
        eventually(lambda: number_of(term) == 8 + 8 + 2 + 4)
        before = len(server.requests)
        term.look()
    writes = [one.path for one in server.requests[before:] if one.method == "PATCH"]
    assert ["/namespaces/b/" in path for path in writes] == [True, False]


def test_a_tenant_alone_whose_webhook_fails_is_no_failure_of_the_api_server(server: ApiServer) -> None:
    with term_of(server) as term:
        term.look()
        server.fail(500, 10**6, method="PATCH", path=STATUS_OF_A)
        ask(server, "w", servers=9)
        eventually(lambda: number_of(term) == 8 + 8 + 2 + 1)
        term.look()
    assert server.count("PATCH", STATUS_OF_A)


def test_pods_of_two_namespaces_that_cannot_be_written_keep_no_workload_waiting(server: ApiServer) -> None:
    for namespace in ("x", "y"):
        add_group(server, "g", namespace)
    server.fail(500, 10**6, method="PATCH", path="/pods/")
    ask(server, "w", servers=9)
    with term_of(server) as term, pytest.raises(ApiError):
        term.look()
    assert state(server, "w") == "Pending"


def test_without_the_switch_nobody_asks_for_workloads(server: ApiServer) -> None:
    service = PlacerService(server.transport(), SYSTEM, "one", Rules(), STEADY)
    service.start()
    try:
        eventually(lambda: not service.problems())
    finally:
        service.stop()
    assert server.count(path="neuronultraserver") == 0

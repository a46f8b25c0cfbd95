"""What the extender answers the scheduler, what it writes, and what follows from what others do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from dra_driver.legacy.extender import cluster as picture
from tests.builders.extender import (
    CORE,
    DEVICE,
    MAPS,
    Extender,
    add_node,
    add_pod,
    annotate,
    cores_in_use,
    end_pod,
    extender,
    ids,
    known_nodes,
    limits,
    notes,
    pod,
    pod_document,
    process,
    sample,
)
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.eventually import eventually
from tests.golden import golden

pytestmark = pytest.mark.slow


@pytest.fixture
def one(server: ApiServer) -> Iterator[Extender]:
    with extender(server) as running:
        yield running.ready()


def maps(server: ApiServer, node: str) -> list[str]:
    found = server.store.get("nodes", node)["metadata"].get("annotations") or {}
    return [found.get(key, "") for key in MAPS]


def test_nine_cores_go_to_three_devices_of_a_chain_as_the_vendor_documents(server: ApiServer, one: Extender) -> None:
    add_node(server, "inf1", "inf1.6xlarge")
    item = add_pod(server, "nrt-test-5038", limits(cores=9))
    assert one.schedule(item, known_nodes(one, "inf1")) == "inf1"
    stored = pod(server, "nrt-test-5038")
    assert stored["spec"]["nodeName"] == "inf1"
    found = stored["metadata"]["annotations"]
    assert (found["AWS_NEURON_IDS"], found["NEURON_RESOURCE_TYPE"]) == ("0,1,2,3,4,5,6,7,8", CORE)
    assert (found["NEURON_CORES"], found["NEURON_ALLOCATED"]) == ("0,1,2,3,4,5,6,7,8", "false")
    eventually(lambda: maps(server, "inf1")[0] == "true,true,true,false")
    assert maps(server, "inf1")[1] == ",".join(["true"] * 9 + ["false"] * 7)


def test_seven_devices_of_a_torus_are_refused_for_ever_with_the_documented_sentence(
    server: ApiServer, one: Extender
) -> None:
    add_node(server, "trn1")
    nodes = known_nodes(one, "trn1")
    found = one.filter(pod_document("seven", limits(7)), nodes)
    assert found["NodeNames"] == []
    golden(found["FailedAndUnresolvableNodes"]["trn1"])


def test_a_node_that_is_full_for_now_may_be_cleared_by_eviction(server: ApiServer, one: Extender) -> None:
    add_node(server, "trn1")
    nodes = known_nodes(one, "trn1")
    assert one.schedule(add_pod(server, "all", limits(16)), nodes) == "trn1"
    found = one.filter(pod_document("four", limits(4)), nodes)
    golden(found["FailedNodes"]["trn1"])
    assert not found.get("FailedAndUnresolvableNodes")


@pytest.mark.parametrize("whole", [False, True], ids=["by UID", "as objects"])
def test_pods_that_are_evicted_by_count_are_replaced_by_those_whose_devices_are_connected(
    server: ApiServer, one: Extender, whole: bool
) -> None:
    for name in ("singles", "important", "row"):
        add_node(server, name)
    known_nodes(one, "singles", "important", "row")
    uids: dict[int, str] = {}
    for number in range(16):
        item = add_pod(server, f"s{number}", limits(1))
        assert one.bind(item, "singles") == ""
        (device,) = ids(server, f"s{number}")
        uids[device] = item["metadata"]["uid"]
    important = _with_priority(pod_document("important", limits(16)), 2000)
    important = server.store.create("pods", important)
    assert one.bind(important, "important") == ""
    row = add_pod(server, "four", limits(4))
    assert one.bind(row, "row") == ""
    urgent = _with_priority(pod_document("urgent", limits(4)), 1000)
    scattered = [uids[number] for number in (1, 4, 10, 15)]
    proposed = {"singles": scattered, "important": ["unknown"], "row": [row["metadata"]["uid"]], "gone": ["unknown"]}
    found = one.preempt(urgent, proposed, whole=whole)
    assert found.keys() == {"singles", "row"}, "nobody may be evicted on the others"
    assert found["row"] == proposed["row"]
    devices = sorted(device for device, uid in uids.items() if uid in found["singles"])
    assert len(devices) == len(found["singles"]) == 4
    assert devices == list(range(devices[0], devices[0] + 4))
    assert devices[0] % 4 == 0
    for uid in found["singles"]:
        name = next(item["metadata"]["name"] for item in server.store.list("pods")[0] if item["metadata"]["uid"] == uid)
        server.store.delete("pods", f"a/{name}")
    urgent = server.store.create("pods", urgent)
    eventually(lambda: one.fits(urgent, ["singles"]) == ["singles"], what="room")
    assert one.bind(urgent, "singles") == ""
    assert ids(server, "urgent") == devices


def _with_priority(item: Object, priority: int) -> Object:
    return item | {"spec": item["spec"] | {"priority": priority}}


def test_pods_without_neuron_limits_evict_whom_kube_scheduler_names(server: ApiServer, one: Extender) -> None:
    add_node(server, "n")
    known_nodes(one, "n")
    plain = pod_document("plain", {"limits": {"cpu": "1"}})
    assert one.preempt(plain, {"n": ["some", "others"]}) == {"n": ["some", "others"]}
    odd = pod_document("odd", {"limits": {DEVICE: "1.5"}})
    assert one.preempt(odd, {"n": ["some"]}) == {}, "it fits nowhere"


@pytest.mark.parametrize(
    ("kind", "possible"),
    [("trn1.32xlarge", {1, 4, 8, 16}), ("trn2.48xlarge", {1, 4, 8, 16}), ("trn3.48xlarge", {1, 4, 8, 16}),
     ("inf2.48xlarge", {*range(1, 13)}), ("inf2.24xlarge", {*range(1, 7)}), ("inf1.24xlarge", {*range(1, 17)}),
     ("inf2.xlarge", {1})],
)  # fmt: skip
def test_counts_from_one_to_sixteen(server: ApiServer, one: Extender, kind: str, possible: set[int]) -> None:
    add_node(server, "n", kind)
    nodes = known_nodes(one, "n")
    assert {count for count in range(1, 17) if one.fits(pod_document("p", limits(count)), nodes)} == possible


def test_chips_and_cores_are_never_given_twice(server: ApiServer, one: Extender) -> None:
    add_node(server, "n", "inf2.48xlarge")
    nodes = known_nodes(one, "n")
    sizes = [limits(cores=1), limits(3), limits(cores=4), limits(2), limits(cores=3), limits(1), limits(4), limits(4)]
    placed = [one.schedule(add_pod(server, f"p{number}", size), nodes) for number, size in enumerate(sizes)]
    assert placed[:6] == ["n"] * 6
    assert "" in placed[6:], "24 cores are not enough for all"
    assert len(cores_in_use(server)["n"]) <= 24


def test_several_containers_get_sets_of_their_own_and_the_annotation_tells_whose_they_are(
    server: ApiServer, one: Extender
) -> None:
    add_node(server, "n", "inf2.48xlarge")
    init = [{"resources": limits(4)}, {"resources": limits(1), "restartPolicy": "Always"}]
    item = add_pod(server, "p", limits(2), limits(cores=3), init=init)
    assert one.schedule(item, known_nodes(one, "n")) == "n"
    shares = {
        share["name"]: (share["resource"], share["ids"])
        for share in json.loads(notes(server, "p")["neuron.aws.com/allocation"])["containers"]
    }
    assert {name: resource for name, (resource, _) in shares.items()} == {
        "i0": DEVICE,
        "i1": DEVICE,
        "c0": DEVICE,
        "c1": CORE,
    }
    # The first init container's four devices are enough for all that runs after it, which is 1 + 2 devices and 3 cores.
    assert {core // 2 for core in ids(server, "p")} <= {*range(5)}


def test_the_node_that_keeps_larger_sets_whole_is_preferred(server: ApiServer, one: Extender) -> None:
    for name in ("empty", "half", "row"):
        add_node(server, name)
    nodes = known_nodes(one, "empty", "half", "row")
    assert one.bind(add_pod(server, "eight", limits(8)), "half") == ""
    assert one.bind(add_pod(server, "one", limits(1)), "row") == ""
    assert one.scores(pod_document("p", limits(1)), nodes) == {"empty": 0, "half": 5, "row": 10}
    assert one.scores(pod_document("p", limits(16)), nodes) == {"empty": 10, "half": 0, "row": 0}
    for number in range(3):
        assert one.schedule(add_pod(server, f"p{number}", limits(1)), nodes) == "row"
    assert one.schedule(add_pod(server, "four", limits(4)), nodes) == "row"
    assert one.schedule(add_pod(server, "sixteen", limits(16)), nodes) == "empty"
    # What was answered before is not answered again.
    assert one.scores(pod_document("p", limits(16)), nodes)["empty"] == 0


def test_whole_nodes_are_passed_on_as_they_came(server: ApiServer, one: Extender) -> None:
    stored = [add_node(server, "a"), add_node(server, "b", "inf1.6xlarge")]
    known_nodes(one, "a", "b")
    status, answer = one.post(
        "/filter", {"Pod": pod_document("p", limits(8)), "Nodes": {"items": stored}, "NodeNames": None}
    )
    assert status == 200
    assert answer["Nodes"]["items"] == stored[:1]
    assert answer.get("NodeNames") is None
    assert [*answer["FailedAndUnresolvableNodes"]] == ["b"]


def test_a_pod_without_neuron_limits_is_just_bound(server: ApiServer, one: Extender) -> None:
    add_node(server, "n")
    item = add_pod(server, "plain", {"limits": {"cpu": "1"}}, note="mine")
    assert one.schedule(item, known_nodes(one, "n")) == "n"
    assert notes(server, "plain") == {"note": "mine"}


def test_a_pod_that_was_bound_already_is_not_bound_again(server: ApiServer, one: Extender) -> None:
    for name in ("n", "m"):
        add_node(server, name)
    known_nodes(one, "n", "m")
    item = add_pod(server, "p", limits(4))
    assert one.bind(item, "n") == ""
    first = notes(server, "p")
    assert one.bind(item, "n") == "", "the scheduler asks again when it has not heard the answer"
    golden(one.bind(item, "m"))
    assert notes(server, "p") == first


def test_another_pod_of_the_same_name_is_not_bound(server: ApiServer, one: Extender) -> None:
    add_node(server, "n")
    known_nodes(one, "n")
    item = add_pod(server, "p", limits(4))
    server.store.delete("pods", "a/p")
    assert "not found" in one.bind(item, "n")
    again = add_pod(server, "p", limits(1))
    golden(one.bind(item, "n"))
    assert pod(server, "p")["spec"].get("nodeName") is None
    assert one.schedule(again, ["n"]) == "n"
    assert len(cores_in_use(server)["n"]) == 2


def test_a_pod_that_changes_while_it_is_bound_is_bound_as_it_is_then(server: ApiServer, one: Extender) -> None:
    add_node(server, "n")
    known_nodes(one, "n")
    item = add_pod(server, "p", limits(4))
    eventually(lambda: _pods(one) == 1, what="news of the pod")
    refused = server.fail(500, 10, watch=True)
    server.close_watches()
    eventually(lambda: refused.times < 9, what="the end of both watches")
    annotate(server, "pods", "a/p", **{"k8s.ovn.org/pod-networks": "{}"})
    assert one.bind(item, "n") == ""
    assert notes(server, "p")["k8s.ovn.org/pod-networks"] == "{}"
    assert len(ids(server, "p")) == 4
    assert server.count("POST", "binding") == 2, "the first one was for the pod as it had been"


def _pods(one: Extender) -> float:
    return float({sample.name: sample.value for sample in one.service.samples()}["extender_pods"])


def test_devices_are_free_again_when_a_pod_has_ended_or_is_gone(server: ApiServer, one: Extender) -> None:
    add_node(server, "n")
    nodes = known_nodes(one, "n")
    probe = pod_document("probe", limits(16))
    for end in (end_pod, lambda server, name: server.store.delete("pods", f"a/{name}")):
        assert one.schedule(add_pod(server, "p", limits(16)), nodes) == "n"
        assert one.fits(probe, nodes) == []
        end(server, "p")
        eventually(lambda: one.fits(probe, nodes) == nodes, what="free devices")
        if server.store.list("pods")[0]:
            server.store.delete("pods", "a/p")


def test_pods_that_are_ending_keep_their_devices(server: ApiServer, one: Extender) -> None:
    add_node(server, "n")
    nodes = known_nodes(one, "n")
    assert one.schedule(add_pod(server, "p", limits(16)), nodes) == "n"
    with server.store.changed:
        found = pod(server, "p")
        found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
        server.store.update("pods", "a/p", found)
    late = add_pod(server, "late", limits(1))
    eventually(lambda: one.filter(late, nodes)["FailedNodes"], what="an answer")
    golden(one.bind(late, "n"))


def test_usage_maps_that_somebody_deletes_or_edits_are_written_again(server: ApiServer, one: Extender) -> None:
    add_node(server, "n", "inf2.xlarge", metadata={"annotations": {"mine": "stays"}})
    known_nodes(one, "n")
    eventually(lambda: maps(server, "n") == ["false", "false,false"], what="the maps")
    annotate(server, "nodes", "n", **dict.fromkeys(MAPS))
    eventually(lambda: maps(server, "n") == ["false", "false,false"], what="the maps again")
    annotate(server, "nodes", "n", **{MAPS[0]: "true"})
    eventually(lambda: maps(server, "n") == ["false", "false,false"], what="the right maps")
    assert server.store.get("nodes", "n")["metadata"]["annotations"]["mine"] == "stays"


def test_usage_maps_wait_for_the_end_of_a_burst_but_not_for_ever(
    server: ApiServer, one: Extender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "LATEST_SECONDS", 4.0)
    monkeypatch.setattr(picture, "SETTLE_SECONDS", 1.0)
    add_node(server, "n")
    add_node(server, "m")
    nodes = known_nodes(one, "n", "m")
    eventually(lambda: maps(server, "n")[0] == maps(server, "m")[0] == ",".join(["false"] * 16), what="the first maps")
    # A machine may be too busy for a burst without a pause.
    monkeypatch.setattr(picture, "SETTLE_SECONDS", 3600.0)
    written, began = server.count("PATCH", "/nodes/"), time.monotonic()
    assert one.schedule(add_pod(server, "p", limits(16)), ["n"]) == "n"
    full = ",".join(["true"] * 16)
    number, seen = 0, 0.0
    while not seen and time.monotonic() - began < 60:
        number += 1
        assert one.schedule(add_pod(server, f"q{number}", limits(1)), nodes) == "m"
        end_pod(server, f"q{number}")
        patched = server.count("PATCH", "/nodes/")
        if time.monotonic() - began < 3.5:
            assert patched == written, "nothing is written meanwhile"
        seen = time.monotonic() - began if maps(server, "n")[0] == full else 0.0
        time.sleep(0.1)
    assert seen > 3.5
    monkeypatch.setattr(picture, "SETTLE_SECONDS", 1.0)
    eventually(lambda: maps(server, "m")[0] == ",".join(["false"] * 16), what="the last maps")


def test_news_of_usage_maps_change_no_verdict(server: ApiServer, one: Extender) -> None:
    add_node(server, "n")
    known_nodes(one, "n")
    eventually(lambda: maps(server, "n")[0] == ",".join(["false"] * 16), what="the maps")
    before = sample(one, "verdicts")
    assert before
    annotate(server, "nodes", "n", **{MAPS[0]: "true"})
    eventually(lambda: maps(server, "n")[0] == ",".join(["false"] * 16), what="the right maps")
    assert sample(one, "verdicts") == before


def test_devices_marked_as_unusable_are_not_given(server: ApiServer, one: Extender) -> None:
    add_node(server, "n", metadata={"annotations": {"neuron.aws.com/unusable-devices": "0,5,10"}})
    nodes = known_nodes(one, "n")
    assert one.fits(pod_document("p", limits(8)), nodes) == []
    assert one.schedule(add_pod(server, "p", limits(4)), nodes) == "n"
    assert ids(server, "p") == [12, 13, 14, 15]


def test_an_edit_of_a_bound_pods_annotations_frees_nothing(server: ApiServer, one: Extender) -> None:
    add_node(server, "n")
    nodes = known_nodes(one, "n")
    assert one.schedule(add_pod(server, "p", limits(8)), nodes) == "n"
    for change in ({"AWS_NEURON_IDS": "0"}, {"neuron.aws.com/allocation": "junk"}, {"AWS_NEURON_IDS": None}):
        annotate(server, "pods", "a/p", **change)
        annotate(server, "pods", "a/p", NEURON_ALLOC_TIME="1")
        assert one.schedule(add_pod(server, "q", limits(8)), nodes) == "n"
        assert ids(server, "q") == [*range(8, 16)]
        assert one.fits(pod_document("r", limits(1)), nodes) == []
        server.store.delete("pods", "a/q")
        eventually(lambda: one.fits(pod_document("r", limits(8)), nodes) == nodes, what="free devices")


def test_a_pod_that_was_bound_past_the_extender_stops_its_node_until_its_devices_are_known(
    server: ApiServer, one: Extender
) -> None:
    add_node(server, "n")
    nodes = known_nodes(one, "n")
    add_pod(server, "stray", limits(1), node="n")
    probe = pod_document("probe", limits(1))
    eventually(lambda: one.fits(probe, nodes) == [], what="the stray pod")
    text = one.filter(probe, nodes)["FailedNodes"]["n"]
    golden(text)
    annotate(server, "pods", "a/stray", AWS_NEURON_IDS="3")
    eventually(lambda: one.fits(probe, nodes) == nodes, what="its devices")
    assert one.schedule(add_pod(server, "p", limits(4)), nodes) == "n"
    assert ids(server, "p") == [4, 5, 6, 7]


def test_a_bound_pod_with_unreadable_annotations_keeps_only_what_it_may_have(server: ApiServer) -> None:
    add_node(server, "n")
    add_pod(server, "row", limits(4), node="n", AWS_NEURON_IDS="0,1,2,3")
    add_pod(server, "broken", limits(8), node="n", AWS_NEURON_IDS="nonsense")
    with extender(server) as one:
        nodes = known_nodes(one.ready(), "n")
        assert one.schedule(add_pod(server, "four", limits(4)), nodes) == "n"
        assert ids(server, "four") == [4, 5, 6, 7], "it has 8 to 15"
        text = one.filter(pod_document("p", limits(4)), nodes)["FailedNodes"]["n"]
        golden(text)
        last = add_pod(server, "last", limits(1))
        golden(one.bind(last, "n"))
        end_pod(server, "broken")
        eventually(lambda: one.fits(last, nodes) == nodes, what="free devices")


def test_annotations_that_a_user_puts_on_a_new_pod_are_of_no_use(server: ApiServer, one: Extender) -> None:
    add_node(server, "n")
    nodes = known_nodes(one, "n")
    wish = {"AWS_NEURON_IDS": "8-15", "NEURON_CORES": "0-31", "NEURON_ALLOCATED": "true"}
    assert one.schedule(add_pod(server, "p", limits(4), **wish), nodes) == "n"
    found = notes(server, "p")
    assert found["AWS_NEURON_IDS"] == "0,1,2,3"
    assert (found["NEURON_CORES"], found["NEURON_ALLOCATED"]) == ("", "false")
    with extender(server, "two") as later:
        assert later.ready().fits(pod_document("q", limits(8)), nodes) == nodes


def test_a_new_logical_core_size_of_a_node_is_noticed(server: ApiServer, one: Extender) -> None:
    add_node(server, "n", "trn2.48xlarge")
    nodes = known_nodes(one, "n")
    probe = pod_document("probe", limits(cores=128))
    assert one.fits(probe, nodes) == []
    with server.store.changed:
        found = server.store.get("nodes", "n")
        found["status"]["capacity"][CORE] = "128"
        server.store.update("nodes", "n", found)
    eventually(lambda: one.fits(probe, nodes) == nodes, what="128 cores")


def test_many_containers_on_nodes_that_are_all_different_do_not_stop_health(server: ApiServer, tmp_path: Path) -> None:
    random, nodes = Random(7), [f"n{number}" for number in range(300)]
    for name in nodes:
        add_node(server, name, "trn2.48xlarge")
        taken = sorted(random.sample(range(64), 20))
        numbers = ",".join(map(str, taken))
        held = {"AWS_NEURON_IDS": numbers, "NEURON_RESOURCE_TYPE": CORE, "NEURON_ALLOCATED": "true"}
        add_pod(server, f"on-{name}", limits(cores=len(taken)), node=name, **held)
    asked = pod_document("many", *[limits(cores=2)] * 4, *[limits(cores=1)] * 36)
    with process(server, tmp_path, "--no-leader-elect") as (_, client), ThreadPoolExecutor(1) as asking:
        one_core = pod_document("one", limits(cores=1))
        eventually(lambda: client.fits(one_core, nodes) == nodes, what="the nodes")
        asked_for = asking.submit(eventually, lambda: client.fits(asked, nodes), what="a node")
        slowest = 0.0
        while not asked_for.done():
            begun = time.monotonic()
            assert client.get("/livez") == (200, "ok\n")
            slowest = max(slowest, time.monotonic() - begun)
            time.sleep(0.01)
        asked_for.result()
        assert slowest < 10.0, "kubelet's patience with a probe or two"

"""What the driver says on its own Node about its chips: condition, Events, label; through outages, storms, restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.api.watch import Reflector
from dra_driver.kube.objects.core import Node
from dra_driver.neuron.health.faults import ActiveFault, ChipHealth, NodeHealth, in_order
from dra_driver.neuron.health.node_events import NodeEvents
from dra_driver.neuron.health.node_status import NodeStatusWriter
from dra_driver.util.worker import Backoff
from tests.doubles.apiserver.node_fields import set_condition
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually
from tests.golden import golden

NODE, UID = "node-a", "11111111-2222-3333-4444-555555555555"
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
STATUS, EVENTS = f"/nodes/{NODE}/status$", "/namespaces/default/events"
Object = dict[str, Any]

CONTEST_SECONDS = 0.2


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.add_node(NODE, uid=UID, labels={"example.com/zone": "a"})
        set_condition(running.store, NODE, READY)
        yield running


@contextmanager
def telling(
    server: ApiServer, *, burst: int = 25, component: str = "neuron-dra-driver", **options: Any
) -> Iterator[NodeStatusWriter]:
    """A writer that follows its Node."""
    api = ResourceApi(server.transport())
    writer = NodeStatusWriter(
        api,
        NODE,
        component,
        backoff=lambda: Backoff(first=0.02, cap=0.2),
        contest=lambda: Backoff(first=CONTEST_SECONDS, cap=5.0, free=1, random=lambda: 1.0),
        **({"pace": lambda: Backoff(free=1000)} | options),
        events=NodeEvents(api, component, burst=burst, backoff=Backoff(first=0.02, cap=0.2)),
    )

    def on_list(nodes: list[Node]) -> None:
        for node in nodes:
            writer.saw(node)

    reflector = Reflector(
        "own node",
        lambda: api.list_nodes(NODE),
        lambda version, seconds: api.watch_nodes(NODE, version, seconds),
        on_list,
        lambda event: writer.saw(event.object) if event.object is not None else None,
    )
    writer.worker.start()
    reflector.start()
    try:
        yield writer
    finally:
        reflector.stop()
        writer.worker.stop()


BEGAN = int(time.time()) - 100


def chip(index: int, *codes: str, since: int = BEGAN) -> ChipHealth:
    return ChipHealth(index, in_order(ActiveFault(code, since) for code in codes))


def health(*sick: ChipHealth, chips: int = 16) -> NodeHealth:
    found = {item.index: item for item in sick}
    return NodeHealth(tuple(found.get(index, ChipHealth(index)) for index in range(chips)), time.time())


WELL = health()
SICK = health(chip(3, "sram-uncorrectable"))


def conditions(server: ApiServer) -> dict[str, Object]:
    return {item["type"]: item for item in server.store.get("nodes", NODE)["status"].get("conditions", [])}


def condition(server: ApiServer) -> Object:
    return conditions(server).get("NeuronHealth", {})


def says(server: ApiServer, status: str, message: str = "") -> None:
    eventually(lambda: condition(server).get("status") == status, what=f"the condition {status}")
    if message:
        eventually(lambda: condition(server)["message"] == message, what=message)


def events(server: ApiServer) -> list[Object]:
    return server.store.list("events")[0]


def told(server: ApiServer) -> list[tuple[str, str, int]]:
    return [(item["type"], item["reason"], item["count"]) for item in events(server)]


def tell(server: ApiServer, writer: NodeStatusWriter, status: str, found: NodeHealth, count: int) -> None:
    """Have the condition and that many Events (with their counts) written."""
    writer.want(found, True)
    says(server, status)
    eventually(lambda: sum(item["count"] for item in events(server)) == count, what=f"{count} Events")


def settled(writer: NodeStatusWriter) -> None:
    eventually(lambda: writer.status.condition.current and writer.status.labels.current, what="all to be said")


def label(server: ApiServer) -> str | None:
    found: str | None = server.store.get("nodes", NODE)["metadata"]["labels"].get("neuron.amazonaws.com/present")
    return found


def test_a_fault_is_a_condition_and_an_event_and_its_end_clears_the_one_and_is_another(server: ApiServer) -> None:
    with telling(server) as writer:
        tell(server, writer, "False", WELL, 0)
        tell(server, writer, "True", SICK, 1)
        found = condition(server)
        assert found["reason"] == "NeuronHasError_SRAM_UNCORRECTABLE_ERROR"
        assert found["message"] == "neuron3: sram-uncorrectable"
        (event,) = events(server)
        assert (event["type"], event["reason"]) == ("Warning", "NeuronHasError_SRAM_UNCORRECTABLE_ERROR")
        golden(event["message"])
        assert event["involvedObject"] == {"kind": "Node", "name": NODE, "uid": UID}
        assert event["metadata"]["namespace"] == "default"
        assert event["source"] == {"component": "neuron-dra-driver", "host": NODE}
        tell(server, writer, "False", WELL, 2)
        assert condition(server)["reason"] == "NeuronHasNoError"
        assert told(server)[1] == ("Normal", "NeuronHasNoError", 1)
        golden(events(server)[1]["message"])
        # The answer to the last one may still be on its way.
        eventually(lambda: writer.status.condition.writes == 3)
        assert server.count("PATCH", STATUS) == 3


def test_driver_and_device_plugin_tell_of_the_same_fault_in_events_of_their_own(server: ApiServer) -> None:
    for count, component in enumerate(("neuron-dra-driver", "neuron-device-plugin"), 1):
        set_condition(server.store, NODE, {"type": "NeuronHealth", "status": "False", "reason": "NeuronHasNoError"})
        with telling(server, component=component) as writer:
            tell(server, writer, "True", SICK, count)
    assert sorted(item["source"]["component"] for item in events(server)) == [
        "neuron-device-plugin",
        "neuron-dra-driver",
    ]
    assert server.count("PATCH", EVENTS) == 0


def test_the_conditions_of_others_stay(server: ApiServer) -> None:
    with telling(server) as writer:
        tell(server, writer, "True", SICK, 1)
        set_condition(server.store, NODE, {"type": "DiskPressure", "status": "False"})
        set_condition(server.store, NODE, READY | {"status": "False"})
        tell(server, writer, "False", WELL, 2)
        assert conditions(server)["Ready"] == READY | {"status": "False"}
        assert conditions(server)["DiskPressure"] == {"type": "DiskPressure", "status": "False"}


def test_on_a_node_without_chips_the_condition_that_somebody_else_wrote_stays(server: ApiServer) -> None:
    others = {"type": "NeuronHealth", "status": "False", "reason": "Other", "message": "of somebody else"}
    set_condition(server.store, NODE, others)
    with telling(server) as writer:
        writer.want(NodeHealth(), present=False)
        time.sleep(0.5)
    assert condition(server)["message"] == "of somebody else"
    assert server.count("PATCH", STATUS) == 0


def test_nothing_is_said_of_the_health_before_it_is_known(server: ApiServer) -> None:
    with telling(server) as writer:
        writer.want(NodeHealth(), True)
        eventually(lambda: label(server) == "true")
        writer.want(NodeHealth(), None)
        time.sleep(0.2)
        assert condition(server) == {}
        assert server.count("PATCH", STATUS) == 0


def test_the_time_of_transition_changes_with_the_status_only(server: ApiServer) -> None:
    old = "2020-01-01T00:00:00Z"
    stale = {"type": "NeuronHealth", "status": "True", "reason": "x", "message": "y", "lastTransitionTime": old}
    set_condition(server.store, NODE, stale)
    with telling(server) as writer:
        writer.want(SICK, True)
        says(server, "True", "neuron3: sram-uncorrectable")
        assert condition(server)["lastTransitionTime"] == old
        assert condition(server)["lastHeartbeatTime"] > old
        writer.want(WELL, True)
        says(server, "False")
        assert condition(server)["lastTransitionTime"] > old


def test_a_restart_during_a_fault_writes_nothing(server: ApiServer) -> None:
    with telling(server) as writer:
        tell(server, writer, "True", SICK, 1)
        eventually(lambda: label(server) == "true")
    writes = server.writes()
    for _ in range(2):
        with telling(server) as again:
            again.want(SICK, True)
            settled(again)
            time.sleep(0.1)
    assert server.writes() == writes


def test_a_restart_right_after_a_fault_began_repeats_no_event_and_loses_none(server: ApiServer) -> None:
    new = health(chip(3, "sram-uncorrectable", since=int(time.time())))
    with telling(server) as writer:
        tell(server, writer, "True", new, 1)
    with telling(server) as writer:
        writer.want(new, True)
        eventually(lambda: writer.status.events["known"] == 1)
    assert told(server) == [("Warning", "NeuronHasError_SRAM_UNCORRECTABLE_ERROR", 1)]
    for item in events(server):  # as if the first had been killed between condition and Event
        server.store.delete("events", f"default/{item['metadata']['name']}")
    with telling(server) as writer:
        tell(server, writer, "True", new, 1)


def test_an_event_that_the_server_has_forgotten_is_not_repeated_either(server: ApiServer) -> None:
    old = health(chip(3, "sram-uncorrectable", since=BEGAN - 7200))
    with telling(server) as writer:
        writer.want(old, True)
        says(server, "True")
        time.sleep(0.2)
    assert server.count("POST", EVENTS) == 0


def test_a_fault_that_ended_while_no_driver_ran_is_told_to_be_over(server: ApiServer) -> None:
    with telling(server) as writer:
        tell(server, writer, "True", SICK, 1)
    with telling(server) as writer:
        tell(server, writer, "False", WELL, 2)
    assert told(server)[1] == ("Normal", "NeuronHasNoError", 1)


def test_a_fault_that_comes_again_raises_the_count_of_its_event(server: ApiServer) -> None:
    with telling(server) as writer:
        for turn in range(3):
            tell(server, writer, "True", health(chip(3, "sram-uncorrectable", since=BEGAN + turn)), 2 * turn + 1)
            tell(server, writer, "False", WELL, 2 * turn + 2)
        assert told(server) == [
            ("Warning", "NeuronHasError_SRAM_UNCORRECTABLE_ERROR", 3),
            ("Normal", "NeuronHasNoError", 3),
        ]
        assert events(server)[0]["firstTimestamp"] < events(server)[0]["lastTimestamp"]
    again = health(chip(3, "sram-uncorrectable", since=BEGAN + 90))
    with telling(server) as writer:
        tell(server, writer, "True", again, 7)


def test_an_event_that_expired_meanwhile_is_created_anew(server: ApiServer) -> None:
    with telling(server) as writer:
        tell(server, writer, "True", SICK, 1)
        tell(server, writer, "False", WELL, 2)
        for item in events(server):
            server.store.delete("events", f"default/{item['metadata']['name']}")
        tell(server, writer, "True", SICK, 1)


def test_of_a_storm_the_gravest_are_told_and_the_rest_is_counted(server: ApiServer) -> None:
    storm = health(*(chip(index, "hbm-corrected-rising", "sram-uncorrectable") for index in range(16)))
    with telling(server) as writer:
        tell(server, writer, "True", storm, 25)
        eventually(lambda: writer.status.events["dropped"] == 7)
        reasons = [item["reason"] for item in events(server)]
        assert reasons.count("NeuronHasError_SRAM_UNCORRECTABLE_ERROR") == 16
        writer.want(WELL, True)
        says(server, "False")
        # The end of what nobody heard of is none.
        eventually(lambda: writer.status.events["dropped"] == 7 + 25, what="the ends that are not told")
        assert len(events(server)) == 25
        assert server.writes() <= 25 + 2 + 1


def test_flapping_is_bounded_and_ends_in_the_truth(server: ApiServer) -> None:
    with telling(server, pace=lambda: Backoff(first=0.2, cap=0.4, free=3)) as writer:
        started = time.monotonic()
        while time.monotonic() < started + 1.0:
            writer.want(SICK, True)
            time.sleep(0.01)
            writer.want(WELL, True)
            time.sleep(0.01)
        writer.want(SICK, True)
        says(server, "True")
        assert writer.status.condition.writes <= 5 + (time.monotonic() - started) / 0.1
        assert sum(item["count"] for item in events(server)) <= 25


def test_faults_during_an_outage_are_told_when_the_server_is_back(server: ApiServer) -> None:
    with telling(server) as writer:
        tell(server, writer, "False", WELL, 0)
        server.stop()
        writer.want(SICK, True)
        eventually(lambda: writer.status.condition.errors >= 1)
        server.start()
        says(server, "True")
        eventually(lambda: len(events(server)) == 1)
        eventually(lambda: writer.status.condition.last_error == "")


def test_events_that_are_refused_delay_nothing_and_are_counted(server: ApiServer) -> None:
    server.fail(403, times=1000, path=EVENTS)
    with telling(server) as writer:
        writer.want(health(chip(1, "device-lost"), chip(2, "device-lost")), True)
        says(server, "True")
        eventually(lambda: writer.status.events["failed"] == 2)
        writer.want(WELL, True)
        says(server, "False")
        assert writer.worker.problem() == ""


def test_an_event_whose_answer_was_lost_counts_once(server: ApiServer) -> None:
    server.drop(times=1, method="POST", path=EVENTS, after=True)
    with telling(server) as writer:
        writer.want(SICK, True)
        eventually(lambda: writer.status.events["known"] + writer.status.events["written"] == 1)
    assert told(server) == [("Warning", "NeuronHasError_SRAM_UNCORRECTABLE_ERROR", 1)]


def test_a_condition_that_may_not_be_written_leaves_label_and_events_alone(server: ApiServer) -> None:
    server.fail(403, times=1000, path=STATUS)
    with telling(server) as writer:
        writer.want(SICK, True)
        eventually(lambda: label(server) == "true")
        eventually(lambda: len(events(server)) == 1)
        assert "403" in writer.status.condition.last_error


def test_a_foreign_writer_of_the_condition_is_put_right_ever_more_slowly(server: ApiServer) -> None:
    with telling(server) as writer:
        tell(server, writer, "True", SICK, 1)
        changed: list[float] = []
        for _ in range(4):
            set_condition(server.store, NODE, {"type": "NeuronHealth", "status": "False", "reason": "NeuronHasNoError"})
            changed.append(time.monotonic())
            says(server, "True")
        assert time.monotonic() - changed[1] >= CONTEST_SECONDS * (1 + 2 + 4)
        assert server.count("PATCH", STATUS) == 1 + len(changed)


def test_the_detectors_condition_does_not_become_our_event(server: ApiServer) -> None:
    line = "neuron: NEURON_HW_ERR=DMA_ERROR nd-id=3"
    theirs = {"type": "NeuronHealth", "status": "True", "reason": "NeuronHasError_DMA_ERROR", "message": line}
    set_condition(server.store, NODE, theirs)
    with telling(server) as writer:
        writer.want(WELL, True)
        says(server, "False")
        time.sleep(0.2)
        assert events(server) == []


@pytest.mark.parametrize("wanted", [True, False])
def test_the_label_is_there_while_chips_are_and_goes_with_them_for_good(server: ApiServer, wanted: bool) -> None:
    with telling(server, present_label=wanted) as writer:
        tell(server, writer, "False", WELL, 0)
        eventually(lambda: label(server) == ("true" if wanted else None))
        writer.want(WELL, None)
        time.sleep(0.1)
        assert label(server) == ("true" if wanted else None), "while the host settles"
        writer.want(NodeHealth(), False)
        eventually(lambda: label(server) is None)
        eventually(lambda: condition(server) == {}, what="the condition of a node without chips to go")
        assert conditions(server)["Ready"] == READY
        assert server.store.get("nodes", NODE)["metadata"]["labels"] == {"example.com/zone": "a"}


def test_the_numbers_tell_all_of_it(server: ApiServer) -> None:
    with telling(server) as writer:
        tell(server, writer, "True", SICK, 1)
        eventually(lambda: writer.status.labels.current and writer.status.condition.current)
        eventually(lambda: any(item.value for item in writer.samples() if ("outcome", "written") in item.labels))
        values = {(item.name, *(value for _, value in item.labels)): item.value for item in writer.samples()}
    assert values == {
        ("node_labels_current",): 1,
        ("node_label_writes",): 1,
        ("node_label_errors",): 0,
        ("node_condition_current",): 1,
        ("node_condition_writes",): 1,
        ("node_condition_errors",): 0,
        ("node_events", "written"): 1,
        ("node_events", "counted"): 0,
        ("node_events", "known"): 0,
        ("node_events", "dropped"): 0,
        ("node_events", "failed"): 0,
    }

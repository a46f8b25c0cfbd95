"""Node and chips offered together: which servers get them, and that no chip is ever offered twice on the way."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dra_driver.driver.resourceslices.controller import SliceController
from dra_driver.driver.resourceslices.devices import offer
from dra_driver.driver.resourceslices.messages import Desired
from dra_driver.neuron.host.inventory import NeuronDevice, NodeInventory
from dra_driver.neuron.topology.partitions import CHIPS, CHIPS_AND_NODE, NODE_DEVICE, Partitions, chips_of, device_name
from tests.builders.publisher import NODE, open_watches, published, publishing
from tests.doubles.apiserver.server import ApiServer
from tests.doubles.apiserver.store import Object
from tests.eventually import eventually

HOST = NodeInventory(
    "trn2u.48xlarge",
    "2.30.0.0",
    tuple(NeuronDevice(i, 240, i, None, 8, None, None, None, None, None) for i in range(16)),
)
BOTH = [*(device_name(i) for i in range(16)), NODE_DEVICE]
ONLY_NODE = [NODE_DEVICE]
DROPPED = ("spec.sharedCounters", "spec.devices[].consumesCounters")


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.add_node(NODE)
        yield running


def ask_for(publisher: SliceController, partitions: Partitions = CHIPS_AND_NODE) -> None:
    offered = offer(HOST, partitions)
    publisher.set_desired(Desired(offered.devices, offered.fallback, counters=offered.counters))


def shows(server: ApiServer, names: list[str]) -> None:
    eventually(lambda: published(server) == names, what=f"{names}")


def moments(server: ApiServer) -> Iterator[list[Object]]:
    """The pool after each write, as a scheduler sees it: newest generation only, and nothing while it is incomplete."""
    slices: dict[str, Object] = {}
    for event in server.store.events:
        if event.kind != "resourceslices":
            continue
        slices[event.object["metadata"]["name"]] = event.object
        if event.type == "DELETED":
            del slices[event.object["metadata"]["name"]]
        newest = max((item["spec"]["pool"]["generation"] for item in slices.values()), default=0)
        current = [item for item in slices.values() if item["spec"]["pool"]["generation"] == newest]
        complete = all(item["spec"]["pool"]["resourceSliceCount"] == len(current) for item in current)
        yield current if complete else []


def no_chip_was_ever_offered_twice(server: ApiServer) -> None:
    seen = 0
    for slices in moments(server):
        offered = [device for item in slices for device in item["spec"].get("devices") or []]
        sets = [found["name"] for item in slices for found in item["spec"].get("sharedCounters") or []]
        free = [
            device
            for device in offered
            if not all(used["counterSet"] in sets for used in device.get("consumesCounters") or [{"counterSet": None}])
        ]
        chips = [chip for device in free for chip in chips_of(device["name"], range(16)) or ()]
        assert len(chips) == len(set(chips)), [device["name"] for device in free]
        seen += bool(offered)
    assert seen, "nothing was offered at any time"


def test_node_and_chips_are_published_with_counters_on_a_server_that_keeps_them(server: ApiServer) -> None:
    with publishing(server, resync_seconds=1000) as publisher:
        ask_for(publisher)
        shows(server, BOTH)
        assert publisher.wait_published(30)
        first, second = server.slices()
        assert len(first["spec"]["sharedCounters"][0]["counters"]) == 16
        assert len(second["spec"]["devices"][-1]["consumesCounters"][0]["counters"]) == 16
        assert publisher.status.fallback == ""
        publisher.trigger("again")
        time.sleep(0.3)
        assert server.writes() == 2
    no_chip_was_ever_offered_twice(server)


@pytest.mark.parametrize(
    ("version", "policy", "names"),
    [
        ("v1.37.0", "auto", BOTH),
        ("v1.36.3", "auto", ONLY_NODE),
        ("v1.36.3", "force", BOTH),
        ("v1.34.4", "force", ONLY_NODE),
    ],
)
def test_the_version_of_the_server_decides(
    server: ApiServer, version: str, policy: Any, names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    server.git_version = version
    with caplog.at_level(logging.WARNING), publishing(server, shared_counters=policy) as publisher:
        ask_for(publisher)
        shows(server, names)
        assert publisher.wait_published(30)
        assert (publisher.status.fallback != "") == (names == ONLY_NODE)
        assert (version in caplog.text) == (names == ONLY_NODE)


@pytest.mark.parametrize("dropped", [DROPPED, DROPPED[:1], DROPPED[1:]], ids=["both", "declared", "consumed"])
def test_a_server_that_drops_counters_gets_the_node_alone(
    server: ApiServer, dropped: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    server.dropped_fields = dropped
    with caplog.at_level(logging.WARNING), publishing(server) as publisher:
        ask_for(publisher)
        shows(server, ONLY_NODE)
        assert publisher.wait_published(30)
        assert "DRAPartitionableDevices" in publisher.status.fallback
        assert "DRAPartitionableDevices" in caplog.text
    if DROPPED[0] in dropped:  # as one feature gate does it: seen in the slice that is written before any device
        no_chip_was_ever_offered_twice(server)


def test_an_upgrade_of_the_cluster_is_noticed_at_the_next_look(server: ApiServer) -> None:
    server.git_version = "v1.36.3"
    with publishing(server, resync_seconds=0.3) as publisher:
        ask_for(publisher)
        shows(server, ONLY_NODE)
        server.git_version = "v1.37.1"
        shows(server, BOTH)
        eventually(lambda: publisher.status.fallback == "")
        server.git_version = "v1.36.3"
        shows(server, ONLY_NODE)
    no_chip_was_ever_offered_twice(server)


def test_a_server_that_would_drop_counters_is_asked_and_not_sent_them(server: ApiServer) -> None:
    server.dropped_fields = DROPPED
    with publishing(server, resync_seconds=0.2) as publisher:
        ask_for(publisher)
        shows(server, ONLY_NODE)
        time.sleep(1.0)
        assert publisher.status.writes == 1, "not again and again"
        assert publisher.status.dropped_fields == ()


def test_a_server_that_does_not_say_what_it_keeps_is_sent_counters_once(server: ApiServer) -> None:
    server.dropped_fields = DROPPED
    server.fail(403, method="POST")  # the question what it would store
    with publishing(server, resync_seconds=1000) as publisher:
        ask_for(publisher)
        shows(server, ONLY_NODE)
        assert publisher.wait_published(30)
        writes = publisher.status.writes
        unsaid = server.fail(403, method="POST")
        publisher.trigger("again")
        eventually(lambda: unsaid.times == 0, what="the question")
        time.sleep(0.2)
        assert publisher.status.writes == writes
        assert "DRAPartitionableDevices" in publisher.status.fallback
    no_chip_was_ever_offered_twice(server)


@pytest.mark.parametrize("restarts", [True, False], ids=["when the server is back", "at the next look"])
def test_a_feature_gate_that_is_turned_on_or_off_is_noticed(server: ApiServer, restarts: bool) -> None:
    server.dropped_fields = DROPPED
    with publishing(server, resync_seconds=1000 if restarts else 0.2) as publisher:
        ask_for(publisher)
        shows(server, ONLY_NODE)
        eventually(lambda: open_watches(server), what="a watch that can break")

        def turned(dropped: tuple[str, ...], names: list[str]) -> None:
            watches = open_watches(server)
            if restarts:
                server.stop()
            server.dropped_fields = dropped
            if restarts:
                server.start()
                eventually(lambda: open_watches(server) > watches, what="a watch")
            shows(server, names)
            eventually(lambda: (publisher.status.fallback == "") == (names == BOTH), what="the status")

        turned((), BOTH)
        turned(DROPPED, ONLY_NODE)
        turned((), BOTH)
    no_chip_was_ever_offered_twice(server)


def test_changes_of_the_partitions_offer_no_chip_twice(server: ApiServer) -> None:
    turns = [
        (Partitions(node=True), ONLY_NODE),
        (CHIPS_AND_NODE, BOTH),
        (CHIPS, BOTH[:-1]),
        (CHIPS_AND_NODE, BOTH),
        (Partitions(node=True), ONLY_NODE),
        (CHIPS, BOTH[:-1]),
    ]
    for started, (partitions, names) in enumerate(turns):
        with publishing(server, started=1000 + started) as publisher:
            ask_for(publisher, partitions)
            shows(server, names)
    no_chip_was_ever_offered_twice(server)


def test_a_server_that_does_not_tell_its_version_gets_the_node_alone(server: ApiServer) -> None:
    server.fail(403, times=1000, path="^/version$")
    with publishing(server) as publisher:
        ask_for(publisher)
        shows(server, ONLY_NODE)
        assert publisher.wait_published(30)
        assert "does not report" in publisher.status.fallback


def test_a_server_that_cannot_be_asked_for_its_version_is_asked_again(server: ApiServer) -> None:
    server.fail(500, times=2, path="^/version$")
    with publishing(server) as publisher:
        ask_for(publisher)
        shows(server, BOTH)

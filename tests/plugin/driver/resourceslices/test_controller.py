"""The publisher against a server that loses, changes and refuses slices."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator

import pytest

from dra_driver.driver.resourceslices.messages import Desired
from tests.builders.publisher import NODE, chips, notes, open_watches, published, publishing
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import PATIENCE, eventually
from tests.golden import golden


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.add_node(NODE, uid="node-uid")
        yield running


def settle(server: ApiServer) -> None:
    """Return once the server has not been asked anything for a while."""
    seen = -1
    while seen != len(server.requests):
        seen = len(server.requests)
        time.sleep(0.15)


def test_the_first_publication_is_three_requests_and_does_not_wait_for_the_watch(server: ApiServer) -> None:
    server.fail(500, times=1000, watch=True)
    with publishing(server) as publisher:
        publisher.set_desired(Desired(chips(16)))
        assert publisher.wait_published(30)
        assert [request.method for request in server.requests][:3] == ["GET", "GET", "POST"]
    assert published(server) == [f"neuron-device-{i}" for i in range(16)]


def test_what_is_published(server: ApiServer) -> None:
    with publishing(server, chips(2)) as publisher:
        (item,) = server.slices()
        assert item["metadata"]["name"].startswith("00000-neuron.aws.com-node-a-")
        assert item["metadata"]["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid", "controller": True}
        ]
        assert item["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        status = publisher.status
        assert (status.published, status.slices, status.missing, status.generation) == (True, 1, 0, 1)
        assert (status.creates, status.writes, status.errors, status.last_error) == (1, 1, 0, "")


def test_no_devices_is_one_empty_slice(server: ApiServer) -> None:
    with publishing(server, []):
        (item,) = server.slices()
        assert item["spec"].get("devices", []) == []


def test_an_unchanged_node_is_written_once_in_its_life(server: ApiServer) -> None:
    for _ in range(3):
        with publishing(server, chips(4)) as publisher:
            publisher.set_desired(Desired(chips(4)))
            publisher.trigger("registered")
            settle(server)
    assert server.writes() == 1


def test_nothing_is_written_before_the_devices_are_known(server: ApiServer) -> None:
    with publishing(server) as publisher:
        publisher.trigger("registered")
        time.sleep(0.1)
        assert server.requests == []
        assert not publisher.status.published


def test_a_change_is_published_at_once_and_in_place(server: ApiServer) -> None:
    with publishing(server, chips(4)) as publisher:
        name = server.slices()[0]["metadata"]["name"]
        publisher.set_desired(Desired(chips(3, "changed")))
        eventually(lambda: notes(server) == {"changed"})
        (item,) = server.slices()
        assert item["metadata"]["name"] == name
        assert item["spec"]["pool"]["generation"] == 1
        settle(server)
        assert server.writes() == 2


def test_many_devices_are_several_slices_of_one_generation(server: ApiServer) -> None:
    with publishing(server, chips(130)) as publisher:
        assert [len(item["spec"]["devices"]) for item in server.slices()] == [64, 64, 2]
        publisher.set_desired(Desired(chips(130, "changed")))
        eventually(lambda: notes(server) == {"changed"})
        assert {item["spec"]["pool"]["generation"] for item in server.slices()} == {2}
        publisher.set_desired(Desired(chips(1)))
        eventually(lambda: len(server.slices()) == 1)
        eventually(lambda: publisher.status.deletes == 2)


def test_stopping_leaves_the_slices_and_is_prompt(server: ApiServer) -> None:
    with publishing(server, chips(1)) as publisher:
        settle(server)
        started = time.monotonic()
        publisher.stop(60.0)
        assert time.monotonic() - started < 30.0
        server.wipe_slices(NODE)
        publisher.set_desired(Desired(chips(2)))
        publisher.trigger("registered")
        time.sleep(0.2)
        assert server.slices() == []
        assert server.writes() == 1


def test_a_stop_between_two_writes_is_the_end_of_writing(server: ApiServer) -> None:
    with publishing(server) as publisher:
        with server.hold(method="POST") as come:
            publisher.set_desired(Desired(chips(130)))
            eventually(come)
            publisher.stop(0.1)
        publisher.stop(PATIENCE)
        assert server.count("POST") == 1


# What others do to slices


def test_a_slice_that_somebody_else_deletes_first_is_no_error(server: ApiServer) -> None:
    with publishing(server, chips(65)) as publisher:
        with server.hold(method="DELETE") as come:
            publisher.set_desired(Desired(chips(1)))
            eventually(come)
            (request,) = (request for request in server.requests if request.method == "DELETE")
            server.store.delete("resourceslices", request.path.rpartition("/")[2])
        eventually(lambda: published(server) == ["neuron-device-0"])
        assert publisher.status.errors == 0


def test_wiped_slices_are_back_at_once(server: ApiServer) -> None:
    with publishing(server, chips(130)) as publisher:
        settle(server)
        server.wipe_slices(NODE)
        eventually(lambda: len(published(server)) == 130)
        settle(server)
        assert len(server.slices()) == 3
        assert publisher.status.repairs >= 1
        assert publisher.status.published


def test_wiped_slices_are_back_without_a_watch_when_kubelet_registers_us(server: ApiServer) -> None:
    with publishing(server, chips(4)) as publisher:
        settle(server)
        server.fail(500, times=10_000, watch=True)
        server.cut()
        server.wipe_slices(NODE)
        publisher.trigger("registered with kubelet")
        eventually(lambda: len(published(server)) == 4)


def test_wiped_slices_are_found_by_the_resync_when_the_watch_missed_it(server: ApiServer) -> None:
    with publishing(server, chips(4), resync_seconds=0.5):
        server.fail(500, times=10_000, watch=True)
        server.cut()
        server.wipe_slices(NODE)
        eventually(lambda: len(published(server)) == 4)


def test_a_wipe_while_the_watch_was_away_is_found_by_its_list(server: ApiServer) -> None:
    with publishing(server, chips(4)):
        settle(server)
        with server.store.changed:
            server.close_watches()
            server.wipe_slices(NODE)
            server.store.expire()
        eventually(lambda: len(published(server)) == 4)


@pytest.mark.parametrize("field", ["devices", "generation", "owner"])
def test_changes_by_others_are_repaired(server: ApiServer, field: str) -> None:
    with publishing(server, chips(4)):
        settle(server)
        (item,) = server.slices()
        right = (item["spec"], item["metadata"]["ownerReferences"])
        changed = server.slices()[0]
        if field == "devices":
            changed["spec"]["devices"].pop()
        elif field == "generation":
            changed["spec"]["pool"]["resourceSliceCount"] = 2
        else:
            changed["metadata"]["ownerReferences"] = []
        server.store.update("resourceslices", item["metadata"]["name"], changed)
        eventually(lambda: (server.slices()[0]["spec"], server.slices()[0]["metadata"]["ownerReferences"]) == right)
        settle(server)
        assert server.writes() == 2


def test_labels_of_others_stay_and_are_no_reason_to_write(server: ApiServer) -> None:
    with publishing(server, chips(4)) as publisher:
        item = server.slices()[0]
        item["metadata"]["labels"] = {"audit": "1"}
        server.store.update("resourceslices", item["metadata"]["name"], item)
        settle(server)
        assert server.writes() == 1
        publisher.set_desired(Desired(chips(5)))
        eventually(lambda: len(published(server)) == 5)
        assert server.slices()[0]["metadata"]["labels"] == {"audit": "1"}


def test_extra_slices_of_ours_are_removed(server: ApiServer) -> None:
    with publishing(server, chips(4)):
        item = server.slices()[0]
        vendor = {**item, "metadata": {"generateName": f"{NODE}-neuron.aws.com-"}}
        server.store.create("resourceslices", vendor)
        eventually(lambda: len(server.slices()) == 1)
        assert server.slices()[0]["metadata"]["name"] == item["metadata"]["name"]


def test_slices_of_the_vendors_driver_are_replaced_under_a_new_generation(server: ApiServer) -> None:
    with publishing(server, chips(4)):
        pass
    item = server.slices()[0]
    server.wipe_slices(NODE)
    server.store.create("resourceslices", {**item, "metadata": {"generateName": f"{NODE}-neuron.aws.com-"}})
    with publishing(server, chips(4)):
        (item,) = server.slices()
        assert item["metadata"]["name"].startswith("00000-")
        assert item["spec"]["pool"]["generation"] == 2


def test_somebody_who_deletes_again_and_again_makes_no_storm(server: ApiServer) -> None:
    with publishing(server, chips(1)):
        began = time.monotonic()
        while time.monotonic() < began + 2.0:
            server.wipe_slices(NODE)
            time.sleep(0.01)
        # One at first, three repairs at once, and the others at least half a second apart.
        writes = server.writes()
        assert writes <= 4 + 2 * (time.monotonic() - began)


def test_a_recreated_node_gets_its_slices_back_with_the_right_owner(server: ApiServer) -> None:
    with publishing(server, chips(4)) as publisher:
        settle(server)
        server.store.delete("nodes", NODE)
        server.add_node(NODE, uid="new-node-uid")
        publisher.trigger("the Node object changed")
        eventually(lambda: server.slices()[0]["metadata"]["ownerReferences"][0]["uid"] == "new-node-uid")
        server.store.delete("nodes", NODE)
        server.add_node(NODE, uid="third-uid")
        server.wipe_slices(NODE)  # the garbage collector
        eventually(lambda: published(server) != [])
        assert server.slices()[0]["metadata"]["ownerReferences"][0]["uid"] == "third-uid"


# Trouble


def test_a_node_that_is_not_there_yet_is_explained_and_waited_for() -> None:
    with ApiServer() as server, publishing(server) as publisher:
        publisher.set_desired(Desired(chips(1)))
        eventually(lambda: publisher.status.last_error)
        golden(publisher.status.last_error)
        assert "NODE_NAME" in publisher.status.last_error
        assert not publisher.status.published
        since = publisher.status.failing_since
        assert since is not None
        assert 0 <= time.monotonic() - since < 60, "a clock that nobody can set"
        server.add_node(NODE)
        assert publisher.wait_published(30)
        assert publisher.status.last_error == ""
        assert publisher.status.failing_since is None


@pytest.mark.parametrize("status", [401, 403, 404, 409, 422, 429, 500, 503])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_refusals_are_tried_again_until_it_works(server: ApiServer, method: str, status: int) -> None:
    server.fail(status, times=2, method=method, path="resourceslices", message="on purpose")
    with publishing(server) as publisher:
        publisher.set_desired(Desired(chips(4)))
        assert publisher.wait_published(30)
        assert len(published(server)) == 4
        assert publisher.status.last_error == ""
        if status != 409:
            assert publisher.status.errors >= 1


def test_a_server_that_goes_away_and_comes_back(server: ApiServer) -> None:
    with publishing(server, chips(4)) as publisher:
        settle(server)
        server.stop()
        publisher.set_desired(Desired(chips(5)))
        eventually(lambda: publisher.status.errors >= 3)
        assert "did not answer" in publisher.status.last_error
        server.start()
        eventually(lambda: len(published(server)) == 5)
        eventually(lambda: publisher.status.published)


def test_dropped_connections_leave_no_duplicate(server: ApiServer) -> None:
    server.drop(times=2, method="POST")
    with publishing(server, chips(4)):
        settle(server)
        assert len(server.slices()) == 1


def test_a_lost_answer_to_a_create_leaves_no_duplicate(server: ApiServer) -> None:
    """The server stored the slice, but the answer never came."""
    server.drop(times=1, method="POST", after=True)
    with publishing(server, chips(4)):
        settle(server)
        assert len(server.slices()) == 1
        assert server.count("POST") == 1


def test_a_lasting_refusal_is_said_and_asked_ever_more_slowly(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.fail(422, times=10_000, method="POST", message="devices: too odd")
    with caplog.at_level(logging.WARNING), publishing(server) as publisher:
        began = time.monotonic()
        publisher.set_desired(Desired(chips(4)))
        time.sleep(2.0)
        tries = server.count("POST")
        # Each wait is at least half of its bound, which begins with 0.2 s and doubles.
        assert tries <= 1 + math.log2(1 + (time.monotonic() - began) / 0.1)
        eventually(lambda: "too odd" in publisher.status.last_error)
        server.faults.clear()
        publisher.set_desired(Desired(chips(3)))
        assert publisher.wait_published(PATIENCE)
    assert "too odd" in caplog.text


def test_what_was_decided_before_is_not_desired_any_more(server: ApiServer) -> None:
    with publishing(server) as publisher:
        publisher.set_desired(Desired(chips(4), revision=2))
        publisher.set_desired(Desired(chips(5), revision=1))
        publisher.set_desired(Desired(chips(3), revision=3))
        publisher.set_desired(Desired(chips(6), revision=2))
        eventually(lambda: len(published(server)) == 3, what="the last decision")
        publisher.trigger("a look")
        eventually(lambda: len([r for r in server.requests if r.method == "GET" and "slices" in r.path]) > 2)
        assert len(published(server)) == 3


def test_a_throttling_server_is_left_alone_as_long_as_it_asks(server: ApiServer) -> None:
    server.fail(429, times=1, method="POST", retry_after=1)
    with publishing(server) as publisher:
        publisher.set_desired(Desired(chips(4)))
        eventually(lambda: publisher.status.errors == 1)
        publisher.trigger("impatience")
        publisher.set_desired(Desired(chips(5)))
        assert publisher.wait_published(30)
        refused, accepted = (request.at for request in server.requests if request.method == "POST")
        assert accepted - refused >= 1.0


def test_a_conflict_is_looked_at_again_and_no_error(server: ApiServer) -> None:
    with publishing(server, chips(4)) as publisher:
        settle(server)
        server.fail(409, times=2, method="PUT", reason="Conflict")
        publisher.set_desired(Desired(chips(5)))
        eventually(lambda: len(published(server)) == 5)
        assert publisher.status.errors == 0


def test_in_an_idle_hour_there_are_at_most_two_resyncs_and_no_write(server: ApiServer) -> None:
    between = 0.6  # really 2100 seconds; one seventh more or less

    def idle() -> int:
        return sum(not request.watch for request in server.requests[before:])

    with publishing(server, chips(16), resync_seconds=between):
        settle(server)
        before, began = len(server.requests), time.monotonic()
        eventually(lambda: idle() >= 4, what="two resyncs, of which each reads the Node and lists the slices")
        asked, elapsed = idle(), time.monotonic() - began
    assert server.writes() == 1
    assert asked <= 2 * (1 + elapsed / (between * 6 / 7))


def test_watches_are_kept(server: ApiServer) -> None:
    with publishing(server, chips(1)):
        settle(server)
        assert open_watches(server) == 1

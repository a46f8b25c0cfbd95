"""Taints through the slice controller: how often they are written, and servers that do not keep them."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Collection, Iterator

import pytest

from dra_driver.driver.resourceslices.messages import Desired
from dra_driver.driver.write_budget import WriteBudget
from dra_driver.kube.objects.resource import Device, DeviceTaint
from tests.builders.publisher import NODE, Held, chips, notes, open_watches, published, publishing
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually
from tests.golden import golden

KEY = "health.neuron.aws.com/hbm-uncorrectable"
SPACING = 0.6


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.add_node(NODE)
        yield running


def sick(indexes: Collection[int], effect: str = "NoSchedule", note: str = "x") -> tuple[Device, ...]:
    taint = DeviceTaint(KEY, "unhealthy", effect, "2026-01-01T00:00:00Z")
    return tuple(
        Device(device.name, device.attributes, taints=(taint,) if index in indexes else ())
        for index, device in enumerate(chips(16, note))
    )


def tainted(server: ApiServer) -> set[int]:
    return {
        int(device["name"].rpartition("-")[2])
        for item in server.slices()
        for device in item["spec"].get("devices") or ()
        if device.get("taints")
    }


def writes(server: ApiServer) -> list[float]:
    """Times of the writes that were stored."""
    return [
        request.at for request in list(server.requests) if request.method != "GET" and "dryRun" not in request.query
    ]


def small_budget(window: float = 1000.0, most: int = 6) -> WriteBudget:
    return WriteBudget(spacing=SPACING, window=window, most=most, reserved=2)


# How often


def test_the_first_publication_has_the_taints_and_the_first_change_is_not_delayed(server: ApiServer) -> None:
    with publishing(server, sick([3]), budget=lambda: WriteBudget(spacing=1000.0)) as publisher:
        assert tainted(server) == {3}
        assert len(writes(server)) == 1
        publisher.set_desired(Desired(sick([3, 4])))
        eventually(lambda: tainted(server) == {3, 4})
        assert server.slices()[0]["spec"]["pool"]["generation"] == 1


def test_chips_that_break_one_after_the_other_are_one_write(server: ApiServer) -> None:
    with publishing(server, sick([])) as publisher:
        for count in range(1, 17):
            publisher.set_desired(Desired(sick(range(count))))
        eventually(lambda: tainted(server) == set(range(16)))
        assert len(writes(server)) == 2


def test_flapping_is_written_seldom_and_ends_in_the_last_state(server: ApiServer) -> None:
    flaps = random.Random(5)
    with publishing(server, sick([]), budget=lambda: small_budget(window=3.0, most=4)) as publisher:
        end = time.monotonic() + 3.5
        while time.monotonic() < end:
            publisher.set_desired(Desired(sick([index for index in range(16) if flaps.random() < 0.5])))
            time.sleep(0.01)
        publisher.set_desired(Desired(sick([7])))
        eventually(lambda: tainted(server) == {7})
        # The server has the write a moment before the publisher has its answer.
        eventually(lambda: not publisher.status.postponed)
        times = writes(server)[1:]
        # Times are those of the arrivals, which a busy machine may see late.
        assert all(later - earlier > SPACING / 2 for earlier, later in itertools.pairwise(times))
        assert all(later - earlier > 3.0 / 2 for earlier, later in zip(times, times[4:], strict=False))


def test_a_change_that_waits_is_told_and_another_kind_of_change_takes_it_along(server: ApiServer) -> None:
    with publishing(server, sick([]), budget=WriteBudget) as publisher:
        publisher.set_desired(Desired(sick([3])))
        eventually(lambda: tainted(server) == {3})
        publisher.set_desired(Desired(sick([3, 4])))
        publisher.trigger("a reason to look")
        eventually(lambda: publisher.status.postponed)
        assert publisher.status.published
        assert tainted(server) == {3}
        publisher.set_desired(Desired(sick([3, 4], note="other")))
        eventually(lambda: notes(server) == {"other"})
        assert tainted(server) == {3, 4}
        eventually(lambda: not publisher.status.postponed)


def test_a_repair_takes_waiting_taints_along(server: ApiServer) -> None:
    with publishing(server, sick([]), budget=WriteBudget) as publisher:
        publisher.set_desired(Desired(sick([3])))
        eventually(lambda: tainted(server) == {3})
        publisher.set_desired(Desired(sick([3, 4])))
        publisher.trigger("a reason to look")
        eventually(lambda: publisher.status.postponed)
        server.wipe_slices(NODE)
        eventually(lambda: tainted(server) == {3, 4})


def test_a_change_back_to_what_is_published_needs_no_write(server: ApiServer) -> None:
    with publishing(server, sick([]), budget=WriteBudget) as publisher:
        publisher.set_desired(Desired(sick([3])))
        eventually(lambda: tainted(server) == {3})
        publisher.set_desired(Desired(sick([])))
        publisher.trigger("a reason to look")
        eventually(lambda: publisher.status.postponed)
        publisher.set_desired(Desired(sick([3])))
        publisher.trigger("a reason to look")
        eventually(lambda: not publisher.status.postponed)
        assert len(writes(server)) == 2


def test_a_failed_write_costs_nothing_of_the_budget(server: ApiServer) -> None:
    with publishing(server, sick([]), budget=WriteBudget) as publisher:
        server.fail(500, times=2, method="PUT")
        publisher.set_desired(Desired(sick([3])))
        eventually(lambda: tainted(server) == {3})


# Servers that do not keep taints


def test_an_upgraded_server_gets_taints_at_the_next_look(server: ApiServer) -> None:
    server.dropped_fields = ("spec.devices[].taints",)
    server.git_version = "v1.35.2"
    with publishing(server, sick([3]), source=Held()) as publisher:
        assert len(published(server)) == 15
        golden(publisher.status.taints_problem)
        assert publisher.status.withdrawn == ("neuron-device-3",)
        assert publisher.status.dropped_fields == (), "it is asked what it would store, not sent it"
        assert len(writes(server)) == 1
        server.dropped_fields, server.git_version = (), "v1.36.3"
        publisher.trigger("the server is back")
        eventually(lambda: tainted(server) == {3})
        eventually(lambda: publisher.status.taints_problem == "")
        assert not publisher.status.withdrawn


def test_a_gate_that_is_turned_on_later_is_noticed_too(server: ApiServer) -> None:
    server.dropped_fields = ("spec.devices[].taints",)
    with publishing(server, sick([3]), source=Held()) as publisher:
        server.dropped_fields = ()
        publisher.trigger("the server is back")
        eventually(lambda: tainted(server) == {3})


def test_a_gate_that_is_turned_off_withdraws_what_schedulers_would_take_for_well(server: ApiServer) -> None:
    with publishing(server, sick([3]), source=Held(), resync_seconds=1000) as publisher:
        assert tainted(server) == {3}
        eventually(lambda: open_watches(server), what="a watch that can break")
        server.stop()
        server.dropped_fields = ("spec.devices[].taints",)
        server.start()
        eventually(lambda: len(published(server)) == 15)
        eventually(lambda: publisher.status.withdrawn == ("neuron-device-3",))


def test_a_server_that_drops_taints_and_did_not_say_so_is_offered_no_sick_chip(server: ApiServer) -> None:
    with publishing(server, sick([3]), source=Held(), budget=small_budget) as publisher:
        assert tainted(server) == {3}
        server.dropped_fields = ("spec.devices[].taints",)
        server.fail(403, method="POST")  # the question what it would store
        publisher.set_desired(Desired(sick([3, 4])))
        eventually(lambda: len(published(server)) == 14)
        eventually(lambda: publisher.status.withdrawn == ("neuron-device-3", "neuron-device-4"))


def test_devices_come_back_when_they_are_healthy_and_without_a_question(server: ApiServer) -> None:
    server.dropped_fields = ("spec.devices[].taints",)
    held = Held()
    with publishing(server, sick([3]), source=held, budget=small_budget) as publisher:
        asked = held.asked
        publisher.set_desired(Desired(sick([])))
        eventually(lambda: len(published(server)) == 16)
        eventually(lambda: publisher.status.withdrawn == ())
        assert publisher.status.taints_problem == ""
        assert held.asked == asked


def test_a_device_that_claims_hold_goes_when_it_is_free(server: ApiServer) -> None:
    server.dropped_fields = ("spec.devices[].taints",)
    held = Held({"neuron-device-3"})
    with publishing(server, sick([3]), source=held, held_seconds=0.2):
        assert len(published(server)) == 16
        held.names = set()
        eventually(lambda: "neuron-device-3" not in published(server))
    held.names = None
    with publishing(server, sick([3]), source=held, started=2000):
        assert len(published(server)) == 16, "in doubt it is held"


def test_taints_without_effect_withdraw_nothing(server: ApiServer) -> None:
    server.dropped_fields = ("spec.devices[].taints",)
    with publishing(server, sick([3], "None"), source=Held()) as publisher:
        assert len(published(server)) == 16
        assert publisher.status.withdrawn == ()


def test_a_server_that_does_not_tell_is_sent_the_taints(server: ApiServer) -> None:
    server.fail(403, times=1000, method="GET", path="^/version$")
    server.fail(403, times=1, method="POST")  # the question what it would store
    with publishing(server, sick([3]), source=Held()):
        assert tainted(server) == {3}


def test_no_taint_asks_the_server_nothing(server: ApiServer) -> None:
    with publishing(server, sick([]), source=Held()) as publisher:
        publisher.trigger("a reason to look")
        time.sleep(0.3)
        assert server.count("GET", "^/version$") == 0
        assert server.count("POST") == 1

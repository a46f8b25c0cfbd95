"""What the log says when slices are not, or not yet, as they should be."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import pytest

from dra_driver.driver.resourceslices.messages import Desired
from dra_driver.driver.resourceslices.pool import consuming, counter_set
from dra_driver.driver.write_budget import WriteBudget
from dra_driver.kube.objects.resource import Device, DeviceTaint
from tests.builders.publisher import NODE, Held, chips, notes, published, publishing
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually
from tests.golden import golden, logged

SINCE = "2026-01-01T00:00:00Z"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        running.add_node(NODE, uid="node-uid")
        yield running


def sick(*indexes: int) -> tuple[Device, ...]:
    taint = DeviceTaint("health.neuron.aws.com/hbm-uncorrectable", "", "NoSchedule", SINCE)
    return tuple(
        msgspec.structs.replace(device, taints=(taint,)) if index in indexes else device
        for index, device in enumerate(chips(4))
    )


def test_a_server_that_refuses_and_one_that_is_faster(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    server.fail(403, method="POST")
    with publishing(server, chips(2)) as publisher:
        publisher.trigger("kubelet registered the driver")
        eventually(lambda: "reconciling the slices" in log.text)
        server.fail(409, method="PUT")
        publisher.set_desired(Desired(chips(2, "new")))
        eventually(lambda: notes(server) == {"new"})
    golden(logged(log, "not up to date", "works again", "reconciling", "another program"))


def test_an_older_instance_leaves_the_slices_to_a_newer_one(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    with publishing(server, chips(2, "old"), started=1) as old, publishing(server, chips(2, "new"), started=2):
        eventually(lambda: old.status.superseded)
    golden(logged(log, "newer instance"))


def test_changes_of_health_that_wait_are_logged(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    with publishing(server, sick(), budget=WriteBudget) as publisher:
        publisher.set_desired(Desired(sick(3)))
        eventually(lambda: any(item["spec"]["devices"][3].get("taints") for item in server.slices()))
        publisher.set_desired(Desired(sick(2, 3)))
        publisher.trigger("a reason to look")
        eventually(lambda: publisher.status.postponed)
    golden(re.sub(r"\d+ s", "N s", text) for text in logged(log, "changes of health are"))


def test_a_server_that_does_not_keep_what_it_is_sent(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    server.dropped_fields = ("spec.devices[].attributes",)
    with publishing(server, chips(2)):
        (name,) = (item["metadata"]["name"] for item in server.slices())
    golden(text.replace(name, "NAME") for text in logged(log, "did not keep"))


def test_a_server_that_does_not_tell_whether_it_keeps_taints(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    server.fail(403, times=1, method="POST")
    with publishing(server, sick(3)):
        assert len(published(server)) == 4
    golden(logged(log, "which fields it keeps"))


def test_a_server_that_keeps_taints_after_its_upgrade(server: ApiServer, log: pytest.LogCaptureFixture) -> None:
    server.dropped_fields, server.git_version = ("spec.devices[].taints",), "v1.35.2"
    with publishing(server, sick(3), source=Held()) as publisher:
        server.dropped_fields, server.git_version = (), "v1.36.3"
        publisher.trigger("the server is back")
        eventually(lambda: publisher.status.taints_problem == "")
    golden(logged(log, "taints"))


def test_devices_that_overlap_are_offered_once_the_server_keeps_counters(
    server: ApiServer, log: pytest.LogCaptureFixture
) -> None:
    server.git_version = "v1.34.4"
    one, other = (consuming(device, {0: 8}) for device in chips(2))
    with publishing(server) as publisher:
        publisher.set_desired(Desired((one, other), chips(1), counters=(counter_set({0: 8}),)))
        eventually(lambda: publisher.status.fallback)
        server.git_version = "v1.37.1"
        publisher.trigger("the server is back")
        eventually(lambda: len(published(server)) == 2)
    golden(logged(log, "overlap", "can be offered now"))

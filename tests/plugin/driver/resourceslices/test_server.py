"""Servers of other versions and with features off."""

from __future__ import annotations

import logging
import time

import pytest

from dra_driver.driver.resourceslices.messages import Desired
from dra_driver.kube.objects.resource import DeviceCapacity
from tests.builders.publisher import NODE, chips, published, publishing
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_every_version_is_published_to_and_an_unchanged_node_is_written_once(version: str) -> None:
    with ApiServer(versions=(version,)) as server:
        server.add_node(NODE)
        for _ in range(2):
            with publishing(server, chips(4)):
                time.sleep(0.2)
        assert published(server) == [f"neuron-device-{i}" for i in range(4)]
        assert server.count("POST", f"/{version}/") == 1
        assert server.count("PUT") == 0


def test_a_server_without_the_api_is_reported_and_waited_for() -> None:
    with ApiServer(versions=()) as server:
        server.add_node(NODE)
        with publishing(server) as publisher:
            publisher.set_desired(Desired(chips(4)))
            eventually(lambda: "serves none of" in publisher.status.last_error)
            server.versions = ("v1beta1",)
            assert publisher.wait_published(30)


def test_a_server_upgrade_changes_the_version_and_writes_nothing() -> None:
    with ApiServer(versions=("v1beta1",)) as server:
        server.add_node(NODE)
        with publishing(server, chips(4)) as publisher:
            server.versions = ("v1",)
            server.cut()
            publisher.trigger("registered")
            eventually(lambda: server.count("GET", "/v1/resourceslices", watch=True))
            time.sleep(0.2)
            assert server.writes() == 1
            assert publisher.status.published


def test_fields_that_the_server_drops_are_named_once_and_not_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    devices = [type(device)(device.name, device.attributes, {"memory": DeviceCapacity("96Gi")}) for device in chips(3)]
    with ApiServer(dropped_fields=("spec.devices[].capacity",)) as server, caplog.at_level(logging.WARNING):
        server.add_node(NODE)
        with publishing(server, devices) as publisher:
            for reason in ("once", "twice"):
                publisher.trigger(reason)
                time.sleep(0.2)
            assert server.writes() == 1
            assert publisher.status.published
            assert publisher.status.dropped_fields == ("devices[].capacity",)
            publisher.set_desired(Desired(tuple(devices[:2])))
            eventually(lambda: len(published(server)) == 2)
            publisher.trigger("again")
            time.sleep(0.2)
            assert server.writes() == 2
    assert "devices[].capacity" in caplog.text


def test_fields_of_a_newer_driver_are_removed_after_a_downgrade() -> None:
    with ApiServer() as server:
        server.add_node(NODE)
        with publishing(server, chips(2)):
            pass
        item = server.slices()[0]
        item["spec"]["devices"][0]["taints"] = [{"key": "neuron.aws.com/unhealthy", "effect": "NoExecute"}]
        server.store.update("resourceslices", item["metadata"]["name"], item)
        with publishing(server, chips(2)):
            assert "taints" not in server.slices()[0]["spec"]["devices"][0]
            time.sleep(0.2)
            assert server.writes() == 2


def test_fields_that_the_server_adds_by_itself_are_no_reason_to_write_again() -> None:
    with ApiServer(added_spec={"someday": "default"}) as server:
        server.add_node(NODE)
        with publishing(server, chips(2)) as publisher:
            for _ in range(3):
                publisher.trigger("again")
                time.sleep(0.1)
            assert server.writes() == 1
            assert publisher.status.published

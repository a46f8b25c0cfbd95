"""A slice controller under test, and helpers to check what it publishes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dra_driver.driver.resourceslices.controller import DeviceSource, SliceController, SlicePolicy
from dra_driver.driver.resourceslices.instance import DriverInstance
from dra_driver.driver.resourceslices.messages import Desired
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.objects.resource import Device, DeviceAttribute
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.partitions import device_name
from dra_driver.util.worker import Backoff
from tests.doubles.apiserver.server import ApiServer
from tests.eventually import eventually

NODE = "node-a"


def chips(count: int, note: str = "x") -> tuple[Device, ...]:
    return tuple(Device(device_name(i), {"note": DeviceAttribute(string=note)}) for i in range(count))


@contextmanager
def publishing(
    server: ApiServer,
    devices: Sequence[Device] | None = None,
    *,
    started: int = 1000,
    source: DeviceSource | None = None,
    **policy: Any,
) -> Iterator[SliceController]:
    """A running slice controller; with ``devices``, after it has published them."""
    publisher = SliceController(
        ResourceApi(server.transport()),
        DRIVER_NAME,
        NODE,
        instance=DriverInstance("boot", started, str(started)),
        source=source,
        policy=SlicePolicy(backoff=lambda: Backoff(first=0.02, cap=0.2, free=1), **policy),
    )
    publisher.start()
    try:
        if devices is not None:
            publisher.set_desired(Desired(tuple(devices)))
            assert publisher.wait_published(30), publisher.status.last_error
            eventually(lambda: open_watches(server) >= 1, what="a watch")
        yield publisher
    finally:
        publisher.stop()


@dataclass
class Held(DeviceSource):
    """A source that says what claims hold; None: it cannot be found out."""

    names: set[str] | None = field(default_factory=set)
    asked: int = 0

    def held(self, devices: Collection[str]) -> set[str] | None:
        self.asked += 1
        return self.names


def open_watches(server: ApiServer) -> int:
    return server.count("GET", "resourceslices", watch=True)


def published(server: ApiServer) -> list[str]:
    """Device names in the order of the slices."""
    return [device["name"] for item in server.slices() for device in item["spec"].get("devices") or []]


def notes(server: ApiServer) -> set[str]:
    return {
        device["attributes"]["note"]["string"] for item in server.slices() for device in item["spec"].get("devices", [])
    }

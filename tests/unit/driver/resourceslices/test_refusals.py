"""Why devices are not offered, or for how long still."""

from __future__ import annotations

import pytest

from dra_driver.driver.resourceslices.devices import node_problem
from dra_driver.driver.resourceslices.pool import consuming, counters_problem, dropped_problem, pool
from dra_driver.kube.api.codec import ServerVersion
from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.partitions import device_name
from dra_driver.util.errors import DriverError
from tests.builders.claims import host
from tests.golden import golden, golden_error


@pytest.mark.parametrize(
    "inventory",
    [host(40, None), host(17), host(15), host(3, None, devices=host(3).devices[1:])],
    ids=["more than a pool has counters for", "more than the type has", "one is missing", "the first is missing"],
)
def test_why_a_node_cannot_be_given_as_a_whole(inventory: NodeInventory) -> None:
    golden(node_problem(inventory))


def test_why_counters_are_not_used() -> None:
    golden(
        [
            dropped_problem(ServerVersion("v1.37.1")),
            counters_problem(ServerVersion("v1.36.3"), "auto"),
            counters_problem(ServerVersion(), "force"),
        ]
    )


def test_a_pool_that_a_server_would_refuse_is_not_made() -> None:
    one = Device(device_name(1))
    with golden_error(DriverError, "twice"):
        pool((one, one, Device(device_name(2))), "node-1", "uid")
    with golden_error(DriverError, "counters"):
        pool((consuming(one, {1: 8}),), "node-1", "uid")

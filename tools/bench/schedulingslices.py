"""The ResourceSlices of the nodes of ``scripts/benchmark scheduling``, by the driver's own code."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import msgspec

from bench.schedulingrows import Object, World
from dra_driver.driver.resourceslices.devices import Offer, offer
from dra_driver.driver.resourceslices.pool import pool
from dra_driver.neuron.emulation.efa import EFA_DRIVER_NAME, published
from dra_driver.neuron.emulation.options import EmulationOptions
from dra_driver.neuron.emulation.writer import write_host
from dra_driver.neuron.host.discover import discover
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.instance_types import resolve_emulation
from dra_driver.neuron.topology.partitions import Partitions


@cache
def offered(world: World) -> Offer:
    """What each node offers."""
    return offer(inventory(world.instance_type, world.driver_version), Partitions.parse(world.partitions))


def slices(world: World, node_name: str, node_uid: str) -> list[Object]:
    """What the driver would publish on the node, and AWS's EFA DRA driver where the world has it."""
    found = offered(world)
    made = pool(found.devices, node_name, node_uid, counters=found.counters)
    if world.efa:
        devices = published(resolve_emulation(world.instance_type))
        made += pool(devices, node_name, node_uid, driver=EFA_DRIVER_NAME)
    return [{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **msgspec.to_builtins(item)} for item in made]


@cache
def inventory(instance_type: str, driver_version: str | None = None) -> NodeInventory:
    """What a host of that type has."""
    with tempfile.TemporaryDirectory(prefix="dra-driver-") as directory:
        root = Path(directory) / "host"
        write_host(root, resolve_emulation(instance_type), EmulationOptions(driver_version=driver_version))
        return discover(root)

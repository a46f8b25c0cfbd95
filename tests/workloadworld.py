"""Emulated clusters for tests of workloads: the slices that the driver publishes for a type, on nodes of any number."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from dra_driver.host.discover import discover
from dra_driver.host.emulator import write_host
from dra_driver.kube.objects import Device, ObjectMeta
from dra_driver.simulator.allocator import NodeView, Selectors, World
from dra_driver.simulator.cel import CelDevice, compile  # noqa: A004 # the usual word for it
from dra_driver.simulator.objects import CelSelector, DeviceClass, DeviceClassSpec, DeviceSelector, ResourceSlice
from dra_driver.simulator.workload import Site, Workload, read_workload, sites
from dra_driver.slices.devices import devices
from dra_driver.slices.pool import pool
from dra_driver.topology.instance_types import resolve_emulation

TEXT = """\
nodes:
  trn2.48xlarge: 2
pods:
- name: single
  weight: 5
  count: 1
- name: row
  weight: 3.5
  count: 4
  duration:
    fixed: 30m
- name: half
  weight: 1
  count: 8
arrivals:
  perHour: 6
duration:
  exponential:
    mean: 4h
length: 10d
warmUp: 1d
"""


@cache
def published(kind: str) -> tuple[Device, ...]:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "host"
        write_host(root, resolve_emulation(kind))
        return devices(discover(root))


def slices_of(node: str, kind: str) -> list[ResourceSlice]:
    made: list[dict[str, Any]] = [msgspec.to_builtins(item) for item in pool(published(kind), node, "uid")]
    for place, item in enumerate(made):
        item["metadata"] = {"name": f"{place}-{node}"}
    return [msgspec.convert(item, ResourceSlice) for item in made]


def cluster(**types: int) -> tuple[World, tuple[Site, ...]]:
    """``trn2_48xlarge=3``: so many nodes of that type."""
    names = [
        (f"{kind.replace('_', '-')}-{place}", kind.replace("_", ".")) for kind in types for place in range(types[kind])
    ]
    slices = [item for node, kind in names for item in slices_of(node, kind)]
    selector = DeviceSelector(CelSelector('device.driver == "neuron.aws.com"'))
    classes = [DeviceClass(ObjectMeta(name="neuron.aws.com"), DeviceClassSpec((selector,)))]
    world = World(slices, classes, Selectors(compile, CelDevice.of))
    return world, sites([NodeView(node) for node, _ in names], slices)


def workload(text: str = TEXT) -> Workload:
    return read_workload("workload.yaml", text)

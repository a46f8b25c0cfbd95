"""The ResourceSlices of the nodes of ``scripts/benchmark scheduling``, by the driver's own code."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from functools import cache
from pathlib import Path

import msgspec

from bench.schedulingrows import Object, World
from dra_driver.driver.resourceslices.attributes import ATTRIBUTES, AttributeSource
from dra_driver.driver.resourceslices.pool import COUNTER_SET, pool
from dra_driver.emulation.options import EmulationOptions
from dra_driver.emulation.writer import write_host
from dra_driver.host.discover import discover
from dra_driver.host.inventory import NodeInventory
from dra_driver.kube.types import Counter, Device, DeviceAttribute, DeviceCapacity, DeviceCounterConsumption
from dra_driver.topology.cuts import CutDevice, Cuts, Part, devices, overlap
from dra_driver.topology.groups import device_group_ids
from dra_driver.topology.instance_types import resolve_emulation


@cache
def offered(world: World) -> tuple[Device, ...]:
    """The devices of each node."""
    inventory, cuts = _inventory(world.instance_type, world.driver_version), _cuts(world)
    return tuple(_device(cut, inventory, overlap(cuts), any(item.core_size for item in cuts)) for cut in cuts)


def slices(world: World, node_name: str, node_uid: str) -> list[Object]:
    """What the driver would publish on the node."""
    made = pool(offered(world), node_name, node_uid)
    return [{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **msgspec.to_builtins(item)} for item in made]


def devices_of(world: World, chips: Collection[int]) -> list[str]:
    """Names of devices that together are these chips; small ones first."""
    found: list[str] = []
    used: list[Part] = []
    for cut in sorted(_cuts(world), key=lambda item: (len(item.parts), item.core is not None)):
        if set(cut.chips) <= set(chips) and not any(part.overlaps(other) for part in cut.parts for other in used):
            found.append(cut.name)
            used += cut.parts
    return found


@cache
def _inventory(instance_type: str, driver_version: str | None) -> NodeInventory:
    with tempfile.TemporaryDirectory(prefix="dra-driver-") as directory:
        root = Path(directory) / "host"
        options = EmulationOptions(driver_version=driver_version)
        write_host(root, resolve_emulation(instance_type), options)
        return discover(root)


@cache
def _cuts(world: World) -> tuple[CutDevice, ...]:
    inventory, kind = _inventory(world.instance_type, world.driver_version), resolve_emulation(world.instance_type)
    size = inventory.core_size
    return devices(inventory.chip_indexes, kind.fabric, kind.cores_per_device, Cuts.parse(world.cuts), lambda _: size)


def _device(cut: CutDevice, inventory: NodeInventory, counted: bool, cores: bool) -> Device:
    kind = resolve_emulation(inventory.instance_type or "")
    of_chip = kind.cores_per_device or 1
    if cut.resource in ("neuron_device", "neuron_node"):
        chips = tuple(chip for chip in inventory.devices if chip.index in cut.chips)
        subject = AttributeSource(inventory, kind, cut.resource, chips)
        values = {row: row.value(subject) for row in ATTRIBUTES if cut.resource in row.of}
        attributes = {
            row.name: _attribute(v, row.kind) for row, v in values.items() if v is not None and row.kind != "capacity"
        }
        capacity = {
            row.name: DeviceCapacity(str(v)) for row, v in values.items() if v is not None and row.kind == "capacity"
        }
    else:
        capacity = {}
        found: dict[str, int | str] = {
            "resourceType": cut.resource,
            "instanceType": inventory.instance_type or "",
            "neuronDriverVersion": inventory.driver_version or "",
        }
        if cut.resource == "neuron_group":
            found |= {
                "size": len(cut.chips),
                "firstDeviceId": cut.chips[0],
                "coreCount": of_chip * len(cut.chips),
            }
            ids = device_group_ids(kind, cut.chips[0])
            found |= {
                f"resource.aws.com/devicegroup{size}_id": value for size, value in ids.items() if size >= len(cut.chips)
            }
        else:
            number = cut.chips[0] * (of_chip // (cut.core_size or 1)) + (cut.core or 0)
            found |= {
                "deviceId": cut.chips[0],
                "coreId": cut.core or 0,
                "logicalCoreSize": cut.core_size or 1,
                "coreRun2_id": number // 2,
                "coreRun4_id": number // 4,
            }
        attributes = {name: _attribute(value, "string") for name, value in found.items()}
    consumes: tuple[DeviceCounterConsumption, ...] = ()
    if counted:
        full = of_chip if cores else 1
        counters = {f"chip-{part.chip}": Counter(str(len(part.cores) or full)) for part in cut.parts}
        consumes = (DeviceCounterConsumption(COUNTER_SET, counters),)
    return Device(cut.name, attributes=attributes, capacity=capacity, consumes_counters=consumes)


def _attribute(value: int | str, kind: str) -> DeviceAttribute:
    if isinstance(value, int):
        return DeviceAttribute(int_=value)
    return DeviceAttribute(version=value) if kind == "version" else DeviceAttribute(string=value)

"""What published devices stand for: parts, overlaps, sizes of cores, and chips that are not well."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest

from dra_driver.kube.objects.resource import Device, DeviceAttribute, DeviceTaint
from dra_driver.neuron.health.taints import lines, sick
from dra_driver.neuron.names import WORKLOAD_TAINT
from dra_driver.neuron.topology.node_hardware import Hardware, resource_of
from dra_driver.neuron.topology.partitions import HardwarePart, Partitions
from dra_driver.simulator.emulated_nodes import emulated
from tests.golden import golden

EVERYTHING = "chip.core.group.node"


def offered(kind: str = "trn2.48xlarge", partitions: str = EVERYTHING) -> tuple[Device, ...]:
    """The devices of a node with these partitions."""
    slices = emulated([(kind, 1)], partitions=Partitions.parse(partitions)).slices
    return tuple(device for item in slices for device in item.spec.devices)


def tainted(devices: tuple[Device, ...], **taints: DeviceTaint) -> list[Device]:
    """With a taint for some of the devices, by name with _ for -."""
    found = {name.replace("_", "-"): taint for name, taint in taints.items()}
    return [
        msgspec.structs.replace(device, taints=(found[device.name],)) if device.name in found else device
        for device in devices
    ]


@pytest.mark.parametrize("kind", ["trn2.48xlarge", "inf2.24xlarge", "trn1.32xlarge", "trn2u.48xlarge"])
def test_devices_overlap_exactly_when_their_counters_cannot_be_had_together(kind: str) -> None:
    devices = offered(kind)
    hardware = Hardware.of(devices)
    assert hardware.kind is not None
    cores = hardware.kind.cores_per_device

    def consumed(device: Device) -> dict[str, int]:
        return {name: int(item.value) for use in device.consumes_counters for name, item in use.counters.items()}

    for one, other in combinations(devices, 2):
        first, second = consumed(one), consumed(other)
        too_much = any(first[name] + second[name] > cores for name in first.keys() & second.keys())
        cores_apart = resource_of(one) == resource_of(other) == "neuron_core"
        assert bool(hardware.overlapping(one.name, [other.name])) == too_much or cores_apart
        if cores_apart:
            assert not hardware.overlapping(one.name, [other.name])


def test_the_size_of_cores_on_offer_counts_and_else_the_default_of_the_type() -> None:
    devices = offered()
    small = [
        msgspec.structs.replace(device, attributes={**device.attributes, "logicalCoreSize": DeviceAttribute(int_=1)})
        for device in devices
        if device.name == "neuron-core-3-1"
    ]
    hardware = Hardware.of([device for device in devices if not device.name.startswith("neuron-core-3-")] + small)
    assert hardware.parts("neuron-core-3-1") == (HardwarePart(3, (1,)),)
    assert hardware.parts("neuron-core-4-1") == (HardwarePart(4, (2, 3)),)
    assert Hardware.of(offered(partitions="chip")).parts("neuron-core-4-1") == (HardwarePart(4, (2, 3)),)
    assert hardware.parts("neuron-thing-1") == ()


@pytest.mark.parametrize("size", [0, -1, 10**9])
def test_an_absurd_size_of_cores_is_not_believed(size: int) -> None:
    attributes = {"deviceId": DeviceAttribute(int_=0), "logicalCoreSize": DeviceAttribute(int_=size)}
    assert Hardware.of([Device("neuron-core-0-1", attributes)]).parts("neuron-core-0-1") == (HardwarePart(0, (1,)),)


def test_marks_leave_out_what_the_type_does_not_have() -> None:
    hardware = Hardware.of(offered())
    marks = hardware.marks(["neuron-core-0-3", "neuron-core-99-0", "neuron-device-16", "neuron-node"])
    assert marks.chips == frozenset(range(16))
    assert hardware.marks(["neuron-core-0-3"]).cores == {0: (False, False, False, True)}


FAULT = DeviceTaint("health.neuron.aws.com/hbm-uncorrectable", "unhealthy", "NoSchedule")
RETIRED = DeviceTaint("neuron.aws.com/retired", "partitions", "NoSchedule")


def test_a_taint_of_a_core_or_chip_says_which_chip_is_sick_and_one_of_a_group_does_not() -> None:
    chips = range(16)
    assert sick(tainted(offered(), neuron_core_3_1=FAULT), chips) == {3: "unhealthy"}
    assert sick(tainted(offered(), neuron_group4_1=FAULT, neuron_device_5=FAULT), chips) == {5: "unhealthy"}
    groups = offered(partitions="group4")
    assert sick(tainted(groups, neuron_group4_1=FAULT), chips) == dict.fromkeys(range(4, 8), "unhealthy")


@pytest.mark.parametrize("taint", [RETIRED, DeviceTaint(WORKLOAD_TAINT, "uid", "NoSchedule")], ids=["kept", "workload"])
def test_a_device_that_is_kept_or_a_workloads_is_no_sick_one(taint: DeviceTaint) -> None:
    devices = tainted(offered(), neuron_core_3_1=taint)
    assert sick(devices, range(16)) == {}
    (line,) = lines(devices)
    golden(line)

"""What nodes offer in any partitions, and what stays while claims hold devices: no hardware is on offer twice."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.driver.resourceslices.devices import KeptDevice, Offer, offer, shapes
from dra_driver.driver.resourceslices.pool import incomplete, pool
from dra_driver.driver.resourceslices.taints import bare
from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.emulation.memory import emulated_inventory
from dra_driver.neuron.emulation.options import EmulationOptions
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.names import RETIRED
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.neuron.topology.partitions import (
    NODE_DEVICE,
    HardwarePart,
    Partitions,
    core_name,
    device_name,
    group_sizes,
    parts_of,
)
from tests.doubles.apiserver.slice_validation import validate_slice

SINCE = 1_767_225_600
TYPES = sorted(name for name, kind in INSTANCE_TYPES.items() if kind.devices)
HOSTS = {name: emulated_inventory(INSTANCE_TYPES[name], EmulationOptions()) for name in TYPES}
EVERYTHING = Partitions.parse("chip.core.group.node")


def with_core_size(host: NodeInventory, size: int) -> NodeInventory:
    """The same host after an administrator has set the logical core size."""
    return replace(host, default_lnc=size)


def parts(host: NodeInventory, device: Device) -> tuple[HardwarePart, ...]:
    """The hardware of a published device, as a reader of the slices sees it."""
    size = device.attributes.get("logicalCoreSize")
    found = parts_of(device.name, host.chip_indexes, lambda _: (size and size.int_) or 1)
    assert found is not None
    return found


def overlap(first: Sequence[HardwarePart], second: Sequence[HardwarePart]) -> bool:
    return any(one.overlaps(other) for one in first for other in second)


def counters_allow(offered: Offer, chosen: Collection[Device]) -> bool:
    """What the scheduler checks before it gives these away."""
    left = {name: int(counter.value) for found in offered.counters for name, counter in found.counters.items()}
    for device in chosen:
        for consumption in device.consumes_counters:
            for name, counter in consumption.counters.items():
                left[name] -= int(counter.value)
    return all(value >= 0 for value in left.values())


def held_somehow(draw: st.DrawFn, host: NodeInventory) -> dict[str, KeptDevice]:
    """Devices of former partitions that claims hold: none overlap, and cores have the size of their time."""
    size = draw(st.sampled_from(host.chip.lnc_values if host.chip else (1,)))
    before = offer(with_core_size(host, size), draw(partitions)).devices
    held: list[Device] = []
    for device in draw(st.lists(st.sampled_from(before), max_size=6) if before else st.just([])):
        if not any(overlap(parts(host, device), parts(host, other)) for other in held):
            held.append(device)
    return {device.name: KeptDevice(SINCE, size if device.name.startswith("neuron-core-") else None) for device in held}


partitions = st.builds(
    Partitions,
    chip=st.booleans(),
    group=st.booleans(),
    node=st.booleans(),
    core=st.booleans(),
    sizes=st.frozensets(st.integers(2, 9), max_size=2),
)


@st.composite
def offers(draw: st.DrawFn) -> tuple[NodeInventory, Mapping[str, KeptDevice], Offer]:
    host = HOSTS[draw(st.sampled_from(TYPES))]
    kept = held_somehow(draw, host)
    assert host.chip is not None
    lost = draw(st.sets(st.sampled_from(host.chip_indexes), max_size=1))
    now = with_core_size(host, draw(st.sampled_from(host.chip.lnc_values)))
    now = replace(now, devices=tuple(chip for chip in now.devices if chip.index not in lost))
    return now, kept, offer(now, draw(partitions), kept=kept)


@given(offers(), st.randoms(use_true_random=False))
def test_counters_allow_exactly_the_sets_of_devices_that_do_not_overlap(
    case: tuple[NodeInventory, Mapping[str, KeptDevice], Offer], random: Random
) -> None:
    host, _, offered = case
    some = random.sample(offered.devices, min(len(offered.devices), 12))
    made = {device.name: parts(host, device) for device in some}
    for one, other in itertools.combinations(some, 2):
        assert counters_allow(offered, [one, other]) != overlap(made[one.name], made[other.name]), (one, other)
    taken: list[Device] = []
    for device in some:
        free = not any(overlap(made[device.name], made[other.name]) for other in taken)
        assert counters_allow(offered, [*taken, device]) == free
        taken += [device] * free


@given(offers())
def test_what_is_published_without_counters_does_not_overlap(
    case: tuple[NodeInventory, Mapping[str, KeptDevice], Offer],
) -> None:
    host, _, offered = case
    without = offered.fallback if offered.counters else offered.devices
    assert not any(device.consumes_counters for device in without)
    assert all(device.consumes_counters for device in offered.devices) or not offered.counters
    made = [part for device in without for part in parts(host, device)]
    by_chip = itertools.groupby(sorted(made), key=lambda part: part.chip)
    assert not any(one.overlaps(two) for _, found in by_chip for one, two in itertools.combinations(found, 2))


@given(offers())
def test_a_device_that_a_claim_holds_stays_as_it_was_and_is_not_given_anew(
    case: tuple[NodeInventory, Mapping[str, KeptDevice], Offer],
) -> None:
    host, kept, offered = case
    for devices in (offered.devices, offered.fallback) if offered.counters else (offered.devices,):
        there = {device.name: device for device in devices}
        for name, held in kept.items():
            size = held.core_size or 1
            assert parts(host, there[name]) == parts_of(
                name, host.chip_indexes, dict.fromkeys(range(16), size).__getitem__
            )
        retired = {name for name, device in there.items() if any(taint.key == RETIRED for taint in device.taints)}
        assert retired <= offered.retired <= kept.keys()
    assert {chip: size for chip, size in offered.core_sizes.items() if size != host.core_size} == offered.core_sizes


@given(offers())
def test_slices_of_any_partitions_are_what_the_api_server_takes(
    case: tuple[NodeInventory, Mapping[str, KeptDevice], Offer],
) -> None:
    _, _, offered = case
    slices = pool(offered.devices, "node-a", "uid", counters=offered.counters)
    for item in slices:
        validate_slice(msgspec.to_builtins(item), None)
    assert not incomplete(slices)
    assert incomplete(slices[:-1]) == (len(slices) > 1)
    if offered.counters:
        with pytest.raises(Exception, match="consume counters"):
            pool(offered.devices, "node-a", "uid")


@pytest.mark.parametrize("name", TYPES)
def test_each_partition_gives_all_that_the_fabric_has(name: str) -> None:
    host, kind = HOSTS[name], INSTANCE_TYPES[name]
    count = len(host.devices)
    made = [device.name for device in offer(host, EVERYTHING).devices]
    chips = [device_name(index) for index in range(count)]
    assert [device for device in made if device in chips] == chips
    assert made.index(chips[-1]) < made.index(NODE_DEVICE), "who does not say which gets a chip"
    assert len([device for device in made if device.startswith("neuron-core-")]) == (
        count * kind.cores_per_device // host.core_size
    )
    sizes = {int(found[1]) for device in made if (found := re.match(r"neuron-(?:group|window)([0-9]+)-", device))}
    assert sizes == set(group_sizes(kind.fabric))
    assert NODE_DEVICE in made


def test_a_chip_is_worth_its_cores_only_where_cores_are_offered() -> None:
    host = HOSTS["trn2.48xlarge"]
    worth = {
        text: offer(host, Partitions.parse(text)).counters[0].counters["chip-3"].value
        for text in ("chip.group", "chip.core")
    }
    assert worth == {"chip.group": "1", "chip.core": "8"}
    left = offer(replace(host, devices=host.devices[:1]), Partitions.parse("core.node"))
    assert left.counters[0].counters["chip-0"].value == "8", "what the node would take stands for it while it cannot be"


def test_what_a_host_cannot_be_offered_in_is_said() -> None:
    assert offer(HOSTS["trn2.48xlarge"], Partitions.parse("chip.group3.group4")).absent == ("group3",)
    assert offer(HOSTS["inf2.xlarge"], EVERYTHING).absent == ("group",)
    unknown = NodeInventory("trn9.48xlarge", None, HOSTS["inf2.xlarge"].devices)
    assert offer(unknown, EVERYTHING).absent == ("core", "group")


def test_a_new_core_size_reaches_a_chip_when_its_last_core_is_free() -> None:
    before = HOSTS["trn2.48xlarge"]
    after = with_core_size(before, 1)
    held = {core_name(3, 1): KeptDevice(SINCE, 2)}

    offered = offer(after, Partitions.parse("core"), kept=held)

    names = [device.name for device in offered.devices]
    assert [name for name in names if name.startswith("neuron-core-3-")] == [core_name(3, 1)]
    assert [name for name in names if name.startswith("neuron-core-4-")] == [core_name(4, core) for core in range(8)]
    assert offered.core_sizes == {3: 2}
    assert offered.retired == {core_name(3, 1)}
    assert not offered.counters, "the core that stays has nothing in common with the others"
    (kept,) = [device for device in offered.devices if device.name == core_name(3, 1)]
    assert [(taint.key, taint.value, taint.effect) for taint in kept.taints] == [(RETIRED, "partitions", "NoSchedule")]
    (was,) = [device for device in offer(before, Partitions.parse("core")).devices if device.name == core_name(3, 1)]
    assert bare([kept]) == (was,)
    assert shapes([kept]) == {(core_name(3, 1), 2)}


def test_without_counters_a_chip_waits_for_its_cores_and_comes_back() -> None:
    host = HOSTS["trn2.48xlarge"]
    held = {core_name(3, 1): KeptDevice(SINCE, 2)}
    offered = offer(host, Partitions.parse("chip"), kept=held)
    without = [device_name(index) for index in range(16) if index != 3]
    assert [device.name for device in offered.fallback] == [*without, core_name(3, 1)]
    assert [device.name for device in offered.devices] == [*map(device_name, range(16)), core_name(3, 1)]
    assert offer(host, Partitions.parse("chip"), kept={}) == offer(host, Partitions.parse("chip"))


@pytest.mark.parametrize(
    ("name", "text", "fallback"),
    [
        ("trn2u.48xlarge", "chip.node", [NODE_DEVICE]),
        ("trn2.48xlarge", "chip.node", [device_name(index) for index in range(16)]),
        ("trn2.48xlarge", "core.group", [device_name(index) for index in range(16)]),
        ("inf2.24xlarge", "group", [device_name(index) for index in range(6)]),
        ("trn2.48xlarge", "group4", []),
    ],
)
def test_servers_without_counters_get_one_partition(name: str, text: str, fallback: list[str]) -> None:
    assert [device.name for device in offer(HOSTS[name], Partitions.parse(text)).fallback] == fallback


def test_without_any_partition_only_what_claims_hold_is_offered_as_it_was_and_closed_to_others() -> None:
    host = HOSTS["trn2.48xlarge"]
    assert offer(host, Partitions()).devices == ()
    held = {device_name(3): KeptDevice(since=0.0), core_name(5, 1): KeptDevice(since=0.0, core_size=2)}
    offered = offer(host, Partitions(), kept=held)
    assert offered.retired == {device.name for device in offered.devices} == held.keys()
    assert {(taint.value, taint.effect) for device in offered.devices for taint in device.taints} == {
        ("kubelet", "NoSchedule")
    }
    (whole,) = [device for device in offer(host, Partitions.parse("chip")).devices if device.name == device_name(3)]
    (chip,) = [device for device in offered.devices if device.name == device_name(3)]
    assert chip.attributes == whole.attributes

"""The layout ``both``: node and chips that exclude each other by shared counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.driver.resourceslices.devices import Offer, devices, offer
from dra_driver.driver.resourceslices.pool import SharedCounters, counters_problem, pool
from dra_driver.kube.api.codec import ServerVersion
from dra_driver.kube.objects.resource import Device, ResourceSlice
from dra_driver.neuron.host.inventory import NeuronDevice, NodeInventory
from dra_driver.neuron.topology.partitions import (
    CHIPS,
    CHIPS_AND_NODE,
    NODE,
    NODE_DEVICE,
    Partitions,
    chips_of,
    device_name,
)
from tests.golden import golden


def host(lost: Collection[int] = (), instance_type: str = "trn2u.48xlarge") -> NodeInventory:
    chips = tuple(NeuronDevice(i, 240, i, None, 8, None, None, None, None, None) for i in range(16) if i not in lost)
    return NodeInventory(instance_type, "2.30.0.0", chips)


def slices(inventory: NodeInventory, partitions: Partitions) -> tuple[ResourceSlice, ...]:
    offered = offer(inventory, partitions)
    return pool(offered.devices, "n", "u", counters=offered.counters)


def fits(offered: Offer, chosen: Collection[Device]) -> bool:
    """Whether the scheduler may give all of these away: no counter goes below zero."""
    available = {name: int(counter.value) for found in offered.counters for name, counter in found.counters.items()}
    for device in chosen:
        for consumption in device.consumes_counters:
            for name, counter in consumption.counters.items():
                available[name] -= int(counter.value)
    return all(value >= 0 for value in available.values())


def test_chips_come_before_the_node_so_that_a_claim_for_any_device_gets_chips() -> None:
    names = [device.name for item in slices(host(), CHIPS_AND_NODE) for device in item.spec.devices]
    assert names == [*(device_name(i) for i in range(16)), NODE_DEVICE]


def test_counters_are_in_a_slice_of_their_own_ahead_of_the_devices() -> None:
    counters, offered = slices(host(), CHIPS_AND_NODE)
    assert counters.spec.devices == ()
    assert [found.name for found in counters.spec.shared_counters] == ["chips"]
    assert len(counters.spec.shared_counters[0].counters) == 16
    assert offered.spec.shared_counters == ()
    assert {item.spec.pool.resource_slice_count for item in (counters, offered)} == {2}
    assert {item.spec.node_name for item in (counters, offered)} == {"n"}


@given(st.sets(st.integers(0, 16)), st.sets(st.integers(0, 15), max_size=2))
def test_counters_allow_exactly_the_choices_that_share_no_chip(chosen: set[int], lost: set[int]) -> None:
    offered = offer(host(lost), CHIPS_AND_NODE)
    taken = [offered.devices[i] for i in chosen if i < len(offered.devices)]
    uses = Counter(chip for device in taken for chip in chips_of(device.name, range(16)) or ())
    assert fits(offered, taken) == (max(uses.values(), default=0) <= 1)


def test_a_lost_chip_takes_the_node_away_and_leaves_the_other_devices_as_they_were() -> None:
    whole = {device.name: device for device in devices(host(), CHIPS_AND_NODE)}
    left = {device.name: device for device in devices(host({5}), CHIPS_AND_NODE)}
    assert set(whole) - set(left) == {NODE_DEVICE, device_name(5)}
    assert all(device == whole[name] for name, device in left.items())


@pytest.mark.parametrize("text", ["chip", "node", "core", "group4", "group8"])
def test_a_partition_that_does_not_overlap_uses_no_counters(text: str) -> None:
    offered = offer(host(), Partitions.parse(text))
    assert offered.devices
    assert not offered.counters
    assert not any(device.consumes_counters for device in offered.devices)


def test_devices_differ_between_layouts_only_by_their_counters() -> None:
    together = [replace_counters(device) for device in devices(host(), CHIPS_AND_NODE)]
    assert together == [*devices(host(), CHIPS), *devices(host(), NODE)]


def replace_counters(device: Device) -> Device:
    return Device(device.name, device.attributes, device.capacity)


@pytest.mark.parametrize(
    ("version", "policy", "said"),
    [
        ("v1.37.1", "auto", ""),
        ("v1.38.0-alpha.1", "auto", ""),
        ("v2.0.0", "auto", ""),
        ("v1.37.1-eks-1a2b3c", "auto", ""),
        ("v1.36.3", "force", ""),
        ("v1.36.3", "auto", "--shared-counters force"),
        ("v1.35.6", "force", "need Kubernetes 1.36"),
        ("v1.34.4", "auto", "need Kubernetes 1.37"),
        ("v1.9.0", "force", "need Kubernetes 1.36"),
        ("", "auto", "does not report its version"),
        ("1.37", "auto", "does not report its version"),
        ("v1.\u0663\u0667.0", "auto", "does not report its version"),
    ],
)
def test_the_servers_that_get_counters(version: str, policy: SharedCounters, said: str) -> None:
    problem = counters_problem(ServerVersion(version), policy)
    golden(problem)
    assert bool(said) == bool(problem)

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import kubernetes_validate
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.driver.resourceslices.attributes import ATTRIBUTES
from dra_driver.driver.resourceslices.devices import devices, effective_partitions, node_problem, offer
from dra_driver.driver.resourceslices.pool import MAX_PREFIX_LENGTH, name_prefix, pool
from dra_driver.kube.api.codec import encode_slice
from dra_driver.kube.objects.resource import Device, ResourceSlice
from dra_driver.neuron.host.inventory import Membership, NeuronDevice, NodeInventory, ServerSet
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.neuron.topology.partitions import CHIPS, NODE, NODE_DEVICE, Partitions, chips_of, device_name
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.version import VERSION
from tests.doubles.apiserver.slice_validation import validate_slice
from tests.golden import golden

PAIR, FOUR = ServerSet(2, "0123456789abcdef", 1), ServerSet(4, "fedcba9876543210", 3)
MEMBERSHIP = Membership((Mode.X4, Mode.X2V, Mode.X1), (PAIR, FOUR), elected=True)
VENDOR_TRN2 = {
    "deviceId",
    "instanceType",
    "neuronDriverVersion",
    "draDriverVersion",
    "resourceType",
    "topology_x",
    "topology_y",
    "topology4_id",
    "topology8_id",
    *(f"resource.aws.com/devicegroup{size}_id" for size in (1, 4, 8, 16)),
}


def chip(index: int, **changes: Any) -> NeuronDevice:
    base = NeuronDevice(index, 240, index, None, 8, None, None, None, None, None)
    return replace(base, **changes)


def inventory(instance_type: str | None, count: int, **changes: Any) -> NodeInventory:
    return replace(NodeInventory(instance_type, "2.26.10.0", tuple(chip(i) for i in range(count))), **changes)


EVERYTHING = Partitions.parse("chip.core.group.node")
CUTS = [
    Partitions.parse(text) for text in ("chip", "node", "core", "group", "group4", "chip.node", "chip.core.group.node")
]


def slices(host: NodeInventory, partitions: Partitions) -> tuple[ResourceSlice, ...]:
    offered = offer(host, partitions)
    return pool(offered.devices, "node-a", "uid", counters=offered.counters)


def values(device: Device) -> dict[str, Any]:
    plain = msgspec.to_builtins(device)
    return {name: next(iter(value.values())) for name, value in plain["attributes"].items()}


def test_a_trn2_chip_has_what_the_vendor_publishes_and_our_additions() -> None:
    published = devices(inventory("trn2.48xlarge", 16))
    assert [device.name for device in published] == [f"neuron-device-{i}" for i in range(16)]
    device = published[6]
    assert set(device.attributes) == VENDOR_TRN2 | {"coreCount", "connectedDevices"}
    assert msgspec.to_builtins(device)["attributes"] == {
        "deviceId": {"int": 6},
        "instanceType": {"string": "trn2.48xlarge"},
        "neuronDriverVersion": {"string": "2.26.10.0"},
        "draDriverVersion": {"version": VERSION},
        "resourceType": {"string": "neuron_device"},
        "topology_x": {"int": 1},
        "topology_y": {"int": 2},
        "topology4_id": {"int": 1},
        "topology8_id": {"int": 0},
        "resource.aws.com/devicegroup1_id": {"string": "0000:56:00.0"},
        "resource.aws.com/devicegroup4_id": {"string": "671622785349fddf"},
        "resource.aws.com/devicegroup8_id": {"string": "3593812b8066a078"},
        "resource.aws.com/devicegroup16_id": {"string": "821d14afaf11327d"},
        "coreCount": {"int": 8},
        "connectedDevices": {"string": "2,5,7,10"},
    }
    assert device.capacity["memory"].value == "96Gi"


@pytest.mark.parametrize(
    ("instance_type", "count", "present", "absent"),
    [
        ("trn1.32xlarge", 16, {"topology8_id", "resource.aws.com/devicegroup1_id"}, {"segment4_id"}),
        (
            "trn2u.48xlarge",
            16,
            {"resource.aws.com/devicegroup16_id", "connectedDevices"},
            {"topology_x"},
        ),
        ("trn2.3xlarge", 1, {"coreCount"}, {"topology_x", "connectedDevices", "resource.aws.com/devicegroup1_id"}),
        ("trn3.48xlarge", 16, {"resource.aws.com/devicegroup4_id"}, {"topology_x", "connectedDevices"}),
        ("inf2.48xlarge", 12, {"segment2_id", "segment6_id", "connectedDevices"}, {"segment8_id", "topology_x"}),
        ("inf2.24xlarge", 6, {"segment2_id", "segment3_id", "connectedDevices"}, {"segment4_id", "segment6_id"}),
        ("inf1.6xlarge", 4, {"segment2_id"}, {"segment4_id"}),
        ("inf2.xlarge", 1, {"deviceId"}, {"segment2_id", "connectedDevices"}),
    ],
)
def test_topology_is_published_where_it_exists(
    instance_type: str, count: int, present: set[str], absent: set[str]
) -> None:
    for device in devices(inventory(instance_type, count), CHIPS):
        assert present <= set(device.attributes)
        assert not absent & set(device.attributes)


def test_segments_of_a_ring_are_runs() -> None:
    published = devices(inventory("inf2.48xlarge", 12))
    assert [values(device)["segment4_id"] for device in published] == [0] * 4 + [1] * 4 + [2] * 4
    assert values(published[0])["connectedDevices"] == "1,11"


def test_links_are_read_from_the_host_only_where_the_table_is_a_conclusion() -> None:
    chips = tuple(chip(i, connected=((i + 1) % 16, (i + 15) % 16)) for i in range(16))
    assert values(devices(inventory("inf1.24xlarge", 16, devices=chips))[0])["connectedDevices"] == "1,15"
    chips = tuple(chip(i, connected=(9,)) for i in range(16))
    assert values(devices(inventory("trn2.48xlarge", 16, devices=chips))[0])["connectedDevices"] == "1,3,4,12"


@pytest.mark.parametrize("instance_type", ["trn9.48xlarge", None])
def test_an_unknown_type_publishes_what_is_known_and_no_topology(instance_type: str | None) -> None:
    (device,) = devices(inventory(instance_type, 1))
    known = {"deviceId", "neuronDriverVersion", "draDriverVersion", "resourceType", "coreCount"}
    assert set(device.attributes) == known | ({"instanceType"} if instance_type else set())
    assert device.capacity == {}


def test_labels_and_host_facts_are_published_when_known() -> None:
    layers = ("nn-1", None, "nn-3")
    chips = tuple(chip(i, pci_bus_id=f"0000:c{i}:00.0", pcie_root=f"pci0000:b{i}", numa_node=i % 2) for i in range(2))
    host = inventory("trn2u.48xlarge", 2, network_layers=layers, capacity_block_id="cb-1", devices=chips)
    (first, second) = devices(host, CHIPS)
    assert values(first)["networkNodeLayer1"] == "nn-1"
    assert "networkNodeLayer2" not in first.attributes
    assert values(first)["capacityBlockId"] == "cb-1"
    assert values(second)["resource.kubernetes.io/pciBusID"] == "0000:c1:00.0"
    assert values(second)["resource.kubernetes.io/pcieRoot"] == "pci0000:b1"
    assert values(second)["resource.kubernetes.io/numaNode"] == 1


def test_the_capacity_block_is_an_ultraserver_attribute() -> None:
    (device, *_) = devices(inventory("trn2.48xlarge", 16, capacity_block_id="cb-1"))
    assert "capacityBlockId" not in device.attributes


def test_what_one_chip_lacks_is_left_out_on_all() -> None:
    chips = (chip(0, numa_node=0), chip(1, numa_node=-1), chip(2, numa_node=None))
    published = devices(inventory("trn2.48xlarge", 3, devices=chips))
    assert len({frozenset(device.attributes) for device in published}) == 1
    assert "resource.kubernetes.io/numaNode" not in published[0].attributes


def test_a_resetting_chip_does_not_change_what_is_published() -> None:
    chips = tuple(chip(i, core_count=None if i == 3 else 8) for i in range(16))
    assert devices(inventory("trn2.48xlarge", 16, devices=chips)) == devices(inventory("trn2.48xlarge", 16))


def test_a_chip_without_device_numbers_is_not_offered() -> None:
    chips = (chip(2), chip(0), chip(1, major=None, minor=None))
    published = devices(inventory("trn2.48xlarge", 3, devices=chips))
    assert [device.name for device in published] == ["neuron-device-0", "neuron-device-2"]


def test_a_missing_chip_leaves_the_others_as_they_were() -> None:
    full = devices(inventory("trn2.48xlarge", 16))
    chips = tuple(chip(i) for i in range(16) if i != 5)
    rest = tuple(device for device in full if device.name != "neuron-device-5")
    assert devices(inventory("trn2.48xlarge", 16, devices=chips)) == rest


def test_more_chips_than_the_type_has_lose_the_topology_of_the_table() -> None:
    published = devices(inventory("trn2.48xlarge", 17))
    assert len(published) == 17
    assert all("topology_x" not in device.attributes for device in published)


@pytest.mark.parametrize("text", ["x" * 65, "ü" * 33, "a\nb", "\x00", "", "\ud800"])
def test_texts_that_kubernetes_would_refuse_are_left_out(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            (device,) = devices(inventory("trn2.48xlarge", 1, driver_version=text))
    assert "neuronDriverVersion" not in device.attributes
    assert len(caplog.records) == (1 if text else 0), "said once, however often the host is read"
    if text:
        golden(caplog.messages)
    validate_slice(encode_slice(pool((device,), "n", "u")[0], "v1"), None)


@pytest.mark.parametrize("instance_type", sorted(INSTANCE_TYPES))
def test_every_type_gives_slices_that_the_api_server_takes(instance_type: str) -> None:
    count = INSTANCE_TYPES[instance_type].devices or 16
    full = inventory(instance_type, count, network_layers=("a", "b", "c"), capacity_block_id="cb")
    located = ((chip, f"0000:00:{chip.index:02x}.0") for chip in full.devices)
    chips = tuple(
        replace(chip, pci_bus_id=address, pcie_root="pci0000:00", numa_node=0, connected=(0,))
        for chip, address in located
    )
    host = replace(full, devices=chips, ultraserver=MEMBERSHIP)
    for item in (item for partitions in CUTS for item in slices(host, partitions)):
        validate_slice(msgspec.json.decode(msgspec.json.encode(encode_slice(item, "v1"))), None)
        counts = {f"{instance_type}: {d.name}": len(d.attributes) + len(d.capacity) for d in item.spec.devices}
        assert {name: count for name, count in counts.items() if count > 32} == {}, "Kubernetes allows a device 32"


def test_a_slice_has_the_schema_of_kubernetes() -> None:
    plain = pool(devices(inventory("trn2.48xlarge", 16)), "node-a", "uid")
    for item in (*plain, *slices(ultraserver(), EVERYTHING)):
        document = msgspec.json.decode(msgspec.json.encode(encode_slice(item, "v1")))
        kubernetes_validate.validate(document, "1.37", strict=True)


def test_equal_inventories_give_equal_bytes() -> None:
    one, two = (encode_slice(pool(devices(inventory("trn1.32xlarge", 16)), "n", "u")[0], "v1") for _ in range(2))
    assert msgspec.json.encode(one) == msgspec.json.encode(two)


@given(st.text(max_size=80), st.lists(st.integers(0, 70_000), max_size=20, unique=True))
def test_no_inventory_makes_an_error(instance_type: str, indexes: list[int]) -> None:
    published = devices(inventory(instance_type, 0, devices=tuple(chip(i) for i in indexes)), CHIPS)
    assert [chips_of(device.name, indexes) for device in published] == [(i,) for i in sorted(indexes)]


@pytest.mark.parametrize(
    "name", ["", "neuron-device-", "neuron-device-01", "neuron-device--1", "neuron-device-1 ", "x", "neuron-device-٣"]
)
def test_names_that_we_never_publish_are_no_chips(name: str) -> None:
    assert chips_of(name, range(16)) is None


@given(st.integers(0, 99_999))
def test_a_device_is_the_chip_that_its_name_says(index: int) -> None:
    assert chips_of(device_name(index), ()) == (index,)


def test_attribute_names_are_unique_and_legal() -> None:
    names = [row.name for row in ATTRIBUTES]
    assert len(names) == len(set(names))
    assert all(len(name.rpartition("/")[2]) <= 32 for name in names)


# UltraServers


def ultraserver(**changes: Any) -> NodeInventory:
    return inventory("trn2u.48xlarge", 16, ultraserver=MEMBERSHIP, **changes)


def test_a_node_of_an_ultraserver_is_one_device() -> None:
    (device,) = devices(ultraserver(network_layers=("nn-1", "nn-2", "nn-3"), capacity_block_id="cb-1"))
    assert device.name == NODE_DEVICE
    assert values(device) == {
        "instanceType": "trn2u.48xlarge",
        "neuronDriverVersion": "2.26.10.0",
        "draDriverVersion": VERSION,
        "resourceType": "neuron_node",
        "networkNodeLayer1": "nn-1",
        "networkNodeLayer2": "nn-2",
        "networkNodeLayer3": "nn-3",
        "capacityBlockId": "cb-1",
        "resource.aws.com/devicegroup16_id": "821d14afaf11327d",
        "ultraserverModes": "X4,X2V,X1",
        "ultraserverServerId2": "0123456789abcdef",
        "ultraserverNodeId2": 1,
        "ultraserverServerId4": "fedcba9876543210",
        "ultraserverNodeId4": 3,
        "coreCount": 128,
    }
    assert device.capacity["memory"].value == "1536Gi"


def test_chips_of_an_ultraserver_know_their_server_too() -> None:
    published = devices(ultraserver(), CHIPS)
    assert [device.name for device in published] == [device_name(i) for i in range(16)]
    assert {values(device)["ultraserverServerId4"] for device in published} == {"fedcba9876543210"}
    assert {values(device)["resourceType"] for device in published} == {"neuron_device"}


def test_hosts_offer_what_is_set_or_else_chips_or_the_node_of_an_ultraserver() -> None:
    assert effective_partitions(ultraserver(), None) == NODE
    assert effective_partitions(inventory("trn2.48xlarge", 16), None) == CHIPS
    for host in (ultraserver(), inventory("inf2.xlarge", 1)):
        assert effective_partitions(host, EVERYTHING) == EVERYTHING


def test_sets_that_do_not_exist_are_not_published() -> None:
    (device,) = devices(ultraserver(), NODE)
    lone = Membership((Mode.X2H, Mode.X1), (PAIR,), elected=True)
    (remainder,) = devices(inventory("trn2u.48xlarge", 16, ultraserver=lone))
    assert set(device.attributes) - set(remainder.attributes) == {"ultraserverServerId4", "ultraserverNodeId4"}


def test_an_election_takes_no_attribute_away() -> None:
    electing = Membership((), MEMBERSHIP.sets, elected=True, electing=True)
    (before,), (during,) = devices(ultraserver()), devices(inventory("trn2u.48xlarge", 16, ultraserver=electing))
    assert set(during.attributes) == set(before.attributes)
    assert values(during)["ultraserverModes"] == "electing"
    assert values(during)["ultraserverServerId4"] == "fedcba9876543210"


@pytest.mark.parametrize(
    ("chips", "named"),
    [
        (tuple(chip(i) for i in range(16) if i != 5), "neuron5 cannot"),
        (tuple(chip(i, **({"major": None, "minor": None} if i == 7 else {})) for i in range(16)), "neuron7 cannot"),
        (tuple(chip(i) for i in range(17)), "has no neuron16"),
        ((), "neuron15 cannot"),
    ],
)
def test_a_node_is_offered_only_with_all_its_chips(chips: tuple[NeuronDevice, ...], named: str) -> None:
    host = ultraserver(devices=chips)
    assert devices(host) == ()
    assert named in node_problem(host)
    assert len(devices(host, CHIPS)) == sum(item.major is not None for item in chips)


def test_a_node_of_a_type_whose_chips_nobody_has_counted_must_have_no_gap() -> None:
    assert [device.name for device in devices(inventory("trn2p.48xlarge", 4))] == [NODE_DEVICE]
    gap = inventory("trn2p.48xlarge", 0, devices=(chip(0), chip(2)))
    assert devices(gap) == ()
    assert "neuron1 cannot" in node_problem(gap)


# Pool


def plain_devices(count: int) -> tuple[Device, ...]:
    return tuple(Device(device_name(i)) for i in range(count))


@pytest.mark.parametrize(("count", "sizes"), [(0, [0]), (1, [1]), (64, [64]), (65, [64, 1]), (130, [64, 64, 2])])
def test_a_pool_is_split_at_64_devices(count: int, sizes: list[int]) -> None:
    slices = pool(plain_devices(count), "node-a", "uid")
    assert [len(item.spec.devices) for item in slices] == sizes
    assert {item.spec.pool.resource_slice_count for item in slices} == {len(sizes)}
    assert [item.metadata.generate_name for item in slices] == [
        f"{index:05x}-neuron.aws.com-node-a-" for index in range(len(sizes))
    ]


def test_the_node_owns_its_slices() -> None:
    (item,) = pool((), "node-a", "uid-1")
    assert encode_slice(item, "v1")["metadata"]["ownerReferences"] == (
        {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-1", "controller": True},
    )
    assert (item.spec.driver, item.spec.node_name, item.spec.pool.name) == ("neuron.aws.com", "node-a", "node-a")


@pytest.mark.parametrize(
    "node", ["n", "ip-10-0-1-2.us-west-2.compute.internal", "i-0." * 60 + "x", "a" * 63, "a" * 36 + "." + "b" * 20]
)
def test_name_prefixes_stay_legal_however_long_the_node_name(node: str) -> None:
    prefix = name_prefix(17, "neuron.aws.com", node)
    assert len(prefix) <= MAX_PREFIX_LENGTH
    assert prefix.startswith("00011-neuron.aws.com-")
    assert prefix.endswith("-")
    assert not prefix.endswith((".-", "--"))
    validate_slice({"spec": msgspec.to_builtins(pool((), node, "u")[0].spec)}, None)

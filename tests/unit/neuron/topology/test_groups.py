"""Device groups: the ids that AWS's EFA driver publishes too, and what a set of devices is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.neuron.topology.fabric import GROUP_SIZES
from dra_driver.neuron.topology.groups import device_group_ids, groups, select
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES, InstanceType
from dra_driver.util.errors import DriverError
from tests.golden import golden_error

# Ids of blocks 0.. of 4, 8 and 16 devices: recomputed from the lookup tables of github
# aws-neuron/connected-device-maps-over-efa-for-neuron; trn1 equals a captured ResourceSlice of AWS's driver.
EXPECTED = {
    "trn1": (
        "88a3c6ad1661fe1d 69b2225fd72a59dd e3c29faa0cd11323 178a9e264a26793e",
        "86c451036f622685 aa86c05423d6e8cd",
        "fb838249c99a6341",
    ),
    "trn1n": (
        "f9415ac86580cd2a 81d377c56bbb18dd e367b751fc858d72 6b9b077320083e11",
        "25ab6fa8d56db17d feac12f490fb3cba",
        "9ea13cbe1ff23763",
    ),
    "trn2": (
        "13713e551cd37c19 671622785349fddf 237e3ef7b968b4d3 b3d6ce1919d29f8f",
        "3593812b8066a078 614e16dab9ba2f1f",
        "821d14afaf11327d",
    ),
    "trn3": (
        "68ac040ea32655a7 1c060eef5f3a4fe1 68e7529909eadc38 11626cfcde6dcac3",
        "bafc439bf9664feb 629b2570d9887aaf",
        "31980acd145f7025",
    ),
    "trn3pds": (
        "68ac040ea32655a7 11626cfcde6dcac3 1c060eef5f3a4fe1 68e7529909eadc38",
        "e24e6d445a226240 a6e1fae95cf7af58",
        "31980acd145f7025",
    ),
}

# lookup/config/efa-enabled-instances.json and instance-family-mappings.json of the same repository.
FAMILY = {
    "trn1.32xlarge": "trn1",
    "trn1n.32xlarge": "trn1n",
    "trn2.48xlarge": "trn2",
    "trn2e.48xlarge": "trn2",
    "trn2u.48xlarge": "trn2",
    "trn3.48xlarge": "trn3",
    "trn3p.48xlarge": "trn3",
    "trn3pd98.48xlarge": "trn3",
    "trn3s.48xlarge": "trn3",
    "trn3-dev0.48xlarge": "trn3pds",
    "trn3-dev1.48xlarge": "trn3pds",
}

FIRST_AND_LAST_EFA = {
    "trn1": ("0000:10:1a.0", "0000:a0:19.0"),
    "trn1n": ("0000:10:17.0", "0000:a0:18.0"),
    "trn2": ("0000:c9:00.0", "0000:f6:00.0"),
    "trn3": ("0000:be:00.0", "0000:eb:00.0"),
    "trn3pds": ("0000:a9:00.0", "0000:8d:00.0"),
}

paired_names = st.sampled_from(sorted(FAMILY))


@pytest.mark.parametrize("name", FAMILY)
def test_group_ids_are_those_of_the_vendor(name: str) -> None:
    row = INSTANCE_TYPES[name]
    by_size = dict(zip((4, 8, 16), (ids.split() for ids in EXPECTED[FAMILY[name]]), strict=True))
    for index in range(16):
        found = device_group_ids(row, index)
        assert {size: found[size] for size in by_size} == {size: ids[index // size] for size, ids in by_size.items()}
    assert (device_group_ids(row, 0)[1], device_group_ids(row, 15)[1]) == FIRST_AND_LAST_EFA[FAMILY[name]]


def test_only_types_that_the_vendor_pairs_with_efa_have_groups() -> None:
    assert {name for name, row in INSTANCE_TYPES.items() if device_group_ids(row, 0)} == set(FAMILY)
    assert all(groups(row) == () for name, row in INSTANCE_TYPES.items() if name not in FAMILY)


@given(paired_names, st.integers(0, 15), st.integers(0, 15))
def test_ids_are_equal_within_a_block_and_different_across_blocks(name: str, first: int, second: int) -> None:
    row = INSTANCE_TYPES[name]
    one, other = device_group_ids(row, first), device_group_ids(row, second)
    assert tuple(one) == GROUP_SIZES
    for size in (4, 8, 16):
        assert (one[size] == other[size]) == (first // size == second // size)


@given(paired_names, st.integers().filter(lambda index: not 0 <= index < 16))
def test_a_device_that_the_pairing_does_not_know_has_no_group(name: str, index: int) -> None:
    assert device_group_ids(INSTANCE_TYPES[name], index) == {}


def test_the_order_of_the_efa_devices_does_not_matter_and_shared_ones_count_once() -> None:
    row = INSTANCE_TYPES["trn1.32xlarge"]
    assert row.efa_bdfs is not None
    turned = replace(row, efa_bdfs=row.efa_bdfs[::-1])
    assert device_group_ids(turned, 0)[16] == device_group_ids(row, 0)[16]
    assert device_group_ids(turned, 0)[4] == device_group_ids(row, 15)[4]


@given(paired_names)
def test_groups_of_one_size_cover_every_device_once(name: str) -> None:
    found = groups(INSTANCE_TYPES[name])
    for size in GROUP_SIZES:
        members = [index for group in found if group.size == size for index in group.devices]
        assert sorted(members) == list(range(16))


def test_a_row_is_a_connected_run_and_a_whole_group() -> None:
    chosen = select(INSTANCE_TYPES["trn2.48xlarge"], [7, 4, 6, 5])
    assert chosen.devices == (4, 5, 6, 7)
    assert (chosen.connected, chosen.offered, chosen.run, chosen.is_group) == (True, True, True, True)
    assert chosen.group is not None
    assert (chosen.group.attribute, chosen.group.id) == ("devicegroup4_id", "671622785349fddf")


def test_a_column_is_connected_but_neither_offered_nor_a_run_nor_a_small_group() -> None:
    chosen = select(INSTANCE_TYPES["trn2.48xlarge"], (0, 4, 8, 12))
    assert (chosen.connected, chosen.offered, chosen.run, chosen.is_group) == (True, False, False, False)
    assert chosen.group is not None
    assert chosen.group.size == 16


def test_two_devices_of_a_row_lie_in_its_group_without_being_it() -> None:
    chosen = select(INSTANCE_TYPES["trn1.32xlarge"], (0, 2))
    assert (chosen.connected, chosen.run, chosen.is_group) == (False, False, False)
    assert chosen.group is not None
    assert chosen.group.devices == (0, 1, 2, 3)


def test_two_devices_that_share_an_efa_device_are_a_group_of_one_only_for_themselves() -> None:
    row = INSTANCE_TYPES["trn1.32xlarge"]
    single, pair = select(row, [0]).group, select(row, [0, 1]).group
    assert single is not None
    assert pair is not None
    assert (single.size, single.devices, single.id) == (1, (0, 1), "0000:10:1a.0")
    assert pair.size == 4


def test_a_set_around_the_end_of_a_ring_is_connected_and_no_run() -> None:
    chosen = select(INSTANCE_TYPES["inf2.48xlarge"], (11, 0))
    assert (chosen.connected, chosen.offered, chosen.run, chosen.group) == (True, True, False, None)


def test_where_the_fabric_is_unknown_connection_is_not_claimed() -> None:
    row = INSTANCE_TYPES["trn2en.24xlarge"]
    assert select(row, (0, 1)).connected is None
    assert select(row, (0,)).connected is True


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("trn2.48xlarge", ()),
        ("trn2.48xlarge", (3, 16)),
        ("trn2.48xlarge", (3, -1)),
        ("trn2.48xlarge", (3, 5, 3)),
        ("trn2p.48xlarge", (0,)),
    ],
)
def test_an_impossible_set_is_refused(name: str, devices: tuple[int, ...]) -> None:
    with golden_error(DriverError):
        select(INSTANCE_TYPES[name], devices)


@given(st.sampled_from([row for row in INSTANCE_TYPES.values() if row.devices]), st.data())
def test_an_offered_set_is_always_connected_and_a_whole_group_is_always_a_run(
    row: InstanceType, data: st.DataObject
) -> None:
    devices = data.draw(st.sets(st.integers(0, row.fabric.size - 1), min_size=1))
    chosen = select(row, devices)
    assert chosen.devices == tuple(sorted(devices))
    assert not chosen.offered or chosen.connected
    assert not chosen.is_group or chosen.run
    assert chosen.group is None or set(devices) <= set(chosen.group.devices)

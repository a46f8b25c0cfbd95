"""What hardware can be offered as: each device's parts follow from its name."""

from __future__ import annotations

from itertools import combinations, groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES, InstanceType
from dra_driver.neuron.topology.partitions import HardwarePart, Partitions, devices, group_sizes, overlap, parts_of
from dra_driver.util.errors import DriverError
from tests.golden import golden_error

ALL = Partitions(chip=True, group=True, node=True, core=True)
TYPES = [kind for kind in INSTANCE_TYPES.values() if kind.devices]


def made(kind: InstanceType, partitions: Partitions, size: int | None = None) -> tuple[str, ...]:
    found = devices(
        range(kind.devices or 0), kind.fabric, kind.cores_per_device, partitions, lambda _: size or kind.default_lnc
    )
    return tuple(device.name for device in found)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_the_parts_of_a_device_follow_from_its_name(kind: InstanceType) -> None:
    chips = range(kind.devices or 0)
    for size in kind.lnc_values:
        found = devices(chips, kind.fabric, kind.cores_per_device, ALL, lambda _, size=size: size)  # type: ignore[misc]
        assert len({device.name for device in found}) == len(found)
        for device in found:
            assert parts_of(device.name, chips, lambda _, size=size: size) == device.parts  # type: ignore[misc]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_the_cores_of_a_node_are_all_its_cores_once(kind: InstanceType) -> None:
    chips = range(kind.devices or 0)
    for size in kind.lnc_values:
        found = devices(chips, kind.fabric, kind.cores_per_device, Partitions(core=True), lambda _, size=size: size)  # type: ignore[misc]
        physical = [(part.chip, core) for device in found for part in device.parts for core in part.cores]
        assert sorted(physical) == [(c, n) for c in chips for n in range(kind.cores_per_device)]
        assert not overlap(found)


def test_a_torus_has_rows_and_pairs_of_rows_as_groups() -> None:
    trn2 = INSTANCE_TYPES["trn2.48xlarge"]
    assert made(trn2, Partitions(group=True)) == (
        *(f"neuron-group4-{row}" for row in range(4)),
        "neuron-group8-0",
        "neuron-group8-1",
    )
    assert made(trn2, Partitions.parse("group8")) == ("neuron-group8-0", "neuron-group8-1")


def test_a_ring_has_windows_at_every_start_but_none_across_its_end() -> None:
    inf2 = INSTANCE_TYPES["inf2.48xlarge"]
    assert group_sizes(inf2.fabric) == tuple(range(2, 12))
    assert made(inf2, Partitions.parse("group3")) == tuple(f"neuron-window3-{start}" for start in range(10))


def test_a_group_or_a_node_is_offered_only_whole() -> None:
    trn2 = INSTANCE_TYPES["trn2.48xlarge"]
    there = [index for index in range(16) if index != 5]
    names = [device.name for device in devices(there, trn2.fabric, 8, Partitions(group=True, chip=True), lambda _: 2)]
    assert "neuron-group4-1" not in names
    assert "neuron-group8-0" not in names
    assert "neuron-group4-0" in names


@given(
    st.text(max_size=40)
    | st.from_regex(r"neuron-(device|core|group|window)[0-9]{0,4}(-[0-9]{1,7}){0,3}", fullmatch=True)
)
def test_a_name_from_anywhere_has_few_parts_or_none(name: str) -> None:
    parts = parts_of(name, range(16), lambda _: 2)
    assert parts is None or 0 < len(parts) < 100


@given(
    st.lists(st.sampled_from(["chip", "core", "group", "node", "group2", "group4", "group16"]), min_size=1, unique=True)
)
def test_a_setting_is_read_as_it_is_printed(words: list[str]) -> None:
    partitions = Partitions.parse(".".join(words))
    assert Partitions.parse(str(partitions)) == partitions


@pytest.mark.parametrize(
    "text", ["", ".", "chip,core", "chips", "group1", "group0", "group-4", "node core", "core,\n,x"]
)
def test_a_wrong_setting_is_refused_with_what_there_is(text: str) -> None:
    with golden_error(DriverError):
        Partitions.parse(text)


@given(st.sets(st.sampled_from(["chip", "core", "group4", "node"]), min_size=1))
def test_only_a_single_partition_has_no_overlaps(words: set[str]) -> None:
    trn2 = INSTANCE_TYPES["trn2.48xlarge"]
    found = devices(range(16), trn2.fabric, 8, Partitions.parse(".".join(words)), lambda _: 2)
    pairs = combinations([device.parts for device in found], 2)
    assert overlap(found) == any(a.overlaps(b) for one, other in pairs for a in one for b in other)
    assert overlap(found) == (len(words) > 1)


def test_parts_overlap_by_core() -> None:
    assert HardwarePart(3).overlaps(HardwarePart(3, (1,)))
    assert HardwarePart(3, (0, 1)).overlaps(HardwarePart(3, (1,)))
    assert not HardwarePart(3, (0, 1)).overlaps(HardwarePart(3, (2, 3)))
    assert not HardwarePart(3).overlaps(HardwarePart(4))


@pytest.mark.parametrize(
    ("name", "said", "first"),
    [
        ("trn2.48xlarge", "chip.core.group.node", ["group4", "group8", "device", "node", "core"]),
        ("trn2.48xlarge", "chip.node", ["device", "node"]),
        ("inf2.48xlarge", "chip.group4.node", ["window4", "device", "node"]),
        ("inf2.48xlarge", "chip.group2.group3.node", ["device", "window2", "window3", "node"]),
    ],
)
def test_what_there_is_little_of_comes_first_and_the_node_after_all_chips(
    name: str, said: str, first: list[str]
) -> None:
    kind = INSTANCE_TYPES[name]
    found = devices(range(kind.fabric.size), kind.fabric, 8, Partitions.parse(said), lambda _: 2)
    kinds = [device.name.split("-")[1] for device in found]
    assert list(dict.fromkeys(kinds)) == first
    assert [kind for kind, _ in groupby(kinds)] == first, "each kind stands together"


def test_a_lost_chip_changes_no_order() -> None:
    kind = INSTANCE_TYPES["trn2.48xlarge"]
    partitions = Partitions(chip=True, group=True, node=True)
    whole = [device.name for device in devices(range(16), kind.fabric, 8, partitions, lambda _: 2)]
    for lost in range(1, 16):
        left = [device.name for device in devices(range(lost), kind.fabric, 8, partitions, lambda _: 2)]
        assert left == [name for name in whole if name in left]

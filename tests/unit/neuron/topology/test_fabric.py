"""Links, connected sets and runs of every fabric, against the kernel driver's tables and as properties."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dra_driver.neuron.topology.fabric import (
    Chain,
    Fabric,
    Ring,
    Single,
    Switched,
    Torus2D,
    Unknown,
    aligned_blocks,
    is_run,
)
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.util.errors import DriverError
from tests.golden import golden_error

# Neighbours of device 0, 1, ... in the order in which the Neuron kernel driver prints `connected_devices`.
PRINTED_BY_KERNEL_DRIVER = {
    "trn1.32xlarge": (
        "12,3,4,1 13,0,5,2 14,1,6,3 15,2,7,0 0,7,8,5 1,4,9,6 2,5,10,7 3,6,11,4 "
        "4,11,12,9 5,8,13,10 6,9,14,11 7,10,15,8 8,15,0,13 9,12,1,14 10,13,2,15 11,14,3,12"
    ),
    "trn2.48xlarge": (
        "12,1,3,4 0,13,5,2 14,3,1,6 2,15,7,0 8,5,7,0 4,9,1,6 10,7,5,2 6,11,3,4 "
        "4,9,11,12 8,5,13,10 6,11,9,14 10,7,15,8 0,13,15,8 12,1,9,14 2,15,13,10 14,3,11,12"
    ),
    "inf2.48xlarge": "11,1 0,2 1,3 2,4 3,5 4,6 5,7 6,8 7,9 8,10 9,11 10,0",
    "inf2.24xlarge": "1 0,2 1,3 2,4 3,5 4",
    "inf1.6xlarge": "1 2,0 3,1 2",
}

sizes = st.integers(min_value=1, max_value=20)
fabrics: st.SearchStrategy[Fabric] = st.one_of(
    st.builds(Torus2D, st.integers(1, 5), st.integers(1, 5)),
    st.builds(Ring, sizes),
    st.builds(Chain, sizes),
    st.builds(Switched, sizes),
    st.just(Single()),
    st.builds(Unknown, st.integers(0, 20)),
)


@pytest.mark.parametrize("name", PRINTED_BY_KERNEL_DRIVER)
def test_neighbours_are_those_of_the_kernel_driver_in_ascending_order(name: str) -> None:
    printed = [tuple(sorted(map(int, row.split(",")))) for row in PRINTED_BY_KERNEL_DRIVER[name].split()]
    fabric = INSTANCE_TYPES[name].fabric
    assert [fabric.neighbours(index) for index in range(fabric.size)] == printed


@given(fabrics)
def test_links_lead_both_ways_and_never_to_the_chip_itself(fabric: Fabric) -> None:
    for index in range(fabric.size):
        neighbours = fabric.neighbours(index)
        assert index not in neighbours
        assert list(neighbours) == sorted(set(neighbours))
        assert all(index in fabric.neighbours(other) for other in neighbours)


@given(fabrics, st.integers(-2, 25))
def test_connected_sets_are_distinct_ascending_and_of_the_right_size(fabric: Fabric, size: int) -> None:
    sets = fabric.connected_sets(size)
    assert len(set(sets)) == len(sets)
    for members in sets:
        assert len(members) == size
        assert list(members) == sorted(set(members))
        assert fabric.is_connected(members)
    assert (size in fabric.set_sizes()) == bool(sets)


@given(fabrics, st.integers(1, 25))
def test_usable_sets_are_the_connected_sets_that_are_runs(fabric: Fabric, size: int) -> None:
    usable = fabric.usable_sets(size)
    assert set(usable) == {members for members in fabric.connected_sets(size) if members[-1] - members[0] == size - 1}


@given(fabrics)
def test_every_chip_is_a_set_of_its_own_and_all_chips_of_a_known_fabric_are_connected(fabric: Fabric) -> None:
    everything = tuple(range(fabric.size))
    assert fabric.connected_sets(1) == tuple((index,) for index in everything)
    if fabric.kind != "unknown":
        assert fabric.is_connected(everything)


@given(fabrics, st.data())
def test_a_set_is_connected_exactly_when_no_cut_separates_it(fabric: Fabric, data: st.DataObject) -> None:
    assume(fabric.adjacency_promised)
    members = data.draw(st.sets(st.integers(0, fabric.size - 1), min_size=1))
    parts = [{index} for index in members]
    for index in members:
        touching = [part for part in parts if index in part or part & set(fabric.neighbours(index))]
        parts = [part for part in parts if part not in touching] + [set().union(*touching)]
    assert fabric.is_connected(members) == (len(parts) == 1)


def test_torus_offers_rows_pairs_of_rows_and_the_whole() -> None:
    torus = Torus2D(4, 4)
    assert torus.set_sizes() == (1, 4, 8, 16)
    assert torus.connected_sets(4) == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
    assert torus.connected_sets(8) == (tuple(range(8)), tuple(range(8, 16)))
    assert torus.connected_sets(16) == (tuple(range(16)),)
    assert torus.connected_sets(2) == ()


def test_torus_knows_other_linked_sets_without_offering_them() -> None:
    torus = Torus2D(4, 4)
    for members in ((1, 2), (9, 10, 13, 14), (0, 4, 8, 12), (0, 3)):
        assert torus.is_connected(members)
        assert members not in torus.connected_sets(len(members))
    assert not torus.is_connected((0, 5))
    assert torus.position(6) == (1, 2)


def test_ring_offers_runs_around_its_end_but_only_plain_runs_are_usable() -> None:
    ring = Ring(12)
    assert (0, 11) in ring.connected_sets(2)
    assert len(ring.connected_sets(2)) == 12
    assert ring.usable_sets(2) == tuple((start, start + 1) for start in range(11))
    assert ring.connected_sets(12) == ring.usable_sets(12) == (tuple(range(12)),)


def test_chain_offers_plain_runs_only() -> None:
    assert Chain(4).connected_sets(2) == Chain(4).usable_sets(2) == ((0, 1), (1, 2), (2, 3))
    assert not Chain(6).is_connected((0, 5))


def test_switch_promises_no_neighbours_and_offers_aligned_blocks() -> None:
    switch = Switched(16)
    assert not switch.adjacency_promised
    assert all(switch.neighbours(index) == () for index in range(16))
    assert switch.set_sizes() == (1, 4, 8, 16)
    assert switch.is_connected((0, 9))
    assert Switched(4).set_sizes() == (1, 4)


def test_no_chips_are_not_connected() -> None:
    assert not Torus2D(4, 4).is_connected(())
    assert not Switched(4).is_connected(())


@given(fabrics, st.integers(-50, 50))
def test_a_chip_that_does_not_exist_is_refused_with_the_legal_range(fabric: Fabric, index: int) -> None:
    assume(not 0 <= index < fabric.size)
    legal = f"from 0 to {fabric.size - 1}" if fabric.size else "not public"
    for question in (fabric.neighbours, lambda wrong: fabric.is_connected([wrong])):
        with pytest.raises(DriverError, match=legal):
            question(index)


@pytest.mark.parametrize("impossible", [lambda: Ring(0), lambda: Chain(-1), lambda: Switched(0), lambda: Torus2D(0, 4)])
def test_a_fabric_without_chips_cannot_be_made(impossible: object) -> None:
    with golden_error(DriverError):
        impossible()  # type: ignore[operator] # parametrize does not carry the types


@given(st.lists(st.integers(0, 30), max_size=6))
def test_a_run_is_consecutive_without_repetition(indexes: list[int]) -> None:
    assert is_run(indexes) == (
        bool(indexes) and sorted(indexes) == list(range(min(indexes), min(indexes) + len(indexes)))
    )


@given(st.integers(1, 40), st.integers(1, 40))
def test_aligned_blocks_cover_everything_once_or_do_not_exist(count: int, size: int) -> None:
    blocks = aligned_blocks(count, size)
    if count % size:
        assert blocks == ()
    else:
        assert [index for block in blocks for index in block] == list(range(count))

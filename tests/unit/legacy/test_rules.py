"""Which sets the extender may give on each instance type, and which one it takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.legacy.rules import (
    BEST_SCORE,
    NeuronResource,
    NodeHardware,
    candidates,
    counts,
    free_candidates,
    hardware,
    least_breaking_first,
    score,
    unbroken_sets,
)
from dra_driver.neuron.topology.fabric import is_run
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.util.errors import DriverError
from tests.golden import golden_error

DEVICE, CORE = NeuronResource.DEVICE, NeuronResource.CORE


def node(name: str, lnc: int | None = None) -> NodeHardware:
    row = INSTANCE_TYPES[name]
    devices = row.devices or 16
    return hardware(name, devices, devices * row.cores_per_device // (lnc or row.default_lnc))


KINDS = [node(name, lnc) for name, row in INSTANCE_TYPES.items() for lnc in row.lnc_values]
kinds = st.sampled_from(KINDS)


def sets(kind: NodeHardware, resource: NeuronResource, count: int) -> list[tuple[int, ...]]:
    return [kind.ids(resource, mask) for mask in candidates(kind, resource, count)]


ALL_UP_TO = {
    "inf1.xlarge": 1,
    "inf1.2xlarge": 1,
    "inf1.6xlarge": 4,
    "inf1.24xlarge": 16,
    "inf2.xlarge": 1,
    "inf2.8xlarge": 1,
    "inf2.24xlarge": 6,
    "inf2.48xlarge": 12,
    "trn1.2xlarge": 1,
    "trn2.3xlarge": 1,
}
ALIGNED = [
    "trn1.32xlarge",
    "trn1n.32xlarge",
    "trn2.48xlarge",
    "trn2u.48xlarge",
    "trn2n.48xlarge",
    "trn2e.48xlarge",
    "trn3.48xlarge",
    "trn3p.48xlarge",
    "trn3s.48xlarge",
    "trn3pd98.48xlarge",
    "trn3-dev0.48xlarge",
    "trn3-dev1.48xlarge",
]


@pytest.mark.parametrize("name", ALL_UP_TO)
def test_rings_and_chains_give_every_count(name: str) -> None:
    assert counts(node(name), DEVICE) == tuple(range(1, ALL_UP_TO[name] + 1))


@pytest.mark.parametrize("name", ALIGNED)
def test_sixteen_devices_give_one_four_eight_and_all(name: str) -> None:
    assert counts(node(name), DEVICE) == (1, 4, 8, 16)


@pytest.mark.parametrize("name", ["trn3e.24xlarge", "trn3e-dev0.24xlarge"])
def test_a_switch_with_four_devices_gives_one_and_all(name: str) -> None:
    assert counts(node(name), DEVICE) == (1, 4)


def test_every_type_was_looked_at() -> None:
    unknown = {name for name, row in INSTANCE_TYPES.items() if row.fabric.kind == "unknown"}
    assert {*ALL_UP_TO, *ALIGNED, "trn3e.24xlarge", "trn3e-dev0.24xlarge"} == INSTANCE_TYPES.keys() - unknown


@pytest.mark.parametrize("name", ["trn3sn.48xlarge", "trn9.96xlarge", ""])
def test_of_a_type_that_is_not_known_one_and_all_are_given(name: str) -> None:
    kind = hardware(name, 16, 64)
    assert counts(kind, DEVICE) == (1, 16)
    assert counts(kind, CORE) == (1, 2, 3, 4, 58, 59, 60, 61, 62, 63, 64)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.instance_type}/{kind.cores}")
def test_runs_of_cores_on_devices_that_form_a_set_are_all_that_is_given(kind: NodeHardware) -> None:
    width, sizes = kind.cores_per_device, counts(kind, DEVICE)
    of_devices = {members for size in sizes for members in sets(kind, DEVICE, size)}
    for count in range(1, kind.cores + 1):
        runs = [range(start, start + count) for start in range(kind.cores - count + 1)]
        right = [run for run in runs if tuple(range(run[0] // width, run[-1] // width + 1)) in of_devices]
        assert sets(kind, CORE, count) == [tuple(run) for run in right]
        assert (count in counts(kind, CORE)) == bool(right)


def test_the_sets_of_a_torus_are_rows_and_pairs_of_rows() -> None:
    kind = node("trn1.32xlarge")
    assert sets(kind, DEVICE, 4) == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15)]
    assert sets(kind, DEVICE, 8) == [tuple(range(8)), tuple(range(8, 16))]


def test_a_ring_gives_runs_and_none_across_its_end() -> None:
    found = sets(node("inf2.48xlarge"), DEVICE, 3)
    assert found == [(start, start + 1, start + 2) for start in range(10)]


def test_a_chain_of_four_with_sixteen_cores_gives_nine_cores_on_three_devices() -> None:
    kind = node("inf1.6xlarge")
    best = least_breaking_first(kind, 0, free_candidates(kind, 0, CORE, 9))[0]
    assert kind.ids(CORE, best) == tuple(range(9))
    assert kind.ids(DEVICE, best) == (0, 1, 2)


def test_cores_on_a_torus_lie_on_one_four_eight_or_sixteen_devices() -> None:
    assert counts(node("trn1.32xlarge"), CORE) == (1, 2, 6, 7, 8, 14, 15, 16, 30, 31, 32)
    # Six cores fit on four devices only where they begin with the second core of the first one.
    assert sets(node("trn1.32xlarge"), CORE, 6)[:2] == [tuple(range(1, 7)), tuple(range(9, 15))]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.instance_type}x{kind.cores_per_device}")
@pytest.mark.parametrize("resource", NeuronResource)
def test_each_set_has_the_count_is_a_run_and_its_devices_are_a_set(
    kind: NodeHardware, resource: NeuronResource
) -> None:
    possible = counts(kind, resource)
    assert possible[0] == 1
    assert possible[-1] == kind.units(resource), "one or all is always valid"
    for count in possible:
        for ids in sets(kind, resource, count):
            assert len(ids) == count
            assert is_run(ids)
            devices = kind.ids(DEVICE, kind.mask(resource, ids))
            assert devices in kind.fabric.connected_sets(len(devices)) or len(devices) == kind.devices


@pytest.mark.parametrize("count", [-1, 0, 17, 10**9])
def test_counts_that_no_node_can_have_give_nothing(count: int) -> None:
    assert candidates(node("trn1.32xlarge"), DEVICE, count) == ()


@given(kinds, st.data())
def test_masks_and_ids_are_each_others_inverse(kind: NodeHardware, data: st.DataObject) -> None:
    resource = data.draw(st.sampled_from(NeuronResource))
    ids = data.draw(st.sets(st.integers(0, kind.units(resource) - 1)))
    assert set(kind.ids(resource, kind.mask(resource, ids))) == ids


@given(kinds, st.data())
def test_the_choice_keeps_as_many_large_sets_whole_as_any_could(kind: NodeHardware, data: st.DataObject) -> None:
    resource = data.draw(st.sampled_from(NeuronResource))
    taken = data.draw(st.integers(0, (1 << kind.cores) - 1))
    taken &= data.draw(st.integers(0, (1 << kind.cores) - 1))
    count = data.draw(st.sampled_from(counts(kind, resource)))
    free = free_candidates(kind, taken, resource, count)
    assert all(not mask & taken for mask in free)
    if free:
        best = unbroken_sets(kind, taken | least_breaking_first(kind, taken, free)[0])
        assert best == max(unbroken_sets(kind, taken | mask) for mask in free)
        assert 0 <= score(kind, taken, taken | free[0]) <= BEST_SCORE


def chosen(kind: NodeHardware, taken: list[int], count: int, resource: NeuronResource = DEVICE) -> tuple[int, ...]:
    mask = kind.mask(resource, taken)
    return kind.ids(resource, least_breaking_first(kind, mask, free_candidates(kind, mask, resource, count))[0])


def test_a_single_device_is_taken_from_the_row_that_is_broken_already() -> None:
    assert chosen(node("trn1.32xlarge"), [13], 1) == (14,)


def test_a_row_is_taken_from_the_half_that_is_broken_already() -> None:
    assert chosen(node("trn2.48xlarge"), [8], 4) == (12, 13, 14, 15)


def test_a_run_fills_the_hole_that_it_fits_in() -> None:
    assert chosen(node("inf2.48xlarge"), [5, 8], 2) == (6, 7)


def test_a_run_is_taken_from_an_end() -> None:
    assert chosen(node("inf2.48xlarge"), [], 5) == (0, 1, 2, 3, 4)


def test_a_core_is_taken_from_a_device_in_use() -> None:
    assert chosen(node("inf2.48xlarge"), [11], 1, CORE) == (10,)


@pytest.mark.parametrize(
    ("taken", "count", "points"),
    [
        ([], 16, 10),  # nothing larger than itself
        ([], 1, 0),  # an empty node
        ([1, 2, 3], 1, 10),  # the last of its row
        ([0], 8, 10),
        ([0], 4, 10),  # the row beside the broken one
    ],
)
def test_a_node_scores_by_the_largest_set_that_is_broken(taken: list[int], count: int, points: int) -> None:
    kind = node("trn1.32xlarge")
    before = kind.mask(DEVICE, taken)
    after = before | kind.mask(DEVICE, chosen(kind, taken, count))
    assert score(kind, before, after) == points


def test_a_broken_row_beats_a_whole_row_beats_a_half_beats_a_whole_node() -> None:
    kind = node("trn2.48xlarge")

    def points(taken: list[int]) -> int:
        before = kind.mask(DEVICE, taken)
        return score(kind, before, before | kind.mask(DEVICE, chosen(kind, taken, 1)))

    assert points([1, 2, 3]) > points([*range(4, 16)]) > points([*range(8, 16)]) > points([])


@pytest.mark.parametrize(
    ("name", "devices", "cores"),
    [
        ("trn1.32xlarge", 15, 30),
        ("trn1.32xlarge", 16, 33),
        ("trn1.32xlarge", 16, 64),
        ("", 65, 0),
        ("trn9.96xlarge", 2, 32),
        ("m5.large", 0, 0),
    ],
)
def test_a_capacity_that_cannot_be_is_refused(name: str, devices: int, cores: int) -> None:
    with golden_error(DriverError):
        hardware(name, devices, cores)


def test_cores_follow_the_nodes_logical_core_size() -> None:
    assert hardware("ml.trn2.48xlarge", 16, 64).cores_per_device == 4
    assert hardware("trn2.48xlarge", 16, 128).cores_per_device == 8
    assert hardware("trn2.48xlarge", 16, 0).cores_per_device == 4
    assert hardware("inf1.6xlarge", 0, 16).devices == 4

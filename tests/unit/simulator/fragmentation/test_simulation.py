from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import factorial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.simulator.allocator import World
from dra_driver.simulator.fragmentation import POLICIES, Policy, Site, simulate
from dra_driver.simulator.fragmentation.cluster import claim_for
from dra_driver.simulator.fragmentation.record import Free, Meter, free_on
from dra_driver.simulator.fragmentation.scenario import Exponential, Fixed, Kind, Workload, arrivals
from dra_driver.simulator.fragmentation.simulation import claims_of
from dra_driver.topology.instance_types import INSTANCE_TYPES
from dra_driver.util.errors import DriverError
from tests.builders.workload import cluster, workload

WORLD, PAIR = cluster(("trn2.48xlarge", 2))
ONE = PAIR[:1]
masks = st.integers(0, (1 << 16) - 1)
LOWEST = POLICIES["lowest-id"]


def mask_of(members: tuple[int, ...]) -> int:
    return sum(1 << member for member in members)


def free_sets(free: int, size: int) -> list[int]:
    """As the topology table has them, not as the slices publish them."""
    found = map(mask_of, INSTANCE_TYPES["trn2.48xlarge"].fabric.usable_sets(size))
    return [mask for mask in found if mask & free == mask]


def test_the_same_seed_gives_the_same_pods_and_another_seed_others() -> None:
    stream = workload()
    assert list(arrivals(stream, 7)) == list(arrivals(stream, 7))
    assert list(arrivals(stream, 7)) != list(arrivals(stream, 8))


def test_pods_arrive_in_order_as_often_as_the_workload_says() -> None:
    stream = workload()
    found = [item for seed in range(20) for item in arrivals(stream, seed)]
    assert all(0 <= item.hour < stream.length for item in found)
    assert abs(len(found) / (20 * stream.length * stream.per_hour) - 1) < 0.02
    weights = {kind.name: kind.weight / 9.5 for kind in stream.kinds}
    for name, weight in weights.items():
        assert abs(sum(item.kind.name == name for item in found) / len(found) - weight) < 0.01


@given(masks)
def test_a_free_chip_is_usable_when_it_is_in_a_free_set(free: int) -> None:
    found = free_on(PAIR[0], free)
    members = {
        size: {chip for mask in free_sets(free, size) for chip in range(16) if mask >> chip & 1} for size in (4, 8, 16)
    }
    count = free.bit_count()
    assert found.chips == found.measured == count
    assert found.unusable == count - len(set.union(*members.values()))
    assert found.outside == tuple(count - len(members[size]) for size in (4, 8, 16))
    assert found.eligible == (count,) * 3


def test_nodes_without_sets_do_not_count_as_broken_up() -> None:
    _, (single,) = cluster(("trn1.2xlarge", 1))
    found = free_on(single, 1)
    assert (found.chips, found.measured, found.unusable) == (1, 0, 0)
    _, (ring,) = cluster(("inf2.48xlarge", 1))
    found = free_on(ring, 0b1111_0111_0001)
    assert (found.unusable, found.outside, found.eligible) == (4, (4, 0, 0), (8, 0, 0))


@given(masks)
def test_the_first_free_device_of_broken_sets_first_breaks_no_more_sets_than_any_other(free: int) -> None:
    order = POLICIES["broken-sets-first"].devices(PAIR[0], free)
    assert sorted(order) == list(range(16))

    def harm(chip: int) -> list[int]:
        return [sum(mask >> chip & 1 for mask in free_sets(free, size)) for size in (16, 8, 4)]

    candidates = [chip for chip in order if free >> chip & 1]
    if candidates:
        assert harm(candidates[0]) == min(map(harm, candidates))


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=10)
@given(seed=st.integers(0, 1 << 40), rate=st.sampled_from([0.5, 3, 12]))
def test_whatever_the_policy_every_pod_is_placed_or_refused_and_figures_are_shares(
    name: str, seed: int, rate: float
) -> None:
    kinds = tuple(Kind(f"of-{count}", 1, Exponential(3), count) for count in (1, 4, 8, 16))
    stream = Workload(kinds, rate, length=24, warm_up=6)
    run = simulate(stream, PAIR, WORLD, POLICIES[name], seed)
    came = [item for item in arrivals(stream, seed) if item.hour >= 6]
    for kind in kinds:
        outcome = run.outcomes[kind.name]
        assert outcome.placed + outcome.refused == sum(item.kind is kind for item in came)
        assert outcome.refused_with_chips_free <= outcome.refused
    assert not run.reasons
    shares = [run.utilisation, run.fragmentation, *run.outside.values()]
    shares += [value for item in run.moments for value in (item.utilisation, item.fragmentation)]
    assert all(-1e-9 <= value <= 1 + 1e-9 for value in shares)
    assert run.fragmentation <= min(run.outside.values()) + 1e-9
    assert run == simulate(stream, PAIR, WORLD, POLICIES[name], seed)


def erlang(servers: int, load: float) -> float:
    """Share of calls that find all lines busy."""
    return (load**servers / factorial(servers)) / sum(load**count / factorial(count) for count in range(servers + 1))


@pytest.mark.parametrize(("count", "load"), [(1, 14), (4, 3), (8, 2), (16, 1)])
def test_pods_of_one_kind_are_refused_as_often_as_queueing_theory_says(count: int, load: float) -> None:
    stream = Workload((Kind("only", 1, Exponential(1), count),), load, length=4000 / load, warm_up=50)
    run = simulate(stream, ONE, WORLD, LOWEST, 1)
    refused = run.refused / (run.placed + run.refused)
    expected = erlang(16 // count, load)
    assert abs(refused - expected) < 0.03
    assert abs(run.utilisation - load * (1 - expected) / (16 // count)) < 0.03
    assert run.outcomes["only"].refused_with_chips_free == 0


def test_chips_are_given_by_lowest_id_on_the_first_node_by_name() -> None:
    seen: list[tuple[str, int]] = []

    def watching(site: Site, free: int, count: float | None) -> tuple[float, ...]:
        seen.append((site.node.name, free))
        return ()

    stream = Workload((Kind("only", 1, Fixed(1000), 4),), 1, length=12)
    run = simulate(stream, PAIR, WORLD, Policy("watching", LOWEST.devices, watching, ""), 3)
    states = [dict(seen[place : place + 2]) for place in range(0, len(seen), 2)]
    first, second = (site.node.name for site in PAIR)
    for number, state in enumerate(states):
        assert state[first] == 0xFFFF & ~((1 << 4 * min(number, 4)) - 1)
        assert state[second] == 0xFFFF & ~((1 << 4 * min(max(number - 4, 0), 4)) - 1)
    assert run.placed == min(8, len(states))


def test_singles_fill_what_is_broken_when_broken_sets_come_first() -> None:
    """One row leaves early; afterwards a single chip does not break it, as it does by lowest id."""
    site = PAIR[0]
    free = 0xFFFF & ~mask_of((4,))
    lowest, broken = (POLICIES[name].devices(site, free) for name in ("lowest-id", "broken-sets-first"))
    assert lowest[0] == 0
    assert next(chip for chip in broken if free >> chip & 1) == 5


@pytest.mark.parametrize("node_order", ["lowest-id-spread", "lowest-id-packed"])
def test_the_order_of_nodes_spreads_or_packs(node_order: str) -> None:
    order = POLICIES[node_order].nodes
    empty, half = order(PAIR[0], 0xFFFF, 4), order(PAIR[1], 0xFF, 4)
    assert (empty < half) == (node_order == "lowest-id-spread")


@given(masks, st.sampled_from([1, 2, 4, 8, 16]))
def test_the_fitting_node_is_the_one_that_loses_the_fewest_large_sets(free: int, count: int) -> None:
    key = POLICIES["broken-sets-first-fitting"].nodes(PAIR[0], free, count)
    options = free_sets(free, count) if count > 2 else list(subsets(free, count))
    sizes = [size for size in (16, 8, 4) if size > count]
    losses = [tuple(len(free_sets(free, z)) - len(free_sets(free & ~mask, z)) for z in sizes) for mask in options]
    # Two chips are no set: they are the first ones in the order of the devices, which is not always their best place.
    assert (key == (float("inf"),)) == (not options)
    if options and count != 2:
        assert key == min(losses)
    elif options:
        assert key in losses


def subsets(free: int, count: int) -> Iterator[int]:
    chips = [chip for chip in range(16) if free >> chip & 1]
    return (mask_of(members) for members in combinations(chips, count))


def test_a_pod_of_unknown_size_goes_to_the_first_node_by_name() -> None:
    assert POLICIES["broken-sets-first-fitting"].nodes(PAIR[0], 0, None) == ()


def test_figures_are_means_over_time_without_the_warm_up() -> None:
    meter = Meter(16, free_on(ONE[0], 0xFFFF), length=10, warm_up=2)
    for hour, before, after in ((1, 0xFFFF, 0x0), (4, 0x0, 0x1FF), (8, 0x1FF, 0xFFFF)):
        meter.advance(hour)
        meter.change(free_on(ONE[0], before), free_on(ONE[0], after))
    meter.advance(10)
    utilisation, fragmentation, outside = meter.figures()
    free = 4 * 9 + 2 * 16
    assert utilisation == pytest.approx(1 - free / (8 * 16))
    assert fragmentation == pytest.approx(4 * 1 / free)
    assert outside == pytest.approx({4: 4 / free, 8: 4 / free, 16: 4 * 9 / free})
    moments = meter.moments()
    assert [moments[place].utilisation for place in (0, 11, 12, 47, 48, 95, 96)] == pytest.approx(
        [0, 0, 1, 1, 7 / 16, 7 / 16, 0]
    )
    assert moments[-1].hour == pytest.approx(10)


def test_nothing_free_is_no_fragmentation() -> None:
    meter = Meter(16, Free(), length=1, warm_up=0)
    meter.advance(1)
    assert meter.figures() == (1, 0, {4: 0, 8: 0, 16: 0})


@pytest.mark.parametrize(
    ("types", "count", "attribute"),
    [
        (["trn2.48xlarge"], 4, "resource.aws.com/devicegroup4_id"),
        (["trn1.32xlarge", "trn2.48xlarge"], 16, "resource.aws.com/devicegroup16_id"),
        (["inf2.48xlarge"], 3, "neuron.aws.com/segment3_id"),
        (["inf2.48xlarge", "trn2.48xlarge"], 8, "resource.aws.com/devicegroup8_id"),
        (["trn2.48xlarge"], 1, None),
    ],
)
def test_a_count_becomes_the_claim_that_asks_for_a_connected_set(
    types: list[str], count: int, attribute: str | None
) -> None:
    _, where = cluster(*((kind, 1) for kind in types))
    claim = claim_for(count, where)
    assert [item.exactly.count for item in claim.requests if item.exactly] == [count]
    assert [item.match_attribute for item in claim.constraints] == ([attribute] if attribute else [])


@pytest.mark.parametrize(
    ("types", "count", "says"),
    [
        (
            ["trn2.48xlarge"],
            2,
            "pods: kind odd: count 2: no node has connected sets of this size; .*take a count of 1, 4, 8, 16",
        ),
        (["trn1.2xlarge"], 4, "no node has connected sets of this size; .* take a count of 1$"),
        (["inf2.48xlarge", "trn2.48xlarge"], 4, "differently: .*devicegroup4_id and neuron.aws.com/segment4_id"),
    ],
)
def test_a_count_without_connected_sets_is_refused(types: list[str], count: int, says: str) -> None:
    _, where = cluster(*((kind, 1) for kind in types))
    with pytest.raises(DriverError, match=says):
        claims_of(Kind("odd", 1, Fixed(1), count), where)


@pytest.mark.parametrize(
    ("kind", "cuts", "offers"),
    [("trn2u.48xlarge", "", "itself as one device"), ("trn2.48xlarge", "core,group", "no chips")],
)
def test_a_count_of_chips_is_refused_where_nodes_offer_none(kind: str, cuts: str, offers: str) -> None:
    _, where = cluster((kind, 4), cuts=cuts)
    with pytest.raises(DriverError, match=f"count 4: node node-1 offers {offers}, and a count is one of chips"):
        claims_of(Kind("odd", 1, Fixed(1), 4), where)


def stream_of(*kinds: Kind) -> Workload:
    return Workload(kinds, per_hour=8, length=96, warm_up=4)


def of(device: str, count: int = 1, name: str = "") -> Kind:
    return Kind(name or device, 1, Exponential(3), count, device=device)


def test_devices_of_all_kinds_share_the_hardware() -> None:
    world, where = cluster(("trn2.48xlarge", 2), cuts="chip,core,group,node")
    loads = []

    def watching(site: Site, free: int, count: float | None) -> tuple[float, ...]:
        loads.append((free, count))
        return ()

    kinds = (of("chip"), of("core", 2), of("group4"), of("group8"), of("node"))
    stream = Workload(kinds, per_hour=2, length=300, warm_up=4)
    run = simulate(stream, where, world, Policy("watching", LOWEST.devices, watching, ""), 5)
    assert {count for _, count in loads} == {1, 0.5, 4, 8, None}
    assert all(item.placed for item in run.outcomes.values())
    assert 0 < run.utilisation < 1


def test_cores_in_use_make_their_chip_no_longer_whole_but_not_used_up() -> None:
    world, where = cluster(("trn2.48xlarge", 1), cuts="core")
    assert where[0].sets.keys() == {4, 8, 16}, "without chips on offer, as the fabric has them"
    stream = Workload((Kind("one", 1, Fixed(1000), 1, device="core"),), per_hour=40, length=4, warm_up=1)
    run = simulate(stream, where, world, LOWEST, 1)
    assert run.moments[-1].utilisation == 1, "64 cores are 16 chips"
    assert any(0 < moment.utilisation < 1 / 16 for moment in run.moments), "a part of a chip"
    assert 0 < run.moments[1].fragmentation < 1, "the rest of the chip is in no free set"


def test_chips_by_count_are_sometimes_connected_and_groups_always() -> None:
    world, where = cluster(("trn2.48xlarge", 2), cuts="chip,group")
    loose, groups = (
        simulate(stream_of(of("chip"), kind), where, world, LOWEST, 3).outcomes["four"]
        for kind in (of("chip", 4, "four"), of("group4", 1, "four"))
    )
    assert 0 < loose.connected < loose.linked < loose.several == loose.placed
    assert groups.connected == groups.linked == groups.several == groups.placed > 0


@given(masks)
def test_the_best_cores_are_those_of_chips_in_use(free: int) -> None:
    _, (site,) = cluster(("trn2.48xlarge", 1), cuts="chip,core,group")
    order = POLICIES["broken-sets-first"].devices(site, free)
    names = [site.devices[place] for place in order]
    assert sorted(names) == sorted(site.devices)
    kinds = [name.split("-")[1] for name in names]
    assert kinds == sorted(kinds, key=["group4", "group8", "device", "core"].index), "each kind stays where it was"
    cores = [free >> int(name.split("-")[2]) & 1 for name in names if "-core-" in name]
    assert cores == sorted(cores)


def test_a_kind_that_never_finds_room_is_a_mistake_in_the_workload() -> None:
    without_class = World((), (), WORLD.selectors)
    with pytest.raises(
        DriverError,
        match=r"^workload\.yaml:4: pods\[0\]: kind single finds no room even while .*: .*neuron\.aws\.com",
    ):
        simulate(workload(), PAIR, without_class, LOWEST, 1)


def test_progress_is_told_as_shares_of_the_time() -> None:
    told: list[float] = []
    simulate(workload(), PAIR, WORLD, LOWEST, 1, told.append)
    assert told == sorted(told)
    assert told[0] < 0.1 < 0.9 < told[-1] < 1

"""matchAttribute and distinctAttribute."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from tests.builders.allocator import (
    chips,
    claim,
    device,
    devices,
    different,
    first_of,
    offered,
    refusal,
    request,
    results,
    same,
    subrequest,
    world,
)

BOTH = pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])


def valued(*values: object) -> list[dict[str, Any]]:
    """Devices d0, d1, ... with these values of attribute "v"; None for none."""
    return [device(f"d{place}", attributes={} if value is None else {"v": value}) for place, value in enumerate(values)]


LISTS = st.lists(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True) | st.sampled_from("abcd"), max_size=6
)


@for_all(LISTS, st.integers(1, 4), st.booleans())
def test_of_lists_one_value_is_common_to_all_devices_or_none_to_two(values: list[Any], count: int, alike: bool) -> None:
    """KEP-5491: a list has each of its values; the first solution in device order is taken."""
    given = [
        device(f"d{at}", attributes={"v": {"strings": each} if isinstance(each, list) else each})
        for at, each in enumerate(values)
    ]
    sets = [frozenset(each) for each in values]

    def holds(chosen: tuple[int, ...]) -> bool:
        if alike:
            return bool(frozenset.intersection(*(sets[at] for at in chosen)))
        return all(sets[one].isdisjoint(sets[other]) for one, other in combinations(chosen, 2))

    expected = next((chosen for chosen in combinations(range(len(values)), count) if holds(chosen)), None)
    asked = claim(request(count=count), constraints=[same("v") if alike else different("v")])
    cluster = world(offered(*given), kubernetes="1.37")
    if expected is None:
        refusal(cluster, asked)
    else:
        assert devices(cluster, asked) == [f"d{at}" for at in expected]


def test_matching_devices_have_one_value() -> None:
    cluster = world(offered(*valued(1, 2, 1)))
    assert devices(cluster, claim(request(count=2), constraints=[same("v")])) == ["d0", "d2"]


@BOTH
def test_a_constraint_may_name_an_alternative_of_a_request(kubernetes: str) -> None:
    cluster = world(offered(*valued(1, 2, 1)), kubernetes=kubernetes)
    asked = first_of("r", subrequest("pair", 2))
    assert devices(cluster, claim(asked, constraints=[same("v", "r/pair")])) == ["d0", "d2"]
    assert devices(cluster, claim(asked, constraints=[same("v", "r/other")])) == ["d0", "d1"]


@pytest.mark.parametrize(
    ("first", "second", "matches"),
    [
        ("a", "a", True),
        ("a", "b", False),
        (True, True, True),
        (True, False, False),
        (1, 1, True),
        (1, True, False),
        ("1", 1, False),
        ({"version": "1.0.0"}, {"version": "1.0.0"}, True),
        ({"version": "1.0.0"}, {"version": "1.0.1"}, False),
        ({"version": "1.0.0"}, "1.0.0", False),
    ],
)
@BOTH
def test_values_match_when_type_and_value_are_equal(
    first: object, second: object, matches: bool, kubernetes: str
) -> None:
    cluster = world(offered(*valued(first, second)), kubernetes=kubernetes)
    pair = claim(request(count=2), constraints=[same("v")])
    other = claim(request(count=2), constraints=[different("v")])
    assert devices(cluster, pair if matches else other) == ["d0", "d1"]
    assert not refusal(cluster, other if matches else pair).fatal


@BOTH
@pytest.mark.parametrize("constraint", [same("v"), different("v"), same("none")])
def test_a_device_without_the_attribute_is_not_taken(constraint: dict[str, object], kubernetes: str) -> None:
    cluster = world(offered(*valued(None)), kubernetes=kubernetes)
    assert not refusal(cluster, claim(request(), constraints=[constraint])).fatal


def test_an_attribute_can_be_published_with_its_domain() -> None:
    cluster = world(
        offered(device("a", attributes={"a.example/v": 1}), device("b", attributes={"v": 1})),
        offered(device("c", attributes={"a.example/v": 1}), device("d", attributes={"v": 1}), driver="b.example"),
    )
    assert devices(cluster, claim(request(count=3), constraints=[same("v")])) == ["a", "b", "c"]


def test_an_attribute_of_an_unknown_type_matches_none() -> None:
    cluster = world(offered(*valued({}, {})))
    assert devices(cluster, claim(request(), constraints=[same("v")])) == ["d0"]
    assert not refusal(cluster, claim(request(count=2), constraints=[same("v")])).fatal
    assert not refusal(cluster, claim(request(count=2), constraints=[different("v")])).fatal


def test_a_constraint_covers_the_requests_that_it_names() -> None:
    cluster = world(offered(*valued(1, 2, 1)))
    three = (request("x"), request("y"), request("z"))
    assert devices(cluster, claim(*three, constraints=[same("v", "x", "z")])) == ["d0", "d1", "d2"]
    assert not refusal(cluster, claim(*three, constraints=[same("v")])).fatal


def test_a_constraint_covers_all_subrequests_of_a_request_or_the_one_it_names() -> None:
    cluster = world(offered(*valued(1, 2)))
    pair = claim(first_of("x", subrequest("one", 2), subrequest("two", 1)), constraints=[same("v", "x")])
    (result,) = results(cluster, pair)
    assert [item.request for item in result.devices.results] == ["x/two"]
    named = claim(first_of("x", subrequest("one", 2), subrequest("two", 1)), constraints=[same("v", "x/two")])
    (result,) = results(cluster, named)
    assert [item.request for item in result.devices.results] == ["x/one", "x/one"]


def test_several_constraints_hold_together() -> None:
    cluster = world(offered(*chips(16)))
    wanted = claim(request(count=2), constraints=[same("group"), different("index")])
    assert devices(cluster, wanted) == ["chip-00", "chip-01"]
    assert not refusal(cluster, claim(request(count=2), constraints=[same("group"), different("group")])).fatal


def test_a_constraint_of_one_claim_does_not_concern_another() -> None:
    cluster = world(offered(*valued(1, 2)))
    one = claim(request(), constraints=[same("v")])
    assert devices(cluster, one, {**one, "metadata": {"name": "other"}}) == ["d0", "d1"]


@BOTH
def test_distinct_devices_of_different_requests_differ(kubernetes: str) -> None:
    cluster = world(offered(*valued(1, 1, 2)), kubernetes=kubernetes)
    assert devices(cluster, claim(request("x"), request("y"), constraints=[different("v")])) == ["d0", "d2"]


def test_distinct_compares_all_devices_of_a_request_from_1_37_on() -> None:
    three = claim(request(count=3), constraints=[different("v")])
    assert not refusal(world(offered(*valued(1, 2, 1))), three).fatal
    assert devices(world(offered(*valued(1, 2, 1, 3))), three) == ["d0", "d1", "d3"]


def test_until_1_36_distinct_compares_with_the_last_device_of_a_request_only() -> None:
    three = claim(request(count=3), constraints=[different("v")])
    assert devices(world(offered(*valued(1, 2, 1)), kubernetes="1.36"), three) == ["d0", "d1", "d2"]


def test_until_1_36_distinct_forgets_a_request_after_a_step_back() -> None:
    cluster = world(
        offered(
            device("d0", attributes={"v": 1, "w": 1}),
            device("d1", attributes={"v": 2, "w": 2}),
            device("d2", attributes={"v": 1, "w": 1}),
        ),
        kubernetes="1.36",
    )
    # d1 passes the first constraint and fails the second, after which nothing is remembered of d0.
    assert devices(cluster, claim(request(count=2), constraints=[different("v"), same("w")])) == ["d0", "d2"]
    assert not refusal(cluster, claim(request(count=2), constraints=[same("w"), different("v")])).fatal

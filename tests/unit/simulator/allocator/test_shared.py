"""What devices share: counters of partitions, and capacity that several claims consume."""

from __future__ import annotations

from typing import Any

import pytest

from dra_driver.simulator.allocator import World
from tests.builders.allocator import (
    claim,
    counters,
    device,
    devices,
    every,
    first_of,
    in_use,
    offered,
    refusal,
    request,
    results,
    same,
    subrequest,
    world,
)
from tests.golden import golden

BOTH = pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])
WHOLE = {"chip": {"cores": 4}}
HALF = {"chip": {"cores": 2}}
CORE = {"chip": {"cores": 1}}


def partitions(*found: dict[str, Any], kubernetes: str = "1.37", **fields: Any) -> World:
    """A pool of one chip with four cores."""
    return world(offered(*found, name="d", slices=2), counters(WHOLE, slices=2), kubernetes=kubernetes, **fields)


# Counters


@BOTH
def test_partitions_are_given_while_counters_last(kubernetes: str) -> None:
    cluster = partitions(*(device(f"half-{i}", HALF) for i in range(3)), kubernetes=kubernetes)
    assert devices(cluster, claim(request(count=2))) == ["half-0", "half-1"]
    assert not refusal(cluster, claim(request(count=3))).fatal


@BOTH
def test_partitions_in_use_leave_less(kubernetes: str) -> None:
    found = (device("whole", WHOLE), device("half", HALF), device("core", CORE), device("free"))
    cluster = partitions(*found, used=[in_use("half")], kubernetes=kubernetes)
    assert devices(cluster, claim(request(count=2))) == ["core", "free"]


@BOTH
def test_partitions_of_one_pod_leave_less_for_its_later_claims(kubernetes: str) -> None:
    cluster = partitions(device("half", HALF), device("whole", WHOLE), device("other", HALF), kubernetes=kubernetes)
    assert devices(cluster, claim(request()), claim(request(), name="b")) == ["half", "other"]


@BOTH
def test_counters_that_a_rejected_device_would_need_stay_free(kubernetes: str) -> None:
    cluster = partitions(
        device("a", HALF, attributes={"v": 1}),
        device("b", HALF, attributes={"v": 2}),
        device("tainted", HALF, attributes={"v": 1}, taints=[{"key": "k", "effect": "NoSchedule"}]),
        device("c", HALF, attributes={"v": 1}),
        kubernetes=kubernetes,
    )
    assert devices(cluster, claim(request(count=2), constraints=[same("v")])) == ["a", "c"]


def test_every_counter_of_a_device_has_to_be_free() -> None:
    both = {"chip": {"cores": 1, "memory": 8}, "link": {"lanes": 1}}
    sets = {"chip": {"cores": 4, "memory": 8}, "link": {"lanes": 2}}
    found = offered(device("a", both), device("b", both), name="d", slices=2)
    cluster = world(found, counters(sets, slices=2))
    assert devices(cluster, claim(request())) == ["a"]
    assert not refusal(cluster, claim(request(count=2))).fatal


def test_counters_can_be_quantities() -> None:
    memory = {"chip": {"memory": "1Gi"}}
    found = offered(device("a", {"chip": {"memory": "512Mi"}}), device("b", {"chip": {"memory": "513Mi"}}), slices=2)
    assert not refusal(world(found, counters(memory, slices=2)), claim(request(count=2))).fatal


@BOTH
def test_more_in_use_than_there_is_leaves_nothing_that_consumes_counters(kubernetes: str) -> None:
    sets: dict[str, dict[str, object]] = {"chip": {"cores": 1}, "other": {"cores": 4}}
    found = (device("whole", WHOLE), device("other", {"other": {"cores": 1}}), device("free"))
    cluster = world(
        offered(*found, name="d", slices=2), counters(sets, slices=2), used=[in_use("whole")], kubernetes=kubernetes
    )
    assert devices(cluster, claim(request())) == ["free"]


@BOTH
def test_devices_of_other_nodes_consume_the_counters_of_the_pool_too(kubernetes: str) -> None:
    cluster = world(
        offered(device("here", HALF), name="a", slices=3),
        offered(device("there", WHOLE), name="b", slices=3, nodeName="node-2"),
        counters(WHOLE, slices=3, allNodes=True),
        used=[in_use("there")],
        kubernetes=kubernetes,
    )
    assert not refusal(cluster, claim(request())).fatal


@BOTH
def test_counters_of_another_nodes_slice_are_found(kubernetes: str) -> None:
    cluster = world(
        offered(device("here", HALF), slices=2), counters(WHOLE, slices=2, nodeName="node-2"), kubernetes=kubernetes
    )
    assert devices(cluster, claim(request())) == ["here"]


@BOTH
def test_an_administrator_needs_free_counters(kubernetes: str) -> None:
    cluster = partitions(device("whole", WHOLE), used=[in_use("whole")], kubernetes=kubernetes)
    assert not refusal(cluster, claim(request(adminAccess=True))).fatal


@BOTH
def test_all_fails_on_devices_that_overlap(kubernetes: str) -> None:
    cluster = partitions(device("whole", WHOLE), device("half", HALF), kubernetes=kubernetes)
    assert not refusal(cluster, claim(every())).fatal


def test_a_smaller_partition_is_taken_when_the_larger_is_not_free() -> None:
    cluster = partitions(device("whole", WHOLE), device("half", HALF), used=[in_use("half")])
    assert not refusal(cluster, claim(first_of("r", subrequest("a"), subrequest("b")))).fatal


@pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])
def test_until_1_36_pools_of_two_drivers_with_one_name_share_counters(kubernetes: str) -> None:
    """The counters of the driver that is tried first stand for both."""
    cluster = world(
        offered(device("small", CORE), name="a", slices=2),
        counters({"chip": {"cores": 1}}, "b", slices=2),
        offered(device("large", WHOLE), name="c", slices=2, driver="b.example"),
        counters(WHOLE, "d", slices=2, driver="b.example"),
        kubernetes=kubernetes,
    )
    wanted = claim(request(count=2))
    if kubernetes == "1.36":
        assert not refusal(cluster, wanted).fatal
    else:
        assert devices(cluster, wanted) == ["small", "large"]


# Capacity


def shared(name: str, value: str = "8", policy: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    capacity = {"memory": {"value": value, **({"requestPolicy": policy} if policy else {})}}
    return device(name, allowMultipleAllocations=True, capacity=capacity, **fields)


def wanting(amount: str, name: str = "r", count: int = 1, **fields: Any) -> dict[str, Any]:
    return request(name, count, capacity={"requests": {"memory": amount}}, **fields)


def share(name: str, amount: str | None, identity: str = "u1") -> dict[str, Any]:
    consumed: dict[str, Any] = {"consumedCapacity": {"memory": amount}} if amount else {}
    return in_use(name, shareID=identity, **consumed)


def consumed(cluster: World, *claims: dict[str, Any]) -> list[str]:
    return [
        f"{item.device} {item.consumed_capacity.get('memory')}"
        for result in results(cluster, *claims)
        for item in result.devices.results
    ]


@BOTH
def test_a_device_is_shared_while_capacity_lasts(kubernetes: str) -> None:
    cluster = world(offered(shared("a")), kubernetes=kubernetes)
    assert consumed(cluster, claim(wanting("3", "x"), wanting("5", "y"))) == ["a 3", "a 5"]
    assert not refusal(cluster, claim(wanting("3", "x"), wanting("6", "y"))).fatal


@BOTH
def test_shares_of_one_request_are_of_different_devices(kubernetes: str) -> None:
    cluster = world(offered(shared("a"), shared("b")), kubernetes=kubernetes)
    assert consumed(cluster, claim(wanting("1", count=2))) == ["a 1", "b 1"]
    assert not refusal(cluster, claim(wanting("1", count=3))).fatal


@BOTH
def test_shares_in_use_leave_less(kubernetes: str) -> None:
    used = [share("a", "3"), share("a", "4", "u2")]
    cluster = world(offered(shared("a"), shared("b")), used=used, kubernetes=kubernetes)
    assert consumed(cluster, claim(wanting("2", "x"), wanting("1", "y"))) == ["b 2", "a 1"]


@BOTH
def test_later_claims_of_a_pod_share_what_earlier_ones_leave(kubernetes: str) -> None:
    cluster = world(offered(shared("a")), kubernetes=kubernetes)
    assert consumed(cluster, claim(wanting("4")), claim(wanting("4"), name="b")) == ["a 4", "a 4"]


@BOTH
@pytest.mark.parametrize(
    ("policy", "amount", "taken"),
    [
        (None, None, "8"),
        (None, "3", "3"),
        ({"default": "2"}, None, "2"),
        ({"default": "2", "validValues": ["1", "2", "4"]}, "3", "4"),
        ({"default": "2", "validValues": ["1", "2", "4"]}, "5", None),
        ({"default": "2", "validRange": {"min": "2"}}, "1", "2"),
        ({"default": "2", "validRange": {"min": "2"}}, "3", "3"),
        ({"default": "2", "validRange": {"min": "2", "step": "3"}}, "3", "5"),
        ({"default": "2", "validRange": {"min": "2", "step": "3"}}, "6", "8"),
        ({"default": "2", "validRange": {"min": "2", "max": "4"}}, "5", None),
        ({"default": "1", "validRange": {"min": "2"}}, None, "1"),
        (None, "9", None),
    ],
)
def test_the_policy_decides_what_a_request_takes(
    policy: dict[str, Any] | None, amount: str | None, taken: str | None, kubernetes: str
) -> None:
    cluster = world(offered(shared("a", policy=policy)), kubernetes=kubernetes)
    wanted = claim(wanting(amount) if amount else request())
    if taken is None:
        assert not refusal(cluster, wanted).fatal
    else:
        assert consumed(cluster, wanted) == [f"a {taken}"]


@pytest.mark.parametrize(("kubernetes", "taken"), [("1.36", "a 1"), ("1.37", "a 750m")])
def test_steps_smaller_than_one_count_from_1_37_on(kubernetes: str, taken: str) -> None:
    policy = {"default": "250m", "validRange": {"min": "250m", "step": "250m"}}
    cluster = world(offered(shared("a", policy=policy)), kubernetes=kubernetes)
    assert consumed(cluster, claim(wanting("600m"))) == [taken]


@pytest.mark.parametrize("amount", ["9223372036854775807", "600u"])
def test_from_1_37_on_an_amount_that_cannot_be_held_ends_the_scheduling(amount: str) -> None:
    policy = {"default": "1", "validRange": {"min": "0", "step": "2"}}
    answer = refusal(world(offered(shared("a", policy=policy))), claim(wanting(amount)))
    assert answer.fatal
    golden(answer.reason)


def test_from_1_37_on_a_negative_amount_ends_the_scheduling() -> None:
    assert "negative" in refusal(world(offered(shared("a"))), claim(wanting("-1"))).reason


@BOTH
def test_a_capacity_that_a_device_has_not_passes_over_it(kubernetes: str) -> None:
    cluster = world(offered(device("bare"), shared("a")), kubernetes=kubernetes)
    assert consumed(cluster, claim(wanting("1"))) == ["a 1"]


@BOTH
def test_a_device_for_one_claim_needs_the_capacity_but_says_nothing_of_it(kubernetes: str) -> None:
    single = {**shared("small", "2"), "allowMultipleAllocations": False}
    large = {**shared("large", "8"), "allowMultipleAllocations": False}
    cluster = world(offered(single, large), kubernetes=kubernetes)
    assert consumed(cluster, claim(wanting("4"))) == ["large None"]
    assert not refusal(cluster, claim(wanting("4", "x"), wanting("4", "y"))).fatal


@pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])
def test_all_with_a_device_without_capacity_left(kubernetes: str) -> None:
    """Until 1.36 it is passed over; from 1.37 on "all" means all that are large enough."""
    cluster = world(offered(shared("a"), shared("b")), used=[share("a", "8")], kubernetes=kubernetes)
    wanted = claim(every(capacity={"requests": {"memory": "1"}}))
    if kubernetes == "1.36":
        assert consumed(cluster, wanted) == ["b 1"]
    else:
        assert not refusal(cluster, wanted).fatal


@BOTH
def test_only_the_first_share_of_a_device_consumes_counters(kubernetes: str) -> None:
    found = (shared("a", consumes=WHOLE), device("half", HALF))
    cluster = partitions(*found, kubernetes=kubernetes)
    assert consumed(cluster, claim(wanting("1", "x"), wanting("1", "y"))) == ["a 1", "a 1"]
    assert not refusal(cluster, claim(wanting("1", "x"), request("y", 2))).fatal
    cluster = partitions(*found, used=[share("a", "1")], kubernetes=kubernetes)
    assert consumed(cluster, claim(wanting("1"))) == ["a 1"]


@pytest.mark.parametrize(("kubernetes", "free"), [("1.36", False), ("1.37", True)])
def test_a_share_without_capacity_counts_as_one_from_1_37_on(kubernetes: str, free: bool) -> None:
    bare = device("a", WHOLE, allowMultipleAllocations=True)
    cluster = partitions(bare, used=[share("a", None)], kubernetes=kubernetes)
    if free:
        assert devices(cluster, claim(request())) == ["a"]
    else:
        assert not refusal(cluster, claim(request())).fatal


def test_shares_have_an_identity_that_depends_on_claim_and_device_only() -> None:
    cluster = world(offered(shared("a"), shared("b")))
    wanted = claim(wanting("1", "x"), wanting("1", "y", count=2))
    first, again = ([item.share_id for item in results(cluster, wanted)[0].devices.results] for _ in range(2))
    other = [item.share_id for item in results(cluster, {**wanted, "metadata": {"name": "other"}})[0].devices.results]
    assert first == again
    assert len({*first, *other}) == 6
    assert None not in first


def test_usage_forgets_what_is_released() -> None:
    cluster = world(offered(shared("a"), device("b")))
    held = results(cluster, claim(wanting("8", "x"), request("y", selector="")))
    cluster.usage.take(held[0].devices.results)
    assert not refusal(cluster, claim(request())).fatal
    cluster.usage.release(held[0].devices.results)
    assert devices(cluster, claim(request(count=2))) == ["a", "b"]

"""Requests: counts, ``All``, the first available of several, administrators, limits, and what cannot be understood."""

from __future__ import annotations

import pytest

from tests.builders.allocator import (
    NODE,
    chips,
    claim,
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
    selectors,
    subrequest,
    world,
)
from tests.golden import golden


def plain(*names: str) -> list[dict[str, object]]:
    return [device(name) for name in names]


# Basic


def test_one_device_is_asked_for_unless_a_count_is_given() -> None:
    assert devices(world(offered(*plain("a", "b"))), claim(request())) == ["a"]


def test_devices_come_in_the_order_of_the_slice() -> None:
    assert devices(world(offered(*plain("c", "a", "b"))), claim(request(count=2))) == ["c", "a"]


def test_no_device_is_given_twice() -> None:
    cluster = world(offered(*plain("a", "b", "c")))
    assert devices(cluster, claim(request("x"), request("y")), claim(request(), name="other")) == ["a", "b", "c"]
    assert not refusal(cluster, claim(request("x", 2), request("y", 2))).fatal


def test_devices_in_use_are_passed_over() -> None:
    cluster = world(offered(*plain("a", "b")), used=[in_use("a")])
    assert devices(cluster, claim(request())) == ["b"]


def test_a_device_is_in_use_by_driver_and_pool_too() -> None:
    used = [in_use("a", pool="other"), in_use("a", driver="b.example")]
    assert devices(world(offered(*plain("a")), used=used), claim(request())) == ["a"]


def test_class_and_request_both_select() -> None:
    cluster = world(
        offered(device("a", attributes={"kind": "x"}), device("b", attributes={"kind": "y"})),
        offered(device("c", attributes={"kind": "y"}), driver="b.example"),
        classes=[{"metadata": {"name": "any"}, "spec": {"selectors": [{"cel": {"expression": "driver=a.example"}}]}}],
    )
    assert devices(cluster, claim(request(selector="kind=y"))) == ["b"]
    assert not refusal(cluster, claim(request(count=2, selector="kind=y"))).fatal


# Backtracking


def test_an_earlier_request_leaves_a_device_that_only_a_later_one_can_use() -> None:
    cluster = world(offered(device("good", attributes={"size": 2}), device("any", attributes={"size": 1})))
    assert devices(cluster, claim(request("x"), request("y", selector="size=2"))) == ["any", "good"]


def test_an_earlier_claim_leaves_a_device_that_only_a_later_one_can_use() -> None:
    cluster = world(offered(device("good", attributes={"size": 2}), device("any", attributes={"size": 1})))
    assert devices(cluster, claim(request()), claim(request(selector="size=2"), name="late")) == ["any", "good"]


def test_constraints_are_met_by_going_back() -> None:
    cluster = world(offered(*chips(8)), used=[in_use("chip-01")])
    taken = devices(cluster, claim(request(count=4), constraints=[same("group")]))
    assert taken == ["chip-04", "chip-05", "chip-06", "chip-07"]


# All


def test_all_takes_every_device_that_is_selected() -> None:
    cluster = world(
        offered(device("a", attributes={"k": 1}), device("b", attributes={"k": 2}), device("c", attributes={"k": 1}))
    )
    assert devices(cluster, claim(every())) == ["a", "b", "c"]
    assert devices(cluster, claim(every(selector="k=1"))) == ["a", "c"]


def test_all_needs_at_least_one_device() -> None:
    cluster = world(offered(device("a", attributes={"k": 1})))
    assert not refusal(cluster, claim(every(selector="k=2"))).fatal


def test_all_fails_when_one_device_is_in_use() -> None:
    cluster = world(offered(*plain("a", "b")), used=[in_use("b")])
    assert not refusal(cluster, claim(every())).fatal


def test_all_cannot_share_devices_with_another_request() -> None:
    cluster = world(offered(*plain("a", "b")))
    assert not refusal(cluster, claim(every(), request("more"))).fatal
    assert not refusal(cluster, claim(request("some"), every("rest"))).fatal


def test_all_beside_a_request_for_other_devices() -> None:
    cluster = world(offered(device("a", attributes={"k": 1}), device("b", attributes={"k": 2})))
    assert devices(cluster, claim(request(selector="k=2"), every("rest", selector="k=1"))) == ["b", "a"]


def test_a_constraint_that_all_devices_cannot_meet_ends_the_scheduling() -> None:
    answer = refusal(world(offered(*chips(8))), claim(every(), constraints=[same("group")]))
    assert answer.fatal
    golden(answer.reason)


def test_all_of_more_devices_than_a_claim_can_hold_ends_the_scheduling() -> None:
    golden(refusal(world(offered(*chips(33))), claim(every())).reason)
    assert len(devices(world(offered(*chips(32))), claim(every()))) == 32


# Limits


def test_a_claim_holds_32_devices_over_all_requests() -> None:
    cluster = world(offered(*chips(40)))
    assert len(devices(cluster, claim(request("x", 16), request("y", 16)))) == 32
    answer = refusal(cluster, claim(request("x", 16), request("y", 17)))
    assert answer.fatal
    golden(answer.reason)


def test_two_claims_hold_32_devices_each() -> None:
    assert len(devices(world(offered(*chips(64))), claim(request(count=32)), claim(request(count=32), name="b"))) == 64


def test_a_huge_count_is_refused_at_once() -> None:
    assert refusal(world(offered(*chips(4))), claim(request(count=2**62))).fatal


def test_a_deep_search_ends() -> None:
    many = [claim(request(count=32), name=f"c{i}") for i in range(20)]
    assert len(devices(world(offered(*chips(640))), *many)) == 640


# The first available of several


def test_the_first_subrequest_that_can_be_satisfied_is_taken() -> None:
    cluster = world(offered(device("small", attributes={"size": 1})))
    wanted = first_of("r", subrequest("big", selector="size=2"), subrequest("small", selector="size=1"))
    (result,) = results(cluster, claim(wanted))
    assert [(item.request, item.device) for item in result.devices.results] == [("r/small", "small")]


def test_a_later_request_can_push_an_earlier_one_to_its_second_choice() -> None:
    cluster = world(offered(device("one", attributes={"k": 1}), device("two", attributes={"k": 2})))
    wanted = first_of("r", subrequest("best", selector="k=1"), subrequest("other", selector="k=2"))
    (result,) = results(cluster, claim(wanted, request("fixed", selector="k=1")))
    assert [item.request for item in result.devices.results] == ["r/other", "fixed"]


def test_a_later_claim_can_push_an_earlier_one_to_its_second_choice() -> None:
    cluster = world(offered(device("one", attributes={"k": 1}), device("two", attributes={"k": 2})))
    wanted = first_of("r", subrequest("best", selector="k=1"), subrequest("other", selector="k=2"))
    assert devices(cluster, claim(wanted), claim(request(selector="k=1"), name="late")) == ["two", "one"]


def test_no_subrequest_is_available() -> None:
    cluster = world(offered(device("one", attributes={"k": 1})))
    wanted = first_of("r", subrequest("x", selector="k=2"), subrequest("y", 2))
    assert not refusal(cluster, claim(wanted)).fatal


def test_the_smallest_subrequest_counts_towards_the_limit() -> None:
    cluster = world(offered(*chips(40)))
    wanted = first_of("r", subrequest("many", 20), subrequest("few", 10))
    (result,) = results(cluster, claim(request("x", 20), wanted))
    assert [item.request for item in result.devices.results][20:] == ["r/few"] * 10
    assert refusal(cluster, claim(request("x", 25), wanted)).fatal


def test_choices_that_only_together_exceed_the_limit_end_the_scheduling() -> None:
    cluster = world(offered(*chips(8)))
    wanted = first_of("r", subrequest("x", 30), subrequest("y", 31))
    answer = refusal(cluster, claim(wanted, first_of("s", subrequest("z", 1)), request("t", 1)))
    assert not answer.fatal
    cluster = world(offered(*chips(40)))
    later = first_of("s", subrequest("many", 30), subrequest("also", 29))
    earlier = first_of("r", subrequest("few", 4), subrequest("three", 3))
    assert [len(result.devices.results) for result in results(cluster, claim(earlier, later))] == [32]


def test_all_can_be_one_of_the_subrequests() -> None:
    cluster = world(offered(*plain("a", "b")), used=[in_use("b")])
    wanted = first_of("r", subrequest("every", allocationMode="All"), subrequest("one"))
    (result,) = results(cluster, claim(wanted))
    assert [item.request for item in result.devices.results] == ["r/one"]


# Administrators


def test_an_administrator_gets_devices_in_use() -> None:
    cluster = world(offered(*plain("a", "b")), used=[in_use("a")])
    (result,) = results(cluster, claim(every(adminAccess=True)))
    assert [(item.device, item.admin_access) for item in result.devices.results] == [("a", True), ("b", True)]


def test_an_administrator_gets_each_device_once_for_a_claim() -> None:
    cluster = world(offered(*plain("a")))
    assert not refusal(cluster, claim(request("x", adminAccess=True), request("y", adminAccess=True))).fatal
    one = request(adminAccess=True)
    assert devices(cluster, claim(one), claim(one, name="other")) == ["a", "a"]


def test_devices_that_an_administrator_has_are_free_for_others() -> None:
    cluster = world(offered(*plain("a")), used=[in_use("a", adminAccess=True)])
    assert devices(cluster, claim(request())) == ["a"]


def test_in_one_pod_an_administrators_device_is_taken_for_later_claims() -> None:
    cluster = world(offered(*plain("a", "b")))
    assert devices(cluster, claim(request(adminAccess=True)), claim(request(), name="user")) == ["a", "b"]


# What cannot be understood


def test_a_missing_class_ends_the_scheduling() -> None:
    answer = refusal(world(offered(*plain("a"))), claim(request(deviceClassName="none")))
    assert answer.fatal
    golden(answer.reason)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"name": "r"}, "unsupported request type"),
        (request(selectors=[{}]), "unsupported selector type"),
        (request(allocationMode="Some"), "unsupported count mode Some"),
    ],
)
def test_requests_of_an_unknown_kind_end_the_scheduling(wanted: dict[str, object], reason: str) -> None:
    answer = refusal(world(offered(*plain("a"))), claim(wanted))
    assert answer.fatal
    golden(answer.reason)


def test_a_constraint_of_an_unknown_kind_ends_the_scheduling() -> None:
    answer = refusal(world(offered(*plain("a"))), claim(request(), constraints=[{"requests": ["r"]}]))
    assert (answer.fatal, "constraint #0: empty constraint" in answer.reason) == (True, True)


@pytest.mark.parametrize(("kubernetes", "where"), [("1.36", ""), ("1.37", " on device a.example/pool/b")])
def test_a_failing_selector_ends_the_scheduling(kubernetes: str, where: str) -> None:
    cluster = world(offered(device("a", attributes={"k": 1}), device("b")), kubernetes=kubernetes)
    answer = refusal(cluster, claim(request(selector="k=2")))
    assert answer.fatal
    golden(answer.reason)


def test_a_failing_selector_of_a_class_is_named() -> None:
    classes = [{"metadata": {"name": "any"}, "spec": {"selectors": [{"cel": {"expression": "broken"}}]}}]
    answer = refusal(world(offered(device("a")), classes=classes), claim(request()))
    golden(answer.reason)


def test_a_selector_that_cannot_be_compiled_is_noticed_at_the_first_device_only() -> None:
    assert refusal(world(offered(device("a"))), claim(request(selector="broken"))).fatal
    assert not refusal(world(), claim(request(selector="broken"))).fatal


def test_a_failing_selector_does_no_harm_on_devices_that_are_not_reached() -> None:
    found = device("a", attributes={"k": 1})
    wanted = claim(request(selector="k=1"))
    assert devices(world(offered(found, device("b"))), wanted) == ["a"]
    assert refusal(world(offered(device("b"), found)), wanted).fatal
    assert devices(world(offered(device("b"), found), used=[in_use("b")]), wanted) == ["a"]


def test_a_failing_selector_is_reached_before_a_request_with_too_few_devices_is_given_up() -> None:
    assert refusal(world(offered(*chips(3), device("b"))), claim(request(count=5, selector="group=0"))).fatal


def test_each_device_is_read_once_for_all_requests_and_claims() -> None:
    read: list[str] = []
    cluster = world(offered(*chips(4)), chosen=selectors(read.append))
    for _ in range(3):
        assert devices(cluster, claim(request(count=2, selector="group=0"), request("s", selector="group=0")))
    assert sorted(read) == ["chip-00", "chip-01", "chip-02", "chip-03"]


def test_the_node_is_asked_by_name() -> None:
    cluster = world(offered(device("a"), nodeName=NODE.name))
    assert devices(cluster, claim(request())) == ["a"]

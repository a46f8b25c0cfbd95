from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.driver.claims.model import (
    CheckpointEntry,
    Consumers,
    Needs,
    Plan,
    PlanSettings,
    PreparedClaims,
    Quarantined,
    clashing_numbers,
)
from dra_driver.driver.claims.situation import users
from dra_driver.kube.objects.meta import OwnerReference
from dra_driver.kube.objects.resource import ResourceClaim, ResourceClaimConsumerReference
from tests.builders.claims import SETTINGS, claim, config, host, needs, neuron_config, plan, result, uid
from tests.golden import golden

HOST = replace(SETTINGS, device_numbering="host")


def made(
    item: ResourceClaim, *held: Plan, consumers: Consumers | None = None, settings: PlanSettings = SETTINGS
) -> Plan:
    return plan(item, host(), PreparedClaims(CheckpointEntry(one) for one in held), settings, consumers)


def needed(item: ResourceClaim, *held: Plan) -> Needs:
    return needs(item, host(), PreparedClaims(CheckpointEntry(one) for one in held), SETTINGS)


def numbers(of: Plan) -> dict[int, int]:
    return {node.chip: number for number, node in of.nodes.items()}


def own(number: int, chips: list[Any], pod: str, **changes: Any) -> ResourceClaim:
    """A claim that was made from a template for its pod."""
    return claim(number, chips, pods=[pod], template=True, **changes)


def test_claims_of_different_pods_both_start_at_0() -> None:
    first = made(own(1, [0, 1], "a"))
    assert numbers(made(own(2, [4, 5], "b"), first)) == {4: 0, 5: 1}


def test_a_second_claim_of_a_pod_counts_on() -> None:
    first = made(own(1, [4, 5], "a"))
    second = made(own(2, [6, 7], "a"), first)
    third = made(own(3, [0], "a"), first, second)
    assert numbers(first) | numbers(second) | numbers(third) == {4: 0, 5: 1, 6: 2, 7: 3, 0: 4}


def test_a_request_alone_sees_its_part_of_the_claims_numbers() -> None:
    both = made(own(1, [result(6, "a"), result(7, "a"), result(4, "b"), result(5, "b")], "a"))
    of_a = [node.number for device in both.devices if device.request == "a" for node in device.nodes]
    of_b = [node.number for device in both.devices if device.request == "b" for node in device.nodes]
    assert (of_a, of_b) == ([2, 3], [0, 1])


def test_claims_in_different_namespaces_never_meet() -> None:
    first = made(claim(1, [0], namespace="x", pods=["a"]))
    assert numbers(made(claim(2, [4], namespace="y", pods=["b"]), first)) == {4: 0}


def test_who_uses_a_shareable_claim_now_is_asked_only_when_numbers_would_clash() -> None:
    shared = made(claim(1, [4, 5], pods=["a"]))
    assert needed(claim(2, [6, 7], pods=["b"]), shared) == Needs(claims=(shared,))
    # Chip 4 on the host's number 4 stands in nobody's way.
    kept = made(claim(1, [4, 5], pods=["a"]), settings=HOST)
    assert numbers(made(claim(2, [6, 7], pods=["b"]), kept)) == {6: 0, 7: 1}


def test_a_shareable_claim_that_gained_the_pod_is_counted_on_from() -> None:
    shared = made(claim(1, [4, 5], pods=["a"]))
    item = claim(2, [6, 7], pods=["b"])
    assert numbers(made(item, shared, consumers={uid(1): frozenset({"a", "b"})})) == {6: 2, 7: 3}
    assert numbers(made(item, shared, consumers={uid(1): frozenset({"a"})})) == {6: 0, 7: 1}
    assert numbers(made(item, shared, consumers={uid(1): None})) == {6: 2, 7: 3}, "in doubt they do not clash"


def test_numbers_counted_on_are_checked_against_doubtful_claims_too() -> None:
    first = made(claim(1, [4, 5], pods=["b"]))
    unsure = made(claim(2, [6, 7], pods=["a"]), settings=HOST)
    moved = replace_numbers(unsure, {6: 2, 7: 3})
    assert needed(claim(3, [8, 9], pods=["b"]), first, moved) == Needs(claims=(moved,))


def replace_numbers(of: Plan, number_of: dict[int, int]) -> Plan:
    return msgspec.structs.replace(
        of,
        devices=tuple(
            msgspec.structs.replace(
                device,
                nodes=tuple(msgspec.structs.replace(node, number=number_of[node.chip]) for node in device.nodes),
            )
            for device in of.devices
        ),
    )


def test_a_claim_for_something_that_is_no_pod_may_meet_all_of_its_namespace() -> None:
    group = ResourceClaimConsumerReference("podgroups", "workers", "group", "scheduling.k8s.io")
    item = claim(1, [4], pods=["a"])
    item = type(item)(item.metadata, type(item.status)(item.status.allocation, (group,)))
    assert users(item) is None
    of_group = made(item)
    assert of_group.pods is None
    assert numbers(made(claim(2, [6], pods=["b"]), of_group)) == {6: 1}
    assert numbers(made(item, made(own(3, [0], "c")))) == {4: 1}


def of_group(number: int, chips: list[Any], *groups: str) -> ResourceClaim:
    """A claim that was made from a template for a PodGroup, the first of these, and is reserved for all of them."""
    item = claim(number, chips)
    users = tuple(ResourceClaimConsumerReference("podgroups", name, name, "scheduling.k8s.io") for name in groups)
    owner = OwnerReference("scheduling.k8s.io/v1beta1", "PodGroup", groups[0], groups[0], controller=True)
    meta = msgspec.structs.replace(item.metadata, owner_references=(owner,))
    return msgspec.structs.replace(item, metadata=meta, status=msgspec.structs.replace(item.status, reserved_for=users))


def test_claims_of_different_groups_of_pods_all_start_at_0() -> None:
    first = made(of_group(1, [0, 1], "a"))
    assert numbers(made(of_group(2, [4, 5], "b"), first)) == {4: 0, 5: 1}
    assert numbers(made(of_group(2, [4, 5], "a"), first)) == {4: 2, 5: 3}, "a pod of the group may use both"
    assert numbers(made(of_group(2, [4, 5], "b", "a"), first)) == {4: 2, 5: 3}, "and so of one reserved for both"


def test_a_template_claim_that_another_pod_uses_too_counts_as_shareable() -> None:
    item = claim(1, [4], pods=["a", "b"], template=True)
    assert made(item).own_pod == ""
    assert made(own(1, [4], "a")).own_pod == "a"


def test_host_numbers_give_way_where_the_setting_was_changed_in_between() -> None:
    before = made(own(1, [4, 5], "a"))
    after = made(own(2, [0, 1], "a"), before, settings=HOST)
    assert numbers(after) == {0: 2, 1: 3}
    assert numbers(made(own(2, [6, 7], "a"), before, settings=HOST)) == {6: 6, 7: 7}


def test_watching_and_holding_in_one_pod_do_not_clash() -> None:
    watching = made(own(1, [result(chip, admin_access=True) for chip in range(16)], "a"))
    assert numbers(watching) == {chip: chip for chip in range(16)}
    assert numbers(made(own(2, [4, 5], "a"), watching)) == {4: 16, 5: 17}
    assert numbers(made(own(2, [0, 1], "a"), watching)) == {0: 0, 1: 1}


def test_claims_of_a_pod_with_different_logical_core_sizes_are_warned_about() -> None:
    first = made(own(1, [4], "a", configs=[config(neuron_config(1))]))
    [warning] = made(own(2, [5], "a"), first).warnings
    golden(warning)
    assert made(own(2, [5], "b"), first).warnings == ()


def test_a_claim_with_an_unreadable_file_gets_its_numbers_again_and_others_keep_clear_of_them() -> None:
    quarantined = Quarantined(uid(1), "x", "empty", frozenset({4, 5}), frozenset({(2, 4), (3, 5)}))
    held = PreparedClaims((), [quarantined])
    assert numbers(plan(own(1, [4, 5], "a"), host(), held, SETTINGS)) == {4: 2, 5: 3}
    assert numbers(plan(own(2, [0, 1], "b"), host(), held, SETTINGS)) == {0: 0, 1: 1}
    assert numbers(plan(own(2, [0, 1, 2], "b"), host(), held, SETTINGS)) == {0: 4, 1: 5, 2: 6}
    # Allocated anew, its former numbers mean nothing.
    assert numbers(plan(own(1, [5, 6], "a"), host(), held, SETTINGS)) == {5: 0, 6: 1}


PODS = st.lists(st.sampled_from("abc"), min_size=1, max_size=2, unique=True)


@st.composite
def arrivals(draw: st.DrawFn) -> list[ResourceClaim]:
    """Claims over disjoint chips in the order of their preparation."""
    chips = draw(st.permutations(range(8)))
    items, start = [], 0
    for number in range(draw(st.integers(2, 4))):
        size = draw(st.integers(1, 2))
        pods = draw(PODS)
        mine = [
            result(chip, admin_access=draw(st.sampled_from([None, None, True]))) for chip in chips[start : start + size]
        ]
        items.append(claim(number, mine, pods=pods, template=len(pods) == 1 and draw(st.booleans())))
        start += size
    return items


@given(arrivals(), st.lists(st.booleans(), min_size=4, max_size=4))
def test_claims_that_a_pod_uses_never_show_two_chips_under_one_number(
    items: list[ResourceClaim], host_numbering: list[bool]
) -> None:
    prepared: dict[str, Plan] = {}
    now = {item.metadata.uid: users(item) for item in items}
    for item, keeps in zip(items, host_numbering, strict=False):
        settings = HOST if keeps else SETTINGS
        made_now = made(item, *prepared.values(), consumers=now, settings=settings)
        again = made(item, *prepared.values(), consumers=now, settings=settings)
        assert made_now == again
        prepared[item.metadata.uid] = made_now
    for one in items:
        for other in items:
            common = (users(one) or frozenset()) & (users(other) or frozenset())
            if one is not other and common:
                assert clashing_numbers(prepared[one.metadata.uid].shown, prepared[other.metadata.uid].shown) == ()

from __future__ import annotations

import pytest

from dra_driver.driver.claims.container_edits import cdi_spec
from dra_driver.driver.claims.diff import Repair, clashes, diff
from dra_driver.driver.claims.model import CheckpointEntry, Plan, PreparedClaims, Quarantined
from dra_driver.driver.claims.observe import GONE_CHECKS, GONE_SECONDS, ClaimObservation
from dra_driver.kube.cdi import encode
from dra_driver.kube.objects.resource import ResourceClaim
from dra_driver.neuron.host.inventory import NodeInventory
from tests.builders.claims import SETTINGS, claim, host, plan, uid, without
from tests.golden import golden

HERE = ClaimObservation(here=True, since=0.0, checked=0.0, devices=frozenset({"neuron-device-4", "neuron-device-5"}))
ALLOCATED_AGAIN = ClaimObservation(here=True, since=0.0, checked=0.0, devices=frozenset({"neuron-device-5"}))
GONE = ClaimObservation(here=False, since=0.0, checked=0.0)
SURELY_GONE = ClaimObservation(here=False, since=0.0, checked=GONE_SECONDS, checks=GONE_CHECKS)


def made(item: ResourceClaim) -> Plan:
    return plan(item, host(), PreparedClaims(), SETTINGS)


FIRST, SECOND = made(claim(1, [4, 5])), made(claim(2, [6]))
SPECS: dict[str, bytes | None] = {plan.uid: encode(cdi_spec(plan)) for plan in (FIRST, SECOND)}


def found(
    *plans: Plan,
    specs: dict[str, bytes | None] | None = None,
    inventory: NodeInventory | None = None,
    boot: str = "boot-1",
    observations: dict[str, ClaimObservation] | None = None,
    quarantined: tuple[Quarantined, ...] = (),
) -> list[Repair]:
    held = PreparedClaims((CheckpointEntry(plan, "boot-1") for plan in plans), quarantined)
    return diff(held, SPECS if specs is None else specs, inventory or host(), boot, observations or {})


def kinds(wanted: list[Repair]) -> list[tuple[str, str]]:
    return [(repair.kind, repair.uid) for repair in wanted]


def test_nothing_is_done_where_all_is_well() -> None:
    assert found(FIRST, SECOND) == []
    assert found(FIRST, observations={uid(1): HERE}, boot="boot-2") == []


def test_a_missing_or_different_spec_is_written() -> None:
    assert kinds(found(FIRST, SECOND, specs={uid(2): b"{}"})) == [("write-spec", uid(1)), ("write-spec", uid(2))]
    assert kinds(found(FIRST, specs={uid(1): None})) == [("write-spec", uid(1))]


@pytest.mark.parametrize("observation", [None, HERE, GONE])
def test_a_removed_checkpoint_file_is_settled_by_the_api_server(observation: ClaimObservation | None) -> None:
    held = PreparedClaims()
    held.add(CheckpointEntry(FIRST, "boot-1"), missing=True)
    wanted = diff(held, SPECS, host(), "boot-1", {FIRST.uid: observation} if observation else {})
    expected = {None: [], HERE: [("write-journal", FIRST.uid)], GONE: [("release", FIRST.uid)]}
    assert kinds(wanted) == expected[observation]
    assert all(repair.entry == CheckpointEntry(FIRST, "boot-1") for repair in wanted if repair.kind == "write-journal")


@pytest.mark.parametrize(("observation", "kind"), [(None, "write-spec"), (HERE, "write-spec"), (GONE, "release")])
def test_a_removed_checkpoint_file_leaves_no_spec_with_old_device_numbers(
    observation: ClaimObservation | None, kind: str
) -> None:
    held = PreparedClaims()
    held.add(CheckpointEntry(FIRST, "boot-1"), missing=True)
    wanted = diff(held, SPECS, host(major=251), "boot-1", {FIRST.uid: observation} if observation else {})
    assert kinds(wanted) == [(kind, FIRST.uid)]


def test_a_spec_of_an_unreadable_checkpoint_file_stays() -> None:
    assert found(FIRST, quarantined=(Quarantined(uid(2), "x", "empty", None),)) == []


def test_new_device_numbers_are_written_and_checkpointed_under_the_boot_of_before() -> None:
    [repair] = found(FIRST, specs={uid(1): SPECS[uid(1)]}, inventory=host(major=251), boot="boot-2")
    assert repair.kind == "write-spec"
    assert repair.entry is not None
    assert repair.entry.boot_id == "boot-1"
    assert {node.major for node in repair.entry.plan.nodes.values()} == {251}


def test_the_spec_of_a_chip_that_is_gone_is_withdrawn() -> None:
    only = {uid(1): SPECS[uid(1)]}
    assert kinds(found(FIRST, specs=only, inventory=without(host(), 5))) == [("withdraw-spec", uid(1))]
    assert found(FIRST, specs={}, inventory=without(host(), 5)) == []


@pytest.mark.parametrize(
    ("observation", "boot", "released"),
    [
        (None, "boot-2", False),
        (HERE, "boot-2", False),
        (ALLOCATED_AGAIN, "boot-1", False),
        (ALLOCATED_AGAIN, "", False),
        (ALLOCATED_AGAIN, "boot-2", True),
        (GONE, "boot-1", False),
        (SURELY_GONE, "boot-1", False),
        (SURELY_GONE, "", False),
        (GONE, "boot-2", True),
    ],
)
def test_a_plan_ends_by_itself_only_if_no_claim_has_it_and_the_node_was_booted(
    observation: ClaimObservation | None, boot: str, released: bool
) -> None:
    wanted = found(
        FIRST, specs={uid(1): SPECS[uid(1)]}, boot=boot, observations={uid(1): observation} if observation else {}
    )
    assert kinds(wanted) == ([("release", uid(1))] if released else [])
    for repair in wanted:
        golden(repair.reason)


@pytest.mark.parametrize(
    ("observation", "kind"),
    [
        (None, None),
        (ClaimObservation(here=True, since=0.0, checked=0.0, chips=frozenset({4})), "learn"),
        (GONE, None),
        (ClaimObservation(here=False, since=0.0, checked=GONE_SECONDS, checks=GONE_CHECKS - 1), None),
        (ClaimObservation(here=False, since=0.0, checked=GONE_SECONDS - 1, checks=GONE_CHECKS), None),
        (SURELY_GONE, "release"),
    ],
)
def test_an_unreadable_file_is_settled_by_the_api_server(
    observation: ClaimObservation | None, kind: str | None
) -> None:
    quarantined = (Quarantined(uid(1), "x", "empty", None),)
    wanted = found(specs={}, quarantined=quarantined, observations={uid(1): observation} if observation else {})
    assert [repair.kind for repair in wanted] == ([kind] if kind else [])
    if kind == "learn":
        assert wanted[0].chips == {4}


def test_what_is_known_of_an_unreadable_file_is_not_learned_again() -> None:
    quarantined = (Quarantined(uid(1), "x", "empty", frozenset({4})),)
    assert found(specs={}, quarantined=quarantined, observations={uid(1): HERE}) == []


def test_claims_that_one_pod_came_to_use_under_the_same_numbers_are_found() -> None:
    first, second = made(claim(1, [4], pods=["a"])), made(claim(2, [6], pods=["b"]))
    held = PreparedClaims([CheckpointEntry(first), CheckpointEntry(second)])
    assert clashes(held, {}) == []
    both = ClaimObservation(here=True, since=0.0, checked=0.0, pods=frozenset({"a", "b"}))
    assert clashes(held, {uid(1): both}) == [(first, second)]
    unknown = ClaimObservation(here=True, since=0.0, checked=0.0, pods=None)
    assert clashes(held, {uid(1): unknown}) == []

"""Taints of devices: who gets which, how often they are written, and what is published where they are not kept."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.driver.resourceslices.changes import decide
from dra_driver.driver.resourceslices.devices import completed, node_problem, offer, with_faults
from dra_driver.driver.resourceslices.holders import allocated
from dra_driver.driver.resourceslices.pool import pool
from dra_driver.driver.resourceslices.taints import (
    bare,
    fit_taints,
    is_worse,
    without_unhealthy,
)
from dra_driver.driver.write_budget import WriteBudget
from dra_driver.kube.api.codec import ServerVersion, decode
from dra_driver.kube.objects.resource import Device, DeviceTaint, ResourceClaim, ResourceSlice
from dra_driver.neuron.health.assess import HealthMemory, assess
from dra_driver.neuron.health.faults import FAULTS, ActiveFault, ChipHealth, NodeHealth, in_order
from dra_driver.neuron.health.policy import EFFECTS, HealthPolicy, Rule
from dra_driver.neuron.host.inventory import NeuronDevice, NodeInventory
from dra_driver.neuron.topology.partitions import CHIPS, CHIPS_AND_NODE, NODE, NODE_DEVICE, Partitions, device_name
from tests.builders.chips import Host
from tests.doubles.apiserver.slice_validation import validate_slice

SINCE = 1_767_225_600
"""2026-01-01T00:00:00Z"""
KEY = "health.neuron.aws.com/"


def host(count: int = 16, instance_type: str = "trn2.48xlarge", lost: Collection[int] = ()) -> NodeInventory:
    chips = tuple(
        NeuronDevice(i, 240, i, None, 8, None, None, None, None if lost else f"0000:{i:02x}:00.0", None if lost else 0)
        for i in range(count)
        if i not in lost
    )
    return NodeInventory(instance_type, "2.30.0.0" if chips else None, chips, expected_devices=count)


def sick(**codes: list[int]) -> NodeHealth:
    """Faults by code (``_`` for ``-``) and chips."""
    chips = sorted({index for indexes in codes.values() for index in indexes})
    return NodeHealth(
        tuple(
            ChipHealth(
                index,
                in_order(
                    ActiveFault(code.replace("_", "-"), SINCE, uptime=100.0)
                    for code, indexes in codes.items()
                    if index in indexes
                ),
            )
            for index in chips
        )
    )


def taints(devices: Collection[Device]) -> dict[str, list[str]]:
    """Key and effect by device, of those that have any."""
    return {
        device.name: [f"{taint.key.removeprefix(KEY)}:{taint.effect}" for taint in device.taints]
        for device in devices
        if device.taints
    }


# Which taints


def test_a_sick_chip_is_offered_with_its_taints_and_nothing_else_changes() -> None:
    well = offer(host()).devices
    found = offer(host(), health=sick(hbm_uncorrectable=[3], hbm_corrected_rising=[3, 5])).devices
    assert taints(found) == {
        "neuron-device-3": ["hbm-uncorrectable:NoSchedule", "hbm-corrected-rising:None"],
        "neuron-device-5": ["hbm-corrected-rising:None"],
    }
    assert bare(found) == well
    assert msgspec.to_builtins(found[3])["taints"][0] == {
        "key": "health.neuron.aws.com/hbm-uncorrectable",
        "value": "unhealthy",
        "effect": "NoSchedule",
        "timeAdded": "2026-01-01T00:00:00Z",
    }


def test_a_whole_node_has_the_taints_of_all_its_chips() -> None:
    ultraserver = host(instance_type="trn2u.48xlarge")
    health = sick(hbm_uncorrectable=[3, 4], heartbeat_stalled=[9])
    node = ["hbm-uncorrectable:NoSchedule", "heartbeat-stalled:NoSchedule"]
    assert taints(offer(ultraserver, NODE, health).devices) == {NODE_DEVICE: node}
    both = offer(ultraserver, CHIPS_AND_NODE, health)
    assert taints(both.devices) == {
        "neuron-device-3": node[:1],
        "neuron-device-4": node[:1],
        "neuron-device-9": node[1:],
        NODE_DEVICE: node,
    }
    assert taints(both.fallback) == {NODE_DEVICE: node}


def test_an_offer_says_when_a_grace_time_ends() -> None:
    policy = HealthPolicy.parse("rules: [{fault: hbm-uncorrectable, effect: NoExecute, graceSeconds: 60}]")
    health = sick(hbm_uncorrectable=[3])
    before = offer(host(), None, health, policy, 159.0)
    assert (taints(before.devices), before.until) == ({"neuron-device-3": ["hbm-uncorrectable:NoSchedule"]}, 160.0)
    after = offer(host(), None, health, policy, 160.0)
    assert (taints(after.devices), after.until) == ({"neuron-device-3": ["hbm-uncorrectable:NoExecute"]}, None)
    assert after.devices[3].taints[0].time_added == "2026-01-01T00:01:00Z"


@given(
    st.dictionaries(
        st.integers(0, 15), st.sets(st.sampled_from(list(FAULTS)), max_size=4) | st.just(set(FAULTS)), max_size=5
    ),
    st.sampled_from([NODE, CHIPS, CHIPS_AND_NODE]),
    st.sampled_from([HealthPolicy(rules=(Rule(effect),)) for effect in EFFECTS]),
)
def test_slices_with_any_faults_are_valid(
    faults: dict[int, set[str]], partitions: Partitions, policy: HealthPolicy
) -> None:
    health = NodeHealth(
        tuple(ChipHealth(index, in_order(ActiveFault(code, SINCE) for code in faults[index])) for index in faults)
    )
    offered = offer(host(instance_type="trn2u.48xlarge"), partitions, health, policy)
    for item in pool(offered.devices, "node-a", "uid", counters=offered.counters):
        validate_slice(msgspec.to_builtins(item), None)


# Lost chips


def noticed(lost: Mapping[int, str]) -> NodeHealth:
    return with_faults(NodeHealth(), {index: ActiveFault(code, SINCE) for index, code in lost.items()})


def test_a_lost_chip_stays_on_offer_as_it_was_with_a_taint() -> None:
    before = completed(host(), None)[0]
    now, lost = completed(host(lost=[3]), before)
    assert lost == {3: "device-lost"}
    found = offer(now, health=noticed(lost)).devices
    assert taints(found) == {"neuron-device-3": ["device-lost:NoSchedule"]}
    assert bare(found) == offer(host()).devices, "no attribute of any chip changed"
    assert completed(host(), now) == (host(), {}), "it is back"


def test_all_chips_lost_with_the_kernel_driver_are_on_offer_as_they_were() -> None:
    now, lost = completed(host(lost=range(16)), host())
    assert lost == dict.fromkeys(range(16), "device-lost")
    found = offer(now, health=noticed(lost)).devices
    assert bare(found) == offer(host()).devices
    assert len(taints(found)) == 16


def test_without_a_kernel_driver_health_is_unknown_and_the_slices_keep_claims_away() -> None:
    machine, memory, said = Host(), HealthMemory(), NodeHealth()
    for version in ("2.30.2.0", None, None):
        machine.driver_version = version
        memory, said = assess(memory, machine.reading())
    assert {chip.index: chip.state for chip in said.chips} == {0: "unknown", 1: "unknown"}
    now, lost = completed(host(2, lost=[0, 1]), host(2))
    found = offer(now, health=with_faults(said, {index: ActiveFault(code, SINCE) for index, code in lost.items()}))
    expected = ["device-lost:NoSchedule", "unreadable:None"]
    assert taints(found.devices) == {"neuron-device-0": expected, "neuron-device-1": expected}


def test_a_whole_node_with_a_lost_chip_stays_on_offer_with_its_taint() -> None:
    whole = host(instance_type="trn2u.48xlarge")
    now, lost = completed(host(instance_type="trn2u.48xlarge", lost=[7]), whole)
    assert node_problem(now) == ""
    found = offer(now, CHIPS_AND_NODE, noticed(lost))
    assert taints(found.devices) == {
        "neuron-device-7": ["device-lost:NoSchedule"],
        NODE_DEVICE: ["device-lost:NoSchedule"],
    }
    assert bare(found.devices) == offer(whole, CHIPS_AND_NODE).devices


def test_a_driver_that_starts_after_the_loss_does_not_offer_the_chip() -> None:
    now, lost = completed(host(lost=[3]), None)
    assert (len(offer(now).devices), lost) == (15, {})
    ultraserver, _ = completed(host(instance_type="trn2u.48xlarge", lost=[3]), None)
    assert offer(ultraserver).devices == ()


def test_chips_of_another_instance_type_are_not_missed() -> None:
    assert completed(host(12, "inf2.48xlarge"), host()) == (host(12, "inf2.48xlarge"), {})


def test_a_chip_whose_device_numbers_become_unreadable_stays_on_offer_with_a_taint() -> None:
    chips = host().devices
    unusable = replace(host(), devices=(*chips[:3], replace(chips[3], major=None, minor=None), *chips[4:]))
    assert len(offer(completed(unusable, None)[0]).devices) == 15, "not if it was so at the start"
    now, lost = completed(unusable, host())
    found = offer(now, health=noticed(lost)).devices
    assert bare(found) == offer(host()).devices
    assert taints(found) == {"neuron-device-3": ["device-invalid:NoSchedule"]}
    assert completed(host(lost=[3]), now)[1] == {3: "device-lost"}


def test_the_loss_of_a_chip_has_one_time_whoever_saw_it_first() -> None:
    told = NodeHealth((ChipHealth(3, (ActiveFault("device-lost", SINCE, "gone"),)),), 5.0)
    for since, expected in ((SINCE + 9, SINCE), (SINCE - 9, SINCE - 9)):
        health = with_faults(told, {3: ActiveFault("device-lost", since)})
        assert health.chips == (ChipHealth(3, (ActiveFault("device-lost", expected, "gone"),)),)
        assert health.read_at == 5.0


# How often


TIMES = st.lists(st.tuples(st.floats(0, 400), st.integers(0, 3)), max_size=120)


@given(TIMES)
def test_flapping_writes_seldom_keeps_room_for_the_worse_and_ends_in_the_last_state(
    events: list[tuple[float, int]],
) -> None:
    """A virtual clock: events are (seconds since the last one, strength of the taint from then on)."""
    budget = WriteBudget()
    writes: list[tuple[float, bool]] = []
    now = due = 0.0
    published, wanted = device(0), device(0)

    def look() -> None:
        nonlocal published, due
        if wanted == published:
            return
        worse = is_worse([published], [wanted])
        wait = budget.wait(now, worse=worse)
        if wait:
            due = now + wait
            return
        budget.note(now)
        writes.append((now, worse))
        published = wanted

    for pause, strength in [*events, (20_000.0, -1)]:
        end = now + pause
        while published != wanted and now < due <= end:
            now = due
            look()
        now = end
        if strength >= 0:
            wanted = device(strength)
            look()
    assert published == wanted
    at = [moment for moment, _ in writes]
    assert all(later - earlier >= 29.999 for earlier, later in itertools.pairwise(at))
    assert all(later - earlier >= 3599.999 for earlier, later in zip(at, at[6:], strict=False)), "six in an hour"
    for place, (moment, worse) in enumerate(writes):
        before = [earlier for earlier in at[:place] if earlier > moment - 3599.999]
        assert worse or len(before) < 4, "the last two are for the worse"


def test_a_chip_that_fails_is_told_within_30_seconds_after_others_recovered_often() -> None:
    budget = WriteBudget()
    for moment in (0.0, 30.0, 60.0, 90.0):
        assert budget.wait(moment, worse=False) == 0.0
        budget.note(moment)
    assert budget.wait(91.0, worse=False) == pytest.approx(3509.0)
    assert budget.wait(91.0, worse=True) == pytest.approx(29.0)


def device(strength: int, name: str = "neuron-device-0", key: str = "k/a") -> Device:
    effect = ("", "None", "NoSchedule", "NoExecute")[strength]
    return Device(name, taints=(DeviceTaint(key, "unhealthy", effect, "2026-01-01T00:00:00Z"),) if strength else ())


def test_new_and_stronger_taints_are_worse() -> None:
    for before in range(4):
        for after in range(4):
            assert is_worse([device(before)], [device(after)]) is (after > before)
    assert is_worse([device(2)], [device(2, key="k/b")])
    assert is_worse([device(2)], [device(2), device(1, "neuron-device-1")])


def test_a_change_of_taints_in_one_slice_needs_no_new_generation() -> None:
    well, ill = offer(host()).devices, offer(host(), health=sick(hbm_uncorrectable=list(range(16)))).devices
    stored: list[ResourceSlice] = []
    for item in decide([], pool(well, "node-a", "uid")).create:
        meta = msgspec.structs.replace(item.metadata, name=item.metadata.generate_name + "x", uid="u")
        stored.append(msgspec.structs.replace(item, metadata=meta))
    changes = decide(stored, pool(ill, "node-a", "uid"))
    assert (changes.generation, len(changes.update), len(changes.create), len(changes.delete)) == (1, 1, 0, 0)


# Servers that keep no taints


def test_unhealthy_devices_are_withdrawn_unless_a_claim_holds_them() -> None:
    devices = offer(host(), health=sick(hbm_uncorrectable=[3, 5], hbm_corrected_rising=[7])).devices
    found = without_unhealthy(devices, {device_name(5), device_name(9)})
    assert found.withdrawn == {device_name(3)}
    assert found.held == {device_name(5)}
    assert [one.name for one in found.devices] == [device_name(i) for i in range(16) if i != 3]
    assert taints(found.devices) == {}


def test_in_doubt_every_device_may_be_held() -> None:
    devices = offer(host(), health=sick(hbm_uncorrectable=[3])).devices
    assert without_unhealthy(devices, None).devices == offer(host()).devices


def test_what_claims_hold_is_read_from_their_allocations_in_this_pool() -> None:
    def claim(driver: str, pool: str, name: str) -> ResourceClaim:
        results = [{"request": "r", "driver": driver, "pool": pool, "device": name}]
        body = {"metadata": {}, "status": {"allocation": {"devices": {"results": results}}}}
        found: ResourceClaim = decode(msgspec.json.encode(body), ResourceClaim, "a claim")
        return found

    claims = [claim("d", "p", "one"), claim("d", "q", "two"), claim("e", "p", "three")]
    empty: ResourceClaim = decode(b'{"metadata":{}}', ResourceClaim, "a claim")
    assert allocated([*claims, empty], "d", "p") == {"one"}


@pytest.mark.parametrize(("version", "left"), [("v1.34.4", 4), ("v1.35.0", 6), ("", 6)])
def test_servers_of_the_alpha_get_what_they_accept(version: str, left: int) -> None:
    codes = list(FAULTS)[:3] + list(FAULTS)[5:7]
    faults = in_order(ActiveFault(code, SINCE) for code in (*codes, "hbm-corrected-rising"))
    devices = offer(host(), health=NodeHealth((ChipHealth(0, faults),))).devices
    found = fit_taints(devices, ServerVersion(version))
    assert len(found[0].taints) == left
    assert found[1:] == devices[1:]

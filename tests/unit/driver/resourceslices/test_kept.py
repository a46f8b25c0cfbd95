"""Which devices stay on offer because claims hold them, and how seldom that is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from dra_driver.driver.resourceslices.kept import SETTLE_SECONDS, Answer, PreparedDevices, PublishedPool
from dra_driver.kube.objects.meta import timestamp
from dra_driver.kube.objects.resource import Device, DeviceAttribute, DeviceTaint
from dra_driver.neuron.names import RETIRED
from dra_driver.neuron.topology.partitions import NODE_DEVICE, core_name, device_name
from tests.builders.claims import host
from tests.builders.publishing_node import PublishingNode
from tests.golden import golden

SINCE = 1_767_225_600
CORES = {core_name(chip, number) for chip in range(16) for number in range(4)}
CHIPS = {device_name(chip) for chip in range(16)}
TOO_OLD = "kubelet is too old"


def core(chip: int, number: int, size: int) -> Device:
    return Device(core_name(chip, number), {"logicalCoreSize": DeviceAttribute(int_=size)})


def with_taint(device: Device, since: int) -> Device:
    """As it is published while it is kept."""
    return structs.replace(device, taints=(DeviceTaint(RETIRED, "partitions", "NoSchedule", timestamp(since)),))


def published_as(partitions: str, **values: object) -> PublishingNode:
    """A node that has published its devices."""
    node = PublishingNode(partitions=partitions, **values)  # type: ignore[arg-type]
    node.look()
    return node


def test_all_stays_until_it_is_asked_who_holds_it_and_the_rest_goes_then() -> None:
    node = published_as("core", allocated={core_name(3, 1)})
    node.partitions = "chip"
    assert node.look() == CORES
    assert node.kept[core_name(3, 0)].core_size == 2
    node.looks(4.0)
    assert node.lists == []
    node.looks(2.0)
    assert (node.lists, set(node.kept)) == ([1005.0], {core_name(3, 1)})
    assert node.names == CHIPS | {core_name(3, 1)}


def test_it_is_asked_who_holds_it_a_while_after_its_taint_was_written() -> None:
    """Until then schedulers allocate it. A write may wait for its turn, or fail."""
    node = published_as("core")
    node.partitions = "chip"
    node.look(publish=False)
    node.now += 5
    node.look(publish=False)
    node.now += 1
    node.look()
    node.looks(4.0)
    assert node.lists == []
    node.allocated = {core_name(3, 1)}
    node.looks(2.0)
    assert (node.lists, set(node.kept)) == ([1011.0], {core_name(3, 1)})


def test_a_question_is_dropped_when_a_taint_vanishes_before_its_answer() -> None:
    node = published_as("core")
    node.partitions = "chip"
    node.look()
    node.now += SETTLE_SECONDS
    assert node.begin_look() is not None
    node.publish(structs.replace(device, taints=()) for device in node.published)
    node.look()
    node.looks(SETTLE_SECONDS - 0.5)
    assert node.lists == []
    node.looks(1.0)
    assert (len(node.lists), node.kept) == (1, {})


def test_an_answer_says_nothing_of_what_is_kept_since_its_question() -> None:
    node = published_as("core", taints=False)
    node.partitions = "chip"
    node.look()
    node.now += SETTLE_SECONDS
    question = node.begin_look()
    assert question is not None
    node.publish(node.chosen)
    node.partitions = "node"
    node.decide(pool=PublishedPool(node.look_number, node.published, taints=False))
    assert set(node.kept) == CORES | CHIPS
    node.decide(answer=Answer(question, frozenset()))
    assert set(node.kept) == CHIPS


def test_where_the_server_stores_no_taints_none_is_waited_for() -> None:
    node = published_as("core", taints=False)
    node.partitions = "chip"
    node.look()
    node.looks(6.0)
    assert (node.lists, node.kept) == ([1005.0], {})


def test_what_is_free_is_let_go_once_although_the_server_still_has_it() -> None:
    node = published_as("core")
    node.partitions = "chip"
    node.look()
    before = node.published
    node.now += SETTLE_SECONDS
    assert node.look(publish=False) == set()
    assert node.look() == set()
    node.publish(before)
    assert node.look() == CORES, "published anew, so it may have been allocated anew"


def test_a_device_that_is_prepared_here_needs_no_question() -> None:
    node = PublishingNode(prepared={core_name(3, 1): 2})
    node.look()
    node.looks(3600.0)
    assert (node.lists, set(node.kept)) == ([], {core_name(3, 1)})
    node.prepared = {}
    node.looks(31.0)
    assert (len(node.lists), node.kept) == (1, {})


def test_what_is_prepared_and_not_on_offer_is_kept_and_nothing_else() -> None:
    node = published_as("chip")
    node.decide(prepared=PreparedDevices({core_name(3, 1): 2, device_name(4): None}))
    assert set(node.kept) == {core_name(3, 1)}


def test_claims_that_hold_a_device_for_long_are_listed_ever_more_seldom() -> None:
    node = published_as("core", allocated={core_name(3, 1)})
    node.partitions, node.prepared = "chip", {core_name(4, 1): 2}
    node.look()
    node.looks(7200.0)
    assert len(node.lists) < 18
    asked = len(node.lists)
    node.prepared = {}
    node.looks(31.0)
    assert len(node.lists) == asked + 1, "what was unprepared here is reason to ask"
    assert set(node.kept) == {core_name(3, 1)}


def test_in_doubt_all_stays() -> None:
    node = published_as("core", allocated=None)
    node.partitions = "chip"
    node.look()
    node.looks(3600.0)
    assert set(node.kept) == CORES
    node.allocated = set()
    node.looks(601.0)
    assert node.kept == {}


def test_while_a_checkpoint_file_cannot_be_read_all_stays_and_no_claims_are_listed() -> None:
    node = published_as("core", unreadable=None)
    node.partitions = "chip"
    node.look()
    node.looks(3600.0)
    assert (set(node.kept), node.lists) == (CORES, [])
    node.unreadable = frozenset({3})
    node.looks(31.0)
    assert (set(node.kept), len(node.lists)) == ({core_name(3, number) for number in range(4)}, 1)
    node.unreadable = frozenset()
    node.looks(31.0)
    assert (node.kept, len(node.lists)) == ({}, 2)


def test_a_doubt_stays_while_a_file_may_hold_anything() -> None:
    node = PublishingNode(kubelet_problem=TOO_OLD, unreadable=None, allocated={device_name(0)})
    node.look()
    node.looks(3600.0)
    assert node.lists == []
    node.unreadable = frozenset()
    node.looks(31.0)
    assert (len(node.lists), set(node.kept)) == (1, {device_name(0)})


def test_a_whole_node_stays_while_an_unreadable_file_may_hold_a_chip_of_it() -> None:
    node = published_as("node", unreadable=frozenset({3}))
    node.partitions = "chip"
    node.look()
    node.looks(31.0)
    assert (set(node.kept), len(node.lists)) == ({NODE_DEVICE}, 0)


def test_a_device_kept_by_a_former_run_keeps_the_time_of_its_taint() -> None:
    node = published_as("chip")
    node.publish([*node.published, with_taint(core(3, 1, 2), SINCE)])
    node.start()
    node.look()
    kept = node.kept[core_name(3, 1)]
    assert (kept.since, kept.core_size) == (SINCE, 2)


def test_a_name_that_means_other_hardware_now_is_a_device_that_would_vanish() -> None:
    node = published_as("core")
    node.inventory = replace(host(), default_lnc=1)
    assert node.look() == CORES
    assert node.kept[core_name(3, 1)].core_size == 2


@pytest.mark.parametrize("device", [Device("other-1"), Device("neuron-device-01"), core(3, 1, 0), core(3, 1, 10**9)])
def test_what_no_version_of_this_driver_has_made_is_not_kept(device: Device) -> None:
    node = published_as("chip")
    node.publish([*node.published, device])
    assert node.look() == set()


def test_a_pool_of_which_a_part_is_missing_is_reason_to_ask() -> None:
    node = PublishingNode(allocated={device_name(0), "neuron-group4-1", "other"}, is_empty=False)
    assert node.look(incomplete=True) == {"neuron-group4-1"}
    assert node.lists == [1000.0]


def test_what_was_published_and_is_gone_is_asked_for_though_all_that_is_kept_is_prepared() -> None:
    """The slices were deleted by kubelet, and a claim that holds another device has yet to be prepared."""
    one, other = device_name(0), device_name(1)
    node = PublishingNode(prepared={one: None}, allocated={one, other}, kubelet_problem=TOO_OLD)
    assert node.look() == {one, other}


def test_a_doubt_does_not_wait_for_its_turn() -> None:
    """What is published next would look whole."""
    node = published_as("chip")
    node.kubelet_problem = TOO_OLD
    node.look()
    node.looks(12.0)
    assert (len(node.lists), node.kept) == (1, {})
    node.wipe()
    node.allocated = {device_name(0)}
    assert node.look() == {device_name(0)}


def test_a_doubt_stays_until_there_is_an_answer() -> None:
    node = PublishingNode(kubelet_problem=TOO_OLD, allocated=None)
    assert node.look() == set()
    node.allocated = {device_name(0)}
    node.now = node.due
    assert node.look() == {device_name(0)}


def test_what_becomes_of_devices_that_are_no_longer_wanted_is_told() -> None:
    node = published_as("chip", allocated={device_name(1)})
    node.partitions = "node"
    node.look()
    node.looks(6.0)
    assert set(node.kept) == {device_name(1)}
    golden(node.messages)

"""Which devices stay on offer because claims hold them, and how seldom that is asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec import structs

from dra_driver.driver.resourceslices.devices import RETIRED, KeptDevice
from dra_driver.driver.resourceslices.kept import Keeper, held_devices
from dra_driver.kube.objects.meta import timestamp
from dra_driver.kube.objects.resource import AllocatedClaim, Device, DeviceAttribute, DeviceTaint
from dra_driver.neuron.topology.partitions import core_name, device_name
from tests.builders import claims
from tests.builders.claims import ApiServer, claim

SINCE = 1_767_225_600


def core(chip: int, number: int, size: int, *, retired: bool = False) -> Device:
    device = Device(core_name(chip, number), {"logicalCoreSize": DeviceAttribute(int_=size)})
    return with_taint(device, SINCE) if retired else device


def with_taint(device: Device, since: int) -> Device:
    """As it is published while it is kept."""
    return structs.replace(device, taints=(DeviceTaint(RETIRED, "partitions", "NoSchedule", timestamp(since)),))


def chip(index: int) -> Device:
    return Device(device_name(index))


@dataclass
class Node:
    """A node and its claims: what is published follows from what is wanted and kept."""

    wanted: list[Device] = field(default_factory=list)
    published: list[Device] = field(default_factory=list)
    allocated: set[str] | None = field(default_factory=set)
    prepared: dict[str, int | None] = field(default_factory=dict)
    kept: dict[str, KeptDevice] = field(default_factory=dict)
    keeps_taints: bool = True
    now: float = 1000.0
    lists: list[float] = field(default_factory=list)
    """When all claims were listed."""

    def __post_init__(self) -> None:
        self.keeper = Keeper(lambda: self.prepared, self._held, 5.0, 30.0, lambda: self.now)

    def _held(self) -> set[str] | None:
        self.lists.append(self.now)
        return None if self.allocated is None else self.allocated | self.prepared.keys()

    def look(self, *, doubtful: bool = False, publish: bool = True) -> set[str]:
        """Review until nothing changes, as the controller does, and publish; names of what is kept."""
        for _ in range(3):
            former = {device.name: device for device in self.published}
            chosen = self.wanted + [
                with_taint(former[name], int(one.since)) for name, one in self.kept.items() if name in former
            ]
            found = self.keeper.review(
                self.kept, self.published, chosen, doubtful=doubtful, keeps_taints=self.keeps_taints
            )
            if found == self.kept:
                break
            self.kept = found
        if publish:
            self.published = chosen if self.keeps_taints else [structs.replace(one, taints=()) for one in chosen]
            self.keeper.note_published(self.published)
        return set(self.kept)

    def looks(self, seconds: float) -> None:
        """Look whenever it is due."""
        end = self.now + seconds
        while self.kept and self.keeper.due <= end:
            self.now = max(self.keeper.due, self.now)
            self.look()
        self.now = end


def names(devices: Iterable[Device]) -> set[str]:
    return {device.name for device in devices}


def test_all_stays_until_it_is_asked_who_holds_it_and_the_rest_goes_then() -> None:
    node = Node(wanted=[chip(0)], published=[core(3, 0, 2), core(3, 1, 2)], allocated={core_name(3, 1)})
    assert node.look() == {core_name(3, 0), core_name(3, 1)}
    assert node.kept[core_name(3, 0)].core_size == 2
    node.looks(4.0)
    assert node.lists == []
    node.looks(2.0)
    assert (node.lists, set(node.kept)) == ([1005.0], {core_name(3, 1)})
    assert names(node.published) == {device_name(0), core_name(3, 1)}


def test_it_is_asked_who_holds_it_a_while_after_its_taint_was_written() -> None:
    """Until then schedulers allocate it. A write may wait for its turn, or fail."""
    node = Node(wanted=[chip(0)], published=[chip(1)])
    node.look(publish=False)
    node.now += 5
    node.look(publish=False)
    node.now += 1
    node.look()
    node.looks(4.0)
    assert node.lists == []
    node.allocated = {device_name(1)}
    node.looks(2.0)
    assert (node.lists, set(node.kept)) == ([1011.0], {device_name(1)})


def test_where_the_server_stores_no_taints_none_is_waited_for() -> None:
    node = Node(wanted=[chip(0)], published=[chip(1)], keeps_taints=False)
    node.look()
    node.looks(6.0)
    assert (node.lists, node.kept) == ([1005.0], {})


def test_what_is_free_is_let_go_once_although_the_server_still_has_it() -> None:
    node = Node(wanted=[chip(0)], published=[chip(1)])
    node.look()
    node.now += 5
    node.look()
    assert node.look() == set()
    node.published = [chip(1)]
    assert node.look() == {device_name(1)}, "published anew, so it may have been allocated anew"


def test_a_device_that_is_prepared_here_needs_no_question() -> None:
    node = Node(wanted=[chip(0)], published=[chip(1)], prepared={device_name(1): None})
    node.look()
    node.looks(3600.0)
    assert (node.lists, set(node.kept)) == ([], {device_name(1)})
    node.prepared.clear()
    node.looks(31.0)
    assert (len(node.lists), node.kept) == (1, {})


def test_claims_that_hold_a_device_for_long_are_listed_ever_more_seldom() -> None:
    node = Node(wanted=[chip(0)], published=[chip(1), chip(2)], allocated={device_name(1)})
    node.prepared = {device_name(2): None}
    node.look()
    node.looks(7200.0)
    assert len(node.lists) < 18
    asked = len(node.lists)
    del node.prepared[device_name(2)]
    node.looks(31.0)
    assert len(node.lists) == asked + 1, "what was unprepared here is reason to ask"
    assert set(node.kept) == {device_name(1)}


def test_in_doubt_all_stays() -> None:
    node = Node(wanted=[chip(0)], published=[chip(1)], allocated=None)
    node.look()
    node.looks(3600.0)
    assert set(node.kept) == {device_name(1)}
    node.allocated = set()
    node.looks(601.0)
    assert node.kept == {}


def test_a_device_kept_by_a_former_run_keeps_the_time_of_its_taint() -> None:
    node = Node(wanted=[chip(0)], published=[chip(0), core(3, 1, 2, retired=True)])
    node.look()
    assert node.kept == {core_name(3, 1): KeptDevice(SINCE, 2)}


def test_a_name_that_means_other_hardware_now_is_a_device_that_would_vanish() -> None:
    node = Node(wanted=[core(3, 1, 1)], published=[core(3, 1, 2)])
    assert node.look() == {core_name(3, 1)}
    assert node.kept[core_name(3, 1)].core_size == 2


@pytest.mark.parametrize("device", [Device("other-1"), Device("neuron-device-01"), core(3, 1, 0), core(3, 1, 10**9)])
def test_what_no_version_of_this_driver_has_made_is_not_kept(device: Device) -> None:
    assert Node(wanted=[chip(0)], published=[device]).look() == set()


def test_a_pool_of_which_a_part_is_missing_is_reason_to_ask() -> None:
    node = Node(wanted=[chip(0)], published=[], allocated={device_name(0), "neuron-group4-1", "other"})
    assert node.look(doubtful=True) == {"neuron-group4-1"}
    assert node.lists == [1000.0]


def test_what_was_published_and_is_gone_is_asked_for_though_all_that_is_kept_is_prepared() -> None:
    """The slices were deleted by kubelet, and a claim that holds another device has yet to be prepared."""
    one, other = device_name(0), device_name(1)
    node = Node(prepared={one: None}, allocated={one, other}, kept={one: KeptDevice(1000, None)})
    assert node.look(doubtful=True) == {one, other}


def test_a_doubt_does_not_wait_for_its_turn() -> None:
    """What is published next would look whole."""
    node = Node(wanted=[chip(0)], published=[chip(1)], allocated={device_name(0)})
    node.look()
    node.looks(12.0)
    node.wanted, node.published, node.kept = [], [], {}
    assert node.look(doubtful=True) == {device_name(0)}


def test_a_doubt_stays_until_there_is_an_answer() -> None:
    node = Node(allocated=None)
    assert node.look(doubtful=True) == set()
    node.allocated = {device_name(0)}
    node.now = node.keeper.due
    assert node.look() == {device_name(0)}


def test_a_device_is_held_whose_claim_is_prepared_and_deleted_while_claims_are_listed(tmp_path: Path) -> None:
    item = claim(1, [4])

    class Api(ApiServer):
        def list_claims(self, driver: str, pool: str) -> list[AllocatedClaim]:
            node.prepare(item)
            self.delete(item)  # with its pod, by force: the containers may be running
            return super().list_claims(driver, pool)

    api = Api(item)
    node = claims.Node(tmp_path, api)
    assert held_devices(api, node.checkpoint, claims.NODE) == frozenset({device_name(4)})
    node.checkpoint.close()

"""The watch reads the host again and again, hands over what changed, and outlives every failure."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.host import reading
from dra_driver.host.discover import discover
from dra_driver.host.emulator import EmulationOptions, write_host
from dra_driver.host.inventory import NodeInventory
from dra_driver.host.watch import NOTHING_READ, HostWatch, publishable
from dra_driver.topology.instance_types import INSTANCE_TYPES

KIND = INSTANCE_TYPES["inf2.24xlarge"]
CORE_COUNT = "sys/devices/virtual/neuron_device/neuron2/core_count"
HEALTHY = EmulationOptions()
PATIENCE = 20.0
"""Seconds until a test gives up on another thread."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_host(tmp_path / "host", KIND, HEALTHY)
    return tmp_path / "host"


def put(path: Path, content: str) -> None:
    path.unlink()
    path.write_text(content)


class Turns:
    """Stands in for time: the watch's thread sleeps until the test lets it scan once more."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._sleeping = threading.Semaphore(0)
        self._awake = threading.Semaphore(0)
        self.ending = False

    def wait(self, seconds: float) -> bool:
        self.asked.append(seconds)
        self._sleeping.release()
        assert self._awake.acquire(timeout=PATIENCE)
        return self.ending

    def asleep(self) -> None:
        assert self._sleeping.acquire(timeout=PATIENCE)

    def one_scan(self) -> None:
        """Let one interval pass, and return when the watch sleeps again."""
        self._awake.release()
        self.asleep()

    def end(self) -> None:
        self.ending = True
        self._awake.release()


@contextmanager
def running(watch: HostWatch, turns: Turns) -> Iterator[None]:
    watch.start()
    turns.asleep()
    try:
        yield
    finally:
        turns.end()
        watch.stop()


def no_labels() -> Mapping[str, str]:
    return {}


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "dra_driver.host.watch"]


def test_before_the_first_scan_nothing_is_known(root: Path) -> None:
    watch = HostWatch(root, no_labels, lambda _: None)

    assert watch.current == NOTHING_READ
    assert watch.current.devices == ()


def test_start_hands_over_the_first_inventory_and_the_same_one_never_again(root: Path) -> None:
    taken: list[NodeInventory] = []
    turns = Turns()
    watch = HostWatch(root, no_labels, taken.append, wait=turns.wait)
    with running(watch, turns):
        for _ in range(3):
            turns.one_scan()

    assert taken == [discover(root)]
    assert watch.current == discover(root)
    assert turns.asked == [10.0] * 4


def test_a_host_without_a_driver_is_handed_over_too(tmp_path: Path) -> None:
    taken: list[NodeInventory] = []
    HostWatch(tmp_path, no_labels, taken.append).rescan()

    assert [inventory.devices for inventory in taken] == [()]


def test_a_device_that_goes_and_comes_back_is_handed_over_both_times(root: Path) -> None:
    taken: list[NodeInventory] = []
    turns = Turns()
    with running(HostWatch(root, no_labels, taken.append, wait=turns.wait), turns):
        write_host(root, KIND, EmulationOptions(missing=frozenset({3})))
        turns.one_scan()
        write_host(root, KIND, HEALTHY)
        turns.one_scan()

    assert [len(inventory.devices) for inventory in taken] == [6, 5, 6]
    assert taken[2] == taken[0]


def test_a_change_of_labels_is_handed_over(root: Path) -> None:
    taken: list[NodeInventory] = []
    labels: dict[str, str] = {}
    watch = HostWatch(root, lambda: labels, taken.append)
    watch.rescan()
    labels["topology.k8s.aws/capacity-block-id"] = "cr-1"

    assert watch.rescan().capacity_block_id == "cr-1"
    assert [inventory.capacity_block_id for inventory in taken] == [None, "cr-1"]


def test_a_settling_host_is_read_again_sooner_until_it_has_settled(root: Path) -> None:
    turns = Turns()
    put(root / CORE_COUNT, "busy\n")
    with running(HostWatch(root, no_labels, lambda _: None, 7.0, 3.0, wait=turns.wait), turns):
        turns.one_scan()
        put(root / CORE_COUNT, "2")
        turns.one_scan()

    assert turns.asked == [3.0, 3.0, 7.0]


def test_what_is_only_logged_is_not_handed_over_but_is_current(root: Path) -> None:
    taken: list[NodeInventory] = []
    watch = HostWatch(root, no_labels, taken.append)
    watch.rescan()
    put(root / CORE_COUNT, "busy\n")

    assert watch.rescan().settling
    assert [finding.code for finding in watch.current.findings] == ["value-busy"]
    assert len(taken) == 1


def test_publishable_leaves_out_findings_and_settling_and_nothing_else(root: Path) -> None:
    inventory = discover(root)
    put(root / CORE_COUNT, "busy\n")
    odd = discover(root)

    assert odd != inventory
    assert publishable(odd) == publishable(inventory)
    assert publishable(replace(inventory, default_lnc=1)) != publishable(inventory)
    assert publishable(replace(inventory, devices=inventory.devices[1:])) != publishable(inventory)


def test_a_finding_is_logged_when_it_appears_and_when_it_goes(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch = HostWatch(root, no_labels, lambda _: None)
    watch.rescan()
    assert messages(caplog) == []

    put(root / CORE_COUNT, "many")
    watch.rescan()
    watch.rescan()
    (text,) = messages(caplog)
    assert text.startswith("core_count of neuron2 cannot be used (it says 'many'); ")
    assert text.endswith("[core-count-unreadable]")

    caplog.clear()
    put(root / CORE_COUNT, "2")
    watch.rescan()
    watch.rescan()
    assert messages(caplog) == ["core-count-unreadable: no longer so for neuron2"]


def test_findings_are_logged_at_their_severity(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    HostWatch(tmp_path, no_labels, lambda _: None).rescan()

    assert [(record.levelname, record.getMessage().rpartition(" ")[2]) for record in caplog.records] == [
        ("ERROR", "[driver-not-loaded]"),
        ("WARNING", "[instance-type-missing]"),
    ]


def test_a_failing_consumer_gets_the_change_again_and_is_logged_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    taken: list[NodeInventory] = []
    broken = True

    def take(inventory: NodeInventory) -> None:
        if broken:
            raise OSError("the API is away")
        taken.append(inventory)

    turns = Turns()
    with running(HostWatch(root, no_labels, take, wait=turns.wait), turns):
        turns.one_scan()
        turns.one_scan()
        broken = False
        turns.one_scan()
        turns.one_scan()

    assert len(taken) == 1
    assert messages(caplog) == [
        "taking over a changed inventory failed and is tried again at the next scan: OSError: the API is away",
        "taking over a changed inventory works again",
    ]


def test_labels_that_cannot_be_had_leave_those_of_the_scan_before(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers: Iterator[Mapping[str, str] | Exception] = iter(
        [{"topology.k8s.aws/capacity-block-id": "cr-1"}, ValueError("no node"), ValueError("no node")]
    )

    def labels() -> Mapping[str, str]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    taken: list[NodeInventory] = []
    watch = HostWatch(root, labels, taken.append)
    for _ in range(3):
        assert watch.rescan().capacity_block_id == "cr-1"

    assert len(taken) == 1
    assert [text for text in messages(caplog) if "labels failed" in text] == [
        "reading the node's labels failed and is tried again at the next scan: ValueError: no node"
    ]


def test_a_failing_scan_keeps_the_inventory_and_the_thread(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[NodeInventory] = []
    turns = Turns()
    watch = HostWatch(root, no_labels, taken.append, wait=turns.wait)
    with running(watch, turns):
        with monkeypatch.context() as patch:
            patch.setattr(reading.HostFiles, "names", lambda *_: 1 / 0)
            turns.one_scan()
            assert len(watch.current.devices) == 6
        write_host(root, KIND, EmulationOptions(missing=frozenset({0})))
        turns.one_scan()

    assert [len(inventory.devices) for inventory in taken] == [6, 5]


def test_the_serial_numbers_of_a_running_watch_are_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = reading._read_all

    def counting(path: str) -> bytes:
        reads.append(path.rpartition("/")[2])
        return read(path)

    monkeypatch.setattr(reading, "_read_all", counting)
    watch = HostWatch(root, no_labels, lambda _: None)
    for _ in range(4):
        watch.rescan()

    assert reads.count("serial_number") == 6
    assert reads.count("core_count") == 24


def test_rescan_gives_the_new_inventory_at_once_beside_the_thread(root: Path) -> None:
    taken: list[NodeInventory] = []
    watch = HostWatch(root, no_labels, taken.append, interval=3600)
    watch.start()
    try:
        write_host(root, KIND, EmulationOptions(missing=frozenset({5})))
        assert len(watch.rescan().devices) == 5
        assert len(taken) == 2
    finally:
        watch.stop()


def test_rescan_hands_over_what_was_taken_before_when_asked_to(root: Path) -> None:
    taken: list[NodeInventory] = []
    watch = HostWatch(root, dict, taken.append)
    watch.rescan()
    watch.rescan()
    assert len(taken) == 1
    watch.rescan(hand_over=True)
    assert taken == [watch.current] * 2


def test_stop_ends_the_thread_at_once_and_may_be_called_twice_or_without_start(root: Path) -> None:
    watch = HostWatch(root, no_labels, lambda _: None, interval=3600)
    watch.start()
    assert "host-watch" in {thread.name for thread in threading.enumerate()}
    watch.stop()
    watch.stop()
    assert "host-watch" not in {thread.name for thread in threading.enumerate()}
    HostWatch(root, no_labels, lambda _: None).stop()

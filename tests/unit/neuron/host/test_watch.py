"""The watch reads the host again and again, hands over what changed, and outlives every failure."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.host import sysfs
from dra_driver.neuron.host import watch as host_watch
from dra_driver.neuron.host.discover import discover
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.host.watch import NOTHING_READ, HostWatch, publishable
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.util.errors import DriverError
from tests.eventually import eventually
from tests.golden import golden, golden_error, logged

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


@contextmanager
def running(watch: HostWatch) -> Iterator[None]:
    watch.start()
    try:
        yield
    finally:
        watch.stop()


class Scans:
    """Counts scans: each asks for the labels once."""

    def __init__(self) -> None:
        self.count = 0

    def labels(self) -> Mapping[str, str]:
        self.count += 1
        return {}

    def pass_by(self, more: int = 3) -> None:
        """Return when so many further scans have begun: the ones before the last have ended."""
        wanted = self.count + more
        eventually(lambda: self.count >= wanted, PATIENCE, "the next scans")


def no_labels() -> Mapping[str, str]:
    return {}


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    names = ("dra_driver.neuron.host.watch", "dra_driver.util.worker")
    return [record.getMessage() for record in caplog.records if record.name in names]


def test_before_the_first_scan_nothing_is_known(root: Path) -> None:
    watch = HostWatch(root, no_labels, lambda _: None)

    assert watch.current == NOTHING_READ
    assert watch.current.devices == ()


def test_start_hands_over_the_first_inventory_and_the_same_one_never_again(root: Path) -> None:
    taken: list[NodeInventory] = []
    scans = Scans()
    watch = HostWatch(root, scans.labels, taken.append, interval=0.01)
    with running(watch):
        assert watch.current == discover(root)
        scans.pass_by()

    assert taken == [discover(root)]


def test_a_host_without_a_driver_is_handed_over_too(tmp_path: Path) -> None:
    taken: list[NodeInventory] = []
    HostWatch(tmp_path, no_labels, taken.append).scan()

    assert [inventory.devices for inventory in taken] == [()]


def test_a_device_that_goes_and_comes_back_is_handed_over_both_times(root: Path) -> None:
    taken: list[NodeInventory] = []
    watch = HostWatch(root, no_labels, taken.append)
    for options in (HEALTHY, EmulationOptions(missing=frozenset({3})), HEALTHY):
        write_host(root, KIND, options)
        watch.scan()

    assert [len(inventory.devices) for inventory in taken] == [6, 5, 6]
    assert taken[2] == taken[0]


def test_a_change_of_labels_is_handed_over(root: Path) -> None:
    taken: list[NodeInventory] = []
    labels: dict[str, str] = {}
    watch = HostWatch(root, lambda: labels, taken.append)
    watch.scan()
    labels["topology.k8s.aws/capacity-block-id"] = "cr-1"

    assert watch.scan().capacity_block_id == "cr-1"
    assert [inventory.capacity_block_id for inventory in taken] == [None, "cr-1"]


def test_a_settling_host_is_read_again_sooner_until_it_has_settled(root: Path) -> None:
    scans = Scans()
    put(root / CORE_COUNT, "busy\n")
    watch = HostWatch(root, scans.labels, lambda _: None, 3600.0, 0.01)
    with running(watch):
        scans.pass_by()
        put(root / CORE_COUNT, "2")
        eventually(lambda: not watch.current.settling, PATIENCE, "a settled host")
        settled = scans.count
        time.sleep(0.2)
        assert scans.count == settled


def test_what_is_only_logged_is_not_handed_over_but_is_current(root: Path) -> None:
    taken: list[NodeInventory] = []
    watch = HostWatch(root, no_labels, taken.append)
    watch.scan()
    put(root / CORE_COUNT, "busy\n")

    assert watch.scan().settling
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
    watch.scan()
    assert messages(caplog) == []

    put(root / CORE_COUNT, "many")
    watch.scan()
    watch.scan()
    (text,) = messages(caplog)
    golden(text)
    assert text.endswith("[core-count-unreadable]")

    caplog.clear()
    put(root / CORE_COUNT, "2")
    watch.scan()
    watch.scan()
    golden(messages(caplog))


def test_findings_are_logged_at_their_severity(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    HostWatch(tmp_path, no_labels, lambda _: None).scan()

    assert [(record.levelname, record.getMessage().rpartition(" ")[2]) for record in caplog.records] == [
        ("ERROR", "[driver-not-loaded]"),
        ("WARNING", "[instance-type-missing]"),
    ]


def test_a_failing_consumer_gets_the_change_again_and_is_logged_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    taken: list[NodeInventory] = []
    calls = 0

    def take(inventory: NodeInventory) -> None:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise OSError("the API is away")
        taken.append(inventory)

    watch = HostWatch(root, no_labels, take, interval=0.01)
    with running(watch):
        eventually(watch.worker.problem, PATIENCE, "the truth")
        golden(watch.worker.problem())
        eventually(lambda: taken, PATIENCE, "the change")
        eventually(lambda: not watch.worker.problem(), PATIENCE, "no problem")

    assert len(taken) == 1
    failed, works = messages(caplog)
    golden(failed)
    golden(works)


def test_labels_that_cannot_be_had_leave_those_of_the_scan_before(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers: Iterator[Mapping[str, str] | Exception] = iter(
        [{"topology.k8s.aws/capacity-block-id": "cr-1"}, DriverError("no node"), DriverError("no node")]
    )

    def labels() -> Mapping[str, str]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    taken: list[NodeInventory] = []
    watch = HostWatch(root, labels, taken.append)
    for _ in range(3):
        assert watch.scan().capacity_block_id == "cr-1"

    assert len(taken) == 1
    golden(messages(caplog))


def test_a_failing_scan_keeps_the_inventory_and_the_thread(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[NodeInventory] = []
    watch = HostWatch(root, no_labels, taken.append, interval=0.01)
    with running(watch):
        with monkeypatch.context() as patch:
            patch.setattr(sysfs.HostFiles, "names", lambda *_: 1 / 0)
            eventually(lambda: "ZeroDivisionError" in watch.worker.problem(), PATIENCE, "a failing scan")
            assert len(watch.current.devices) == 6
        write_host(root, KIND, EmulationOptions(missing=frozenset({0})))
        eventually(lambda: len(taken[-1].devices) == 5, PATIENCE, "one device less")

    assert len(taken[0].devices) == 6


def test_a_scan_that_hangs_is_told_and_holds_up_neither_start_nor_stop_nor_who_asks_for_another(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_watch, "FIRST_SECONDS", 1.0)
    monkeypatch.setattr(host_watch, "MAX_ROUND_SECONDS", 0.2)
    go_on = threading.Event()
    read = sysfs._read_all

    def hang(path: str) -> bytes:
        go_on.wait(PATIENCE)
        return read(path)

    monkeypatch.setattr(sysfs, "_read_all", hang)
    taken: list[NodeInventory] = []
    watch = HostWatch(root, no_labels, taken.append)
    started = time.monotonic()
    try:
        watch.start()
        watch.rescan()
        eventually(watch.worker.problem, PATIENCE, "the truth")
        golden(watch.worker.problem())
        golden(logged(caplog, "continuing without it"), "log")
        with pytest.raises(DriverError):
            watch.now()
        watch.stop(0.1)
        assert time.monotonic() - started < PATIENCE / 2
    finally:
        go_on.set()
    watch.stop()
    assert taken == [], "nobody is told any more after the stop"


def test_who_asks_while_a_later_scan_hangs_is_refused_instead_of_hanging_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_watch, "MAX_ROUND_SECONDS", 0.2)
    go_on = threading.Event()
    begun: list[float] = []
    read = sysfs._read_all

    def hang(path: str) -> bytes:
        begun.append(time.monotonic())
        go_on.wait(30)
        return read(path)

    watch = HostWatch(root, no_labels, lambda _: None, interval=60.0)
    with running(watch):
        assert len(watch.now().devices) == KIND.devices
        monkeypatch.setattr(sysfs, "_read_all", hang)
        watch.rescan()
        try:
            # The worker may be overdue before its scan has begun.
            eventually(lambda: begun and time.monotonic() - begun[0] > 0.3, PATIENCE, "a scan that hangs")
            eventually(watch.worker.stuck, PATIENCE, "the truth")
            with pytest.raises(DriverError):
                watch.now()
        finally:
            go_on.set()


def test_the_serial_numbers_of_a_running_watch_are_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = sysfs._read_all

    def counting(path: str) -> bytes:
        reads.append(path.rpartition("/")[2])
        return read(path)

    monkeypatch.setattr(sysfs, "_read_all", counting)
    watch = HostWatch(root, no_labels, lambda _: None)
    for _ in range(4):
        watch.scan()

    assert reads.count("serial_number") == 6
    assert reads.count("core_count") == 24


def test_rescan_has_the_thread_look_at_once(root: Path) -> None:
    taken: list[NodeInventory] = []
    watch = HostWatch(root, no_labels, taken.append, interval=3600)
    with running(watch):
        write_host(root, KIND, EmulationOptions(missing=frozenset({5})))
        watch.rescan()
        eventually(lambda: len(watch.current.devices) == 5, PATIENCE, "one device less")


def test_the_first_inventory_that_was_made_with_labels_is_handed_over_though_it_is_the_same(root: Path) -> None:
    taken: list[NodeInventory] = []
    known: list[Mapping[str, str]] = []

    def labels() -> Mapping[str, str]:
        if not known:
            raise DriverError("no node")
        return known[0]

    watch = HostWatch(root, labels, taken.append)
    for _ in range(2):
        watch.scan()
    assert len(taken) == 1
    known.append({})
    for _ in range(2):
        watch.scan()
    assert taken == [watch.current] * 2


def test_stop_ends_the_thread_at_once_and_may_be_called_twice_or_without_start(root: Path) -> None:
    watch = HostWatch(root, no_labels, lambda _: None, interval=3600)
    watch.start()
    assert "reading the host" in {thread.name for thread in threading.enumerate()}
    watch.stop()
    watch.stop()
    assert "reading the host" not in {thread.name for thread in threading.enumerate()}
    HostWatch(root, no_labels, lambda _: None).stop()


def test_before_the_first_scan_has_ended_nothing_is_prepared(root: Path) -> None:
    with golden_error(DriverError):
        HostWatch(root, no_labels, lambda _: None).now()

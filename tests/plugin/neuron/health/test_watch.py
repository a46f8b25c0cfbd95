"""The watch follows the chips' health: it tells of what changes, remembers it, and outlives what hangs or fails."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import pytest

from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.health import watch as health_watch
from dra_driver.neuron.health.assess import CORE_COUNTERS, HARDWARE_COUNTERS
from dra_driver.neuron.health.clearing import Answer, ask
from dra_driver.neuron.health.faults import NodeHealth
from dra_driver.neuron.health.watch import HealthWatch
from dra_driver.neuron.host.discover import boot_id, discover
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.host.signals import HostReading, SignalReader
from dra_driver.neuron.host.sysfs import HostFiles
from dra_driver.neuron.host.watch import NOTHING_READ
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.util.errors import DriverError
from tests.eventually import eventually
from tests.golden import golden, golden_error, logged

KIND = INSTANCE_TYPES["inf2.24xlarge"]
DEVICES = "sys/devices/virtual/neuron_device"
PATIENCE = 20.0
"""Seconds until a test gives up on another thread."""


class Told:
    """Takes what the watch tells."""

    def __init__(self) -> None:
        self.all: list[NodeHealth] = []

    def __call__(self, said: NodeHealth) -> None:
        self.all.append(said)

    def states(self, chip: int = 2) -> list[str]:
        return [found.state for said in self.all if (found := said.chip(chip)) is not None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_host(tmp_path / "host", KIND, EmulationOptions())
    return tmp_path / "host"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def put(root: Path, count: int, chip: int = 2) -> None:
    path = root / DEVICES / f"neuron{chip}" / "stats/hardware/mem_ecc_uncorrected"
    path.with_name("new").write_text(f"{count}\n")
    path.with_name("new").replace(path)


def made(
    root: Path,
    state: Path,
    told: Callable[[NodeHealth], None],
    hints: Path | None = None,
    interval: float = 0.05,
    **other: Reader,
) -> HealthWatch:
    inventory = discover(root)
    return HealthWatch(root, lambda: inventory, state, hints, told, interval, **other)


@contextlib.contextmanager
def running(watch: HealthWatch) -> Iterator[HealthWatch]:
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


class Reader(SignalReader):
    """Reads a host unless it ``hangs``, and has ``event_files`` of its own."""

    def __init__(self, root: Path, event_files: Mapping[int, int] | None = None) -> None:
        super().__init__(root, HARDWARE_COUNTERS, CORE_COUNTERS)
        self.event_files = event_files or {}
        self.count = 0
        self.hangs = threading.Event()
        self.released = threading.Event()
        self.fails = False

    def read(self, inventory: NodeInventory, cores_of: Collection[int] | None = None) -> HostReading:
        self.count += 1
        if self.fails:
            raise RuntimeError("on purpose")
        if self.hangs.is_set():
            self.at = "sys/hanging"
            self.released.wait()
        return super().read(inventory, cores_of)

    def _follow_events(self, files: HostFiles, entries: Mapping[int, str]) -> None:
        pass


def test_the_first_health_is_told_and_the_same_one_never_again(root: Path, state: Path) -> None:
    told = Told()
    with running(made(root, state, told)) as watch:
        assert [chip.state for chip in watch.current.chips] == ["healthy"] * 6
        time.sleep(0.3)
    assert len(told.all) == 1


def test_a_fault_is_told_when_it_comes_and_when_it_goes(root: Path, state: Path) -> None:
    told = Told()
    with running(made(root, state, told)):
        put(root, 1)
        eventually(lambda: told.states() == ["healthy", "unhealthy"], PATIENCE, "the fault")
        put(root, 0)
        eventually(lambda: told.states() == ["healthy", "unhealthy", "healthy"], PATIENCE, "its end")


def test_a_fault_that_is_there_at_the_start_is_told_at_once(root: Path, state: Path) -> None:
    put(root, 1)
    told = Told()
    with running(made(root, state, told, interval=10.0)):
        assert told.states() == ["unhealthy"]


def test_what_comes_and_goes_all_the_time_does_not_have_the_host_read_all_the_time(root: Path, state: Path) -> None:
    reader = Reader(root)
    with running(made(root, state, Told(), interval=10.0, reader=reader)) as watch:
        before = reader.count
        put(root, 1)
        watch.worker.wake()
        began = time.monotonic()
        while time.monotonic() < began + 2.0:
            put(root, reader.count % 2)
            time.sleep(0.01)
        count = reader.count - before
        assert count <= 2 + (time.monotonic() - began) / health_watch.AGAIN_SECONDS


def test_an_earlier_process_is_remembered_before_the_host_is_read(root: Path, state: Path) -> None:
    put(root, 1)
    with running(made(root, state, Told())) as watch:
        before = watch.current
    put(root, 0)
    again = made(root, state, Told())
    assert [chip.state for chip in again.current.chips] == ["unknown"] * 2 + ["unhealthy"] + ["unknown"] * 3
    chips = (before.chip(2), again.current.chip(2))
    assert chips[0] == chips[1]
    again.stop()


def test_a_process_that_is_killed_at_any_moment_is_followed_by_one_that_knows_the_fault(
    root: Path, state: Path
) -> None:
    """Nothing is written at the end: the state directory is copied while the watch runs."""
    told = Told()
    with running(made(root, state, told)):
        put(root, 1)
        eventually(lambda: told.states()[-1:] == ["unhealthy"], PATIENCE, "the fault")
        copy = state.parent / "copy"
        copy.mkdir()
        (copy / "health.json").write_bytes((state / "health.json").read_bytes())
    after = Told()
    with running(made(root, copy, after)):
        pass
    assert after.states() == ["unhealthy"]
    assert after.all[0].chip(2) == told.all[-1].chip(2), "and since when"


def test_waking_the_worker_ends_its_wait(root: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_watch, "MAX_INTERVAL_SECONDS", 3600.0)
    told = Told()
    with running(made(root, state, told, interval=3600.0)) as watch:
        put(root, 1)
        watch.worker.wake()
        eventually(lambda: told.states()[-1:] == ["unhealthy"], PATIENCE, "the fault")
        stopped = time.monotonic()
    assert time.monotonic() - stopped < 30.0


def test_a_watch_that_was_never_started_can_be_stopped_twice(root: Path, state: Path) -> None:
    watch = made(root, state, Told())
    watch.stop()
    watch.stop()
    watch.worker.wake()


def test_before_the_inventory_is_known_nothing_is_told(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_watch, "FIRST_SECONDS", 0.1)
    told = Told()
    inventories = [NOTHING_READ]
    watch = HealthWatch(root, lambda: inventories[0], state, None, told)
    with running(watch):
        assert told.all == []
        inventories[0] = discover(root)
        eventually(lambda: told.states() == ["healthy"], PATIENCE, "the first health")


# Trouble


def test_a_reading_that_hangs_makes_chips_unknown_but_those_with_a_graver_fault(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health_watch, "OLD_SECONDS", 2.0)
    put(root, 1)
    told = Told()
    reader = Reader(root)
    with running(made(root, state, told, reader=reader)) as watch:
        assert told.states(2) == ["unhealthy"]
        reader.hangs.set()
        eventually(lambda: told.states(1)[-1:] == ["unknown"], PATIENCE, "the finding")
        assert told.states(2)[-1] == "unhealthy"
        assert watch.current.chips == told.all[-1].chips
        (fault,) = told.all[-1].chips[1].faults
        assert fault.code == "unreadable"
        golden(fault.detail)
        eventually(lambda: sum("is unknown" in text for text in caplog.messages) == 5, PATIENCE, "the log")
        golden(caplog.messages)
        count = reader.count
        time.sleep(0.5)
        assert reader.count == count, "no second reading while one hangs"

        caplog.set_level(logging.INFO, "dra_driver")
        reader.hangs.clear()
        reader.released.set()
        eventually(lambda: told.states(1)[-1:] == ["healthy"], PATIENCE, "the end of it")
        eventually(lambda: logged(caplog, "read again"), PATIENCE, "the log")
        golden(logged(caplog, "read again"), "afterwards")


def test_a_reading_that_fails_makes_chips_unknown(root: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_watch, "OLD_SECONDS", 0.5)
    told = Told()
    reader = Reader(root)
    with running(made(root, state, told, reader=reader)) as watch:
        assert told.states() == ["healthy"]
        reader.fails = True
        eventually(lambda: told.states() == ["healthy", "unknown"], PATIENCE, "that it is not known")
        assert "on purpose" in watch.worker.problem()
        reader.fails = False
        eventually(lambda: told.states()[-1] == "healthy", PATIENCE, "the end of it")


def test_a_watch_whose_reading_hangs_is_stopped_in_time(root: Path, state: Path) -> None:
    reader = Reader(root)
    watch = made(root, state, Told(), reader=reader)
    with running(watch):
        reader.hangs.set()
        count = reader.count
        eventually(lambda: reader.count > count, PATIENCE, "the reading")
        stopped = time.monotonic()
    assert time.monotonic() - stopped < 30.0
    reader.released.set()


def test_a_host_that_hangs_from_the_start_does_not_keep_the_start(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health_watch, "FIRST_SECONDS", 1.0)
    told = Told()
    reader = Reader(root)
    reader.hangs.set()
    watch = made(root, state, told, reader=reader)
    with running(watch):
        assert [chip.state for chip in watch.current.chips] == ["unknown"] * 6
        eventually(lambda: told.states() == ["unknown"], PATIENCE, "the finding")
        golden(logged(log, "has not been read within"))
    reader.released.set()


def test_who_takes_the_health_and_fails_is_told_again(
    root: Path, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()

    def take(said: NodeHealth) -> None:
        told(said)
        if len(told.all) == 1:
            raise DriverError("not now")

    with running(made(root, state, take)):
        eventually(lambda: len(told.all) == 2, PATIENCE, "the second try")
    assert told.all[0].chips == told.all[1].chips
    assert "not now" in caplog.text


def test_a_record_that_cannot_be_read_or_written_stops_nothing(root: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    told = Told()
    with running(made(root, tmp_path / "taken" / "state", told)) as watch:
        put(root, 1)
        eventually(lambda: told.states() == ["healthy", "unhealthy"], PATIENCE, "the fault")
        assert {sample.value for sample in watch.samples() if sample.name == "health_record_writable"} == {0.0}


def test_the_record_is_not_written_at_every_reading(root: Path, state: Path) -> None:
    with running(made(root, state, Told())):
        written = (state / "health.json").stat().st_mtime_ns
        for count in range(1, 20):
            put(root, count, chip=5)
            time.sleep(0.01)
        eventually(lambda: (state / "health.json").stat().st_mtime_ns != written, PATIENCE, "the fault")
        written = (state / "health.json").stat().st_mtime_ns
        for count in range(20, 40):
            put(root, count, chip=5)
            time.sleep(0.02)
        assert (state / "health.json").stat().st_mtime_ns == written
    assert (state / "health.json").stat().st_mtime_ns != written, "the counts of the end are kept"


# Requests, hints, numbers


def hint(root: Path, directory: Path, **other: object) -> None:
    directory.mkdir(exist_ok=True)
    said = {"version": 1, "bootId": boot_id(root), "kind": "DMA_ERROR", "device": 2, "serial": "", "core": 1}
    (directory / "DMA_ERROR-2.json").write_text(json.dumps(said | {"seen": int(time.time()) - 5} | other))


def test_a_hint_is_a_fault_until_an_administrator_clears_it(root: Path, state: Path, tmp_path: Path) -> None:
    told = Told()
    hint(root, tmp_path / "hints")
    with running(made(root, state, told, tmp_path / "hints")):
        assert told.states() == ["unhealthy"]
        assert ask(state, 2, PATIENCE) == Answer(2, True, ("log-dma",), ())
        eventually(lambda: told.states()[-1] == "healthy", PATIENCE, "the clearing")
    again = Told()
    with running(made(root, state, again, tmp_path / "hints")):
        assert again.states() == ["healthy"], "also after a restart"
    assert {path.name for path in state.iterdir()} == {"health.json"}


def test_a_request_about_what_the_host_says_or_nobody_knows_is_answered(root: Path, state: Path) -> None:
    put(root, 1)
    with running(made(root, state, Told())):
        assert ask(state, 2, PATIENCE) == Answer(2, True, (), ("hbm-uncorrectable",))
        assert ask(state, 77, PATIENCE) == Answer(77, known=False)


def test_a_request_that_nobody_answers_is_withdrawn(state: Path) -> None:
    state.mkdir()
    with golden_error(DriverError):
        ask(state, 2, 0.1)
    assert list(state.iterdir()) == []


def test_requests_that_are_none_are_taken_away_and_harm_nothing(root: Path, state: Path) -> None:
    told = Told()
    with running(made(root, state, told)):
        (state / f"clear-{'a' * 32}.request").write_bytes(b"\xff")
        (state / f"clear-{'b' * 32}.request").write_text('{"device": "2"}')
        (state / f"clear-{'c' * 32}.request").mkdir()
        (state / f"clear-{'d' * 32}.answer").write_text("{}")
        os.utime(state / f"clear-{'d' * 32}.answer", (0, 0))
        eventually(lambda: len(list(state.iterdir())) == 2, PATIENCE, "their removal")
        assert ask(state, 2, PATIENCE) == Answer(2)


def test_the_numbers_are_those_of_the_faults(root: Path, state: Path, tmp_path: Path) -> None:
    put(root, 3)
    hint(root, tmp_path / "hints", device=99)
    with running(made(root, state, Told(), tmp_path / "hints")) as watch:
        found = {(sample.name, *(value for _, value in sample.labels)): sample.value for sample in watch.samples()}
    assert found["chip_health", "neuron2", "unhealthy"] == 1
    assert found["chip_fault", "neuron2", "hbm-uncorrectable", "unhealthy"] == 1
    assert found["chip_errors", "neuron2", "mem_ecc_uncorrected"] == 3
    assert found["chip_errors", "neuron1", "mem_ecc_uncorrected"] == 0
    assert found["health_hints_ignored",] == 1
    assert found["health_record_writable",] == 1
    assert time.time() - found["health_read_time_seconds",] < 60


# Notifications


@contextlib.contextmanager
def notified_file() -> Iterator[tuple[int, Callable[[], None]]]:
    """A file of the kernel that a poll for POLLPRI waits on, and what notifies it: mounts of another process."""
    script = "read x; while read x; do mount -t tmpfs none /mnt && umount /mnt; echo done; done"
    command = ["unshare", "--mount", "sh", "-c", f"echo ready; {script}"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            pytest.skip("a mount namespace of one's own is not permitted here")
        process.stdin.write("\n")
        descriptor = os.open(f"/proc/{process.pid}/mountinfo", os.O_RDONLY)
        os.read(descriptor, 1 << 20)

        def notify() -> None:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

        probe = select.poll()
        probe.register(descriptor, select.POLLPRI)
        notify()
        if not probe.poll(5000):
            pytest.skip("mounting is not permitted here")
        process.stdout.readline()
        while probe.poll(200):
            pass
        yield descriptor, notify
        os.close(descriptor)
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def test_a_notification_of_the_kernel_has_a_fault_seen_before_the_next_turn(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_watch, "MAX_INTERVAL_SECONDS", 3600.0)
    told = Told()
    with (
        notified_file() as (descriptor, notify),
        running(made(root, state, told, interval=3600.0, reader=Reader(root, {2: descriptor}))) as watch,
    ):
        time.sleep(0.5)
        put(root, 1)
        notify()
        eventually(lambda: told.states()[-1] == "unhealthy", PATIENCE, "the fault")
        assert {sample.value for sample in watch.samples() if sample.name == "health_notifications"} != {0.0}


def test_a_device_that_notifies_all_the_time_does_not_have_the_host_read_all_the_time(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_watch, "AGAIN_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            near.send(b"!", socket.MSG_OOB)  # nobody reads it, so it is ready for ever
            reader = Reader(root, {2: far.fileno()})
            with running(made(root, state, Told(), interval=10.0, reader=reader)) as watch:
                eventually(lambda: reader.count > 8, PATIENCE, "notifications")
                time.sleep(0.5)
                assert reader.count <= 15
                put(root, 1)
                watch.worker.wake()
                eventually(lambda: watch.current.chips[2].faults, PATIENCE, "a wake-up that is heeded")

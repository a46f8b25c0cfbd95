"""What the files say of each chip's health is read as values, and whatever they hold, nothing raises."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.health.assess import CORE_COUNTERS, HARDWARE_COUNTERS, HealthMemory, assess
from dra_driver.neuron.health.faults import ChipHealth
from dra_driver.neuron.host import sysfs
from dra_driver.neuron.host.discover import discover
from dra_driver.neuron.host.signals import COMPONENTS, ERROR_EVENT, HARDWARE, HEARTBEAT, HostReading, SignalReader
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.neuron.topology.ultraserver import Mode
from tests.generators.effort import examples
from tests.golden import golden, golden_error

TRN2 = INSTANCE_TYPES["trn2.48xlarge"]
ONE = INSTANCE_TYPES["trn2.3xlarge"]
DEVICES = "sys/devices/virtual/neuron_device"
HOSTILE = {
    "binary": b"\x00\xff\xfe\x80",
    "empty": b"",
    "huge": b"9" * 40,
    "longer than any file of sysfs": b"1" * 100_000,
    "above 64 bits": b"18446744073709551616\n",
    "negative": b"-1\n",
    "a float": b"0.0\n",
    "a word": b"busy\n",
    "digits of another script": "٣\n".encode(),
    "an escape sequence": b"\x1b[31mhbm",
    "two lines": b"0\n0\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_host(tmp_path / "host", ONE, EmulationOptions())
    return tmp_path / "host"


def read(root: Path) -> HostReading:
    with reader(root) as made:
        return made.read(discover(root))


@contextlib.contextmanager
def reader(root: Path) -> Iterator[SignalReader]:
    made = SignalReader(root, HARDWARE_COUNTERS, CORE_COUNTERS)
    try:
        yield made
    finally:
        made.close()


def chips(root: Path, memory: HealthMemory | None = None) -> tuple[tuple[ChipHealth, ...], HealthMemory]:
    """Health after two readings."""
    memory = memory or HealthMemory()
    for _ in range(2):
        memory, said = assess(memory, read(root))
    return said.chips, memory


def put(root: Path, path: str, content: bytes, chip: int = 0) -> Path:
    file = root / DEVICES / f"neuron{chip}" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        file.unlink()
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("name", [name for name, kind in INSTANCE_TYPES.items() if kind.devices])
def test_every_healthy_host_is_healthy(tmp_path: Path, name: str) -> None:
    kind = INSTANCE_TYPES[name]
    write_host(tmp_path / "host", kind, EmulationOptions())
    found, _ = chips(tmp_path / "host")
    assert found == tuple(ChipHealth(index) for index in range(kind.devices or 0))


def test_a_host_with_an_old_kernel_driver_is_healthy(tmp_path: Path) -> None:
    write_host(tmp_path / "host", TRN2, EmulationOptions(driver_version="2.24.7.0"))
    assert {chip.state for chip in chips(tmp_path / "host")[0]} == {"healthy"}


def test_every_signal_is_read_from_its_file(root: Path) -> None:
    for number, name in enumerate(HARDWARE_COUNTERS):
        put(root, f"{HARDWARE}/{name}", b"%d\n" % number)
    put(root, COMPONENTS, b"sram, hbm\n")
    put(root, HEARTBEAT, b"77\n")
    put(root, "reset", b"2\n")
    put(root, "neuron_core5/stats/status/hw_nc_ue_error/total", b"4\n")
    (chip,) = read(root).chips
    assert chip.counters == {name: number for number, name in enumerate(HARDWARE_COUNTERS)}
    assert (chip.components, chip.heartbeat, chip.state) == (("hbm", "sram"), 77, 2)
    assert chip.core_errors is not None
    assert chip.core_errors["hw_nc_ue_error"] == {5: 4}
    assert chip.problems == {}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize(
    "path", [*(f"{HARDWARE}/{name}" for name in HARDWARE_COUNTERS), COMPONENTS, HEARTBEAT, "reset"]
)
def test_content_that_makes_no_sense_is_no_value_and_no_health(root: Path, path: str, content: bytes) -> None:
    _, memory = chips(root)
    put(root, path, content)
    (chip,) = read(root).chips
    if path == COMPONENTS and content == b"":
        assert chip.components == ()
        return
    assert path in chip.problems
    assert all(problem.isprintable() and len(problem) < 200 for problem in chip.problems.values())
    (after,), _ = chips(root, memory)
    assert after.state == ("healthy" if path == "reset" else "unknown")


@pytest.mark.parametrize("path", [f"{HARDWARE}/sram_ecc_uncorrected", COMPONENTS])
def test_what_is_no_regular_file_is_not_opened(root: Path, path: str) -> None:
    file = put(root, path, b"")
    file.unlink()
    os.mkfifo(file)
    (chip,) = read(root).chips
    golden(chip.problems[path])
    file.unlink()
    file.symlink_to("/proc/self/mem")
    assert read(root).chips[0].counters.get("sram_ecc_uncorrected", 0) == 0


FILES = [*(f"{HARDWARE}/{name}" for name in HARDWARE_COUNTERS), COMPONENTS, HEARTBEAT, ERROR_EVENT, "reset"]
CONTENT = st.one_of(
    st.sampled_from([b"0\n", b"1\n", b"\n", b"hbm\n", b"-1", b"busy", b"0xdeadbeef\n", b"\xff", None]),
    st.binary(max_size=12),
    st.integers().map(lambda number: str(number).encode()),
)


def test_no_content_raises_or_heals_a_sick_chip(root: Path) -> None:
    sick = {f"{HARDWARE}/sram_ecc_uncorrected": b"1\n", COMPONENTS: b"hbm\n"}
    healthy = {path: (root / DEVICES / "neuron0" / path).read_bytes() for path in FILES}
    for path, content in sick.items():
        put(root, path, content)
    _, memory = chips(root)

    @settings(max_examples=examples(300))
    @given(st.dictionaries(st.sampled_from(FILES), CONTENT, max_size=4))
    def holds(found: dict[str, bytes | None]) -> None:
        for path, content in (healthy | sick | found).items():
            file = put(root, path, content or b"")
            if content is None:
                file.unlink()
        (after,), _ = chips(root, memory)
        codes = {fault.code for fault in after.faults}
        assert "hbm-unhealthy" in codes, "it would have to be gone for five minutes"
        count = found.get(f"{HARDWARE}/sram_ecc_uncorrected", b"1") or b"missing"
        assert "sram-uncorrectable" in codes or set(count.strip()) == {ord("0")}

    holds()


def test_a_device_that_vanishes_while_it_is_read_is_unsettled(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_all = sysfs._read_all

    def vanish(path: str) -> bytes:
        if path.endswith("mem_ecc_uncorrected"):
            shutil.rmtree(root / DEVICES / "neuron0")
        return read_all(path)

    inventory = discover(root)
    monkeypatch.setattr(sysfs, "_read_all", vanish)
    with reader(root) as made:
        reading = made.read(inventory)
    assert (reading.chips, reading.unsettled) == ((), frozenset({0}))


def test_a_host_whose_files_come_and_go_all_the_time_raises_nothing(tmp_path: Path) -> None:
    root = tmp_path / "host"
    write_host(root, INSTANCE_TYPES["inf2.24xlarge"], EmulationOptions())
    inventory = discover(root)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for missing in (frozenset({1, 3}), frozenset[int]()):
                write_host(root, INSTANCE_TYPES["inf2.24xlarge"], EmulationOptions(missing=missing))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        with reader(root) as made:
            memory = HealthMemory()
            for _ in range(50):
                memory, said = assess(memory, made.read(inventory))
                assert {chip.state for chip in said.chips if chip.index not in {1, 3}} <= {"healthy", "unknown"}
    finally:
        stop.set()
        thread.join()


def test_a_chip_that_is_gone_is_not_among_those_read_and_is_expected(tmp_path: Path) -> None:
    write_host(tmp_path / "host", TRN2, EmulationOptions(missing=frozenset({3})))
    reading = read(tmp_path / "host")
    assert 3 in reading.expected - {chip.index for chip in reading.chips}
    assert {chip.missing_links for chip in reading.chips} == {None}, "without it the kernel driver prints no links"
    found, _ = chips(tmp_path / "host")
    assert [chip.index for chip in found if chip.faults] == [3]
    assert found[3].faults[0].code == "device-lost"


def test_links_that_a_full_host_lacks_are_found(tmp_path: Path) -> None:
    write_host(tmp_path / "host", TRN2, EmulationOptions())
    put(tmp_path / "host", "connected_devices", b"12, 3, 4\n")
    found = {chip.index: chip.missing_links for chip in read(tmp_path / "host").chips}
    assert found == {0: (1,)} | dict.fromkeys(range(1, 16), ())


def test_links_behind_a_switch_are_not_judged(tmp_path: Path) -> None:
    name = next(n for n, k in INSTANCE_TYPES.items() if k.devices == 16 and not k.fabric.adjacency_promised)
    write_host(tmp_path / "host", INSTANCE_TYPES[name], EmulationOptions())
    put(tmp_path / "host", "connected_devices", b"\n")
    assert {chip.missing_links for chip in read(tmp_path / "host").chips} == {None}


def test_links_to_other_servers(tmp_path: Path) -> None:
    kind = INSTANCE_TYPES["trn2u.48xlarge"]
    write_host(tmp_path / "host", kind, EmulationOptions())
    assert read(tmp_path / "host").server_links_down is False
    write_host(
        tmp_path / "host",
        kind,
        EmulationOptions(ultraserver_modes=(Mode.X1,), node_ids={4: 0}, server_ids={4: "1a2b3c4d5e6f7081"}),
    )
    assert read(tmp_path / "host").server_links_down is True
    write_host(tmp_path / "host", kind, EmulationOptions(busy=True))
    assert read(tmp_path / "host").server_links_down is None


def test_cores_are_read_of_the_chips_asked_for(root: Path) -> None:
    put(root, "neuron_core1/stats/status/hw_nc_ue_error/total", b"4\n")
    with reader(root) as made:
        assert made.read(discover(root), cores_of=()).chips[0].core_errors is None
        (chip,) = made.read(discover(root), cores_of={0}).chips
        assert chip.core_errors is not None
        assert chip.core_errors["hw_nc_ue_error"] == {1: 4}


def test_event_files_are_opened_anew_when_another_device_has_the_name(root: Path) -> None:
    with reader(root) as made:
        made.read(discover(root))
        (first,) = made.event_files.values()
        made.read(discover(root))
        assert list(made.event_files.values()) == [first]
        put(root, ERROR_EVENT, b"1\n")
        made.read(discover(root))
        (second,) = made.event_files.values()
        assert os.pread(second, 8, 0) == b"1\n"
        shutil.rmtree(root / DEVICES)
        made.read(discover(root))
        assert made.event_files == {}
        with golden_error(OSError):
            os.fstat(second)


def test_a_device_that_is_replaced_has_its_directories_looked_up_anew(root: Path, tmp_path: Path) -> None:
    """What was a directory is a link now, and none leads out of the host."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mem_ecc_uncorrected").write_text("7\n")
    device = root / DEVICES / "neuron0"
    with reader(root) as made:
        (chip,) = made.read(discover(root)).chips
        assert chip.counters["mem_ecc_uncorrected"] == 0
        device.rename(tmp_path / "old")
        shutil.copytree(tmp_path / "old", device, symlinks=True)
        shutil.rmtree(device / HARDWARE)
        (device / HARDWARE).symlink_to(outside)
        (chip,) = made.read(discover(root)).chips
        assert "mem_ecc_uncorrected" not in chip.counters


def test_without_a_host_there_are_no_chips(tmp_path: Path) -> None:
    reading = read(tmp_path / "none")
    assert (reading.chips, reading.driver_version) == ((), None)

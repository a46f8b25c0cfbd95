"""What logs and commands say when the record, the kernel log or the node's answer cannot be used."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dra_driver.neuron.emulation.writer import EmulationOptions, write_host
from dra_driver.neuron.health.assess import HealthMemory, Hint
from dra_driver.neuron.health.clearing import ask, take
from dra_driver.neuron.health.detector import Detector, read_log_file
from dra_driver.neuron.health.faults import NodeHealth
from dra_driver.neuron.health.hints import encode, file_name
from dra_driver.neuron.health.memory import MemoryFile, decoded, encoded
from dra_driver.neuron.health.watch import HealthWatch, aged
from dra_driver.neuron.host.discover import discover
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPES
from dra_driver.util.errors import DriverError
from tests.eventually import eventually
from tests.golden import golden, golden_error

BOOT = "6aa22853-a073-4fb9-9c8b-15972cd2d951"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b'"version":1', b'"version":9'),
        lambda data: data.replace(b'"checksum":"', b'"checksum":"0'),
        lambda data: b'{"version":1,"checksum":"","memory":' + b"[" * 100_000,
    ],
    ids=["a newer version", "changed", "nested"],
)
def test_why_a_record_is_not_believed(damage: Callable[[bytes], bytes]) -> None:
    with golden_error(ValueError):
        decoded(damage(encoded(HealthMemory())))


def test_what_is_lost_with_the_record_is_logged(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "state"
    file = MemoryFile(directory)
    directory.write_text("a file in its place")
    assert not file.write(HealthMemory())
    assert not file.write(HealthMemory())
    directory.unlink()
    assert file.write(HealthMemory())
    (record,) = directory.iterdir()
    record.write_text("{")
    MemoryFile(directory).read(move_aside=False)
    MemoryFile(directory).read()
    golden(log.messages)


@pytest.mark.parametrize("answer", [None, b"", b"{"], ids=["none", "taken and not answered", "unreadable"])
def test_a_driver_that_does_not_answer_is_explained(tmp_path: Path, answer: bytes | None) -> None:
    def take_it() -> None:
        eventually(lambda: list(tmp_path.glob("*.request")))
        for identity in take(tmp_path):
            if answer:
                (tmp_path / f"clear-{identity}.answer").write_bytes(answer)

    driver = threading.Thread(target=take_it if answer is not None else time.time)
    driver.start()
    with golden_error(DriverError):
        ask(tmp_path, 3, within=2.0 if answer is not None else 0.01)
    driver.join()


def test_a_log_and_hints_that_cannot_be_used_are_explained(tmp_path: Path) -> None:
    with golden_error(DriverError, "log"):
        read_log_file(tmp_path / "missing")
    (tmp_path / "hints").write_text("a file in its place")
    detector = Detector(bytes, tmp_path / "hints", BOOT, interval=0.01)
    golden(detector.not_ready(), "at first")
    detector.start()
    eventually(lambda: detector.not_ready() and "fails" in detector.not_ready()[0])
    golden(detector.not_ready(), "hints")
    assert detector.stop()


def test_lines_of_the_kernel_log_that_are_lost_or_ignored_are_logged(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    texts = iter([b"<3>[    1.000000] NEURON_HW_ERR=odd\n", b"<3>[    2.000000] anew\n"])
    last = [b""]

    def read() -> bytes:
        last[0] = next(texts, last[0])
        return last[0]

    detector = Detector(read, tmp_path / "hints", BOOT, interval=0.01)
    detector.start()
    eventually(lambda: "may be lost" in log.text)
    assert detector.stop()
    golden(dict.fromkeys(log.messages))


def test_hints_of_no_chip_and_what_an_administrator_clears_are_logged(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    write_host(tmp_path / "host", INSTANCE_TYPES["inf2.24xlarge"], EmulationOptions())
    (tmp_path / "hints").mkdir()
    hint = Hint("another boot", "DMA_ERROR", 7, 99, "", None)
    (tmp_path / "hints" / file_name(hint)).write_bytes(encode(hint))
    inventory = discover(tmp_path / "host")
    (tmp_path / "state").mkdir()
    watch = HealthWatch(
        tmp_path / "host", lambda: inventory, tmp_path / "state", tmp_path / "hints", lambda _: None, 0.02
    )
    golden(_hanging(watch), "hangs")
    watch.start()
    try:
        golden(msgspec.json.encode(ask(tmp_path / "state", 2)).decode(), "answer")
    finally:
        watch.stop()
    golden(dict.fromkeys(log.messages), "log")


def _hanging(watch: HealthWatch) -> str:
    watch.worker.beat(-1.0)
    return watch.worker.problem()


def test_chips_that_have_not_been_read_for_long() -> None:
    golden(fault.text for chip in aged(NodeHealth(), 0, "", [0]).chips for fault in chip.faults)

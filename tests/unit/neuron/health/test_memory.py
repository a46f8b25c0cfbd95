"""What is known outlives the process, whatever becomes of its file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.neuron.health.assess import ChipMemory, CounterState, HealthMemory, Heartbeat, Track
from dra_driver.neuron.health.memory import ASIDE, FILE, MemoryFile, decoded, encoded, lasting
from tests.golden import golden

MEMORY = HealthMemory(
    "boot-1",
    "2.30.2.0",
    (
        ChipMemory(
            0,
            "0e30000000000000",
            {"hbm-uncorrectable": Track(100, 100, "3 errors", denied=1, quiet_from=7.25)},
            {"mem_ecc_corrected": CounterState(5, 2, 3, 6), "hw_nc_ue_error/3": CounterState(1)},
            Heartbeat(9, 6.5, moves=True),
            ("reset",),
            newest_hint=90,
            cleared_at=80,
        ),
        ChipMemory(1),
    ),
)


def file(directory: Path) -> Path:
    return directory / FILE


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    assert MemoryFile(tmp_path / "new" / "directory").write(MEMORY)
    assert MemoryFile(tmp_path / "new" / "directory").read() == MEMORY
    assert file(tmp_path / "new" / "directory").stat().st_mode & 0o777 == 0o600


def test_equal_records_are_equal_bytes() -> None:
    assert encoded(decoded(encoded(MEMORY))) == encoded(MEMORY)


def test_without_a_file_nothing_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert MemoryFile(tmp_path).read() == HealthMemory()
    assert caplog.text == ""


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"boot-1", b"boot-2"),
        lambda data: b"[" * 100_000,
        lambda data: b"\xff\x00",
        lambda data: json.dumps(json.loads(data) | {"version": 2}).encode(),
        lambda data: b"x" * (2 << 20),
    ],
    ids=["empty", "cut", "other boot", "nested", "binary", "newer", "large"],
)
def test_a_file_that_cannot_be_used_is_moved_aside_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    record = MemoryFile(tmp_path)
    record.write(MEMORY)
    file(tmp_path).write_bytes(damage(file(tmp_path).read_bytes()))
    assert record.read() == HealthMemory()
    assert "cannot be used" in caplog.text
    assert not file(tmp_path).exists()
    assert (tmp_path / ASIDE).exists()
    assert record.write(MEMORY)
    assert record.read() == MEMORY


def test_who_only_looks_moves_nothing(tmp_path: Path) -> None:
    file(tmp_path).write_bytes(b"damaged")
    assert MemoryFile(tmp_path).read(move_aside=False) == HealthMemory()
    assert file(tmp_path).read_bytes() == b"damaged"


def test_faults_that_only_another_version_knows_are_left_out() -> None:
    other = HealthMemory("b", None, (ChipMemory(0, None, {"flux-low": Track(1, 1), "device-lost": Track(1, 1)}),))
    assert decoded(encoded(other)).chips[0].tracks == {"device-lost": Track(1, 1)}


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(encoded(MEMORY))
    file(tmp_path).symlink_to(tmp_path / "elsewhere")
    assert MemoryFile(tmp_path).read() == HealthMemory()


def test_a_directory_that_cannot_be_made_is_a_problem_and_no_exception(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("")
    record = MemoryFile(tmp_path / "taken" / "health")
    assert not record.write(MEMORY)
    assert not record.write(MEMORY)
    golden(record.problem)
    assert caplog.text.count("cannot be written") == 1, "once, not at every reading"
    (tmp_path / "taken").unlink()
    assert record.write(MEMORY)
    assert record.problem == ""


def test_what_a_killed_writer_left_is_in_nobodys_way(tmp_path: Path) -> None:
    left = tmp_path / f".{FILE}.0badcafe.new"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    assert MemoryFile(tmp_path).write(MEMORY)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_counts_alone_are_not_worth_a_write_and_faults_are() -> None:
    chip = MEMORY.chips[0]
    counted = HealthMemory(
        "boot-1",
        "2.30.2.0",
        (
            ChipMemory(
                0,
                chip.serial,
                chip.tracks,
                {"mem_ecc_corrected": CounterState(9, 2, 3), "hw_nc_ue_error/3": CounterState(1)},
                Heartbeat(50, 90.0, moves=True),
                ("reset",),
                90,
                80,
            ),
            ChipMemory(1),
        ),
    )
    assert lasting(counted) == lasting(MEMORY)
    assert lasting(HealthMemory("boot-1", "2.30.2.0", (ChipMemory(0), ChipMemory(1)))) != lasting(MEMORY)

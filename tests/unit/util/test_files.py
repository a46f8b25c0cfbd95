from __future__ import annotations

import os
from pathlib import Path

import pytest

from dra_driver.driver.claims.checkpoint import Checkpoint
from dra_driver.util.errors import DriverError
from dra_driver.util.files import MAX_FILE_BYTES, read_file, readable_content
from tests.golden import golden_error


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def directory(path: Path) -> None:
    path.mkdir()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_bytes(b"of somebody else")
    path.symlink_to(elsewhere)


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)


@pytest.mark.parametrize("made", [directory, fifo, link, large])
def test_what_is_no_file_of_ours_is_refused_at_each_look_and_leaks_no_descriptor(tmp_path: Path, made: object) -> None:
    assert callable(made)
    path = tmp_path / "x"
    made(path)
    before = descriptors()
    for _ in range(20):
        with pytest.raises(OSError, match=r"x"):
            read_file(path)
        assert readable_content(path) is None
    assert descriptors() == before


def test_a_regular_file_is_read_whole_and_a_missing_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert read_file(path) is readable_content(path) is None
    path.write_bytes(b"y" * MAX_FILE_BYTES)
    assert read_file(path) == readable_content(path) == b"y" * MAX_FILE_BYTES


@pytest.mark.parametrize("made", [directory, fifo, link])
def test_a_lock_file_that_is_none_is_refused_at_each_try_and_leaks_no_descriptor(tmp_path: Path, made: object) -> None:
    assert callable(made)
    made(tmp_path / "journal.lock")
    checkpoint = Checkpoint(tmp_path)
    before = descriptors()
    for _ in range(20):
        with pytest.raises(DriverError, match="cannot lock"), checkpoint.locked():
            pytest.fail("it is held")
    assert descriptors() == before


def test_a_file_that_is_far_too_large_is_none_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, MAX_FILE_BYTES + 1)
    with golden_error(OSError):
        read_file(path)

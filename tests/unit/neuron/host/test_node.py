"""What is true of the node as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dra_driver.neuron.host.discover import BOOT_ID, boot_id


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / BOOT_ID
    path.parent.mkdir(parents=True)
    return path


def own() -> str:
    return (Path("/") / BOOT_ID).read_text().strip()


def test_the_boot_is_the_hosts(tmp_path: Path, file: Path) -> None:
    file.write_text("b6a9\n")
    assert boot_id(tmp_path) == "b6a9"


def test_a_host_that_does_not_tell_its_boot_runs_in_this_one(tmp_path: Path) -> None:
    assert boot_id(tmp_path) == own()
    assert boot_id(tmp_path / "nowhere") == own()


def test_no_content_of_the_file_ends_in_an_error(tmp_path: Path, file: Path) -> None:
    for content in (b"", b"\xff\xfe", b"x" * 100_000):
        file.write_bytes(content)
        assert boot_id(tmp_path) == own()
    file.unlink()
    os.mkfifo(file)
    assert boot_id(tmp_path) == own()

"""Hints of the kernel log are taken from files that anything may be in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.health.assess import Hint
from dra_driver.health.hints import MAX_FILES, read_hints
from tests.generators.effort import examples

GOOD: dict[str, Any] = {
    "version": 1,
    "bootId": "0b7c",
    "kind": "SRAM_UNCORRECTABLE_ERROR",
    "device": 3,
    "serial": "19fcda00f5ff6eb9",
    "core": 0,
    "seen": 1_800_000_000,
}


def test_a_file_is_a_hint(tmp_path: Path) -> None:
    (tmp_path / "SRAM_UNCORRECTABLE_ERROR-3.json").write_text(json.dumps(GOOD))
    hint = Hint("0b7c", "SRAM_UNCORRECTABLE_ERROR", 1_800_000_000, 3, "19fcda00f5ff6eb9", 0)
    assert read_hints(tmp_path) == ((hint,), 0)


def test_device_and_core_may_be_unknown(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(GOOD | {"device": None, "core": None, "serial": ""}))
    (hint,), _ = read_hints(tmp_path)
    assert (hint.device, hint.core, hint.serial) == (None, None, "")


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"kind": "FLUX"},
        {"kind": None},
        {"device": -1},
        {"device": "3"},
        {"device": 10**30},
        {"core": 1.5},
        {"serial": "../../etc"},
        {"serial": "1" * 17},
        {"bootId": "a\nb"},
        {"seen": -1},
        {"seen": 1 << 60},
        {"seen": True},
    ],
    ids=str,
)
def test_anything_else_is_counted_and_no_hint(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(GOOD | change))
    assert read_hints(tmp_path) == ((), 1)


def test_only_regular_files_with_the_right_end_of_the_name_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "directory.json").mkdir()
    (tmp_path / ".half.json").write_text(json.dumps(GOOD))
    (tmp_path / "notes.txt").write_text(json.dumps(GOOD))
    assert read_hints(tmp_path) == ((), 2)


def test_a_directory_full_of_files_is_read_in_part(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 20):
        (tmp_path / f"{number:04}.json").write_text(json.dumps(GOOD))
    hints, ignored = read_hints(tmp_path)
    assert (len(hints), ignored) == (MAX_FILES, 20)


def test_without_a_directory_there_are_none(tmp_path: Path) -> None:
    assert read_hints(tmp_path / "none") == ((), 0)


@settings(max_examples=examples(400), deadline=None)
@given(st.one_of(st.binary(max_size=60), st.sampled_from([b"[" * 3000, b"{}", b'{"version":1}', b"1" * 5000])))
def test_no_content_raises(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = tmp_path_factory.getbasetemp() / "hints"
    directory.mkdir(exist_ok=True)
    (directory / "a.json").write_bytes(content)
    assert read_hints(directory) == ((), 1)

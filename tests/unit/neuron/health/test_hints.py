"""The files that hand on what the kernel log said: their form, and that anything may be in their directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.neuron.health.assess import KINDS, Hint
from dra_driver.neuron.health.hints import MAX_FILES, MAX_NUMBER, decode, encode, file_name, read_hints

BOOT = "6aa22853-a073-4fb9-9c8b-15972cd2d951"
SERIAL = "19fcda00f5ff6eb9"
PLAIN = {
    "version": 1,
    "bootId": BOOT,
    "kind": "DMA_ERROR",
    "seen": 1_700_000_000,
    "device": 3,
    "serial": SERIAL,
    "core": None,
}

NUMBERS = st.none() | st.integers(0, MAX_NUMBER)
HINTS = st.builds(
    Hint,
    boot_id=st.just(BOOT),
    kind=st.sampled_from(sorted(KINDS)),
    seen=st.integers(0, (1 << 40) - 1),
    device=NUMBERS,
    serial=st.sampled_from(["", SERIAL, "f" * 16]),
    core=NUMBERS,
)


@given(HINTS)
def test_a_hint_is_read_back_as_it_was_written(hint: Hint) -> None:
    assert decode(encode(hint)) == hint


def test_the_form_is_the_documented_one() -> None:
    hint = Hint(BOOT, "DMA_ERROR", 1_700_000_000, 3, SERIAL)
    assert json.loads(encode(hint)) == PLAIN
    assert (file_name(hint), file_name(Hint(BOOT, "DMA_ERROR", 0, 3))) == (
        f"DMA_ERROR-{SERIAL}.json",
        "DMA_ERROR-3.json",
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2},
        {"kind": "COFFEE_ERROR"},
        {"device": MAX_NUMBER + 1},
        {"device": -1},
        {"device": "3"},
        {"device": True},
        {"core": 1.5},
        {"serial": "../../etc/passwd"},
        {"serial": SERIAL.upper()},
        {"serial": SERIAL + "\n"},
        {"bootId": "../.."},
        {"seen": -1},
        {"seen": 1 << 60},
        {"padding": "x" * 4096},
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_what_is_no_hint_is_not_taken_for_one(changed: dict[str, object]) -> None:
    assert decode(json.dumps(PLAIN)) is not None
    assert decode(json.dumps({**PLAIN, **changed})) is None


def test_a_hint_with_what_is_no_text_is_none() -> None:
    assert decode(encode(Hint(BOOT, "DMA_ERROR", 1_700_000_000, 3)).replace(b"DMA", b"\xff\xfe")) is None


@given(st.binary(max_size=200) | st.builds(lambda depth: b"[" * depth, st.integers(0, 8192)))
def test_no_content_raises_anything(data: bytes) -> None:
    assert decode(data) is None


def test_only_hints_in_regular_files_with_the_right_end_of_the_name_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(PLAIN))
    (tmp_path / "b.json").write_text(json.dumps(PLAIN | {"kind": "FLUX"}))
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "directory.json").mkdir()
    (tmp_path / ".half.json").write_text(json.dumps(PLAIN))
    (tmp_path / "notes.txt").write_text(json.dumps(PLAIN))
    assert read_hints(tmp_path) == ((Hint(BOOT, "DMA_ERROR", 1_700_000_000, 3, SERIAL),), 3)


def test_a_directory_full_of_files_is_read_in_part(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 20):
        (tmp_path / f"{number:04}.json").write_text(json.dumps(PLAIN))
    hints, ignored = read_hints(tmp_path)
    assert (len(hints), ignored) == (MAX_FILES, 20)


def test_without_a_directory_there_are_none(tmp_path: Path) -> None:
    assert read_hints(tmp_path / "none") == ((), 0)

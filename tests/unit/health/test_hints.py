"""The form of the files that hand on what the kernel log said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.health.assess import KINDS, Hint
from dra_driver.health.hints import MAX_NUMBER, decode, encode, file_name

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


@given(st.binary(max_size=200) | st.builds(lambda depth: b"[" * depth, st.integers(0, 8192)))
def test_no_content_raises_anything(data: bytes) -> None:
    assert decode(data) is None

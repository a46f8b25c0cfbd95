"""The form of the files that hand on what the kernel log said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.health.faults import FAULTS
from dra_driver.health.hints import KINDS, MAX_HINT_BYTES, Hint, decode, encode

BOOT = "6aa22853-a073-4fb9-9c8b-15972cd2d951"
SERIAL = "19fcda00f5ff6eb9"
PLAIN = {
    "bootId": BOOT,
    "kind": "DMA_ERROR",
    "device": 3,
    "serial": SERIAL,
    "core": None,
    "seen": 1_700_000_000,
    "version": 1,
}


def test_the_kinds_are_those_of_the_table_of_faults() -> None:
    rows = {code: row for code, row in FAULTS.items() if code.startswith("log-")}
    assert set(KINDS.values()) == set(rows)
    for kind, code in KINDS.items():
        assert rows[code].signal == f"the kernel log has NEURON_HW_ERR={kind}"
        assert rows[code].reason == f"NeuronHasError_{kind}"
        assert rows[code].strongest == "NoSchedule"


NUMBERS = st.none() | st.integers(0, 255)
HINTS = st.builds(
    Hint,
    boot_id=st.just(BOOT),
    kind=st.sampled_from(sorted(KINDS)),
    device=NUMBERS,
    serial=st.sampled_from(["", SERIAL, "f" * 16]),
    core=NUMBERS,
    seen=st.integers(0, 1 << 40),
).filter(lambda hint: hint.device is not None or hint.serial)


@given(HINTS)
def test_a_hint_is_read_back_as_it_was_written(hint: Hint) -> None:
    written = encode(hint)
    assert decode(written) == hint
    assert written == encode(decode(written))
    assert len(written) < MAX_HINT_BYTES


def test_its_file_is_named_by_the_serial_number_or_else_by_the_device() -> None:
    """Containers may number their devices themselves: two of them may both say 0 and mean two chips."""
    hint = decode(json.dumps(PLAIN).encode())
    assert hint.name == f"DMA_ERROR-{SERIAL}.json"
    assert decode(json.dumps({**PLAIN, "serial": ""}).encode()).name == "DMA_ERROR-3.json"


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2},
        {"kind": "COFFEE_ERROR"},
        {"device": 256},
        {"device": -1},
        {"device": "3"},
        {"device": True},
        {"core": 1.5},
        {"serial": "../../etc/passwd"},
        {"serial": SERIAL.upper()},
        {"serial": SERIAL + "\n"},
        {"bootId": ""},
        {"seen": -1},
        {"seen": 1 << 60},
        {"device": None, "serial": ""},
        {"surprise": 1},
    ],
    ids=str,
)
def test_what_is_no_hint_is_refused(changed: dict[str, object]) -> None:
    decode(json.dumps(PLAIN).encode())
    with pytest.raises(ValueError, match="hint"):
        decode(json.dumps({**PLAIN, **changed}).encode())


@given(st.binary(max_size=200) | st.builds(lambda depth: b"[" * depth, st.integers(0, 2 * MAX_HINT_BYTES)))
def test_no_content_raises_anything_else(data: bytes) -> None:
    with pytest.raises(ValueError, match="hint"):
        decode(data)

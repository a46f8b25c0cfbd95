"""Quantities as Kubernetes reads and writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.quantity import MAX_INT64, UNIT, Format, QuantityError, canonical, nanos, parse, stored
from tests.golden import golden_error


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("16", 16 * UNIT),
        (16, 16 * UNIT),
        (0.5, UNIT // 2),
        ("500m", UNIT // 2),
        ("1.5", 3 * UNIT // 2),
        (".5", UNIT // 2),
        ("5.", 5 * UNIT),
        ("+1", UNIT),
        ("-1", -UNIT),
        ("1k", 1000 * UNIT),
        ("1Ki", 1024 * UNIT),
        ("96Gi", 96 * 2**30 * UNIT),
        ("1e3", 1000 * UNIT),
        ("1E3", 1000 * UNIT),
        ("1E", 10**18 * UNIT),
        ("100n", 100),
        ("1u", 1000),
        ("0.1n", 1),
        ("1e30", 10**30 * UNIT),
        ("20E", 20 * 10**18 * UNIT),
        ("m", 0),
        ("Gi", 0),
        (" 1Gi ", 2**30 * UNIT),
        ("8Ei", (2**63 - 1) * UNIT),
    ],
)
def test_a_quantity_is_read_in_parts_of_a_billion(text: str | float, value: int) -> None:
    assert nanos(text) == value


@pytest.mark.parametrize(
    "text", ["", "x", "1 Gi", "1KI", "1ki", "--1", "1e", "Ei", "1Gi1", "٣", "1_000", "1" * 2000, "1e9999"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with golden_error(QuantityError):
        stored(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e1002", MAX_INT64 * UNIT),
        ("-1e1002", -MAX_INT64 * UNIT),
        ("1e2147483647", MAX_INT64 * UNIT),
        ("1e-2147483648", 1),
        ("0e2000000000", 0),
        ("9" * 5000, MAX_INT64 * UNIT),
        ("9" * 5000 + "Gi", MAX_INT64 * UNIT),
        ("1." + "0" * 2000, UNIT),
        ("0." + "0" * 2000 + "1", 1),
        (f"2.{'0' * 2000}Ki", 2048 * UNIT),
        (f"0.{'9' * 2_000_000}Ki", 1024 * UNIT),
    ],
)
def test_a_quantity_that_is_too_long_is_simulated_as_the_nearest_of_64_bits(text: str, value: int) -> None:
    assert nanos(text) == value


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("1000m", "1"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("1024Ki", "1Mi"),
        ("1.5Gi", "1536Mi"),
        ("512Ki", "512Ki"),
        ("0.5Ki", "512"),
        ("1e3", "1e3"),
        ("0", "0"),
        ("-2000", "-2k"),
        ("1500m", "1500m"),
    ],
)
def test_a_quantity_is_written_in_its_shortest_form(text: str, written: str) -> None:
    assert parse(text).text == written


@given(st.integers(-(2**62), 2**62), st.sampled_from(["DecimalSI", "BinarySI", "DecimalExponent"]))
def test_what_is_written_reads_as_the_same(number: int, format_: Format) -> None:
    assert nanos(canonical(number, format_)) == number
    assert nanos(canonical(number * UNIT, format_)) == number * UNIT


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["1" * 300_000 + "!", "1." * 150_000 + "Kix"])
def test_a_long_text_with_a_wrong_end_is_refused_in_time_in_proportion_to_its_length(text: str) -> None:
    with pytest.raises(QuantityError):
        parse(text)

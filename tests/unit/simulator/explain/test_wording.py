"""How lists, names and values are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.simulator.explain.findings import choice
from dra_driver.util.wording import counted, listed, named, natural, of_all, shortened
from tests.golden import golden


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["chip-0", "chip-1"], "chip-0 and 1"),
        (["chip-10", "chip-8", "chip-9"], "chip-8 to 10"),
        (["chip-0", "chip-2", "chip-3", "chip-4", "chip-7"], "chip-0, 2 to 4 and 7"),
        (["chip-0", "efa-0", "node"], "chip-0, efa-0 and node"),
        ([f"chip-{i}" for i in range(0, 20, 2)], "chip-0, 2, 4, 6, 8 and 5 more"),
        (["chip-00", "chip-01"], "chip-00 and 1"),
        (["7" * 40], "7" * 40),
    ],
)
def test_names(names: list[str], text: str) -> None:
    assert named(names) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["'b'"], "'b'"),
        (["2", "1"], "1 or 2"),
        (["2", "1", "3"], "1 to 3"),
        (["1", "3", "10"], "1, 3 or 10"),
        ([f"'{letter}'" for letter in "dbca"], "4 values such as 'a' and 'b'"),
        (["x" * 100], "x" * 80 + "..."),
    ],
)
def test_values(values: list[str], text: str) -> None:
    assert choice(values) == text


def test_counts() -> None:
    assert (counted(1, "device"), counted(2, "device")) == ("1 device", "2 devices")
    assert (of_all(1, 1), of_all(3, 3), of_all(1, 3)) == ("the only device", "all 3 devices", "1 of 3 devices")
    golden(listed(["a", "b", "c"]))
    golden(shortened(list("abcd"), 3))


@given(st.lists(st.text()))
def test_natural_order_takes_any_names(names: list[str]) -> None:
    assert sorted(natural(names)) == sorted(names)

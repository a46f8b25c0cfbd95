"""docs/hardware.md: its lists are those of the code."""

from __future__ import annotations

from dra_driver.verification.assumptions import TABLE
from dra_driver.verification.page import NOBODY, TABLES, page
from tests.paths import DOCS

PAGE = DOCS / "hardware.md"


def test_the_lists_of_the_page_are_up_to_date() -> None:
    assert PAGE.read_text() == page(PAGE.read_text()), (
        "docs/hardware.md is not up to date; write it with: python -m dra_driver.verification.page docs/hardware.md"
    )
    assert all(f"<!-- table: {name} -->" in PAGE.read_text() for name in TABLES)


def test_each_assumption_is_on_the_page_with_its_state() -> None:
    text = PAGE.read_text()
    for number, row in enumerate(TABLE, 1):
        assert text.count(f"| {number} | `{row.code}` | ") == 1
    assert text.count(f"| {NOBODY} |") == sum(not row.confirmed for row in TABLE)

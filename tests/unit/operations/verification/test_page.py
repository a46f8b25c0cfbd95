"""docs/hardware.md: its lists are those of the code."""

from __future__ import annotations

from dra_driver.operations.verification.page import TABLES, page
from tests.paths import DOCS

PAGE = DOCS / "hardware.md"


def test_the_lists_of_the_page_are_up_to_date() -> None:
    assert PAGE.read_text() == page(PAGE.read_text()), (
        "docs/hardware.md is out of date; write it: python -m dra_driver.operations.verification.page docs/hardware.md"
    )
    assert all(f"<!-- table: {name} -->" in PAGE.read_text() for name in TABLES)

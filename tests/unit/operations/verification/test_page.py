"""docs/reference/hardware.md has each list of the code (``tests/unit/test_generate.py``: as it is there)."""

from __future__ import annotations

import pytest
from generating.assumptions import TABLES

from tests.paths import DOCS


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_each_list(name: str) -> None:
    assert f"<!-- table: {name} -->" in (DOCS / "reference/hardware.md").read_text()

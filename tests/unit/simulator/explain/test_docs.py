"""docs/use/try-and-explain.md names every step and every trap (tests/manifests/test_pages.py runs its commands)."""

from __future__ import annotations

import re
from typing import get_args

from dra_driver.simulator.explain.traps import TRAPS
from dra_driver.simulator.explain.values import Step
from tests.paths import ROOT

PAGE = (ROOT / "docs/use/try-and-explain.md").read_text()


def rows(title: str) -> list[str]:
    """The names in the first column of the table below a heading."""
    section = PAGE.split(f"## {title}\n")[1].split("\n##")[0]
    return re.findall(r"^\| `([a-z-]+)` \|", section, flags=re.MULTILINE)


def test_every_step_and_every_trap_is_on_the_page() -> None:
    assert rows("Which step excludes a node") == list(get_args(Step))
    assert sorted(rows("Known traps")) == sorted(TRAPS)

"""What scripts/benchmark selectors measures is what it says."""

from __future__ import annotations

import pytest
from bench.selectors import SELECTORS, Figures, device, text

from dra_driver.cel import compile  # noqa: A004 # the usual word for it


@pytest.mark.parametrize("selector", SELECTORS)
def test_each_selector_takes_the_device(selector: str) -> None:
    assert compile(selector).matches(device())


def test_the_report_says_whether_the_targets_are_met() -> None:
    fast = Figures("true", device=0.25, compiling=0.5, celpy=90.4)
    lines = text([fast, Figures("slow", device=1.75, compiling=0.75, celpy=None)]).splitlines()
    assert lines[2:4] == ["| `true` | 0.25 | 90 | 0.50 |", "| `slow` | 1.75 | - | 0.75 |"]
    assert [line.rsplit(" ", 1)[1] for line in lines[-2:]] == ["MISSED", "met"]

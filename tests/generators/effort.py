"""How much random tests try, and by which seed: little and the same each time, but for ``scripts/test nightly``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import settings

SEED = os.environ.get("SEED", "1")
"""What random tests without hypothesis begin with; ``scripts/test nightly`` takes another one each time."""

THOROUGH = 100
"""Default number of examples of a test in the profile ``thorough``."""


def examples(thorough: int) -> int:
    """Return the profile's share of a test's number of examples in the profile ``thorough``; at least 10."""
    return max(10, thorough * settings().max_examples // THOROUGH)


@contextmanager
def short_searches() -> Iterator[None]:
    """Let the simulator give up a search after a hundredth of its steps.

    Now and then random claims have constraints that rule out pruning, and one search takes a minute. It is given up
    alike wherever the same question is asked.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dra_driver.simulator.allocator.search.MAX_STEPS", 20_000)
        yield

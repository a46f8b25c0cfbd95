"""How many examples a search has, as the chosen profile of hypothesis wants it."""

from __future__ import annotations

from hypothesis import settings

THOROUGH = 100
"""Examples of a test that says nothing about it, in the profile ``thorough``."""


def examples(thorough: int) -> int:
    """Return the profile's share of the examples that a test has in the profile ``thorough``; 10 at least."""
    return max(10, thorough * settings().max_examples // THOROUGH)

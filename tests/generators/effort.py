"""The number of examples that hypothesis tries, according to the chosen profile."""

from __future__ import annotations

from hypothesis import settings

THOROUGH = 100
"""Default number of examples of a test in the profile ``thorough``."""


def examples(thorough: int) -> int:
    """Return the profile's share of a test's number of examples in the profile ``thorough``; at least 10."""
    return max(10, thorough * settings().max_examples // THOROUGH)

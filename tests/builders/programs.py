"""Tests that use a program which may be missing, such as helm: slow ones, which are skipped without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

_Test = TypeVar("_Test", bound=Callable[..., object])


def needing(
    program: str | None, reason: str, tier: pytest.MarkDecorator = pytest.mark.slow
) -> Callable[[_Test], _Test]:
    """Return a decorator for tests that start `program`; where there is none, they are skipped for `reason`."""

    def decorate(test: _Test) -> _Test:
        marked: _Test = tier(pytest.mark.skipif(not program, reason=reason)(test))
        return marked

    return decorate

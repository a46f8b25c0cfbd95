"""Programs that tests start: some may be missing, such as helm, and none outlives its test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

_Test = TypeVar("_Test", bound=Callable[..., object])
_Process = TypeVar("_Process", bound=subprocess.Popen[Any])


def needing(
    program: str | None, reason: str, tier: pytest.MarkDecorator = pytest.mark.slow
) -> Callable[[_Test], _Test]:
    """Return a decorator for tests that start `program`: slow ones, and skipped for `reason` where there is none."""

    def decorate(test: _Test) -> _Test:
        marked: _Test = tier(pytest.mark.skipif(not program, reason=reason)(test))
        return marked

    return decorate


@contextmanager
def ended(process: _Process) -> Iterator[_Process]:
    """Kill the process at the end of the block, if it still runs.

    A block of Popen itself waits for it: a test that failed before it told a server to end would wait forever, since
    pytest-timeout interrupts a test once.
    """
    with process:
        try:
            yield process
        finally:
            process.kill()

"""What something costs, by calls of functions: no clock, so that it is the same on any machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType


class Calls:
    """Of one module's functions, generators that go on among them."""

    def __init__(self) -> None:
        self.number = 0


@contextmanager
def calls_in(module: ModuleType) -> Iterator[Calls]:
    """Count the calls of a module's functions in this thread during the body."""
    calls = Calls()

    def count(frame: FrameType, event: str, _: object) -> None:
        calls.number += event == "call" and frame.f_code.co_filename == module.__file__

    former = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(former)

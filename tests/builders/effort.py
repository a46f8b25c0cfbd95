"""How much a computation does, which is the same on any machine, unlike how long it takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def effort(compute: Callable[[], T]) -> tuple[T, int]:
    """What is computed, and the number of calls and returns of functions that it takes."""
    number = 0

    def count(_frame: FrameType, _event: str, _arg: Any) -> None:
        nonlocal number
        number += 1

    former = sys.getprofile()
    sys.setprofile(count)
    try:
        found = compute()
    finally:
        sys.setprofile(former)
    return found, number

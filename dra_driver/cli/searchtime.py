"""How long commands search for devices: claims of strangers must not keep them busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

NODE_SECONDS: Final = 10.0
"""For a pod on one node, as kube-scheduler's ``DynamicResourcesFilterTimeout``."""


def deadline(seconds: float = NODE_SECONDS) -> Callable[[], bool]:
    """Whether these seconds from now on are not over yet."""
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() < end

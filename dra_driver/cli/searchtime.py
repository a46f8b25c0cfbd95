"""How long commands search for devices: claims of strangers must not keep them busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

NODE_SECONDS: Final = 10.0
"""For a pod on one node, as kube-scheduler's ``DynamicResourcesFilterTimeout``."""
UNCOUNTED_SECONDS: Final = 0.1
"""Of each search; few take so long."""
NAMESPACE_SECONDS: Final = 60.0
"""What all searches for one namespace may take beyond that."""


class SearchTime:
    """The time of one command. Each namespace has its own, so that none keeps the command from the claims of others.

    Args:
        namespace_seconds: what all searches for one namespace may take.
        clock: monotonic seconds.
    """

    def __init__(
        self, namespace_seconds: float = NAMESPACE_SECONDS, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._most = namespace_seconds
        self._clock = clock
        self._spent: dict[str, float] = {}

    def begin(self, namespace: str) -> Callable[[], bool]:
        """Begin a search on one node for claims of a namespace; what it gives says whether there is time left."""
        before, start = self._spent.get(namespace, 0.0), self._clock()
        seconds = min(NODE_SECONDS, UNCOUNTED_SECONDS + max(self._most - before, 0.0))

        def has_time() -> bool:
            lasts = self._clock() - start
            self._spent[namespace] = before + max(min(lasts, NODE_SECONDS) - UNCOUNTED_SECONDS, 0.0)
            return lasts < seconds

        return has_time


def deadline(seconds: float) -> Callable[[], bool]:
    """Whether these seconds from now on are not over yet."""
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() < end

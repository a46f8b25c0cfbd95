"""Which objects could not be written, when they are tried again, and in which namespaces they are."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from dra_driver.util.worker import Backoff

MAX_RETRY_SECONDS: Final = 300.0
"""Longest wait until what could not be written is tried again."""
TROUBLE_SECONDS: Final = 60.0
"""A namespace comes after all others for so long after a write there has failed."""

LASTING_SECONDS: Final = 10.0
"""Nobody waits for a write that has failed for so long."""


class Trouble:
    """Writes that have failed: when each object is tried again, and in which namespaces that was a short time ago."""

    def __init__(self) -> None:
        self._retries: dict[Hashable, tuple[Backoff, float, float]] = {}
        """By object: when it is tried again, and since when that fails."""
        self._namespaces: dict[str, float] = {}

    def note_failure(self, item: Hashable, namespace: str, now: float) -> None:
        """A write of the object, which is in that namespace, has failed."""
        backoff, _, since = self._retries.get(item, (Backoff(first=1.0, cap=MAX_RETRY_SECONDS), 0.0, now))
        self._retries[item] = backoff, now + backoff.next(), since
        self._namespaces[namespace] = now

    def note_success(self, item: Hashable) -> None:
        """A write of the object has succeeded."""
        self._retries.pop(item, None)

    def is_due(self, item: Hashable, now: float) -> bool:
        """Whether the object may be tried."""
        _, due, _ = self._retries.get(item, (None, now, now))
        return now >= due

    def lasts(self, item: Hashable, now: float) -> bool:
        """Whether no write of the object has succeeded for so long that it may never do."""
        return item in self._retries and now >= self._retries[item][2] + LASTING_SECONDS

    def namespaces(self, now: float) -> frozenset[str]:
        """Those in which writes have failed a short time ago: others go first."""
        return frozenset(name for name, at in self._namespaces.items() if now < at + TROUBLE_SECONDS)

    def forget(self, now: float) -> None:
        """Forget what is over: objects and namespaces come and go."""
        self._retries = {item: retry for item, retry in self._retries.items() if now < retry[1] + MAX_RETRY_SECONDS}
        self._namespaces = {name: at for name, at in self._namespaces.items() if now < at + TROUBLE_SECONDS}

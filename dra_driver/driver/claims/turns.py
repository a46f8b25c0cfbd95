"""How many claims of one namespace are prepared at once: a tenant whose claims take long leaves room for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dra_driver.driver.claims.model import NOT_PREPARED, PrepareError
from dra_driver.util import runtime

MOST: Final = 8
"""Of one namespace: half of the calls that kubelet gets answered at once."""
PATIENCE_SECONDS: Final = 2.0
"""A call that waits for its turn takes a place that others could have, so it does not wait for long."""


class NamespaceTurns:
    """Turns by namespace."""

    def __init__(self) -> None:
        self._changed = runtime.condition()
        self._running: Counter[str] = Counter()

    @contextmanager
    def turn(self, namespace: str) -> Iterator[None]:
        """Have a turn during the body. PrepareError: too many others of the namespace take too long."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._running[namespace] < MOST, PATIENCE_SECONDS):
                raise PrepareError(
                    f"{MOST} other claims of namespace {namespace} are being prepared, and take long",
                    consequence=NOT_PREPARED,
                    remedy="kubelet tries again",
                )
            self._running[namespace] += 1
        try:
            yield
        finally:
            with self._changed:
                self._running[namespace] -= 1
                self._running += Counter()  # without those that have none
                self._changed.notify_all()

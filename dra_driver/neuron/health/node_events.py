"""Events on the Node: one for each fault of a chip that begins, one when it is over, and one about its kubelet.

There is one Event object for each chip, fault and outcome; what happens again while the API server still has it (an
hour) raises its count, as with client-go's recorder. After a restart, what was told already follows from the Node's
condition, which names the faults found before, and from the Event itself: a fault has the time at which it began, and
the Event the time of what it told last.

Two bounds keep a broken node from flooding the API server. Events take from a bucket like that of client-go's spam
filter, so of a storm only the gravest are told; and a write that fails is repeated ever more slowly, for an hour.
Nobody waits for an Event: the condition and the metrics tell all faults at any time.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.events import CLUSTER_NAMESPACE, LIFETIME_SECONDS, new_event
from dra_driver.kube.objects.core import Event, Node, ObjectReference
from dra_driver.kube.objects.meta import seconds, timestamp
from dra_driver.neuron.health.condition import HEALTHY_REASON
from dra_driver.neuron.health.faults import FAULTS, ActiveFault, NodeHealth, gravity
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Backoff

if TYPE_CHECKING:
    from dra_driver.kube.api.resources import ResourceApi

BURST: Final = 25
"""Events that may be written one after the other, as in client-go."""
REFILL_SECONDS: Final = 300.0
"""One more after so long, as in client-go."""
SAME_SECONDS: Final = 60.0
"""Two instances of the driver, during a rolling update, may see the same change so far apart."""
OUTCOMES: Final = ("written", "counted", "known", "dropped", "failed")
"""Created; count raised; told before, by another instance; too many; refused, or older than an hour."""
_RETRIED: Final = frozenset({0, 401, 404, 408, 409, 429})
"""HTTP statuses, besides 500 and above, after which a write is tried again."""

Key = tuple[int, str]
"""Chip and code of a fault."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is wrong has begun, or is over."""

    what: str
    """Such as ``3 hbm-uncorrectable``, a chip's fault."""
    reason: str
    """Of the Event."""
    begins: bool
    moment: float
    """When, in seconds since the epoch."""
    text: str

    @property
    def key(self) -> str:
        """What has the same key is told by the same Event."""
        return f"{self.what} {'begins' if self.begins else 'ends'}"


def active(health: NodeHealth) -> Mapping[Key, ActiveFault]:
    """The faults of all chips that are their own, the gravest first."""
    pairs = [(chip.index, fault) for chip in health.chips for fault in chip.own]
    return {(index, fault.code): fault for index, fault in sorted(pairs, key=lambda item: (gravity(item[1]), item[0]))}


def changes(before: Iterable[Key], after: Mapping[Key, ActiveFault], now: float) -> list[Change]:
    """What has begun and what is over: the begun first, the gravest of them before the others."""
    old = set(before)
    begun = (
        Change(f"{chip} {code}", FAULTS[code].reason, True, float(fault.since), f"neuron{chip}: {fault.text}")
        for (chip, code), fault in after.items()
        if (chip, code) not in old
    )
    over = (
        Change(
            f"{chip} {code}",
            HEALTHY_REASON,
            False,
            now,
            f"neuron{chip}: the fault {code} is over ({FAULTS[code].text})",
        )
        for chip, code in sorted(old - after.keys())
    )
    return [*begun, *over]


class NodeEvents:
    """Writes them. Of one thread, but for ``counts``.

    Args:
        api: the API server.
        component: the Events' source.
        burst: size of the bucket.
        backoff: waits after a write that failed.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        api: ResourceApi,
        component: str,
        *,
        burst: int = BURST,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = runtime.now,
    ) -> None:
        self._api = api
        self._component = component
        self._burst = self._tokens = float(burst)
        self._filled = runtime.monotonic()
        self._backoff = backoff or Backoff(first=1.0, cap=300.0)
        self._clock = clock
        self._active: set[Key] | None = None
        """The faults of the last health; None: there was none."""
        self._untold: set[str] = set()
        """Faults whose beginning was dropped: neither is their end told."""
        self._waiting: deque[Change] = deque()
        self._due = 0.0
        self._known: dict[str, Event] = {}
        """Events as last stored, by ``Change.key``."""
        self.counts = Counter(dict.fromkeys(OUTCOMES, 0))

    def look(self, health: NodeHealth, former: Iterable[Key] = ()) -> None:
        """Note what has changed.

        Args:
            health: of now.
            former: faults that an earlier instance has found; counts at the first call only.
        """
        now, current = self._clock(), active(health)
        before = self._active
        if before is None:  # it may have ended before it wrote the Event of a fault that had just begun
            before = {key for key in former if key not in current or now - current[key].since > SAME_SECONDS}
        for change in changes(before, current, now):
            if change.begins and now - change.moment > LIFETIME_SECONDS:
                continue  # told by an earlier instance, and the API server has forgotten it
            if not change.begins and change.what in self._untold:
                self._untold.discard(change.what)
                continue
            if self._take():
                self.tell(change)
            else:
                self.counts["dropped"] += 1
                self._untold |= {change.what} if change.begins else set()
        self._active = set(current)

    def tell(self, change: Change) -> None:
        """Have an Event written about it."""
        self._waiting.append(change)

    def write(self, node: Node) -> float:
        """Write the next Event if it is time; returns the seconds until the next call (``math.inf``: none waits)."""
        now = runtime.monotonic()
        if self._waiting and now >= self._due:
            self._try(node, self._waiting[0])
        if not self._waiting:
            return math.inf
        return max(0.0, self._due - runtime.monotonic())

    def _try(self, node: Node, change: Change) -> None:
        try:
            outcome = self._tell(node, change)
        except DriverError as error:
            self._known.pop(change.key, None)  # it may have been written all the same
            again = isinstance(error, ApiError) and (error.status in _RETRIED or error.status >= 500)
            if again and self._clock() - change.moment < LIFETIME_SECONDS:
                wait = self._backoff.next(error.retry_after if isinstance(error, ApiError) else None)
                self._due = runtime.monotonic() + wait
                log.debug("cannot write an event about %s: %s (next try in %.1f s)", change.text, error, wait)
                return
            log.warning("no event is written about %s: %s", change.text, error)
            outcome = "failed"
        else:
            self._backoff.reset()
        self._waiting.popleft()
        self.counts[outcome] += 1

    def _tell(self, node: Node, change: Change) -> str:
        event = new_event(
            ObjectReference("Node", "", node.metadata.name, node.metadata.uid),
            change.reason,
            change.text,
            self._component,
            key=change.key,
            moment=change.moment,
            wrong=change.begins,
        )
        stored = self._known.get(change.key)
        if stored is None:
            try:
                self._known[change.key] = self._api.create_event(event)
            except ApiError as error:
                if error.status != 409:
                    raise
            else:
                return "written"
            stored = self._api.patch_event(CLUSTER_NAMESPACE, event.metadata.name, {})
            if (seconds(stored.last_timestamp) or 0.0) > change.moment - SAME_SECONDS:
                self._known[change.key] = stored
                return "known"
        again = {"count": stored.count + 1, "lastTimestamp": timestamp(change.moment), "message": event.message}
        self._known[change.key] = self._api.patch_event(CLUSTER_NAMESPACE, event.metadata.name, again)
        return "counted"

    def _take(self) -> bool:
        now = runtime.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) / REFILL_SECONDS)
        self._filled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

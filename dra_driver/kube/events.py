"""Events of a controller on objects: few writes, no duplicates."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from collections.abc import Collection as Names
from typing import Final

from dra_driver.kube.api import Collection
from dra_driver.kube.client import Transport
from dra_driver.kube.election import REQUEST_SECONDS
from dra_driver.kube.errors import ApiError
from dra_driver.kube.types import EVENTS, Event, EventSource, ObjectMeta, ObjectReference, timestamp

PAUSE_SECONDS: Final = 30.0
"""Between two different messages with the same reason about one object."""
AGAIN_SECONDS: Final = 3600.0
"""An event lives for an hour in the API server; what still holds then is recorded again."""
MAX_MESSAGE_LENGTH: Final = 1000
"""Characters of a message; the API server takes 1024 bytes."""

log = logging.getLogger(__name__)


class EventRecorder:
    """Writes events on objects.

    An event's name is derived from object and message, so a successor does not write the same event again.

    Args:
        transport: the API server.
        component: who reports.
        clock: monotonic seconds.
    """

    def __init__(self, transport: Transport, component: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = Collection(transport, EVENTS, timeout=REQUEST_SECONDS)
        self._component = component
        self._clock = clock
        self._recorded: dict[tuple[str, str], tuple[str, float]] = {}

    def record(self, about: ObjectReference, reason: str, message: str, *, wrong: bool = False) -> bool:
        """Write an event unless it was written already, or another one with this reason a moment ago.

        An event that cannot be written is logged, and no reason to stop.

        Returns:
            Whether it is a new one, written or not.
        """
        message = message.encode("ascii", "replace").decode()[:MAX_MESSAGE_LENGTH]
        last, when = self._recorded.get((about.uid, reason), ("", float("-inf")))
        passed = self._clock() - when
        if passed < (AGAIN_SECONDS if last == message else PAUSE_SECONDS):
            return False
        self._recorded[about.uid, reason] = message, self._clock()
        try:
            # Events on objects without a namespace are in "default", as those of Kubernetes' own controllers.
            self._events.create(about.namespace or "default", self._event(about, reason, message, wrong=wrong))
        except ApiError as error:
            if error.status != 409:
                name = f"{about.namespace}/{about.name}" if about.namespace else about.name
                log.warning("no event could be written about %s %s: %s", about.kind.lower(), name, error)
        return True

    def forget_all_but(self, uids: Names[str]) -> None:
        """Forget all objects but those with these UIDs."""
        self._recorded = {key: value for key, value in self._recorded.items() if key[0] in uids}

    def _event(self, about: ObjectReference, reason: str, message: str, *, wrong: bool) -> Event:
        digest = hashlib.sha256(f"{about.uid} {reason} {message}".encode()).hexdigest()[:16]
        moment = timestamp(time.time())
        return Event(
            metadata=ObjectMeta(name=f"{about.name[:200]}.{digest}", namespace=about.namespace or "default"),
            involved_object=about,
            reason=reason,
            message=message,
            type_="Warning" if wrong else "Normal",
            source=EventSource(self._component),
            reporting_component=self._component,
            first_timestamp=moment,
            last_timestamp=moment,
            count=1,
        )

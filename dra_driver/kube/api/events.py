"""Events as all programs of this project write them: core/v1, named by their writer so that a repeat is refused."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from collections.abc import Collection as Names
from typing import Final

from dra_driver.kube.api.client import REQUEST_SECONDS, Transport
from dra_driver.kube.api.codec import EVENTS
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection
from dra_driver.kube.objects.core import Event, EventSource, ObjectReference
from dra_driver.kube.objects.meta import ObjectMeta, timestamp
from dra_driver.util import runtime
from dra_driver.util.text import one_line

CLUSTER_NAMESPACE: Final = "default"
"""Where the API server wants Events about objects that have no namespace, such as Nodes."""
LIFETIME_SECONDS: Final = 3600.0
"""The API server deletes an Event so long after its last write (``--event-ttl``)."""


PAUSE_SECONDS: Final = 30.0
"""Between two different messages with the same reason about one object."""
MAX_MESSAGE_LENGTH: Final = 1000
"""Characters of a message of a recorder; the API server takes 1024 bytes."""

log = logging.getLogger(__name__)


def new_event(
    about: ObjectReference, reason: str, message: str, component: str, *, key: str, moment: float, wrong: bool
) -> Event:
    """An Event that has happened once.

    Args:
        about: the object.
        reason: one word in camel case.
        message: for people; cut to one line of 1,024 bytes, which is what the API server takes.
        component: who writes it.
        key: what makes the Event one of its own among those of the component about the object. Its name is derived
            from all three: an admission policy may let each component write its own Events only.
        moment: when it happened, in seconds since the epoch.
        wrong: whether it is a ``Warning``; else it is ``Normal``.
    """
    digest = hashlib.sha256(f"{about.uid} {component} {key}".encode()).hexdigest()[:16]
    name = about.name[:200].rstrip("-.")  # cut there, it would be no name
    return Event(
        metadata=ObjectMeta(name=f"{name}.{digest}", namespace=about.namespace or CLUSTER_NAMESPACE),
        involved_object=about,
        reason=reason,
        message=one_line(message),
        type_="Warning" if wrong else "Normal",
        source=EventSource(component, host=about.name if about.kind == "Node" else ""),
        reporting_component=component,
        first_timestamp=timestamp(moment),
        last_timestamp=timestamp(moment),
        count=1,
    )


class EventRecorder:
    """Writes events on objects.

    An event's name is derived from object and message, so a successor does not write the same event again.

    Args:
        transport: the API server.
        component: who reports.
        clock: monotonic seconds.
    """

    def __init__(self, transport: Transport, component: str, clock: Callable[[], float] = runtime.monotonic) -> None:
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
        if passed < (LIFETIME_SECONDS if last == message else PAUSE_SECONDS):
            return False
        self._recorded[about.uid, reason] = message, self._clock()
        key = f"{reason} {message}"
        event = new_event(about, reason, message, self._component, key=key, moment=runtime.now(), wrong=wrong)
        try:
            self._events.create(about.namespace or CLUSTER_NAMESPACE, event)
        except ApiError as error:
            if error.status != 409:
                name = f"{about.namespace}/{about.name}" if about.namespace else about.name
                log.warning("cannot write an event about %s %s: %s", about.kind.lower(), name, error)
        return True

    def forget_all_but(self, uids: Names[str]) -> None:
        """Forget all objects but those with these UIDs."""
        self._recorded = {key: value for key, value in self._recorded.items() if key[0] in uids}

"""Events on pods: what a pod waits for, where it goes, and why it was released. Few writes, none twice."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from dra_driver.kube.api import Collection as ApiCollection
from dra_driver.kube.client import Transport
from dra_driver.kube.election import REQUEST_SECONDS
from dra_driver.kube.errors import ApiError
from dra_driver.kube.types import EVENTS, Event, EventSource, ObjectMeta, ObjectReference, timestamp
from dra_driver.placer.values import Pod

COMPONENT: Final = "neuron-dra-driver-placer"
PAUSE_SECONDS: Final = 30.0
"""Between two different texts of one reason about one pod."""
AGAIN_SECONDS: Final = 3600.0
"""An event lives for an hour in the API server; what still holds then is said again."""
LONGEST: Final = 1000
"""Characters of a message; the API server takes 1024 bytes."""

log = logging.getLogger(__name__)


class Teller:
    """Writes events. An event's name follows from pod and text, so a successor does not say the same again."""

    def __init__(self, transport: Transport, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = ApiCollection(transport, EVENTS, timeout=REQUEST_SECONDS)
        self._clock = clock
        self._said: dict[tuple[str, str], tuple[str, float]] = {}

    def say(self, pod: Pod, reason: str, message: str, *, wrong: bool = False) -> None:
        """Write an event unless that was said already, or something else of this kind a moment ago.

        An event that cannot be written is no reason to stop: the log has it.
        """
        message = message.encode("ascii", "replace").decode()[:LONGEST]
        last, when = self._said.get((pod.uid, reason), ("", float("-inf")))
        passed = self._clock() - when
        if passed < (AGAIN_SECONDS if last == message else PAUSE_SECONDS):
            return
        self._said[pod.uid, reason] = message, self._clock()
        try:
            self._events.create(pod.namespace, _event(pod, reason, message, wrong=wrong))
        except ApiError as error:
            if error.status != 409:
                log.warning("no event could be written about pod %s/%s: %s", pod.namespace, pod.name, error)

    def forget_all_but(self, uids: Collection[str]) -> None:
        """Only pods with these UIDs are there still."""
        self._said = {key: value for key, value in self._said.items() if key[0] in uids}


def _event(pod: Pod, reason: str, message: str, *, wrong: bool) -> Event:
    digest = hashlib.sha256(f"{pod.uid} {reason} {message}".encode()).hexdigest()[:16]
    moment = timestamp(time.time())
    return Event(
        metadata=ObjectMeta(name=f"{pod.name[:200]}.{digest}", namespace=pod.namespace),
        involved_object=ObjectReference("Pod", pod.namespace, pod.name, pod.uid),
        reason=reason,
        message=message,
        type_="Warning" if wrong else "Normal",
        source=EventSource(COMPONENT),
        reporting_component=COMPONENT,
        first_timestamp=moment,
        last_timestamp=moment,
        count=1,
    )

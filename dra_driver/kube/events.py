"""An Event as all programs of this project write it: core/v1, named by its writer so that a repeat is refused."""

from __future__ import annotations

import hashlib
from typing import Final

from dra_driver.kube.types import Event, EventSource, ObjectMeta, ObjectReference, timestamp
from dra_driver.util.text import one_line

CLUSTER_NAMESPACE: Final = "default"
"""Where the API server wants Events about objects that have no namespace, such as Nodes."""
LIFETIME_SECONDS: Final = 3600.0
"""The API server deletes an Event so long after its last write (``--event-ttl``)."""


def new_event(
    about: ObjectReference, reason: str, message: str, component: str, *, key: str, moment: float, wrong: bool
) -> Event:
    """An Event that has happened once.

    Args:
        about: the object.
        reason: one word in camel case.
        message: for people; cut to one line of 1,024 bytes, which is what the API server takes.
        component: who writes it.
        key: what makes the Event one of its own among those about the object; its name is derived from it.
        moment: when it happened, in seconds since the epoch.
        wrong: whether it is a ``Warning``; else it is ``Normal``.
    """
    digest = hashlib.sha256(f"{about.uid} {key}".encode()).hexdigest()[:16]
    return Event(
        metadata=ObjectMeta(name=f"{about.name[:200]}.{digest}", namespace=about.namespace or CLUSTER_NAMESPACE),
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

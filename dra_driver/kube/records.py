"""Kinds that a controller writes about itself and its decisions: leases, events and a small memory."""

from __future__ import annotations

from typing import Final

import msgspec

from dra_driver.kube.collection import ApiObject, Resource
from dra_driver.kube.objects import ObjectMeta


class LeaseSpec(ApiObject, frozen=True):
    """``spec``: times are RFC 3339 with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(ApiObject, frozen=True):
    """Who leads, and since when."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class ObjectReference(ApiObject, frozen=True):
    """What an event is about."""

    kind: str
    namespace: str
    name: str
    uid: str
    api_version: str = "v1"


class EventSource(ApiObject, frozen=True):
    """``source``."""

    component: str = ""


class Event(ApiObject, frozen=True):
    """An event as ``kubectl describe`` shows it; its name makes it unique."""

    metadata: ObjectMeta
    involved_object: ObjectReference
    reason: str
    message: str
    type_: str = msgspec.field(name="type", default="")
    """``Normal`` or ``Warning``."""
    source: EventSource = EventSource()
    reporting_component: str = ""
    reporting_instance: str = ""
    first_timestamp: str = ""
    last_timestamp: str = ""
    count: int = 0


class ConfigMap(ApiObject, frozen=True):
    """A few texts by name."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None


LEASES: Final = Resource(Lease, "Lease", "leases", ("coordination.k8s.io/v1",))
EVENTS: Final = Resource(Event, "Event", "events", ("v1",))
CONFIG_MAPS: Final = Resource(ConfigMap, "ConfigMap", "configmaps", ("v1",))

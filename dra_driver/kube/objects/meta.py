"""What all objects have: metadata, conditions, times, quantities."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

JsonObject = dict[str, Any]
Quantity = str | int | float
"""``10Gi``, or ``4`` where a file has a bare number; the API server sends texts only. ``kube.quantity`` parses them."""


class ApiObject(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Base of the structs: camel case on the wire, defaults omitted, unknown fields ignored."""


class OwnerReference(ApiObject, frozen=True):
    """``metadata.ownerReferences[]``."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiObject, frozen=True):
    """``metadata``, the fields in use."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    deletion_timestamp: str | None = None
    creation_timestamp: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def full_name(self) -> str:
        """``namespace/name``; the name alone where there is no namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class Condition(ApiObject, frozen=True):
    """``status.conditions[]`` of Nodes and pods, and of devices in claims; times as in ``seconds``."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


def seconds(text: str | None) -> float | None:
    """An RFC 3339 timestamp as seconds since the epoch; None for anything else, and what ``timestamp`` cannot write.

    In UTC, the year 9999 may be 10000, and 1 be 0.
    """
    try:
        moment = datetime.fromisoformat(text or "")
        return moment.astimezone(UTC).timestamp() if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None


def timestamp(moment: float, *, micro: bool = False) -> str:
    """Seconds since the epoch as RFC 3339 in UTC, in the form of ``metav1.Time`` or (``micro``) ``MicroTime``."""
    text = datetime.fromtimestamp(moment, tz=UTC).isoformat(timespec="microseconds" if micro else "seconds")
    return text.replace("+00:00", "Z")

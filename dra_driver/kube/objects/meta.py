"""What all objects have: metadata, conditions, times, quantities."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

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


class ObjectMeta(ApiObject, frozen=True, kw_only=True):
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
    def identity(self) -> ObjectMeta:
        """Which object it is, and which version of it, without what people write as they like."""
        return ObjectMeta(
            name=self.name, namespace=self.namespace, uid=self.uid, resource_version=self.resource_version
        )

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    @property
    def full_name(self) -> str:
        """``namespace/name``; the name alone where there is no namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


_VERSION_DIGITS: Final = 20
"""Of the largest number of 64 bits; Python takes no text of thousands of digits for a number."""


def version_number(resource_version: str) -> int:
    """A resource version as a number; 0 for what is none.

    Those of one kind are increasing integers (Kubernetes 1.35 API conventions, and etcd before that).
    """
    is_number = resource_version.isdecimal() and len(resource_version) <= _VERSION_DIGITS
    return int(resource_version) if is_number else 0


class Condition(ApiObject, frozen=True):
    """``status.conditions[]`` of Nodes and pods, and of devices in claims; times as in ``seconds``."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class ObservedCondition(Condition, frozen=True, omit_defaults=False):
    """``metav1.Condition``, as custom resources have it: complete, and with the generation that it was made of."""

    last_transition_time: str = ""
    observed_generation: int = 0


MIN_SECONDS: Final = -62_135_596_800
"""Since the epoch: the first second of the year 1, in UTC."""
MAX_SECONDS: Final = 253_402_300_799
"""The last one of the year 9999."""


def seconds(text: str | None) -> float | None:
    """An RFC 3339 timestamp as seconds since the epoch; None for all else, and for what ``timestamp`` cannot write.

    With an offset, a text may name a moment outside the years 1 to 9999 of UTC.
    """
    try:
        moment = datetime.fromisoformat(text or "")
        since_epoch = moment.timestamp() if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None
    return since_epoch if since_epoch is not None and MIN_SECONDS <= since_epoch < MAX_SECONDS + 1 else None


def timestamp(moment: float, *, micro: bool = False) -> str:
    """Seconds since the epoch as RFC 3339 in UTC, in the form of ``metav1.Time`` or (``micro``) ``MicroTime``."""
    text = datetime.fromtimestamp(moment, tz=UTC).isoformat(timespec="microseconds" if micro else "seconds")
    return text.replace("+00:00", "Z")

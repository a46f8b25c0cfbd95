"""The one object that a command prints as JSON or YAML; ``cli.kinds`` has the kinds and the keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

ApiVersion = Literal["neuron-dra-driver/v1"]
API_VERSION: Final[ApiVersion] = "neuron-dra-driver/v1"


class Document(msgspec.Struct, frozen=True, rename="camel"):
    """Base of the parts of what a command prints: camel case, and every field is there."""


class Reference(Document, frozen=True):
    """How every output refers to a pod or a claim."""

    namespace: str
    name: str

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def plain(document: msgspec.Struct) -> Any:
    """A document as plain values."""
    return msgspec.json.decode(msgspec.json.encode(document))


def envelope(kind: str, items: Iterable[Any], **beside: Any) -> dict[str, Any]:
    """The result of a command: a kind of our own, its ``items``, and further keys beside these."""
    return {"apiVersion": API_VERSION, "kind": kind, "items": [*items], **beside}


def object_list(objects: Iterable[Any]) -> dict[str, Any]:
    """Objects of Kubernetes as kubectl prints and reads several."""
    return {"apiVersion": "v1", "kind": "List", "items": [*objects]}


def reference(namespace: str, name: str) -> dict[str, str]:
    """How every output refers to a pod or a claim."""
    return {"namespace": namespace, "name": name}

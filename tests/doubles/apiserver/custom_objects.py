"""Custom resources in the test API server: their status is written apart, and finalizers keep what is deleted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.doubles.apiserver.core_objects import MERGE_PATCH, merged
from tests.doubles.apiserver.store import Object, Refused, Store, check_precondition, copied

if TYPE_CHECKING:
    from tests.doubles.apiserver.http import Request

CUSTOM_GROUP = "neuron.aws.com"
CUSTOM_KINDS = {
    "neuronultraservers": "NeuronUltraServer",
    "neuronultraserverworkloads": "NeuronUltraServerWorkload",
}
SERVERS_OWN = ("uid", "generation", "creationTimestamp", "deletionTimestamp")
"""What no client writes into ``metadata``."""


def write_custom(store: Store, request: Request, match: re.Match[str]) -> tuple[int, Object]:
    """Carry out POST, PUT, PATCH (JSON merge patch) or DELETE; returns status and the object."""
    kind, key = match["kind"], f"{match['namespace']}/{match['name']}"
    document: Any = copied(request.body or {})
    if request.method == "DELETE":
        return 200, _deleted(store, kind, key, document.get("preconditions") or {})
    if request.method == "POST":
        meta = document["metadata"] | {"namespace": match["namespace"], "generation": 1}
        return 201, store.create(kind, {"metadata": meta, "spec": document["spec"]})
    if request.method == "PATCH" and request.content_type != MERGE_PATCH:
        raise Refused(415, "UnsupportedMediaType", "a JSON merge patch was expected")
    with store.changed:
        old = store.get(kind, key)
        check_precondition(old, document.get("metadata") or {})
        new = merged(old, document) if request.method == "PATCH" else document
        item = _of_status(old, new) if match["sub"] else _of_all_else(old, new)
        stored = store.update(kind, key, item)
        if "deletionTimestamp" in stored["metadata"] and not stored["metadata"].get("finalizers"):
            store.delete(kind, key)
        return 200, stored


def _of_status(old: Object, new: Object) -> Object:
    """The status alone is written, and nothing of the metadata."""
    return old | ({"status": new["status"]} if "status" in new else {})


def _of_all_else(old: Object, new: Object) -> Object:
    """All but the status is written; the generation counts changes of the spec."""
    kept = {name: value for name, value in old["metadata"].items() if name in SERVERS_OWN}
    meta = {**new["metadata"], **kept, "namespace": old["metadata"]["namespace"]}
    meta["generation"] += new["spec"] != old["spec"]
    return {"metadata": meta, "spec": new["spec"], **({"status": old["status"]} if "status" in old else {})}


def _deleted(store: Store, kind: str, key: str, preconditions: Object) -> Object:
    with store.changed:
        item = store.get(kind, key)
        check_precondition(item, preconditions)
        if not item["metadata"].get("finalizers"):
            return store.delete(kind, key)
        item["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:30Z")
        return store.update(kind, key, item)

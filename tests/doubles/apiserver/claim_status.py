"""``status.devices`` of claims in the test API server: server-side apply of whole entries."""

from __future__ import annotations

from collections.abc import Mapping

from tests.doubles.apiserver.node_fields import APPLY
from tests.doubles.apiserver.store import Object, Refused, Store, check_precondition

CONDITION = {"type", "status", "reason", "message", "lastTransitionTime"}


def apply_devices(store: Store, key: str, body: Object, query: Mapping[str, str], content_type: str) -> Object:
    """Entries that the manager applied before and omits now are removed; with force only."""
    manager = query.get("fieldManager", "")
    if content_type != APPLY or not manager or query.get("force") != "true":
        raise Refused(422, "Invalid", "server-side apply with a field manager and force was expected", key)
    if set(body["metadata"]) - {"name", "namespace", "uid"} or set(body["status"]) != {"devices"}:
        raise Refused(422, "Invalid", "nothing but devices was expected", key)
    with store.changed:
        claim = store.get("resourceclaims", key)
        check_precondition(claim, body["metadata"])
        allocation = claim["status"].get("allocation") or {"devices": {"results": []}}
        allocated = {_key(item) for item in allocation["devices"]["results"]}
        wanted = {_key(item): item for item in body["status"]["devices"]}
        for entry in wanted.values():
            if _key(entry) not in allocated:
                raise Refused(422, "Invalid", "status.devices: must be an allocated device in the claim", key)
            if any(set(item) != CONDITION or not item["reason"] for item in entry["conditions"]):
                raise Refused(422, "Invalid", "status.devices[].conditions: Required value", key)
        managed = claim["metadata"].get("managedFields", [])
        mine = {tuple(one) for item in managed if item["manager"] == manager for one in item["devices"]}
        stored = {_key(item): item for item in claim["status"].get("devices", [])}
        kept = {one: item for one, item in stored.items() if one not in mine - set(wanted)} | wanted
        others = [item for item in managed if item["manager"] != manager]
        own = [{"manager": manager, "devices": [list(one) for one in wanted]}] if wanted else []
        meta = {**claim["metadata"], "managedFields": [*others, *own]}
        status = {**claim["status"], "devices": list(kept.values())}
        return store.update("resourceclaims", key, {**claim, "metadata": meta, "status": status})


def _key(item: Object) -> tuple[str, str, str]:
    return item["driver"], item["pool"], item["device"]

"""Labels and conditions of Nodes in the test API server: server-side apply, and changes by others; managed fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.doubles.apiserver.store import Object, Refused, Store, check_precondition

APPLY = "application/apply-patch+yaml"


def apply_labels(store: Store, name: str, body: Object, query: Mapping[str, str], content_type: str) -> Object:
    """Server-side apply: labels that the manager applied before and omits now are removed; conflicts require force."""
    if content_type != APPLY:
        raise Refused(415, "UnsupportedMediaType", f"nodes are only applied here, not {content_type}", name)
    manager, force = query.get("fieldManager", ""), query.get("force") == "true"
    if not manager or set(body["metadata"]) - {"name", "uid", "labels"}:
        raise Refused(422, "Invalid", "a field manager and nothing but labels were expected", name)
    wanted: dict[str, str] = body["metadata"].get("labels") or {}
    with store.changed:
        node = store.get("nodes", name)
        check_precondition(node, body["metadata"])
        labels = node["metadata"].get("labels") or {}
        owners = _owners(node)
        for key, value in wanted.items():
            others = {who for who, keys in owners.items() if key in keys and who != (manager, "Apply")}
            if others and labels.get(key) != value:
                if not force:
                    raise Refused(409, "Conflict", f"Apply failed with 1 conflict: conflict with {others}: {key}", name)
                for other in others:
                    owners[other].discard(key)
        mine = owners.setdefault((manager, "Apply"), set())
        for key in mine - set(wanted):
            if not any(key in keys for who, keys in owners.items() if who != (manager, "Apply")):
                labels.pop(key, None)
        owners[manager, "Apply"] = set(wanted)
        return _store(store, node, labels | wanted, owners)


def set_label(store: Store, name: str, key: str, value: str | None, manager: str = "kubectl-label") -> None:
    """Set a label as ``kubectl label`` does: previous managers lose ownership of the key."""
    with store.changed:
        node = store.get("nodes", name)
        labels, owners = node["metadata"].get("labels") or {}, _owners(node)
        for keys in owners.values():
            keys.discard(key)
        labels.pop(key, None)
        if value is not None:
            labels[key] = value
            owners.setdefault((manager, "Update"), set()).add(key)
        _store(store, node, labels, owners)


def apply_conditions(store: Store, name: str, body: Object, query: Mapping[str, str], content_type: str) -> Object:
    """Server-side apply of ``nodes/NAME/status``, whole conditions at a time; with force only."""
    manager = query.get("fieldManager", "")
    if content_type != APPLY or not manager or query.get("force") != "true":
        raise Refused(422, "Invalid", "server-side apply with a field manager and force was expected", name)
    if set(body["metadata"]) - {"name", "uid"} or set(body["status"]) - {"conditions"}:
        raise Refused(422, "Invalid", "nothing but conditions was expected", name)
    wanted: dict[str, Object] = {item["type"]: item for item in body["status"]["conditions"]}
    with store.changed:
        node = store.get("nodes", name)
        check_precondition(node, body["metadata"])
        entries = node["metadata"].get("managedFields", [])
        mine = {
            kind
            for entry in entries
            if entry["manager"] == manager and entry.get("subresource") == "status"
            for kind in entry["types"]
        }
        stored = {item["type"]: item for item in node["status"].get("conditions", [])}
        kept = {kind: item for kind, item in stored.items() if kind not in mine - set(wanted)} | wanted
        others = [e for e in entries if e["manager"] != manager or e.get("subresource") != "status"]
        fields: Object = {"f:status": {"f:conditions": {f'k:{{"type":"{kind}"}}': {} for kind in wanted}}}
        own = {"manager": manager, "operation": "Apply", "subresource": "status", "fieldsV1": fields}
        meta = {**node["metadata"], "managedFields": [*others, own | {"types": sorted(wanted)}] if wanted else others}
        status = {**node["status"], "conditions": list(kept.values())}
        return store.update("nodes", name, {**node, "metadata": meta, "status": status})


def set_condition(store: Store, name: str, condition: Object) -> None:
    """Set a condition as a client that patches the status does, such as kubelet."""
    with store.changed:
        node = store.get("nodes", name)
        stored = {item["type"]: item for item in node["status"].get("conditions", [])}
        stored[condition["type"]] = condition
        store.update("nodes", name, {**node, "status": {**node["status"], "conditions": list(stored.values())}})


def _owners(node: Object) -> dict[tuple[str, str], set[str]]:
    return {
        (entry["manager"], entry["operation"]): {
            key.removeprefix("f:") for key in entry["fieldsV1"]["f:metadata"]["f:labels"]
        }
        for entry in node["metadata"].get("managedFields", [])
        if "subresource" not in entry
    }


def _store(store: Store, node: Object, labels: dict[str, str], owners: Mapping[tuple[str, str], set[str]]) -> Object:
    fields: list[dict[str, Any]] = [
        {
            "manager": manager,
            "operation": operation,
            "fieldsV1": {"f:metadata": {"f:labels": {f"f:{key}": {} for key in sorted(keys)}}},
        }
        for (manager, operation), keys in owners.items()
        if keys
    ]
    name = node["metadata"]["name"]
    fields += [entry for entry in node["metadata"].get("managedFields", []) if "subresource" in entry]
    return store.update(
        "nodes", name, {**node, "metadata": {**node["metadata"], "labels": labels, "managedFields": fields}}
    )

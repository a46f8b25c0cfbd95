"""Pods, leases, events and ConfigMaps in the test API server: the writes and rules on which controllers rely."""

from __future__ import annotations

from typing import Any

from tests.doubles.apiserver.store import Object, Refused, Store, check_precondition

MERGE_PATCH = "application/merge-patch+json"
PLAIN_KINDS = {
    "pods": "Pod",
    "leases": "Lease",
    "events": "Event",
    "configmaps": "ConfigMap",
    "deviceclasses": "DeviceClass",
    "resourceclaimtemplates": "ResourceClaimTemplate",
    "devicetaintrules": "DeviceTaintRule",
    "validatingadmissionpolicies": "ValidatingAdmissionPolicy",
    "validatingadmissionpolicybindings": "ValidatingAdmissionPolicyBinding",
    "daemonsets": "DaemonSet",
    "deployments": "Deployment",
    "replicasets": "ReplicaSet",
    "statefulsets": "StatefulSet",
    "jobs": "Job",
}


def write_plain(
    store: Store, method: str, kind: str, namespace: str, name: str, body: Object | None
) -> tuple[int, Object]:
    """Carry out POST, PUT, PATCH (JSON merge patch) or DELETE; returns status and response."""
    key, document = f"{namespace}/{name}", body or {}
    if method == "POST":
        document = {**document, "metadata": {**document["metadata"], "namespace": namespace}}
        if kind == "events":  # the real one omits what is empty
            about = {name: value for name, value in document["involvedObject"].items() if value}
            document["involvedObject"] = about
        return 201, store.create(kind, document)
    if method == "PUT":
        return 200, store.update(kind, key, document)
    if method == "PATCH":
        with store.changed:
            old = store.get(kind, key)
            check_precondition(old, document.get("metadata", {}))
            new = merged(old, document)
            if kind == "pods":
                check_pod(old, new)
            return 200, store.update(kind, key, new)
    if kind == "pods" or (kind == "daemonsets" and document.get("propagationPolicy") == "Foreground"):
        return 200, _end(store, kind, key, document)
    return 200, store.delete(kind, key, document.get("preconditions"))


def bind_pod(store: Store, key: str, binding: Object | None) -> Object:
    """POST of ``pods/NAME/binding``: sets the node and merges annotations atomically, or refuses with 409."""
    document = binding or {}
    meta = document.get("metadata") or {}
    name = key.rpartition("/")[2]
    if meta.get("name") != name or not (document.get("target") or {}).get("name"):
        raise Refused(400, "BadRequest", "name in URL does not match name in Binding object", name)
    with store.changed:
        pod = store.get("pods", key)
        check_precondition(pod, meta)
        spec = pod["spec"]
        if pod["metadata"].get("deletionTimestamp"):
            raise Refused(409, "Conflict", f"pod {name} is being deleted, cannot be assigned to a host", name)
        if spec.get("nodeName"):
            raise Refused(409, "Conflict", f'pod {name} is already assigned to node "{spec["nodeName"]}"', name)
        if spec.get("schedulingGates"):
            raise Refused(409, "Conflict", f"pod {name} has non-empty .spec.schedulingGates", name)
        spec["nodeName"] = document["target"]["name"]
        pod["metadata"]["annotations"] = (pod["metadata"].get("annotations") or {}) | (meta.get("annotations") or {})
        store.update("pods", key, pod)
    return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}


def evict_pod(store: Store, key: str, eviction: Object | None) -> Object:
    """POST of ``pods/NAME/eviction``: ends the pod, unless a disruption budget says no (429).

    Budgets are objects ``poddisruptionbudgets`` with ``spec.selector.matchLabels`` and ``status.disruptionsAllowed``. A
    pod with the grace period 0 is removed at once; of others, a test decides when.
    """
    document = eviction or {}
    name = key.rpartition("/")[2]
    if document.get("kind") != "Eviction" or (document.get("metadata") or {}).get("name") != name:
        raise Refused(400, "BadRequest", "name in URL does not match name in Eviction object", name)
    options = document.get("deleteOptions") or {}
    with store.changed:
        pod = store.get("pods", key)
        check_precondition(pod, options.get("preconditions", {}))
        for budget in store.list("poddisruptionbudgets")[0]:
            wanted = budget["spec"]["selector"]["matchLabels"].items()
            same = budget["metadata"]["namespace"] == pod["metadata"]["namespace"]
            if not same or wanted - pod["metadata"].get("labels", {}).items() or "deletionTimestamp" in pod["metadata"]:
                continue
            if budget["status"]["disruptionsAllowed"] <= 0:
                text = "Cannot evict pod as it would violate the pod's disruption budget."
                raise Refused(429, "TooManyRequests", text, name)
            budget["status"]["disruptionsAllowed"] -= 1
            store.update(
                "poddisruptionbudgets", f"{budget['metadata']['namespace']}/{budget['metadata']['name']}", budget
            )
        if pod["spec"].get("terminationGracePeriodSeconds") == 0:
            store.delete("pods", key)
        else:
            _end(store, "pods", key, options)
    return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}


def patch_node(store: Store, name: str, body: Object | None) -> Object:
    """A JSON merge patch of annotations, cordon and taints."""
    document = body or {}
    allowed = {"": {"metadata", "spec"}, "metadata": {"uid", "resourceVersion", "annotations"}}
    allowed["spec"] = {"unschedulable", "taints"}
    if any(set(document.get(part) or {} if part else document) - legal for part, legal in allowed.items()):
        raise Refused(403, "Forbidden", "nothing but annotations, cordon and taints was expected", name)
    with store.changed:
        old = store.get("nodes", name)
        check_precondition(old, document["metadata"])
        return store.update("nodes", name, merged(old, document))


def merged(old: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    base = dict(old) if isinstance(old, dict) else {}
    for name, value in change.items():
        if value is None:
            base.pop(name, None)
        else:
            base[name] = merged(base.get(name), value)
    return base


def check_pod(old: Object, new: Object) -> None:
    """Kubernetes' rules for gated pods: gates can only be removed, the node selector only extended until then."""
    gates = [{gate["name"] for gate in pod["spec"].get("schedulingGates") or ()} for pod in (old, new)]
    selectors = [pod["spec"].get("nodeSelector") or {} for pod in (old, new)]
    name = old["metadata"]["name"]
    if gates[1] - gates[0]:
        raise Refused(422, "Invalid", "spec.schedulingGates: only deletion is allowed", name)
    if selectors[0] != selectors[1] and (not gates[0] or selectors[0].items() - selectors[1].items()):
        raise Refused(422, "Invalid", "spec.nodeSelector: only additions are allowed, while there are gates", name)


def _end(store: Store, kind: str, key: str, options: Object) -> Object:
    """Mark an object as terminating; a test decides when it is removed."""
    with store.changed:
        item = store.get(kind, key)
        check_precondition(item, options.get("preconditions", {}))
        item["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:30Z")
        if options.get("propagationPolicy") == "Foreground":
            item["metadata"]["finalizers"] = ["foregroundDeletion"]
        return store.update(kind, key, item)

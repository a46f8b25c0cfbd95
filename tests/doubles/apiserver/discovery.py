"""What is served, as kubectl asks for it before its first request: of what installers and people read with it."""

from __future__ import annotations

from collections.abc import Sequence

from tests.doubles.apiserver.store import Object

_CORE = [("nodes", "Node", False), ("pods", "Pod", True), ("events", "Event", True)]
_RESOURCE = [("resourceslices", "ResourceSlice", False), ("resourceclaims", "ResourceClaim", True)]


def discovery(path: str, versions: Sequence[str]) -> Object | None:
    """The answer to a request for groups, versions or resources; None for other paths.

    Args:
        path: of the request.
        versions: of resource.k8s.io that are served, the preferred one first.
    """
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        served = [{"groupVersion": f"resource.k8s.io/{version}", "version": version} for version in versions]
        group = {"name": "resource.k8s.io", "versions": served, "preferredVersion": served[0]}
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
    if path == "/api/v1":
        return _resources("v1", _CORE)
    for version in versions:
        if path == f"/apis/resource.k8s.io/{version}":
            return _resources(path.removeprefix("/apis/"), _RESOURCE)
    return None


def _resources(group_version: str, kinds: Sequence[tuple[str, str, bool]]) -> Object:
    rows = [
        {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": namespaced, "verbs": ["get", "list"]}
        for plural, kind, namespaced in kinds
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": rows}

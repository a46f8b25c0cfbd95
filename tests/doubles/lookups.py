"""Objects for the chart's ``lookup``: an API server that lists what it is given, and says which kinds there are."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

Object = dict[str, Any]

# Kind, plural and whether it has namespaces, by group and version.
_KINDS = {
    "v1": (
        *(("Node", False), ("Namespace", False), ("Pod", True), ("Secret", True)),
        *(("ServiceAccount", True), ("ConfigMap", True), ("Service", True)),
    ),
    "apiextensions.k8s.io/v1": (("CustomResourceDefinition", False),),
    "apps/v1": (("DaemonSet", True), ("Deployment", True)),
    "batch/v1": (("Job", True),),
    "policy/v1": (("PodDisruptionBudget", True),),
    "rbac.authorization.k8s.io/v1": (
        *(("ClusterRole", False), ("ClusterRoleBinding", False), ("Role", True), ("RoleBinding", True)),
    ),
    "admissionregistration.k8s.io/v1": (
        *(("ValidatingAdmissionPolicy", False), ("ValidatingAdmissionPolicyBinding", False)),
    ),
}
_OF_DRA = (("ResourceClaim", True), ("DeviceClass", False))


@contextmanager
def lookups(
    objects: Sequence[Object], directory: Path, *, version: str = "v1.37.1", claims: str = "v1"
) -> Iterator[Path]:
    """A kubeconfig for a server with these objects.

    Args:
        objects: each with ``apiVersion`` and ``kind``.
        directory: where to write the kubeconfig.
        version: of Kubernetes.
        claims: the version of resource.k8s.io that is served.
    """
    kinds = {**_KINDS, f"resource.k8s.io/{claims}": _OF_DRA}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 # the base class's name
            """Log nothing."""

        def do_GET(self) -> None:
            status, document = _answer(urlsplit(self.path).path, kinds, objects, version)
            payload = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    path = directory / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
        "users": [{"name": "test", "user": {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.write_text(yaml.safe_dump(content))
    try:
        yield path
    finally:
        server.shutdown()
        server.server_close()


def _answer(
    path: str, kinds: dict[str, tuple[tuple[str, bool], ...]], objects: Sequence[Object], version: str
) -> tuple[int, Object]:
    if path == "/version":
        return 200, {"major": "1", "minor": version.split(".")[1], "gitVersion": version}
    if path == "/api":
        return 200, {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        served = [{"groupVersion": name, "version": name.rpartition("/")[2]} for name in kinds if "/" in name]
        groups = [
            {"name": item["groupVersion"].partition("/")[0], "versions": [item], "preferredVersion": item}
            for item in served
        ]
        return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    for group, members in kinds.items():
        root = f"/{'apis' if '/' in group else 'api'}/{group}"
        if path == root:
            listed = [
                {"name": _plural(kind), "singularName": "", "kind": kind, "namespaced": namespaced, "verbs": ["get"]}
                for kind, namespaced in members
            ]
            return 200, {"kind": "APIResourceList", "groupVersion": group, "resources": listed}
        for kind, _ in members:
            if (found := _found(path.removeprefix(f"{root}/"), kind, group, objects)) is not None:
                return found
    return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


def _found(rest: str, kind: str, group: str, objects: Sequence[Object]) -> tuple[int, Object] | None:
    """What is at a path below a group: a list, an object, or None."""
    steps = rest.split("/")
    space = steps[1] if steps[0] == "namespaces" and len(steps) > 2 else ""
    plural, *name = steps[2:] if space else steps
    if plural != _plural(kind) or len(name) > 1:
        return None
    items = [item for item in objects if (item["kind"], item["apiVersion"]) == (kind, group)]
    if space:
        items = [item for item in items if item["metadata"]["namespace"] == space]
    if not name:
        return 200, {"kind": f"{kind}List", "apiVersion": group, "metadata": {}, "items": items}
    named = [item for item in items if item["metadata"]["name"] == name[0]]
    return (200, named[0]) if named else None


def _plural(kind: str) -> str:
    return {"DeviceClass": "deviceclasses", "ValidatingAdmissionPolicy": "validatingadmissionpolicies"}.get(
        kind, f"{kind.lower()}s"
    )

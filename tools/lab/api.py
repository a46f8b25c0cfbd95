"""The few requests that the lab itself sends to the API server."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path

from lab.layout import API_ADDRESS, API_PORT

_TIMEOUT_SECONDS = 5.0


class Api:
    """A client with the administrator's certificate; every method opens a connection of its own."""

    def __init__(self, pki: Path) -> None:
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(str(pki / "admin.crt"), str(pki / "admin.key"))

    def ready(self) -> bool:
        """Return whether the API server reports that it is ready."""
        return self._request("GET", "/readyz")[0] == http.client.OK

    def ready_nodes(self) -> dict[str, bool]:
        """Return every node's name and whether it is Ready; empty if the API server does not respond."""
        status, body = self._request("GET", "/api/v1/nodes")
        if status != http.client.OK:
            return {}
        return {item["metadata"]["name"]: _is_ready(item) for item in json.loads(body)["items"]}

    def has_default_service_account(self) -> bool:
        """Return whether pods can be created in the default namespace."""
        return self._request("GET", "/api/v1/namespaces/default/serviceaccounts/default")[0] == http.client.OK

    def label_node(self, name: str, labels: Mapping[str, str]) -> bool:
        """Set labels of a node; return whether the API server accepted them."""
        body = json.dumps({"metadata": {"labels": dict(labels)}})
        return self._request("PATCH", f"/api/v1/nodes/{name}", body)[0] == http.client.OK

    def _request(self, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(API_ADDRESS, API_PORT, context=self._context, timeout=_TIMEOUT_SECONDS)
        try:
            headers = {"Accept": "application/json", "Content-Type": "application/merge-patch+json"}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()


def _is_ready(node: Mapping[str, Mapping[str, list[dict[str, str]]]]) -> bool:
    conditions = node["status"].get("conditions", [])
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)

"""The API server and kubectl of the cluster under test, and waiting for what it does."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml
from lab.cluster import ClusterAccess
from lab.errors import LabError

from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.errors import ApiError
from tests.cluster.lib.deadline import Deadline

Object = dict[str, Any]
T = TypeVar("T")

_GROUPS = {
    "coordination.k8s.io/v1": ("leases",),
    "apps/v1": ("daemonsets", "deployments", "replicasets", "statefulsets"),
    "resource.k8s.io/v1": ("resourceclaims", "resourceclaimtemplates", "resourceslices", "deviceclasses"),
    "rbac.authorization.k8s.io/v1": ("clusterroles", "clusterrolebindings"),
    "admissionregistration.k8s.io/v1": ("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
}
_PREFIX = {resource: f"/apis/{group}" for group, resources in _GROUPS.items() for resource in resources}


class ExternalCluster:
    """A cluster that is not of the lab: the one of ``$KUBECONFIG``."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._kubeconfig

    def kubectl_command(self, *arguments: str) -> list[str]:
        """The command line of kubectl for this cluster."""
        return ["kubectl", f"--kubeconfig={self._kubeconfig}", *arguments]

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; LabError when it fails and ``check`` is set."""
        command = self.kubectl_command(*arguments)
        done = subprocess.run(command, check=False, input=stdin or "", capture_output=True, text=True, timeout=timeout)
        if check and done.returncode != 0:
            raise LabError(f"kubectl {' '.join(arguments)} failed: {done.stderr.strip()}")
        return done


class Kube:
    """What tests ask of the cluster; what they ask often goes over one kept connection."""

    def __init__(self, access: ClusterAccess) -> None:
        self.access = access
        self._transport = Transport.from_kubeconfig(os.fspath(access.kubeconfig), user_agent="cluster-tests")

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 60.0) -> str:
        """Run kubectl and return its standard output; LabError when it fails and ``check`` is set."""
        return self.access.kubectl(*arguments, stdin=stdin, check=check, timeout=timeout).stdout

    def raw(self, path: str, *, query: Sequence[tuple[str, str]] = ()) -> bytes:
        """GET any path of the API server."""
        return bytes(self._transport.request("GET", path, query=query).body)

    def get(self, resource: str, name: str, namespace: str = "") -> Object | None:
        """One object by the plural name of its resource, such as ``pods``; None when there is none."""
        try:
            found: Object = json.loads(self.raw(f"{_collection(resource, namespace)}/{name}"))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    def find(self, resource: str, namespace: str = "", *, labels: str = "", fields: str = "") -> list[Object]:
        """Objects by label and field selector; in all namespaces when none is given."""
        query = [pair for pair in (("labelSelector", labels), ("fieldSelector", fields)) if pair[1]]
        items: list[Object] = json.loads(self.raw(_collection(resource, namespace), query=query))["items"]
        return items

    def create(self, resource: str, created: Object, namespace: str = "") -> None:
        """Create an object by the plural name of its resource."""
        self._transport.request("POST", _collection(resource, namespace), body=created)

    def bind(self, pod: str, namespace: str, node: str) -> None:
        """Bind a pod that no scheduler looks after, as a scheduler does."""
        self._transport.request(
            "POST",
            f"{_collection('pods', namespace)}/{pod}/binding",
            body={"metadata": {"name": pod}, "target": {"kind": "Node", "name": node}},
        )

    def delete(self, resource: str, name: str, namespace: str = "", *, grace: int | None = None) -> None:
        """Delete an object, with a pod's seconds to end, and do not wait; one that is gone already is fine."""
        try:
            self._delete(f"{_collection(resource, namespace)}/{name}", grace)
        except ApiError as error:
            if error.status != 404:
                raise

    def delete_all(self, resource: str, namespace: str, *, grace: int | None = None) -> None:
        """Delete all objects of a namespace, with the pods' seconds to end, and do not wait."""
        self._delete(_collection(resource, namespace), grace)

    def _delete(self, path: str, grace: int | None) -> None:
        seconds = [] if grace is None else [("gracePeriodSeconds", str(grace))]
        self._transport.request("DELETE", path, query=[("propagationPolicy", "Background"), *seconds])

    def apply(self, *objects: Object | str, namespace: str = "") -> list[str]:
        """Apply objects or YAML texts; return them as ``kind.group/name``."""
        text = "\n---\n".join(item if isinstance(item, str) else yaml.safe_dump(item) for item in objects)
        where = (f"--namespace={namespace}",) if namespace else ()
        return self.kubectl("apply", "-o", "name", *where, "-f", "-", stdin=text).split()

    def slices(self, node: str = "") -> list[Object]:
        """The driver's slices, of one node or of all, by name."""
        fields = "spec.driver=neuron.aws.com" + (f",spec.nodeName={node}" if node else "")
        return sorted(self.find("resourceslices", fields=fields), key=lambda item: str(item["metadata"]["name"]))

    def wait_established(self, *definitions: str) -> None:
        """Wait until CustomResourceDefinitions are served.

        ``kubectl wait`` ends with an error where it comes before the first condition (``conditions: null``).
        """
        for name in definitions:
            eventually(f"{name} to be established", partial(self._established, name))

    def _established(self, definition: str) -> bool:
        found = json.loads(self.raw(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition}"))
        conditions = found.get("status", {}).get("conditions") or ()
        return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)

    def nodes(self) -> list[str]:
        """Names of all nodes."""
        return sorted(str(node["metadata"]["name"]) for node in self.find("nodes"))


def eventually(what: str, probe: Callable[[], T | None], within: float = 30.0, every: float | None = None) -> T:
    """What ``probe`` returns as soon as it is true; a failure of the API server counts as "not yet".

    It is asked ``every`` so many seconds; else ever less often, after a tenth of the time that has passed, since what
    is waited for shares the processors with who waits.

    Raises:
        AssertionError: it has not become true after ``within`` seconds (``Deadline``); with the last value or error.
    """
    begin, deadline = time.monotonic(), Deadline(within)
    while True:
        last: object
        try:
            last = value = probe()
        except ApiError as error:
            last, value = error, None
        if value:
            return value
        assert deadline.left() > 0, f"{what}: not so within {deadline}; last seen: {str(last)[:2000]}"
        time.sleep(min(max((time.monotonic() - begin) / 10, 0.1), 0.5) if every is None else every)


def steadily(what: str, probe: Callable[[], object], during: float, every: float = 0.2) -> None:
    """Check that ``probe`` stays true for ``during`` seconds.

    Raises:
        AssertionError: it became false.
    """
    end = time.monotonic() + during
    while time.monotonic() < end:
        assert probe(), f"{what}: no longer so"
        time.sleep(every)


def _collection(resource: str, namespace: str) -> str:
    prefix = _PREFIX.get(resource, "/api/v1")
    return f"{prefix}/namespaces/{namespace}/{resource}" if namespace else f"{prefix}/{resource}"

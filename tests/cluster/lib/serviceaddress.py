"""What kube-proxy does, for one Service of a cluster of the lab, which has none."""

from __future__ import annotations

import json
import subprocess

from dra_driver.kube.api.client import Transport
from tests.cluster.lib.forwarding import Endpoint, Forwarder
from tests.cluster.lib.kube import Kube

_LIFETIME = "3600"
"""Seconds after which the machine itself forgets the address, should nobody take it away."""


class ServiceAddress:
    """Passes TCP connections to the Service's address, and to its node port on 127.0.0.1, on to its ready endpoints.

    As with kube-proxy the endpoint is chosen for each connection, among those that the EndpointSlices call ready then.
    """

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        service = kube.get("services", name, namespace)
        assert service is not None, f"there is no Service {namespace}/{name}"
        (self._port,) = service["spec"]["ports"]
        self.address = str(service["spec"]["clusterIP"])
        self.names = (f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local")
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._selector = f"kubernetes.io/service-name={name}"
        self._transport = Transport.from_kubeconfig(str(kube.access.kubeconfig), user_agent="cluster-tests")
        self._forwarder = Forwarder(self.endpoints)

    def open(self) -> None:
        """Take the address and serve it."""
        self._forwarder.start()
        try:
            lifetime = ("valid_lft", _LIFETIME, "preferred_lft", _LIFETIME)
            subprocess.run(["ip", "address", "replace", f"{self.address}/32", "dev", "lo", *lifetime], check=True)
            self._forwarder.listen(self.address, self._port["port"])
            if "nodePort" in self._port:
                self._forwarder.listen("127.0.0.1", self._port["nodePort"])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all connections and give the address back."""
        self._forwarder.stop()
        self._transport.close()
        # Not checked: it may have been forgotten by now.
        subprocess.run(["ip", "address", "delete", f"{self.address}/32", "dev", "lo"], check=False, capture_output=True)

    def endpoints(self) -> list[Endpoint]:
        """Address and port of each ready endpoint."""
        found = self._transport.request("GET", self._path, query=[("labelSelector", self._selector)])
        return [
            (address, port["port"])
            for item in json.loads(found.body)["items"]
            for port in item.get("ports") or ()
            for endpoint in item.get("endpoints") or ()
            if endpoint["conditions"].get("ready")
            for address in endpoint["addresses"]
        ]

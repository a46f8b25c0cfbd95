"""Stands in for a driver that cannot be had here: lets pods with its devices start, and does nothing.

Started on a node with a kubeconfig and the driver's name, by tests on clusters that publish its slices themselves.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dra_driver.cli.daemon import Stop, run_until, stopped_by_signals
from dra_driver.kube.api.client import Transport
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.kubelet.dra import ClaimRef, PreparedDevice
from dra_driver.kube.kubelet.server import KubeletPlugin
from dra_driver.util.logs import configure


class IdleDriver:
    """Prepares whatever a claim has of the driver."""

    def __init__(self, api: ResourceApi, name: str) -> None:
        self._api = api
        self._name = name

    def prepare(self, claim: ClaimRef, deadline: float) -> list[PreparedDevice]:
        timeout = max(deadline - time.monotonic(), 0.1)
        allocation = self._api.get_claim(claim.namespace, claim.name, timeout=timeout).status.allocation
        results = allocation.devices.results if allocation else ()
        return [
            PreparedDevice((item.request,), item.pool, item.device, ()) for item in results if item.driver == self._name
        ]

    def unprepare(self, claim: ClaimRef, deadline: float) -> None:
        """There is nothing to undo."""


class Service:
    """The driver from start to stop."""

    def __init__(self, kubeconfig: str, name: str, stop: Stop) -> None:
        directory = Path("/var/lib/kubelet")
        self._plugin = KubeletPlugin(
            IdleDriver(ResourceApi(Transport.from_kubeconfig(kubeconfig, user_agent="idle-driver")), name),
            name,
            plugin_dir=directory / "plugins" / name,
            registrar_dir=directory / "plugins_registry",
            on_error=lambda error: stop.set(),
        )

    def start(self) -> None:
        self._plugin.start()

    def stop(self) -> None:
        self._plugin.stop(5)


if __name__ == "__main__":
    configure("text", 2)
    with stopped_by_signals() as stopped:
        run_until(stopped, Service(sys.argv[1], sys.argv[2], stopped))

"""How kubelet follows the health of drivers' devices: one stream to each registered instance, dialled again and again.

After pkg/kubelet/cm/dra/healthinfo.go and plugin/dra_plugin_manager.go of 1.36.3 and 1.37.1.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import grpc

from dra_driver.kube.kubelet.api import dra_health_v1_pb2, dra_health_v1alpha1_pb2
from tests.doubles.kubelet_connection import Instance

MESSAGES: dict[str, ModuleType] = {
    "v1.DRAResourceHealth": dra_health_v1_pb2,
    "v1alpha1.DRAResourceHealth": dra_health_v1alpha1_pb2,
}
KNOWN = {"1.37": ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"), "1.36": ("v1alpha1.DRAResourceHealth",)}
DEFAULT_TIMEOUT = 30.0
REDIAL_SECONDS = 5.0


def service(release: str, offered: Sequence[str]) -> str | None:
    """The service that a kubelet dials: 1.36 dials without a look at what is offered."""
    known = KNOWN.get(release, ())
    return next((name for name in known if name in offered or release == "1.36"), None)


def watch(channel: grpc.Channel, version: str, seconds: float | None = None) -> Any:
    """Open a stream: an iterator of messages, with ``cancel()``."""
    messages: Any = MESSAGES[version]
    path = f"/{messages.DESCRIPTOR.services_by_name['DRAResourceHealth'].full_name}/NodeWatchResources"
    open_stream: Any = channel.unary_stream(
        path, lambda m: m.SerializeToString(), messages.NodeWatchResourcesResponse.FromString
    )
    return open_stream(messages.NodeWatchResourcesRequest(), timeout=seconds)


@dataclass(frozen=True)
class Known:
    health: str
    message: str
    received: float
    timeout: float


class HealthInfo:
    """kubelet's cache of device health; ``release`` None: the gate ResourceHealthStatus is off."""

    def __init__(self, release: str | None, redial_seconds: float) -> None:
        self._release, self._redial_seconds = release, redial_seconds
        self._lock = threading.Lock()
        self._drivers: dict[str, dict[tuple[str, str], Known]] = {}
        self.reports: list[tuple[float, str, int]] = []
        """Arrival, driver and number of devices of each message."""
        self.dialled: list[tuple[float, str]] = []
        """Time and service of each attempt."""

    def follow(self, instance: Instance, offered: Sequence[str]) -> None:
        """Follow an instance until its connection is closed."""
        version = service(self._release, offered) if self._release else None
        if version:
            threading.Thread(target=self._follow, args=(instance, version), name="health", daemon=True).start()

    def of(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """(Healthy, Unhealthy or Unknown; message), as the pod's status has them."""
        with self._lock:
            known = self._drivers.get(driver, {}).get((pool, device))
        if known is None or time.monotonic() - known.received > known.timeout:
            return "Unknown", ""
        return known.health, known.message

    def _follow(self, instance: Instance, version: str) -> None:
        while not instance.closed.is_set():
            self.dialled.append((time.monotonic(), version))
            try:
                for reply in watch(instance.channel, version):
                    self._keep(instance.driver, reply)
            except (grpc.RpcError, ValueError) as error:  # ValueError: the channel is closed
                code = cast("grpc.Call", error).code() if isinstance(error, grpc.RpcError) else None
                if code is grpc.StatusCode.UNIMPLEMENTED and self._release == "1.37":
                    return
            finally:
                with self._lock:
                    self._drivers.pop(instance.driver, None)
            instance.closed.wait(self._redial_seconds)

    def _keep(self, driver: str, reply: Any) -> None:
        now = time.monotonic()
        self.reports.append((now, driver, len(reply.devices)))
        names = ("Unknown", "Healthy", "Unhealthy")
        with self._lock:
            known = self._drivers.setdefault(driver, {})
            for device in reply.devices:
                key = (device.device.pool_name, device.device.device_name)
                timeout = device.health_check_timeout_seconds or DEFAULT_TIMEOUT
                known[key] = Known(names[device.health], device.message, now, timeout)

"""A device plugin for one resource: its socket in kubelet's directory, and its registration, as often as needed.

kubelet removes all sockets of the directory when it starts, makes its own anew, and knows no plugin from before. It
says nothing when it drops one: the stream of ListAndWatch just ends (kubelet before 1.37 also ends a newer stream when
an older one of the same resource ends). So there is one rule: while kubelet's socket is there and no stream is open,
register; never register while one is open. Each socket has a name of its own, since kubelet 1.37 refuses a second
registration of a socket that it believes to be connected.

Source: kubernetes/kubernetes, pkg/kubelet/cm/devicemanager, 1.33 to 1.37.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dra_driver.kubeletplugin.api import deviceplugin_v1beta1_pb2 as api
from dra_driver.kubeletplugin.calls import CallError, call
from dra_driver.kubeletplugin.deviceservice import DeviceService, PluginDevice, ResourcePlugin, options
from dra_driver.kubeletplugin.rpc import Activity
from dra_driver.kubeletplugin.sockets import Presence, SocketServer, fitting, hidden_pattern, remove_stale
from dra_driver.util.backoff import Backoff
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import Worker

DIRECTORY: Final = "device-plugins"
"""Below kubelet's directory."""
KUBELET_SOCKET: Final = "kubelet.sock"
VERSION: Final = "v1beta1"

REGISTER_SECONDS: Final = 15.0
"""kubelet calls the plugin back before it answers, and gives that 10 s."""
STREAM_SECONDS: Final = 5.0
"""After a registration kubelet opens the stream at once; after this time something is wrong."""
RETRY_MOST_SECONDS: Final = 30.0
WORKERS: Final = 8
"""A stream takes one; a stream that has not noticed its end yet another."""

_REGISTER: Final = f"/{api.DESCRIPTOR.services_by_name['Registration'].full_name}/Register"

log = logging.getLogger(__name__)


class DevicePlugin:
    """Serves one resource to kubelet as soon as there are devices, until ``stop``.

    Args:
        resource: name of the extended resource, such as ``example.com/gpu``.
        plugin: decides what containers get.
        kubelet_directory: ``/var/lib/kubelet``; the path may differ from kubelet's own, the directory must not.
        name: beginning of the socket's file name; of no other plugin.
        interval: seconds between looks at the sockets.
    """

    def __init__(
        self, resource: str, plugin: ResourcePlugin, *, kubelet_directory: Path, name: str, interval: float = 1.0
    ) -> None:
        self.resource = resource
        self._directory = kubelet_directory.absolute() / DIRECTORY
        self._name = name
        self._interval = interval
        self._service = DeviceService(resource, plugin)
        self._plugin = plugin
        self._lock = threading.Lock()  # of the server: look and stop
        self._server: SocketServer | None = None
        self.worker = Worker(f"looking after the socket of {resource}", self._round)
        self._kubelet: tuple[int, int] | None = None
        self._streams = 0
        self._next_try = 0.0
        self._backoff = Backoff(first=interval, cap=RETRY_MOST_SECONDS)
        self.registrations = 0
        """How often kubelet has accepted the plugin."""
        self.trouble = ""
        """Why kubelet does not use it, or ""."""
        fitting(self._directory, [self._new_name()])

    @property
    def devices(self) -> tuple[PluginDevice, ...]:
        """What kubelet is told."""
        return self._service.devices

    @property
    def in_use(self) -> bool:
        """Whether kubelet follows the devices now."""
        return self._service.listening

    def problem(self) -> str:
        """Why the resource cannot be used although there are devices, for a health report; or ""."""
        if self.in_use or not self.devices:
            return ""
        return f"kubelet does not follow the devices of {self.resource}: {self.trouble or 'not registered yet'}"

    def start(self) -> None:
        """Begin to look after the sockets. Does not block."""
        self.worker.start()

    def stop(self, grace: float = 5.0) -> None:
        """Refuse new calls, let running ones end within ``grace`` seconds, and remove the socket.

        Blocks up to ``grace`` and one second. May be called again, and before start().
        """
        deadline = time.monotonic() + grace
        self.worker.stop(0)
        self._service.close()
        with self._lock:
            if self._server is not None:
                self._server.close(grace)
                self._server = None
        self.worker.stop(max(0.0, deadline - time.monotonic()))

    def update(self, devices: Sequence[PluginDevice]) -> bool:
        """Offer these devices from now on; False when nothing changed. The resource appears with the first ones."""
        changed = self._service.update(devices)
        if changed:
            self.worker.wake()
        return changed

    def _round(self) -> float:
        self._look()
        return self._interval

    def _look(self) -> None:
        if not self.devices:
            return
        with self._lock:
            if self.worker.stopping:
                return
            try:
                self._ensure_socket()
            except (DriverError, OSError) as error:
                self._failed(str(error))
                return
            socket = self._server.path.name if self._server is not None else ""
        if self._service.listening:
            self.trouble = ""
            self._backoff.reset()
            return
        kubelet = _identity(self._directory / KUBELET_SOCKET)
        if self._service.streams != self._streams:  # it listened since the last try
            self._streams, self._next_try = self._service.streams, 0.0
        if kubelet != self._kubelet:
            self._kubelet, self._next_try = kubelet, 0.0
            self._backoff.reset()
        if kubelet is None:
            self._tell(
                f"{self._directory / KUBELET_SOCKET} does not exist; is kubelet running, and its directory mounted?"
            )
        elif time.monotonic() >= self._next_try:
            self._register(socket)

    def _ensure_socket(self) -> None:
        if self._server is not None:
            if self._server.presence() is Presence.OURS:
                return
            log.info("the socket of %s is gone, as after a restart of kubelet; it is made anew", self.resource)
            self._server.stop(0)
            self._server = None
        own = re.compile(rf"{re.escape(self._name)}-[0-9a-f]{{6}}\.sock")
        for path in remove_stale(self._directory, [own, hidden_pattern(self._name)]):
            log.info("removed the socket %s of an instance that is gone", path)
        path = fitting(self._directory, [self._new_name()])
        server = SocketServer(path, self._service.methods(), WORKERS, Activity(), self._name)
        try:
            server.start()
            server.publish()
        except DriverError:
            server.stop(0)
            raise
        self._server = server

    def _new_name(self) -> str:
        return f"{self._name}-{secrets.token_hex(3)}.sock"

    def _register(self, socket: str) -> None:
        request = api.RegisterRequest(version=VERSION, endpoint=socket, resource_name=self.resource, options=options())
        try:
            call(self._directory / KUBELET_SOCKET, _REGISTER, request, api.Empty, REGISTER_SECONDS)
        except CallError as error:
            self._failed(f"registration failed: {error.details or error}")
            return
        self.registrations += 1
        self._next_try = time.monotonic() + STREAM_SECONDS
        log.info("registered %s with kubelet (%d devices)", self.resource, len(self.devices))

    def _failed(self, text: str) -> None:
        self._next_try = time.monotonic() + self._backoff.next()
        self._tell(text)

    def _tell(self, text: str) -> None:
        """Log once for as long as it stays the same."""
        if text != self.trouble:
            log.warning("kubelet does not know %s: %s; tried again", self.resource, text)
        self.trouble = text


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells one socket from the next of the same name (inode numbers alone are used again)."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns

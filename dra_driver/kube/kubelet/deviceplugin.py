"""A device plugin (v1beta1) for one resource: its service, its socket, and its registration as often as needed.

kubelet removes all sockets of the directory when it starts, creates its own anew, and knows no plugin from before. It
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import grpc

from dra_driver.kube.kubelet.api import deviceplugin_v1beta1_pb2 as api
from dra_driver.kube.kubelet.client import CallError, call
from dra_driver.kube.kubelet.grpcserver import (
    Activity,
    Method,
    Presence,
    SocketServer,
    fitting,
    hidden_pattern,
    remove_stale,
    serving,
)
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.text import quoted_ascii
from dra_driver.util.worker import Backoff, Worker

SERVICE: Final = api.DESCRIPTOR.services_by_name["DevicePlugin"].full_name
MAX_CONTAINERS: Final = 64
"""Containers of one request; kubelet sends one."""
_MAX_SHOWN: Final = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PluginDevice:
    """One device as kubelet counts it: id, whether it can be given, and the NUMA nodes it is near to."""

    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PluginDeviceNode:
    """A device node for a container."""

    container_path: str
    host_path: str


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """What a container gets: variables, device nodes (to read and write) and qualified CDI names."""

    env: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[PluginDeviceNode, ...] = ()
    cdi_names: tuple[str, ...] = ()


class ResourcePlugin(Protocol):
    """What a plugin decides. Called from several threads at once, with known ids only."""

    def prefer(self, available: frozenset[str], must_include: frozenset[str], size: int) -> Sequence[str]:
        """Ids to take for a container; [] for no preference. A hint: kubelet may give others."""
        ...

    def allocate(self, ids: frozenset[str]) -> ContainerDevices:
        """What the next container gets, for which kubelet counts these ids. DriverError refuses, and fails the pod."""
        ...


class DeviceService:
    """Serves one resource. ``update`` may be called from any thread.

    Args:
        resource: name of the resource, for texts.
        plugin: decides.
    """

    def __init__(self, resource: str, plugin: ResourcePlugin) -> None:
        self._resource = resource
        self._plugin = plugin
        self._changed = runtime.condition()
        self._devices: tuple[PluginDevice, ...] = ()
        self._stream = 0
        """Number of the newest stream; kubelet listens to one, older ones end."""
        self._open = False
        self._closed = False

    @property
    def devices(self) -> tuple[PluginDevice, ...]:
        """What kubelet is sent."""
        return self._devices

    @property
    def listening(self) -> bool:
        """Whether kubelet has a stream open: only then the resource can be used."""
        return self._open

    @property
    def streams(self) -> int:
        """How many streams were opened so far."""
        return self._stream

    def update(self, devices: Sequence[PluginDevice]) -> bool:
        """Tell these devices from now on; False when they are the same as before."""
        with self._changed:
            if tuple(devices) == self._devices:
                return False
            self._devices = tuple(devices)
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """End all streams, and begin no other."""
        with self._changed:
            self._closed = True
            self._open = False
            self._changed.notify_all()

    def methods(self) -> list[Method]:
        """The methods of the service."""
        return [
            Method(f"/{SERVICE}/GetDevicePluginOptions", api.Empty, _options),
            Method(f"/{SERVICE}/ListAndWatch", api.Empty, self._watch, streaming=True),
            Method(f"/{SERVICE}/GetPreferredAllocation", api.PreferredAllocationRequest, self._prefer),
            Method(f"/{SERVICE}/Allocate", api.AllocateRequest, self._allocate),
            Method(f"/{SERVICE}/PreStartContainer", api.PreStartContainerRequest, _nothing_to_do),
        ]

    # ListAndWatch

    def _watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        del request
        gone = runtime.event()

        with self._changed:
            self._open = True  # first, for who reads `streams` and then `listening`
            self._stream += 1
            mine = self._stream
            self._changed.notify_all()

        def on_end() -> None:
            with self._changed:
                gone.set()
                self._open = self._open and self._stream != mine
                self._changed.notify_all()
            log.info("kubelet no longer follows the devices of %s on stream %d", self._resource, mine)

        log.info("kubelet follows the devices of %s on stream %d", self._resource, mine)
        if not context.add_callback(on_end):
            on_end()
        return self._lists(mine, gone)

    def _lists(self, mine: int, gone: runtime.Event) -> Iterator[Any]:
        sent: tuple[PluginDevice, ...] | None = None
        while True:
            with self._changed:
                while self._devices == sent and not self._over(mine, gone):
                    self._changed.wait()
                if self._over(mine, gone):
                    return
                sent = self._devices
            yield api.ListAndWatchResponse(devices=map(_device_message, sent))

    def _over(self, mine: int, gone: runtime.Event) -> bool:
        return self._closed or gone.is_set() or self._stream != mine

    # Allocation

    def _prefer(self, request: Any, context: grpc.ServicerContext) -> Any:
        del context
        answer = api.PreferredAllocationResponse()
        for container in request.container_requests[:MAX_CONTAINERS]:
            answer.container_responses.add(deviceIDs=self._preferred(container))
        return answer

    def _preferred(self, container: Any) -> Sequence[str]:
        """Never an exception: it would fail the pod, although kubelet can do without a preference."""
        own_ids = {device.id for device in self._devices}
        available = frozenset(container.available_deviceIDs) & own_ids
        must_include = frozenset(container.must_include_deviceIDs)
        size = int(container.allocation_size)
        if not (must_include <= available and max(len(must_include), 1) <= size <= len(available)):
            return ()
        try:
            return tuple(self._plugin.prefer(available, must_include, size))
        except DriverError as error:
            log.info("no preference for %d of %s: %s", size, self._resource, error)
        except Exception:
            log.exception("the preference for %s failed; kubelet chooses on its own", self._resource)
        return ()

    def _allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        del context
        if len(request.container_requests) > MAX_CONTAINERS:
            raise DriverError(f"one request for {len(request.container_requests)} containers is refused")
        wanted = [self._checked(container.devices_ids) for container in request.container_requests]
        answer = api.AllocateResponse()
        for ids in wanted:
            answer.container_responses.append(_answer_message(self._plugin.allocate(ids)))
        return answer

    def _checked(self, ids: Sequence[str]) -> frozenset[str]:
        own_ids = {device.id for device in self._devices}
        unknown = [text for text in ids if text not in own_ids]
        if unknown:
            some = ", ".join(map(quoted_ascii, unknown[:_MAX_SHOWN]))
            raise DriverError(f"there is no {self._resource} {some}", consequence="nothing is allocated")
        if not ids or len(set(ids)) != len(ids):
            raise DriverError(
                f"a request names {'no' if not ids else 'the same'} {self._resource}" + (" twice" if ids else ""),
                consequence="nothing is allocated",
            )
        return frozenset(ids)


def _options(request: Any, context: grpc.ServicerContext) -> Any:
    del request, context
    return options()


def options() -> api.DevicePluginOptions:
    """What kubelet may call of the optional methods."""
    return api.DevicePluginOptions(get_preferred_allocation_available=True)


def _nothing_to_do(request: Any, context: grpc.ServicerContext) -> Any:
    del request, context
    return api.PreStartContainerResponse()


def _device_message(device: PluginDevice) -> api.Device:
    message = api.Device(ID=device.id, health="Healthy" if device.healthy else "Unhealthy")
    for node in device.numa_nodes:
        message.topology.nodes.add(ID=node)
    return message


def _answer_message(devices: ContainerDevices) -> api.ContainerAllocateResponse:
    message = api.ContainerAllocateResponse(envs=devices.env)
    for node in devices.nodes:
        message.devices.add(container_path=node.container_path, host_path=node.host_path, permissions="rw")
    for name in devices.cdi_names:
        message.cdi_devices.add(name=name)
    return message


DIRECTORY: Final = "device-plugins"
"""Below kubelet's directory."""
KUBELET_SOCKET: Final = "kubelet.sock"
VERSION: Final = "v1beta1"

REGISTER_SECONDS: Final = 15.0
"""kubelet calls the plugin back before it answers, and gives that 10 s."""
STREAM_SECONDS: Final = 5.0
"""After a registration kubelet opens the stream at once; after this time something is wrong."""
MAX_RETRY_SECONDS: Final = 30.0
WORKERS: Final = 8
"""A stream takes one; a stream that has not noticed its end yet another."""

_REGISTER: Final = f"/{api.DESCRIPTOR.services_by_name['Registration'].full_name}/Register"


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
        self._lock = runtime.lock()  # of the server: look and stop
        self._server: SocketServer | None = None
        self.worker = Worker(f"checking the socket of {resource}", self._round)
        self._kubelet: tuple[int, int] | None = None
        self._streams = 0
        self._next_try = 0.0
        self._backoff = Backoff(first=interval, cap=MAX_RETRY_SECONDS)
        self.registrations = 0
        """Times that kubelet has accepted the plugin."""
        self.trouble = ""
        """Why kubelet does not use it, or ""."""
        fitting(self._directory, [self._new_name()])

    @property
    def devices(self) -> tuple[PluginDevice, ...]:
        """What kubelet is sent."""
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
        deadline = runtime.monotonic() + grace
        self.worker.stop(0)
        self._service.close()
        with self._lock:
            if self._server is not None:
                self._server.close(grace)
                self._server = None
        self.worker.stop(max(0.0, deadline - runtime.monotonic()))

    def succeeded(self) -> bool:
        """Whether, after ``stop``, another instance of the plugin serves the resource."""
        return serving(self._directory, [self._sockets()])

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
        streams = self._service.streams  # before the next line: a stream that begins in between has not ended
        if self._service.listening:
            self.trouble = ""
            self._backoff.reset()
            return
        self._seek_kubelet(socket, streams)

    def _seek_kubelet(self, socket: str, streams: int) -> None:
        """Register once it is time, as kubelet does not listen; not after ``stop``: that would push a successor out."""
        if self.worker.stopping:
            return
        kubelet = _identity(self._directory / KUBELET_SOCKET)
        if streams != self._streams:  # it listened since the last try
            self._streams, self._next_try = streams, 0.0
        if kubelet != self._kubelet:
            self._kubelet, self._next_try = kubelet, 0.0
            self._backoff.reset()
        if kubelet is None:
            self._tell(
                f"{self._directory / KUBELET_SOCKET} does not exist; is kubelet running, and its directory mounted?"
            )
        elif runtime.monotonic() >= self._next_try:
            self._register(socket)

    def _ensure_socket(self) -> None:
        if self._server is not None:
            if self._server.presence() is Presence.OURS:
                return
            log.info("the socket of %s is gone, as after a restart of kubelet; it is created again", self.resource)
            self._server.stop(0)
            self._server = None
        for path in remove_stale(self._directory, [self._sockets(), hidden_pattern(self._name)]):
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

    def _sockets(self) -> re.Pattern[str]:
        return re.compile(rf"{re.escape(self._name)}-[0-9a-f]{{6}}\.sock")

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
        self._next_try = runtime.monotonic() + STREAM_SECONDS
        log.info("registered %s with kubelet (%d devices)", self.resource, len(self.devices))

    def _failed(self, text: str) -> None:
        self._next_try = runtime.monotonic() + self._backoff.next()
        self._tell(text)

    def _tell(self, text: str) -> None:
        """Log once for as long as it stays the same, and not when a registration met the plugin's end."""
        if text != self.trouble and not self.worker.stopping:
            log.warning("kubelet does not know %s: %s; retrying", self.resource, text)
        self.trouble = text


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells one socket from the next of the same name (inode numbers alone are used again)."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns

"""The device plugin service of one resource (v1beta1): what kubelet asks, and the stream that tells it of devices."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import grpc

from dra_driver.kubeletplugin.api import deviceplugin_v1beta1_pb2 as api
from dra_driver.kubeletplugin.rpc import Method
from dra_driver.util.errors import DriverError
from dra_driver.util.text import quoted_ascii

SERVICE: Final = api.DESCRIPTOR.services_by_name["DevicePlugin"].full_name
CONTAINERS_MOST: Final = 64
"""Containers of one request; kubelet sends one."""
_SHOWN_MOST: Final = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PluginDevice:
    """One device as kubelet counts it: id, whether it can be given, and the NUMA nodes it is near to."""

    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node for a container."""

    container_path: str
    host_path: str


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """What a container gets: variables, device nodes (to read and write) and qualified CDI names."""

    env: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[DeviceNode, ...] = ()
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
        self._changed = threading.Condition()
        self._devices: tuple[PluginDevice, ...] = ()
        self._stream = 0
        """Number of the newest stream; kubelet listens to one, older ones end."""
        self._open = False
        self._closed = False

    @property
    def devices(self) -> tuple[PluginDevice, ...]:
        """What is told to kubelet."""
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
        gone = threading.Event()

        with self._changed:
            self._stream += 1
            mine = self._stream
            self._open = True
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

    def _lists(self, mine: int, gone: threading.Event) -> Iterator[Any]:
        sent: tuple[PluginDevice, ...] | None = None
        while True:
            with self._changed:
                while self._devices == sent and not self._over(mine, gone):
                    self._changed.wait()
                if self._over(mine, gone):
                    return
                sent = self._devices
            yield api.ListAndWatchResponse(devices=map(_device_message, sent))

    def _over(self, mine: int, gone: threading.Event) -> bool:
        return self._closed or gone.is_set() or self._stream != mine

    # Allocation

    def _prefer(self, request: Any, context: grpc.ServicerContext) -> Any:
        del context
        answer = api.PreferredAllocationResponse()
        for container in request.container_requests[:CONTAINERS_MOST]:
            answer.container_responses.add(deviceIDs=self._preferred(container))
        return answer

    def _preferred(self, container: Any) -> Sequence[str]:
        """Never an exception: it would fail the pod, although kubelet can do without a preference."""
        known = {device.id for device in self._devices}
        available = frozenset(container.available_deviceIDs) & known
        must_include = frozenset(container.must_include_deviceIDs)
        size = int(container.allocation_size)
        if not (must_include <= available and max(len(must_include), 1) <= size <= len(available)):
            return ()
        try:
            return tuple(self._plugin.prefer(available, must_include, size))
        except DriverError as error:
            log.info("no preference for %d of %s: %s", size, self._resource, error)
        except Exception:
            log.exception("the preference for %s failed; kubelet chooses by itself", self._resource)
        return ()

    def _allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        del context
        if len(request.container_requests) > CONTAINERS_MOST:
            raise DriverError(f"one request for {len(request.container_requests)} containers is refused")
        wanted = [self._checked(container.devices_ids) for container in request.container_requests]
        answer = api.AllocateResponse()
        for ids in wanted:
            answer.container_responses.append(_answer_message(self._plugin.allocate(ids)))
        return answer

    def _checked(self, ids: Sequence[str]) -> frozenset[str]:
        known = {device.id for device in self._devices}
        unknown = [text for text in ids if text not in known]
        if unknown:
            some = ", ".join(map(quoted_ascii, unknown[:_SHOWN_MOST]))
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

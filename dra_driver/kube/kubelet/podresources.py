"""The devices of each container of a node, as kubelet lists them: its PodResources API (v1) on a unix socket.

kubelet repeats all devices of a claim, with the CDI names of each, for every container that uses the claim. So whoever
shares a claim among thousands of containers makes the list tens of megabytes long. A client that has the reply whole
before it reads it, as gRPC's has, needs several times that (a list of 16 MiB took 240 MB). Here it is read while it
arrives (HTTP/2 by ``h2``), and what nobody asked for is not kept: containers that are whole in what has arrived at
once, which is some KiB, are decoded together, and any other one part at a time.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from dra_driver.kube.kubelet.api import podresources_v1_pb2 as api
from dra_driver.kube.kubelet.client import CallError
from dra_driver.util import runtime
from dra_driver.util.text import one_line

SOCKET: Final = "pod-resources/kubelet.sock"
"""Below kubelet's directory."""
MAX_CONTAINERS: Final = 256
"""Of a pod, and of a pod's claim, whose names are kept; no honest pod has so many."""
MAX_NAMES: Final = 10_000
"""Of containers that use claims, in a whole list."""
MAX_PART_BYTES: Final = 4 << 20
"""Of what one container has of one claim, or of one resource: a claim has 32 devices at most."""
MAX_SECONDS: Final = 30.0
"""For a whole list, our own work included."""

_LIST: Final = f"/{api.DESCRIPTOR.services_by_name['PodResourcesLister'].full_name}/List"
_WINDOW_BYTES: Final = 1 << 20
"""That kubelet may send ahead of what was read."""
_READ_BYTES: Final = 256 << 10
_PREFIX: Final = struct.Struct(">BI")
"""Before the message: whether it is compressed, and its size
(https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md)."""
_STATUSES: Final = {str(code.value[0]): code.name for code in grpc.StatusCode}
_EMPTY: Final[Mapping[str, frozenset[str]]] = {}


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim of a pod; it is in the pod's namespace.

    Attributes:
        name: of the claim.
        devices: pool and name of each device that the driver has in it.
        cdi_devices: their qualified CDI names.
    """

    name: str
    devices: frozenset[tuple[str, str]]
    cdi_devices: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """The containers of one pod that use a claim, also those that use only one of its requests."""

    claim: PodClaim
    containers: tuple[str, ...]
    unnamed: int = 0
    """How many more there are."""


@dataclass(frozen=True, slots=True)
class PodDevices:
    """One pod that kubelet runs, or is about to run.

    Attributes:
        namespace: of the pod.
        name: of the pod.
        containers: ids of the devices by resource, by container; of those that have none, ``MAX_CONTAINERS`` at most.
            Init containers are missing, but for those that go on beside the others.
        claims: which kubelet tells by default since Kubernetes 1.34.
    """

    namespace: str
    name: str
    containers: Mapping[str, Mapping[str, frozenset[str]]]
    claims: tuple[ClaimUse, ...] = ()

    def devices(self, resource: str) -> frozenset[str]:
        """Ids of a resource that any listed container has."""
        return frozenset().union(*(ids.get(resource, frozenset()) for ids in self.containers.values()))


def list_pods(kubelet_directory: Path, *, resources: str, driver: str, seconds: float = 5.0) -> tuple[PodDevices, ...]:
    """All pods of the node as kubelet sees them now.

    Args:
        kubelet_directory: where kubelet's socket is.
        resources: begin of the names of the extended resources whose devices are of interest.
        driver: the DRA driver whose claims are.
        seconds: how long kubelet may let us wait for its answer, all in all. Our own work does not count.

    Raises:
        CallError: kubelet cannot be reached, refused, did not answer in time, or answered with something else; or its
            answer took longer than ``MAX_SECONDS`` to read.
    """
    path = kubelet_directory / SOCKET
    message = _Message(_reply(path, seconds))
    try:
        compressed, size = _PREFIX.unpack(message.take(_PREFIX.size))
        if compressed:
            raise DecodeError
        reader = _Reader(message, resources, driver)
        pods = tuple(reader.pod(length) for number, length in message.fields(size) if number == _FIELD["pod_resources"])
        message.finish()
    except (DecodeError, UnicodeDecodeError) as error:
        kind = api.ListPodResourcesResponse.DESCRIPTOR.full_name
        raise CallError(f"{_LIST} at {path} answered with something that is not a {kind}", code="INTERNAL") from error
    return pods


def _numbers(message: type[api.ListPodResourcesResponse | api.PodResources | api.ContainerResources]) -> dict[str, int]:
    return {entry.name: entry.number for entry in message.DESCRIPTOR.fields}


_FIELD: Final = _numbers(api.ListPodResourcesResponse)
_POD: Final = _numbers(api.PodResources)
_CONTAINER: Final = _numbers(api.ContainerResources)


class _Message:
    """A message of protobuf, read from its beginning to its end while it arrives. DecodeError if it is none."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._data = b""
        self._at = 0
        self._before = 0
        """Bytes of the message before ``_data``."""

    @property
    def position(self) -> int:
        """Bytes that were read."""
        return self._before + self._at

    def fields(self, size: int) -> Iterator[tuple[int, int]]:
        """Number and size of each field with a length in the next ``size`` bytes; what is not read of it is skipped."""
        end = self.position + size
        while self.position < end:
            yield from self.field(end)

    def field(self, end: int) -> Iterator[tuple[int, int]]:
        """The same of the next field alone, which ends at the position ``end`` at the latest."""
        number, kind = divmod(self._varint(), 8)
        length = {0: 0, 1: 8, 2: -1, 5: 4}.get(kind)
        if length is None:
            raise DecodeError
        if kind == 0:
            self._varint()
        if kind == 2:  # with a length (protobuf.dev, "Encoding")
            length = self._varint()
        stop = self.position + length
        if stop > end:
            raise DecodeError
        if kind == 2:  # as above
            yield number, length
        self.skip(stop - self.position)

    def whole_fields(self, end: int) -> bytes:
        """The next fields before the position ``end`` that have arrived whole, if they are short and have a length."""
        data, start = self._data, self._at
        stop = min(len(data), start + end - self.position)
        at = start
        while at + 3 <= stop and data[at] & 0x87 == 2:  # the key is of one byte, and that of a field with a length
            after = at + 2 + data[at + 1]
            if data[at + 1] >= 128:  # the length is of two bytes
                if data[at + 2] >= 128:  # or of more
                    break
                after += 1 - 128 + (data[at + 2] << 7)
            if after > stop:
                break
            at = after
        self._at = at
        return data[start:at]

    def take(self, size: int) -> bytes:
        """The next bytes."""
        parts = []
        while size:
            self._more()
            part = self._data[self._at : self._at + size]
            self._at += len(part)
            size -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip(self, size: int) -> None:
        """Go on after so many bytes."""
        while size:
            self._more()
            step = min(size, len(self._data) - self._at)
            self._at += step
            size -= step

    def finish(self) -> None:
        """Read to the end of the call, at which kubelet says whether it has succeeded."""
        for _ in self._chunks:
            pass

    def _more(self) -> None:
        while self._at == len(self._data):
            self._before += self._at
            self._data, self._at = b"", 0
            try:
                self._data = next(self._chunks)
            except StopIteration:
                raise DecodeError from None

    def _varint(self) -> int:
        value = shift = 0
        while shift < 64:  # bits
            self._more()
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:  # the last one
                return value
            shift += 7
        raise DecodeError


@dataclass(slots=True)
class _Uses:
    names: list[str] = field(default_factory=list)
    unnamed: int = 0


@dataclass(slots=True)
class _Pod:
    """What was read of one."""

    name: str = ""
    namespace: str = ""
    containers: dict[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    uses: dict[PodClaim, _Uses] = field(default_factory=dict)


class _Reader:
    """Makes pods of a list: what is of interest of them."""

    def __init__(self, message: _Message, resources: str, driver: str) -> None:
        self._message = message
        self._resources = resources
        self._driver = driver
        self._claims: dict[bytes, PodClaim] = {}
        """By the bytes that told it, which all its containers have in common."""
        self._names = 0

    def pod(self, size: int) -> PodDevices:
        """The pod of the next ``size`` bytes."""
        pod = _Pod()
        end = self._message.position + size
        while self._message.position < end:
            if fields := self._message.whole_fields(end):
                self._add_fields(pod, api.PodResources.FromString(fields))  # some fields of a message are one, too
            else:
                self._add_field(pod, end)
        uses = tuple(ClaimUse(claim, tuple(use.names), use.unnamed) for claim, use in pod.uses.items())
        return PodDevices(pod.namespace, pod.name, pod.containers, uses)

    def _add_fields(self, pod: _Pod, fields: api.PodResources) -> None:
        pod.name = fields.name or pod.name
        pod.namespace = fields.namespace or pod.namespace
        for container in fields.containers:
            if container.devices or container.dynamic_resources:
                devices: dict[str, frozenset[str]] = {}
                for entry in container.devices:
                    self._add_devices(devices, entry)
                claims = {self._claim(entry.SerializeToString()) for entry in container.dynamic_resources}
                self._add_container(pod, container.name, devices, claims)
            elif len(pod.containers) < MAX_CONTAINERS:
                pod.containers[container.name] = _EMPTY

    def _add_field(self, pod: _Pod, end: int) -> None:
        """The same of one field that ends at the position ``end`` at the latest, part by part."""
        for number, length in self._message.field(end):
            if number == _POD["name"]:
                pod.name = self._text(length)
            elif number == _POD["namespace"]:
                pod.namespace = self._text(length)
            elif number == _POD["containers"]:
                self._read_container(pod, length)

    def _read_container(self, pod: _Pod, size: int) -> None:
        name = ""
        devices: dict[str, frozenset[str]] = {}
        claims: set[PodClaim] = set()
        for number, length in self._message.fields(size):
            if number == _CONTAINER["name"]:
                name = self._text(length)
            elif number == _CONTAINER["devices"]:
                self._add_devices(devices, api.ContainerDevices.FromString(self._part(length)))
            elif number == _CONTAINER["dynamic_resources"]:
                claims.add(self._claim(self._part(length)))
        self._add_container(pod, name, devices, claims)

    def _add_devices(self, devices: dict[str, frozenset[str]], entry: api.ContainerDevices) -> None:
        """Those of one entry, of which there is one for each NUMA node."""
        if entry.resource_name.startswith(self._resources):
            ids = devices.get(entry.resource_name, frozenset())
            devices[entry.resource_name] = ids | frozenset(entry.device_ids)

    def _add_container(
        self, pod: _Pod, name: str, devices: Mapping[str, frozenset[str]], claims: set[PodClaim]
    ) -> None:
        if devices or len(pod.containers) < MAX_CONTAINERS:
            pod.containers[name] = devices or _EMPTY
        for claim in claims:
            if claim.devices:
                self._note(pod.uses.setdefault(claim, _Uses()), name)

    def _note(self, use: _Uses, container: str) -> None:
        if len(use.names) < MAX_CONTAINERS and self._names < MAX_NAMES:
            use.names.append(container)
            self._names += 1
        else:
            use.unnamed += 1

    def _claim(self, data: bytes) -> PodClaim:
        claim = self._claims.get(data)
        if claim is None:
            entry = api.DynamicResource.FromString(data)
            own = [device for device in entry.claim_resources if device.driver_name == self._driver]
            claim = PodClaim(
                entry.claim_name,
                frozenset((device.pool_name, device.device_name) for device in own),
                frozenset(cdi.name for device in own for cdi in device.cdi_devices),
            )
            if own and len(self._claims) < MAX_NAMES:  # of the claims of other drivers, nothing is kept
                self._claims[data] = claim
        return claim

    def _part(self, size: int) -> bytes:
        if size > MAX_PART_BYTES:
            raise DecodeError
        return self._message.take(size)

    def _text(self, size: int) -> str:
        return self._part(size).decode()


def _reply(path: Path, seconds: float) -> Iterator[bytes]:
    """What kubelet answers, over a connection of its own, as it arrives. Raises CallError, at the end at the latest."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(str(path))
            yield from _exchange(_Peer(connection, path, seconds), path)
    except TimeoutError:
        raise _failure(path, "DEADLINE_EXCEEDED", f"no whole answer within {seconds:g} s") from None
    except OSError as error:
        raise _failure(path, "UNAVAILABLE", error.strerror or str(error)) from error
    except ProtocolError as error:
        raise _failure(path, "INTERNAL", f"this is not HTTP/2: {error}") from error


class _Peer:
    """kubelet, which may let us wait for some seconds in all."""

    def __init__(self, connection: socket.socket, path: Path, seconds: float) -> None:
        self._connection = connection
        self._path = path
        self._left = seconds
        self._deadline = runtime.monotonic() + MAX_SECONDS

    def hear(self, data: bytes) -> bytes:
        """Say this, and wait for what it says."""
        began = runtime.monotonic()
        if began > self._deadline:
            raise _failure(self._path, "DEADLINE_EXCEEDED", f"the answer could not be read within {MAX_SECONDS:g} s")
        if self._left <= 0:
            raise TimeoutError
        self._connection.settimeout(self._left)
        self._connection.sendall(data)
        answer = self._connection.recv(_READ_BYTES)
        if not answer:
            raise _failure(self._path, "UNAVAILABLE", "the connection was closed before the answer had ended")
        self._left -= runtime.monotonic() - began
        return answer


def _exchange(peer: _Peer, path: Path) -> Iterator[bytes]:
    http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    http.initiate_connection()
    http.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES, SettingCodes.ENABLE_PUSH: 0})
    http.increment_flow_control_window(_WINDOW_BYTES)
    stream = http.get_next_available_stream_id()
    http.send_headers(
        stream,
        # kubelet's server takes no other authority, such as an escaped path (grpc/grpc issue 38142).
        [
            *((":method", "POST"), (":scheme", "http"), (":path", _LIST), (":authority", "localhost")),
            *(("te", "trailers"), ("content-type", "application/grpc")),
        ],
    )
    http.send_data(stream, _PREFIX.pack(0, 0), end_stream=True)
    status: dict[str, str] = {}
    ended = False
    while not ended:
        for event in http.receive_data(peer.hear(http.data_to_send())):
            if isinstance(event, DataReceived):
                yield event.data
                http.acknowledge_received_data(event.flow_controlled_length, stream)
            elif isinstance(event, ResponseReceived | TrailersReceived):
                status |= {str(name): str(value) for name, value in event.headers}
            elif isinstance(event, StreamReset | ConnectionTerminated):
                raise _failure(path, "UNAVAILABLE", f"the call was ended with error {event.error_code} of HTTP/2")
            elif isinstance(event, StreamEnded):
                ended = True
    code = _STATUSES.get(status.get("grpc-status", ""), "UNKNOWN")
    if code != "OK":
        raise _failure(path, code, unquote(status.get("grpc-message", "")))


def _failure(path: Path, code: str, details: str) -> CallError:
    details = one_line(details)
    return CallError(f"{_LIST} at {path} failed: {code}: {details}", code=code, details=details)

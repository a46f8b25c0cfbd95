"""Calls to gRPC services that kubelet serves on unix sockets.

They are the registration of device plugins, and the PodResources API (v1), which lists the devices of each container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message

from dra_driver.kube.kubelet.api import podresources_v1_pb2 as api
from dra_driver.kube.kubelet.grpcserver import MAX_PATH_BYTES
from dra_driver.util.errors import DriverError
from dra_driver.util.text import one_line

Reply = TypeVar("Reply", bound=Message)

MAX_REPLY_BYTES: Final = 16 << 20
"""What kubelet's own clients accept; a node with very many devices needs more than gRPC's 4 MiB."""

_OPTIONS: Final = (
    # kubelet's servers refuse the escaped path that gRPC would send (grpc/grpc issue 38142).
    ("grpc.default_authority", "localhost"),
    # No memory of former failures: the server may have been restarted a moment ago.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
)


class CallError(DriverError):
    """A call that got no usable answer.

    Attributes:
        code: name of the gRPC status such as ``UNAVAILABLE``.
        details: the server's text, one line.
    """

    def __init__(self, what: str, *, code: str, details: str = "", consequence: str = "", remedy: str = "") -> None:
        super().__init__(what, consequence=consequence, remedy=remedy)
        self.code = code
        self.details = details


def call(path: Path, method: str, request: Message, reply: type[Reply], seconds: float) -> Reply:
    """One call over a connection of its own; such calls are rare, and the server may change in between.

    Args:
        path: the socket.
        method: ``/package.Service/Method``.
        request: what is sent.
        reply: type of the answer.
        seconds: how long the answer may take.

    Raises:
        CallError: the server cannot be reached, refused, or did not answer in time.
    """
    if len(bytes(path)) > MAX_PATH_BYTES:
        raise CallError(f"{path} is too long for a socket", code="INVALID_ARGUMENT", remedy="use a shorter directory")
    with grpc.insecure_channel(f"unix:{path}", options=_OPTIONS) as channel:
        send: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
        try:
            data = send(request.SerializeToString(), timeout=seconds)
        except grpc.RpcError as error:
            failed = cast("grpc.Call", error)  # the stubs do not know that a client's errors are calls
            name, details = failed.code().name, one_line(failed.details() or "")
            raise CallError(f"{method} at {path} failed: {name}: {details}", code=name, details=details) from error
    try:
        return reply.FromString(data)
    except DecodeError as error:
        what = f"{method} at {path} answered with something that is not a {reply.DESCRIPTOR.full_name}"
        raise CallError(what, code="INTERNAL") from error


SOCKET: Final = "pod-resources/kubelet.sock"
"""Below kubelet's directory."""

_LIST: Final = f"/{api.DESCRIPTOR.services_by_name['PodResourcesLister'].full_name}/List"


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device of a claim that a container uses; the claim is in the pod's namespace."""

    driver: str
    pool: str
    device: str
    claim: str
    container: str
    cdi_devices: frozenset[str] = frozenset()
    """Qualified CDI names."""


@dataclass(frozen=True, slots=True)
class PodDevices:
    """One pod that kubelet runs, or is about to run.

    Attributes:
        namespace: of the pod.
        name: of the pod.
        containers: ids of the devices by resource, by container. Init containers are missing, but for those that go
            on beside the others.
        claimed: devices of claims, as kubelet tells by default since Kubernetes 1.34. It names all devices
            of a claim with each container that uses the claim, also with one that uses only one of its requests.
    """

    namespace: str
    name: str
    containers: Mapping[str, Mapping[str, frozenset[str]]]
    claimed: frozenset[ClaimedDevice] = field(default=frozenset())

    def devices(self, resource: str) -> frozenset[str]:
        """Ids of a resource that any listed container has."""
        return frozenset().union(*(found.get(resource, frozenset()) for found in self.containers.values()))


def list_pods(kubelet_directory: Path, seconds: float = 5.0) -> tuple[PodDevices, ...]:
    """All pods of the node as kubelet sees them now. Raises CallError."""
    answer = call(
        kubelet_directory / SOCKET, _LIST, api.ListPodResourcesRequest(), api.ListPodResourcesResponse, seconds
    )
    return tuple(map(_pod, answer.pod_resources))


def _pod(message: api.PodResources) -> PodDevices:
    containers: dict[str, dict[str, frozenset[str]]] = {}
    claimed: set[ClaimedDevice] = set()
    for container in message.containers:
        found = containers.setdefault(container.name, {})
        for entry in container.devices:  # one for each NUMA node
            ids = frozenset(entry.device_ids)
            found[entry.resource_name] = found.get(entry.resource_name, frozenset()) | ids
        claimed |= {
            ClaimedDevice(
                device.driver_name,
                device.pool_name,
                device.device_name,
                claim.claim_name,
                container.name,
                frozenset(cdi.name for cdi in device.cdi_devices),
            )
            for claim in container.dynamic_resources
            for device in claim.claim_resources
        }
    return PodDevices(message.namespace, message.name, containers, frozenset(claimed))

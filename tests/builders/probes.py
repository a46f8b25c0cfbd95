"""Health services and metrics behind a door, and whoever connects to them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from dra_driver.kube.kubelet.api import health_v1_pb2
from dra_driver.kube.kubelet.health import HealthServer
from dra_driver.util.door import Door

SERVING = health_v1_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_v1_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_v1_pb2.HealthCheckResponse.SERVICE_UNKNOWN

CHECK = "/grpc.health.v1.Health/Check"


@contextmanager
def open_door(*own: str) -> Iterator[Door]:
    door = Door(own)
    try:
        yield door
    finally:
        door.stop()


@contextmanager
def health_server(
    checks: dict[str, Callable[[], list[str]]], host: str = "127.0.0.1", own: tuple[str, ...] = (), **options: Any
) -> Iterator[str]:
    """A health service; gives its address."""
    with open_door(*own) as door:
        server = HealthServer(0, host, checks, door=door, **options)
        server.start()
        yield f"[{host}]:{server.port}" if ":" in host else f"{host}:{server.port}"


def probe(address: str, service: str = "liveness", seconds: float = 5.0) -> Any:
    """What kubelet does: a connection of its own, one call. The status, or gRPC's code."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        check: Callable[..., Any] = channel.unary_unary(
            CHECK, lambda message: message.SerializeToString(), health_v1_pb2.HealthCheckResponse.FromString
        )
        try:
            return check(health_v1_pb2.HealthCheckRequest(service=service), timeout=seconds).status
        except grpc.RpcError as error:
            return error.code()


def connect(port: int, source: str, data: bytes = b"") -> socket.socket:
    """A connection from an address of this machine, with what it says first."""
    connection = socket.create_connection(("127.0.0.1", port), 10, source_address=(source, 0))
    if data:
        connection.sendall(data)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it; what it has said is taken."""
    connection.setblocking(False)
    try:
        while data := connection.recv(65536):
            del data
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True

"""The test kubelet's view of drivers: a directory watch, and one gRPC connection per instance of a driver."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc

from dra_driver.kube.kubelet.api import dra_v1_pb2, dra_v1beta1_pb2

MESSAGES = {"v1.DRAPlugin": dra_v1_pb2, "v1beta1.DRAPlugin": dra_v1beta1_pb2}
OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))

IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x80, 0x100, 0x200
EVENT = struct.Struct("iIII")


class KubeletError(Exception):
    """The message that kubelet would put into the pod's event."""


@dataclass(frozen=True)
class Claim:
    """An allocated claim of a pod; ``drivers`` are those named in its allocation."""

    namespace: str
    name: str
    uid: str
    drivers: tuple[str, ...]


def unary(channel: grpc.Channel, path: str, reply: type[Any]) -> Callable[..., Any]:
    return channel.unary_unary(path, lambda m: m.SerializeToString(), reply.FromString)


class Instance:
    """One registered instance of a driver, with kubelet's single connection to it."""

    def __init__(self, driver: str, endpoint: str, version: str) -> None:
        self.driver, self.endpoint, self.version = driver, endpoint, version
        self.channel = grpc.insecure_channel(f"unix:{endpoint}", options=OPTIONS)
        self.closed = threading.Event()

    def connected(self) -> bool:
        """Whether a server listens at the endpoint.

        Checked by connecting to the socket: gRPC's own connectivity state in Python uses a thread that outlives the
        channel.
        """
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(self.endpoint)
            except OSError:
                return False
            return True

    def call(self, method: str, claims: Sequence[Claim], seconds: float) -> Any:
        """One DRA call; a gRPC error is kubelet's overall error."""
        messages = MESSAGES[self.version]
        service = messages.DESCRIPTOR.services_by_name["DRAPlugin"].full_name
        request = getattr(messages, f"{method}Request")(
            claims=[messages.Claim(namespace=c.namespace, uid=c.uid, name=c.name) for c in claims]
        )
        stub = unary(self.channel, f"/{service}/{method}", getattr(messages, f"{method}Response"))
        try:
            return stub(request, timeout=seconds)
        except grpc.RpcError as error:
            call = cast("grpc.Call", error)  # the stubs do not declare that the client's errors are calls
            raise KubeletError(f"{call.code()}: {call.details()}") from error

    def close(self) -> None:
        self.closed.set()
        self.channel.close()


class DirectoryWatch:
    """fsnotify's events for kubelet: created (or moved in) and removed names; moving a name away is no removal."""

    def __init__(self, directory: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        mask = IN_MOVED_TO | IN_CREATE | IN_DELETE
        if self._fd < 0 or self._libc.inotify_add_watch(self._fd, os.fsencode(directory), mask) < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    def events(self, timeout: float) -> list[tuple[str, bool]]:
        """(name, whether created) in order, after at most ``timeout`` seconds."""
        if not select.select([self._fd], [], [], timeout)[0]:
            return []
        data, found = os.read(self._fd, 65536), []
        while data:
            _, mask, _, size = EVENT.unpack_from(data)
            name = data[EVENT.size : EVENT.size + size].rstrip(b"\0").decode()
            found.append((name, not mask & IN_DELETE))
            data = data[EVENT.size + size :]
        return found

    def close(self) -> None:
        os.close(self._fd)

"""Calls to gRPC services on unix sockets, with short answers: to kubelet, device plugins' registration."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message

from dra_driver.kube.kubelet.grpcserver import MAX_PATH_BYTES
from dra_driver.util.errors import DriverError
from dra_driver.util.text import one_line

Reply = TypeVar("Reply", bound=Message)

_OPTIONS: Final = (
    # kubelet's servers refuse the escaped path that gRPC would send (grpc/grpc issue 38142).
    ("grpc.default_authority", "localhost"),
    # No memory of former failures: the server may have been restarted a moment ago.
    ("grpc.use_local_subchannel_pool", 1),
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

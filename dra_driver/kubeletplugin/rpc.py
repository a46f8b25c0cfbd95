"""A gRPC service as a table of methods, and what every call gets whatever its method.

Every call has an operation id in the log. A request that is no message of its type ends as INVALID_ARGUMENT (gRPC's
own treatment would log a traceback for what anybody can send), an explained refusal (``DriverError``) as
FAILED_PRECONDITION, any other exception as INTERNAL, both with one line of text, and a call to a server that is closing
as UNAVAILABLE.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from dra_driver.kubeletplugin.logcontext import operation
from dra_driver.util.errors import DriverError
from dra_driver.util.text import one_line

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service.

    Attributes:
        path: ``/package.Service/Method``.
        request: type of the request message.
        handle: gives the reply (an iterator of replies for a streaming method).
        streaming: whether the reply is a stream.
    """

    path: str
    request: type[Message]
    handle: Callable[[Any, grpc.ServicerContext], Any]
    streaming: bool = False


class Activity:
    """Counts the running calls of a server, and closes it to new ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Condition()
        self._running = 0
        self._closed = False
        self._last = clock()

    @contextmanager
    def call(self) -> Iterator[bool]:
        """Count the body as a running call; gives whether it may run."""
        with self._lock:
            self._running += 1
            allowed = not self._closed
        try:
            yield allowed
        finally:
            with self._lock:
                self._running -= 1
                self._last = self._clock()
                self._lock.notify_all()

    def close(self, seconds: float) -> bool:
        """Allow no further call, and wait until the running ones have ended; whether they did in ``seconds``."""
        with self._lock:
            self._closed = True
            return self._lock.wait_for(lambda: self._running == 0, max(seconds, 0.0))

    def touch(self) -> None:
        """Begin to count idle seconds anew."""
        with self._lock:
            self._last = self._clock()

    def idle_seconds(self) -> float:
        """Seconds since the last call ended; 0 while one runs."""
        with self._lock:
            return 0.0 if self._running else self._clock() - self._last


class ServiceTable(grpc.GenericRpcHandler):
    """Serves exactly the methods given; gRPC answers UNIMPLEMENTED for the rest."""

    def __init__(self, methods: Sequence[Method], activity: Activity) -> None:
        self._handlers = {method.path: _handler(method, activity) for method in methods}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Find the method (gRPC calls this)."""
        return self._handlers.get(handler_call_details.method)


def _handler(method: Method, activity: Activity) -> grpc.RpcMethodHandler[Any, Any]:
    def decode(data: bytes) -> Message | DecodeError:
        try:
            return method.request.FromString(data)
        except DecodeError as error:
            return error  # raised, it would be logged with a traceback; None would mean the same to gRPC

    def unary(request: Message | DecodeError, context: grpc.ServicerContext) -> Any:
        with operation(), activity.call() as allowed:
            if not allowed:
                code, text = grpc.StatusCode.UNAVAILABLE, "the driver is stopping"
            elif isinstance(request, DecodeError):
                code, text = grpc.StatusCode.INVALID_ARGUMENT, f"this is no {method.request.DESCRIPTOR.full_name}"
            else:
                try:
                    return method.handle(request, context)
                except DriverError as error:
                    code, text = grpc.StatusCode.FAILED_PRECONDITION, one_line(str(error))
                except Exception as error:
                    log.exception("%s failed", method.path)
                    code, text = grpc.StatusCode.INTERNAL, one_line(f"{type(error).__name__}: {error}")
            log.warning("%s refused: %s", method.path, text)
        return context.abort(code, text)

    def stream(request: Message | DecodeError, context: grpc.ServicerContext) -> Iterator[Any]:
        # Only the first step is guarded: afterwards the stream belongs to its handler, which ends it itself.
        yield from unary(request, context)

    if method.streaming:
        return grpc.unary_stream_rpc_method_handler(stream, decode, _encode)
    return grpc.unary_unary_rpc_method_handler(unary, decode, _encode)


def _encode(message: Message) -> bytes:
    return message.SerializeToString()

"""The standard gRPC health service over TCP, for kubelet's probes.

A server of its own: nothing of the driver's interface to kubelet can be reached over the network. It is not gRPC's
server, which hands a call to one of its threads before the call's message is there, and keeps the thread until it is:
six calls without an end would silence it. Here a call costs a few bytes until it is complete, behind a ``Door``.
"""

from __future__ import annotations

import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias
from urllib.parse import quote

from google.protobuf.message import DecodeError
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded, StreamReset
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from dra_driver.kube.kubelet.api import health_v1_pb2 as api
from dra_driver.util.door import Connection, Door, Turns, own_addresses
from dra_driver.util.errors import DriverError
from dra_driver.util.text import one_line

log = logging.getLogger(__name__)

Check = Callable[[], list[str]]
"""Says what is wrong, one text a problem; an exception counts as a problem."""

_SERVICE = api.DESCRIPTOR.services_by_name["Health"].full_name
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_MAX_STREAMS: Final = 16
_MAX_REQUESTS: Final = 64
"""On one connection, those that were cancelled among them; kubelet makes one."""
_MAX_HEADER_BYTES: Final = 2 * 1024
"""Of one request, as HTTP/2 counts; kubelet's has 500."""
_MAX_MESSAGE_BYTES: Final = 4 * 1024
_PREFIX: Final = struct.Struct(">BI")
"""Before each message: whether it is compressed, and its size
(https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md)."""

# Status codes of gRPC.
_OK, _INVALID_ARGUMENT, _NOT_FOUND, _RESOURCE_EXHAUSTED, _UNIMPLEMENTED = "0", "3", "5", "8", "12"

_Status: TypeAlias = api.HealthCheckResponse.ServingStatus


class HealthServer:
    """Answers Check and Watch.

    The status of a service is SERVING if and only if its check returned no problem. A check that takes longer than
    ``check_seconds`` counts as a problem, so that a probe (kubelet's own limit is often 5 s) always gets an answer; it
    is not begun a second time while it runs.

    Args:
        port: TCP port; 0 takes a free one (see :attr:`port`), a negative one disables the server.
        host: address to bind, e.g. ``0.0.0.0``, ``127.0.0.1`` or ``::``.
        checks: by service name, e.g. ``liveness`` and ``readiness``; "" is the name for the whole server.
        door: behind which it answers, where a program serves more than this; it then ends with the door.
        check_seconds: time limit of a check.
        watch_seconds: how often a Watch looks for a change.
    """

    def __init__(
        self,
        port: int,
        host: str,
        checks: Mapping[str, Check],
        *,
        door: Door | None = None,
        check_seconds: float = 3.0,
        watch_seconds: float = 5.0,
    ) -> None:
        self.port = port
        self._alone = door is None
        self._door = door or Door(own_addresses())
        self._host = host
        self._services = {
            name: _Service(self._door, name, check, check_seconds, watch_seconds) for name, check in checks.items()
        }

    def start(self) -> None:
        """Serve; does not block, and does nothing if the port is negative.

        Raises:
            DriverError: the address cannot be bound.
        """
        if self.port < 0:
            log.info("the health service is off")
            return
        try:
            self.port = self._door.listen(
                self._host, self.port, lambda connection: _GrpcConversation(connection, self._services)
            )
        except OSError as error:
            address = f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"
            raise DriverError(
                f"the health service cannot listen on {address}",
                consequence="kubelet's readiness probe would fail",
                remedy="find what uses the port, or choose another; a negative port turns the service off",
            ) from error

    def stop(self, grace: float = 1.0) -> None:
        """Stop; does nothing behind the door of others."""
        if self._alone:
            self._door.stop(grace)


class _Service:
    """The status of one service: worked out when somebody asks, and from time to time while somebody watches."""

    def __init__(self, door: Door, name: str, check: Check, check_seconds: float, watch_seconds: float) -> None:
        self._door = door
        self._name = name or "health"
        self._check = check
        self._check_seconds = check_seconds
        self._watch_seconds = watch_seconds
        self._turns: Turns[list[str]] = Turns(door, "health-check")
        self._running = False
        self._waiting: deque[tuple[float, Callable[[_Status], None]]] = deque()
        """Until when (monotonic clock) whoever asked waits, the first one first."""
        self._timed = False
        """Whether ``_give_up`` is going to be called."""
        self._watches: list[_Watch] = []
        self._logged: list[str] = []

    def ask(self, give: Callable[[_Status], None]) -> None:
        """Have the status given, in ``check_seconds`` at the latest."""
        self._waiting.append((time.monotonic() + self._check_seconds, give))
        self._time()
        if not self._running:
            self._running = True
            self._turns.ask("", self._problems, self._answer)

    def watch(self, watch: _Watch) -> None:
        """Have the status told now, and whenever it has changed."""
        self._watches.append(watch)
        if len(self._watches) == 1:
            self._look()
        else:
            self.ask(watch.tell)

    def _look(self) -> None:
        self._watches = [watch for watch in self._watches if watch.open]
        if self._watches:
            self.ask(self._tell)
            self._door.later(self._watch_seconds, self._look)

    def _tell(self, status: _Status) -> None:
        for watch in self._watches:
            watch.tell(status)

    def _problems(self) -> list[str]:
        try:
            return list(self._check())
        except BaseException as error:
            log.exception("the health check failed")
            return [f"the health check failed: {type(error).__name__}: {error}"]

    def _answer(self, problems: list[str]) -> None:
        self._running = False
        waiting, self._waiting = self._waiting, deque()
        self._give(problems, [give for _, give in waiting])

    def _give_up(self) -> None:
        self._timed = False
        now = time.monotonic()
        late = []
        while self._waiting and self._waiting[0][0] <= now:
            late.append(self._waiting.popleft()[1])
        if late:
            self._give([f"the check did not end in {self._check_seconds:g} s"], late)
        self._time()

    def _time(self) -> None:
        if self._waiting and not self._timed:
            self._timed = True
            self._door.later(self._waiting[0][0] - time.monotonic(), self._give_up)

    def _give(self, problems: list[str], recipients: Iterable[Callable[[_Status], None]]) -> None:
        if problems != self._logged:
            self._logged = problems
            if problems:
                log.warning("%s: %s", self._name, one_line("; ".join(problems)))
            else:
                log.info("%s: healthy again", self._name)
        for give in recipients:
            give(api.HealthCheckResponse.NOT_SERVING if problems else api.HealthCheckResponse.SERVING)


class _Watch:
    """A call of Watch."""

    def __init__(self, conversation: _GrpcConversation, stream: int) -> None:
        self._conversation = conversation
        self._stream = stream
        self._status: _Status | None = None

    @property
    def open(self) -> bool:
        """Whether somebody still listens."""
        return self._conversation.is_open(self._stream)

    def tell(self, status: _Status) -> None:
        """Send the status if it is another one than before."""
        if self.open and status != self._status:
            self._status = status
            self._conversation.attempt(lambda: self._conversation.send(self._stream, status))


@dataclass(slots=True)
class _Call:
    path: str
    message: bytearray = field(default_factory=bytearray)


class _GrpcConversation:
    """gRPC of the health service on one connection: unary requests, whose replies may be streams."""

    def __init__(self, connection: Connection, services: Mapping[str, _Service]) -> None:
        self._connection = connection
        self._services = services
        self._preface = b""
        """What has arrived until the connection has begun as HTTP/2 does: those that are only held open never do."""
        self._requests = 0
        self._calls: dict[int, _Call] = {}
        """By stream: those whose reply has not ended."""

    def receive(self, data: bytes) -> None:
        """Take what has arrived."""
        if len(self._preface) < len(_PREFACE):
            data = self._preface + data
            self._preface = data[: len(_PREFACE)]
            if not _PREFACE.startswith(self._preface):
                raise ProtocolError
            if len(self._preface) < len(_PREFACE):
                return
        for event in self._http2.receive_data(data):
            if isinstance(event, RequestReceived):
                self._requests += 1
                if self._requests > _MAX_REQUESTS:
                    raise ProtocolError
                headers = {bytes(name): bytes(value) for name, value in event.headers}
                self._calls[event.stream_id] = _Call(headers.get(b":path", b"").decode("ascii", "replace"))
            elif isinstance(event, DataReceived):
                self._take(event.stream_id, event.data)
            elif isinstance(event, StreamEnded):
                self._serve(event.stream_id)
            elif isinstance(event, StreamReset):
                self._calls.pop(event.stream_id, None)
        self._flush()

    def end(self) -> None:
        """Let go of the calls, and of HTTP/2's state: those who wait for a status know of them for seconds."""
        self._calls.clear()
        self.__dict__.pop("_http2", None)

    def attempt(self, step: Callable[[], None]) -> None:
        """Take a step: h2 raises where the peer has closed the connection, or takes no more of it."""
        self._connection.attempt(step)

    def is_open(self, stream: int) -> bool:
        """Whether the call on a stream still waits for replies."""
        return stream in self._calls and not self._connection.closed

    def send(self, stream: int, status: _Status) -> None:
        """Send one reply of a stream of replies."""
        message = api.HealthCheckResponse(status=status).SerializeToString()
        self._http2.send_data(stream, _PREFIX.pack(0, len(message)) + message)
        self._flush()

    def _take(self, stream: int, data: bytes) -> None:
        call = self._calls.get(stream)
        if call is None:
            return
        call.message += data
        if len(call.message) > _PREFIX.size + _MAX_MESSAGE_BYTES:
            self._refuse(stream, _RESOURCE_EXHAUSTED, f"a message has at most {_MAX_MESSAGE_BYTES} bytes")

    def _serve(self, stream: int) -> None:
        """Answer a call whose request is complete."""
        call = self._calls.get(stream)
        if call is None:
            return
        method = call.path.removeprefix(f"/{_SERVICE}/")
        if method not in ("Check", "Watch"):
            self._refuse(stream, _UNIMPLEMENTED, f"this port serves Check and Watch of {_SERVICE}")
            return
        try:
            request = _request(call.message)
        except DecodeError:
            self._refuse(stream, _INVALID_ARGUMENT, f"this is no {api.HealthCheckRequest.DESCRIPTOR.full_name}")
            return
        service = self._services.get(request.service)
        if method == "Watch":
            self._begin_reply(stream)
            self._connection.stay()
            watch = _Watch(self, stream)
            if service is None:
                watch.tell(api.HealthCheckResponse.SERVICE_UNKNOWN)
            else:
                service.watch(watch)
        elif service is None:
            self._refuse(stream, _NOT_FOUND, f"known services: {', '.join(map(repr, self._services))}")
        else:
            self._connection.begin_answer()
            service.ask(lambda status: self.attempt(lambda: self._answer(stream, status)))

    def _answer(self, stream: int, status: _Status) -> None:
        if self._connection.closed:
            return
        if self.is_open(stream):
            self._begin_reply(stream)
            self.send(stream, status)
            self._http2.send_headers(stream, [("grpc-status", _OK)], end_stream=True)
            del self._calls[stream]
            if self._connection.last and not self._calls:
                self._http2.close_connection()
        self._flush()
        self._connection.end_answer()
        if self._connection.last and not self._calls:
            self._connection.end()

    def _begin_reply(self, stream: int) -> None:
        self._http2.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])

    def _refuse(self, stream: int, code: str, text: str) -> None:
        del self._calls[stream]
        headers = [(":status", "200"), ("content-type", "application/grpc")]
        headers += [("grpc-status", code), ("grpc-message", quote(text, safe=" '/:,"))]
        self._http2.send_headers(stream, headers, end_stream=True)

    def _flush(self) -> None:
        self._connection.send(self._http2.data_to_send())

    @cached_property
    def _http2(self) -> H2Connection:
        connection = H2Connection(H2Configuration(client_side=False, header_encoding=None))
        limits = {
            SettingCodes.MAX_CONCURRENT_STREAMS: _MAX_STREAMS,
            SettingCodes.MAX_HEADER_LIST_SIZE: _MAX_HEADER_BYTES,
        }
        connection.local_settings = Settings(client=False, initial_values=limits)
        connection.initiate_connection()
        return connection


def _request(data: bytes | bytearray) -> api.HealthCheckRequest:
    """The one message of a call; raises DecodeError if there is none, or it is compressed."""
    if len(data) < _PREFIX.size:
        raise DecodeError
    compressed, size = _PREFIX.unpack_from(data)
    if compressed or size != len(data) - _PREFIX.size:
        raise DecodeError
    return api.HealthCheckRequest.FromString(bytes(data[_PREFIX.size :]))

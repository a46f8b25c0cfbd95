"""The health of a driver's devices, told to kubelet, which writes it into the status of the pods that hold them.

kubelet opens one stream to each instance of a driver, and dials again 5 s after it ended. Every message is the complete
list. A device that is not heard of within its timeout turns Unknown, and so does every device of the driver as soon as
the stream ends (kubelet 1.37.1, ``pkg/kubelet/cm/dra/healthinfo.go``). kubelet 1.37 takes v1 before v1alpha1, 1.36
knows v1alpha1 only, and 1.34 has it behind a gate; older ones ignore both names.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType, ModuleType
from typing import Any, Final, Literal, get_args

import grpc

from dra_driver.kube.kubelet.api import dra_health_v1_pb2, dra_health_v1alpha1_pb2
from dra_driver.kube.kubelet.grpcserver import Method
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.text import one_line, quoted_ascii

log = logging.getLogger(__name__)

Health = Literal["healthy", "unhealthy", "unknown"]
_HEALTHS: Final[tuple[Health, ...]] = get_args(Health)

VERSIONS: Final[Mapping[str, ModuleType]] = MappingProxyType(
    {"v1.DRAResourceHealth": dra_health_v1_pb2, "v1alpha1.DRAResourceHealth": dra_health_v1alpha1_pb2}
)
"""By name in ``supported_versions``; the messages of both have the same bytes."""

PERIOD_SECONDS: Final = 10.0
TIMEOUT_SECONDS: Final = 30
"""kubelet's own default."""
MAX_STREAMS: Final = 4
"""kubelet needs one, and a second one for moments, when it has lost the first."""
MAX_DEVICES: Final = 16384
"""kubelet keeps no more of one driver."""
MAX_MESSAGE_BYTES: Final = 1024
"""kubelet cuts off the rest, in the middle of a character if need be."""
MAX_REPLY_BYTES: Final = 4 << 20
"""kubelet's gRPC client refuses more, and the stream with it."""
SETTLE_SECONDS: Final = 0.1
"""Between two messages of a stream, however fast the health changes: kubelet writes a file for each."""

_FIELD_BYTES: Final = 40
"""More than a device has in its message besides the three texts."""
_SHORTER: Final = (MAX_MESSAGE_BYTES, 512, 256, 128, 64, 0)


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One device, by the names it has in its ResourceSlice.

    Attributes:
        pool: name of its pool.
        device: name of the device in its pool.
        health: what is known of it; ``unknown`` if that cannot be told.
        message: why, for people; sent as one line of at most 1,024 bytes, and shorter if a list of very many devices
            would be longer than the 4 MiB that kubelet takes.
    """

    pool: str
    device: str
    health: Health
    message: str = ""


Look = Callable[[], Sequence[DeviceHealth]]
"""Gives the complete list of now, without waiting for anything."""


class HealthStream:
    """Tells the health of all devices of a driver to everybody who watches it.

    Each stream gets the complete list when it is opened, at once when the list changes, and every ``period`` seconds.
    It begins with the first ``set``. A reader that is slow misses lists, but never the last one.

    Args:
        look: asked for the list before it is repeated, in the stream's thread, so that no list outlives the knowledge
            behind it; if it raises, all devices of the last list are unknown. None: the last list is repeated.
        period: seconds between repetitions.
        timeout_seconds: how long kubelet believes a list; at least twice the period.
        streams: streams at once; a further one is refused (RESOURCE_EXHAUSTED). Each has a thread while it is open.

    Raises:
        DriverError: a timeout that does not survive one late repetition.
    """

    def __init__(
        self,
        look: Look | None = None,
        *,
        period: float = PERIOD_SECONDS,
        timeout_seconds: int = TIMEOUT_SECONDS,
        streams: int = MAX_STREAMS,
    ) -> None:
        if not 0 < period <= timeout_seconds / 2:
            raise DriverError(
                f"a health stream cannot have a period of {period:g} s and a timeout of {timeout_seconds} s",
                consequence="healthy devices would become unknown in between",
                remedy="set the timeout to at least twice the period",
            )
        self.streams = streams
        self._look = look
        self._period = period
        self._timeout_seconds = timeout_seconds
        self._news = runtime.condition()
        self._devices: tuple[DeviceHealth, ...] = ()
        self._determined_at = 0
        self._version = 0
        """Counts the changes; 0: nothing was set yet."""
        self._open = 0
        self._look_fails = False

    def set(self, devices: Sequence[DeviceHealth]) -> None:
        """Set the complete list. A list that differs is sent at once; any other only tells kubelet that it is fresh.

        Raises:
            DriverError: more than 16,384 devices, one that is listed twice or has a name or a health that cannot be, or
                a list beyond 4 MiB even without messages; the former list stays.
        """
        self._keep(fitted(devices))

    def methods(self) -> list[Method]:
        """The methods of both versions for one server."""
        end = _Ending()
        return [self._method(messages, end) for messages in VERSIONS.values()]

    def _method(self, messages: Any, end: _Ending) -> Method:
        service = messages.DESCRIPTOR.services_by_name["DRAResourceHealth"].full_name

        def watch(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            del request
            return self._watch(messages, context, end)

        path = f"/{service}/NodeWatchResources"
        return Method(path, messages.NodeWatchResourcesRequest, watch, streaming=True, end=end)

    def _watch(self, messages: Any, context: grpc.ServicerContext, end: _Ending) -> Iterator[Any]:
        with self._place() as place:
            if not place:
                text = f"{self.streams} health streams are open already, and kubelet needs one; close another"
                log.warning("a health stream was refused: %s", text)
                context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
                context.set_details(text)
                return
            reader = _Reader(self._news)
            with end.of(reader):
                if not context.add_callback(reader.leave):
                    return
                for devices, determined_at in self._lists(reader):
                    yield _reply(messages, devices, determined_at, self._timeout_seconds)

    @contextmanager
    def _place(self) -> Iterator[bool]:
        with self._news:
            free = self._open < self.streams
            self._open += free
        try:
            yield free
        finally:
            with self._news:
                self._open -= free

    def _lists(self, reader: _Reader) -> Iterator[tuple[tuple[DeviceHealth, ...], int]]:
        """What one reader gets, until it is gone: lists, each with the time it was determined at."""
        repeat_at, settled_at = math.inf, -math.inf
        while True:
            with self._news:
                # Nothing is repeated before there is something.
                wait = None if repeat_at == math.inf else max(repeat_at - runtime.monotonic(), 0.0)
                changed = self._news.wait_for(lambda: reader.gone or self._version != reader.sent, wait)
                if (pause := settled_at - runtime.monotonic()) > 0:
                    self._news.wait_for(lambda: reader.gone, pause)
            if reader.gone:
                return
            if not changed and self._look is not None:
                self._looked_at(self._look)
            with self._news:
                reader.sent, devices, determined_at = self._version, self._devices, self._determined_at
            yield devices, determined_at
            now = runtime.monotonic()
            repeat_at, settled_at = now + self._period, now + SETTLE_SECONDS

    def refresh(self) -> None:
        """Have ``look`` tell the list, and send it if it differs. Any thread may call it: the last look counts."""
        while self._look is not None and not self._looked_at(self._look):
            pass

    def _looked_at(self, look: Look) -> bool:
        """Whether nobody has set another list while this one was looked up."""
        before = self._version
        try:
            devices = fitted(look())
        except Exception as error:
            if not self._look_fails:
                log.exception("the health of the devices cannot be determined; they are reported as unknown")
            self._look_fails = True
            message = one_line(f"the driver cannot determine the device's health: {error}", MAX_MESSAGE_BYTES)
            devices = fitted([replace(device, health="unknown", message=message) for device in self._devices])
        else:
            self._look_fails = False
        return self._keep(devices, unless_later_than=before)

    def _keep(self, devices: tuple[DeviceHealth, ...], *, unless_later_than: int | None = None) -> bool:
        """Keep a list; one that was looked up, unless another one has come since that version. Whether it was kept."""
        with self._news:
            if unless_later_than is not None and self._version != unless_later_than:
                return False
            self._determined_at = int(runtime.now())
            if devices != self._devices or self._version == 0:
                self._devices = devices
                self._version += 1
                self._news.notify_all()
            return True


class _Reader:
    """Somebody who reads a stream: waits on ``news`` until there is some, or until it is ``gone``."""

    def __init__(self, news: runtime.Condition) -> None:
        self._news = news
        self.gone = False
        self.sent = 0
        """Number of the last list that it got."""

    def leave(self) -> None:
        with self._news:
            self.gone = True
            self._news.notify_all()


class _Ending:
    """Ends the streams of one server, those that are open and those that come later."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._readers: set[_Reader] = set()
        self._ended = False

    @contextmanager
    def of(self, reader: _Reader) -> Iterator[None]:
        """The life of a stream."""
        with self._lock:
            self._readers.add(reader)
            reader.gone = self._ended
        try:
            yield
        finally:
            with self._lock:
                self._readers.discard(reader)

    def __call__(self) -> None:
        """End all."""
        with self._lock:
            self._ended = True
            readers = list(self._readers)
        for reader in readers:
            reader.leave()


def fitted(devices: Iterable[DeviceHealth]) -> tuple[DeviceHealth, ...]:
    """The list as it can be sent: messages in one line, and as long as kubelet takes them.

    Raises:
        DriverError: see ``HealthStream.set``.
    """
    listed = tuple(devices)
    if len(listed) > MAX_DEVICES:
        raise DriverError(
            f"the health of {len(listed)} devices cannot be reported",
            consequence=f"kubelet keeps at most {MAX_DEVICES} devices of a driver and would ignore the others",
            remedy="report fewer devices",
        )
    seen: set[tuple[str, str]] = set()
    for device in listed:
        problem = _problem(device, seen)
        if problem:
            raise DriverError(
                f"device {quoted_ascii(device.device)} of the pool {quoted_ascii(device.pool)} {problem}",
                consequence="its health cannot be reported",
                remedy="list each device once, by the names it has in its ResourceSlice",
            )
        seen.add((device.pool, device.device))
    listed = tuple(_partition(device, MAX_MESSAGE_BYTES) for device in listed)
    names = sum(_FIELD_BYTES + len(device.pool) + len(device.device) for device in listed)
    texts = [len(device.message.encode()) for device in listed]
    for most in _SHORTER:
        if names + sum(min(text, most) for text in texts) <= MAX_REPLY_BYTES:
            return tuple(_partition(device, most) for device in listed)
    raise DriverError(
        f"the list of {len(listed)} devices is larger than {MAX_REPLY_BYTES >> 20} MiB",
        consequence="kubelet would refuse the list",
        remedy="report fewer devices, or give them shorter names",
    )


def _problem(device: DeviceHealth, seen: Container[tuple[str, str]]) -> str | None:
    if (device.pool, device.device) in seen:
        return "is listed twice"
    if device.health not in _HEALTHS:
        return f"has the health {quoted_ascii(device.health)}, not one of {', '.join(_HEALTHS)}"
    if not all(name and name.isascii() and name.isprintable() for name in (device.pool, device.device)):
        return "has a name that no ResourceSlice can have"
    return None


def _partition(device: DeviceHealth, most: int) -> DeviceHealth:
    message = one_line(device.message, most) if device.message and most else ""
    return device if message == device.message else replace(device, message=message)


def _reply(messages: Any, devices: Iterable[DeviceHealth], determined_at: int, timeout_seconds: int) -> Any:
    reply = messages.NodeWatchResourcesResponse()
    for device in devices:
        entry = reply.devices.add(
            health=messages.HealthStatus.Value(device.health.upper()),
            last_updated_time=determined_at,
            health_check_timeout_seconds=timeout_seconds,
            message=device.message,
        )
        entry.device.pool_name = device.pool
        entry.device.device_name = device.device
    return reply

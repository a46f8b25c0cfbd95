"""The extender's HTTP server: bounds everything that it reads, and is never blocked by one client.

Every request is answered by the leader: a standby forwards it to the replica whose address is in the lease. Connections
are limited: one that is merely held open makes room for others, first of the address that has the most, and some places
are kept for the node's own addresses, from which kubelet probes. Handshakes, which take the event loop's time, have
bounds and a pace by address (``handshakes``). The time of a connection without a request is bounded, too: by
``Listener`` until the handshake is over, then by aiohttp, which closes it after ``keepalive_timeout``. Who has to show
a certificate and has none gets one answer a connection, so that its requests have the pace of handshakes, and few
seconds for it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast

import aiohttp
from aiohttp import web
from aiohttp.http import HttpProcessingError

from dra_driver.legacy.extender import answers
from dra_driver.legacy.extender.answers import FitCache
from dra_driver.legacy.extender.binding import Binder
from dra_driver.legacy.extender.handshakes import Context, Pace
from dra_driver.legacy.extender.turns import Turns
from dra_driver.util.acceptor import Acceptor, task_of
from dra_driver.util.errors import DriverError
from dra_driver.util.metrics import Operations
from dra_driver.util.workers import Workers

MAX_CONNECTIONS: Final = 256
"""Far more than schedulers and probes have open, far fewer than a process may have files."""
OWN_CONNECTIONS: Final = 16
"""Of these, kept for the node's own addresses; kubelet dials a new one for each probe."""
HANDSHAKE_SECONDS: Final = 10.0
STRANGER_SECONDS: Final = 5.0
"""Seconds for who has to show a certificate and has none, from its handshake on; kubelet's probes take less."""
TELL_SECONDS: Final = 60.0
"""Between two log lines about too many connections."""
BACKLOG: Final = 1024

log = logging.getLogger(__name__)


class _Connection:
    """An accepted connection: first its handshake is under way, then it has a transport."""

    def __init__(self, accepted: socket.socket, opening: asyncio.Task[None], address: str, own: bool) -> None:
        self._accepted = accepted
        self.opening = opening
        self.address = address
        self.own = own
        """Whether that is an address of the node."""
        self.transport: asyncio.Transport | None = None
        self.has_certificate = False
        """Whether the peer has shown one."""
        self.answers = 0
        """Number of requests being answered."""

    @property
    def over(self) -> bool:
        """Whether it no longer counts."""
        # A transport that is closing waits for its peer, with all its buffers.
        return self._accepted.fileno() < 0 or (self.transport is None and self.opening.done())

    def spare(self, counts: Mapping[str, int]) -> tuple[bool, int]:
        """How soon it is closed where there are too many, by the connections of each address; the higher, the sooner.

        Everybody who comes through a port on the nodes has the same address as kube-scheduler.
        """
        return not self.has_certificate, counts[self.address]

    def drop(self) -> None:
        """Close it immediately."""
        if self.transport is not None:
            self.transport.abort()
        else:
            self.opening.cancel()


class Listener:
    """Accepts from ``start`` until ``stop``; what is open then may stay so until ``end``.

    Args:
        own: addresses for whose connections places are kept, and whose handshakes do not wait.
    """

    def __init__(self, own: Collection[str] = ()) -> None:
        self._own = frozenset(own)
        self._make: Callable[[], asyncio.BaseProtocol] = asyncio.Protocol
        self._tls: ssl.SSLContext | None = None
        self._acceptors: list[Acceptor] = []
        self._connections: list[_Connection] = []
        """Oldest first."""
        self._paces: dict[str, Pace] = {}
        """By address."""
        self._told = -TELL_SECONDS

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return self._acceptors[0].port

    async def start(
        self, make: Callable[[], asyncio.BaseProtocol], address: str, port: int, tls: ssl.SSLContext | None
    ) -> None:
        """Listen. Raises OSError if the port is not available.

        Args:
            make: creates the protocol of a connection.
            address: to listen on.
            port: to listen on; 0 for any.
            tls: None for plain TCP.
        """
        loop = asyncio.get_running_loop()
        self._make, self._tls = make, tls
        found = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, where in dict.fromkeys((family, where[:2]) for family, _, _, _, where in found):
                listener = socket.create_server(where, family=family, backlog=BACKLOG)
                self._acceptors.append(Acceptor(listener, self._accept))
        except OSError:
            self._close()
            raise

    async def stop(self) -> None:
        """Accept no more connections; open ones are kept."""
        self._close()
        opening = [connection.opening for connection in self._connections]
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)

    def end(self) -> None:
        """Close immediately what is still open: a peer that does not read would keep it so."""
        for connection in self._connections:
            connection.drop()

    @contextmanager
    def answering(self, transport: asyncio.BaseTransport | None) -> Iterator[None]:
        """Protect a connection from being closed while a request on it is answered."""
        found = next((item for item in self._connections if item.transport is transport), None)
        if found is None:
            yield
            return
        found.answers += 1
        try:
            yield
        finally:
            found.answers -= 1

    def _close(self) -> None:
        for acceptor in self._acceptors:
            acceptor.stop()

    def _accept(self, accepted: socket.socket, address: str) -> None:
        own = address in self._own
        if not self._has_room(own):
            accepted.close()
            return
        opening = task_of(accepted, self._open(accepted, Pace() if own else self._pace(address)))
        self._connections.append(_Connection(accepted, opening, address, own))

    def _pace(self, address: str) -> Pace:
        if len(self._paces) >= MAX_CONNECTIONS:
            self._paces = {key: pace for key, pace in self._paces.items() if pace.debt}
        return self._paces.setdefault(address, Pace())

    def _has_room(self, own: bool) -> bool:
        """Whether there is room for one more, after closing an idle connection if necessary.

        It is the oldest of the address that has the most, and of a peer that has shown a certificate only if all have.
        """
        self._connections = [item for item in self._connections if not item.over]
        rivals = [item for item in self._connections if own or not item.own]
        if len(rivals) < (MAX_CONNECTIONS if own else MAX_CONNECTIONS - OWN_CONNECTIONS):
            return True
        counts = Counter(item.address for item in rivals)
        idle = max((item for item in rivals if not item.answers), key=lambda item: item.spare(counts), default=None)
        if idle is None:
            return False
        now = time.monotonic()
        if now - self._told >= TELL_SECONDS:
            self._told = now
            log.warning("%d connections are open; the oldest idle one is closed", len(self._connections))
        idle.drop()
        self._connections.remove(idle)
        return True

    async def _open(self, accepted: socket.socket, pace: Pace) -> None:
        if self._tls is not None:
            await pace.turn()
        loop = asyncio.get_running_loop()
        seconds = HANDSHAKE_SECONDS if self._tls else None
        try:
            transport, _ = await loop.connect_accepted_socket(
                self._make, accepted, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError as error:  # includes TLS errors
            log.debug("a connection failed: %s", error)
            accepted.close()
            return
        mine = asyncio.current_task()
        for connection in self._connections:
            if connection.opening is mine:
                connection.transport = transport
                connection.has_certificate = bool(transport.get_extra_info("peercert"))
                if self._needs_certificate and not connection.has_certificate:
                    # What it refers to, with all its buffers, is not kept until then.
                    loop.call_later(STRANGER_SECONDS, _drop, weakref.ref(connection))

    @property
    def _needs_certificate(self) -> bool:
        """Whether it is a stranger who shows no certificate."""
        return self._tls is not None and self._tls.verify_mode is not ssl.CERT_NONE


def _drop(reference: weakref.ref[_Connection]) -> None:
    if connection := reference():
        connection.drop()


MAX_HEADERS: Final = 32
MAX_LINE_BYTES: Final = 1024
"""Bytes of a header, or of the first line. kube-scheduler and kubelet send half a dozen headers of 100 bytes at most.
All connections together, with the longest heads that do not end, would take some 60 MiB; strangers' are shorter."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Of one request: 15,000 whole Node objects. Names alone (``nodeCacheCapable: true``) need a hundredth of that."""
LARGE_BYTES: Final = 1024 * 1024
"""Larger requests are read one after another, so that together they cannot exhaust the memory."""
READ_SECONDS: Final = 10.0
"""For the whole body of a request."""
FORWARD_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 120.0
"""Idle connections are kept longer than the scheduler keeps them (90 s), so that no request meets a closing one. If
there are too many, the oldest is closed earlier."""
STOP_SECONDS: Final = 10.0
"""Seconds for the answers that are being given when it stops."""
FORWARDED: Final = "X-Neuron-Forwarded"
OPERATIONS: Final = ("filter", "prioritize", "preempt", "bind")
_PEM_END: Final = "-----END CERTIFICATE-----"

_http_log = logging.getLogger(f"{__name__}.http")
"""Messages of aiohttp."""


def _without_trace(record: logging.LogRecord) -> bool:
    """Invalid HTTP is the client's fault, so one line without a traceback is enough."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.exc_info = f"{record.msg}: %s", None
        record.args = (*(record.args if isinstance(record.args, tuple) else ()), " ".join(str(error).split())[:200])
    return True


_http_log.addFilter(_without_trace)


@dataclass(frozen=True, slots=True)
class State:
    """Who answers: this replica if ``ready``, else ``leader`` (``host:port``), else nobody; ``text`` says why."""

    ready: bool
    leader: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate (or chain) and key as PEM files, the same on all replicas.

    Attributes:
        client_ca: CA of the clients' certificates; None admits everyone who reaches the port.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def server(self) -> ssl.SSLContext:
        """TLS context of the server. Raises DriverError if the files cannot be used."""
        context = Context(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise DriverError(
                f"the certificate {self.certificate} with key {self.key} cannot be used: {error}",
                remedy="give PEM files that belong together",
            ) from error
        if self.client_ca is not None:
            # Optional, since kubelet's probes have no certificate: the handlers require it.
            context.verify_mode = ssl.CERT_OPTIONAL
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise DriverError(
                    f"the CA of the clients, {self.client_ca}, cannot be used: {error}", remedy="give a PEM file"
                ) from error
            self._trust_own(context)
        return context

    def client(self) -> ssl.SSLContext:
        """TLS context for requests to the leader: both have exactly this certificate, which need not name a pod."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        self._trust_own(context)
        context.load_cert_chain(self.certificate, self.key)
        return context

    def _trust_own(self, context: ssl.SSLContext) -> None:
        # Only the first certificate of the file: its issuers have signed others, too.
        first, end, _ = self.certificate.read_text(encoding="ascii").partition(_PEM_END)
        context.load_verify_locations(cadata=first + end)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


class ExtenderServer:
    """Serves until ``stop``.

    Args:
        fit_cache: where pods fit.
        binder: binds them.
        state: called for each request.
        operations: receives the durations for the metrics.
        live: why the process should be restarted, for ``/livez``.
        unready: why it should get no requests, for ``/readyz``.
        tls: None for plain HTTP.
        own: addresses from which the node itself connects.
    """

    def __init__(
        self,
        fit_cache: FitCache,
        binder: Binder,
        state: Callable[[], State],
        operations: Operations,
        live: Callable[[], list[str]],
        unready: Callable[[], list[str]],
        tls: Tls | None,
        own: Collection[str] = (),
    ) -> None:
        self._fit_cache = fit_cache
        self._binder = binder
        self._state = state
        self._operations = operations
        self._tls = tls
        self._turns = Turns()
        # A single thread each: more would only take turns, and health checks are answered elsewhere.
        self._judge = Workers(1, "judge")
        self._preemption = Workers(1, "preempt")
        self._large = asyncio.Lock()
        self._client: aiohttp.ClientSession | None = None
        app = web.Application(client_max_size=MAX_BYTES, middlewares=[self._close_to_strangers])
        app.add_routes(
            [
                web.post("/filter", self._asked("filter", self._filter)),
                web.post("/prioritize", self._asked("prioritize", self._prioritize)),
                web.post("/preempt", self._asked("preempt", self._preempt)),
                web.post("/bind", self._asked("bind", self._bind)),
                web.get("/livez", _health(live)),
                web.get("/readyz", _health(unready)),
            ]
        )
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_http_log,
            handle_signals=False,
            shutdown_timeout=STOP_SECONDS,
            # To read what nobody needs takes the event loop's time. An answer is lost at most to who is still sending
            # hundreds of kB when it comes.
            lingering_time=0.0,
            keepalive_timeout=IDLE_SECONDS,
            max_headers=MAX_HEADERS,
            max_field_size=MAX_LINE_BYTES,
            max_line_size=MAX_LINE_BYTES,
            # aiohttp would unpack bodies in the event loop, also those that nobody reads.
            auto_decompress=False,
        )
        self._listener = Listener(own)
        self.port = 0

    async def start(self, address: str, port: int) -> None:
        """Listen. Raises DriverError if the port is not available."""
        context = self._tls.server() if self._tls else None
        await self._runner.setup()
        make = cast("Callable[[], asyncio.BaseProtocol]", self._runner.server)  # there is one after setup()
        try:
            await self._listener.start(make, address, port, context)
        except OSError as error:
            raise DriverError(
                f"cannot listen on {address}:{port}: {error.strerror or error}",
                remedy="find what uses the port, or choose another with --port",
            ) from error
        self.port = self._listener.port
        connector = aiohttp.TCPConnector(ssl=self._tls.client() if self._tls else True)
        timeout = aiohttp.ClientTimeout(total=FORWARD_SECONDS)
        self._client = aiohttp.ClientSession(connector=connector, timeout=timeout)

    async def stop(self) -> None:
        """Answer pending requests, and stop."""
        await self._listener.stop()
        await self._runner.cleanup()
        self._listener.end()
        if self._client is not None:
            await self._client.close()
        self._judge.shutdown()
        self._preemption.shutdown()
        await self._turns.stop()

    def _asked(
        self, name: str, answer: Callable[[web.Request, bytes], Awaitable[tuple[bytes, bool]]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            started = time.perf_counter()
            done = False
            try:
                if self._is_stranger(request):
                    raise web.HTTPUnauthorized(
                        text="a client certificate is needed, signed by the CA of --tls-client-ca\n"
                    )
                body = await self._read(request)
                if coding := request.headers.get("Content-Encoding"):
                    raise web.HTTPUnsupportedMediaType(text=f"a body with Content-Encoding: {coding} is not taken\n")
                with self._listener.answering(request.transport):
                    state = self._state()
                    if not state.ready:
                        return await self._elsewhere(request, body, state)
                    text, done = await answer(request, body)
                    return web.Response(body=text, content_type="application/json")
            except DriverError as error:
                log.warning("%s from %s was refused: %s", name, request.remote, error)
                return web.Response(status=400, text=f"{error}\n")
            finally:
                self._operations.observe(name, time.perf_counter() - started, ok=done)

        return handle

    def _is_stranger(self, request: web.Request) -> bool:
        """Whether a certificate is needed, and the client has shown none."""
        needed = self._tls is not None and self._tls.client_ca is not None
        return needed and not request.get_extra_info("peercert")

    @web.middleware
    async def _close_to_strangers(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            response = await handler(request)
        except web.HTTPException as refusal:
            if self._is_stranger(request):
                refusal.force_close()
            raise
        if self._is_stranger(request):
            response.force_close()  # kubelet dials anew for each probe
        return response

    async def _read(self, request: web.Request) -> bytes:
        length = request.content_length
        if length is not None and length > MAX_BYTES:
            raise web.HTTPRequestEntityTooLarge(MAX_BYTES, length)
        try:
            async with asyncio.timeout(READ_SECONDS):
                if length is not None and length <= LARGE_BYTES:
                    return await request.read()
                async with self._large:
                    return await request.read()
        except TimeoutError as error:
            refusal = web.HTTPRequestTimeout(text=f"the request did not arrive within {READ_SECONDS:g} s\n")
            # Data that arrives late would be taken for the next request.
            refusal.force_close()
            raise refusal from error

    async def _filter(self, _: web.Request, body: bytes) -> tuple[bytes, bool]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._judge, answers.filter_, self._fit_cache, body), True

    async def _prioritize(self, _: web.Request, body: bytes) -> tuple[bytes, bool]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._judge, answers.prioritize, self._fit_cache, body), True

    async def _preempt(self, _: web.Request, body: bytes) -> tuple[bytes, bool]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._preemption, answers.preempt, self._fit_cache, body), True

    async def _bind(self, request: web.Request, body: bytes) -> tuple[bytes, bool]:
        asked = answers.bind_request(body)

        def gone() -> bool:
            return request.transport is None or request.transport.is_closing()

        try:
            self._binder.require_idle(asked.uid)
            return await self._turns.run(asked.namespace, partial(answers.bind, self._binder, asked), gone)
        except DriverError as error:
            return answers.not_bound(asked, error), False

    async def _elsewhere(self, request: web.Request, body: bytes, state: State) -> web.Response:
        """Forward a request to the leader."""
        if not state.leader or self._client is None or FORWARDED in request.headers:
            return web.Response(status=503, text=f"{state.text}\n")
        url = f"{'https' if self._tls else 'http'}://{state.leader}{request.path}"
        headers = {FORWARDED: "1", "Content-Type": "application/json"}
        try:
            async with self._client.post(url, data=body, headers=headers) as answer:
                return web.Response(
                    status=answer.status, body=await answer.read(), content_type=answer.content_type or "text/plain"
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("the leader at %s did not answer: %s", state.leader, repr(error))
            return web.Response(status=503, text=f"the leader at {state.leader} did not answer\n")


def _health(problems: Callable[[], list[str]]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(_: web.Request) -> web.StreamResponse:
        found = problems()
        return web.Response(status=503 if found else 200, text="\n".join([*found, ""]) or "ok\n")

    return handle

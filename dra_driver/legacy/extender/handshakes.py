"""Bounds of TLS handshakes: each takes the time of the event loop, as long as the client likes.

Before it is known whether a client's certificates are worth anything, OpenSSL parses all of them, up to 100 kB, and
looks for a chain: a fifth of a second for one handshake. So what a client may send until then is bounded, and its
address is charged for the time that its handshakes have really taken.

Nor is a handshake the end of it. Records without a request, such as new keys or empty lines, would be read as fast as
they come, and each takes its time, however short it is. So who has to show a certificate and has none may send no more
than a request, and its address is charged for the time that reading it takes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar, cast

HANDSHAKES: Final = 50
"""Handshakes a second with one address, if they took no time: a connection costs more than its handshake."""
AT_ONCE: Final = 30
"""Handshakes with one address that do not wait."""
SHARE: Final = 0.1
"""Share of the event loop's time for handshakes with one address."""
DEBT_SECONDS: Final = 0.3
"""Time of the event loop that handshakes with one address may take in advance; then those under way fail. Thirty at
once take a sixth of that."""
MAX_BYTES: Final = 8 * 1024
"""Bytes that a client may send until its handshake is over: a ClientHello with post-quantum keys has 2 kB, a session
ticket with a certificate 2 kB, a certificate with two intermediates 4 kB. Such an amount takes 20 ms at most."""
MAX_REQUEST_BYTES: Final = 8 * 1024
"""Bytes, as they are sent, of who has to show a certificate and has none, after his handshake: kubelet's probe has
200."""

T = TypeVar("T")


class Pace:
    """How many handshakes with one address may begin, and how long they may take."""

    def __init__(self) -> None:
        self._waiting = asyncio.Lock()
        self._end = 0.0
        """When the address is even again (monotonic clock)."""

    @property
    def debt(self) -> float:
        """Seconds until the address may have had all that it has had."""
        return max(self._end - time.monotonic(), 0.0)

    @property
    def is_exhausted(self) -> bool:
        """Whether handshakes under way are to fail: many may have begun before any has taken its time."""
        return self.debt > AT_ONCE / HANDSHAKES + DEBT_SECONDS / SHARE

    async def turn(self) -> None:
        """Wait, in the order of the calls, until a handshake may begin; it is that of the calling task."""
        async with self._waiting:
            while (wait := self.debt - (AT_ONCE - 1) / HANDSHAKES) > 0:  # noqa: ASYNC110 # charges make it longer
                await asyncio.sleep(wait)
            self._charge(1 / HANDSHAKES)
        _pace.set(self)

    def spend(self, seconds: float) -> None:
        """Charge it for what a handshake has taken."""
        self._charge(seconds / SHARE)

    def _charge(self, seconds: float) -> None:
        self._end = max(self._end, time.monotonic()) + seconds


_pace: ContextVar[Pace] = ContextVar("pace")
"""The pace of the handshake that a task begins."""


class Context(ssl.SSLContext):
    """The TLS context of a server whose handshakes are bounded."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin what is spoken on a connection; asyncio calls it in the task that connects."""
        handshake = cast("_Handshake", super().wrap_bio(incoming, outgoing, server_side, server_hostname, session))
        handshake.incoming, handshake.pace = incoming, _pace.get(Pace())
        return handshake


class _Handshake(ssl.SSLObject):
    """What is spoken on a connection, first of all its handshake."""

    incoming: ssl.MemoryBIO
    pace: Pace
    room = MAX_BYTES
    """Bytes that the client may still send: of its handshake, then as a stranger."""
    is_stranger = False
    """Whether it has ended its handshake without the certificate that it would need."""

    def do_handshake(self) -> None:
        """Go on as far as possible with what has come."""
        if self.pace.is_exhausted:
            raise ssl.SSLError("handshakes with its address have taken too long")
        come = self.incoming.read()
        # The rest may be a request already, which does not count.
        taken, rest = come[: self.room], come[self.room :]
        self.incoming.write(taken)
        self.room -= len(taken)
        began = time.thread_time()
        try:
            super().do_handshake()
            self.room = MAX_REQUEST_BYTES
            self.is_stranger = self.context.verify_mode is not ssl.CERT_NONE and not self.getpeercert()
        except ssl.SSLWantReadError:
            if rest:
                raise ssl.SSLError(f"its handshake has more than {MAX_BYTES} bytes") from None
            raise
        finally:
            self.pace.spend(time.thread_time() - began)
            self.incoming.write(rest)

    def read(self, *args: Any) -> Any:
        """What the client has said, as ``ssl.SSLObject`` reads it."""
        return self._hear(lambda: super(_Handshake, self).read(*args))

    def unwrap(self) -> None:
        """Take leave, for which what comes until then is read as well."""
        self._hear(super().unwrap)

    def _hear(self, read: Callable[[], T]) -> T:
        """Read on, if the client may say so much."""
        if not self.is_stranger:
            return read()
        if self.pace.is_exhausted:
            raise ssl.SSLError("what its address has said has taken too long")
        come = self.incoming.pending
        if come > self.room:
            raise ssl.SSLError(f"it has said more than {MAX_REQUEST_BYTES} bytes without a certificate")
        began = time.thread_time()
        try:
            return read()
        finally:
            self.room -= come - self.incoming.pending
            self.pace.spend(time.thread_time() - began)


Context.sslobject_class = _Handshake

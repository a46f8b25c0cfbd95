"""A pod that holds all connections and calls that it can get at the ports of others. It runs there, by itself.

    python3 neighbour.py SECONDS KIND:ADDRESS:PORT ...

``KIND`` says what is spoken there: ``health`` (gRPC), ``metrics`` (HTTP) or ``extender`` (HTTPS). Half of the time each
style of holding a connection has its turn at all ports at once, and what is closed is dialled again, as often as
``RATE`` allows. Then all are mixed, and in the last quarter nearly all of this is for the first port alone.
The last line on standard output says how many connections there were, as JSON: by target and style, and a second at the
first port in the end.
"""

from __future__ import annotations

import json
import random
import resource
import selectors
import socket
import ssl
import struct
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

MOST = {"health": 100, "metrics": 100, "extender": 400}
"""Connections at each port: more than it has places for."""
RATE = 1000
"""New connections a second: to all ports together, in the end to the first one."""
FLOOD_RATE_OF_OTHERS = 100
DRIP_SECONDS = 1.0
LOOK_SECONDS = 0.01
PATIENCE_SECONDS = 20.0
"""What does not read its answers may not see that it was closed; it begins anew then."""

_RESET = struct.pack("ii", 1, 0)
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2 (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def _call(stream: int, method: str, *, end: bool = True) -> bytes:
    """A call of the health service about readiness, or its beginning: no message, and no end."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/grpc.health.v1.Health/{method}",
        ":authority": "neighbour",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    # Literals that are not indexed (RFC 7541, section 6.2.2).
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
    begun = _frame(_HEADERS, _END_HEADERS, stream, block)
    message = b"\x0a\x09readiness"
    return begun + (_frame(_DATA, _END_STREAM, stream, struct.pack(">BI", 0, len(message)) + message) if end else b"")


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def _client_hello() -> bytes:
    """What a client of TLS says first."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        _tls().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="extender").do_handshake()
    return outgoing.read()


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@dataclass(frozen=True)
class Style:
    """A way to hold a connection.

    Attributes:
        first: what is said at once.
        drip: what is said then, a byte at a time.
        reads: whether answers are taken.
        tls: whether all of it is said within TLS.
    """

    first: bytes = b""
    drip: bytes = b""
    reads: bool = True
    tls: bool = False


_HTTP2 = _PREFACE + _frame(_SETTINGS, 0, 0)
_GET = b"GET /metrics HTTP/1.1\r\nHost: neighbour\r\n"
_POST = b"POST /filter HTTP/1.1\r\nHost: neighbour\r\nContent-Length: 1000\r\n"
STYLES: Mapping[str, Mapping[str, Style]] = {
    "health": {
        "silent": Style(),
        "half a preface": Style(_HTTP2[:20]),
        "a call without an end": Style(_HTTP2 + _call(1, "Check", end=False)),
        "a hundred calls without an end": Style(
            _HTTP2 + b"".join(_call(2 * number + 1, "Check", end=False) for number in range(100))
        ),
        "a call, answered": Style(_HTTP2 + _call(1, "Check")),
        "ten calls, answered": Style(_HTTP2 + b"".join(_call(2 * number + 1, "Check") for number in range(10))),
        "a watch": Style(_HTTP2 + _call(1, "Watch")),
        "a dripping call": Style(drip=_HTTP2 + _call(1, "Check")),
    },
    "metrics": {
        "silent": Style(),
        "half a request": Style(_GET),
        "a request, answered": Style(_GET + b"\r\n"),
        "a dripping request": Style(drip=_GET + b"\r\n"),
        "pipelined requests, unread": Style((_GET + b"\r\n") * 100, reads=False),
    },
    "extender": {
        "silent": Style(),
        "half a handshake": Style(_client_hello()),
        "a dripping handshake": Style(drip=_client_hello()),
        "silent after the handshake": Style(tls=True),
        "a request without a body": Style(_POST + b"\r\n", tls=True),
        "a dripping request": Style(drip=_POST, tls=True),
        "pipelined requests, unread": Style(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n" * 100, reads=False, tls=True),
    },
}
"""By what is spoken."""


@dataclass(frozen=True)
class Target:
    """A port that is attacked."""

    kind: str
    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.address}:{self.port}"


class Hold:
    """One connection."""

    def __init__(self, target: Target, style: str) -> None:
        self.target = target
        self.began = time.monotonic()
        self._style = STYLES[target.kind][style]
        self._drip = self._style.drip
        self._connected = self._begun = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = _TLS.wrap_bio(self._incoming, self._outgoing) if self._style.tls else None
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if not self._style.reads:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with suppress(BlockingIOError):
            self.socket.connect((target.address, target.port))

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def events(self) -> int:
        """What to wait for; 0: nothing."""
        if not self._connected:
            return selectors.EVENT_WRITE
        return selectors.EVENT_READ if self._style.reads or not self._begun else 0

    def go_on(self) -> None:
        """Say what is due, and take what has come. OSError if the connection is over."""
        if not self._connected:
            if error := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, "refused")
            self._connected = True
        elif self._style.reads or not self._begun:
            data = self.socket.recv(1 << 16)
            if not data:
                raise OSError("closed")
            if self._tls is not None:
                self._incoming.write(data)
        if self._tls is not None and not self._begun:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                return
        if not self._begun:
            self._begun = True
            self._say(self._style.first)

    def drip(self) -> None:
        """Say one byte more. OSError if the connection is over."""
        if self._begun and self._drip:
            self._say(self._drip[:1])
            self._drip = self._drip[1:]
        if self._begun and not self._style.reads:
            if time.monotonic() - self.began > PATIENCE_SECONDS:
                raise OSError("it may have been closed")
            with suppress(BlockingIOError):
                self.socket.recv(1, socket.MSG_PEEK)

    def _say(self, data: bytes) -> None:
        if self._tls is not None:
            if data:
                self._tls.write(data)
            self._flush()
        elif data:
            with suppress(BlockingIOError):
                self.socket.send(data)

    def _flush(self) -> None:
        if data := self._outgoing.read():
            with suppress(BlockingIOError):
                self.socket.send(data)


class Neighbour:
    """Holds connections at all targets."""

    def __init__(self, targets: list[Target]) -> None:
        self._targets = targets
        self._selector = selectors.DefaultSelector()
        self._holds: dict[Target, dict[Hold, str]] = {target: {} for target in targets}
        self._due = deque(targets)
        self.connections: dict[Target, Counter[str]] = {target: Counter() for target in targets}

    def attack(self, seconds: float) -> float:
        """Attack for a time; returns the connections a second that the first target had of the last quarter."""
        begin = last = dripped = time.monotonic()
        allowance = flood = 0.0
        floods, turn = 0, None
        turns = max(map(len, STYLES.values()))
        while (elapsed := (now := time.monotonic()) - begin) < seconds:
            before, turn = turn, int(elapsed / (seconds / 2) * turns) if elapsed < seconds / 2 else None
            if turn is not None and turn != before:
                self._close_all()
            flooding = elapsed >= seconds * 3 / 4
            allowance += (now - last) * (FLOOD_RATE_OF_OTHERS if flooding else RATE)
            allowance = self._open(turn, min(allowance, RATE / 10))
            flood = min(flood + (now - last) * RATE, RATE / 10) if flooding else 0.0
            for _ in range(int(flood)):
                self._replace(self._targets[0])
            floods += int(flood)
            flood -= int(flood)
            last = now
            if now - dripped > DRIP_SECONDS:
                dripped = now
                self._drip()
            for key, _ in self._selector.select(LOOK_SECONDS):
                self._go_on(key.fileobj)
        self._close_all()
        return floods / (seconds / 4)

    def _open(self, turn: int | None, allowance: float) -> float:
        """Open what is missing, one at each target after the other; returns what is left of the allowance."""
        full = 0
        while allowance >= 1 and full < len(self._due):
            target = self._due[0]
            self._due.rotate(-1)
            if len(self._holds[target]) >= MOST[target.kind]:
                full += 1
                continue
            full = 0
            allowance -= 1
            self._dial(target, turn)
        return allowance

    def _dial(self, target: Target, turn: int | None) -> None:
        styles = list(STYLES[target.kind])
        style = random.choice(styles) if turn is None else styles[turn % len(styles)]
        try:
            hold = Hold(target, style)
        except OSError:  # no ports are left, or nobody is there
            return
        self._holds[target][hold] = style
        self.connections[target][style] += 1
        self._selector.register(hold, hold.events)

    def _replace(self, target: Target) -> None:
        """Dial anew although all places are taken, in the place of the oldest."""
        holds = self._holds[target]
        if len(holds) >= MOST[target.kind]:
            self._close(next(iter(holds)))
        self._dial(target, None)

    def _go_on(self, hold: object) -> None:
        assert isinstance(hold, Hold)
        if hold.fileno() < 0:
            return
        before = hold.events
        try:
            hold.go_on()
        except OSError:  # of TLS, too
            self._close(hold)
            return
        if hold.events == before:
            return
        if hold.events:
            self._selector.modify(hold, hold.events)
        else:
            self._selector.unregister(hold)

    def _drip(self) -> None:
        for holds in self._holds.values():
            for hold in list(holds):
                try:
                    hold.drip()
                except OSError:
                    self._close(hold)

    def _close(self, hold: Hold) -> None:
        with suppress(KeyError):
            self._selector.unregister(hold)
        hold.socket.close()
        del self._holds[hold.target][hold]

    def _close_all(self) -> None:
        for holds in self._holds.values():
            for hold in list(holds):
                self._close(hold)


_TLS = _tls()


def main() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    targets = []
    for argument in sys.argv[2:]:
        kind, address, port = argument.split(":")
        targets.append(Target(kind, address, int(port)))
    neighbour = Neighbour(targets)
    flood = neighbour.attack(float(sys.argv[1]))
    connections = {str(target): counts for target, counts in neighbour.connections.items()}
    sys.stdout.write(json.dumps({"connections": connections, "flood": flood}) + "\n")


if __name__ == "__main__":
    main()

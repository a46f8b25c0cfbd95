"""One door for all that a program serves on the network: one thread, and bounds for whoever comes in.

Any pod can reach these ports. It may connect and say nothing, say it slowly, or never take the answer, as often as it
likes. So connections are bounded: in number, in bytes, in the time to their first request, between two requests and for
taking an answer, and in age. A newcomer is never refused: where all places are taken, the address that has the most
loses one, the oldest that is silent. Some places are kept for the node's own addresses, from which kubelet probes. What
may take long (a check, a page of metrics) is called in another thread (``Turns``), while the door goes on.

The door knows connections and bytes; what is spoken on a connection is its ``Conversation``.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from dra_driver.util.worker import Worker

OWN_PLACES: Final = 16
"""Connections from the node's own addresses; kubelet dials a new one for each probe."""
OTHER_PLACES: Final = 48
"""Connections from elsewhere: some scrapers, and whoever else."""
MAX_BYTES: Final = 16 * 1024
"""That a connection may send in its life; a probe sends 300, a scrape 500."""
OTHERS_SECONDS: Final = 0.02
"""Of one round, for connections from elsewhere; the rest waits for the next round. Then the door pauses for as long."""
FIRST_SECONDS: Final = 5.0
"""To the first whole request; kubelet's probes take no longer in all."""
ANSWER_SECONDS: Final = 10.0
"""To make an answer, and then to take it; Prometheus gives up on a scrape after that."""
IDLE_SECONDS: Final = 120.0
"""Between two requests; by default Prometheus scrapes every minute."""
LINGER_SECONDS: Final = 1.0
"""For the peer to read a last answer, and to close its side."""
AGE_SECONDS: Final = 600.0
"""From then on a connection is closed after its next answer, and after twice that without one."""
SHARE: Final = 0.1
"""Of the time: what the calls of one ``Turns`` may take, where the longest pause is long enough for it."""
LONGEST_PAUSE_SECONDS: Final = 0.25
"""Between two calls of one ``Turns``, where kubelet waits for them."""

_BACKLOG: Final = 1024
_READ_BYTES: Final = 4 * 1024
_ACCEPTS: Final = 64
"""In one round; then those that were accepted are served."""
_PAUSE_SECONDS: Final = 0.5
"""After a connection could not be accepted, perhaps for want of file descriptors."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: to close sends RST, so that nothing of the connection stays in the kernel."""

_Result = TypeVar("_Result")

log = logging.getLogger(__name__)


class Conversation(Protocol):
    """What is spoken on one connection. Called by the door's thread only."""

    def receive(self, data: bytes) -> None:
        """Take what has arrived. An exception closes the connection."""

    def end(self) -> None:
        """The connection is closed: let go of what belongs to it, as others may still know the conversation."""


class Connection:
    """An accepted connection. Used by the door's thread only.

    Attributes:
        address: of the peer.
        own: whether that is an address of the node.
        closed: whether it is closed. What is sent then goes nowhere.
    """

    def __init__(self, door: Door, accepted: socket.socket, address: str, own: bool) -> None:
        self.address = address
        self.own = own
        self.closed = False
        self.conversation: Conversation | None = None
        self._door = door
        self._socket = accepted
        self._born = time.monotonic()
        self._deadline = self._born + FIRST_SECONDS
        self._idle_seconds = IDLE_SECONDS
        self._bytes = 0
        self._requests = 0
        """Whole requests whose answers are not made yet."""
        self._output: deque[memoryview] = deque()
        self._ending = False
        """Whether it is closed as soon as all output is written."""

    @property
    def silent(self) -> bool:
        """Whether no request waits for its answer to be made."""
        return self._requests == 0

    @property
    def last(self) -> bool:
        """Whether the next answer is to be its last: it is old, or has sent much."""
        return time.monotonic() - self._born > AGE_SECONDS or self._bytes > MAX_BYTES // 2

    @property
    def deadline(self) -> float:
        """When it is closed if nothing happens before (monotonic clock)."""
        return min(self._deadline, self._born + 2 * AGE_SECONDS)

    def begin_answer(self) -> None:
        """Say that a whole request has arrived."""
        self._requests += 1
        self._deadline = time.monotonic() + ANSWER_SECONDS

    def end_answer(self) -> None:
        """Say that its answer was handed to ``send``."""
        self._requests -= 1
        if self.silent:
            self._deadline = time.monotonic() + (ANSWER_SECONDS if self._output else self._idle_seconds)

    def stay(self) -> None:
        """Let the peer be silent for as long as the connection may live."""
        self._deadline = self._idle_seconds = math.inf

    def send(self, data: bytes) -> None:
        """Write now what the peer takes, and the rest when it takes more."""
        if data and not self.closed:
            self._output.append(memoryview(data))
            if len(self._output) == 1:
                self.write()

    def end(self) -> None:
        """Close it when all output is written, and the peer has closed its side or had the time for it.

        What has arrived and was not read would have the kernel send RST, and the peer lose what it has not read.
        """
        self._ending = True
        if not self._output:
            self._finish()

    def attempt(self, step: Callable[[], None]) -> None:
        """Take a step of the conversation: what it raises, by a peer's fault or ours, ends this connection alone."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - see above
            log.debug("a connection of %s ends: %s: %s", self.address, type(error).__name__, error)
            self.close()

    def read(self) -> None:
        """Hand what has arrived to the conversation."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._bytes += len(data)
        if not data or self._bytes > MAX_BYTES:
            self.close()
        elif self.conversation is not None and not self._ending:
            self.conversation.receive(data)

    def write(self) -> None:
        """Write what the peer takes."""
        waited = bool(self._output) and self._door.is_writing(self)
        try:
            while self._output:
                written = self._socket.send(self._output[0])
                self._output[0] = self._output[0][written:]
                if not self._output[0]:
                    self._output.popleft()
        except BlockingIOError:
            self._door.watch(self, writing=True)
            return
        except OSError:
            self.close()
            return
        if waited:
            self._door.watch(self, writing=False)
            if self.silent:
                self._deadline = time.monotonic() + self._idle_seconds
        if self._ending:
            self._finish()

    def _finish(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
        self._deadline = time.monotonic() + LINGER_SECONDS

    def close(self) -> None:
        """Close it now; what was not written is lost."""
        if self.closed:
            return
        self.closed = True
        if self.conversation is not None:
            self.conversation.end()
        self.conversation = None  # each knows the other: of a flood, many such pairs would be garbage
        self._output.clear()
        self._door.leave(self)
        if not self._ending:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()

    def fileno(self) -> int:
        """Descriptor, for the selector."""
        return self._socket.fileno()


Begin = Callable[[Connection], Conversation]
"""Begins the conversation on a new connection."""


class Door:
    """Serves all ports that ``listen`` has opened, until ``stop``.

    Its thread begins with the first port. It is also what its worker waits with: for connections, calls and times.

    Args:
        own: addresses for whose connections places are kept.
    """

    def __init__(self, own: Collection[str] = ()) -> None:
        self._own = frozenset(own)
        self._selector = selectors.DefaultSelector()
        self._listeners: list[socket.socket] = []
        self._connections: dict[bool, list[Connection]] = {True: [], False: []}
        """The node's own, and those from elsewhere; each oldest first."""
        self._ready: list[tuple[selectors.SelectorKey, int]] = []
        self._calls: deque[Callable[[], None]] = deque()
        self._times: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._bell = -1
        """Descriptor (eventfd) that ends the waiting; there is one from the first port to the end."""
        self._ringing = threading.Lock()
        """Held while the bell is rung, or put away: its number may be another file's then."""
        self.worker = Worker("serving the network", self._serve, woken=self, at_end=self._close)

    def listen(self, address: str, port: int, begin: Begin) -> int:
        """Serve a port (0: any that is free), from any thread; returns it. Raises OSError if it cannot be had."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        both = address == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server((address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        listener.setblocking(False)
        self._listeners.append(listener)
        self.call(lambda: self._open(listener, begin))
        if self._bell < 0:
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._selector.register(self._bell, selectors.EVENT_READ, self._silence)
            self.worker.start()
        return int(listener.getsockname()[1])

    def stop(self, seconds: float = 1.0) -> None:
        """Close all ports and connections, and wait for that for at most ``seconds``."""
        if self._bell >= 0:
            self.worker.stop(seconds)
        else:
            self._selector.close()

    def call(self, function: Callable[[], None]) -> None:
        """Have the door's thread call a function soon; from any thread."""
        self._calls.append(function)
        self.set()

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function after a time; from the door's thread."""
        heapq.heappush(self._times, (time.monotonic() + seconds, next(self._order), function))

    # What the worker waits for

    def set(self) -> None:
        """End the waiting."""
        with self._ringing:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def clear(self) -> None:
        """Nothing to forget: the bell is silenced where it is heard."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for connections, calls and ``set``."""
        self._ready = self._selector.select(timeout)
        return bool(self._ready)

    # The door's thread

    def _serve(self) -> float:
        """One round; seconds until the next one is due without an event."""
        ready, self._ready = self._ready, []
        others: list[tuple[Connection, int]] = []
        for key, events in ready:
            if not isinstance(key.fileobj, Connection):
                key.data()
            elif key.fileobj.own:
                self._converse(key.fileobj, events)
            else:
                others.append((key.fileobj, events))
        now = time.monotonic()
        functions = [self._calls.popleft() for _ in range(len(self._calls))]
        while self._times and self._times[0][0] <= now:
            functions.append(heapq.heappop(self._times)[2])
        for function in functions:
            try:
                function()
            except Exception:
                log.exception("a call in the door's thread failed")
        self._serve_others(others)
        now = time.monotonic()
        connections = [*self._connections[True], *self._connections[False]]
        for connection in connections:
            if connection.deadline <= now:
                connection.close()
        due = [connection.deadline for connection in connections if not connection.closed]
        due += [self._times[0][0]] if self._times else []
        return max(min(due, default=math.inf) - time.monotonic(), 0.0)

    def _serve_others(self, ready: list[tuple[Connection, int]]) -> None:
        """After the node's own, and for half of the time at most: no flood takes the processor from the program."""
        if not ready:
            return
        began = time.monotonic()
        for connection, events in ready:
            self._converse(connection, events)
            if time.monotonic() - began > OTHERS_SECONDS:
                break
        time.sleep(time.monotonic() - began)

    def _converse(self, connection: Connection, events: int) -> None:
        if events & selectors.EVENT_WRITE and not connection.closed:
            connection.attempt(connection.write)
        if events & selectors.EVENT_READ and not connection.closed:
            connection.attempt(connection.read)

    def _open(self, listener: socket.socket, begin: Begin) -> None:
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener, begin))

    def _accept(self, listener: socket.socket, begin: Begin) -> None:
        for _ in range(_ACCEPTS):
            try:
                accepted, peer = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("a connection could not be accepted: %s", error)
                self._selector.unregister(listener)
                self.later(_PAUSE_SECONDS, lambda: self._open(listener, begin))
                return
            accepted.setblocking(False)
            address = plain_address(peer[0])
            connection = Connection(self, accepted, address, address in self._own)
            self._make_room(connection.own)
            self._connections[connection.own].append(connection)
            self._selector.register(connection, selectors.EVENT_READ)
            connection.conversation = begin(connection)

    def _make_room(self, own: bool) -> None:
        connections = self._connections[own]
        if len(connections) < (OWN_PLACES if own else OTHER_PLACES):
            return
        counts = Counter(connection.address for connection in connections)
        most = max(counts.values())
        candidates = [connection for connection in connections if counts[connection.address] == most]
        next((connection for connection in candidates if connection.silent), candidates[0]).close()

    def is_writing(self, connection: Connection) -> bool:
        """Whether it is watched for when its peer takes more."""
        return bool(self._selector.get_key(connection).events & selectors.EVENT_WRITE)

    def watch(self, connection: Connection, writing: bool) -> None:
        """Watch it for what arrives and, if ``writing``, for when its peer takes more."""
        self._selector.modify(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0))

    def leave(self, connection: Connection) -> None:
        """Forget a connection that is about to be closed."""
        self._selector.unregister(connection)
        self._connections[connection.own].remove(connection)

    def _silence(self) -> None:
        os.eventfd_read(self._bell)

    def _close(self) -> None:
        for listener in self._listeners:
            listener.close()
        for connection in [*self._connections[True], *self._connections[False]]:
            connection.close()
        self._selector.close()
        with self._ringing:
            os.close(self._bell)
            self._bell = -1


class _Question(Generic[_Result]):
    """What somebody waits for."""

    def __init__(self, function: Callable[[], _Result]) -> None:
        self.function = function
        self.recipients: list[tuple[int, Connection | None, Callable[[_Result], None]]] = []
        """First, a number that is greater the later somebody has asked."""

    @property
    def since(self) -> float:
        """The number of the first who still waits; infinite if nobody does."""
        waiting = (number for number, connection, _ in self.recipients if connection is None or not connection.closed)
        return next(waiting, math.inf)


class Turns(Generic[_Result]):
    """Calls functions that may take long, or hang, in another thread: one after the other.

    Who asks for what is being called, or is about to be, gets the result of that call. After each call there is a
    pause, so that no number of requests takes the processor from the program; the next call is for whoever has waited
    longest, so that nobody waits for more calls than there are kinds of them, whoever asks how often, from wherever.
    Who has gone is forgotten. Used by the door's thread only.

    Args:
        door: whose thread it is.
        name: of the thread in which functions are called.
        longest_pause: in seconds.
    """

    def __init__(self, door: Door, name: str, longest_pause: float = LONGEST_PAUSE_SECONDS) -> None:
        self._door = door
        self._name = name
        self._longest_pause = longest_pause
        self._order = itertools.count()
        self._asked: dict[Hashable, _Question[_Result]] = {}
        self._called: Hashable = None
        """The key of what is being called."""
        self._busy = False
        """Whether a function is being called, or the pause after it lasts."""
        self._lacking = False
        """Whether no thread could be started for the last call."""

    def ask(
        self,
        key: Hashable,
        function: Callable[[], _Result],
        give: Callable[[_Result], None],
        connection: Connection | None = None,
    ) -> None:
        """Have a function called, and its result given.

        Args:
            key: functions with the same one have the same result.
            function: must not raise.
            give: takes the result, in the door's thread.
            connection: for which it is, and with which it is forgotten; None: it stays.
        """
        question = self._asked.setdefault(key, _Question(function))
        question.recipients.append((next(self._order), connection, give))
        if len(question.recipients) > OWN_PLACES + OTHER_PLACES:
            question.recipients = [item for item in question.recipients if item[1] is None or not item[1].closed]
        if len(self._asked) > OWN_PLACES + OTHER_PLACES:
            self._forget()
        self._begin()

    def _forget(self) -> None:
        self._asked = {key: item for key, item in self._asked.items() if key == self._called or item.since < math.inf}

    def _begin(self) -> None:
        if self._busy:
            return
        self._forget()
        if not self._asked:
            return
        self._busy = True
        self._called = min(self._asked, key=lambda key: self._asked[key].since)
        arguments = (self._called, self._asked[self._called].function)
        try:
            threading.Thread(target=self._call, args=arguments, name=self._name, daemon=True).start()
        except RuntimeError as error:  # the process table is full
            if not self._lacking:
                log.warning("%s: no thread can be started: %s", self._name, error)
            self._lacking = True
            self._door.later(_PAUSE_SECONDS, self._rested)
        else:
            self._lacking = False

    def _call(self, key: Hashable, function: Callable[[], _Result]) -> None:
        began = time.monotonic()
        result = function()
        seconds = time.monotonic() - began
        self._door.call(lambda: self._give(key, result, seconds))

    def _give(self, key: Hashable, result: _Result, seconds: float) -> None:
        question = self._asked.pop(key)
        self._called = None
        self._door.later(min(seconds * (1 / SHARE - 1), self._longest_pause), self._rested)
        for _, connection, give in question.recipients:
            if connection is None:
                give(result)
            else:
                connection.attempt(lambda give=give: give(result))  # type: ignore[misc] # bound at once

    def _rested(self) -> None:
        self._busy = False
        self._begin()


def plain_address(text: str) -> str:
    """An address as sockets give it, without scope, and as IPv4 where it is IPv4."""
    address = text.partition("%")[0]
    return address.removeprefix("::ffff:") if "." in address else address


def own_addresses(node: str = "", proc: Path = Path("/proc")) -> frozenset[str]:
    """Addresses from which the node itself connects to a program in a pod on it.

    Args:
        node: the node's address, or "" where it is not known; many network plugins let kubelet's probes come from it.
        proc: where the pod's routes are read: with others, such as bridges, probes come from the pod's gateway.
    """
    gateways = set()
    try:
        for line in (proc / "net/route").read_text(encoding="ascii").splitlines()[1:]:
            gateway = line.split()[2]
            gateways.add(socket.inet_ntoa(bytes.fromhex(gateway)[::-1]))
        for line in (proc / "net/ipv6_route").read_text(encoding="ascii").splitlines():
            gateways.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[4])))
    except (OSError, ValueError, IndexError):
        log.debug("the gateways cannot be read; no places are kept for connections from there")
    return frozenset({"127.0.0.1", "::1", plain_address(node), *gateways} - {"", "0.0.0.0", "::"})  # noqa: S104

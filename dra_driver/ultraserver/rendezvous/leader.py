"""The leader's end: gathers the members over TCP, and answers until each knows its rank."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable

from dra_driver.ultraserver.rendezvous.members import GroupError, RankTable
from dra_driver.ultraserver.rendezvous.messages import (
    MAX_HELLO_BYTES,
    Confirmed,
    FromLeader,
    FromMember,
    GroupProgress,
    Hello,
    Ranks,
    from_member,
    line_of,
    refused,
)
from dra_driver.ultraserver.rendezvous.names import GroupNames
from dra_driver.ultraserver.rendezvous.roster import Roster, progress, workers
from dra_driver.util.acceptor import Acceptor, task_of
from dra_driver.util.text import one_line

HELLO_SECONDS = 10.0
"""Until a connection has sent its Hello, and then until it has proved to be that member's."""
PULSE_SECONDS = 10.0
"""Between two signs of life to each member."""
CLOSING_SECONDS = 2.0
SILENT_CONNECTIONS = 384
"""Those without a Hello; with the others fewer than the 1024 files that a process may have open by default."""
DOUBTFUL_CONNECTIONS = 64
"""Those with a Hello that DNS is asked about."""
MAX_COMPLAINTS = 20
"""Connections between two pulses of which it is said why they were ended."""


def listen(address: str, port: int) -> socket.socket:
    """Open the leader's port; "" stands for every address of the pod, including IPv6. Raises OSError."""
    if not address and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 may be compiled in but disabled
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


async def lead(
    own: Hello,
    listener: socket.socket,
    within: float,
    keep: Callable[[RankTable], None],
    say: Callable[[str], None],
    names: GroupNames | None = None,
) -> None:
    """Gather the group, store its own rank, and stay until every member has confirmed.

    Args:
        own: the leader's own Hello.
        listener: a listening socket; closed at the end.
        within: seconds for everything.
        keep: called once with the complete group.
        say: called with progress messages.
        names: of the group's pods; None where these have none, so that whoever connects is believed.

    Raises:
        GroupError: the group cannot start; all connected members get the same text.
        OSError: raised by ``keep``.
    """
    leader = _Leader(own, say, names)
    acceptor = Acceptor(listener, leader.take)
    pulse = asyncio.create_task(leader.pulse())
    try:
        async with asyncio.timeout(within):
            keep(await leader.gathered())
            await leader.confirmed()
    except TimeoutError:
        late = leader.late(within)
        leader.tell(refused(late))
        raise late from None
    except (GroupError, OSError) as error:
        leader.tell(refused(error))
        raise
    finally:
        pulse.cancel()
        acceptor.stop()
        await leader.close()


class _Newcomers:
    """Connections that have not proved to be a member's. None is refused: at the bound, another one makes room.

    Whoever connects as often as he can takes the places of his own connections: the address that has the most loses the
    oldest. From that address, too, a member has the time for its Hello, which it sends at once.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._taken: dict[asyncio.StreamWriter, asyncio.Timeout] = {}  # oldest first

    @contextlib.asynccontextmanager
    async def place(self, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        """A place for what follows. Raises TimeoutError if it takes too long, or another one needs the place."""
        async with asyncio.timeout(HELLO_SECONDS) as timeout:
            self._taken[writer] = timeout
            if len(self._taken) > self._places:
                self._make_room()
            try:
                yield
            finally:
                self._taken.pop(writer, None)

    def _make_room(self) -> None:
        counts = Counter(map(_peer, self._taken))
        writer = max(self._taken, key=lambda writer: counts[_peer(writer)])
        timeout = self._taken.pop(writer)
        writer.transport.abort()
        if not timeout.expired():
            timeout.reschedule(0.0)


class _Leader:
    """The connections of one group; all of it runs in one thread."""

    def __init__(self, own: Hello, say: Callable[[str], None], names: GroupNames | None) -> None:
        self.roster = Roster(own)
        self._names = names
        self._changed = asyncio.Event()
        self._size = own.size
        self._say = say
        self._numbers = itertools.count(1)
        self._connected: dict[int, asyncio.StreamWriter] = {}  # by worker index
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        # Each their own: who has said Hello does not take the places of those who have not had the time.
        self._silent, self._doubtful = _Newcomers(SILENT_CONNECTIONS), _Newcomers(DOUBTFUL_CONNECTIONS)
        self._complaints = 0
        self._note()

    async def gathered(self) -> RankTable:
        """Wait until all members have reported. Raises GroupError if they do not form a group."""
        while self.roster.missing:
            self._changed.clear()
            await self._changed.wait()
        return self.roster.assign_ranks()

    async def confirmed(self) -> None:
        """Send the members their ranks, and wait until each has confirmed."""
        if self.roster.table is not None:
            self.tell(Ranks(list(self.roster.table.members)))
        while self.roster.unconfirmed:
            self._changed.clear()
            await self._changed.wait()

    def take(self, accepted: socket.socket, _address: str) -> None:
        """Converse on a connection until its end."""
        task = task_of(accepted, self._accompany(accepted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accompany(self, accepted: socket.socket) -> None:
        """One connection from its beginning to its end."""
        reader, writer = await asyncio.open_connection(sock=accepted, limit=MAX_HELLO_BYTES)
        self._open.add(writer)
        try:
            await self._converse(reader, writer)
        except (OSError, GroupError, ValueError) as error:
            # The group does not depend on this connection: a member reconnects.
            self._complaints += 1
            if self._complaints <= MAX_COMPLAINTS:
                why = one_line(str(error), 300) or type(error).__name__  # it may be a stranger's text
                self._say(f"a connection from {_peer(writer)} was ended: {why}")
        finally:
            self._open.discard(writer)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._silent.place(writer):
            hello = await _read(reader)
        if hello is None:
            return
        if not isinstance(hello, Hello):
            raise GroupError("it confirmed before it sent its Hello")
        # Not refused: a member tries again, and DNS learns of a pod, or of its new address, only after a while.
        if self._names is not None:
            async with self._doubtful.place(writer):
                why = await self._names.objection(hello.member, _peer(writer))
            if why:
                raise GroupError(why)
        number, index = next(self._numbers), hello.member.index
        try:
            self.roster.take(hello, number)
        except GroupError as error:
            writer.write(line_of(refused(error)))
            await writer.drain()
            raise
        earlier = self._connected.get(index)
        self._connected[index] = writer
        if earlier is not None:
            earlier.close()
        self._note()
        if self.roster.table is not None:
            writer.write(line_of(Ranks(list(self.roster.table.members))))
        try:
            # A member sends nothing else, so next is its confirmation or the end of the connection.
            if isinstance(await _read(reader), Confirmed) and self.roster.table is not None:
                self.roster.confirm(index)
        finally:
            if self._connected.get(index) is writer:
                del self._connected[index]
            self.roster.leave(index, number)
            self._note()

    def _note(self) -> None:
        """Report the group's progress, and wake whoever waits for it."""
        if self.roster.table is None:
            self._say(progress(self._size, self.roster.missing))
            self.tell(self._progress())
        self._changed.set()

    def _progress(self) -> GroupProgress:
        return GroupProgress(self._size, self.roster.missing)

    async def pulse(self) -> None:
        """Send signs of life to the members."""
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            if self._complaints > MAX_COMPLAINTS:
                self._say(f"more connections that were ended: {self._complaints - MAX_COMPLAINTS}")
            self._complaints = 0
            if self.roster.table is None:
                self._say(progress(self._size, self.roster.missing))
                self.tell(self._progress())

    def tell(self, message: FromLeader) -> None:
        """Send a message to every connected member."""
        for writer in self._connected.values():
            writer.write(line_of(message))

    def late(self, within: float) -> GroupError:
        """The error for a group that is not complete in time."""
        if self.roster.table is None:
            there = progress(self._size, self.roster.missing)
            return GroupError(
                f"{there}, but {within:g} s have passed",
                consequence="the group cannot start",
                remedy="kubectl describe the missing pods: they may be Pending because no node is free",
            )
        return GroupError(
            f"{workers(self.roster.unconfirmed)} did not confirm within {within:g} s",
            consequence="the group cannot start",
            remedy="see the log of that pod's init container",
        )

    async def close(self) -> None:
        """Close all connections gracefully, so that the last messages still arrive."""
        writers = list(self._open)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_SECONDS):
                await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
        for writer in writers:
            writer.transport.abort()  # whose peer does not read


async def _read(reader: asyncio.StreamReader) -> FromMember | None:
    """The next message; None at the end of the connection. Raises ValueError for a line that is too long."""
    line = await reader.readline()
    return from_member(line) if line else None


def _peer(writer: asyncio.StreamWriter) -> str:
    return str((writer.get_extra_info("peername") or ("somewhere",))[0])

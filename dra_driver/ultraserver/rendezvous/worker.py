"""The worker's end: finds the leader, reports to it, and waits for its rank."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from dra_driver.ultraserver.rendezvous.members import GroupError, RankTable, assign_ranks
from dra_driver.ultraserver.rendezvous.messages import (
    MAX_ANSWER_BYTES,
    Confirmed,
    GroupProgress,
    Hello,
    Ranks,
    RefusalMessage,
    from_leader,
    line_of,
)
from dra_driver.ultraserver.rendezvous.roster import progress
from dra_driver.util.text import one_line, printable

CONNECT_SECONDS = 5.0
RETRY_SECONDS = 1.0
SILENCE_SECONDS = 45.0
"""Without a sign of life for so long, the leader's node may be lost: reconnect. Several times the leader's pulse."""
CLOSING_SECONDS = 2.0


class _RefusedError(GroupError):
    """The leader refused, so retrying is of no use."""


async def follow(
    own: Hello, leader: tuple[str, int], within: float, keep: Callable[[RankTable], None], say: Callable[[str], None]
) -> None:
    """Report to the leader and store the rank that comes back.

    Args:
        own: this member's Hello.
        leader: host and port; the host may end with a dot, see ``names.whole_name``.
        within: seconds for everything. The leader may come late, restart, or have no DNS name yet.
        keep: called with the complete group before it is confirmed, and again if the confirmation was lost.
        say: called with progress messages.

    Raises:
        GroupError: the leader refused, or the time is over.
        OSError: raised by ``keep``.
    """
    attempts = _Attempts(own, leader, keep, say)
    try:
        async with asyncio.timeout(within) as limit:
            while True:
                if await attempts.once(limit):
                    return
                await asyncio.sleep(RETRY_SECONDS)
    except TimeoutError:
        raise GroupError(
            f"{within:g} s have passed without a rank from the leader {_text(leader)}: {attempts.last}",
            consequence="the group cannot start",
            remedy="see the log of the leader's init container",
        ) from None


class _Attempts:
    def __init__(
        self, own: Hello, leader: tuple[str, int], keep: Callable[[RankTable], None], say: Callable[[str], None]
    ) -> None:
        self._own = own
        self._leader = leader
        self._keep = keep
        self._say = say
        self.last = "it was never reached"

    async def once(self, limit: asyncio.Timeout) -> bool:
        """Whether the rank is stored; False if a retry is worthwhile. ``limit``: of the time for everything."""
        host, port = self._leader
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(host, port, limit=MAX_ANSWER_BYTES)
        except OSError as error:
            self._tell(f"the leader {_text(self._leader)} cannot be reached yet: {str(error) or 'no answer'}")
            return False
        try:
            writer.write(line_of(self._own))
            table = await self._answer(reader)
        except _RefusedError:
            raise
        except (OSError, GroupError, ValueError) as error:
            self._tell(f"the connection to the leader was lost: {one_line(str(error), 300) or 'no sign of life'}")
            return False
        else:
            # The leader, once it has the confirmation, waits for nobody any more: from here on it must not be too late.
            limit.reschedule(None)
            self._keep(table)
            await _confirm(reader, writer)
            return True
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> RankTable:
        while True:
            async with asyncio.timeout(SILENCE_SECONDS):
                line = await reader.readline()
            if not line:
                raise GroupError("it closed the connection, and its log says why")
            answer = from_leader(line)
            if isinstance(answer, RefusalMessage):
                raise _RefusedError(printable(answer.reason))
            if isinstance(answer, Ranks):
                return self._checked(answer)
            self._progress(answer)

    def _progress(self, answer: GroupProgress) -> None:
        self._tell(progress(answer.size, answer.missing))

    def _checked(self, answer: Ranks) -> RankTable:
        if self._own.member not in answer.members:
            raise GroupError("its table lacks this member")
        return assign_ranks(answer.members, self._own.size, self._own.nodes)

    def _tell(self, text: str) -> None:
        if text != self.last:
            self.last = text
            self._say(text)


def _text(leader: tuple[str, int]) -> str:
    return f"{leader[0].removesuffix('.')}:{leader[1]}"


async def _confirm(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The leader closes the connection once it has read this; a leader that is gone by then waits for nothing."""
    with contextlib.suppress(OSError, ValueError):
        writer.write(line_of(Confirmed()))
        await writer.drain()
        async with asyncio.timeout(CLOSING_SECONDS):
            while await reader.readline():
                pass

"""The leader's view of its group: who is there, who is missing, who knows its place. Touches nothing."""

from __future__ import annotations

from collections.abc import Iterable

from dra_driver.groupstart.members import LONGEST_LIST, GroupError, Member, Table, arrange
from dra_driver.groupstart.messages import Hello
from dra_driver.util.text import first_of


class Roll:
    """Members by worker index. A member counts as long as its connection lasts, and for good once there is a table.

    Args:
        own: what the leader would say of itself.
    """

    def __init__(self, own: Hello) -> None:
        self._own = own
        self._seats: dict[int, tuple[Member, int]] = {own.member.index: (own.member, 0)}
        self._unconfirmed = set(range(own.size)) - {own.member.index}
        self.table: Table | None = None

    def take(self, hello: Hello, connection: int) -> None:
        """Seat a member that came over a connection (a number of its own, not 0).

        A member of the same index and host takes its earlier seat: it was restarted.

        Raises:
            GroupError: it is none of this group, its seat is taken, or it is another than the one counted.
        """
        member = hello.member
        if (hello.size, hello.nodes) != (self._own.size, self._own.nodes):
            raise GroupError(
                f"{member} belongs to a group of {hello.size} in sets of {hello.nodes} nodes, the leader to one of"
                f" {self._own.size} in sets of {self._own.nodes}",
                consequence="this member cannot take part",
                remedy="give all pods of the group the same ultraserverMode",
            )
        if not 0 < member.index < self._own.size:
            raise GroupError(f"{member} has no place in a group of {self._own.size}")
        seated = self._seats.get(member.index)
        if self.table is not None and seated and seated[0] != member:
            raise GroupError(
                f"the group has started with {seated[0]} on node {seated[0].node} of {seated[0].server}, not {member}",
                consequence="this member cannot take part",
                remedy="delete the leader pod, so that the whole group is made anew",
            )
        if seated and seated[0].host != member.host:
            raise GroupError(f"{member} comes second: {seated[0]} is there", consequence="it cannot take part")
        self._seats[member.index] = (member, connection)

    def leave(self, index: int, connection: int) -> None:
        """The connection of a member has ended."""
        seated = self._seats.get(index)
        if self.table is None and seated and seated[1] == connection:
            del self._seats[index]

    def confirm(self, index: int) -> None:
        """The member has kept its place."""
        self._unconfirmed.discard(index)

    def arrange(self) -> Table:
        """Fix the table; GroupError when the group cannot start."""
        self.table = arrange((member for member, _ in self._seats.values()), self._own.size, self._own.nodes)
        return self.table

    @property
    def missing(self) -> list[int]:
        """Indexes of the members that have not come, ascending."""
        return [index for index in range(self._own.size) if index not in self._seats]

    @property
    def unconfirmed(self) -> list[int]:
        """Indexes of the members that have not confirmed, ascending."""
        return sorted(self._unconfirmed)


def progress(size: int, missing: Iterable[int]) -> str:
    """Who is there, in a line: ``2 of 4 members: waiting for workers 2, 3``."""
    absent = sorted(set(missing))
    there = f"{size - len(absent)} of {size} members"
    return f"{there}: waiting for {workers(absent)}" if absent else there


def workers(indexes: list[int]) -> str:
    """Several workers in words."""
    return f"worker{'s' * (len(indexes) > 1)} {first_of(indexes, LONGEST_LIST)}"

"""Who of a group has reported, and who has confirmed: the leader's book of it."""

from __future__ import annotations

from collections.abc import Iterable

from dra_driver.ultraserver.rendezvous.members import MAX_LISTED, GroupError, Member, RankTable, assign_ranks
from dra_driver.ultraserver.rendezvous.messages import Hello
from dra_driver.util.text import first_of


class Roster:
    """The leader's view of its group: members by worker index.

    A member counts while its connection lasts, and permanently once there is a rank table.

    Args:
        own: the leader's own Hello.
    """

    def __init__(self, own: Hello) -> None:
        self._own = own
        self._members: dict[int, tuple[Member, int]] = {own.member.index: (own.member, 0)}
        self._unconfirmed = set(range(own.size)) - {own.member.index}
        self.table: RankTable | None = None

    def take(self, hello: Hello, connection: int) -> None:
        """Add a member that reported over a connection (a unique number, not 0).

        A member with the same index and host replaces its former entry: it was restarted.

        Raises:
            GroupError: it is not of this group, its index is taken, or it differs from the member in the rank table.
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
            raise GroupError(f"{member} has no rank in a group of {self._own.size}")
        known = self._members.get(member.index)
        if self.table is not None and known and known[0] != member:
            raise GroupError(
                f"the group has started with {known[0]} on node {known[0].node} of {known[0].server}, not {member}",
                consequence="this member cannot take part",
                remedy="delete the leader pod, so that the whole group is recreated",
            )
        if known and known[0].host != member.host:
            raise GroupError(f"{member} is a duplicate: {known[0]} is there", consequence="it cannot take part")
        self._members[member.index] = (member, connection)

    def leave(self, index: int, connection: int) -> None:
        """The connection of a member has ended."""
        known = self._members.get(index)
        if self.table is None and known and known[1] == connection:
            del self._members[index]

    def confirm(self, index: int) -> None:
        """The member has stored its rank."""
        self._unconfirmed.discard(index)

    def assign_ranks(self) -> RankTable:
        """Make the rank table. Raises GroupError if the group cannot start."""
        self.table = assign_ranks((member for member, _ in self._members.values()), self._own.size, self._own.nodes)
        return self.table

    @property
    def missing(self) -> list[int]:
        """Indexes of the members that have not reported, ascending."""
        return [index for index in range(self._own.size) if index not in self._members]

    @property
    def unconfirmed(self) -> list[int]:
        """Indexes of the members that have not confirmed, ascending."""
        return sorted(self._unconfirmed)


def progress(size: int, missing: Iterable[int]) -> str:
    """Progress in one line: ``2 of 4 members: waiting for workers 2, 3``."""
    absent = sorted(set(missing))
    there = f"{size - len(absent)} of {size} members"
    return f"{there}: waiting for {workers(absent)}" if absent else there


def workers(indexes: list[int]) -> str:
    """Several workers as text."""
    return f"worker{'s' * (len(indexes) > 1)} {first_of(indexes, MAX_LISTED)}"

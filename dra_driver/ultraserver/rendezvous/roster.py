"""The members of a group, their ranks, and the messages by which they learn them: values only.

The checks and the order are those of AWS's own init script (aws-neuron-sdk, ``src/k8/k8s-ultraserver-init-script.sh``):
each set has the wanted number of nodes, with one server id and different node ids; ranks are counted over the members
sorted by server id, node id and host.

Messages are one JSON object a line. A member sends Hello; the leader answers with GroupProgress while others are
missing (and from time to time, as a sign of life), and finally with Ranks or RefusalMessage; the member sends Confirmed
once it has stored its rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from dra_driver.util.errors import DriverError
from dra_driver.util.text import first_of

MAX_GROUP_SIZE = 1024
"""Pods; far more than the nodes of an UltraServer."""
MAX_LISTED = 8
"""Members listed in a message."""

Index = Annotated[int, msgspec.Meta(ge=0, lt=MAX_GROUP_SIZE)]
Host = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9:][A-Za-z0-9.:_-]{0,252}\Z")]
"""A host name or an IP address; nothing that a shell would split into words."""
ServerId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{0,64}\Z")]
NodeId = Annotated[int, msgspec.Meta(ge=-1, lt=MAX_GROUP_SIZE)]


class GroupError(DriverError):
    """The group cannot start."""


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pod of a group.

    Attributes:
        index: ``LWS_WORKER_INDEX``; 0 for the leader.
        host: name or address at which the other members reach the pod.
        server: id of the server, as the driver reports it for the requested mode; "" for one node alone.
        node: position of the node in the server, from 0; -1 for one node alone.
    """

    index: Index
    host: Host
    server: ServerId = ""
    node: NodeId = -1

    def __str__(self) -> str:
        return f"worker {self.index} ({self.host})" if self.index else f"the leader ({self.host})"


@dataclass(frozen=True, slots=True)
class RankTable:
    """The members of a complete group, by rank."""

    members: tuple[Member, ...]

    def rank(self, index: int) -> int:
        """Membership of the member with that worker index: ``NEURON_GLOBAL_TOPOID``."""
        return next(rank for rank, member in enumerate(self.members) if member.index == index)

    @property
    def rank0_host(self) -> str:
        """Host of the member of rank 0: ``NEURON_GLOBAL_TOPOID0_HOST``."""
        return self.members[0].host


def assign_ranks(members: Iterable[Member], size: int, nodes: int) -> RankTable:
    """Check a group and assign the ranks.

    Args:
        members: those that have reported.
        size: pods of the group.
        nodes: nodes of one UltraServer that work together: 1, 2 or 4.

    Raises:
        GroupError: the group is incomplete, or its nodes do not form complete sets.
    """
    listed = sorted(members, key=lambda member: (member.server, member.node, member.host, member.index))
    if size % nodes:
        raise GroupError(
            f"a group of {size} pods cannot be made of sets of {nodes} nodes",
            consequence="the group cannot start",
            remedy="make the LeaderWorkerSet's size a multiple of ultraserverMode",
        )
    indexes = sorted(member.index for member in listed)
    if indexes != list(range(size)):
        raise GroupError(
            f"the group has the members {indexes}, not one for each of 0 to {size - 1}",
            consequence="the group cannot start",
        )
    if nodes > 1:
        _check_servers(listed, nodes)
    return RankTable(tuple(listed))


def _check_servers(members: list[Member], nodes: int) -> None:
    servers: defaultdict[str, list[Member]] = defaultdict(list)
    for member in members:
        if not member.server.strip("0") or member.node < 0:
            raise GroupError(
                f"{member} is on a node that is not part of a set of {nodes} nodes (server id "
                f"{member.server or 'empty'}, node id {member.node})",
                consequence="the group cannot start",
                remedy="see the labels neuron.amazonaws.com/ultraserver-* of its node and the driver's log there",
            )
        servers[member.server].append(member)
    for server, found in servers.items():
        names = ", ".join(map(str, found[:MAX_LISTED]))
        if len(found) != nodes:
            raise GroupError(
                f"server {server} has {len(found)} of the group's members, and {nodes} must be together: {names}",
                consequence="the group cannot start",
                remedy=f"give the LeaderWorkerSet the annotation leaderworkerset.sigs.k8s.io/exclusive-topology:"
                f" neuron.amazonaws.com/ultraserver-server-id-{nodes}",
            )
        if len({member.node for member in found}) != nodes:
            raise GroupError(
                f"members on server {server} have the same node id: "
                + ", ".join(f"{member} has {member.node}" for member in found[:MAX_LISTED]),
                consequence="the group cannot start",
                remedy="two pods may share a node, or the server's election is stale: see the driver's log there",
            )


MAX_HELLO_BYTES = 4096
"""Bytes of a line from a member."""
MAX_ANSWER_BYTES = 1 << 20
"""Bytes of a line from the leader; the largest possible table needs less than half."""

Size = Annotated[int, msgspec.Meta(ge=1, le=MAX_GROUP_SIZE)]
MAX_REASON_LENGTH = 4096
"""Characters."""
Text = Annotated[str, msgspec.Meta(max_length=MAX_REASON_LENGTH)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of all messages."""


class Hello(_Message, frozen=True, tag="hello"):
    """From a member: who it is, and what it believes the group to be."""

    member: Member
    size: Size
    nodes: Literal[1, 2, 4]
    version: Literal[1] = 1


class GroupProgress(_Message, frozen=True, tag="progress"):
    """From the leader: who is missing."""

    size: Size
    missing: Annotated[list[Index], msgspec.Meta(max_length=MAX_GROUP_SIZE)]


class Ranks(_Message, frozen=True, tag="placed"):
    """From the leader: the complete group, by rank."""

    members: Annotated[list[Member], msgspec.Meta(max_length=MAX_GROUP_SIZE)]


class RefusalMessage(_Message, frozen=True, tag="refused"):
    """From the leader: why the group, or this member, cannot start."""

    reason: Text


class Confirmed(_Message, frozen=True, tag="confirmed"):
    """From a member: it has stored its rank and no longer needs the leader."""


FromMember = Hello | Confirmed
FromLeader = GroupProgress | Ranks | RefusalMessage

_FROM_MEMBER: msgspec.json.Decoder[FromMember] = msgspec.json.Decoder(FromMember)
_FROM_LEADER: msgspec.json.Decoder[FromLeader] = msgspec.json.Decoder(FromLeader)


def from_member(line: bytes) -> FromMember:
    """Decode a line from a member. Raises GroupError."""
    try:
        return _FROM_MEMBER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GroupError(f"not a message from a member: {error}") from error


def from_leader(line: bytes) -> FromLeader:
    """Decode a line from the leader. Raises GroupError."""
    try:
        return _FROM_LEADER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GroupError(f"not a message from the leader: {error}") from error


def refused(error: Exception) -> RefusalMessage:
    """The error as a message to the members."""
    return RefusalMessage(str(error)[:MAX_REASON_LENGTH])


def line_of(message: FromMember | FromLeader) -> bytes:
    """The message as a line, including the newline."""
    return msgspec.json.encode(message) + b"\n"


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

"""The messages by which the members of a group learn their ranks.

Messages are one JSON object a line. A member sends Hello; the leader answers with GroupProgress while others are
missing (and from time to time, as a sign of life), and finally with Ranks or RefusalMessage; the member sends Confirmed
once it has stored its rank.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from dra_driver.ultraserver.rendezvous.members import MAX_GROUP_SIZE, GroupError, Index, Member

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

"""What leader and members say to each other: one JSON object a line.

A member says Hello; the leader answers with Progress while others are missing (also now and then, as a sign of life),
and at last with Placed or Refused; the member says Confirmed once it has kept its place.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from dra_driver.groupstart.members import LARGEST_GROUP, GroupError, Index, Member

HELLO_LIMIT = 4096
"""Bytes of a line from a member."""
ANSWER_LIMIT = 1 << 20
"""Bytes of a line from the leader; the longest possible table needs less than half."""

Size = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_GROUP)]
LONGEST_REASON = 4096
"""Characters."""
Text = Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base."""


class Hello(_Message, frozen=True, tag="hello"):
    """From a member: who it is, and what it takes the group for."""

    member: Member
    size: Size
    nodes: Literal[1, 2, 4]
    version: Literal[1] = 1


class Progress(_Message, frozen=True, tag="progress"):
    """From the leader: who is missing."""

    size: Size
    missing: Annotated[list[Index], msgspec.Meta(max_length=LARGEST_GROUP)]


class Placed(_Message, frozen=True, tag="placed"):
    """From the leader: the complete group, by place."""

    members: Annotated[list[Member], msgspec.Meta(max_length=LARGEST_GROUP)]


class Refused(_Message, frozen=True, tag="refused"):
    """From the leader: why the group, or this member, cannot start."""

    reason: Text


class Confirmed(_Message, frozen=True, tag="confirmed"):
    """From a member: it has kept its place and needs the leader no more."""


FromMember = Hello | Confirmed
FromLeader = Progress | Placed | Refused

_FROM_MEMBER: msgspec.json.Decoder[FromMember] = msgspec.json.Decoder(FromMember)
_FROM_LEADER: msgspec.json.Decoder[FromLeader] = msgspec.json.Decoder(FromLeader)


def from_member(line: bytes) -> FromMember:
    """Read a line from a member; GroupError says what is wrong with it."""
    try:
        return _FROM_MEMBER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GroupError(f"not a message of a member: {error}") from error


def from_leader(line: bytes) -> FromLeader:
    """Read a line from the leader; GroupError says what is wrong with it."""
    try:
        return _FROM_LEADER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GroupError(f"not an answer of the leader: {error}") from error


def refused(error: Exception) -> Refused:
    """The error as an answer."""
    return Refused(str(error)[:LONGEST_REASON])


def line_of(message: FromMember | FromLeader) -> bytes:
    """The message as a line with its end."""
    return msgspec.json.encode(message) + b"\n"

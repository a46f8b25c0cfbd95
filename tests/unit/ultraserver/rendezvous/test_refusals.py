"""What members of a group and their leader say when one of them does not fit, and how each line is refused."""

from __future__ import annotations

import pytest

from dra_driver.ultraserver.rendezvous.environment import GroupMembership, hello
from dra_driver.ultraserver.rendezvous.members import GroupError, Member
from dra_driver.ultraserver.rendezvous.messages import Hello, from_leader, from_member
from dra_driver.ultraserver.rendezvous.roster import Roster
from tests.golden import golden_error

A = "8b6a1c0e5d2f4937"


def member(index: int, node: int = 0) -> Member:
    return Member(index, f"vllm-0-{index}.vllm.default", A, node)


def test_lines_that_are_no_messages() -> None:
    with golden_error(GroupError, "of a member"):
        from_member(b"{")
    with golden_error(GroupError, "of the leader"):
        from_leader(b"[]")


@pytest.mark.parametrize(
    "other",
    [Hello(member(1, 1), 2, 2), Hello(member(4, 1), 4, 4)],
    ids=["another group", "no rank"],
)
def test_members_that_do_not_fit(other: Hello) -> None:
    with golden_error(GroupError):
        Roster(Hello(member(0), 4, 4)).take(other, 1)


def test_a_pod_that_cannot_be_described() -> None:
    with golden_error(GroupError):
        hello(GroupMembership(0, 2, "h0", 2, "no server id", 0), "h0")

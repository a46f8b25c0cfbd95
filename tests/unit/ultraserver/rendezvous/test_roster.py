"""Places in a group: the checks, the order, and what a pod's environment says."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.ultraserver.rendezvous.environment import env_file, hello, own_host, own_membership, variables
from dra_driver.ultraserver.rendezvous.members import GroupError, Member, assign_ranks
from dra_driver.ultraserver.rendezvous.messages import (
    Confirmed,
    GroupProgress,
    Hello,
    Ranks,
    RefusalMessage,
    from_leader,
    from_member,
    line_of,
)
from dra_driver.ultraserver.rendezvous.roster import Roster, progress
from tests.golden import golden, golden_error

A, B, ZEROS = "8b6a1c0e5d2f4937", "8b6a1c0e5d2f4936", "0" * 16


def member(index: int, node: int, server: str = A, host: str = "") -> Member:
    return Member(index, host or f"vllm-0-{index}.vllm.default", server, node)


def refusal(members: list[Member], size: int, nodes: int) -> str:
    with pytest.raises(GroupError) as caught:
        assign_ranks(members, size, nodes)
    return str(caught.value)


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Member], int]:
    """A correct group in any order, and the size of its sets."""
    nodes = draw(st.sampled_from([2, 4]))
    servers = draw(st.lists(st.integers(1, (1 << 64) - 1), min_size=1, max_size=4, unique=True))
    seats = [(f"{server:016x}", node) for server in servers for node in range(nodes)]
    indexes = draw(st.permutations(range(len(seats))))
    members = [member(index, node, server) for index, (server, node) in zip(indexes, seats, strict=True)]
    return draw(st.permutations(members)), nodes


@given(groups())
def test_places_follow_server_and_node_whatever_the_worker_indexes(group: tuple[list[Member], int]) -> None:
    members, nodes = group
    table = assign_ranks(members, len(members), nodes)
    assert [(item.server, item.node) for item in table.members] == sorted((i.server, i.node) for i in members)
    assert [table.rank(item.index) for item in table.members] == list(range(len(members)))
    for start in range(0, len(members), nodes):
        assert len({item.server for item in table.members[start : start + nodes]}) == 1
    first = min(members, key=lambda item: (item.server, item.node))
    assert table.rank0_host == first.host
    assert variables(table, first.index)["NEURON_GLOBAL_TOPOID"] == "0"


@given(groups(), st.randoms(use_true_random=False))
def test_a_group_with_one_wrong_member_does_not_start(group: tuple[list[Member], int], chance: random.Random) -> None:
    members, nodes = group
    victim = chance.randrange(len(members))
    spoiled: dict[str, str | int] = chance.choice(
        [
            {"server": ZEROS},
            {"server": ""},
            {"node": -1},
            {"server": "another"},
            {"index": len(members)},
            {"node": next(i.node for i in members if i is not members[victim] and i.server == members[victim].server)},
        ]
    )
    members = [*members[:victim], msgspec.structs.replace(members[victim], **spoiled), *members[victim + 1 :]]
    assert refusal(members, len(members), nodes)


def test_refusals_name_the_members_and_what_to_do() -> None:
    four = [member(index, index) for index in range(4)]
    golden(refusal([*four[:3], member(3, 3, ZEROS)], 4, 4))
    split = refusal([*four[:3], member(3, 3, B)], 4, 4)
    golden(split)
    assert "ultraserver-server-id-4" in split
    golden(refusal([*four[:3], member(3, 2)], 4, 4))
    golden(refusal([member(index, index) for index in range(3)], 3, 2))
    golden(refusal([*four[:3], member(1, 3)], 4, 4))


def test_pairs_of_one_whole_server_have_ids_of_their_own() -> None:
    members = [member(0, 0, A), member(1, 1, B), member(2, 0, B), member(3, 1, A)]
    assert [item.index for item in assign_ranks(members, 4, 2).members] == [2, 1, 0, 3]


def test_nodes_alone_need_no_server_and_are_sorted_by_host() -> None:
    members = [Member(index, host) for index, host in enumerate("cab")]
    assert [item.host for item in assign_ranks(members, 3, 1).members] == ["a", "b", "c"]


ENVIRONMENT = {
    "LWS_LEADER_ADDRESS": "vllm-0.vllm.default",
    "LWS_GROUP_SIZE": "4",
    "LWS_WORKER_INDEX": "2",
    "NEURON_RT_ULTRASERVER_MODE": "1",
    "NEURON_RT_ULTRASERVER_SERVER_ID": A,
    "NEURON_RT_ULTRASERVER_NODE_ID": "3",
}


def test_a_pod_knows_itself_from_its_environment() -> None:
    membership = own_membership(ENVIRONMENT)
    assert (membership.index, membership.size, membership.nodes, membership.server, membership.node) == (2, 4, 4, A, 3)
    said = hello(membership, own_host(membership, "vllm-0-2") or "")
    assert said == Hello(Member(2, "vllm-0-2.vllm.default", A, 3), 4, 4)


@pytest.mark.parametrize(("mode", "nodes"), [("1", 4), ("2", 2), ("3", 2), ("4", 1)])
def test_the_mode_is_the_kernel_drivers_number(mode: str, nodes: int) -> None:
    assert own_membership(ENVIRONMENT | {"NEURON_RT_ULTRASERVER_MODE": mode}).nodes == nodes


def test_alone_a_pod_has_neither_server_nor_node() -> None:
    environment = {key: value for key, value in ENVIRONMENT.items() if not key.endswith("_ID")}
    membership = own_membership(environment | {"NEURON_RT_ULTRASERVER_MODE": "4"})
    assert (membership.nodes, membership.server, membership.node) == (1, "", -1)


@pytest.mark.parametrize("name", sorted(ENVIRONMENT))
@pytest.mark.parametrize("value", [None, "", "x", "-", "--1", "1 ", "٣", "9" * 30, "-2"])
def test_a_variable_that_is_missing_or_wrong_is_named(name: str, value: str | None) -> None:
    environment = {key: text for key, text in ENVIRONMENT.items() if key != name}
    environment |= {} if value is None else {name: value}
    if value and name in {"LWS_LEADER_ADDRESS", "NEURON_RT_ULTRASERVER_SERVER_ID"}:
        assert own_membership(environment).index == 2  # any text; what cannot be one is found out later
        return
    with pytest.raises(GroupError, match=name):
        own_membership(environment)


def test_the_worker_index_lies_within_the_group() -> None:
    with golden_error(GroupError):
        own_membership(ENVIRONMENT | {"LWS_WORKER_INDEX": "4"})


@pytest.mark.parametrize(
    ("index", "leader", "expected"),
    [
        ("1", "vllm-0.vllm.default", "vllm-0-1.vllm.default"),
        ("1", "un-0.un-0.ns.svc.cluster.local", "vllm-0-1.un-0.ns.svc.cluster.local"),
        ("1", "leader", "vllm-0-1"),
        ("1", "10.199.1.4", None),
        ("1", "fd00::4", None),
        ("0", "vllm-0.vllm.default", "vllm-0.vllm.default"),
        ("0", "10.199.1.4", "10.199.1.4"),
    ],
)
def test_a_pods_name_is_in_the_domain_of_its_leader(index: str, leader: str, expected: str | None) -> None:
    membership = own_membership(ENVIRONMENT | {"LWS_WORKER_INDEX": index, "LWS_LEADER_ADDRESS": leader})
    assert own_host(membership, "vllm-0-1") == expected


@pytest.mark.parametrize("host", ["", "a b", "$(reboot)", "a\nb", "a;b", "x" * 300, "é"])
def test_a_host_is_one_word_for_a_shell(host: str) -> None:
    with pytest.raises(GroupError, match="host"):
        hello(own_membership(ENVIRONMENT), host)


def test_the_file_has_a_variable_a_line() -> None:
    table = assign_ranks([member(0, 1), member(1, 0)], 2, 2)
    text = env_file(variables(table, 0))
    assert text == b"NEURON_GLOBAL_TOPOID=1\nNEURON_GLOBAL_TOPOID0_HOST=vllm-0-1.vllm.default\n"


@pytest.mark.parametrize("message", [Hello(member(1, 1), 4, 4), Confirmed()])
def test_members_messages_survive_the_way(message: Hello | Confirmed) -> None:
    assert from_member(line_of(message)) == message


@pytest.mark.parametrize("message", [GroupProgress(4, [2, 3]), Ranks([member(0, 0)]), RefusalMessage("no")])
def test_leaders_messages_survive_the_way(message: GroupProgress | Ranks | RefusalMessage) -> None:
    assert from_leader(line_of(message)) == message


HOSTILE = [
    b"",
    b"\n",
    b"GET / HTTP/1.1\r\n",
    b"\xff\xfe",
    b"[" * 4000,
    b"{}",
    b'{"kind":"shutdown"}',
    b'{"kind":"confirmed","more":1}',
    b'{"kind":"hello","member":{"index":-1,"host":"a"},"size":4,"nodes":4}',
    b'{"kind":"hello","member":{"index":1,"host":"a"},"size":4,"nodes":3}',
    b'{"kind":"hello","member":{"index":1,"host":"a"},"size":4,"nodes":4,"version":2}',
    b'{"kind":"hello","member":{"index":true,"host":"a"},"size":4,"nodes":4}',
    b'{"kind":"hello","member":{"index":1,"host":"a\\nNEURON_X=1"},"size":4,"nodes":4}',
    b'{"kind":"refused","reason":1}',
    b'{"kind":"progress","size":4,"missing":["a"]}',
]


@pytest.mark.parametrize("line", HOSTILE)
def test_what_is_no_message_is_refused_on_both_sides(line: bytes) -> None:
    for read in (from_member, from_leader):
        with pytest.raises(GroupError):
            read(line)


@given(st.binary(max_size=200))
def test_no_bytes_end_in_another_error(line: bytes) -> None:
    for read in (from_member, from_leader):
        try:
            read(line)
        except GroupError:
            continue


def roster() -> Roster:
    return Roster(Hello(member(0, 0), 4, 4))


def said(index: int, node: int = 1, size: int = 4, nodes: int = 4, host: str = "") -> Hello:
    return Hello(member(index, node, host=host), size, nodes)  # type: ignore[arg-type]  # 1, 2 or 4 in all calls


def test_a_member_that_leaves_before_the_table_is_missing_again() -> None:
    listed = roster()
    listed.take(said(2), 1)
    assert listed.missing == [1, 3]
    listed.leave(2, 1)
    assert listed.missing == [1, 2, 3]


def test_the_end_of_an_earlier_connection_does_not_unseat_the_later_one() -> None:
    listed = roster()
    listed.take(said(2), 1)
    listed.take(said(2), 2)
    listed.leave(2, 1)
    assert listed.missing == [1, 3]


@pytest.mark.parametrize("stranger", [said(0), said(4), said(1, size=5), said(1, nodes=2), said(2, host="other")])
def test_who_is_none_of_the_group_takes_no_seat(stranger: Hello) -> None:
    listed = roster()
    listed.take(said(2), 1)
    with pytest.raises(GroupError):
        listed.take(stranger, 2)
    assert listed.missing == [1, 3]


def test_with_a_table_members_may_come_again_but_not_as_others() -> None:
    listed = roster()
    for index in (1, 2, 3):
        listed.take(said(index, index), index)
    listed.assign_ranks()
    listed.leave(2, 2)
    assert listed.missing == []
    listed.take(said(2, 2), 9)
    with pytest.raises(GroupError, match="recreated"):
        listed.take(said(2, 3), 10)
    for index in (1, 2, 3, 3):
        listed.confirm(index)
    assert listed.unconfirmed == []


@pytest.mark.parametrize(
    ("size", "missing"),
    [
        (4, [3, 2]),
        (4, [3]),
        (4, []),
        (20, range(1, 20)),
    ],
)
def test_progress_is_said_in_a_line(size: int, missing: list[int]) -> None:
    golden(progress(size, missing))

"""What a pod's environment says about its membership, and the file that completes it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from dra_driver.neuron.names import RANK, RANK0_HOST, ULTRASERVER_MODE, ULTRASERVER_NODE_ID, ULTRASERVER_SERVER_ID
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.ultraserver.rendezvous.members import MAX_GROUP_SIZE, GroupError, Member, RankTable
from dra_driver.ultraserver.rendezvous.messages import Hello


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """A pod's membership in its group, as its environment describes it.

    Attributes:
        index: of this pod in the group, 0 for the leader.
        size: pods of the group.
        leader: name or address of the leader.
        nodes: number of nodes of one server that work together.
        server: id of the server, "" for one node alone.
        node: position of the node in the server, -1 for one node alone.
    """

    index: int
    size: int
    leader: str
    nodes: Literal[1, 2, 4]
    server: str
    node: int


def own_membership(environment: Mapping[str, str]) -> GroupMembership:
    """Read the variables of LeaderWorkerSet and of this driver.

    Raises:
        GroupError: one is missing or invalid.
    """
    size = _number(environment, "LWS_GROUP_SIZE", 1, MAX_GROUP_SIZE)
    index = _number(environment, "LWS_WORKER_INDEX", 0, size - 1)
    mode = _number(environment, ULTRASERVER_MODE, 1, 4)
    nodes: Mapping[int, Literal[1, 2, 4]] = {1: 1, 2: 2, 4: 4}
    wanted = nodes[Mode(mode).nodes]
    alone = wanted == 1
    return GroupMembership(
        index=index,
        size=size,
        leader=_text(environment, "LWS_LEADER_ADDRESS"),
        nodes=wanted,
        server="" if alone else _text(environment, ULTRASERVER_SERVER_ID),
        node=-1 if alone else _number(environment, ULTRASERVER_NODE_ID, -1, MAX_GROUP_SIZE - 1),
    )


def own_host(membership: GroupMembership, hostname: str) -> str | None:
    """The pod's name in the cluster's DNS; None if the leader is known by an address, so that there is no name.

    LeaderWorkerSet gives all pods of a group one subdomain: replacing the leader's host name in its address with that
    of a worker gives the worker's address.
    """
    if membership.index == 0:
        return membership.leader
    domain = group_domain(membership)
    return None if domain is None else f"{hostname}.{domain}".rstrip(".")


def group_domain(membership: GroupMembership) -> str | None:
    """What follows the pods' own names in the group's names, or ""; None if the leader is known by an address."""
    try:
        ipaddress.ip_address(membership.leader)
    except ValueError:
        return membership.leader.partition(".")[2]
    return None


def hello(membership: GroupMembership, host: str) -> Hello:
    """The pod's own Hello. Raises GroupError if a value is invalid."""
    member = {"index": membership.index, "host": host, "server": membership.server, "node": membership.node}
    try:
        return Hello(msgspec.convert(member, Member), membership.size, membership.nodes)
    except msgspec.ValidationError as error:
        raise GroupError(f"this pod cannot be described ({error}): {member}") from error


def variables(table: RankTable, index: int) -> dict[str, str]:
    """The variables that the member with that worker index adds to its environment."""
    return {RANK: str(table.rank(index)), RANK0_HOST: table.rank0_host}


def env_file(values: Mapping[str, str]) -> bytes:
    """Lines that a shell reads with ``set -a; . FILE``; the values are single words."""
    return "".join(f"{name}={value}\n" for name, value in values.items()).encode()


_REMEDIES = {
    "LWS": "run it in an init container of a LeaderWorkerSet's pods",
    "NEURON": "give the init container the claim of the main container; its claim needs an UltraServerConfig",
}


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise GroupError(f"the variable {name} is not set", remedy=_REMEDIES[name.partition("_")[0]])
    return value


def _number(environment: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = _text(environment, name)
    digits = text.removeprefix("-")
    if len(digits) > 9 or not (digits.isascii() and digits.isdigit()) or not least <= int(text) <= most:
        raise GroupError(f"{name} is {text[:60]!r}, not a number from {least} to {most}")
    return int(text)

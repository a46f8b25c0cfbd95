"""The members of a group, and their places in it.

The checks and the order are those of AWS's own init script (aws-neuron-sdk, ``src/k8/k8s-ultraserver-init-script.sh``):
each set has the wanted number of nodes, with one server id and different node ids; places are counted over the members
sorted by server id, node id and host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from dra_driver.util.errors import DriverError

LARGEST_GROUP = 1024
"""Pods; far more than the nodes of an UltraServer."""
LONGEST_LIST = 8
"""Members named in a text."""

Index = Annotated[int, msgspec.Meta(ge=0, lt=LARGEST_GROUP)]
Host = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9:][A-Za-z0-9.:_-]{0,252}\Z")]
"""A host name or an IP address; nothing that a shell would take for more than a word."""
ServerId = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{0,64}\Z")]
NodeId = Annotated[int, msgspec.Meta(ge=-1, lt=LARGEST_GROUP)]


class GroupError(DriverError):
    """The group cannot start."""


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One pod of a group.

    Attributes:
        index: ``LWS_WORKER_INDEX``; 0 is the leader.
        host: name or address under which the other members reach the pod.
        server: id of the server, as the driver gives it for the mode asked for; "" for one node alone.
        node: place of the node in the server, from 0; -1 for one node alone.
    """

    index: Index
    host: Host
    server: ServerId = ""
    node: NodeId = -1

    def __str__(self) -> str:
        return f"worker {self.index} ({self.host})" if self.index else f"the leader ({self.host})"


@dataclass(frozen=True, slots=True)
class Table:
    """The members of a complete group, by place."""

    members: tuple[Member, ...]

    def place(self, index: int) -> int:
        """Place of the member with that worker index: ``NEURON_GLOBAL_TOPOID``."""
        return next(place for place, member in enumerate(self.members) if member.index == index)

    @property
    def first_host(self) -> str:
        """Host of the member in place 0: ``NEURON_GLOBAL_TOPOID0_HOST``."""
        return self.members[0].host


def arrange(members: Iterable[Member], size: int, nodes: int) -> Table:
    """Check a group and give each member its place.

    Args:
        members: those that have come.
        size: pods of the group.
        nodes: nodes of one UltraServer that work together: 1, 2 or 4.

    Raises:
        GroupError: the group is not complete, or its nodes are not what they are taken for.
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
    return Table(tuple(listed))


def _check_servers(members: list[Member], nodes: int) -> None:
    servers: defaultdict[str, list[Member]] = defaultdict(list)
    for member in members:
        if not member.server.strip("0") or member.node < 0:
            raise GroupError(
                f"{member} is on a node that is part of no set of {nodes} nodes (server id {member.server or 'empty'},"
                f" node id {member.node})",
                consequence="the group cannot start",
                remedy="see the labels neuron.amazonaws.com/ultraserver-* of its node and the driver's log there",
            )
        servers[member.server].append(member)
    for server, found in servers.items():
        names = ", ".join(map(str, found[:LONGEST_LIST]))
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
                + ", ".join(f"{member} has {member.node}" for member in found[:LONGEST_LIST]),
                consequence="the group cannot start",
                remedy="two pods may share a node, or the server's election is stale: see the driver's log there",
            )

"""The members of a group and their ranks: values only.

The checks and the order are those of AWS's own init script (aws-neuron-sdk, ``src/k8/k8s-ultraserver-init-script.sh``):
each set has the wanted number of nodes, with one server id and different node ids; ranks are counted over the members
sorted by server id, node id and host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from dra_driver.util.errors import DriverError

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
    for server, own in servers.items():
        names = ", ".join(map(str, own[:MAX_LISTED]))
        if len(own) != nodes:
            raise GroupError(
                f"server {server} has {len(own)} of the group's members, and {nodes} must be together: {names}",
                consequence="the group cannot start",
                remedy=f"give the LeaderWorkerSet the annotation leaderworkerset.sigs.k8s.io/exclusive-topology:"
                f" neuron.amazonaws.com/ultraserver-server-id-{nodes}",
            )
        if len({member.node for member in own}) != nodes:
            raise GroupError(
                f"members on server {server} have the same node id: "
                + ", ".join(f"{member} has {member.node}" for member in own[:MAX_LISTED]),
                consequence="the group cannot start",
                remedy="two pods may share a node, or the server's election is stale: see the driver's log there",
            )

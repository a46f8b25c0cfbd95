"""Whose workload a node is allocated to: what the object of its UltraServer says of it. Values in, values out.

The object is the truth. While it is not known, or somebody has deleted it, what was true before goes on: a node that
looked free for a moment would be given away. What was true before this run of the driver, its ``Tenure`` says, which is
kept on the disk (``tenure_file``): a kubelet that starts deletes the slices, and an election may take the labels away.
Slices count where no such file is there, as after the driver of another release.

A node that a workload has stays part of the server by whose object it has it, whatever a later election makes of the
node, until that object gives it back or is gone for ``ABSENT_SECONDS``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.kube.objects.meta import seconds
from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.host.inventory import Membership, ServerSet
from dra_driver.neuron.names import NODES_OF, WORKLOAD_ID, WORKLOAD_TAINT, WORKLOAD_UID, is_uid, object_name
from dra_driver.util.text import shorten

MAX_WORDS: Final = 128
"""Characters of a workload's namespace and name, for people."""
ABSENT_SECONDS: Final = 60.0
"""After so long without its object, a server that the node is no part of any more counts as gone. Another leader of the
operator, which makes objects again that somebody has deleted, acts within 22 s."""


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a node among the nodes of its workload."""

    rank: int | None
    """Among all of them, from 0; None: nobody knows it, nor runs a container with it, as in a simulation."""
    position: int
    """Among those of its server, in the order of the kernel's ids when the workload got them."""
    nodes: int
    """How many it has of each server."""
    leader: str = ""
    """Name of the node of rank 0."""


@dataclass(frozen=True, slots=True)
class NodeWorkload:
    """The workload that a node is allocated to."""

    uid: str
    name: str
    namespace: str = ""
    """"": only the slices are known, which do not say it."""
    bound: bool = False
    """Whether no claim of anybody else is allocated on the node any more; until then such claims are served."""
    since: float = 0.0
    """Unix time."""
    seat: Seat | None = None
    """None: only the slices are known, which do not say it."""

    def __str__(self) -> str:
        words = "/".join(filter(None, (self.namespace, self.name)))
        return f"{shorten(words, MAX_WORDS)} ({self.uid})" if words else self.uid


@dataclass(frozen=True, slots=True)
class SeenServer:
    """What the object of an UltraServer says of one of its nodes."""

    name: str
    """Of the object."""
    exists: bool = False
    workload: NodeWorkload | None = None


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Whose workload a node is allocated to, as far as is known."""

    workload: NodeWorkload | None = None
    """None: nobody's."""
    certain: bool = False
    """Whether the object of its server has been seen, or it has no server."""
    set_id: str = ""
    """As in ``Tenure``."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """What the object of its server said last of a node, in this run of the driver or in a former one."""

    server: str
    """Name of the object."""
    workload: NodeWorkload | None = None
    """None: the node was nobody's."""
    set_id: str = ""
    """Id of the set of nodes in which the workload's work together, as the host showed it when the node was given to
    it; "" if it did not, or where each works alone."""


def elected_server(membership: Membership | None) -> str | None:
    """Name of the object of the largest server that the host says the node is part of; "": none; None: not yet."""
    if membership is None:
        return ""
    name = _largest({item.nodes: item.server_id for item in membership.sets})
    return name or (None if membership.electing else "")


def server_of(
    membership: Membership | None, before: str | None, labels: Mapping[str, str], holder: str = ""
) -> str | None:
    """Name of the object that says whose a node is: that of its UltraServer; "": it has none; None: not known yet.

    A node that was part of a server in this run (``before``) stays so until it is part of another one. So does one that
    was part of one in a former run, as the ``labels`` of its Node say: after a boot an election takes minutes, and a
    node that is nobody's for so long would be given away. A node that a workload has stays part of the server
    (``holder``) by which it has it.
    """
    if holder:
        return holder
    if membership is None:
        return before or ""
    former = _largest({NODES_OF[label]: labels.get(label, "") for label in NODES_OF})
    elected = elected_server(membership)
    return elected or before or former or elected


def _largest(ids: Mapping[int, str]) -> str:
    """Name of the object of the server with the most nodes, or ""; ``ids``: by number of nodes."""
    of_sizes = (ids.get(nodes, "") for nodes in sorted(NODES_OF.values(), reverse=True))
    return object_name(next(filter(None, of_sizes), ""))


def set_of(membership: Membership | None, seat: Seat) -> ServerSet | None:
    """The set in which a workload's nodes of a server work together, as the host shows it; None: none, or not yet."""
    if membership is None or membership.electing or seat.nodes == 1:
        return None
    return membership.set_for(seat.nodes)


def published_workload(devices: Iterable[Device]) -> NodeWorkload | None:
    """The workload that published devices name."""
    for device in devices:
        uid, name = (device.attributes.get(key) for key in (WORKLOAD_UID, WORKLOAD_ID))
        if uid is not None and is_uid(uid.string or ""):
            times = (seconds(taint.time_added) for taint in device.taints if taint.key == WORKLOAD_TAINT)
            return NodeWorkload(uid.string or "", (name.string if name else None) or "", since=next(times, 0.0) or 0.0)
    return None


def says(server: str | None, seen: SeenServer | None) -> bool:
    """Whether the object says whose the node is, or the node has no server; arguments as for ``tenancy``."""
    return server == "" or (seen is not None and seen.name == server and seen.exists)


def tenure(
    server: str | None, seen: SeenServer | None, before: Tenure | None, membership: Membership | None
) -> Tenure | None:
    """What the object says now, or said last; None: it never did, or the node has no server.

    Args:
        server: ``server_of`` the node.
        seen: what was seen last, perhaps of another server.
        before: what the object said last.
        membership: what the host says.
    """
    if not says(server, seen):
        return before
    if not server or seen is None:
        return None
    workload = seen.workload
    if workload is None or workload.seat is None:
        return Tenure(server, workload)
    former = before.workload if before is not None and before.server == server else None
    if before is not None and before.set_id and former is not None and former.uid == workload.uid:
        return Tenure(server, workload, before.set_id)
    own = set_of(membership, workload.seat)
    return Tenure(server, workload, own.server_id if own is not None else "")


def tenancy(
    server: str | None, seen: SeenServer | None, last: Tenure | None, published: NodeWorkload | None
) -> Tenancy:
    """Whose workload a node is allocated to.

    Args:
        server: ``server_of`` the node.
        seen: what was seen last, perhaps of another server.
        last: ``tenure`` of now.
        published: what the API server has of the node's devices.
    """
    if says(server, seen):
        return Tenancy(certain=True) if last is None else Tenancy(last.workload, certain=True, set_id=last.set_id)
    certain = seen is not None and seen.name == server
    return Tenancy(published, certain) if last is None else Tenancy(last.workload, certain, last.set_id)

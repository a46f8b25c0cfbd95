"""Whose workload a node is allocated to: what the object of its UltraServer says of it. Values in, values out.

The object is the truth. While it is not known, or somebody has deleted it, what was true before goes on: a node that
looked free for a moment would be given away. What was true before this run of the driver, its slices say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dra_driver.kube.objects.meta import seconds
from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.host.inventory import Membership
from dra_driver.neuron.names import NODES_OF, WORKLOAD_ID, WORKLOAD_TAINT, WORKLOAD_UID, is_uid
from dra_driver.neuron.ultraserver_objects import BOUND, NeuronUltraServer, object_name, workload_uids
from dra_driver.util.text import shorten

MAX_WORDS: Final = 128
"""Characters of a workload's namespace and name, for people."""


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


def server_of(membership: Membership | None, before: str | None, labels: Mapping[str, str]) -> str | None:
    """Name of the object of a node's UltraServer, the largest that it is part of; "": it has none; None: not known yet.

    A node that was part of a server in this run (``before``) stays so until it is part of another one. So does one that
    was part of one in a former run, as the ``labels`` of its Node say: after a boot an election takes minutes, and a
    node that is nobody's for so long would be given away.
    """
    if membership is None:
        return before or ""
    sets = {item.nodes: item.server_id for item in membership.sets}
    name, former = (_largest(ids) for ids in (sets, {NODES_OF[label]: labels.get(label, "") for label in NODES_OF}))
    return name or before or former or (None if membership.electing else "")


def _largest(ids: Mapping[int, str]) -> str:
    """Name of the object of the server with the most nodes, or ""; ``ids``: by number of nodes."""
    of_sizes = (ids.get(nodes, "") for nodes in sorted(NODES_OF.values(), reverse=True))
    return object_name(next(filter(None, of_sizes), ""))


def seen_server(name: str, server: NeuronUltraServer | None, node: str) -> SeenServer:
    """What the object of that name says of a node; None: there is none.

    An allocation whose workload has no UID counts as none: it is about to be completed.
    """
    if server is None:
        return SeenServer(name)
    uids = workload_uids(server)
    own = [
        NodeWorkload(
            uid=uids.get(item.workload_ref, ""),
            name=item.workload_ref.partition("/")[2],
            namespace=item.workload_ref.partition("/")[0],
            bound=item.phase == BOUND,
            since=seconds(item.allocated_at) or 0.0,
        )
        for item in server.status.allocations
        if node in item.allocated_nodes
    ]
    whole = [workload for workload in own if is_uid(workload.uid)]
    # Somebody has edited the object where there are several.
    return SeenServer(name, exists=True, workload=max(whole, key=lambda workload: workload.bound, default=None))


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


def tenancy(
    server: str | None, seen: SeenServer | None, before: Tenancy | None, published: NodeWorkload | None
) -> Tenancy:
    """Whose workload a node is allocated to.

    Args:
        server: ``server_of`` the node.
        seen: what was seen last, perhaps of another server.
        before: what the object said last in this run of the driver; None: nothing yet.
        published: what the API server has of the node's devices.
    """
    if says(server, seen):
        return Tenancy(seen.workload if server and seen is not None else None, certain=True)
    former = published if before is None else before.workload
    return Tenancy(former, certain=seen is not None and seen.name == server)

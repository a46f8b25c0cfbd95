"""Nodes as servers and halves of servers, which of them are in use, and which one is kept for whom."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.neuron.names import NODES_OF, PLACE_OF, SERVER_4
from dra_driver.ultraserver.placer.groups import PodGroup, Shape
from dra_driver.ultraserver.placer.values import ServerNode, Snapshot

MAX_LISTED = 4
"""Servers listed in a message."""
MAX_MEMBERSHIPS = 1000
"""Servers and halves whose nodes are recorded, in a ConfigMap of at most 1 MiB: each takes 500 bytes at most where
EC2 names the nodes."""
MAX_ABSENT = 4
"""Former nodes of a server or half that are recorded, the latest: who replaces hardware makes new ones for years."""
MAX_STRAYS = 100
"""Pods of a namespace that are recorded without a place, after which none of its pods is assigned: each takes 200 bytes
in the ConfigMap. Those of 25 servers whose nodes go at once are as many."""

Obstacles = Callable[[ServerNode], tuple[bool, ...]]
"""What speaks against giving a node to somebody, the worst first."""


@dataclass(frozen=True, slots=True)
class Server:
    """Nodes that share a value of one of the server labels: a whole UltraServer or a half of one."""

    label: str
    id: str
    nodes: tuple[ServerNode, ...]
    rivals: tuple[ServerNode, ...] = ()
    """Nodes that carry the label too, while others have better claims to it."""
    members: tuple[str, ...] = ()
    """As in ``PlacerRecord``."""

    @property
    def place(self) -> str:
        """As in ``PlacerRecord``."""
        return f"{self.label}={self.id}"

    @property
    def complete(self) -> bool:
        """Whether it has as many nodes as its label says."""
        return len(self.nodes) == NODES_OF[self.label]

    @property
    def in_order(self) -> bool:
        """Whether it is complete, and no whole-node device is missing for a temporary reason."""
        return self.complete and not any(node.trouble for node in self.nodes)

    @property
    def names(self) -> frozenset[str]:
        """Names of its nodes."""
        return frozenset(node.name for node in self.nodes)

    def view(self, obstacles: Obstacles) -> Server:
        """The server for somebody whom obstacles keep from nodes: where others claim their places, with those."""
        if not self.rivals:
            return self
        return _server(self.label, self.id, (*self.nodes, *self.rivals), self.members, obstacles)


@dataclass(frozen=True, slots=True)
class Use:
    """Who uses a node."""

    by: str
    foreign: bool
    """Not an assigned group, so it is unknown when it ends."""


@dataclass(slots=True)
class Ledger:
    """Which nodes are in use. Updated during a decision, so that it gives no node twice."""

    uses: dict[str, Use]
    lws_groups: Mapping[str, frozenset[tuple[str, str]]]
    """By node: namespace and group of the LeaderWorkerSet pods on it, which repel other groups of the namespace."""
    kept: dict[str, str] = field(default_factory=dict)
    """By node: for whom it is kept, such as ``group a/g-0, which has waited longer for a whole server``."""
    assigned: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By namespace, label and server: how many pods have a place there, whatever group they say that they are of."""
    strays: Counter[str] = field(default_factory=Counter)
    """By namespace: pods that have to stay recorded and have no place on any server, so that no server bounds them."""

    changes: list[str] = field(default_factory=list)
    """Nodes that somebody got or left, or that are kept, in this order: what was looked up of them may not hold."""

    def give(self, server: Server, group: PodGroup) -> None:
        """Count the server's nodes as used by the group."""
        self.uses |= {node.name: Use(f"group {group.name}", foreign=False) for node in server.nodes}
        self.changes += (node.name for node in server.nodes)

    def keep(self, server: Server, group: PodGroup) -> None:
        """Reserve the server's nodes against later groups."""
        self.kept |= dict.fromkeys(server.names, f"group {group.name}, which has waited longer for a whole server")
        self.changes += server.names

    def keep_for(self, nodes: Collection[str], whom: str) -> None:
        """Reserve nodes that are kept for nobody yet against whoever comes later."""
        for node in nodes:
            self.kept.setdefault(node, whom)
        self.changes += nodes

    def use(self, nodes: Collection[str], use: Use) -> None:
        """Count nodes that nobody uses as used."""
        for node in nodes:
            self.uses.setdefault(node, use)
        self.changes += nodes

    def free(self, nodes: Collection[str], use: Use) -> None:
        """Count nodes as free that were used by this."""
        for node in nodes:
            if self.uses.get(node) == use:
                del self.uses[node]
        self.changes += nodes

    def obstacle(self, node: ServerNode, group: PodGroup) -> str:
        """Why the group cannot have the node now, or ""."""
        if text := unfit(node, group):
            return text
        if node.name in self.uses:
            return f"is used by {self.uses[node.name].by}"
        if self._repelled(node, group):
            return "runs a pod of another LeaderWorkerSet group of this namespace"
        if node.name in self.kept:
            return f"is kept for {self.kept[node.name]}"
        return ""

    def excess(self, namespace: str) -> str:
        """Why no pod of the namespace is assigned now, or ""."""
        if self.strays[namespace] < MAX_STRAYS:
            return ""
        what = "were assigned to UltraServers on which they have no place any more"
        return f"{MAX_STRAYS} pods of its namespace or more {what}; it waits until some of them have ended or are gone"

    def view(self, server: Server, group: PodGroup) -> Server:
        """The server for the group: of nodes that claim one place, it gets one that it can have."""
        return server.view(lambda node: (bool(unfit(node, group)), bool(self.obstacle(node, group))))

    def may_be_free(self, server: Server) -> bool:
        """Whether the server is free, or is so for some group."""
        taken = any(node.name in self.uses or node.name in self.kept for node in server.nodes)
        return bool(server.rivals) or (server.complete and not taken)

    def is_refused(self, node: ServerNode, group: PodGroup) -> bool:
        """Whether a node that nobody uses repels the group: to keep it for the group would change nothing."""
        return node.name not in self.uses and self._repelled(node, group)

    def _repelled(self, node: ServerNode, group: PodGroup) -> bool:
        """LeaderWorkerSet's anti-affinity: whether a pod there would keep the scheduler from using the node."""
        if not group.pods[0].of_lws:
            return False
        others = self.lws_groups.get(node.name, frozenset())
        return any(namespace == group.namespace and key != group.key for namespace, key in others)


def unfit(node: ServerNode, group: PodGroup) -> str:
    """Why the group could not have the node even if nobody used it, or ""."""
    if node.trouble:
        return node.trouble
    if not group.admission.admits(node):
        return "is excluded by the pod's node selector or by a taint that it does not tolerate"
    return ""


def servers_of(nodes: Iterable[ServerNode], members: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[Server, ...]]:
    """All servers and halves by label, each tuple ordered by id.

    Nodes label themselves, so a node that takes a server's label must not keep groups off it. Where more nodes have a
    label than a server has, those are its nodes that are in order, that were its nodes before (``PlacerRecord``), that
    say which of the places they have, and that are older; one for each place.
    """
    claimants: dict[str, dict[str, list[ServerNode]]] = {label: {} for label in NODES_OF}
    for node in nodes:
        for label, by_id in claimants.items():
            if value := node.labels.get(label):
                by_id.setdefault(value, []).append(node)
    return {
        label: tuple(
            _server(label, value, those, members.get(f"{label}={value}", ()), lambda node: (bool(node.trouble),))
            for value, those in sorted(by_id.items())
        )
        for label, by_id in claimants.items()
    }


def _server(
    label: str, value: str, claimants: Sequence[ServerNode], members: tuple[str, ...], obstacles: Obstacles
) -> Server:
    """The server of these nodes, which all carry its label."""

    def doubts(node: ServerNode) -> tuple[object, ...]:
        seniority = members.index(node.name) if node.name in members else len(members)
        return *obstacles(node), seniority, not _place(label, node), node.created, node.name

    best = sorted(claimants, key=doubts)
    if len(best) > NODES_OF[label]:
        by_place: dict[str, ServerNode] = {}
        for node in best:
            by_place.setdefault(_place(label, node) or f"of {node.name}", node)
        best = list(by_place.values())[: NODES_OF[label]]
    nodes, rivals = (
        tuple(sorted((node for node in claimants if (node in best) == own), key=lambda node: node.name))
        for own in (True, False)
    )
    return Server(label, value, nodes, rivals, members)


def _place(label: str, node: ServerNode) -> str:
    """Which of the server's nodes it says it is, from 0; "" if it does not say."""
    place = node.labels.get(PLACE_OF[label], "")
    return place if place in map(str, range(NODES_OF[label])) else ""


def memberships(snapshot: Snapshot) -> dict[str, tuple[str, ...]]:
    """What ``PlacerRecord.members`` is to be.

    A server with rivals has the nodes that it had before them. Who fills the place of an absent node may be its
    replacement, or a node that only says so: it belongs to the server as long as the other one does not come back.
    """
    servers = [server for by_id in servers_of(snapshot.nodes, snapshot.members).values() for server in by_id]
    places = {server.place for server in servers}
    before = {place: names for place, names in snapshot.members.items() if place in places}
    now = {server.place: _in_order_of_arrival(server) for server in servers if server.in_order and not server.rivals}
    return dict(itertools.islice((before | now).items(), MAX_MEMBERSHIPS))


def _in_order_of_arrival(server: Server) -> tuple[str, ...]:
    absent = [name for name in server.members if name not in server.names][-MAX_ABSENT:]
    stayed = [name for name in server.members if name in server.names or name in absent]
    return *stayed, *sorted(server.names.difference(stayed))


def label_problems(servers: Mapping[str, Sequence[Server]]) -> dict[str, tuple[ServerNode, str]]:
    """By node's name: what is wrong with its labels."""
    found = {}
    for server in (server for of_label in servers.values() for server in of_label):
        for node in server.rivals:
            what = f"no group is placed on it: its label {server.place} is that of {', '.join(sorted(server.names))}"
            found[node.name] = node, f"{what}; take the label off the node that is not part of that UltraServer"
    return found


def ledger_of(snapshot: Snapshot, groups: Iterable[PodGroup], servers: Mapping[str, Sequence[Server]]) -> Ledger:
    """What is in use: by claims, by pods of groups, and by assigned groups whose pods lack nodes.

    A pod that ends where its server has no node uses that node alone: a kubelet may never say that a pod has ended.
    """
    uses = {node.name: Use(f"claim {node.claim}", foreign=True) for node in snapshot.nodes if node.claim}
    lws_groups: dict[str, set[tuple[str, str]]] = {}
    assigned: Counter[tuple[str, str, str]] = Counter()
    strays = Counter(pod.namespace for pod in snapshot.pods if pod.placed and not pod.gone)
    names_of = {(server.label, server.id): server.names for by_id in servers.values() for server in by_id}
    nodes_of: dict[tuple[str, str], list[str]] = {}
    for node in snapshot.nodes:
        for label in NODES_OF.keys() & node.labels.keys():
            nodes_of.setdefault((label, node.labels[label]), []).append(node.name)
    for group in groups:
        scheduled = [pod for pod in group.pods if pod.node and not pod.finished]
        here = {pod.node for pod in scheduled}
        holders = (pod for pod in group.pods if pod.placed and not pod.gone)
        places = Counter(
            pod.placed
            for pod in holders
            if pod.placed and not (pod.ending and pod.node not in names_of.get(pod.placed, frozenset()))
        )
        assigned.update({(group.namespace, *place): count for place, count in places.items()})
        strays[group.namespace] -= sum(count for place, count in places.items() if place in names_of)
        reserved = {name for place in places for name in nodes_of.get(place, ())}
        # Where a pod that was not assigned runs is for its claims to say: its author may name any node and any claim.
        mine = reserved | {pod.node for pod in scheduled if pod.placed}
        uses |= {name: Use(f"group {group.name}", foreign=False) for name in mine}
        for name in here if group.pods[0].of_lws else ():
            lws_groups.setdefault(name, set()).add((group.namespace, group.key))
    repelling = {name: frozenset(groups_there) for name, groups_there in lws_groups.items()}
    return Ledger(uses, repelling, assigned=assigned, strays=strays)


def choose(
    group: PodGroup, shape: Shape, servers: Mapping[str, Sequence[Server]], ledger: Ledger, avoided: frozenset[str]
) -> Server | None:
    """The free server or half for the group; None if there is none.

    Halves whose other half is in use come first, so that whole servers stay free as long as possible.

    Args:
        group: without a server.
        shape: of the group.
        servers: by label, those that may be free.
        ledger: the nodes in use.
        avoided: ids of servers that it is not to get.
    """
    free = [
        server
        for server in (ledger.view(server, group) for server in servers[shape.label])
        if server.complete
        and server.id not in avoided
        and not any(ledger.obstacle(node, group) for node in server.nodes)
    ]
    if not free:
        return None
    whole = {
        name
        for server in (ledger.view(server, group) for server in servers[SERVER_4])
        if server.in_order and not server.names & ledger.uses.keys()
        for name in server.names
    }
    return min(free, key=lambda server: (bool(server.names & whole), server.id))


def possible(group: PodGroup, servers: Sequence[Server], ledger: Ledger, avoided: frozenset[str]) -> list[Server]:
    """Servers that the group could use if they were free."""
    return [
        server
        for server in (ledger.view(server, group) for server in servers)
        if server.in_order
        and server.id not in avoided
        and not any(unfit(node, group) or ledger.is_refused(node, group) for node in server.nodes)
    ]


def to_keep(candidates: Sequence[Server], ledger: Ledger, waited: float, first_turn: float) -> Server | None:
    """The server that is kept for the first waiting group of four, or None if no server is kept now.

    No later group gets a node of a kept server, so it empties. It is unknown which server empties soonest (one of its
    pods may run for years), so each has its turn: first the one with the fewest used nodes, then each by id, then none
    (so that nobody starves behind a group that never fits); then again, with turns twice as long. Eventually a turn is
    longer than whatever runs on some server, if any server empties at all.

    Args:
        candidates: the servers that it could use, at least one, ordered by id.
        ledger: the nodes in use.
        waited: seconds that the group has waited.
        first_turn: length of the first turns in seconds.
    """

    def burden(server: Server) -> tuple[int, int, str]:
        uses = [ledger.uses[name] for name in server.names if name in ledger.uses]
        return sum(use.foreign for use in uses), len(uses), server.id

    turns: list[Server | None] = [min(candidates, key=burden), *candidates, None]
    return turns[_turn(waited, len(turns), first_turn)]


def _turn(waited: float, turns: int, first: float) -> int:
    """Index of the current turn; each round's turns are twice as long as those of the round before."""
    length = max(first, 1e-3)
    while waited >= turns * length:
        waited -= turns * length
        length *= 2
    return max(0, int(waited / length))


def obstacles(group: PodGroup, servers: Sequence[Server], ledger: Ledger, avoided: frozenset[str]) -> str:
    """Why each of the servers is not available to the group, for a message."""
    views = [ledger.view(server, group) for server in servers[:MAX_LISTED]]
    texts = [f"{server.id}: {_obstacle(group, server, ledger, avoided)}" for server in views]
    more = [f"and {len(servers) - MAX_LISTED} more"] if len(servers) > MAX_LISTED else []
    return "; ".join([*texts, *more])


def _obstacle(group: PodGroup, server: Server, ledger: Ledger, avoided: frozenset[str]) -> str:
    if not server.complete:
        return f"{len(server.nodes)} of {NODES_OF[server.label]} nodes are there"
    for node in server.nodes:
        if text := ledger.obstacle(node, group):
            return f"{node.name} {text}"
    return "the group failed on it a short time ago" if server.id in avoided else "free"

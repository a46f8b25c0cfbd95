"""NeuronUltraServerWorkloads: which servers each has, which it gets, and what its status says. Values in, values out.

The one truth is what the NeuronUltraServer objects say: a ``Grant`` there gives nodes of one server to one workload. It
is pending until all servers of the workload are reserved, and then bound. A decision may end between any two writes:
the next one goes on from what is there, by this one at the same or by another leader.

Waiting workloads are served in the order of their arrival. Behind the first of each instance type that waits and would
be served if others ended, later ones get only what it cannot use, so that nobody is overtaken for ever. One that wants
more servers than there are keeps nothing from anybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Final

from dra_driver.neuron.names import NODES_OF, PLACE_OF, SERVER_2, SERVER_4, SERVER_MODE
from dra_driver.neuron.topology.instance_types import HYPERPOD_PREFIX, INSTANCE_TYPE_LABEL
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.ultraserver.placer.servers import MAX_LISTED, Ledger, Server, Use
from dra_driver.ultraserver.placer.values import ServerNode
from dra_driver.ultraserver.placer.workload import (
    Description,
    Extent,
    Grant,
    Member,
    State,
    Verdict,
    Workload,
    object_name,
)

SIZES: Final = (1, 2, 4)
"""Nodes of one server that a workload can use (``neuron.topology.ultraserver``)."""
MAX_SERVED: Final = 100
"""Waiting workloads of one namespace, the oldest, for which servers are looked for in one decision."""


def standing(
    grants: Mapping[str, Sequence[Grant]], workloads: Mapping[str, Workload], in_claims: Collection[str]
) -> dict[str, tuple[Grant, ...]]:
    """The grants that stay, by server.

    A grant goes with its workload, but a bound one not while a claim holds a node of it. One without a UID is that of
    the workload of its name if that one's status names the server, and nobody's otherwise.

    Args:
        grants: by server.
        workloads: by ``namespace/name``.
        in_claims: nodes of which a claim holds a device.
    """

    def stays(server: str, grant: Grant) -> Grant | None:
        workload = workloads.get(grant.workload)
        if not grant.uid and workload is not None and server in workload.recorded:
            grant = replace(grant, uid=workload.uid)
        alive = workload is not None and workload.uid == grant.uid and not workload.ending
        return grant if alive or (grant.bound and any(node in in_claims for node in grant.nodes)) else None

    kept = {
        server: tuple(grant for one in of_server if (grant := stays(server, one)) is not None)
        for server, of_server in grants.items()
    }
    return {server: of_server for server, of_server in kept.items() if of_server}


@dataclass(slots=True)
class Allotter:
    """Serves workloads one after the other, on a ledger that others write to as well.

    Args:
        servers: by label, as ``servers_of`` gives them.
        ledger: the nodes in use; those of the grants are added.
        grants: the standing ones, by server.
        now: seconds since the epoch.
        former: workloads, as ``namespace/name``, of which an object still says that a former one of the name has nodes.
            Its UID is to go before that of the new one comes: an object has one UID for each name.
        most_of_namespace: servers that one namespace may have; None: any number.
    """

    servers: InitVar[Mapping[str, Sequence[Server]]]
    ledger: Ledger
    grants: dict[str, tuple[Grant, ...]]
    now: float
    former: Collection[str] = ()
    most_of_namespace: int | None = None
    wholes: dict[str, Whole] = field(init=False)
    """By name."""
    troubles: dict[str, str] = field(init=False)
    """By node; "" for one that is in order."""
    _of_workload: dict[str, dict[str, Grant]] = field(default_factory=dict)
    """By ``namespace/name`` and server, whatever the UID."""
    _of_namespace: Counter[str] = field(default_factory=Counter)
    """Servers."""
    _served: Counter[str] = field(default_factory=Counter)
    """Waiting workloads by namespace."""
    _ahead: set[str] = field(default_factory=set)
    """Instance types for which a workload that could be served waits already."""

    def __post_init__(self, servers: Mapping[str, Sequence[Server]]) -> None:
        self.wholes = {whole.name: whole for whole in wholes_of(servers)}
        self.troubles = {node.name: node.trouble for whole in self.wholes.values() for node in whole.nodes}
        for server, of_server in self.grants.items():
            for grant in of_server:
                self._count(server, grant)

    def of(self, workload: Workload) -> dict[str, Grant]:
        """The workload's grants by server, in the order of their indices."""
        of_name = self._of_workload.get(workload.reference, {})
        own = [(server, grant) for server, grant in of_name.items() if grant.uid == workload.uid]
        return dict(sorted(own, key=lambda item: item[1].index))

    def restore(self, workloads: Iterable[Workload]) -> None:
        """Give back what workloads' status says that they have, where somebody has deleted the object that said it."""
        for workload in sorted(workloads, key=lambda workload: workload.arrival):
            for index, name in enumerate(workload.recorded):
                whole = self.wholes.get(name)
                if whole is None or workload.ending or name in self.of(workload):
                    continue
                given = {node for grant in self.grants.get(name, ()) for node in grant.nodes}
                sets = [nodes for nodes in whole.sets(workload.wants.nodes) if given.isdisjoint(nodes)]
                if sets:
                    grant = Grant(workload.reference, workload.uid, sets[0], index, bound=True, at=self.now)
                    self._give(name, grant)

    def serve(self, workload: Workload) -> Verdict:
        """What the workload has after this decision: it goes on with what it has, or gets servers, or waits."""
        own, wants = self.of(workload), workload.wants
        if workload.ending:
            return _ending(own)
        if not any(grant.bound for grant in own.values()):
            own = self._usable(workload, own)
            if len(own) < wants.servers:
                return self._first_servers(workload, own)
        for server, grant in own.items():
            if not grant.bound:
                self._bind(server, grant)
        return self._verdict(workload, own)

    def _usable(self, workload: Workload, own: Mapping[str, Grant]) -> dict[str, Grant]:
        """Those of its pending grants whose nodes can still be used; the others are taken back."""
        usable = {}
        for server, grant in own.items():
            whole = self.wholes.get(server)
            ours = all(self.ledger.uses[node] == _use(grant) for node in grant.nodes)
            if whole is not None and ours and grant.nodes in whole.sets(workload.wants.nodes):
                usable[server] = grant
            else:
                self._take_back(server, grant)
        return usable

    def _verdict(self, workload: Workload, own: Mapping[str, Grant]) -> Verdict:
        """Of a workload that has servers. ``own``: its grants before this decision."""
        troubles = [
            f"{name} {self.troubles.get(name, 'is not there')}"
            for grant in own.values()
            for name in grant.nodes
            if self.troubles.get(name, "is not there")
        ]
        wants = workload.wants.servers
        text = f"{len(own)} of {wants} UltraServers: {_names(own)}"
        # What status names is bound: from it, an object that somebody deletes is made again.
        bound = all(grant.bound for grant in own.values())
        state: State = "Allocating" if not bound else "PartiallyAllocated" if len(own) < wants else "Allocated"
        return Verdict(state, state, text, tuple(own) if state != "Allocating" else (), "; ".join(troubles[:4]))

    def _first_servers(self, workload: Workload, own: Mapping[str, Grant]) -> Verdict:
        """Reserve the servers that it lacks; or none, and take back those that it has."""
        self._served[workload.namespace] += 1
        wants = workload.wants
        if wants.nodes not in SIZES:
            text = f"topologySize is {wants.nodes}; 1, 2 or 4 nodes of an UltraServer work together"
            return replace(self._wait(own, "TopologySize", text), state="Failed")
        if workload.reference in self.former:
            return self._wait(own, "Releasing", "the servers of a former workload of this name are being released")
        if self._served[workload.namespace] > MAX_SERVED:
            return self._wait(own, "Queued", f"it waits for {MAX_SERVED} workloads of its namespace that are older")
        if excess := self._excess(workload):
            return self._wait(own, "TooManyServers", excess)
        choices = self._choices(wants, own)
        if len(choices) >= wants.servers - len(own):
            free_indices = sorted(set(range(wants.servers)) - {grant.index for grant in own.values()})
            for index, (name, nodes) in zip(free_indices, choices, strict=False):
                self._give(name, Grant(workload.reference, workload.uid, nodes, index, bound=False, at=self.now))
            return self._verdict(workload, self.of(workload))
        fit = [whole for whole in self._of_type(wants) if any(whole.sets(wants.nodes))]
        if len(fit) < wants.servers:
            return self._wait(own, "NotEnoughServers", self._missing(wants, fit))
        verdict = self._wait(own, "ServersInUse", self._busy(wants, len(choices) + len(own), fit))
        if wants.instance_type not in self._ahead:
            self._ahead.add(wants.instance_type)
            for name in (name for whole in fit for nodes in whole.sets(wants.nodes) for name in nodes):
                self.ledger.kept.setdefault(name, f"workload {workload.reference}, which has waited longer")
        return verdict

    def _wait(self, own: Mapping[str, Grant], reason: str, text: str) -> Verdict:
        for server, grant in own.items():
            self._take_back(server, grant)
        return Verdict("Pending", reason, text)

    def _of_type(self, wants: Extent) -> list[Whole]:
        return [whole for whole in self.wholes.values() if whole.instance_type == wants.instance_type]

    def _missing(self, wants: Extent, fit: Sequence[Whole]) -> str:
        of_type = self._of_type(wants)
        if not of_type:
            return f"there is no UltraServer of {wants.instance_type}"
        what = f"it wants {wants.servers} UltraServers with {wants.nodes} nodes that work together"
        others = [f"{whole.name}: {whole.lack(wants.nodes)}" for whole in of_type if whole not in fit]
        return f"{what}; {len(fit)} of the {len(of_type)} of {wants.instance_type} are that{_listed(others)}"

    def _busy(self, wants: Extent, free: int, fit: Sequence[Whole]) -> str:
        what = f"it wants {wants.servers} UltraServers with {wants.nodes} free nodes that work together"
        texts = [
            f"{whole.name}: {text}"
            for whole in fit
            if (text := next((text for node in whole.nodes if (text := self._obstacle(node))), ""))
        ]
        return f"{what}; {free} of {len(fit)} are free{_listed(texts)}"

    def _choices(self, wants: Extent, own: Mapping[str, Grant]) -> list[tuple[str, tuple[str, ...]]]:
        """Of each server that it does not have, the nodes that it can have now; the best servers first.

        Those come first that break up the fewest sets of free nodes, so that whole servers stay free.
        """
        choices = []
        for whole in self._of_type(wants):
            free = {node.name for node in whole.nodes if not self._obstacle(node)}
            sets = [nodes for nodes in whole.sets(wants.nodes) if free.issuperset(nodes)]
            if sets and whole.name not in own:
                damage, nodes = min((whole.damage(nodes, free), nodes) for nodes in sets)
                choices.append((damage, whole.name, nodes))
        return [(name, nodes) for _, name, nodes in sorted(choices)]

    def _obstacle(self, node: ServerNode) -> str:
        """Why no workload can have the node now, or ""."""
        if node.trouble:
            return f"{node.name} {node.trouble}"
        if use := self.ledger.uses.get(node.name):
            return f"{node.name} is used by {use.by}"
        return f"{node.name} is kept for {who}" if (who := self.ledger.kept.get(node.name)) else ""

    def _excess(self, workload: Workload) -> str:
        others = self._of_namespace[workload.namespace] - len(self.of(workload))
        if self.most_of_namespace is None or others + workload.wants.servers <= self.most_of_namespace:
            return ""
        has = f"it wants {workload.wants.servers} UltraServers, and its namespace has {others} more"
        return f"{has}; the administrator allows {self.most_of_namespace} (maxServersPerNamespace)"

    def _give(self, server: str, grant: Grant) -> None:
        self.grants[server] = (*self.grants.get(server, ()), grant)
        self._count(server, grant)

    def _count(self, server: str, grant: Grant) -> None:
        self._of_workload.setdefault(grant.workload, {})[server] = grant
        self._of_namespace[grant.workload.partition("/")[0]] += 1
        for node in grant.nodes:
            self.ledger.uses.setdefault(node, _use(grant))

    def _take_back(self, server: str, grant: Grant) -> None:
        self.grants[server] = tuple(one for one in self.grants[server] if one != grant)
        del self._of_workload[grant.workload][server]
        self._of_namespace[grant.workload.partition("/")[0]] -= 1
        for node in grant.nodes:
            if self.ledger.uses[node] == _use(grant):
                del self.ledger.uses[node]

    def _bind(self, server: str, grant: Grant) -> None:
        bound = replace(grant, bound=True)
        self.grants[server] = tuple(bound if one == grant else one for one in self.grants[server])
        self._of_workload[grant.workload][server] = bound


def _use(grant: Grant) -> Use:
    return Use(f"workload {grant.workload}", foreign=False)


def _ending(own: Mapping[str, Grant]) -> Verdict:
    if not own:
        return Verdict("Deallocating", "Released", "it has no UltraServer any more")
    return Verdict("Deallocating", "InUse", f"pods still hold nodes of {_names(own)}", tuple(own))


def _listed(texts: Sequence[str]) -> str:
    return ". " + "; ".join(_first(texts)) if texts else ""


def _names(servers: Collection[str]) -> str:
    return ", ".join(_first(list(servers)))


def _first(texts: Sequence[str]) -> list[str]:
    more = [f"and {len(texts) - MAX_LISTED} more"] if len(texts) > MAX_LISTED else []
    return [*texts[:MAX_LISTED], *more]


@dataclass(frozen=True, slots=True)
class Whole:
    """An UltraServer as workloads see it: the largest set of nodes that its hosts report."""

    name: str
    """Of its object."""
    label: str
    instance_type: str
    """"" if its nodes are not all of one type."""
    nodes: tuple[ServerNode, ...]

    def sets(self, size: int) -> list[tuple[str, ...]]:
        """Each set of so many nodes that work together and are in order: their names, in the order of their ranks."""
        return [
            tuple(node.name for node in sorted(nodes, key=lambda node: _rank(node, size)))
            for nodes in self._sets(size)
            if not any(node.trouble for node in nodes)
        ]

    def damage(self, nodes: Collection[str], free: Collection[str]) -> int:
        """How many larger sets of free nodes there are no more once these are taken."""
        return sum(
            names.issuperset(nodes) and names.issubset(free)
            for size in SIZES
            if size > len(nodes)
            for of_set in self._sets(size)
            for names in ({node.name for node in of_set},)
        )

    @property
    def description(self) -> Description:
        """What its object says of its nodes."""
        size = NODES_OF[self.label]
        members = (
            Member(node.name, place, _pairs(node, Mode.X2H), _pairs(node, Mode.X2V))
            for place, node in enumerate(sorted(self.nodes, key=lambda node: _rank(node, size)))
        )
        missing = size - len(self.nodes)
        troubles = [f"{node.name} {node.trouble}" for node in self.nodes if node.trouble]
        troubles += [f"{missing} of {size} nodes are missing"] if missing > 0 else []
        return Description(self.name, self.instance_type, tuple(members), "; ".join(troubles))

    def lack(self, size: int) -> str:
        """Why it has no such set."""
        troubles = [f"{node.name} {node.trouble}" for node in self.nodes if node.trouble]
        if troubles:
            return troubles[0]
        if len(self.nodes) < NODES_OF[self.label]:
            return f"{len(self.nodes)} of {NODES_OF[self.label]} nodes are there"
        return f"its nodes do not offer to work together by {size}"

    def _sets(self, size: int) -> list[list[ServerNode]]:
        by_id: dict[str, list[ServerNode]] = {}
        for node in self.nodes:
            key = node.name if size == 1 else node.labels.get(_LABEL_OF[size], "")
            if key and _offers(node, size):
                by_id.setdefault(key, []).append(node)
        return [nodes for _, nodes in sorted(by_id.items()) if len(nodes) == size]


_LABEL_OF: Final = {nodes: label for label, nodes in NODES_OF.items()}


def _offers(node: ServerNode, size: int) -> bool:
    """Whether the node can work in a set of that size now; one that says nothing about it can."""
    modes = node.labels.get(SERVER_MODE, "")
    return not modes or str(size) in modes.split("_")


def _pairs(node: ServerNode, pair: Mode) -> bool:
    """Whether the links are up over which the node would work with one neighbour."""
    return pair in node.modes or Mode.X4 in node.modes


def _rank(node: ServerNode, size: int) -> tuple[str, str]:
    """The kernel's order of nodes; ids have one digit."""
    return node.labels.get(PLACE_OF[_LABEL_OF[size]], "") if size > 1 else "", node.name


def wholes_of(servers: Mapping[str, Sequence[Server]]) -> list[Whole]:
    """All UltraServers: sets of four nodes, and sets of two whose nodes are in no set of four.

    Args:
        servers: by label, as ``servers_of`` gives them.
    """
    in_fours = {node.name for server in servers[SERVER_4] for node in (*server.nodes, *server.rivals)}
    largest = [*servers[SERVER_4], *(server for server in servers[SERVER_2] if in_fours.isdisjoint(server.names))]
    wholes = []
    for server in largest:
        kinds = {node.labels.get(INSTANCE_TYPE_LABEL, "").removeprefix(HYPERPOD_PREFIX) for node in server.nodes}
        name = object_name(server.id)
        if name:
            wholes.append(Whole(name, server.label, kinds.pop() if len(kinds) == 1 else "", server.nodes))
    return wholes

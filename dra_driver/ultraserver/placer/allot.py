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

from dra_driver.kube.objects.meta import timestamp
from dra_driver.neuron.names import NODES_OF, PLACE_OF, SERVER_2, SERVER_4, SERVER_MODE, object_name
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
)

SIZES: Final = (1, 2, 4)
"""Nodes of one server that a workload can use (``neuron.topology.ultraserver``)."""
MAX_SERVED: Final = 100
"""Waiting workloads of one namespace, the oldest, for which servers are looked for in one decision."""


def standing(
    grants: Mapping[str, Sequence[Grant]],
    workloads: Mapping[str, Workload],
    tenants: Mapping[str, Collection[str]],
) -> dict[str, tuple[Grant, ...]]:
    """The grants that stay, by server.

    A grant goes with its workload, but a bound one not while a claim of its namespace holds a node of it: those of
    others were there before it, and have nothing to do with it. One without a UID is that of the workload of its name
    if that one's status names the server, and nobody's otherwise.

    Args:
        grants: by server.
        workloads: by ``namespace/name``.
        tenants: by node, as in ``ServerNode``.
    """

    def stays(server: str, grant: Grant) -> Grant | None:
        workload = workloads.get(grant.workload)
        if not grant.uid and workload is not None and server in workload.recorded:
            grant = replace(grant, uid=workload.uid)
        alive = workload is not None and workload.uid == grant.uid and not workload.ending
        namespace = grant.workload.partition("/")[0]
        in_use = grant.bound and any(namespace in tenants.get(node, ()) for node in grant.nodes)
        return grant if alive or in_use else None

    alive = [
        (server, grant)
        for server in sorted(grants)
        for one in grants[server]
        if (grant := stays(server, one)) is not None
    ]
    kept: dict[str, tuple[Grant, ...]] = {}
    given: set[str] = set()
    for server, grant in sorted(alive, key=lambda item: not item[1].bound):
        of_server = kept.get(server, ())
        twice = any(other.workload == grant.workload for other in of_server)
        # Somebody has edited a status: no node is given twice, and no server to one workload.
        if grant.nodes and not twice and given.isdisjoint(grant.nodes):
            kept[server] = (*of_server, grant)
            given |= set(grant.nodes)
    # What is unchanged is not written again.
    order = {server: [(one.workload, one.nodes) for one in of_server] for server, of_server in grants.items()}
    return {
        server: tuple(sorted(some, key=lambda one: order[server].index((one.workload, one.nodes))))
        for server, some in kept.items()
    }


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
        closed: names of servers that nobody is given now: their objects cannot be written, or are being deleted.
        marking: as in ``Rules``.
        began: when this leader decided first: no node is late before that.
        silent: as in ``Snapshot``.
    """

    servers: InitVar[Mapping[str, Sequence[Server]]]
    ledger: Ledger
    grants: dict[str, tuple[Grant, ...]]
    now: float
    former: Collection[str] = ()
    most_of_namespace: int | None = None
    closed: Collection[str] = ()
    marking: float = 120.0
    began: float = 0.0
    silent: Mapping[str, float] = field(default_factory=dict)
    shunned: list[str] = field(default_factory=list)
    """Nodes that were taken back from workloads, since they did not say in time whose they were."""
    wholes: dict[str, Whole] = field(init=False)
    """By name."""
    nodes: dict[str, ServerNode] = field(init=False)
    """By name."""
    troubles: dict[str, str] = field(init=False)
    """By node; "" for one that is in order."""
    claims: dict[str, str] = field(init=False)
    """By node, as in ``ServerNode.claim``."""
    marks: dict[str, str] = field(init=False)
    """By node, as in ``ServerNode.mark``."""
    _of_workload: dict[str, dict[str, Grant]] = field(default_factory=dict)
    """By ``namespace/name`` and server, whatever the UID."""
    _of_namespace: Counter[str] = field(default_factory=Counter)
    """Servers."""
    _served: Counter[str] = field(default_factory=Counter)
    """Waiting workloads by namespace."""
    _ahead: set[str] = field(default_factory=set)
    """Instance types for which a workload that could be served waits already."""
    _by_type: dict[str, list[Whole]] = field(default_factory=dict)
    """By instance type."""
    _server_of: dict[str, str] = field(init=False)
    """By node."""
    _looks: dict[tuple[str, int], _Look] = field(default_factory=dict)
    """By instance type and nodes of each server."""

    def __post_init__(self, servers: Mapping[str, Sequence[Server]]) -> None:
        self.wholes = {whole.name: whole for whole in wholes_of(servers)}
        self.nodes = {node.name: node for whole in self.wholes.values() for node in whole.nodes}
        self.troubles = {name: node.trouble for name, node in self.nodes.items()}
        for whole in self.wholes.values():
            if whole.instance_type:
                self._by_type.setdefault(whole.instance_type, []).append(whole)
        self._server_of = {node.name: whole.name for whole in self.wholes.values() for node in whole.nodes}
        self.claims = {name: node.claim for name, node in self.nodes.items()}
        self.marks = {name: node.mark for name, node in self.nodes.items()}
        for server, of_server in self.grants.items():
            for grant in of_server:
                self._count(server, grant)

    @property
    def bound(self) -> dict[str, str]:
        """By node: the workload that it is bound to."""
        return {
            node: grant.workload
            for of_server in self.grants.values()
            for grant in of_server
            if grant.bound
            for node in grant.nodes
        }

    def of(self, workload: Workload) -> dict[str, Grant]:
        """The workload's grants by server, in the order of their indices."""
        of_name = self._of_workload.get(workload.reference, {})
        own = [(server, grant) for server, grant in of_name.items() if grant.uid == workload.uid]
        return dict(sorted(own, key=lambda item: item[1].index))

    def restore(self, workloads: Iterable[Workload]) -> None:
        """Give back what workloads' status says that they have, where the object that said it is gone.

        A tenant may write its own status. So only nodes count that claims of its namespace hold as a whole: it keeps
        nothing from anybody that these do not.
        """
        in_use: dict[str, set[str]] = {}
        for node in self.nodes.values():
            in_use.setdefault(node.owner, set()).add(self._server_of[node.name])
        for workload in sorted(workloads, key=lambda workload: workload.arrival):
            if workload.ending or workload.reference in self.former:
                continue
            candidates = in_use.get(workload.namespace, set())
            for index, name in enumerate(dict.fromkeys(workload.recorded[: workload.wants.servers])):
                nodes = self._nodes_in_use(workload, name) if name in candidates else ()
                if nodes and not self._excess(workload, 1):
                    self._give(name, Grant(workload.reference, workload.uid, nodes, index, bound=True, at=self.now))

    def _nodes_in_use(self, workload: Workload, server: str) -> tuple[str, ...]:
        """Nodes of a server on which only its pods can be: those of groups say so."""
        whole = self.wholes[server]
        if server in self._of_workload.get(workload.reference, ()):
            return ()
        given = {node for grant in self.grants.get(server, ()) for node in grant.nodes}
        own = {node.name for node in whole.nodes if node.owner == workload.namespace}
        own -= {name for name in own if (use := self.ledger.uses.get(name)) is not None and not use.foreign}
        sets = whole.sets(workload.wants.nodes, in_order=False)
        return next((nodes for nodes in sets if own.difference(given).issuperset(nodes)), ())

    def settle(self, workload: Workload) -> Verdict | None:
        """What the workload has, if it has something to go on with.

        None: it waits for its turn, with nothing, or with servers that do not say in time that they are its own. A
        reservation that lacks something is given back. So is a server that it was given twice, by two leaders, and one
        that was bound while another one was not: no status names it.
        """
        own = self.of(workload)
        if workload.ending:
            return _ending(own)
        wants = workload.wants if any(grant.bound for grant in own.values()) else workload.extent
        chosen: dict[int, str] = {}
        for server, grant in sorted(own.items(), key=lambda item: self._precedence(workload, *item)):
            if len(chosen) < wants.servers and (grant.bound or self._is_usable(server, grant, wants)):
                chosen.setdefault(grant.index, server)
        complete = len(chosen) == wants.servers
        for server, grant in own.items():
            if not (complete and server in chosen.values()) and not self._in_use(grant):
                self._take_back(server, grant)
        self._name_leader(workload)
        stays = self.of(workload)
        # Until no claim of others fits on any of its nodes, one may come: it would be found when it is too late.
        reserved = {server: grant for server, grant in stays.items() if not grant.bound}
        if not any(map(self._unmarked, reserved.values())):
            for server, grant in reserved.items():
                self._bind(server, grant)
        elif any(map(self._is_late, reserved.values())):
            return None
        return self._verdict(stays, wants) if stays else None

    def _is_late(self, grant: Grant) -> bool:
        """Whether a reserved node has not said for long that it is the workload's."""
        return not grant.bound and self.now >= self._end(grant) and bool(self._unmarked(grant))

    def _end(self, grant: Grant) -> float:
        return max(grant.at, self.began) + self.marking

    def _move(self, workload: Workload) -> Verdict:
        """Give others for servers with nodes that do not say that they are the workload's, as far as these are free."""
        own, wants = self.of(workload), workload.extent
        for server, grant in own.items():
            if not self._is_late(grant):
                continue
            choices = [one for one in self._look(wants).choices if one[1] not in self._of_workload[workload.reference]]
            if choices:
                self.shunned += self._unmarked(grant)
                self._take_back(server, grant)
                _, name, nodes = choices[0]
                self._give(name, replace(grant, nodes=nodes, at=self.now))
        self._name_leader(workload)
        return self._verdict(self.of(workload), wants)

    def _name_leader(self, workload: Workload) -> None:
        """Have all servers of the workload say which node has rank 0."""
        own = self.of(workload)
        leader = next((grant.nodes[0] for grant in own.values() if grant.index == 0), "")
        for server, grant in own.items():
            if leader and grant.leader != leader:
                self._change(server, grant, replace(grant, leader=leader))

    def _precedence(self, workload: Workload, server: str, grant: Grant) -> tuple[object, ...]:
        """Which of its grants stay where it has too many."""
        return not self._in_use(grant), not grant.bound, server not in workload.recorded, grant.index, server

    def _in_use(self, grant: Grant) -> bool:
        namespace = grant.workload.partition("/")[0]
        return grant.bound and any(namespace in self.nodes[node].tenants for node in grant.nodes if node in self.nodes)

    def _is_usable(self, server: str, grant: Grant, wants: Extent) -> bool:
        """Whether what is reserved can still be bound."""
        whole = self.wholes.get(server)
        ours = all(self.ledger.uses[node] == _use(grant) for node in grant.nodes)
        if whole is None or server in self.closed:
            return False
        return ours and grant.nodes in whole.sets(wants.nodes)

    def serve(self, workload: Workload) -> Verdict:
        """Reserve servers for a workload that has none, or others for it, or say what it waits for."""
        self._served[workload.namespace] += 1
        wants = workload.extent
        if self.of(workload):
            return self._move(workload)
        if wants.nodes not in SIZES:
            text = f"topologySize is {wants.nodes}; 1, 2 or 4 nodes of an UltraServer work together"
            return Verdict("Failed", "TopologySize", text)
        if workload.reference in self.former:
            return _wait("Releasing", "the servers of a former workload of this name are being released")
        if self._served[workload.namespace] > MAX_SERVED:
            return _wait("Queued", f"it waits for {MAX_SERVED} workloads of its namespace that are older")
        if excess := self._excess(workload, wants.servers):
            return _wait("TooManyServers", excess)
        look = self._look(wants)
        if len(look.choices) >= wants.servers:
            chosen = [(name, nodes) for _, name, nodes in look.choices[: wants.servers]]
            for index, (name, nodes) in enumerate(chosen):
                self._give(
                    name, Grant(workload.reference, workload.uid, nodes, index, False, self.now, chosen[0][1][0])
                )
            return self._verdict(self.of(workload), wants)
        if len(look.sets) < wants.servers:
            return _wait("NotEnoughServers", self._missing(wants, look))
        verdict = _wait("ServersInUse", _busy(wants, look))
        if wants.instance_type not in self._ahead:
            self._ahead.add(wants.instance_type)
            names = [name for sets in look.sets.values() for nodes in sets for name in nodes]
            self.ledger.keep_for(names, f"workload {workload.reference}, which has waited longer")
        return verdict

    def _unmarked(self, grant: Grant) -> list[str]:
        """Nodes in order whose devices do not all say that they are the workload's."""
        in_order = (node for node in grant.nodes if not self.troubles.get(node, "is not there"))
        return [node for node in in_order if self.marks[node] != grant.uid]

    def _verdict(self, own: Mapping[str, Grant], wants: Extent) -> Verdict:
        """Of a workload that has servers. ``own``: its grants before this decision."""
        troubles = [text for grant in own.values() if (text := self._other_order(grant))]
        troubles += [text for grant in own.values() for name in grant.nodes if (text := self._trouble(name, grant))]
        text = f"{len(own)} of {wants.servers} UltraServers: {_names(own)}"
        # What status names is bound: from it, an object that somebody deletes is made again.
        bound = all(grant.bound for grant in own.values())
        if unmarked := [node for grant in own.values() for node in self._unmarked(grant)]:
            what = f"the drivers of {', '.join(_first(unmarked))} do not keep claims of others from their nodes"
            if bound:
                troubles.append(what)
            else:
                remedy = "See whether they run, in this release and with the operator's switch"
                text = f"{text}; {what} yet. {self._prospect(own, wants)}. {remedy}"
        state: State = "Allocating" if not bound else "PartiallyAllocated" if len(own) < wants.servers else "Allocated"
        return Verdict(state, state, text, tuple(own) if state != "Allocating" else (), "; ".join(troubles[:4]))

    def _prospect(self, own: Mapping[str, Grant], wants: Extent) -> str:
        """What becomes of a workload whose nodes do not say that they are its own."""
        if any(map(self._is_late, own.values())):
            look = self._look(wants)
            return f"It gets another server once one is free{_listed(look.obstacles or look.lacks)}"
        ends = [self._end(grant) for grant in own.values() if self._unmarked(grant)]
        return f"From {timestamp(min(ends))} on, it gets another server if one is free"

    def _other_order(self, grant: Grant) -> str:
        """Which nodes of a bound grant hosts do not report as that set in that order any more, or "".

        What their labels say: while hosts elect, these stay.
        """
        size = len(grant.nodes)
        nodes = [self.nodes[name] for name in grant.nodes if name in self.nodes]
        if not grant.bound or size not in _LABEL_OF or len(nodes) < size:
            return ""
        label = _LABEL_OF[size]
        places = [node.labels.get(PLACE_OF[label]) for node in nodes]
        if len({node.labels.get(label, node.name) for node in nodes}) == 1 and places == sorted(places, key=str):
            return ""
        says = (f"{node.name} is {_says(node, label)}" for node in nodes)
        return (
            f"a later election has made other sets than {', '.join(grant.nodes)} in this order ({', '.join(says)}): "
            "their drivers prepare no more claims of it. Have the nodes elect again, or delete the workload and make "
            "another one"
        )

    def _trouble(self, node: str, grant: Grant) -> str:
        """What keeps who has the node from it, or "". A claim of its namespace there may be its own."""
        if text := self.troubles.get(node, "is not there"):
            return f"{node} {text}"
        own = _use(grant)
        use = self.ledger.uses.get(node, own)
        if use != own and not use.foreign:
            return f"{node} is used by {use.by}"
        claim = self.claims[node]
        if not claim or claim.partition("/")[0] == grant.workload.partition("/")[0]:
            return ""
        return f"{node} is used by claim {claim} of another namespace, whose pod has to be deleted"

    def _missing(self, wants: Extent, look: _Look) -> str:
        of_type = len(self._by_type.get(wants.instance_type, ()))
        if not of_type:
            return f"there is no UltraServer of {wants.instance_type}"
        what = f"it wants {wants.servers} UltraServers with {wants.nodes} nodes that work together"
        return f"{what}; {len(look.sets)} of the {of_type} of {wants.instance_type} are that{_listed(look.lacks)}"

    def _look(self, wants: Extent) -> _Look:
        """What there is for workloads of this type and size: looked up once, and then again where something changes."""
        key = wants.instance_type, wants.nodes
        if key not in self._looks:
            self._looks[key] = self._first_look(wants)
        look = self._looks[key]
        if changes := self.ledger.changes[look.changes :]:
            for name in {self._server_of.get(node, "") for node in changes} & look.sets.keys():
                look.sights[name] = self._sight(name, look.sets[name])
            look.sort(len(self.ledger.changes))
        return look

    def _first_look(self, wants: Extent) -> _Look:
        sets, lacks = {}, []
        for whole in self._by_type.get(wants.instance_type, ()):
            if in_order := whole.sets(wants.nodes):
                sets[whole.name] = in_order
            else:
                lacks.append(f"{whole.name}: {whole.lack(wants.nodes)}")
        look = _Look(sets, lacks, {name: self._sight(name, of_server) for name, of_server in sets.items()})
        look.sort(len(self.ledger.changes))
        return look

    def _sight(self, server: str, sets: Sequence[tuple[str, ...]]) -> _Sight:
        """What one server has. ``sets``: its sets of nodes in order, free or not."""
        whole = self.wholes[server]
        barriers = {node.name: text for node in whole.nodes if (text := self._obstacle(node))}
        free = {node.name for node in whole.nodes} - barriers.keys()
        choices = [(whole.damage(nodes, free), server, nodes) for nodes in sets if free.issuperset(nodes)]
        if server in self.closed:  # what is free there is given to nobody
            return _Sight(None, f"{server}: its object is being deleted, or cannot be written")
        return _Sight(min(choices, default=None), f"{server}: {next(iter(barriers.values()))}" if barriers else "")

    def _obstacle(self, node: ServerNode) -> str:
        """Why no workload can have the node now, or ""."""
        if node.trouble:
            return f"{node.name} {node.trouble}"
        if use := self.ledger.uses.get(node.name):
            return f"{node.name} is used by {use.by}"
        if self.now < self.silent.get(node.name, 0.0) or node.name in self.shunned:
            return f"{node.name} did not say in time that it was a workload's, and gets none for a while"
        return f"{node.name} is kept for {who}" if (who := self.ledger.kept.get(node.name)) else ""

    def _excess(self, workload: Workload, servers: int) -> str:
        others = self._of_namespace[workload.namespace]
        if self.most_of_namespace is None or others + servers <= self.most_of_namespace:
            return ""
        has = f"it wants {servers} UltraServers, and its namespace has {others} more"
        return f"{has}; the administrator allows {self.most_of_namespace} (maxServersPerNamespace)"

    def _give(self, server: str, grant: Grant) -> None:
        self.grants[server] = (*self.grants.get(server, ()), grant)
        self._count(server, grant)

    def _count(self, server: str, grant: Grant) -> None:
        self._of_workload.setdefault(grant.workload, {})[server] = grant
        self._of_namespace[grant.workload.partition("/")[0]] += 1
        self.ledger.use(grant.nodes, _use(grant))

    def _take_back(self, server: str, grant: Grant) -> None:
        self.grants[server] = tuple(one for one in self.grants[server] if one != grant)
        del self._of_workload[grant.workload][server]
        self._of_namespace[grant.workload.partition("/")[0]] -= 1
        self.ledger.free(grant.nodes, _use(grant))

    def _bind(self, server: str, grant: Grant) -> None:
        self._change(server, grant, replace(grant, bound=True))

    def _change(self, server: str, grant: Grant, other: Grant) -> None:
        """Have the server say this of the grant instead; its nodes are the same."""
        self.grants[server] = tuple(other if one == grant else one for one in self.grants[server])
        self._of_workload[grant.workload][server] = other


@dataclass(frozen=True, slots=True)
class _Sight:
    """What one server has for workloads of a size."""

    choice: tuple[int, str, tuple[str, ...]] | None
    """Its best set of free nodes: the larger sets of free nodes that this breaks up, the server, and the nodes."""
    obstacle: str
    """What keeps a node from being free, or ""."""


@dataclass(slots=True)
class _Look:
    """What servers of a type have for workloads of a size."""

    sets: Mapping[str, Sequence[tuple[str, ...]]]
    """By name of each server that has such sets of nodes in order, free or not."""
    lacks: Sequence[str]
    """Why the others have none."""
    sights: dict[str, _Sight]
    """By name."""
    changes: int = 0
    """Of the ledger, until then."""
    choices: Sequence[tuple[int, str, tuple[str, ...]]] = ()
    """Those come first that break up the fewest sets of free nodes, so that whole servers stay free."""
    obstacles: Sequence[str] = ()

    def sort(self, changes: int) -> None:
        """Order what is seen after so many changes of the ledger."""
        self.changes = changes
        self.choices = sorted(sight.choice for sight in self.sights.values() if sight.choice is not None)
        self.obstacles = [sight.obstacle for sight in self.sights.values() if sight.obstacle]


def _busy(wants: Extent, look: _Look) -> str:
    what = f"it wants {wants.servers} UltraServers with {wants.nodes} free nodes that work together"
    return f"{what}; {len(look.choices)} of {len(look.sets)} are free{_listed(look.obstacles)}"


def _use(grant: Grant) -> Use:
    return Use(f"workload {grant.workload}", foreign=False)


def _ending(own: Mapping[str, Grant]) -> Verdict:
    if not own:
        return Verdict("Deallocating", "Released", "it has no UltraServer any more")
    return Verdict("Deallocating", "InUse", f"pods still hold nodes of {_names(own)}", tuple(own))


def _wait(reason: str, text: str) -> Verdict:
    return Verdict("Pending", reason, text)


def _names(servers: Collection[str]) -> str:
    return ", ".join(_first(list(servers)))


def _listed(texts: Sequence[str]) -> str:
    return ". " + "; ".join(_first(texts)) if texts else ""


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
    """That of most of its nodes; "" if these do not say."""
    nodes: tuple[ServerNode, ...]

    def sets(self, size: int, *, in_order: bool = True) -> list[tuple[str, ...]]:
        """Each set of so many nodes that work together and are in order: their names, in the order of their ranks."""
        return [
            tuple(node.name for node in sorted(nodes, key=lambda node: _rank(node, size)))
            for nodes in self._sets(size)
            if not (in_order and any(node.trouble for node in nodes))
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
        if size not in SIZES:
            return []
        by_id: dict[str, list[ServerNode]] = {}
        for node in self.nodes:
            key = node.name if size == 1 else node.labels.get(_LABEL_OF[size], "")
            if key and _offers(node, size):
                by_id.setdefault(key, []).append(node)
        return [nodes for _, nodes in sorted(by_id.items()) if len(nodes) == size]


_LABEL_OF: Final = {nodes: label for label, nodes in NODES_OF.items()}


def _says(node: ServerNode, label: str) -> str:
    server, place = node.labels.get(label, ""), node.labels.get(PLACE_OF[label], "")
    return f"node {place} of {server}" if server else f"in no set of {NODES_OF[label]}"


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

    Of two with one id, of which one does not tell the truth, the one with more nodes counts, in doubt the set of four.

    Args:
        servers: by label, as ``servers_of`` gives them.
    """
    in_fours = {node.name for server in servers[SERVER_4] for node in (*server.nodes, *server.rivals)}
    largest = [*servers[SERVER_4], *(server for server in servers[SERVER_2] if in_fours.isdisjoint(server.names))]
    wholes: list[Whole] = []
    ids: set[str] = set()
    for server in sorted(largest, key=lambda server: -len(server.nodes)):
        name = object_name(server.id)
        if name and server.id not in ids:
            ids.add(server.id)
            kinds = Counter(map(_kind, server.nodes))
            kind = min(kinds, key=lambda kind: (-kinds[kind], kind))
            wholes.append(Whole(name, server.label, kind, tuple(_if_of(kind, node) for node in server.nodes)))
    return wholes


def _kind(node: ServerNode) -> str:
    return node.labels.get(INSTANCE_TYPE_LABEL, "").removeprefix(HYPERPOD_PREFIX)


def _if_of(kind: str, node: ServerNode) -> ServerNode:
    """The node; in trouble if it says that it is of another type than most of its server: it keeps only itself away."""
    own = _kind(node)
    return node if own == kind else replace(node, trouble=f"is of type {own or 'unknown'}, unlike most of its server")

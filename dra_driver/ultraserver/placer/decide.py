"""What to do about the groups, as a function of the state of the cluster and the time.

A group is assigned to a server by one change of its gated pod: node selector, annotation and removal of the gate happen
together or not at all. From then on the server belongs to the group until its pods are gone, whether or not they have
nodes yet. This function can therefore continue from every possible state, also after a crash between two actions.

The queue is ordered by the creation time of the waiting pods, so a group that was released and recreated goes to its
end. A group takes the first free server; if there is none, later groups may overtake it. To keep later groups of two
from forever using up the halves that a group of four needs at the same time, one server is kept for the first waiting
group of four (``dra_driver.ultraserver.placer.servers.to_keep``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dra_driver.neuron.names import NODES_OF, SERVER_4
from dra_driver.ultraserver.placer.allot import Allotter, standing
from dra_driver.ultraserver.placer.groups import PodGroup, Shape, groups_of, shape_of
from dra_driver.ultraserver.placer.impostors import actions_of as impostors
from dra_driver.ultraserver.placer.impostors import home_of, left_out, released_marks, trouble_of, warnings_of
from dra_driver.ultraserver.placer.servers import (
    Ledger,
    Server,
    choose,
    label_problems,
    ledger_of,
    obstacles,
    possible,
    servers_of,
    to_keep,
    unfit,
)
from dra_driver.ultraserver.placer.template import name_of, step_to
from dra_driver.ultraserver.placer.truth import writes
from dra_driver.ultraserver.placer.values import (
    GATE,
    GROUP_LABEL,
    MAX_DEMANDS,
    Accept,
    Action,
    Annotate,
    Assign,
    Describe,
    EmitEvent,
    Evict,
    Forget,
    GroupPod,
    LetGo,
    Released,
    Report,
    Rules,
    SetGrants,
    Shun,
    Snapshot,
    WarnNode,
    WriteTemplate,
)
from dra_driver.ultraserver.placer.workload import Grant, ServerRecord, Verdict, Workload

SKEW_SECONDS = 60.0
"""A time on a pod that is further in the future, or before its creation, was not written by a placer with a correct
clock; nor was a release that ends so much later than one of now would."""
MAX_SERVED: Final = 100
"""Waiting groups of one namespace, the oldest, for which a server is looked for in one decision."""
MAX_LOOKS: Final = 1_000_000
"""Nodes that are looked at in one decision, each as often as it is for a group, which takes some seconds at most. Where
that is not enough for all, each namespace has as many of its groups served as any other, and at least one."""


def decide(snapshot: Snapshot, now: float, rules: Rules | None = None, began: float = 0.0) -> list[Action]:
    """The actions to carry out, in order. Any of them may be skipped: the next decision makes up for it.

    Args:
        snapshot: the cluster.
        now: seconds since the epoch.
        rules: settings.
        began: when this leader decided first. No timeout counts from before, by a clock that may disagree with its own.
    """
    rules = rules or Rules()
    snapshot = _without_left_out(snapshot)
    groups = groups_of(_with_credible_times(pod, now) for pod in snapshot.pods)
    servers = servers_of(snapshot.nodes, snapshot.members)
    ledger = ledger_of(snapshot, groups, servers)
    actions: list[Action] = [WarnNode(node, text) for node, text in label_problems(servers).values()]
    allotter = _allotter(snapshot, servers, ledger, now, rules, began)
    clashing = _clashing(groups, servers, allotter.bound if snapshot.has_operator else {})
    for group in groups:
        if group.placed:
            clash = clashing.get((group.namespace, group.key), "")
            actions += _watch_over(group, servers, ledger, now, rules, began, clash)
            group.forget_admission()
    # Who has servers goes on with them, before anybody who waits gets any.
    workloads = snapshot.workloads if snapshot.has_operator else ()
    settled = ((workload, allotter.settle(workload)) for workload in workloads)
    reports = [Report(workload, verdict) for workload, verdict in settled if verdict is not None]
    holders = {report.workload.uid for report in reports}
    waiting: list[PodGroup | Workload] = sorted(
        [
            *(group for group in groups if group.gated and not group.placed),
            *(workload for workload in workloads if workload.uid not in holders),
        ],
        key=lambda item: (item.namespace in snapshot.in_trouble, item.arrival),
    )
    shapes = {item.arrival: _shape_or_news(item) for item in waiting if isinstance(item, PodGroup)}
    ready = Counter(namespace for (_, namespace, _), shape in shapes.items() if isinstance(shape, Shape))
    queue = _Queue(servers, ledger, snapshot.released, now, rules, _turns(ready, servers))
    for item in waiting:
        if isinstance(item, Workload):
            changes = len(ledger.changes)
            reports.append(Report(item, allotter.serve(item)))
            if len(ledger.changes) != changes:
                queue.open = None
            continue
        shape = shapes[item.arrival]
        actions += queue.serve(item, shape) if isinstance(shape, Shape) else [shape]
        item.forget_admission()
    actions += _workload_actions(snapshot, allotter, reports, now)
    if allotter.shunned:
        actions.append(Shun(tuple(allotter.shunned), now + rules.avoid))
    actions += [
        EmitEvent(pod, f"it has the gate {GATE}, but no group: add the label {GROUP_LABEL}", wrong=True)
        for pod in snapshot.pods
        if pod.gated and not pod.group and not pod.ending and not pod.finished
    ]
    return actions


def _without_left_out(snapshot: Snapshot) -> Snapshot:
    """The same, in which nodes that lied have a trouble: nobody gets them."""
    out = left_out(snapshot) if snapshot.has_operator else {}
    if not out:
        return snapshot
    nodes = (
        replace(node, trouble=node.trouble or trouble_of(out[node.name][1])) if node.name in out else node
        for node in snapshot.nodes
    )
    return replace(snapshot, nodes=tuple(nodes))


def _workload_actions(
    snapshot: Snapshot, allotter: Allotter, reports: Sequence[Report], now: float
) -> Iterator[Action]:
    """What is to be written of servers and workloads, each before what rests on it."""
    if not snapshot.has_operator:
        return
    yield from impostors(snapshot, now)
    yield from (Describe(whole.description) for whole in allotter.wholes.values() if whole.instance_type)
    for report in reports:
        workload, own = report.workload, allotter.of(report.workload)
        # Before anything is bound it has no meaning, whoever wrote it.
        of_operator = workload.accepted is not None and any(grant.bound for grant in own.values())
        extent = workload.wants if of_operator else workload.extent
        if own and not workload.ending and (workload.accepted != extent or not workload.finalizer):
            yield Accept(workload, extent)
    for name in sorted(snapshot.records.keys() | snapshot.lost.keys() | allotter.grants.keys()):
        wanted, record = allotter.grants.get(name, ()), snapshot.records.get(name, ServerRecord())
        released = released_marks(snapshot, name, _taken_back(snapshot, name, record, wanted, now), now)
        if name in snapshot.lost or any(writes(record, wanted, released)):
            yield SetGrants(name, wanted, released)
        elif not wanted and name not in allotter.wholes and not (released or record.left_out):
            yield Forget(name)
    warnings = warnings_of(snapshot, now)
    allocations = (*(record.grants for record in snapshot.records.values()), *snapshot.lost.values())
    holders = {grant.uid for of_server in allocations for grant in of_server}
    for report in reports:
        verdict = replace(report.verdict, gaps=snapshot.gaps, impostors=warnings.get(report.workload.uid, ""))
        if verdict.state in ("Allocated", "PartiallyAllocated"):
            yield from _with_template(snapshot, report.workload, verdict)
        elif report.workload.ending:
            yield from _farewell(snapshot, Report(report.workload, verdict), holders)
        else:
            yield Report(report.workload, verdict)


def _taken_back(
    snapshot: Snapshot, server: str, record: ServerRecord, wanted: Sequence[Grant], now: float
) -> dict[str, dict[str, float]]:
    """By node: workloads that live, and that lose it by this decision, or by somebody who has edited the status."""
    living = {workload.uid for workload in snapshot.workloads if not workload.ending}
    stays = {(node, grant.uid) for grant in wanted for node in grant.nodes}
    lost: dict[str, dict[str, float]] = {}
    for grant in record.grants:
        for node in grant.nodes:
            if grant.uid in living and (node, grant.uid) not in stays:
                lost.setdefault(node, {})[grant.uid] = now
    # The annotation says that these have nodes, and the status does not.
    edited = living.intersection(record.uids.values()).difference(grant.uid for grant in record.grants)
    for member in snapshot.nodes if edited else ():
        for uid in edited & snapshot.published.get(member.name, frozenset()) if home_of(member) == server else ():
            if (member.name, uid) not in stays:
                lost.setdefault(member.name, {})[uid] = now
    return lost


def _farewell(snapshot: Snapshot, report: Report, holders: Collection[str]) -> Iterator[Action]:
    """What is done about a workload that is being deleted: no pod gets a claim of it, and those there are may end.

    It goes once nobody has a node for it: not before the objects of its servers say so.

    Args:
        snapshot: the cluster.
        report: of the workload.
        holders: UIDs of all workloads of which these objects say that they have nodes.
    """
    workload = report.workload
    record = snapshot.templates.get(f"{workload.namespace}/{name_of(workload)}")
    step = step_to(workload, record, tolerations=snapshot.tolerations)
    if step == "delete":
        yield WriteTemplate(workload, step, record)
    # What somebody else keeps of a template that is being deleted is that one's.
    if step in (None, "wait") and workload.finalizer and workload.uid not in holders:
        yield LetGo(workload)
    else:
        yield report


def _with_template(snapshot: Snapshot, workload: Workload, verdict: Verdict) -> Iterator[Action]:
    """What is done about the template of a workload that has servers, and what the workload says then."""
    name = name_of(workload)
    record = snapshot.templates.get(f"{workload.namespace}/{name}")
    step = step_to(workload, record, tolerations=snapshot.tolerations)
    obstacle = None
    if step == "taken":
        what = f"its servers are there, and a ResourceClaimTemplate {name} that is not its own is in the way"
        obstacle = (
            "TemplateNameTaken",
            f"{what}; delete that one, or make a workload with another name for its template",
        )
    elif step == "wait":
        obstacle = "TemplateEnds", f"the ResourceClaimTemplate {name} is being deleted, and is made again then"
    elif step is not None:
        refusal = snapshot.refusals.get(workload.uid)
        obstacle = None if refusal is None else ("TemplateNotWritten", refusal)
        yield WriteTemplate(workload, step, record)
    yield Report(workload, replace(verdict, obstacle=obstacle))


def _allotter(
    snapshot: Snapshot,
    servers: Mapping[str, Sequence[Server]],
    ledger: Ledger,
    now: float,
    rules: Rules,
    began: float,
) -> Allotter:
    """Who has what, as far as it stands."""
    workloads = {workload.reference: workload for workload in snapshot.workloads}
    tenants = {node.name: node.tenants for node in snapshot.nodes}
    grants = {name: record.grants for name, record in snapshot.records.items()}
    # What another operator has written down is not ours to judge.
    stand = standing(grants | dict(snapshot.lost), workloads, tenants) if snapshot.has_operator else grants
    former = {
        grant.workload
        for of_server in (*stand.values(), *(record.grants for record in snapshot.records.values()))
        for grant in of_server
        if grant.workload in workloads and workloads[grant.workload].uid != grant.uid
    }
    allotter = Allotter(
        servers,
        ledger,
        stand,
        now,
        former,
        rules.most_of_namespace,
        snapshot.closed,
        rules.marking,
        began,
        snapshot.silent,
    )
    allotter.restore(snapshot.workloads)
    return allotter


def _with_credible_times(pod: GroupPod, now: float) -> GroupPod:
    """The pod without times that no placer wrote on it: a kubelet may write what it likes on the pods of its node."""
    since, stuck = (
        moment if moment is not None and pod.created - SKEW_SECONDS <= moment <= now + SKEW_SECONDS else None
        for moment in (pod.since, pod.stuck)
    )
    return pod if (since, stuck) == (pod.since, pod.stuck) else replace(pod, since=since, stuck=stuck)


def _watch_over(
    group: PodGroup,
    servers: Mapping[str, Sequence[Server]],
    ledger: Ledger,
    now: float,
    rules: Rules,
    began: float,
    clash: str,
) -> Iterator[Action]:
    """A group that was assigned to a server: record its progress, let its later pods follow, or evict it."""
    placed = group.placed
    label, server_id = placed[0].placed or ("", "")
    shape = shape_of(group)
    # Whoever made the pods may have changed what they say of their number.
    size = min(shape.size if isinstance(shape, Shape) else len(group.pods), NODES_OF[label])
    server = next((server for server in servers[label] if server.id == server_id), Server(label, server_id, ()))
    own = {pod.node for pod in group.pods}
    server = server.view(lambda node: (bool(unfit(node, group)), bool(node.claim) and node.name not in own))
    # What the scheduler says while a node is missing means nothing once the node is back.
    refused = group.unschedulable if server.in_order else None
    if group.scheduled >= size:
        yield from (Annotate(pod, None) for pod in placed if pod.since is not None)
    elif group.since is None:
        yield Annotate(placed[0], now)
    elif why := clash or _given_up(group, size, server_id, refused, now, rules, began):
        released = Released(group.namespace, group.key, server_id, now + rules.avoid)
        yield Evict(placed, released, why)
        return
    elif refused is None:
        yield from (Annotate(pod, pod.since) for pod in placed if pod.stuck is not None)
    elif group.stuck is None:
        yield Annotate(placed[0], group.since, now)
    leaving = [pod for pod in group.pods if pod.placed and pod.ending and not pod.gone]
    # Pods that were of this group and say that they are of another one have their places as well.
    room = max(0, size - max(len(placed) + len(leaving), ledger.assigned[group.namespace, label, server_id]))
    excess = ledger.excess(group.namespace)
    for pod in group.gated[:room]:
        if excess:
            yield EmitEvent(pod, excess, wrong=True)
        else:
            yield _too_demanding(pod) or _assign(pod, server, group.since or now)
    for pod in group.gated[room:]:
        if leaving:
            yield EmitEvent(pod, _waits_for(leaving))
        else:
            yield EmitEvent(pod, f"its group already has {size} pods on {server_id}", wrong=True)


def _assign(pod: GroupPod, server: Server, since: float) -> Assign:
    names, rivals = (tuple(node.name for node in nodes) for nodes in (server.nodes, server.rivals))
    return Assign(pod, server.label, server.id, since, names, rivals)


def _too_demanding(pod: GroupPod) -> EmitEvent | None:
    """What a pod is told of whose demands nothing is known."""
    if pod.written_demands is not None:
        return None
    what = "node selector, required node affinity, tolerations and scheduling gates"
    return EmitEvent(pod, f"the placer takes no pod whose {what} are longer than {MAX_DEMANDS} bytes", wrong=True)


def _given_up(
    group: PodGroup, size: int, server_id: str, refused: GroupPod | None, now: float, rules: Rules, began: float
) -> str:
    """Why a group without all of its nodes should not wait for them any longer, or ""."""
    if refused is not None and group.stuck is not None and now - max(group.stuck, began) >= rules.unschedulable:
        return f"the scheduler does not find a node of {server_id} for {refused.name}: {refused.unschedulable}"
    if group.since is not None and now - max(group.since, began) >= rules.timeout:
        return f"only {group.scheduled} of its {size} pods got a node of {server_id} within {rules.timeout:g} s"
    return ""


def _clashing(
    groups: Iterable[PodGroup], servers: Mapping[str, Sequence[Server]], bound: Mapping[str, str]
) -> dict[tuple[str, str], str]:
    """Groups that were assigned to nodes of another group, which takes two placers that both believe to be the leader.

    One that has nodes stays before one that has none, one that has all before one that has some, and the earlier one
    before the later; for the other, the text says why it must go. One of two servers must contain the other: a node may
    claim to be part of two that have nothing to do with each other.

    A group goes as well where a workload has nodes, which its status says already: the pods would wait for nodes that
    they never get. One that has all of its nodes stays (``_watch_over``), and the workload's status says that.

    Args:
        groups: all.
        servers: by label.
        bound: by node, the workload that has it.
    """
    owners: list[tuple[frozenset[str], PodGroup]] = []
    found = {}

    def standing(group: PodGroup) -> tuple[bool, bool, float, str, str]:
        return not group.scheduled, group.since is not None, group.since or 0.0, group.namespace, group.key

    for group in sorted((group for group in groups if group.placed), key=standing):
        own = [server.names for label, value in group.servers for server in servers[label] if server.id == value]
        others = sorted(other.name for taken, other in owners for names in own if names <= taken or taken <= names)
        workloads = sorted({bound[name] for names in own for name in names if name in bound})
        if others:
            found[group.namespace, group.key] = f"group {others[0]} uses the same server"
        elif workloads:
            found[group.namespace, group.key] = f"workload {workloads[0]} has nodes of its server"
        else:
            owners += [(names, group) for names in own]
    return found


def _shape_or_news(group: PodGroup) -> Shape | EmitEvent:
    """The shape of a waiting group that may be assigned now, or what it is told."""
    shape = shape_of(group)
    if not isinstance(shape, Shape):
        return EmitEvent(group.gated[0], shape, wrong=True)
    if reason := _not_yet(group, shape):
        return EmitEvent(group.gated[0], reason)
    return next((news for pod in group.gated[: shape.size] if (news := _too_demanding(pod))), shape)


def _turns(ready: Counter[str], servers: Mapping[str, Sequence[Server]]) -> int:
    """How many groups of each namespace are served in this decision.

    Args:
        ready: by namespace, the groups that could be.
        servers: each of whose nodes may be looked at for each group, those of whole servers twice.
    """
    looks = sum(len(server.nodes) + len(server.rivals) for label in (*servers, SERVER_4) for server in servers[label])
    groups = MAX_LOOKS // max(1, looks)
    fair = (turns for turns in range(MAX_SERVED, 1, -1) if sum(min(turns, count) for count in ready.values()) <= groups)
    return next(fair, 1)


@dataclass(slots=True)
class _Queue:
    """The queue: waiting groups are served one after the other."""

    servers: Mapping[str, Sequence[Server]]
    ledger: Ledger
    released: tuple[Released, ...]
    now: float
    rules: Rules
    turns: int
    """Groups of each namespace that are served."""
    someone_keeps: bool = False
    served: Counter[str] = field(default_factory=Counter)
    """Groups by namespace."""
    open: dict[str, list[Server]] | None = None
    """By label, the servers that may be free: most groups wait while there are none. None: to be looked for."""

    def serve(self, group: PodGroup, shape: Shape) -> Iterator[Action]:
        """Assign a server to the group, or explain why there is none."""
        self.served[group.namespace] += 1
        if self.served[group.namespace] > self.turns:
            # Not the number of turns: each change of the text is another Event.
            many = f"{MAX_SERVED} groups of its namespace that are older"
            few = "older groups of its namespace, of which few have their turn while many groups wait in the cluster"
            yield EmitEvent(group.gated[0], f"it waits for {many if self.turns == MAX_SERVED else few}")
            return
        if excess := self.ledger.excess(group.namespace):
            yield EmitEvent(group.gated[0], excess, wrong=True)
            return
        avoided = self._avoided(group)
        if self.open is None:
            self.open = self._open_servers()
        server = choose(group, shape, self.open, self.ledger, avoided)
        if server is not None:
            self.ledger.give(server, group)
            self.open = None
            for pod in group.gated[: shape.size]:
                yield _assign(pod, server, self.now)
            return
        servers = self.servers[shape.label]
        yield EmitEvent(group.gated[0], self._reason(group, shape, servers, avoided))
        if shape.label != SERVER_4 or self.someone_keeps:
            return
        if candidates := possible(group, servers, self.ledger, avoided):
            self.someone_keeps = True
            kept = to_keep(candidates, self.ledger, self.now - group.arrival[0], self.rules.hold)
            if kept is not None:
                self.ledger.keep(kept, group)
                self.open = None

    def _open_servers(self) -> dict[str, list[Server]]:
        return {
            label: [server for server in of_label if self.ledger.may_be_free(server)]
            for label, of_label in self.servers.items()
        }

    def _avoided(self, group: PodGroup) -> frozenset[str]:
        latest = self.now + self.rules.avoid + SKEW_SECONDS
        return frozenset(
            item.server
            for item in self.released
            if (item.namespace, item.group) == (group.namespace, group.key) and self.now < item.until <= latest
        )

    def _reason(self, group: PodGroup, shape: Shape, servers: Sequence[Server], avoided: frozenset[str]) -> str:
        if not servers:
            return f"it waits for nodes with the label {shape.label}; no node has it"
        what = "an UltraServer" if shape.label == SERVER_4 else "half of an UltraServer"
        reasons = obstacles(group, servers, self.ledger, avoided)
        return f"it waits for {what} with {NODES_OF[shape.label]} free nodes. {reasons}"


def _not_yet(group: PodGroup, shape: Shape) -> str:
    """What has to happen before the group may be assigned, or ""."""
    if group.remains:
        return _waits_for(group.remains)
    if not shape.led and len(group.gated) < shape.size:
        return f"it waits for the other pods of its group: {len(group.gated)} of {shape.size} are there with the gate"
    gates = next((gates for pod in group.gated if (gates := pod.demands.other_gates)), ())
    if gates:
        return f"it waits for other scheduling gates to be removed: {', '.join(gates[:3])}"
    return ""


def _waits_for(pods: Sequence[GroupPod]) -> str:
    return f"it waits for pods of its previous start to end: {', '.join(pod.name for pod in pods[:4])}"

"""A small cluster for the placer's decisions: servers, groups as LeaderWorkerSet creates them, a scheduler, other pods.

Pods are the placer's own values. They are changed by the same actors as in a cluster: by actions of the placer (whose
preconditions are checked), by the scheduler, which binds a pod to any free node that its selector admits, and by
LeaderWorkerSet, which creates workers when the leader has a node and a new gated leader when a group is gone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.neuron.names import PLACE_OF, SERVER_2, SERVER_4, SERVER_MODE
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL
from dra_driver.ultraserver.placer.decide import decide
from dra_driver.ultraserver.placer.impostors import foreign_marks
from dra_driver.ultraserver.placer.servers import memberships
from dra_driver.ultraserver.placer.template import LABEL, TemplateRecord, digest_of, name_of, owner_of, spec_of
from dra_driver.ultraserver.placer.truth import WriteAllocations, WriteUids, writes
from dra_driver.ultraserver.placer.values import (
    Accept,
    Action,
    Annotate,
    Assign,
    Demands,
    Describe,
    EmitEvent,
    Evict,
    Forget,
    GroupPod,
    LeaveOut,
    LetGo,
    Released,
    Report,
    Rules,
    ServerNode,
    SetGrants,
    Shun,
    Snapshot,
    WarnNode,
    WriteTemplate,
)
from dra_driver.ultraserver.placer.workload import Extent, Grant, ReleasedMarks, ServerRecord, Verdict, Workload


def demands(**fields: object) -> bytes:
    """``GroupPod.written_demands``; fields as of ``Demands``."""
    return msgspec.json.encode(Demands(**fields))  # type: ignore[arg-type] # fields of Demands


def ultraservers(count: int = 2) -> list[ServerNode]:
    """Nodes ``s0-n0`` to ``sN-n3``, of servers ``s0``.. with halves ``s0-h0`` and ``s0-h1``."""
    return [
        ServerNode(f"s{server}-n{node}", {SERVER_4: f"s{server}", SERVER_2: f"s{server}-h{node // 2}"})
        for server in range(count)
        for node in range(4)
    ]


def typed_ultraservers(count: int = 2, kind: str = "trn2u.48xlarge") -> list[ServerNode]:
    """As ``ultraservers``, with the other labels that nodes have."""
    return [
        replace(
            node,
            labels={
                **node.labels,
                INSTANCE_TYPE_LABEL: kind,
                PLACE_OF[SERVER_4]: str(index % 4),
                PLACE_OF[SERVER_2]: str(index % 2),
                SERVER_MODE: "1_2_4",
            },
        )
        for index, node in enumerate(ultraservers(count))
    ]


@dataclass(frozen=True)
class UltraServerObject:
    """A NeuronUltraServer: its annotation, its status, and its version."""

    uids: Mapping[str, str] = field(default_factory=dict)
    grants: tuple[Grant, ...] = ()
    version: str = ""
    released: ReleasedMarks = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def record(self) -> ServerRecord:
        """What it says, as the placer reads it."""
        grants = tuple(replace(grant, uid=self.uids.get(grant.workload, "")) for grant in self.grants)
        return ServerRecord(self.uids, grants, self.released, self.left_out)


@dataclass
class World:
    """The cluster; ``now`` is the placer's clock."""

    nodes: list[ServerNode] = field(default_factory=ultraservers)
    rules: Rules = field(default_factory=Rules)
    now: float = 1000.0
    began: float = 0.0
    """When the leader decided first."""
    pods: dict[str, GroupPod] = field(default_factory=dict)
    """Pods by UID."""
    strangers: dict[str, str] = field(default_factory=dict)
    """Node -> claim of a pod that does not belong to a group."""
    in_parts: set[str] = field(default_factory=set)
    """Nodes of which claims hold some devices each, and none the whole node."""
    idle: set[str] = field(default_factory=set)
    """UIDs of pods without claims."""
    record: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What the placer remembers of the servers' nodes."""
    released: list[Released] = field(default_factory=list)
    barred: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Nodes that a pod's affinity excludes, by UID."""
    ended: set[str] = field(default_factory=set)
    """Keys of groups that are not to be recreated."""
    workloads: dict[str, Workload] = field(default_factory=dict)
    """By ``namespace/name``."""
    objects: dict[str, UltraServerObject] = field(default_factory=dict)
    """NeuronUltraServers by name."""
    lost: dict[str, tuple[Grant, ...]] = field(default_factory=dict)
    """What the placer remembers of NeuronUltraServers that somebody has deleted."""
    closed: set[str] = field(default_factory=set)
    """NeuronUltraServers that cannot be written."""
    templates: dict[str, TemplateRecord] = field(default_factory=dict)
    """ResourceClaimTemplates by ``namespace/name``."""
    lies: dict[str, set[str]] = field(default_factory=dict)
    """By node: UIDs of workloads that it says it is of, beside its mark."""
    suspected: dict[tuple[str, str], float] = field(default_factory=dict)
    """As the placer remembers it."""
    silent: dict[str, float] = field(default_factory=dict)
    """The same."""
    mute: set[str] = field(default_factory=set)
    """Nodes whose drivers say nothing new."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """By UID of the workload: what was reported last."""
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    # What users and other controllers do

    def arrive(self, key: str, size: int, namespace: str = "a") -> GroupPod:
        """Create a group's leader, with the gate."""
        return self._add(
            GroupPod(
                namespace,
                f"{key}-0",
                uid=f"u{next(self._ids)}",
                created=self.now,
                group=key,
                size=str(size),
                topology=SERVER_4 if size == 4 else SERVER_2,
                of_lws=True,
                leader=True,
                gated=True,
                owner="StatefulSet",
            )
        )

    def ask(self, name: str, servers: int, nodes: int, namespace: str = "a", kind: str = "trn2u.48xlarge") -> Workload:
        """Create a workload."""
        uid = f"u{next(self._ids)}"
        workload = Workload(namespace, name, uid, self.now, Extent(kind, servers, nodes))
        self.workloads[workload.reference] = workload
        return workload

    def intrude(self, node: str) -> None:
        """Let a pod without a gate take a node, if it is free."""
        if node in self.free_nodes():
            self.strangers[node] = f"other/{node}"

    def end(self, key: str) -> None:
        """Delete a group for good; its pods are terminating from now on."""
        self.ended.add(key)
        self._delete([pod for pod in self.pods.values() if pod.group == key])

    def restart(self, key: str) -> None:
        """Let LeaderWorkerSet delete the leader because a pod has failed."""
        self._delete([pod for pod in self.pods.values() if pod.group == key and pod.leader])

    def sweep(self, uid: str) -> None:
        """Remove a terminating pod; after the last one of a group, a new leader can be created."""
        pod = self.pods[uid]
        del self.pods[uid]
        if not self.members(pod.group) and pod.group not in self.ended:
            self.arrive(pod.group, int(pod.size), pod.namespace)

    def make_workers(self) -> None:
        """Create the workers of each leader that has a node, pinned to its server."""
        for leader in list(self.pods.values()):
            if not leader.leader or not leader.node or leader.ending:
                continue
            names = {pod.name for pod in self.members(leader.group)}
            labels = next(node.labels for node in self.nodes if node.name == leader.node)
            for index in range(1, int(leader.size)):
                name = f"{leader.group}-0-{index}"
                if name not in names:
                    self._add(
                        replace(
                            leader,
                            name=name,
                            uid=f"u{next(self._ids)}",
                            leader=False,
                            node="",
                            placed=None,
                            since=None,
                            stuck=None,
                            unschedulable="",
                            written_demands=demands(selector={leader.topology: labels[leader.topology]}),
                        )
                    )

    def unbound(self) -> list[GroupPod]:
        """Pods that the scheduler can bind."""
        return [pod for pod in self.pods.values() if not pod.gated and not pod.node and not pod.ending]

    def fitting(self, pod: GroupPod) -> list[str]:
        """Free nodes that the pod's selector admits."""
        free = self.free_nodes()
        return [
            node.name
            for node in self.nodes
            if node.name in free
            and node.name not in self.barred.get(pod.uid, ())
            and all(node.labels.get(key) == value for key, value in pod.demands.selector.items())
        ]

    def bind(self, pod: GroupPod, node: str) -> None:
        """Bind a pod, as the scheduler does."""
        self._change(pod.uid, node=node, unschedulable="")

    def give_up(self, pod: GroupPod) -> None:
        """Record that the scheduler finds no node."""
        self._change(pod.uid, unschedulable="0/8 nodes are available: 4 cannot allocate all claims.")

    def run_all(self) -> None:
        """Let the scheduler and LeaderWorkerSet do all that they can."""
        while True:
            self.make_workers()
            todo = [(pod, nodes) for pod in self.unbound() if (nodes := self.fitting(pod))]
            if not todo:
                break
            self.bind(todo[0][0], todo[0][1][0])
        for pod in self.unbound():
            self.give_up(pod)

    def sweep_all(self) -> None:
        """Remove all terminating pods."""
        for pod in [pod for pod in self.pods.values() if pod.ending]:
            self.sweep(pod.uid)

    # The placer

    def snapshot(self) -> Snapshot:
        """The placer's input."""
        holders = self.strangers | {
            pod.node: f"{pod.namespace}/{pod.name}" for pod in self.pods.values() if self._holds(pod)
        }
        nodes = tuple(
            replace(
                node,
                claim=holders.get(node.name, ""),
                tenants=frozenset(holders[node.name].partition("/")[:1] if node.name in holders else ()),
                owner="" if node.name in self.in_parts else holders.get(node.name, "").partition("/")[0],
                mark="" if self.lies.get(node.name, {node.mark}) - {node.mark} else node.mark,
            )
            for node in self.nodes
        )
        published = {
            node.name: frozenset({node.mark, *self.lies.get(node.name, ())} - {""})
            for node in self.nodes
            if node.mark or self.lies.get(node.name)
        }
        records = {name: item.record for name, item in self.objects.items()}
        workloads = tuple(self.workloads.values())
        seen = Snapshot(
            nodes,
            tuple(self.pods.values()),
            tuple(self.released),
            self.record,
            has_operator=True,
            workloads=workloads,
            records=records,
            lost=dict(self.lost),
            closed=frozenset(self.closed),
            templates=dict(self.templates),
            tolerations=True,
            published=published,
            silent=dict(self.silent),
        )
        self.suspected = {key: self.suspected.get(key, self.now) for key in foreign_marks(seen)}
        return replace(seen, suspected=self.suspected)

    def decide(self) -> list[Action]:
        """The placer's decisions for the current state, after it has written down what it will remember."""
        seen = self.snapshot()
        self.record = memberships(seen)
        return decide(seen, self.now, self.rules, self.began)

    def mark_all(self) -> None:
        """What drivers do: the devices of a node say whose they are."""
        for name in {node.name for node in self.nodes} - self.mute:
            self.mark(name)

    def mark(self, node: str) -> None:
        """The same of one node."""
        grants = [grant for item in self.objects.values() for grant in item.record.grants]
        uid = next((grant.uid for grant in grants if node in grant.nodes), "")
        self.nodes = [replace(one, mark=uid) if one.name == node else one for one in self.nodes]

    def apply(self, actions: Sequence[Action], most: int | None = None, seen: Mapping[str, str] | None = None) -> None:
        """Apply actions as the API server would; one that is based on an old state changes nothing.

        Args:
            actions: the placer's.
            most: writes of NeuronUltraServers, after which the placer is killed; None: all.
            seen: versions of the NeuronUltraServers that the actions are based on; None: those of now.
        """
        left = 10**6 if most is None else most
        for action in actions:
            if not isinstance(action, SetGrants):
                self._apply(action, alive=left > 0)
            elif action.server not in self.closed:
                version = self.version(action.server) if seen is None else seen.get(action.server, "")
                left -= self._set_grants(action, left, version)

    def _set_grants(self, action: SetGrants, most: int, version: str) -> int:
        """Write a NeuronUltraServer that has this version; returns how many writes that took."""
        todo = list(writes(self._record(action.server), action.grants, action.released))
        if self.version(action.server) != version:
            return 1
        for write in todo[:most]:
            self._write(action.server, write)
        if len(todo) <= most:
            self.lost.pop(action.server, None)
        return len(todo)

    def _apply(self, action: Action, *, alive: bool) -> None:
        match action:
            case Accept() | LetGo() | Report() if alive:
                self._apply_to_workload(action)
            case WriteTemplate() if alive:
                self._write_template(action)
            case LeaveOut(name, node, workload) if alive and name in self.objects:
                item = self.objects[name]
                notes = {**item.left_out, node: f"{workload.reference} {workload.uid}"}
                self.objects[name] = replace(item, left_out=notes, version=str(next(self._ids)))
            case Describe(description) if alive:
                self.objects.setdefault(description.name, UltraServerObject(version=str(next(self._ids))))
            case Shun(nodes, until) if alive:
                self.silent |= dict.fromkeys(nodes, until)
            case Forget(name) if alive:
                self.objects.pop(name, None)
            case _:
                self._apply_to_pods(action)

    def _apply_to_workload(self, action: Accept | LetGo | Report) -> None:
        """If it is still there."""
        current = self.workloads.get(action.workload.reference)
        if current is None or current.uid != action.workload.uid:
            return
        match action:
            case Accept(_, extent):
                self.workloads[current.reference] = replace(current, accepted=extent, finalizer=True)
            case LetGo(workload) if current == workload:
                holders = {grant.uid for item in self.objects.values() for grant in item.record.grants}
                assert current.ending, "nobody has deleted it"
                assert current.uid not in holders, "an object says that it has nodes"
                del self.workloads[current.reference]
            case Report(_, verdict):
                self.verdicts[current.uid] = verdict
                self.workloads[current.reference] = replace(current, recorded=verdict.servers)

    def make_template(self, name: str, namespace: str = "a", **meta: object) -> TemplateRecord:
        """Let a tenant make a template."""
        uid = f"u{next(self._ids)}"
        record = TemplateRecord(ObjectMeta(name=name, namespace=namespace, uid=uid, **meta), "foreign")  # type: ignore[arg-type] # fields of it
        self.templates.setdefault(f"{namespace}/{name}", record)
        return record

    def _write_template(self, action: WriteTemplate) -> None:
        """As the API server does it; the garbage collector has taken what has no owner any more."""
        workload, key = action.workload, f"{action.workload.namespace}/{name_of(action.workload)}"
        present = self.templates.get(key)
        if present != action.record or self.workloads.get(workload.reference) is None:
            return
        if action.step == "delete":
            del self.templates[key]
            return
        uid = present.metadata.uid if present is not None and action.step == "patch" else f"u{next(self._ids)}"
        meta = ObjectMeta(
            name=name_of(workload),
            namespace=workload.namespace,
            uid=uid,
            labels={LABEL: workload.uid},
            owner_references=(owner_of(workload),),
        )
        self.templates[key] = TemplateRecord(meta, digest_of(spec_of(workload, tolerations=True)))

    def collect_garbage(self) -> None:
        """Delete templates whose owners are gone."""
        uids = {workload.uid for workload in self.workloads.values()}
        self.templates = {
            key: item
            for key, item in self.templates.items()
            if not item.metadata.owner_references or any(one.uid in uids for one in item.metadata.owner_references)
        }

    def _apply_to_pods(self, action: Action) -> None:
        match action:
            case Assign(pod, label, server, since, _, rivals) if self._current(pod):
                self.barred[pod.uid] = rivals
                asked = demands(selector={**pod.demands.selector, label: server})
                self._change(
                    pod.uid, gated=False, placed=(label, server), since=since, stuck=None, written_demands=asked
                )
            case Annotate(pod, since, stuck) if self._current(pod):
                self._change(pod.uid, since=since, stuck=stuck)
            case Evict(pods, released):
                self.released.append(released)
                self._delete([self.pods[pod.uid] for pod in pods if pod.uid in self.pods])

    def place(self, most: int = 20) -> list[Action]:
        """Decide and act until only explanations are left, and drivers do their part; returns those."""
        for _ in range(most):
            self.mark_all()
            actions = self.decide()
            self.apply(actions)
            if all(isinstance(action, EmitEvent | WarnNode | Report | Describe) for action in actions):
                return actions
        raise AssertionError(f"the decisions do not come to rest: {actions}")

    def version(self, name: str) -> str:
        """Version of a NeuronUltraServer; "" if it is not there."""
        return self.objects[name].version if name in self.objects else ""

    def _record(self, name: str) -> ServerRecord:
        return self.objects[name].record if name in self.objects else ServerRecord()

    def _write(self, name: str, write: WriteUids | WriteAllocations) -> str:
        """Carry out a write; returns the new version."""
        before = self.objects.get(name, UltraServerObject())
        version = str(next(self._ids))
        match write:
            case WriteUids(uids, released):
                self.objects[name] = replace(before, uids=uids, released=released, version=version)
            case WriteAllocations(grants):
                self.objects[name] = replace(
                    before, grants=tuple(replace(one, uid="") for one in grants), version=version
                )
        return version

    # Queries

    def free_nodes(self) -> set[str]:
        """Nodes whose device is free."""
        taken = {pod.node for pod in self.pods.values() if self._holds(pod)} | self.strangers.keys()
        return {node.name for node in self.nodes} - taken

    def members(self, key: str) -> list[GroupPod]:
        """Pods of a group."""
        return [pod for pod in self.pods.values() if pod.group == key]

    def server_of(self, key: str) -> str:
        """The server that was assigned to the group, or ""."""
        return next((pod.placed[1] for pod in self.members(key) if pod.placed), "")

    def complete(self, key: str) -> bool:
        """Whether all pods of a group have nodes."""
        members = self.members(key)
        return bool(members) and sum(bool(pod.node) for pod in members) == int(members[0].size)

    def waiting(self) -> list[GroupPod]:
        """Leaders with the gate, in the order of creation."""
        found = [pod for pod in self.pods.values() if pod.gated and not pod.ending]
        return sorted(found, key=lambda pod: (pod.created, pod.namespace, pod.group))

    def given(self) -> dict[str, list[str]]:
        """By node: the groups that were assigned to a server or half that contains the node."""
        found: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for pod in self.pods.values():
            for node in self.nodes if pod.placed and not pod.gone else ():
                if pod.placed and node.labels.get(pod.placed[0]) == pod.placed[1]:
                    found[node.name].append(pod.group)
        return found

    def _holds(self, pod: GroupPod) -> bool:
        """Whether the pod has a node's device."""
        return bool(pod.node) and pod.uid not in self.idle

    def _add(self, pod: GroupPod) -> GroupPod:
        self.pods[pod.uid] = replace(pod, version=str(next(self._ids)))
        return self.pods[pod.uid]

    def _change(self, uid: str, **fields: object) -> None:
        self.pods[uid] = replace(self.pods[uid], version=str(next(self._ids)), **fields)  # type: ignore[arg-type] # names of the class

    def _current(self, pod: GroupPod) -> bool:
        return pod.uid in self.pods and self.pods[pod.uid].version == pod.version

    def _delete(self, pods: Sequence[GroupPod]) -> None:
        """Let the pods terminate; with a leader, its workers terminate too."""
        keys = {pod.group for pod in pods if pod.leader}
        uids = {pod.uid for pod in pods} | {pod.uid for pod in self.pods.values() if pod.group in keys}
        for uid in uids:
            if not self.pods[uid].ending:
                self._change(uid, ending=True)

"""What the placer decides about, what it may do, and the names that it shares with pods, nodes and other controllers.

Sources: Kubernetes 1.37 API; aws-neuron-sdk ``deploy/eks/ultraserver.rst`` (node labels); LeaderWorkerSet v0.10 (labels
and annotations of its pods).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import msgspec

from dra_driver.kube.objects.core import NodeSelectorTerm, Taint, Toleration
from dra_driver.kube.objects.meta import ApiObject
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.ultraserver.placer.template import Step, TemplateRecord
from dra_driver.ultraserver.placer.workload import (
    Description,
    Extent,
    Grant,
    ReleasedMarks,
    ServerRecord,
    Verdict,
    Workload,
)

GATE: Final = "neuron.aws.com/ultraserver"
"""Scheduling gate of the pods that the placer manages."""

GROUP_LABEL: Final = "neuron.aws.com/ultraserver-group"
"""Label of plain pods: those with the same value in a namespace form a group."""
NODES_ANNOTATION: Final = "neuron.aws.com/ultraserver-nodes"
"""Annotation of plain pods: number of pods of the group, each on its own node."""
PLACED_ANNOTATION: Final = "neuron.aws.com/ultraserver-placed-on"
"""Written when the gate is removed: the server's id, as in the node selector. For people: no decision rests on it."""
SINCE_ANNOTATION: Final = "neuron.aws.com/ultraserver-incomplete-since"
"""Since when an assigned group lacks nodes; absent while all its pods have nodes."""
STUCK_ANNOTATION: Final = "neuron.aws.com/ultraserver-unschedulable-since"
"""Since when the scheduler finds no node for a pod of an assigned group, though all nodes of its server are fine."""

LWS_GROUP_LABEL: Final = "leaderworkerset.sigs.k8s.io/group-key"
LWS_WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"
LWS_TOPOLOGY: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"


MAX_TAINTS: Final = 64
"""Of a node that groups are placed on: more than any node has that is in order. Each is judged for each group."""


@dataclass(frozen=True, slots=True)
class ServerNode:
    """A node that carries the label of an UltraServer."""

    name: str
    labels: Mapping[str, str]
    uid: str = ""
    created: float = 0.0
    """Seconds since the epoch."""
    trouble: str = ""
    """Why no whole-node device is available there now, such as "is not Ready"; "" if it is."""
    taints: tuple[Taint, ...] = ()
    """Those that keep new pods away (effects NoSchedule and NoExecute)."""
    claim: str = ""
    """``namespace/name`` of a claim that holds a device of the node, or ""."""
    tenants: frozenset[str] = frozenset()
    """Namespaces of all claims that do."""
    owner: str = ""
    """Namespace of the claim that holds the whole node, or ""."""
    mark: str = ""
    """UID of the workload that all of its devices say they are of, in all its slices, or ""."""
    modes: tuple[Mode, ...] = ()
    """In which it can work with others now, as its driver publishes it."""


MAX_DEMANDS: Final = 4096
"""Bytes of a pod's ``Demands`` as JSON; two dozen tolerations and requirements need half of them."""


class Demands(ApiObject, frozen=True):
    """What a pod demands of its node, and what else keeps the scheduler from it."""

    selector: dict[str, str] = msgspec.field(default_factory=dict)
    terms: tuple[NodeSelectorTerm, ...] = ()
    """Of its required node affinity: one of them has to admit the node."""
    tolerations: tuple[Toleration, ...] = ()
    other_gates: tuple[str, ...] = ()
    """Scheduling gates beside the placer's."""


@lru_cache(maxsize=128)
def _demands(text: bytes) -> Demands:
    return msgspec.json.decode(text, type=Demands)


@dataclass(frozen=True, slots=True)
class GroupPod:
    """A pod of a group, or one with the gate."""

    namespace: str
    name: str
    uid: str
    version: str = ""
    """Resource version that a change of the pod rests on."""
    created: float = 0.0
    """Seconds since the epoch, as all times here."""
    group: str = ""
    """Key of its group within the namespace, or ""."""
    size: str = ""
    """Number of the group's pods, from the annotation."""
    topology: str = ""
    """Node label by which LeaderWorkerSet keeps the group together, or ""."""
    of_lws: bool = False
    leader: bool = False
    gated: bool = False
    node: str = ""
    owner: str = ""
    """Kind of its controller, or ""; ``Node`` for a mirror pod, which a kubelet makes in any namespace as it likes."""
    phase: str = "Pending"
    ending: bool = False
    """Being deleted."""
    servers: tuple[str, ...] = ()
    """As ``label=server``: the servers that its node selector names. Its author may have written that."""
    placed: tuple[str, str] | None = None
    """Node label and value that the placer chose."""
    since: float | None = None
    """Since when the group lacks nodes, from this pod's annotation."""
    stuck: float | None = None
    """Since when the scheduler finds no node for a pod of the group, from this pod's annotation."""
    unschedulable: str = ""
    """The scheduler's message if it found no node for the pod; "" if there is none, or while it preempts."""
    written_demands: bytes | None = b"{}"
    """Of a pod with the gate: its ``Demands`` as JSON, in a tenth of their memory; None if that is too long."""

    @property
    def demands(self) -> Demands:
        """What it demands; nothing if that is too long."""
        return _demands(self.written_demands or b"{}")

    @property
    def finished(self) -> bool:
        """Whether it has ended for good and holds nothing."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def gone(self) -> bool:
        """Whether it holds nothing and never will: also one that ends without a node, whatever finalizers keep it."""
        return self.finished or (self.ending and not self.node)


@dataclass(frozen=True, slots=True)
class Released:
    """A server that a group failed on and avoids until that time."""

    namespace: str
    group: str
    server: str
    until: float


@dataclass(frozen=True, slots=True)
class PlacerRecord:
    """What only the placer can write: pods are written by users too, and deleted ones are gone."""

    placed: Mapping[str, str] = field(default_factory=dict)
    """By UID of a pod: where it was assigned, as ``label=server``."""
    released: tuple[Released, ...] = ()
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By ``label=server``: names of its nodes when all of them were in order and no other node had the label, in the
    order in which they came. A node that took the place of one that is absent comes after that."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster: all nodes with UltraServer labels, all pods of groups or with the gate."""

    nodes: tuple[ServerNode, ...]
    pods: tuple[GroupPod, ...]
    released: tuple[Released, ...] = ()
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """As in ``PlacerRecord``."""
    in_trouble: frozenset[str] = frozenset()
    """Namespaces in which writes have failed a short time ago: all others are served first."""
    has_operator: bool = False
    """Whether workloads are served; else what they have is only respected."""
    workloads: tuple[Workload, ...] = ()
    records: Mapping[str, ServerRecord] = field(default_factory=dict)
    """By name, of each NeuronUltraServer that is there."""
    lost: Mapping[str, tuple[Grant, ...]] = field(default_factory=dict)
    """By name, what NeuronUltraServers said that somebody has deleted since: they are to say it again."""
    closed: frozenset[str] = frozenset()
    """NeuronUltraServers that are being deleted, or could not be written a short time ago."""
    templates: Mapping[str, TemplateRecord] = field(default_factory=dict)
    """ResourceClaimTemplates by ``namespace/name``: the operator's, and others that have the name of one."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """By UID of a workload: why its template could not be written a short time ago."""
    tolerations: bool | None = None
    """Whether the API server keeps tolerations of claims; None: nobody knows."""
    gaps: str = ""
    """What may let pods of others in, or ""."""
    published: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By node: UIDs of the workloads that any of its devices say they are of."""
    suspected: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By node and UID: since when it says that, and nobody has given it (``impostors.foreign_marks``)."""
    silent: Mapping[str, float] = field(default_factory=dict)
    """By node that did not say in time whose it was: until when no workload gets it."""
    namespace: str = "neuron-dra-driver"
    """Of the NeuronUltraServers."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings in seconds."""

    timeout: float = 300.0
    """How long an assigned group may lack nodes before it is released."""
    unschedulable: float = 12.0
    """How long the scheduler may find no node for a pod of an assigned group. It retries a pod for which something has
    changed after at most 10 s (``podMaxBackoffSeconds``)."""
    avoid: float = 300.0
    """How long a released group avoids the server that it failed on."""
    hold: float = 300.0
    """First length of the turns in which one server is kept for the first waiting group of four."""
    marking: float = 120.0
    """How long a workload waits for nodes to say that they are its own, before it gets others, if these are free."""
    most_of_namespace: int | None = None
    """UltraServers that the workloads of one namespace may have; None: any number."""


@dataclass(frozen=True, slots=True)
class Assign:
    """Let a gated pod run on the nodes with ``label: server``."""

    pod: GroupPod
    label: str
    server: str
    since: float
    nodes: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    """Nodes that carry the label too, and are not the server's."""

    @property
    def place(self) -> str:
        """As in ``PlacerRecord.placed``."""
        return f"{self.label}={self.server}"


@dataclass(frozen=True, slots=True)
class Annotate:
    """Record on a pod since when its group lacks nodes, and since when the scheduler finds none; None clears it."""

    pod: GroupPod
    since: float | None
    stuck: float | None = None


@dataclass(frozen=True, slots=True)
class Evict:
    """Record the server that the group failed on, then delete these pods so that the group is recreated."""

    pods: tuple[GroupPod, ...]
    released: Released
    why: str


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Tell the pod's owner what the pod waits for."""

    pod: GroupPod
    message: str
    wrong: bool = False
    """It will wait forever unless somebody corrects it."""


@dataclass(frozen=True, slots=True)
class WarnNode:
    """Tell the administrator what is wrong with a node."""

    node: ServerNode
    message: str
    reason: str = "UltraServerLabels"


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Have a NeuronUltraServer say that a node says it is a workload's, and is not: it gets nothing any more."""

    server: str
    """Name of the object."""
    node: str
    workload: Workload


@dataclass(frozen=True, slots=True)
class Shun:
    """Give these nodes to no workload until that time: they did not say in time whose they were."""

    nodes: tuple[str, ...]
    until: float


@dataclass(frozen=True, slots=True)
class Accept:
    """Write down what a workload is served with, and have it stay until that is given back; before it is served."""

    workload: Workload
    extent: Extent


@dataclass(frozen=True, slots=True)
class LetGo:
    """Let a workload go that is being deleted."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class Describe:
    """Have a NeuronUltraServer say what it consists of."""

    description: Description


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete the NeuronUltraServer of a server that is not there any more."""

    server: str


@dataclass(frozen=True, slots=True)
class SetGrants:
    """Have a NeuronUltraServer say who has its nodes."""

    server: str
    """Name of the object."""
    grants: tuple[Grant, ...]
    released: ReleasedMarks | None = None
    """What drivers may go on to say; None: as it is."""


@dataclass(frozen=True, slots=True)
class WriteTemplate:
    """Have a workload's ResourceClaimTemplate be as it should be."""

    workload: Workload
    step: Step
    record: TemplateRecord | None
    """The one that is there."""


@dataclass(frozen=True, slots=True)
class Report:
    """Have a workload's status say what it has."""

    workload: Workload
    verdict: Verdict


PodAction = Assign | Annotate | Evict | EmitEvent | WarnNode
WorkloadAction = Accept | LetGo | SetGrants | Describe | Forget | WriteTemplate | Report | LeaveOut | Shun
Action = PodAction | WorkloadAction

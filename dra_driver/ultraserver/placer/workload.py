"""NeuronUltraServerWorkloads, and what they have of NeuronUltraServers, as values.

Fields: those of AWS's kinds, ``neuron.aws.com`` (aws-neuron/neuron-helm-charts, chart 1.9.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

ReleasedMarks = Mapping[str, Mapping[str, float]]
"""By node: UIDs of workloads that live and had it reserved, and when that was taken back: seconds since the epoch."""
State = Literal["Pending", "Allocating", "Allocated", "PartiallyAllocated", "Failed", "Deallocating"]


@dataclass(frozen=True, slots=True)
class Extent:
    """What a workload asks for: nodes of each of so many servers, and what the claims of its pods say."""

    instance_type: str
    servers: int
    nodes: int
    template: str = ""
    """Name of the ResourceClaimTemplate; "": that of the workload."""
    core_size: int = 2
    """Physical cores of a logical one."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A NeuronUltraServerWorkload."""

    namespace: str
    name: str
    uid: str
    created: float
    """Seconds since the epoch."""
    extent: Extent
    """Of its spec."""
    accepted: Extent | None = None
    """What it was first served with: from then on its spec is not followed."""
    ending: bool = False
    """Being deleted."""
    finalizer: bool = False
    """Whether it stays until the operator has taken its finalizer away."""
    recorded: tuple[str, ...] = ()
    """Servers that its status names, in the order of their indices."""

    @property
    def reference(self) -> str:
        """As in ``Grant.workload``."""
        return f"{self.namespace}/{self.name}"

    @property
    def wants(self) -> Extent:
        """What it gets."""
        return self.accepted or self.extent

    @property
    def arrival(self) -> tuple[float, str, str]:
        """Position in the queue."""
        return self.created, self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Grant:
    """Nodes of one server that one workload has."""

    workload: str
    """``namespace/name``."""
    uid: str
    """Of the workload; "" if nobody wrote it down."""
    nodes: tuple[str, ...]
    """In the order of their ranks: the first is the leader's."""
    index: int
    """Which of the workload's servers it is, from 0."""
    bound: bool
    at: float
    """When it was given: seconds since the epoch."""
    leader: str = ""
    """The node of rank 0, which is of the workload's first server."""


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """What a NeuronUltraServer says of who has its nodes."""

    uids: Mapping[str, str] = field(default_factory=dict)
    """Its annotation: the UID of each workload by ``namespace/name``."""
    grants: tuple[Grant, ...] = ()
    """Its status, with the UIDs of the annotation."""
    released: ReleasedMarks = field(default_factory=dict)
    """What drivers may go on to say for a while."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """By node that said that it was a workload's, and was not: the workload, as ``namespace/name UID``."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a server, as its object says it."""

    node: str
    place: int
    """Among the nodes of the server, from 0."""
    horizontal: bool
    """Whether its links to its horizontal neighbour are up."""
    vertical: bool


@dataclass(frozen=True, slots=True)
class Description:
    """What a NeuronUltraServer says of its nodes."""

    name: str
    instance_type: str
    members: tuple[Member, ...]
    trouble: str
    """Why it is degraded, or ""."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a workload's status says."""

    state: State
    reason: str
    message: str
    servers: tuple[str, ...] = ()
    trouble: str = ""
    """What is wrong with nodes that it has, or ""."""
    obstacle: tuple[str, str] | None = None
    """What keeps its pods from its servers, as reason and message."""
    gaps: str = ""
    """What may let pods of others in, or ""."""
    impostors: str = ""
    """Which nodes say that they are its own, and are not, and what to do, or ""."""

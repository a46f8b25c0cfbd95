"""What an overview shows of a cluster: rows of nodes, chips and pods, and the documents that have the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from dra_driver.neuron.health.faults import FAULTS, Fault, Severity, State
from dra_driver.operations.overview.findings import Finding
from dra_driver.operations.overview.objects import Servers
from dra_driver.operations.overview.serving import Serving
from dra_driver.util.envelope import envelope, reference


@dataclass(frozen=True, slots=True)
class ChipFault:
    """What is wrong with a chip, as a taint of its device or the Node's condition says."""

    code: str
    """Of the table of faults, or the taint as kubectl writes it."""
    severity: Severity | Literal["tainted"]
    effect: str
    """Of the taint; "" where only the condition says so."""
    since: str = ""
    """RFC 3339, or ""."""
    rule: str = ""
    """The DeviceTaintRule that has the taint, or ""."""

    @property
    def row(self) -> Fault | None:
        """Its row of the table of faults; None for the taint of somebody else."""
        return FAULTS.get(self.code)

    @property
    def remedy(self) -> str:
        """Of the table of faults, or what takes the taint away; "" if that is not known."""
        if self.row is not None:
            return self.row.remedy
        return f"delete DeviceTaintRule {self.rule}" if self.rule else ""


@dataclass(frozen=True, slots=True)
class HolderOfChip:
    """What one pod, or a claim that no pod uses, has on one node."""

    namespace: str
    pod: str
    """"": no pod uses the claim."""
    claim: str
    """"": the device plugin's."""
    node: str
    devices: str
    """Such as ``neuron-device-4 to 7``."""
    chips: tuple[int, ...]
    phase: str = ""
    """How the pod is, as kubectl's column STATUS says it; "" where it is not known."""
    doubt: str = ""
    """Why it may have more or less than that, or ""."""
    since: str = ""
    """RFC 3339: since when a pod that does not run is as it is; "" for one that runs."""
    problem: str = ""
    """Why it does not run, or ""."""
    sick: tuple[str, ...] = ()
    """Its chips that have faults, with these, such as ``neuron5: hbm-uncorrectable``."""
    names: tuple[str, ...] = ()
    """The devices of a claim by name."""
    says: tuple[str, ...] = ()
    """What the claim says of devices that are not ready or not healthy, where nothing else says it."""

    @property
    def name(self) -> str:
        """The pod, or else the claim, without its namespace."""
        return self.pod or f"claim {self.claim}"


@dataclass(frozen=True, slots=True)
class ChipRow:
    """A chip of a node."""

    index: int
    cores: int
    """Logical cores."""
    held: int
    """How many of these some pod or claim has."""
    blocked: bool
    """Whether a taint keeps it from pods that do not tolerate that, or kubelet's version from all."""
    faults: tuple[ChipFault, ...] = ()
    holders: tuple[str, ...] = ()
    """``namespace/pod``, or ``namespace/claim NAME``."""
    known: bool = True
    """False: nobody watches its health."""

    @property
    def free(self) -> bool:
        """Whether all of it can be given away."""
        return not self.held and not self.blocked

    @property
    def state(self) -> State | Literal["tainted"]:
        """That of its gravest fault."""
        severities = {fault.severity for fault in self.faults}
        order: tuple[State | Literal["tainted"], ...] = ("unhealthy", "tainted", "unknown", "degraded")
        return next((state for state in order if state in severities), "healthy" if self.known else "unknown")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node with Neuron devices."""

    name: str
    instance_type: str
    status: str
    """As of kubectl: ``Ready``, ``NotReady``, ``Unknown`` (no Node of that name), with ``SchedulingDisabled``; ``-``
    where Nodes cannot be listed."""
    offers: tuple[tuple[str, int], ...]
    """Kinds of devices in words, and how many of each; for the device plugin, its extended resources."""
    taints: tuple[str, ...]
    servers: Servers
    condition: str
    """Reason of the Node's condition ``NeuronHealth`` where its status is not False; "" if all is well or unknown."""
    chips: tuple[ChipRow, ...]
    holders: tuple[HolderOfChip, ...]
    serving: Serving
    not_ready: Finding | None = None
    """Why the Node is not ready; None: it is."""
    whole: bool = True
    """False: what pods of other namespaces have is not known."""
    kubelet_problem: str = ""
    """Why the driver offers nothing anew, or ""."""
    held_back: str = ""
    """Why the driver offers some or all chips not anew, or "": a device plugin has them."""

    lost: tuple[Finding, ...] = ()
    """Pods there whose claims are gone: the driver keeps their chips, and nothing says which."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with the node, the cause first."""
        return tuple(item for item in (self.not_ready, self.serving.finding, *self.lost) if item is not None)

    @property
    def free(self) -> int | None:
        """Chips that can be given away as a whole; None: not known."""
        return sum(chip.free for chip in self.chips) if self.whole and not self.lost else None

    @property
    def held(self) -> int:
        """Chips of which somebody has at least a core."""
        return sum(chip.held > 0 for chip in self.chips)

    @property
    def sick(self) -> int:
        """Chips with a fault or a taint of somebody else."""
        return sum(bool(chip.faults) for chip in self.chips)

    @property
    def tainted(self) -> int:
        """Those of them that have no fault."""
        return sum(chip.state == "tainted" for chip in self.chips)

    @property
    def unknown(self) -> int:
        """Other chips, of whose health nobody knows."""
        return sum(not chip.known and not chip.faults for chip in self.chips)


@dataclass(frozen=True, slots=True)
class TypeRow:
    """All nodes of one instance type."""

    instance_type: str
    nodes: int
    chips: int
    free: int | None
    held: int
    sick: int
    tainted: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class PendingRow:
    """A pod that wants devices and has no node."""

    namespace: str
    pod: str
    asks: str
    finding: Finding
    """Why."""

    @property
    def reason(self) -> str:
        """One line."""
        return self.finding.text


@dataclass(frozen=True, slots=True)
class Frame:
    """What is shown at one time."""

    nodes: tuple[NodeRow, ...]
    """In the order asked for."""
    types: tuple[TypeRow, ...]
    """Of all nodes of the cluster."""
    holders: tuple[HolderOfChip, ...]
    """On these nodes, of the namespace asked for: by node, namespace and name."""
    pending: tuple[PendingRow, ...]
    """Of the namespace asked for, by namespace and name."""
    whole: bool = True
    """False: pods and claims of one namespace alone."""
    with_slices: bool = True
    """False: what nodes have is not known, so that there are neither nodes nor types."""

    def document(self, server: str) -> dict[str, Any]:
        """The same as plain values; ``types`` is null where neither these nor nodes are known."""
        types = [
            {"instanceType": row.instance_type or None, "nodeCount": row.nodes, "counts": _counts(row, row.chips)}
            for row in self.types
        ]
        return envelope(
            "Overview",
            map(node_document, self.nodes),
            server=server,
            types=types if self.with_slices else None,
            holders=[
                {
                    "pod": reference(row.namespace, row.pod) if row.pod else None,
                    "claim": reference(row.namespace, row.claim) if row.claim else None,
                    "node": row.node,
                    "devices": list(row.names),
                    "description": row.devices,
                    "indexes": list(row.chips),
                    "status": row.phase or None,
                    "since": row.since or None,
                    "problem": row.problem or None,
                    "sickChips": list(row.sick),
                    "claimSays": list(row.says),
                    "doubt": row.doubt or None,
                }
                for row in self.holders
            ],
            pending=[
                {
                    "pod": reference(row.namespace, row.pod),
                    "asks": row.asks,
                    "reason": row.reason,
                    "findings": [row.finding.document()],
                }
                for row in self.pending
            ],
        )


def node_document(row: NodeRow) -> dict[str, Any]:
    """A node as plain values."""
    holders = {
        f"{holder.namespace}/{holder.name}": {
            "pod": reference(holder.namespace, holder.pod) if holder.pod else None,
            "claim": None if holder.pod else reference(holder.namespace, holder.claim),
        }
        for holder in row.holders
    }
    return {
        "node": row.name,
        "instanceType": row.instance_type or None,
        "status": row.status,
        "driverPod": {
            "status": row.serving.word,
            "problem": row.serving.problem or None,
            "since": row.serving.since or None,
            "remedy": row.serving.remedy or None,
        },
        "findings": [item.document() for item in row.findings],
        "condition": row.condition or None,
        "kubeletProblem": row.kubelet_problem or None,
        "devicePluginProblem": row.held_back or None,
        "taints": list(row.taints),
        "ultraservers": [{"nodeCount": size, "serverID": server} for size, server in row.servers],
        "offers": [{"description": what, "total": count} for what, count in row.offers],
        "counts": _counts(row, len(row.chips)),
        "chips": [
            {
                "index": chip.index,
                "state": chip.state,
                "logicalCores": {"total": chip.cores, "allocated": chip.held},
                "faults": [
                    {
                        "code": fault.code,
                        "severity": fault.severity,
                        "since": fault.since or None,
                        "effect": fault.effect or None,
                        "remedy": fault.remedy or None,
                    }
                    for fault in chip.faults
                ],
                "holders": [holders[name] for name in chip.holders],
            }
            for chip in row.chips
        ],
    }


def _counts(row: NodeRow | TypeRow, total: int) -> dict[str, int | None]:
    return {"total": total, "free": row.free, "allocated": row.held, "sick": row.sick}

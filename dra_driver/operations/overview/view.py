"""What an overview shows of a cluster: from what is kept of its objects to rows. Values in, values out."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal

from msgspec import structs

from dra_driver.kube.kubelet.versions import kubelet_problem
from dra_driver.kube.matching import BLOCKING
from dra_driver.kube.node_affinity import CORDON
from dra_driver.kube.objects.apps import DaemonSet
from dra_driver.kube.objects.meta import Condition, ObjectMeta
from dra_driver.kube.objects.resource import Device, DeviceAttribute, DeviceTaint, DeviceTaintRule
from dra_driver.kube.objects.taint_rules import TaintOfRule, selects, taint_of
from dra_driver.legacy.annotations import UNUSABLE, parse_ids
from dra_driver.legacy.rules import NeuronResource
from dra_driver.legacy.rules import NodeHardware as PluginHardware
from dra_driver.legacy.rules import hardware as plugin_hardware
from dra_driver.legacy.usage import Holding, held_by
from dra_driver.neuron.device_status import READY, spelled
from dra_driver.neuron.health.condition import DEVICE_PLUGIN, told, told_by
from dra_driver.neuron.health.condition import TYPE as HEALTH_CONDITION
from dra_driver.neuron.health.faults import FAULTS, SEVERITIES, Fault, Severity, State
from dra_driver.neuron.health.taints import fault_of, retired, written
from dra_driver.neuron.names import DRIVER_NAME, is_own_pool, node_of
from dra_driver.neuron.topology.instance_types import HYPERPOD_PREFIX, lookup
from dra_driver.neuron.topology.node_hardware import MEANINGS, Hardware
from dra_driver.neuron.topology.partitions import HardwarePart, device_name
from dra_driver.operations.overview.objects import Claim, Node, Offered, Pod, Refusal, Servers, Slice
from dra_driver.operations.overview.serving import NOT_LOADED, Daemon, Serving, serving
from dra_driver.util.envelope import envelope, reference
from dra_driver.util.errors import DriverError
from dra_driver.util.text import ranges
from dra_driver.util.wording import named

Sort = Literal["name", "free", "sick"]

_NUMBERS: Final = re.compile(r"([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The objects of a cluster, in any order."""

    nodes: Sequence[Node] = ()
    slices: Sequence[Slice] = ()
    claims: Sequence[Claim] = ()
    pods: Sequence[Pod] = ()
    taint_rules: Sequence[DeviceTaintRule] = ()
    refusals: Sequence[Refusal] = ()
    daemon_sets: Sequence[DaemonSet] | None = None
    """Of the driver; None: the user may not list them."""
    whole: bool = True
    """False: claims and pods of one namespace, since the user may not list the rest."""
    with_nodes: bool = True
    """Whether Nodes could be listed."""
    with_slices: bool = True
    """Whether ResourceSlices could be."""


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
    whole: bool = True
    """False: what pods of other namespaces have is not known."""
    kubelet_problem: str = ""
    """Why the driver offers nothing anew, or ""."""
    held_back: str = ""
    """Why the driver offers some or all chips not anew, or "": a device plugin has them."""

    @property
    def free(self) -> int | None:
        """Chips that can be given away as a whole; None: not known."""
        return sum(chip.free for chip in self.chips) if self.whole else None

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
    reason: str
    """One line."""


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
                {"pod": reference(row.namespace, row.pod), "asks": row.asks, "reason": row.reason}
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


def view(cluster: ClusterView, *, sort: Sort = "name", namespace: str = "", nodes: Collection[str] = ()) -> Frame:
    """What is shown of the cluster.

    Args:
        cluster: its objects.
        sort: order of the nodes: by name, with the most free chips first, or with the most unhealthy chips first.
        namespace: of the pods that are listed; "": all. What others hold is counted all the same.
        nodes: names of those that are shown; none: all that have Neuron devices.
    """
    rows = _rows(cluster)
    shown = [row for row in rows if not nodes or row.name in nodes]
    order: Callable[[NodeRow], Any] = {
        "name": lambda _: 0,
        "free": lambda row: -(row.free or 0),
        "sick": lambda row: (-row.sick, not row.condition),
    }[sort]
    pods = {(pod.metadata.namespace, pod.metadata.name): pod for pod in cluster.pods}
    claims = {(claim.metadata.namespace, claim.metadata.name): claim for claim in cluster.claims}
    pending = (
        PendingRow(key[0], key[1], _asks(pod, claims), pod.waits)
        for key, pod in sorted(pods.items())
        if pod.counts and not pod.node and namespace in ("", key[0])
    )
    holders = [holder for row in shown for holder in row.holders if namespace in ("", holder.namespace)]
    return Frame(
        tuple(sorted(shown, key=order)) if cluster.with_slices else (),
        tuple(_by_type(rows)) if cluster.with_slices else (),
        tuple(sorted(holders, key=lambda row: (_natural(row.node), row.namespace, row.pod, row.claim))),
        tuple(pending),
        cluster.whole,
        cluster.with_slices,
    )


def _asks(pod: Pod, claims: Mapping[tuple[str, str], Claim]) -> str:
    found = [claims.get((pod.metadata.namespace, name)) for name in pod.claims]
    parts = [claim.asks for claim in found if claim is not None]
    parts += [f"claim {name}, which does not exist" for name in pod.lacking]
    parts += [
        f"claim {name}, which does not exist" for name, claim in zip(pod.claims, found, strict=True) if claim is None
    ]
    return ", ".join([*parts, *([pod.asks] if pod.asks else [])])


def _by_type(rows: Iterable[NodeRow]) -> Iterator[TypeRow]:
    found: dict[str, list[NodeRow]] = defaultdict(list)
    for row in rows:
        found[row.instance_type].append(row)
    for name, group in sorted(found.items()):
        total = sum(len(row.chips) for row in group)
        free = sum(row.free or 0 for row in group) if all(row.whole for row in group) else None
        yield TypeRow(
            name,
            len(group),
            total,
            free,
            sum(row.held for row in group),
            sum(row.sick for row in group),
            sum(row.tainted for row in group),
            sum(row.unknown for row in group),
        )


def _natural(name: str) -> tuple[str | int, ...]:
    """Sorts ``node-10`` after ``node-9``: texts and numbers alternate."""
    return tuple(int(part) if place % 2 else part for place, part in enumerate(_NUMBERS.split(name)))


# Nodes


@dataclass(frozen=True, slots=True)
class _Use:
    """Hardware of one node that one holder has."""

    holder: HolderOfChip
    parts: tuple[HardwarePart, ...]
    complaints: tuple[tuple[str, Condition], ...] = ()
    """As of the claim, of these devices."""


def _rows(cluster: ClusterView) -> list[NodeRow]:
    nodes = {node.metadata.name: node for node in cluster.nodes}
    slices: dict[str, list[Slice]] = defaultdict(list)
    for item in _tainted(cluster.slices, cluster.taint_rules):
        if is_own_pool(item.pool, item.node):
            slices[item.node].append(item)
    held: dict[str, list[tuple[Claim, list[str]]]] = defaultdict(list)
    for claim in cluster.claims:
        by_node: dict[str, list[str]] = defaultdict(list)
        for pool, device in claim.held:
            by_node[node_of(pool)].append(device)
        for name, devices in by_node.items():
            held[name].append((claim, devices))
    pods = {(pod.metadata.namespace, pod.metadata.name): pod for pod in cluster.pods}
    plugin: dict[str, list[Pod]] = defaultdict(list)
    daemons: dict[str, list[Daemon]] = defaultdict(list)
    for pod in cluster.pods:
        if pod.holding is not None and pod.counts:
            plugin[pod.node].append(pod)
        if pod.daemon is not None:
            daemons[pod.node].append(pod.daemon)
    refusals = {item.uid: item for item in sorted(cluster.refusals, key=lambda item: item.last)}
    ours = {name for name, node in nodes.items() if _ours(node)}
    return [
        _row(
            cluster,
            name,
            nodes.get(name),
            slices.get(name, ()),
            held.get(name, ()),
            plugin.get(name, ()),
            daemons.get(name, ()),
            _Pods(pods, refusals),
        )
        for name in sorted({*slices, *held, *ours, *plugin, *daemons} - {""}, key=_natural)
    ]


_UNKNOWN: Final[tuple[Mapping[int, tuple[ChipFault, ...]], frozenset[int]]] = ({}, frozenset())


def _ours(node: Node) -> bool:
    """Whether a node has Neuron devices, also while nobody offers them."""
    kind = lookup(node.instance_type.removeprefix(HYPERPOD_PREFIX))
    return node.plugin is not None or kind is not None or node.condition(HEALTH_CONDITION) is not None


def _row(
    cluster: ClusterView,
    name: str,
    found: Node | None,
    slices: Sequence[Slice],
    held: Sequence[tuple[Claim, list[str]]],
    plugin: Sequence[Pod],
    daemons: Sequence[Daemon],
    pods: _Pods,
) -> NodeRow:
    newest = max((item.generation for item in slices), default=0)
    current = [item for item in slices if item.generation == newest]
    devices = tuple(device for item in current for device in item.devices)
    node = found or Node(ObjectMeta(name=name))
    label = node.instance_type.removeprefix(HYPERPOD_PREFIX)
    kind = next((item.instance_type for item in current if item.instance_type), "") or label
    servers = node.servers or next((item.servers for item in current), ())
    # Which devices there are is said by one of the two at a time. Claims outlast the slices of a driver that is gone,
    # and pods of a device plugin that is gone keep their chips.
    by_plugin = node.plugin if not devices else None
    problem = kubelet_problem(node.status.node_info.kubelet_version) if by_plugin is None else ""
    held_back = told(DEVICE_PLUGIN, node.status.conditions)
    open_ = [device for device in devices if not any(map(retired, device.taints))]
    offered = bool(open_) or by_plugin is not None
    daemon_sets = cluster.daemon_sets if found is not None else None
    withheld = problem or held_back
    served = serving(node, offered, daemons, daemon_sets, known=cluster.whole, withheld=withheld)
    offered = offered and served.word != NOT_LOADED
    hardware = _hardware(devices, kind)
    uses = [use for claim, names in held for use in _of_claim(claim, names, name, hardware, pods)]
    if by_plugin is None:
        offers, former = _offers(devices), _former_plugin(kind, len(hardware.chips))
        uses += [_of_plugin(pod, pod.holding, former, _physical(kind)) for pod in plugin if pod.holding is not None]
        cores = _without_plugin(devices, kind, hardware, uses)
    else:
        offers = ((NeuronResource.DEVICE.value, by_plugin.devices), (NeuronResource.CORE.value, by_plugin.cores))
        uses += [_of_plugin(pod, pod.holding, by_plugin) for pod in plugin if pod.holding is not None]
        cores = dict.fromkeys(range(by_plugin.devices), (by_plugin.cores_per_device, 1))
    health, unusable = node.condition(HEALTH_CONDITION), node.metadata.annotations.get(UNUSABLE, "")
    faults, blocked = _UNKNOWN
    if offered:
        faults, blocked = _faults(devices, kind) if devices else _told(health, unusable, cores)
    if problem or not offered:
        blocked = frozenset(cores)
    elif held_back and by_plugin is None:
        blocked |= cores.keys() - {part.chip for device in open_ for part in hardware.parts(device.name)}
    chips = _chips(uses, cores, faults, blocked, known=offered)
    return NodeRow(
        name,
        kind,
        _status(found) if cluster.with_nodes else "-",
        offers if offered else (),
        tuple(
            written(DeviceTaint(taint.key, taint.value, taint.effect))
            for taint in node.spec.taints
            if taint.effect in BLOCKING and taint.key != CORDON.key  # which the status says already
        ),
        servers,
        health.reason if offered and health is not None and health.status != "False" else "",
        chips,
        _holders(uses, chips, hardware),
        served,
        cluster.whole,
        problem,
        held_back,
    )


def _without_plugin(
    devices: Collection[Offered], kind: str, hardware: Hardware, uses: Sequence[_Use]
) -> dict[int, tuple[int, int]]:
    """The cores of each chip where no device plugin says which there are."""
    row = lookup(kind)
    of_type = range(row.devices or 0) if row is not None and not devices else ()
    # Without slices and a known type, there is at least what somebody has.
    indexes = hardware.chips or sorted({*of_type, *(chip for use in uses for chip in use.holder.chips)})
    return {index: _cores(hardware, index, _physical(kind)) for index in indexes}


def _chips(
    uses: Sequence[_Use],
    cores: Mapping[int, tuple[int, int]],
    faults: Mapping[int, tuple[ChipFault, ...]],
    blocked: Collection[int],
    *,
    known: bool,
) -> tuple[ChipRow, ...]:
    users: dict[int, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    for use in uses:
        for part in use.parts:
            users[part.chip].append((f"{use.holder.namespace}/{use.holder.name}", part.cores))
    return tuple(
        _chip(index, users.get(index, ()), faults.get(index, ()), index in blocked, known, *of_chip)
        for index, of_chip in cores.items()
    )


def _holders(uses: Sequence[_Use], chips: Sequence[ChipRow], hardware: Hardware) -> tuple[HolderOfChip, ...]:
    """Who has the chips, with the faults of these and what claims say."""
    sick = {
        chip.index: f"neuron{chip.index}: {', '.join(fault.code for fault in chip.faults)}"
        for chip in chips
        if chip.faults
    }
    return tuple(
        replace(
            use.holder,
            sick=tuple(sick[index] for index in use.holder.chips if index in sick),
            says=tuple(_says(use, sick, hardware)),
        )
        for use in uses
    )


def _status(node: Node | None) -> str:
    if node is None:
        return "Unknown"
    ready = node.condition("Ready")
    status = "Ready" if ready is not None and ready.status == "True" else "NotReady"
    return status + ",SchedulingDisabled" * node.spec.unschedulable


@lru_cache(maxsize=4096)
def _hardware(devices: tuple[Offered, ...], instance_type: str) -> Hardware:
    """Cached, since nodes of one type offer the same."""
    return Hardware.of(map(_device, devices), instance_type)


def _device(offered: Offered) -> Device:
    numbers = (("deviceId", offered.chip), ("logicalCoreSize", offered.core_size))
    return Device(
        offered.name,
        {name: DeviceAttribute(int_=value) for name, value in numbers if value is not None},
        taints=offered.taints,
    )


@lru_cache(maxsize=4096)
def _offers(devices: tuple[Offered, ...]) -> tuple[tuple[str, int], ...]:
    kinds = Counter(device.resource for device in devices)
    return tuple((words[count > 1], count) for kind, words in MEANINGS.items() if (count := kinds.get(kind, 0)))


def _physical(kind: str) -> int:
    row = lookup(kind)
    return row.cores_per_device if row is not None else 1


def _cores(hardware: Hardware, chip: int, physical: int) -> tuple[int, int]:
    """Logical cores of a chip, and physical cores in each."""
    size = max(1, min(hardware.core_size(chip), physical))
    return physical // size, size


def _chip(
    index: int,
    users: Sequence[tuple[str, tuple[int, ...]]],
    faults: tuple[ChipFault, ...],
    blocked: bool,
    known: bool,
    cores: int,
    size: int,
) -> ChipRow:
    held: set[int] = set()
    for _, physical in users:
        held.update({core // size for core in physical} if physical else range(cores))
    # A claim may name cores that the chip is not known to have: its node is gone, or says less of its type.
    return ChipRow(
        index, cores, min(len(held), cores), blocked, faults, tuple(dict.fromkeys(name for name, _ in users)), known
    )


# Who has what


@dataclass(frozen=True, slots=True)
class _Pods:
    """The pods, and what kubelet last said of those whose claims it could not prepare, by UID."""

    by_name: Mapping[tuple[str, str], Pod]
    refusals: Mapping[str, Refusal]

    def described(self, holder: HolderOfChip) -> HolderOfChip:
        """The holder with the state of its pod."""
        pod = self.by_name.get((holder.namespace, holder.pod))
        if pod is None:
            return holder
        state = pod.state
        if state.ready:
            return replace(holder, phase=state.word)
        refusal = self.refusals.get(pod.metadata.uid) if pod.metadata.uid else None
        problem = refusal.text if refusal is not None and not pod.ending else state.detail
        return replace(holder, phase=state.word, since=state.since, problem=problem)


@lru_cache(maxsize=4096)
def _named(devices: tuple[str, ...]) -> str:
    return named(devices)


def _of_claim(claim: Claim, devices: Sequence[str], node: str, hardware: Hardware, pods: _Pods) -> Iterator[_Use]:
    namespace = claim.metadata.namespace
    parts = tuple(part for device in devices for part in hardware.parts(device))
    chips = tuple(sorted({part.chip for part in parts}))
    complaints = tuple(item for item in claim.complaints if item[0] in devices)
    for name in claim.pods or ("",):
        named_so = _named(tuple(devices))
        holder = HolderOfChip(namespace, name, claim.metadata.name, node, named_so, chips, names=tuple(devices))
        yield _Use(pods.described(holder), parts, complaints)


def _says(use: _Use, sick: Collection[int], hardware: Hardware) -> Iterator[str]:
    """What the claim says, without what kubelet's Event says of the pod, and the slices of the chips."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for device, item in use.complaints:
        if item.type == READY:
            known = repeated(item, use.holder.problem)
        else:
            known = any(part.chip in sick for part in hardware.parts(device))
        if not known:
            alike["" if item.type == READY else " alone", spelled(item)].append(device)
    for (alone, text), names in alike.items():
        yield f"its claim{alone} says of {named(names)}: {text}"


def repeated(complaint: Condition, text: str) -> bool:
    """Whether kubelet's Event, which may be cut off, has the driver's words of the claim, too."""
    return bool(complaint.message) and complaint.message[:_SAME] in text


_SAME: Final = 300
"""Characters."""


def _former_plugin(kind: str, chips: int) -> PluginHardware | None:
    """What a device plugin that is gone offered of a node; None if that is not known."""
    try:
        return plugin_hardware(kind, chips, 0)
    except DriverError:
        return None


def _of_plugin(pod: Pod, holding: Holding, hardware: PluginHardware | None, physical: int = 0) -> _Use:
    """What a pod has of a device plugin.

    Args:
        pod: the pod.
        holding: what its annotations record.
        hardware: of the node, as the plugin counts it; None: not known.
        physical: cores of a chip where those are counted; 0: logical ones are.
    """
    if hardware is None:
        return _Use(_as_annotated(pod, holding), ())
    size = max(1, physical // hardware.cores_per_device)
    mask, doubt = held_by(hardware, holding)
    cores = hardware.ids(NeuronResource.CORE, mask)
    by_chip: dict[int, list[int]] = defaultdict(list)
    for core in cores:
        first = core % hardware.cores_per_device * size
        by_chip[core // hardware.cores_per_device] += range(first, first + size)
    every = hardware.cores_per_device * size
    parts = tuple(HardwarePart(chip, () if len(found) == every else tuple(found)) for chip, found in by_chip.items())
    whole = all(not part.cores for part in parts)
    said = named(map(device_name, by_chip)) if whole else f"neuroncore {ranges(cores)}"
    return _Use(_holder(pod, said if parts else "not known", tuple(by_chip), doubt), parts)


def _as_annotated(pod: Pod, holding: Holding) -> HolderOfChip:
    """What a pod has of a device plugin, where the node's hardware is not known."""
    shares = [share for allocation in holding.allocations for share in allocation.shares]
    chips = sorted({number for share in shares if share.resource is NeuronResource.DEVICE for number in share.ids})
    cores = sorted({number for share in shares if share.resource is NeuronResource.CORE for number in share.ids})
    said = [named(map(device_name, chips))] if chips else []
    said += [f"neuroncore {ranges(cores)}"] if cores else []
    return _holder(pod, ", ".join(said) or "not known", tuple(chips), holding.trouble)


def _holder(pod: Pod, devices: str, chips: tuple[int, ...], doubt: str) -> HolderOfChip:
    meta = pod.metadata
    found = HolderOfChip(meta.namespace, meta.name, "", pod.node, devices, chips, doubt=doubt)
    return _Pods({(meta.namespace, meta.name): pod}, {}).described(found)


# What is wrong


def _tainted(slices: Sequence[Slice], rules: Iterable[DeviceTaintRule]) -> Iterator[Slice]:
    """The slices as the scheduler sees them: with the taints of DeviceTaintRules."""
    by_pool: dict[str | None, list[DeviceTaintRule]] = defaultdict(list)
    for rule in sorted(rules, key=lambda rule: rule.metadata.name):
        selector = rule.spec.device_selector
        by_pool[selector.pool if selector is not None else None].append(rule)
    for item in slices:
        near = (*by_pool.get(None, ()), *by_pool.get(item.pool, ()))
        yield replace(item, devices=_with_taints(item.devices, item.pool, near)) if near else item


def _with_taints(devices: tuple[Offered, ...], pool: str, rules: Sequence[DeviceTaintRule]) -> tuple[Offered, ...]:
    added = [
        tuple(
            structs.replace(taint_of(rule), time_added=rule.spec.taint.time_added)
            for rule in rules
            if selects(rule, DRIVER_NAME, pool, device.name)
        )
        for device in devices
    ]
    return tuple(
        device._replace(taints=(*device.taints, *more)) if more else device
        for device, more in zip(devices, added, strict=True)
    )


@lru_cache(maxsize=4096)
def _faults(
    devices: tuple[Offered, ...], instance_type: str
) -> tuple[Mapping[int, tuple[ChipFault, ...]], frozenset[int]]:
    """Faults by chip, and the chips that a taint keeps from pods.

    A device of several chips does not tell which of them is sick, so its taints say nothing of chips that are offered
    on their own or as cores (``neuron.health.taints.sick``).
    """
    hardware = _hardware(devices, instance_type)
    on = {device.name: sorted({part.chip for part in hardware.parts(device.name)}) for device in devices}
    alone = {chips[0] for chips in on.values() if len(chips) == 1}
    faults: dict[int, dict[str, ChipFault]] = defaultdict(dict)
    blocked = set()
    for device in devices:
        for index in on[device.name]:
            if len(on[device.name]) > 1 and index in alone:
                continue
            for taint in device.taints:
                if taint.effect in BLOCKING:
                    blocked.add(index)
                fault = _fault(taint)
                if fault is not None:
                    faults[index].setdefault(fault.code, fault)
    return {index: tuple(found.values()) for index, found in faults.items()}, frozenset(blocked)


def _fault(taint: DeviceTaint) -> ChipFault | None:
    since = taint.time_added or ""
    found = fault_of(taint)
    if found is not None:
        severity = next(severity for severity in SEVERITIES if severity == taint.value)
        return ChipFault(found.code, severity, taint.effect, since)
    if retired(taint) or taint.effect not in BLOCKING:
        return None
    rule = taint.rule if isinstance(taint, TaintOfRule) else ""
    return ChipFault(written(taint), "tainted", taint.effect, since, rule)


def _told(
    health: Condition | None, unusable: str, indexes: Collection[int]
) -> tuple[Mapping[int, tuple[ChipFault, ...]], frozenset[int]]:
    """The same where no slice says it: by the Node's condition, and by the device plugin's annotation."""
    since = (health.last_transition_time if health is not None else None) or ""
    faults = {
        index: tuple(ChipFault(code, FAULTS[code].severity, "", since) for code in codes)
        for index, codes in told_by(health).items()
        if index is not None and index in indexes
    }
    try:
        ids = parse_ids(UNUSABLE, unusable) if unusable else ()
    except DriverError:
        ids = tuple(indexes)  # the extender gives nothing away then
    for index in ids:
        if index in indexes:
            faults[index] = faults.get(index) or (ChipFault(UNUSABLE, "tainted", "", ""),)
    return faults, frozenset(ids)

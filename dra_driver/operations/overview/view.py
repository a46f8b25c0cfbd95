"""From what is kept of the objects of a cluster to the rows that are shown. Values in, values out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import structs

from dra_driver.kube.kubelet.versions import kubelet_problem
from dra_driver.kube.matching import BLOCKING
from dra_driver.kube.node_affinity import CORDON
from dra_driver.kube.objects.meta import Condition, ObjectMeta
from dra_driver.kube.objects.resource import Device, DeviceAttribute, DeviceTaint, DeviceTaintRule
from dra_driver.kube.objects.taint_rules import TaintOfRule, selects, taint_of
from dra_driver.neuron.health.condition import DEVICE_PLUGIN, message_of, told_by
from dra_driver.neuron.health.condition import TYPE as HEALTH_CONDITION
from dra_driver.neuron.health.faults import FAULTS, SEVERITIES
from dra_driver.neuron.health.taints import fault_of, of_workload, retired, written
from dra_driver.neuron.names import DRIVER_NAME, UNUSABLE_DEVICES, is_own_pool, node_of
from dra_driver.neuron.topology.instance_types import HYPERPOD_PREFIX, lookup
from dra_driver.neuron.topology.node_hardware import MEANINGS, Hardware
from dra_driver.operations.overview.findings import Finding
from dra_driver.operations.overview.objects import (
    EXTENDED_RESOURCES,
    Claim,
    ClusterView,
    Node,
    Offered,
    Pod,
    Slice,
)
from dra_driver.operations.overview.pods import lost_claims, node_not_ready, pending
from dra_driver.operations.overview.rows import ChipFault, ChipRow, Frame, HolderOfChip, NodeRow, PendingRow, TypeRow
from dra_driver.operations.overview.serving import NOBODY, NOT_LOADED, Daemon, serving
from dra_driver.operations.overview.uses import Use, of_claim, of_plugin, says
from dra_driver.util.wording import natural

if TYPE_CHECKING:
    from dra_driver.legacy.rules import NodeHardware as PluginHardware

Sort = Literal["name", "free", "sick"]


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
    waiting = (
        PendingRow(key[0], key[1], _asks(pod, cluster), pending(pod, cluster))
        for key, pod in sorted(cluster.pods_by_key.items())
        if pod.counts and not pod.node and namespace in ("", key[0])
    )
    holders = [holder for row in shown for holder in row.holders if namespace in ("", holder.namespace)]
    places = {name: place for place, name in enumerate(natural({row.node for row in holders}))}
    return Frame(
        tuple(sorted(shown, key=order)) if cluster.with_slices else (),
        tuple(_by_type(rows)) if cluster.with_slices else (),
        tuple(sorted(holders, key=lambda row: (places[row.node], row.namespace, row.pod, row.claim))),
        tuple(waiting),
        cluster.whole,
        cluster.with_slices,
    )


def _asks(pod: Pod, cluster: ClusterView) -> str:
    found = [cluster.claims_by_key.get((pod.metadata.namespace, name)) for name in pod.claims]
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


# Nodes


@dataclass(slots=True)
class _OfNode:
    """What a cluster has of one node."""

    slices: list[Slice] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    """Those that have devices there."""
    plugin: list[Pod] = field(default_factory=list)
    """Pods that have devices of a device plugin."""
    daemons: list[Daemon] = field(default_factory=list)
    lost: list[Finding] = field(default_factory=list)
    """Of pods whose claims are gone."""


def _rows(cluster: ClusterView) -> list[NodeRow]:
    of_nodes: dict[str, _OfNode] = defaultdict(_OfNode)
    for item in _tainted(cluster.slices, cluster.taint_rules):
        if is_own_pool(item.pool, item.node):
            of_nodes[item.node].slices.append(item)
    for claim in cluster.claims:
        for name in dict.fromkeys(node_of(pool) for pool, _ in claim.held):
            of_nodes[name].claims.append(claim)
    for pod in cluster.pods:
        if pod.holding is not None and pod.counts:
            of_nodes[pod.node].plugin.append(pod)
        if pod.daemon is not None:
            of_nodes[pod.node].daemons.append(pod.daemon)
    names = {*of_nodes, *(name for name, node in cluster.nodes_by_name.items() if _ours(node))} - {""}
    lost = [(pod.node, lost_claims(pod, cluster)) for pod in cluster.pods if pod.state.ready and pod.node in names]
    for name, gone in lost:
        of_nodes[name].lost += [gone] if gone is not None else []
    return [_row(cluster, name, of_nodes[name]) for name in natural(names)]


Faults = Mapping[int, tuple[ChipFault, ...]]
"""By chip."""
_UNKNOWN: Final[tuple[Faults, frozenset[int], Faults]] = ({}, frozenset(), {})


def _ours(node: Node) -> bool:
    """Whether a node has Neuron devices, also while nobody offers them."""
    kind = lookup(node.instance_type.removeprefix(HYPERPOD_PREFIX))
    return node.plugin is not None or kind is not None or node.condition(HEALTH_CONDITION) is not None


def _row(cluster: ClusterView, name: str, of_node: _OfNode) -> NodeRow:
    stored, plugin = cluster.nodes_by_name.get(name), of_node.plugin
    newest = max((item.generation for item in of_node.slices), default=0)
    current = [item for item in of_node.slices if item.generation == newest]
    devices = tuple(device for item in current for device in item.devices)
    node = stored or Node(ObjectMeta(name=name))
    label = node.instance_type.removeprefix(HYPERPOD_PREFIX)
    kind = next((item.instance_type for item in current if item.instance_type), "") or label
    servers = node.servers or next((item.servers for item in current), ())
    # Which devices there are is said by one of the two at a time. Claims outlast the slices of a driver that is gone,
    # and pods of a device plugin that is gone keep their chips.
    by_plugin = node.plugin if not devices else None
    problem = kubelet_problem(node.status.node_info.kubelet_version) if by_plugin is None else ""
    held_back = message_of(DEVICE_PLUGIN, node.status.conditions)
    open_ = [device for device in devices if not any(map(retired, device.taints))]
    offered = bool(open_) or by_plugin is not None
    daemon_sets = cluster.daemon_sets if stored is not None else None
    claims, daemons = bool(of_node.claims), of_node.daemons
    served = serving(node, offered, daemons, daemon_sets, cluster.refusal, known=cluster.whole, claims=claims)
    offered = offered and served.word not in (NOT_LOADED, NOBODY)
    hardware = _hardware(devices, kind)
    uses = [use for claim in of_node.claims for use in of_claim(claim, name, hardware, cluster)]
    if by_plugin is None:
        offers, former = _offers(devices), _former_plugin(kind, len(hardware.chips)) if plugin else None
        uses += [
            of_plugin(pod, pod.holding, cluster, former, _physical(kind)) for pod in plugin if pod.holding is not None
        ]
        cores = _without_plugin(devices, kind, hardware, uses)
    else:
        offers = tuple(zip(EXTENDED_RESOURCES, (by_plugin.devices, by_plugin.cores), strict=False))
        uses += [of_plugin(pod, pod.holding, cluster, by_plugin) for pod in plugin if pod.holding is not None]
        cores = dict.fromkeys(range(by_plugin.devices), (by_plugin.cores_per_device, 1))
    health, unusable = node.condition(HEALTH_CONDITION), node.metadata.annotations.get(UNUSABLE_DEVICES, "")
    faults, blocked, doubtful = _UNKNOWN
    if offered:
        faults, blocked, doubtful = _faults(devices, kind) if devices else _told(health, unusable, cores)
    if doubtful:
        faults, doubtful = _attributed(faults, doubtful, told_by(health))
    if problem or not offered:
        blocked = frozenset(cores)
    elif held_back and by_plugin is None:
        blocked |= cores.keys() - {part.chip for device in open_ for part in hardware.parts(device.name)}
    not_ready = node_not_ready(node)
    # Of a driver that is not ready, the last word on the chips may be old.
    attended = offered and served.serves and not_ready is None
    watched = cores.keys() - doubtful.keys() if attended else frozenset[int]()
    chips = _chips(uses, cores, faults, blocked, watched)
    return NodeRow(
        name,
        kind,
        _status(stored) if cluster.with_nodes else "-",
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
        not_ready,
        cluster.whole,
        problem,
        held_back,
        tuple(of_node.lost),
    )


def _former_plugin(kind: str, chips: int) -> PluginHardware | None:
    from dra_driver.operations.overview.deviceplugin import former_hardware

    return former_hardware(kind, chips)


def _without_plugin(
    devices: Collection[Offered], kind: str, hardware: Hardware, uses: Sequence[Use]
) -> dict[int, tuple[int, int]]:
    """The cores of each chip where no device plugin says which there are."""
    row = lookup(kind)
    of_type = range(row.devices or 0) if row is not None and not devices else ()
    # Without slices and a known type, there is at least what somebody has.
    indexes = hardware.chips or sorted({*of_type, *(chip for use in uses for chip in use.holder.chips)})
    return {index: _cores(hardware, index, _physical(kind)) for index in indexes}


def _chips(
    uses: Sequence[Use],
    cores: Mapping[int, tuple[int, int]],
    faults: Faults,
    blocked: Collection[int],
    watched: Collection[int],
) -> tuple[ChipRow, ...]:
    users: dict[int, list[tuple[str, tuple[int, ...]]]] = defaultdict(list)
    for use in uses:
        for part in use.parts:
            users[part.chip].append((f"{use.holder.namespace}/{use.holder.name}", part.cores))
    return tuple(
        _chip(index, users.get(index, ()), faults.get(index, ()), index in blocked, index in watched, *of_chip)
        for index, of_chip in cores.items()
    )


def _holders(uses: Sequence[Use], chips: Sequence[ChipRow], hardware: Hardware) -> tuple[HolderOfChip, ...]:
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
            says=tuple(says(use, sick, hardware)),
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
def _faults(devices: tuple[Offered, ...], instance_type: str) -> tuple[Faults, frozenset[int], Faults]:
    """Faults by chip; the chips that a taint keeps from pods; faults that one of several chips has.

    A device of several chips does not tell which of them is sick, so its taints say nothing of chips that are offered
    on their own or as cores (``neuron.health.taints.sick``), and of the others only that one of them has the fault.
    """
    hardware = _hardware(devices, instance_type)
    on = {device.name: sorted({part.chip for part in hardware.parts(device.name)}) for device in devices}
    alone = {chips[0] for chips in on.values() if len(chips) == 1}
    own: dict[int, dict[str, ChipFault]] = defaultdict(dict)
    shared: dict[int, dict[str, ChipFault]] = defaultdict(dict)
    blocked = set()
    for device in devices:
        chips = on[device.name] if len(on[device.name]) == 1 else [*{*on[device.name]} - alone]
        for taint in device.taints:
            if taint.effect in BLOCKING:
                blocked.update(chips)
            fault = _fault(taint)
            if fault is not None:
                of_one = len(on[device.name]) > 1 and fault.row is not None
                for index in chips:
                    (shared if of_one else own)[index].setdefault(fault.code, fault)
    by_chip, by_group = ({index: tuple(each.values()) for index, each in those.items()} for those in (own, shared))
    return by_chip, frozenset(blocked), by_group


def _attributed(faults: Faults, shared: Faults, health: Mapping[int | None, tuple[str, ...]]) -> tuple[Faults, Faults]:
    """The faults with those of devices of several chips, for the chips that the Node's condition names.

    Returns:
        faults by chip, and those that the condition names no chip for, by each chip that may have them.
    """
    attributed, doubtful = dict(faults), dict[int, tuple[ChipFault, ...]]()
    for index, those in shared.items():
        of_chip = tuple(fault for fault in those if fault.code in health.get(index, ()))
        if of_chip:
            attributed[index] = (*attributed.get(index, ()), *of_chip)
        named = {code for chip, codes in health.items() if chip in shared for code in codes}
        unnamed = tuple(fault for fault in those if fault.code not in named)
        if unnamed:
            doubtful[index] = unnamed
    return attributed, doubtful


def _fault(taint: DeviceTaint) -> ChipFault | None:
    since = taint.time_added or ""
    found = fault_of(taint)
    if found is not None:
        severity = next(severity for severity in SEVERITIES if severity == taint.value)
        return ChipFault(found.code, severity, taint.effect, since)
    if retired(taint) or of_workload(taint) or taint.effect not in BLOCKING:
        return None
    rule = taint.rule if isinstance(taint, TaintOfRule) else ""
    return ChipFault(written(taint), "tainted", taint.effect, since, rule)


def _told(health: Condition | None, unusable: str, indexes: Collection[int]) -> tuple[Faults, frozenset[int], Faults]:
    """The same where no slice says it: by the Node's condition, and by the device plugin's annotation."""
    since = (health.last_transition_time if health is not None else None) or ""
    faults = {
        index: tuple(ChipFault(code, FAULTS[code].severity, "", since) for code in codes)
        for index, codes in told_by(health).items()
        if index is not None and index in indexes
    }
    ids = _unusable(unusable, indexes) if unusable else frozenset[int]()
    for index in ids:
        if index in indexes:
            faults[index] = faults.get(index) or (ChipFault(UNUSABLE_DEVICES, "tainted", "", ""),)
    return faults, ids, {}


def _unusable(annotation: str, indexes: Collection[int]) -> frozenset[int]:
    from dra_driver.operations.overview.deviceplugin import unusable_chips

    return unusable_chips(annotation, indexes)

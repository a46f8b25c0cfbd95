"""What follows from what is known of a node: what it offers, what is held back, and what preparations need to know.

``decide`` asks nobody and remembers nothing: what it has to know of before is in its ``Memory``, which it gives back.
It is a sum of parts, so that an error in one of them leaves the others right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from dra_driver.driver.claims.situation import NodeFacts
from dra_driver.driver.device_health import device_health
from dra_driver.driver.node_labels import labels as ultraserver_labels
from dra_driver.driver.resourceslices.devices import (
    Offer,
    completed,
    is_ultraserver,
    offer,
    shapes,
    with_faults,
)
from dra_driver.driver.resourceslices.kept import Answer, Keeping, PreparedDevices, PublishedPool
from dra_driver.driver.settings import PARTITIONS_LABEL, DriverSettings
from dra_driver.driver.workload import (
    ABSENT_SECONDS,
    SeenServer,
    Tenancy,
    Tenure,
    elected_server,
    published_workload,
    server_of,
)
from dra_driver.driver.workload import tenancy as tenancy_of
from dra_driver.driver.workload import tenure as tenure_of
from dra_driver.kube.kubelet.devicehealth import DeviceHealth
from dra_driver.kube.kubelet.podresources import PodDevices
from dra_driver.neuron.exclusion import HeldBack, held_back
from dra_driver.neuron.health.faults import ActiveFault, NodeHealth
from dra_driver.neuron.health.node_status import chips_present
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.topology.partitions import NODE_DEVICE, Partitions
from dra_driver.util.errors import DriverError

HEALTH_PATIENCE: Final = 3.0
"""Seconds that the first publication waits, after the first scan, for what is wrong with the chips."""
CONDITIONS, LABELS, OFFER, DEVICE_HEALTH = PARTS = ("conditions", "labels", "offer", "device health")
"""Parts of a decision, for people. kubelet gets the last one."""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """What is known of a node at one moment: the latest value of each source."""

    inventory: NodeInventory | None = None
    """What the host shows; None: it has not been read yet."""
    scan_labels: Mapping[str, str] | None = None
    """The Node's labels with which the host was read; None: they were not known then."""
    health: NodeHealth = field(default=NodeHealth())
    """The health of its chips, as far as the host tells it."""
    health_decided: bool = False
    """Whether the chips have been read as often as it takes."""
    labels: Mapping[str, str] | None = None
    """Those of the Node; None: it is not known yet."""
    kubelet_problem: str | None = None
    """Why kubelet's version keeps from the offer what no claim holds, or ""; None: the Node is not known yet."""
    plugin_offers: str = ""
    """What a device plugin offers of the node, as the Node says."""
    device_plugin: str = ""
    """The same, or what it did until a moment ago: its pods keep their chips, and after a restart of kubelet it may be
    back at once."""
    plugin_pods: Sequence[PodDevices] | None = None
    """The pods that have chips from it; None: kubelet has not said yet."""
    prepared: PreparedDevices | None = None
    """What is prepared here; None: not known."""
    pool: PublishedPool | None = None
    """What the API server has of the node; None: nothing has been compared yet."""
    server: SeenServer | None = None
    """The object of its UltraServer; None: it has not been read yet."""
    tenure: Tenure | None = None
    """What was kept of a former run of the driver; None: nothing."""
    answer: Answer | None = None
    """Who holds what; None: that was not asked yet."""
    moment: float = 0.0
    """Now, in seconds of a clock that never goes back."""
    now: int = 0
    """Now, as Unix time in seconds."""
    uptime: float = 0.0
    """Now, in seconds since the boot."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What follows."""

    revision: int = 0
    """A later decision has a larger one."""
    published: bool = False
    """Whether the offer is to be published: not before all is known that it depends on."""
    inventory: NodeInventory | None = None
    """What it follows from."""
    health: NodeHealth = field(default=NodeHealth())
    """The health for the Node's condition; without chips as long as nothing is known."""
    present: bool | None = None
    """Whether the node has chips, for its label; None: not known."""
    labels: Mapping[str, str] | None = None
    """Labels of the UltraServer; None: leave them as they are."""
    server: str | None = None
    """Name of the object of its UltraServer, which is to be watched; "": it has none; None: not known, or off."""
    tenancy: Tenancy | None = None
    """Whose workload the node is allocated to; None: nodes are not allocated to workloads."""
    tenure: Tenure | None = None
    """What is to be kept for the next run of the driver; None: nothing."""
    offer: Offer = field(default=Offer(()))
    held_back: HeldBack = field(default=HeldBack())
    """Chips that are held back because of a device plugin."""
    label_problem: str | None = None
    """Why the Node's label that sets what is offered is ignored, or leaves nothing, or ""; None: not known."""
    kubelet_problem: str | None = None
    """Why nothing is offered that no claim holds, or ""; None: not known."""
    facts: NodeFacts = field(default=NodeFacts())
    """What preparations need to know."""
    device_health: tuple[DeviceHealth, ...] = ()
    """The health of all devices that pods can have, for kubelet."""
    keeping: Keeping = field(default=Keeping())
    """What stays because claims hold it, or may, and what has to be asked about that."""
    until: float | None = None
    """When to decide again if nothing changes, in seconds of the clock that never goes back; None: need not be."""
    failures: Mapping[str, Exception] = field(default_factory=dict)
    """Parts that could not be decided, and why: their values are those of before."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What one decision leaves for the next."""

    wanted: Wanted = field(default=Wanted())
    """What followed."""
    first_scan: float | None = None
    """When the host was read first, by the clock that never goes back."""
    whole: NodeInventory | None = None
    """The host as it was published, with the chips that were lost in this run."""
    lost: Mapping[int, ActiveFault] = field(default_factory=dict)
    """What is wrong with those, by host index.

    The slices say so by themselves. The health says it later, after two readings, and not at all of device numbers that
    cannot be read; without a kernel driver it says no more than unknown, which keeps no claim away.
    """
    tenure: Tenure | None = None
    """What its server's object said last of the node; None: it never did."""
    absent: float | None = None
    """Since when the object of that server is not there, by the clock that never goes back; None: it is."""
    had_cores: bool = False
    """Whether logical cores were offered."""
    allocated_core_size: int | None = None
    """Physical cores in a logical one, of what is allocated at the API server; None: nothing has been compared yet."""


def decide(snapshot: NodeSnapshot, memory: Memory, settings: DriverSettings) -> tuple[Wanted, Memory]:
    """What is wanted now, and what has to be known at the next decision. A part that raises keeps its last values."""
    failures: dict[str, Exception] = {}
    with _part(CONDITIONS, failures):
        memory = _with_conditions(snapshot, memory)
    with _part(LABELS, failures):
        memory = _with_labels(snapshot, memory, settings)
    with _part(OFFER, failures):
        memory = _with_offer(snapshot, memory, settings)
    with _part(DEVICE_HEALTH, failures):  # of what is offered, too
        memory = _with_device_health(snapshot, memory, settings)
    wanted = replace(memory.wanted, failures=failures)
    return wanted, replace(memory, wanted=wanted)


def _with_conditions(snapshot: NodeSnapshot, memory: Memory) -> Memory:
    health = snapshot.health if snapshot.health_decided else NodeHealth()
    return _with(memory, health=health, kubelet_problem=snapshot.kubelet_problem)


def _with_labels(snapshot: NodeSnapshot, memory: Memory, settings: DriverSettings) -> Memory:
    if snapshot.inventory is None:
        return memory
    # If turned off, the labels are removed: an outdated id would lead pods to the wrong server.
    labels = ultraserver_labels(snapshot.inventory.ultraserver) if settings.ultraserver_labels else {}
    return _with(memory, labels=labels, present=chips_present(snapshot.inventory))


def _with_offer(snapshot: NodeSnapshot, memory: Memory, settings: DriverSettings) -> Memory:
    partitions, label_problem = _partitions(snapshot, settings)
    inventory = snapshot.inventory
    if inventory is None:
        return _with(memory, label_problem=label_problem)
    first_scan = snapshot.moment if memory.first_scan is None else memory.first_scan
    patience = first_scan + HEALTH_PATIENCE
    # Without the labels some attributes would be missing now and appear later: two writes, and claims that select on
    # them would fail in between. Nor is anything published before kubelet has told which pods have chips already.
    complete = snapshot.scan_labels is not None and snapshot.plugin_pods is not None
    memory = _with_tenure(snapshot, memory, settings, inventory)
    tenancy = memory.wanted.tenancy
    # An instance before this one may have told of faults and of a workload, and kubelet have deleted the slices since.
    ready = snapshot.health_decided and (tenancy is None or tenancy.certain)
    published = memory.wanted.published or (complete and (ready or snapshot.moment >= patience))

    whole, missing = completed(inventory, memory.whole)
    lost = {index: _fault(code, memory.lost.get(index), snapshot) for index, code in missing.items()}
    health = with_faults(snapshot.health, lost)
    back = held_back(snapshot.device_plugin, snapshot.plugin_pods, whole)
    policy = settings.health_policy
    offered, keeping = _kept_offer(
        snapshot,
        memory,
        partial(offer, whole, partitions, health, policy, snapshot.uptime, held_back=back.chips, tenancy=tenancy),
        # A kubelet that has another version than before has just started, and so deleted the slices.
        wiped=bool(snapshot.kubelet_problem or back.chips),
    )
    compared = keeping.look != memory.wanted.keeping.look
    allocated_core_size = whole.core_size if compared else memory.allocated_core_size
    sick = [chip for chip in health.chips if chip.faults]
    facts = NodeFacts(
        unhealthy=policy.blocking(sick, whole.instance_type, snapshot.uptime) if sick else {},
        held_back=back,
        core_sizes=_core_sizes(allocated_core_size, memory, whole) | dict(offered.core_sizes),
        tenancy=tenancy,
        attributes={device.name: device.attributes for device in (*offered.fallback, *offered.devices)}
        if settings.device_metadata
        else None,
    )
    ends = [] if offered.until is None else [snapshot.moment + offered.until - snapshot.uptime]
    if memory.absent is not None and memory.absent + ABSENT_SECONDS > snapshot.moment:
        ends.append(memory.absent + ABSENT_SECONDS)
    end = min(ends, default=None)
    wanted = replace(
        memory.wanted,
        published=published,
        inventory=inventory,
        offer=offered,
        held_back=back,
        label_problem=label_problem if label_problem != "" else _unfit_label(snapshot, offered, whole.instance_type),
        facts=facts,
        keeping=keeping,
        until=end if published or not complete else patience,
    )
    had_cores = any(core_size for _, core_size in shapes(offered.devices))
    former = whole if published else memory.whole
    tenure, absent = memory.tenure, memory.absent
    return Memory(wanted, first_scan, former, lost, tenure, absent, had_cores, allocated_core_size)


def _with_tenure(snapshot: NodeSnapshot, memory: Memory, settings: DriverSettings, inventory: NodeInventory) -> Memory:
    """The memory with the server that the node is part of, and whose workload it is allocated to."""
    if settings.ultraserver_namespace is None:
        return memory
    seen, member = snapshot.server, inventory.ultraserver
    last = memory.tenure or (snapshot.tenure if memory.wanted.server is None else None)
    before = memory.wanted.server or (last.server if last is not None else None)
    absent = None
    if last is not None and seen is not None and seen.name == last.server and not seen.exists:
        absent = snapshot.moment if memory.absent is None else memory.absent
    holder = last.server if last is not None and last.workload is not None else ""
    is_gone = absent is not None and snapshot.moment >= absent + ABSENT_SECONDS
    if memory.wanted.server not in (None, holder):
        holder = ""  # it has been given up, and the object of another one not been seen yet
    elif is_gone and elected_server(member) not in (None, holder):
        holder, before = "", None
    server = server_of(member, before, snapshot.labels or {}, holder)
    tenure = tenure_of(server, seen, last, member)
    published = None if snapshot.pool is None else published_workload(snapshot.pool.devices)
    tenancy = tenancy_of(server, seen, tenure, published)
    wanted = replace(memory.wanted, server=server, tenancy=tenancy, tenure=tenure)
    return replace(memory, wanted=wanted, tenure=tenure, absent=absent)


def _kept_offer(
    snapshot: NodeSnapshot, memory: Memory, offer_with: Callable[..., Offer], *, wiped: bool
) -> tuple[Offer, Keeping]:
    """The offer with which nothing vanishes that claims hold, or may hold.

    Args:
        snapshot: what is known.
        memory: of the decision before.
        offer_with: makes the offer with the devices ``kept``.
        wiped: whether a server without slices had some a moment ago.
    """
    pool, before, answer = snapshot.pool, memory.wanted.keeping, snapshot.answer
    keeping, allocated = before, frozenset[str]()
    if before.question is not None and answer is not None and answer.question == before.question:
        keeping = before.with_answer(answer, snapshot.prepared, snapshot.moment)
        allocated = answer.allocated or allocated
    published = () if pool is None else pool.devices
    while True:
        offered = offer_with(kept=keeping.devices)
        chosen = offered.devices if pool is None or pool.counters or not offered.counters else offered.fallback
        missing = keeping.missing(chosen, published, snapshot.prepared, allocated, snapshot.now)
        if not missing:
            break
        keeping = replace(keeping, devices={**keeping.devices, **missing})
    # Without what is wanted again, or cannot be offered.
    devices = {name: one for name, one in keeping.devices.items() if name in offered.retired}
    keeping = replace(keeping, devices=devices)
    if pool is None:
        return offered, keeping
    doubtful = (pool.empty and wiped) or (pool.incomplete and memory.allocated_core_size is None)
    return offered, keeping.with_look(before, chosen, pool, snapshot.prepared, snapshot.moment, doubtful=doubtful)


def _with_device_health(snapshot: NodeSnapshot, memory: Memory, settings: DriverSettings) -> Memory:
    inventory, offered = snapshot.inventory, memory.wanted.offer
    if inventory is None:
        return memory
    # A pod can hold the whole node also while it is not offered.
    others = [NODE_DEVICE] * is_ultraserver(inventory)
    others += [device.name for device in (*offered.devices, *offered.fallback)]
    health = device_health(snapshot.health, inventory.chip_indexes, others, settings.node_name)
    return _with(memory, device_health=health)


@contextmanager
def _part(name: str, failures: dict[str, Exception]) -> Iterator[None]:
    """Note why the body fails, if it does."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 # raised by the loop, which reports it
        failures[name] = error


def _with(memory: Memory, **values: Any) -> Memory:
    """What is remembered, with these values of what is wanted."""
    return replace(memory, wanted=replace(memory.wanted, **values))


def _partitions(snapshot: NodeSnapshot, settings: DriverSettings) -> tuple[Partitions | None, str | None]:
    """What is to be offered, by the Node's label, else by the setting for all; and ``Wanted.label_problem``."""
    if snapshot.kubelet_problem:  # nothing with a kubelet that might not start the pods; what claims hold stays
        return Partitions(), ""
    if snapshot.labels is None:
        return settings.partitions, None
    text = snapshot.labels.get(PARTITIONS_LABEL)
    if text is None:
        return settings.partitions, ""
    try:
        return Partitions.parse(text), ""
    except DriverError as error:
        return settings.partitions, (
            f"the label {PARTITIONS_LABEL} of the Node is ignored, and it offers what it does without one: {error}"
        )


def _unfit_label(snapshot: NodeSnapshot, offered: Offer, instance_type: str | None) -> str:
    """Why the Node's label leaves nothing to offer although it is understood, or ""."""
    text = (snapshot.labels or {}).get(PARTITIONS_LABEL)
    if text is None or offered.devices or not offered.absent:
        return ""
    return (
        f"nothing is offered, since the label {PARTITIONS_LABEL} of the Node is {text}, and {instance_type or 'it'} "
        f"cannot be offered as {' and '.join(offered.absent)}; correct or remove the label"
    )


def _fault(code: str, before: ActiveFault | None, snapshot: NodeSnapshot) -> ActiveFault:
    """The fault of a lost chip; it begins once."""
    if before is not None and before.code == code:
        return before
    return ActiveFault(code, snapshot.now, uptime=snapshot.uptime)


def _core_sizes(size: int | None, memory: Memory, whole: NodeInventory) -> dict[int, int]:
    """Core sizes by chip, where what is allocated is of another size than the host's."""
    if size is None or size == whole.core_size or not memory.had_cores:
        return {}
    return dict.fromkeys(whole.chip_indexes, size)

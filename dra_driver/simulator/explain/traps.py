"""Known traps of Kubernetes and of the hardware, reported when the claims are affected by them.

Sources: the Kubernetes issues that the messages name; times were measured with kube-scheduler 1.36.3 and 1.37.1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from dra_driver.driver.deviceclasses import DEVICE_CLASSES, DeviceClassRow
from dra_driver.driver.resourceslices.attributes import RUN_SIZES
from dra_driver.kube.objects.resource import Device
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.neuron.topology.instance_types import InstanceType, lookup
from dra_driver.neuron.topology.node_hardware import MEANINGS, Hardware, number_of, resource_of, text_of
from dra_driver.neuron.topology.partitions import ResourceType, group_sizes
from dra_driver.simulator.allocator import Allocation
from dra_driver.simulator.allocator.constraints import value
from dra_driver.simulator.allocator.pool_devices import Pool, PoolDevice
from dra_driver.simulator.explain.diagnosis import Case
from dra_driver.simulator.explain.shortfall import Pair
from dra_driver.simulator.explain.trap_inputs import TrapInput
from dra_driver.simulator.explain.values import Trap, clause_text
from dra_driver.util.errors import DriverError
from dra_driver.util.wording import counted, listed, named

_UNTOLD = frozenset({"switched", "single", "unknown"})
"""Fabrics on which chips have no meaningful neighbours."""


def unconnected(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> str:  # shared signature
    """A request for several chips that may not be connected; "" if all are or if the links are unknown."""
    for sight in seen:
        option = sight.wish.option
        chips = [pair for pair in sight.matching if chip(pair[0]) is not None]
        kind = _kind(chips)
        if option.all_devices or option.count < 2 or kind is None or option.count >= len(chips):  # all or one
            continue
        if not _promised(sight, chips, kind):
            return _sentence(sight, kind, chosen)
    return ""


def chip(offer: PoolDevice) -> int | None:
    """The host index of a chip of this driver; None for any other device, also for a core of a chip."""
    if offer.driver != DRIVER_NAME or resource_of(offer.device) not in ("neuron_device", None):
        return None
    device_id = value(offer, f"{DRIVER_NAME}/deviceId")
    return device_id[1] if device_id is not None and isinstance(device_id[1], int) else None


def _type(devices: Sequence[PoolDevice]) -> InstanceType | None:
    """The instance type of the node with these devices, if it is known."""
    return lookup(text_of(devices[0].device, "instanceType")) if devices else None


def _kind(chips: Sequence[Pair]) -> InstanceType | None:
    """The instance type of the node with these chips, if its links are known."""
    kind = _type([offer for offer, _ in chips])
    return kind if kind is not None and kind.fabric.kind not in _UNTOLD else None


def _promised(sight: TrapInput, chips: Sequence[Pair], kind: InstanceType) -> bool:
    """Whether a matchAttribute constraint only allows connected sets."""
    count = sight.wish.option.count
    offered = kind.fabric.connected_sets(count)
    for spec in sight.wish.constraints:
        groups: dict[object, list[int]] = {}
        for offer, _ in chips if spec.match_attribute is not None else ():
            number = chip(offer)
            if number is not None:
                groups.setdefault(value(offer, spec.match_attribute or ""), []).append(number)
        sizes = [tuple(sorted(members)) for members in groups.values() if len(members) >= count]
        if sizes and all(members in offered for members in sizes):
            return True
    return False


def _sentence(sight: TrapInput, kind: InstanceType, chosen: Allocation | None) -> str:
    count, fabric = sight.wish.option.count, kind.fabric
    what = f"{sight.wish.name} asks for {count} chips of a {kind.name}"
    sizes = listed([str(size) for size in fabric.set_sizes()])
    if fabric.connected_sets(count):
        text = f"{what}, but no constraint requires them to be a connected set"
    else:
        text = (
            f"{what}, a {fabric.describe()}, where connected sets have {sizes} chips: the count is legal, but nothing "
            "promises that the chips are connected or have consecutive numbers"
        )
    return text + _got(sight, kind, chosen)


def _got(sight: TrapInput, kind: InstanceType, chosen: Allocation | None) -> str:
    """The consequence for the devices that the claim gets now."""
    if chosen is None or chosen.node != sight.node.name:
        return ""
    numbers = {offer.id: chip(offer) for offer, _ in sight.pairs}
    got = sorted(
        number
        for result in chosen.results
        for item in result.devices.results
        if item.request == sight.wish.option.label
        and (number := numbers.get((item.driver, item.pool, item.device))) is not None
    )
    try:
        connected = bool(got) and kind.fabric.is_connected(got)
    except DriverError:
        return ""
    if not got:
        return ""
    names = listed([str(number) for number in got])
    return f"; it would get {names}, which are {'connected by chance' if connected else 'not connected'}"


MANY_SUBSETS: Final = 1024
"""Number of subsets worth mentioning: about a millisecond per node."""
MANY_SUBSETS_BY_ORDER: Final = 256
"""Where each order of them is tried as well: those of eight devices, about half a second per node."""
MANY_POOLS: Final = 50
"""Number of pools with shared counters from which on 1.36 is slow."""

KEEPS_ALL: Final = (1, 36)
"""First release whose API servers keep taints, counters and consumable capacity by default."""

Look = Callable[[Case, Sequence[TrapInput], Allocation | None], str]


def traps(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> tuple[Trap, ...]:
    """The traps that affect the claims, each reported once."""
    sentences = ((name, look(case, seen, chosen)) for name, look in TRAPS.items())
    return tuple(Trap(name, sentence) for name, sentence in sentences if sentence)


def _subset_search(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> str:
    worst = max(seen, key=_subsets, default=None)
    if worst is None or _subsets(worst) < _many(case):
        return _subset_search_to_come(case, seen)
    nodes = {sight.node.name for sight in seen if _subsets(sight) >= _many(case)}
    if _before_1_36(case):
        return (
            f"{worst.wish.name} asks for {worst.wish.option.count} devices, and {counted(len(nodes), 'node')} with "
            f"fewer free ones {'is' if len(nodes) == 1 else 'are'} searched in vain: {_EVERY_ORDER}; "
            f"{_as_one_device(worst)} refused at once there"
        )
    return (
        f"{worst.wish.name} asks for {worst.wish.option.count} devices, and {counted(len(nodes), 'node')} with fewer "
        f"free ones {'is' if len(nodes) == 1 else 'are'} searched in vain: kube-scheduler tries every subset, "
        f"{_subsets(worst):,} on node {worst.node.name}, which takes about {_subsets(worst) / 1000:,.0f} ms of each "
        f"attempt, and it gives up after 10 seconds; {_as_one_device(worst)} refused at once there"
    )


_EVERY_ORDER: Final = (
    "kube-scheduler before 1.36 tries every order of the free devices, not only every subset: with 9 of them that "
    "takes seconds, and with 10 or more it gives up after 10 seconds, for each such node in each attempt"
)


def _many(case: Case) -> int:
    return MANY_SUBSETS_BY_ORDER if _before_1_36(case) else MANY_SUBSETS


def _before_1_36(case: Case) -> bool:
    return bool(case.server) and _numbers(case.server) < KEEPS_ALL


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _as_one_device(sight: TrapInput) -> str:
    """What to ask for instead of so many chips."""
    count, kind = sight.wish.option.count, _type([offer for offer, _ in sight.matching if chip(offer) is not None])
    if kind is not None and count in group_sizes(kind.fabric):
        return (
            f"one device that is a group of {count} (class {_class('neuron_group', count)}, where nodes offer it: "
            f"--partitions group{count}) is"
        )
    node = "one device that is the whole node"
    if kind is not None and count == kind.devices:
        node += f" (class {_class('neuron_node')}, where nodes offer it: --partitions node)"
    return f"allocationMode All, or {node}, is"


def _class(kind: ResourceType, size: int | None = None) -> str:
    """The DeviceClass for one kind of device, and for groups of one size if there is one for it."""
    rows = [row for row in DEVICE_CLASSES if row.resources == (kind,) and row.nodes == "of nobody"]
    exact = [row for row in rows if size is not None and row.conditions.get("size") == size]
    return next(row.name for row in (*exact, *(row for row in rows if not row.conditions)))


def _subset_search_to_come(case: Case, seen: Sequence[TrapInput]) -> str:
    """Nodes that are empty now will not stay empty."""
    for sight in (item for item in seen if item.searched):
        option = sight.wish.option
        limited = any(spec.match_attribute is not None for spec in sight.wish.constraints)
        if (
            option.all_devices
            or limited
            or not option.count <= len(sight.matching)
            or 2 ** (option.count - 1) < _many(case)
        ):
            continue
        if _before_1_36(case):
            return (
                f"{sight.wish.name} asks for {option.count} devices, and for nodes with fewer free ones, "
                f"{_EVERY_ORDER}; {_as_one_device(sight)} refused at once there"
            )
        return (
            f"{sight.wish.name} asks for {option.count} devices, and when a node has fewer free ones, kube-scheduler "
            f"tries every subset of them: {2 ** (option.count - 1):,} if one is missing; {_as_one_device(sight)} "
            "refused at once there"
        )
    return ""


def _subsets(sight: TrapInput) -> int:
    """How many subsets are tried in vain before the node is skipped; 0 if the request may succeed."""
    option = sight.wish.option
    if option.all_devices or not sight.searched:
        return 0
    groups: Counter[object] = Counter()
    for offer, _ in sight.free:
        groups[
            tuple(value(offer, spec.match_attribute) for spec in sight.wish.constraints if spec.match_attribute)
        ] += 1
    if max(groups.values(), default=0) >= option.count:
        return 0
    return sum(2**size for size in groups.values())


def _all_with_counters(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> str:
    sight = next((item for item in seen if item.wish.option.all_devices and item.counted), None)
    if sight is None:
        return ""
    what = f"{sight.wish.name} asks with allocationMode All for devices that consume shared counters"
    admin = ", also with adminAccess" if sight.wish.option.admin else ""
    if case.world.release.name == "1.36":
        return (
            f"{what}: kube-scheduler 1.36.0 and 1.36.1 crash on it (kubernetes#138882), and later ones refuse it"
            f"{admin} when the devices exclude each other; ask for one device that is the whole node"
        )
    return f"{what}: it is refused{admin}, whenever two of them exclude each other, such as a node and its chips"


def _admin_with_counters(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> str:
    sight = next((item for item in seen if item.wish.option.admin and item.counted), None)
    if sight is None:
        return ""
    return (
        f"{sight.wish.name} has adminAccess, which ignores devices in use, but not shared counters "
        f"or taints: on node {sight.node.name} it waits until the counters of a device are free (kubernetes#140729)"
    )


def _missing_attribute(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> str:
    for sight in seen:
        failing = [finding for _, finding in sight.pairs if finding.state == "error"]
        if not failing or failing[0].failed is None:
            continue
        busy = [finding for finding in failing if finding.in_use]
        devices = counted(len(failing), "device")
        place = f"{clause_text(failing[0].failed.clause)} fails on {devices} of node {sight.node.name}"
        if len(busy) == len(failing):
            return (
                f"{place}, which the search skips, because they are in use: when one of them is free again, the same "
                "claim ends with an error"
            )
        return (
            f"{place}: a selector that fails on one device keeps the pod off every node, as soon as the search reaches "
            "that device; first test device.driver, and whether the attribute is set"
        )
    return ""


def _shared_pool_name(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> str:
    for sight in seen if case.world.release.counters_by_pool_name else ():
        names = Counter(pool.key[1] for pool in sight.pools if pool.counters)
        for offer, _ in sight.counted:
            if names[offer.pool] > 1:
                return (
                    f"two drivers have a pool {offer.pool} with shared counters on node {sight.node.name}: "
                    "kube-scheduler up to 1.36.3 mixes up their counters, so it refuses free devices or allocates "
                    "devices in use (kubernetes#140434); 1.37 does not"
                )
    return ""


def _kept_counters(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> str:
    for sight in seen if case.world.release.name == "1.36" else ():
        tainted = any(finding.state == "taint" for _, finding in sight.counted)
        if sight.counted and (tainted or sight.wish.constraints):
            reason = "a taint" if tainted else "a constraint"
            return (
                f"{sight.wish.name} can get devices that consume shared counters, and {reason} may reject them: "
                "kube-scheduler up to 1.36.2 then keeps their counters for the rest of the attempt and may refuse "
                "free devices (kubernetes#140431)"
            )
    return ""


def _vanished_device(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> str:
    for sight in seen:
        for pool in sight.pools if sight.counted else ():
            published = {offer.device.name for offer in (*pool.offers, *pool.elsewhere)}
            gone = set(case.world.usage.in_pool(pool.key)) - published
            if pool.counters and pool.usable and gone:
                return (
                    f"{named(gone)} of pool {'/'.join(pool.key)} is in use but no longer published: its shared "
                    "counters count as free, so the same hardware can be allocated twice (kubernetes#140802)"
                )
    return ""


def _counters_at_scale(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> str:
    if not case.world.release.counters_everywhere:
        return ""
    pools = {pool.key for sight in seen for pool in sight.pools if pool.counters}
    if len(pools) < MANY_POOLS:
        return ""
    return (
        f"{len(pools)} pools have shared counters, and kube-scheduler 1.36 looks at all of them for each node that it "
        "tries: 1 ms a node with 100 such pools, 10 ms with 500, 600 ms with 5,000; 1.37 does not"
    )


def _dropped_counters(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> str:
    pools = {pool.key: pool for sight in seen for pool in sight.pools if pool.key[0] == DRIVER_NAME}
    for pool in pools.values():
        pair = _unprotected(pool)
        if pair is not None:
            return (
                f"pool {pool.key[1]} offers {pair[0]} and {pair[1]} without shared counters, so both can be "
                "allocated at once although they share hardware: the API server has dropped those fields, as 1.33 "
                "to 1.35 and servers without DRAPartitionableDevices do; upgrade it, or publish one kind of device"
            )
    return ""


def _unprotected(pool: Pool) -> tuple[str, str] | None:
    """Two devices with hardware in common of which one consumes no counters."""
    free = [offer.device.name for offer in pool.offers if not offer.consumes]
    if not free or all(name.startswith(_CHIP) for name in (offer.device.name for offer in pool.offers)):
        return None
    hardware = Hardware.of(offer.device for offer in pool.offers)
    names = [offer.device.name for offer in pool.offers]
    for name in free:
        if others := hardware.overlapping(name, names):
            return name, others[0]
    return None


_CHIP: Final = "neuron-device-"


def _not_offered(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> str:
    """A request whose class is for devices that no node offers, or that selects what its class is not for."""
    if chosen is not None:
        return ""
    sights = _each_once(seen)
    own = _own(seen) if any(_row(sight) is not None for sight in sights) else []
    for sight in sights:
        row = _row(sight)
        if row is None:
            continue
        if mistaken := _mistaken(sight, row):
            return mistaken
        if whole := _whole_nodes(sight):
            return whole
        if own and not any(_selects(row, device) for device in own):
            return _offer_them(case, sight, row, own)
    return ""


def _each_once(seen: Iterable[TrapInput]) -> list[TrapInput]:
    """Each request on the first of its nodes."""
    first: dict[int, TrapInput] = {}
    for sight in seen:
        first.setdefault(id(sight.wish.option), sight)
    return list(first.values())


def _row(sight: TrapInput) -> DeviceClassRow | None:
    return _ROWS.get(sight.wish.option.device_class.metadata.name)


NOT_OFFERED: Final = "not-offered"
"""Name of this trap, which leaves nothing to try on the nodes as they are."""
_ROWS: Final = {row.name: row for row in DEVICE_CLASSES}
_NAMED_KIND: Final = re.compile("|".join(MEANINGS))


def _mistaken(sight: TrapInput, row: DeviceClassRow) -> str:
    own = [item.cel.expression for item in sight.wish.option.device_class.spec.selectors if item.cel is not None]
    expressions = [expression for expression in sight.wish.option.key if expression not in own]
    for kind in _NAMED_KIND.findall(" ".join(expressions)):
        if kind not in row.resources:
            what = listed([MEANINGS[resource][1] for resource in row.resources])
            return (
                f"{sight.wish.name} selects {kind}, and its class {row.name} is for {what}: the class for "
                f"{MEANINGS[kind][1]} is {_class(kind)}"
            )
    return ""


def _whole_nodes(sight: TrapInput) -> str:
    """The request asks for several devices where each node is one, as nodes of UltraServers are by default."""
    option, offers = sight.wish.option, [offer for offer, _ in sight.matching]
    if option.all_devices or len(offers) >= option.count:
        return ""
    if any(resource_of(one.device) != "neuron_node" for one in offers):
        return ""
    kind = _type(offers)
    if kind is None or kind.ultraserver is None:
        return ""
    return (
        f"{sight.wish.name} asks for {option.count} devices, and a node of {kind.name} offers one, the whole node: "
        "with the driver's option --partitions chip, or chip.node (in the chart draDriver.partitions), it offers its "
        "chips"
    )


def _own(seen: Sequence[TrapInput]) -> list[Device]:
    """The devices of this driver on all nodes, each content once."""
    devices = {
        id(offer.content): offer.device for sight in seen for offer, _ in sight.pairs if offer.driver == DRIVER_NAME
    }
    return list(devices.values())


def _selects(row: DeviceClassRow, device: Device) -> bool:
    return resource_of(device) in row.resources and all(
        wanted in (number_of(device, name), text_of(device, name)) for name, wanted in row.conditions.items()
    )


def _offer_them(case: Case, sight: TrapInput, row: DeviceClassRow, devices: Sequence[Device]) -> str:
    size = row.conditions.get("size")
    kinds = {kind for device in devices if (kind := lookup(text_of(device, "instanceType"))) is not None}
    offered = [resource for resource in MEANINGS if any(resource_of(device) == resource for device in devices)]
    they = listed([MEANINGS[resource][1] for resource in offered]) or "other devices"
    text = f"{sight.wish.name} has class {row.name}, {row.meaning}, which no node offers; the nodes offer {they}"
    possible = sorted({size for kind in kinds for size in group_sizes(kind.fabric)})
    if row.resources == ("neuron_group",) and kinds and (not possible or (size is not None and size not in possible)):
        having = f"only groups of {listed([str(item) for item in possible])}" if possible else "no groups"
        return f"{text}; {listed(sorted(kind.name for kind in kinds))} can offer {having}"
    words = [_WORDS[resource] for resource in offered]
    words.append(f"group{size}" if size is not None else _WORDS[row.resources[0]])
    text += (
        f": the driver's option --partitions {'.'.join(words)} (in the chart draDriver.partitions) makes every node "
        f"offer it, and the label {DRIVER_NAME}/partitions={'.'.join(words)} a single node"
    )
    if case.world.release.name == "1.36" and len(words) > 1:
        text += "; devices that overlap need Kubernetes 1.37, or --shared-counters force"
    return text


_WORDS: Final[dict[ResourceType, str]] = {
    "neuron_device": "chip",
    "neuron_core": "core",
    "neuron_group": "group",
    "neuron_node": "node",
}


def _scattered_cores(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> str:
    """Several cores that one chip could have, without a constraint that they be of one chip."""
    for sight in _each_once(sight for sight in seen if sight.matching):
        option, example = sight.wish.option, sight.matching[0][0]
        kind = _type([example])
        if option.all_devices or kind is None or resource_of(example.device) != "neuron_core":
            continue
        size = number_of(example.device, "logicalCoreSize") or kind.default_lnc
        if not 1 < option.count <= kind.cores_per_device // size:
            continue
        runs = f"{DRIVER_NAME}/coreRun{option.count}_id"
        if {spec.match_attribute for spec in sight.wish.constraints} & {f"{DRIVER_NAME}/deviceId", runs}:
            continue
        consecutive = f", or {runs} for consecutive ones" if option.count in RUN_SIZES else ""
        return (
            f"{sight.wish.name} asks for {option.count} cores, but no constraint requires them to be on one "
            f"chip: matchAttribute {DRIVER_NAME}/deviceId does{consecutive}; extended resources cannot express "
            "that"
        )
    return ""


def _old_server(case: Case, seen: Sequence[TrapInput], chosen: Allocation | None) -> str:
    if not _before_1_36(case):
        return ""
    return (
        f"the API server is {case.server}: unless their feature gates are on, it silently drops tolerations and "
        "consumable capacity from claims, and taints and shared counters from slices; this explanation is of what it "
        f"has kept, by the rules of {case.world.release.name}"
    )


TRAPS: Final[dict[str, Look]] = {
    "subset-search": _subset_search,
    "all-with-counters": _all_with_counters,
    "admin-with-counters": _admin_with_counters,
    "missing-attribute": _missing_attribute,
    "shared-pool-name": _shared_pool_name,
    "kept-counters": _kept_counters,
    "vanished-device": _vanished_device,
    "counters-at-scale": _counters_at_scale,
    "dropped-counters": _dropped_counters,
    "old-server": _old_server,
    "unconnected": unconnected,
    NOT_OFFERED: _not_offered,
    "scattered-cores": _scattered_cores,
}
"""Name of a trap -> function that returns its description, or "" if it does not apply."""

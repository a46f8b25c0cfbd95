"""``dra-driver topology``: describes an instance type, with a picture and facts about a set of its devices."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dra_driver.cli import vocabulary
from dra_driver.cli.terminal import print_object, say, show
from dra_driver.neuron.names import DRIVER_NAME, GROUP_ATTRIBUTE_DOMAIN, is_own_pool
from dra_driver.util.envelope import envelope
from dra_driver.util.errors import UsageError, blaming_usage
from dra_driver.util.text import first_of, shorten

if TYPE_CHECKING:
    from dra_driver.kube.objects.resource import ResourceClaim
    from dra_driver.neuron.topology.drawing import Marks, Sickness
    from dra_driver.neuron.topology.groups import Selection
    from dra_driver.neuron.topology.instance_types import InstanceType
    from dra_driver.neuron.topology.node_hardware import Hardware
    from dra_driver.neuron.topology.partitions import Partition, Partitions, ResourceType
    from dra_driver.simulator.manifests import Manifests

MAX_DEVICE_LIST = 4096
"""Maximum length of ``--devices``; more than the names of all cores of any host need."""

NOTHING: Final[Mapping[int, Sickness]] = MappingProxyType({})

VALUE_WIDTH = 84
"""Width at which a value in a table is wrapped."""

_NAME = re.compile(r"neuron-[a-z0-9-]{1,40}", re.ASCII)
_ITEM = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)
_GIB = 1 << 30

EXAMPLES: Final = (
    "topology trn2.48xlarge",
    "topology trn2.48xlarge --devices 4,5,6,7 -o svg > row.svg",
    "topology inf2.48xlarge --devices 10-11,0 -o json",
    "topology trn2.48xlarge --partitions core.group,neuron-core-3-0,neuron-core-3-1",
    "topology --host-root /",
    "topology --from-cluster node-7",
    "kubectl get resourceslices,resourceclaims -A -o json | {} topology -f - --node-name node-7",
)


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Show the devices of an EC2 instance type, of a host or of a node, and their links, and evaluate a set "
        "of devices.",
        examples=EXAMPLES,
        done="printed",
        refused="the devices cannot be shown",
    )
    parser.add_argument(
        "type", metavar="TYPE", nargs="?", help="EC2 instance type such as trn2.48xlarge, ml.trn2.48xlarge, or trn2"
    )
    vocabulary.add_instance_type(parser, "the same as TYPE")
    parser.add_argument(
        "--devices",
        metavar="LIST",
        help="mark and evaluate these devices: indexes and ranges (4,5 or 4-7) or names (neuron-core-3-1)",
    )
    vocabulary.add_partitions(parser, "show what a node offers with the driver's option", "default: none")
    vocabulary.add_host_root(parser, "instead of TYPE: draw this host, with the state of its chips")
    vocabulary.add_files(
        parser,
        "instead of TYPE: draw a node from its ResourceSlices (with DeviceTaintRules and ResourceClaims), with the "
        "chips that have taints and those that claims hold",
        positional=False,
    )
    vocabulary.add_node_name(parser, "name of the node, if there are slices of several")
    vocabulary.add_cluster(parser, "the node that is given instead of TYPE")
    vocabulary.add_output(parser, "text", "wide", "json", "yaml", "svg")


def run(args: argparse.Namespace) -> int:
    """Print the facts, the picture, and the description of the chosen devices."""
    from dra_driver.neuron.topology.drawing import svg
    from dra_driver.neuron.topology.instance_types import of_family, resolve

    asked = parse_asked(args.devices, args.partitions)
    with blaming_usage():
        drawn = _drawn(args)
        instance_type = of_family(drawn.type) or resolve(drawn.type)
        view = _view(asked, drawn, instance_type)
    if args.output == "svg":
        print(svg(instance_type, view.outlined, view.sick), end="")
    elif args.output not in ("text", "wide"):
        print_object(document(instance_type, drawn, view), args.output)
    else:
        _print_text(asked, drawn, instance_type, view, wide=args.output == "wide")
    return 0


def _print_text(asked: _Asked, drawn: _Drawn, instance_type: InstanceType, view: _View, *, wide: bool) -> None:
    from dra_driver.neuron.topology.drawing import text

    print(instance_type.name)
    show(f"\n{text(instance_type, view.marks, view.sick)}\n")
    print_table(facts(instance_type, wide=wide))
    if view.offered:
        print(f"\noffered with --partitions {asked.partitions}")
        print_table(offered_rows(view.offered))
    if drawn.lines:
        say("\n" + "\n".join(f"  {line}" for line in drawn.lines))
    if view.selection:
        chosen = view.selection.devices
        print(f"\n{'device' if len(chosen) == 1 else 'devices'} {listed(chosen)}")
        print_table(_named_rows(view.named))
        print_table(judgement(instance_type, view.selection))


class _Asked(NamedTuple):
    """What ``--devices`` and ``--partitions`` say."""

    indexes: tuple[int, ...] | None = None
    """Chips to mark and to evaluate; None: it names none."""
    names: tuple[str, ...] = ()
    """Devices to mark and to evaluate."""
    partitions: Partitions | None = None
    """What a node offers that is to be shown."""


class _View(NamedTuple):
    """What is shown of a type or node beside its facts."""

    marks: Marks
    outlined: Marks
    """The same, with the groups on offer outlined, for a picture that has room for them."""
    sick: Mapping[int, Sickness]
    selection: Selection | None
    named: tuple[Partition, ...]
    offered: tuple[Partition, ...]


def _view(asked: _Asked, drawn: _Drawn, instance_type: InstanceType) -> _View:
    """Raises DriverError for devices that the type does not have."""
    from dra_driver.neuron.topology.groups import select
    from dra_driver.neuron.topology.node_hardware import Hardware
    from dra_driver.neuron.topology.partitions import Partitions, device_name, devices

    hardware = drawn.hardware or Hardware((), instance_type, drawn.core_size)
    chips = range(instance_type.devices or 0)

    def partitioned(partitions: Partitions) -> tuple[Partition, ...]:
        return devices(chips, instance_type.fabric, instance_type.cores_per_device, partitions, hardware.core_size)

    if asked.partitions is not None and drawn.hardware is not None:
        raise UsageError(
            f"--partitions {asked.partitions}: what the node offers is in its slices", remedy="leave it out"
        )
    possible = (
        {device.name: device for device in partitioned(Partitions(chip=True, group=True, node=True, core=True))}
        if asked.names
        else {}
    )
    for name in asked.names:
        if name not in possible:
            raise UsageError(
                f"--devices: there is no device {name} of {instance_type.name}",
                remedy="dra-driver topology TYPE --partitions chip.core.group.node lists what there is",
            )
    named = tuple(possible[name] for name in dict.fromkeys(asked.names))
    indexes = asked.indexes or ()
    chosen = (*indexes, *sorted({chip for device in named for chip in device.chips} - {*indexes}))
    selection = None if asked.indexes is None and not named else select(instance_type, chosen)
    offered = partitioned(asked.partitions) if asked.partitions is not None else ()
    groups = (*(item.name for item in offered), *(item.name for item in hardware.devices))
    # Windows overlap, so that they cannot all be outlined.
    outlined = [name for name in groups if name.startswith("neuron-group")]
    with_cores = [
        *hardware.core_sizes,
        *(chip for item in offered if item.resource == "neuron_core" for chip in item.chips),
    ]
    picked = (*map(device_name, indexes), *asked.names)
    marked = (*picked, *drawn.taken)
    word = " or ".join([*(["chosen"] if picked else []), *(["allocated"] if drawn.taken else [])])
    return _View(
        replace(hardware.marks(marked, drawn=with_cores), word=word),
        replace(hardware.marks(marked, drawn=with_cores, outlined=outlined), word=word),
        {index: state for index, state in drawn.sick.items() if index in chips},
        selection,
        named,
        offered,
    )


def offered_rows(offered: Sequence[Partition]) -> Iterator[tuple[str, str]]:
    """What a node offers, one row for each kind of device."""
    from dra_driver.neuron.topology.node_hardware import MEANINGS
    from dra_driver.neuron.topology.partitions import overlap
    from dra_driver.util.wording import named

    kinds: dict[tuple[ResourceType, int], list[Partition]] = {}
    for device in offered:
        size = len(device.parts) if device.resource == "neuron_group" else 0
        kinds.setdefault((device.resource, size), []).append(device)
    for (resource, size), found in kinds.items():
        names = named(device.name for device in found)
        if resource == "neuron_group" and found[0].name.startswith("neuron-group"):
            names = ", ".join(f"{device.name} ({_span(device.chips)})" for device in found)
        elif resource == "neuron_core":
            each = sum(device.chips == found[0].chips for device in found)
            sizes = sorted({device.core_size or 1 for device in found})
            names = f"{each} on each device (logical core size {listed(tuple(sizes))}): {names}"
        what = MEANINGS[resource][1 if len(found) > 1 else 0]
        yield f"{what} of {size}" if size else what, names
    total = f"{len(offered)} device{'' if len(offered) == 1 else 's'}"
    how = "devices that share hardware exclude each other" if overlap(offered) else "no two share hardware"
    yield "in all", f"{total}; {how}"


def _named_rows(found: Sequence[Partition]) -> Iterator[tuple[str, str]]:
    for device in found:
        cores = f", physical cores {listed(device.parts[0].cores)}" if device.parts[0].cores else ""
        yield device.name, f"device{'s' if len(device.chips) > 1 else ''} {listed(device.chips)}{cores}"


class _Drawn(NamedTuple):
    """What to draw: a type, or a node of it with the state of its chips."""

    type: str
    sick: Mapping[int, Sickness] = NOTHING
    lines: tuple[str, ...] = ()
    """What is wrong, and what is taken, for people."""
    a_node: bool = True
    core_size: int | None = None
    """Physical cores in a logical core; None: the default of the type."""
    hardware: Hardware | None = None
    """Of a node that is known by its slices."""
    taken: tuple[str, ...] = ()
    """Devices of such a node that claims hold."""


def _drawn(args: argparse.Namespace) -> _Drawn:
    files = vocabulary.files(args)
    live = vocabulary.from_cluster(args)
    if sum(map(bool, (args.type, args.instance_type, args.host_root, files))) != 1 or (live and not args.type):
        raise UsageError(
            "exactly one of TYPE, --host-root, -f and --from-cluster NODE is required", remedy="give one of the four"
        )
    if live:
        return _of_cluster(args)
    if args.host_root is not None:
        return _of_host(args.host_root)
    return _of_slices(files, args.node_name) if files else _Drawn(args.type or args.instance_type, a_node=False)


def _of_host(root: Path) -> _Drawn:
    from dra_driver.cli.hostinput import found_state_dir, read_health
    from dra_driver.neuron.host.discover import discover

    inventory = discover(root)
    if inventory.instance_type is None:
        raise UsageError(f"{root}: the host's instance type is not known", remedy="give TYPE instead")
    sick = [chip for chip in read_health(root, found_state_dir(root)).health.chips if chip.faults]
    states = {chip.index: state for chip in sick if (state := chip.state) != "healthy"}
    lines = tuple(chip.text for chip in sick)
    return _Drawn(inventory.instance_type, states, lines, core_size=inventory.core_size)


def _of_slices(files: Sequence[str], node: str | None) -> _Drawn:
    from dra_driver.cli.clusterinput import texts
    from dra_driver.simulator.cel import RELEASES
    from dra_driver.simulator.manifests import read_manifests

    found = read_manifests(texts(files), RELEASES[-1], in_cluster=True)
    return _of_objects(found, ", ".join(files), "--node-name", node)


def _of_cluster(args: argparse.Namespace) -> _Drawn:
    from dra_driver.cli.clusterinput import asking, read_devices

    with asking(args) as transport:
        found = read_devices(transport)
    return _of_objects(found, "the cluster", "--from-cluster", args.type)


def _of_objects(found: Manifests, name: str, option: str, node: str | None) -> _Drawn:
    from dra_driver.neuron.health.taints import lines as taints
    from dra_driver.neuron.health.taints import sick
    from dra_driver.neuron.topology.instance_types import resolve
    from dra_driver.neuron.topology.node_hardware import Hardware, text_of
    from dra_driver.simulator.allocator.candidates import tainted
    from dra_driver.util.wording import named

    own = [
        item
        for item in tainted(found.slices, found.taint_rules)
        if item.spec.driver == DRIVER_NAME and is_own_pool(item.spec.pool.name, item.spec.node_name or "")
    ]
    names = sorted({item.spec.node_name for item in own if item.spec.node_name})
    chosen = node if node is not None else names[0] if len(names) == 1 else None
    if chosen not in names:
        raise UsageError(
            f"{name}: {'it is not known which node to show' if node is None else f'no slices of node {node[:80]}'}",
            remedy=f"give {option}, one of: {first_of(names, 8)}" if names else f"give slices of {DRIVER_NAME}",
        )
    devices = [device for item in own if item.spec.node_name == chosen for device in item.spec.devices]
    types = {text_of(device, "instanceType") for device in devices} - {""}
    if len(types) != 1:
        raise UsageError(f"{name}: the devices of {chosen} do not name one instance type", remedy="give TYPE instead")
    kind = resolve(types.pop())
    pools = {item.spec.pool.name for item in own if item.spec.node_name == chosen}
    taken = [(claim, held) for claim in found.claims if (held := _held(claim, pools))]
    lines = [
        f"claim {claim.metadata.namespace}/{claim.metadata.name} has {named(held)}{_for_pods(claim)}"
        for claim, held in taken
    ]
    return _Drawn(
        kind.name,
        sick(devices, range(kind.devices or 0)),
        (*taints(devices), *lines),
        hardware=Hardware.of(devices),
        taken=tuple(dict.fromkeys(device for _, held in taken for device in held)),
    )


def _for_pods(claim: ResourceClaim) -> str:
    users = [user.text for user in claim.status.reserved_for]
    pod = "" if not all(user.is_pod for user in claim.status.reserved_for) else "pod " if len(users) == 1 else "pods "
    return f", for {pod}{first_of(users, 4)}" if users else ""


def _held(claim: ResourceClaim, pools: Collection[str]) -> list[str]:
    """The devices of these pools that the claim has, without those that it only looks at."""
    return [
        result.device
        for result in claim.status.results
        if result.driver == DRIVER_NAME and result.pool in pools and not result.admin_access
    ]


def parse_asked(devices: str | None, words: str | None = None) -> _Asked:
    """Parse ``--devices``, in which indexes and names may stand in any order, and ``--partitions``.

    Raises UsageError for anything else.
    """
    partitions = vocabulary.partitions(words)
    if devices is None or len(devices) > MAX_DEVICE_LIST:
        return _Asked(None if devices is None else parse_devices(devices), (), partitions)
    items = [item.strip() for item in devices.split(",")]
    names = [item for item in items if _NAME.fullmatch(item)]
    rest = [item for item in items if item not in names]
    return _Asked(parse_devices(",".join(rest)) if rest else None, tuple(names), partitions)


def parse_devices(text: str) -> tuple[int, ...]:
    """Parse ``4,5`` or ``4-7``, in the given order; raises UsageError for anything else."""
    indexes: list[int] = []
    for item in text.split(",") if len(text) <= MAX_DEVICE_LIST else [shorten(text, 20, keep=20)]:
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise UsageError(
                f"--devices cannot be read at {item.strip()[:24]!r}",
                remedy="give indexes and ranges: 4,5,6,7 or 4-7, or names: neuron-core-3-1",
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise UsageError(f"--devices has a range that goes down: {item.strip()}", remedy=f"write {last}-{first}")
        indexes.extend(range(first, last + 1))
    return tuple(indexes)


def print_table(rows: Iterator[tuple[str, str]]) -> None:
    """Print names and values in two columns; long values are wrapped."""
    import textwrap

    for name, value in rows:
        lines = textwrap.wrap(value, VALUE_WIDTH, break_long_words=False, break_on_hyphens=False)
        for first, line in zip([name, *[""] * len(lines)], lines, strict=False):
            print(f"  {first:16}{line}")


def facts(instance_type: InstanceType, *, wide: bool) -> Iterator[tuple[str, str]]:
    """The rows about the type as a whole; ``wide``: with ids and addresses."""
    chip, fabric, devices = instance_type.chip, instance_type.fabric, instance_type.devices
    count, inferred = devices or 0, instance_type.inferred
    each = " each" if count != 1 else ""
    total_cores, total_memory = count * chip.cores, count * chip.memory_bytes // _GIB
    yield "devices", f"{devices or 'number not public'}{_hedge('devices', inferred)}, {chip.sysfs.device_name}"
    yield "cores", f"{chip.cores} physical{each}" + (f", {total_cores} in all" if count > 1 else "")
    yield "logical cores", _logical_cores(instance_type)
    yield "memory", f"{chip.memory_bytes // _GIB} GiB{each}" + (f", {total_memory} GiB in all" if count > 1 else "")
    yield "fabric", fabric.describe() + _hedge("fabric", inferred)
    if count > 1:
        yield "connected sets", _connected_sets(instance_type)
    if instance_type.numa_nodes:
        yield "NUMA node", listed(instance_type.numa_nodes)
    if wide:
        yield from _groups(instance_type)
        if instance_type.pci_bus_ids:
            yield "PCI", ", ".join(instance_type.pci_bus_ids)
    shape = instance_type.ultraserver
    if shape:
        nodes = f"{shape.nodes} nodes{_hedge('ultraserver', inferred)}" if shape.nodes else "number of nodes not public"
        yield "UltraServer", f"{nodes}, usable in sets of {listed(shape.usable_nodes)}"


def _hedge(field: str, inferred: tuple[str, ...]) -> str:
    return " (concluded, not documented)" if field in inferred else ""


def _logical_cores(instance_type: InstanceType) -> str:
    chip = instance_type.chip
    if len(chip.lnc_values) == 1:
        return f"same as physical (logical core size {chip.default_lnc} only)"
    sizes = " or ".join(str(size) for size in chip.lnc_values)
    return f"{chip.cores // chip.default_lnc} a device (logical core size {sizes}, default {chip.default_lnc})"


def _connected_sets(instance_type: InstanceType) -> str:
    fabric = instance_type.fabric
    sizes = fabric.set_sizes()
    if fabric.kind == "unknown":
        return "not known"
    if fabric.kind in ("ring", "chain"):
        return f"runs of 1 to {sizes[-1]} devices" + (", the ends being linked too" if fabric.kind == "ring" else "")
    words = f"blocks of {listed(sizes)} devices with consecutive indexes"
    return words if fabric.adjacency_promised else f"{words} (not by links)"


def _groups(instance_type: InstanceType) -> Iterator[tuple[str, str]]:
    from dra_driver.neuron.topology.groups import groups

    found = groups(instance_type)
    if not found:
        yield "device groups", "none: no EFA pairing is known for this type"
    for size in sorted({group.size for group in found}):
        members = [f"{_span(group.devices)}={group.id}" for group in found if group.size == size]
        yield f"groups of {size}", ", ".join(members)


def _span(devices: tuple[int, ...]) -> str:
    return f"{devices[0]}-{devices[-1]}" if len(devices) > 1 else str(devices[0])


def judgement(instance_type: InstanceType, selection: Selection) -> Iterator[tuple[str, str]]:
    """The rows about a set of devices."""
    yield "connected", _connected(instance_type, selection)
    yield "device group", _group(selection)
    if selection.run:
        yield "host indexes", "one run, as the runtime expects of a container's devices"
    else:
        yield "host indexes", "not one run: the runtime may reserve cores of devices that lie between"


def _connected(instance_type: InstanceType, selection: Selection) -> str:
    if selection.connected is None:
        return "not known"
    if not selection.connected:
        return "no: links among these devices alone do not join them all"
    if len(selection.devices) == 1:
        return "yes, being one device"
    if instance_type.fabric.kind == "switched":
        return "yes, through the switch"
    return "yes" if selection.offered else "yes, but not a set that the vendor offers"


def _group(selection: Selection) -> str:
    group = selection.group
    if group is None:
        return "none holds them all"
    attribute = f"{GROUP_ATTRIBUTE_DOMAIN}/{group.attribute} {group.id}"
    if selection.is_group:
        return attribute
    return f"{attribute}, which also holds {listed(tuple(sorted({*group.devices} - {*selection.devices})))}"


def listed(indexes: tuple[int, ...]) -> str:
    """Indexes separated by commas."""
    return ", ".join(str(index) for index in indexes)


def document(instance_type: InstanceType, drawn: _Drawn, view: _View) -> dict[str, Any]:
    """Everything as one JSON object; values that are not publicly known are null."""
    from dra_driver.neuron.topology.groups import groups

    fabric, shape, selection = instance_type.fabric, instance_type.ultraserver, view.selection
    item = {
        "instanceType": instance_type.name,
        "family": instance_type.family,
        "chips": None
        if instance_type.devices is None
        else [_chip(instance_type, drawn, n) for n in range(instance_type.devices)],
        "coresPerChip": instance_type.cores_per_device,
        "memoryBytesPerChip": instance_type.device_memory_bytes,
        "logicalCoreSizes": list(instance_type.lnc_values),
        "defaultLogicalCoreSize": instance_type.default_lnc,
        "fabric": {
            "type": fabric.kind,
            "description": fabric.describe(),
            "connectedSets": [list(members) for size in fabric.set_sizes() for members in fabric.connected_sets(size)],
        },
        "deviceGroups": [
            {"attribute": f"{GROUP_ATTRIBUTE_DOMAIN}/{group.attribute}", "id": group.id, "indexes": list(group.devices)}
            for group in groups(instance_type)
        ],
        "ultraserver": shape
        and {"nodeCount": shape.nodes, "usableNodeCounts": list(shape.usable_nodes), "links": shape.links},
        "concluded": ["chips" if name == "devices" else name for name in instance_type.inferred],
        "allocatedDevices": None if drawn.hardware is None else list(drawn.taken),
        "offered": list(map(_partition, view.offered)),
        "chosen": selection and _chosen(selection) | {"named": list(map(_partition, view.named))},
    }
    return envelope("Topology", [item])


def _chip(instance_type: InstanceType, drawn: _Drawn, index: int) -> dict[str, Any]:
    fabric, addresses, numa = instance_type.fabric, instance_type.pci_bus_ids, instance_type.numa_nodes
    return {
        "index": index,
        "pciAddress": addresses[index] if addresses else None,
        "numaNode": numa[index] if numa else None,
        "neighbours": list(fabric.neighbours(index)) if fabric.adjacency_promised else None,
        "state": drawn.sick.get(index, "healthy") if drawn.a_node else None,
    }


def _partition(device: Partition) -> dict[str, Any]:
    return {
        "device": device.name,
        "resourceType": device.resource,
        "chips": [{"index": part.chip, "cores": list(part.cores) or None} for part in device.parts],
    }


def _chosen(selection: Selection) -> dict[str, Any]:
    group = selection.group
    return {
        "indexes": list(selection.devices),
        "connected": selection.connected,
        "vendorSet": selection.offered,
        "run": selection.run,
        "group": group
        and {
            "attribute": f"{GROUP_ATTRIBUTE_DOMAIN}/{group.attribute}",
            "id": group.id,
            "complete": selection.is_group,
        },
    }

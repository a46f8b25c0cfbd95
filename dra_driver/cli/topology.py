"""``dra-driver topology``: describes an instance type, with a picture and facts about a set of its devices."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dra_driver.names import DRIVER_NAME, GROUP_ATTRIBUTE_DOMAIN
from dra_driver.util.errors import DriverError, UsageError
from dra_driver.util.text import first_of, shorten

if TYPE_CHECKING:
    from dra_driver.topology.drawing import Sickness
    from dra_driver.topology.groups import Selection
    from dra_driver.topology.instance_types import InstanceType

MAX_DEVICE_LIST = 256
"""Maximum length of ``--devices``; far more than all devices of any host need."""

STDOUT = Path("-")

NOTHING: Final[Mapping[int, Sickness]] = MappingProxyType({})

VALUE_WIDTH = 84
"""Width at which a value in a table is wrapped."""

_ITEM = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", re.ASCII)
_GIB = 1 << 30

EXAMPLES = """\
examples:
  dra-driver topology trn2.48xlarge
  dra-driver topology trn2.48xlarge --devices 4,5,6,7 --svg row.svg
  dra-driver topology inf2.48xlarge --devices 10-11,0 -o json
  dra-driver topology --host-root /
  kubectl get resourceslices -o json | dra-driver topology --slices - --node-name node-7
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "topology",
        description="Show the devices of an EC2 instance type and their links, and evaluate a set of devices.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "type", metavar="TYPE", nargs="?", help="EC2 instance type such as trn2.48xlarge, or ml.trn2.48xlarge"
    )
    parser.add_argument(
        "--devices", metavar="LIST", help="mark and evaluate these devices: indexes and ranges, 4,5 or 4-7"
    )
    sick = parser.add_mutually_exclusive_group()
    sick.add_argument(
        "--host-root", metavar="DIR", type=Path, help="in place of TYPE: draw this host, with the state of its chips"
    )
    sick.add_argument(
        "--slices",
        metavar="FILE",
        help="in place of TYPE: draw a node by its ResourceSlices (and DeviceTaintRules), with the chips that have "
        "taints; - is stdin",
    )
    parser.add_argument("--node-name", metavar="NAME", help="with --slices of several nodes: which one")
    parser.add_argument(
        "--svg", metavar="FILE", type=Path, help="also write the picture as SVG; - prints only the picture"
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output format (default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the facts, the picture, and the description of the chosen devices."""
    from dra_driver.topology.drawing import svg, text
    from dra_driver.topology.groups import select
    from dra_driver.topology.instance_types import resolve

    if args.svg == STDOUT and args.output == "json":
        raise UsageError("--svg - and -o json both write to standard output", remedy="give --svg a file")
    devices = None if args.devices is None else parse_devices(args.devices)
    try:
        drawn = _drawn(args)
        instance_type = resolve(drawn.type)
        drawable = {index: state for index, state in drawn.sick.items() if index < (instance_type.devices or 0)}
        selection = None if devices is None else select(instance_type, devices)
    except DriverError as error:
        raise UsageError(str(error)) from error
    marked = selection.devices if selection else ()
    if args.svg == STDOUT:
        print(svg(instance_type, marked, drawable), end="")
        return 0
    if args.svg is not None:
        write_svg(args.svg, instance_type, marked, drawable)
    if args.output == "json":
        import json

        print(json.dumps(document(instance_type, selection) | drawn.document(), indent=2))
        return 0
    print(instance_type.name)
    print_table(facts(instance_type))
    print(f"\n{text(instance_type, marked, drawable)}")
    if drawn.lines:
        print("\n" + "\n".join(f"  {line}" for line in drawn.lines))
    if selection:
        print(f"\n{'device' if len(marked) == 1 else 'devices'} {listed(marked)}")
        print_table(judgement(instance_type, selection))
    if args.svg is not None:
        print(f"\nwritten: {args.svg}")
    return 0


class _Drawn(NamedTuple):
    """What to draw: a type, or a node of it with the state of its chips."""

    type: str
    sick: Mapping[int, Sickness] = NOTHING
    lines: tuple[str, ...] = ()
    """What is wrong, for people."""
    a_node: bool = True

    def document(self) -> dict[str, Any]:
        """What JSON says besides the type."""
        states = [{"device": index, "state": state} for index, state in sorted(self.sick.items())]
        return {"sick": states} if self.a_node else {}


def _drawn(args: argparse.Namespace) -> _Drawn:
    if (args.host_root is None and args.slices is None) != (args.type is not None):
        raise UsageError("TYPE, --host-root and --slices exclude each other", remedy="give one of the three")
    if args.host_root is not None:
        return _of_host(args.host_root)
    return _Drawn(args.type, a_node=False) if args.slices is None else _of_slices(args.slices, args.node_name)


def _of_host(root: Path) -> _Drawn:
    from dra_driver.cli.health import found_state_dir, read_health
    from dra_driver.host.discover import discover

    inventory = discover(root)
    if inventory.instance_type is None:
        raise UsageError(f"{root}: the host's instance type is not known", remedy="give TYPE instead")
    sick = [chip for chip in read_health(root, found_state_dir(root)).health.chips if chip.faults]
    states = {chip.index: state for chip in sick if (state := chip.state) != "healthy"}
    return _Drawn(inventory.instance_type, states, tuple(chip.text for chip in sick))


def _of_slices(name: str, node: str | None) -> _Drawn:
    from dra_driver.cel import RELEASES
    from dra_driver.cli.clusterinput import MAX_MANIFEST_BYTES, read_text
    from dra_driver.manifests import read_manifests
    from dra_driver.simulator.allocator.candidates import tainted
    from dra_driver.simulator.taints import listed as taints
    from dra_driver.simulator.taints import sick
    from dra_driver.topology.instance_types import resolve

    found = read_manifests([(name, read_text(name, MAX_MANIFEST_BYTES))], RELEASES[-1])
    own = [item for item in tainted(found.slices, found.taint_rules) if item.spec.driver == DRIVER_NAME]
    names = sorted({item.spec.node_name for item in own if item.spec.node_name})
    chosen = node if node is not None else names[0] if len(names) == 1 else None
    if chosen not in names:
        raise UsageError(
            f"{name}: {'which node is not said' if node is None else f'no slices of node {node[:80]}'}",
            remedy=f"give --node-name, one of: {first_of(names, 8)}" if names else f"give slices of {DRIVER_NAME}",
        )
    devices = [device for item in own if item.spec.node_name == chosen for device in item.spec.devices]
    types = {value.string for device in devices if (value := device.attributes.get("instanceType")) and value.string}
    if len(types) != 1:
        raise UsageError(f"{name}: the devices of {chosen} do not name one instance type", remedy="give TYPE instead")
    kind = resolve(types.pop())
    return _Drawn(kind.name, sick(devices, range(kind.devices or 0)), tuple(taints(devices)))


def parse_devices(text: str) -> tuple[int, ...]:
    """Parse ``4,5`` or ``4-7``, in the given order; raises UsageError for anything else."""
    indexes: list[int] = []
    for item in text.split(",") if len(text) <= MAX_DEVICE_LIST else [shorten(text, 20, keep=20)]:
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise UsageError(
                f"--devices cannot be read at {item.strip()[:24]!r}", remedy="give indexes and ranges: 4,5,6,7 or 4-7"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise UsageError(f"--devices has a range that goes down: {item.strip()}", remedy=f"write {last}-{first}")
        indexes.extend(range(first, last + 1))
    return tuple(indexes)


def write_svg(
    path: Path, instance_type: InstanceType, marked: tuple[int, ...], sick: Mapping[int, Sickness] = NOTHING
) -> None:
    """Write the picture; raises UsageError if the file cannot be written."""
    from dra_driver.topology.drawing import svg

    try:
        path.write_text(svg(instance_type, marked, sick), encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot write the picture to {str(path)!r}: {reason}") from error


def print_table(rows: Iterator[tuple[str, str]]) -> None:
    """Print names and values in two columns; long values are wrapped."""
    import textwrap

    for name, value in rows:
        lines = textwrap.wrap(value, VALUE_WIDTH, break_long_words=False, break_on_hyphens=False)
        for first, line in zip([name, *[""] * len(lines)], lines, strict=False):
            print(f"  {first:16}{line}")


def facts(instance_type: InstanceType) -> Iterator[tuple[str, str]]:
    """The rows about the type as a whole."""
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
    yield from _groups(instance_type)
    if instance_type.pci_bus_ids:
        yield "PCI", ", ".join(instance_type.pci_bus_ids)
    if instance_type.numa_nodes:
        yield "NUMA node", listed(instance_type.numa_nodes)
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
    from dra_driver.topology.groups import groups

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


def document(instance_type: InstanceType, selection: Selection | None) -> dict[str, Any]:
    """Everything as one JSON object; values that are not publicly known are null."""
    from dra_driver.topology.groups import groups

    fabric, shape = instance_type.fabric, instance_type.ultraserver
    return {
        "instanceType": instance_type.name,
        "family": instance_type.family,
        "devices": instance_type.devices,
        "coresPerDevice": instance_type.cores_per_device,
        "deviceMemoryBytes": instance_type.device_memory_bytes,
        "logicalCoreSizes": list(instance_type.lnc_values),
        "defaultLogicalCoreSize": instance_type.default_lnc,
        "fabric": {
            "kind": fabric.kind,
            "description": fabric.describe(),
            "neighbours": [list(fabric.neighbours(index)) for index in range(fabric.size)]
            if fabric.adjacency_promised
            else None,
            "connectedSets": {
                str(size): [list(members) for members in fabric.connected_sets(size)] for size in fabric.set_sizes()
            },
        },
        "deviceGroups": [
            {"attribute": f"{GROUP_ATTRIBUTE_DOMAIN}/{group.attribute}", "id": group.id, "devices": list(group.devices)}
            for group in groups(instance_type)
        ],
        "pciBusIds": _list_or_none(instance_type.pci_bus_ids),
        "numaNodes": _list_or_none(instance_type.numa_nodes),
        "ultraServer": shape and {"nodes": shape.nodes, "usableNodes": list(shape.usable_nodes), "links": shape.links},
        "concluded": list(instance_type.inferred),
        "selection": selection and _selection(selection),
    }


def _list_or_none(values: tuple[Any, ...] | None) -> list[Any] | None:
    return None if values is None else list(values)


def _selection(selection: Selection) -> dict[str, Any]:
    group = selection.group
    return {
        "devices": list(selection.devices),
        "connected": selection.connected,
        "offered": selection.offered,
        "run": selection.run,
        "group": group
        and {
            "attribute": f"{GROUP_ATTRIBUTE_DOMAIN}/{group.attribute}",
            "id": group.id,
            "complete": selection.is_group,
        },
    }

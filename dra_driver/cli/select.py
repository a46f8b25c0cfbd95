"""``dra-driver select``: which devices a CEL selector or extended resource matches, and why it fails on others."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from dra_driver.cli import vocabulary
from dra_driver.cli.hostinput import EXAMPLE_NODE_UID, read_host
from dra_driver.cli.terminal import columns, print_object, show
from dra_driver.neuron.names import DRIVER_NAME, is_own_pool
from dra_driver.util.envelope import envelope
from dra_driver.util.errors import DriverError, UsageError

if TYPE_CHECKING:
    from dra_driver.kube.objects.resource import Device, DeviceClass, ResourceSlice, ResourceSliceSpec
    from dra_driver.simulator.cel import CelError, Program

EXAMPLE_NODE = "example-node"
_RESOURCE = re.compile(r"[a-z0-9][-a-z0-9.]*/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)
"""Matches the name of an extended resource; as a CEL expression it would be a division, which selects nothing."""
SHORT = {True: "yes", False: "no", None: "error"}


@dataclass(frozen=True, slots=True)
class Row:
    """The result for one device; ``matches`` is None if evaluation fails, and ``error`` has the reason."""

    pool: str
    device: str
    matches: bool | None
    error: str | None


@dataclass(frozen=True, slots=True)
class DeviceSelection:
    """The devices and classes to select from."""

    slices: Sequence[ResourceSlice] | None = None
    """None if there are no devices to select from."""
    classes: Sequence[DeviceClass] = ()
    release: str = vocabulary.RELEASES[-1]
    """Kubernetes release, unless the user names another."""


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Evaluate one CEL device selector, or the selectors of the DeviceClass that offers an extended resource, "
        "on each device, as Kubernetes does. A device on which a selector fails stops the scheduling of the pod. "
        "Without devices, the command only checks whether the API server accepts the selector.",
        examples=[
            "select 'device.driver == \"neuron.aws.com\"' --instance-type trn2.48xlarge",
            "select aws.amazon.com/neuron --from-cluster",
        ],
        done="the selector was evaluated on every device",
        refused="the selector fails on a device",
    )
    parser.add_argument(
        "expression",
        metavar="EXPRESSION",
        help="a CEL expression on `device`, or an extended resource such as aws.amazon.com/neuron",
    )
    vocabulary.add_instance_type(parser, "use the devices of a host of this EC2 type")
    vocabulary.add_files(
        parser, "use the devices of these ResourceSlices, and DeviceClasses (YAML or JSON)", positional=False
    )
    vocabulary.add_cluster(parser, "the devices of all drivers")
    vocabulary.add_kubernetes(parser)
    vocabulary.add_output(parser, "text", "json", "yaml")


def run(args: argparse.Namespace) -> int:
    """Print one row per device; returns 1 if the selector fails on one."""
    from dra_driver.simulator.cel import nearest

    source = _source(args)
    release = nearest(args.kubernetes or source.release)
    if args.kubernetes not in (None, release):
        vocabulary.warn(
            f"Kubernetes {args.kubernetes} is simulated by the rules of {release}, the nearest release that is known"
        )
    resource = _RESOURCE.fullmatch(args.expression) is not None
    expressions = _selectors(args.expression, source) if resource else [args.expression]
    programs = [compiled(expression, release) for expression in expressions]
    rows = [row(programs, item, device) for item in source.slices or () for device in item.spec.devices]
    cost = sum(program.cost for program in programs)
    if args.output != "text":
        print_object(envelope("Selection", map(asdict, rows), kubernetes=release, cost=cost), args.output)
    elif source.slices is None:
        print(f"the API server of Kubernetes {release} accepts the expression: estimated cost {cost}")
    else:
        devices = [(item.spec.driver, device) for item in source.slices for device in item.spec.devices]
        show("\n".join([table(rows), *meant(expressions, devices, rows)]))
    return 1 if any(item.matches is None for item in rows) else 0


def _selectors(resource: str, source: DeviceSelection) -> list[str]:
    """The expressions of the class that provides the extended resource."""
    from dra_driver.simulator.manifests import offering

    name = offering(source.classes).get(resource)
    if name is None:
        raise UsageError(
            f"no DeviceClass offers {resource}",
            remedy="give one with -f or --from-cluster; dra-driver migrate --extended-resources prints it",
        )
    device_class = next(item for item in source.classes if item.metadata.name == name)
    return [item.cel.expression for item in device_class.spec.selectors if item.cel is not None]


def compiled(expression: str, release: str) -> Program:
    """The compiled selector; UsageError if Kubernetes refuses it, DriverError if its result cannot be simulated."""
    from dra_driver.simulator.cel import CelError, UnsupportedError, compile_for

    try:
        return compile_for(release)(expression)
    except UnsupportedError as error:
        raise DriverError(f"the expression cannot be simulated: {_place(expression, error)}") from error
    except CelError as error:
        raise UsageError(f"the expression is refused: {_place(expression, error)}") from error


def row(programs: Sequence[Program], item: ResourceSlice, device: Device) -> Row:
    """The result of the selectors for one device; evaluation ends with the first one that is false or fails."""
    from dra_driver.simulator.cel import CelDevice, CelError

    try:
        matches = all(program.matches(CelDevice.of(item.spec.driver, device)) for program in programs)
    except CelError as error:
        return Row(item.spec.pool.name, device.name, None, error.message)
    return Row(item.spec.pool.name, device.name, matches, None)


def _place(expression: str, error: CelError) -> str:
    """The error message, with the line of the expression and a mark below the position."""
    line = expression.split("\n")[error.position.line - 1] if error.position else ""
    if not error.position or not line.strip():
        return str(error)
    # Padding as wide as the text before the position, keeping tabs.
    before = re.sub(r"[^\t]", " ", line[: error.position.column - 1])
    return f"{error}\n  {line}\n  {before}^"


def table(rows: list[Row]) -> str:
    """The rows as a text table, one line for devices that follow each other with the same result."""
    from dra_driver.util.wording import named

    cells = [("POOL", "DEVICE", "MATCHES", "ERROR")]
    for (pool, matches, error), alike in groupby(rows, lambda item: (item.pool, item.matches, item.error)):
        cells.append((pool, named(item.device for item in alike), SHORT[matches], error or ""))
    counts = {state: sum(item.matches is state for item in rows) for state in SHORT}
    devices = "1 device" if len(rows) == 1 else f"{len(rows)} devices"
    return "\n".join([columns(cells), f"{devices}: {counts[True]} match, {counts[False]} do not, {counts[None]} fail"])


def meant(expressions: Sequence[str], devices: Sequence[tuple[str, Device]], rows: Sequence[Row]) -> Iterator[str]:
    """What may have been meant by a name or value that no device has; ``devices`` with their driver."""
    from dra_driver.simulator.explain.spelling import spellings

    near: dict[str, list[str]] = {}
    for expression in () if any(item.matches for item in rows) else expressions:
        for wrong, right in spellings(expression, devices):
            near.setdefault(wrong, []).append(right)
    for wrong, found in near.items():
        yield f"no device has {wrong}; did you mean {' or '.join(dict.fromkeys(found))}?"


def _source(args: argparse.Namespace) -> DeviceSelection:
    live, files = vocabulary.from_cluster(args), vocabulary.files(args)
    if sum(map(bool, (live, files, args.instance_type))) > 1:
        raise UsageError(
            "--instance-type, -f and --from-cluster exclude each other", remedy="name one source of devices"
        )
    if live:
        return _of_cluster(args)
    if files:
        return _of_files(files)
    if args.instance_type is None:
        return DeviceSelection()
    from dra_driver.driver.resourceslices.devices import devices
    from dra_driver.driver.resourceslices.pool import pool
    from dra_driver.simulator.emulated_nodes import driver_classes

    host = argparse.Namespace(host_root=None, instance_type=args.instance_type)
    return DeviceSelection(list(pool(devices(read_host(host)), EXAMPLE_NODE, EXAMPLE_NODE_UID)), driver_classes())


def _of_cluster(args: argparse.Namespace) -> DeviceSelection:
    from dra_driver.cli.clusterinput import asking, read_classes, released
    from dra_driver.kube.api.resources import ResourceApi
    from dra_driver.simulator.cel import nearest

    with asking(args) as transport:
        api = ResourceApi(transport)
        return DeviceSelection(current(api.list_all_slices()), read_classes(transport), nearest(released(api)))


def _of_files(files: Sequence[str]) -> DeviceSelection:
    """Read files, which may contain other objects too; raises UsageError with the place and the reason."""
    from dra_driver.cli.clusterinput import texts
    from dra_driver.simulator.manifests import read_manifests

    found = read_manifests(texts(files), in_cluster=True)
    if not found.slices:
        raise UsageError(
            f"{', '.join(files)}: there is no ResourceSlice in it",
            remedy="give what `kubectl get resourceslices -o yaml` prints, or `dra-driver slices`",
        )
    return DeviceSelection(current(found.slices), found.classes)


def current(slices: Sequence[ResourceSlice]) -> list[ResourceSlice]:
    """The effective slices, in the scheduler's order: of each pool only those of its newest generation.

    Slices of this driver in the pool of another node are left out: their node cannot have what they say.
    """
    slices = [item for item in slices if not _is_foreign(item.spec)]
    newest: dict[tuple[str, str], int] = {}
    for item in slices:
        key = (item.spec.driver, item.spec.pool.name)
        newest[key] = max(newest.get(key, 0), item.spec.pool.generation)
    kept = [item for item in slices if item.spec.pool.generation == newest[item.spec.driver, item.spec.pool.name]]
    return sorted(kept, key=lambda item: (item.spec.driver, item.spec.pool.name, item.metadata.name))


def _is_foreign(spec: ResourceSliceSpec) -> bool:
    node = spec.node_name
    return spec.driver == DRIVER_NAME and bool(node) and not is_own_pool(spec.pool.name, node or "")

"""``dra-driver select``: which devices one CEL selector takes, and why it fails on others."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dra_driver.cli.errors import UsageError
from dra_driver.cli.slices import EXAMPLE_NODE_UID, print_object, read_host

if TYPE_CHECKING:
    from dra_driver.kube.objects import Device, ResourceSlice
    from dra_driver.simulator.cel import CelError, Program

RELEASES = ("1.36", "1.37")
"""Kubernetes releases whose behaviour is known, oldest first."""
EXAMPLE_NODE = "example-node"
SHORT = {True: "yes", False: "no", None: "error"}


@dataclass(frozen=True, slots=True)
class Row:
    """The answer for one device; ``matches`` is None when evaluation fails, and ``error`` says why."""

    pool: str
    device: str
    matches: bool | None
    error: str | None


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "select",
        help="try a CEL device selector",
        description="Evaluate one CEL device selector as Kubernetes does, on each device. A device on which it fails "
        "would stop the scheduling of the pod.",
        epilog="example: dra-driver select 'device.driver == \"neuron.aws.com\"' --instance-type trn2.48xlarge",
    )
    parser.add_argument("expression", metavar="EXPRESSION", help="a CEL expression over `device`")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--instance-type", metavar="TYPE", help="the devices of a host of this EC2 type")
    source.add_argument(
        "--slices", metavar="FILE", help="the devices of these ResourceSlices, YAML or JSON; - is stdin"
    )
    source.add_argument("--kubeconfig", metavar="FILE", help="the devices of all drivers of this cluster")
    parser.add_argument(
        "--kubernetes", choices=RELEASES, help=f"whose behaviour is meant (default: the cluster's, else {RELEASES[-1]})"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one row per device."""
    from dra_driver.simulator.cel import CelError, Environment, compile  # noqa: A004 # the usual word for it

    slices, release = _source(args)
    try:
        chosen = args.kubernetes or release
        program = compile(args.expression, Environment("1.36" if chosen == "1.36" else "1.37"))
    except CelError as error:
        raise UsageError(refusal(args.expression, error)) from error
    rows = [row(program, item, device) for item in slices for device in item.spec.devices]
    if args.output == "json":
        print_object([asdict(item) for item in rows], "json")
    else:
        print(table(rows))
    return 0


def row(program: Program, item: ResourceSlice, device: Device) -> Row:
    """What the selector says of one device."""
    from dra_driver.simulator.cel import CelDevice, CelError

    try:
        matches = program.matches(CelDevice.of(item.spec.driver, device))
    except CelError as error:
        return Row(item.spec.pool.name, device.name, None, error.message)
    return Row(item.spec.pool.name, device.name, matches, None)


def refusal(expression: str, error: CelError) -> str:
    """Why an expression is refused, with the line and a mark under the place."""
    if error.position is None:
        return f"the expression is refused: {error.message}"
    line = expression.split("\n")[error.position.line - 1]
    mark = " " * (error.position.column - 1) + "^"
    return f"the expression is refused: {error}\n  {line}\n  {mark}"


def table(rows: list[Row]) -> str:
    """The rows as a person reads them."""
    cells = [("POOL", "DEVICE", "MATCHES", "ERROR")]
    cells += [(item.pool, item.device, SHORT[item.matches], item.error or "") for item in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    lines = ["  ".join([*(f"{line[i]:<{widths[i]}}" for i in range(3)), line[3]]).rstrip() for line in cells]
    counts = {state: sum(item.matches is state for item in rows) for state in SHORT}
    return "\n".join(
        [*lines, f"{len(rows)} devices: {counts[True]} match, {counts[False]} do not, {counts[None]} fail"]
    )


def _source(args: argparse.Namespace) -> tuple[list[ResourceSlice], str]:
    """The slices, and the release that is meant unless the user says otherwise."""
    if args.kubeconfig is not None:
        return _of_cluster(args.kubeconfig)
    if args.slices is not None:
        return current(read_slices(args.slices)), RELEASES[-1]
    from dra_driver.slices.devices import devices
    from dra_driver.slices.pool import pool

    host = argparse.Namespace(host_root=None, instance_type=args.instance_type)
    return list(pool(devices(read_host(host)), EXAMPLE_NODE, EXAMPLE_NODE_UID)), RELEASES[-1]


def _of_cluster(kubeconfig: str) -> tuple[list[ResourceSlice], str]:
    import json

    from dra_driver.kube.resources import ResourceApi
    from dra_driver.kube.transport import Transport

    transport = Transport.from_kubeconfig(kubeconfig)
    version: Any = json.loads(transport.request("GET", "/version").body)
    release = f"1.{str(version.get('minor', '')).rstrip('+')}" if isinstance(version, dict) else ""
    slices = current(ResourceApi(transport).list_all_slices())
    return slices, release if release in RELEASES else RELEASES[-1]


def read_slices(filename: str) -> list[ResourceSlice]:
    """The ResourceSlices of a file; UsageError says what else is in it, and what is wrong with a slice."""
    from dra_driver.cli.objectfile import read_objects
    from dra_driver.kube.codec import VERSIONS, decode_slice
    from dra_driver.kube.errors import DecodeError

    slices = []
    for item in read_objects(filename):
        kind, version = item.get("kind"), str(item.get("apiVersion", "")).removeprefix("resource.k8s.io/")
        if kind != "ResourceSlice":
            raise UsageError(
                f"{filename}: kind {kind!r} is no ResourceSlice",
                remedy="give what `kubectl get resourceslices -o yaml` prints, or `dra-driver slices`",
            )
        if version not in VERSIONS:
            raise UsageError(f"{filename}: apiVersion {item.get('apiVersion')!r} is not resource.k8s.io/{VERSIONS[0]}")
        try:
            slices.append(decode_slice(item, version))
        except (DecodeError, RecursionError) as error:
            reason = str(error).removeprefix("the API server sent a ResourceSlice that cannot be read: ")
            raise UsageError(f"{filename}: not a ResourceSlice: {reason}") from error
    if not slices:
        raise UsageError(f"{filename}: there is no ResourceSlice in it")
    return slices


def current(slices: list[ResourceSlice]) -> list[ResourceSlice]:
    """The slices that count, in the scheduler's order: of a pool only those of its newest generation."""
    newest: dict[tuple[str, str], int] = {}
    for item in slices:
        key = (item.spec.driver, item.spec.pool.name)
        newest[key] = max(newest.get(key, 0), item.spec.pool.generation)
    kept = [item for item in slices if item.spec.pool.generation == newest[item.spec.driver, item.spec.pool.name]]
    return sorted(kept, key=lambda item: (item.spec.driver, item.spec.pool.name, item.metadata.name))

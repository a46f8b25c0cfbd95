"""``dra-driver emulate-host``: write the file tree of a Neuron host of any instance type."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dra_driver.cli import vocabulary
from dra_driver.cli.terminal import say
from dra_driver.util.errors import UsageError, blaming_usage

if TYPE_CHECKING:
    from dra_driver.neuron.emulation.writer import EmulationOptions
    from dra_driver.neuron.host.inventory import Membership
    from dra_driver.neuron.topology.instance_types import InstanceType

MAX_LIST_LENGTH = 256
"""Maximum length of an option's value; far more than any host needs."""

_NUMBER = re.compile(r"-?[0-9]{1,20}", re.ASCII)

EXAMPLES = (
    "emulate-host --instance-type trn2.48xlarge /tmp/trn2",
    "emulate-host --instance-type trn1.32xlarge --emulated-driver-version 2.26.10.0 --missing 3,7 /tmp/broken",
    "emulate-host --instance-type trn2.48xlarge --ecc 5:sram=1,mem=2 --logical-core-size 1 /tmp/worn",
    "emulate-host --instance-type trn2.48xlarge --fault hbm-uncorrectable@3 --fault link-lost@0-1 /tmp/sick",
    "emulate-host --instance-type trn2u --emulated-ultraservers 2x4 --node-number 3 /tmp/node-3",
    "emulate-host --instance-type trn2u --ultraserver-modes X2V,X1 --node-id 2=1 /tmp/pair",
    "emulate-host --from report.json /tmp/as-reported",
)


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Write the files that the driver reads on a host of an instance type: sysfs, DMI, kernel driver version "
        "and device nodes. The device nodes are character devices that containers can open, but that do nothing "
        "(plain files if this process does not run as root). Writing again replaces the host, even under a running "
        "driver.",
        examples=EXAMPLES,
        done="written",
        refused="the directory cannot be written",
    )
    parser.add_argument(
        "directory", metavar="DIR", type=Path, help="a new or empty directory, or that of an emulated host"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    vocabulary.add_instance_type(what, "instance type, such as trn2.48xlarge, or trn2")
    what.add_argument(
        "--from",
        dest="from_report",
        metavar="REPORT",
        type=Path,
        help="make the host of a report of `dra-driver verify-host`; no other option applies",
    )
    parser.add_argument(
        "--emulated-driver-version", metavar="V", help="version of the kernel driver (default: the newest known)"
    )
    parser.add_argument("--missing", metavar="LIST", default="", help="missing devices, such as 3,7")
    parser.add_argument(
        "--ecc",
        metavar="N:NAME=COUNT,...",
        action="append",
        default=[],
        help="ECC counters of device N: sram, mem, repairable, sram-corrected, mem-corrected (repeatable)",
    )
    parser.add_argument(
        "--fault",
        metavar="CODE@CHIPS[=VALUE]",
        action="append",
        default=[],
        help="faults of chips, such as hbm-uncorrectable@3 or link-host-unhealthy@0-3 (repeatable; "
        "the file `faults` in DIR lists all codes)",
    )
    parser.add_argument("--logical-core-size", metavar="SIZE", help="node-wide default logical core size, 1 or 2")
    _add_ultraserver(parser)


def _add_ultraserver(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("UltraServer (types such as trn2u.48xlarge; default: a healthy one of 4 nodes)")
    group.add_argument(
        "--emulated-ultraservers", metavar="SxN", help="make the host part of S servers of N nodes, such as 2x4"
    )
    group.add_argument(
        "--node-number", metavar="N", help="number of this node among those, counted from 1, server by server"
    )
    group.add_argument(
        "--ultraserver-modes", metavar="LIST", help="supported modes, some of X4, X2V, X2H and X1, such as X2V,X1"
    )
    group.add_argument(
        "--server-id", metavar="2|4=HEX", action="append", default=[], help="id of the set of 2 or 4 nodes, 16 digits"
    )
    group.add_argument(
        "--node-id", metavar="2|4=ID", action="append", default=[], help="place in the set of 2 or 4 nodes, -1 for none"
    )
    group.add_argument("--busy", action="store_true", help="the election of the ids is still running")


def run(args: argparse.Namespace) -> int:
    """Write the host, and print what was written and what to try next."""
    from dra_driver.neuron.emulation.running import EmulatedHost
    from dra_driver.neuron.host.discover import discover
    from dra_driver.neuron.topology.instance_types import resolve_emulation

    if args.from_report is not None:
        return _from_report(args)
    with blaming_usage():
        kind = resolve_emulation(args.instance_type)
        emulated = EmulatedHost(args.directory, kind, _placed(kind, args, options(args)))
        emulated.write(emulated.parse(args.fault))
    host = discover(args.directory)
    print(f"{args.directory}: an emulated {host.instance_type} with {len(host.devices)} of {kind.devices} devices,")
    print(f"kernel driver {host.driver_version}{_nodes(args.directory)}")
    if host.ultraserver is not None:
        print(f"UltraServer: {_place(host.ultraserver)}")
    for finding in host.findings:
        say(f"the driver will report: {finding.code} ({finding.subject})")
    for fault in emulated.faults:
        print(f"fault: {fault}")
    print(f"faults to rehearse: see {emulated.faults_file}")
    print(f"next: dra-driver slices --host-root {shlex.quote(str(args.directory))}")
    return 0


def _from_report(args: argparse.Namespace) -> int:
    """Write the host of a report."""
    from dra_driver.neuron.emulation.writer import host_writer
    from dra_driver.neuron.host.discover import discover
    from dra_driver.operations.verification.collect import read_input
    from dra_driver.operations.verification.replay import files_of
    from dra_driver.operations.verification.report import read

    given = [name for name, value in vars(args).items() if value and name not in _BESIDE_REPORT]
    if given:
        raise UsageError(
            f"--{given[0].replace('_', '-')} does not go with --from",
            remedy="the report says what the host is like; change the files in DIR afterwards",
        )
    host_writer(args.directory).write(files_of(read(read_input(args.from_report))))
    host = discover(args.directory)
    say(f"{args.directory}: {host.instance_type or 'an unknown type'} as reported, with {len(host.devices)} devices,")
    say(f"kernel driver {host.driver_version or 'not loaded'}{_nodes(args.directory)}; their device numbers are")
    print("those of the null device, whatever the report says")
    for finding in host.findings:
        say(f"the driver will report: {finding.code} ({finding.subject})")
    print(f"next: dra-driver verify-host --host-root {shlex.quote(str(args.directory))}")
    return 0


_BESIDE_REPORT = frozenset({"directory", "from_report", "main", "run"})
"""All other arguments describe a host that is not a report's."""


def options(args: argparse.Namespace) -> EmulationOptions:
    """The emulation options that the arguments select; raises UsageError for an invalid one."""
    from dra_driver.neuron.emulation.writer import EmulationOptions
    from dra_driver.neuron.topology.ultraserver import parse_modes

    modes = args.ultraserver_modes
    return EmulationOptions(
        driver_version=args.emulated_driver_version,
        missing=frozenset(_numbers(args.missing, "--missing")),
        ecc=_ecc(args.ecc),
        logical_nc_config=None
        if args.logical_core_size is None
        else _number(args.logical_core_size, "--logical-core-size"),
        ultraserver_modes=None if modes is None else parse_modes(modes),
        server_ids={_number(size, "--server-id"): text for size, text in _pairs(args.server_id, "--server-id")},
        node_ids={
            _number(size, "--node-id"): _number(text, "--node-id") for size, text in _pairs(args.node_id, "--node-id")
        },
        busy=args.busy,
    )


def _placed(kind: InstanceType, args: argparse.Namespace, chosen: EmulationOptions) -> EmulationOptions:
    """The options, with the place on an UltraServer that ``--node-number`` gives."""
    from dra_driver.neuron.emulation.ultraservers import Servers

    if args.emulated_ultraservers is None and args.node_number is None:
        return chosen
    if args.emulated_ultraservers is None or args.node_number is None:
        raise UsageError(
            "--emulated-ultraservers and --node-number go together",
            remedy="give both, as in --emulated-ultraservers 2x4 --node-number 3",
        )
    return Servers.parse(args.emulated_ultraservers).options(kind, _number(args.node_number, "--node-number"), chosen)


def _ecc(items: Iterable[str]) -> dict[int, dict[str, int]]:
    counters: dict[int, dict[str, int]] = {}
    for item in items:
        index, colon, values = item.partition(":")
        if not colon:
            raise UsageError(f"--ecc cannot be read: {item[:60]!r}", remedy="use the form --ecc 5:sram=1,mem=2")
        pairs = _pairs(_items(values, "--ecc"), "--ecc")
        counters.setdefault(_number(index, "--ecc"), {}).update({name: _number(text, "--ecc") for name, text in pairs})
    return counters


def _pairs(items: Iterable[str], option: str) -> list[tuple[str, str]]:
    pairs = []
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"{option} cannot be read at {item[:60]!r}", remedy="expected NAME=VALUE")
        pairs.append((name.strip(), value.strip()))
    return pairs


def _numbers(text: str, option: str) -> list[int]:
    return [_number(item, option) for item in _items(text, option)]


def _items(text: str, option: str) -> list[str]:
    if len(text) > MAX_LIST_LENGTH:
        raise UsageError(f"{option} is longer than {MAX_LIST_LENGTH} characters", remedy="name each device once")
    return text.split(",") if text else []


def _number(text: str, option: str) -> int:
    if not _NUMBER.fullmatch(text.strip()):
        raise UsageError(f"{option} expects a number, not {text[:60]!r}", remedy="see dra-driver emulate-host --help")
    return int(text)


def _place(member: Membership) -> str:
    if member.electing:
        return "its nodes are still electing their ids"
    places = (f"node {one.node_id} of {one.nodes} in server {one.server_id}" for one in member.sets)
    return "; ".join([f"modes {', '.join(map(str, member.modes)) or '(none)'}", *places])


def _nodes(directory: Path) -> str:
    nodes = sorted((directory / "dev").glob("neuron*"))
    if not nodes:
        return ""
    kind = "character devices" if nodes[0].is_char_device() else "plain files, as device nodes could not be made"
    return f"; its /dev/neuron* are {kind}"

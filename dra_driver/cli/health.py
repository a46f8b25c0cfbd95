"""``dra-driver health``: what is wrong with the chips of a node; and ``health clear``, which forgets what is past."""

from __future__ import annotations

import argparse
import os
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dra_driver.names import DRIVER_NAME, device_name
from dra_driver.util.errors import DriverError, UsageError

if TYPE_CHECKING:
    from dra_driver.health.faults import ActiveFault, Effect, NodeHealth
    from dra_driver.host.signals import SignalReader

READ_SECONDS: Final = 10.0
"""A reading takes some hundredths of a second; one that takes so long hangs in the kernel."""
_DEVICE = re.compile(rf"(?:neuron|{re.escape(device_name(0))[:-1]})?(0|[1-9][0-9]{{0,2}})")
_COLUMNS: Final = ("DEVICE", "STATE", "FAULT", "SEVERITY", "SINCE", "EFFECT", "REMEDY")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "health",
        description="Print what is wrong with the chips of this node, as the host says and as the driver remembers.",
        epilog="examples: dra-driver health -o json; dra-driver health clear neuron3. Exit status: 0 printed or "
        "cleared, 1 not possible (there is no device, no driver answers, the host still says the fault), 2 bad input.",
    )
    parser.add_argument(
        "--host-root",
        metavar="DIR",
        type=Path,
        default=Path("/"),
        help="root directory of the host, or of one made by emulate-host (default: %(default)s)",
    )
    _add_state_dir(parser, default_state_dir())
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output format (default: %(default)s)"
    )
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    clear = actions.add_parser(
        "clear",
        help="have the driver forget the faults of a device that only it remembers",
        description="Ask the driver that runs on this node to forget the faults of a device that the host no longer "
        "says: lines of the kernel log, errors of cores, and what is only waited for to stay away.",
        epilog="example: dra-driver health clear neuron3",
    )
    clear.add_argument("device", metavar="DEVICE", help="such as 3, neuron3 or neuron-device-3")
    _add_state_dir(clear, argparse.SUPPRESS)
    clear.set_defaults(run=run_clear)


def _add_state_dir(parser: argparse.ArgumentParser, default: Any) -> None:
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        type=Path,
        default=default,
        help=f"directory in which the driver remembers faults (default: {default_state_dir()})",
    )


def default_state_dir() -> Path:
    """Where the node's driver keeps its record, by its own option's variable."""
    return Path(os.environ.get("KUBELET_PLUGINS_DIRECTORY_PATH") or "/var/lib/kubelet/plugins") / DRIVER_NAME / "health"


def run(args: argparse.Namespace) -> int:
    """Print the table; raises DriverError for a host without devices."""
    if not args.host_root.is_dir():
        raise UsageError(
            f"--host-root {args.host_root} is no directory",
            remedy="make one with: dra-driver emulate-host --instance-type trn2.48xlarge DIR",
        )
    said = read_health(args.host_root, args.state_dir)
    if not said.chips:
        raise DriverError(f"{args.host_root}: there is no Neuron device")
    if args.output == "json":
        import json

        print(json.dumps(document(said), indent=2))
    else:
        print(table(said))
    return 0


def read_health(root: Path, state_dir: Path) -> NodeHealth:
    """The health of a host as two readings and the driver's record say; writes nothing."""
    from dra_driver.health.assess import CORE_COUNTERS, HARDWARE_COUNTERS, assess
    from dra_driver.health.memory import MemoryFile
    from dra_driver.health.watch import AGAIN_SECONDS
    from dra_driver.host.discover import discover
    from dra_driver.host.signals import SignalReader

    reader = SignalReader(root, HARDWARE_COUNTERS, CORE_COUNTERS)

    def read() -> NodeHealth:
        inventory = discover(root)
        memory, _ = assess(MemoryFile(state_dir).read(move_aside=False), reader.read(inventory))
        time.sleep(AGAIN_SECONDS)
        return assess(memory, reader.read(inventory))[1]

    return _bounded(read, reader)


def _bounded(read: Callable[[], NodeHealth], reader: SignalReader) -> NodeHealth:
    results: list[NodeHealth | Exception] = []

    def attempt() -> None:
        try:
            results.append(read())
        except Exception as error:  # noqa: BLE001 - raised below
            results.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(READ_SECONDS)
    if not results:
        raise DriverError(
            f"reading {reader.at or 'the host'} does not end",
            consequence="the health of the chips is not known",
            remedy="look at the node's kernel log; usually the node must be rebooted",
        )
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


def effect(fault: ActiveFault) -> Effect:
    """What the taint of a fault does."""
    from dra_driver.health.faults import DEFAULT_EFFECTS

    return DEFAULT_EFFECTS[fault.fault.severity]


def document(said: NodeHealth) -> dict[str, Any]:
    """The health as plain values."""
    return {
        "devices": [
            {
                "device": f"neuron{chip.index}",
                "state": chip.state,
                "faults": [
                    {
                        "code": fault.code,
                        "severity": fault.fault.severity,
                        "since": _time(fault.since),
                        "effect": effect(fault),
                        "remedy": fault.fault.remedy,
                    }
                    for fault in chip.faults
                ],
            }
            for chip in said.chips
        ]
    }


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(min(max(seconds, 0), 253402300799), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def table(said: NodeHealth) -> str:
    """One line for each fault, and one for each healthy device; what is wrong in words below."""
    from dra_driver.util.text import printable

    lines = [_COLUMNS]
    texts = []
    for device in document(said)["devices"]:
        faults = [tuple(map(str, fault.values())) for fault in device["faults"]] or [("-",) * 5]
        lines += [(device["device"], device["state"], *fault) for fault in faults]
    for chip in said.chips:
        texts += [f"neuron{chip.index}: {printable(fault.text)}" for fault in chip.faults]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*rows, *([""] if texts else []), *texts])


def run_clear(args: argparse.Namespace) -> int:
    """Ask the driver; status 1 when the host still says a fault."""
    from dra_driver.health.clearing import ask

    found = _DEVICE.fullmatch(args.device)
    if found is None:
        raise UsageError(f"{args.device[:60]!r} is no device", remedy="name one such as neuron3")
    said = ask(args.state_dir, int(found[1]))
    name = f"neuron{said.device}"
    if not said.known:
        raise DriverError(f"the driver knows no {name}", remedy="list them with: dra-driver health")
    if said.cleared:
        print(f"{name}: cleared {', '.join(said.cleared)}")
    if said.kept:
        raise DriverError(
            f"{name}: the host still says {', '.join(said.kept)}",
            consequence="that cannot be cleared",
            remedy="it is over by itself when the host no longer says it",
        )
    if not said.cleared:
        print(f"{name}: there was nothing to clear")
    return 0

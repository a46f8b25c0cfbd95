"""``dra-driver health``: what is wrong with the chips of a node; and ``health clear``, which forgets what is past."""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dra_driver.cli import vocabulary
from dra_driver.cli.hostinput import HostHealth, check_host_root, found_state_dir, read_health, state_dirs
from dra_driver.cli.overviewoutput import FAULT_COLUMNS, cluster_table
from dra_driver.cli.terminal import columns, print_object, show
from dra_driver.neuron.topology.partitions import device_name
from dra_driver.util.envelope import envelope
from dra_driver.util.errors import DriverError, UsageError
from dra_driver.util.text import printable

if TYPE_CHECKING:
    from dra_driver.neuron.health.faults import ActiveFault
    from dra_driver.neuron.health.policy import HealthPolicy

KIND: Final = "Health"
MAX_REASON_LENGTH: Final = 1000
"""Characters."""
_DEVICE = re.compile(rf"(?:neuron|{re.escape(device_name(0))[:-1]})?(0|[1-9][0-9]{{0,2}})")


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Print what is wrong with the chips of a cluster's nodes, from their slices and conditions; with "
        "--host-root, or in a pod of the driver, print that for this node, from the host and the driver's record.",
        examples=["health", "health --node-name node-7", "health --host-root / -o json", "health clear neuron3"],
        done="printed, or cleared",
        refused="there is no device, no driver answers, or the host still reports the fault",
    )
    vocabulary.add_host_root(
        parser,
        "read this host, or one made by emulate-host, not a cluster (default: $HOST_ROOT, as in the driver's pods)",
    )
    _add_state_dir(parser, None)
    parser.add_argument(
        "--health-policy",
        metavar="FILE",
        type=Path,
        default=os.environ.get("HEALTH_POLICY") or None,
        help="what faults of chips mean, as for the driver's option; the column EFFECT follows from it "
        "(default: $HEALTH_POLICY, or an empty table)",
    )
    vocabulary.add_cluster(parser)
    vocabulary.add_node_name(parser, "only this node of the cluster", several=True)
    vocabulary.add_output(parser, "text", "json", "yaml")
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    clear = vocabulary.Entry(actions, "clear").command(
        about="Ask the driver that runs on this node to forget the faults of a device that the host no longer reports: "
        "lines of the kernel log, errors of cores, and faults that end only after a time without any sign of them.",
        summary="make the driver forget faults of a device that the host no longer reports",
        examples=["health clear neuron3"],
        done="cleared, or there was nothing to clear",
        refused="no driver answers, it does not know the device, or the host still reports a fault",
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
        help="directory in which the driver or the device plugin of this node remembers faults "
        f"(default: {' or, if there is none, '.join(str(path) for path in state_dirs(Path('/')))})",
    )


def run(args: argparse.Namespace) -> int:
    """Print the table; raises DriverError for a host without devices."""
    from dra_driver.neuron.emulation.faults import FAULTS_FILE
    from dra_driver.neuron.health.policy import HealthPolicy

    if args.host_root is None and not args.node_name and (here := os.environ.get("HOST_ROOT")):
        args.host_root = Path(here)
    args.from_cluster = args.host_root is None
    if vocabulary.from_cluster(args, "remove it or --host-root"):
        return _of_cluster(args)
    if args.node_name:
        raise UsageError("--node-name names nodes of a cluster", remedy="remove it or --host-root")
    check_host_root(args.host_root)
    if refused := _refused_faults(args.host_root):
        vocabulary.warn(f"{args.host_root / FAULTS_FILE}: {refused}")
    policy = HealthPolicy.load(args.health_policy) if args.health_policy else HealthPolicy.default()
    said = read_health(args.host_root, args.state_dir or found_state_dir(args.host_root))
    if not said.health.chips:
        raise DriverError(f"{args.host_root}: there is no Neuron device")
    if args.output == "text":
        show(table(said, policy))
    else:
        print_object(document(said, policy), args.output)
    return 0


def _refused_faults(root: Path) -> str:
    """Why an emulated host does not show what its file of faults says, or ""."""
    from dra_driver.neuron.emulation.faults import REFUSED_FILE

    try:
        with (root / REFUSED_FILE).open(encoding="utf-8", errors="replace") as file:
            return printable(file.read(MAX_REASON_LENGTH).strip())
    except OSError:
        return ""


def _of_cluster(args: argparse.Namespace) -> int:
    from dra_driver.cli.clusterinput import asking, check_nodes
    from dra_driver.kube.api.client import context_namespace
    from dra_driver.operations.overview.reading import listed, readable
    from dra_driver.operations.overview.rows import node_document
    from dra_driver.operations.overview.view import view

    with asking(args) as transport:
        scope = readable(transport, context_namespace(args.kubeconfig, args.context), devices=True)
        for note in scope.notes:
            vocabulary.warn(printable(note))
        frame = view(listed(transport, scope), nodes=args.node_name)
    check_nodes(frame, args.node_name)
    if args.output == "text":
        print(cluster_table(frame.nodes, every_chip=bool(args.node_name)))
    else:
        print_object(envelope(KIND, map(node_document, frame.nodes)), args.output)
    return 0


def document(said: HostHealth, policy: HealthPolicy) -> dict[str, Any]:
    """The health as plain values; ``effect``: what the fault's taint does at the time of the reading.

    A fault of the whole host is one of the node, with its remedy in words; beside it, only chips with faults of their
    own are there.
    """
    from dra_driver.kube.objects.meta import MAX_SECONDS, timestamp
    from dra_driver.neuron.host.findings import LOAD_DRIVER

    health, kind = said
    host = health.not_loaded

    def told(fault: ActiveFault) -> dict[str, str | None]:
        return {
            "code": "driver-not-loaded" if fault.of_host else fault.code,
            "severity": fault.fault.severity,
            "since": timestamp(min(max(fault.since, 0), MAX_SECONDS)),
            "effect": policy.taint(fault, kind, time.clock_gettime(time.CLOCK_BOOTTIME)).effect,
            "remedy": LOAD_DRIVER if fault.of_host else fault.fault.remedy,
        }

    node = {
        "node": None,
        "faults": [told(host)] if host else [],
        "chips": [
            {"index": chip.index, "state": chip.state, "faults": list(map(told, chip.own))}
            for chip in health.chips
            if chip.own or not host
        ],
    }
    return envelope(KIND, [node])


def table(said: HostHealth, policy: HealthPolicy) -> str:
    """One line for each fault, and one for each healthy device; what is wrong in words below."""
    lines: list[tuple[str, ...]] = [FAULT_COLUMNS]
    texts = []
    (node,) = document(said, policy)["items"]
    found = [("all", "unknown", node["faults"])] if node["faults"] else []
    found += [(f"neuron{chip['index']}", chip["state"], chip["faults"]) for chip in node["chips"]]
    for device, state, faults in found:
        rows = [tuple(map(str, fault.values())) for fault in faults] or [("-",) * 5]
        lines += [(device, state, *row) for row in rows]
    for chip in said.health.chips:
        texts += [f"neuron{chip.index}: {printable(fault.text)}" for fault in chip.own]
    return "\n".join([columns(lines), *([""] if texts else []), *texts])


def run_clear(args: argparse.Namespace) -> int:
    """Ask the driver; status 1 when the host still reports a fault."""
    from dra_driver.neuron.health.clearing import ask

    found = _DEVICE.fullmatch(args.device)
    if found is None:
        raise UsageError(f"{args.device[:60]!r} is not a device", remedy="name one such as neuron3")
    said = ask(args.state_dir or found_state_dir(), int(found[1]))
    name = f"neuron{said.device}"
    if not said.known:
        raise DriverError(f"the driver does not know {name}", remedy="list them with: dra-driver health")
    if said.cleared:
        print(f"{name}: cleared {', '.join(said.cleared)}")
    if said.kept:
        raise DriverError(
            f"{name}: the host still reports {', '.join(said.kept)}",
            consequence="it cannot be cleared",
            remedy="it ends when the host no longer reports it",
        )
    if not said.cleared:
        print(f"{name}: there was nothing to clear")
    return 0

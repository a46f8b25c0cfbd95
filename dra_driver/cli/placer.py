"""``dra-driver placer``: gives groups of pods UltraServers, so that no two groups wait for each other's nodes."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import threading
from types import FrameType

from dra_driver.cli.errors import UsageError

LEAST_TIMEOUT, MOST_TIMEOUT = 1.0, 86400.0


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "placer",
        help="give groups of pods UltraServers (what the Deployment of --placer starts)",
        description="Give each group of pods with the scheduling gate neuron.aws.com/ultraserver a free UltraServer, "
        "or half of one. Several may run: one acts, the others wait for its lease to end.",
        epilog="example: dra-driver placer --kubeconfig admin.conf --namespace neuron-dra-driver --group-timeout 120",
    )
    environment = os.environ
    parser.add_argument(
        "--kubeconfig",
        default=environment.get("KUBECONFIG", ""),
        help="how to reach the API server (default: the pod's service account) [$KUBECONFIG]",
    )
    parser.add_argument(
        "--namespace",
        default=environment.get("POD_NAMESPACE") or "neuron-dra-driver",
        help="of the lease and of the placer's ConfigMap (default: neuron-dra-driver) [$POD_NAMESPACE]",
    )
    parser.add_argument(
        "--identity",
        default=environment.get("PLACER_IDENTITY", ""),
        help="name in the lease, of no other process (default: host name and a random part) [$PLACER_IDENTITY]",
    )
    parser.add_argument(
        "--group-timeout",
        default=environment.get("GROUP_TIMEOUT") or "300",
        metavar="SECONDS",
        help="a placed group whose pods do not all get their nodes within this time is released and made anew, and "
        "stays away from that server for the same time (default: 300) [$GROUP_TIMEOUT]",
    )
    parser.add_argument(
        "--healthcheck-port",
        default=environment.get("HEALTHCHECK_PORT") or "-1",
        help="gRPC health services `liveness` and `readiness`; negative: off (default) [$HEALTHCHECK_PORT]",
    )
    parser.add_argument(
        "--healthcheck-address",
        default=environment.get("HEALTHCHECK_ADDRESS") or "127.0.0.1",
        help="address of the health service (default: 127.0.0.1) [$HEALTHCHECK_ADDRESS]",
    )
    parser.add_argument("--log-format", choices=("text", "json"), default=environment.get("LOG_FORMAT") or "text")
    parser.add_argument("-v", "--v", type=int, default=0, metavar="LEVEL", help="klog-like verbosity; 4 is debug")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT."""
    from dra_driver.cli.kubelet_plugin import transport
    from dra_driver.cli.logs import configure
    from dra_driver.kubeletplugin.health import HealthServer
    from dra_driver.placer.service import Service
    from dra_driver.placer.values import Rules

    configure(args.log_format, args.v)
    timeout = number("--group-timeout", args.group_timeout, LEAST_TIMEOUT, MOST_TIMEOUT)
    port = int(number("--healthcheck-port", args.healthcheck_port, -1, 65535))
    identity = args.identity or f"{socket.gethostname()}_{secrets.token_hex(4)}"
    service = Service(transport(args.kubeconfig), args.namespace, identity, Rules(timeout=timeout, avoid=timeout))
    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        del number
        stop.set()

    for number_ in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number_, on_signal)
    checks = {"liveness": service.stuck, "readiness": service.problems}
    health = HealthServer(port, args.healthcheck_address, checks)
    health.start()
    try:
        service.start()
        while not stop.wait(timeout=86400):
            pass
    finally:
        service.stop()
        health.stop()
    return 0


def number(option: str, text: str, least: float, most: float) -> float:
    """A number within bounds; UsageError for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = most + 1
    if not least <= value <= most:
        raise UsageError(f"{option} is {text!r}", remedy=f"give a number from {least:g} to {most:g}")
    return value

"""``dra-driver kubelet-plugin``: the node agent. Every option is also an environment variable, as in the manifests."""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dra_driver.cli.errors import UsageError

if TYPE_CHECKING:
    from dra_driver.kube.transport import Transport
    from dra_driver.settings import Settings

OPTIONS: tuple[tuple[str, str, str | None, str], ...] = (
    # option, environment variable, default, help
    ("--node-name", "NODE_NAME", None, "name of this node's Node object (required)"),
    ("--pod-uid", "POD_UID", None, "UID of this pod: gives each instance sockets of its own during a rolling update"),
    ("--host-root", "HOST_ROOT", "/", "where the host's /sys, /proc, /dev and /opt are found"),
    ("--cdi-root", "CDI_ROOT", "/var/run/cdi", "directory of the CDI specs"),
    (
        "--registrar-dir",
        "KUBELET_REGISTRAR_DIRECTORY_PATH",
        "/var/lib/kubelet/plugins_registry",
        "kubelet's plugin registry",
    ),
    (
        "--plugins-dir",
        "KUBELET_PLUGINS_DIRECTORY_PATH",
        "/var/lib/kubelet/plugins",
        "kubelet's plugin data directory; state is kept in neuron.aws.com/ below it",
    ),
    ("--healthcheck-port", "HEALTHCHECK_PORT", "51515", "gRPC health service `liveness`; a negative port disables it"),
    ("--healthcheck-address", "HEALTHCHECK_ADDRESS", "0.0.0.0", "address of the health service"),  # noqa: S104 - kubelet probes the pod's address
    ("--metrics-port", "METRICS_PORT", "-1", "Prometheus metrics over HTTP; negative: off"),
    ("--metrics-address", "METRICS_ADDRESS", "127.0.0.1", "address of the metrics"),
    ("--emulate", "NEURON_DRA_DRIVER_EMULATION_MODE", "", "run on emulated hardware of this type, e.g. trn2.48xlarge"),
    ("--emulated-driver-version", "EMULATED_DRIVER_VERSION", "", "kernel driver version of the emulated host"),
    (
        "--emulated-ultraservers",
        "EMULATED_ULTRASERVERS",
        "",
        "emulated nodes make up UltraServers, such as 2x4; the number that ends a node's name tells which it is",
    ),
    ("--emulation-root", "EMULATION_ROOT", "", "where the emulated host is written (default: a temporary directory)"),
    ("--kubeconfig", "KUBECONFIG", "", "how to reach the API server (default: the pod's service account)"),
    ("--log-format", "LOG_FORMAT", "text", "text or json"),
    (
        "--device-numbering",
        "DEVICE_NUMBERING",
        "renumber",
        "renumber: containers count from /dev/neuron0; host: host ids",
    ),
    ("--contiguity", "CONTIGUITY_POLICY", "warn", "refuse, warn or allow claims whose host ids are no contiguous run"),
    (
        "--ultraserver-layout",
        "ULTRASERVER_LAYOUT",
        "node",
        "what nodes of UltraServers offer; node: themselves as one device; chips: each chip; both (Kubernetes 1.37)",
    ),
    (
        "--shared-counters",
        "SHARED_COUNTERS",
        "auto",
        "which servers may get the layout both; auto: Kubernetes 1.37 and later; force: 1.36 too",
    ),
    ("--ultraserver-labels", "ULTRASERVER_LABELS", "on", "on or off: label nodes of UltraServers with mode and ids"),
    ("--rescan-seconds", "RESCAN_SECONDS", "10", "how often the host is read again"),
)

LEAST_RESCAN_SECONDS = 0.1
"""A scan takes 2 ms of CPU."""

CHOICES = {
    "log_format": ("text", "json"),
    "device_numbering": ("renumber", "host"),
    "contiguity": ("refuse", "warn", "allow"),
    "ultraserver_layout": ("node", "chips", "both"),
    "shared_counters": ("auto", "force"),
    "ultraserver_labels": ("on", "off"),
}


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "kubelet-plugin",
        help="run the node agent (what the DaemonSet starts)",
        description="Run the node agent: publish this node's Neuron devices and prepare claims for kubelet.",
        epilog="example: dra-driver kubelet-plugin --node-name node-1 --emulate trn2.48xlarge --kubeconfig admin.conf",
    )
    for option, variable, default, text in OPTIONS:
        suffix = f" [${variable}]" if default in (None, "") else f" (default: {default}) [${variable}]"
        parser.add_argument(option, help=text + suffix)
    parser.add_argument("-v", "--v", type=int, default=0, metavar="LEVEL", help="klog-like verbosity; 4 is debug")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT (status 0), or until something fatal happens (status 1)."""
    from dra_driver.cli.logs import configure

    values = effective(vars(args), os.environ)
    configure(values["log_format"], args.v)
    if not values["emulate"] or values["emulation_root"]:
        return _run_agent(settings(values), transport(values["kubeconfig"]))
    # Only here: a driver of real hardware must start where nothing can be written, and on a full disk.
    with tempfile.TemporaryDirectory(prefix="neuron-emulation-") as scratch:
        values["emulation_root"] = str(Path(scratch) / "host")
        return _run_agent(settings(values), transport(values["kubeconfig"]))


def effective(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Options by name: command line over environment over default; UsageError names what cannot be used."""
    values: dict[str, Any] = {}
    for option, variable, default, _ in OPTIONS:
        name = option.removeprefix("--").replace("-", "_")
        value = given.get(name)
        if value is None:
            value = environment.get(variable) or default
        values[name] = value
        if name in CHOICES and value not in CHOICES[name]:
            legal = ", ".join(CHOICES[name])
            raise UsageError(f"{option} (${variable}) is {value!r}", remedy=f"use one of: {legal}")
    if values["emulated_ultraservers"] and not values["emulate"]:
        raise UsageError(
            "--emulated-ultraservers ($EMULATED_ULTRASERVERS) is given without --emulate",
            remedy="name the type of the emulated nodes too, such as --emulate trn2u.48xlarge",
        )
    if not values["node_name"]:
        raise UsageError(
            "no node name is given",
            remedy="set NODE_NAME from the pod's spec.nodeName, or use --node-name",
        )
    for name in ("healthcheck_port", "metrics_port"):
        values[name] = _number(name, values[name], int, 65535)
    values["rescan_seconds"] = _number("rescan_seconds", values["rescan_seconds"], float, 3600)
    if values["rescan_seconds"] < LEAST_RESCAN_SECONDS:
        raise UsageError(f"--rescan-seconds must be at least {LEAST_RESCAN_SECONDS}", remedy="the default is 10")
    return values


def _number(name: str, text: str, kind: type[int | float], most: int) -> int | float:
    try:
        number = kind(text)
    except ValueError:
        number = most + 1
    if not number <= most:
        raise UsageError(f"--{name.replace('_', '-')} is {text!r}", remedy=f"give a number of at most {most}")
    return number


def settings(values: Mapping[str, Any]) -> Settings:
    """The agent's settings; writes the emulated host when one is asked for."""
    from dra_driver.settings import Settings

    host_root = Path(values["host_root"])
    if values["emulate"]:
        root = Path(values["emulation_root"])
        host_root = emulate(
            values["emulate"],
            values["emulated_driver_version"] or None,
            root,
            servers=values["emulated_ultraservers"],
            node_name=values["node_name"],
        )
    return Settings(
        node_name=values["node_name"],
        pod_uid=values["pod_uid"] or None,
        host_root=host_root,
        cdi_root=Path(values["cdi_root"]),
        registrar_dir=Path(values["registrar_dir"]),
        plugins_dir=Path(values["plugins_dir"]),
        health_port=values["healthcheck_port"],
        health_address=values["healthcheck_address"],
        metrics_port=values["metrics_port"],
        metrics_address=values["metrics_address"],
        device_numbering=values["device_numbering"],
        contiguity=values["contiguity"],
        ultraserver_layout=values["ultraserver_layout"],
        shared_counters=values["shared_counters"],
        ultraserver_labels=values["ultraserver_labels"],
        rescan_seconds=values["rescan_seconds"],
    )


def emulate(name: str, driver_version: str | None, root: Path, *, servers: str = "", node_name: str = "") -> Path:
    """Write the host tree of instance type ``name`` at ``root`` and return that.

    ``servers`` (such as ``2x4``, or "") are the UltraServers that the emulated nodes make up together.
    """
    from dra_driver.errors import DriverError
    from dra_driver.host.emulated_servers import Servers, node_number
    from dra_driver.host.emulator import EmulationOptions, write_host
    from dra_driver.topology.instance_types import resolve_emulation

    try:
        kind, options = resolve_emulation(name), EmulationOptions(driver_version=driver_version)
        if servers:
            options = Servers.parse(servers).options(kind, node_number(node_name), options)
        write_host(root, kind, options)
    except DriverError as error:
        raise UsageError(str(error)) from error
    return root


def transport(kubeconfig: str) -> Transport:
    """Access to the API server as configured."""
    from dra_driver.kube.transport import Transport

    return Transport.from_kubeconfig(kubeconfig) if kubeconfig else Transport.in_cluster()


def _run_agent(settings: Settings, transport: Transport) -> int:
    from dra_driver.driver import NodeAgent

    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        del number
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    agent = NodeAgent(settings, transport, on_fatal=stop.set)
    try:
        agent.start()
        # A plain wait() would keep Python from running the signal handler on some platforms; a day is as good as ever.
        while not stop.wait(timeout=86400):
            pass
    finally:
        # Also after half a start: a socket without a process behind it would keep kubelet busy.
        agent.stop()
    return 1 if agent.fatal else 0

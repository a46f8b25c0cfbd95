"""``dra-driver kubelet-plugin``: the node agent. Every option is also an environment variable, as in the manifests."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_driver.cli import daemon, vocabulary
from dra_driver.util.errors import UsageError

if TYPE_CHECKING:
    from dra_driver.driver.settings import DriverSettings

OPTIONS: tuple[daemon.Option, ...] = (
    daemon.NODE_NAME,
    daemon.Option(
        "--pod-uid", "POD_UID", None, "UID of this pod; gives each instance its own sockets during a rolling update"
    ),
    daemon.HOST_ROOT,
    daemon.Option("--cdi-root", "CDI_ROOT", "/var/run/cdi", "directory of the CDI specs"),
    daemon.Option(
        "--registrar-dir",
        "KUBELET_REGISTRAR_DIRECTORY_PATH",
        "/var/lib/kubelet/plugins_registry",
        "kubelet's plugin registry",
    ),
    daemon.Option(
        "--plugins-dir",
        "KUBELET_PLUGINS_DIRECTORY_PATH",
        "/var/lib/kubelet/plugins",
        "kubelet's plugin data directory; the driver keeps its state in neuron.aws.com/ below it",
    ),
    *daemon.PROBED_BY_KUBELET,
    *daemon.METRICS,
    daemon.EMULATE,
    daemon.EMULATED_VERSION,
    daemon.Option(
        "--emulated-ultraservers",
        "EMULATED_ULTRASERVERS",
        "",
        "group emulated nodes into UltraServers, such as 2x4, by the number at the end of a node's name",
    ),
    *daemon.EMULATED_HOST,
    daemon.KUBECONFIG,
    daemon.LOG_FORMAT,
    daemon.Option(
        "--device-numbering",
        "DEVICE_NUMBERING",
        "renumber",
        "renumber: devices in containers start at /dev/neuron0; host: host numbers",
        choices=("renumber", "host"),
    ),
    daemon.Option(
        "--contiguity",
        "CONTIGUITY_POLICY",
        "warn",
        "refuse, warn about or allow claims whose host numbers are not contiguous",
        choices=("refuse", "warn", "allow"),
    ),
    daemon.Option(
        "--partitions",
        "PARTITIONS",
        "",
        "what nodes offer: some of chip, core, group, group4, node, joined by dots; the label of a Node overrides it",
    ),
    daemon.Option(
        "--shared-counters",
        "SHARED_COUNTERS",
        "auto",
        "API servers for which overlapping devices are published; auto: Kubernetes 1.37 and later; force: 1.36 too",
        choices=("auto", "force"),
    ),
    daemon.Option(
        "--ultraserver-labels",
        "ULTRASERVER_LABELS",
        "on",
        "on or off: whether to label nodes of UltraServers with mode and ids",
        choices=daemon.SWITCH,
    ),
    daemon.Option(
        "--present-label",
        "PRESENT_LABEL",
        "on",
        "on or off: whether to label the node neuron.amazonaws.com/present=true, for AWS's monitoring",
        choices=daemon.SWITCH,
    ),
    daemon.Option(
        "--device-metadata",
        "DEVICE_METADATA",
        "off",
        "on or off: whether containers see files with the attributes of their devices (KEP-5304)",
        choices=daemon.SWITCH,
    ),
    daemon.Option(
        "--claim-status",
        "CLAIM_STATUS",
        "on",
        "on or off: whether to write devices and their health to the status of claims",
        choices=daemon.SWITCH,
    ),
    daemon.RESCAN,
    daemon.Option(
        "--health-policy",
        "HEALTH_POLICY",
        "",
        "health policy: what faults of chips mean for the scheduler, YAML or JSON (default: an empty table)",
    ),
    daemon.HEALTH_HINTS,
)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = vocabulary.add_command(
        subparsers,
        "kubelet-plugin",
        about="Run the node agent, which publishes this node's Neuron devices and prepares claims for kubelet.",
        examples=["kubelet-plugin --node-name node-1 --emulate trn2.48xlarge --kubeconfig admin.conf"],
        done="stopped by SIGTERM or SIGINT",
        refused="it cannot start or continue; the log says why",
    )
    daemon.add_options(parser, OPTIONS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT (status 0), or until a fatal error (status 1)."""
    from dra_driver.util.logs import configure

    values = effective(vars(args), os.environ)
    configure(values["log_format"], args.v)
    with daemon.emulation(values):
        return _run(values)


def effective(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Options by name: command line over environment over default; raises UsageError for an invalid value."""
    values = daemon.read_options(OPTIONS, given, environment)
    if values["emulated_ultraservers"] and not values["emulate"]:
        raise UsageError(
            "--emulated-ultraservers ($EMULATED_ULTRASERVERS) is given without --emulate",
            remedy="also give the type of the emulated nodes, such as --emulate trn2u.48xlarge",
        )
    daemon.check_node_options(values)
    values["partitions"] = vocabulary.partitions(values["partitions"], "--partitions ($PARTITIONS)")
    return values


def settings(values: Mapping[str, Any]) -> DriverSettings:
    """The agent's settings."""
    from dra_driver.driver.settings import DriverSettings
    from dra_driver.neuron.health.policy import HealthPolicy

    return DriverSettings(
        node_name=values["node_name"],
        pod_uid=values["pod_uid"] or None,
        host_root=Path(values["emulation_root"] if values["emulate"] else values["host_root"]),
        cdi_root=Path(values["cdi_root"]),
        registrar_dir=Path(values["registrar_dir"]),
        plugins_dir=Path(values["plugins_dir"]),
        health_port=values["healthcheck_port"],
        health_address=values["healthcheck_address"],
        node_address=values["node_address"],
        metrics_port=values["metrics_port"],
        metrics_address=values["metrics_address"],
        device_numbering=values["device_numbering"],
        contiguity=values["contiguity"],
        partitions=values["partitions"],
        shared_counters=values["shared_counters"],
        ultraserver_labels=values["ultraserver_labels"],
        present_label=values["present_label"],
        device_metadata=values["device_metadata"],
        claim_status=values["claim_status"],
        rescan_seconds=values["rescan_seconds"],
        health_policy=HealthPolicy.load(Path(values["health_policy"]))
        if values["health_policy"]
        else HealthPolicy.default(),
        health_hints_dir=Path(values["health_hints_dir"]) if values["health_hints_dir"] else None,
    )


def _run(values: Mapping[str, Any]) -> int:
    from dra_driver.driver.agent import NodeAgent

    with daemon.stopped_by_signals() as stop:
        transport = daemon.transport(values["kubeconfig"], f"node {values['node_name']}")
        agent = NodeAgent(settings(values), transport, on_fatal=stop.set)
        daemon.run_until(stop, agent, agent.liveness)
    return 1 if agent.fatal else 0

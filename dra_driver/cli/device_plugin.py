"""``dra-driver device-plugin``: the node component for clusters without DRA; the other part is the extender."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_driver.cli import daemon, vocabulary
from dra_driver.util.errors import UsageError

if TYPE_CHECKING:
    from dra_driver.legacy.device_plugin.agent import DevicePluginSettings

OPTIONS: tuple[daemon.Option, ...] = (
    daemon.NODE_NAME,
    daemon.HOST_ROOT,
    daemon.Option(
        "--kubelet-directory",
        "KUBELET_DIRECTORY",
        "/var/lib/kubelet",
        "kubelet's directory; device-plugins/ and pod-resources/ below it are used",
    ),
    daemon.Option(
        "--cdi-root", "CDI_ROOT", "/var/run/cdi", "directory of the CDI specs; used with --device-injection cdi"
    ),
    daemon.Option(
        "--device-injection",
        "DEVICE_INJECTION",
        "nodes",
        "nodes: give kubelet paths of device nodes; cdi: names of CDI devices (requires a runtime with CDI)",
        choices=("nodes", "cdi"),
    ),
    daemon.Option(
        "--device-numbering",
        "DEVICE_NUMBERING",
        "host",
        "host: host numbers; renumber: devices in containers start at /dev/neuron0",
        choices=("host", "renumber"),
    ),
    daemon.Option(
        "--visible-cores-variable",
        "VISIBLE_CORES_VARIABLE",
        "NEURON_RT_VISIBLE_CORES",
        "NEURON_RT_VISIBLE_CORES, or AWS_NEURON_VISIBLE_DEVICES to name the chips to the OCI hook as well",
        choices=("NEURON_RT_VISIBLE_CORES", "AWS_NEURON_VISIBLE_DEVICES"),
    ),
    *daemon.PROBED_BY_KUBELET,
    *daemon.METRICS,
    daemon.EMULATE,
    daemon.EMULATED_VERSION,
    *daemon.EMULATED_HOST,
    daemon.KUBECONFIG,
    daemon.LOG_FORMAT,
    daemon.RESCAN,
    daemon.Option(
        "--state-dir",
        "STATE_DIR",
        "/var/lib/neuron-device-plugin",
        "directory for the plugin's record of the chips' health",
    ),
    daemon.HEALTH_HINTS,
)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = vocabulary.add_command(
        subparsers,
        "device-plugin",
        about="Offer this node's chips and cores to kubelet as extended resources, and give containers the devices "
        "that the scheduler extender has chosen. Without an extender, a container can request one or all.",
        examples=["device-plugin --node-name node-1 --emulate trn1.32xlarge --kubeconfig admin.conf"],
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
    if values["device_numbering"] == "renumber" and values["visible_cores_variable"] == "AWS_NEURON_VISIBLE_DEVICES":
        raise UsageError(
            "--device-numbering renumber and --visible-cores-variable AWS_NEURON_VISIBLE_DEVICES exclude each other",
            remedy="the OCI hook uses the host's numbers; use --device-numbering host",
        )
    daemon.check_node_options(values)
    return values


def settings(values: Mapping[str, Any]) -> DevicePluginSettings:
    """The plugin's settings."""
    from dra_driver.legacy.device_plugin.agent import DevicePluginSettings
    from dra_driver.legacy.device_plugin.devices import AnswerSettings

    host_root, nodes = Path(values["host_root"]), "/dev"
    if values["emulate"]:
        host_root = Path(values["emulation_root"])
        nodes = str(host_root.absolute() / "dev")
    return DevicePluginSettings(
        node_name=values["node_name"],
        host_root=host_root,
        kubelet_directory=Path(values["kubelet_directory"]),
        cdi_root=Path(values["cdi_root"]),
        health_port=values["healthcheck_port"],
        health_address=values["healthcheck_address"],
        node_address=values["node_address"],
        metrics_port=values["metrics_port"],
        metrics_address=values["metrics_address"],
        rescan_seconds=values["rescan_seconds"],
        state_dir=Path(values["state_dir"]),
        health_hints_dir=Path(values["health_hints_dir"]),
        answer=AnswerSettings(
            injection=values["device_injection"],
            numbering=values["device_numbering"],
            visible=values["visible_cores_variable"],
            node_directory=nodes,
        ),
    )


def _run(values: Mapping[str, Any]) -> int:
    from dra_driver.legacy.device_plugin.agent import DevicePluginAgent

    with daemon.stopped_by_signals() as stop:
        transport = daemon.transport(values["kubeconfig"], f"node {values['node_name']}")
        agent = DevicePluginAgent(settings(values), transport, on_fatal=stop.set)
        daemon.run_until(stop, agent, agent.liveness)
    return 1 if agent.fatal else 0

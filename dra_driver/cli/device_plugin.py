"""``dra-driver device-plugin``: the node component for clusters without DRA; the other part is the extender."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dra_driver.cli import daemon, vocabulary
from dra_driver.neuron.node_settings import NodeSettings
from dra_driver.util.errors import UsageError
from dra_driver.util.options import Metrics, Option, Probes

if TYPE_CHECKING:
    from dra_driver.legacy.device_plugin.agent import DevicePluginSettings


@dataclass(frozen=True, kw_only=True)
class Settings(Metrics, Probes, NodeSettings):
    """What an administrator sets for the device plugin."""

    kubelet_directory: Annotated[
        Path,
        Option(
            "--kubelet-directory",
            "KUBELET_DIRECTORY",
            "/var/lib/kubelet",
            "kubelet's directory; device-plugins/ and pod-resources/ below it are used",
            made_of="kubeletRoot",
        ),
    ]
    cdi_root: Annotated[
        Path,
        Option(
            "--cdi-root",
            "CDI_ROOT",
            "/var/run/cdi",
            "directory of the CDI specs; used with --device-injection cdi",
            made_of="cdiRoot",
        ),
    ]
    device_injection: Annotated[
        Literal["nodes", "cdi"],
        Option(
            "--device-injection",
            "DEVICE_INJECTION",
            "nodes",
            "nodes: give kubelet paths of device nodes; cdi: names of CDI devices (requires a runtime with CDI)",
            made_of=".deviceInjection",
        ),
    ]
    device_numbering: Annotated[
        Literal["host", "renumber"],
        Option(
            "--device-numbering",
            "DEVICE_NUMBERING",
            "host",
            "host: host numbers; renumber: devices in containers start at /dev/neuron0",
            chart="deviceNumbering",
        ),
    ]
    visible_cores_variable: Annotated[
        Literal["NEURON_RT_VISIBLE_CORES", "AWS_NEURON_VISIBLE_DEVICES"],
        Option(
            "--visible-cores-variable",
            "VISIBLE_CORES_VARIABLE",
            "NEURON_RT_VISIBLE_CORES",
            "NEURON_RT_VISIBLE_CORES, or AWS_NEURON_VISIBLE_DEVICES to name the chips to the OCI hook as well",
            chart="visibleCoresVariable",
        ),
    ]
    state_dir: Annotated[
        Path,
        Option(
            "--state-dir",
            "STATE_DIR",
            "/var/lib/neuron-device-plugin",
            "directory for the plugin's record of the chips' health",
        ),
    ]


TABLES = (Settings, daemon.Emulation, daemon.Program)


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
    daemon.add_options(parser, *TABLES)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT (status 0), or until a fatal error (status 1)."""
    from dra_driver.util.logs import configure

    settings, emulation = read_settings(vars(args), os.environ)
    program = daemon.read(daemon.Program, vars(args), os.environ)
    configure(program.log_format, args.v)
    with daemon.emulated(emulation, settings.node_name) as root:
        return _run(plugin_settings(settings, root), program)


def read_settings(given: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[Settings, daemon.Emulation]:
    """The settings, and the hardware where that is emulated; raises UsageError for an invalid value."""
    settings = daemon.read(Settings, given, environment)
    emulation = daemon.read(daemon.Emulation, given, environment)
    if settings.device_numbering == "renumber" and settings.visible_cores_variable == "AWS_NEURON_VISIBLE_DEVICES":
        raise UsageError(
            "--device-numbering renumber and --visible-cores-variable AWS_NEURON_VISIBLE_DEVICES exclude each other",
            remedy="the OCI hook uses the host's numbers; use --device-numbering host",
        )
    daemon.check_node(settings.node_name, emulation)
    return settings, emulation


def plugin_settings(settings: Settings, emulation_root: Path | None) -> DevicePluginSettings:
    """The plugin's settings, with the files of an emulated host where there is one."""
    from dra_driver.legacy.device_plugin.agent import DevicePluginSettings
    from dra_driver.legacy.device_plugin.devices import AnswerSettings

    return DevicePluginSettings(
        node_name=settings.node_name,
        host_root=emulation_root or settings.host_root,
        kubelet_directory=settings.kubelet_directory,
        cdi_root=settings.cdi_root,
        health_port=settings.health_port,
        health_address=settings.health_address,
        node_address=settings.node_address,
        metrics_port=settings.metrics_port,
        metrics_address=settings.metrics_address,
        rescan_seconds=settings.rescan_seconds,
        state_dir=settings.state_dir,
        health_hints_dir=settings.health_hints_dir,
        answer=AnswerSettings(
            injection=settings.device_injection,
            numbering=settings.device_numbering,
            visible=settings.visible_cores_variable,
            node_directory="/dev" if emulation_root is None else str(emulation_root.absolute() / "dev"),
        ),
    )


def _run(settings: DevicePluginSettings, program: daemon.Program) -> int:
    from dra_driver.legacy.device_plugin.agent import DevicePluginAgent

    with daemon.stopped_by_signals() as stop:
        transport = daemon.transport(program.kubeconfig, f"node {settings.node_name}")
        agent = DevicePluginAgent(settings, transport, on_fatal=stop.set)
        daemon.run_until(stop, agent, agent.liveness)
    return 1 if agent.fatal else 0

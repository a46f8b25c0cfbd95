"""``dra-driver device-plugin``: the node component for clusters without DRA; the other part is the extender."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from dra_driver.cli import daemon, vocabulary
from dra_driver.legacy.device_plugin.settings import DevicePluginSettings
from dra_driver.neuron.names import VISIBLE_DEVICES
from dra_driver.util.errors import UsageError

TABLES = (DevicePluginSettings, daemon.Emulation, daemon.Program)


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Offer this node's chips and cores to kubelet as extended resources, and give containers the devices "
        "that the scheduler extender has chosen. Without an extender, a container can request one or all.",
        examples=["device-plugin --node-name node-1 --emulate trn1.32xlarge --kubeconfig admin.conf"],
    )
    daemon.add_options(parser, *TABLES)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT (status 0), or until a fatal error (status 1)."""
    settings, emulation = read_settings(vars(args), os.environ)
    program = daemon.begin(daemon.Program, args)
    with daemon.emulated(emulation, settings.node_name) as root:
        return _run(settings if root is None else settings.on_host(root), program)


def read_settings(
    given: Mapping[str, Any], environment: Mapping[str, str]
) -> tuple[DevicePluginSettings, daemon.Emulation]:
    """The settings, and the hardware where that is emulated; raises UsageError for an invalid value."""
    settings = daemon.read(DevicePluginSettings, given, environment)
    emulation = daemon.read(daemon.Emulation, given, environment)
    if settings.device_numbering == "renumber" and settings.visible_cores_variable == VISIBLE_DEVICES:
        raise UsageError(
            f"--device-numbering renumber and --visible-cores-variable {VISIBLE_DEVICES} exclude each other",
            remedy="the OCI hook uses the host's numbers; use --device-numbering host",
        )
    daemon.check_node(settings.node_name, emulation)
    return settings, emulation


def _run(settings: DevicePluginSettings, program: daemon.Program) -> int:
    from dra_driver.legacy.device_plugin.agent import DevicePluginAgent

    with daemon.stopped_by_signals() as stop:
        transport = daemon.transport(program.kubeconfig, f"node {settings.node_name}")
        agent = DevicePluginAgent(settings, transport, on_fatal=stop.set)
        daemon.run_until(stop, agent, agent.liveness)
    return 1 if agent.fatal else 0

"""``dra-driver kubelet-plugin``: the node agent. Every option is also an environment variable, as in the manifests."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from dra_driver.cli import daemon, vocabulary
from dra_driver.driver.settings import DriverSettings
from dra_driver.util.errors import UsageError
from dra_driver.util.options import Option


@dataclass(frozen=True, kw_only=True)
class Emulation(daemon.Emulation):
    """The same with the other nodes of its UltraServer."""

    ultraservers: Annotated[
        str,
        Option(
            "--emulated-ultraservers",
            "group emulated nodes into UltraServers, such as 2x4, by the number at the end of a node's name",
            chart="emulatedUltraservers",
        ),
    ]


TABLES = (DriverSettings, Emulation, daemon.Program)


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Run the node agent, which publishes this node's Neuron devices and prepares claims for kubelet.",
        examples=["kubelet-plugin --node-name node-1 --emulate trn2.48xlarge --kubeconfig admin.conf"],
    )
    daemon.add_options(parser, *TABLES)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT (status 0), or until a fatal error (status 1)."""
    settings, emulation = read_settings(vars(args), os.environ)
    program = daemon.begin(daemon.Program, args)
    with daemon.emulated(emulation, settings.node_name, emulation.ultraservers) as root:
        return _run(settings if root is None else replace(settings, host_root=root), program)


def read_settings(given: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[DriverSettings, Emulation]:
    """The agent's settings, and its hardware where that is emulated; raises UsageError for an invalid value."""
    settings, emulation = (
        daemon.read(DriverSettings, given, environment),
        daemon.read(Emulation, given, environment),
    )
    if emulation.ultraservers and not emulation.instance_type:
        raise UsageError(
            "--emulated-ultraservers ($EMULATED_ULTRASERVERS) is given without --emulate",
            remedy="also give the type of the emulated nodes, such as --emulate trn2u.48xlarge",
        )
    daemon.check_node(settings.node_name, emulation)
    return settings, emulation


def _run(settings: DriverSettings, program: daemon.Program) -> int:
    from dra_driver.driver.agent import NodeAgent

    with daemon.stopped_by_signals() as stop:
        transport = daemon.transport(program.kubeconfig, f"node {settings.node_name}")
        agent = NodeAgent(settings, transport, on_fatal=stop.set)
        daemon.run_until(stop, agent, agent.liveness)
    return 1 if agent.fatal else 0

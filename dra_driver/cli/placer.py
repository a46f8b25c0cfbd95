"""``dra-driver placer``: assigns UltraServers to groups of pods, so that no two groups wait for each other's nodes."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Annotated

from dra_driver.cli import daemon, vocabulary
from dra_driver.util.options import Option, PortsIfAsked


@dataclass(frozen=True, kw_only=True)
class Settings(PortsIfAsked, daemon.Program):
    """What an administrator sets for the placer."""

    namespace: Annotated[
        str,
        Option(
            "--namespace",
            "namespace of the lease and of the placer's ConfigMap",
            "neuron-dra-driver",
            variable="POD_NAMESPACE",
        ),
    ]
    identity: Annotated[str, daemon.identity("PLACER_IDENTITY")]
    group_timeout: Annotated[
        float,
        Option(
            "--group-timeout",
            "seconds after which a group that lacks nodes is recreated elsewhere; 20 if the scheduler finds no node",
            "300",
            bounds=(1.0, 86400.0),
            made_of=".groupTimeoutSeconds",
        ),
    ]
    ultraserver_operator: Annotated[
        bool,
        Option(
            "--ultraserver-operator",
            "on or off: also serve NeuronUltraServerWorkload objects",
            "off",
            made_of="ultraserverOperator.enabled",
        ),
    ]
    max_servers_per_namespace: Annotated[
        int | None,
        Option(
            "--max-servers-per-namespace",
            "UltraServers, whole or in part, that workloads of one namespace may have (default: any number)",
            bounds=(1, 5000),
            made_of="ultraserverOperator.maxServersPerNamespace",
        ),
    ]


TABLES = (Settings,)


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Assign each group of pods with the scheduling gate neuron.aws.com/ultraserver a free UltraServer, or "
        "half of one. With several replicas, one is active, and the others wait for its lease to expire.",
        examples=["placer --kubeconfig admin.conf --namespace neuron-dra-driver --group-timeout 120"],
    )
    daemon.add_options(parser, *TABLES)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT."""
    from dra_driver.ultraserver.placer.controller import PlacerService
    from dra_driver.ultraserver.placer.values import Rules
    from dra_driver.util.metrics import Collector

    settings = daemon.begin(Settings, args)
    rules = Rules(
        timeout=settings.group_timeout,
        avoid=settings.group_timeout,
        most_of_namespace=settings.max_servers_per_namespace,
    )
    service = PlacerService(
        daemon.transport(settings.kubeconfig),
        settings.namespace,
        settings.identity,
        rules,
        operator=settings.ultraserver_operator,
    )
    checks = {"liveness": service.stuck, "readiness": service.problems}
    with daemon.stopped_by_signals() as stop, daemon.open_ports(settings, checks, Collector(None, service.samples)):
        daemon.run_until(stop, service, service.stuck)
    return 0

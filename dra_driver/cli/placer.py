"""``dra-driver placer``: assigns UltraServers to groups of pods, so that no two groups wait for each other's nodes."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Annotated

from dra_driver.cli import daemon, vocabulary
from dra_driver.util.options import ControllerProbes, Metrics, Option


@dataclass(frozen=True, kw_only=True)
class Settings(Metrics, ControllerProbes, daemon.Program):
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


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = vocabulary.add_command(
        subparsers,
        "placer",
        about="Assign each group of pods with the scheduling gate neuron.aws.com/ultraserver a free UltraServer, or "
        "half of one. With several replicas, one is active, and the others wait for its lease to expire.",
        examples=["placer --kubeconfig admin.conf --namespace neuron-dra-driver --group-timeout 120"],
    )
    daemon.add_options(parser, *TABLES)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT."""
    from dra_driver.kube.kubelet.health import HealthServer
    from dra_driver.ultraserver.placer.controller import PlacerService
    from dra_driver.ultraserver.placer.values import Rules
    from dra_driver.util.door import Door, own_addresses
    from dra_driver.util.logs import configure
    from dra_driver.util.metrics import Collector, serve

    settings = daemon.read(Settings, vars(args), os.environ)
    configure(settings.log_format, args.v)
    identity = settings.identity or daemon.new_identity()
    rules = Rules(
        timeout=settings.group_timeout,
        avoid=settings.group_timeout,
        most_of_namespace=settings.max_servers_per_namespace,
    )
    service = PlacerService(
        daemon.transport(settings.kubeconfig),
        settings.namespace,
        identity,
        rules,
        operator=settings.ultraserver_operator,
    )
    checks = {"liveness": service.stuck, "readiness": service.problems}
    door = Door(own_addresses(settings.node_address))
    health = HealthServer(settings.health_port, settings.health_address, checks, door=door)
    with daemon.stopped_by_signals() as stop:
        try:
            if settings.metrics_port >= 0:
                serve(door, Collector(None, service.samples), settings.metrics_address, settings.metrics_port)
            health.start()
            daemon.run_until(stop, service, service.stuck)
        finally:
            door.stop()
    return 0

"""``dra-driver extender``: chooses devices for kube-scheduler, in clusters without Dynamic Resource Allocation."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_driver.cli import daemon, vocabulary
from dra_driver.util.errors import UsageError

if TYPE_CHECKING:
    from dra_driver.legacy.extender.server import Tls
    from dra_driver.legacy.extender.service import ExtenderService, ExtenderSettings

OPTIONS: tuple[daemon.Option, ...] = (
    daemon.Option(
        "--port",
        "PORT",
        "12345",
        "port for the scheduler (/filter, /prioritize, /preempt, /bind) and for probes (/livez, /readyz)",
        bounds=(0, 65535),
    ),
    daemon.Option("--bind-address", "BIND_ADDRESS", "0.0.0.0", "address of that port"),  # noqa: S104 - the scheduler is another pod
    daemon.Option("--tls-cert", "TLS_CERT", "", "PEM certificate, the same for all replicas; enables HTTPS"),
    daemon.Option("--tls-key", "TLS_KEY", "", "PEM key of the certificate"),
    daemon.Option(
        "--tls-client-ca", "TLS_CLIENT_CA", "", "PEM CA; only clients with a certificate signed by it are accepted"
    ),
    daemon.NODE_ADDRESS,
    *daemon.METRICS,
    daemon.KUBECONFIG,
    daemon.Option("--namespace", "POD_NAMESPACE", "kube-system", "namespace of the lease neuron-scheduler-extender"),
    daemon.identity("EXTENDER_IDENTITY"),
    daemon.Option(
        "--advertise-address",
        "POD_IP",
        "",
        "address of this replica, to which the others forward requests when it leads",
    ),
    daemon.LOG_FORMAT,
)


NOTES = """\
Add this to the configuration of kube-scheduler (KubeSchedulerConfiguration v1):
  extenders:
  - urlPrefix: http://127.0.0.1:12345
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt
    bindVerb: bind
    weight: 1
    nodeCacheCapable: true
    managedResources:
    - {name: aws.amazon.com/neuron, ignoredByScheduler: false}
    - {name: aws.amazon.com/neuroncore, ignoredByScheduler: false}
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = vocabulary.add_command(
        subparsers,
        "extender",
        about="Run a scheduler extender for pods with limits of aws.amazon.com/neuron or aws.amazon.com/neuroncore. It "
        "reports to kube-scheduler which nodes have connected devices free, and binds the pod with the annotations "
        "that the device plugin reads. With several replicas, one leads, and the others forward requests to it.",
        notes=NOTES,
        examples=["extender --kubeconfig admin.conf --bind-address 127.0.0.1 --no-leader-elect"],
        done="stopped by SIGTERM or SIGINT",
        refused="it cannot start or continue; the log says why",
    )
    daemon.add_options(parser, OPTIONS)
    parser.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait for the lease before answering requests (default); without leader election, run only one process",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT."""
    from dra_driver.legacy.extender.service import ExtenderService
    from dra_driver.util.logs import configure

    values = effective(vars(args), os.environ)
    configure(values["log_format"], args.v)
    found = settings(values)

    def make() -> ExtenderService:
        return ExtenderService(daemon.transport(values["kubeconfig"]), found)

    with daemon.stacks_on_signal():
        asyncio.run(_serve(make, values["metrics_port"], values["metrics_address"]))
    return 0


def effective(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Options by name: command line over environment over default; raises UsageError for an invalid value."""
    return daemon.read_options(OPTIONS, given, environment) | {"leader_elect": given["leader_elect"]}


def settings(values: Mapping[str, Any]) -> ExtenderSettings:
    """The extender's settings; raises UsageError for inconsistent files."""
    from dra_driver.legacy.extender.service import ExtenderSettings

    return ExtenderSettings(
        address=values["bind_address"],
        port=values["port"],
        tls=_tls(values["tls_cert"], values["tls_key"], values["tls_client_ca"]),
        namespace=values["namespace"],
        identity=values["identity"] or f"{socket.gethostname()}_{secrets.token_hex(4)}",
        advertise=values["advertise_address"],
        leader_elect=values["leader_elect"],
        node_address=values["node_address"],
    )


def _tls(certificate: str, key: str, client_ca: str) -> Tls | None:
    from dra_driver.legacy.extender.server import Tls

    if bool(certificate) != bool(key):
        raise UsageError("only one of --tls-cert and --tls-key is given", remedy="give both, or neither for plain HTTP")
    if client_ca and not certificate:
        raise UsageError("--tls-client-ca is given without --tls-cert", remedy="give --tls-cert and --tls-key too")
    return Tls(Path(certificate), Path(key), Path(client_ca) if client_ca else None) if certificate else None


async def _serve(make: Callable[[], ExtenderService], metrics_port: int, metrics_address: str) -> None:
    from dra_driver.util.door import Door
    from dra_driver.util.metrics import Collector, serve
    from dra_driver.util.watchdog import LOOK_SECONDS, Watchdog

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number_ in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number_, stopping.set)
    service = make()
    text = "Time to answer one request of the scheduler."
    collector = Collector(service.operations, service.samples, "extender_request_seconds", text)
    door = Door()
    daemon.return_freed_memory()
    watchdog = Watchdog(service.stuck)
    watchdog.start()
    try:
        if metrics_port >= 0:
            serve(door, collector, metrics_address, metrics_port)
        await service.start()
        while not stopping.is_set():
            watchdog.look()
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), LOOK_SECONDS)
    finally:
        await service.stop()
        door.stop()
        watchdog.stop()

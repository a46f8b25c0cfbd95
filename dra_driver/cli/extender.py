"""``dra-driver extender``: chooses devices for kube-scheduler, in clusters without Dynamic Resource Allocation."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dra_driver.cli import daemon, vocabulary
from dra_driver.util.errors import UsageError
from dra_driver.util.options import NODE_ADDRESS, Metrics, Option

if TYPE_CHECKING:
    from dra_driver.legacy.extender.server import Tls
    from dra_driver.legacy.extender.service import ExtenderService, ExtenderSettings


@dataclass(frozen=True, kw_only=True)
class Settings(Metrics, daemon.Program):
    """What an administrator sets for the extender."""

    port: Annotated[
        int,
        Option(
            "--port",
            "port for the scheduler (/filter, /prioritize, /preempt, /bind) and for probes (/livez, /readyz)",
            "12345",
            bounds=(0, 65535),
        ),
    ]
    bind_address: Annotated[
        str,
        Option("--bind-address", "address of that port", "0.0.0.0"),  # noqa: S104 - the scheduler is another pod
    ]
    tls_cert: Annotated[Path | None, Option("--tls-cert", "PEM certificate, the same for all replicas; enables HTTPS")]
    tls_key: Annotated[Path | None, Option("--tls-key", "PEM key of the certificate")]
    tls_client_ca: Annotated[
        Path | None, Option("--tls-client-ca", "PEM CA; only clients with a certificate signed by it are accepted")
    ]
    node_address: Annotated[str, NODE_ADDRESS]
    namespace: Annotated[
        str,
        Option(
            "--namespace", "namespace of the lease neuron-scheduler-extender", "kube-system", variable="POD_NAMESPACE"
        ),
    ]
    identity: Annotated[str, daemon.identity("EXTENDER_IDENTITY")]
    advertise_address: Annotated[
        str,
        Option(
            "--advertise-address",
            "address of this replica, to which the others forward requests when it leads",
            variable="POD_IP",
        ),
    ]


TABLES = (Settings,)


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


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Run a scheduler extender for pods with limits of aws.amazon.com/neuron or aws.amazon.com/neuroncore. It "
        "reports to kube-scheduler which nodes have connected devices free, and binds the pod with the annotations "
        "that the device plugin reads. With several replicas, one leads, and the others forward requests to it.",
        notes=NOTES,
        examples=["extender --kubeconfig admin.conf --bind-address 127.0.0.1 --no-leader-elect"],
    )
    daemon.add_options(parser, *TABLES)
    parser.add_argument(
        "--leader-elect",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait for the lease before answering requests (default); without leader election, run only one process",
    )


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT."""
    from dra_driver.legacy.extender.service import ExtenderService

    settings = daemon.begin(Settings, args)
    of_service = extender_settings(settings, leader_elect=args.leader_elect)

    def make() -> ExtenderService:
        return ExtenderService(daemon.transport(settings.kubeconfig), of_service)

    with daemon.stacks_on_signal():
        asyncio.run(_serve(make, settings.metrics_port, settings.metrics_address))
    return 0


def extender_settings(settings: Settings, *, leader_elect: bool) -> ExtenderSettings:
    """The extender's settings; raises UsageError for inconsistent files."""
    from dra_driver.legacy.extender.service import ExtenderSettings

    return ExtenderSettings(
        address=settings.bind_address,
        port=settings.port,
        tls=_tls(settings.tls_cert, settings.tls_key, settings.tls_client_ca),
        namespace=settings.namespace,
        identity=settings.identity,
        advertise=settings.advertise_address,
        leader_elect=leader_elect,
        node_address=settings.node_address,
    )


def _tls(certificate: Path | None, key: Path | None, client_ca: Path | None) -> Tls | None:
    from dra_driver.legacy.extender.server import Tls

    if certificate is not None and key is not None:
        return Tls(certificate, key, client_ca)
    if certificate is not None or key is not None:
        raise UsageError("only one of --tls-cert and --tls-key is given", remedy="give both, or neither for plain HTTP")
    if client_ca is not None:
        raise UsageError("--tls-client-ca is given without --tls-cert", remedy="give --tls-cert and --tls-key too")
    return None


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

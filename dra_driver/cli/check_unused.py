"""``dra-driver check-unused``: whether the driver may go, asked by the chart before ``helm uninstall``.

It also ends the drivers (``--end``): helm removes a DaemonSet and its rights at once, and a driver without rights could
not say on its Node that nobody watches the chips any more: "Neuron has no error" would stay there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from dra_driver.cli import daemon, vocabulary
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util import runtime
from dra_driver.util.text import first_of, lines_to_print

if TYPE_CHECKING:
    from dra_driver.kube.api.client import Transport
    from dra_driver.kube.objects.resource import AllocatedClaim

MAX_LISTED = 10
"""Claims and workloads that are named, and pods of a claim."""
END_SECONDS: Final = 60.0
"""For the drivers to end in; the rest of an uninstallation does not wait for a node that is down."""


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Check that no pod uses devices of this driver. Without the driver, such pods stay Terminating, because "
        "kubelet cannot unprepare their claims.",
        examples=["check-unused --kubeconfig admin.conf"],
        done="no pod uses them",
        refused="pods use them, or workloads exist; claims and workloads are printed",
    )
    parser.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="kubeconfig file (default: the pod's service account)"
    )
    parser.add_argument(
        "--end",
        default="",
        metavar="NAMESPACE/DAEMONSET",
        help="if no pod uses them, delete this DaemonSet, and wait up to a minute until its pods have ended, which "
        "still say on their nodes that they stop",
    )
    parser.add_argument(
        "--ultraserver-workloads",
        action="store_true",
        help="check that there is no NeuronUltraServerWorkload either: without the operator, one that has UltraServers "
        "cannot be deleted",
    )


def run(args: argparse.Namespace) -> int:
    """Print claims in use and workloads; raises ApiError if they cannot be read."""
    from dra_driver.kube.api.codec import ALLOCATED_CLAIMS
    from dra_driver.kube.api.resources import Collection

    transport = daemon.transport(args.kubeconfig)
    uses, _ = Collection(transport, ALLOCATED_CLAIMS).select(_use)
    workloads = _workloads(transport) if args.ultraserver_workloads else []
    if uses:
        _list("These claims are in use:", uses)
        print("Without the driver, their pods cannot end. Delete them first; helm uninstall --no-hooks does not check.")
    if workloads:
        _list("These NeuronUltraServerWorkloads exist:", workloads)
        print(
            "Without the operator, those that have UltraServers cannot be deleted. Delete them first: kubectl delete "
            "neuronultraserverworkloads --all --all-namespaces; helm uninstall --no-hooks does not check."
        )
    if uses or workloads:
        return 1
    print("No pod uses devices of this driver.")
    if args.end:
        _end(transport, args.end)
    return 0


def _list(title: str, texts: Iterable[str]) -> None:
    lines = sorted(texts)
    more = [f"  and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else []
    print(lines_to_print("\n".join([title, *(f"  {text}" for text in lines[:MAX_LISTED]), *more])))


def _workloads(transport: Transport) -> list[str]:
    """All, by ``namespace/name``; none where their kind is not installed."""
    from dra_driver.kube.api.errors import ApiError
    from dra_driver.kube.api.resources import Collection
    from dra_driver.neuron.ultraserver_objects import ULTRASERVER_WORKLOADS

    try:
        return Collection(transport, ULTRASERVER_WORKLOADS).select(lambda item: item.metadata.full_name)[0]
    except ApiError as error:
        if error.status == 404:
            return []
        raise


def _end(transport: Transport, daemonset: str) -> None:
    """Delete a DaemonSet, its pods first; returns when it is gone, or the time is up. ApiError if it cannot."""
    from dra_driver.kube.api.codec import DAEMON_SETS
    from dra_driver.kube.api.errors import ApiError
    from dra_driver.kube.api.resources import Collection

    namespace, _, name = daemonset.partition("/")
    collection, deadline = Collection(transport, DAEMON_SETS), runtime.monotonic() + END_SECONDS
    try:
        uid = collection.get(namespace, name).metadata.uid
        collection.delete(namespace, name, uid, foreground=True)
        while collection.get(namespace, name).metadata.uid == uid:
            if runtime.monotonic() >= deadline:
                print(f"Some pods of {daemonset} have not ended after {END_SECONDS:.0f} s; the rest goes on.")
                return
            runtime.sleep(1.0)
    except ApiError as error:
        if not error.object_missing:
            raise
    print(f"The pods of {daemonset} have ended.")


def _use(claim: AllocatedClaim) -> str | None:
    """The claim and its pods, if it holds devices of this driver."""
    if not claim.has_devices(DRIVER_NAME):
        return None
    users = first_of([user.text for user in claim.status.reserved_for], MAX_LISTED)
    return f"{claim.metadata.namespace}/{claim.metadata.name}, used by {users}" if users else None

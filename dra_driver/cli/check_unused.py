"""``dra-driver check-unused``: whether the driver may go, asked by the chart before ``helm uninstall``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dra_driver.cli import daemon, vocabulary
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util.text import first_of

if TYPE_CHECKING:
    from dra_driver.kube.objects.resource import AllocatedClaim

MAX_LISTED = 10
"""Claims that are named, and pods of one."""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = vocabulary.add_command(
        subparsers,
        "check-unused",
        about="Check that no pod uses devices of this driver. Without the driver, such pods stay Terminating, because "
        "kubelet cannot unprepare their claims.",
        examples=["check-unused --kubeconfig admin.conf"],
        done="no pod uses them",
        refused="pods use them; their claims are printed",
    )
    parser.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="kubeconfig file (default: the pod's service account)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the claims in use; raises ApiError if they cannot be read."""
    from dra_driver.kube.api.codec import ALLOCATED_CLAIMS
    from dra_driver.kube.api.resources import Collection

    uses, _ = Collection(daemon.transport(args.kubeconfig), ALLOCATED_CLAIMS).select(_use)
    found = sorted(uses)
    if not found:
        print("No pod uses devices of this driver.")
        return 0
    more = [f"  and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
    print("These claims are in use:", *(f"  {text}" for text in found[:MAX_LISTED]), *more, sep="\n")
    print("Without the driver, their pods cannot end. Delete them first; helm uninstall --no-hooks does not check.")
    return 1


def _use(claim: AllocatedClaim) -> str | None:
    """The claim and its pods, if it holds devices of this driver."""
    if not claim.has_devices(DRIVER_NAME):
        return None
    users = first_of([user.name for user in claim.status.reserved_for], MAX_LISTED)
    return f"{claim.metadata.namespace}/{claim.metadata.name}, used by {users}" if users else None

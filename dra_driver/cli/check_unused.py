"""``dra-driver check-unused``: whether the driver may go, asked by the chart before ``helm uninstall``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dra_driver.cli import daemon, vocabulary
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util.text import first_of

if TYPE_CHECKING:
    from dra_driver.kube.objects.resource import PartialResourceClaim

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
    from dra_driver.kube.api.codec import PARTIAL_RESOURCE_CLAIMS
    from dra_driver.kube.api.resources import Collection

    claims, _ = Collection(daemon.transport(args.kubeconfig), PARTIAL_RESOURCE_CLAIMS).list_all()
    found = sorted(text for claim in claims if (text := _use(claim)))
    if not found:
        print("No pod uses devices of this driver.")
        return 0
    more = [f"  and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
    print("These claims are in use:", *(f"  {text}" for text in found[:MAX_LISTED]), *more, sep="\n")
    print("Without the driver, their pods cannot end. Delete them first; helm uninstall --no-hooks does not check.")
    return 1


def _use(claim: PartialResourceClaim) -> str:
    """The claim and its pods, if it holds devices of this driver; else ""."""
    allocation = claim.status.allocation
    ours = allocation and any(result.driver == DRIVER_NAME for result in allocation.devices.results)
    users = first_of([user.name for user in claim.status.reserved_for], MAX_LISTED)
    return f"{claim.metadata.namespace}/{claim.metadata.name}, used by {users}" if ours and users else ""

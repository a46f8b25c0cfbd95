"""``dra-driver plan``: shows what would be prepared for an allocated claim, without changing anything."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dra_driver.cli import vocabulary
from dra_driver.cli.slices import add_host_arguments, cuts_option, print_object, read_host
from dra_driver.util.errors import UsageError
from dra_driver.util.text import quoted, ranges

if TYPE_CHECKING:
    from dra_driver.host.inventory import NodeInventory
    from dra_driver.kube.types import ResourceClaim
    from dra_driver.topology.cuts import Cuts


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = vocabulary.add_command(
        subparsers,
        "plan",
        about="Show what the driver would prepare for an allocated ResourceClaim, without changing anything.",
        examples=["kubectl get resourceclaim NAME -o yaml | {} plan --instance-type trn2.48xlarge -f -"],
        done="the claim can be prepared",
        refused="the driver would refuse the claim",
    )
    add_host_arguments(parser)
    vocabulary.add_files(parser, "the claim, YAML or JSON")
    vocabulary.add_output(parser, "text", "json", "yaml")
    vocabulary.add_node_name(parser, "this node's name (default: the pool of the claim's first device of this driver)")
    parser.add_argument(
        "--devices",
        metavar="CUTS",
        help="what the node offers, such as chip,core: a claim of other devices is refused (default: any device that "
        "this driver can offer)",
    )
    parser.add_argument("--device-numbering", choices=("renumber", "host"), default="renumber")
    parser.add_argument("--contiguity", choices=("refuse", "warn", "allow"), default="warn")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan; a PrepareError gives exit status 1 and the text that kubelet would receive."""
    from dra_driver.driver.claims.container_edits import cdi_spec, plan_document
    from dra_driver.driver.claims.model import PreparedClaims
    from dra_driver.driver.claims.planner import PlanSettings, plan

    cuts = cuts_option("--devices", args.devices)
    claim = read_claim(vocabulary.one_file(args, "the claim"))
    settings = PlanSettings(
        node_name=args.node_name or _pool_of(claim),
        device_numbering=args.device_numbering,
        contiguity=args.contiguity,
    )
    inventory = read_host(args)
    if cuts is not None:
        _check_offered(claim, inventory, cuts)
    planned = plan(claim, inventory, PreparedClaims(), settings)
    document = plan_document(planned, cdi_spec(planned))
    for warning in planned.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if args.output == "text":
        print(text(document))
    else:
        print_object(document, args.output)
    return 0


def text(document: dict[str, Any]) -> str:
    """The plan as text."""
    claim = document["claim"]
    lines = [f"claim        {claim['namespace']}/{claim['name']} ({claim['uid']})", "devices"]
    for row in document["devices"]:
        cores = f", physical cores {ranges(row['physicalCores'])}" if "physicalCores" in row else ""
        lines.append(
            f"  {row['containerPath']:<14} is {row['hostPath']} of the host "
            f"({row['device']}, request {row['request']}{cores})"
        )
        lines += [f"    {name}={value}" for name, value in row.get("environment", {}).items()]
    lines.append("environment")
    lines += [f"  {name}={value}" for name, value in document["environment"].items()] or ["  (none)"]
    lines.append("CDI devices")
    lines += [f"  {document['cdi']['kind']}={device['name']}" for device in document["cdi"]["devices"]]
    return "\n".join(lines)


def _check_offered(claim: ResourceClaim, inventory: NodeInventory, cuts: Cuts) -> None:
    """Raise UsageError for a claim with a device that the host does not offer."""
    from dra_driver.driver.claims.planner import own_results
    from dra_driver.driver.resourceslices.devices import devices

    offered = {device.name for device in devices(inventory, cuts)}
    for result in own_results(claim):
        if result.device not in offered:
            raise UsageError(
                f"with --devices {cuts}, {inventory.instance_type or 'the host'} offers no device "
                f"{quoted(result.device)}",
                remedy="dra-driver slices with the same options lists what it offers",
            )


def read_claim(filename: str) -> ResourceClaim:
    """Read one ResourceClaim from a file; raises UsageError with the place and the reason if it is invalid."""
    import msgspec

    from dra_driver.cli.clusterinput import read_text
    from dra_driver.kube.types import ResourceClaim
    from dra_driver.manifests import ManifestError
    from dra_driver.manifests.documents import documents, items_of
    from dra_driver.manifests.fields import DRA, KINDS
    from dra_driver.manifests.read import read_object

    try:
        items = [
            found
            for origin, document in documents(filename, read_text(filename))
            for found in items_of(document, origin)
            if found[0].get("kind") == "ResourceClaim"
        ]
        if len(items) != 1:
            raise UsageError(
                f"{filename}: one ResourceClaim expected, {len(items)} found",
                remedy="give what `kubectl get resourceclaim NAME -o yaml` prints",
            )
        value, origin = items[0]
        claim, _ = read_object(value, KINDS[DRA, "ResourceClaim"], origin)
    except ManifestError as error:
        raise UsageError(str(error)) from error
    return msgspec.convert(msgspec.to_builtins(claim), ResourceClaim)


def _pool_of(claim: ResourceClaim) -> str:
    from dra_driver.driver.claims.planner import own_results

    return own_results(claim)[0].pool

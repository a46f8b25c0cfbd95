"""``dra-driver slices``: shows what would be published for a host or an instance type, without a cluster.

Of a host (``--host-root``) with the taints of chips that are not healthy, as ``dra-driver health`` shows it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from dra_driver.cli import vocabulary
from dra_driver.cli.hostinput import EXAMPLE_NODE_UID, add_host_arguments, found_state_dir, read_health, read_host
from dra_driver.cli.terminal import print_object
from dra_driver.util.envelope import object_list
from dra_driver.util.errors import DriverError


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Print the ResourceSlices that a node of this type, or this host, would publish.",
        examples=["slices --instance-type trn2.48xlarge", "slices --host-root / -o json"],
        done="printed",
        refused="the host has no Neuron device",
    )
    add_host_arguments(parser)
    vocabulary.add_node_name(parser, "node and pool name (default: %(default)s)", default="example-node")
    vocabulary.add_partitions(parser)
    parser.add_argument(
        "--health-policy", metavar="FILE", type=Path, help="what faults of chips mean, as for the driver's option"
    )
    vocabulary.add_output(parser, "yaml", "json")


def run(args: argparse.Namespace) -> int:
    """Print one List of slices; raises DriverError for a host without devices."""
    from dra_driver.driver.resourceslices.devices import offer
    from dra_driver.driver.resourceslices.pool import pool
    from dra_driver.neuron.health.faults import NodeHealth
    from dra_driver.neuron.health.policy import HealthPolicy

    partitions = vocabulary.partitions(args.partitions)
    policy = HealthPolicy.default() if args.health_policy is None else HealthPolicy.load(args.health_policy)
    inventory = read_host(args)
    if not inventory.devices:
        raise DriverError(f"{args.host_root}: there is no Neuron device to publish")
    root: Path | None = args.host_root
    health = NodeHealth() if root is None else read_health(root, found_state_dir(root)).health
    for chip in health.chips:
        # What is lost is among the findings.
        if chip.faults and inventory.device(chip.index) is not None:
            vocabulary.warn(chip.text)
    offered = offer(inventory, partitions, health, policy, time.clock_gettime(time.CLOCK_BOOTTIME))
    if offered.problem:
        vocabulary.warn(f"the whole node is not offered: {offered.problem}")
    for word in offered.absent:
        vocabulary.warn(f"{inventory.instance_type or 'this host'} has no {word}")
    slices = pool(offered.devices, args.node_name, EXAMPLE_NODE_UID, counters=offered.counters)
    print_object(object_list(map(manifest, slices)), args.output)
    return 0


def manifest(item: Any) -> dict[str, Any]:
    """A slice as a Kubernetes object."""
    import msgspec

    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **msgspec.to_builtins(item)}

"""``dra-driver simulate``: which nodes and devices pods and claims would get, with or without a live cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from dra_driver.cli import vocabulary
from dra_driver.cli.clusterinput import add_cluster_arguments, beside_nothing, read_input
from dra_driver.cli.terminal import Progress
from dra_driver.util.errors import UsageError

if TYPE_CHECKING:
    from dra_driver.simulator.manifests import Manifests
    from dra_driver.simulator.placement import Simulation

EXAMPLES: Final = (
    "simulate examples/specs/1x4-connected-devices.yaml --instance-type trn2.48xlarge",
    "simulate deployment.yaml --instance-type trn2.48xlarge=4 --instance-type trn1.32xlarge -o svg > picture.svg",
    "simulate group.yaml --instance-type trn2u.48xlarge=8",
    "simulate -f pod.yaml --from-cluster -n shop",
    "kubectl get nodes,resourceslices,deviceclasses,resourceclaims,pods -A -o json | {} simulate --objects -",
)


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Allocate devices to the claims of pods as kube-scheduler does. Show the node and devices of each pod, "
        "what its containers get, and what remains free. Of pods, only what concerns devices, resources and nodes is "
        "checked: kubectl apply --dry-run=server checks the rest.",
        examples=EXAMPLES,
        done="everything is placed, and the nodes' drivers would prepare it",
        refused="something is not placed, or a node's driver would refuse a claim",
    )
    vocabulary.add_files(
        parser,
        "pods, Deployments, ReplicaSets, StatefulSets, Jobs, LeaderWorkerSets, claims, templates and classes "
        "(YAML or JSON)",
    )
    add_cluster_arguments(parser)
    vocabulary.add_output(parser, "text", "wide", "json", "yaml", "svg")


def run(args: argparse.Namespace) -> int:
    """Place everything and print the result; returns 1 if something has to wait, or a driver would refuse it."""
    from dra_driver.cli.searchtime import SearchTime
    from dra_driver.cli.simulateoutput import show
    from dra_driver.simulator.placement import simulate

    given = read_input(args, vocabulary.files(args))
    with Progress("placing", "pods") as progress:
        simulation = simulate(given.manifests, given.kubernetes, progress, SearchTime().begin)
    _refuse_nothing(simulation, given.manifests)
    found = show(given, simulation, args.output)
    return 0 if found.summary.result == "placed" else 1


def _refuse_nothing(simulation: Simulation, given: Manifests) -> None:
    if not simulation.outcomes:
        raise UsageError(
            "nothing to place: the input has neither a pod with resource claims nor a claim"
            + beside_nothing(given.not_considered),
            remedy="give the YAML of pods or claims as FILE",
        )

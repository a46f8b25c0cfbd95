"""``dra-driver simulate``: which nodes and devices pods and claims would get, with or without a live cluster."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from dra_driver.cli import vocabulary
from dra_driver.cli.clusterinput import add_cluster_arguments, read_input
from dra_driver.cli.fragmentation import add_stream_arguments
from dra_driver.cli.fragmentation import run as run_fragmentation
from dra_driver.cli.terminal import Progress
from dra_driver.util.errors import UsageError

if TYPE_CHECKING:
    from dra_driver.simulator.placement import Simulation

EXAMPLES: Final = (
    "simulate examples/specs/1x4-connected-devices.yaml --instance-type trn2.48xlarge",
    "simulate deployment.yaml --node trn2.48xlarge=4 --node trn1.32xlarge -o svg > picture.svg",
    "simulate group.yaml --node trn2u.48xlarge=8",
    "simulate -f pod.yaml --from-cluster -n shop",
    "kubectl get nodes,resourceslices,deviceclasses,resourceclaims,pods -A -o json | {} simulate --objects -",
)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = vocabulary.add_command(
        subparsers,
        "simulate",
        about="Allocate devices to the claims of pods as kube-scheduler does. Show the node and devices of each pod, "
        "what its containers get, and what remains free.",
        examples=EXAMPLES,
        done="everything is placed",
        refused="not everything is placed",
    )
    vocabulary.add_files(
        parser,
        "pods, Deployments, ReplicaSets, StatefulSets, Jobs, LeaderWorkerSets, claims, templates and classes "
        "(YAML or JSON)",
    )
    add_cluster_arguments(parser)
    parser.add_argument("--workload", metavar="FILE", help=argparse.SUPPRESS)
    add_stream_arguments(parser, hidden=True)
    vocabulary.add_output(parser, "text", "wide", "json", "yaml", "svg")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Place everything and print the result; returns 1 if something has to wait."""
    if any(value is not None for value in (args.workload, args.seed, args.policy)):
        return _run_workload(args)
    from dra_driver.cli.simulateoutput import show
    from dra_driver.manifests import ManifestError
    from dra_driver.simulator.placement import simulate

    try:
        given = read_input(args, vocabulary.files(args))
        with Progress("placing", "pods") as progress:
            simulation = simulate(given.manifests, given.kubernetes, progress)
    except ManifestError as error:
        raise UsageError(str(error)) from error
    _refuse_nothing(simulation)
    show(given, simulation, args.output)
    return 0 if all(outcome.placed for outcome in simulation.outcomes) else 1


def _run_workload(args: argparse.Namespace) -> int:
    """``simulate --workload``, now a command of its own; the old spelling keeps working for one release."""
    if args.workload is None:
        raise UsageError("--seed and --policy go with --workload", remedy="give --workload FILE too, or leave them out")
    beside = {"FILE": vocabulary.files(args), "--objects": args.objects, "--from-cluster": args.from_cluster}
    given = [name for name, value in beside.items() if value]
    given += [f"--{name}" for name in ("kubeconfig", "context") if getattr(args, name) is not None]
    if given:
        raise UsageError(
            f"{given[0]} does not go with --workload",
            remedy="its nodes are emulated: name them in the file, or by --node",
        )
    print(
        "warning: simulate --workload FILE is now dra-driver fragmentation FILE; the next release takes only that",
        file=sys.stderr,
    )
    return run_fragmentation(args)


def _refuse_nothing(simulation: Simulation) -> None:
    if not simulation.outcomes:
        raise UsageError(
            "nothing is to be placed: there is neither a pod with resource claims nor a claim",
            remedy="give the YAML of pods or claims as FILE",
        )

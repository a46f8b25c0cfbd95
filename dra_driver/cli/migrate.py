"""``dra-driver migrate``: converts pod specs with Neuron limits to pods with claims."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any, Final

from dra_driver.cli import vocabulary
from dra_driver.cli.clusterinput import read_text
from dra_driver.cli.terminal import print_object
from dra_driver.util.envelope import object_list
from dra_driver.util.errors import DriverError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dra_driver.legacy.migration import Nodes

EXAMPLES: Final = (
    "migrate deployment.yaml --instance-type trn2.48xlarge > migrated.yaml",
    "{} migrate deployment.yaml --instance-type trn2.48xlarge | kubectl diff -f -",
    "migrate ray-cluster.yaml --instance-type trn1n.32xlarge --groups --efa",
    "{} migrate deployment.yaml --extended-resources | kubectl apply -f -",
)
_ABOUT_CLASSES: Final = (
    "for Kubernetes 1.36 and later; no node may offer the same resource through a device plugin beside the DRA driver"
)
_COMMENT: Final = re.compile(r"(^|\s)#", re.MULTILINE)


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Print objects with ResourceClaimTemplates instead of the limits aws.amazon.com/neuron, neurondevice "
        "and neuroncore: Pods, and every kind with pod templates (Deployment, Job, CronJob, PyTorchJob, MPIJob, "
        "RayCluster, JobSet, LeaderWorkerSet and others). Other objects are printed unchanged. Differences in "
        "behavior are reported on standard error. Comments are lost.",
        examples=EXAMPLES,
        done="converted",
        refused="claims cannot express a request, no such pod could run, or some limits must be converted by hand",
    )
    vocabulary.add_files(parser, "YAML or JSON; several documents and Lists are allowed")
    vocabulary.add_instance_type(parser, "instance type of the nodes, for pods whose node selector does not have one")
    parser.add_argument(
        "--logical-core-size",
        type=int,
        choices=(1, 2),
        help="physical cores that aws.amazon.com/neuroncore counted as one (default: that of the instance type)",
    )
    parser.add_argument(
        "--groups",
        action="store_true",
        help="request connected chips as one device, of a class such as group4.neuron.aws.com, for nodes that offer "
        "groups",
    )
    parser.add_argument(
        "--efa",
        action="store_true",
        help="convert limits of vpc.amazonaws.com/efa in the same containers, too: EFA devices next to "
        "the chips, from AWS's EFA DRA driver",
    )
    parser.add_argument(
        "--extended-resources",
        action="store_true",
        help="print the DeviceClasses with which Kubernetes 1.36 and later runs the pods of FILE unchanged; without "
        "FILE, the class for aws.amazon.com/neuron",
    )
    vocabulary.add_output(parser, "yaml", "json")


def run(args: argparse.Namespace) -> int:
    """Print the objects; warnings go to standard error."""
    from dra_driver.legacy.migration import Wishes, migrate, unchanged

    files = vocabulary.files(args)
    if not files and not args.extended_resources:
        raise UsageError("FILE is missing", remedy="give the file that has the pods, or - for standard input")
    nodes = _nodes(args)
    sources = [(name, read_text(name)) for name in files]
    if args.extended_resources:
        found = unchanged(sources, nodes)
        for text in (*found.warnings, *found.impossible, _ABOUT_CLASSES):
            vocabulary.warn(text)
        for name, count in found.objects.items():
            if count or not found.impossible:
                vocabulary.tell(f"note: {_unchanged(name, count)}")
        _print(found.classes, args.output)
        return 1 if found.impossible else 0
    migration = migrate(sources, nodes, Wishes(groups=args.groups, efa=args.efa))
    notes = [f"{name}: its comments are lost" for name, text in sources if _COMMENT.search(text)]
    if not migration.changed and not migration.left:
        notes.append("nothing requests Neuron resources with limits: the objects are printed as they are")
    for text in (*migration.warnings, *migration.left, *notes):
        vocabulary.warn(text)
    _print(migration.documents, args.output)
    return 1 if migration.left else 0


def _nodes(args: argparse.Namespace) -> Nodes:
    from dra_driver.legacy.migration import Nodes
    from dra_driver.neuron.topology.instance_types import resolve_emulation

    if args.instance_type is None:
        return Nodes(None, args.logical_core_size)
    try:
        return Nodes(resolve_emulation(args.instance_type), args.logical_core_size)
    except DriverError as error:
        raise UsageError(f"--instance-type: {error.what}", remedy=error.remedy) from error


def _unchanged(name: str, count: int) -> str:
    if not count:
        return f"{name}: nothing requests Neuron resources with limits"
    objects = "the object" if count == 1 else f"the {count} objects"
    return (
        f"{name}: {objects} with Neuron limits can stay as written: the pods run from these DeviceClasses, or from "
        "those that the chart creates with draDriver.extendedResources=true"
    )


def _print(documents: Sequence[dict[str, Any]], output: str) -> None:
    if output == "json":
        print_object(object_list(documents), output)
        return
    import yaml

    from dra_driver.kube import scalars

    class Dumper(scalars.Dumper):
        """Writes multi-line strings as block scalars, the form in which people write them."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's signature
            """Repeat equal parts instead of referring to them by aliases."""
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)

    def written(item: dict[str, Any], *, escaped: bool = False) -> str:
        document: str = yaml.dump(item, Dumper=Dumper, sort_keys=False, width=200, allow_unicode=not escaped)
        # YAML takes characters that turn the direction of a line.
        return document if escaped or document.replace("\n", "").isprintable() else written(item, escaped=True)

    print("---\n".join(map(written, documents)), end="")

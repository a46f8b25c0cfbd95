"""``dra-driver template``: what a node of an instance type will publish, in the form that an autoscaler reads.

An autoscaler starts a node for a pod with claims only if it knows which devices the node will have. Nothing of that is
in the cluster while there is no such node, so it has to be told: here by the code that publishes the slices of a real
one. Each consumer's form is that of its own sources:

- Karpenter 1.15.0: the file of instance types that its kwok provider reads (``kwok/cloudprovider/helpers.go``), with
  the key ``dynamicResources``: the fields of ``cloudprovider.DynamicResources``, which every provider has to fill in.
- cluster-autoscaler: the Node and the ResourceSlices that a provider's ``TemplateNodeInfo()`` returns.
- kwok: a Node that kwok takes care of (annotation ``kwok.x-k8s.io/node``) with its ResourceSlices, to be applied.

Some attributes are not known before the node is there: which UltraServer it is part of, where it is in the network.
Templates for autoscalers leave them out; for Karpenter they say that all devices of the node will share them.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from dra_driver.cli import vocabulary
from dra_driver.cli.terminal import print_object
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL
from dra_driver.util.envelope import envelope, object_list
from dra_driver.util.errors import DriverError, UsageError, blaming_usage
from dra_driver.util.text import quoted

if TYPE_CHECKING:
    from dra_driver.neuron.topology.partitions import Partitions

CONSUMERS: Final = ("karpenter", "cluster-autoscaler", "kwok")
POD_LIMIT: Final = "110"
"""Kubelet's default."""
SHARED_ATTRIBUTES: Final = (
    "networkNodeLayer1",
    "networkNodeLayer2",
    "networkNodeLayer3",
    "capacityBlockId",
    "ultraserverServerId2",
    "ultraserverNodeId2",
    "ultraserverServerId4",
    "ultraserverNodeId4",
)
"""Of the driver's own domain: not known before the node is there, and then equal on all its devices that have them."""
_OF_ULTRASERVERS: Final = ("capacityBlockId", "ultraserver")
"""What names of attributes begin with that only nodes of UltraServers have."""


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """A node that does not exist yet.

    Attributes:
        instance_type: the EC2 type.
        labels: of the Node, those that the driver writes included.
        resources: what pods can request of it, by name, as quantities.
        slices: ``spec`` of each ResourceSlice, as JSON values; ``nodeName`` and the pool's name are the node's name.
        shared: attributes that the devices will share once the node is there, by qualified name: names of devices.
    """

    instance_type: str
    labels: Mapping[str, str]
    resources: Mapping[str, str]
    slices: Sequence[Mapping[str, Any]]
    shared: Mapping[str, Sequence[str]] = field(default_factory=dict)


def register(entry: vocabulary.Entry) -> None:
    """Add the command."""
    parser = entry.command(
        about="Print what a node of this type will publish (labels, capacity, ResourceSlices), in the form that an "
        "autoscaler or kwok reads.",
        examples=["template --instance-type trn2.48xlarge --for karpenter > instance-types.json"],
        done="printed",
        refused="not used",
    )
    parser.add_argument(
        "--instance-type",
        metavar="TYPE",
        action="append",
        required=True,
        help="EC2 type, such as trn2.48xlarge (repeatable)",
    )
    parser.add_argument("--for", dest="consumer", choices=CONSUMERS, required=True, help="the program that reads it")
    vocabulary.add_partitions(parser)
    parser.add_argument(
        "--emulated-driver-version",
        metavar="V",
        help="version of the kernel driver that the node's image has (default: the newest known)",
    )
    parser.add_argument(
        "--resource",
        metavar="NAME=QUANTITY",
        action="append",
        default=[],
        help="another resource of the node, or a different amount of one, such as memory=1900Gi (repeatable)",
    )
    parser.add_argument(
        "--zone",
        metavar="ZONE",
        action="append",
        help="for karpenter: a zone that has the type (repeatable; default: test-zone-a)",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("yaml", "json"),
        help="output format (default: as the program reads it, which for karpenter is a bare list in JSON)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the template; raises UsageError for an illegal option, DriverError for a type that cannot be described."""
    partitions, resources = vocabulary.partitions(args.partitions), _resources(args.resource)
    known = args.consumer != "kwok"
    templates = [
        node_template(name, partitions, args.emulated_driver_version, resources, before=known)
        for name in dict.fromkeys(args.instance_type)
    ]
    if args.consumer == "karpenter":
        types = [for_karpenter(item, args.zone or ["test-zone-a"]) for item in templates]
        document = envelope("InstanceTypes", types) if args.output else types
        print_object(document, args.output or "json")
    else:
        objects = (made for item in templates for made in node_and_slices(item, kwok=args.consumer == "kwok"))
        print_object(object_list(objects), args.output or "yaml")
    return 0


def _resources(texts: Sequence[str]) -> dict[str, str]:
    from dra_driver.kube import formats, quantity

    found = {}
    for text in texts:
        name, equals, amount = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--resource {quoted(text)}: not of the form NAME=QUANTITY, such as memory=1900Gi")
        try:
            quantity.parse(amount)
        except DriverError as error:
            raise UsageError(f"--resource {quoted(text)}: {error.what}", remedy=error.remedy) from error
        if problem := formats.label_key(name):
            raise UsageError(f"--resource: {problem}")
        found[name] = amount
    return found


def node_template(
    instance_type: str,
    partitions: Partitions | None = None,
    driver_version: str | None = None,
    resources: Mapping[str, str] | None = None,
    *,
    before: bool = True,
) -> NodeTemplate:
    """The template of a type.

    Args:
        instance_type: EC2 type, with or without HyperPod's prefix.
        partitions: what the node offers (``topology.partitions.Partitions``); None: nothing in particular is set.
        driver_version: of the kernel driver; None for the newest known.
        resources: what else pods can request, by name; these win over what EC2 documents of the type.
        before: without what is not known before the node is there; else as on an emulated host.

    Raises:
        DriverError: an unknown type or version, or one of which neither EC2's pages nor ``resources`` tell vCPUs and
            memory.
    """
    import msgspec

    from dra_driver.simulator.emulated_nodes import emulated

    with blaming_usage():
        made = emulated([(instance_type, 1)], partitions=partitions, driver_version=driver_version)
    node = msgspec.to_builtins(made.nodes[0])
    labels = node["metadata"]["labels"]
    name = labels[INSTANCE_TYPE_LABEL]
    found = {"pods": POD_LIMIT, **node["status"].get("allocatable", {}), **(resources or {})}
    if missing := [key for key in ("cpu", "memory") if key not in found]:
        raise DriverError(
            f"no public document states how much {' and '.join(missing)} a {name} has",
            remedy="say it: " + " ".join(f"--resource {key}=QUANTITY" for key in missing),
        )
    specs = [msgspec.to_builtins(item.spec) for item in made.slices]
    template = NodeTemplate(name, labels, found, specs)
    return _before(template) if before else template


def _before(template: NodeTemplate) -> NodeTemplate:
    """The template without what is not known before the node is there, and with what its devices will share then."""
    from dra_driver.driver.node_labels import MODE
    from dra_driver.driver.resourceslices.attributes import ATTRIBUTES

    labels, specs = template.labels, copy.deepcopy(template.slices)
    kinds = {row.name: row.of for row in ATTRIBUTES}
    of_ultraserver = MODE in labels
    shared: dict[str, list[str]] = {}
    for spec in specs:
        for device in spec.get("devices", ()):
            kind = device["attributes"]["resourceType"]["string"]
            for attribute in SHARED_ATTRIBUTES:
                device["attributes"].pop(attribute, None)
                if kind in kinds[attribute] and (of_ultraserver or not attribute.startswith(_OF_ULTRASERVERS)):
                    shared.setdefault(f"{spec['driver']}/{attribute}", []).append(device["name"])
    own = {key: value for key, value in labels.items() if "ultraserver-" not in key or key == MODE}
    return replace(template, labels=own, slices=specs, shared=shared)


def for_karpenter(template: NodeTemplate, zones: Sequence[str]) -> dict[str, Any]:
    """An entry of Karpenter's file of instance types.

    The price is 1, since this program knows no prices. The name of the pool is that of the type: Karpenter's allocator
    keeps what it found out about a device by driver, pool and name, so pools of two types must not have the same.
    """
    slices = [
        {
            "driver": spec["driver"],
            "pool": {"name": template.instance_type},
            **{key: spec[key] for key in ("devices", "sharedCounters") if spec.get(key)},
        }
        for spec in template.slices
    ]
    driver = slices[0]["driver"]
    bindings = [
        {
            "attribute": attribute,
            "devices": [{"driver": driver, "pool": template.instance_type, "device": name} for name in names],
        }
        for attribute, names in template.shared.items()
        if len(names) > 1
    ]
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": list(zones)},
    ]
    return {
        "name": template.instance_type,
        "offerings": [{"Price": 1.0, "Available": True, "Requirements": requirements}],
        "architecture": template.labels["kubernetes.io/arch"],
        "operatingSystems": [template.labels["kubernetes.io/os"]],
        "resources": dict(template.resources),
        "dynamicResources": {"resourceSliceTemplates": slices, "attributeBindings": bindings},
    }


def node_and_slices(template: NodeTemplate, *, kwok: bool) -> list[dict[str, Any]]:
    """The Node and the slices of ``TemplateNodeInfo()``; for kwok, objects to apply.

    The slices have no owner, since the Node's UID is not known: delete them with the Node.
    """
    name = f"{'kwok' if kwok else 'template-node-for'}-{template.instance_type.replace('.', '-')}"
    labels = {**template.labels, "kubernetes.io/hostname": name}
    metadata = {"name": name, **({"annotations": {"kwok.x-k8s.io/node": "fake"}} if kwok else {}), "labels": labels}
    amounts = dict(template.resources)
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "status": {"capacity": amounts, "allocatable": dict(amounts)},
    }
    return [node, *(_slice(spec, name, number) for number, spec in enumerate(template.slices))]


def _slice(spec: Mapping[str, Any], node: str, number: int) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{number:05x}-{spec['driver']}-{node}"},
        "spec": {**spec, "nodeName": node, "pool": {**spec["pool"], "name": node}},
    }

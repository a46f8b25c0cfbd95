"""The API server's validation of metadata, nodes, and the parts of pods that concern nodes, containers and claims.

Only the parts of a pod that are read here are validated: images, volumes, probes and the like are not. Source:
``pkg/apis/core/validation`` of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dra_driver.kube import formats
from dra_driver.kube.documents import Origin
from dra_driver.kube.matching import OPERATORS, takes
from dra_driver.kube.objects.core import (
    Container,
    Node,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodSpec,
    ResourceRequirements,
    Taint,
    Toleration,
)
from dra_driver.kube.objects.meta import ObjectMeta, Quantity
from dra_driver.kube.quantity import nanos
from dra_driver.simulator.manifests.validation import Path, Problem, amount, below, each, raise_first, twice, wrong

MAX_ANNOTATIONS: Final = 256 << 10
"""Maximum size in bytes of all annotations of an object."""
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_OPERATORS: Final = ("Equal", "Exists", "Lt", "Gt")


def check_metadata(meta: ObjectMeta, origin: Origin) -> None:
    """Raise ManifestError for the first problem in name, namespace, labels or annotations."""
    raise_first(_metadata(meta), origin, ("metadata",))


def check_node(node: Node, origin: Origin) -> None:
    """Raise ManifestError for the first problem in a node's taints or resources."""
    raise_first(_taints(node.spec.taints), origin, ("spec", "taints"))
    raise_first(_amounts(node.status.allocatable), origin, ("status", "allocatable"))


def check_pod(spec: PodSpec, origin: Origin, path: Path) -> None:
    """Raise ManifestError for the first problem in a pod; ``path`` leads to its ``spec``."""
    raise_first(_pod(spec), origin, path)


def _metadata(meta: ObjectMeta) -> Iterator[Problem]:
    yield from wrong(formats.subdomain(meta.name), "name")
    if meta.namespace:
        yield from wrong(formats.label(meta.namespace), "namespace")
    yield from below(("labels",), _labels(meta.labels))
    for key in meta.annotations:
        yield from wrong(formats.label_key(key.lower()), "annotations", key)
    if sum(len(key.encode()) + len(value.encode()) for key, value in meta.annotations.items()) > MAX_ANNOTATIONS:
        yield ("annotations",), f"they are longer than {MAX_ANNOTATIONS} bytes"


def _labels(labels: dict[str, str]) -> Iterator[Problem]:
    for key, value in labels.items():
        yield from wrong(formats.label_key(key), key)
        yield from wrong(formats.label_value(value), key)


def _taints(taints: Sequence[Taint]) -> Iterator[Problem]:
    yield from twice([f"{taint.key}:{taint.effect}" for taint in taints], field="")
    for place, taint in enumerate(taints):
        yield from wrong(formats.label_key(taint.key), place, "key")
        yield from wrong(formats.label_value(taint.value), place, "value")
        if taint.effect not in _EFFECTS:
            yield (place, "effect"), f"{formats.shown(taint.effect)} is not one of {', '.join(_EFFECTS)}"


def _pod(spec: PodSpec) -> Iterator[Problem]:
    yield from _containers(spec)
    yield from below(("resources",), _resources(spec.resources))
    yield from below(("overhead",), _amounts(spec.overhead))
    for place, entry in enumerate(spec.resource_claims):
        yield from wrong(formats.label(entry.name), "resourceClaims", place, "name")
        for field, name in (
            ("resourceClaimName", entry.resource_claim_name),
            ("resourceClaimTemplateName", entry.resource_claim_template_name),
        ):
            if name is not None:
                yield from wrong(formats.subdomain(name), "resourceClaims", place, field)
    if spec.node_name:
        yield from wrong(formats.subdomain(spec.node_name), "nodeName")
    yield from below(("nodeSelector",), _labels(spec.node_selector))
    if spec.affinity.required_nodes is not None:
        path = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
        yield from below(path, node_selector(spec.affinity.required_nodes))
    yield from each("tolerations", spec.tolerations, _toleration)


def _containers(spec: PodSpec) -> Iterator[Problem]:
    if not spec.containers:
        yield ("containers",), "must not be empty"
    before = [container.name for container in spec.init_containers]
    yield from twice(before, "initContainers")
    names = [container.name for container in spec.containers]
    yield from twice(names, "containers")
    for name in set(before) & set(names):
        yield ("initContainers",), f"container name {formats.shown(name)} is also used in containers"
    yield from each("containers", spec.containers, _container)
    yield from each("initContainers", spec.init_containers, _container)


def _container(container: Container) -> Iterator[Problem]:
    yield from wrong(formats.label(container.name), "name")
    uses = [f"{use.name}/{use.request}" for use in container.resources.claims]
    yield from twice(uses, "resources", "claims", field="")
    yield from below(("resources",), _resources(container.resources))


def _resources(resources: ResourceRequirements) -> Iterator[Problem]:
    yield from below(("limits",), _amounts(resources.limits))
    yield from below(("requests",), _amounts(resources.requests))
    for name, value in resources.requests.items():
        if nanos(value) > nanos(resources.limits.get(name, value)):
            yield ("requests", name), f"{value} is more than the limit {resources.limits[name]}"


def _amounts(amounts: Mapping[str, Quantity]) -> Iterator[Problem]:
    for name, value in amounts.items():
        yield from wrong(formats.label_key(name), name)
        yield from amount(value, name)
        if nanos(value) < 0:
            yield (name,), f"{value} is negative"


def node_selector(selector: NodeSelector) -> Iterator[Problem]:
    """The problems of a node selector."""
    if not selector.node_selector_terms:
        yield ("nodeSelectorTerms",), "must not be empty"
    yield from each("nodeSelectorTerms", selector.node_selector_terms, _term)


def _term(term: NodeSelectorTerm) -> Iterator[Problem]:
    yield from each("matchExpressions", term.match_expressions, _expression)
    yield from each("matchFields", term.match_fields, _field)


def _expression(item: NodeSelectorRequirement) -> Iterator[Problem]:
    yield from wrong(formats.label_key(item.key), "key")
    if item.operator not in OPERATORS:
        yield ("operator",), f"{formats.shown(item.operator)} is not one of {', '.join(OPERATORS)}"
        return
    if not takes(item.operator, len(item.values)):
        yield ("values",), f"{len(item.values)} values are not valid with operator {item.operator}"
    yield from each("values", item.values, lambda value: wrong(formats.label_value(value)))


def _field(item: NodeSelectorRequirement) -> Iterator[Problem]:
    if item.key != "metadata.name":
        yield ("key",), f"{formats.shown(item.key)} is not metadata.name, the only field that is supported"
    if item.operator not in ("In", "NotIn"):
        yield ("operator",), f"{formats.shown(item.operator)} is neither In nor NotIn"
    if len(item.values) != 1:
        yield ("values",), "exactly one value is required"
    yield from each("values", item.values, lambda value: wrong(formats.subdomain(value)))


def _toleration(toleration: Toleration) -> Iterator[Problem]:
    if toleration.key:
        yield from wrong(formats.label_key(toleration.key), "key")
    if toleration.operator not in ("", *_OPERATORS):
        yield ("operator",), f"{formats.shown(toleration.operator)} is not one of {', '.join(_OPERATORS)}"
    if not toleration.key and toleration.operator != "Exists":
        yield ("operator",), "must be Exists when key is empty"
    if toleration.operator == "Exists" and toleration.value:
        yield ("value",), "is only valid with operator Equal"
    if toleration.operator in ("", "Equal"):
        yield from wrong(formats.label_value(toleration.value), "value")
    if toleration.effect not in ("", *_EFFECTS):
        yield ("effect",), f"{formats.shown(toleration.effect)} is not one of {', '.join(_EFFECTS)}"

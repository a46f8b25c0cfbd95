"""The API server's validation of metadata, nodes, and the parts of pods that concern nodes, containers and claims.

Only the parts of a pod that are read here are validated: images, volumes, probes and the like are not. Source:
``pkg/apis/core/validation`` of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from dra_driver.kube import formats
from dra_driver.kube.documents import Origin
from dra_driver.kube.matching import OPERATORS, takes
from dra_driver.kube.objects.core import (
    Container,
    ContainerClaim,
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
from dra_driver.kube.objects.scheduling import MAX_CLAIMS, PodGroup
from dra_driver.kube.quantity import UNIT, QuantityError, nanos, stored
from dra_driver.simulator.manifests.model import of_pod
from dra_driver.simulator.manifests.validation import Path, Problem, amount, below, each, raise_first, twice, wrong

MAX_ANNOTATIONS: Final = 256 << 10
"""Maximum size in bytes of all annotations of an object."""
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_OPERATORS: Final = ("Equal", "Exists")
_RESTARTS: Final = ("Always", "Never", "OnFailure")
_HUGE: Final = "hugepages-"
_OF_CONTAINERS: Final = ("cpu", "memory", "ephemeral-storage")
_OF_PODS: Final = ("cpu", "memory")
_LONGEST: Final = 253 - len("requests.")
"""Length of the part of an extended resource's name before the slash: quotas have it with a prefix."""


def check_metadata(meta: ObjectMeta, origin: Origin, path: Path = ("metadata",)) -> None:
    """Raise ManifestError for the first problem in name, namespace, labels or annotations."""
    raise_first(_metadata(meta), origin, path)


def check_node(node: Node, origin: Origin) -> None:
    """Raise ManifestError for the first problem in a node's taints or resources."""
    raise_first(_taints(node.spec.taints), origin, ("spec", "taints"))
    raise_first(_amounts(node.status.allocatable), origin, ("status", "allocatable"))


def check_pod(spec: PodSpec, origin: Origin, path: Path) -> None:
    """Raise ManifestError for the first problem in a pod; ``path`` leads to its ``spec``."""
    raise_first(_pod(spec), origin, path)


def check_pod_group(group: PodGroup, origin: Origin) -> None:
    """Raise ManifestError for the first problem in the claims of a PodGroup."""
    if len(group.spec.resource_claims) > MAX_CLAIMS:
        raise origin.error(("spec", "resourceClaims"), f"must have at most {MAX_CLAIMS} items")
    raise_first(claims_used(PodSpec(resource_claims=group.spec.resource_claims)), origin, ("spec",))


def _metadata(meta: ObjectMeta) -> Iterator[Problem]:
    if meta.name:
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
    yield from below(("resources",), _of_pod(spec))
    yield from below(("overhead",), _amounts(spec.overhead))
    for place, entry in enumerate(spec.resource_claims):
        yield from wrong(formats.label(entry.name), "resourceClaims", place, "name")
        for field, name in (
            ("resourceClaimName", entry.resource_claim_name),
            ("resourceClaimTemplateName", entry.resource_claim_template_name),
        ):
            if name is not None:
                yield from wrong(formats.subdomain(name), "resourceClaims", place, field)
    yield from claims_used(spec)
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
    if container.restart_policy not in ("", *_RESTARTS):
        yield ("restartPolicy",), f"{formats.shown(container.restart_policy)} is not one of {', '.join(_RESTARTS)}"
    yield from below(("resources",), _resources(container.resources, pod_level=False))


def claims_used(spec: PodSpec) -> Iterator[Problem]:
    """The problems of a pod's claims, and of what its containers use of them."""
    names = [entry.name for entry in spec.resource_claims]
    yield from twice(names, "resourceClaims")
    for place, entry in enumerate(spec.resource_claims):
        if (entry.resource_claim_name is None) == (entry.resource_claim_template_name is None):
            path: Path = ("resourceClaims", place)
            yield path, "exactly one of resourceClaimName and resourceClaimTemplateName is required"
    for kind, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for number, container in enumerate(containers):
            yield from below((kind, number, "resources", "claims"), _uses(container.resources.claims, names))


def _uses(uses: Sequence[ContainerClaim], names: Collection[str]) -> Iterator[Problem]:
    before: set[tuple[str, str]] = set()
    for place, use in enumerate(uses):
        if use.name not in names:
            yield (place, "name"), f"the pod has no claim {use.name}; add it to the pod's resourceClaims"
        if use.request:
            yield from wrong(formats.label(use.request), place, "request")
        again = {(use.name, ""), (use.name, use.request)} & before
        if again or (not use.request and any(name == use.name for name, _ in before)):
            yield (place,), f"duplicate value {formats.shown(use.name)}"
        before.add((use.name, use.request))


def _of_pod(spec: PodSpec) -> Iterator[Problem]:
    """Of a pod's own requests and limits; together, its containers may not request more."""
    own = spec.resources
    yield from _resources(own, pod_level=True)
    sums = of_pod(replace(spec, resources=ResourceRequirements(), overhead={}))
    for name, value in own.requests.items():
        if sums.get(name, 0) > nanos(value):
            yield ("requests", name), f"{value} is less than what the containers request"
    for name, value in own.limits.items():
        if any(
            nanos(item.resources.limits.get(name, 0)) > nanos(value)
            for item in (*spec.containers, *spec.init_containers)
        ):
            yield ("limits", name), f"{value} is less than the limit of a container"


def _resources(resources: ResourceRequirements, *, pod_level: bool) -> Iterator[Problem]:
    limits, requests = resources.limits, resources.requests
    for field, amounts in (("limits", limits), ("requests", requests)):
        yield from below((field,), _amounts(amounts))
        for name, value in amounts.items():
            yield from below((field,), _resource(name, value, pod_level=pod_level))
    for name, value in requests.items():
        if not _is_exact(name):
            if nanos(value) > nanos(limits.get(name, value)):
                yield ("requests", name), f"{value} is more than the limit {limits[name]}"
        elif name not in limits:
            yield ("limits",), f"a request of {name} needs an equal limit"
        elif nanos(value) != nanos(limits[name]):
            yield ("requests", name), f"{value} is not equal to the limit {limits[name]}, as it has to be for {name}"
    names = {*limits, *requests}
    if any(name.startswith(_HUGE) for name in names) and names.isdisjoint(("cpu", "memory")):
        yield (), "huge pages require cpu or memory, too"


def _is_native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def _is_exact(name: str) -> bool:
    """Whether nobody gets more of a resource than he requests."""
    return not _is_native(name) or name.startswith(_HUGE)


def _resource(name: str, value: Quantity, *, pod_level: bool) -> Iterator[Problem]:
    """The problems of the name of a resource, and of an amount in view of the name."""
    if pod_level and name not in _OF_PODS and not name.startswith(_HUGE):
        yield (name,), "a pod's own resources are cpu, memory and huge pages; others belong to its containers"
    elif "/" not in name and name not in _OF_CONTAINERS and not name.startswith(_HUGE):
        yield (
            (name,),
            f"{formats.shown(name)} is no resource of containers; others have a domain, such as example.com/x",
        )
    elif not _is_native(name) and (name.startswith("requests.") or name.index("/") > _LONGEST):
        yield (name,), f"{formats.shown(name)} is not an extended resource like aws.amazon.com/neuron"
    elif not _is_native(name) and nanos(value) % UNIT:
        yield (name,), f"{value} is not an integer, as it has to be for {name}"
    if name.startswith(_HUGE):
        yield from _huge_pages(name, value)


def _huge_pages(name: str, value: Quantity) -> Iterator[Problem]:
    try:
        size = nanos(stored(name.removeprefix(_HUGE)).text)
    except QuantityError as error:
        yield (name,), str(error)
        return
    if size <= 0 or nanos(value) % size:
        yield (name,), f"{value} is not a multiple of the size of these pages"


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
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        yield ("effect",), "must be NoExecute when tolerationSeconds is set"

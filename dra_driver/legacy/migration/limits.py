"""The Neuron limits of a pod spec, parsed strictly, and how errors and warnings about them name their place."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from dra_driver.kube.documents import Origin
from dra_driver.kube.objects.core import PodSpec
from dra_driver.kube.quantity import UNIT
from dra_driver.legacy.resource_requests import MAX_CONTAINERS, ContainerRequest, Role, quantity
from dra_driver.legacy.rules import RETIRED_DEVICE, NeuronResource, NodeHardware, hardware
from dra_driver.neuron.topology.instance_types import INSTANCE_TYPE_LABEL, InstanceType
from dra_driver.simulator.manifests.fields import unread_left_out
from dra_driver.simulator.manifests.model import of_pod
from dra_driver.util.errors import DriverError

Path = tuple[str | int, ...]

RESOURCES: Final = {
    NeuronResource.DEVICE.value: NeuronResource.DEVICE,
    RETIRED_DEVICE: NeuronResource.DEVICE,
    NeuronResource.CORE.value: NeuronResource.CORE,
}
"""Name in limits to the resource that it stands for."""
EFA: Final = "vpc.amazonaws.com/efa"
"""The resource of the device plugin for EFA devices (github.com/aws/eks-charts, aws-efa-k8s-device-plugin)."""


class NotPossibleError(DriverError):
    """A valid pod that no claim can express, or that no node could ever have run."""


def not_possible(origin: Origin, path: Path, what: str, *, remedy: str = "") -> NotPossibleError:
    """The error for a place in an object, with file and line."""
    return NotPossibleError(origin.located(path, what), remedy=remedy)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes on which pods run whose own node selectors do not say."""

    instance_type: InstanceType | None = None
    """A type with a known number of chips."""
    logical_core_size: int | None = None
    """Physical cores of a logical core; None: the type's default."""

    def of(self, row: InstanceType) -> NodeHardware:
        """A node of the type as the device plugin counts it. Raises DriverError for a core size that the type lacks."""
        size = self.logical_core_size if len(row.lnc_values) > 1 else None
        width = row.cores_per_device // (size or row.default_lnc)
        return hardware(row.name, row.devices or 0, width * (row.devices or 0))


@dataclass(frozen=True, slots=True)
class Wishes:
    """What claims are to be made of, where there is a choice."""

    groups: bool = False
    """Connected chips are requested as one device of a class such as ``group4.neuron.aws.com``."""
    efa: bool = False
    """Limits of EFA devices beside Neuron's become a part of the claims."""


@dataclass(slots=True)
class Warnings:
    """Collects messages about places; equal messages are merged under the first place."""

    _found: dict[str, tuple[Origin, Path, int]] = field(default_factory=dict)

    def add(self, origin: Origin, path: Path, text: str) -> None:
        """Add a message about a place."""
        first, where, count = self._found.get(text, (origin, path, 0))
        self._found[text] = (first, where, count + 1)

    def texts(self) -> tuple[str, ...]:
        """The messages in order of appearance, each with file and line of its first place."""
        return tuple(
            origin.located(path, text) + (f" (and {count - 1} more places)" if count > 1 else "")
            for text, (origin, path, count) in self._found.items()
        )


MAX_COUNT: Final = 1 << 16
"""Of one resource in one container; more than any node has."""
LISTS: Final = ("initContainers", "containers")
_TYPE_LABELS: Final = (INSTANCE_TYPE_LABEL, "beta.kubernetes.io/instance-type")
_AFFINITY: Final = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")


@dataclass(frozen=True, slots=True)
class Place:
    """A container of a pod spec, and what it requests."""

    list_name: str
    """``containers`` or ``initContainers``."""
    index: int
    name: str
    """Of the resource in the limits."""
    request: ContainerRequest
    efa: int = 0
    """EFA devices in its limits."""

    @property
    def path(self) -> Path:
        """From the pod spec to the limit."""
        return (self.list_name, self.index, "resources", "limits", self.name)


def places(spec: Mapping[str, Any], origin: Origin, path: Path) -> tuple[Place, ...]:
    """The containers that request Neuron resources, init containers first.

    Args:
        spec: a pod spec whose fields have the types of the API.
        origin: of the object that contains it.
        path: from the object to the spec.

    Raises:
        ManifestError: an amount that Kubernetes would reject, or two resources in one container.
    """
    found = [place for name in LISTS for place in _of_list(spec, name, origin, path)]
    if len(found) > MAX_CONTAINERS:
        raise origin.error(path, f"{len(found)} containers ask for Neuron resources; at most {MAX_CONTAINERS} can")
    return tuple(found)


def devices_of_limits(spec: Mapping[str, Any]) -> int:
    """How many devices the claim has that kube-scheduler makes for a pod's Neuron limits, if classes offer them all."""
    amounts = of_pod(msgspec.convert(unread_left_out(spec), PodSpec))
    return sum(amounts.get(name, 0) for name in RESOURCES) // UNIT


def _of_list(spec: Mapping[str, Any], name: str, origin: Origin, path: Path) -> Iterator[Place]:
    for index, container in enumerate(spec.get(name) or ()):
        above = (*path, name, index, "resources")
        counts = {resource: limit for resource in RESOURCES if (limit := _limit(container, resource, origin, above))}
        if len(counts) > 1:
            what = f"container {container['name']} asks for {' and '.join(counts)}"
            raise origin.error((*above, "limits"), what, remedy="request only one: a device comes with all its cores")
        for resource, count in counts.items():
            request = ContainerRequest(container["name"], _role(name, container), RESOURCES[resource], count)
            efa = _limit(container, EFA, origin, above)
            yield Place(name, index, resource, request, efa)


def _limit(container: Mapping[str, Any], resource: str, origin: Origin, above: Path) -> int:
    """The amount in a container's limits, 0 if there is none; ``above`` leads to its ``resources``."""
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    limit = _count(limits.get(resource), origin, (*above, "limits", resource))
    requested = _count(requests.get(resource), origin, (*above, "requests", resource))
    if requested is not None and requested != limit:
        what = f"must be equal to the limit, which is {'missing' if limit is None else limit}"
        raise origin.error((*above, "requests", resource), what)
    return limit or 0


def _role(list_name: str, container: Mapping[str, Any]) -> Role:
    if list_name == "containers":
        return Role.MAIN
    return Role.SIDECAR if container.get("restartPolicy") == "Always" else Role.INIT


def _count(value: Any, origin: Origin, path: Path) -> int | None:
    if value is None:
        return None
    number = quantity(value if isinstance(value, str | int | float) else "")
    if number is None:
        raise origin.error(path, f"{str(value)[:60]!r} is not a number of devices", remedy="give a whole number from 0")
    if number > MAX_COUNT:
        raise origin.error(path, f"{number} is more than any node has")
    return number


def without(resources: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """``resources`` of a container without amounts of these, and without fields that become empty."""
    made: dict[str, Any] = {}
    for key, value in resources.items():
        if key not in ("limits", "requests"):
            made[key] = value
        elif rest := {name: amount for name, amount in (value or {}).items() if name not in names}:
            made[key] = rest
    return made


def chosen_types(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The instance types that a pod's node selector or required affinity allows, sorted; () if it allows any."""
    selector = spec.get("nodeSelector") or {}
    found = {selector[label] for label in _TYPE_LABELS if label in selector}
    node: Any = spec
    for step in _AFFINITY:
        node = node.get(step) or {}
    terms = [_types_of_term(term) for term in node.get("nodeSelectorTerms") or ()]
    if terms and all(terms):
        among = set().union(*terms)
        found = found & among or found | among
    return tuple(sorted(found))


def _types_of_term(term: Mapping[str, Any]) -> set[str]:
    return {
        value
        for expression in term.get("matchExpressions") or ()
        if expression.get("key") in _TYPE_LABELS and expression.get("operator") == "In"
        for value in expression.get("values") or ()
    }

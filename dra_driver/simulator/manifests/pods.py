"""From a pod's spec to its claims and the nodes that it may run on, and what of it is not considered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_driver.simulator.manifests.documents import Origin
from dra_driver.simulator.manifests.names import generated
from dra_driver.simulator.manifests.requested import is_extended
from dra_driver.simulator.manifests.values import ClaimReference, ExclusiveGroup, PodWithClaims
from dra_driver.simulator.objects import Quantity
from dra_driver.simulator.workloads import ExtendedClaimStatus, PodClaimStatus, PodResourceClaim, PodSpec, Resources

_OVER: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Described:
    """A pod as it is to be, whoever makes it. ``path`` leads from the origin to the spec."""

    namespace: str
    name: str
    spec: PodSpec
    origin: Origin
    path: tuple[str | int, ...] = ("spec",)
    controller: str = ""
    spread_with: str = ""
    """As in ``PodWithClaims``."""
    labels: Mapping[str, str] = field(default_factory=dict)
    statuses: tuple[PodClaimStatus, ...] = ()
    extended: ExtendedClaimStatus | None = None
    phase: str = ""
    group: ExclusiveGroup | None = None
    leaving: bool = False
    """Whether it is being deleted."""

    @property
    def ended(self) -> bool:
        """Whether it needs nothing any more."""
        return self.phase in _OVER or (self.leaving and not self.spec.node_name)


def with_claims(pod: Described) -> PodWithClaims:
    """ManifestError for an entry that names no claim or two, a name that comes twice, or one that is not there."""
    entries, names = pod.spec.resource_claims, [entry.name for entry in pod.spec.resource_claims]
    for place, entry in enumerate(entries):
        path = (*pod.path, "resourceClaims", place)
        if (entry.resource_claim_name is None) == (entry.resource_claim_template_name is None):
            raise pod.origin.error(path, "exactly one of resourceClaimName and resourceClaimTemplateName is needed")
        if entry.name in names[:place]:
            raise pod.origin.error((*path, "name"), f"the name {entry.name} comes twice")
    for kind in ("containers", "initContainers"):
        containers = pod.spec.containers if kind == "containers" else pod.spec.init_containers
        for number, container in enumerate(containers):
            for place, use in enumerate(container.resources.claims):
                if use.name not in names:
                    path = (*pod.path, kind, number, "resources", "claims", place, "name")
                    raise pod.origin.error(
                        path, f"the pod has no claim {use.name}", remedy="add it to the pod's resourceClaims"
                    )
    affinity = pod.spec.affinity.node_affinity
    known = {status.name: status.resource_claim_name for status in pod.statuses}
    claims = tuple(
        _reference(pod, entry, (*pod.path, "resourceClaims", place), known)
        for place, entry in enumerate(entries)
        # Kubernetes notes here when a template's claim was not needed.
        if not (entry.name in known and known[entry.name] is None)
    )
    if pod.extended is not None:
        claims += (
            ClaimReference("", pod.extended.resource_claim_name, path=("status", "extendedResourceClaimStatus")),
        )
    return PodWithClaims(
        namespace=pod.namespace,
        name=pod.name,
        claims=claims,
        node_name=pod.spec.node_name,
        node_selector=pod.spec.node_selector,
        node_affinity=affinity.required_during_scheduling_ignored_during_execution if affinity else None,
        tolerations=pod.spec.tolerations,
        group=pod.group,
        controller=pod.controller,
        spread_with=pod.spread_with,
        labels=pod.labels,
        spec=pod.spec,
        origin=pod.origin,
    )


def _reference(
    pod: Described, entry: PodResourceClaim, path: tuple[str | int, ...], known: dict[str, str | None]
) -> ClaimReference:
    if entry.resource_claim_name is not None:
        return ClaimReference(entry.name, entry.resource_claim_name, path=path)
    existing = known.get(entry.name)
    if existing is not None:
        return ClaimReference(entry.name, existing, path=path)
    prefix = f"{pod.name}-{entry.name}-"
    return ClaimReference(
        entry.name, generated(prefix, pod.namespace), entry.resource_claim_template_name or "", path=path
    )


def _amounts(spec: PodSpec) -> Iterator[tuple[tuple[str | int, ...], Mapping[str, Quantity]]]:
    """Everything that the pod asks of a node by quantity, and where it stands in the spec."""
    holders: list[tuple[tuple[str | int, ...], Resources]] = [
        *((("containers", place, "resources"), item.resources) for place, item in enumerate(spec.containers)),
        *((("initContainers", place, "resources"), item.resources) for place, item in enumerate(spec.init_containers)),
        (("resources",), spec.resources),
    ]
    for path, resources in holders:
        yield (*path, "requests"), resources.requests
        yield (*path, "limits"), resources.limits
    yield ("overhead",), spec.overhead


def _resources(spec: PodSpec) -> Iterator[str]:
    """Extended resources aside: whether they are considered depends on the DeviceClasses."""
    for path, amounts in _amounts(spec):
        kind = "overhead" if path == ("overhead",) else "resources"
        yield from (f"{kind}: {name}" for name in amounts if not is_extended(name))


_UNCONSIDERED: Final[tuple[tuple[str, Callable[[PodSpec], object]], ...]] = (
    ("affinity: podAffinity", lambda spec: spec.affinity.pod_affinity),
    ("affinity: podAntiAffinity", lambda spec: spec.affinity.pod_anti_affinity),
    (
        "topologySpreadConstraints with DoNotSchedule",
        lambda spec: any(item.when_unsatisfiable != "ScheduleAnyway" for item in spec.topology_spread_constraints),
    ),
    ("schedulingGates (taken as removed)", lambda spec: spec.scheduling_gates),
    ("schedulingGroup", lambda spec: spec.scheduling_group),
    ("hostPort", lambda spec: any("hostPort" in port for item in spec.containers for port in item.ports)),
    (
        "volumes that only some nodes can reach",
        lambda spec: any({"persistentVolumeClaim", "ephemeral", "csi"} & set(item) for item in spec.volumes),
    ),
    ("runtimeClassName", lambda spec: spec.runtime_class_name),
    ("schedulerName", lambda spec: spec.scheduler_name not in ("", "default-scheduler")),
)


def unconsidered(pod: Described) -> Iterable[str]:
    """What of the pod a scheduler would look at and the simulator does not, each once."""
    found = [text for text, says in _UNCONSIDERED if says(pod.spec)]
    return dict.fromkeys((*_resources(pod.spec), *found))

"""From a pod's spec to its claims and eligible nodes, and the parts that are not considered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from dra_driver.kube.documents import Origin
from dra_driver.kube.objects.apps import DaemonSet, PodTemplate
from dra_driver.kube.objects.core import Container, Pod, PodResourceClaim, PodSpec, PodStatus
from dra_driver.simulator.manifests.corevalidation import claims_used
from dra_driver.simulator.manifests.idle import SCALED_TO_ZERO
from dra_driver.simulator.manifests.model import ClaimReference, ExclusiveGroup, PodWithClaims, is_extended
from dra_driver.simulator.manifests.names import generated, suffix
from dra_driver.simulator.manifests.unasked import NEURON_RESOURCES, unasked
from dra_driver.simulator.manifests.validation import raise_first
from dra_driver.simulator.manifests.workloads import (
    CronJob,
    CustomWorkload,
    Deployment,
    Job,
    JobSpec,
    LeaderWorkerSet,
    ReplicaSet,
    ReplicationController,
    StatefulSet,
)

OVER: Final = ("Succeeded", "Failed")
"""Phases of pods that need nothing any more."""


@dataclass(frozen=True, slots=True)
class Described:
    """A pod to be created, directly or by a controller. ``path`` leads from the origin to the spec."""

    namespace: str
    name: str
    spec: PodSpec
    origin: Origin
    path: tuple[str | int, ...] = ("spec",)
    controller: str = ""
    spread_with: str = ""
    """As in ``PodWithClaims``."""
    labels: Mapping[str, str] = field(default_factory=dict)
    status: PodStatus = field(default_factory=PodStatus)
    group: ExclusiveGroup | None = None
    leaving: bool = False
    """Whether it is being deleted."""
    assumed: str = ""
    """What is not known of the number of such pods, as a part that is not considered; "": nothing."""

    @property
    def ended(self) -> bool:
        """Whether it has terminated and needs nothing any more."""
        return self.status.phase in OVER or (self.leaving and not self.spec.node_name)


def with_claims(pod: Described, value: Any) -> PodWithClaims:
    """The pod of an object that was read as ``value``.

    Raises ManifestError for an entry with no claim or with two, a duplicate name, or an undefined one.
    """
    raise_first(claims_used(pod.spec), pod.origin, pod.path)
    claim_names = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    claims = tuple(
        _reference(pod, entry, (*pod.path, "resourceClaims", place), claim_names)
        for place, entry in enumerate(pod.spec.resource_claims)
        # Kubernetes records here that no claim was needed for a template.
        if not (entry.name in claim_names and claim_names[entry.name] is None)
    )
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        claims += (ClaimReference("", extended.resource_claim_name, path=("status", "extendedResourceClaimStatus")),)
    return PodWithClaims(
        namespace=pod.namespace,
        name=pod.name,
        claims=claims,
        group=pod.group,
        controller=pod.controller,
        spread_with=pod.spread_with,
        labels=pod.labels,
        spec=pod.spec,
        written=_written(value, pod.path),
        origin=pod.origin,
    )


def pod_notes(pod: PodWithClaims, beyond_it: Iterable[str], *, in_cluster: bool, others_ask: bool) -> Iterator[str]:
    """The notes on what is not considered of a pod: that it has no claims, or ``beyond_it``.

    Args:
        pod: the pod.
        beyond_it: what else is not considered of one that has claims.
        in_cluster: whether a cluster holds it, so that its node may be the scheduler's choice.
        others_ask: whether pods of the same object ask for Neuron devices.
    """
    asks = any(name.startswith(NEURON_RESOURCES) for name in pod.extended_resources)
    takes = next(unasked(pod.written.get("spec") or {}, others_ask=others_ask), None) is not None
    if pod.waits:
        yield from beyond_it
    elif asks and in_cluster:
        yield "Pod on a node, whose device plugin serves its limits of Neuron (they are in use there)"
    elif asks:
        yield (
            "Pod that requests Neuron devices with limits and sets nodeName, so the scheduler allocates nothing for it "
            "(it gets devices only from a device plugin of that node)"
        )
    elif not takes:
        yield "Pod without resource claims"
    if takes:
        yield (
            "Pod that uses Neuron devices without requesting them (by a host path, or a variable of the Neuron "
            "runtime), so nothing is allocated for it: request them with a claim"
        )


def _written(value: Any, path: Sequence[str | int]) -> Mapping[str, Any]:
    """What stands around the pod spec at ``path``: metadata and, of a Pod, status."""
    *above, name = path
    for step in above:
        value = value[int(step)] if isinstance(value, list) else (value or {}).get(step)
    around = value or {}
    return {**(around if name == "spec" else {}), "spec": around.get(name)}


def _reference(
    pod: Described, entry: PodResourceClaim, path: tuple[str | int, ...], claim_names: dict[str, str | None]
) -> ClaimReference:
    if entry.resource_claim_name is not None:
        return ClaimReference(entry.name, entry.resource_claim_name, path=path)
    existing = claim_names.get(entry.name)
    if existing is not None:
        return ClaimReference(entry.name, existing, path=path)
    prefix = f"{pod.name}-{entry.name}-"
    return ClaimReference(
        entry.name, generated(prefix, pod.namespace), entry.resource_claim_template_name or "", path=path
    )


def _resources(spec: PodSpec) -> Iterator[str]:
    """Without extended resources: whether those are considered depends on the DeviceClasses."""
    of_containers = [container.resources for container in (*spec.containers, *spec.init_containers)]
    for resources in (*of_containers, spec.resources):
        names = (*resources.requests, *resources.limits)
        yield from (f"resources: {name}" for name in names if not is_extended(name))
    yield from (f"overhead: {name}" for name in spec.overhead if not is_extended(name))


def _host_ports(container: Container) -> tuple[dict[str, Any], ...]:
    return tuple(port for port in container.ports if "hostPort" in port)


def _bound_volumes(spec: PodSpec) -> tuple[dict[str, Any], ...]:
    """Volumes that only some nodes can reach."""
    return tuple(item for item in spec.volumes if {"persistentVolumeClaim", "ephemeral", "csi"} & set(item))


def in_short(pod: Pod) -> Pod:
    """A pod of a cluster with what says something of it: any user may give one ten thousand volumes and ports."""
    spec = pod.spec
    containers, before = (
        tuple(msgspec.structs.replace(item, ports=_host_ports(item)[:1]) if item.ports else item for item in items)
        for items in (spec.containers, spec.init_containers)
    )
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(pod.metadata, annotations={}),
        spec=msgspec.structs.replace(
            spec, containers=containers, init_containers=before, volumes=_bound_volumes(spec)[:1]
        ),
    )


_UNCONSIDERED: Final[tuple[tuple[str, Callable[[PodSpec], object]], ...]] = (
    ("affinity: podAffinity", lambda spec: spec.affinity.pod_affinity),
    ("affinity: podAntiAffinity", lambda spec: spec.affinity.pod_anti_affinity),
    (
        "topologySpreadConstraints with DoNotSchedule",
        lambda spec: any(item.when_unsatisfiable != "ScheduleAnyway" for item in spec.topology_spread_constraints),
    ),
    ("schedulingGates (taken as removed)", lambda spec: spec.scheduling_gates),
    ("schedulingGroup (each pod is placed by itself)", lambda spec: spec.scheduling_group),
    ("hostPort", lambda spec: any(map(_host_ports, spec.containers))),
    ("volumes that only some nodes can reach", _bound_volumes),
    ("runtimeClassName", lambda spec: spec.runtime_class_name),
    ("schedulerName", lambda spec: spec.scheduler_name not in ("", "default-scheduler")),
)


def unconsidered(pod: Described) -> Iterable[str]:
    """The parts of the pod that a scheduler would evaluate and the simulator does not, each once."""
    parts = [text for text, says in _UNCONSIDERED if says(pod.spec)]
    return dict.fromkeys((*_resources(pod.spec), *parts, *filter(None, (pod.assumed,))))


MAX_PODS: Final = 150_000
"""Maximum number of pods in total: the size that Kubernetes is tested for."""
_MINUTES: Final = 8
"""Length of the time that a CronJob appends to its own name for each Job."""
_HASH: Final = 10
"""Length of the hash that a Deployment puts between its own name and the suffix of the pod's."""

_EXCLUSIVE: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"

_SPREADING: Final = ("ReplicationController", "ReplicaSet", "StatefulSet")
"""Controllers whose pods kube-scheduler spreads by default."""

_TEMPLATE: Final = ("spec", "template", "spec")


@dataclass(frozen=True, slots=True)
class _Maker:
    namespace: str
    origin: Origin
    least: int
    """The smallest number of pods that is taken: 1 where what is scaled to zero is taken as resumed."""

    def pod(
        self,
        name: str,
        template: PodTemplate,
        path: tuple[str | int, ...] = _TEMPLATE,
        group: ExclusiveGroup | None = None,
        spread_with: str = "",
        assumed: str = "",
    ) -> Described:
        return Described(
            self.namespace,
            name,
            template.spec,
            self.origin,
            path,
            self.origin.subject,
            group=group,
            spread_with=spread_with,
            labels=template.metadata.labels,
            assumed=assumed,
        )

    def spread(self, kind: str, name: str) -> str:
        """The value of ``spread_with``, as derived from the pods' owner reference."""
        return f"{kind} {self.namespace}/{name}"

    def count(self, number: int, *path: str) -> int:
        return max(self.within(number, *path), self.least)

    def within(self, number: int, *path: str) -> int:
        if not 0 <= number <= MAX_PODS:
            raise self.origin.error(path, f"{number} is not a number from 0 to {MAX_PODS}")
        return number


def _of_pod(pod: Pod, maker: _Maker) -> Iterator[Described]:
    yield Described(
        maker.namespace,
        pod.metadata.name,
        pod.spec,
        maker.origin,
        status=pod.status,
        spread_with=next(
            (
                maker.spread(owner.kind, owner.name)
                for owner in pod.metadata.owner_references
                if owner.controller and owner.kind in _SPREADING
            ),
            "",
        ),
        labels=pod.metadata.labels,
        leaving=pod.metadata.deletion_timestamp is not None,
    )


def _of_deployment(owner: Deployment, maker: _Maker) -> Iterator[Described]:
    name = f"{owner.metadata.name}-{suffix(owner.metadata.name, _HASH)}"
    together = maker.spread("ReplicaSet", name)
    for place in range(maker.count(owner.spec.replicas, "spec", "replicas")):
        yield maker.pod(generated(f"{name}-", str(place)), owner.spec.template, spread_with=together)


def _of_replica_set(owner: ReplicaSet | ReplicationController, maker: _Maker) -> Iterator[Described]:
    together = maker.spread(type(owner).__name__, owner.metadata.name)
    for place in range(maker.count(owner.spec.replicas, "spec", "replicas")):
        yield maker.pod(generated(f"{owner.metadata.name}-", str(place)), owner.spec.template, spread_with=together)


def _of_stateful_set(owner: StatefulSet, maker: _Maker) -> Iterator[Described]:
    first = maker.within(owner.spec.ordinals.start, "spec", "ordinals", "start")
    together = maker.spread("StatefulSet", owner.metadata.name)
    for place in range(maker.count(owner.spec.replicas, "spec", "replicas")):
        yield maker.pod(f"{owner.metadata.name}-{first + place}", owner.spec.template, spread_with=together)


def _of_job(owner: Job, maker: _Maker) -> Iterator[Described]:
    yield from _of_job_spec(maker, owner.spec, owner.metadata.name, ("spec",))


def _of_cron_job(owner: CronJob, maker: _Maker) -> Iterator[Described]:
    """The pods of one run."""
    name = f"{owner.metadata.name}-{suffix(owner.metadata.name, _MINUTES)}"
    yield from _of_job_spec(maker, owner.spec.job_template.spec, name, ("spec", "jobTemplate", "spec"))


def _of_job_spec(maker: _Maker, spec: JobSpec, name: str, path: tuple[str, ...]) -> Iterator[Described]:
    count = maker.count(spec.parallelism, *path, "parallelism")
    if spec.completions is not None:
        count = min(count, maker.count(spec.completions, *path, "completions"))
    for place in range(count):
        indexed = f"{place}-" if spec.completion_mode == "Indexed" else ""
        yield maker.pod(generated(f"{name}-{indexed}", str(place)), spec.template, (*path, "template", "spec"))


ONE_OF_EACH_NODE: Final = "how many pods a DaemonSet makes (one is taken, not one for each node)"


def _of_daemon_set(owner: DaemonSet, maker: _Maker) -> Iterator[Described]:
    yield maker.pod(generated(f"{owner.metadata.name}-", "0"), owner.spec.template, assumed=ONE_OF_EACH_NODE)


def _of_custom_workload(owner: CustomWorkload, maker: _Maker) -> Iterator[Described]:
    for item in owner.sets:
        name = "-".join(filter(None, (owner.metadata.name, item.role)))
        for place in range(item.count):
            yield maker.pod(f"{name}-{place}", item.template, item.path, assumed=item.assumed)


def _of_leader_worker_set(owner: LeaderWorkerSet, maker: _Maker) -> Iterator[Described]:
    group = owner.spec.leader_worker_template
    path = ("spec", "leaderWorkerTemplate")
    of_workers = (*path, "workerTemplate", "spec")
    of_leader = (*path, "leaderTemplate", "spec") if group.leader_template is not None else of_workers
    topology = owner.metadata.annotations.get(_EXCLUSIVE, "")
    size = maker.count(group.size, *path, "size")
    maker.count(owner.spec.replicas * max(size, 1), "spec", "replicas")
    for place in range(maker.count(owner.spec.replicas, "spec", "replicas")):
        leader = f"{owner.metadata.name}-{place}"
        together = ExclusiveGroup(leader, topology) if topology else None
        leaders, workers = (maker.spread("StatefulSet", name) for name in (owner.metadata.name, leader))
        yield maker.pod(leader, group.leader_template or group.worker_template, of_leader, together, leaders)
        for worker in range(1, size):
            yield maker.pod(f"{leader}-{worker}", group.worker_template, of_workers, together, workers)


_MAKERS: Final[Mapping[type, Callable[[Any, _Maker], Iterator[Described]]]] = {
    Pod: _of_pod,
    Deployment: _of_deployment,
    ReplicaSet: _of_replica_set,
    StatefulSet: _of_stateful_set,
    Job: _of_job,
    CronJob: _of_cron_job,
    DaemonSet: _of_daemon_set,
    ReplicationController: _of_replica_set,
    CustomWorkload: _of_custom_workload,
    LeaderWorkerSet: _of_leader_worker_set,
}


def makes_pods(kind: type) -> bool:
    """Whether objects of this kind are pods or create pods."""
    return kind in _MAKERS


def pod_specs(owner: Any) -> Iterator[tuple[tuple[str | int, ...], PodSpec]]:
    """Paths and ``spec`` of the pod templates of an object; empty if it creates no pods."""
    if isinstance(owner, Pod):
        yield ("spec",), owner.spec
    elif isinstance(owner, LeaderWorkerSet):
        group = owner.spec.leader_worker_template
        for name, template in (("leaderTemplate", group.leader_template), ("workerTemplate", group.worker_template)):
            if template is not None:
                yield ("spec", "leaderWorkerTemplate", name, "spec"), template.spec
    elif isinstance(owner, CronJob):
        yield ("spec", "jobTemplate", *_TEMPLATE), owner.spec.job_template.spec.template.spec
    elif isinstance(owner, CustomWorkload):
        yield from ((item.path, item.template.spec) for item in owner.sets)
    elif makes_pods(type(owner)):
        yield _TEMPLATE, owner.spec.template.spec


def pods(owner: Any, namespace: str, origin: Origin, *, least: int = 0) -> Iterator[Described]:
    """The pods of an object that is a pod or creates pods, of a controller at least this many.

    Raises ManifestError for an excessive number of them.
    """
    return _MAKERS[type(owner)](owner, _Maker(namespace, origin, least))


def without_pods(owner: Any, namespace: str, origin: Origin) -> Iterator[tuple[str, str]]:
    """Which part of an object that is not suspended makes no pods ("": the whole), and why."""
    if isinstance(owner, CustomWorkload):
        idle = [item for item in owner.sets if item.idle]
        for item in idle if len(idle) < len(owner.sets) else idle[:1]:
            yield item.role if len(idle) < len(owner.sets) else "", item.idle
    elif not isinstance(owner, Pod) and next(pods(owner, namespace, origin), None) is None:
        yield "", SCALED_TO_ZERO

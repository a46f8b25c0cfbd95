"""The pods that controllers make, under the names that they give them (random parts excepted: see ``names``).

A Job is taken as it starts: so many pods as run at once. Sources: ``pkg/controller`` of Kubernetes; LeaderWorkerSet's
``pkg/controllers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.simulator.manifests.documents import Origin
from dra_driver.simulator.manifests.names import generated, suffix
from dra_driver.simulator.manifests.pods import Described
from dra_driver.simulator.manifests.values import ExclusiveGroup
from dra_driver.simulator.workloads import (
    Deployment,
    Job,
    LeaderWorkerSet,
    Pod,
    PodSpec,
    PodTemplate,
    ReplicaSet,
    StatefulSet,
)

MOST_PODS: Final = 150_000
"""In all: the size that Kubernetes is tested for."""
_HASH: Final = 10
"""Characters that a Deployment puts between its name and the pod's."""

_EXCLUSIVE: Final = "leaderworkerset.sigs.k8s.io/exclusive-topology"

_SPREADING: Final = ("ReplicationController", "ReplicaSet", "StatefulSet")
"""Whose pods kube-scheduler spreads unless they say how."""

_TEMPLATE: Final = ("spec", "template", "spec")


@dataclass(frozen=True, slots=True)
class _Maker:
    owner: Any
    namespace: str
    origin: Origin

    def pod(
        self,
        name: str,
        template: PodTemplate,
        path: tuple[str, ...] = _TEMPLATE,
        group: ExclusiveGroup | None = None,
        spread_with: str = "",
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
        )

    def spread(self, kind: str, name: str) -> str:
        """As the pods' owner reference would say it."""
        return f"{kind} {self.namespace}/{name}"

    def count(self, number: int, *path: str) -> int:
        if not 0 <= number <= MOST_PODS:
            raise self.origin.error(path, f"{number} is not a number from 0 to {MOST_PODS}")
        return number


def _of_pod(maker: _Maker) -> Iterator[Described]:
    pod: Pod = maker.owner
    yield Described(
        maker.namespace,
        pod.metadata.name,
        pod.spec,
        maker.origin,
        statuses=pod.status.resource_claim_statuses,
        extended=pod.status.extended_resource_claim_status,
        spread_with=next(
            (
                maker.spread(owner.kind, owner.name)
                for owner in pod.metadata.owner_references
                if owner.controller and owner.kind in _SPREADING
            ),
            "",
        ),
        labels=pod.metadata.labels,
        phase=pod.status.phase,
        leaving=pod.metadata.deletion_timestamp is not None,
    )


def _of_deployment(maker: _Maker) -> Iterator[Described]:
    owner: Deployment = maker.owner
    name = f"{owner.metadata.name}-{suffix(owner.metadata.name, _HASH)}"
    together = maker.spread("ReplicaSet", name)
    for place in range(maker.count(owner.spec.replicas, "spec", "replicas")):
        yield maker.pod(generated(f"{name}-", str(place)), owner.spec.template, spread_with=together)


def _of_replica_set(maker: _Maker) -> Iterator[Described]:
    owner: ReplicaSet = maker.owner
    together = maker.spread("ReplicaSet", owner.metadata.name)
    for place in range(maker.count(owner.spec.replicas, "spec", "replicas")):
        yield maker.pod(generated(f"{owner.metadata.name}-", str(place)), owner.spec.template, spread_with=together)


def _of_stateful_set(maker: _Maker) -> Iterator[Described]:
    owner: StatefulSet = maker.owner
    first = maker.count(owner.spec.ordinals.start, "spec", "ordinals", "start")
    together = maker.spread("StatefulSet", owner.metadata.name)
    for place in range(maker.count(owner.spec.replicas, "spec", "replicas")):
        yield maker.pod(f"{owner.metadata.name}-{first + place}", owner.spec.template, spread_with=together)


def _of_job(maker: _Maker) -> Iterator[Described]:
    owner: Job = maker.owner
    spec = owner.spec
    count = 0 if spec.suspend else maker.count(spec.parallelism, "spec", "parallelism")
    if spec.completions is not None:
        count = min(count, maker.count(spec.completions, "spec", "completions"))
    for place in range(count):
        indexed = f"{place}-" if spec.completion_mode == "Indexed" else ""
        yield maker.pod(generated(f"{owner.metadata.name}-{indexed}", str(place)), spec.template)


def _of_leader_worker_set(maker: _Maker) -> Iterator[Described]:
    owner: LeaderWorkerSet = maker.owner
    group = owner.spec.leader_worker_template
    path = ("spec", "leaderWorkerTemplate")
    of_workers = (*path, "workerTemplate", "spec")
    of_leader = (*path, "leaderTemplate", "spec") if group.leader_template is not None else of_workers
    topology = owner.metadata.annotations.get(_EXCLUSIVE, "")
    size = maker.count(group.size, *path, "size")
    maker.count(owner.spec.replicas * max(size, 1), "spec", "replicas")
    for place in range(owner.spec.replicas):
        leader = f"{owner.metadata.name}-{place}"
        together = ExclusiveGroup(leader, topology) if topology else None
        leaders, workers = (maker.spread("StatefulSet", name) for name in (owner.metadata.name, leader))
        yield maker.pod(leader, group.leader_template or group.worker_template, of_leader, together, leaders)
        for worker in range(1, size):
            yield maker.pod(f"{leader}-{worker}", group.worker_template, of_workers, together, workers)


_MAKERS: Final[Mapping[type, Callable[[_Maker], Iterator[Described]]]] = {
    Pod: _of_pod,
    Deployment: _of_deployment,
    ReplicaSet: _of_replica_set,
    StatefulSet: _of_stateful_set,
    Job: _of_job,
    LeaderWorkerSet: _of_leader_worker_set,
}


def makes_pods(kind: type) -> bool:
    """Whether objects of this kind are pods or make them."""
    return kind in _MAKERS


def pod_specs(owner: Any) -> Iterator[tuple[tuple[str, ...], PodSpec]]:
    """Path and ``spec`` of what the pods are made from; nothing for what makes none."""
    if isinstance(owner, Pod):
        yield ("spec",), owner.spec
    elif isinstance(owner, LeaderWorkerSet):
        group = owner.spec.leader_worker_template
        for name, template in (("leaderTemplate", group.leader_template), ("workerTemplate", group.worker_template)):
            if template is not None:
                yield ("spec", "leaderWorkerTemplate", name, "spec"), template.spec
    elif makes_pods(type(owner)):
        yield _TEMPLATE, owner.spec.template.spec


def pods(owner: Any, namespace: str, origin: Origin) -> Iterator[Described]:
    """The pods of an object that is one or makes them. ManifestError for an impossible number of them."""
    return _MAKERS[type(owner)](_Maker(owner, namespace, origin))

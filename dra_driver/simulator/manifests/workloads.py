"""What makes pods: Kubernetes' controllers, LeaderWorkerSet, and kinds of which only the pod templates are known.

Valid fields that are never read are listed in ``manifests.fields``, so that misspelt ones are detected.
"""

from __future__ import annotations

from dra_driver.kube.objects.apps import PodTemplate
from dra_driver.kube.objects.meta import ApiObject, ObjectMeta


class ReplicaSpec(ApiObject, frozen=True):
    """``spec`` of a Deployment or a ReplicaSet."""

    template: PodTemplate
    replicas: int = 1


class Ordinals(ApiObject, frozen=True):
    """``ordinals``: the first number of a StatefulSet's pods."""

    start: int = 0


class StatefulSpec(ApiObject, frozen=True):
    """``spec`` of a StatefulSet."""

    template: PodTemplate
    replicas: int = 1
    ordinals: Ordinals = Ordinals()


class JobSpec(ApiObject, frozen=True):
    """``spec`` of a Job."""

    template: PodTemplate
    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool = False


class JobTemplate(ApiObject, frozen=True):
    """``jobTemplate`` of a CronJob."""

    spec: JobSpec
    metadata: ObjectMeta = ObjectMeta()


class CronJobSpec(ApiObject, frozen=True):
    """``spec`` of a CronJob."""

    job_template: JobTemplate
    suspend: bool = False


class LeaderWorkerTemplate(ApiObject, frozen=True):
    """One group of a LeaderWorkerSet; without a leader template, all pods use the worker's."""

    worker_template: PodTemplate
    leader_template: PodTemplate | None = None
    size: int = 1


class LeaderWorkerSpec(ApiObject, frozen=True):
    """``spec`` of a LeaderWorkerSet."""

    leader_worker_template: LeaderWorkerTemplate
    replicas: int = 1


class _Workload(ApiObject, frozen=True):
    metadata: ObjectMeta


class Deployment(_Workload, frozen=True):
    """A Deployment."""

    spec: ReplicaSpec


class ReplicaSet(_Workload, frozen=True):
    """A ReplicaSet."""

    spec: ReplicaSpec


class StatefulSet(_Workload, frozen=True):
    """A StatefulSet."""

    spec: StatefulSpec


class Job(_Workload, frozen=True):
    """A Job."""

    spec: JobSpec


class CronJob(_Workload, frozen=True):
    """A CronJob."""

    spec: CronJobSpec


class ReplicationController(_Workload, frozen=True):
    """A ReplicationController."""

    spec: ReplicaSpec


class LeaderWorkerSet(_Workload, frozen=True):
    """A LeaderWorkerSet."""

    spec: LeaderWorkerSpec


class PodSet(ApiObject, frozen=True):
    """The pods of one pod template of a job kind."""

    template: PodTemplate
    path: tuple[str | int, ...]
    """From the object to the pod's ``spec``."""
    count: int
    role: str
    """Part of the pods' names; unique in the object."""
    assumed: str = ""
    """What is not known of their number; "": nothing."""
    idle: str = ""
    """Why the object makes none of them, unless it is resumed; "": it makes them."""


class CustomWorkload(_Workload, frozen=True):
    """An object of a kind that is no part of Kubernetes, with pod templates."""

    sets: tuple[PodSet, ...]

"""Workloads whose pods cannot be created: of such a pod there is nothing but an Event of the controller that wants it.

Values in, values out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dra_driver.kube.api.codec import Resource
from dra_driver.kube.objects.apps import PodTemplate
from dra_driver.kube.objects.meta import ApiObject, Condition, ObjectMeta
from dra_driver.operations.overview.findings import Finding, finding
from dra_driver.operations.overview.objects import PodEvent, may_have_devices
from dra_driver.operations.overview.pods import ADMISSION, by_pattern
from dra_driver.util.text import one_line

FAILED_CREATE: Final = "FailedCreate"
"""Reason of controllers' Events about what they could not create."""
MAX_WORKLOADS: Final = 50
"""Of those with such Events, so many are looked at, the last ones."""


class _LeaderWorkerTemplate(ApiObject, frozen=True):
    worker_template: PodTemplate | None = None


class _Spec(ApiObject, frozen=True):
    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None
    suspend: bool | None = None
    template: PodTemplate | None = None
    leader_worker_template: _LeaderWorkerTemplate = _LeaderWorkerTemplate()


class _Status(ApiObject, frozen=True):
    replicas: int = 0
    active: int = 0
    succeeded: int = 0
    conditions: tuple[Condition, ...] = ()


class Workload(ApiObject, frozen=True):
    """What makes pods; the fields of all its kinds."""

    metadata: ObjectMeta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def wants_devices(self) -> bool:
        """Whether its pods may get Neuron devices."""
        template = self.spec.template or self.spec.leader_worker_template.worker_template
        return template is not None and may_have_devices(template.spec)

    def lacks_pods(self, kind: str) -> bool:
        """Whether it has fewer pods now than it wants: an Event stays for an hour, whatever becomes of it."""
        spec, status = self.spec, self.status
        if kind != "Job":
            return status.replicas < (1 if spec.replicas is None else spec.replicas)
        ended = any(item.type in ("Complete", "Failed") and item.status == "True" for item in status.conditions)
        wanted = 1 if spec.parallelism is None else spec.parallelism
        if spec.completions is not None:
            wanted = min(wanted, spec.completions - status.succeeded)
        return not (ended or spec.suspend) and status.active < wanted


WORKLOADS: Final = {
    kind: Resource(Workload, kind, plural, (version,))
    for kind, plural, version in (
        ("Job", "jobs", "batch/v1"),
        ("ReplicaSet", "replicasets", "apps/v1"),
        ("StatefulSet", "statefulsets", "apps/v1"),
        ("LeaderWorkerSet", "leaderworkersets", "leaderworkerset.x-k8s.io/v1"),
    )
}
"""Kinds whose controllers create pods, or what creates them."""


@dataclass(frozen=True, slots=True)
class Podless:
    """A workload that lacks pods, and why."""

    kind: str
    """Of the workload as people know it: of a Deployment and not of its ReplicaSet."""
    namespace: str
    name: str
    own_name: str
    """Of the object that the Event is about."""
    finding: Finding

    @property
    def subject(self) -> str:
        """Which one it is."""
        return f"{self.kind} {self.namespace}/{self.name}"

    def concerns(self, name: str) -> bool:
        """Whether it has the name, or is refused a pod of the name."""
        named = re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", self.finding.text)
        return name in (self.name, self.own_name) or named is not None


def podless(workload: Workload, event: PodEvent) -> Podless | None:
    """Why a workload lacks pods; None: it lacks none, or they would get no Neuron devices."""
    meta = workload.metadata
    if meta.uid != event.uid or not workload.wants_devices or not workload.lacks_pods(event.kind):
        return None
    # Pods own the StatefulSets of a LeaderWorkerSet's groups.
    makers = ((item.kind, item.name) for item in meta.owner_references if item.controller and item.kind != "Pod")
    kind, name = next(makers, (event.kind, meta.name))
    reason = by_pattern(_REFUSAL, event.text) or FAILED_CREATE
    text = f"pods of it cannot be created ({event.last}): {event.text}"
    cause = finding(reason, text, since=event.last, namespace=meta.namespace)
    return Podless(one_line(kind, 64), meta.namespace, one_line(name, 256), meta.name, cause)


_REFUSAL: Final = {
    "PodQuotaExceeded": re.compile(r"(exceeded|failed) quota: "),
    "LimitRangeExceeded": re.compile(r"(maximum|minimum) [^ ]+ usage per |max limit to request ratio per "),
    **ADMISSION,
}
"""Reasons by what the API server says of a pod."""

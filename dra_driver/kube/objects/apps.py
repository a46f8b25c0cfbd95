"""What makes pods on nodes (``apps/v1``)."""

from __future__ import annotations

from dra_driver.kube.objects.core import PodSpec
from dra_driver.kube.objects.meta import ApiObject, ObjectMeta


class PodTemplate(ApiObject, frozen=True):
    """``template`` of a controller."""

    spec: PodSpec
    metadata: ObjectMeta = ObjectMeta()


class DaemonSetSpec(ApiObject, frozen=True):
    """``spec`` of a DaemonSet."""

    template: PodTemplate


class DaemonSetStatus(ApiObject, frozen=True):
    """``status`` of a DaemonSet, which its controller writes: on how many nodes a pod of it is."""

    current_number_scheduled: int = 0


class DaemonSet(ApiObject, frozen=True):
    """A DaemonSet."""

    metadata: ObjectMeta
    spec: DaemonSetSpec
    status: DaemonSetStatus = DaemonSetStatus()

"""The pods of this node as the device plugin sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dra_driver.errors import DriverError
from dra_driver.kube.types import ApiObject, ObjectMeta, Resource
from dra_driver.legacy.annotations import PodAnnotations, from_mapping
from dra_driver.legacy.demand import ENDED, Demand, PodSpec, PodStatus, demand

CHOSEN_BY: Final = "neuron.aws.com/chosen-by"
"""Pod annotation: who has chosen, where it was not an extender."""
DEVICE_PLUGIN: Final = "device-plugin"


class PartialPod(ApiObject, frozen=True):
    """A pod as the API server tells of it."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


PODS: Final = Resource(PartialPod, "Pod", "pods", ("v1",))


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod of this node that has not ended.

    Attributes:
        namespace: of the pod.
        name: of the pod.
        uid: of the pod.
        created: RFC 3339.
        running: whether kubelet has started it, hence has allocated for all its containers.
        wants: what it asks for; None when that cannot be read.
        trouble: why it cannot be read, or "".
        annotations: those in use.
        by_plugin: whether this plugin has chosen what they tell.
    """

    namespace: str
    name: str
    uid: str
    created: str
    running: bool
    wants: Demand | None
    trouble: str
    annotations: PodAnnotations
    by_plugin: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def bound_pod(pod: PartialPod) -> BoundPod | None:
    """The pod, None when it has ended or asks for nothing of Neuron."""
    if pod.status.phase in ENDED:
        return None
    wants: Demand | None
    try:
        wants, trouble = demand(pod.spec.init_containers, pod.spec.containers), ""
    except DriverError as error:
        wants, trouble = None, str(error)
    if wants == ():
        return None
    meta = pod.metadata
    return BoundPod(
        meta.namespace,
        meta.name,
        meta.uid,
        meta.creation_timestamp or "",
        pod.status.phase == "Running",
        wants,
        trouble,
        from_mapping(meta.annotations or {}),
        (meta.annotations or {}).get(CHOSEN_BY) == DEVICE_PLUGIN,
    )

"""Pods, as far as their placement goes."""

from __future__ import annotations

from typing import Final

from dra_driver.kube.cluster import Condition
from dra_driver.kube.collection import ApiObject, Resource
from dra_driver.kube.objects import ObjectMeta


class PodSchedulingGate(ApiObject, frozen=True):
    """``spec.schedulingGates[]``: while there is one, the scheduler leaves the pod alone."""

    name: str


class PodToleration(ApiObject, frozen=True):
    """``spec.tolerations[]``."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class PodResourceClaim(ApiObject, frozen=True):
    """``spec.resourceClaims[]``."""

    name: str


class PodSpec(ApiObject, frozen=True):
    """``spec``, the parts in use."""

    node_name: str = ""
    node_selector: dict[str, str] | None = None
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    tolerations: tuple[PodToleration, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()


class PodStatus(ApiObject, frozen=True):
    """``status``, the parts in use."""

    phase: str = "Pending"
    conditions: tuple[Condition, ...] = ()
    nominated_node_name: str = ""
    """Where the scheduler makes room for it by preemption."""


class Pod(ApiObject, frozen=True):
    """A pod; changed by patches only."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


PODS: Final = Resource(Pod, "Pod", "pods", ("v1",))

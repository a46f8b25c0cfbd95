"""What a pod requests of a node: processor, memory and extended resources, as kube-scheduler adds it up.

Source: ``k8s.io/component-helpers/resource`` (``PodRequests``) of Kubernetes 1.37; limits stand for requests that are
not given, as the API server fills them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dra_driver.simulator.quantity import nanos
from dra_driver.simulator.workloads import Container, PodSpec

SCORED: Final = ("cpu", "memory")
"""The resources that the default profile scores."""
IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass: the extended resource that every class offers."""

Amounts = dict[str, int]
"""Resources by name, in units of 10^-9."""


def is_extended(name: str) -> bool:
    """Whether it is neither Kubernetes' own resource nor one that belongs to quotas, or what a DeviceClass is for."""
    own = "/" not in name or "kubernetes.io/" in name or name.startswith("requests.")
    return not own or name.startswith(IMPLICIT)


def of_container(container: Container) -> Amounts:
    """What a container requests."""
    return {
        name: nanos(amount) for name, amount in {**container.resources.limits, **container.resources.requests}.items()
    }


def of_pod(spec: PodSpec, missing: Mapping[str, int] | None = None) -> Amounts:
    """What the pod requests: the containers that run together, or an init container where that is more.

    Args:
        spec: of the pod.
        missing: what a container counts as that does not say how much it requests of a resource.
    """
    beside: Amounts = {}
    most: Amounts = {}
    for container in spec.init_containers:
        wanted = {**(missing or {}), **of_container(container)}
        if container.restart_policy == "Always":
            beside = _sum((beside, wanted))
            wanted = beside
        else:
            wanted = _sum((beside, wanted))
        most = _most(most, wanted)
    running = _sum((beside, *({**(missing or {}), **of_container(item)} for item in spec.containers)))
    of_whole_pod = {
        name: nanos(amount) for name, amount in {**spec.resources.limits, **spec.resources.requests}.items()
    }
    overhead = {name: nanos(amount) for name, amount in spec.overhead.items()}
    return _sum(({**_most(most, running), **of_whole_pod}, overhead))


def _sum(amounts: Iterable[Mapping[str, int]]) -> Amounts:
    total: Amounts = {}
    for item in amounts:
        for name, amount in item.items():
            total[name] = total.get(name, 0) + amount
    return total


def _most(one: Mapping[str, int], other: Mapping[str, int]) -> Amounts:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in (*one, *other)}

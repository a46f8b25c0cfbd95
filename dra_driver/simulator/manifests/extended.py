"""Extended resources that DeviceClasses offer: pods ask for them by limits, and kube-scheduler makes a claim.

A node whose device plugin offers the resource serves it itself; on other nodes it is devices of the class.

Source: ``pkg/scheduler/framework/plugins/dynamicresources/extendeddynamicresources.go`` of Kubernetes 1.37; 1.36 does
the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from dra_driver.kube.types import ObjectMeta, OwnerReference
from dra_driver.simulator.manifests.names import generated, uid
from dra_driver.simulator.manifests.requested import IMPLICIT, of_container
from dra_driver.simulator.manifests.values import PodWithClaims
from dra_driver.simulator.objects import (
    DeviceClaim,
    DeviceClass,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimSpec,
)
from dra_driver.simulator.quantity import UNIT
from dra_driver.simulator.workloads import Container

NEURON_RESOURCES = "aws.amazon.com/neuron"
"""What Neuron's device plugin offers begins so: this, ``neurondevice`` and ``neuroncore``."""
_NOT_YET = "9999"
"""Later than any time: of classes that are only applied."""


def offering(classes: Iterable[DeviceClass]) -> dict[str, str]:
    """The class behind each extended resource; of several the newest, then the first by name."""
    found: dict[str, str] = {}
    by_name = sorted(classes, key=lambda item: item.metadata.name)
    for item in sorted(by_name, key=lambda item: item.metadata.creation_timestamp or _NOT_YET, reverse=True):
        found[IMPLICIT + item.metadata.name] = item.metadata.name
        if item.spec.extended_resource_name is not None:
            found.setdefault(item.spec.extended_resource_name, item.metadata.name)
    return found


def special_claim(pod: PodWithClaims, wanted: Collection[str], classes: Mapping[str, str]) -> ResourceClaim:
    """The claim that kube-scheduler makes for the pod on a node.

    Args:
        pod: that asks for extended resources.
        wanted: those that the node does not offer by itself, and a class does.
        classes: as from ``offering``.
    """
    prefix = f"{pod.name}-extended-resources-"
    owner = OwnerReference("v1", "Pod", pod.name, uid(f"Pod {pod.namespace}/{pod.name}"), controller=True)
    name = generated(prefix, pod.namespace)
    meta = ObjectMeta(
        name=name,
        namespace=pod.namespace,
        uid=uid(f"ResourceClaim {pod.namespace}/{name}"),
        annotations={"resource.kubernetes.io/extended-resource-claim": "true"},
        owner_references=(owner,),
    )
    found = (
        DeviceRequest(name, ExactDeviceRequest(device_class_name=classes[resource], count=count))
        for resource in wanted
        for name, count in _requests(pod, resource)
    )
    requests = tuple(sorted(found, key=lambda item: item.name))
    return ResourceClaim(meta, ResourceClaimSpec(DeviceClaim(requests)))


def _requests(pod: PodWithClaims, resource: str) -> Iterator[tuple[str, int]]:
    """One for each container that runs on; init containers use those of later ones, and share what they need beside."""
    init = pod.spec.init_containers
    containers = (*init, *pod.spec.containers)
    lasting = [
        0 if place < len(init) and item.restart_policy != "Always" else _count(item, resource)
        for place, item in enumerate(containers)
    ]
    beside = [
        (max(_count(item, resource) - sum(lasting[place:]), 0), place)
        for place, item in enumerate(init)
        if item.restart_policy != "Always"
    ]
    most, place = max(beside, key=lambda pair: pair[0], default=(0, 0))
    if most:
        yield _name(place, containers[place], resource), most
    for place, count in enumerate(lasting):
        if count:
            yield _name(place, containers[place], resource), count


def _count(container: Container, resource: str) -> int:
    """Zero for an amount that is not whole."""
    amount = of_container(container).get(resource, 0)
    return 0 if amount % UNIT else amount // UNIT


def _name(place: int, container: Container, resource: str) -> str:
    return f"container-{place}-request-{sorted(of_container(container)).index(resource)}"

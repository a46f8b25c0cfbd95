"""What kubelet says which containers have which devices (PodResources API v1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dra_driver.kubeletplugin.api import podresources_v1_pb2 as api
from dra_driver.kubeletplugin.calls import call

SOCKET: Final = "pod-resources/kubelet.sock"
"""Below kubelet's directory."""

_LIST: Final = f"/{api.DESCRIPTOR.services_by_name['PodResourcesLister'].full_name}/List"


@dataclass(frozen=True, slots=True)
class PodDevices:
    """One pod that kubelet runs, or is about to run.

    Attributes:
        namespace: of the pod.
        name: of the pod.
        containers: ids of the devices by resource, by container. Init containers are missing, but for those that go
            on beside the others.
        claimed: devices of claims as (driver, device name).
    """

    namespace: str
    name: str
    containers: Mapping[str, Mapping[str, frozenset[str]]]
    claimed: frozenset[tuple[str, str]] = field(default=frozenset())

    def devices(self, resource: str) -> frozenset[str]:
        """Ids of a resource that any listed container has."""
        return frozenset().union(*(found.get(resource, frozenset()) for found in self.containers.values()))


def list_pods(kubelet_directory: Path, seconds: float = 5.0) -> tuple[PodDevices, ...]:
    """All pods of the node as kubelet sees them now. Raises CallError."""
    answer = call(
        kubelet_directory / SOCKET, _LIST, api.ListPodResourcesRequest(), api.ListPodResourcesResponse, seconds
    )
    return tuple(map(_pod, answer.pod_resources))


def _pod(message: api.PodResources) -> PodDevices:
    containers: dict[str, dict[str, frozenset[str]]] = {}
    claimed: set[tuple[str, str]] = set()
    for container in message.containers:
        found = containers.setdefault(container.name, {})
        for entry in container.devices:  # one for each NUMA node
            ids = frozenset(entry.device_ids)
            found[entry.resource_name] = found.get(entry.resource_name, frozenset()) | ids
        claimed |= {
            (device.driver_name, device.device_name)
            for claim in container.dynamic_resources
            for device in claim.claim_resources
        }
    return PodDevices(message.namespace, message.name, containers, frozenset(claimed))

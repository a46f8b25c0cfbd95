"""What a pod requests: its containers' limits of the two resources, parsed strictly.

Amounts are Kubernetes quantities. The API server stores only whole numbers, but the extender serves whoever reaches its
port, so nothing is taken for granted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final

import msgspec

from dra_driver.kube.objects.meta import ApiObject
from dra_driver.legacy.rules import NeuronResource
from dra_driver.util.errors import DriverError
from dra_driver.util.text import quoted

Number = str | int | float | None
MAX_CONTAINERS: Final = 64
"""Containers of one pod that request Neuron resources."""

_QUANTITY: Final = re.compile(r"([0-9]{1,18})(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?", re.ASCII)
_SUFFIXES: Final[dict[str, int]] = dict(zip("kMGTPE", (1000**power for power in range(1, 7)), strict=True)) | {
    f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)
}


class Limits(ApiObject, frozen=True):
    """``resources.limits`` or ``resources.requests``: the fields in use."""

    devices: Number = msgspec.field(name=NeuronResource.DEVICE.value, default=None)
    cores: Number = msgspec.field(name=NeuronResource.CORE.value, default=None)


class Resources(ApiObject, frozen=True):
    """``resources``."""

    limits: Limits | None = None
    requests: Limits | None = None


class LimitsContainer(ApiObject, frozen=True):
    """One of ``spec.containers`` or ``spec.initContainers``."""

    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None


class LimitsPodSpec(ApiObject, frozen=True):
    """``spec`` of a pod: the fields in use."""

    node_name: str = ""
    priority: int | None = None
    containers: tuple[LimitsContainer, ...] | None = None
    init_containers: tuple[LimitsContainer, ...] | None = None


class LimitsPodStatus(ApiObject, frozen=True):
    """``status`` of a pod: the field in use."""

    phase: str = "Pending"


ENDED: Final = frozenset({"Succeeded", "Failed"})
"""Phases in which a pod has released its devices."""


class Role(Enum):
    """When a container runs."""

    INIT = "before the others, alone"
    SIDECAR = "from its place among the init containers to the end"
    MAIN = "after the init containers"


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container requests."""

    container: str
    role: Role
    resource: NeuronResource
    count: int


PodRequest = tuple[ContainerRequest, ...]
"""In kubelet's order of allocation: init containers, then the others. Empty if the pod requests no Neuron resources."""


def pod_request(init: tuple[LimitsContainer, ...] | None, main: tuple[LimitsContainer, ...] | None) -> PodRequest:
    """What a pod requests. Raises DriverError naming the container and the invalid amount."""
    found = []
    for container in init or ():
        role = Role.SIDECAR if container.restart_policy == "Always" else Role.INIT
        found += _requests_of(container, role)
    for container in main or ():
        found += _requests_of(container, Role.MAIN)
    if len(found) > MAX_CONTAINERS:
        raise DriverError(
            f"{len(found)} containers of the pod ask for Neuron resources",
            remedy=f"at most {MAX_CONTAINERS} can",
        )
    return tuple(found)


_FEW: Final = 4
_LABEL_LENGTH: Final = 63


def shared(requests: PodRequest) -> PodRequest:
    """The same; for equal ones of a few containers, one that they share: pods of one template are many.

    What is kept for that is bounded, whatever pods ask for.
    """
    is_small = len(requests) <= _FEW and all(len(request.container) <= _LABEL_LENGTH for request in requests)
    return _first(requests) if is_small else requests


@lru_cache(maxsize=4096)
def _first(requests: PodRequest) -> PodRequest:
    return requests


def beside(requests: Sequence[ContainerRequest], item: int) -> list[int]:
    """The positions of the containers that may run at the same time as one of them.

    Args:
        requests: in kubelet's order: beside an init container run the sidecars before it.
        item: the position of that one.
    """
    role = requests[item].role

    def meets(at: int, other: Role) -> bool:
        if role is Role.INIT:
            return other is Role.SIDECAR and at < item
        return at != item and (other is not Role.INIT or (role is Role.SIDECAR and item < at))

    return [at for at, request in enumerate(requests) if meets(at, request.role)]


def at_once(requests: Iterable[ContainerRequest]) -> int:
    """The largest total that is in use at one time, as kubelet counts: beside an init container run earlier sidecars.

    Args:
        requests: in kubelet's order of allocation.
    """
    lasting = most = 0
    for request in requests:
        most = max(most, lasting + request.count)
        if request.role is not Role.INIT:
            lasting += request.count
    return most


def _requests_of(container: LimitsContainer, role: Role) -> list[ContainerRequest]:
    asked = container.resources or Resources()
    limits, requests = asked.limits or Limits(), asked.requests or Limits()
    given = {
        NeuronResource.DEVICE: requests.devices if limits.devices is None else limits.devices,
        NeuronResource.CORE: requests.cores if limits.cores is None else limits.cores,
    }
    counts = {name: _count(container.name, name, value) for name, value in given.items() if value is not None}
    found = [ContainerRequest(container.name, role, name, count) for name, count in counts.items() if count]
    if len(found) > 1:
        raise DriverError(
            f"container {quoted(container.name)} asks for both {NeuronResource.DEVICE.value} and "
            f"{NeuronResource.CORE.value}",
            remedy="request only one: a device comes with all its cores",
        )
    return found


def _count(container: str, resource: NeuronResource, value: str | float) -> int:
    number = quantity(value)
    if number is None:
        raise DriverError(
            f"container {quoted(container)} asks for {quoted(str(value))} of {resource.value}",
            remedy="give a whole number from 1",
        )
    return number


def quantity(value: str | float) -> int | None:
    """A Kubernetes quantity that is a whole number from 0, or None."""
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, suffix = int(match[1]), match[2] or ""
    if suffix == "m":
        return None if number % 1000 else number // 1000
    return number * (_SUFFIXES[suffix] if suffix else 1)

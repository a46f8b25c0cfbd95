"""Small clusters for tests of the allocator, written like the objects' YAML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dra_driver.kube.objects.resource import (
    AllocationResult,
    Device,
    DeviceAttribute,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)
from dra_driver.simulator.allocator import (
    Allocation,
    Deadline,
    NodeView,
    Refusal,
    Selectors,
    Usage,
    World,
    unlimited,
)
from dra_driver.util.errors import DriverError

NODE = NodeView("node-1", {"region": "here"})
Json = dict[str, Any]


class Expression:
    """The selectors of these tests: ``NAME=VALUE`` of an attribute or ``driver``; fails if the attribute is missing."""

    def __init__(self, text: str) -> None:
        if "=" not in text:
            raise DriverError(f"undeclared reference to {text!r}")
        self._name, self._value = text.split("=")

    def matches(self, device: tuple[str, Device]) -> bool:
        driver, found = device
        if self._name == "driver":
            return driver == self._value
        if self._name not in found.attributes:
            raise DriverError(f"no such key: {self._name}")
        return _plain(found.attributes[self._name]) == self._value


def _plain(attribute: DeviceAttribute) -> str:
    return str(next(item for item in msgspec.structs.astuple(attribute) if item is not None))


def selectors(asked: Callable[[str], object] = lambda _: None) -> Selectors:
    """``asked`` is called with the name of each device when a selector is first evaluated on it."""

    def view(driver: str, device: Device) -> tuple[str, Device]:
        asked(device.name)
        return driver, device

    return Selectors(Expression, view)


def device(name: str, consumes: Mapping[str, Mapping[str, object]] | None = None, **fields: Any) -> Json:
    """``consumes`` is counter set -> counter -> amount. Attributes are given as Python values."""
    made = {"name": name, **fields}
    made["attributes"] = {key: _attribute(value) for key, value in fields.get("attributes", {}).items()}
    if consumes:
        made["consumesCounters"] = [
            {"counterSet": group, "counters": {key: {"value": str(value)} for key, value in counters.items()}}
            for group, counters in consumes.items()
        ]
    return made


def _attribute(value: object) -> Json:
    kind = {bool: "bool", int: "int", str: "string"}
    return value if isinstance(value, dict) else {kind[type(value)]: value}


def chips(count: int, size: int = 4, first: int = 0) -> list[Json]:
    """Chips with a group attribute for each block of ``size``."""
    return [device(f"chip-{i:02}", attributes={"group": i // size, "index": i}) for i in range(first, first + count)]


def offered(
    *devices: Json,
    pool: str = "pool",
    driver: str = "a.example",
    name: str = "",
    generation: int = 1,
    slices: int = 1,
    **fields: Any,
) -> Json:
    """A slice; for NODE unless nodes are specified."""
    where = {"nodeName", "allNodes", "nodeSelector", "perDeviceNodeSelection"}
    if not where & set(fields):
        fields["nodeName"] = NODE.name
    return {
        "metadata": {"name": name or f"{driver}-{pool}"},
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": slices},
            "devices": list(devices),
            **fields,
        },
    }


def counters(sets: Mapping[str, Mapping[str, object]], name: str = "counters", **fields: Any) -> Json:
    """A slice with shared counters: set -> counter -> amount."""
    groups = [
        {"name": group, "counters": {key: {"value": str(value)} for key, value in amounts.items()}}
        for group, amounts in sets.items()
    ]
    return offered(name=name, sharedCounters=groups, **fields)


def request(name: str = "r", count: int | None = None, selector: str = "", **fields: Any) -> Json:
    """A request of class "any"."""
    return {"name": name, "exactly": _wanted(count, selector, **fields)}


def subrequest(name: str, count: int | None = None, selector: str = "", **fields: Any) -> Json:
    """A sub-request of class "any"."""
    return {"name": name, **_wanted(count, selector, **fields)}


def _wanted(count: int | None, selector: str, **fields: Any) -> Json:
    made = {"deviceClassName": "any", **fields}
    if count is not None:
        made["count"] = count
    if selector:
        made["selectors"] = [{"cel": {"expression": selector}}]
    return made


def every(name: str = "r", selector: str = "", **fields: Any) -> Json:
    """A request for all devices."""
    return request(name, selector=selector, allocationMode="All", **fields)


def first_of(name: str, *subrequests: Json) -> Json:
    """A request for the first sub-request that is available."""
    return {"name": name, "firstAvailable": list(subrequests)}


def same(attribute: str, *requests: str) -> Json:
    """MatchAttribute of driver a.example."""
    return {"requests": list(requests), "matchAttribute": f"a.example/{attribute}"}


def different(attribute: str, *requests: str) -> Json:
    """DistinctAttribute of driver a.example."""
    return {"requests": list(requests), "distinctAttribute": f"a.example/{attribute}"}


def claim(*requests: Json, constraints: Sequence[Json] = (), config: Sequence[Json] = (), name: str = "claim") -> Json:
    """An unallocated claim."""
    devices = {"requests": list(requests), "constraints": list(constraints), "config": list(config)}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices}}


def in_use(device_name: str, pool: str = "pool", driver: str = "a.example", **fields: Any) -> Json:
    """A claim to which a device is allocated."""
    result = {"request": "r", "driver": driver, "pool": pool, "device": device_name, **fields}
    return {
        "metadata": {"name": f"user-of-{device_name}"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


ANY = {"metadata": {"name": "any"}}


def world(
    *slices: Json,
    classes: Sequence[Json] = (ANY,),
    used: Sequence[Json] = (),
    kubernetes: str = "1.37",
    chosen: Selectors | None = None,
    deadline: Deadline = unlimited,
) -> World:
    """A cluster of these objects."""
    return World(
        msgspec.convert(slices, tuple[ResourceSlice, ...]),
        msgspec.convert(classes, tuple[DeviceClass, ...]),
        chosen or selectors(),
        Usage(msgspec.convert(used, tuple[ResourceClaim, ...])),
        kubernetes,
        deadline=deadline,
    )


def claims_of(*claims: Json) -> tuple[ResourceClaim, ...]:
    """The claims as the allocator takes them."""
    return msgspec.convert(claims, tuple[ResourceClaim, ...])


def allocate(claims: Sequence[ResourceClaim], node: NodeView, world: World) -> Allocation | Refusal:
    """What the claims of one pod would get together on the node, in the given order; changes nothing."""
    prepared = world.prepare(claims)
    return prepared if isinstance(prepared, Refusal) else world.ask(prepared, node)


def results(cluster: World, *claims: Json, node: NodeView = NODE) -> tuple[AllocationResult, ...]:
    """The allocations of the claims of one pod, which must succeed."""
    answer = allocate(claims_of(*claims), node, cluster)
    assert not isinstance(answer, Refusal), answer
    return answer.results


def devices(cluster: World, *claims: Json, node: NodeView = NODE) -> list[str]:
    """The names of the devices of all claims in the order in which they were picked."""
    return [item.device for result in results(cluster, *claims, node=node) for item in result.devices.results]


def refusal(cluster: World, *claims: Json, node: NodeView = NODE) -> Refusal:
    """Why the claims are refused, which must be the case."""
    answer = allocate(claims_of(*claims), node, cluster)
    assert isinstance(answer, Refusal), answer
    return answer

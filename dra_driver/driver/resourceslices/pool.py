"""From devices to the ResourceSlices of one node's pool, with the counters that devices share.

Devices that overlap exclude each other by one counter set with one counter for each chip. Its value is 1, or the chip's
physical NeuronCores where these are offered apart. A chip consumes all of its counter, a group or the whole node all
of its chips', a core as much as it has, and the scheduler gives away only what leaves no counter negative. A server
that dropped these fields would offer the same chip twice, so devices with counters go only to servers that keep them:
Kubernetes 1.37 and later. 1.36 has the fields, but its scheduler needs time that grows with the number of all nodes
that use counters (half a second for each node considered in a cluster of 5,000), and mixes up pools of the same name;
so there they are used only when an administrator asks for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

import msgspec

from dra_driver.kube.api.codec import ServerVersion
from dra_driver.kube.objects import limits
from dra_driver.kube.objects.meta import ObjectMeta, OwnerReference
from dra_driver.kube.objects.resource import (
    Counter,
    CounterSet,
    Device,
    DeviceCounterConsumption,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util.errors import DriverError

SharedCounters = Literal["auto", "force"]

COUNTER_SET: Final = "chips"
MIN_RELEASE: Final = {"auto": (1, 37), "force": (1, 36)}
"""First release of Kubernetes that counters are used on, by setting."""
_FIELDS: Final = ("sharedCounters", "devices[].consumesCounters")


def consuming(device: Device, chips: Mapping[int, int]) -> Device:
    """The device, consuming so much of each chip that it is made of."""
    consumption = DeviceCounterConsumption(COUNTER_SET, _counters(chips))
    return msgspec.structs.replace(device, consumes_counters=(consumption,))


def counter_set(chips: Mapping[int, int]) -> CounterSet:
    """What there is to consume of each chip."""
    return CounterSet(COUNTER_SET, _counters(chips))


def _counters(chips: Mapping[int, int]) -> dict[str, Counter]:
    return {f"chip-{index}": Counter(str(chips[index])) for index in sorted(chips)}


def dropped_counters(fields: Collection[str]) -> bool:
    """Whether these paths of a slice's ``spec``, which a server did not keep, concern counters."""
    return any(field.startswith(_FIELDS) for field in fields)


def counters_problem(server: ServerVersion, policy: SharedCounters) -> str:
    """Why a server of this version must not be sent devices with counters; "" when it may."""
    release = server.release
    least = MIN_RELEASE[policy]
    if release is None:
        return f"the API server does not report its version ({server.git_version!r})"
    if release < least:
        hint = ""
        if policy == "auto" and release >= MIN_RELEASE["force"]:
            hint = "; --shared-counters force uses them anyway, for clusters of at most a few hundred nodes"
        return (
            f"shared counters need Kubernetes {least[0]}.{least[1]}, and the API server is {server.git_version}{hint}"
        )
    return ""


def dropped_problem(server: ServerVersion) -> str:
    """Why a server that does not keep counters must not be sent devices with them, until it does."""
    return (
        f"the API server {server.git_version} does not keep shared counters: its feature gate DRAPartitionableDevices "
        "is off; once it is on, the driver detects that automatically"
    )


DEVICES_PER_SLICE = limits.MAX_SPECIAL_DEVICES
"""Any device may get a taint, so never plan for more."""
MAX_PREFIX_LENGTH = 58
"""Characters of ``generateName`` that the API server keeps in front of its five random ones."""


def pool(
    devices: Sequence[Device],
    node_name: str,
    node_uid: str,
    driver: str = DRIVER_NAME,
    counters: Sequence[CounterSet] = (),
) -> tuple[ResourceSlice, ...]:
    """The slices of a node, in the order of their index; at least one, which says "running, but no devices".

    Counters that devices consume (``Offer.counters``) come first, in a slice of their own: a server that drops them
    shows it before any device is offered, and until all slices are there the scheduler leaves the pool alone.

    The generation is 1 here; ``reconcile.decide`` sets the one to publish. Raises DriverError for a device name that
    comes twice, and for devices whose counters are missing: a server would refuse them.
    """
    names = [device.name for device in devices]
    if len(names) != len(set(names)):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DriverError(f"device names must be unique in a pool: {', '.join(twice)}")
    if not counters and any(device.consumes_counters for device in devices):
        raise DriverError("devices consume counters, but the pool has no counters")
    parts = [tuple(devices[i : i + DEVICES_PER_SLICE]) for i in range(0, len(devices), DEVICES_PER_SLICE)] or [()]
    contents: list[tuple[tuple[Device, ...], tuple[CounterSet, ...]]] = [(part, ()) for part in parts]
    if counters:
        contents.insert(0, ((), tuple(counters)))
    owner = OwnerReference(api_version="v1", kind="Node", name=node_name, uid=node_uid, controller=True)
    return tuple(
        ResourceSlice(
            ObjectMeta(generate_name=name_prefix(index, driver, node_name), owner_references=(owner,)),
            ResourceSliceSpec(
                driver, ResourcePool(node_name, 1, len(contents)), node_name, devices=part, shared_counters=shared
            ),
        )
        for index, (part, shared) in enumerate(contents)
    )


def incomplete(slices: Collection[ResourceSlice]) -> bool:
    """Whether a part of the pool that these slices are of is missing, or was never written."""
    newest = max((item.spec.pool.generation for item in slices), default=0)
    current = [item for item in slices if item.spec.pool.generation == newest]
    return any(item.spec.pool.resource_slice_count != len(current) for item in current) or len(current) < len(slices)


def name_prefix(index: int, driver: str, node_name: str) -> str:
    """``generateName`` of a slice. The index comes first because schedulers try slices by name.

    A long node name is cut where the API server would cut it, but so that the prefix stays a legal name.
    """
    prefix = f"{index:05x}-{driver}-{node_name}-"
    return prefix if len(prefix) <= MAX_PREFIX_LENGTH else prefix[: MAX_PREFIX_LENGTH - 1].rstrip("-.") + "-"

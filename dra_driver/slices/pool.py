"""From devices to the ResourceSlices of one node's pool."""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.kube.types import (
    CounterSet,
    Device,
    ObjectMeta,
    OwnerReference,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_driver.names import DRIVER_NAME
from dra_driver.slices.counters import counter_sets
from dra_driver.util.errors import DriverError

DEVICES_PER_SLICE = 64
"""Kubernetes allows 128 until the first device of the slice has a taint or counters, then 64: never plan for more."""
LONGEST_PREFIX = 58
"""Characters of ``generateName`` that the API server keeps in front of its five random ones."""


def pool(
    devices: Sequence[Device], node_name: str, node_uid: str, driver: str = DRIVER_NAME
) -> tuple[ResourceSlice, ...]:
    """The slices of a node, in the order of their index; at least one, which says "running, but no devices".

    Counters that devices consume come first, in a slice of their own: a server that drops them shows it before any
    device is offered, and until all slices are there the scheduler leaves the pool alone.

    The generation is 1 here; ``reconcile.decide`` sets the one to publish. Raises DriverError for a device name that
    comes twice.
    """
    names = [device.name for device in devices]
    if len(names) != len(set(names)):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise DriverError(f"device names must be unique in a pool: {', '.join(twice)}")
    parts = [tuple(devices[i : i + DEVICES_PER_SLICE]) for i in range(0, len(devices), DEVICES_PER_SLICE)] or [()]
    contents: list[tuple[tuple[Device, ...], tuple[CounterSet, ...]]] = [(part, ()) for part in parts]
    if counters := counter_sets(devices):
        contents.insert(0, ((), counters))
    owner = OwnerReference(api_version="v1", kind="Node", name=node_name, uid=node_uid, controller=True)
    return tuple(
        ResourceSlice(
            ObjectMeta(generate_name=name_prefix(index, driver, node_name), owner_references=(owner,)),
            ResourceSliceSpec(driver, ResourcePool(node_name, 1, len(contents)), node_name, part, shared),
        )
        for index, (part, shared) in enumerate(contents)
    )


def name_prefix(index: int, driver: str, node_name: str) -> str:
    """``generateName`` of a slice. The index comes first because schedulers try slices by name.

    A long node name is cut where the API server would cut it, but so that the prefix stays a legal name.
    """
    prefix = f"{index:05x}-{driver}-{node_name}-"
    return prefix if len(prefix) <= LONGEST_PREFIX else prefix[: LONGEST_PREFIX - 1].rstrip("-.") + "-"

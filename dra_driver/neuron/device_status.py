"""What a claim says of its Neuron devices (``status.devices``, KEP-4817), as its writer and its readers know it.

The structs are ``data``, whose keys are part of the public interface (docs/use/in-containers.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from dra_driver.kube.objects.meta import ApiObject, Condition
from dra_driver.kube.objects.resource import PartialAllocatedDeviceStatus, PartialResourceClaimStatus
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util.text import one_line

READY: Final = "Ready"
HEALTHY: Final = "Healthy"


class ChipStatus(ApiObject, frozen=True):
    """``chips[]``: a chip, or a part of one, that the device is made of; ``index`` is the host's."""

    index: int
    path: str
    pci_address: str = ""
    cores: list[int] = msgspec.field(default_factory=list)
    """Physical ones."""


class UltraServerStatus(ApiObject, frozen=True):
    """``ultraserver``."""

    mode: str
    server_id: str = msgspec.field(name="serverID", default="")
    node_id: int | None = msgspec.field(name="nodeID", default=None)


class DeviceStatus(ApiObject, frozen=True):
    """``data`` of an entry."""

    api_version: str
    kind: str
    chips: list[ChipStatus]
    logical_core_size: int | None = None
    ultraserver: UltraServerStatus | None = None
    instance_type: str = ""
    neuron_driver_version: str = ""
    """Of the kernel module. Both as the device's attributes say them; "" where the host does not tell."""


def own_devices(status: PartialResourceClaimStatus) -> tuple[tuple[str, str], ...]:
    """Pool and name of this driver's devices that are allocated, each once."""
    return tuple(dict.fromkeys((item.pool, item.device) for item in status.results if item.driver == DRIVER_NAME))


def own_conditions(
    status: PartialResourceClaimStatus, entries: Iterable[PartialAllocatedDeviceStatus]
) -> dict[tuple[str, str], tuple[Condition, ...]]:
    """What the entries say of each of this driver's devices that are allocated: ``Ready``, then ``Healthy``.

    By pool and name. Whoever may write the status of claims may have written it, so it is made printable lines of
    limited length, and is no more than what the claim says.
    """
    by_device: dict[tuple[str, str], tuple[Condition, ...]] = {}
    allocated = {*own_devices(status)}
    for entry in entries:
        key = entry.pool, entry.device
        if entry.driver == DRIVER_NAME and key in allocated:
            by_type = {item.type: item for item in entry.conditions}
            by_device[key] = tuple(_line(by_type[kind]) for kind in (READY, HEALTHY) if kind in by_type)
    return by_device


def _line(item: Condition) -> Condition:
    since = one_line(item.last_transition_time or "", 32)
    return Condition(item.type, one_line(item.status, 32), one_line(item.reason, 64), one_line(item.message), since)


def spelled(item: Condition) -> str:
    """A condition of ``own_conditions`` as one line."""
    since = f" since {item.last_transition_time}" if item.status != "True" and item.last_transition_time else ""
    return f"{item.type}={item.status} ({item.reason}){since}" + (f": {item.message}" if item.message else "")

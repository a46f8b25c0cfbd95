"""From the health of a node's chips to that of the devices that pods hold, for kubelet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from dra_driver.kube.kubelet.devicehealth import DeviceHealth, Health
from dra_driver.neuron.health.faults import SEVERITIES, ChipHealth, NodeHealth, State
from dra_driver.neuron.topology.partitions import chips_of, device_name

TOLD_AS: Final[Mapping[State, Health]] = MappingProxyType(
    {"healthy": "healthy", "degraded": "healthy", "unknown": "unknown", "unhealthy": "unhealthy"}
)
"""kubelet knows three states. A degraded chip works, and the message says what is wrong with it."""
NOT_READ: Final = "its health has not been read yet"
_GRAVITY: Final[tuple[State, ...]] = (*SEVERITIES, "healthy")


def device_health(
    health: NodeHealth, chips: Collection[int], others: Iterable[str], pool: str
) -> tuple[DeviceHealth, ...]:
    """The health of all devices that pods of this node can hold: its chips by ascending index, then the others.

    What a pod holds may no longer be offered: a chip that was lost is among them. A device has the gravest state of
    its chips.

    Args:
        health: of the node's chips.
        chips: host indexes of all chips that the node has or should have.
        others: names of further devices; those of chips and of no device at all are passed over.
        pool: name of the node's pool.
    """
    by_index = {chip.index: chip for chip in health.chips}
    indexes = sorted({*chips, *by_index})
    devices = {
        device_name(index): DeviceHealth(pool, device_name(index), *_health_of(by_index.get(index), index))
        for index in indexes
    }
    for name in others:
        members = chips_of(name, indexes)
        if name in devices or not members:
            continue
        # A stable sort: equally grave chips stay in their order.
        gravest = sorted(members, key=lambda index: _GRAVITY.index(_state(by_index.get(index))))
        texts = [_health_of(by_index.get(index), index)[1] for index in gravest]
        state = TOLD_AS[_state(by_index.get(gravest[0]))]
        devices[name] = DeviceHealth(pool, name, state, "; ".join(text for text in texts if text))
    return tuple(devices.values())


def _state(chip: ChipHealth | None) -> State:
    return "unknown" if chip is None else chip.state


def _health_of(chip: ChipHealth | None, index: int) -> tuple[Health, str]:
    return TOLD_AS[_state(chip)], f"neuron{index}: {NOT_READ}" if chip is None else chip.text

"""What the driver says of its devices in the status of a claim (``status.devices``): values in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dra_driver.driver.claims.model import DEVICE_PATH, Plan, PlannedDevice
from dra_driver.driver.claims.sharing import ONE_VALUE
from dra_driver.driver.device_health import device_health
from dra_driver.kube.objects.meta import Condition, timestamp
from dra_driver.kube.objects.resource import AllocatedDeviceStatus, ReportedClaim, json_value
from dra_driver.neuron.device_status import (
    HEALTHY,
    READY,
    ChipStatus,
    DeviceStatus,
    UltraServerStatus,
    own_devices,
)
from dra_driver.neuron.health.faults import NodeHealth
from dra_driver.neuron.host.inventory import NodeInventory
from dra_driver.neuron.names import (
    API_VERSIONS,
    DRIVER_NAME,
    LOGICAL_CORE_SIZE,
    ULTRASERVER_MODE,
    ULTRASERVER_NODE_ID,
    ULTRASERVER_SERVER_ID,
)
from dra_driver.neuron.topology.ultraserver import Mode
from dra_driver.util.errors import DriverError
from dra_driver.util.text import one_line, ranges

_HEALTH: Final = {"healthy": "True", "unhealthy": "False", "unknown": "Unknown"}

Entries = tuple[AllocatedDeviceStatus, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a claim is not prepared."""

    devices: tuple[tuple[str, str], ...]
    """Pool and name of those that are allocated to it here."""
    reason: str
    text: str

    @classmethod
    def of(cls, claim: ReportedClaim, node_name: str, error: DriverError) -> Refusal:
        """The refusal of a claim as the API server has it, for the devices in this node's pool."""
        return cls(allocated(claim, node_name), error.reason or "NotPrepared", one_line(str(error)))


def allocated(claim: ReportedClaim, node_name: str) -> tuple[tuple[str, str], ...]:
    """Pool and name of the node's devices that are allocated to the claim, each once."""
    return tuple(key for key in own_devices(claim.status) if key[0] == node_name)


def own_entries(claim: ReportedClaim) -> Entries:
    """The entries of this driver that the claim has, in short: they are kept, and a webhook may have changed them."""
    return tuple(
        replace(
            entry,
            conditions=tuple(replace(item, message="") for item in entry.conditions if item.type in (READY, HEALTHY)),
        )
        for entry in claim.status.devices
        if entry.driver == DRIVER_NAME
    )


def entries(
    wanted: Plan | Refusal, health: NodeHealth, inventory: NodeInventory, stored: Entries, now: float
) -> Entries:
    """What the claim is to have.

    Args:
        wanted: what it was prepared with, or why it was not.
        health: of the node's chips.
        inventory: the node.
        stored: what it has now; times of transition are kept.
        now: Unix time.
    """
    rows: dict[tuple[str, str], tuple[Condition, dict[str, Any] | None]]
    if isinstance(wanted, Plan):
        # A request with admin access may have a device that an ordinary one has, too.
        devices = {(device.pool, device.device): device for device in wanted.devices}
        rows = {
            key: (Condition(READY, "True", "Prepared", _description(wanted, device)), _data(wanted, device, inventory))
            for key, device in devices.items()
        }
    else:
        rows = dict.fromkeys(wanted.devices, (Condition(READY, "False", wanted.reason, wanted.text), None))
    states = {
        state.device: state for state in device_health(health, inventory.chip_indexes, [name for _, name in rows], "")
    }
    since = {
        (entry.pool, entry.device, item.type, item.status): item.last_transition_time
        for entry in stored
        for item in entry.conditions
    }
    statuses = []
    for (pool, name), (ready, data) in rows.items():
        conditions = [ready]
        if name in states:
            state = states[name]
            reason = "Degraded" if state.health == "healthy" and state.message else state.health.capitalize()
            conditions.append(Condition(HEALTHY, _HEALTH[state.health], reason, one_line(state.message)))
        dated = tuple(
            replace(item, last_transition_time=since.get((pool, name, item.type, item.status)) or timestamp(now))
            for item in conditions
        )
        statuses.append(AllocatedDeviceStatus(DRIVER_NAME, pool, name, dated, data))
    return tuple(statuses)


def differs(stored: Entries, wanted: Entries) -> bool:
    """Whether the claim has to be written: texts and times alone are no reason."""
    return _contents(stored) != _contents(wanted)


def is_worse(stored: Entries, wanted: Entries) -> bool:
    """Whether a device is no longer to be called healthy."""
    before, after = _healthy(stored), _healthy(wanted)
    return any(before.get(key) == "True" != status for key, status in after.items())


def _healthy(of: Entries) -> dict[tuple[str, str], str]:
    return {(e.pool, e.device): item.status for e in of for item in e.conditions if item.type == HEALTHY}


def _contents(of: Entries) -> Mapping[tuple[str, str], object]:
    return {
        (entry.pool, entry.device): (
            {item.type: (item.status, item.reason) for item in entry.conditions if item.type in (READY, HEALTHY)},
            json_value(entry.data),
        )
        for entry in of
    }


def _data(plan: Plan, device: PlannedDevice, inventory: NodeInventory) -> dict[str, Any]:
    variables = plan.env | device.env
    chips = []
    for node in device.nodes:
        chip = inventory.device(node.chip)
        cores = node.cores or range(inventory.physical_cores(node.chip) or 0)
        address = chip.pci_bus_id or "" if chip is not None else ""
        chips.append(ChipStatus(node.chip, node.container_path, address, [*cores]))
    server = None
    if ULTRASERVER_MODE in variables:
        server_id, node_id = variables.get(ULTRASERVER_SERVER_ID, ""), variables.get(ULTRASERVER_NODE_ID)
        mode = Mode.named(variables[ULTRASERVER_MODE])
        server = UltraServerStatus(mode, server_id, None if node_id is None else int(node_id))
    size = plan.core_size(device) if LOGICAL_CORE_SIZE in variables else None
    status = DeviceStatus(
        API_VERSIONS[0],
        "DeviceStatus",
        chips,
        size,
        server,
        instance_type=inventory.instance_type or "",
        neuron_driver_version=inventory.driver_version or "",
    )
    data: dict[str, Any] = msgspec.to_builtins(status)
    return data


def _description(plan: Plan, device: PlannedDevice) -> str:
    variables, chips = plan.env | device.env, [node.chip for node in device.nodes]
    numbers = sorted(node.number for node in device.nodes)
    cores = f", cores {ranges(device.nodes[0].cores)}," if device.has_cores else ""
    parts = [f"chip{'s' * (len(chips) > 1)} {ranges(chips)}{cores} as {DEVICE_PATH}{ranges(numbers)}"]
    if LOGICAL_CORE_SIZE in variables:
        parts.append(f"logical core size {plan.core_size(device)}")
    if ULTRASERVER_MODE in variables:
        parts.append(f"UltraServer mode {Mode.named(variables[ULTRASERVER_MODE])}")
    # Without the right to read pods it is not known whether a container uses both: then the size above may not be its.
    return "; ".join([*parts, *(text for text in plan.warnings if ONE_VALUE in text)])

"""The selectors of the allocator and of the checks: CEL, which needs packages that the driver does not."""

from __future__ import annotations

from typing import Any

import msgspec

from dra_driver.simulator import not_installed
from dra_driver.simulator.allocator import Selectors
from dra_driver.simulator.objects import Device
from dra_driver.simulator.releases import RELEASES
from dra_driver.util.errors import DriverError


def selectors(kubernetes: str) -> Selectors:
    """CEL as this release has it. DriverError for another release, and when the parser is not installed."""
    if kubernetes not in RELEASES:
        raise DriverError(
            f"Kubernetes {kubernetes} is not one that the simulator knows", remedy=f"give one of {', '.join(RELEASES)}"
        )
    try:
        from dra_driver.simulator.cel import CelDevice, Environment
        from dra_driver.simulator.cel import compile as compile_
    except ModuleNotFoundError as error:
        raise not_installed(error.name) from error
    environment = Environment("1.36" if kubernetes == "1.36" else "1.37")

    def view(driver: str, device: Device) -> Any:
        return CelDevice.of(driver, _with_texts(device))

    return Selectors(lambda expression: compile_(expression, environment), view)


def _with_texts(device: Device) -> Any:
    """The device with capacities as texts, which a file may have as numbers."""
    if all(isinstance(capacity.value, str) for capacity in device.capacity.values()):
        return device
    capacity = {name: msgspec.structs.replace(entry, value=str(entry.value)) for name, entry in device.capacity.items()}
    return msgspec.structs.replace(device, capacity=capacity)

"""Consumable capacity: how much of a device one request takes, and whether that is left.

Amounts are in units of 10^-9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.simulator.allocator.release import Release
from dra_driver.simulator.objects import CapacityRange, Device, DeviceCapacity, Quantity
from dra_driver.simulator.quantity import LARGEST, UNIT, canonical, nanos, stored
from dra_driver.util.errors import DriverError

_MILLI = UNIT // 1000


class CapacityError(DriverError):
    """A request that ends the scheduling of its pod, instead of passing over one device."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much a request takes of one capacity."""

    nanos: int
    text: str
    """As a quantity."""
    legal: bool
    """Whether the device's policy allows it."""


def amounts(device: Device, requested: Mapping[str, Quantity], release: Release) -> dict[str, Amount] | None:
    """What the request would take of each capacity of the device; None when it asks for one that the device has not.

    CapacityError (from 1.37 on) for amounts that Kubernetes' arithmetic cannot hold.
    """
    if any(name not in device.capacity for name in requested):
        return None
    made = {name: _amount(capacity, requested.get(name), release) for name, capacity in device.capacity.items()}
    if not release.whole_steps:
        for name, amount in made.items():
            if amount.nanos < 0:
                raise CapacityError(f'capacity "{name}": capacity value is negative')
    return made


def fits(device: Device, wanted: Mapping[str, Amount], consumed: Mapping[str, int]) -> bool:
    """Whether the amounts are legal and left beside what is consumed."""
    return all(
        amount.legal and consumed.get(name, 0) + amount.nanos <= nanos(device.capacity[name].value)
        for name, amount in wanted.items()
    )


def _amount(capacity: DeviceCapacity, requested: Quantity | None, release: Release) -> Amount:
    policy = capacity.request_policy
    if requested is None:
        if policy is None or policy.default is None:
            return _judged(*_read(capacity.value), capacity, release)
        return Amount(*_read(policy.default), legal=True)
    wanted, text = _read(requested)
    if policy is None:
        return Amount(wanted, text, legal=True)
    if policy.valid_range is not None and policy.valid_range.min is not None:
        wanted, text = _stepped(wanted, text, policy.valid_range, release)
    else:
        larger = [value for value in policy.valid_values if wanted <= nanos(value)]
        if larger:
            wanted, text = _read(larger[0])
    return _judged(wanted, text, capacity, release)


def _read(value: Quantity) -> tuple[int, str]:
    found = stored(value)
    return found.nanos, found.text


def _judged(amount: int, text: str, capacity: DeviceCapacity, release: Release) -> Amount:
    policy = capacity.request_policy
    if policy is None or (policy.default is not None and amount == nanos(policy.default)):
        legal = True
    elif policy.valid_range is not None:
        legal = _in_range(amount, policy.valid_range, release)
    else:
        legal = not policy.valid_values or amount in map(nanos, policy.valid_values)
    return Amount(amount, text, legal)


def _stepped(wanted: int, text: str, span: CapacityRange, release: Release) -> tuple[int, str]:
    """At least the minimum, and a whole number of steps above it."""
    least = nanos(span.min or 0)
    if wanted < least:
        return _read(span.min or 0)
    if span.step is None:
        return wanted, text
    unit = _unit(span, release)
    start, step, asked = (-(-value // unit) for value in (least, nanos(span.step), wanted))
    if not release.whole_steps and unit == _MILLI and wanted % _MILLI:
        raise CapacityError(f"capacity request {text} is not a representable milli value")
    total = start + step * -(-(asked - start) // step) if step > 0 else asked
    if not release.whole_steps and max(total, asked) > LARGEST:
        raise CapacityError(f"capacity request {text} cannot be rounded up to the device's next step")
    return total * unit, canonical(total * unit, "BinarySI" if release.whole_steps else stored(span.step).format)


def _in_range(amount: int, span: CapacityRange, release: Release) -> bool:
    if span.max is not None and amount > nanos(span.max):
        return False
    if span.step is None:
        return True
    unit = _unit(span, release)
    if unit == _MILLI and amount % _MILLI:
        return False
    above, step = -(-amount // unit) - -(-nanos(span.min or 0) // unit), -(-nanos(span.step) // unit)
    return step <= 0 or above % step == 0


def _unit(span: CapacityRange, release: Release) -> int:
    """In what the steps are counted: whole numbers, or thousandths where the release and the numbers allow it."""
    given = [nanos(value) for value in (span.min, span.max, span.step) if value is not None]
    if release.whole_steps or any(value % _MILLI or value // _MILLI > LARGEST for value in given):
        return UNIT
    return _MILLI

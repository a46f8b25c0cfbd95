"""Consumable capacity: how much of a device a request consumes, and whether that is available.

Amounts are in units of 10^-9.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dra_driver.kube.objects.meta import Quantity
from dra_driver.kube.objects.resource import (
    CapacityRange,
    Device,
    DeviceCapacity,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from dra_driver.kube.quantity import MAX_INT64, UNIT, canonical, nanos, nearest
from dra_driver.simulator.allocator.pool_devices import DeviceId, PoolKey
from dra_driver.simulator.allocator.release import Release
from dra_driver.util.errors import DriverError

_MILLI = UNIT // 1000


class CapacityError(DriverError):
    """A request that ends the scheduling of its pod, rather than only skipping a device."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much a request consumes of one capacity."""

    nanos: int
    text: str
    """As a quantity."""
    legal: bool
    """Whether the device's policy allows it."""


def amounts(device: Device, requested: Mapping[str, Quantity], release: Release) -> dict[str, Amount] | None:
    """What the request would consume of each capacity of the device; None if it requests one that the device lacks.

    Raises CapacityError (from 1.37 on) for amounts that overflow Kubernetes' arithmetic.
    """
    if any(name not in device.capacity for name in requested):
        return None
    consumption = {name: _amount(capacity, requested.get(name), release) for name, capacity in device.capacity.items()}
    if not release.whole_steps:
        for name, amount in consumption.items():
            if amount.nanos < 0:
                raise CapacityError(f'capacity "{name}": capacity value is negative')
    return consumption


def fits(device: Device, wanted: Mapping[str, Amount], consumed: Mapping[str, int]) -> bool:
    """Whether the amounts are valid and still available."""
    return all(
        amount.legal and consumed.get(name, 0) + amount.nanos <= nanos(device.capacity[name].value)
        for name, amount in wanted.items()
    )


def left(device: Device, consumed: Mapping[str, int]) -> dict[str, str]:
    """What is left of each capacity of a device that several claims can share, as quantities."""
    whole = ((name, nearest(capacity.value)) for name, capacity in device.capacity.items())
    return {name: canonical(value.nanos - consumed.get(name, 0), value.format) for name, value in whole}


def used_up(device: Device, consumed: Mapping[str, int]) -> bool:
    """Whether even the smallest request is more than what is left of a capacity."""
    return any(
        consumed.get(name, 0) + _smallest(capacity) > nanos(capacity.value)
        for name, capacity in device.capacity.items()
        if consumed.get(name, 0)
    )


def _smallest(capacity: DeviceCapacity) -> int:
    policy = capacity.request_policy
    if policy is None or policy.default is None:
        return 1
    least = [policy.default, *policy.valid_values]
    if policy.valid_range is not None and policy.valid_range.min is not None:
        least.append(policy.valid_range.min)
    return min(map(nanos, least))


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
    quantity = nearest(value)
    return quantity.nanos, quantity.text


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
    """At least the minimum, rounded up to a whole number of steps above it."""
    least = nanos(span.min or 0)
    if wanted < least:
        return _read(span.min or 0)
    if span.step is None:
        return wanted, text
    unit = _unit(span, release)
    start, step, amount = (-(-value // unit) for value in (least, nanos(span.step), wanted))
    if not release.whole_steps and unit == _MILLI and wanted % _MILLI:
        raise CapacityError(f"capacity request {text} is not a representable milli value")
    total = start + step * -(-(amount - start) // step) if step > 0 else amount
    if not release.whole_steps and max(total, amount) > MAX_INT64:
        raise CapacityError(f"capacity request {text} cannot be rounded up to the device's next step")
    return total * unit, canonical(total * unit, "BinarySI" if release.whole_steps else nearest(span.step).format)


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
    """The unit of steps: integers, or thousandths if the release and the numbers allow it."""
    given = [nanos(value) for value in (span.min, span.max, span.step) if value is not None]
    if release.whole_steps or any(value % _MILLI or value // _MILLI > MAX_INT64 for value in given):
        return UNIT
    return _MILLI


Consumed = dict[str, int]
"""Capacity names to amounts in units of 10^-9."""


class Usage:
    """Devices in use, modified only by ``take`` and ``release``. Devices with admin access do not count."""

    def __init__(self, claims: Iterable[ResourceClaim] = ()) -> None:
        self._exclusive: defaultdict[DeviceId, int] = defaultdict(int)
        self._shares: defaultdict[DeviceId, list[Consumed]] = defaultdict(list)
        self._in_pool: defaultdict[PoolKey, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._versions: defaultdict[PoolKey, int] = defaultdict(int)
        for claim in claims:
            self.take(claim.status.results)

    def take(self, results: Iterable[DeviceRequestAllocationResult]) -> None:
        """Add the devices of one allocation. Raises QuantityError if a consumed capacity is not a quantity."""
        self._count(results, 1)

    def release(self, results: Iterable[DeviceRequestAllocationResult]) -> None:
        """Remove the devices of an allocation that was taken before."""
        self._count(results, -1)

    @contextmanager
    def without(self, results: Sequence[DeviceRequestAllocationResult]) -> Iterator[None]:
        """Within the block, these devices, which were taken before, are released."""
        self.release(results)
        try:
            yield
        finally:
            self.take(results)

    def _count(self, results: Iterable[DeviceRequestAllocationResult], step: int) -> None:
        for result in results:
            if result.admin_access:
                continue
            device = (result.driver, result.pool, result.device)
            pool = device[:2]
            self._versions[pool] += 1
            self._in_pool[pool][result.device] += step
            if not self._in_pool[pool][result.device]:
                del self._in_pool[pool][result.device]
            if result.share_id is None:
                self._exclusive[device] += step
                if not self._exclusive[device]:
                    del self._exclusive[device]
                continue
            share = {name: nanos(value) for name, value in result.consumed_capacity.items()}
            if step > 0:
                self._shares[device].append(share)
            else:
                self._shares[device].remove(share)
                if not self._shares[device]:
                    del self._shares[device]

    def exclusive(self, device: DeviceId) -> bool:
        """Whether a claim uses the device exclusively."""
        return device in self._exclusive

    def shared(self, device: DeviceId) -> bool:
        """Whether claims use shares of the device."""
        return device in self._shares

    def consumed(self, device: DeviceId) -> Consumed:
        """The capacity that all shares of a device consume; empty if no share specifies any."""
        total: Consumed = {}
        for share in self._shares.get(device, ()):
            for name, amount in share.items():
                total[name] = total.get(name, 0) + amount
        return total

    def in_pool(self, pool: PoolKey) -> Mapping[str, int]:
        """The devices of one pool that are in use, by name."""
        return self._in_pool.get(pool, {})

    def version(self, pool: PoolKey) -> int:
        """A number that changes whenever the use of any device of the pool changes."""
        return self._versions.get(pool, 0)

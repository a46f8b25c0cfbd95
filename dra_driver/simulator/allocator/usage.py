"""Which devices are in use, as kube-scheduler counts it: from the allocation results of all claims."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from dra_driver.simulator.allocator.offers import DeviceId, PoolKey
from dra_driver.simulator.objects import AllocatedDevice, ResourceClaim
from dra_driver.simulator.quantity import nanos

Consumed = dict[str, int]
"""Capacity names to amounts in units of 10^-9."""


class Usage:
    """Devices in use, changed by ``take`` and ``release`` only. Devices with admin access do not count."""

    def __init__(self, claims: Iterable[ResourceClaim] = ()) -> None:
        self._exclusive: defaultdict[DeviceId, int] = defaultdict(int)
        self._shares: defaultdict[DeviceId, list[Consumed]] = defaultdict(list)
        self._in_pool: defaultdict[PoolKey, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._versions: defaultdict[PoolKey, int] = defaultdict(int)
        for claim in claims:
            if claim.status.allocation is not None:
                self.take(claim.status.allocation.devices.results)

    def take(self, results: Iterable[AllocatedDevice]) -> None:
        """Count the devices of one allocation. QuantityError when consumed capacity is no quantity."""
        self._count(results, 1)

    def release(self, results: Iterable[AllocatedDevice]) -> None:
        """Count the devices of an allocation that was taken no more."""
        self._count(results, -1)

    def _count(self, results: Iterable[AllocatedDevice], step: int) -> None:
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
        """Whether one claim has the device for itself."""
        return device in self._exclusive

    def shared(self, device: DeviceId) -> bool:
        """Whether claims have shares of the device."""
        return device in self._shares

    def consumed(self, device: DeviceId) -> Consumed:
        """What the shares of a device consume together; empty when no share says so."""
        total: Consumed = {}
        for share in self._shares.get(device, ()):
            for name, amount in share.items():
                total[name] = total.get(name, 0) + amount
        return total

    def in_pool(self, pool: PoolKey) -> Mapping[str, int]:
        """The names of devices in use of one pool."""
        return self._in_pool.get(pool, {})

    def version(self, pool: PoolKey) -> int:
        """A number that changes with the use of any device of the pool."""
        return self._versions.get(pool, 0)

"""Which of a node's devices claims have: all of them (``allocated_devices``), or those that are sick (``Holders``).

The latter is asked at each look at the slices where the API server keeps no taints and what is free is withdrawn, and
while a claim holds a sick device there is a look every 30 seconds. So what costs least is asked first: the checkpoint,
which has what is prepared here; then, by its name, the claim that had a device when claims were last listed. All claims
of the cluster are listed only for the rest: at once for a device for which they were not listed yet, and from then on
ever more seldom.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from dra_driver.driver.claims.checkpoint import Checkpoint
from dra_driver.driver.resourceslices.kept import HELD_SECONDS, MAX_HELD_SECONDS
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.objects.resource import AllocatedClaim, ObjectIdentity, PartialResourceClaim
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError

HELD_PATIENCE: Final = 5.0
"""Seconds that the question which devices are prepared waits for calls that are under way."""

log = logging.getLogger(__name__)


def allocated_devices(api: ResourceApi, node_name: str) -> frozenset[str] | None:
    """Names of the node's devices that are allocated to a claim; None when that cannot be found out."""
    try:
        return allocated(api.list_claims(DRIVER_NAME, node_name), DRIVER_NAME, node_name)
    except DriverError as error:
        log.warning("it is not known which devices claims hold, so all devices stay published: %s", error)
        return None


def prepared_names(checkpoint: Checkpoint) -> frozenset[str] | None:
    """Names of the prepared devices; None while an unreadable file may have any. Raises DriverError."""
    with checkpoint.locked(runtime.monotonic() + HELD_PATIENCE) as prepared:
        names = frozenset(device.device for entry in prepared.entries.values() for device in entry.plan.devices)
        return None if prepared.quarantined else names


def allocated(claims: Iterable[AllocatedClaim | PartialResourceClaim], driver: str, pool: str) -> frozenset[str]:
    """Names of the pool's devices that are allocated to one of the claims."""
    return frozenset(
        result.device
        for claim in claims
        for result in claim.status.results
        if (result.driver, result.pool) == (driver, pool)
    )


@dataclass(slots=True)
class Holders:
    """Finds out which devices claims hold. For one thread.

    Args:
        api: the API server.
        checkpoint: what is prepared here.
        node_name: name of this node, which is also its pool's.
        clock: never goes back.
    """

    api: ResourceApi
    checkpoint: Checkpoint
    node_name: str
    clock: Callable[[], float] = runtime.monotonic
    _claims: dict[str, ObjectIdentity] = field(default_factory=dict)
    """By device, the claim that had it at the last list."""
    _asked: frozenset[str] = frozenset()
    """The devices for which claims were last listed, or could not be."""
    _answered: bool = False
    _due: float = 0.0
    """When claims may be listed for them again."""
    _interval: float = HELD_SECONDS

    def of(self, devices: Collection[str]) -> frozenset[str] | None:
        """Those of the devices that are prepared here, or allocated to a claim; None when that cannot be found out."""
        names = frozenset(devices)
        try:
            prepared = prepared_names(self.checkpoint)
            if prepared is None or names <= prepared:
                return None if prepared is None else names
            others = self._allocated_devices(names - prepared)
            # Anew: what was allocated a moment ago, and prepared since, stays so without its claim.
            prepared = prepared_names(self.checkpoint)
            return None if others is None or prepared is None else others | (names & prepared)
        except DriverError as error:
            log.warning("it is not known which devices claims hold, so all devices stay published: %s", error)
            return None

    def _allocated_devices(self, devices: frozenset[str]) -> frozenset[str] | None:
        """Those of the devices, none of them prepared here, that are allocated to a claim."""
        claims = {self._claims[device] for device in devices if device in self._claims}
        confirmed = devices & {device for claim in claims for device in self._devices_of(claim)}
        left = devices - confirmed
        if not left:
            return confirmed
        now = self.clock()
        if now >= self._due or not left <= self._asked:
            self._list(left, now)
        elif not self._answered:
            return None
        # Between two lists, a device whose claim has gone may be another's: it counts as allocated until the next one.
        return confirmed | (left & self._claims.keys())

    def _devices_of(self, claim: ObjectIdentity) -> frozenset[str]:
        """The devices of this node that a claim still has, or another of its name."""
        try:
            stored = self.api.get_claim(claim.namespace, claim.name)
        except ApiError as error:
            if not error.object_missing:
                raise
            return frozenset()
        return allocated([stored], DRIVER_NAME, self.node_name)

    def _list(self, devices: frozenset[str], now: float) -> None:
        again = devices <= self._asked and now < self._due + MAX_HELD_SECONDS
        self._interval = min(2 * self._interval, MAX_HELD_SECONDS) if again else HELD_SECONDS
        self._due = now + self._interval
        self._asked, self._answered = devices, False
        self._claims = {
            result.device: claim.metadata
            for claim in self.api.list_claims(DRIVER_NAME, self.node_name)
            for result in claim.status.results
            if (result.driver, result.pool) == (DRIVER_NAME, self.node_name)
        }
        self._answered = True

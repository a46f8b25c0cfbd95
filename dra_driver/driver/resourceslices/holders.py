"""Which of a node's sick devices claims hold, where the API server keeps no taints and what is free is withdrawn.

That is asked at each look at the slices, and while a claim holds a sick device there is a look every 30 seconds. So
what costs least is asked first: the checkpoint, which has what is prepared here; then, by its name, the claim that had
a device when claims were last listed. All claims of the cluster are listed only for the rest: at once for a device for
which they were not listed yet, and from then on ever more seldom.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from dra_driver.driver.claims.checkpoint import Checkpoint
from dra_driver.driver.resourceslices.kept import MAX_HELD_SECONDS, allocated, prepared_names
from dra_driver.driver.resourceslices.taints import HELD_SECONDS
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.objects.resource import ObjectIdentity
from dra_driver.neuron.names import DRIVER_NAME
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Holders:
    """For one thread.

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
        asked = frozenset(devices)
        try:
            prepared = prepared_names(self.checkpoint)
            if prepared is None or asked <= prepared:
                return None if prepared is None else asked
            found = self._allocated(asked - prepared)
            # Anew: what was allocated a moment ago, and prepared since, stays so without its claim.
            prepared = prepared_names(self.checkpoint)
            return None if found is None or prepared is None else found | (asked & prepared)
        except DriverError as error:
            log.warning("it is not known which devices claims hold, so all devices stay published: %s", error)
            return None

    def _allocated(self, devices: frozenset[str]) -> frozenset[str] | None:
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

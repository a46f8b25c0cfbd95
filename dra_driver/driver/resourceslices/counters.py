"""Whether a server is trusted with counters, and so what is published of what is desired."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from dra_driver.driver.resourceslices.messages import Desired
from dra_driver.driver.resourceslices.pool import SharedCounters, counters_problem, dropped_counters, dropped_problem
from dra_driver.driver.resourceslices.writer import trial
from dra_driver.kube.api.codec import ServerVersion
from dra_driver.kube.api.resources import ResourceApi
from dra_driver.kube.objects.resource import Device

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CounterPolicy:
    """Decides whether a server gets devices with counters. For one thread.

    It asks the server for its version, and what it would store, at each choice: so an upgrade, or a feature gate that
    is turned on or off, is noticed at the next look.

    Args:
        api: the API server.
        driver: DRA driver name.
        node: name of the node, and of its pool.
        policy: the administrator's setting.
    """

    api: ResourceApi
    driver: str
    node: str
    policy: SharedCounters
    problem: str = ""
    """Why the devices desired are not the ones published, or ""."""
    _server: ServerVersion = field(default=ServerVersion())
    _dropped_by: ServerVersion | None = None

    def choose(self, desired: Desired) -> tuple[Device, ...]:
        """What to publish now. ApiError when the server cannot be asked."""
        problem = ""
        if any(device.consumes_counters for device in desired.devices):
            self._server = self.api.known_version()
            problem = counters_problem(self._server, self.policy) or self._trial(desired)
        return self._select(desired, problem)

    def choose_without_counters(self, desired: Desired) -> tuple[Device, ...]:
        """What to publish now that the server asked last has not kept counters."""
        self._dropped_by = self._server
        return self._select(desired, dropped_problem(self._server))

    def _trial(self, desired: Desired) -> str:
        dropped = trial(self.api, self.driver, self.node, counters=desired.counters)
        keeps = self._dropped_by != self._server if dropped is None else not dropped_counters(dropped)
        return "" if keeps else dropped_problem(self._server)

    def _select(self, desired: Desired, problem: str) -> tuple[Device, ...]:
        if problem and problem != self.problem:
            log.warning(
                "devices that overlap are not offered: %s; %d of %d devices are published",
                problem,
                len(desired.fallback),
                len(desired.devices),
            )
        elif self.problem and not problem:
            log.info("all %d devices can be offered now", len(desired.devices))
        self.problem = problem
        return desired.fallback if problem else desired.devices

"""Chooses between devices that share counters and the ones to publish where counters cannot be trusted."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from dra_driver.kube.api import ResourceApi
from dra_driver.kube.errors import ApiError
from dra_driver.kube.types import Device, ServerVersion
from dra_driver.slices.counters import SharedCounters, counters_problem
from dra_driver.slices.inbox import Desired

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CounterPolicy:
    """For one thread. It asks the server for its version at each choice, so an upgrade is noticed at the next look.

    Args:
        api: the API server.
        policy: the administrator's setting.
    """

    api: ResourceApi
    policy: SharedCounters
    problem: str = ""
    """Why the devices desired are not the ones published, or ""."""
    _server: ServerVersion = field(default=ServerVersion())
    _dropped_by: ServerVersion | None = None

    def choose(self, desired: Desired) -> tuple[Device, ...]:
        """What to publish now. ApiError when the server cannot be asked."""
        problem = ""
        if any(device.consumes_counters for device in desired.devices):
            self._server = self._ask()
            problem = counters_problem(self._server, self.policy, self._dropped_by)
        return self._chosen(desired, problem)

    def counters_dropped(self, desired: Desired) -> tuple[Device, ...]:
        """What to publish now that the server asked last has not kept counters."""
        self._dropped_by = self._server
        return self._chosen(desired, counters_problem(self._server, self.policy, self._dropped_by))

    def _chosen(self, desired: Desired, problem: str) -> tuple[Device, ...]:
        if problem and problem != self.problem:
            log.warning("node and chips are not offered together: %s; the layout node is published instead", problem)
        elif self.problem and not problem:
            log.info("node and chips can be offered together now")
        self.problem = problem
        return desired.fallback if problem else desired.devices

    def _ask(self) -> ServerVersion:
        try:
            return self.api.server_version()
        except ApiError as error:
            if error.status not in (401, 403, 404):
                raise
            return ServerVersion()

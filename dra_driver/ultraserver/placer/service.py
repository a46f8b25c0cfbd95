"""The placer as a whole: a candidate in the election that assigns groups while it leads."""

from __future__ import annotations

import logging
import time
from typing import Final

from dra_driver.kube.api import Collection
from dra_driver.kube.client import Transport
from dra_driver.kube.election import REQUEST_SECONDS, Election, Times
from dra_driver.kube.types import LEASES
from dra_driver.ultraserver.placer.controller import Placer
from dra_driver.ultraserver.placer.values import Rules
from dra_driver.util.worker import STOP_SECONDS, Backoff, Worker

LEASE_NAME: Final = "neuron-dra-driver-placer"
RESIGN_SECONDS: Final = 8.0
"""Part of the time to stop that is reserved for releasing the lease."""

log = logging.getLogger(__name__)


class Service:
    """Runs in threads of its own.

    Args:
        transport: the API server.
        namespace: of the lease and the ConfigMap.
        identity: in the lease; unique to this process.
        rules: settings.
        times: of the election.
    """

    def __init__(
        self, transport: Transport, namespace: str, identity: str, rules: Rules, times: Times | None = None
    ) -> None:
        self._transport = transport
        self._namespace = namespace
        self._rules = rules
        self._worker = Worker("the placer", self._term, backoff=Backoff(first=1.0, cap=10.0))
        self._placer: Placer | None = None
        leases = Collection(transport, LEASES, timeout=REQUEST_SECONDS)
        self._election = Election(leases, namespace, LEASE_NAME, identity, times, self._wake)
        self._uncertain = False

    def start(self) -> None:
        """Become a candidate."""
        self._worker.start()
        self._election.start()

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Finish what is under way, then release the lease, all within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        self._worker.stop(0)
        self._wake()
        ended = self._worker.stop(max(0.0, timeout - RESIGN_SECONDS))
        # The next leader must not begin before the last write of this one is decided.
        uncertain = not ended or self._uncertain
        if uncertain:
            log.warning("a request is still under way, so the lease is not released; it expires by itself")
        self._election.stop(max(0.0, deadline - time.monotonic()), hand_over=not uncertain)

    @property
    def leads(self) -> bool:
        """Whether this replica acts."""
        return self._election.may_act()

    def stuck(self) -> list[str]:
        """For a liveness probe: which threads hang or have died. After a restart, another candidate takes over."""
        return [text for worker in self._workers() if (text := worker.stuck())]

    def problems(self) -> list[str]:
        """For a readiness probe: why it cannot work; waiting for the lease is not a problem."""
        placer = self._placer
        texts = [self._election.last_error, placer.last_error if placer is not None else ""]
        return [text for text in (*texts, *(worker.problem() for worker in self._workers())) if text]

    def _workers(self) -> list[Worker]:
        placer = self._placer
        return [self._election.worker, self._worker, *(placer.followers if placer is not None else ())]

    def _wake(self) -> None:
        self._worker.wake()
        placer = self._placer
        if placer is not None:
            placer.wake()

    def _term(self) -> float:
        """Assign groups for as long as this one leads."""
        if not self._election.may_act():
            return 10.0
        # Each term begins with fresh lists: another leader may have changed what was known before.
        placer = Placer(self._transport, self._namespace, self._rules, self._election.may_act, self._worker.well)
        self._placer = placer
        try:
            placer.run(lambda: self._worker.stopping)
        finally:
            self._uncertain = placer.uncertain
            self._placer = None
        return 0.0

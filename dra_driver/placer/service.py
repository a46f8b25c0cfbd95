"""The placer as a whole: a candidate of the election that places groups while it leads."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from dra_driver.kube.collection import Collection
from dra_driver.kube.election import REQUEST_SECONDS, Election, Times
from dra_driver.kube.records import LEASES
from dra_driver.kube.transport import Transport
from dra_driver.placer.controller import Placer
from dra_driver.placer.values import Rules

LEASE_NAME: Final = "neuron-dra-driver-placer"
STUCK_SECONDS: Final = 120.0
"""Longer than any request with its retries: a thread that has not come round since then does not work any more."""

log = logging.getLogger(__name__)


class Service:
    """Runs in threads of its own.

    Args:
        transport: the API server.
        namespace: of the lease and of the memory.
        identity: in the lease; of no other process.
        rules: settings.
        times: of the election.
    """

    def __init__(
        self, transport: Transport, namespace: str, identity: str, rules: Rules, times: Times | None = None
    ) -> None:
        self._transport = transport
        self._namespace = namespace
        self._rules = rules
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._placer: Placer | None = None
        leases = Collection(transport, LEASES, timeout=REQUEST_SECONDS)
        self._election = Election(leases, namespace, LEASE_NAME, identity, times, self._wake)
        self._thread = threading.Thread(target=self._run, name="placer", daemon=True)
        self._last_round = time.monotonic()
        self._uncertain = False

    def start(self) -> None:
        """Become a candidate."""
        self._thread.start()
        self._election.start()

    def stop(self, timeout: float = 20.0) -> None:
        """End what is under way, then hand the lease over."""
        self._stopping.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(timeout)
        # The next leader must not begin before the last write of this one is decided.
        uncertain = self._thread.is_alive() or self._uncertain
        if uncertain:
            log.warning("a request is under way still, so the lease is not handed over; it ends by itself")
        self._election.stop(hand_over=not uncertain)

    @property
    def leads(self) -> bool:
        """Whether this one acts."""
        return self._election.may_act()

    def stuck(self) -> list[str]:
        """For a liveness probe: which threads have not come round for long."""
        placer = self._placer
        rounds = {"the election": self._election.last_round, "the placer": self._last_round}
        if placer is not None:
            rounds["the placer"] = placer.last_look
        now = time.monotonic()
        return [
            f"{name} has stood still for {now - at:.0f} s" for name, at in rounds.items() if now - at > STUCK_SECONDS
        ]

    def problems(self) -> list[str]:
        """For a readiness probe: why nothing can be done; waiting for the lease is no problem."""
        placer = self._placer
        texts = [self._election.last_error, placer.last_error if placer is not None else ""]
        return [text for text in texts if text]

    def _wake(self) -> None:
        self._changed.set()
        placer = self._placer
        if placer is not None:
            placer.wake()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._last_round = time.monotonic()
            if self._election.may_act():
                # Each term begins with new lists: what was known before may have been changed by another leader.
                self._placer = Placer(self._transport, self._namespace, self._rules, self._election.may_act)
                try:
                    self._placer.run(self._stopping.is_set)
                except Exception:
                    log.exception("placing failed in a way that nobody foresaw; it begins anew")
                    self._stopping.wait(1.0)
                finally:
                    self._uncertain = self._placer.uncertain
                    self._placer = None
            else:
                self._changed.wait(10.0)
                self._changed.clear()

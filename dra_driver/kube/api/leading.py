"""Controllers of which one replica acts: a candidate in an election, and what it does while it leads.

``Leading`` is the program, ``Term`` one term of a leader: from its election until it no longer leads. A term keeps no
state that a successor needs in memory; ``KeptText`` is for what no other object can hold.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from dra_driver.kube.api.client import REQUEST_SECONDS, Transport
from dra_driver.kube.api.codec import CONFIG_MAPS, LEASES
from dra_driver.kube.api.election import Election, Times
from dra_driver.kube.api.errors import ApiError
from dra_driver.kube.api.resources import Collection
from dra_driver.kube.api.watch import Informer
from dra_driver.kube.objects.core import ConfigMap
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.util import runtime
from dra_driver.util.errors import DriverError
from dra_driver.util.worker import MAX_ROUND_SECONDS, STOP_SECONDS, Backoff, Worker

RESIGN_SECONDS: Final = 8.0
"""Part of the time to stop that is reserved for releasing the lease."""
SETTLE_SECONDS: Final = 0.05
"""Objects that belong together are created one after the other: they are handled together."""

log = logging.getLogger(__name__)


class Term(ABC):
    """Watches the cluster, and looks at it whenever it changes and at least every ``look_seconds``.

    Args:
        may_act: to be asked before each write; see ``Election.may_act``.
        well: called after each look with the seconds until the next one at the latest (see ``Worker.well``).
        look_seconds: longest time between two looks, since deadlines pass without a change in the cluster.
        clock: Unix time. It is read once, and from then on monotonic seconds are counted: the clock of a machine may
            be set, and nothing gets older by that.
    """

    def __init__(
        self,
        may_act: Callable[[], bool],
        well: Callable[[float], None],
        look_seconds: float,
        clock: Callable[[], float] = runtime.now,
    ) -> None:
        start = clock() - runtime.monotonic()
        self._clock: Callable[[], float] = lambda: start + runtime.monotonic()
        self._may_act = may_act
        self._well = well
        self._look_seconds = look_seconds
        self._wake = runtime.event()
        self._surprised = False
        """An object was not as expected, so the next look is due soon."""
        self._backoff = Backoff(cap=10.0)
        self.last_error = ""
        """Why the last look failed, or ""."""

    @abstractmethod
    def informers(self) -> Sequence[Informer[Any]]:
        """What is watched."""

    @abstractmethod
    def look(self) -> None:
        """One decision and its actions, on collections that are all current."""

    @property
    @abstractmethod
    def uncertain(self) -> bool:
        """Whether a write got no answer that must be decided before another leader may begin."""

    def run(self, stopping: Callable[[], bool]) -> None:
        """Watch, decide and act until ``stopping`` or ``may_act`` say otherwise."""
        for informer in self.informers():
            informer.start()
        try:
            while not stopping() and self._may_act():
                began = runtime.monotonic()
                wait = self._round()
                self._well(wait + MAX_ROUND_SECONDS)
                # In a large cluster a decision takes half a second; half of the time is left for incoming changes.
                spent = runtime.monotonic() - began
                if self._wake.wait(wait):
                    runtime.sleep(max(SETTLE_SECONDS, min(spent, self._look_seconds)))
                    self._wake.clear()
        finally:
            for informer in self.informers():
                informer.stop(0)  # nobody is interested in what they see from now on

    @property
    def followers(self) -> list[Worker]:
        """The loops of its informers, for health reports."""
        return [informer.worker for informer in self.informers()]

    def wake(self) -> None:
        """Check ``stopping`` and ``may_act`` now, and look."""
        self._wake.set()

    def _round(self) -> float:
        """One look; returns the seconds until the next one if nothing changes."""
        try:
            self._look_if_current()
        except DriverError as error:
            self.last_error = str(error)
            asked = error.retry_after if isinstance(error, ApiError) else None
            wait = self._backoff.next(asked)
            log.warning("some actions failed: %s (next try in %.1f s)", error, wait)
            return min(wait, self._look_seconds) if asked is None else wait
        self.last_error = ""
        if self._surprised:
            self._surprised = False
            return min(self._backoff.next(), self._look_seconds)
        self._backoff.reset()
        return self._look_seconds

    def _look_if_current(self) -> None:
        informers = self.informers()
        if all(informer.current for informer in informers):
            self.look()
            return
        trouble = next((informer.last_error for informer in informers if informer.last_error), "")
        if trouble:
            raise DriverError(trouble, consequence="no decisions are made until the cluster can be watched again")


class Leading:
    """The controller as a whole, in threads of its own.

    Args:
        name: of the controller, for the log, such as "the placer".
        transport: the API server.
        namespace: of the lease.
        lease: its name.
        identity: in the lease; unique to this process.
        make: makes a term from ``may_act`` and ``well`` (see ``Term``). Each term begins with fresh lists: another
            leader may have changed what was known before.
        times: of the election.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        namespace: str,
        lease: str,
        identity: str,
        make: Callable[[Callable[[], bool], Callable[[float], None]], Term],
        times: Times | None = None,
    ) -> None:
        self._make = make
        self._worker = Worker(name, self._lead, backoff=Backoff(first=1.0, cap=10.0))
        self._term: Term | None = None
        leases = Collection(transport, LEASES, timeout=REQUEST_SECONDS)
        self._election = Election(leases, namespace, lease, identity, times, self._wake)
        self._uncertain = False

    def start(self) -> None:
        """Become a candidate."""
        self._worker.start()
        self._election.start()

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Finish what is under way, then release the lease, all within ``timeout`` seconds."""
        deadline = runtime.monotonic() + timeout
        self._worker.stop(0)
        self._wake()
        ended = self._worker.stop(max(0.0, timeout - RESIGN_SECONDS))
        # The next leader must not begin before the last write of this one is decided.
        uncertain = not ended or self._uncertain
        if uncertain:
            log.warning("a request is still under way, so the lease is not released; it expires by itself")
        self._election.stop(max(0.0, deadline - runtime.monotonic()), hand_over=not uncertain)

    @property
    def leads(self) -> bool:
        """Whether this replica acts."""
        return self._election.may_act()

    @property
    def stopping(self) -> bool:
        """Whether it is to stop; slow work should check this."""
        return self._worker.stopping

    def stuck(self) -> list[str]:
        """For a liveness probe: which threads hang or have died. After a restart, another candidate takes over."""
        return [text for worker in self._workers() if (text := worker.stuck())]

    def problems(self) -> list[str]:
        """For a readiness probe: why it cannot work; waiting for the lease is not a problem."""
        term = self._term
        texts = [self._election.last_error]
        if term is not None:
            texts += [term.last_error, *(informer.last_error for informer in term.informers())]
        texts += [worker.problem() for worker in self._workers()]
        return list(dict.fromkeys(text for text in texts if text))

    def _workers(self) -> list[Worker]:
        term = self._term
        return [self._election.worker, self._worker, *(term.followers if term is not None else ())]

    def _wake(self) -> None:
        self._worker.wake()
        term = self._term
        if term is not None:
            term.wake()

    def _lead(self) -> float:
        """Act for as long as this one leads."""
        if not self._election.may_act():
            return 10.0
        term = self._make(self._election.may_act, self._worker.well)
        self._term = term
        try:
            term.run(lambda: self._worker.stopping)
        finally:
            self._uncertain = term.uncertain
            self._term = None
        return 0.0


class KeptText:
    """One text in a ConfigMap of the controller. Read once a term. Methods raise ApiError.

    Args:
        transport: the API server.
        namespace: of the ConfigMap.
        name: of the ConfigMap.
        key: of the text in it.
    """

    def __init__(self, transport: Transport, namespace: str, name: str, key: str) -> None:
        self._maps = Collection(transport, CONFIG_MAPS, timeout=REQUEST_SECONDS)
        self._namespace, self._name, self._key = namespace, name, key
        self._known: str | None = None
        self._version = ""

    def read(self) -> str:
        """The text; "" if there is none."""
        if self._known is None:
            try:
                self._learn(self._maps.get(self._namespace, self._name))
            except ApiError as error:
                if not error.object_missing:
                    raise
                self._known, self._version = "", ""
        return self._known or ""

    def write(self, text: str) -> None:
        """Replace it. After an error, it is read again before the next write."""
        meta = ObjectMeta(name=self._name, namespace=self._namespace, resource_version=self._version)
        document = ConfigMap(meta, {self._key: text})
        try:
            if self._version:
                self._learn(self._maps.replace(self._namespace, self._name, document))
            else:
                self._learn(self._maps.create(self._namespace, document))
        except ApiError:
            self._known = None
            raise

    def _learn(self, stored: ConfigMap) -> None:
        self._known = (stored.data or {}).get(self._key, "")
        self._version = stored.metadata.resource_version
